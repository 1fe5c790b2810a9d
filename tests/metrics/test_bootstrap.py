from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from seft.metrics.bootstrap import Difference, Interval, Metric, differences, intervals, weights
from seft.metrics.ranking import Array, Floats, Ranked

groups = st.lists(st.integers(0, 8), min_size=1, max_size=30)


def auroc(label: Array, score: Array) -> Metric:
    ranked = Ranked(label, score)
    return lambda weight: {"auroc": ranked.weigh(weight).auroc()}


def mean_of(x: Array) -> Metric:
    return lambda weight: {"mean": float(weight @ x / weight.sum())}


@given(groups, st.integers(0, 9))
def test_a_draw_takes_whole_groups_as_many_as_there_are(group: list[int], seed: int) -> None:
    names = [f"p{number}" for number in group]
    for weight in weights(names, draws=5, seed=seed):
        drawn = {name: {w for n, w in zip(names, weight, strict=True) if n == name} for name in names}
        assert all(len(of_group) == 1 for of_group in drawn.values())
        times = [of_group.pop() for of_group in drawn.values()]
        assert all(time == int(time) >= 0 for time in times)
        assert sum(times) == len(drawn)


def test_seed_and_groups_alone_decide_the_draws() -> None:
    group = np.arange(40) // 4
    again = [[w.tolist() for w in weights(group, draws=3, seed=seed)] for seed in (1, 1, 2)]
    assert again[0] == again[1] != again[2]
    assert again[0][0] != again[0][1]
    x = np.random.default_rng(0).normal(size=40)
    assert intervals(mean_of(x), group, seed=3) == intervals(mean_of(x), group, seed=3)


def test_the_interval_of_a_mean_is_the_normal_one() -> None:
    x = np.random.default_rng(0).normal(size=2000)
    found = intervals(mean_of(x), np.arange(2000), draws=2000, level=0.9)["mean"]
    half = norm.ppf(0.95) * x.std() / np.sqrt(2000)
    assert found.value == pytest.approx(x.mean())
    assert (found.low, found.high) == pytest.approx((x.mean() - half, x.mean() + half), abs=0.1 * half)


def test_the_interval_covers_the_truth_where_rows_of_a_group_are_alike() -> None:
    random = np.random.default_rng(0)
    truth = norm.cdf(1 / np.sqrt(2 * (1 + 0.5**2)))  # score = label + N(0, 1) a group + N(0, 0.5²) a row
    covered = {"group": 0, "row": 0}
    for _ in range(200):
        of_group = random.integers(0, 2, 80).astype(float)
        label, group = np.repeat(of_group, 4), np.repeat(np.arange(80), 4)
        score = label + np.repeat(random.normal(size=80), 4) + 0.5 * random.normal(size=320)
        metric = auroc(label, score)
        for name, unit in (("group", group), ("row", np.arange(320))):
            found = intervals(metric, unit, draws=200, seed=1)["auroc"]
            covered[name] += found.low <= truth <= found.high
    assert 0.91 <= covered["group"] / 200 <= 0.98
    assert covered["row"] / 200 < 0.8  # rows that are alike must not count as many


def test_draws_without_both_classes_are_left_out_and_counted() -> None:
    label, score = np.array([1.0, 0, 0]), np.array([1.0, 0, 2])
    found = intervals(auroc(label, score), np.arange(3), draws=500)["auroc"]
    one_class = [w for w in weights(np.arange(3), draws=500) if not 0 < w @ label < w.sum()]
    assert found.undefined == len(one_class) > 100
    assert (found.low, found.high) == (0, 1)
    never = intervals(auroc(np.ones(3), score), np.arange(3), draws=10)["auroc"]
    assert never.undefined == 10
    assert isnan(never.value) and isnan(never.low) and isnan(never.high)  # noqa: PT018


def test_a_run_does_not_differ_from_itself() -> None:
    random = np.random.default_rng(0)
    label, score = random.integers(0, 2, 100).astype(float), random.normal(size=100)
    found = differences(auroc(label, score), auroc(label, score), np.arange(100) // 2)
    nothing = Interval(value=0, low=0, high=0, undefined=0)
    assert found == {"auroc": Difference(interval=nothing, p=1)}


def test_runs_are_compared_in_the_same_draws() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=300)
    better = x + 0.02 + 0.05 * random.normal(size=300)
    found = differences(mean_of(better), mean_of(x), np.arange(300))["mean"]
    assert found.interval.value == pytest.approx((better - x).mean())
    assert found.interval.low > 0
    assert found.p == pytest.approx(2 / 1001)
    alone = intervals(mean_of(x), np.arange(300))["mean"]
    assert found.interval.high - found.interval.low < (alone.high - alone.low) / 10
    turned = differences(mean_of(x), mean_of(better), np.arange(300))["mean"]
    assert (turned.interval.low, turned.p) == pytest.approx((-found.interval.high, found.p))


def test_the_p_value_of_nothing_is_uniform() -> None:
    random = np.random.default_rng(0)
    p = []
    for _ in range(200):
        x, y = random.normal(size=(2, 60))
        p.append(differences(mean_of(x), mean_of(y), np.arange(60), draws=200)["mean"].p)
    assert np.mean(np.array(p) < 0.05) < 0.1
    assert 0.4 < np.mean(np.array(p) < 0.5) < 0.6


def test_only_what_both_give_is_compared() -> None:
    def two(weight: Floats) -> dict[str, float]:
        return {"a": float(weight.sum()), "b": nan}

    found = differences(two, lambda weight: {"b": nan}, np.arange(3), draws=5)
    assert list(found) == ["b"]
    assert isnan(found["b"].p)
