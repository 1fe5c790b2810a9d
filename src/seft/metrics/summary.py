"""Which numbers judge a task: the one place that decides."""

from collections.abc import Callable, Sequence
from math import nan

import numpy as np

from seft.data.task import Task
from seft.error import InputError
from seft.metrics.calibration import binned_error
from seft.metrics.ranking import Array, Floats, Ranked, mean, probability, surprise
from seft.metrics.utility import normalise, utility_parts

Summary = Callable[[Array | None], dict[str, float]]  # under a weight (Q,), every row once if None
BY_CLASS = ("auroc", "auprc")  # also told class by class, as `auroc_NAME`


def of_task(
    task: Task,
    label: Array,
    logits: Array,
    offsets: Array | None = None,
    *,
    threshold: float = 0.0,
    calibrated: Array | None = None,
    weight: Array | None = None,
) -> dict[str, float]:
    """The task's metrics by name; `prepare` has the shapes."""
    return prepare(task, label, logits, offsets, threshold=threshold, calibrated=calibrated)(weight)


def prepare(
    task: Task,
    label: Array,
    logits: Array,
    offsets: Array | None = None,
    *,
    threshold: float = 0.0,
    calibrated: Array | None = None,
) -> Summary:
    """Sort once, weigh often: what a bootstrap draws from.

    label and logits (Q, C) as in a batch, NaN where unscored; series b owns rows offsets[b]:offsets[b+1],
    needed for the utility alone. The threshold of a call acts on the logit; log-loss, Brier score and
    calibration error judge the calibrated logits (Q, C) where there are any. Where a task has several
    classes, each is judged against the rest, and the mean is of those where the number is defined.
    """
    shown = logits if calibrated is None else calibrated
    _check(task, label, logits, shown)
    if task.kind == "binary":
        binary = _binary(label[:, 0], logits[:, 0], shown[:, 0], threshold)
        if not task.utility or offsets is None:
            return binary
        gained, possible = utility_parts(label[:, 0], logits[:, 0], offsets, threshold)

        def with_utility(weight: Array | None) -> dict[str, float]:
            every = np.ones(len(gained)) if weight is None else weight
            return binary(weight) | {"utility": normalise(gained, possible, every)}

        return with_utility
    if task.kind == "multilabel":
        return _macro(task.classes, label, logits, shown, threshold)
    return _multiclass(task.classes, label, logits, shown)


def _check(task: Task, label: Array, logits: Array, shown: Array) -> None:
    if not label.shape == logits.shape == shown.shape == (len(label), task.outputs):
        raise ValueError(f"not all (Q, {task.outputs}): label, logits, calibrated, or the task is another")
    bad = ~(np.isfinite(logits) & np.isfinite(shown)).all(1)
    if bad.any():
        raise InputError(f"the model's answer to query {int(bad.argmax())} is not a finite number")


def _binary(label: Array, logit: Array, shown: Array, threshold: float) -> Summary:
    """All (Q,)."""
    ranked = told = Ranked(label, logit)
    if (np.diff(shown[ranked.order]) > 0).any():  # calibrating several classes may rank the rows of one anew
        told = Ranked(label, shown)
    p, loss = probability(shown[told.order]), surprise(told.label, shown[told.order])
    square = (p - told.label) ** 2

    def summary(weight: Array | None) -> dict[str, float]:
        rows = ranked.weigh(weight)
        told_rows = rows if told is ranked else told.weigh(weight)
        return {
            "auroc": rows.auroc(),
            "auprc": rows.auprc(),
            "accuracy": rows.accuracy(threshold),
            "balanced_accuracy": rows.balanced_accuracy(threshold),
            "min_sensitivity_precision": rows.min_sensitivity_precision(),
            "log_loss": told_rows.mean(loss),
            "brier": told_rows.mean(square),
            "calibration_error": binned_error(told_rows, p),
        }

    return summary


def _macro(classes: Sequence[str], label: Array, logits: Array, shown: Array, threshold: float) -> Summary:
    """Each column (Q, C) as a binary task; means, and some class by class."""
    parts = [_binary(*columns, threshold) for columns in zip(label.T, logits.T, shown.T, strict=True)]

    def summary(weight: Array | None) -> dict[str, float]:
        each = [part(weight) for part in parts]
        numbers = {name: _mean([one[name] for one in each]) for name in each[0]}
        for name in BY_CLASS:
            numbers |= {f"{name}_{c}": one[name] for c, one in zip(classes, each, strict=True)}
        return numbers

    return summary


def _multiclass(classes: Sequence[str], label: Array, logits: Array, shown: Array) -> Summary:
    """Classes against the rest; the highest logit decides, the softmax gives log-loss and Brier score."""
    scored = ~np.isnan(label).any(1)
    rest = against_rest(shown)
    macro = _macro(classes, label, against_rest(logits), rest, 0.0)
    truth = label[scored].argmax(1)
    correct = (logits[scored].argmax(1) == truth).astype(np.float64)
    loss = surprise(np.ones(1), rest[np.flatnonzero(scored), truth])
    square = ((probability(rest[scored]) - label[scored]) ** 2).sum(1)

    def summary(weight: Array | None) -> dict[str, float]:
        w = np.ones(len(truth)) if weight is None else weight[scored]
        of_class = np.bincount(truth, w, len(classes))
        occurs = of_class > 0
        recall = np.bincount(truth, w * correct, len(classes))[occurs] / of_class[occurs]
        return macro(weight) | {
            "accuracy": mean(correct, w),
            "balanced_accuracy": float(recall.mean()) if len(recall) > 1 else nan,
            "log_loss": mean(loss, w),
            "brier": mean(square, w),
        }

    return summary


def against_rest(logits: Array) -> Floats:
    """(Q, K) -> (Q, K): log p_k - log(1 - p_k) of the softmax, with no loss where p_k is near 1."""
    z = logits.astype(np.float64)
    columns = range(z.shape[1])
    rest = np.column_stack([np.logaddexp.reduce(np.delete(z, k, axis=1), axis=1) for k in columns])
    odds: Floats = z - rest
    return odds


def _mean(numbers: Sequence[float]) -> float:
    """Of those that are defined."""
    defined = [number for number in numbers if not np.isnan(number)]
    return sum(defined) / len(defined) if defined else nan
