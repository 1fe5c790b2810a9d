"""The normalised utility of the PhysioNet/CinC challenge of 2019: what calling a row positive is worth.

label (N,) and score (N,), one row an hour; series b owns rows offsets[b]:offsets[b+1], in time order. The
official score (evaluate_sepsis_score.py of physionetchallenges/evaluation-2019) counts rows, not hours: a
series whose first label of 1 stands in row f is septic at row f + 6, also where f is its very first. With u₁
and u₀ the utilities of calling a row and of not calling it, everything follows from the gain g = u₁ - u₀:

    (U - U_inaction) / (U_best - U_inaction) = Σ_{score >= threshold} g / Σ max(g, 0)

It is NaN where no series is septic. Rows without a label count in time and earn nothing.
"""

from math import nan

import numpy as np

from seft.metrics.ranking import Array, Curve, Floats, cumulative, descending, thin

EARLY, OPTIMAL, LATE = -12, -6, 3  # rows since sepsis
TRUE_POSITIVE, FALSE_NEGATIVE = 1.0, -2.0  # at best, at worst
FALSE_POSITIVE = -0.05  # and a true negative is 0


def gain(label: Array, offsets: Array) -> Floats:
    """(N,) u₁ - u₀ of each row.

    u₁ climbs from 0 at EARLY to 1 at OPTIMAL and falls to 0 at LATE; u₀ falls from 0 at OPTIMAL to -2 at
    LATE; later both are 0. Before EARLY, and without sepsis, a call costs 0.05.
    """
    if offsets[-1] != len(label):
        raise ValueError(f"offsets end at {offsets[-1]}, and there are {len(label)} rows")
    series = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    first = np.full(len(offsets) - 1, -1)
    positive = np.flatnonzero(label == 1)[::-1]
    first[series[positive]] = positive  # the last assignment wins, which is the first of its rows
    septic = np.flatnonzero(first[series] >= 0)
    since = septic - first[series[septic]] + OPTIMAL
    called = np.interp(since, [EARLY, OPTIMAL, LATE], [0, TRUE_POSITIVE, 0])
    missed = np.interp(since, [OPTIMAL, LATE], [0, FALSE_NEGATIVE], right=0)
    worth = np.full(len(label), FALSE_POSITIVE)
    worth[septic] = np.where(since < EARLY, FALSE_POSITIVE, called - missed)
    return np.where(np.isnan(label), 0, worth)


def utility_parts(
    label: Array, score: Array, offsets: Array, threshold: float = 0.0
) -> tuple[Floats, Floats]:
    """What each row gains (N,) and what it could (N,): Σ w gained / Σ w possible under any weights."""
    worth = gain(label, offsets)
    return np.where(score >= threshold, worth, 0), np.maximum(worth, 0)


def utility(
    label: Array, score: Array, offsets: Array, threshold: float = 0.0, weight: Array | None = None
) -> float:
    gained, possible = utility_parts(label, score, offsets, threshold)
    return normalise(gained, possible, np.ones(len(label)) if weight is None else weight)


def normalise(gained: Floats, possible: Floats, weight: Array) -> float:
    """Σ w gained / Σ w possible, NaN where nothing can be gained."""
    most = float(weight @ possible)
    return float(weight @ gained) / most if most > 0 else nan


def best_threshold(
    label: Array, score: Array, offsets: Array, weight: Array | None = None
) -> tuple[float, float]:
    """The threshold of the highest utility, and that utility; of equals the highest, with the fewest calls.

    It is a score itself, so that it means the same in float32, or just above all where no call pays. Both
    are NaN where no series is septic.
    """
    threshold, value = _by_threshold(label, score, offsets, weight)
    if not len(value):
        return nan, nan
    best = _best(value)
    return float(threshold[best]), float(value[best])


def utility_curve(
    label: Array, score: Array, offsets: Array, weight: Array | None = None, points: int = 400
) -> Curve:
    """Utility over threshold, about so many points and the best one among them."""
    threshold, value = _by_threshold(label, score, offsets, weight)
    kept = thin(threshold, value, points)
    if len(value):
        kept = np.union1d(kept, _best(value))
    return Curve(x=threshold[kept], y=value[kept], threshold=threshold[kept])


def _best(value: Floats) -> int:
    """The first of the highest, which rounding must not tell apart."""
    return int(np.argmax(value > value.max() - 1e-12))


def _by_threshold(label: Array, score: Array, offsets: Array, weight: Array | None) -> tuple[Floats, Floats]:
    """Every threshold that matters, from just above all scores down, with its utility; none if undefined."""
    worth = gain(label, offsets) if weight is None else gain(label, offsets) * weight
    order, ends = descending(score)
    total = cumulative(worth[order])[ends]
    most = np.maximum(worth, 0).sum()
    if not most > 0:
        return np.zeros(0), np.zeros(0)
    above = np.nextafter(np.float32(score.max()), np.float32(np.inf))
    threshold = np.concatenate(([above], score[order[ends[:-1]]])).astype(np.float64)
    return threshold, total / most
