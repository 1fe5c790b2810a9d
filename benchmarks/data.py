"""The data floor: reading, preparing, opening, drawing. `make bench` prints this and keeps it in results.md.

Each speed is a ratio of two things timed in turn in one run; the machine's mood divides out.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from benchmarks.measure import SHARED, interleaved, machine, peak_memory, ratio
from seft.data.archive import unpacked
from seft.data.dataset import Dataset, open_dataset
from seft.data.folder import Folder
from seft.data.loader import Held, shuffled
from seft.data.sources import physionet2012, physionet2019

RESULTS = Path(__file__).parent / "results.md"
MIB = 2**20


def main() -> None:
    lines = [
        "# The data floor",
        "",
        machine(),
        "",
        "| what | figure | target | beside |",
        "|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as place, recordings() as folders:
        work = Path(place)
        lines += reading_2012(folders["physionet2012"])
        lines += reading_2019(folders["physionet2019"])
        lines += memory_2019(folders["physionet2019"], work)
        physionet2012.prepare(raw=folders["physionet2012"], out=work / "p12")
        lines += opening(work / "p12", work / "p19")
        lines += drawing(open_dataset(work / "p12"))
    text = "\n".join(lines) + "\n"
    print(text)
    RESULTS.write_text(text, encoding="utf-8")


@contextmanager
def recordings() -> Iterator[dict[str, Path]]:
    """The real files, unpacked; these figures have no meaning without them."""
    archives = [SHARED / "physionet2012.tar.xz", SHARED / "physionet2019.tar.xz"]
    if missing := [path.name for path in archives if not path.exists()]:
        sys.exit(f"needs the real recordings: {', '.join(missing)} in ../shared/data")
    with unpacked(archives[0]) as first, unpacked(archives[1]) as second:
        yield {"physionet2012": first / "physionet2012", "physionet2019": second / "physionet2019"}


def row(what: str, figure: str, target: str, beside: str) -> str:
    return f"| {what} | {figure} | {target} | {beside} |"


# --- reading ---------------------------------------------------------------------------------------


def reading_2012(raw: Path) -> list[str]:
    """Ours against the parse that everybody writes first: file by file, line by line."""
    died = physionet2012.read_outcomes(raw)
    files = physionet2012.record_files(raw, died)
    splits = dict.fromkeys(died, "train")

    def ours() -> int:
        return sum(len(part.value) for part, _ in physionet2012.read(files, died, splits, False))

    def line_by_line() -> int:
        number = {variable.name: k for k, variable in enumerate(physionet2012.SCHEMA.variables)}
        stays, times, modalities, values = [], [], [], []
        for stay, file in enumerate(files):
            with file.open() as lines:
                next(lines)
                for line in lines:
                    time_text, parameter, value_text = line.rstrip("\n").split(",")
                    if parameter in number and float(value_text) != -1:
                        hour, minute = time_text.split(":")
                        stays.append(stay)
                        times.append(60 * int(hour) + int(minute))
                        modalities.append(number[parameter])
                        values.append(float(value_text))
        columns = np.array(stays), np.array(times), np.array(modalities), np.array(values, np.float32)
        return len(columns[0])

    assert ours() == line_by_line(), "both read the same observations"
    seconds = interleaved({"ours": ours, "lines": line_by_line}, rounds=5)
    times, spread = ratio(seconds["lines"], seconds["ours"])
    return [
        row(
            f"reading the {len(files):,} files of PhysioNet 2012 into columns",
            f"{times:.1f} times faster ({spread})",
            "≥ 8",
            f"line by line {seconds['lines'].median:.2f} s, ours {seconds['ours'].median:.2f} s",
        )
    ]


def reading_2019(raw: Path) -> list[str]:
    """Ours against no more than getting the bytes into memory."""
    files = physionet2019.stay_paths(raw)
    septic = {path.stem: physionet2019.septic_at_the_end(path) for path in files}
    splits = dict.fromkeys(septic, "train")

    def ours() -> int:
        return sum(len(part.value) for part in physionet2019.read(files, splits, septic))

    def bytes_alone() -> int:
        return sum(len(path.read_bytes()) for path in files)

    seconds = interleaved({"ours": ours, "bytes": bytes_alone}, rounds=5)
    times, spread = ratio(seconds["ours"], seconds["bytes"])
    return [
        row(
            f"reading the {len(files):,} files of PhysioNet 2019 into columns",
            f"{times:.1f} times the bare reading ({spread})",
            "≤ 3",
            f"bytes alone {seconds['bytes'].median:.2f} s, ours {seconds['ours'].median:.2f} s",
        )
    ]


# --- memory ----------------------------------------------------------------------------------------


def memory_2019(raw: Path, work: Path) -> list[str]:
    """The peak of `seft prepare physionet2019`, and of twice the stays."""

    def prepare(folder: Path, out: Path) -> float:
        seft = str(Path(sys.executable).parent / "seft")
        options = ["--raw", str(folder), "--out", str(out), "--splits", "own"]
        return peak_memory([seft, "prepare", "physionet2019", *options])

    twice = work / "twice"
    for name in ("training_setA", "training_setB"):
        (twice / name).mkdir(parents=True)
        for file in (raw / name).iterdir():
            shutil.copy(file, twice / name / file.name)
            os.link(twice / name / file.name, twice / name / f"again-{file.name}")
    once_peak, twice_peak = prepare(raw, work / "p19"), prepare(twice, work / "p19-twice")
    folder = Folder(work / "p19")
    size = sum(path.stat().st_size for path in (work / "p19").rglob("*.arrow"))
    shard = size / folder.shards
    return [
        row(
            "peak memory of preparing PhysioNet 2019",
            f"{once_peak / MIB:,.0f} MiB, {once_peak / size:.2f} times its shards",
            "≤ 2,048 MiB and ≤ 4 times",
            f"{folder.shards} shards of {shard / MIB:,.0f} MiB, {size / MIB:,.0f} MiB together",
        ),
        row(
            "the same with twice the stays",
            f"{(twice_peak - once_peak) / MIB:+,.0f} MiB",
            f"≤ one shard ({shard / MIB:,.0f} MiB)",
            f"{twice_peak / MIB:,.0f} MiB",
        ),
    ]


# --- opening and drawing ---------------------------------------------------------------------------


def opening(*folders: Path) -> list[str]:
    seconds = interleaved({str(path): lambda path=path: Folder(path) for path in folders}, rounds=20)  # type: ignore[misc]
    figures = ", ".join(f"{1000 * taken.median:.1f} ms" for taken in seconds.values())
    sizes = (sum(path.stat().st_size for path in folder.rglob("*.arrow")) for folder in folders)
    return [
        row("opening a dataset", figures, "milliseconds", ", ".join(f"{s / MIB:,.0f} MiB" for s in sizes))
    ]


def drawing(dataset: Dataset) -> list[str]:
    """Shuffled batches of 512 on one core, from mapped shards and from memory, beside plain takes."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    rows = dataset.split("train")
    held = Held(dataset, rows, "cpu")
    plan = shuffled(rows, 512, seed=0, epoch=0)
    observations = int(dataset.observations(rows).sum())
    columns, places = _columns_and_places(dataset, plan)

    def mapped() -> None:
        for part in plan:
            dataset.batch(part)

    def in_memory() -> None:
        for part in plan:
            held.batch(part)

    def plain_takes() -> None:
        for place in places:
            for column in columns:
                np.take(column, place)

    seconds = interleaved({"mapped": mapped, "held": in_memory, "take": plain_takes}, rounds=9)
    taken = {name: observations / value.median / 1e6 for name, value in seconds.items()}
    return [
        row(
            f"drawing shuffled batches of 512, {what}, one core",
            f"{taken[name]:.0f} million observations a second (± {seconds[name].spread:.0%})",
            "≥ 20",
            f"numpy.take of the same rows of the same five columns: {taken['take']:.0f} million",
        )
        for name, what in (("mapped", "from mapped shards"), ("held", "from a dataset held in memory"))
    ]


def _columns_and_places(
    dataset: Dataset, plan: list[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The five columns of a batch as whole arrays, and the places of each batch's rows in them."""
    names = ("time", "arrival", "value", "modality", "moment")
    shards = range(dataset.shards)
    columns = [np.concatenate([dataset.column("observations", k, name) for k in shards]) for name in names]
    count = dataset.observations(np.arange(len(dataset)))
    begin = np.cumsum(count) - count
    places = [
        np.concatenate([np.arange(begin[row], begin[row] + count[row]) for row in part.tolist()])
        for part in plan
    ]
    return columns, places


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"{time.perf_counter() - started:.0f} s")
