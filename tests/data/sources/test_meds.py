"""A MEDS dataset becomes series, modalities, statics and queries, and what is wrong with one is said."""

import json
import math
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seft.data.dataset import Dataset, open_dataset
from seft.data.sources import meds
from seft.data.sources.meds import prepare
from seft.data.task import Task
from seft.error import InputError

NAN = math.nan
SPLITS = {1: "train", 2: "train", 3: "tuning", 4: "held_out"}

Event = tuple[int, datetime | None, str, float | None, str | None]  # a row of the data, in its order
Label = tuple[int, datetime, Any]


def at(hours: float) -> datetime:
    return datetime(2130, 5, 1, 8) + timedelta(hours=hours)


def event(
    subject: int, hours: float | None, code: str, value: float | None = None, text: str | None = None
) -> Event:
    return subject, None if hours is None else at(hours), code, value, text


# --- writing and reading ---------------------------------------------------------------------------


def events_table(events: Sequence[Event]) -> pa.Table:
    subject, time, code, value, text = zip(*events, strict=True) if events else ((),) * 5
    return pa.table(
        {
            "subject_id": pa.array(subject, pa.int64()),
            "time": pa.array(time, pa.timestamp("us")),
            "code": pa.array(code, pa.string()),
            "numeric_value": pa.array(value, pa.float32()),
            "text_value": pa.array(text, pa.large_string()),
        }
    )


def labels_table(labels: Sequence[Label], column: str = "boolean_value") -> pa.Table:
    dtypes = {"boolean_value": pa.bool_(), "integer_value": pa.int64(), "float_value": pa.float32()}
    subject, time, value = zip(*labels, strict=True) if labels else ((),) * 3
    return pa.table(
        {
            "subject_id": pa.array(subject, pa.int64()),
            "prediction_time": pa.array(time, pa.timestamp("us")),
            column: pa.array(value, dtypes.get(column, pa.string())),
        }
    )


def splits_table(splits: dict[int, str]) -> pa.Table:
    return pa.table(
        {
            "subject_id": pa.array(list(splits), pa.int64()),
            "split": pa.array(list(splits.values()), pa.string()),
        }
    )


def write(table: pa.Table, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file)
    return file


def dataset(root: Path, events: Sequence[Event], splits: dict[int, str] | None = None) -> Path:
    """A MEDS root with its data in one file."""
    write(events_table(events), root / "data" / "0.parquet")
    if splits is not None:
        write(splits_table(splits), root / "metadata" / "subject_splits.parquet")
    return root


def labels_in(folder: Path, labels: Sequence[Label], column: str = "boolean_value") -> Path:
    write(labels_table(labels, column), folder / "0.parquet")
    return folder


@dataclass
class Series:
    """What a batch holds of one series, times in hours."""

    split: str
    static: dict[str, float]
    observations: list[tuple[float, float, str, float]]  # (arrival, time, variable, value)
    queries: list[tuple[float, int, float]]  # (time, visible, label or number of the class)


def read(out: Path) -> dict[str, Series]:
    """Every series of a dataset, all drawn as one batch that is checked."""
    data = open_dataset(out)
    rows = np.arange(len(data))
    batch = data.batch(rows)
    batch.check(data.schema.modalities, data.ids(rows))
    assert data.groups(rows) == data.ids(rows)
    names = [variable.name for variable in data.schema.variables]
    split = data.series.column("split").to_pylist()
    found = {}
    for row, name in enumerate(data.ids(rows)):
        own = slice(*batch.offsets[row : row + 2].tolist())
        asked = slice(*batch.query_offsets[row : row + 2].tolist())
        columns = (batch.arrival, batch.time, batch.modality, batch.value)
        observed = zip(*(column[own].tolist() for column in columns), strict=True)
        label = batch.label[asked]
        answer = label[:, 0] if label.shape[1] == 1 else label.argmax(1)
        queries = (batch.query_time[asked], batch.query_visible[asked], answer)
        found[name] = Series(
            split=split[row],
            static=dict(zip(data.schema.static_columns, batch.static[row].tolist(), strict=True)),
            observations=[(a, t, names[m], v) for a, t, m, v in observed],
            queries=list(zip(*(column.tolist() for column in queries), strict=True)),
        )
    assert len(found) == len(data)
    return found


def prepared(
    root: Path,
    events: Sequence[Event],
    splits: dict[int, str] | None = None,
    labels: Sequence[Label] | None = None,
    column: str = "boolean_value",
    min_frequency: float = 0.0,
) -> Dataset:
    raw = dataset(root / "raw", events, splits)
    folder = None if labels is None else labels_in(root / "labels", labels, column)
    prepare(raw=raw, out=root / "out", labels=folder, min_frequency=min_frequency)
    return open_dataset(root / "out")


def variables(data: Dataset) -> dict[str, bool]:
    """Name: whether it is an event."""
    return {variable.name: variable.event for variable in data.schema.variables}


def note(data: Dataset, part: str) -> int:
    """The count of the one note that says `part`; 0 where there is none."""
    return sum(count for text, count in data.notes.items() if part in text)


# --- what holds ------------------------------------------------------------------------------------


