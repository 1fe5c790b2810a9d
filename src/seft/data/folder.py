"""A dataset on disk: a folder of Arrow shards and one `dataset.json`.

    DATASET/dataset.json                what is in it: schema, task, splits, provenance, shards, checksums
    DATASET/series/00000.arrow          a row a series
    DATASET/observations/00000.arrow    a row an observation, sorted by series, arrival, time, modality
    DATASET/queries/00000.arrow         a row a query, sorted by series and time

A shard is a set of whole series; the three tables of one number belong together. `series` is the row
number in the whole dataset, `time` and `arrival` are microseconds since the series' start. Everything is
uncompressed and one record batch a file, so that a column is read by mapping it into memory.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import seft
from seft.data.assembly import Rows
from seft.data.schema import Schema
from seft.data.task import Task
from seft.error import InputError

FORMAT = 1
TABLES = ("series", "observations", "queries")
_MAGIC = b"ARROW1"

Table = Literal["series", "observations", "queries"]


def static_column(name: str) -> str:
    """A static's column in the table of series, kept apart from `id`, `group` and the rest."""
    return f"static_{name}"


# --- writing ---------------------------------------------------------------------------------------


@dataclass
class SplitCounts:
    """What a split holds; the counts that `seft inspect` prints."""

    series: int = 0
    observations: int = 0
    queries: int = 0
    positives: Counter[str] = field(default_factory=Counter)

    def to_json(self, task: Task | None) -> dict[str, Any]:
        binary = task is not None and task.kind == "binary"
        positive = self.positives.total() if binary else dict(self.positives)
        return {
            "series": self.series,
            "observations": self.observations,
            "queries": self.queries,
            "positive": None if task is None else positive,
        }


class Writer:
    """Writes a dataset beside `out` and moves it there when all is done; otherwise leaves nothing.

    A run that was killed leaves a hidden folder that no living process holds a lock on; the next run for
    the same `out` removes it.
    """

    def __init__(
        self, out: Path, *, source: str, schema: Schema, task: Task | None, overwrite: bool = False
    ) -> None:
        schema.check()
        self.out = out.resolve()  # a link is followed: what it points to is replaced, and not the link
        self.source = source
        self.schema = schema
        self.task = task
        self.notes: Counter[str] = Counter()
        self._overwrite = overwrite
        self._shards: list[dict[str, dict[str, Any]]] = []
        self._splits: dict[str, SplitCounts] = {}
        self._series = 0

    def __enter__(self) -> Self:
        refuse_existing(self.out, self._overwrite)
        self._parents = [folder for folder in self.out.parents if not folder.exists()]
        self.out.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{self.out.name}.preparing-"
        for leftover in self.out.parent.glob(f"{prefix}*"):
            _remove_if_abandoned(leftover)
        self._folder = self.out.parent / f"{prefix}{os.getpid()}"
        try:
            self._folder.mkdir()
            self._lock = os.open(self._folder, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            for table in TABLES:
                (self._folder / table).mkdir()
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)
        self._discard()

    def _discard(self) -> None:
        """Remove what finish() has not moved to its place, and the folders above that were made for it."""
        shutil.rmtree(self._folder, ignore_errors=True)
        if not self.out.exists():
            for folder in self._parents:
                with suppress(OSError):  # somebody else put something there
                    folder.rmdir()

    @property
    def series(self) -> int:
        """How many series are written so far."""
        return self._series

    def add(self, rows: Rows) -> None:
        """Write one shard."""
        number = len(self._shards)
        tables = {
            "series": _series_table(rows, self._series, self.schema),
            "observations": _observations_table(rows, self._series),
            "queries": _queries_table(rows, self._series, self.task),
        }
        self._shards.append(
            {name: self._write(f"{name}/{number:05d}.arrow", table) for name, table in tables.items()}
        )
        self._count(rows)
        self._series += len(rows.recordings.id)

    def finish(
        self, provenance: dict[str, Any], split_facts: dict[str, dict[str, float]] | None = None
    ) -> None:
        """Write `dataset.json` and move the folder to its place."""
        if self._series == 0:
            raise InputError(f"{self.source}: no series found, so there is no dataset to write")
        splits = {name: counts.to_json(self.task) for name, counts in self._splits.items()}
        for name, facts in (split_facts or {}).items():
            splits[name] |= facts
        header = {
            "format": FORMAT,
            "seft": seft.__version__,
            "source": self.source,
            "provenance": provenance,
            "notes": {note: count for note, count in self.notes.items() if count},
            "task": None if self.task is None else self.task.to_json(),
            "splits": splits,
            "schema": self.schema.to_json(),
            "time_unit": "microseconds since the series' start",
            "shards": self._shards,
        }
        text = json.dumps(header, indent=1, ensure_ascii=False)
        (self._folder / "dataset.json").write_text(text, encoding="utf-8")
        refuse_existing(self.out, self._overwrite)
        if self.out.exists():
            replaced = self.out.parent / f".{self.out.name}.preparing-{os.getpid()}-replaced"
            self.out.rename(replaced)
            self._folder.rename(self.out)
            shutil.rmtree(replaced)
        else:
            self._folder.rename(self.out)

    def _write(self, name: str, table: pa.RecordBatch) -> dict[str, Any]:
        path = self._folder / name
        try:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_batch(table)
        except OSError as error:  # Arrow's own message names neither the file nor the reason plainly
            raise OSError(error.errno, os.strerror(error.errno or 0), str(self.out)) from None
        return {
            "file": name,
            "rows": table.num_rows,
            "bytes": path.stat().st_size,
            "sha256": _sha256(path),
        }

    def _count(self, rows: Rows) -> None:
        split = np.asarray(rows.recordings.split, dtype=str)
        of_query = split[rows.recordings.query_series]
        for name in dict.fromkeys(split.tolist()):
            counts = self._splits.setdefault(name, SplitCounts())
            inside = split == name
            counts.series += int(inside.sum())
            counts.observations += int(rows.observations[inside].sum())
            counts.queries += int(rows.queries[inside].sum())
            if self.task is not None:
                # update() and not +=, which would drop the classes that no label names.
                counts.positives.update(self.task.positives(rows.recordings.label[of_query == name]))


