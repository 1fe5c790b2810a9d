"""Which numbers a task has, against scikit-learn class by class."""

from math import isnan, nan
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from sklearn import metrics as reference

from seft.data.task import Task
from seft.error import InputError
from seft.metrics import calibration, ranking, utility
from seft.metrics.bootstrap import intervals
from seft.metrics.summary import against_rest, of_task, prepare

Array = NDArray[Any]

BINARY = Task(kind="binary", classes=("alive", "dead"), metric="auprc")
SEPSIS = Task(kind="binary", classes=("no", "yes"), metric="balanced_accuracy", utility=True)
CLASSES = Task(kind="multiclass", classes=("a", "b", "c"), metric="accuracy")
LABELS = Task(kind="multilabel", classes=("x", "y", "z"), metric="auroc")

NAMES = ["auroc", "auprc", "accuracy", "balanced_accuracy", "min_sensitivity_precision"]
NAMES += ["log_loss", "brier", "calibration_error"]


@pytest.fixture(scope="module")
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def one_hot(classes: Array) -> Array:
    return CLASSES.encode(classes[:, None].astype(np.float32))


def test_a_binary_task(random: np.random.Generator) -> None:
    label = random.integers(0, 2, (60, 1)).astype(np.float32)
    logits = random.normal(size=(60, 1)).astype(np.float32)
    label[:5] = nan
    weight = random.integers(0, 3, 60).astype(float)
    y, z = label[:, 0], logits[:, 0]
    assert of_task(BINARY, label, logits, weight=weight) == pytest.approx(
        {
            "auroc": ranking.auroc(y, z, weight),
            "auprc": ranking.auprc(y, z, weight),
            "accuracy": ranking.accuracy(y, z, weight),
            "balanced_accuracy": ranking.balanced_accuracy(y, z, weight),
            "min_sensitivity_precision": ranking.min_sensitivity_precision(y, z, weight),
            "log_loss": ranking.log_loss(y, z, weight),
            "brier": ranking.brier(y, z, weight),
            "calibration_error": calibration.calibration_error(y, z, weight),
        }
    )
    assert of_task(BINARY, label, logits) == of_task(BINARY, label, logits, weight=np.ones(60))


def test_calls_go_by_the_logit_and_probabilities_by_its_calibration(random: np.random.Generator) -> None:
    label = random.integers(0, 2, (60, 1)).astype(np.float32)
    logits = random.normal(size=(60, 1))
    shown = 0.5 * logits - 2
    found = of_task(BINARY, label, logits, threshold=0.3, calibrated=shown)
    raw = of_task(BINARY, label, logits)
    y, z, told = label[:, 0], logits[:, 0], shown[:, 0]
    for name in ("auroc", "auprc", "min_sensitivity_precision"):
        assert found[name] == raw[name]
    assert found["accuracy"] == ranking.accuracy(y, z, threshold=0.3) != raw["accuracy"]
    assert found["balanced_accuracy"] == ranking.balanced_accuracy(y, z, threshold=0.3)
    assert found["log_loss"] == pytest.approx(ranking.log_loss(y, told))
    assert found["brier"] == pytest.approx(ranking.brier(y, told))
    assert found["calibration_error"] == pytest.approx(calibration.calibration_error(y, told))


def test_the_utility_only_where_it_is_declared_and_series_are_given(random: np.random.Generator) -> None:
    label = np.tile(np.arange(20) >= 12, 5).astype(np.float32)[:, None]
    logits = random.normal(size=(100, 1))
    offsets = np.arange(0, 101, 20)
    weight = np.repeat([0.0, 1, 2, 1, 1], 20)
    found = of_task(SEPSIS, label, logits, offsets, threshold=-0.5, weight=weight)
    expected = utility.utility(label[:, 0], logits[:, 0], offsets, -0.5, weight)
    assert found["utility"] == pytest.approx(expected)
    assert "utility" not in of_task(SEPSIS, label, logits)
    assert "utility" not in of_task(BINARY, label, logits, offsets)


def test_several_classes_against_the_rest(random: np.random.Generator) -> None:
    classes = random.integers(0, 3, 90)
    logits = random.normal(size=(90, 3)) + np.eye(3)[classes]
    p = softmax(logits, axis=1)
    found = of_task(CLASSES, one_hot(classes), logits)
    per_class = {name: f"auroc_{name}" for name in "abc"}
    assert list(found) == [*NAMES, *per_class.values(), "auprc_a", "auprc_b", "auprc_c"]
    assert found["auroc"] == pytest.approx(reference.roc_auc_score(classes, p, multi_class="ovr"))
    assert found["auprc"] == pytest.approx(reference.average_precision_score(np.eye(3)[classes], p))
    assert found["accuracy"] == pytest.approx((p.argmax(1) == classes).mean())
    balanced = reference.balanced_accuracy_score(classes, p.argmax(1))
    assert found["balanced_accuracy"] == pytest.approx(balanced)
    assert found["log_loss"] == pytest.approx(reference.log_loss(classes, p))
    assert found["brier"] == pytest.approx(((p - np.eye(3)[classes]) ** 2).sum(1).mean())
    odds = against_rest(logits)
    for k, name in enumerate("abc"):
        own = (classes == k).astype(float)
        assert found[f"auroc_{name}"] == pytest.approx(reference.roc_auc_score(own, p[:, k]))
        assert found[f"auprc_{name}"] == pytest.approx(reference.average_precision_score(own, p[:, k]))
    errors = [calibration.calibration_error((classes == k).astype(float), odds[:, k]) for k in range(3)]
    assert found["calibration_error"] == pytest.approx(np.mean(errors))


