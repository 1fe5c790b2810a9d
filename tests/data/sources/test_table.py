import csv
import shutil
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from seft.data.dataset import Dataset, open_dataset
from seft.data.sources import table
from seft.data.sources.tabular import TimeUnit
from seft.error import InputError

OBSERVATIONS = """id,time,variable,value
007,0,HR,80
007,1.5,HR,90
007,1.5,Rhythm,AF
007,2,Bolus,
007,2,Bolus,
b,-3,HR,70
b,4,Rhythm,SR
b,4,,5
b,5,HR,NaN
b,6,Rhythm,
"""
LABELS = "id,label\n007,yes\nb,no\nc,no\n"
STATICS = "id,age,sex\nc,50,f\n007,40,m\n"
VARIABLES = "variable,unit\nHR,bpm\nTemp,C\n"


def folder(at: Path, **files: str) -> Path:
    """A folder of CSV files: the example above, with those of `files` instead; '' leaves one out."""
    raw = at / "raw"
    raw.mkdir(exist_ok=True)
    example = {"observations": OBSERVATIONS, "labels": LABELS, "statics": STATICS, "variables": VARIABLES}
    for name, text in (example | files).items():
        if text:
            (raw / f"{name}.csv").write_text(text)
    return raw


def prepared(raw: Path, **options: Any) -> Dataset:
    table.prepare(raw=raw, out=raw.parent / "dataset", overwrite=True, **options)
    return open_dataset(raw.parent / "dataset")


def contents(dataset: Dataset) -> dict[str, dict[str, Any]]:
    """Everything of a dataset in plain words, by id."""
    rows = np.arange(len(dataset))
    batch = dataset.batch(rows)
    batch.check(dataset.schema.modalities)
    found = {}
    for b, name in enumerate(dataset.ids(rows)):
        own = slice(batch.offsets[b], batch.offsets[b + 1])
        asked = slice(batch.query_offsets[b], batch.query_offsets[b + 1])
        found[name] = {
            "observations": [
                (time, arrival, dataset.schema.variables[modality].name, value)
                for time, arrival, modality, value in zip(
                    batch.time[own].tolist(),
                    batch.arrival[own].tolist(),
                    batch.modality[own].tolist(),
                    batch.value[own].tolist(),
                    strict=True,
                )
            ],
            "static": dict(zip(dataset.schema.static_columns, batch.static[b].tolist(), strict=True)),
            "queries": [
                (time, visible, *label)
                for time, visible, label in zip(
                    batch.query_time[asked].tolist(),
                    batch.query_visible[asked].tolist(),
                    batch.label[asked].tolist(),
                    strict=True,
                )
            ],
        }
    return found


def test_a_long_table_becomes_a_dataset(tmp_path: Path) -> None:
    labels = "id,label,split\n007,yes,train\nb,no,train\nc,no,train\n"
    dataset = prepared(folder(tmp_path, labels=labels))
    assert [(v.name, v.unit, v.event) for v in dataset.schema.variables] == [
        ("HR", "bpm", False),
        ("Temp", "C", False),
        ("Bolus", "", True),
        ("Rhythm=AF", "", True),
        ("Rhythm=SR", "", True),
    ]
    found = contents(dataset)
    assert list(found) == ["007", "b", "c"], "ids are text, in the order of the labels"
    assert found["007"] == {
        "observations": [
            (0.0, 0.0, "HR", 80.0),
            (1.5, 1.5, "HR", 90.0),
            (1.5, 1.5, "Rhythm=AF", 1.0),
            (2.0, 2.0, "Bolus", 2.0),  # simultaneous events add up
        ],
        "static": {"age": 40.0, "sex=f": 0.0, "sex=m": 1.0, "sex=unknown": 0.0},
        "queries": [(2.0, 4, 1.0)],
    }
    assert found["b"]["observations"] == [(-3.0, 0.0, "HR", 70.0), (4.0, 4.0, "Rhythm=SR", 1.0)]
    assert np.isnan(found["b"]["static"]["age"])
    assert found["b"]["static"]["sex=unknown"] == 1.0
    assert found["c"]["observations"] == []
    assert dataset.notes == {
        "rows with a blank variable name, dropped": 1,
        "rows of a categorical variable without a category, dropped": 1,
        "observations without a value (NaN), dropped": 1,
        "simultaneous events of one kind, added up": 2,
        "variables with a unit and without an observation": 1,
    }
    assert dataset.task is not None
    assert dataset.task.classes == ("no", "yes")