def refuse_existing(out: Path, overwrite: bool) -> None:
    """What a long preparation asks before it begins, and the writer before it moves anything."""
    if not out.exists():
        return
    if not overwrite:
        raise InputError(f"{out} exists already; choose another --out or pass --overwrite")
    if not (out / "dataset.json").is_file():
        raise InputError(f"{out} exists and is no dataset folder, so it is not overwritten")
    strangers = sorted({path.name for path in out.iterdir()} - {"dataset.json", *TABLES})
    if strangers:
        raise InputError(f"{out} holds {strangers[0]} beside the dataset, so it is not overwritten; move it")


def _remove_if_abandoned(folder: Path) -> None:
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # a living process is at work there
    else:
        shutil.rmtree(folder)
    finally:
        os.close(lock)


def _series_table(rows: Rows, first: int, schema: Schema) -> pa.RecordBatch:
    recordings = rows.recordings
    count = len(recordings.id)
    start = np.full(count, np.datetime64("NaT", "us")) if recordings.start is None else recordings.start
    columns: dict[str, pa.Array] = {
        "series": pa.array(np.arange(first, first + count, dtype=np.int32)),
        "id": pa.array(recordings.id, pa.string()),
        "group": pa.array(recordings.group, pa.string()),
        "split": pa.array(recordings.split, pa.string()),
        "start": pa.array(start.astype("datetime64[us]"), pa.timestamp("us"), from_pandas=True),
        "observations": pa.array(rows.observations),
        "queries": pa.array(rows.queries),
    }
    for column, name in enumerate(schema.static_columns):
        columns[static_column(name)] = pa.array(np.ascontiguousarray(recordings.static[:, column]))
    return pa.RecordBatch.from_pydict(columns)


def _observations_table(rows: Rows, first: int) -> pa.RecordBatch:
    recordings = rows.recordings
    return pa.RecordBatch.from_pydict(
        {
            "series": recordings.series + np.int32(first),
            "time": recordings.time,
            "arrival": rows.arrival,
            "value": recordings.value,
            "modality": recordings.modality,
            "moment": rows.moment,
        }
    )


def _queries_table(rows: Rows, first: int, task: Task | None) -> pa.RecordBatch:
    recordings = rows.recordings
    columns: dict[str, NDArray[Any]] = {
        "series": recordings.query_series + np.int32(first),
        "time": recordings.query_time,
        "visible": rows.visible,
    }
    for column, name in enumerate(label_columns(task)):
        columns[name] = np.ascontiguousarray(recordings.label[:, column], dtype=np.float32)
    if recordings.risk is not None:
        columns["risk"] = recordings.risk
    return pa.RecordBatch.from_pydict(columns)