def test_a_dataset_of_the_meds_package_round_trips(tmp_path: Path) -> None:
    schemas = pytest.importorskip("meds")
    raw = tmp_path / "raw"
    files = {
        "train/0": [
            event(7, None, "SEX//F"),
            event(7, None, "HEIGHT", 1.5),
            event(7, -24 * 365 * 40, "MEDS_BIRTH"),
            event(7, 0, "ADMISSION//ER"),
            event(7, 0, "HR", 80.0),
            event(7, 1.5, "HR", 90.0),
            event(7, 1.5, "LAB//K", 4.25),
            event(7, 2, "LAB//K", None, "haemolysed"),
            event(7, 3, "DX//A", None, "text"),
            event(7, 3, "DX//A"),
            event(7, 50, "MEDS_DEATH"),
        ],
        "train/1": [event(9, 0, "ADMISSION//ER"), event(9, 2, "HR", 70.0)],
        "held_out/0": [
            event(-3, None, "SEX//F"),
            event(-3, 5, "HR", 60.0),
            event(-3, 6, "NEVER//SEEN", 1.0),
        ],
        "tuning/0": [event(12, 0, "LAB//K", 3.5)],
    }
    for name, events in files.items():
        table = events_table(events)
        schemas.DataSchema.validate(table)
        write(table, raw / schemas.data_subdirectory / f"{name}.parquet")
    splits = splits_table({7: "train", 9: "train", 12: "tuning", -3: "held_out"})
    schemas.SubjectSplitSchema.validate(splits)
    write(splits, raw / schemas.subject_splits_filepath)
    codes = pa.table(
        {"code": ["HR", "LAB//K"], "description": ["heart rate", None], "unit": ["bpm", "mmol/L"]}
    )
    schemas.CodeMetadataSchema.validate(codes)
    write(codes, raw / schemas.code_metadata_filepath)
    metadata = schemas.DatasetMetadataSchema(dataset_name="demo", license="ODbL").to_dict()
    schemas.DatasetMetadataSchema.validate(metadata)
    (raw / schemas.dataset_metadata_filepath).write_text(json.dumps(metadata))
    # Labels are sharded otherwise than the data: a subject's stand in both files.
    for number, rows in enumerate(
        ([(7, at(3), True), (9, at(1), False), (12, at(-1), False)], [(7, at(1.5), False), (-3, at(7), True)])
    ):
        table = labels_table(rows)
        schemas.LabelSchema.validate(table)
        write(table, tmp_path / "labels" / f"{number}" / "part.parquet")

    out = tmp_path / "out"
    prepare(raw=raw, out=out, labels=tmp_path / "labels")

    birth = -24.0 * 365 * 40
    found = read(out)
    assert found["7"] == Series(
        split="train",
        static={"HEIGHT": 1.5, "SEX//F": 1.0},
        observations=[
            (0.0, birth, "MEDS_BIRTH", 1.0),
            (0.0, 0.0, "ADMISSION//ER", 1.0),
            (0.0, 0.0, "HR", 80.0),
            (1.5, 1.5, "HR", 90.0),
            (1.5, 1.5, "LAB//K", 4.25),
            (3.0, 3.0, "DX//A", 2.0),
            (50.0, 50.0, "MEDS_DEATH", 1.0),
        ],
        queries=[(1.5, 5, 0.0), (3.0, 6, 1.0)],
    )
    assert found["9"].queries == [(1.0, 1, 0.0)]
    assert np.isnan(found["9"].static.pop("HEIGHT"))
    assert found["9"].static == {"SEX//F": 0.0}
    assert found["12"].split == "val"
    assert found["12"].queries == [(-1.0, 0, 0.0)]
    assert found["-3"].split == "test"
    assert found["-3"].observations == [(0.0, 0.0, "HR", 60.0)]
    assert found["-3"].queries == [(2.0, 1, 1.0)]
    data = open_dataset(out)
    assert data.task == Task(kind="binary", classes=("false", "true"), metric="auprc")
    assert {v.name: (v.unit, v.event) for v in data.schema.variables} == {
        "ADMISSION//ER": ("", True),
        "DX//A": ("", True),
        "HR": ("bpm", False),
        "LAB//K": ("mmol/L", False),
        "MEDS_BIRTH": ("", True),
        "MEDS_DEATH": ("", True),
    }
    assert data.provenance["dataset"] == {"dataset_name": "demo", "license": "ODbL"}
    assert data.provenance["labels"] == "labels"
    assert data.notes == {
        "codes of events outside the vocabulary, dropped": 1,
        "events of codes outside the vocabulary, dropped": 1,
        "events without a value whose code is measured, dropped": 1,
        "text values are not read; their codes count as events": 1,
        "queries before the start of their series, which see nothing": 1,
        "simultaneous events of one kind, added up": 2,
    }
    started = dict(zip(data.ids(np.arange(4)), data.series.column("start").to_pylist(), strict=True))
    assert started == {"7": at(0), "9": at(0), "12": at(0), "-3": at(5)}


def test_a_query_sees_an_event_at_its_own_microsecond_and_none_after(tmp_path: Path) -> None:
    tick = timedelta(microseconds=1)
    prediction = at(1000)
    times = (at(0), prediction - tick, prediction, prediction + tick)
    data = prepared(
        tmp_path,
        [(1, time, f"C{number}", None, None) for number, time in enumerate(times)],
        labels=[(1, prediction - tick, False), (1, prediction, False), (1, prediction + tick, True)],
    )
    assert [visible for _, visible, _ in read(data.path)["1"].queries] == [2, 3, 4]


