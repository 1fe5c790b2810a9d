"""The training loop: draw, step, validate, keep the best; killed at any moment it goes on where it was."""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
from torch import Tensor

from seft.data.batch import Batch
from seft.data.dataset import Dataset, Rows
from seft.data.loader import Plan, Source, balanced, balanced_steps, in_order, share, shuffled
from seft.error import InputError
from seft.metrics.summary import of_task
from seft.models.base import Model
from seft.training import checkpoint
from seft.training.config import TrainingConfig
from seft.training.optimizer import Average, Plateau, learning_rate, optimizer_of

PREDICTED_AT_ONCE = 200_000  # observations; a batch of predictions takes no more memory than one of training


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What an epoch came to; a line of `metrics.jsonl`."""

    epoch: int
    loss: float
    metrics: dict[str, float]  # on validation
    best: float
    best_epoch: int
    learning_rate: float
    seconds: float  # training steps and the validation pass

    def line(self) -> str:
        """For people who watch."""
        metrics = "  ".join(
            f"{name} {self.metrics[name]:.4f}" for name in ("auroc", "auprc", "balanced_accuracy")
        )
        return (
            f"epoch {self.epoch:>3}  loss {self.loss:.4f}  {metrics}  "
            f"best {self.best:.4f} at {self.best_epoch}  {self.seconds:.1f} s"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "loss": self.loss,
            **{f"val_{name}": value for name, value in self.metrics.items()},
            "best": self.best,
            "best_epoch": self.best_epoch,
            "learning_rate": self.learning_rate,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A finished training: the model has the weights of its best epoch."""

    model: Model
    epochs: int
    best_epoch: int
    best: float
    seconds: float


