"""Finished runs as rows of one CSV: results that can be traced to a commit, a config and a machine."""

import csv
import json
import platform
from pathlib import Path

import numpy as np

from seft.data.dataset import open_dataset
from seft.evaluation.prediction import predict
from seft.metrics.summary import of_task
from seft.training.recipe import Recipe
from seft.training.run import load

COLUMNS = (
    *("dataset", "model", "preset", "seed", "split", "auroc", "auprc", "accuracy", "balanced_accuracy"),
    *("utility", "threshold", "epochs", "train_seconds", "parameters", "commit", "machine", "note"),
)


def append(path: Path, run: Path, dataset: Path, preset: str | None, note: str, split: str = "test") -> None:
    """Judge a finished run at its own threshold and add its row; the header stands in a new file."""
    predictor, data = load(run), open_dataset(dataset)
    recipe = Recipe.read(run / "config.yaml")
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    environment = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    answers = predict(predictor, data, data.split(split))
    metrics = of_task(
        predictor.task, answers.label, answers.logits, answers.offsets, threshold=predictor.threshold
    )
    row = {
        "dataset": data.source,
        "model": recipe.model,
        "preset": preset or "",
        "seed": recipe.training.seed,
        "split": split,
        **{name: _rounded(metrics.get(name)) for name in COLUMNS[5:10]},
        "threshold": _rounded(predictor.threshold),
        "epochs": result["epochs"],
        "train_seconds": round(result["seconds"], 1),
        "parameters": result["parameters"],
        "commit": environment["commit"] or "",
        "machine": f"{platform.machine()} {environment['device']}, {environment['threads']} threads",
        "note": note,
    }
    new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(row)


def _rounded(number: float | None) -> str:
    """Four digits after the point; blank where the task has no such number."""
    return "" if number is None or np.isnan(number) else f"{number:.4f}"
