"""Whether probabilities mean what they say, and what makes them: label (N,), logit (N,), weight (N,)."""

from dataclasses import dataclass
from itertools import pairwise
from math import nan
from statistics import NormalDist

import numpy as np

from seft.metrics.ranking import Array, Floats, Ranked, Weighted, probability

BINS = 15
SLOPE_FLOOR = 0.01  # of a model that ranks the wrong way round: its probabilities are nearly all the same
PRIOR = 0.01  # 1 / variance of the normal prior on slope and biases: a standard deviation of 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Bins of rising probability, all of about the same weight; R of them, empty ones left out."""

    probability: Floats  # (R,) mean predicted
    frequency: Floats  # (R,) share of positives
    count: Floats  # (R,) weight
    low: Floats  # (R,) Wilson's interval of the frequency
    high: Floats


def calibration_error(label: Array, logit: Array, weight: Array | None = None, bins: int = BINS) -> float:
    """Σ_b (W_b / W) |mean probability - share of positives| over bins of equal weight.

    Also of a perfect model it is above 0: noise does not cancel within a bin.
    """
    ranked = Ranked(label, logit)
    return binned_error(ranked.weigh(weight), probability(ranked.score), bins)


def reliability(
    label: Array, logit: Array, weight: Array | None = None, bins: int = BINS, level: float = 0.95
) -> Reliability:
    ranked = Ranked(label, logit)
    falling = np.stack(bin_sums(ranked.weigh(weight), probability(ranked.score), bins))
    count, expected, observed = falling[:, falling[0] > 0][:, ::-1]
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = observed / count
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    spread = z * np.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2) / (1 + z**2 / count)
    return Reliability(
        probability=expected / count,
        frequency=share,
        count=count,
        low=np.maximum(centre - spread, 0),
        high=np.minimum(centre + spread, 1),
    )


def binned_error(rows: Weighted, p: Floats, bins: int = BINS) -> float:
    """`calibration_error` of rows that are ranked and weighed already; p (n,) in the order of the ranks."""
    _, expected, observed = bin_sums(rows, p, bins)
    return float(np.abs(expected - observed).sum()) / rows.total if rows.total > 0 else nan


def bin_sums(rows: Weighted, p: Floats, bins: int) -> tuple[Floats, Floats, Floats]:
    """(bins,) weight, sum of probabilities, weight of positives; bins fall in probability.

    Rows that tie go whole to the bin where the middle of their weight lies, so that neither the order of
    the rows nor writing a row twice instead of weighing it by 2 changes anything.
    """
    ends = rows.ranked.ends
    mass = np.arange(1, bins) * rows.total / bins
    run = np.searchsorted(rows.rows[ends[1:]], mass, side="right").clip(max=len(ends) - 2)
    before, after = ends[run], ends[run + 1]
    middle = (rows.rows[before] + rows.rows[after]) / 2
    cuts = np.concatenate(([0], np.where(middle < mass, after, before), ends[-1:]))
    weight = np.diff(rows.rows[cuts])
    observed = np.diff(rows.hits[np.searchsorted(rows.ranked.positive, cuts)])
    expected = [rows.weight[a:b] @ p[a:b] for a, b in pairwise(cuts)]
    return weight, np.array(expected), observed


def fit_affine(label: Array, logit: Array, weight: Array | None = None) -> tuple[float, float]:
    """(slope, bias) of Platt's scaling p = σ(slope · z + bias), slope > 0; `fit_temperature` of (0, z)."""
    temperature, bias = fit_temperature(label, np.column_stack([np.zeros(len(logit)), logit]), weight)
    return 1 / temperature, float(bias[1] - bias[0])


def fit_temperature(label: Array, logits: Array, weight: Array | None = None) -> tuple[float, Floats]:
    """(temperature, bias (K,)) of p = softmax(z / temperature + bias), temperature > 0.

    label (N,) class numbers, NaN unscored; logits (N, K). The likelihood has a wide normal prior around
    slope 1 and bias 0, so that separable data, or one class alone, stay finite. Biases add up to 0. They
    belong: balanced training distorts the classes' shares. The class with the highest probability may then
    be another than the one with the highest logit, which is what decides.
    """
    scored = ~np.isnan(label)
    z = logits[scored].astype(np.float64)
    target = label[scored, None] == np.arange(logits.shape[1])
    w = np.ones(len(z)) if weight is None else weight[scored].astype(np.float64)
    fitted = _newton(np.zeros(1 + z.shape[1]), z, target, w, slice(None))
    if fitted[0] < SLOPE_FLOOR:  # the problem is convex: the best allowed slope is the lowest
        fitted[:] = 0
        fitted[0] = SLOPE_FLOOR
        fitted = _newton(fitted, z, target, w, slice(1, None))
    return 1 / float(fitted[0]), fitted[1:]


def _newton(start: Floats, z: Floats, target: Array, weight: Floats, free: slice) -> Floats:
    """Minimise `_loss` over the free ones of (slope, bias…), each step halved until it helps."""
    at = start
    loss, gradient, hessian = _loss(at, z, target, weight)
    for _ in range(100):  # a handful is enough; should rounding ever keep it going, it still ends
        step = np.zeros_like(at)
        step[free] = np.linalg.solve(hessian[free, free], gradient[free])
        decrease = float(gradient @ step)
        if decrease < 1e-9 * (1 + loss):  # so near that this last step squares the error
            return at - step
        while (after := _loss(at - step, z, target, weight))[0] > loss - 1e-4 * decrease:
            step, decrease = step / 2, decrease / 2
        at = at - step
        loss, gradient, hessian = after
    return at


def _loss(at: Floats, z: Floats, target: Array, weight: Floats) -> tuple[float, Floats, Floats]:
    """-log posterior of (slope, bias (K,)), with its gradient and Hessian."""
    scaled = at[0] * z + at[1:]
    scaled -= scaled.max(1, keepdims=True)
    p = np.exp(scaled)
    total = p.sum(1, keepdims=True)
    log_p = scaled - np.log(total)
    p /= total
    toward = at - np.eye(1, len(at))[0]
    loss = -float(weight @ log_p[target]) + PRIOR / 2 * float(toward @ toward)
    excess = weight[:, None] * (p - target)
    gradient = np.concatenate(([(excess * z).sum()], excess.sum(0))) + PRIOR * toward
    centred = z - (p * z).sum(1, keepdims=True)
    wp = weight[:, None] * p
    hessian = PRIOR * np.eye(len(at))
    hessian[0, 0] += (wp * z * centred).sum()
    hessian[0, 1:] = hessian[1:, 0] = (wp * centred).sum(0)
    hessian[1:, 1:] += np.diag(wp.sum(0)) - p.T @ wp
    return loss, gradient, hessian