@pytest.mark.parametrize("birth", ["MEDS_BIRTH", "MEDS_BIRTH//DERIVED"])
def test_birth_keeps_its_negative_time_and_is_known_from_the_start(tmp_path: Path, birth: str) -> None:
    data = prepared(tmp_path, [event(1, -100, birth), event(1, 0, "HR", 1.0)], labels=[(1, at(0), True)])
    series = read(data.path)["1"]
    assert series.observations == [(0.0, -100.0, birth, 1.0), (0.0, 0.0, "HR", 1.0)]
    assert series.queries == [(0.0, 2, 1.0)]


def test_a_code_that_only_resembles_birth_begins_a_series(tmp_path: Path) -> None:
    data = prepared(tmp_path, [event(1, 0, "MEDS_BIRTHPLACE"), event(1, 2, "HR", 1.0)])
    assert [time for _, time, _, _ in read(data.path)["1"].observations] == [0.0, 2.0]


def test_without_an_event_but_birth_a_labelled_series_begins_at_its_first_query(tmp_path: Path) -> None:
    events = [event(1, 0, "HR", 1.0), event(2, -10, "MEDS_BIRTH"), event(3, None, "SEX")]
    labels = [(1, at(0), True), (2, at(5), True), (2, at(0), False), (3, at(1), False)]
    data = prepared(tmp_path, events, labels=labels)
    found = read(data.path)
    assert found["2"].observations == [(0.0, -10.0, "MEDS_BIRTH", 1.0)]
    assert found["2"].queries == [(0.0, 1, 0.0), (5.0, 1, 1.0)]
    assert found["3"].observations == []
    assert found["3"].queries == [(0.0, 0, 0.0)]
    assert note(data, "without a timed event but birth") == 2


def test_without_labels_every_subject_has_one_unlabelled_query_at_its_last_arrival(tmp_path: Path) -> None:
    events = [
        event(1, 0, "HR", 1.0),
        event(1, 7, "HR", 2.0),
        event(2, -10, "MEDS_BIRTH"),
        event(3, None, "SEX"),
    ]
    data = prepared(tmp_path, events)
    assert data.task is None
    queries = {name: series.queries for name, series in read(data.path).items()}
    assert {name: asked[0][:2] for name, asked in queries.items()} == {
        "1": (7.0, 2),
        "2": (0.0, 1),
        "3": (0.0, 0),
    }
    assert all(len(asked) == 1 and np.isnan(asked[0][2]) for asked in queries.values())
    assert data.series.column("start").to_pylist() == [at(0), at(-10), None]


def test_an_unlabelled_query_never_stands_before_the_start(tmp_path: Path) -> None:
    events = [event(s, -10, "MEDS_BIRTH") for s in (1, 2)] + [event(1, 0, "HR", 1.0), event(2, 0, "RARE")]
    splits = {1: "train", 2: "held_out"}
    assert read(prepared(tmp_path, events, splits).path)["2"].queries[0][:2] == (0.0, 1)


def test_with_labels_only_labelled_subjects_become_series_and_count_for_the_vocabulary(
    tmp_path: Path,
) -> None:
    events = [event(1, 0, "HR", 1.0), event(1, 1, "RARE"), event(2, 0, "HR", 1.0), event(3, 0, "HR", 1.0)]
    splits = {1: "train", 2: "train", 3: "train"}
    data = prepared(tmp_path, events, splits, [(2, at(0), True), (3, at(0), True)])
    assert set(read(data.path)) == {"2", "3"}
    assert list(variables(data)) == ["HR"]
    assert note(data, "without a label row") == 1
    assert note(data, "outside the vocabulary") == 0  # RARE is of a subject that is left out


def test_the_vocabulary_comes_from_training_series_by_their_share(tmp_path: Path) -> None:
    events = [event(subject, 0, "ALL", 1.0) for subject in range(1, 12)]
    events += [event(subject, 1, "THREE") for subject in (1, 2, 3)]
    events += [event(subject, 1, "TWO") for subject in (1, 1, 1, 2)]
    events += [event(11, 1, "HELD_OUT"), event(11, 1, "TWO")]
    splits = dict.fromkeys(range(1, 11), "train") | {11: "held_out"}
    data = prepared(tmp_path, events, splits, min_frequency=0.3)
    assert list(variables(data)) == ["ALL", "THREE"]
    assert data.notes == {
        "codes of events outside the vocabulary, dropped": 2,
        "events of codes outside the vocabulary, dropped": 6,
    }


def test_a_code_is_measured_where_training_has_a_value_for_it(tmp_path: Path) -> None:
    events = [
        event(1, 0, "LAB", None),
        event(1, 1, "LAB", 2.0),
        event(1, 1, "LAB", 4.0),
        event(1, 2, "LAB", NAN, "clotted"),
        event(1, 2, "DX", NAN),
        event(3, 0, "DX", 99.0, "beside a value"),
        event(3, 0, "LAB", 5.0),
    ]
    data = prepared(tmp_path, events, {1: "train", 3: "tuning"})
    assert variables(data) == {"DX": True, "LAB": False}
    found = read(data.path)
    assert found["1"].observations == [(1.0, 1.0, "LAB", 3.0), (2.0, 2.0, "DX", 1.0)]
    assert found["3"].observations == [(0.0, 0.0, "DX", 1.0), (0.0, 0.0, "LAB", 5.0)]
    assert data.notes == {
        "events without a value whose code is measured, dropped": 2,
        "events whose code has a value only outside training; they count as events": 1,
        "simultaneous measurements of one variable, averaged": 2,
    }


