"""A dataset in the Medical Event Data Standard (MEDS 0.4): codes become modalities, labels queries.

    RAW/data/**/*.parquet                  subject_id, time (null: static), code, numeric_value, text_value
    RAW/metadata/subject_splits.parquet    subject_id, split
    RAW/metadata/codes.parquet             code, and a unit where someone added one
    RAW/metadata/dataset.json              name, version, licence
    LABELS/**/*.parquet                    subject_id, prediction_time, one of four value columns

The standard: https://github.com/Medical-Event-Data-Standard/meds, `src/meds/schema.py`.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from seft.data.assembly import Recordings, assemble
from seft.data.folder import Writer, refuse_existing
from seft.data.schema import Schema, Static, Variable
from seft.data.sources.tabular import collect
from seft.data.task import Task
from seft.error import InputError

SHARD_ROWS = 4_000_000

_SUBJECT, _TIMESTAMP, _TEXT, _NUMBER = pl.Int64(), pl.Datetime("us"), pl.String(), pl.Float32()
_VALUES: dict[str, pl.DataType] = {
    "boolean_value": pl.Boolean(),
    "integer_value": pl.Int64(),
    "float_value": pl.Float64(),
    "categorical_value": _TEXT,
}
_SPLIT_NAMES = {"tuning": "val", "held_out": "test"}
_BIRTH = "MEDS_BIRTH"


def prepare(
    *,
    raw: Path,
    out: Path,
    labels: Path | None = None,
    min_frequency: float = 0.001,
    overwrite: bool = False,
) -> None:
    """Any MEDS 0.4 dataset: a series a subject, codes as variables, a query at every prediction time.

    Args:
        raw: The root of the MEDS dataset, with the folders data and metadata.
        out: The dataset folder to make.
        labels: A MEDS label folder or file of one task; without it, one unlabelled query a subject stands
            at its last arrival.
        min_frequency: The share of training subjects that must have a code for it to be kept.
        overwrite: Replace the dataset that is there.
    """
    if not 0 <= min_frequency <= 1:
        raise InputError(f"min_frequency is a share of subjects, so {min_frequency} must lie within 0 and 1")
    refuse_existing(out, overwrite)
    notes: Counter[str] = Counter()
    subjects = _subjects(raw)
    queries, task = (None, None) if labels is None else _labels(labels, subjects, notes)
    cohort = _cohort(raw, subjects, queries, notes)
    shards = _shards(cohort)
    vocabulary = _vocabulary(shards, len(cohort.filter("trains")), min_frequency, notes)
    schema = _schema(vocabulary, _units(raw, notes))
    provenance = {
        "title": "a dataset in the Medical Event Data Standard (MEDS)",
        "url": "https://github.com/Medical-Event-Data-Standard/meds",
        "dataset": _metadata(raw),
        "labels": None if labels is None else labels.resolve().name,
        "min_frequency": min_frequency,
    }
    with Writer(out, source="meds", schema=schema, task=task, overwrite=overwrite) as writer:
        writer.notes.update(notes)
        for shard in shards:
            recordings = _recordings(shard, vocabulary, queries, writer.notes)
            writer.add(assemble(recordings, schema, writer.notes))
        writer.finish(provenance)


# --- reading ---------------------------------------------------------------------------------------


def _parquet_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(
            f"{folder}: is no folder; MEDS keeps events in ROOT/data and labels in a folder a task"
        )
    files = sorted(file for file in folder.rglob("*.parquet") if file.is_file())
    if not files:
        raise InputError(f"{folder}: holds no .parquet file; is it the right folder?")
    return files


def _scan(
    file: Path, required: dict[str, pl.DataType], optional: dict[str, pl.DataType] | None = None
) -> pl.LazyFrame:
    """The columns named, in the types named; an optional one that is absent is null."""
    table = pl.scan_parquet(file, glob=False, hive_partitioning=False)
    found = collect(file, table.head(0)).schema
    missing = [name for name in required if name not in found]
    if missing:
        raise InputError(f"{file}: has no column {missing[0]}; it needs {', '.join(required)}")
    wanted = required | (optional or {})
    for name, dtype in wanted.items():
        if name in found:
            _check_type(file, name, found[name], dtype)
    return table.select(
        (pl.col(name) if name in found else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in wanted.items()
    )


def _check_type(file: Path, name: str, found: pl.DataType, wanted: pl.DataType) -> None:
    if isinstance(found, pl.Datetime) and isinstance(wanted, pl.Datetime) and found.time_zone is not None:
        raise InputError(
            f"{file}: column {name} has the time zone {found.time_zone}, but MEDS wants naive timestamps; "
            "convert them to one local time and drop the zone"
        )
    fits = (
        found == wanted
        or isinstance(found, pl.Null)
        or (isinstance(wanted, pl.Datetime) and isinstance(found, pl.Datetime))
        or (isinstance(wanted, pl.String) and isinstance(found, pl.Categorical | pl.Enum))
        or (wanted.is_integer() and found.is_integer())
        or (wanted.is_float() and found.is_numeric())
    )
    if not fits:
        raise InputError(f"{file}: column {name} is {found}, but MEDS wants {wanted}; cast it")


def _first(rows: pl.DataFrame) -> int:
    """The smallest subject, so that an error names the same one each time."""
    return int(rows["subject_id"].sort()[0])


def _scan_events(file: Path) -> pl.LazyFrame:
    events = _scan(
        file,
        {"subject_id": _SUBJECT, "time": _TIMESTAMP, "code": _TEXT},
        {"numeric_value": _NUMBER, "text_value": _TEXT},
    )
    return events.with_columns(pl.col("numeric_value").fill_nan(None))


def _metadata(raw: Path) -> dict[str, Any]:
    """What the dataset says about itself; nothing where it says nothing."""
    file = raw / "metadata" / "dataset.json"
    if not file.is_file():
        return {}
    try:
        metadata = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read as JSON ({error}); correct or remove it") from None
    if not isinstance(metadata, dict):
        raise InputError(f"{file}: must hold one JSON object; correct or remove it")
    return metadata


def _units(raw: Path, notes: Counter[str]) -> dict[str, str]:
    """Units by code. The standard has none; some datasets add the column to their codes."""
    file = raw / "metadata" / "codes.parquet"
    if not file.is_file():
        return {}
    rows = collect(file, _scan(file, {"code": _TEXT}, {"unit": _TEXT}).drop_nulls().unique())
    # A code repeats where modifiers tell its kinds apart; two units would make either of them a lie.
    repeated = pl.col("code").is_duplicated()
    notes["codes with several units, left without one"] += rows.filter(repeated)["code"].n_unique()
    return dict(rows.filter(~repeated).iter_rows())


# --- who becomes a series --------------------------------------------------------------------------


def _subjects(raw: Path) -> pl.DataFrame:
    """A row a subject: its file, rows, first event but birth (`start`), first event at all (`first_time`)."""
    subjects = pl.concat([_subjects_of(file) for file in _parquet_files(raw / "data")])
    if subjects.is_empty():
        raise InputError(f"{raw / 'data'}: its files hold no events, so there is nothing to prepare")
    if len(twice := subjects.filter(pl.col("subject_id").is_duplicated()).sort("subject_id", "file")):
        (subject, first), (_, second) = twice.select("subject_id", "file").head(2).rows()
        raise InputError(
            f"subject {subject} is in {first} and in {second}; MEDS wants a subject in one file, so join them"
        )
    return subjects


def _subjects_of(file: Path) -> pl.DataFrame:
    code, value = pl.col("code"), pl.col("numeric_value")
    birth = (code == _BIRTH) | code.str.starts_with(f"{_BIRTH}//")
    table = (
        _scan_events(file)
        .with_columns(start=pl.when(~birth).then("time"), infinite=value.is_infinite())
        .group_by("subject_id")
        .agg(
            pl.len().cast(pl.Int64).alias("rows"),
            pl.col("start").min(),
            pl.col("time").min().alias("first_time"),
            code.is_null().any().alias("nameless"),
            pl.col("infinite").any(),
        )
    )
    subjects = collect(file, table)
    if subjects["subject_id"].has_nulls():
        raise InputError(f"{file}: an event has no subject_id; every row needs one")
    if len(nameless := subjects.filter("nameless")):
        subject = _first(nameless)
        raise InputError(f"{file}: an event of subject {subject} has no code; every row needs one")
    if len(infinite := subjects.filter("infinite")):
        subject = _first(infinite)
        of_subject = (pl.col("subject_id") == subject) & value.is_infinite()
        found = collect(file, _scan_events(file).filter(of_subject).head(1))["code"][0]
        raise InputError(
            f"{file}: subject {subject}, code {found}: a numeric_value is infinite or beyond float32; "
            "correct it or leave it out"
        )
    return subjects.select("subject_id", "rows", "start", "first_time", file=pl.lit(str(file)))


def _cohort(
    raw: Path, subjects: pl.DataFrame, queries: pl.DataFrame | None, notes: Counter[str]
) -> pl.DataFrame:
    """A row a series, in the order of the dataset: subject_id, file, start, split, trains, weight."""
    cohort = subjects.join(_splits(raw, subjects, notes), on="subject_id")
    if queries is None:
        asked = subjects.select("subject_id", first_query=pl.lit(None, _TIMESTAMP), queries=1)
    else:
        by_subject = queries.group_by("subject_id")
        asked = by_subject.agg(
            pl.col("prediction_time").min().alias("first_query"), pl.len().alias("queries")
        )
    cohort = cohort.join(asked, on="subject_id").sort("file", "subject_id")
    notes["subjects without a label row, left out"] += len(subjects) - len(cohort)
    notes["series without a timed event but birth"] += cohort["start"].null_count()
    return cohort.select(
        "subject_id",
        "file",
        "split",
        "trains",
        # Whoever has no event to begin with begins at the first query, then at birth, else nowhere.
        pl.coalesce("start", "first_query", "first_time").alias("start"),
        (pl.col("rows") + pl.col("queries")).alias("weight"),
    )


def _splits(raw: Path, subjects: pl.DataFrame, notes: Counter[str]) -> pl.DataFrame:
    """The split of every subject, and whether the vocabulary may come from it."""
    file = raw / "metadata" / "subject_splits.parquet"
    if not file.is_file():
        notes[
            "no subject_splits.parquet: subjects put in one split, `all`, with a vocabulary of them all"
        ] += len(subjects)
        return subjects.select("subject_id", split=pl.lit("all"), trains=pl.lit(True))
    splits = collect(file, _scan(file, {"subject_id": _SUBJECT, "split": _TEXT}))
    for name in ("subject_id", "split"):
        if splits[name].has_nulls():
            raise InputError(f"{file}: a row has no {name}; every row needs one")
    if len(twice := splits.filter(pl.col("subject_id").is_duplicated())):
        subject = _first(twice)
        raise InputError(f"{file}: subject {subject} stands in two rows; keep one split a subject")
    if len(unknown := splits.join(subjects, on="subject_id", how="anti")):
        subject = _first(unknown)
        raise InputError(f"{file}: subject {subject} is not in {raw / 'data'}; remove its row")
    if len(without := subjects.join(splits, on="subject_id", how="anti")):
        subject = _first(without)
        raise InputError(f"{file}: subject {subject} of the data has no split; give it one")
    return splits.select(
        "subject_id", pl.col("split").replace(_SPLIT_NAMES), trains=pl.col("split") == "train"
    )


# --- labels ----------------------------------------------------------------------------------------


def _labels(labels: Path, subjects: pl.DataFrame, notes: Counter[str]) -> tuple[pl.DataFrame, Task | None]:
    """(subject_id, prediction_time, label as the number of its class) and the task.

    Labels without any value are prediction times of new data: no task.
    """
    files = [labels] if labels.is_file() else _parquet_files(labels)
    rows = pl.concat([_labels_of(file, subjects) for file in files]).sort("subject_id", "prediction_time")
    if rows.is_empty():
        raise InputError(f"{labels}: holds no labels; leave --labels out to prepare unlabelled data")
    subject_id, time = pl.col("subject_id"), pl.col("prediction_time")
    if len(twice := rows.filter((subject_id == subject_id.shift()) & (time == time.shift()))):
        subject, time = twice.select("subject_id", "prediction_time").row(0)
        raise InputError(f"{labels}: subject {subject} has two labels at {time}; keep one label a time")
    filled = [name for name in _VALUES if rows[name].null_count() < len(rows)]
    if len(filled) > 1:
        raise InputError(f"{labels}: {' and '.join(filled)} are both filled; keep the one to predict")
    if filled == ["float_value"]:
        raise InputError(
            f"{labels}: float_value is a target of regression, but seft classifies; give classes as "
            "boolean_value, integer_value or categorical_value"
        )
    value = rows[filled[0]] if filled else pl.repeat(None, len(rows), dtype=_NUMBER, eager=True)
    notes["labels without a value, left unscored"] += value.null_count()
    classes, task = _classes(value, labels) if filled else ([], None)
    number = value.replace_strict(classes, list(range(len(classes))), return_dtype=_NUMBER)
    return rows.select("subject_id", "prediction_time", label=number.fill_null(np.nan)), task


def _labels_of(file: Path, subjects: pl.DataFrame) -> pl.DataFrame:
    rows = collect(file, _scan(file, {"subject_id": _SUBJECT, "prediction_time": _TIMESTAMP}, _VALUES))
    for name in ("subject_id", "prediction_time"):
        if rows[name].has_nulls():
            raise InputError(f"{file}: a label has no {name}; every row needs one")
    if len(unknown := rows.join(subjects, on="subject_id", how="anti")):
        subject = _first(unknown)
        raise InputError(f"{file}: a label is for subject {subject}, which is not in the data; remove it")
    return rows


def _classes(value: pl.Series, labels: Path) -> tuple[list[Any], Task]:
    """The values of a label column in the order of their classes, and the task they make."""
    if value.dtype == pl.Boolean:
        return [False, True], Task(kind="binary", classes=("false", "true"), metric="auprc")
    classes = value.drop_nulls().unique().sort().to_list()
    if len(classes) == 1:
        raise InputError(f"{labels}: every {value.name} is {classes[0]}; there is nothing to tell apart")
    names = tuple(str(value) for value in classes)
    if len(classes) == 2:
        return classes, Task(kind="binary", classes=names, metric="auprc")
    return classes, Task(kind="multiclass", classes=names, metric="balanced_accuracy")


# --- shards and their vocabulary -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """The subjects of one file that go into one shard: subject_id, series in it, start, split, trains."""

    file: Path
    subjects: pl.DataFrame

    def events(self) -> pl.LazyFrame:
        """Their rows, each with what is known of its subject."""
        # Sorted ids make a range, by which whole row groups of a large file are skipped.
        first, last = self.subjects["subject_id"][0], self.subjects["subject_id"][-1]
        events = _scan_events(self.file).filter(pl.col("subject_id").is_between(first, last))
        return events.join(self.subjects.lazy(), on="subject_id").with_columns(
            static=pl.col("time").is_null()
        )


_Shard = list[_Part]


def _shards(cohort: pl.DataFrame) -> list[_Shard]:
    """Cut the cohort, in its order, into shards of about SHARD_ROWS rows."""
    before = pl.col("weight").cum_sum() - pl.col("weight")
    place = pl.int_range(pl.len(), dtype=pl.Int32()).over("shard")
    numbered = cohort.with_columns(shard=before // SHARD_ROWS).with_columns(series=place)
    shards: dict[int, _Shard] = {}
    for (shard, file), subjects in numbered.partition_by(["shard", "file"], as_dict=True).items():
        part = _Part(Path(file), subjects.select("subject_id", "series", "start", "split", "trains"))
        shards.setdefault(shard, []).append(part)
    return list(shards.values())


def _vocabulary(
    shards: list[_Shard], trained: int, min_frequency: float, notes: Counter[str]
) -> pl.DataFrame:
    """The codes that are kept: static, code, measured, and its `number` in the schema."""
    if not trained:
        raise InputError(
            "no series is in the split `train`, which the vocabulary comes from; check the splits"
        )
    parts = [part for shard in shards for part in shard]
    codes = (
        pl.concat([collect(part.file, _codes(part)) for part in parts])
        .group_by("static", "code")
        .agg(pl.col("rows", "valued", "text", "subjects").sum(), pl.col("measured").any())
        .sort("static", "code")
    )
    frequent = (pl.col("subjects") > 0) & (pl.col("subjects") / trained >= min_frequency)
    kept = codes.filter(frequent)
    _note_codes(kept, codes.filter(~frequent), notes)
    if kept["static"].all():
        raise InputError(
            f"no code with a time reaches a share of {min_frequency:g} of the {trained} training series; "
            "lower --min-frequency"
        )
    number = pl.int_range(pl.len(), dtype=pl.Int32()).over("static")
    return kept.select("static", "code", "measured", number=number)


def _codes(part: _Part) -> pl.LazyFrame:
    """What is known of each code: all its rows, and its subjects and values in training."""
    valued = pl.col("numeric_value").is_not_null()
    trains = pl.col("trains")
    by_code = part.events().group_by("static", "code")
    return by_code.agg(
        pl.len().cast(pl.Int64).alias("rows"),
        valued.sum().alias("valued"),
        (~valued & pl.col("text_value").is_not_null()).sum().alias("text"),
        pl.col("subject_id").filter(trains).n_unique().alias("subjects"),
        (valued & trains).any().alias("measured"),
    )


def _note_codes(kept: pl.DataFrame, dropped: pl.DataFrame, notes: Counter[str]) -> None:
    for static, rows, become in ((False, "events", "events"), (True, "statics", "present")):
        rare = dropped.filter(static=static)
        measured = kept.filter(static=static, measured=True)
        event = kept.filter(static=static, measured=False)
        text = "static text values" if static else "text values"
        counts = {
            f"codes of {rows} outside the vocabulary, dropped": len(rare),
            f"{rows} of codes outside the vocabulary, dropped": rare["rows"].sum(),
            f"{rows} without a value whose code is measured, dropped": (
                measured.select(pl.col("rows") - pl.col("valued"))["rows"].sum()
            ),
            f"{rows} whose code has a value only outside training; they count as {become}": (
                event["valued"].sum()
            ),
            f"{text} are not read; their codes count as {become}": event["text"].sum(),
        }
        notes.update({note: int(count) for note, count in counts.items()})


def _schema(vocabulary: pl.DataFrame, units: dict[str, str]) -> Schema:
    rows = vocabulary.select("static", "code", "measured").rows()
    return Schema(
        variables=tuple(
            Variable(name=code, unit=units.get(code, ""), event=not measured)
            for static, code, measured in rows
            if not static
        ),
        statics=tuple(Static(name=code, unit=units.get(code, "")) for static, code, _ in rows if static),
    )


# --- one shard -------------------------------------------------------------------------------------


def _recordings(
    shard: _Shard, vocabulary: pl.DataFrame, queries: pl.DataFrame | None, notes: Counter[str]
) -> Recordings:
    subjects = pl.concat([part.subjects for part in shard])
    ids = subjects["subject_id"].cast(_TEXT).to_numpy()
    rows = pl.concat([collect(part.file, _kept(part, vocabulary)) for part in shard])
    # Sorted to the last column, so that what is averaged is always averaged in one order.
    rows = rows.sort("series", "time", "number", "value")
    events = rows.filter(static=False)
    series, time = events["series"].to_numpy(), events["time"].to_numpy()
    asked = _last_arrivals(subjects, series, time) if queries is None else _asked(subjects, queries)
    early = asked.filter(pl.col("time") < 0)
    notes["queries before the start of their series, which see nothing"] += len(early)
    return Recordings(
        id=ids,
        group=ids,
        split=subjects["split"].to_numpy(),
        start=subjects["start"].to_numpy(),
        static=_static(rows.filter(static=True), len(subjects), vocabulary),
        series=series,
        time=time,
        modality=events["number"].to_numpy(),
        value=events["value"].to_numpy(),
        query_series=asked["series"].to_numpy(),
        query_time=asked["time"].to_numpy(),
        label=asked["label"].to_numpy()[:, None],
    )


def _kept(part: _Part, vocabulary: pl.DataFrame) -> pl.LazyFrame:
    """The rows of the vocabulary's codes with microseconds since the start; without a value, it is 1."""
    rows = part.events().join(vocabulary.lazy(), on=("static", "code"))
    return rows.filter(~pl.col("measured") | pl.col("numeric_value").is_not_null()).select(
        "static",
        "series",
        "number",
        (pl.col("time") - pl.col("start")).dt.total_microseconds().alias("time"),
        pl.when("measured").then("numeric_value").otherwise(pl.lit(1, _NUMBER)).alias("value"),
    )


