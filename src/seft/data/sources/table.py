"""Any long table: who, when, what, how much; with labels, statics, units and splits beside it.

Files are CSV or Parquet. Observations are scanned, not loaded: a first pass counts, and then each shard's
series are collected by a pass of their own, so that memory does not grow with the table.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from seft.data.archive import unpacked
from seft.data.assembly import Recordings, assemble
from seft.data.folder import Writer, refuse_existing
from seft.data.schema import Schema, Static, Variable
from seft.data.sources.tabular import (
    FARTHEST,
    ROW,
    UNITS,
    Clock,
    TimeUnit,
    collect,
    microseconds_of,
    name_of,
    open_file,
    row_name,
    text_of,
)
from seft.data.split import split
from seft.data.task import Task
from seft.error import InputError

OBSERVATIONS_A_SHARD = 4_000_000
MOST_CATEGORIES = 1_000  # of one variable or static; beyond that it is free text or a number in disguise
UNKNOWN = "unknown"
END = "end"  # of `--at`: each series at its last arrival, knowing what that may give away
LARGEST = float(np.finfo(np.float32).max)

_SHORT = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days", "w": "weeks", "y": "years"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What the columns are called in the files."""

    id: str = "id"
    time: str = "time"
    variable: str = "variable"
    value: str = "value"
    arrival: str = "arrival"
    label: tuple[str, ...] = ()


def prepare(
    *,
    out: Path,
    raw: Path | None = None,
    observations: Path | None = None,
    labels: Path | None = None,
    statics: Path | None = None,
    variables: Path | None = None,
    splits: Path | None = None,
    time_unit: TimeUnit = "hours",
    at: str | None = None,
    positive: str | None = None,
    seed: int = 0,
    id_column: str = "id",
    time_column: str = "time",
    variable_column: str = "variable",
    value_column: str = "value",
    arrival_column: str = "arrival",
    label_columns: tuple[str, ...] = (),
    overwrite: bool = False,
) -> None:
    """Your own long table: id, time, variable, value; with labels, statics, units and splits beside it.

    Args:
        out: The dataset folder to make.
        raw: A folder (or archive) with observations, labels, statics, variables, splits, each .csv,
            .csv.gz or .parquet; only observations must be there.
        observations: That table by itself: id, time, variable, value and, if known, arrival.
        labels: id and label, or id, time and label for many queries a series; optionally split and
            group. Several label columns of 0 and 1 make a multilabel task.
        statics: id and any columns; `start` is when a series began, where times are dates.
        variables: variable and unit.
        splits: id and split.
        time_unit: The unit of numeric times.
        at: When to predict, where labels have no time: 48h, 90min, 7d, or `end`.
        positive: Which of two classes is the positive one (default: the later in order).
        seed: The seed of the split, where none is given.
        id_column: The name of the column `id`.
        time_column: The name of the column `time`.
        variable_column: The name of the column `variable`.
        value_column: The name of the column `value`.
        arrival_column: The name of the column `arrival`.
        label_columns: The names of the label columns (default: all that have no other meaning).
        overwrite: Replace the dataset that is there.
    """
    refuse_existing(out, overwrite)
    columns = Columns(
        id=id_column,
        time=time_column,
        variable=variable_column,
        value=value_column,
        arrival=arrival_column,
        label=label_columns,
    )
    with ExitStack() as stack:
        folder = None if raw is None else stack.enter_context(unpacked(raw))
        given = {
            "observations": observations,
            "labels": labels,
            "statics": statics,
            "variables": variables,
            "splits": splits,
        }
        files = {name: path or _beside(folder, name) for name, path in given.items()}
        if files["observations"] is None:
            place = f"{raw}: holds no" if raw is not None else "give --raw with an"
            raise InputError(f"{place} observations.csv or observations.parquet")
        notes: Counter[str] = Counter()
        table = Observations.scan(files["observations"], columns, time_unit)
        notes["rows with nothing in them, dropped"] = table.blank
        answers = Labels.read(files["labels"], columns, table.clock, time_unit, positive)
        for name in answers.ignored:
            notes[f"column {name!r} of the labels, ignored beside 'label'"] = 1
        facts = Facts.read(files["statics"], columns, table.clock)
        series = _series(table, answers, facts, _when(at, answers))
        series = _with_splits(series, answers, _read_splits(files["splits"], columns), seed, notes)
        units = _read_units(files["variables"])
        unseen = units.keys() - set(table.kinds["variable"])
        notes["variables with a unit and without an observation"] = len(unseen)
        schema = Schema(variables=table.variables(units), statics=facts.statics(series))
        writer = stack.enter_context(
            Writer(out, source="table", schema=schema, task=answers.task, overwrite=overwrite)
        )
        writer.notes.update(notes)
        for shard in _shards(series):
            recordings = _recordings(shard, table, answers, facts, schema, writer.notes)
            writer.add(assemble(recordings, schema, writer.notes))
        writer.finish(
            {
                "files": {name: path.name for name, path in files.items() if path is not None},
                "time_unit": time_unit if table.clock.numeric else "dates",
                "at": at,
                "seed": seed,
            }
        )


