from pathlib import Path

import numpy as np
import pytest

from seft.data.archive import unpacked
from seft.data.dataset import Dataset, open_dataset
from seft.data.sources import physionet2019
from seft.error import InputError
from tests.shared import shared_data

COLUMNS = physionet2019.COLUMNS


def row(**given: object) -> str:
    facts = {"Age": 60, "Gender": 1, "HospAdmTime": -3.5, "SepsisLabel": 0} | given
    return "|".join(str(facts.get(name, "NaN")) for name in COLUMNS)


def stay(*rows: str) -> str:
    return "\n".join(["|".join(COLUMNS), *rows]) + "\n"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Ten little stays, the odd ones septic from their second row on, starting at hour 3."""
    (tmp_path / "raw" / "training_setA").mkdir(parents=True)
    for number in range(10):
        rows = [
            row(ICULOS=3, HR=80),
            row(ICULOS=4, HR=90, Temp=37.5, SepsisLabel=number % 2),
            row(ICULOS=6, SepsisLabel=number % 2),
        ]
        (tmp_path / "raw" / "training_setA" / f"p{number:06d}.psv").write_text(stay(*rows))
    return tmp_path / "raw"


def prepared(raw: Path) -> Dataset:
    out = raw.parent / "dataset"
    physionet2019.prepare(raw=raw, out=out, splits="own", overwrite=True)
    return open_dataset(out)


def test_every_row_asks_and_every_number_is_an_observation(raw: Path) -> None:
    dataset = prepared(raw)
    batch = dataset.batch(np.array([1]))
    names = [dataset.schema.variables[m].name for m in batch.modality.tolist()]
    assert list(zip(names, batch.time.tolist(), batch.value.tolist(), strict=True)) == [
        ("HR", 3.0, 80.0),
        ("HR", 4.0, 90.0),
        ("Temp", 4.0, 37.5),
    ]
    assert batch.query_time.tolist() == [3.0, 4.0, 6.0]
    assert batch.query_visible.tolist() == [1, 3, 3]
    assert batch.label.tolist() == [[0.0], [1.0], [1.0]]
    assert dict(zip(dataset.schema.static_columns, batch.static[0].tolist(), strict=True)) == {
        "Age": 60,
        "Gender=0": 0,
        "Gender=1": 1,
        "HospAdmTime": -3.5,
    }
    assert dataset.task is not None
    assert dataset.task.utility


def test_a_stay_is_septic_if_any_of_its_hours_is(raw: Path) -> None:
    dataset = prepared(raw)
    assert dataset.classes(np.arange(10)).tolist() == [0, 1] * 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (stay(row(ICULOS=3, HR="fast")), "p000004.psv, line 2: HR is 'fast', not a number"),
        (stay(row(ICULOS=3), row(ICULOS=4) + "|1"), "p000004.psv, line 3: has 42 fields where 41 are"),
        (stay(row()), "p000004.psv, line 2: ICULOS is 'NaN', not an hour of a stay"),
        (stay(row(ICULOS=1), "", row(ICULOS=2)), "p000004.psv, line 3: has 1 fields where 41 are"),
        (stay(row(ICULOS=1e12)), "p000004.psv, line 2: ICULOS is '1000000000000.0', not an hour"),
        (stay(row(ICULOS=1, SepsisLabel=-1), row(ICULOS=2)), "line 2: SepsisLabel is '-1', not 0 or 1"),
        (stay(row(ICULOS=1, Age="inf")), "series p000004: the static Age is infinite"),
        (stay(row(ICULOS=1, HR="inf")), "series p000004, variable HR, 1 h: the value inf is infinite"),
        (stay(row(ICULOS=1, SepsisLabel=1), row(ICULOS=2)), "p000004.psv: a SepsisLabel of 1 is followed"),
        (stay(), "p000004.psv: does not end with a SepsisLabel"),
        ("", "p000004.psv: does not end with a SepsisLabel"),
        (stay(row(ICULOS=1)).replace("HR", "Pulse"), "p000004.psv: begins with b'Pulse|"),
    ],
)
def test_a_bad_row_is_named_with_its_file_and_line(raw: Path, text: str, message: str) -> None:
    (raw / "training_setA" / "p000004.psv").write_text(text)
    with pytest.raises(InputError, match=message.replace("|", r"\|")):
        prepared(raw)
    assert not list(raw.parent.glob("*dataset*")), "nothing is left half-made"


def test_a_last_line_without_its_line_feed_is_read(raw: Path) -> None:
    before = prepared(raw).splits
    for file in (raw / "training_setA").iterdir():
        file.write_text(file.read_text().rstrip("\n"))
    assert prepared(raw).splits == before


# --- the real files --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recordings() -> object:
    with unpacked(shared_data("physionet2019.tar.xz")) as folder:
        yield folder / "physionet2019"


@pytest.fixture(scope="module")
def dataset(recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    out = tmp_path_factory.mktemp("physionet2019") / "dataset"
    physionet2019.prepare(raw=recordings, out=out)
    return open_dataset(out)


def test_the_papers_stays_queries_and_positives(dataset: Dataset) -> None:
    splits = {
        name: (split["series"], split["queries"], split["positive"]) for name, split in dataset.splits.items()
    }
    assert splits == {
        "train": (25_813, 992_732, 17_891),
        "val": (6_454, 247_283, 4_475),
        "test": (8_066, 312_078, 5_550),
    }
    assert dataset.schema.modalities == 34
    septic = [int(dataset.classes(dataset.split(name)).sum()) for name in ("train", "val", "test")]
    assert septic == [1877, 469, 586]


def test_the_papers_split_is_drawn_to_the_last_stay(dataset: Dataset) -> None:
    for name in ("train", "val", "test"):
        listed = shared_data(f"splits/physionet2019/{name}.csv").read_text().split()[1:]
        assert set(dataset.ids(dataset.split(name))) == {file.removesuffix(".psv") for file in listed}


def test_a_plain_line_by_line_reading_finds_the_same(dataset: Dataset, recordings: Path) -> None:
    rows = dataset.split("val")[::211]
    batch = dataset.batch(rows)
    batch.check(dataset.schema.modalities)
    for b, name in enumerate(dataset.ids(rows)):
        (file,) = recordings.glob(f"*/{name}.psv")
        header, *lines = file.read_text().splitlines()
        records = [dict(zip(header.split("|"), line.split("|"), strict=True)) for line in lines]
        expected = [
            (float(record["ICULOS"]), modality, np.float32(record[variable.name]))
            for record in records
            for modality, variable in enumerate(dataset.schema.variables)
            if record[variable.name] != "NaN"
        ]
        own = slice(batch.offsets[b], batch.offsets[b + 1])
        columns = (batch.time[own].tolist(), batch.modality[own].tolist(), batch.value[own].tolist())
        assert list(zip(*columns, strict=True)) == expected
        asked = slice(batch.query_offsets[b], batch.query_offsets[b + 1])
        assert batch.label[asked, 0].tolist() == [float(record["SepsisLabel"]) for record in records]
        seen = [sum(time <= float(record["ICULOS"]) for time, _, _ in expected) for record in records]
        assert batch.query_visible[asked].tolist() == seen