def _asked(subjects: pl.DataFrame, queries: pl.DataFrame) -> pl.DataFrame:
    time = (pl.col("prediction_time") - pl.col("start")).dt.total_microseconds()
    return queries.join(subjects, on="subject_id").select("series", "label", time=time)


def _last_arrivals(
    subjects: pl.DataFrame, series: NDArray[np.int32], time: NDArray[np.int64]
) -> pl.DataFrame:
    """One unlabelled query a series."""
    last = np.zeros(len(subjects), np.int64)
    np.maximum.at(last, series, time)  # nothing arrives before 0, whatever its time
    return subjects.select("series", time=pl.Series(last), label=pl.lit(np.nan, _NUMBER))


def _static(rows: pl.DataFrame, count: int, vocabulary: pl.DataFrame) -> NDArray[np.float32]:
    """(count, S): the mean of a measured code, else whether the code is there."""
    measured = vocabulary.filter(static=True)["measured"].to_numpy()
    static = np.tile(np.where(measured, np.nan, 0).astype(np.float32), (count, 1))
    cells = rows.group_by("series", "number", maintain_order=True).agg(
        pl.col("value").cast(pl.Float64).mean()
    )
    static[cells["series"].to_numpy(), cells["number"].to_numpy()] = cells["value"].to_numpy()
    return static