def _beside(folder: Path | None, name: str) -> Path | None:
    """A table in the folder, or in the one folder that it holds, as archives are often packed."""
    if folder is None:
        return None
    inside = list(folder.iterdir())
    if len(inside) == 1 and inside[0].is_dir():
        folder = inside[0]
    found = [folder / f"{name}{ending}" for ending in (".parquet", ".csv", ".csv.gz")]
    found = [path for path in found if path.is_file()]
    if len(found) > 1:
        raise InputError(f"{folder}: both {found[0].name} and {found[1].name} are there; keep one")
    return found[0] if found else None


# --- observations ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """The long table, scanned: columns ROW, id, variable, text, number, time, arrival."""

    path: Path
    frame: pl.LazyFrame
    clock: Clock
    blank: int  # rows without anything in them
    kinds: pl.DataFrame  # variable, rows, numbers, texts: a row a variable
    series: pl.DataFrame  # id, rows, first, last: when its first and its last observation arrived

    @classmethod
    def scan(cls, path: Path, columns: Columns, unit: TimeUnit) -> "Observations":
        needed = {
            columns.id: " (name it with --id-column)",
            columns.time: " (name it with --time-column)",
            columns.variable: " (name it with --variable-column)",
            columns.value: " (name it with --value-column)",
        }
        raw = open_file(path, needed)
        names = raw.collect_schema().names()
        arrives = columns.arrival in names
        read = [columns.id, columns.time, columns.variable, columns.value]
        said = pl.any_horizontal(pl.col(name).is_not_null() for name in read)
        blank = collect(path, raw.select((~said).sum())).item()
        raw = raw.filter(said)
        clock = Clock.of(path, raw, columns.time, unit) or Clock(
            column=columns.time, numeric=True, unit=UNITS[unit]
        )
        time = microseconds_of(path, raw, clock)
        arrival = (
            microseconds_of(path, raw, Clock.of(path, raw, columns.arrival, unit), clock, may_be_blank=True)
            if arrives
            else pl.lit(None, pl.Int64)
        )
        # A blank value may be an event's; NaN, NA and the like are a measurement that is missing.
        said_value = name_of(raw, columns.value)
        text = text_of(columns.value)
        missing = said_value.is_not_null() & text.is_null()
        number = pl.when(missing).then(np.nan).otherwise(text.cast(pl.Float64, strict=False))
        frame = raw.select(
            ROW,
            name_of(raw, columns.id).alias("id"),
            name_of(raw, columns.variable).alias("variable"),
            pl.when(number.is_null()).then(text).alias("text"),
            number.alias("number"),
            time.alias("time"),
            arrival.alias("arrival"),
        )
        known = pl.max_horizontal("time", "arrival")
        found = cls(
            path=path,
            frame=frame,
            clock=clock,
            blank=blank,
            kinds=collect(
                path,
                frame.drop_nulls("variable")
                .group_by("variable")
                .agg(
                    pl.len().alias("rows"),
                    pl.col("number").count().alias("numbers"),
                    pl.col("text").count().alias("texts"),
                )
                .sort("variable"),
            ),
            series=collect(
                path,
                frame.group_by("id")
                .agg(
                    pl.len().alias("rows"),
                    known.min().alias("first"),
                    known.max().alias("last"),
                    pl.col(ROW).min().alias(ROW),
                )
                .sort(ROW),
            ),
        )
        found._check()
        return found

    def _check(self) -> None:
        self._refuse(pl.col("id").is_null(), lambda row: "the id is blank")
        self._refuse(
            pl.col("number").is_not_nan() & (pl.col("number").abs() > LARGEST),
            lambda row: (
                f"the value {row['number']} of {row['variable']} is infinite or beyond float32; "
                "leave it out or correct it"
            ),
        )
        mixed = self.kinds.filter((pl.col("numbers") > 0) & (pl.col("texts") > 0))["variable"].to_list()
        self._refuse(
            pl.col("variable").is_in(mixed) & pl.col("text").is_not_null(),
            lambda row: f"the value {row['text']!r} of {row['variable']} is not a number, as its others are",
        )

    def _refuse(self, wrong: pl.Expr, say: Callable[[dict[str, Any]], str]) -> None:
        rows = collect(self.path, self.frame.filter(wrong).head(1))
        if len(rows):
            row = rows.row(0, named=True)
            raise InputError(f"{row_name(self.path, row[ROW])}: {say(row)}")

    def variables(self, units: dict[str, str]) -> tuple[Variable, ...]:
        """The modalities: those with units in the order of their file, then the others by name.

        Numbers are measurements, a variable without any value is an event, text is one event a category.
        """
        texts = self.kinds.filter(pl.col("texts") > 0)["variable"].to_list()
        categories = collect(
            self.path,
            self.frame.filter(pl.col("variable").is_in(texts))
            .select("variable", "text")
            .drop_nulls()
            .unique()
            .sort("variable", "text"),
        )
        found: dict[str, tuple[Variable, ...]] = {
            name: (Variable(name=name, unit=units.get(name, ""), event=numbers == 0),)
            for name, numbers in self.kinds.select("variable", "numbers").iter_rows()
        }
        for (name,), part in categories.group_by("variable", maintain_order=True):
            levels = part["text"].to_list()
            if len(levels) > MOST_CATEGORIES:
                raise InputError(
                    f"{self.path}: {name} has {len(levels):,} different texts, too many for categories; "
                    "leave it out or group them"
                )
            found[str(name)] = tuple(Variable(name=f"{name}={level}", event=True) for level in levels)
        first = {name: found.pop(name, (Variable(name=name, unit=unit),)) for name, unit in units.items()}
        ordered = (*first.values(), *found.values())
        return tuple(variable for group in ordered for variable in group)

    def of(self, shard: pl.DataFrame) -> pl.DataFrame:
        """The rows of some series, with each one's number in the shard, sorted by series and time."""
        numbered = shard.select("id").with_row_index("series").lazy()
        rows = self.frame.join(numbered, on="id", how="inner")
        return collect(self.path, rows).sort("series", "time", ROW)


