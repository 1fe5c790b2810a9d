"""Against scikit-learn; a weight is a number of repetitions."""

from collections.abc import Callable
from math import inf, isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from seft.metrics import ranking
from seft.metrics.ranking import Array, Ranked, thin
from tests.metrics.example import answers

Metric = Callable[[Array, Array], float]
Weighing = Callable[..., float]


def called(score: Array) -> Array:
    return (score >= 0).astype(int)


def min_sensitivity_precision(label: Array, score: Array) -> float:
    """Threshold by threshold."""
    positive = label == 1
    return max(
        min(float((call & positive).sum() / positive.sum()), float((call & positive).sum() / call.sum()))
        for call in (score >= threshold for threshold in score)
    )


RANKING: list[tuple[Weighing, Metric]] = [
    (ranking.auroc, lambda y, s: reference.roc_auc_score(y, s)),
    (ranking.auprc, lambda y, s: reference.average_precision_score(y, s)),
    (ranking.balanced_accuracy, lambda y, s: reference.balanced_accuracy_score(y, called(s))),
    (ranking.min_sensitivity_precision, min_sensitivity_precision),
]
PROPER: list[tuple[Weighing, Metric]] = [
    (ranking.accuracy, lambda y, s: reference.accuracy_score(y, called(s))),
    (ranking.brier, lambda y, s: reference.brier_score_loss(y, ranking.probability(s), pos_label=1)),
    (ranking.log_loss, lambda y, s: reference.log_loss(y, ranking.probability(s), labels=[0, 1])),
]


@pytest.mark.parametrize(("metric", "plain"), RANKING)
@given(answers())
def test_ranking_is_scikit_learns_of_repeated_rows(
    metric: Weighing, plain: Metric, rows: tuple[Array, Array, Array]
) -> None:
    label, score, weight = rows
    repeated = np.repeat(label, weight.astype(int)), np.repeat(score, weight.astype(int))
    for expected, value in (((label, score), metric(label, score)), (repeated, metric(label, score, weight))):
        if len(np.unique(expected[0])) == 2:
            assert value == pytest.approx(plain(*expected), abs=1e-12)
        else:
            assert isnan(value)


@pytest.mark.parametrize(("metric", "plain"), PROPER)
@given(answers())
def test_scoring_is_scikit_learns_of_repeated_rows(
    metric: Weighing, plain: Metric, rows: tuple[Array, Array, Array]
) -> None:
    label, score, weight = rows
    repeated = np.repeat(label, weight.astype(int)), np.repeat(score, weight.astype(int))
    for expected, value in (((label, score), metric(label, score)), (repeated, metric(label, score, weight))):
        if len(expected[0]):
            assert value == pytest.approx(plain(*expected), abs=1e-7)
        else:
            assert isnan(value)


@given(answers(), st.floats(0.1, 10))
def test_broken_weights_are_scikit_learns(rows: tuple[Array, Array, Array], unit: float) -> None:
    label, score, weight = rows
    weight = weight * unit
    if (weight @ label > 0) and (weight @ (1 - label) > 0):
        auroc = reference.roc_auc_score(label, score, sample_weight=weight)
        assert ranking.auroc(label, score, weight) == pytest.approx(auroc, abs=1e-12)
        auprc = reference.average_precision_score(label, score, sample_weight=weight)
        assert ranking.auprc(label, score, weight) == pytest.approx(auprc, abs=1e-12)


@pytest.mark.parametrize("metric", [metric for metric, _ in RANKING + PROPER])
@given(answers())
def test_rows_without_a_label_and_the_order_of_rows_change_nothing(
    metric: Weighing, rows: tuple[Array, Array, Array]
) -> None:
    label, score, weight = rows
    order = np.random.default_rng(0).permutation(2 * len(label))
    padded = [
        np.concatenate((given, other))[order]
        for given, other in ((label, np.full_like(label, nan)), (score, -score), (weight, weight + 1))
    ]
    assert metric(*padded) == pytest.approx(metric(label, score, weight), nan_ok=True, abs=1e-12)


def test_a_tie_with_the_threshold_is_called_positive() -> None:
    label, score = np.array([1.0, 0.0, 1.0]), np.array([0.0, -1.0, 2.0])
    assert ranking.accuracy(label, score) == 1
    assert ranking.accuracy(label, score, threshold=0.5) == pytest.approx(2 / 3)
    assert ranking.balanced_accuracy(label, score, threshold=0.5) == pytest.approx(3 / 4)
    assert ranking.min_sensitivity_precision(label, score, threshold=0.5) == pytest.approx(1 / 2)
    assert ranking.min_sensitivity_precision(label, score, threshold=9) == 0
    assert ranking.min_sensitivity_precision(label, score) == 1


def test_certain_answers_cost_their_logit_and_overflow_nothing() -> None:
    label, logit = np.array([1.0, 0.0]), np.array([-2000.0, -2000.0])
    assert ranking.log_loss(label, logit) == 1000
    assert ranking.brier(label, logit) == 0.5
    assert ranking.probability(np.array([-700.0]))[0] == pytest.approx(np.exp(-700.0), rel=1e-9, abs=0)