def test_a_calibration_with_biases_changes_what_is_shown_and_no_call(random: np.random.Generator) -> None:
    classes = random.integers(0, 3, 90)
    label, logits = one_hot(classes), random.normal(size=(90, 3)) + np.eye(3)[classes]
    shown = logits / 2 + np.array([2.0, 0, -2])
    found, raw, other = (
        of_task(CLASSES, label, logits, calibrated=shown),
        of_task(CLASSES, label, logits),
        of_task(CLASSES, label, shown),
    )
    for name in ("auroc", "auprc", "accuracy", "balanced_accuracy", "auroc_a", "auprc_c"):
        assert found[name] == raw[name] != other[name]
    for name in ("log_loss", "brier", "calibration_error"):
        assert found[name] == pytest.approx(other[name])


@pytest.mark.parametrize("task", [BINARY, CLASSES, LABELS])
def test_a_weight_is_a_repetition(random: np.random.Generator, task: Task) -> None:
    logits = random.normal(size=(80, task.outputs))
    label = random.integers(0, 2, (80, task.outputs)).astype(np.float32)
    if task.kind == "multiclass":
        label = one_hot(random.integers(0, 3, 80))
    label[:7] = nan
    weight = random.integers(0, 3, 80)
    repeated = of_task(task, np.repeat(label, weight, 0), np.repeat(logits, weight, 0))
    assert of_task(task, label, logits, weight=weight.astype(float)) == pytest.approx(repeated)


def test_each_label_by_itself(random: np.random.Generator) -> None:
    label = random.integers(0, 2, (70, 3)).astype(np.float32)
    label[random.random((70, 3)) < 0.3] = nan
    label[:, 2] = np.where(np.isnan(label[:, 2]), nan, 0)  # z never occurs
    logits = random.normal(size=(70, 3))
    found = of_task(LABELS, label, logits)
    each = [of_task(BINARY, label[:, [c]], logits[:, [c]]) for c in range(3)]
    assert isnan(found["auroc_z"])
    assert found["auroc"] == pytest.approx((each[0]["auroc"] + each[1]["auroc"]) / 2)
    assert found["auprc_y"] == each[1]["auprc"]
    assert found["log_loss"] == pytest.approx(np.mean([one["log_loss"] for one in each]))
    assert found["accuracy"] == pytest.approx(np.mean([one["accuracy"] for one in each]))


def test_a_class_that_never_occurs_has_no_part_in_the_mean(random: np.random.Generator) -> None:
    classes = random.integers(0, 2, 50)
    logits = random.normal(size=(50, 3))
    found = of_task(CLASSES, one_hot(classes), logits)
    calls = logits.argmax(1)
    recalls = [(calls[classes == k] == k).mean() for k in (0, 1)]
    assert found["balanced_accuracy"] == pytest.approx(np.mean(recalls))
    assert isnan(found["auroc_c"])
    assert found["auroc"] == pytest.approx((found["auroc_a"] + found["auroc_b"]) / 2)
    alone = of_task(CLASSES, one_hot(np.zeros(50)), logits)
    assert isnan(alone["balanced_accuracy"])
    assert isnan(alone["auroc"])


@pytest.mark.parametrize("task", [BINARY, SEPSIS, CLASSES, LABELS])
def test_of_nothing_nothing_is_known_and_nothing_warns(task: Task) -> None:
    for n in (0, 3):
        label, logits = np.full((n, task.outputs), nan, np.float32), np.zeros((n, task.outputs))
        assert all(isnan(value) for value in of_task(task, label, logits, np.array([0, n])).values())


def test_the_odds_of_a_class_lose_nothing_near_certainty() -> None:
    logits = np.array([[50.0, 0, -50], [1000, -1000, 0], [0.3, 0.2, 0.1]], dtype=np.float32)
    odds = against_rest(logits)
    assert odds[0, 0] == pytest.approx(50)
    assert odds[1].tolist() == [1000, -2000, -1000]
    log_p = log_softmax(logits[2].astype(float))
    assert odds[2] == pytest.approx(log_p - np.log1p(-np.exp(log_p)))


def test_a_bootstrap_draws_from_what_is_prepared(random: np.random.Generator) -> None:
    label, logits = one_hot(random.integers(0, 3, 60)), random.normal(size=(60, 3))
    found = intervals(prepare(CLASSES, label, logits), np.arange(60) // 3, draws=50)
    value = of_task(CLASSES, label, logits)
    assert {name: interval.value for name, interval in found.items()} == pytest.approx(value)
    assert all(
        interval.low <= value[name] <= interval.high for name, interval in found.items() if name in NAMES[:4]
    )


def test_answers_that_are_no_numbers_or_of_another_shape_are_refused() -> None:
    label, logits = np.zeros((3, 1)), np.array([[0.0], [nan], [1]])
    with pytest.raises(InputError, match="query 1 is not a finite number"):
        of_task(BINARY, label, logits)
    with pytest.raises(ValueError, match=r"not all \(Q, 1\)"):
        of_task(BINARY, np.zeros(3), np.zeros((3, 1)))
    with pytest.raises(ValueError, match=r"not all \(Q, 3\)"):
        of_task(CLASSES, label, label)
