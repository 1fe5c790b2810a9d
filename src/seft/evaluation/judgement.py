"""Metrics with honest uncertainty, from a table of predictions."""

from dataclasses import asdict
from typing import Any

import numpy as np
from rich.table import Table

from seft.error import InputError
from seft.evaluation.prediction import Predictions
from seft.metrics.bootstrap import Difference, Interval, differences, intervals
from seft.metrics.summary import Summary, prepare

DRAWS = 1_000


def judge(
    predictions: Predictions, threshold: float, draws: int = DRAWS, seed: int = 0
) -> dict[str, Interval]:
    """Each metric of the task with its 95 % interval, over draws of groups."""
    return intervals(_summary(predictions, threshold), _groups(predictions), draws=draws, seed=seed)


def compare(
    one: Predictions, other: Predictions, thresholds: tuple[float, float], draws: int = DRAWS, seed: int = 0
) -> dict[str, Difference]:
    """One minus the other on the same queries, in the same draws."""
    if one.id != other.id or not np.array_equal(one.offsets, other.offsets):
        raise InputError("the two runs were not asked the same queries, so they cannot be paired")
    first, second = (_summary(p, t) for p, t in zip((one, other), thresholds, strict=True))
    return differences(first, second, _groups(one), draws=draws, seed=seed)


def to_json(found: dict[str, Interval]) -> dict[str, Any]:
    """NaN, which JSON does not know, as null."""
    return {
        name: {key: None if value != value else value for key, value in asdict(interval).items()}
        for name, interval in found.items()
    }


def render(found: dict[str, Interval]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("metric", "value", "95 % interval"):
        table.add_column(name, justify="left" if name == "metric" else "right")
    for name, interval in found.items():
        spread = f"{interval.low:.4f} … {interval.high:.4f}" if interval.low == interval.low else ""
        table.add_row(
            name, f"{interval.value:.4f}" if interval.value == interval.value else "undefined", spread
        )
    return table


def _summary(predictions: Predictions, threshold: float) -> Summary:
    if np.isnan(predictions.label).all():
        raise InputError("all labels are missing, so there is nothing to judge by")
    return prepare(
        predictions.task,
        predictions.label,
        predictions.logits,
        predictions.offsets,
        threshold=threshold,
        calibrated=predictions.calibrated,
    )


def _groups(predictions: Predictions) -> np.ndarray[Any, Any]:
    """(Q,) numbers of the groups, which are faster to tell apart than names."""
    _, number = np.unique(np.array(predictions.group), return_inverse=True)
    return np.repeat(number, np.diff(predictions.offsets))
