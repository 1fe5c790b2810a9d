from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given
from scipy.optimize import minimize
from scipy.special import log_softmax
from scipy.stats import binomtest

from seft.metrics.calibration import (
    PRIOR,
    SLOPE_FLOOR,
    calibration_error,
    fit_affine,
    fit_temperature,
    reliability,
)
from seft.metrics.ranking import Array, log_loss, probability
from tests.metrics.example import answers

Rows = tuple[Array, Array, Array]


def binned(label: Array, logit: Array, bins: int) -> list[list[int]]:
    """The rows of each bin: ties stand together, where the middle of them stands."""
    rows: list[list[int]] = [[] for _ in range(bins)]
    for value in set(logit.tolist()):
        tied = np.flatnonzero(logit == value)
        middle = (logit > value).sum() + len(tied) / 2
        rows[min(int(middle * bins // len(label)), bins - 1)] += tied.tolist()
    return rows


@given(answers())
def test_the_error_is_that_of_plain_bins_of_repeated_rows(rows: Rows) -> None:
    label, logit, weight = rows
    expected = nan
    y, z = np.repeat(label, weight.astype(int)), np.repeat(logit, weight.astype(int))
    if len(y):
        gaps = [abs(float((probability(z[r]) - y[r]).sum())) for r in binned(y, z, 4)]
        expected = sum(gaps) / len(y)
    assert calibration_error(label, logit, weight, bins=4) == pytest.approx(expected, nan_ok=True, abs=1e-12)
    assert calibration_error(y, z, bins=4) == pytest.approx(expected, nan_ok=True, abs=1e-12)


def test_without_ties_bins_are_equal() -> None:
    logit = np.random.default_rng(0).normal(size=150)
    bins = reliability(np.zeros(150), logit)
    assert bins.count.tolist() == [10] * 15
    assert bins.probability == pytest.approx(np.sort(probability(logit)).reshape(15, 10).mean(1))


def test_the_error_sees_how_far_probabilities_are_off() -> None:
    random = np.random.default_rng(0)
    logit = random.normal(size=100_000)
    label = (random.random(100_000) < probability(logit)).astype(float)
    assert calibration_error(label, logit) < 0.01
    shifted = probability(logit + 1).mean() - probability(logit).mean()
    assert calibration_error(label, logit + 1) == pytest.approx(shifted, abs=0.01)


@given(answers())
def test_the_bins_of_the_reliability_curve_rise_and_hold_scipys_wilson_intervals(rows: Rows) -> None:
    label, logit, weight = rows
    bins = reliability(label, logit, weight, bins=5)
    assert (np.diff(bins.probability) >= 0).all()
    assert bins.count.sum() == weight.sum()
    for share, count, low, high in zip(bins.frequency, bins.count, bins.low, bins.high, strict=True):
        wilson = binomtest(round(share * count), round(count)).proportion_ci(0.95, method="wilson")
        assert (low, high) == pytest.approx((wilson.low, wilson.high), abs=1e-9)


def test_what_was_distorted_is_found_again() -> None:
    random = np.random.default_rng(0)
    logit = random.normal(size=200_000) * 2
    label = (random.random(200_000) < probability(0.5 * logit - 1.5)).astype(np.float32)
    slope, bias = fit_affine(label, logit.astype(np.float32))
    assert (slope, bias) == pytest.approx((0.5, -1.5), abs=0.02)
    assert log_loss(label, slope * logit + bias) < log_loss(label, logit)


def affine_loss(slope: float, bias: float, label: Array, logit: Array, weight: Array) -> float:
    z = slope * logit.astype(np.float64) + bias
    fit = weight @ np.logaddexp(0, np.where(label == 1, -z, z))
    return float(fit + PRIOR / 2 * ((slope - 1) ** 2 + bias**2 / 2))


@given(answers())
def test_the_fit_is_scipys_and_a_weight_a_repetition(rows: Rows) -> None:
    label, logit, weight = rows
    found = minimize(
        lambda at: affine_loss(at[0], at[1], label, logit, weight),
        [1, 0],
        bounds=[(SLOPE_FLOOR, None), (None, None)],
        options={"gtol": 1e-9},
    )
    fitted = fit_affine(label, logit, weight)
    assert affine_loss(*fitted, label, logit, weight) <= found.fun + 1e-6
    repeated = [np.repeat(column, weight.astype(int)) for column in (label, logit)]
    assert fit_affine(*repeated) == pytest.approx(fitted, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1, 1e4])
@pytest.mark.parametrize("label", [[0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0], []])
def test_separable_one_sided_and_reversed_data_stay_finite_and_monotone(
    label: list[int], scale: float
) -> None:
    rows = np.array(label, dtype=float), np.array([-2.0, -1.0, 1.0, 2.0])[: len(label)] * scale
    slope, bias = fit_affine(*rows)
    assert np.isfinite([slope, bias]).all()
    assert slope > 0
    once = np.ones(len(label))
    least = affine_loss(slope, bias, *rows, once)
    for near, shift in ((1.01 * slope, 0.0), (0.99 * slope, 0.0), (slope, 0.01), (slope, -0.01)):
        assert affine_loss(max(near, SLOPE_FLOOR), bias + shift, *rows, once) >= least - 1e-9


def test_nothing_is_learnt_from_nothing() -> None:
    assert fit_affine(np.array([nan, nan]), np.array([1.0, -1.0])) == pytest.approx((1, 0))
    assert isnan(calibration_error(np.array([nan]), np.array([1.0])))
    assert len(reliability(np.zeros(0), np.zeros(0)).count) == 0


def test_temperature_and_biases_of_several_classes_are_scipys() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=(400, 3)) * 2
    shown = logits / 2 + np.array([1.0, 0.0, -1.0])
    label = (shown + random.gumbel(size=shown.shape)).argmax(1).astype(float)
    weight = random.integers(0, 3, 400).astype(float)
    label[::7] = nan

    def loss(at: Array) -> float:
        rows = np.flatnonzero(~np.isnan(label))
        log_p = log_softmax(at[0] * logits[rows] + at[1:], axis=1)
        fit = -weight[rows] @ log_p[np.arange(len(rows)), label[rows].astype(int)]
        return float(fit + PRIOR / 2 * ((at[0] - 1) ** 2 + at[1:] @ at[1:]))

    temperature, bias = fit_temperature(label, logits, weight)
    found = minimize(loss, [1, 0, 0, 0], options={"gtol": 1e-8})
    assert np.array([1 / temperature, *bias]) == pytest.approx(found.x, abs=1e-4)
    assert bias.sum() == pytest.approx(0, abs=1e-6)
    assert (temperature, *bias) == pytest.approx((2, 1, 0, -1), abs=0.4)
