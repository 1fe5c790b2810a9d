"""A dataset folder as a source of batches."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from seft.data.assembly import hours
from seft.data.batch import Batch
from seft.data.folder import Folder, Table, label_columns, static_column
from seft.error import InputError

Rows = NDArray[np.int64]  # row numbers in the table of series


class Dataset(Folder):
    """An open dataset. `batch(rows)` reads just these series from the mapped shards."""

    def split(self, name: str) -> Rows:
        """The rows of one split, ascending."""
        if name not in self.splits:
            raise InputError(f"{self.path} has no split {name!r}; it has {', '.join(sorted(self.splits))}")
        return self._split_rows[name]

    def ids(self, rows: Rows) -> list[str]:
        ids: list[str] = self.series.column("id").take(rows).to_pylist()
        return ids

    def groups(self, rows: Rows) -> list[str]:
        """What must not be torn apart: the patient behind several stays."""
        groups: list[str] = self.series.column("group").take(rows).to_pylist()
        return groups

    def observations(self, rows: Rows) -> NDArray[np.int64]:
        """How many observations each series has."""
        return self._observations.count[rows]

    def queries(self, rows: Rows) -> NDArray[np.int64]:
        """How many queries each series has."""
        return self._queries.count[rows]

    def classes(self, rows: Rows) -> NDArray[np.int64]:
        """The class of each series, -1 where nothing is scored: what balancing and stratifying go by.

        A series of a binary task is positive if any of its queries is; one of a multiclass task has the
        class of its last scored query.
        """
        return self._classes[rows]

    def batch(self, rows: Rows) -> Batch:
        """The series `rows`, in this order."""
        if len(rows) and not (rows.dtype.kind in "iu" and rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"rows must be whole numbers from 0 to {len(self) - 1}")
        rows = rows.astype(np.int64)
        observation = self._observations.locate(rows)
        query = self._queries.locate(rows)
        time = hours(self._gather("observations", "time", observation))
        arrival = hours(self._gather("observations", "arrival", observation))
        columns = {
            "series": rows,
            "time": time,
            "arrival": arrival,
            "value": self._gather("observations", "value", observation),
            "modality": self._gather("observations", "modality", observation),
            "moment": self._gather("observations", "moment", observation),
            "offsets": observation.offsets,
            "static": self._static[rows],
            "query_time": hours(self._gather("queries", "time", query)),
            "query_visible": self._gather("queries", "visible", query),
            "query_offsets": query.offsets,
            "label": self._labels(query),
        }
        return Batch(**{name: torch.from_numpy(column) for name, column in columns.items()})

    def _labels(self, query: "_Place") -> NDArray[np.float32]:
        columns = [self._gather("queries", name, query) for name in label_columns(self.task)]
        label = np.stack(columns, axis=1)
        return label if self.task is None else self.task.encode(label)

    def _gather(self, table: Table, column: str, place: "_Place") -> NDArray[Any]:
        """The rows of a column that `place` names, shard by shard, straight from the mapping."""
        if len(place.parts) == 1:
            shard, source, _ = place.parts[0]
            taken: NDArray[Any] = np.take(self.column(table, shard, column), source, mode="clip")
            return taken
        gathered = np.empty(place.offsets[-1], self.column(table, 0, column).dtype)
        for shard, source, target in place.parts:
            gathered[target] = np.take(self.column(table, shard, column), source, mode="clip")
        return gathered

    @cached_property
    def _observations(self) -> "_Index":
        return _Index(self.series.column("observations").to_numpy(), self.rows("series"))

    @cached_property
    def _queries(self) -> "_Index":
        return _Index(self.series.column("queries").to_numpy(), self.rows("series"))

    @cached_property
    def _static(self) -> NDArray[np.float32]:
        names = [static_column(name) for name in self.schema.static_columns]
        columns = [self.series.column(name).to_numpy() for name in names]
        return np.stack(columns, axis=1) if columns else np.zeros((len(self), 0), np.float32)

    @cached_property
    def _split_rows(self) -> dict[str, Rows]:
        split = self.series.column("split").combine_chunks().dictionary_encode()
        codes = split.indices.to_numpy()
        return {name: np.flatnonzero(codes == code) for code, name in enumerate(split.dictionary.to_pylist())}

    @cached_property
    def _classes(self) -> NDArray[np.int64]:
        if self.task is None or self.task.kind == "multilabel":
            raise InputError(f"{self.path}: series have no single class; balancing needs one")
        shards = range(self.shards)
        label = np.concatenate([self.column("queries", shard, "label") for shard in shards])
        series = np.concatenate([self.column("queries", shard, "series") for shard in shards])
        scored = ~np.isnan(label)
        label, series = label[scored].astype(np.int64), series[scored]
        classes = np.full(len(self), -1, dtype=np.int64)
        if self.task.kind == "binary":
            np.maximum.at(classes, series, label)
        else:
            classes[series] = label  # the last assignment wins, and queries ascend
        return classes


def open_dataset(path: Path | str) -> Dataset:
    """Open a dataset folder; reads its header and looks at every file's size and footer."""
    return Dataset(Path(path))


class _Place:
    """Where the rows of some series stand: a gather a shard, and offsets of the result."""

    def __init__(self, offsets: NDArray[np.int64], parts: list[tuple[int, Rows, Rows | slice]]) -> None:
        self.offsets = offsets
        self.parts = parts  # (shard, rows in the shard's table, rows in the result)


class _Index:
    """Finds the rows of a series in the tables of the shards."""

    def __init__(self, count: NDArray[np.int64], series_of_shard: NDArray[np.int64]) -> None:
        self.count = count
        self._first_series = np.concatenate(([0], np.cumsum(series_of_shard)))
        begin = np.cumsum(count) - count
        shard = np.repeat(np.arange(len(series_of_shard)), series_of_shard)
        present = self._first_series[:-1].clip(max=max(len(count) - 1, 0))
        self._begin = begin - begin[present][shard] if len(count) else begin

    def locate(self, rows: Rows) -> _Place:
        count = self.count[rows]
        offsets = np.concatenate(([0], np.cumsum(count)))
        shard = np.searchsorted(self._first_series, rows, side="right") - 1
        begin = self._begin[rows]
        shards = np.unique(shard).tolist()
        if len(shards) == 1:
            return _Place(offsets, [(shards[0], _ranges(begin, count), slice(None))])
        parts: list[tuple[int, Rows, Rows | slice]] = []
        for number in shards:
            inside = shard == number
            source = _ranges(begin[inside], count[inside])
            parts.append((number, source, _ranges(offsets[:-1][inside], count[inside])))
        return _Place(offsets, parts)


def _ranges(begin: NDArray[np.int64], count: NDArray[np.int64]) -> Rows:
    """begin[0], begin[0]+1, … count[0] of them, then begin[1] …"""
    offset = np.cumsum(count) - count
    rows: Rows = np.repeat(begin - offset, count)
    rows += np.arange(len(rows))
    return rows
