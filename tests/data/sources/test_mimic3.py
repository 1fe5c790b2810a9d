"""MIMIC-III: the demo against a query of its own, the benchmark's rules on hand-made tables."""

import csv
import gzip
import re
import shutil
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from seft.data.dataset import Dataset, open_dataset
from seft.data.folder import TABLES
from seft.data.sources import mimic3
from seft.error import InputError
from tests.shared import SHARED

BENCHMARKS = SHARED / "mimic3-benchmarks"
PACKAGED = Path(mimic3.__file__).parent / "mimic3_benchmarks"
HOUR = 3_600_000_000

needs_shared_data = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"needs the demo of MIMIC-III and the benchmark's lists in {SHARED}"
)


def prepare(raw: Path, out: Path, *, outlier_ranges: bool = False) -> Dataset:
    mimic3.prepare(raw=raw, out=out, outlier_ranges=outlier_ranges)
    return open_dataset(out)


def table(dataset: Dataset, name: str) -> pl.DataFrame:
    files = sorted((dataset.path / name).glob("*.arrow"))
    return pl.concat([pl.read_ipc(file) for file in files])


def values(dataset: Dataset) -> dict[str, list[tuple[float, Any]]]:
    """(hour, approximate value) a variable of a dataset of one stay."""
    names = [variable.name for variable in dataset.schema.variables]
    found: dict[str, list[tuple[float, Any]]] = {}
    for time, value, modality in table(dataset, "observations").select("time", "value", "modality").rows():
        found.setdefault(names[modality], []).append((time / HOUR, pytest.approx(value, rel=1e-6)))
    return found


def ids(dataset: Dataset) -> list[str]:
    return table(dataset, "series")["id"].to_list()


# --- the open demo -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    wanted = {*HEADERS, "OUTPUTEVENTS"}
    with tarfile.open(SHARED / "mimic3-demo-v1.4.tar.xz") as archive:
        for member in archive:
            if Path(member.name).stem in wanted:
                archive.extract(member, folder, filter="data")
    return folder


@dataclass
class Episode:
    """One stay of the task as the query below finds it."""

    subject: int
    number: int
    died: bool
    start: datetime
    rows: dict[datetime, dict[str, float | str]]  # charttime -> variable -> the benchmark's cell

    @property
    def id(self) -> str:
        return f"{self.subject}_{self.number}"


def clean(variable: str, value: str, unit: str, label: str) -> float | str | None:
    """The benchmark's cleaning of one value, in plain Python."""
    unit, label = unit.lower(), label.lower()
    if variable in ("Glucose", "pH", "Oxygen saturation"):
        if not re.match(r"^(\d+(\.\d*)?|\.\d+)$", value):
            return None
        return float(value) * (100 if variable == "Oxygen saturation" and float(value) <= 1 else 1)
    if variable == "Capillary refill rate":
        words = {"Normal <3 secs": 0.0, "Brisk": 0.0, "Abnormal >3 secs": 1.0, "Delayed": 1.0}
        return words.get(value)
    if variable in ("Systolic blood pressure", "Diastolic blood pressure"):
        place = 0 if variable.startswith("Systolic") else 1
        return float(value.split("/")[place] if "/" in value else value)
    if variable == "Fraction inspired oxygen":
        return float(value) / 100 if float(value) > 1 and "torr" not in unit else float(value)
    if variable == "Temperature":
        return (float(value) - 32) * 5 / 9 if float(value) >= 79 else float(value)
    if variable == "Weight":
        ounces = "oz" in unit or "oz" in label
        pounds = ounces or "lb" in unit or "lb" in label
        return float(value) / (16 if ounces else 1) * (0.453592 if pounds else 1)
    if variable == "Height":
        return float(round(float(value) * 2.54)) if "in" in unit or "in" in label else float(value)
    return value


