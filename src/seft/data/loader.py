"""Which series go into the next batch: shuffled, balanced, or capped by observations.

A plan is the rows of every batch of an epoch; whatever holds the data turns rows into a batch:

    for rows in shuffled(dataset.split("train"), 512, seed=0, epoch=3):
        batch = dataset.batch(rows)

Plans are made on the host from a few integers a series; they depend on the seed and the epoch alone.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from seft.data import ragged
from seft.data.batch import Batch
from seft.data.dataset import Dataset, Rows
from seft.error import InputError

Plan = list[Rows]


class Source(Protocol):
    """What batches are drawn from: a dataset's mapped shards, or a dataset held in memory."""

    def batch(self, rows: Rows) -> Batch: ...


class Held:
    """Some series of a dataset, whole on one device; batches are drawn there, without the host's data."""

    def __init__(self, dataset: Dataset, rows: Rows, device: torch.device | str) -> None:
        self._whole = dataset.batch(rows).to(device)
        self._position = np.full(len(dataset), -1, dtype=np.int64)
        self._position[rows] = np.arange(len(rows))

    @property
    def bytes(self) -> int:
        """The memory that it takes."""
        return self._whole.bytes

    def batch(self, rows: Rows) -> Batch:
        position = self._position[rows]
        if len(position) and position.min() < 0:
            raise KeyError(f"row {rows[position.argmin()]} is not among the series that are held")
        device = self._whole.time.device
        return ragged.take(self._whole, torch.from_numpy(position).to(device, non_blocking=True))


def in_order(rows: Rows, size: int) -> Iterator[Rows]:
    """All rows once, as they stand: for predicting."""
    for begin in range(0, len(rows), size):
        yield rows[begin : begin + size]


def shuffled(rows: Rows, size: int, *, seed: int, epoch: int) -> Plan:
    """All rows once in a new order each epoch; the last batch may be smaller."""
    order = _generator(seed, epoch).permutation(rows)
    return list(in_order(order, size))


def capped(rows: Rows, observations: NDArray[np.int64], most: int, *, seed: int, epoch: int) -> Plan:
    """All rows once in a new order each epoch, as many a batch as have `most` observations together.

    `observations` are those of each of the rows. A series that has more by itself is a batch of its own.
    """
    order = _generator(seed, epoch).permutation(len(rows))
    plan: Plan = []
    begin, total = 0, 0
    for end, count in enumerate(observations[order].tolist()):
        if total + count > most and end > begin:
            plan.append(rows[order[begin:end]])
            begin, total = end, 0
        total += count
    if begin < len(rows):
        plan.append(rows[order[begin:]])
    return plan


def balanced(rows: Rows, classes: NDArray[np.int64], size: int, *, seed: int, epoch: int) -> Plan:
    """Batches of equal shares of the classes, `balanced_steps` of them; the paper's way of training.

    `classes` are those of each of the rows, -1 for series without a label, which are left out. Each class
    is shuffled and repeated. Where `size` is no multiple of their number, the odd ones go round by step.
    """
    present = np.unique(classes[classes >= 0])
    if len(present) < 2:
        raise InputError("balanced batches need series of two classes at least; the split has one or none")
    if size < len(present):
        raise InputError(f"a balanced batch of {size} cannot hold each of the {len(present)} classes")
    generator = _generator(seed, epoch)
    members = [rows[classes == value] for value in present]
    steps = balanced_steps([len(of_class) for of_class in members], size)
    even = np.diff(np.arange(len(members) + 1) * size // len(members))
    quota = np.stack([np.roll(even, step) for step in range(steps)])
    streams = [
        _endless(of_class, total, generator)
        for of_class, total in zip(members, quota.sum(0).tolist(), strict=True)
    ]
    cuts = [np.split(stream, np.cumsum(count)[:-1]) for stream, count in zip(streams, quota.T, strict=True)]
    return [generator.permutation(np.concatenate(parts)) for parts in zip(*cuts, strict=True)]


def balanced_steps(counts: Sequence[int], size: int) -> int:
    """Steps until the largest class is seen once or the smallest three times: min(⌈K·max/b⌉, ⌈3K·min/b⌉).

    With two classes the paper's min(⌈2·majority/b⌉, ⌈6·minority/b⌉).
    """
    kinds = len(counts)
    return min(-(-kinds * max(counts) // size), -(-3 * kinds * min(counts) // size))


def share(plan: Plan, rank: int, world: int) -> Plan:
    """One rank's part of every batch; all ranks together have the plan's batches."""
    return [rows[rank::world] for rows in plan]


def owned(dataset: Dataset, rank: int, world: int) -> Rows:
    """The rows of the shards that a rank owns: the largest first, each to whoever has the least so far."""
    load = np.zeros(world, dtype=np.int64)
    mine: list[Rows] = []
    first = np.concatenate(([0], np.cumsum(dataset.rows("series"))))
    observations = dataset.rows("observations")
    for shard in np.argsort(-observations, kind="stable").tolist():
        owner = int(load.argmin())
        load[owner] += observations[shard]
        if owner == rank:
            mine.append(np.arange(first[shard], first[shard + 1]))
    return np.sort(np.concatenate(mine)) if mine else np.zeros(0, dtype=np.int64)


def _endless(members: Rows, total: int, generator: np.random.Generator) -> Rows:
    """`total` rows: the members shuffled, then shuffled anew, and so on."""
    rounds = -(-total // len(members))
    return np.concatenate([generator.permutation(members) for _ in range(rounds)])[:total]


def _generator(seed: int, epoch: int) -> np.random.Generator:
    return np.random.default_rng((seed, epoch))
