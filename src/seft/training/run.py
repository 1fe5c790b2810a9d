"""A run folder: from a recipe and a dataset to a saved predictor, and everything needed to repeat it.

RUN/config.yaml              the recipe, complete, with the dataset and what was decided by itself
RUN/environment.json         versions, device, commit
RUN/metrics.jsonl            a line an epoch
RUN/checkpoint.safetensors   what an interrupted run goes on from
RUN/predictor/               the model of the best epoch, calibrated on validation
RUN/result.json              what the training came to; there when it is finished
"""

import json
import platform
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

import seft
from seft.data.batch import Batch
from seft.data.dataset import Dataset, Rows, open_dataset
from seft.data.loader import Held, Source
from seft.error import InputError
from seft.metrics.calibration import fit_affine, fit_temperature
from seft.metrics.utility import best_threshold
from seft.models.base import Model
from seft.models.predictor import Calibration, Predictor
from seft.models.registry import model_class
from seft.training.fit import (
    Epoch,
    fit,
    join_ranks,
    leads,
    parts_by_observations,
    predict,
    wait_for_ranks,
)
from seft.training.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A finished run."""

    predictor: Predictor
    epochs: int
    best_epoch: int
    best: float  # the task's metric on validation
    seconds: float


def device_of(asked: str | None = None) -> torch.device:
    """CUDA where there is one, else Apple's, else the CPU."""
    if asked is not None:
        return torch.device(asked)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def train(
    recipe: Recipe,
    dataset_path: Path,
    out: Path,
    *,
    device: str | None = None,
    tell: Callable[[Epoch], None] = lambda epoch: None,
) -> Trained:
    """Train into the folder `out`; where a run of the same recipe was interrupted, go on from there."""
    recipe.check()
    dataset = open_dataset(dataset_path)
    if dataset.task is None:
        raise InputError(f"{dataset_path}: has no labels to learn from")
    for split in ("train", "val"):
        dataset.split(split)  # says which splits there are, if this one is not
    join_ranks()
    chosen = device_of(device)
    if leads():
        _claim(out, recipe, dataset_path, chosen)
    wait_for_ranks()
    torch.manual_seed(recipe.training.seed)
    model = model_class(recipe.model)(recipe.config, dataset.schema, dataset.task).to(chosen)
    source = _source(dataset, chosen)
    model.adapt(_batches(dataset, source, dataset.split("train"), chosen))
    fitted = fit(model, dataset, source, recipe.training, folder=out, tell=tell)
    predictor = _calibrated(recipe.model, model, dataset, source)
    result = {
        "epochs": fitted.epochs,
        "best_epoch": fitted.best_epoch,
        "best": fitted.best,
        "seconds": fitted.seconds,
        "parameters": model.parameters_count(),
        "threshold": predictor.threshold,
    }
    if leads():
        predictor.save(out / "predictor")
        _write_json(out / "result.json", result)
    wait_for_ranks()
    return Trained(
        predictor=predictor,
        epochs=fitted.epochs,
        best_epoch=fitted.best_epoch,
        best=fitted.best,
        seconds=fitted.seconds,
    )


def load(run: Path) -> Predictor:
    """The predictor of a run folder, or a saved predictor itself."""
    return Predictor.load(run / "predictor" if (run / "predictor").is_dir() else run)


def dataset_of(run: Path) -> Path:
    """The dataset that a run was trained on."""
    config = run / "config.yaml"
    if not config.is_file():
        raise InputError(f"{run} is no run folder that names its dataset; give the DATASET after it")
    return Path(yaml.safe_load(config.read_text(encoding="utf-8"))["dataset"])


def _claim(out: Path, recipe: Recipe, dataset: Path, device: torch.device) -> None:
    """Make the folder, or see that it is of the same run."""
    config = out / "config.yaml"
    if config.exists():
        if Recipe.read(config) != recipe:
            raise InputError(f"{out} holds a run of another configuration; choose another --out")
        return
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} exists and holds no run; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    _write_json(out / "environment.json", _environment(device))
    config.write_text(recipe.to_yaml({"dataset": str(dataset.resolve())}), encoding="utf-8")


def _environment(device: torch.device) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "seft": seft.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": f"{device.type} {name}".strip(),
        "threads": torch.get_num_threads(),
    }


def commit() -> str | None:
    """The commit of the source that runs, where it runs from a checkout."""
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(seft.__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() or None


def _source(dataset: Dataset, device: torch.device) -> Source:
    """On an accelerator the whole dataset is held there, where it fits into half of what is free."""
    if device.type != "cuda":
        return dataset
    free, _ = torch.cuda.mem_get_info(device)
    needed = int(dataset.rows("observations").sum()) * 20 + int(dataset.rows("queries").sum()) * 16
    return Held(dataset, np.arange(len(dataset)), device) if needed < free / 2 else dataset


def _batches(dataset: Dataset, source: Source, rows: Rows, device: torch.device) -> Iterator[Batch]:
    for part in parts_by_observations(rows, dataset.observations(rows)):
        yield source.batch(part).to(device)


def _calibrated(name: str, model: Model, dataset: Dataset, source: Source) -> Predictor:
    """Calibration and threshold from the validation split."""
    task = model.task
    rows = dataset.split("val")
    parts = [
        (logits.numpy(), batch.label.cpu().numpy()) for batch, logits in predict(model, dataset, source, rows)
    ]
    logits, label = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if task.kind == "multiclass":
        number = np.where(np.isnan(label).any(1), np.nan, label.argmax(1))
        temperature, bias = fit_temperature(number, logits)
        calibration = Calibration(slope=(1 / temperature,) * task.outputs, bias=tuple(bias.tolist()))
    else:
        slopes, biases = zip(
            *(fit_affine(label[:, c], logits[:, c]) for c in range(task.outputs)), strict=True
        )
        calibration = Calibration(slope=slopes, bias=biases)
    threshold = 0.0
    if task.utility:
        offsets = np.concatenate(([0], np.cumsum(dataset.queries(rows))))
        found, _ = best_threshold(label[:, 0], logits[:, 0], offsets)
        threshold = found if np.isfinite(found) else 0.0
    return Predictor(name=name, model=model, calibration=calibration, threshold=threshold)


def _write_json(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
