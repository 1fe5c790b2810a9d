"""PhysioNet/CinC Challenge 2019: sepsis within the next hours, asked at every hour of 40,336 stays."""

import os
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
        Variable(name="HR", unit="1/min"),
        Variable(name="O2Sat", unit="%"),
        Variable(name="Temp", unit="°C"),
        Variable(name="SBP", unit="mmHg"),
        Variable(name="MAP", unit="mmHg"),
        Variable(name="DBP", unit="mmHg"),
        Variable(name="Resp", unit="1/min"),
        Variable(name="EtCO2", unit="mmHg"),
        Variable(name="BaseExcess", unit="mmol/L"),
        Variable(name="HCO3", unit="mmol/L"),
        Variable(name="FiO2", unit="fraction"),
        Variable(name="pH"),
        Variable(name="PaCO2", unit="mmHg"),
        Variable(name="SaO2", unit="%"),
        Variable(name="AST", unit="IU/L"),
        Variable(name="BUN", unit="mg/dL"),
        Variable(name="Alkalinephos", unit="IU/L"),
        Variable(name="Calcium", unit="mg/dL"),
        Variable(name="Chloride", unit="mmol/L"),
        Variable(name="Creatinine", unit="mg/dL"),
        Variable(name="Bilirubin_direct", unit="mg/dL"),
        Variable(name="Glucose", unit="mg/dL"),
        Variable(name="Lactate", unit="mg/dL"),
        Variable(name="Magnesium", unit="mmol/dL"),
        Variable(name="Phosphate", unit="mg/dL"),
        Variable(name="Potassium", unit="mmol/L"),
        Variable(name="Bilirubin_total", unit="mg/dL"),
        Variable(name="TroponinI", unit="ng/mL"),
        Variable(name="Hct", unit="%"),
        Variable(name="Hgb", unit="g/dL"),
        Variable(name="PTT", unit="s"),
        Variable(name="WBC", unit="1/nL"),
        Variable(name="Fibrinogen", unit="mg/dL"),
        Variable(name="Platelets", unit="1/nL"),
    ),
    statics=(
        Static(name="Age", unit="years"),
        Static(name="Gender", levels=("0", "1")),
        Static(name="HospAdmTime", unit="h"),
    ),
)
TASK = Task(kind="binary", classes=("no sepsis", "sepsis soon"), metric="balanced_accuracy", utility=True)

# The columns of a file: the variables, facts that repeat in every row, the hour of the stay, the label.
COLUMNS = (
    *(variable.name for variable in SCHEMA.variables),
    *("Age", "Gender", "Unit1", "Unit2", "HospAdmTime", "ICULOS", "SepsisLabel"),
)
HEADER = ("|".join(COLUMNS) + "\n").encode()
SETS = (("training_setA", "training"), ("training_setB",))  # the archives name the first one differently
PAPER_SPLIT = PaperSplit(
    series=40_336,
    seed=16742963,
    sha256="1ad6e89a11a35663224560cce5d5151123e6c407fb4de936f8b64fcebd9acee6",
)

LATEST = 100_000  # hours; a stay of eleven years is a mistake

# Stays without an admission time or without any observation, left out by the paper after splitting.
LEFT_OUT = frozenset(("p013777", "p108796", "p115810"))

_URL = "https://archive.physionet.org/users/shared/challenge-2019/"
FILES = (
    RemoteFile(
        url=_URL + "training_setA.zip",
        bytes=22991842,
        sha256="c0def317798312e4facc0f33ac0202b3a34f412052d9096e8b122b4d3ecb7935",
    ),
    RemoteFile(
        url=_URL + "training_setB.zip",
        bytes=20000482,
        sha256="8a88d69a5f64bc9a87d869f527fcc2741c0712cb9a7cb1f5cdcb725336b4c8cc",
    ),
)