def _read_units(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    frame = open_file(path, {"variable": "", "unit": ""})
    columns = [name_of(frame, name).alias(name) for name in ("variable", "unit")]
    table = collect(path, frame.select(columns))
    names = table["variable"].drop_nulls()
    if names.is_duplicated().any():
        twice = names.filter(names.is_duplicated())[0]
        raise InputError(f"{path}: the variable {twice!r} stands there twice")
    return {name: unit or "" for name, unit in table.drop_nulls("variable").iter_rows()}


# --- labels ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The answers: columns id, time (where they have one), group and split (where given), label columns."""

    path: Path | None
    table: pl.DataFrame
    task: Task | None
    timed: bool
    ignored: tuple[str, ...] = ()  # columns beside one that is called label

    @classmethod
    def read(
        cls, path: Path | None, columns: Columns, clock: Clock, unit: TimeUnit, positive: str | None
    ) -> "Labels":
        if path is None:
            empty = pl.DataFrame(schema={"id": pl.String, "label": pl.Float32})
            return cls(path=None, table=empty, task=None, timed=False)
        needed = {columns.id: " (name it with --id-column)"} | dict.fromkeys(columns.label, "")
        frame = open_file(path, needed)
        names = [name for name in frame.collect_schema().names() if name != ROW]
        timed = columns.time in names
        selected: list[str | pl.Expr] = [ROW, name_of(frame, columns.id).alias("id")]
        if timed:
            asked = Clock.of(path, frame, columns.time, unit)
            selected.append(microseconds_of(path, frame, asked, clock).alias("time"))
        selected += [name_of(frame, name).alias(name) for name in ("split", "group") if name in names]
        meant = {columns.id, columns.time, "split", "group"}
        others = tuple(name for name in names if name not in meant)
        label = columns.label or (("label",) if "label" in others else others)
        table = collect(path, frame.select(*selected, *(text_of(name).alias(f"={name}") for name in label)))
        _check_ids(path, table, unique=not timed)
        ignored = tuple(name for name in others if name not in label)
        if not label or all(table[f"={name}"].null_count() == len(table) for name in label):
            table = table.with_columns(label=pl.lit(np.nan))
            return cls(path=path, table=table, task=None, timed=timed, ignored=ignored)
        if len(label) > 1:
            return cls._multilabel(path, table, label, timed)
        task, codes = _classes(path, table[f"={label[0]}"], positive)
        table = table.with_columns(codes.alias("label"))
        return cls(path=path, table=table, task=task, timed=timed, ignored=ignored)

    @classmethod
    def _multilabel(cls, path: Path, table: pl.DataFrame, label: tuple[str, ...], timed: bool) -> "Labels":
        values = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, "false": 0.0, "true": 1.0, "nan": None}
        task = Task(kind="multilabel", classes=label, metric="auprc")
        for name, column in zip(label, task.label_columns, strict=True):
            text = table[f"={name}"].str.to_lowercase()
            wrong = (text.is_not_null() & ~text.is_in(list(values))).arg_max()
            if wrong is not None and text[wrong] not in (None, *values):
                raise InputError(
                    f"{row_name(path, table[ROW][wrong])}: the label {name} is {text[wrong]!r}; "
                    "with several label columns each is 0 or 1"
                )
            table = table.with_columns(text.replace_strict(values, return_dtype=pl.Float32).alias(column))
        return cls(path=path, table=table, task=task, timed=timed)

    @property
    def columns(self) -> tuple[str, ...]:
        return ("label",) if self.task is None else self.task.label_columns

    def strata(self, ids: pl.Series) -> NDArray[np.int64]:
        """What each series counts as in a stratified split, -1 without a label."""
        if self.task is None:
            return np.full(len(ids), -1)
        number = pl.sum_horizontal(pl.col(self.columns).fill_nan(None))
        known = self.table.with_columns(number.alias("_number")).filter(
            pl.any_horizontal(pl.col(self.columns).is_not_nan() & pl.col(self.columns).is_not_null())
        )
        last = self.task.kind == "multiclass"
        if last and self.timed:
            known = known.sort("time", maintain_order=True)
        of_id = known.group_by("id").agg(pl.col("_number").last() if last else pl.col("_number").max())
        joined = ids.to_frame("id").join(of_id, on="id", how="left", maintain_order="left")
        return joined["_number"].fill_null(-1).cast(pl.Int64).to_numpy()


