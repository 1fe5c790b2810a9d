from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from seft.training.config import TrainingConfig
from seft.training.optimizer import Average, Plateau, learning_rate


def reference_plateau(metrics: list[float]) -> list[float]:
    """Keras' ReduceLROnPlateau: factor 0.5, patience 15, cooldown 15, min_lr 1e-5, from its definition."""
    rate, best, wait, cooldown, rates = 1e-3, -float("inf"), 0, 0, []
    for metric in metrics:
        if cooldown > 0:
            cooldown -= 1
            wait = 0
        if metric > best + 1e-4:
            best, wait = metric, 0
        elif cooldown == 0:
            wait += 1
            if wait >= 15 and rate > 1e-5:
                rate, cooldown, wait = max(rate * 0.5, 1e-5), 15, 0
        rates.append(rate)
    return rates


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3]), max_size=150))
def test_the_rate_is_halved_where_the_metric_stands_still(metrics: list[float]) -> None:
    plateau = Plateau(TrainingConfig(schedule="plateau", learning_rate=1e-3))
    rates = []
    for metric in metrics:
        plateau.observe(metric)
        rates.append(1e-3 * plateau.factor)
    assert rates == pytest.approx(reference_plateau(metrics))


def test_other_schedules_have_no_plateau() -> None:
    plateau = Plateau(TrainingConfig())
    for _ in range(100):
        plateau.observe(0.5)
    assert plateau.factor == 1.0


@pytest.mark.parametrize("schedule", ["one_cycle", "cosine", "exponential"])
def test_schedules_end_low_and_are_highest_where_they_should_be(schedule: str) -> None:
    config = TrainingConfig(schedule=schedule, learning_rate=1e-3)  # type: ignore[arg-type]
    rates = [learning_rate(config, step, 1000, 1.0) for step in range(1000)]
    top = rates.index(max(rates))
    assert max(rates) == pytest.approx(1e-3, rel=1e-3)
    assert top == (pytest.approx(300, abs=2) if schedule == "one_cycle" else 0)
    assert rates[-1] <= 1.1e-5
    assert all(a >= b for a, b in pairwise(rates[top:]))
    assert all(a <= b for a, b in pairwise(rates[: top + 1]))


def test_warm_up_rises_evenly_to_the_rate() -> None:
    config = TrainingConfig(warmup_steps=4, learning_rate=1.0)
    assert [learning_rate(config, step, 100, 1.0) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_the_running_mean_of_constant_weights_is_the_weights() -> None:
    layer = nn.Linear(3, 2)
    average = Average(layer, 0.9)
    goal = {name: torch.randn_like(value) for name, value in layer.state_dict().items()}
    layer.load_state_dict(goal)
    for _ in range(200):
        average.update(layer)
    for name, value in goal.items():
        torch.testing.assert_close(average.weights[name], value)
