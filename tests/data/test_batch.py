from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from torch import Tensor

from seft.data.batch import Batch, segment_of_row
from seft.error import InputError
from tests.data.random_batch import random_batch

NAN, INF = float("nan"), float("inf")


def batch() -> Batch:
    """Series `a`: moments (0: two rows), (1: one row), queries after each; `b`: empty; `c`: one row."""
    return Batch(
        series=torch.tensor([7, 3, 9]),
        time=torch.tensor([-1.0, 0.0, 2.0, 1.0]),
        arrival=torch.tensor([0.0, 0.0, 2.0, 1.5]),
        value=torch.tensor([80.0, 37.0, 90.0, 1.0]),
        modality=torch.tensor([0, 1, 0, 1], dtype=torch.int32),
        moment=torch.tensor([0, 0, 1, 0], dtype=torch.int32),
        offsets=torch.tensor([0, 3, 3, 4]),
        static=torch.tensor([[NAN], [1.0], [2.0]]),
        query_time=torch.tensor([0.0, 2.0, 5.0, 1.0]),
        query_visible=torch.tensor([2, 3, 0, 0]),
        query_offsets=torch.tensor([0, 2, 3, 4]),
        label=torch.tensor([[0.0], [1.0], [NAN], [1.0]]),
    )


def changed(column: Tensor, place: int, value: float) -> Tensor:
    other = column.clone()
    other[place] = value
    return other


def test_a_batch_that_keeps_the_contract_passes() -> None:
    batch().check(2)
    batch().check(2, ["a", "b", "c"])


@given(random_batch())
def test_every_batch_of_the_tests_keeps_the_contract(batch: Batch) -> None:
    batch.check(3)


VIOLATIONS: dict[str, tuple[Callable[[Batch], Batch], str]] = {
    "offsets that do not reach the end": (
        lambda b: replace(b, offsets=torch.tensor([0, 3, 3, 3])),
        "batch: offsets must run from 0 to 4",
    ),
    "offsets that fall": (
        lambda b: replace(b, offsets=torch.tensor([0, 3, 2, 4])),
        "series row 3: offsets fall",
    ),
    "query offsets that fall": (
        lambda b: replace(b, query_offsets=torch.tensor([0, 3, 2, 4])),
        "series row 3: query_offsets fall",
    ),
    "a column of another length": (
        lambda b: replace(b, value=b.value[:3]),
        "batch: value has another length",
    ),
    "a label of another length": (lambda b: replace(b, label=b.label[:3]), "batch: label has another length"),
    "statics of another length": (lambda b: replace(b, static=b.static[:2]), "batch: static has another"),
    "a time that is no number": (
        lambda b: replace(b, time=changed(b.time, 3, NAN)),
        "series c: a time is not finite",
    ),
    "an infinite arrival": (
        lambda b: replace(b, arrival=changed(b.arrival, 2, INF)),
        "series a: a time is not finite",
    ),
    "an infinite value": (
        lambda b: replace(b, value=changed(b.value, 0, -INF)),
        "series a: a value is not finite",
    ),
    "an infinite static": (
        lambda b: replace(b, static=torch.tensor([[NAN], [INF], [2.0]])),
        "series b: a static is infinite",
    ),
    "a column of another type": (
        lambda b: replace(b, modality=b.modality.long()),
        "batch: modality is torch.int64 and must be torch.int32",
    ),
    "a label without columns": (
        lambda b: replace(b, label=b.label[:, 0]),
        "batch: static and label must have a row each and columns",
    ),
    "a modality too large": (
        lambda b: replace(b, modality=changed(b.modality, 3, 2)),
        "series c: a modality lies outside 0 … 1",
    ),
    "a negative modality": (
        lambda b: replace(b, modality=changed(b.modality, 3, -1)),
        "series c: a modality lies outside",
    ),
    "an arrival before its time": (
        lambda b: replace(b, arrival=changed(b.arrival, 3, 0.5)),
        "series c: an observation arrives before its own time",
    ),
    "an arrival before the start": (
        lambda b: replace(b, arrival=changed(b.arrival, 0, -0.5)),
        "series a: an observation arrives before the start",
    ),
    "moments that do not start at 0": (
        lambda b: replace(b, moment=changed(b.moment, 3, 1)),
        "series c: its moments do not start at 0",
    ),
    "moments with a gap": (
        lambda b: replace(b, moment=changed(b.moment, 2, 2)),
        "series a: its moments do not ascend by ones",
    ),
    "moments that descend": (
        lambda b: replace(b, moment=torch.tensor([0, 1, 0, 0], dtype=torch.int32)),
        "series a: its moments do not ascend by ones",
    ),
    "arrivals that descend": (
        lambda b: replace(b, arrival=torch.tensor([3.0, 3.0, 2.0, 1.5])),
        "series a: its arrivals do not ascend",
    ),
    "a moment of two arrivals": (
        lambda b: replace(b, arrival=changed(b.arrival, 1, 1.0)),
        "series a: a moment has two arrivals",
    ),
    "two observations of one arrival, time and modality": (
        lambda b: replace(b, time=changed(b.time, 1, -1.0), modality=changed(b.modality, 1, 0)),
        "series a: two observations share arrival, time and modality",
    ),
    "a query at no time": (
        lambda b: replace(b, query_time=changed(b.query_time, 2, NAN)),
        "series b: a query's time is not finite",
    ),
    "an infinite label": (
        lambda b: replace(b, label=changed(b.label, 1, INF)),
        "series a: a label is infinite",
    ),
    "a query that sees too much": (
        lambda b: replace(b, query_visible=changed(b.query_visible, 2, 1)),
        "series b: a query sees more rows than there are",
    ),
    "queries that descend": (
        lambda b: replace(b, query_time=changed(b.query_time, 1, -1.0)),
        "series a: its queries do not ascend",
    ),
    "a later query that sees less": (
        lambda b: replace(b, query_visible=changed(b.query_visible, 1, 0)),
        "series a: a later query sees less",
    ),
    "a query that sees part of a moment": (
        lambda b: replace(b, query_visible=changed(b.query_visible, 0, 1)),
        "series a: a query sees part of a moment",
    ),
}


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_a_violation_is_refused_and_its_series_named(violation: str) -> None:
    break_it, message = VIOLATIONS[violation]
    with pytest.raises(InputError, match=message):
        break_it(batch()).check(2, ["a", "b", "c"])


def test_without_names_the_row_of_the_series_table_is_named() -> None:
    with pytest.raises(InputError, match="series row 9: a value is not finite"):
        replace(batch(), value=changed(batch().value, 3, NAN)).check(2)


def test_moving_a_batch_keeps_every_column() -> None:
    moved = batch().to("cpu")
    assert all(getattr(moved, name).equal(getattr(batch(), name)) for name in ("series", "value", "offsets"))
    assert batch().bytes == sum(getattr(batch(), name).nbytes for name in Batch.__slots__)


def test_each_row_knows_its_segment() -> None:
    assert segment_of_row(torch.tensor([0, 2, 2, 3])).tolist() == [0, 0, 2]