def test_parquet_says_the_same_as_csv(tmp_path: Path) -> None:
    numbers = "".join(line for line in OBSERVATIONS.splitlines(keepends=True) if "Rhythm" not in line)
    raw = folder(tmp_path, observations=numbers)
    expected = contents(prepared(raw))
    for file in list(raw.iterdir()):
        pl.read_csv(file, schema_overrides={"id": pl.String}).write_parquet(file.with_suffix(".parquet"))
        file.unlink()
    assert str(contents(prepared(raw))) == str(expected)


def test_files_and_columns_may_be_named_one_by_one(tmp_path: Path) -> None:
    raw = folder(tmp_path)
    expected = contents(prepared(raw))
    (tmp_path / "o.csv").write_text(OBSERVATIONS.replace("id,time,variable,value", "who,when,what,much"))
    (tmp_path / "l.csv").write_text(LABELS.replace("id,label", "who,answer"))
    (tmp_path / "s.csv").write_text(STATICS.replace("id,", "who,"))
    table.prepare(
        out=tmp_path / "named",
        observations=tmp_path / "o.csv",
        labels=tmp_path / "l.csv",
        statics=tmp_path / "s.csv",
        variables=raw / "variables.csv",
        id_column="who",
        time_column="when",
        variable_column="what",
        value_column="much",
        label_columns=("answer",),
    )
    named = contents(open_dataset(tmp_path / "named"))
    assert str(named) == str(expected)


@pytest.mark.parametrize(
    ("unit", "hours"),
    [("seconds", 1 / 3600), ("minutes", 1 / 60), ("days", 24.0), ("years", 365.25 * 24)],
)
def test_numeric_times_are_in_the_unit_given(tmp_path: Path, unit: TimeUnit, hours: float) -> None:
    found = contents(prepared(folder(tmp_path), time_unit=unit))
    assert [row[0] for row in found["007"]["observations"]] == pytest.approx(
        [0.0, 1.5 * hours, 1.5 * hours, 2 * hours]
    )


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S+02:00", "%Y-%m-%dT%H:%M:%S.%fZ"])
def test_dates_count_from_the_start_or_else_from_the_first_arrival(tmp_path: Path, form: str) -> None:
    noon = datetime(2024, 3, 31, 12)

    def date(hours: float) -> str:
        return (noon + timedelta(hours=hours)).strftime(form)

    raw = folder(
        tmp_path,
        observations="id,time,variable,value,arrival\n"
        f"a,{date(-2)},HR,60,{date(-1)}\na,{date(1)},HR,61,\na,{date(2)},HR,62,{date(5)}\n"
        f"b,{date(7)},HR,70,{date(8)}\nb,{date(9)},HR,71,{date(9)}\n",
        labels=f"id,time,label\na,{date(3)},0\na,{date(5)},1\nb,{date(9)},0\n",
        statics=f"id,start\na,{date(0)}\n",
        variables="",
    )
    found = contents(prepared(raw))
    assert found["a"]["observations"] == [
        (-2.0, 0.0, "HR", 60.0),
        (1.0, 1.0, "HR", 61.0),
        (2.0, 5.0, "HR", 62.0),
    ]
    assert found["a"]["queries"] == [(3.0, 2, 0.0), (5.0, 3, 1.0)]
    assert found["b"]["observations"] == [(-1.0, 0.0, "HR", 70.0), (1.0, 1.0, "HR", 71.0)]
    assert found["b"]["queries"] == [(1.0, 2, 0.0)]