def prepare(
    *,
    raw: Path | None = None,
    out: Path,
    splits: Literal["paper", "own"] = "paper",
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """PhysioNet 2019: 34 variables, a query at every hour, sepsis within the next hours.

    Args:
        raw: The folder (or archive) with training_setA and training_setB; without it they are
            downloaded from PhysioNet.
        out: The dataset folder to make.
        splits: `paper` needs all 40,336 stays; `own` draws a stratified split of whatever is there.
        seed: The seed of an `own` split.
        overwrite: Replace the dataset that is there.
    """
    refuse_existing(out, overwrite)
    with ExitStack() as stack:
        folder = stack.enter_context(unpacked(raw if raw is not None else downloaded()))
        writer = stack.enter_context(
            Writer(out, source="physionet2019", schema=SCHEMA, task=TASK, overwrite=overwrite)
        )
        files = stay_paths(folder)
        septic = {path.stem: septic_at_the_end(path) for path in files}
        split_of_stay = PAPER_SPLIT.assign(septic, own_seed=seed if splits == "own" else None)
        kept = [path for path in files if path.stem not in LEFT_OUT]
        writer.notes["stays without admission time or observations, left out as in the paper"] = len(
            files
        ) - len(kept)
        for recordings in read(kept, split_of_stay, septic):
            writer.add(assemble(recordings, SCHEMA, writer.notes))
        writer.finish(
            {
                "title": "PhysioNet/CinC Challenge 2019",
                "url": "https://physionet.org/content/challenge-2019/1.0.0/",
                "licence": "CC-BY 4.0",
                "splits": splits if splits == "paper" else f"own, seed {seed}",
            }
        )


def downloaded() -> Path:
    """The folder of the recordings, fetched and unpacked into the cache where they are not there yet."""
    cache = cache_folder() / "physionet2019"
    for file, names in zip(download(FILES, cache), SETS, strict=True):
        if not any((cache / name).is_dir() for name in names):
            extract(file, cache)
    return cache


def stay_paths(folder: Path) -> list[Path]:
    """The files of all stays, set A before set B, by name."""
    found = [
        path
        for names in SETS
        for stays in [next(filter(None, (find_folder(folder, name) for name in names)), None)]
        if stays is not None
        for path in stay_files(stays, ".psv")
    ]
    if not found:
        raise InputError(f"{folder}: holds neither training_setA nor training_setB with .psv files")
    return found


def septic_at_the_end(path: Path) -> int:
    """The label of a stay's last hour, by which it is split; read from the end of its file alone."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        end = os.pread(descriptor, 4, max(size - 4, 0)).rstrip()[-2:]
    finally:
        os.close(descriptor)
    if end not in (b"|0", b"|1"):
        raise InputError(f"{path}: does not end with a SepsisLabel of 0 or 1")
    return int(end[1:])


def read(
    files: Sequence[Path], split_of_stay: dict[str, str], septic: dict[str, int]
) -> Iterator[Recordings]:
    """The stays of all files, pile by pile."""
    return in_parallel(lambda pile: read_pile(pile, split_of_stay, septic), piles(files, HEADER))


def read_pile(pile: Pile, split_of_stay: dict[str, str], septic: dict[str, int]) -> Recordings:
    """Some stays as plain columns: each number of a row is an observation at the row's hour."""
    stays = [path.stem for path in pile.paths]
    rows = np.array(pile.line_counts())
    table = _parse(pile, rows)
    stay = np.repeat(np.arange(len(stays), dtype=np.int32), rows)
    first = np.cumsum(rows) - rows
    time = np.rint(table["ICULOS"].to_numpy() * np.float64(MICROSECONDS_PER_HOUR)).astype(np.int64)
    label = table["SepsisLabel"].to_numpy()
    for name, positive in zip(stays, np.maximum.reduceat(label, first).tolist(), strict=True):
        if positive != septic[name]:
            raise InputError(f"{pile.paths[stays.index(name)]}: a SepsisLabel of 1 is followed by a 0")
    # Row after row in memory, so that what is found in it is in order already.
    matrix = table.select(COLUMNS[: SCHEMA.modalities]).to_numpy(order="c").ravel()
    found = np.flatnonzero(~np.isnan(matrix))
    row = found // SCHEMA.modalities
    age, gender, admitted = table.select("Age", "Gender", "HospAdmTime")[first].to_numpy().T
    return Recordings(
        id=np.array(stays),
        group=np.array(stays),
        split=np.array([split_of_stay[name] for name in stays]),
        static=np.column_stack([age, gender == 0, gender == 1, admitted]).astype(np.float32),
        series=stay[row],
        time=time[row],
        modality=(found - row * SCHEMA.modalities).astype(np.int32),
        value=matrix[found],
        query_series=stay,
        query_time=time,
        label=label[:, None],
    )


def _parse(pile: Pile, rows: NDArray[np.int64]) -> pl.DataFrame:
    """The `rows` of each file, as float32; what is not measured is NaN or null."""
    try:
        table = pl.read_csv(
            pile.text,
            has_header=False,
            separator="|",
            quote_char=None,
            schema=dict.fromkeys(COLUMNS, pl.Float32),
        )
    except pl.exceptions.PolarsError:
        raise _unreadable_row(pile) from None
    hour, label = table["ICULOS"].to_numpy(), table["SepsisLabel"].to_numpy()
    sound = (hour >= 0) & (hour <= LATEST) & ((label == 0) | (label == 1))  # NaN and null are neither
    if len(table) != rows.sum() or rows.min() == 0 or not sound.all():
        raise _unreadable_row(pile)
    return table


def _unreadable_row(pile: Pile) -> InputError:
    """What the parser stumbled over, found again line by line."""
    for path in pile.paths:
        if path.read_bytes().count(b"\n") < 2:
            return InputError(f"{path}: has no row below its header")
    for path, line_number, line in pile.lines():
        fields = line.split("|")
        where = f"{path}, line {line_number}"
        if len(fields) != len(COLUMNS):
            return InputError(f"{where}: has {len(fields)} fields where {len(COLUMNS)} are expected")
        for name, field in zip(COLUMNS, fields, strict=True):
            try:
                number = float(field or "nan")
            except ValueError:
                return InputError(f"{where}: {name} is {field!r}, not a number")
            if name == "ICULOS" and not 0 <= number <= LATEST:
                return InputError(f"{where}: ICULOS is {field!r}, not an hour of a stay")
            if name == "SepsisLabel" and number not in (0, 1):
                return InputError(f"{where}: SepsisLabel is {field!r}, not 0 or 1")
    return InputError(f"{pile.paths[0]} to {pile.paths[-1]}: cannot be read as rows of the challenge")