def test_statics_are_the_mean_of_a_measured_code_or_the_presence_of_another(tmp_path: Path) -> None:
    events = [
        event(1, None, "WEIGHT", 60.0),
        event(1, None, "WEIGHT", 70.0),
        event(1, None, "SMOKER", None, "daily"),
        event(1, 0, "HR", 1.0),
        event(2, None, "WEIGHT", None),
        event(2, None, "SMOKER"),
        event(2, None, "SMOKER"),
        event(2, 0, "HR", 1.0),
        event(3, None, "WEIGHT", 50.0),
        event(3, None, "TUNING//ONLY"),
        event(3, 0, "WEIGHT", 50.0),
    ]
    data = prepared(tmp_path, events, {1: "train", 2: "train", 3: "tuning"})
    found = read(data.path)
    assert found["1"].static == {"SMOKER": 1.0, "WEIGHT": 65.0}
    assert found["3"].static == {"SMOKER": 0.0, "WEIGHT": 50.0}
    assert found["2"].static["SMOKER"] == 1.0
    assert np.isnan(found["2"].static["WEIGHT"])
    assert list(variables(data)) == ["HR"]  # a static code is none with a time
    assert data.notes == {
        "codes of events outside the vocabulary, dropped": 1,
        "events of codes outside the vocabulary, dropped": 1,
        "codes of statics outside the vocabulary, dropped": 1,
        "statics of codes outside the vocabulary, dropped": 1,
        "statics without a value whose code is measured, dropped": 1,
        "static text values are not read; their codes count as present": 1,
    }


def test_splits_take_the_names_of_this_project_and_others_stay(tmp_path: Path) -> None:
    events = [event(subject, 0, "HR", 1.0) for subject in (1, 2, 3, 4, 5)]
    data = prepared(tmp_path, events, SPLITS | {5: "site B"})
    splits = {name: series.split for name, series in read(data.path).items()}
    assert splits == {"1": "train", "2": "train", "3": "val", "4": "test", "5": "site B"}


def test_without_a_split_file_all_is_one_split_and_that_is_noted(tmp_path: Path) -> None:
    data = prepared(tmp_path, [event(1, 0, "HR", 1.0), event(2, 0, "DX")])
    assert {series.split for series in read(data.path).values()} == {"all"}
    assert list(variables(data)) == ["DX", "HR"]
    assert note(data, "no subject_splits.parquet") == 2


@pytest.mark.parametrize(
    ("column", "values", "task", "expected"),
    [
        ("boolean_value", [True, False, True], ("binary", ("false", "true"), "auprc"), [1, 0, 1]),
        ("boolean_value", [True, True, True], ("binary", ("false", "true"), "auprc"), [1, 1, 1]),
        ("integer_value", [1, 0, 1], ("binary", ("0", "1"), "auprc"), [1, 0, 1]),
        ("integer_value", [10, -1, 9], ("multiclass", ("-1", "9", "10"), "balanced_accuracy"), [2, 0, 1]),
        ("integer_value", [2, 1, 2], ("binary", ("1", "2"), "auprc"), [1, 0, 1]),
        ("categorical_value", ["no", "yes", "no"], ("binary", ("no", "yes"), "auprc"), [0, 1, 0]),
        (
            "categorical_value",
            ["c", "a", "b"],
            ("multiclass", ("a", "b", "c"), "balanced_accuracy"),
            [2, 0, 1],
        ),
    ],
)
def test_the_filled_value_column_says_what_the_task_is(
    tmp_path: Path,
    column: str,
    values: list[Any],
    task: tuple[Any, tuple[str, ...], str],
    expected: list[int],
) -> None:
    labels = [(1, at(hour), value) for hour, value in enumerate(values)]
    data = prepared(tmp_path, [event(1, 0, "HR", 1.0)], labels=labels, column=column)
    kind, classes, metric = task
    assert data.task == Task(kind=kind, classes=classes, metric=metric)
    assert [label for _, _, label in read(data.path)["1"].queries] == expected


def test_a_label_without_a_value_is_an_unscored_query(tmp_path: Path) -> None:
    labels = [(1, at(1), None), (1, at(2), True)]
    data = prepared(tmp_path, [event(1, 0, "HR", 1.0)], labels=labels)
    first, second = read(data.path)["1"].queries
    assert np.isnan(first[2])
    assert second[2] == 1
    assert note(data, "labels without a value") == 1


def test_labels_without_any_value_are_prediction_times_of_new_data(tmp_path: Path) -> None:
    raw = dataset(tmp_path / "raw", [event(1, 0, "HR", 1.0), event(1, 2, "HR", 2.0)])
    bare = labels_table([(1, at(1), None), (1, at(3), None)]).drop_columns("boolean_value")
    prepare(raw=raw, out=tmp_path / "out", labels=write(bare, tmp_path / "when.parquet"))
    assert open_dataset(tmp_path / "out").task is None
    assert [asked[:2] for asked in read(tmp_path / "out")["1"].queries] == [(1.0, 1), (3.0, 2)]