def test_an_untimed_label_is_asked_at_the_last_arrival_with_a_warning_or_where_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = folder(tmp_path)
    assert contents(prepared(raw))["007"]["queries"] == [(2.0, 4, 1.0)]
    assert "pass --at" in capsys.readouterr().err
    assert contents(prepared(raw, at="90min"))["007"]["queries"] == [(1.5, 3, 1.0)]
    assert capsys.readouterr().err == ""


def test_labels_of_many_classes_and_of_several_columns(tmp_path: Path) -> None:
    dataset = prepared(folder(tmp_path, labels="id,label\n007,3\nb,1\nc,2\n"))
    assert dataset.task is not None
    assert (dataset.task.kind, dataset.task.classes) == ("multiclass", ("1", "2", "3"))
    assert contents(dataset)["007"]["queries"][0][2:] == (0.0, 0.0, 1.0)

    dataset = prepared(folder(tmp_path, labels="id,aki,sepsis\n007,1,0\nb,,1\nc,0,0\n"))
    assert dataset.task is not None
    assert (dataset.task.kind, dataset.task.classes) == ("multilabel", ("aki", "sepsis"))
    label = contents(dataset)["b"]["queries"][0][2:]
    assert np.isnan(label[0])
    assert label[1] == 1


def test_the_positive_class_may_be_chosen(tmp_path: Path) -> None:
    dataset = prepared(folder(tmp_path), positive="no")
    assert dataset.task is not None
    assert dataset.task.classes == ("yes", "no")
    assert contents(dataset)["b"]["queries"][0][2] == 1.0


@pytest.mark.parametrize("labels", ["", "id,time\n007,1\nb,5\n"])
def test_new_data_needs_no_labels(tmp_path: Path, labels: str) -> None:
    dataset = prepared(folder(tmp_path, labels=labels))
    assert dataset.task is None
    assert list(dataset.splits) == ["all"]
    found = contents(dataset)
    assert all(np.isnan(query[2]) for series in found.values() for query in series["queries"])
    assert found["007"]["queries"][0][:2] == ((1.0, 1) if labels else (2.0, 4))


def many(count: int) -> dict[str, str]:
    """`count` series of 3 to a group, a third of them positive."""
    ids = [f"s{i:03d}" for i in range(count)]
    return {
        "observations": "id,time,variable,value\n"
        + "".join(f"{name},0,HR,{60 + len(name)}\n" for name in ids),
        "labels": "id,label,group\n"
        + "".join(f"{name},{int(i % 9 < 3)},p{i // 3}\n" for i, name in enumerate(ids)),
        "statics": "",
        "variables": "",
    }


def test_without_splits_one_is_drawn_by_group_and_label(tmp_path: Path) -> None:
    dataset = prepared(folder(tmp_path, **many(300)))
    rows = np.arange(300)
    part = dict(zip(dataset.ids(rows), dataset.series.column("split").to_pylist(), strict=True))
    for i in range(0, 300, 3):
        assert len({part[f"s{i + j:03d}"] for j in range(3)}) == 1
    assert {name: split["series"] for name, split in dataset.splits.items()} == {
        "train": 192,
        "val": 48,
        "test": 60,
    }
    for split in dataset.splits.values():
        assert split["positive"] / split["series"] == pytest.approx(1 / 3, abs=0.03)


def test_splits_are_taken_as_given(tmp_path: Path) -> None:
    with_column = "id,label,split\n007,1,test\nb,0,train\nc,0,train\n"
    assert {k: v["series"] for k, v in prepared(folder(tmp_path, labels=with_column)).splits.items()} == {
        "test": 1,
        "train": 2,
    }
    raw = folder(tmp_path, labels=LABELS, splits="id,split\n007,dev\nb,train\nc,train\n")
    assert {k: v["series"] for k, v in prepared(raw).splits.items()} == {"dev": 1, "train": 2}