@pytest.fixture(scope="module")
def episodes(demo: Path) -> list[Episode]:
    """The task of Harutyunyan et al. out of the demo's tables, one obvious step at a time."""

    def read(name: str) -> pl.DataFrame:
        return pl.read_csv(demo / f"{name}.csv", infer_schema=False)

    # Their list of items.
    items = pl.read_csv(BENCHMARKS / "itemid_to_variable_map.csv", infer_schema=False)
    items = items.filter(pl.col("STATUS") == "ready", pl.col("COUNT").cast(int) > 0)
    items = items.drop_nulls("LEVEL2").select(itemid="ITEMID", variable="LEVEL2", label="MIMIC LABEL")

    # Their stays.
    stays = read("ICUSTAYS")
    stays = stays.filter(pl.col("first_wardid") == pl.col("last_wardid"))
    stays = stays.filter(pl.col("first_careunit") == pl.col("last_careunit"))
    stays_of_admission = Counter(stays["hadm_id"])
    stays = stays.filter([stays_of_admission[admission] == 1 for admission in stays["hadm_id"]])
    stays = stays.join(read("ADMISSIONS").drop("row_id"), on=["subject_id", "hadm_id"])
    stays = stays.join(read("PATIENTS").drop("row_id"), on="subject_id")
    coded = set(read("D_ICD_DIAGNOSES")["icd9_code"])
    diagnoses = read("DIAGNOSES_ICD")
    diagnosed = {row["hadm_id"] for row in diagnoses.to_dicts() if row["icd9_code"] in coded}
    adults = []
    for stay in stays.to_dicts():
        born, entered = datetime.fromisoformat(stay["dob"]), datetime.fromisoformat(stay["intime"])
        if (entered - born).total_seconds() / 3600 / 24 / 365 >= 18:
            adults.append(stay)

    # Their events.
    tables = [read("CHARTEVENTS"), read("LABEVENTS"), read("OUTPUTEVENTS")]
    events = pl.concat(tables, how="diagonal").join(items, on="itemid")
    assert not set(read("OUTPUTEVENTS")["itemid"]) & set(items["itemid"])
    events = events.filter(pl.col("hadm_id").is_not_null(), pl.col("value").is_not_null())
    stay_of_admission = {stay["hadm_id"]: stay["icustay_id"] for stay in adults}
    events = events.filter(pl.col("hadm_id").is_in(list(stay_of_admission)))
    events = events.with_columns(kept=pl.col("hadm_id").replace(stay_of_admission))
    events = events.filter(pl.col("icustay_id").fill_null(pl.col("kept")) == pl.col("kept"))

    found = []
    for subject in sorted({int(stay["subject_id"]) for stay in adults}):
        own = sorted((s for s in adults if int(s["subject_id"]) == subject), key=lambda s: str(s["intime"]))
        for number, stay in enumerate(own, start=1):
            start, end = datetime.fromisoformat(stay["intime"]), datetime.fromisoformat(stay["outtime"])
            if float(stay["los"]) * 24 < 48 - 1e-6 or stay["hadm_id"] not in diagnosed:
                continue
            rows: dict[datetime, dict[str, Any]] = {}
            for event in events.filter(pl.col("subject_id") == str(subject)).to_dicts():
                time = datetime.fromisoformat(event["charttime"])
                own_event = event["kept"] == stay["icustay_id"] or start <= time <= end
                hours = (time - start).total_seconds() / 3600
                if not own_event or not -1e-6 < hours < 48 + 1e-6:
                    continue
                variable = event["variable"]
                value = clean(variable, event["value"], event["valueuom"] or "", event["label"])
                if value is None:
                    continue
                row = rows.setdefault(time, {})
                row[variable] = max(value, row.get(variable, value))
            if not rows:
                continue
            deaths = [datetime.fromisoformat(day) for day in (stay["dod"], stay["deathtime"]) if day]
            entered, left = (datetime.fromisoformat(stay[time]) for time in ("admittime", "dischtime"))
            died = any(entered <= death <= left for death in deaths)
            found.append(Episode(subject, number, died, start, rows))
    return found


def subjects_in(file: Path) -> set[int]:
    rows = pl.read_csv(file, has_header=False, new_columns=["subject", "chosen"])
    return set(rows.filter(chosen=1)["subject"])


def write_benchmark(folder: Path, episodes: list[Episode]) -> Path:
    """The in-hospital-mortality folder as the benchmark writes it."""
    test = subjects_in(BENCHMARKS / "testset.csv")
    lines = {"train": ["stay,y_true"], "test": ["stay,y_true"]}
    header = ["Hours", *sorted([*(variable.name for variable in mimic3.SCHEMA.variables), "Height"])]
    for part in lines:
        (folder / part).mkdir(parents=True)
    for episode in episodes:
        part = "test" if episode.subject in test else "train"
        name = f"{episode.subject}_episode{episode.number}_timeseries.csv"
        lines[part].insert(1, f"{name},{episode.died:d}")  # their order is not sorted either
        with (folder / part / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, header)
            writer.writeheader()
            for time in sorted(episode.rows):
                hours = (time - episode.start).total_seconds() / 3600
                writer.writerow({"Hours": hours, **episode.rows[time]})
    for part, listed in lines.items():
        (folder / part / "listfile.csv").write_text("\n".join(listed) + "\n")
    return folder