def test_a_code_with_several_units_has_none(tmp_path: Path) -> None:
    raw = dataset(tmp_path / "raw", [event(1, 0, name, 1.0) for name in ("A", "B", "C", "D")])
    units = {"code": ["A", "B", "B", "C", "C", "D"], "unit": ["kg", "kg", "kg", "kg", "g", None]}
    write(pa.table(units), raw / "metadata" / "codes.parquet")
    prepare(raw=raw, out=tmp_path / "out")
    data = open_dataset(tmp_path / "out")
    assert {v.name: v.unit for v in data.schema.variables} == {"A": "kg", "B": "kg", "C": "", "D": ""}
    assert note(data, "several units") == 1


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_what_can_be_cast_without_doubt_is_read(tmp_path: Path, unit: str) -> None:
    # Years from 1970 to 2262 are what nanoseconds hold.
    times = [datetime(2030, 1, 1), datetime(2030, 1, 1, 1)]
    table = pa.table(
        {
            "extra": ["kept", "out"],
            "code": pa.array(["HR", "HR"]).dictionary_encode(),
            "subject_id": pa.array([1, 1], pa.uint8()),
            "time": pa.array(times, pa.timestamp(unit)),
            "numeric_value": pa.array([0.1, 2.0], pa.float64()),
            "text_value": pa.nulls(2),
        }
    )
    write(table, tmp_path / "raw [1]" / "data" / "x=1" / "*.parquet")
    prepare(raw=tmp_path / "raw [1]", out=tmp_path / "out")
    value = float(np.float32(0.1))
    assert read(tmp_path / "out")["1"].observations == [(0.0, 0.0, "HR", value), (1.0, 1.0, "HR", 2.0)]


def test_shards_hold_whole_subjects_of_large_files_cut_and_small_ones_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"a": {5: 9, 1: 4, 3: 4, 2: 4}, "b": {10: 1}, "c": {9: 1}, "d": {4: 1, 8: 1}}
    labels = []
    for name, subjects in sizes.items():
        events = [
            event(s, hour, "HR", s + hour / 8) for s, count in subjects.items() for hour in range(count)
        ]
        events.reverse()  # neither time nor subjects need be sorted
        write(events_table(events), tmp_path / "raw" / "data" / f"{name}.parquet")
        labels += [(s, at(count - 1), s > 3) for s, count in subjects.items()]
    labels_in(tmp_path / "labels", labels)
    prepare(raw=tmp_path / "raw", out=tmp_path / "whole", labels=tmp_path / "labels")
    monkeypatch.setattr(meds, "SHARD_ROWS", 10)
    prepare(raw=tmp_path / "raw", out=tmp_path / "cut", labels=tmp_path / "labels")
    cut = open_dataset(tmp_path / "cut")
    ids = [cut.table("series", shard).column("id").to_pylist() for shard in range(cut.shards)]
    assert ids == [["1", "2"], ["3", "5"], ["10", "9", "4"], ["8"]]
    assert read(tmp_path / "cut") == read(tmp_path / "whole")
    assert {name: len(series.observations) for name, series in read(tmp_path / "cut").items()} == {
        str(subject): count for subjects in sizes.values() for subject, count in subjects.items()
    }