def _check_ids(path: Path, table: pl.DataFrame, unique: bool) -> None:
    if table["id"].null_count():
        row = table.filter(pl.col("id").is_null())[ROW][0]
        raise InputError(f"{row_name(path, row)}: the id is blank")
    if unique and (twice := table.filter(pl.col("id").is_duplicated())).height:
        raise InputError(
            f"{row_name(path, twice[ROW][1])}: the id {twice['id'][0]!r} stands there more than once"
        )


def _classes(path: Path, text: pl.Series, positive: str | None) -> tuple[Task, pl.Series]:
    """The task of one label column, and its labels as class numbers, NaN where blank."""
    words = text.str.to_lowercase()
    number = text.cast(pl.Float64, strict=False)
    if number.null_count() == text.null_count():  # all of them numbers: 1 and 1.0 are one class
        if not number.drop_nulls().is_between(-(2**53), 2**53).all() or (number != number.round()).any():
            raise InputError(
                f"{path}: the labels are numbers with fractions or beyond all classes; seft classifies"
            )
        text = number.cast(pl.Int64).cast(pl.String)
        names = number.drop_nulls().cast(pl.Int64).unique().sort().cast(pl.String).to_list()
        if set(names) <= {"0", "1"}:
            names = ["0", "1"]
    elif words.drop_nulls().is_in(["true", "false"]).all():  # True and TRUE are one class
        text, names = words, ["false", "true"]
    else:
        names = text.drop_nulls().unique().sort().to_list()
    if len(names) < 2:
        raise InputError(f"{path}: all labels are {names[0]!r}; there is nothing to tell apart")
    if positive is not None:
        if positive not in names or len(names) != 2:
            raise InputError(f"--positive {positive!r}: the classes are {', '.join(names)}")
        names = [*(name for name in names if name != positive), positive]
    codes = text.replace_strict({name: code for code, name in enumerate(names)}, return_dtype=pl.Float32)
    kind: Literal["binary", "multiclass"] = "binary" if len(names) == 2 else "multiclass"
    metric = "auprc" if kind == "binary" else "balanced_accuracy"
    return Task(kind=kind, classes=tuple(names), metric=metric), codes.fill_null(np.nan)