@given(answers())
def test_the_roc_curve_is_scikit_learns_without_the_points_on_straight_lines(
    rows: tuple[Array, Array, Array],
) -> None:
    label, score, weight = rows
    curve = ranking.roc_curve(label, score, weight)
    if isnan(ranking.auroc(label, score, weight)):
        assert len(curve.x) == 0
        return
    x, y, threshold = reference.roc_curve(label, score, sample_weight=weight, drop_intermediate=False)
    assert (curve.x[0], curve.y[0], curve.x[-1], curve.y[-1]) == (0, 0, 1, 1)
    assert np.interp(x, curve.x, curve.y) == pytest.approx(np.interp(x, x, y))
    assert reference.auc(curve.x, curve.y) == pytest.approx(ranking.auroc(label, score, weight))
    points = set(zip(x.round(9), y.round(9), strict=True))
    assert set(zip(curve.x.round(9), curve.y.round(9), strict=True)) <= points
    assert set(curve.threshold) <= set(threshold) | {inf} | set(score)


@given(answers())
def test_the_precision_recall_curve_is_scikit_learns(rows: tuple[Array, Array, Array]) -> None:
    label, score, weight = rows
    curve = ranking.precision_recall_curve(label, score, weight)
    if isnan(ranking.auprc(label, score, weight)):
        assert len(curve.x) == 0
        return
    precision, recall, _ = reference.precision_recall_curve(label, score, sample_weight=weight)
    points = set(zip(recall.round(9), precision.round(9), strict=True))
    assert set(zip(curve.x.round(9), curve.y.round(9), strict=True)) <= points
    assert (curve.x[0], curve.y[0], curve.x[-1]) == (0, 1, 1)
    assert float(np.diff(curve.x) @ curve.y[1:]) == pytest.approx(ranking.auprc(label, score, weight))


def test_each_point_of_a_curve_is_what_its_threshold_calls() -> None:
    random = np.random.default_rng(0)
    label = (random.random(300) < 0.3).astype(float)
    score = random.normal(size=300) + label
    roc, recall = ranking.roc_curve(label, score), ranking.precision_recall_curve(label, score)
    for x, y, threshold in zip(roc.x, roc.y, roc.threshold, strict=True):
        assert x == pytest.approx((score[label == 0] >= threshold).mean())
        assert y == pytest.approx((score[label == 1] >= threshold).mean())
    for x, y, threshold in zip(recall.x[1:], recall.y[1:], recall.threshold[1:], strict=True):
        assert x == pytest.approx((score[label == 1] >= threshold).mean())
        assert y == pytest.approx(label[score >= threshold].mean())


def test_a_line_is_its_corners() -> None:
    x = np.array([0, 0, 1, 2, 2, 2, 3, 4], dtype=float)
    y = np.array([0, 0, 1, 2, 2, 5, 5, 5], dtype=float)
    kept = thin(x, y, 100)
    assert list(zip(x[kept], y[kept], strict=True)) == [(0, 0), (1, 1), (2, 2), (2, 5), (4, 5)]


def test_a_long_line_is_thinned_alike_on_every_scale() -> None:
    x, y = np.cumsum(np.random.default_rng(0).normal(size=(2, 1000)), axis=1)
    kept = thin(x, y, 50)
    assert 40 < len(kept) <= 50
    assert kept.tolist() == thin(1024 * x, y, 50).tolist() == thin(x, 1024 * y, 50).tolist()


def test_a_long_curve_stays_within_a_step_of_few_points() -> None:
    random = np.random.default_rng(0)
    label = (random.random(50_000) < 0.3).astype(float)
    score = random.normal(size=50_000) + label
    for curve in (ranking.roc_curve, ranking.precision_recall_curve):
        all_of_it, some = curve(label, score, points=10**9), curve(label, score, points=400)
        assert len(all_of_it.x) > 5_000
        assert 200 < len(some.x) <= 400
        assert (some.x[0], some.y[0], some.x[-1], some.y[-1]) == (
            all_of_it.x[0],
            all_of_it.y[0],
            all_of_it.x[-1],
            all_of_it.y[-1],
        )
    roc, thinned = ranking.roc_curve(label, score, points=10**9), ranking.roc_curve(label, score, points=400)
    assert np.abs(np.interp(roc.x, thinned.x, thinned.y) - roc.y).max() <= 2 / 399


def test_one_sorting_serves_every_weighting() -> None:
    random = np.random.default_rng(0)
    label, score = random.integers(0, 2, 50).astype(float), random.normal(size=50)
    ranked = Ranked(label, score)
    for _ in range(5):
        weight = random.integers(0, 3, 50).astype(float)
        assert ranked.weigh(weight).auroc() == ranking.auroc(label, score, weight)
        assert ranked.weigh(weight).auprc() == ranking.auprc(label, score, weight)
