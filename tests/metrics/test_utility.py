"""Against the official definition, said row by row in plain Python."""

from itertools import pairwise
from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seft.metrics import utility as utility_module
from seft.metrics.ranking import Array
from seft.metrics.utility import best_threshold, utility, utility_curve, utility_parts
from tests.metrics.example import stays

Stays = tuple[Array, Array, Array]


def utility_of_row(t: int, called: bool, sepsis: int | None) -> float:
    """Of row t of a series that is septic at row `sepsis`."""
    if sepsis is None:
        return -0.05 if called else 0
    if t > sepsis + 3:
        return 0
    if called:
        if t <= sepsis - 6:
            return max((t - (sepsis - 12)) / 6, -0.05)
        return (sepsis + 3 - t) / 9
    return 0 if t <= sepsis - 6 else -2 * (t - (sepsis - 6)) / 9


def of_series(label: list[float], calls: list[bool]) -> float:
    sepsis = label.index(1) + 6 if 1 in label else None
    return sum(utility_of_row(t, call, sepsis) for t, call in enumerate(calls))


def best_calls(label: list[float]) -> list[bool]:
    if 1 not in label:
        return [False] * len(label)
    sepsis = label.index(1) + 6
    return [sepsis - 12 <= t <= sepsis + 3 for t in range(len(label))]


def official(label: Array, calls: Array, offsets: Array, weight: list[int] | None = None) -> float:
    """weight (B,): how often each series counts."""
    observed = inaction = best = 0.0
    for b, (begin, end) in enumerate(pairwise(offsets)):
        own, times = label[begin:end].tolist(), 1 if weight is None else weight[b]
        observed += times * of_series(own, calls[begin:end].tolist())
        inaction += times * of_series(own, [False] * len(own))
        best += times * of_series(own, best_calls(own))
    return (observed - inaction) / (best - inaction) if best != inaction else nan


def test_the_example_of_the_official_code() -> None:
    label, calls = [0.0, 0, 0, 0, 1, 1], [False, False, True, True, True, True]
    assert of_series(label, calls) == pytest.approx(3.388888888888889)
    offsets = np.array([0, 6])
    score = np.where(calls, 1, -1)
    best, inaction = of_series(label, [True] * 6), of_series(label, [False] * 6)
    expected = (3.388888888888889 - inaction) / (best - inaction)
    assert utility(np.array(label), score, offsets) == pytest.approx(expected)


@given(stays(), st.sampled_from([-0.5, 0.0, 1.0]))
def test_it_is_the_official_score(rows: Stays, threshold: float) -> None:
    label, score, offsets = rows
    expected = official(label, score >= threshold, offsets)
    assert utility(label, score, offsets, threshold) == pytest.approx(expected, nan_ok=True)


@given(stays())
def test_inaction_is_0_and_the_best_calls_are_1(rows: Stays) -> None:
    label, _, offsets = rows
    best = [call for begin, end in pairwise(offsets) for call in best_calls(label[begin:end].tolist())]
    for calls, expected in ((np.zeros(len(label)), 0), (np.array(best, dtype=float), 1)):
        value = utility(label, calls - 0.5, offsets)
        assert value == pytest.approx(expected) if label.any() else isnan(value)


@pytest.mark.parametrize("first", [0, 5, 6, 7, 30])
def test_a_series_is_septic_six_rows_after_its_first_label_also_from_its_first_row_on(first: int) -> None:
    label = (np.arange(40) >= first).astype(float)
    gain = utility_module.gain(label, np.array([0, 40]))
    sepsis = first + 6
    assert gain[first] == 1  # the optimal time
    assert gain[sepsis + 3] == 2
    assert not gain[sepsis + 4 :].any()
    assert (gain[: max(sepsis - 12, 0)] == -0.05).all()


@given(stays())
def test_the_best_threshold_is_the_best_of_all_and_of_equals_the_highest(rows: Stays) -> None:
    label, score, offsets = rows
    times = np.random.default_rng(len(label)).integers(0, 3, len(offsets) - 1)
    weight = np.repeat(times, np.diff(offsets)).astype(float)
    every = [1e9, *np.unique(score)[::-1].tolist()]
    tried = [official(label, score >= threshold, offsets, times.tolist()) for threshold in every]
    threshold, value = best_threshold(label, score, offsets, weight)
    if isnan(tried[0]):
        assert isnan(threshold)
        assert isnan(value)
        return
    assert value == pytest.approx(max(tried), abs=1e-12)
    assert utility(label, score, offsets, threshold, weight) == pytest.approx(value, abs=1e-12)
    assert np.float32(threshold) == threshold
    first = next(t for t, u in zip(every, tried, strict=True) if u > max(tried) - 1e-9)
    assert threshold == first or (first == 1e9 and threshold > score.max())


def test_where_no_call_pays_nobody_is_called() -> None:
    label = np.array([0.0] * 30 + [1.0])
    score = -np.arange(31, dtype=np.float32)
    offsets = np.array([0, 30, 31])
    threshold, value = best_threshold(label, score, offsets)
    assert value == 0
    assert not (score >= np.float32(threshold)).any()


@given(stays())
def test_parts_add_up_under_the_weights_of_groups(rows: Stays) -> None:
    label, score, offsets = rows
    times = np.random.default_rng(0).integers(0, 3, len(offsets) - 1)
    weight = np.repeat(times, np.diff(offsets)).astype(float)
    expected = official(label, score >= 0, offsets, times.tolist())
    gained, possible = utility_parts(label, score, offsets)
    if isnan(expected):
        assert not weight @ possible
    else:
        assert (weight @ gained) / (weight @ possible) == pytest.approx(expected)
    assert utility(label, score, offsets, weight=weight) == pytest.approx(expected, nan_ok=True)


@given(stays())
def test_rows_without_a_label_count_in_time_and_earn_nothing(rows: Stays) -> None:
    label, score, offsets = rows
    hidden = (label == 0) & (np.random.default_rng(0).random(len(label)) < 0.5)
    gained, possible = utility_parts(label, score, offsets)
    expected = np.where(hidden, 0, gained), np.where(hidden, 0, possible)
    found = utility_parts(np.where(hidden, nan, label), score, offsets)
    assert [part.tolist() for part in found] == [part.tolist() for part in expected]


def test_the_curve_is_short_and_true_and_holds_the_best() -> None:
    random = np.random.default_rng(0)
    offsets = np.arange(0, 20_001, 20)
    label = np.concatenate([np.arange(20) >= first for first in random.integers(0, 100, 1000)]).astype(float)
    score = random.normal(size=20_000) + 2 * label
    curve = utility_curve(label, score, offsets, points=200)
    assert 100 < len(curve.x) <= 201
    for threshold, value in list(zip(curve.x, curve.y, strict=True))[::30]:
        assert value == pytest.approx(utility(label, score, offsets, threshold))
    for points in range(20, 30):
        curve = utility_curve(label, score, offsets, points=points)
        assert best_threshold(label, score, offsets) in zip(curve.x, curve.y, strict=True)
    assert curve.y[0] == 0


def test_offsets_of_other_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="offsets end at 3, and there are 4 rows"):
        utility(np.zeros(4), np.zeros(4), np.array([0, 3]))