def test_what_says_nothing_is_no_class_and_no_category(tmp_path: Path) -> None:
    labels = "id,label\n007,True\nb,FALSE\nc,NA\n"
    dataset = prepared(folder(tmp_path, labels=labels, statics="id,age\n007,50\nb,NA\nc,61\n"))
    assert dataset.task is not None
    assert dataset.task.classes == ("false", "true")
    found = contents(dataset)
    assert [found[name]["queries"][0][2] for name in ("007", "b")] == [1.0, 0.0]
    assert np.isnan(found["c"]["queries"][0][2])
    assert np.isnan(found["b"]["static"]["age"])


def test_sodium_is_not_missing(tmp_path: Path) -> None:
    dataset = prepared(
        folder(tmp_path, observations="id,time,variable,value\n007,0,Na,140\nb,0,Na,NA\nc,0,Na,\n")
    )
    assert "Na" in [variable.name for variable in dataset.schema.variables]
    assert contents(dataset)["007"]["observations"] == [(0.0, 0.0, "Na", 140.0)]
    assert dataset.notes["observations without a value (NaN), dropped"] == 2


def test_a_column_of_labels_beside_label_is_ignored_and_noted(tmp_path: Path) -> None:
    dataset = prepared(folder(tmp_path, labels="id,site,label\n007,1,1\nb,1,0\nc,0,0\n"))
    assert dataset.task is not None
    assert dataset.task.kind == "binary"
    assert dataset.notes["column 'site' of the labels, ignored beside 'label'"] == 1


def test_whole_numbers_name_the_same_series_in_every_file(tmp_path: Path) -> None:
    raw = folder(tmp_path, observations="", labels="id,label\n1,0\n2,1\n", statics="")
    pl.DataFrame({"id": [1.0, 2.0], "time": [0, 1], "variable": ["HR"] * 2, "value": [1, 2]}).write_parquet(
        raw / "observations.parquet"
    )
    assert list(contents(prepared(raw))) == ["1", "2"]


def test_each_column_may_write_its_dates_in_its_own_way(tmp_path: Path) -> None:
    raw = folder(
        tmp_path,
        observations="id,time,variable,value,arrival\na,2024-01-01 10:00:00,HR,1,2024-01-02\n"
        "b,2024-01-01 11:00:00,HR,1,\n",
        labels="id,time,label\na,2024-01-03T00:00,0\nb,2024-01-01T12:00,1\n",
        statics="id,start\na,\nb,\n",
    )
    found = contents(prepared(raw))
    assert found["a"]["observations"] == [(-14.0, 0.0, "HR", 1.0)]
    assert found["a"]["queries"] == [(24.0, 1, 0.0)]
    assert found["b"]["queries"] == [(1.0, 1, 1.0)]


def test_dates_with_a_time_zone_do_not_mix_with_dates_without_one(tmp_path: Path) -> None:
    raw = folder(
        tmp_path,
        observations="id,time,variable,value\na,2024-01-01T10:00:00+02:00,HR,1\n",
        labels="id,time,label\na,2024-01-01T11:00,0\n",
        statics="",
    )
    with pytest.raises(InputError, match="dates without one and the observations' time in dates with a time"):
        prepared(raw)


def test_a_name_with_stars_and_brackets_is_a_file_like_any_other(tmp_path: Path) -> None:
    raw = folder(tmp_path)
    expected = contents(prepared(raw))
    strange = raw.rename(tmp_path / "raw [1] *")
    table.prepare(raw=strange, out=tmp_path / "strange")
    assert str(contents(open_dataset(tmp_path / "strange"))) == str(expected)


