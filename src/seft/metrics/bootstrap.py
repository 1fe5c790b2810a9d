"""How far chance could have moved a metric: the bootstrap by group.

A draw takes as many groups as there are, with replacement, each with all of its rows. It is a weight (N,):
how often a row's group was drawn. A metric is a function of such weights, so what is costly, like sorting,
it does once, before. Groups and seed alone decide the draws: two metrics on the same rows see the same ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np

from seft.metrics.ranking import Array, Floats

Metric = Callable[[Floats], Mapping[str, float]]  # a weight a row (N,) to numbers by name, NaN if undefined
Groups = Sequence[str] | Array  # (N,) names or numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A metric and its percentile interval over the draws in which it was defined."""

    value: float  # of the rows as they are
    low: float
    high: float
    undefined: int  # draws left out: a metric that needs both classes had one


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """First minus second in the same draws."""

    interval: Interval
    p: float  # two-sided: twice the share of draws on the rarer side of 0, which counts to both


def weights(groups: Groups, *, draws: int = 1000, seed: int = 0) -> Iterator[Floats]:
    """The weight (N,) of each draw."""
    names, group = np.unique(np.asarray(groups), return_inverse=True)
    generator = np.random.default_rng(seed)
    for _ in range(draws):
        drawn = generator.integers(len(names), size=len(names))
        yield np.bincount(drawn, minlength=len(names)).astype(np.float64)[group]


def intervals(
    metric: Metric, groups: Groups, *, draws: int = 1000, seed: int = 0, level: float = 0.95
) -> dict[str, Interval]:
    """An interval for each number that the metric gives."""
    value, drawn = _draw(metric, groups, draws, seed)
    return {name: _interval(value[name], drawn[name], level) for name in value}


def differences(
    first: Metric, second: Metric, groups: Groups, *, draws: int = 1000, seed: int = 0, level: float = 0.95
) -> dict[str, Difference]:
    """Two runs on the same rows, paired, for each number that both give."""

    def metric(weight: Floats) -> dict[str, float]:
        a, b = first(weight), second(weight)
        return {name: a[name] - b[name] for name in a if name in b}

    value, drawn = _draw(metric, groups, draws, seed)
    return {
        name: Difference(interval=_interval(value[name], drawn[name], level), p=_two_sided(drawn[name]))
        for name in value
    }


def _draw(
    metric: Metric, groups: Groups, draws: int, seed: int
) -> tuple[Mapping[str, float], dict[str, Floats]]:
    """The metric of the rows as they are, and each of its numbers in all draws (draws,)."""
    value = metric(np.ones(len(groups)))
    drawn = [metric(weight) for weight in weights(groups, draws=draws, seed=seed)]
    return value, {name: np.array([numbers[name] for numbers in drawn]) for name in value}


def _interval(value: float, drawn: Floats, level: float) -> Interval:
    defined = drawn[~np.isnan(drawn)]
    tail = (1 - level) / 2
    low, high = np.quantile(defined, [tail, 1 - tail]).tolist() if len(defined) else (nan, nan)
    return Interval(value=value, low=low, high=high, undefined=len(drawn) - len(defined))


def _two_sided(drawn: Floats) -> float:
    """min(1, 2 (1 + draws on the rarer side) / (1 + draws)): never 0, which no number of draws can show."""
    defined = drawn[~np.isnan(drawn)]
    rarer = min(np.count_nonzero(defined <= 0), np.count_nonzero(defined >= 0))
    return min(1.0, 2 * (1 + rarer) / (1 + len(defined))) if len(defined) else nan