def _when(at: str | None, answers: Labels) -> int | None:
    """`--at` in microseconds; without it, and without times of the labels, a warning."""
    if at is None:
        if not answers.timed and answers.task is not None:
            print(
                "seft: warning: labels have no time, so each series is asked at its last arrival; if its "
                f"length gives the answer away, pass --at (such as --at 48h), else --at {END}",
                file=sys.stderr,
            )
        return None
    if at == END:
        return None
    if answers.timed:
        raise InputError(f"--at {at}: the labels have times of their own; leave one of them out")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", at)
    unit = None if match is None else _SHORT.get(match[2], match[2])
    if match is None or unit not in UNITS:
        raise InputError(f"--at {at!r}: give a number and a unit, such as 48h, 90min or 7d")
    if float(match[1]) * UNITS[unit] >= FARTHEST:
        raise InputError(f"--at {at!r}: is further off than can be counted")
    return round(float(match[1]) * UNITS[unit])


# --- statics ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The statics: column id, `start` and `group` where given, and the rest as text."""

    path: Path | None
    table: pl.DataFrame
    names: tuple[str, ...]

    @classmethod
    def read(cls, path: Path | None, columns: Columns, clock: Clock) -> "Facts":
        if path is None:
            return cls(path=None, table=pl.DataFrame(schema={"id": pl.String}), names=())
        frame = open_file(path, {columns.id: " (name it with --id-column)"})
        present = frame.collect_schema().names()
        for name in ("label", "split"):
            if name in present:
                raise InputError(f"{path}: the column {name!r} belongs to the labels; it is no static")
        names = tuple(name for name in present if name not in (ROW, columns.id, "start", "group"))
        selected: list[str | pl.Expr] = [ROW, name_of(frame, columns.id).alias("id")]
        if "start" in present:
            began = Clock.of(path, frame, "start", "hours")
            if began is not None and began.numeric:
                raise InputError(f"{path}: the column 'start' must hold dates; numeric times start at 0")
            like = None if clock.numeric else clock
            selected.append(microseconds_of(path, frame, began, like, may_be_blank=True).alias("start"))
        if "group" in present:
            selected.append(name_of(frame, "group").alias("group"))
        table = collect(path, frame.select(*selected, *(text_of(name).alias(f"={name}") for name in names)))
        _check_ids(path, table, unique=True)
        return cls(path=path, table=table, names=names)

    def statics(self, series: pl.DataFrame) -> tuple[Static, ...]:
        """Numbers stay numbers; text has a level for each word of the training split, and one unknown."""
        training = series.filter(pl.col("split") == "train").select("id")
        if not len(training):  # one split of new data, or splits by other names
            training = series.select("id")
        trained = self.table.join(training, on="id", how="semi")
        found = []
        for name in self.names:
            if self._numbers(name) is not None:
                found.append(Static(name=name))
                continue
            levels = trained[f"={name}"].drop_nulls().unique().sort().to_list()
            if len(levels) > MOST_CATEGORIES:
                raise InputError(f"{self.path}: {name} has {len(levels):,} levels, too many for one static")
            found.append(Static(name=name, levels=(*(x for x in levels if x != UNKNOWN), UNKNOWN)))
        return tuple(found)

    def _numbers(self, name: str) -> pl.Series | None:
        """The column as numbers, or None where any of it is text."""
        text = self.table[f"={name}"]
        number = text.cast(pl.Float64, strict=False)
        if number.null_count() > text.null_count():
            return None
        if number.is_infinite().any():
            row = self.table[ROW][number.is_infinite().fill_null(False).arg_max() or 0]
            assert self.path is not None
            raise InputError(f"{row_name(self.path, row)}: {name} is infinite")
        return number

    def matrix(self, ids: pl.Series, schema: Schema) -> NDArray[np.float32]:
        """(B, S) the static columns of some series."""
        rows = ids.to_frame("id").join(
            self.table.with_row_index("(position)"), on="id", how="left", maintain_order="left"
        )
        position = rows["(position)"]
        columns: list[NDArray[np.float32]] = []
        for static in schema.statics:
            if not static.levels:
                number = self._numbers(static.name)
                assert number is not None
                columns.append(number.gather(position).cast(pl.Float32).fill_null(np.nan).to_numpy())
                continue
            word = self.table[f"={static.name}"].gather(position).fill_null(UNKNOWN)
            word = pl.select(
                pl.when(word.is_in(static.levels)).then(word).otherwise(pl.lit(UNKNOWN))
            ).to_series()
            columns += [(word == level).cast(pl.Float32).to_numpy() for level in static.levels]
        return np.stack(columns, axis=1) if columns else np.zeros((len(ids), 0), np.float32)