def test_preparing_needs_neither_torch_nor_the_meds_package(tmp_path: Path) -> None:
    raw = dataset(tmp_path / "raw", [event(1, 0, "HR", 1.0)])
    script = (
        "import sys; from pathlib import Path; sys.modules['meds'] = sys.modules['torch'] = None\n"
        "from seft.data.sources.meds import prepare\n"
        f"prepare(raw=Path({str(raw)!r}), out=Path({str(tmp_path / 'out')!r}))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert len(open_dataset(tmp_path / "out")) == 1


# --- against a plain reading of the rules ----------------------------------------------------------

CODES = ("MEDS_BIRTH", "MEDS_BIRTH//D", "MEDS_DEATH", "HR", "DX", "SEX")
subject_ids = st.integers(1, 4)
an_event = st.builds(
    event,
    subject_ids,
    st.none() | st.integers(-6, 6),
    st.sampled_from(CODES),
    st.none() | st.just(NAN) | st.integers(-3, 3).map(float),
    st.none() | st.just("text"),
)
label_rows = st.dictionaries(
    st.tuples(subject_ids, st.integers(-8, 8)), st.none() | st.booleans(), min_size=1, max_size=8
)


def valued(row: Event) -> bool:
    return row[3] is not None and not math.isnan(row[3])


def kinds(events: Sequence[Event], min_frequency: float, everybody: set[int]) -> dict[str, bool]:
    """The vocabulary of some training events, and whether each code is an event."""
    subjects = {code: {row[0] for row in events if row[2] == code} for code in CODES}
    kept = [code for code in sorted(CODES) if subjects[code]]
    return {
        code: not any(valued(row) for row in events if row[2] == code)
        for code in kept
        if len(subjects[code]) / len(everybody) >= min_frequency
    }


def hours_since(start: datetime, time: datetime) -> float:
    return (time - start) / timedelta(hours=1)


def start_of(rows: Sequence[Event], asked: Sequence[Label]) -> datetime:
    known = [(time, code) for _, time, code, _, _ in rows if time is not None]
    begun = [time for time, code in known if code.split("//")[0] != "MEDS_BIRTH"]
    return min(begun or [time for _, time, _ in asked] or [time for time, _ in known] or [at(0)])


def numbers(
    rows: Sequence[Event], timed: bool, code: str, is_event: bool
) -> dict[datetime | None, list[float]]:
    """What is read of one code, by its time."""
    read: dict[datetime | None, list[float]] = defaultdict(list)
    for row in rows:
        if (row[1] is not None) == timed and row[2] == code and (is_event or valued(row)):
            read[row[1]].append(1.0 if is_event else row[3] or 0.0)
    return read


def expected(
    rows: Sequence[Event],
    split: str,
    asked: Sequence[Label] | None,
    timed: dict[str, bool],
    static: dict[str, bool],
) -> Series:
    """One subject by the rules, in plain Python."""
    start = start_of(rows, asked or [])
    observations = []
    for code, is_event in timed.items():
        for time, values in numbers(rows, True, code, is_event).items():
            assert time is not None
            hour = hours_since(start, time)
            value = sum(values) / (1 if is_event else len(values))
            observations.append((max(hour, 0.0), hour, code, float(np.float32(value))))
    facts = {}
    for code, is_event in static.items():
        values = numbers(rows, False, code, is_event)[None]
        facts[code] = float(bool(values)) if is_event else float(np.float32(np.mean(values or [NAN])))
    if asked is None:
        wanted = [(max([0.0, *(arrival for arrival, *_ in observations)]), NAN)]
    else:
        wanted = sorted((hours_since(start, time), NAN if v is None else float(v)) for _, time, v in asked)
    return Series(
        split={"tuning": "val", "held_out": "test"}.get(split, split),
        static=facts,
        observations=sorted(observations),
        queries=[(hour, sum(row[0] <= hour for row in observations), label) for hour, label in wanted],
    )


@settings(max_examples=60, deadline=None)
@given(
    events=st.lists(an_event, min_size=1, max_size=25),
    splits=st.none()
    | st.fixed_dictionaries(dict.fromkeys(range(1, 5), st.sampled_from(["train", "tuning", "x"]))),
    labels=st.none() | label_rows,
    min_frequency=st.sampled_from([0.0, 0.5, 1.0]),
    files=st.integers(1, 3),
    shard_rows=st.sampled_from([1, 5, 1000]),
)
@example(
    events=[
        event(1, 0, "HR", 1.0),
        event(1, -1, "MEDS_BIRTH"),
        event(1, 1, "DX", None),
        event(1, 1, "DX", None),
    ],
    splits=None,
    labels={(1, 1): True, (1, 0): None, (1, -1): False},
    min_frequency=0.0,
    files=1,
    shard_rows=1000,
)
def test_any_small_dataset_reads_as_the_rules_say(
    events: list[Event],
    splits: dict[int, str] | None,
    labels: dict[tuple[int, int], bool | None] | None,
    min_frequency: float,
    files: int,
    shard_rows: int,
) -> None:
    subjects = {row[0] for row in events}
    if splits is not None:
        splits = {subject: splits[subject] if subject != min(subjects) else "train" for subject in subjects}
    rows = None
    if labels is not None:
        rows = [(s, at(hour), value) for (s, hour), value in labels.items() if s in subjects]
        rows.append((min(subjects), at(9), True))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(meds, "SHARD_ROWS", shard_rows)
        root = Path(folder)
        for number in range(files):
            inside = [row for row in events if row[0] % files == number]
            write(events_table(inside), root / "data" / f"{number}.parquet")
        if splits is not None:
            write(splits_table(splits), root / "metadata" / "subject_splits.parquet")
        if rows is not None:
            for number in range(2):
                write(labels_table(rows[number::2]), root / "labels" / f"{number}.parquet")
        out = root / "out"
        labels_folder = None if rows is None else root / "labels"
        cohort = subjects if rows is None else {row[0] for row in rows}
        trained = [row for row in events if row[0] in cohort and split_of(splits, row[0]) in ("train", "all")]
        everybody = {row[0] for row in trained}
        timed = kinds([row for row in trained if row[1] is not None], min_frequency, everybody)
        static = kinds([row for row in trained if row[1] is None], min_frequency, everybody)
        if not timed:
            with pytest.raises(InputError, match="no code with a time"):
                prepare(raw=root, out=out, labels=labels_folder, min_frequency=min_frequency)
            return
        prepare(raw=root, out=out, labels=labels_folder, min_frequency=min_frequency)
        assert variables(open_dataset(out)) == timed
        wanted = {}
        for subject in cohort:
            own = [row for row in events if row[0] == subject]
            asked = None if rows is None else [row for row in rows if row[0] == subject]
            wanted[str(subject)] = expected(own, split_of(splits, subject), asked, timed, static)
        assert_same(read(out), wanted)


def split_of(splits: dict[int, str] | None, subject: int) -> str:
    return "all" if splits is None else splits[subject]


def assert_same(found: dict[str, Series], wanted: dict[str, Series]) -> None:
    """As equality, but that NaN is NaN."""
    assert found.keys() == wanted.keys()
    for name, series in wanted.items():
        assert found[name].split == series.split
        assert found[name].observations == series.observations
        assert found[name].static.keys() == series.static.keys()
        np.testing.assert_array_equal(list(found[name].static.values()), list(series.static.values()))
        np.testing.assert_array_equal(np.array(found[name].queries), np.array(series.queries))


# --- what is wrong is said -------------------------------------------------------------------------

GOOD = (event(1, 0, "HR", 1.0), event(2, 0, "HR", 2.0))


def refused(root: Path, *says: str, labels: Path | None = None, min_frequency: float = 0.0) -> None:
    """Preparing root/raw ends in one line that says all of these, and leaves nothing behind."""
    before = set(root.iterdir())
    with pytest.raises(InputError) as error:
        prepare(raw=root / "raw", out=root / "out", labels=labels, min_frequency=min_frequency)
    for text in says:
        assert text in str(error.value)
    assert "\n" not in str(error.value)
    assert set(root.iterdir()) == before


def test_a_root_without_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    refused(tmp_path, "raw/data", "is no folder")
    (tmp_path / "raw" / "data").mkdir()
    refused(tmp_path, "raw/data", "holds no .parquet file")
    dataset(tmp_path / "raw", [])
    refused(tmp_path, "raw/data", "hold no events")


@pytest.mark.parametrize("damage", ["truncated", "not parquet", "empty", "pages overwritten"])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    events = [event(subject, hour, f"C{hour}", hour) for subject in range(9) for hour in range(99)]
    file = dataset(tmp_path / "raw", events) / "data" / "0.parquet"
    whole = file.read_bytes()
    content = {
        "truncated": whole[: len(whole) // 2],
        "not parquet": b"subject_id,time,code\n1,2,3\n",
        "empty": b"",
        "pages overwritten": whole[:8] + bytes(len(whole) // 2) + whole[8 + len(whole) // 2 :],
    }
    file.write_bytes(content[damage])
    refused(tmp_path, "data/0.parquet", "cannot be read")


@pytest.mark.parametrize("column", ["subject_id", "time", "code"])
def test_a_missing_column_is_refused(tmp_path: Path, column: str) -> None:
    write(events_table(GOOD).drop_columns(column), tmp_path / "raw" / "data" / "0.parquet")
    refused(tmp_path, "data/0.parquet", f"no column {column}")


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("subject_id", pa.array(["1", "2"])),
        ("subject_id", pa.array([1.0, 2.0])),
        ("time", pa.array([1, 2])),
        ("time", pa.array(["2030-01-01", "2030-01-02"])),
        ("time", pa.array([1, 2], pa.date32())),
        ("code", pa.array([1, 2])),
        ("numeric_value", pa.array(["1", "2"])),
        ("numeric_value", pa.array([True, False])),
        ("text_value", pa.array([1, 2])),
    ],
)
def test_a_column_of_another_type_is_refused(tmp_path: Path, column: str, values: pa.Array) -> None:
    table = events_table(GOOD)
    table = table.set_column(table.schema.get_field_index(column), column, values)
    write(table, tmp_path / "raw" / "data" / "0.parquet")
    refused(tmp_path, "data/0.parquet", f"column {column} is", "MEDS wants")


def test_a_time_zone_is_refused_in_data_and_in_labels(tmp_path: Path) -> None:
    zoned = pa.array([at(0), at(1)], pa.timestamp("us", "UTC"))
    raw = dataset(tmp_path / "raw", GOOD)
    labels = write(
        labels_table([(1, at(0), True), (1, at(1), True)]).set_column(1, "prediction_time", zoned),
        tmp_path / "l.parquet",
    )
    refused(tmp_path, "l.parquet", "prediction_time has the time zone UTC", "naive", labels=labels)
    write(events_table(GOOD).set_column(1, "time", zoned), raw / "data" / "0.parquet")
    refused(tmp_path, "data/0.parquet", "time has the time zone UTC", "naive")


def test_an_event_without_subject_or_code_is_refused(tmp_path: Path) -> None:
    dataset(tmp_path / "raw", [*GOOD, (None, at(0), "HR", 1.0, None)])  # type: ignore[list-item]
    refused(tmp_path, "data/0.parquet", "no subject_id")
    dataset(tmp_path / "raw", [*GOOD, (2, at(0), None, 1.0, None)])  # type: ignore[list-item]
    refused(tmp_path, "data/0.parquet", "subject 2", "no code")


@pytest.mark.parametrize("hours", [0, None])
def test_an_infinite_value_is_refused(tmp_path: Path, hours: float | None) -> None:
    dataset(tmp_path / "raw", [*GOOD, event(2, hours, "LAB", -math.inf)])
    refused(tmp_path, "data/0.parquet", "subject 2", "code LAB", "infinite")


def test_a_value_beyond_float32_is_refused(tmp_path: Path) -> None:
    table = events_table(GOOD).set_column(3, "numeric_value", pa.array([1.0, 1e39]))
    write(table, tmp_path / "raw" / "data" / "0.parquet")
    refused(tmp_path, "data/0.parquet", "subject 2", "code HR", "float32")


def test_a_subject_in_two_files_is_refused(tmp_path: Path) -> None:
    dataset(tmp_path / "raw", GOOD)
    write(events_table(GOOD[1:]), tmp_path / "raw" / "data" / "b" / "1.parquet")
    refused(tmp_path, "subject 2", "data/0.parquet", "data/b/1.parquet")


@pytest.mark.parametrize(
    ("splits", "says"),
    [
        ({1: "train", 2: "train", 77: "train"}, ("subject 77", "not in")),
        ({1: "train"}, ("subject 2", "no split")),
        ({1: "train", 2: None}, ("no split",)),
        ({1: "held_out", 2: "tuning"}, ("no series is in the split `train`",)),
    ],
)
def test_splits_that_do_not_fit_the_data_are_refused(
    tmp_path: Path, splits: dict[int, str], says: tuple[str, ...]
) -> None:
    dataset(tmp_path / "raw", GOOD, splits)
    refused(tmp_path, *says)


def test_a_subject_with_two_splits_is_refused(tmp_path: Path) -> None:
    raw = dataset(tmp_path / "raw", GOOD)
    table = pa.concat_tables([splits_table({1: "train", 2: "train"}), splits_table({2: "tuning"})])
    write(table, raw / "metadata" / "subject_splits.parquet")
    refused(tmp_path, "subject_splits.parquet", "subject 2", "two rows")


def test_two_labels_at_one_time_are_refused_even_from_two_files(tmp_path: Path) -> None:
    dataset(tmp_path / "raw", GOOD)
    labels = labels_in(tmp_path / "labels", [(2, at(2), True), (1, at(1), True)])
    write(labels_table([(2, at(2), True)]), labels / "again.parquet")
    refused(tmp_path, "labels", "subject 2", str(at(2)), labels=labels)


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("float_value", [0.5, 1.0], ("float_value", "regression")),
        ("integer_value", [3, 3], ("every integer_value is 3",)),
        ("integer_value", [1, None], ("every integer_value is 1",)),
        ("categorical_value", ["a", "a"], ("every categorical_value is a",)),
        ("boolean_value", [], ("holds no labels",)),
    ],
)
def test_labels_that_make_no_classes_are_refused(
    tmp_path: Path, column: str, values: list[Any], says: tuple[str, ...]
) -> None:
    dataset(tmp_path / "raw", GOOD)
    rows = [(1, at(hour), value) for hour, value in enumerate(values)]
    refused(tmp_path, "labels", *says, labels=labels_in(tmp_path / "labels", rows, column))


