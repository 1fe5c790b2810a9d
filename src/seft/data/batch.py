"""The one shape of data: flat rows and offsets, on disk, in a batch and on an accelerator alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from seft.error import InputError

_KINDS = dict.fromkeys(("modality", "moment"), torch.int32) | dict.fromkeys(
    ("series", "offsets", "query_offsets", "query_visible"), torch.int64
)
_Refuse = Callable[[Tensor, Tensor, str], None]  # which rows are bad, their series in the batch, what to say


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some series with their observations and queries; B series, N observations, Q queries.

    Rows of a series stand together, in the order in which they arrived; so do its queries. Nothing is
    padded. A query sees the first `query_visible` rows of its series and nothing else.
    """

    series: Tensor  # (B,) int64, rows of the dataset's series table
    time: Tensor  # (N,) float32, hours since the start
    arrival: Tensor  # (N,) float32, hours since the start; a feature, never what decides visibility
    value: Tensor  # (N,) float32, in the variable's unit
    modality: Tensor  # (N,) int32
    moment: Tensor  # (N,) int32, 0, 1, 2 … within a series, ascending
    offsets: Tensor  # (B+1,) int64: series b owns rows offsets[b]:offsets[b+1]
    static: Tensor  # (B, S) float32, NaN where unknown
    query_time: Tensor  # (Q,) float32, ascending within a series
    query_visible: Tensor  # (Q,) int64: the query sees the first so many rows of its series
    query_offsets: Tensor  # (B+1,) int64
    label: Tensor  # (Q, C) float32, NaN where unscored

    def __len__(self) -> int:
        """How many series."""
        return self.series.shape[0]

    @property
    def observations(self) -> int:
        return self.time.shape[0]

    @property
    def queries(self) -> int:
        return self.query_time.shape[0]

    @property
    def bytes(self) -> int:
        """The memory that its columns take."""
        return sum(getattr(self, f.name).nbytes for f in fields(self))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        moved = {f.name: getattr(self, f.name).to(device, non_blocking=non_blocking) for f in fields(self)}
        return replace(self, **moved)

    def pin_memory(self) -> "Batch":
        return replace(self, **{f.name: getattr(self, f.name).pin_memory() for f in fields(self)})

    def check(self, modalities: int, ids: Sequence[str] | None = None) -> None:
        """Raise `InputError` naming the first series that breaks the contract.

        For the edges, where data enters; a few passes over the columns, left out of the inner loop.
        `ids` are the series' names, one a series of this batch; without them its row number is named.
        """
        self._check_shapes()
        rows = segment_of_row(self.offsets)
        queries = segment_of_row(self.query_offsets)

        def refuse(bad: Tensor, series: Tensor, what: str) -> None:
            if bool(bad.any()):
                b = int(series[bad.nonzero()[0, 0]])
                name = ids[b] if ids is not None else f"row {int(self.series[b])}"
                raise InputError(f"series {name}: {what}")

        refuse(~torch.isfinite(self.time) | ~torch.isfinite(self.arrival), rows, "a time is not finite")
        refuse(~torch.isfinite(self.value), rows, "a value is not finite")
        every = torch.arange(len(self), device=rows.device)
        refuse(torch.isinf(self.static).any(1), every, "a static is infinite")
        refuse(
            (self.modality < 0) | (self.modality >= modalities),
            rows,
            f"a modality lies outside 0 … {modalities - 1}",
        )
        refuse(self.arrival < self.time, rows, "an observation arrives before its own time")
        refuse(self.arrival < 0, rows, "an observation arrives before the start")
        self._check_order(rows, refuse)
        refuse(~torch.isfinite(self.query_time), queries, "a query's time is not finite")
        refuse(torch.isinf(self.label).any(1), queries, "a label is infinite")
        self._check_queries(queries, refuse)

    def _check_shapes(self) -> None:
        for column in fields(self):
            kind = _KINDS.get(column.name, torch.float32)
            if (found := getattr(self, column.name).dtype) != kind:
                raise InputError(f"batch: {column.name} is {found} and must be {kind}")
        if self.static.dim() != 2 or self.label.dim() != 2:
            raise InputError("batch: static and label must have a row each and columns")
        for name, rows, offsets in (
            ("offsets", self.observations, self.offsets),
            ("query_offsets", self.queries, self.query_offsets),
        ):
            if offsets.shape != (len(self) + 1,) or int(offsets[0]) != 0 or int(offsets[-1]) != rows:
                raise InputError(f"batch: {name} must run from 0 to {rows} in {len(self) + 1} steps")
            falls = offsets[1:] < offsets[:-1]
            if bool(falls.any()):
                b = int(falls.nonzero()[0, 0])
                raise InputError(f"series row {int(self.series[b])}: {name} fall from {int(offsets[b])}")
        for name in ("arrival", "value", "modality", "moment"):
            if getattr(self, name).shape != self.time.shape:
                raise InputError(f"batch: {name} has another length than time")
        for name in ("query_visible", "label"):
            if getattr(self, name).shape[0] != self.queries:
                raise InputError(f"batch: {name} has another length than query_time")
        if self.static.shape[0] != len(self):
            raise InputError("batch: static has another length than series")

    def _check_order(self, rows: Tensor, refuse: _Refuse) -> None:
        """Rows ascend by arrival; moments count 0, 1, 2 …; (moment, time, modality) is unique."""
        if self.observations == 0:
            return
        first = torch.ones_like(rows, dtype=torch.bool)
        first[1:] = rows[1:] != rows[:-1]
        refuse(first & (self.moment != 0), rows, "its moments do not start at 0")
        step = torch.where(first[1:], 0, self.moment[1:] - self.moment[:-1])
        refuse((step < 0) | (step > 1), rows[1:], "its moments do not ascend by ones")
        later = ~first[1:]
        refuse(later & (self.arrival[1:] < self.arrival[:-1]), rows[1:], "its arrivals do not ascend")
        same = later & (self.moment[1:] == self.moment[:-1])
        refuse(same & (self.arrival[1:] != self.arrival[:-1]), rows[1:], "a moment has two arrivals")
        ahead = (self.time[1:] > self.time[:-1]) | (
            (self.time[1:] == self.time[:-1]) & (self.modality[1:] > self.modality[:-1])
        )
        if bool((ahead | ~same).all()):
            return  # in strict order within each moment, as datasets are, and so without twins
        order = torch.argsort(self.modality, stable=True)
        for key in (self.time, self.moment, rows):
            order = order[torch.argsort(key[order], stable=True)]
        twin = torch.ones_like(later)
        for key in (rows, self.moment, self.time, self.modality):
            twin &= key[order[1:]] == key[order[:-1]]
        refuse(twin, rows[order[1:]], "two observations share arrival, time and modality")

    def _check_queries(self, queries: Tensor, refuse: _Refuse) -> None:
        """Queries ascend in time and in what they see, which is always whole moments of their series."""
        count = (self.offsets[1:] - self.offsets[:-1])[queries]
        refuse(
            (self.query_visible < 0) | (self.query_visible > count),
            queries,
            "a query sees more rows than there are",
        )
        same = queries[1:] == queries[:-1]
        refuse(same & (self.query_time[1:] < self.query_time[:-1]), queries[1:], "its queries do not ascend")
        refuse(
            same & (self.query_visible[1:] < self.query_visible[:-1]),
            queries[1:],
            "a later query sees less than an earlier one",
        )
        inside = (self.query_visible > 0) & (self.query_visible < count)
        end = (self.offsets[:-1][queries] + self.query_visible)[inside]
        refuse(self.moment[end] == self.moment[end - 1], queries[inside], "a query sees part of a moment")


def segment_of_row(offsets: Tensor) -> Tensor:
    """(rows,) int64: the segment that each row belongs to."""
    return torch.arange(offsets.shape[0] - 1, device=offsets.device).repeat_interleave(offsets.diff())