def test_an_archive_may_hold_the_folder_or_its_files(tmp_path: Path) -> None:
    raw = folder(tmp_path)
    expected = str(contents(prepared(raw)))
    for name, root in (("files", raw), ("folder", tmp_path)):
        base = None if root == raw else raw.name
        archive = shutil.make_archive(str(tmp_path / name), "gztar", root, base)
        table.prepare(raw=Path(archive), out=tmp_path / f"from-{name}")
        assert str(contents(open_dataset(tmp_path / f"from-{name}"))) == expected


def test_an_unlabelled_stay_follows_its_patient(tmp_path: Path) -> None:
    files = many(60)
    lines = files["labels"].splitlines()
    only_first = "\n".join([lines[0], *lines[1::3]]) + "\n"
    groups = "id,group\n" + "".join(f"s{i:03d},p{i // 3}\n" for i in range(60))
    for labels in (only_first, only_first.replace("group", "site")):
        dataset = prepared(folder(tmp_path, **(files | {"labels": labels, "statics": groups})))
        rows = np.arange(60)
        part = dict(zip(dataset.ids(rows), dataset.series.column("split").to_pylist(), strict=True))
        for i in range(0, 60, 3):
            assert len({part[f"s{i + j:03d}"] for j in range(3)}) == 1
        assert "unlabelled" not in dataset.splits


def test_splits_by_other_names_keep_the_levels_of_statics(tmp_path: Path) -> None:
    raw = folder(tmp_path, splits="id,split\n007,Train\nb,Val\nc,Test\n")
    assert prepared(raw).schema.static_columns == ("age", "sex=f", "sex=m", "sex=unknown")


@pytest.mark.parametrize("labels", ["id,label\n", "id,label\n007,\nb,\nc,\n"])
def test_labels_without_a_label_are_new_data(tmp_path: Path, labels: str) -> None:
    dataset = prepared(folder(tmp_path, labels=labels))
    assert dataset.task is None
    assert list(dataset.splits) == ["all"]


def test_series_without_a_label_stand_aside(tmp_path: Path) -> None:
    dataset = prepared(folder(tmp_path, labels="id,label\n007,1\nc,0\n"))
    assert dataset.splits["unlabelled"]["series"] == 1
    assert dataset.notes["series without a label or split, in the split 'unlabelled'"] == 1


def test_a_table_larger_than_a_shard_is_the_same_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = folder(tmp_path)
    whole = contents(prepared(raw))
    monkeypatch.setattr(table, "OBSERVATIONS_A_SHARD", 2)
    dataset = prepared(raw)
    assert dataset.shards > 1
    assert str(contents(dataset)) == str(whole)


