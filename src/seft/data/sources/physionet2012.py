"""PhysioNet/CinC Challenge 2012: in-hospital death, from the first 48 hours of 12,000 stays."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from seft.data.archive import extract, unpacked
from seft.data.assembly import MICROSECONDS_PER_HOUR, Recordings, assemble
from seft.data.download import RemoteFile, cache_folder, download
from seft.data.folder import Writer, refuse_existing
from seft.data.schema import Schema, Static, Variable
from seft.data.sources.pile import Pile, find_folder, in_parallel, piles, stay_files
from seft.data.split import PaperSplit
from seft.data.task import Task
from seft.error import InputError

SCHEMA = Schema(
    variables=(
        Variable(name="ALP", unit="IU/L"),
        Variable(name="ALT", unit="IU/L"),
        Variable(name="AST", unit="IU/L"),
        Variable(name="Albumin", unit="g/dL"),
        Variable(name="BUN", unit="mg/dL"),
        Variable(name="Bilirubin", unit="mg/dL"),
        Variable(name="Cholesterol", unit="mg/dL"),
        Variable(name="Creatinine", unit="mg/dL"),
        Variable(name="DiasABP", unit="mmHg"),
        Variable(name="FiO2", unit="fraction"),
        Variable(name="GCS", unit="points"),
        Variable(name="Glucose", unit="mg/dL"),
        Variable(name="HCO3", unit="mmol/L"),
        Variable(name="HCT", unit="%"),
        Variable(name="HR", unit="1/min"),
        Variable(name="K", unit="mEq/L"),
        Variable(name="Lactate", unit="mmol/L"),
        Variable(name="MAP", unit="mmHg"),
        Variable(name="MechVent", unit="yes/no"),
        Variable(name="Mg", unit="mmol/L"),
        Variable(name="NIDiasABP", unit="mmHg"),
        Variable(name="NIMAP", unit="mmHg"),
        Variable(name="NISysABP", unit="mmHg"),
        Variable(name="Na", unit="mEq/L"),
        Variable(name="PaCO2", unit="mmHg"),
        Variable(name="PaO2", unit="mmHg"),
        Variable(name="Platelets", unit="1/nL"),
        Variable(name="RespRate", unit="1/min"),
        Variable(name="SaO2", unit="%"),
        Variable(name="SysABP", unit="mmHg"),
        Variable(name="Temp", unit="°C"),
        Variable(name="TroponinI", unit="µg/L"),
        Variable(name="TroponinT", unit="µg/L"),
        Variable(name="Urine", unit="mL"),
        Variable(name="WBC", unit="1/nL"),
        Variable(name="Weight", unit="kg"),
        Variable(name="pH"),
    ),
    statics=(
        Static(name="Age", unit="years"),
        Static(name="Gender", levels=("0", "1")),
        Static(name="Height", unit="cm"),
        Static(name="ICUType", levels=("1", "2", "3", "4")),
    ),
)
TASK = Task(kind="binary", classes=("survived", "died in hospital"), metric="auprc")

SETS = ("a", "b", "c")
HEADER = b"Time,Parameter,Value\n"
HORIZON = 48 * MICROSECONDS_PER_HOUR
PAPER_SPLIT = PaperSplit(
    series=12_000,
    seed=145469037,
    sha256="9f51dd4e3e1f36dd2d99b0948e8e25498e4677922082be32e18e2384bc2fbb92",
)

# Stays without any observation, which the paper leaves out after splitting.
EMPTY_STAYS = frozenset(
    [
        "140501",
        "150649",
        "140936",
        "143656",
        "141264",
        "145611",
        "142998",
        "147514",
        "142731",
        "150309",
        "155655",
        "156254",
    ]
)
NOT_MEASURED = -1

# Parameters in the files: the variables, then what describes the stay.
_FACTS = ("RecordID", *(static.name for static in SCHEMA.statics))
_PARAMETER = pl.Enum([*(variable.name for variable in SCHEMA.variables), *_FACTS])

_URL = "https://physionet.org/files/challenge-2012/1.0.0/"
FILES = tuple(
    RemoteFile(url=_URL + name, bytes=size, sha256=digest)
    for name, size, digest in (
        ("set-a.tar.gz", 6632372, "8cb250f179cd0952b4b9ebcf8954b63d70383131670fac1cfee13deaa13ca920"),
        ("set-b.tar.gz", 6652690, "b1637a2a423a8e76f8f087896cfc5fdf28f88519e1f4e874fbda69b2a64dac30"),
        ("set-c.tar.gz", 6600293, "a4a56b95bcee4d50a3874fe298bf2998f2ed0dd98a676579573dc10419329ee1"),
        ("Outcomes-a.txt", 79219, "2613ea60ccda29f87571a7d6b09ad130858a8ccd66325bd073365925026883c2"),
        ("Outcomes-b.txt", 79149, "1305f29734da374a809483229a99f33a9230aa8d4fa74b1a2d6ad788136423d5"),
        ("Outcomes-c.txt", 79191, "0b32dcb7753c0f18f2f5fde498a28618b8879c5e527ce0dae8ad120dd7e205c9"),
    )
)


def prepare(
    *,
    raw: Path | None = None,
    out: Path,
    keep_sentinels: bool = False,
    splits: Literal["paper", "own"] = "paper",
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """PhysioNet 2012: 37 variables, one query at 48 h, in-hospital death.

    Args:
        raw: The folder (or archive) with set-a, set-b, set-c and Outcomes-a.txt and so on; without it
            they are downloaded from PhysioNet.
        out: The dataset folder to make.
        keep_sentinels: Keep -1 as if it were measured, as the paper's code did.
        splits: `paper` needs all 12,000 stays; `own` draws a stratified split of whatever is there.
        seed: The seed of an `own` split.
        overwrite: Replace the dataset that is there.
    """
    refuse_existing(out, overwrite)
    with ExitStack() as stack:
        folder = stack.enter_context(unpacked(raw if raw is not None else downloaded()))
        writer = stack.enter_context(
            Writer(out, source="physionet2012", schema=SCHEMA, task=TASK, overwrite=overwrite)
        )
        died = read_outcomes(folder)
        split_of_stay = PAPER_SPLIT.assign(died, own_seed=seed if splits == "own" else None)
        writer.notes["stays without any observation, left out as in the paper"] = len(
            EMPTY_STAYS & died.keys()
        )
        for recordings, notes in read(record_files(folder, died), died, split_of_stay, keep_sentinels):
            writer.notes.update(notes)
            writer.add(assemble(recordings, SCHEMA, writer.notes))
        writer.finish(
            {
                "title": "PhysioNet/CinC Challenge 2012",
                "url": "https://physionet.org/content/challenge-2012/1.0.0/",
                "licence": "ODC-By 1.0",
                "keep_sentinels": keep_sentinels,
                "splits": splits if splits == "paper" else f"own, seed {seed}",
            }
        )


def downloaded() -> Path:
    """The folder of the recordings, fetched and unpacked into the cache where they are not there yet."""
    cache = cache_folder() / "physionet2012"
    for file in download(FILES, cache):
        if file.name.endswith(".tar.gz") and not (cache / file.name.removesuffix(".tar.gz")).is_dir():
            extract(file, cache)
    return cache


def read_outcomes(folder: Path) -> dict[str, int]:
    """Each stay's outcome, in the order of the files: 1 where the patient died in the hospital."""
    died: dict[str, int] = {}
    for name in SETS:
        if (stays := find_folder(folder, f"set-{name}")) is None:
            continue
        file = stays.parent / f"Outcomes-{name}.txt"
        if not file.is_file():
            raise InputError(f"{file}: is missing; it holds the outcomes of {stays}")
        columns = {"RecordID": pl.String, "In-hospital_death": pl.Int64}
        try:
            table = pl.read_csv(file, columns=list(columns), schema_overrides=columns)
        except pl.exceptions.PolarsError as error:
            raise InputError(f"{file}: cannot be read as outcomes: {str(error).splitlines()[0]}") from None
        for record, label in table.iter_rows():
            if record in died:
                raise InputError(f"{file}: stay {record} has two outcomes")
            if label not in (0, 1):
                raise InputError(f"{file}: stay {record}: In-hospital_death is {label}, not 0 or 1")
            died[record] = label
    if not died:
        raise InputError(f"{folder}: holds none of set-a, set-b, set-c with their Outcomes files")
    return died


