import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from seft.data.archive import unpacked
from seft.data.dataset import Dataset, open_dataset
from seft.data.inspection import summary
from seft.data.sources import physionet2012
from seft.error import InputError
from tests.shared import shared_data

RECORD = """Time,Parameter,Value
00:00,RecordID,{record}
00:00,Age,54
00:00,Gender,0
00:00,Height,-1
00:00,ICUType,4
00:00,Weight,-1
00:07,HR,73
00:07,HR,75
00:07,,12
01:30,Temp,-17.8
47:59,GCS,15
"""


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Ten little stays in set-a, the odd ones of which die."""
    (tmp_path / "raw" / "set-a").mkdir(parents=True)
    outcomes = ["RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death"]
    for number in range(10):
        record = 132500 + number
        (tmp_path / "raw" / "set-a" / f"{record}.txt").write_text(RECORD.format(record=record))
        outcomes.append(f"{record},6,1,5,-1,{number % 2}")
    (tmp_path / "raw" / "Outcomes-a.txt").write_text("\n".join(outcomes) + "\n")
    return tmp_path / "raw"


def prepared(raw: Path, keep_sentinels: bool = False) -> Dataset:
    out = raw.parent / f"dataset-{keep_sentinels}"
    physionet2012.prepare(raw=raw, out=out, splits="own", keep_sentinels=keep_sentinels)
    return open_dataset(out)


def test_each_row_becomes_an_observation_a_fact_or_a_count(raw: Path) -> None:
    dataset = prepared(raw)
    batch = dataset.batch(np.array([3]))
    names = [dataset.schema.variables[m].name for m in batch.modality.tolist()]
    found = list(zip(names, batch.time.tolist(), batch.value.tolist(), strict=True))
    assert found == [
        ("HR", pytest.approx(7 / 60), 74.0),  # two at one time are averaged
        ("Temp", 1.5, pytest.approx(-17.8)),  # negative, but a measurement
        ("GCS", pytest.approx(47 + 59 / 60), 15.0),
    ]
    assert dict(zip(dataset.schema.static_columns, batch.static[0].tolist(), strict=True)) == {
        "Age": 54,
        "Gender=0": 1,
        "Gender=1": 0,
        "Height": pytest.approx(float("nan"), nan_ok=True),
        "ICUType=1": 0,
        "ICUType=2": 0,
        "ICUType=3": 0,
        "ICUType=4": 1,
    }
    assert batch.query_time.tolist() == [48.0]
    assert batch.query_visible.tolist() == [3]
    assert batch.label.tolist() == [[1.0]]
    assert dataset.notes == {
        "rows with a blank parameter name, dropped": 10,
        "values of -1 (not measured), dropped": 10,
        "simultaneous measurements of one variable, averaged": 20,
    }


def test_a_flag_keeps_minus_one_as_the_papers_code_did(raw: Path) -> None:
    dataset = prepared(raw, keep_sentinels=True)
    batch = dataset.batch(np.array([0]))
    weight = [v.name for v in dataset.schema.variables].index("Weight")
    assert batch.value[batch.modality == weight].tolist() == [-1.0]
    assert batch.static[0, dataset.schema.static_columns.index("Height")] == -1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("00:07,HR,75", "00:07,HR,fast", r"132504.txt, line 9: the value 'fast' of HR is not a number"),
        ("00:07,HR,75", "00:07,HR,7,5", r"132504.txt, line 9: '00:07,HR,7,5' has 4 fields"),
        ("47:59,GCS,15", "47:5", r"132504.txt, line 12: '47:5' has 1 fields"),
        ("00:07,HR,75", "0.07,HR,75", r"132504.txt, line 9: the time '0.07' is not HH:MM"),
        ("00:07,HR,75", "00:77,HR,75", r"132504.txt, line 9: the time '00:77' is not HH:MM"),
        ("RecordID,132504", "RecordID,132504.5", r"132504.txt: its second line.*must give RecordID 132504"),
        ("RecordID,132504", "RecordID,inf", r"132504.txt: its second line.*must give RecordID 132504"),
        ("00:07,HR,75", "00:07,Pulse,75", r"132504.txt, line 9: the parameter 'Pulse' is none of"),
        ("00:07,HR,75", "00:07,HR,inf", r"series 132504, variable HR, 0.116667 h: the value inf is infinite"),
        (
            "Time,Parameter",
            "Hour,Parameter",
            r"132504.txt: begins with b'Hour,Parameter,Value.*must begin with the line 'Time,Param",
        ),
        ("RecordID,132504", "RecordID,132505", r"132504.txt: its second line.*must give RecordID 132504"),
    ],
)
def test_a_bad_row_is_named_with_its_file_and_line(raw: Path, old: str, new: str, message: str) -> None:
    file = raw / "set-a" / "132504.txt"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(InputError, match=message):
        prepared(raw)
    assert not list(raw.parent.glob("*dataset*")), "nothing is left half-made"


def test_outcomes_and_files_must_match(raw: Path) -> None:
    (raw / "set-a" / "132503.txt").rename(raw / "set-a" / "999999.txt")
    with pytest.raises(InputError, match="name stay 132503, which has no file"):
        prepared(raw)
    (raw / "set-a" / "132503.txt").write_text(RECORD.format(record=132503))
    with pytest.raises(InputError, match=r"999999.txt: has no outcome"):
        prepared(raw)


def test_the_papers_split_is_refused_for_a_part_of_the_stays(raw: Path) -> None:
    with pytest.raises(InputError, match=r"all 12,000 stays and 10 are here.*--splits own"):
        physionet2012.prepare(raw=raw, out=raw.parent / "dataset")


# --- the real files --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> object:
    with unpacked(shared_data("physionet2012.tar.xz")) as folder:
        yield folder / "physionet2012"


@pytest.fixture(scope="module")
def dataset(recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    out = tmp_path_factory.mktemp("physionet2012") / "dataset"
    physionet2012.prepare(raw=recordings, out=out)
    return open_dataset(out)


def test_the_papers_stays_and_deaths(dataset: Dataset) -> None:
    splits = {name: (split["series"], split["positive"]) for name, split in dataset.splits.items()}
    assert splits == {"train": (7671, 1093), "val": (1917, 273), "test": (2400, 341)}
    assert dataset.schema.modalities == 37
    assert {split["queries"] for split in dataset.splits.values()} == {7671, 1917, 2400}


def test_the_papers_split_is_drawn_to_the_last_stay(dataset: Dataset) -> None:
    for name in ("train", "val", "test"):
        listed = shared_data(f"splits/physionet2012/{name}.csv").read_text().split()[1:]
        drawn = set(dataset.ids(dataset.split(name)))
        assert drawn == set(listed) - physionet2012.EMPTY_STAYS


def test_with_the_sentinels_in_there_are_the_papers_observations(recordings: Path, tmp_path: Path) -> None:
    physionet2012.prepare(raw=recordings, out=tmp_path / "kept", keep_sentinels=True)
    splits = open_dataset(tmp_path / "kept").splits
    observations = {name: split["observations"] for name, split in splits.items()}
    assert observations == {"train": 3_331_846, "val": 832_214, "test": 1_047_551}


def test_a_plain_line_by_line_reading_finds_the_same(dataset: Dataset, recordings: Path) -> None:
    names = [variable.name for variable in dataset.schema.variables]
    rows = dataset.split("val")[::97]
    batch = dataset.batch(rows)
    batch.check(dataset.schema.modalities)
    for b, record in enumerate(dataset.ids(rows)):
        (file,) = recordings.glob(f"set-?/{record}.txt")
        measured: dict[tuple[float, str], list[float]] = defaultdict(list)
        with file.open() as lines:
            for row in csv.DictReader(lines):
                hour, minute = row["Time"].split(":")
                if row["Parameter"] in names and float(row["Value"]) != -1:
                    measured[int(hour) + int(minute) / 60, row["Parameter"]].append(float(row["Value"]))
        expected = sorted((time, name, sum(v) / len(v)) for (time, name), v in measured.items())
        own = slice(batch.offsets[b], batch.offsets[b + 1])
        found = sorted(
            (time, names[modality], value)
            for time, modality, value in zip(
                batch.time[own].tolist(), batch.modality[own].tolist(), batch.value[own].tolist(), strict=True
            )
        )
        assert [name for _, name, _ in found] == [name for _, name, _ in expected]
        np.testing.assert_allclose([t for t, _, _ in found], [t for t, _, _ in expected], rtol=1e-6)
        np.testing.assert_allclose([v for _, _, v in found], [v for _, _, v in expected], rtol=1e-6)


def test_the_oddities_are_counted(dataset: Dataset) -> None:
    assert dataset.notes == {
        "stays without any observation, left out as in the paper": 12,
        "rows with a blank parameter name, dropped": 2403,
        "values of -1 (not measured), dropped": 1215,
        "simultaneous measurements of one variable, averaged": 23494,
    }


def test_inspection_counts_what_is_there(dataset: Dataset) -> None:
    facts = summary(dataset)
    assert sum(record["count"] for record in facts["modalities"]) == sum(
        split["observations"] for split in dataset.splits.values()
    )
    temperature = next(record for record in facts["modalities"] if record["name"] == "Temp")
    assert temperature["unit"] == "°C"
    assert 36 < temperature["quantiles"]["50%"] < 38