# --- bad input -------------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "no observations": ({"observations": ""}, {}, "holds no observations.csv"),
    "an empty file": ({"observations": " "}, {}, "observations.csv: "),
    "a header only": (
        {"observations": "id,time,variable,value\n", "labels": "", "statics": ""},
        {},
        "observations.csv: has no rows",
    ),
    "an unknown column": (
        {"observations": "id,time,variable,val\na,0,HR,1\n"},
        {},
        "observations.csv: has no column 'value' .*--value-column.*; it has id, time, variable, val",
    ),
    "a value that is no number": (
        {"observations": OBSERVATIONS + "b,7,HR,high\n"},
        {},
        "observations.csv, line 12: the value 'high' of HR is not a number",
    ),
    "an infinite value": (
        {"observations": OBSERVATIONS + "b,7,HR,inf\n"},
        {},
        "observations.csv, line 12: the value inf of HR is infinite",
    ),
    "a time that is none": (
        {"observations": OBSERVATIONS + "b,soon,HR,1\n"},
        {},
        "observations.csv, line 12: the time 'soon' cannot be read as a time",
    ),
    "times that are all none": (
        {"observations": "id,time,variable,value\na,soon,HR,1\n"},
        {},
        "observations.csv: the time 'soon' is neither a number nor a date",
    ),
    "a blank time": ({"observations": OBSERVATIONS + "b,,HR,1\n"}, {}, "line 12: the time is blank"),
    "a value beyond float32": (
        {"observations": OBSERVATIONS + "b,7,HR,1e39\n"},
        {},
        "observations.csv, line 12: the value 1e\\+39 of HR is infinite or beyond float32",
    ),
    "semicolons": (
        {"observations": "id;time;variable;value\na;0;HR;1\n"},
        {},
        "no column 'id' .*separated by semicolons: write it with commas",
    ),
    "a name in capitals": (
        {"observations": "ID,time,variable,value\na,0,HR,1\n"},
        {},
        "has no column 'id' .*; is it 'ID'?",
    ),
    "two columns of one name": (
        {"labels": "id,label,label\n007,0,1\nb,1,0\n"},
        {},
        "labels.csv: has two columns called 'label'",
    ),
    "a column without a name": (
        {"statics": ",id,age\n0,b,1\n"},
        {},
        "statics.csv: has a column without a name",
    ),
    "a label among the statics": (
        {"statics": "id,label\nb,1\n"},
        {},
        "statics.csv: the column 'label' belongs to the labels",
    ),
    "a static beyond float32": (
        {"statics": "id,age\nb,1e300\nc,1\n"},
        {},
        "series b: the static age is infinite or beyond float32",
    ),
    "two variables of one name": (
        {"observations": OBSERVATIONS + "b,7,Rhythm=AF,1\n"},
        {},
        "two variables are called 'Rhythm=AF'; rename one of them",
    ),
    "two static columns of one name": (
        {"statics": "id,sex,sex=m\n007,m,5\nb,f,6\nc,m,7\n"},
        {},
        "two statics are called 'sex=m'; rename one of them",
    ),
    "no variables": (
        {"observations": "id,time,variable,value\n007,0,,1\nb,0,,1\nc,0,,1\n", "variables": ""},
        {},
        "there is no variable with an observation",
    ),
    "dates beside numbers": (
        {"labels": "id,time,label\nb,2024-01-01,0\n007,2024-01-01,1\n"},
        {},
        "labels.csv: the time is in dates and the observations' time in numbers; write both alike",
    ),
    "a label that is infinite": (
        {"labels": "id,label\n007,inf\nb,1\n"},
        {},
        "numbers with fractions or beyond all classes",
    ),
    "--at beyond all times": ({}, {"at": "300000years"}, "is further off than can be counted"),
    "a negative seed": ({}, {"seed": -1}, "--seed is -1; it must not be negative"),
    "an infinite time": (
        {"observations": OBSERVATIONS + "b,inf,HR,1\n"},
        {},
        "observations.csv, line 12: the time 'inf' cannot be read",
    ),
    "a blank id": ({"observations": OBSERVATIONS + ",1,HR,1\n"}, {}, "line 12: the id is blank"),
    "a second label": (
        {"labels": LABELS + "b,yes\n"},
        {},
        "labels.csv, line 5: the id 'b' stands there more",
    ),
    "a label for nobody": (
        {"labels": LABELS + "nobody,yes\n"},
        {},
        "labels.csv, line 5: a label for the id 'nobody', which has neither",
    ),
    "two labels at one time": (
        {"labels": "id,time,label\nb,1,0\nb,1.0,1\n"},
        {},
        "series b: two queries at 1 h",
    ),
    "one class": ({"labels": "id,label\n007,a\nb,a\n"}, {}, "labels.csv: all labels are 'a'"),
    "a regression target": (
        {"labels": "id,label\n007,0.5\nb,1.7\n"},
        {},
        "numbers with fractions or beyond all classes; seft classif",
    ),
    "a bad multilabel": ({"labels": "id,x,y\n007,0,2\n"}, {}, "labels.csv, line 2: the label y is '2'"),
    "a split for nobody": (
        {"splits": "id,split\n007,train\nb,train\nc,test\nzz,test\n"},
        {},
        "splits.csv, line 5: a split for the id 'zz', which is unknown",
    ),
    "somebody without a split": (
        {"splits": "id,split\n007,train\n"},
        {},
        "splits.csv: the id 'b' has no split",
    ),
    "two splits": (
        {"labels": "id,time,label,split\nb,1,0,train\nb,2,1,test\n"},
        {},
        "the id 'b' has two splits, 'train' and 'test'",
    ),
    "a torn group": (
        {"labels": "id,label,group,split\n007,0,p,train\nb,1,p,test\n"},
        {},
        "the group 'p' is torn apart: it is in the splits test and train",
    ),
    "statics twice": (
        {"statics": STATICS + "c,1,f\n"},
        {},
        "statics.csv, line 4: the id 'c' stands there more",
    ),
    "an infinite static": ({"statics": "id,age\nb,1\nc,inf\n"}, {}, "statics.csv, line 3: age is infinite"),
    "a unit twice": (
        {"variables": VARIABLES + "HR,x\n"},
        {},
        "variables.csv: the variable 'HR' stands there tw",
    ),
    "a strange --at": ({}, {"at": "soon"}, "--at 'soon': give a number and a unit"),
    "--at beside times": ({"labels": "id,time,label\nb,1,0\n007,1,1\n"}, {"at": "1h"}, "labels have times"),
    "no such class": ({}, {"positive": "maybe"}, "--positive 'maybe': the classes are no, yes"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path: Path, case: str) -> None:
    files, options, message = BAD[case]
    with pytest.raises(InputError, match=message) as raised:
        prepared(folder(tmp_path, **files), **options)
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_bytes_that_are_no_table_are_named(tmp_path: Path) -> None:
    raw = folder(tmp_path, observations="")
    (raw / "observations.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(InputError, match=r"observations.parquet: cannot be read"):
        prepared(raw)


# --- a plain reading -------------------------------------------------------------------------------

rows = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(-4, 40).map(lambda quarter: quarter / 4),
        st.sampled_from(["", "0", "1.25", "9.5", "11"]),  # arrival
        st.sampled_from(["HR", "Temp", "Drug", ""]),
        st.sampled_from([1.0, 2.5, -7.0, float("nan")]),
    ),
    min_size=1,
    max_size=30,
)
asked = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 40).map(lambda quarter: quarter / 4), st.booleans()),
    max_size=8,
    unique_by=lambda query: query[:2],
)