# --- series and splits -----------------------------------------------------------------------------


def _series(table: Observations, answers: Labels, facts: Facts, at: int | None) -> pl.DataFrame:
    """Everyone who is in any of the tables: id, group, start, rows, and when an untimed query stands."""
    ids = pl.concat([answers.table["id"], facts.table["id"], table.series["id"]]).unique(maintain_order=True)
    if not len(ids):
        raise InputError(f"{table.path}: has no rows, so there is no dataset to write")
    series = ids.to_frame("id").join(table.series, on="id", how="left", maintain_order="left")
    _refuse_unknown(answers, facts, series)
    for name in ("group", "start"):
        if name in facts.table.columns:
            given = facts.table.select("id", name)
            series = series.join(given, on="id", how="left", maintain_order="left")
    if "group" in answers.table.columns:
        series = _with_one_per_id(series, answers, "group")
    group = pl.col("group") if "group" in series.columns else pl.lit(None, pl.String)
    series = series.with_columns(group.fill_null(pl.col("id")).alias("group"))
    began = pl.col("start") if "start" in series.columns else pl.lit(None, pl.Int64)
    if not table.clock.numeric:
        if answers.timed:
            asked = answers.table.group_by("id").agg(pl.col("time").min().alias("_asked"))
            series = series.join(asked, on="id", how="left", maintain_order="left")
        began = pl.coalesce(began, "first", *(["_asked"] if answers.timed else []))
    series = series.with_columns(began.alias("start"), pl.col("rows").fill_null(0))
    origin = pl.lit(0, pl.Int64) if table.clock.numeric else pl.col("start").fill_null(0)
    series = series.with_columns(origin.alias("origin"))
    last = pl.max_horizontal(pl.col("last") - pl.col("origin"), 0)
    return series.with_columns((last if at is None else pl.lit(at, pl.Int64)).alias("ask"))


