"""What every model promises; the commands know models by this alone."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from seft.data.batch import Batch
from seft.data.schema import Schema
from seft.data.task import Task
from seft.models.explanation import Explanation, shapley


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a model keeps of many series while it streams: tensors with the series first."""

    def __len__(self) -> int:
        return int(getattr(self, fields(self)[0].name).shape[0])

    def take(self, rows: Tensor) -> Self:
        """The states of some series."""
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def put(self, rows: Tensor, part: Self) -> Self:
        """The same with `part` in the places `rows`; the tensors are changed in place."""
        for f in fields(self):
            getattr(self, f.name)[rows] = getattr(part, f.name)
        return self


class Scorer(ABC):
    """Whatever answers queries."""

    Config: ClassVar[type]

    def __init__(self, config: Any, schema: Schema, task: Task) -> None:
        super().__init__()
        self.config = config
        self.schema = schema
        self.task = task

    @abstractmethod
    def forward(self, batch: Batch) -> Tensor:
        """(Q, C) a row of logits a query, of nothing that arrived after it."""

    def explain(self, batch: Batch, query: int, orders: int = 64, seed: int = 0) -> Explanation:
        """What made up the answer to one query: Shapley values over sampled orders."""
        return shapley(self.forward, self.schema, batch, query, orders, seed)


class Model(Scorer, nn.Module):
    """A scorer that is trained by gradients and can stream."""

    causal: ClassVar[bool]  # by nature, not by expanding prefixes
    constant_state: ClassVar[bool]  # whether the state stays of one size however long a series is

    @abstractmethod
    def adapt(self, batches: Iterable[Batch]) -> None:
        """One pass over training batches, before the first step: what is normalised by, time scales."""

    def objective(self, batch: Batch, class_weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """The sum of the losses and the count of scored labels, which training divides by."""
        return self.task.loss(self(batch), batch.label, class_weights)

    @abstractmethod
    def start(self, static: Tensor) -> State:
        """(B, S) -> the states of B series of which nothing has arrived yet."""

    @abstractmethod
    def step(self, state: State, new: Batch) -> tuple[State, Tensor]:
        """Whole moments of each series, counted from 0, and logits (Q, C) for the queries of `new`."""

    def parameters_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device
