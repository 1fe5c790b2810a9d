"""The optimizers and schedules that a config names."""

from collections.abc import Iterable
from math import cos, pi

import torch
from torch import nn
from torch.optim import Adam, Adamax, AdamW, Optimizer

from seft.training.config import TrainingConfig


def optimizer_of(parameters: Iterable[nn.Parameter], config: TrainingConfig) -> Optimizer:
    if config.optimizer == "adamw":
        return AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)
    kind = Adam if config.optimizer == "adam" else Adamax
    return kind(parameters, lr=config.learning_rate)


def learning_rate(config: TrainingConfig, step: int, steps: int, plateau_factor: float) -> float:
    """The rate of a step out of `steps`: a function of the step alone, so that a resumed run has the same."""
    rate = config.learning_rate * plateau_factor
    if step < config.warmup_steps:
        rate *= (step + 1) / config.warmup_steps
    done = step / max(steps - 1, 1)
    if config.schedule == "one_cycle":
        # Up over the first third, then down to nothing, along cosines.
        rise = done / 0.3
        rate *= (1 - cos(pi * rise)) / 2 * 0.96 + 0.04 if rise < 1 else (1 + cos(pi * (done - 0.3) / 0.7)) / 2
    elif config.schedule == "cosine":
        rate *= (1 + cos(pi * done)) / 2
    elif config.schedule == "exponential":
        rate *= 0.01**done
    return rate


class Plateau:
    """Halves the rate after 15 epochs without improvement, then waits 15; never below 1e-5.

    The constants of the released code. Plain numbers, so that it is saved with the rest of a run.
    """

    PATIENCE, COOLDOWN, FACTOR, LOWEST = 15, 15, 0.5, 1e-5

    def __init__(self, config: TrainingConfig) -> None:
        self._on = config.schedule == "plateau"
        self._lowest = min(self.LOWEST / config.learning_rate, 1.0)
        self._min_delta = config.min_delta
        self.state = {"factor": 1.0, "best": -float("inf"), "wait": 0.0, "cooldown": 0.0}

    @property
    def factor(self) -> float:
        return self.state["factor"]

    def observe(self, metric: float) -> None:
        """Told of each epoch's monitored metric, larger being better."""
        state = self.state
        if not self._on:
            return
        if state["cooldown"] > 0:
            state["cooldown"] -= 1
            state["wait"] = 0
        if metric > state["best"] + self._min_delta:
            state["best"], state["wait"] = metric, 0
        elif state["cooldown"] <= 0:
            state["wait"] += 1
            if state["wait"] >= self.PATIENCE:
                state["factor"] = max(state["factor"] * self.FACTOR, self._lowest)
                state["cooldown"], state["wait"] = self.COOLDOWN, 0


class Average:
    """A running mean of the weights, which is what is judged and kept where it is on."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self.steps = 0
        self.weights = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Early on the mean is over fewer steps, so that it is not held back by the initial weights."""
        self.steps += 1
        decay = min(self._decay, self.steps / (self.steps + 10))
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                self.weights[name].lerp_(value, 1 - decay)
            else:
                self.weights[name].copy_(value)