def _refuse_unknown(answers: Labels, facts: Facts, series: pl.DataFrame) -> None:
    silent = series.filter(pl.col("rows").is_null()).select("id")
    unknown = (
        answers.table.join(silent, on="id", how="semi").join(facts.table, on="id", how="anti")
        if answers.path is not None
        else answers.table
    )
    if unknown.height:
        assert answers.path is not None
        raise InputError(
            f"{row_name(answers.path, unknown[ROW][0])}: a label for the id {unknown['id'][0]!r}, "
            "which has neither observations nor statics"
        )


def _with_one_per_id(series: pl.DataFrame, answers: Labels, name: str) -> pl.DataFrame:
    """A column of the labels that must say the same in all rows of an id; before what the statics say."""
    given = answers.table.select("id", name).drop_nulls().unique(maintain_order=True)
    if (torn := given.filter(pl.col("id").is_duplicated())).height:
        first, second = torn.filter(pl.col("id") == torn["id"][0])[name].to_list()[:2]
        raise InputError(
            f"{answers.path}: the id {torn['id'][0]!r} has two {name}s, {first!r} and {second!r}"
        )
    joined = series.join(given, on="id", how="left", maintain_order="left", suffix=" of the labels")
    if name not in series.columns:
        return joined
    said = f"{name} of the labels"
    return joined.with_columns(pl.coalesce(said, name).alias(name)).drop(said)


def _read_splits(path: Path | None, columns: Columns) -> tuple[Path, pl.DataFrame] | None:
    if path is None:
        return None
    frame = open_file(path, {columns.id: " (name it with --id-column)", "split": ""})
    names = [name_of(frame, columns.id).alias("id"), name_of(frame, "split").alias("split")]
    table = collect(path, frame.select(ROW, *names))
    _check_ids(path, table, unique=True)
    if table["split"].null_count():
        row = table.filter(pl.col("split").is_null())[ROW][0]
        raise InputError(f"{row_name(path, row)}: the split is blank")
    return path, table


def _with_splits(
    series: pl.DataFrame,
    answers: Labels,
    given: tuple[Path, pl.DataFrame] | None,
    seed: int,
    notes: Counter[str],
) -> pl.DataFrame:
    """The split of each series: as given, else drawn; data without labels is one split, `all`."""
    if given is not None and "split" in answers.table.columns:
        raise InputError(f"{given[0]}: the labels have a column 'split' too; keep one of them")
    if given is not None:
        path, table = given
        if (unknown := table.join(series, on="id", how="anti")).height:
            raise InputError(
                f"{row_name(path, unknown[ROW][0])}: a split for the id {unknown['id'][0]!r}, which is "
                "unknown"
            )
        series = series.join(table.select("id", "split"), on="id", how="left", maintain_order="left")
        if (without := series.filter(pl.col("split").is_null())).height:
            raise InputError(f"{path}: the id {without['id'][0]!r} has no split")
    elif "split" in answers.table.columns:
        series = _with_one_per_id(series, answers, "split")
    elif answers.task is None:
        series = series.with_columns(split=pl.lit("all"))
    else:
        return _with_drawn_splits(series, answers, seed, notes)
    series = _with_the_rest(series, notes)
    torn = (
        series.group_by("group").agg(pl.col("split").unique().sort()).filter(pl.col("split").list.len() > 1)
    )
    if torn.height:
        group, parts = torn.sort("group").row(0)
        raise InputError(f"the group {group!r} is torn apart: it is in the splits {' and '.join(parts)}")
    return series