def label_columns(task: Task | None) -> tuple[str, ...]:
    """The label columns in the table of queries; data without labels has one, of NaN."""
    return ("label",) if task is None else task.label_columns


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- reading ---------------------------------------------------------------------------------------


class Folder:
    """A dataset folder that is open for reading; shards are mapped when first asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header = _read_header(path)
        try:
            self.source: str = header["source"]
            self.provenance: dict[str, Any] = header["provenance"]
            self.notes: dict[str, int] = dict(header["notes"])
            self.task = None if header["task"] is None else Task.from_json(header["task"])
            self.splits: dict[str, dict[str, Any]] = header["splits"]
            self.schema = Schema.from_json(header["schema"])
            self._files: list[dict[str, dict[str, Any]]] = header["shards"]
            entries = [(entry["file"], entry["bytes"]) for shard in self._files for entry in _tables(shard)]
            rows = sum(int(shard["series"]["rows"]) for shard in self._files)
            whole = rows == sum(split["series"] for split in self.splits.values()) > 0
        except (KeyError, TypeError, ValueError, AttributeError):
            whole = False
        if not whole:
            raise _unreadable(path / "dataset.json")
        self._mapped: dict[tuple[Table, int], pa.RecordBatch] = {}
        for file, size in entries:
            self._check_file(path / file, size)

    def __len__(self) -> int:
        """How many series."""
        return int(self.rows("series").sum())

    @property
    def shards(self) -> int:
        return len(self._files)

    def rows(self, table: Table) -> NDArray[np.int64]:
        """(shards,) how many rows of a table each shard has."""
        return np.array([shard[table]["rows"] for shard in self._files], dtype=np.int64)

    def table(self, name: Table, shard: int) -> pa.RecordBatch:
        """One table of one shard, mapped into memory; its checksum is compared at the first reading."""
        key = (name, shard)
        if key not in self._mapped:
            entry = self._files[shard][name]
            self._check_sum(entry)
            with pa.memory_map(str(self.path / entry["file"])) as source:
                self._mapped[key] = pa.ipc.open_file(source).get_batch(0)
        return self._mapped[key]

    def column(self, name: Table, shard: int, column: str) -> NDArray[Any]:
        """A numeric column of one shard, without a copy."""
        array: NDArray[Any] = self.table(name, shard).column(column).to_numpy(zero_copy_only=True)
        return array

    @cached_property
    def series(self) -> pa.Table:
        """The whole table of series."""
        return pa.Table.from_batches([self.table("series", shard) for shard in range(self.shards)])

    def verify(self) -> int:
        """Compare every checksum; how many files were read."""
        for shard in self._files:
            for entry in _tables(shard):
                self._check_sum(entry)
        return len(self._files) * len(TABLES)

    def _check_file(self, path: Path, bytes_: int) -> None:
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                head = file.read(len(_MAGIC))
                file.seek(-len(_MAGIC), os.SEEK_END)
                whole = head == _MAGIC and file.read() == _MAGIC
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror}); prepare the dataset again"
            ) from None
        if size != bytes_ or not whole:
            raise InputError(
                f"{path}: is damaged ({size} bytes where dataset.json says {bytes_}); "
                "prepare the dataset again"
            )

    def _check_sum(self, entry: dict[str, Any]) -> None:
        path = self.path / entry["file"]
        if _sha256(path) != entry["sha256"]:
            raise InputError(
                f"{path}: its checksum differs from the one in dataset.json, so the file was changed or "
                "damaged; prepare the dataset again"
            )


def _read_header(path: Path) -> dict[str, Any]:
    file = path / "dataset.json"
    if not file.is_file():
        raise InputError(
            f"{path} is no dataset folder: it has no dataset.json (make one with `seft prepare`)"
        )
    try:
        header = json.loads(file.read_text(encoding="utf-8"))
        version = header["format"]
        newer = version > FORMAT
    except (ValueError, KeyError, TypeError):
        raise _unreadable(file) from None
    if newer:
        raise InputError(
            f"{file}: has format {version}, made by seft {header.get('seft', '?')}; this is seft "
            f"{seft.__version__}, which reads up to format {FORMAT}: install a newer one"
        )
    return dict(header)


def _unreadable(file: Path) -> InputError:
    return InputError(f"{file}: is not readable as a dataset's header; prepare the dataset again")


def _tables(shard: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of a shard's files in `dataset.json`."""
    return [shard[table] for table in TABLES]