@settings(max_examples=40)
@given(rows, asked)
def test_a_plain_reading_finds_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, float, str, str, float]],
    asked: list[tuple[str, float, bool]],
) -> None:
    assume(any(variable for _, _, _, variable, _ in rows))
    at = tmp_path_factory.mktemp("table")
    asked = [query for query in asked if query[0] in {row[0] for row in rows}]
    with (at / "observations.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "time", "arrival", "variable", "value"])
        for name, time, arrival, variable, value in rows:
            writer.writerow([name, time, arrival, variable, "" if variable == "Drug" else value])
    with (at / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "time", "label"])
        writer.writerows([name, time, int(label)] for name, time, label in asked)
    table.prepare(observations=at / "observations.csv", labels=at / "labels.csv", out=at / "dataset")
    found = contents(open_dataset(at / "dataset"))

    values: dict[str, dict[tuple[float, float, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    counted: Counter[str] = Counter()
    for name, time, arrival, variable, value in rows:
        known = max(float(arrival) if arrival else time, time, 0.0)
        if not variable:
            counted["blank"] += 1
        elif variable == "Drug":
            values[name][known, time, variable].append(1.0)
        elif value == value:
            values[name][known, time, variable].append(value)
    for name in {row[0] for row in rows}:
        expected = [
            (time, known, variable, float(np.float32(sum(v) if variable == "Drug" else sum(v) / len(v))))
            for (known, time, variable), v in values[name].items()
        ]
        assert sorted(found[name]["observations"]) == sorted(expected)
        queries = [
            (time, sum(known <= time for _, known, _, _ in expected), float(label))
            for owner, time, label in sorted(asked)
            if owner == name
        ]
        assert found[name]["queries"] == queries