def _with_drawn_splits(series: pl.DataFrame, answers: Labels, seed: int, notes: Counter[str]) -> pl.DataFrame:
    """A stratified draw by group among the series that the labels name."""
    labelled = series["id"].is_in(answers.table["id"].implode())
    asked = series.filter(labelled)
    drawn = split(asked["group"].to_numpy(), answers.strata(asked["id"]), seed=seed)
    parts = asked.select("id").with_columns(pl.Series("split", drawn.tolist(), pl.String))
    return _with_the_rest(series.join(parts, on="id", how="left", maintain_order="left"), notes)


def _with_the_rest(series: pl.DataFrame, notes: Counter[str]) -> pl.DataFrame:
    """Series without a split go where others of their group are, or else stand aside as `unlabelled`."""
    of_group = pl.col("split").drop_nulls().first().over("group")
    series = series.with_columns(pl.col("split").fill_null(of_group))
    notes["series without a label or split, in the split 'unlabelled'"] += series["split"].null_count()
    return series.with_columns(pl.col("split").fill_null("unlabelled"))


# --- shards ----------------------------------------------------------------------------------------


def _shards(series: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The series in order, cut where their observations fill a shard."""
    shard = (series["rows"].cum_sum() - series["rows"]) // OBSERVATIONS_A_SHARD
    for _, part in series.with_columns(shard.alias("_shard")).group_by("_shard", maintain_order=True):
        yield part


def _recordings(
    shard: pl.DataFrame,
    table: Observations,
    answers: Labels,
    facts: Facts,
    schema: Schema,
    notes: Counter[str],
) -> Recordings:
    rows = table.of(shard)
    blank = rows["variable"].is_null()
    notes["rows with a blank variable name, dropped"] += int(blank.sum())
    rows = rows.filter(~blank)
    names = pl.Enum([variable.name for variable in schema.variables])
    event = pl.Series([variable.event for variable in schema.variables])
    category = pl.concat_str("variable", pl.lit("="), "text")
    name = pl.when(pl.col("text").is_null()).then("variable").otherwise(category)
    texts = table.kinds.filter(pl.col("texts") > 0)["variable"].to_list()
    nothing = pl.col("variable").is_in(texts) & pl.col("text").is_null()
    notes["rows of a categorical variable without a category, dropped"] += rows.select(nothing).sum().item()
    rows = rows.filter(~nothing).with_columns(name.cast(names).to_physical().cast(pl.Int32).alias("modality"))
    value = np.where(
        event.gather(rows["modality"]).to_numpy(), 1.0, rows["number"].fill_null(np.nan).to_numpy()
    )
    origin = shard["origin"].to_numpy()
    of_row = rows["series"].to_numpy().astype(np.int32)
    known = rows.select(pl.coalesce("arrival", "time")).to_series().to_numpy()
    query_series, query_time, label = _queries(shard, answers)
    return Recordings(
        id=shard["id"].to_numpy(),
        group=shard["group"].to_numpy(),
        split=shard["split"].to_numpy(),
        start=shard["start"].cast(pl.Datetime("us")).to_numpy(),
        static=facts.matrix(shard["id"], schema),
        series=of_row,
        time=rows["time"].to_numpy() - origin[of_row],
        arrival=known - origin[of_row],
        modality=rows["modality"].to_numpy(),
        value=value,
        query_series=query_series,
        query_time=query_time - origin[query_series] if answers.timed else query_time,
        label=label,
    )


def _queries(
    shard: pl.DataFrame, answers: Labels
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float32]]:
    """Series number, time and labels of each query; an untimed one stands at the series' `ask`."""
    numbered = shard.select("id", "ask").with_row_index("series")
    how: Literal["inner", "left"] = "inner" if answers.timed else "left"
    rows = numbered.join(answers.table, on="id", how=how, maintain_order="left")
    label = rows.select(pl.col(answers.columns).cast(pl.Float32).fill_null(np.nan)).to_numpy()
    time = rows["time" if answers.timed else "ask"].to_numpy()
    return rows["series"].to_numpy().astype(np.int32), time, label