class Run:
    """One training under way; everything that changes is in here and in its checkpoint."""

    def __init__(self, model: Model, dataset: Dataset, source: Source, config: TrainingConfig) -> None:
        self.model, self.dataset, self.source, self.config = model, dataset, source, config
        self.rows = _labelled(dataset, "train")
        self.validation = _labelled(dataset, "val")
        self.optimizer = optimizer_of(model.parameters(), config)
        self.plateau = Plateau(config)
        self.average = None if config.averaging is None else Average(model, config.averaging)
        self.best_weights = _weights(model)
        self.state: dict[str, Any] = {
            "epoch": 0,
            "step": 0,
            "best": -float("inf"),
            "best_epoch": 0,
            "seconds": 0.0,
        }
        self.weights = (
            None
            if config.class_weights is None
            else torch.tensor(config.class_weights, dtype=torch.float32, device=model.device)
        )

    # --- an epoch ------------------------------------------------------------------------------------

    def epoch(self) -> Epoch:
        begin = time.perf_counter()
        number = self.state["epoch"] + 1
        plan = self._plan(number)
        loss = self._train(plan)
        metrics = self._validate()
        monitored = metrics[self.model.task.metric]
        if monitored > self.state["best"] + self.config.min_delta:
            self.state |= {"best": monitored, "best_epoch": number}
            self.best_weights = _weights(self.model) if self.average is None else _copy(self.average.weights)
        rate = self.optimizer.param_groups[0]["lr"]
        self.plateau.observe(monitored)
        seconds = time.perf_counter() - begin
        self.state |= {"epoch": number, "seconds": self.state["seconds"] + seconds}
        return Epoch(
            epoch=number,
            loss=loss,
            metrics=metrics,
            best=self.state["best"],
            best_epoch=self.state["best_epoch"],
            learning_rate=rate,
            seconds=seconds,
        )

    @property
    def done(self) -> bool:
        epoch, best = int(self.state["epoch"]), int(self.state["best_epoch"])
        return epoch >= self.config.max_epochs or epoch - best >= self.config.patience

    def _plan(self, epoch: int) -> Plan:
        config, size = self.config, self.config.series_a_step(len(self.rows))
        if config.sampling == "natural":
            return shuffled(self.rows, size, seed=config.seed, epoch=epoch)
        classes = self.dataset.classes(self.rows)
        return balanced(self.rows, classes, size, seed=config.seed, epoch=epoch)

    def _steps(self) -> int:
        """How many steps the whole training would take; schedules run over them."""
        config, size = self.config, self.config.series_a_step(len(self.rows))
        if config.sampling == "natural":
            an_epoch = -(-len(self.rows) // size)
        else:
            classes = self.dataset.classes(self.rows)
            counts = np.bincount(classes[classes >= 0])
            an_epoch = balanced_steps(counts[counts > 0].tolist(), size)
        return an_epoch * config.max_epochs

    def _train(self, plan: Plan) -> float:
        """The mean loss over the scored labels of an epoch."""
        self.model.train()
        total, count = 0.0, 0.0
        steps = self._steps()
        for rows in share(plan, *_rank_and_world()):
            loss, scored = self._step(rows, steps)
            total, count = total + loss, count + scored
        return total / max(count, 1.0)

    def _step(self, rows: Rows, steps: int) -> tuple[float, float]:
        """One step; the sum of the losses and the count of labels of all ranks."""
        step = self.state["step"]
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, step, steps, self.plateau.factor)
        # Dropout depends on the seed, the step and the rank alone: a resumed run draws what it would have.
        torch.manual_seed(_seed_of(self.config.seed, step, _rank_and_world()[0]))
        batch = self.source.batch(rows).to(self.model.device)
        loss, scored = self.model.objective(batch, self.weights)
        sums = summed_over_ranks(torch.stack([loss.detach(), scored.to(loss.dtype)]))
        self.optimizer.zero_grad(set_to_none=True)
        (loss / sums[1].clamp(min=1)).backward()  # type: ignore[no-untyped-call]
        add_gradients_of_ranks(self.model)
        total, count = sums.tolist()
        if not np.isfinite(total):
            raise InputError(
                f"the loss became {total} at step {step + 1} (epoch {self.state['epoch'] + 1}, series "
                f"{', '.join(self.dataset.ids(rows[:3]))} …); lower --learning-rate or look at their values. "
                "The last good weights are kept"
            )
        if self.config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()
        if self.average is not None:
            self.average.update(self.model)
        self.state["step"] = step + 1
        return total, count

    def _validate(self) -> dict[str, float]:
        if self.average is None:
            return validate(self.model, self.dataset, self.source, self.validation)
        trained = _weights(self.model)
        self.model.load_state_dict(self.average.weights)
        metrics = validate(self.model, self.dataset, self.source, self.validation)
        self.model.load_state_dict(trained)
        return metrics

    # --- surviving -----------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        parts = {
            "model": _weights(self.model),
            "best": self.best_weights,
            "optimizer": checkpoint.optimizer_tensors(self.optimizer),
        }
        state = self.state | {"plateau": self.plateau.state}
        if self.average is not None:
            parts["average"] = self.average.weights
            state |= {"averaged": self.average.steps}
        checkpoint.save(path, parts, state)

    def load(self, path: Path) -> None:
        parts, state = checkpoint.load(path)
        self.plateau.state = state.pop("plateau")
        averaged = state.pop("averaged", 0)
        try:
            self.model.load_state_dict(parts["model"])
            checkpoint.restore_optimizer(self.optimizer, parts["optimizer"])
            self.best_weights = parts["best"]
            if self.average is not None:
                self.average.weights, self.average.steps = parts["average"], averaged
        except (KeyError, RuntimeError) as error:
            raise InputError(f"{path}: is of another model ({str(error).splitlines()[0]})") from None
        self.state = state


