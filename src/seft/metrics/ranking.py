"""How well scores tell two classes apart: label (N,), score (N,), weight (N,).

A label is 1 or 0, or NaN where the row isn't scored and so left out. A row is called positive where
score >= threshold; scores are raw logits, whose 0 is a probability of one half. A weight of 2 counts a row
twice, so a bootstrap is a reweighting. What both classes are needed for is NaN where only one has weight.
"""

from dataclasses import dataclass
from math import inf, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points for plotting, from the highest threshold to the lowest; none where the curve is undefined."""

    x: Floats
    y: Floats
    threshold: Floats


class Ranked:
    """Rows sorted once, from the highest score to the lowest; then any weighting is a few passes.

    Rows that tie are one run: no threshold parts them, and their order never matters.
    """

    def __init__(self, label: Array, score: Array) -> None:
        scored = np.flatnonzero(~np.isnan(label))
        order, self.ends = descending(score[scored])
        self.order = scored[order]  # (n,) the row in each place
        self.score = score[self.order].astype(np.float64)
        self.label = (label[self.order] == 1).astype(np.float64)
        self.positive = np.flatnonzero(self.label)  # (P,) the places of the positives
        self.hits = np.searchsorted(self.positive, self.ends)  # (runs+1,) positives before each end
        # Only where a run holds a positive do sensitivity and the areas grow: often a small part of all.
        run = np.flatnonzero(np.diff(self.hits))
        self.begin, self.end, self.hit = self.ends[run], self.ends[run + 1], self.hits[run + 1]

    def weigh(self, weight: Array | None = None) -> "Weighted":
        """The same rows under another weighting (N,), of the rows as they were given."""
        return Weighted(self, np.ones(len(self.order)) if weight is None else weight[self.order])


class Weighted:
    """The metrics of ranked rows under one weighting."""

    def __init__(self, ranked: Ranked, weight: Array) -> None:
        self.ranked = ranked
        self.weight = weight  # (n,) in the order of the ranks
        self.rows = cumulative(weight)  # (n+1,) weight of the first so many rows
        self.hits = cumulative(weight[ranked.positive])  # (P+1,) weight of the first so many positives
        self.total, self.positives = float(self.rows[-1]), float(self.hits[-1])
        self.negatives = self.total - self.positives
        self.defined = self.positives > 0 and self.negatives > 0

    def mean(self, x: Floats) -> float:
        """The weighted mean of x (n,), in the order of the ranks."""
        return mean(x, self.weight)

    def auroc(self) -> float:
        """Σ_i w_i (weight of the negatives below i + half of those that tie) / (W₊ W₋), i positive."""
        if not self.defined:
            return nan
        hit = self.hits[self.ranked.hit]
        before = np.concatenate(([0.0], hit[:-1]))
        above = (self.rows[self.ranked.begin] - before + self.rows[self.ranked.end] - hit) / 2
        return float((hit - before) @ (self.negatives - above)) / (self.positives * self.negatives)

    def auprc(self) -> float:
        """Average precision, Σ_k (recall_k - recall_{k-1}) precision_k over the runs."""
        if not self.defined:
            return nan
        hit = self.hits[self.ranked.hit]
        called = self.rows[self.ranked.end]
        precision = hit / np.where(called > 0, called, 1)
        return float(np.diff(hit, prepend=0.0) @ precision) / self.positives

    def min_sensitivity_precision(self, threshold: float | None = None) -> float:
        """min(Se, P+) at a threshold, or else the highest over all: both are hits over W₊ or over calls."""
        if not self.defined:
            return nan
        if threshold is not None:
            hit, called = self._called(threshold)
            return hit / max(self.positives, called)
        highest = self.hits[self.ranked.hit] / np.maximum(self.positives, self.rows[self.ranked.end])
        return float(highest.max())

    def accuracy(self, threshold: float = 0.0) -> float:
        hit, called = self._called(threshold)
        return (2 * hit - called + self.negatives) / self.total if self.total > 0 else nan

    def balanced_accuracy(self, threshold: float = 0.0) -> float:
        """The mean of sensitivity and specificity."""
        if not self.defined:
            return nan
        hit, called = self._called(threshold)
        return (hit / self.positives + 1 - (called - hit) / self.negatives) / 2

    def roc(self, points: int) -> Curve:
        """Sensitivity over 1 - specificity, about `points` of it at most."""
        hit, called, threshold = self._at_ends()
        x, y = (called - hit) / self.negatives, hit / self.positives
        kept = thin(x, y, points)
        return Curve(x=x[kept], y=y[kept], threshold=threshold[kept])

    def precision_recall(self, points: int) -> Curve:
        """Precision over recall, 1 before the first call, about `points` of it at most.

        The area under it is that of steps: a precision holds back to the recall before it.
        """
        hit, called, threshold = self._at_ends()
        x, y = hit / self.positives, np.where(called > 0, hit / np.where(called > 0, called, 1), 1)
        kept = thin(x, y, points)
        return Curve(x=x[kept], y=y[kept], threshold=threshold[kept])

    def _called(self, threshold: float) -> tuple[float, float]:
        """The weight of the positives and of all rows at or above a threshold."""
        end = np.count_nonzero(self.ranked.score >= threshold)
        return float(self.hits[np.searchsorted(self.ranked.positive, end)]), float(self.rows[end])

    def _at_ends(self) -> tuple[Floats, Floats, Floats]:
        """Hits, calls and threshold after each run, from none called to all; nothing where undefined."""
        if not self.defined:
            return np.zeros(0), np.zeros(0), np.zeros(0)
        lowest = self.ranked.score[self.ranked.ends[1:] - 1]
        return self.hits[self.ranked.hits], self.rows[self.ranked.ends], np.concatenate(([inf], lowest))


def auroc(label: Array, score: Array, weight: Array | None = None) -> float:
    return Ranked(label, score).weigh(weight).auroc()


def auprc(label: Array, score: Array, weight: Array | None = None) -> float:
    return Ranked(label, score).weigh(weight).auprc()


def min_sensitivity_precision(
    label: Array, score: Array, weight: Array | None = None, threshold: float | None = None
) -> float:
    """Event 1 of the 2012 challenge at a threshold, or else the highest over all thresholds."""
    return Ranked(label, score).weigh(weight).min_sensitivity_precision(threshold)


def accuracy(label: Array, score: Array, weight: Array | None = None, threshold: float = 0.0) -> float:
    return Ranked(label, score).weigh(weight).accuracy(threshold)


def balanced_accuracy(
    label: Array, score: Array, weight: Array | None = None, threshold: float = 0.0
) -> float:
    return Ranked(label, score).weigh(weight).balanced_accuracy(threshold)


def log_loss(label: Array, logit: Array, weight: Array | None = None) -> float:
    """The mean of -log p(label), in nats."""
    ranked = Ranked(label, logit)
    return ranked.weigh(weight).mean(surprise(ranked.label, ranked.score))


def brier(label: Array, logit: Array, weight: Array | None = None) -> float:
    """The mean of (p - label)²."""
    ranked = Ranked(label, logit)
    return ranked.weigh(weight).mean((probability(ranked.score) - ranked.label) ** 2)


def roc_curve(label: Array, score: Array, weight: Array | None = None, points: int = 1000) -> Curve:
    return Ranked(label, score).weigh(weight).roc(points)


def precision_recall_curve(
    label: Array, score: Array, weight: Array | None = None, points: int = 1000
) -> Curve:
    return Ranked(label, score).weigh(weight).precision_recall(points)


def mean(x: Floats, weight: Array) -> float:
    """Σ w x / Σ w, NaN where nothing has weight."""
    total = float(weight.sum())
    return float(weight @ x) / total if total > 0 else nan


def probability(logit: Array) -> Floats:
    """1 / (1 + exp(-z)), never overflowing and exact near 0."""
    p: Floats = np.exp(-np.logaddexp(0, -logit.astype(np.float64)))
    return p


def surprise(label: Array, logit: Array) -> Floats:
    """-log p(label) of each row."""
    z = logit.astype(np.float64)
    loss: Floats = np.logaddexp(0, np.where(label == 1, -z, z))
    return loss


def descending(score: Array) -> tuple[Rows, Rows]:
    """(n,) rows from the highest score to the lowest; (runs+1,) where each run of ties begins, and n."""
    order = np.argsort(score)[::-1]
    ranked = score[order]
    first = np.ones(len(score), dtype=np.bool_)
    first[1:] = ranked[1:] != ranked[:-1]
    return order, np.append(np.flatnonzero(first), len(score))


def cumulative(weight: Array) -> Floats:
    """(n,) -> (n+1,): the sum of the first 0, 1, 2 … weights."""
    total = np.zeros(len(weight) + 1)
    np.cumsum(weight, out=total[1:])
    return total


def thin(x: Floats, y: Floats, points: int) -> Rows:
    """The points that a plot of the line needs: its corners, or about `points` evenly along its length.

    Only inside a level or an upright stretch nothing is lost, whether lines or steps join the points.
    """
    moves = (np.diff(x, prepend=nan) != 0) | (np.diff(y, prepend=nan) != 0)
    kept = np.flatnonzero(moves)
    dx, dy = np.diff(x[kept]), np.diff(y[kept])
    corner = np.ones(len(kept), dtype=np.bool_)
    corner[1:-1] = ((dx[:-1] != 0) | (dx[1:] != 0)) & ((dy[:-1] != 0) | (dy[1:] != 0))
    kept = kept[corner]
    if len(kept) <= points:
        return kept
    dx, dy = np.diff(x[kept]) / np.ptp(x), np.diff(y[kept]) / np.ptp(y)
    way = np.cumsum(np.hypot(dx, dy))
    step = np.diff(np.floor(way / way[-1] * (points - 1)), prepend=0) > 0
    return kept[np.concatenate(([True], step))]