def test_labels_of_several_value_columns_are_refused(tmp_path: Path) -> None:
    dataset(tmp_path / "raw", GOOD)
    labels = labels_in(tmp_path / "labels", [(1, at(1), True)])
    write(labels_table([(2, at(1), 4)], "integer_value"), labels / "other.parquet")
    refused(tmp_path, "labels", "boolean_value and integer_value", labels=labels)


def test_labels_that_do_not_fit_the_data_are_refused(tmp_path: Path) -> None:
    dataset(tmp_path / "raw", GOOD)
    refused(tmp_path, "nowhere", "is no folder", labels=tmp_path / "nowhere")
    labels = labels_in(tmp_path / "labels", [(1, at(1), True), (88, at(1), True)])
    refused(tmp_path, "labels/0.parquet", "subject 88", "not in the data", labels=labels)
    labels_in(labels, [(1, None, True)])  # type: ignore[list-item]
    refused(tmp_path, "labels/0.parquet", "no prediction_time", labels=labels)
    write(
        labels_table([(1, at(1), "yes")], "x").rename_columns(
            ["subject_id", "prediction_time", "boolean_value"]
        ),
        labels / "0.parquet",
    )
    refused(tmp_path, "labels/0.parquet", "column boolean_value is String", labels=labels)
    write(labels_table([(1, at(1), True)]).drop_columns("prediction_time"), labels / "0.parquet")
    refused(tmp_path, "labels/0.parquet", "no column prediction_time", labels=labels)


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_unreadable_metadata_is_refused(tmp_path: Path, content: str) -> None:
    raw = dataset(tmp_path / "raw", GOOD, {1: "train", 2: "train"})
    (raw / "metadata" / "dataset.json").write_text(content)
    refused(tmp_path, "metadata/dataset.json", "JSON")


def test_a_frequency_that_is_no_share_or_that_no_code_reaches_is_refused(tmp_path: Path) -> None:
    dataset(tmp_path / "raw", [event(1, 0, "A"), event(2, 0, "B")])
    refused(tmp_path, "min_frequency", "1.5", min_frequency=1.5)
    refused(tmp_path, "min_frequency", "nan", min_frequency=NAN)
    refused(tmp_path, "0.6 of the 2 training series", "--min-frequency", min_frequency=0.6)


def test_an_existing_dataset_is_replaced_only_when_asked(tmp_path: Path) -> None:
    dataset(tmp_path / "raw", GOOD)
    prepare(raw=tmp_path / "raw", out=tmp_path / "out")
    refused(tmp_path, "exists already")
    dataset(tmp_path / "raw", GOOD[:1])
    prepare(raw=tmp_path / "raw", out=tmp_path / "out", overwrite=True)
    assert list(read(tmp_path / "out")) == ["1"]