def fit(
    model: Model,
    dataset: Dataset,
    source: Source,
    config: TrainingConfig,
    *,
    folder: Path | None = None,
    tell: Callable[[Epoch], None] = lambda epoch: None,
) -> Fitted:
    """Train until nothing improves; with a `folder`, leave a checkpoint and a line of metrics an epoch.

    A folder that holds a checkpoint is gone on from; the result is that of an unbroken run.
    """
    torch.manual_seed(config.seed)
    run = Run(model, dataset, source, config)
    saved = None if folder is None else folder / "checkpoint.safetensors"
    if saved is not None and saved.exists():
        run.load(saved)
    while not run.done:
        epoch = run.epoch()
        if leads():
            if folder is not None and saved is not None:
                run.save(saved)
                _write_lines(folder / "metrics.jsonl", epoch)
            tell(epoch)
    model.load_state_dict(run.best_weights)
    model.eval()
    return Fitted(
        model=model,
        epochs=run.state["epoch"],
        best_epoch=run.state["best_epoch"],
        best=run.state["best"],
        seconds=run.state["seconds"],
    )


def _write_lines(path: Path, epoch: Epoch) -> None:
    """A line an epoch; those of epochs that a killed run did not save are written over."""
    lines = path.read_text(encoding="utf-8").splitlines()[: epoch.epoch - 1] if path.exists() else []
    path.write_text("\n".join([*lines, json.dumps(epoch.to_json())]) + "\n", encoding="utf-8")


# --- predicting ------------------------------------------------------------------------------------


@torch.no_grad()
def predict(model: Model, dataset: Dataset, source: Source, rows: Rows) -> Iterator[tuple[Batch, Tensor]]:
    """Some series in their order, batch by batch, with the logits (Q, C) of their queries on the host."""
    model.eval()
    for part in parts_by_observations(rows, dataset.observations(rows)):
        batch = source.batch(part).to(model.device)
        yield batch, model(batch).float().cpu()


def validate(model: Model, dataset: Dataset, source: Source, rows: Rows) -> dict[str, float]:
    parts = [(batch.label.cpu(), logits) for batch, logits in predict(model, dataset, source, rows)]
    labels, logits = (torch.cat(columns).numpy() for columns in zip(*parts, strict=True))
    return of_task(model.task, labels, logits)


def parts_by_observations(rows: Rows, observations: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[Rows]:
    """Consecutive rows, cut where their observations fill a batch."""
    part = (np.cumsum(observations) - observations) // PREDICTED_AT_ONCE
    for begin in in_order(np.unique(part), 1):
        yield rows[part == begin[0]]


# --- pieces ----------------------------------------------------------------------------------------


def _labelled(dataset: Dataset, split: str) -> Rows:
    """The rows of a split that can be learnt from or judged by."""
    rows = dataset.split(split)
    if dataset.task is not None and dataset.task.kind != "multilabel":
        classes = dataset.classes(rows)
        rows = rows[classes >= 0]
        if not len(rows):
            raise InputError(f"{dataset.path}: all labels of the split {split!r} are missing")
        if len(np.unique(classes[classes >= 0])) < 2:
            raise InputError(f"{dataset.path}: all series of the split {split!r} are of one class")
    return rows


def _seed_of(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def _weights(model: Model) -> dict[str, Tensor]:
    return _copy(model.state_dict())


def _copy(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in weights.items()}


def _rank_and_world() -> tuple[int, int]:
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def leads() -> bool:
    """Whether this process is the one that writes and speaks: the first of several, or the only one."""
    return _rank_and_world()[0] == 0


def wait_for_ranks() -> None:
    """Until every process has come here."""
    if _rank_and_world()[1] > 1:
        distributed.barrier()


def summed_over_ranks(sums: Tensor) -> Tensor:
    if _rank_and_world()[1] > 1:
        distributed.all_reduce(sums)
    return sums


def add_gradients_of_ranks(model: Model) -> None:
    """Each rank has divided by the count of all, so the gradients of one process are the sum of theirs."""
    if _rank_and_world()[1] > 1:
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad)


def join_ranks() -> None:
    """Under `torchrun`, meet the other processes; alone, do nothing."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not distributed.is_initialized():
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