def record_files(folder: Path, died: dict[str, int]) -> list[Path]:
    """The files of the stays that the paper keeps; every outcome has its file and the other way round."""
    found = {
        path.stem: path
        for name in SETS
        if (stays := find_folder(folder, f"set-{name}")) is not None
        for path in stay_files(stays, ".txt")
    }
    if missing := died.keys() - found.keys():
        raise InputError(f"{folder}: the outcomes name stay {min(missing)}, which has no file")
    if extra := found.keys() - died.keys():
        raise InputError(f"{found[min(extra)]}: has no outcome")
    return [path for record, path in found.items() if record not in EMPTY_STAYS]


def read(
    files: Sequence[Path], died: dict[str, int], split_of_stay: dict[str, str], keep_sentinels: bool
) -> Iterator[tuple[Recordings, Counter[str]]]:
    """The stays of all files, pile by pile, each with its notes."""
    return in_parallel(
        lambda pile: read_pile(pile, died, split_of_stay, keep_sentinels), piles(files, HEADER)
    )


def read_pile(
    pile: Pile, died: dict[str, int], split_of_stay: dict[str, str], keep_sentinels: bool
) -> tuple[Recordings, Counter[str]]:
    """Some stays as plain columns; every row becomes an observation, a fact, or a count in the notes."""
    stays = [path.stem for path in pile.paths]
    table = _parse(pile)
    notes = Counter({"rows with a blank parameter name, dropped": table["parameter"].null_count()})
    parameter = table["parameter"].to_physical().fill_null(len(_PARAMETER.categories)).to_numpy()
    record = parameter == SCHEMA.modalities
    stay = np.cumsum(record, dtype=np.int32) - np.int32(1)
    value = table["value"].fill_null(np.nan).to_numpy()
    if [f"{number:.15g}" for number in value[record].tolist()] != stays:
        raise _misplaced_record(pile)
    observed = parameter < SCHEMA.modalities
    if not keep_sentinels:
        unmeasured = observed & (value == NOT_MEASURED)
        notes["values of -1 (not measured), dropped"] = int(unmeasured.sum())
        observed &= ~unmeasured
    recordings = Recordings(
        id=np.array(stays),
        group=np.array(stays),
        split=np.array([split_of_stay[name] for name in stays]),
        static=_statics(stay, parameter, value, len(stays), keep_sentinels),
        series=stay[observed],
        time=table["minutes"].to_numpy()[observed] * np.int64(MICROSECONDS_PER_HOUR // 60),
        modality=parameter[observed].astype(np.int32),
        value=value[observed],
        query_series=np.arange(len(stays), dtype=np.int32),
        query_time=np.full(len(stays), HORIZON),
        label=np.array([[died[name]] for name in stays], dtype=np.float32),
    )
    return recordings, notes


def _parse(pile: Pile) -> pl.DataFrame:
    """Columns minutes, parameter (null where blank), value (null where blank)."""
    time = pl.col("time")
    hour, minute = time.str.head(2).cast(pl.Int64), time.str.slice(3).cast(pl.Int64)
    is_time = (time.str.len_bytes() == len("HH:MM")) & pl.col("minute").is_between(0, 59)
    minutes = pl.when(is_time).then(pl.col("hour") * 60 + pl.col("minute"))
    try:
        table = pl.read_csv(
            pile.text,
            has_header=False,
            schema={"time": pl.String(), "parameter": _PARAMETER, "value": pl.Float32()},
        )
        table = table.with_columns(hour.alias("hour"), minute.alias("minute"))
        table = table.select(minutes.alias("minutes"), "parameter", "value")
    except pl.exceptions.PolarsError:
        raise _unreadable_row(pile) from None
    if table["minutes"].null_count():
        raise _unreadable_row(pile)
    return table


def _unreadable_row(pile: Pile) -> InputError:
    """What the parser stumbled over, found again line by line."""
    known = set(_PARAMETER.categories)
    for path, number, line in pile.lines():
        fields = line.split(",")
        where = f"{path}, line {number}"
        if len(fields) != 3:
            return InputError(
                f"{where}: {line!r} has {len(fields)} fields; Time,Parameter,Value are expected"
            )
        time, parameter, value = fields
        if not (len(time) == 5 and time[2] == ":" and (time[:2] + time[3:]).isdigit() and time[3:] < "60"):
            return InputError(f"{where}: the time {time!r} is not HH:MM")
        if parameter and parameter not in known:
            return InputError(f"{where}: the parameter {parameter!r} is none of the challenge's")
        try:
            float(value or "nan")
        except ValueError:
            return InputError(f"{where}: the value {value!r} of {parameter} is not a number")
    return InputError(f"{pile.paths[0]} to {pile.paths[-1]}: cannot be read as Time,Parameter,Value")


def _misplaced_record(pile: Pile) -> InputError:
    """The first file that does not begin with its own record number, and only there."""
    records: dict[Path, list[tuple[int, str]]] = {path: [] for path in pile.paths}
    for path, number, line in pile.lines():
        if line.split(",")[1] == "RecordID":
            records[path].append((number, line.split(",")[2]))
    for path, found in records.items():
        if found != [(2, path.stem)]:
            return InputError(f"{path}: its second line, and no other, must give RecordID {path.stem}")
    return InputError(f"{pile.paths[0]} to {pile.paths[-1]}: the RecordID rows do not give the files' names")


def _statics(
    stay: NDArray[np.int32],
    parameter: NDArray[np.integer],
    value: NDArray[np.float32],
    stays: int,
    keep_sentinels: bool,
) -> NDArray[np.float32]:
    """(B, S) what stands at admission; a gender or unit type outside its levels leaves them all 0."""
    columns: list[NDArray[np.float32]] = []
    for number, static in enumerate(SCHEMA.statics, start=SCHEMA.modalities + 1):
        fact = np.full(stays, np.nan, np.float32)
        rows = np.flatnonzero(parameter == number)[::-1]
        fact[stay[rows]] = value[rows]  # reversed, so that the first of several stays
        if not keep_sentinels:
            fact[fact == NOT_MEASURED] = np.nan
        levels: Sequence[str] = static.levels
        columns += [(fact == float(level)).astype(np.float32) for level in levels] or [fact]
    return np.stack(columns, axis=1)