@pytest.fixture(scope="module")
def dataset(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return prepare(demo, tmp_path_factory.mktemp("prepared") / "demo")


@needs_shared_data
def test_the_demo_has_the_stays_labels_and_observations_of_a_plain_query(
    dataset: Dataset, episodes: list[Episode]
) -> None:
    series = table(dataset, "series")
    queries = table(dataset, "queries")
    assert series["id"].to_list() == [episode.id for episode in episodes]
    assert series["group"].to_list() == [str(episode.subject) for episode in episodes]
    assert series["start"].to_list() == [episode.start for episode in episodes]
    assert queries["label"].to_list() == [float(episode.died) for episode in episodes]
    assert queries["time"].unique().to_list() == [48 * HOUR]

    expected = Counter(name for episode in episodes for row in episode.rows.values() for name in row)
    names = [variable.name for variable in dataset.schema.variables]
    found = Counter(names[modality] for modality in table(dataset, "observations")["modality"])
    del expected["Height"]
    assert found == expected


@needs_shared_data
def test_the_demo_has_these_numbers(dataset: Dataset) -> None:
    counts = {
        name: (split["series"], split["positive"], split["observations"])
        for name, split in dataset.splits.items()
    }
    assert counts == {"train": (41, 10, 17978), "val": (5, 2, 1972), "test": (11, 5, 4533)}
    assert dataset.notes == {
        "measurements without a value, dropped": 29,
        "measurements of another stay than the one kept of their admission, dropped": 1,
        "measurements that are neither a number nor a known word, dropped": 31,
        "simultaneous measurements of one variable, dropped but one": 2218,
    }


@needs_shared_data
@pytest.mark.parametrize("outlier_ranges", [False, True])
def test_tables_and_the_benchmarks_folder_give_the_same_dataset(
    outlier_ranges: bool, demo: Path, episodes: list[Episode], tmp_path: Path
) -> None:
    folder = write_benchmark(tmp_path / "benchmark", episodes)
    from_tables = prepare(demo, tmp_path / "from tables", outlier_ranges=outlier_ranges)
    from_folder = prepare(folder, tmp_path / "from folder", outlier_ranges=outlier_ranges)
    assert from_folder.splits == from_tables.splits
    assert from_folder.schema == from_tables.schema
    for name in TABLES:
        ours, theirs = table(from_tables, name), table(from_folder, name)
        if name == "series":
            assert theirs["start"].null_count() == len(theirs), "the folder does not say when a stay began"
            ours, theirs = ours.drop("start"), theirs.drop("start")
        assert_frame_equal(ours, theirs, check_exact=True)


@needs_shared_data
def test_the_splits_are_those_of_the_patient_lists(dataset: Dataset) -> None:
    test, val = (subjects_in(BENCHMARKS / name) for name in ("testset.csv", "valset.csv"))
    for subject, split in table(dataset, "series").select("group", "split").rows():
        number = int(subject)
        assert split == ("test" if number in test else "val" if number in val else "train")


@needs_shared_data
def test_the_shipped_lists_are_those_of_the_benchmark_reduced() -> None:
    items = pl.read_csv(BENCHMARKS / "itemid_to_variable_map.csv", infer_schema=False)
    items = items.filter(pl.col("STATUS") == "ready", pl.col("COUNT").cast(int) > 0).drop_nulls("LEVEL2")
    shipped = pl.read_csv(PACKAGED / "items.csv", infer_schema=False)
    assert set(shipped.select("itemid", "variable", "label").rows()) == set(
        items.select("ITEMID", "LEVEL2", "MIMIC LABEL").rows()
    )
    assert len(shipped) == len(items) == 114

    ranges = {row[0].lower(): row[2:] for row in pl.read_csv(BENCHMARKS / "variable_ranges.csv").rows()}
    for variable, *bounds in pl.read_csv(PACKAGED / "ranges.csv").rows():
        outlier_low, valid_low, _, valid_high, outlier_high = ranges[variable.lower()]
        assert bounds == [outlier_low, valid_low, valid_high, outlier_high]

    patients = pl.read_csv(PACKAGED / "patients.csv")
    for split, file in (("test", "testset.csv"), ("val", "valset.csv")):
        assert set(patients.filter(split=split)["subject"]) == subjects_in(BENCHMARKS / file)


def test_the_papers_32_exclusions_are_all_there() -> None:
    assert len(set(mimic3.EXCLUDED)) == 32
    assert {"73129_2", "41493_1", "10694_2", "48380_1"} <= set(mimic3.EXCLUDED)


# --- hand-made tables --------------------------------------------------------------------------------

INTIME = datetime(2100, 1, 1, 12)
HEADERS = {
    "PATIENTS": "ROW_ID SUBJECT_ID GENDER DOB DOD",
    "ADMISSIONS": "ROW_ID SUBJECT_ID HADM_ID ADMITTIME DISCHTIME DEATHTIME",
    "ICUSTAYS": "ROW_ID SUBJECT_ID HADM_ID ICUSTAY_ID FIRST_CAREUNIT LAST_CAREUNIT FIRST_WARDID "
    "LAST_WARDID INTIME OUTTIME LOS",
    "DIAGNOSES_ICD": "ROW_ID SUBJECT_ID HADM_ID SEQ_NUM ICD9_CODE",
    "D_ICD_DIAGNOSES": "ROW_ID ICD9_CODE SHORT_TITLE",
    "CHARTEVENTS": "ROW_ID SUBJECT_ID HADM_ID ICUSTAY_ID ITEMID CHARTTIME VALUE VALUENUM VALUEUOM ERROR",
    "LABEVENTS": "ROW_ID SUBJECT_ID HADM_ID ITEMID CHARTTIME VALUE VALUENUM VALUEUOM FLAG",
}
PULSE = 211  # the item "Heart Rate"


@dataclass
class Hospital:
    """Tables of MIMIC-III, filled by hand."""

    tables: dict[str, list[dict[str, object]]] = field(default_factory=lambda: {name: [] for name in HEADERS})

    def add(self, table: str, fields: Mapping[str, object]) -> None:
        row = {"ROW_ID": len(self.tables[table]) + 1, **fields}
        assert set(row) <= set(HEADERS[table].split())
        self.tables[table].append(row)

    def admit(
        self,
        subject: int = 3,
        stay: int = 100,
        *,
        intime: datetime = INTIME,
        days: float = 3.0,
        diagnosis: str | None = "0010",
        patient: Mapping[str, object] | None = None,
        admission: Mapping[str, object] | None = None,
        icustay: Mapping[str, object] | None = None,
    ) -> None:
        """A patient (where new), an admission numbered 10 times the stay, and the stay in it."""
        keys: dict[str, object] = {"SUBJECT_ID": subject, "HADM_ID": stay * 10}
        if all(known["SUBJECT_ID"] != subject for known in self.tables["PATIENTS"]):
            fields = {"SUBJECT_ID": subject, "GENDER": "F", "DOB": datetime(2040, 1, 1)}
            self.add("PATIENTS", fields | dict(patient or {}))
        outtime = intime + timedelta(days=days)
        times = {"ADMITTIME": intime - timedelta(hours=1), "DISCHTIME": outtime + timedelta(days=1)}
        self.add("ADMISSIONS", keys | times | dict(admission or {}))
        wards = {"FIRST_CAREUNIT": "MICU", "LAST_CAREUNIT": "MICU", "FIRST_WARDID": 7, "LAST_WARDID": 7}
        times = {"INTIME": intime, "OUTTIME": outtime}
        los = {"LOS": round(days, 4)}
        self.add("ICUSTAYS", keys | {"ICUSTAY_ID": stay} | wards | times | los | dict(icustay or {}))
        if diagnosis is not None:
            self.add("DIAGNOSES_ICD", keys | {"SEQ_NUM": 1, "ICD9_CODE": diagnosis})

    def chart(
        self,
        value: object = 80,
        item: int = PULSE,
        *,
        subject: int = 3,
        stay: int = 100,
        hours: float = 1.0,
        intime: datetime = INTIME,
        **changes: object,
    ) -> None:
        """One row of LABEVENTS where the item is a lab's (50000 to 52000), else of CHARTEVENTS."""
        row: dict[str, object] = {"SUBJECT_ID": subject, "HADM_ID": stay * 10, "ICUSTAY_ID": stay}
        row |= {"ITEMID": item, "CHARTTIME": intime + timedelta(hours=hours), "VALUE": value} | changes
        if 50_000 <= item < 52_000:
            del row["ICUSTAY_ID"]
            self.add("LABEVENTS", row)
        else:
            self.add("CHARTEVENTS", row)

    def write(self, folder: Path, *, published: bool = True) -> Path:
        """As the full database is published (upper case, quoted, .csv.gz), or as the demo is."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tables["D_ICD_DIAGNOSES"] = [{"ROW_ID": 1, "ICD9_CODE": "0010", "SHORT_TITLE": "Cholera"}]
        for name, rows in self.tables.items():
            names = HEADERS[name].split()
            fields = [names] if published else [[column.lower() for column in names]]
            fields += [[_text(row.get(column)) for column in names] for row in rows]
            quote = '"' if published else ""
            lines = [",".join(f"{quote}{text}{quote}" if text else "" for text in line) for line in fields]
            data = ("\n".join(lines) + "\n").encode()
            if published:
                (folder / f"{name}.csv.gz").write_bytes(gzip.compress(data))
            else:
                (folder / f"{name}.csv").write_bytes(data)
        return folder


def _text(value: object) -> str:
    return "" if value is None else str(value)


@pytest.fixture
def hospital() -> Hospital:
    """One patient with one stay of three days and nothing charted yet."""
    hospital = Hospital()
    hospital.admit()
    return hospital


def test_upper_case_quoted_gz_tables_read_like_lower_case_plain_ones(
    hospital: Hospital, tmp_path: Path
) -> None:
    hospital.chart(80)
    hospital.chart(120, 50931, hours=2)
    hospital.chart("3 To speech", 184)
    published = prepare(hospital.write(tmp_path / "full"), tmp_path / "a")
    plain = prepare(hospital.write(tmp_path / "demo", published=False), tmp_path / "b")
    for name in TABLES:
        assert_frame_equal(table(published, name), table(plain, name), check_exact=True)
    assert values(published) == {
        "Heart Rate": [(1, 80)],
        "Glucose": [(2, 120)],
        "Glascow coma scale eye opening": [(1, 3)],
    }


def test_a_csv_is_read_before_its_gz(hospital: Hospital, tmp_path: Path) -> None:
    hospital.chart()
    raw = hospital.write(tmp_path / "raw")
    hospital.write(raw, published=False)
    (raw / "CHARTEVENTS.csv.gz").write_bytes(b"half a download")
    assert values(prepare(raw, tmp_path / "out")) == {"Heart Rate": [(1, 80)]}


CLEANED = [
    # variable, item, VALUE, VALUEUOM, what becomes of it
    ("Capillary refill rate", 3348, "Brisk", None, 0),
    ("Capillary refill rate", 3348, "Normal <3 secs", None, 0),
    ("Capillary refill rate", 115, "Delayed", None, 1),
    ("Capillary refill rate", 8377, "Abnormal >3 secs", None, 1),
    ("Capillary refill rate", 3348, "Other/Remarks", None, None),
    ("Systolic blood pressure", 455, "120/70", "mmHg", 120),
    ("Systolic blood pressure", 455, "118", "mmHg", 118),
    ("Systolic blood pressure", 455, "120/?", "mmHg", None),
    ("Diastolic blood pressure", 8441, "120/70", "mmHg", 70),
    ("Diastolic blood pressure", 8441, "65.5", "mmHg", 65.5),
    ("Fraction inspired oxygen", 223835, "40", None, 0.4),
    ("Fraction inspired oxygen", 223835, "0.4", None, 0.4),
    ("Fraction inspired oxygen", 189, ".4", "torr", 0.4),
    ("Fraction inspired oxygen", 189, "40", "Torr", 40),
    ("Glucose", 50931, "117", "mg/dL", 117),
    ("Glucose", 50931, "117.", "mg/dL", 117),
    ("Glucose", 50931, "GREATER THAN 500", "mg/dL", None),
    ("Glucose", 807, "-5", None, None),
    ("pH", 50820, "7.31", "units", 7.31),
    ("pH", 50820, ".", "units", None),
    ("Oxygen saturation", 646, "97", "%", 97),
    ("Oxygen saturation", 50817, "0.97", "%", 97),
    ("Oxygen saturation", 646, "ERROR", "%", None),
    ("Temperature", 678, "98.6", "Deg. F", 37),
    ("Temperature", 676, "98.6", "Deg. C", 37),
    ("Temperature", 676, "79", "Deg. C", 47 * 5 / 9),
    ("Temperature", 676, "37.2", "Deg. C", 37.2),
    ("Temperature", 678, "78", "Deg. F", 78),  # "F" in lower-cased text never holds: only 79 and more
    ("Weight", 763, "80", "kg", 80),
    ("Weight", 226531, "200", None, 200 * 0.453592),  # "Admission Weight (lbs.)"
    ("Weight", 763, "200", "lb", 200 * 0.453592),
    ("Weight", 3582, "160", None, 10 * 0.453592),  # "Present Weight  (oz)"
    ("Heart Rate", 211, "80", "BPM", 80),
    ("Heart Rate", 211, "fast", "BPM", None),
    ("Heart Rate", 211, "inf", "BPM", None),
    ("Heart Rate", 211, "nan", "BPM", None),
    ("Mean blood pressure", 52, " 80 ", "mmHg", 80),
    ("Respiratory rate", 618, "-8", "BPM", -8),
    ("Glascow coma scale total", 198, "15", "points", 15),
]


@pytest.mark.parametrize(("variable", "item", "text", "unit", "expected"), CLEANED)
def test_a_value_is_cleaned_as_the_benchmark_does(
    variable: str,
    item: int,
    text: str,
    unit: str | None,
    expected: float | None,
    hospital: Hospital,
    tmp_path: Path,
) -> None:
    hospital.chart(50, PULSE, hours=40)
    hospital.chart(text, item, VALUEUOM=unit)
    dataset = prepare(hospital.write(tmp_path / "raw"), tmp_path / "out")
    found = [(time, value) for time, value in values(dataset).get(variable, []) if time < 40]
    assert found == ([] if expected is None else [(1, expected)])
    unusable = "measurements that are neither a number nor a known word, dropped"
    assert dataset.notes.get(unusable, 0) == (expected is None)


SCALES = {
    "Glascow coma scale eye opening": (184, ["None", "To Pain", "To Speech", "Spontaneously"], 1),
    "Glascow coma scale motor response": (
        *(454, ["1 No Response", "2 Abnorm extensn", "Abnormal Flexion", "4 Flex-withdraws"], 1),
    ),
    "Glascow coma scale verbal response": (
        *(723, ["No Response-ETT", "No Response", "2 Incomp sounds", "3 Inapprop words", "Confused"], 0),
    ),
}


@pytest.mark.parametrize("variable", SCALES)
def test_words_of_the_coma_scales_become_points_and_numbers_stay(
    variable: str, hospital: Hospital, tmp_path: Path
) -> None:
    item, words, lowest = SCALES[variable]
    for hour, word in enumerate(words):
        hospital.chart(word, item, hours=hour)
    hospital.chart("4.0", item, hours=10)
    hospital.chart("Winks", item, hours=11)
    dataset = prepare(hospital.write(tmp_path / "raw"), tmp_path / "out")
    points = [(hour, lowest + hour) for hour in range(len(words))]
    assert values(dataset) == {variable: [*points, (10, 4)]}
    assert dataset.notes == {"measurements that are neither a number nor a known word, dropped": 1}


def test_a_tube_is_no_point_of_speech_as_the_seft_authors_read_it(hospital: Hospital, tmp_path: Path) -> None:
    hospital.chart("1.0 ET/Trach", 723)
    dataset = prepare(hospital.write(tmp_path / "raw"), tmp_path / "out")
    assert values(dataset) == {"Glascow coma scale verbal response": [(1, 0)]}


def test_of_simultaneous_values_the_largest_stays_by_number_where_cleaned_and_by_text_where_not(
    hospital: Hospital, tmp_path: Path
) -> None:
    for value in ("98", "102"):
        hospital.chart(value, 807)
        hospital.chart(value, PULSE)
    hospital.chart("300", 50931)  # another item of another table, the same variable: Glucose
    hospital.chart("4 Spontaneously", 184)
    hospital.chart("None", 220739)
    dataset = prepare(hospital.write(tmp_path / "raw"), tmp_path / "out")
    assert values(dataset) == {
        "Glucose": [(1, 300)],
        "Heart Rate": [(1, 98)],
        "Glascow coma scale eye opening": [(1, 1)],
    }
    assert dataset.notes == {"simultaneous measurements of one variable, dropped but one": 4}


# --- which stays -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, True),
        ({"icustay": {"LAST_WARDID": 8}}, False),
        ({"icustay": {"LAST_CAREUNIT": "SICU"}}, False),
        ({"patient": {"DOB": INTIME - timedelta(days=18 * 365)}}, True),
        ({"patient": {"DOB": INTIME - timedelta(days=18 * 365, seconds=-1)}}, False),
        ({"patient": {"DOB": INTIME - timedelta(days=300 * 365)}}, True),  # how MIMIC writes 90 and older
        ({"days": 2.0}, True),
        ({"days": 2 - 9 / 86_400}, False),
        ({"icustay": {"LOS": None}}, False),
        ({"diagnosis": None}, False),
        ({"diagnosis": "V999"}, False),  # a code without a title: the benchmark joins it away
        ({"admission": {"HADM_ID": 77}}, False),
    ],
)
def test_a_stay_is_of_the_task_or_not(changes: dict[str, Any], kept: bool, tmp_path: Path) -> None:
    hospital = Hospital()
    hospital.admit(5, 500)
    hospital.chart(subject=5, stay=500)
    hospital.admit(**changes)
    hospital.chart()
    dataset = prepare(hospital.write(tmp_path / "raw"), tmp_path / "out")
    assert ids(dataset) == (["3_1", "5_1"] if kept else ["5_1"])


def test_an_admission_with_two_stays_without_transfer_is_left_out(hospital: Hospital, tmp_path: Path) -> None:
    hospital.admit(stay=101, intime=INTIME + timedelta(days=4), icustay={"HADM_ID": 1000})
    hospital.admit(5, 500)
    for subject, stay in ((3, 100), (3, 101), (5, 500)):
        hospital.chart(subject=subject, stay=stay)
    assert ids(prepare(hospital.write(tmp_path / "raw"), tmp_path / "out")) == ["5_1"]


def test_a_stay_with_nothing_charted_in_its_window_is_left_out_and_counted(tmp_path: Path) -> None:
    hospital = Hospital()
    hospital.admit(3, 100)
    hospital.admit(5, 500)
    hospital.chart(subject=3, stay=100, hours=49)
    hospital.chart(subject=5, stay=500)
    dataset = prepare(hospital.write(tmp_path / "raw"), tmp_path / "out")
    assert ids(dataset) == ["5_1"]
    assert dataset.notes == {"stays without a measurement in their first 48 hours, left out": 1}


def test_episodes_count_the_kept_stays_of_a_subject_by_time_short_ones_too(tmp_path: Path) -> None:
    hospital = Hospital()
    later = [INTIME + timedelta(days=10 * number) for number in range(4)]
    hospital.admit(stay=103, intime=later[3])
    hospital.admit(stay=100, intime=later[0])
    hospital.admit(stay=101, intime=later[1], icustay={"LAST_WARDID": 8})  # transferred: no number
    hospital.admit(stay=102, intime=later[2], days=1)  # too short for the task: number 2
    for number, intime in enumerate(later):
        hospital.chart(stay=100 + number, intime=intime)
    assert ids(prepare(hospital.write(tmp_path / "raw"), tmp_path / "out")) == ["3_1", "3_3"]


@pytest.mark.parametrize(
    ("patient", "admission", "died"),
    [
        ({}, {}, False),
        ({"DOD": INTIME + timedelta(days=2)}, {}, True),
        ({"DOD": INTIME + timedelta(days=30)}, {}, False),
        # The day of death is a midnight, which can lie before the admission on that day.
        ({"DOD": datetime(2100, 1, 1)}, {"DEATHTIME": INTIME + timedelta(days=3)}, True),
        ({}, {"DEATHTIME": INTIME + timedelta(days=30)}, False),
    ],
)
def test_the_label_is_death_within_the_admission(
    patient: dict[str, object], admission: dict[str, object], died: bool, tmp_path: Path
) -> None:
    hospital = Hospital()
    hospital.admit(patient=patient, admission=admission)
    hospital.chart()
    dataset = prepare(hospital.write(tmp_path / "raw"), tmp_path / "out")
    assert table(dataset, "queries").select("time", "label").rows() == [(48 * HOUR, float(died))]


def test_the_papers_exclusions_are_left_out_of_tables_and_folder(tmp_path: Path) -> None:
    hospital = Hospital()
    for subject, stay in ((41493, 100), (3, 300)):
        hospital.admit(subject, stay)
        hospital.chart(subject=subject, stay=stay)
    folder = benchmark_folder(tmp_path / "folder", {"41493_episode1": "0", "3_episode1": "0"})
    for raw in (hospital.write(tmp_path / "raw"), folder):
        dataset = prepare(raw, tmp_path / f"out of {raw.name}")
        assert ids(dataset) == ["3_1"]
        assert dataset.notes == {"stays of more than 1000 time points, left out as in the paper": 1}


def test_every_stay_of_a_patient_goes_to_the_patients_split(tmp_path: Path) -> None:
    lists = pl.read_csv(PACKAGED / "patients.csv")
    test, val = (int(lists.filter(split=split)["subject"][0]) for split in ("test", "val"))
    hospital = Hospital()
    for number, subject in enumerate((test, val, 3, test)):
        intime = INTIME + timedelta(days=10 * number)
        hospital.admit(subject, 100 + number, intime=intime)
        hospital.chart(subject=subject, stay=100 + number, intime=intime)
    series = table(prepare(hospital.write(tmp_path / "raw"), tmp_path / "out"), "series")
    assert dict(series.select("id", "split").rows()) == {
        f"{test}_1": "test",
        f"{test}_2": "test",
        f"{val}_1": "val",
        "3_1": "train",
    }


# --- which rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"HADM_ID": None}, "measurements without an admission (HADM_ID), dropped"),
        ({"HADM_ID": 5}, "measurements of an admission without a stay that is kept, dropped"),
        ({"ICUSTAY_ID": 5}, "measurements of another stay than the one kept of their admission, dropped"),
        ({"value": None}, "measurements without a value, dropped"),
        ({"CHARTTIME": None}, "measurements without a time, dropped"),
        ({"hours": -1}, None),
        ({"hours": 48 + 1 / 3600}, None),
        ({"item": 1}, None),
        ({"subject": 4}, None),
    ],
)
def test_a_row_that_is_not_the_stays_is_dropped_and_counted_in_its_window(
    changes: dict[str, Any], note: str | None, hospital: Hospital, tmp_path: Path
) -> None:
    hospital.chart(80)
    hospital.chart(**({"value": 81, "hours": 2} | changes))
    dataset = prepare(hospital.write(tmp_path / "raw"), tmp_path / "out")
    assert values(dataset) == {"Heart Rate": [(1, 80)]}
    assert dataset.notes == ({} if note is None else {note: 1})


@pytest.mark.parametrize("changes", [{"ICUSTAY_ID": None}, {"hours": 0}, {"hours": 48}])
def test_a_row_without_stay_or_on_the_windows_edge_belongs_to_it(
    changes: dict[str, Any], hospital: Hospital, tmp_path: Path
) -> None:
    hospital.chart(**changes)
    found = values(prepare(hospital.write(tmp_path / "raw"), tmp_path / "out"))
    assert found == {"Heart Rate": [(changes.get("hours", 1), 80)]}


def test_what_another_kept_stay_of_the_subject_recorded_within_this_one_belongs_to_it_too(
    hospital: Hospital, tmp_path: Path
) -> None:
    hospital.admit(stay=101, intime=INTIME + timedelta(days=30), days=1)
    hospital.chart(stay=101)
    assert values(prepare(hospital.write(tmp_path / "raw"), tmp_path / "out")) == {"Heart Rate": [(1, 80)]}


def test_a_stay_that_ends_seconds_early_has_only_its_own_rows_after_its_end(tmp_path: Path) -> None:
    hospital = Hospital()
    hospital.admit(days=2 - 4 / 86_400)  # rounded to four digits, 2.0 days: of the task
    hospital.admit(stay=101, intime=INTIME + timedelta(days=30), days=1)
    hospital.chart(80, hours=48)
    hospital.chart(99, stay=101, hours=48)
    assert values(prepare(hospital.write(tmp_path / "raw"), tmp_path / "out")) == {"Heart Rate": [(48, 80)]}


@pytest.mark.parametrize(
    ("charted", "height"),
    [
        ([("170", 226730, "cm")], 170),
        ([("67", 226707, "Inch")], 170),  # 170.18, which the benchmark rounds
        ([("67", 1394, None)], 170),  # "Height Inches"
        ([("170", 226730, "cm"), ("180", 226730, "cm")], 175),
        ([("-1", 226730, "cm"), ("180", 226730, "cm")], 180),
        ([("-1", 226730, "cm")], None),
        ([], None),
    ],
)
def test_height_is_the_mean_of_what_was_measured(
    charted: list[tuple[str, int, str | None]], height: float | None, hospital: Hospital, tmp_path: Path
) -> None:
    hospital.chart()
    for hour, (text, item, unit) in enumerate(charted):
        hospital.chart(text, item, hours=hour, VALUEUOM=unit)
    dataset = prepare(hospital.write(tmp_path / "raw"), tmp_path / "out")
    found = table(dataset, "series")["static_Height"].fill_nan(None).to_list()
    assert found == [height]
    assert values(dataset) == {"Heart Rate": [(1, 80)]}


def test_the_outlier_ranges_clip_and_drop_only_where_asked(hospital: Hospital, tmp_path: Path) -> None:
    charted = [("9", 0.0), ("20", 33.0), ("90", 90.0), ("2100", 2000.0), ("2300", None)]
    for hour, (text, _) in enumerate(charted):
        hospital.chart(text, 807, hours=hour)
    hospital.chart("360", PULSE)
    hospital.chart("300", 226730)
    hospital.chart("No Response-ETT", 723)  # 0, below the range of the scale, but a code and no outlier
    raw = hospital.write(tmp_path / "raw")

    untouched = prepare(raw, tmp_path / "untouched")
    assert values(untouched)["Glucose"] == [(hour, float(text)) for hour, (text, _) in enumerate(charted)]
    assert table(untouched, "series")["static_Height"].to_list() == [300]
    assert untouched.notes == {}

    ranged = prepare(raw, tmp_path / "ranged", outlier_ranges=True)
    assert values(ranged) == {
        "Glucose": [(0, 33), (1, 33), (2, 90), (3, 2000)],
        "Heart Rate": [(1, 350)],
        "Glascow coma scale verbal response": [(1, 0)],
    }
    assert table(ranged, "series")["static_Height"].is_nan().to_list() == [True]
    assert ranged.notes == {
        "outliers, dropped": 2,
        "implausible values, set to the bound of their valid range": 4,
    }


# --- the benchmark's folder --------------------------------------------------------------------------


def benchmark_folder(
    folder: Path,
    train: Mapping[str, str],
    test: Mapping[str, str] | None = None,
    rows: Iterable[Mapping[str, object]] = ({"Hours": 1.5, "Heart Rate": 80},),
) -> Path:
    """Stays with their labels, all with the same rows."""
    header = ["Hours", *sorted([*(variable.name for variable in mimic3.SCHEMA.variables), "Height"])]
    for part, stays in (("train", train), ("test", test or {})):
        (folder / part).mkdir(parents=True)
        listed = [f"{stay}_timeseries.csv,{label}" for stay, label in stays.items()]
        (folder / part / "listfile.csv").write_text("\n".join(["stay,y_true", *listed]) + "\n")
        for stay in stays:
            with (folder / part / f"{stay}_timeseries.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, header)
                writer.writeheader()
                writer.writerows(rows)
    return folder


def test_a_row_that_stands_twice_in_an_episode_counts_once(tmp_path: Path) -> None:
    first: dict[str, object] = {"Hours": 0.0, "Height": 160}
    second: dict[str, object] = {"Hours": 1 / 3, "Height": 170, "pH": "7.4"}
    folder = benchmark_folder(tmp_path / "folder", {"3_episode1": "1"}, rows=[first, second, second])
    dataset = prepare(folder, tmp_path / "out")
    assert table(dataset, "observations")["time"].to_list() == [HOUR // 3]
    assert table(dataset, "series")["static_Height"].to_list() == [165]
    assert table(dataset, "queries")["label"].to_list() == [1]
    assert dataset.notes == {}


def test_what_an_episode_holds_beyond_48_hours_is_dropped_and_counted(tmp_path: Path) -> None:
    rows = [{"Hours": hours, "pH": 7.4} for hours in (-0.1, 0, 48, 48.1)]
    folder = benchmark_folder(tmp_path / "folder", {"3_episode1": "0"}, rows=rows)
    dataset = prepare(folder, tmp_path / "out")
    assert values(dataset) == {"pH": [(0, 7.4), (48, 7.4)]}
    assert dataset.notes == {"rows outside the first 48 hours, dropped": 2}


def test_lists_of_train_and_val_divide_where_both_are_there(tmp_path: Path) -> None:
    stays = {"3_episode1": "0", "3_episode2": "0"}
    folder = benchmark_folder(tmp_path / "folder", stays, {"7_episode1": "1"})
    (folder / "train_listfile.csv").write_text("stay,y_true\n3_episode2_timeseries.csv,0\n")
    splits = table(prepare(folder, tmp_path / "one"), "series").select("id", "split").rows()
    assert splits == [("3_1", "train"), ("3_2", "train"), ("7_1", "test")]
    (folder / "val_listfile.csv").write_text("stay,y_true\n3_episode1_timeseries.csv,0\n")
    splits = table(prepare(folder, tmp_path / "two"), "series").select("id", "split").rows()
    assert splits == [("3_1", "val"), ("3_2", "train"), ("7_1", "test")]


def test_shards_end_between_stays_on_both_ways(
    hospital: Hospital, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mimic3, "SHARD_ROWS", 2)
    for stay in range(101, 104):
        hospital.admit(stay=stay, intime=INTIME + timedelta(days=10 * (stay - 100)))
    rows = [{"Hours": hours, "Heart Rate": 80} for hours in (1.0, 2.0)]
    for stay in range(100, 104):
        for row in rows:
            intime = INTIME + timedelta(days=10 * (stay - 100))
            hospital.chart(stay=stay, intime=intime, hours=float(row["Hours"]))
    stays = {f"3_episode{number}": "0" for number in range(1, 5)}
    folder = benchmark_folder(tmp_path / "folder", stays, rows=rows)
    from_tables = prepare(hospital.write(tmp_path / "raw"), tmp_path / "a")
    from_folder = prepare(folder, tmp_path / "b")
    assert from_tables.shards > 1
    assert from_folder.shards == 4
    assert ids(from_tables) == ids(from_folder) == ["3_1", "3_2", "3_3", "3_4"]
    assert_frame_equal(table(from_tables, "observations"), table(from_folder, "observations"))


# --- bad input ---------------------------------------------------------------------------------------


def refused(raw: Path, tmp_path: Path) -> str:
    """The message; nothing may be left of what was begun."""
    with pytest.raises(InputError) as caught:
        prepare(raw, tmp_path / "out" / "dataset")
    assert not (tmp_path / "out").exists()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_folder_of_neither_kind_names_all_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    message = refused(tmp_path / "raw", tmp_path)
    assert str(tmp_path / "raw") in message
    for name in HEADERS:
        assert name in message


def test_a_missing_table_is_named(hospital: Hospital, tmp_path: Path) -> None:
    raw = hospital.write(tmp_path / "raw")
    (raw / "LABEVENTS.csv.gz").unlink()
    assert "lacks LABEVENTS (" in refused(raw, tmp_path)


@pytest.mark.parametrize("name", HEADERS)
def test_a_missing_column_is_named_with_its_file(name: str, hospital: Hospital, tmp_path: Path) -> None:
    raw = hospital.write(tmp_path / "raw", published=False)
    file = raw / f"{name}.csv"
    needed = "ICD9_CODE" if name == "D_ICD_DIAGNOSES" else "SUBJECT_ID"
    file.write_text(file.read_text().replace(needed.lower(), "renamed", 1))
    message = refused(raw, tmp_path)
    assert f"{name}.csv: has no column {needed};" in message


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("CHARTEVENTS", b"211", b"2i1"),  # an id that is no number
        ("CHARTEVENTS", b"2100-01-01 13:00:00", b"01/01/2100 13:00"),
        ("LABEVENTS", b"120", b'"120'),  # a quote that is never closed
        ("ICUSTAYS", b",3.0", b",three"),
        ("ICUSTAYS", b"2100-01-01", b"01/01/2100"),
        ("PATIENTS", b"2040-01-01", b"2040-13-01"),
        ("ADMISSIONS", b",1000,", b",1e3,"),
    ],
)
def test_a_table_that_cannot_be_read_is_named(
    name: str, old: bytes, new: bytes, hospital: Hospital, tmp_path: Path
) -> None:
    hospital.chart()
    hospital.chart(120, 50931)
    raw = hospital.write(tmp_path / "raw", published=False)
    file = raw / f"{name}.csv"
    assert old in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(old, new, 1))
    assert f"{file}: cannot be read as this table" in refused(raw, tmp_path)


def test_a_truncated_or_empty_table_is_named(hospital: Hospital, tmp_path: Path) -> None:
    for hour in range(48):
        hospital.chart(60 + hour, hours=hour)
    raw = hospital.write(tmp_path / "raw")
    file = raw / "CHARTEVENTS.csv.gz"
    file.write_bytes(file.read_bytes()[:-40])
    assert f"{file}: cannot be read as this table" in refused(raw, tmp_path)
    file.unlink()
    (raw / "CHARTEVENTS.csv").touch()
    assert "CHARTEVENTS.csv: cannot be read as this table" in refused(raw, tmp_path)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("3_episode1_timeseries.csv,2", "listfile.csv, line 3"),
        ("3_episode1_timeseries.csv,", "listfile.csv, line 3"),
        ("3.csv,1", "listfile.csv, line 3"),
        ("5_episode1_timeseries.csv,1", "5_episode1_timeseries.csv: cannot be read"),
        ("3_episode1_timeseries.csv,0", "3_episode1_timeseries.csv twice"),
    ],
)
def test_a_wrong_line_in_a_list_is_named(line: str, told: str, tmp_path: Path) -> None:
    folder = benchmark_folder(tmp_path / "folder", {"3_episode1": "0"})
    with (folder / "train" / "listfile.csv").open("a") as file:
        file.write(line + "\n")
    assert told in refused(folder, tmp_path)


def test_a_benchmark_folder_without_its_test_half_names_it(tmp_path: Path) -> None:
    folder = benchmark_folder(tmp_path / "folder", {"3_episode1": "0"})
    shutil.rmtree(folder / "test")
    assert "test/listfile.csv: cannot be read" in refused(folder, tmp_path)


def test_an_episode_with_a_wrong_hour_or_column_is_named(tmp_path: Path) -> None:
    rows = [{"Hours": "soon", "pH": 7.4}]
    folder = benchmark_folder(tmp_path / "folder", {"3_episode1": "0"}, rows=rows)
    file = folder / "train" / "3_episode1_timeseries.csv"
    assert f"{file}: cannot be read as this table" in refused(folder, tmp_path)
    file.write_text(file.read_text().replace("Weight", "Mass"))
    assert f"{file}: has no column Weight" in refused(folder, tmp_path)
