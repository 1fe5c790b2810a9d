import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from seft.data.assembly import assemble
from seft.data.folder import FORMAT, Folder, Writer
from seft.error import InputError
from tests.data.example import BINARY, SCHEMA, recordings, write
from tests.disk import small_disk


def test_polars_reads_a_dataset_as_it_is(tmp_path: Path) -> None:
    dataset = write(tmp_path / "d")
    observations = pl.read_ipc(str(tmp_path / "d" / "observations" / "*.arrow"))
    series = pl.read_ipc(str(tmp_path / "d" / "series" / "*.arrow"))
    assert len(observations) == dataset.rows("observations").sum()
    counted = observations.group_by("series").len().sort("series")
    nonzero = series.filter(pl.col("observations") > 0)
    assert counted["series"].to_list() == nonzero["series"].to_list()
    assert counted["len"].to_list() == nonzero["observations"].to_list()


def test_duckdb_reads_a_dataset_through_pyarrow(tmp_path: Path) -> None:
    dataset = write(tmp_path / "d")
    queries = pa.Table.from_batches([dataset.table("queries", shard) for shard in range(dataset.shards)])
    relation = duckdb.sql("SELECT count(*) FROM queries WHERE label = 1")
    assert relation is not None
    assert relation.fetchall()[0][0] == sum(split["positive"] for split in dataset.splits.values())
    assert len(queries) == dataset.rows("queries").sum()


def test_columns_are_mapped_and_not_copied(tmp_path: Path) -> None:
    dataset = write(tmp_path / "d")
    value = dataset.column("observations", 0, "value")
    assert not value.flags.owndata
    assert not value.flags.writeable
    file = tmp_path / "d" / "observations" / "00000.arrow"
    assert any(str(file) in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_opening_takes_no_longer_for_more_data(tmp_path: Path) -> None:
    """Opening reads a header and footers; a hundred times the rows must not show."""
    write(tmp_path / "small", shards=2, series=10)
    write(tmp_path / "large", shards=2, series=1_000)

    def seconds(path: Path) -> float:
        begin = time.perf_counter()
        Folder(path)
        return time.perf_counter() - begin

    taken = {name: min(seconds(tmp_path / name) for _ in range(20)) for name in ("small", "large")}
    assert taken["large"] < 0.05
    assert taken["large"] < 5 * taken["small"] + 0.005


def test_the_same_recordings_make_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(files) == 10
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


# --- bad folders -----------------------------------------------------------------------------------


def test_a_folder_without_a_header_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no dataset folder: it has no dataset.json"):
        Folder(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shards", []),
        ("shards", [{}]),
        ("shards", None),
        ("schema", []),
        ("task", {}),
        ("task", {"kind": "binary", "colour": "red"}),
        ("splits", {"train": {}}),
        ("notes", 3),
    ],
)
def test_a_header_with_a_wrong_part_is_named(tmp_path: Path, key: str, value: object) -> None:
    write(tmp_path / "d")
    file = tmp_path / "d" / "dataset.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    with pytest.raises(InputError, match=r"dataset.json: is not readable"):
        Folder(tmp_path / "d")


@pytest.mark.parametrize("text", ["", "{}", "[1]", "{", '{"format": "x"}', '{"format": 1}'])
def test_a_header_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "dataset.json").write_text(text)
    with pytest.raises(InputError, match=r"dataset.json: is not readable"):
        Folder(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "d")
    header = json.loads((tmp_path / "d" / "dataset.json").read_text())
    header |= {"format": FORMAT + 1, "seft": "9.9"}
    (tmp_path / "d" / "dataset.json").write_text(json.dumps(header))
    with pytest.raises(InputError, match=r"has format 2, made by seft 9.9; .* install a newer one"):
        Folder(tmp_path / "d")


@pytest.mark.parametrize("damage", ["missing", "truncated", "footer"])
def test_opening_notices_a_damaged_file(tmp_path: Path, damage: str) -> None:
    write(tmp_path / "d")
    file = tmp_path / "d" / "queries" / "00001.arrow"
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(content[:-100] if damage == "truncated" else content[:-6] + b"XXXXXX")
    with pytest.raises(InputError, match=r"queries/00001.arrow: .* prepare the dataset again"):
        Folder(tmp_path / "d")


def test_a_changed_byte_is_noticed_when_its_shard_is_first_read(tmp_path: Path) -> None:
    write(tmp_path / "d")
    file = tmp_path / "d" / "observations" / "00001.arrow"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    folder = Folder(tmp_path / "d")
    assert len(folder.table("observations", 0))
    with pytest.raises(InputError, match=r"observations/00001.arrow: its checksum differs"):
        folder.table("observations", 1)
    with pytest.raises(InputError, match=r"observations/00001.arrow: its checksum differs"):
        folder.verify()


# --- nothing half-made -----------------------------------------------------------------------------


def test_an_existing_folder_is_not_overwritten_unasked(tmp_path: Path) -> None:
    write(tmp_path / "d")
    before = (tmp_path / "d" / "dataset.json").read_bytes()
    with (
        pytest.raises(InputError, match="exists already; choose another --out or pass --overwrite"),
        Writer(tmp_path / "d", source="x", schema=SCHEMA, task=BINARY),
    ):
        pass
    assert (tmp_path / "d" / "dataset.json").read_bytes() == before


def test_what_is_no_dataset_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    with (
        pytest.raises(InputError, match="is no dataset folder, so it is not overwritten"),
        Writer(tmp_path / "home", source="x", schema=SCHEMA, task=BINARY, overwrite=True),
    ):
        pass
    assert (tmp_path / "home" / "thesis.txt").read_text() == "years of work"


def test_a_dataset_with_somebodys_own_files_in_it_is_not_overwritten(tmp_path: Path) -> None:
    write(tmp_path / "d")
    (tmp_path / "d" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds notes.txt beside the dataset, so it is not overwritten"):
        write(tmp_path / "d")
    assert (tmp_path / "d" / "notes.txt").read_text() == "mine"


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    write(tmp_path / "real", seed=1)
    before = (tmp_path / "real" / "observations" / "00000.arrow").read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link", seed=2)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "observations" / "00000.arrow").read_bytes() != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_folders_made_for_nothing_are_removed(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="no series found"),
        Writer(tmp_path / "a" / "b" / "d", source="x", schema=SCHEMA, task=BINARY) as writer,
    ):
        writer.finish({})
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_nothing_and_keeps_what_was_there(tmp_path: Path) -> None:
    write(tmp_path / "d")
    before = (tmp_path / "d" / "dataset.json").read_bytes()

    def break_off() -> None:
        with Writer(tmp_path / "d", source="x", schema=SCHEMA, task=BINARY, overwrite=True) as writer:
            writer.add(assemble(recordings(5), SCHEMA, writer.notes))
            raise InputError("enough")

    with pytest.raises(InputError, match="enough"):
        break_off()
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
    assert (tmp_path / "d" / "dataset.json").read_bytes() == before


def test_no_series_make_no_dataset(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="no series found"),
        Writer(tmp_path / "d", source="x", schema=SCHEMA, task=BINARY) as writer,
    ):
        writer.finish({})
    assert list(tmp_path.iterdir()) == []


def test_a_killed_run_leaves_nothing_half_made_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from seft.data.folder import Writer\n"
        "from seft.data.assembly import assemble; from tests.data.example import *\n"
        f"with Writer(Path({str(tmp_path / 'd')!r}), source='x', schema=SCHEMA, task=BINARY) as w:\n"
        "    w.add(assemble(recordings(50), SCHEMA, w.notes)); print('half', flush=True); time.sleep(60)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "half\n"
    assert not (tmp_path / "d").exists()
    (leftover,) = tmp_path.iterdir()

    write(tmp_path / "d")  # while the other one lives, its folder is left alone
    assert leftover.exists()
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    write(tmp_path / "d")
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        run = subprocess.run(
            [sys.executable, "-m", "seft.cli", "prepare", "synthetic", "--out", str(disk / "d")],
            capture_output=True,
            text=True,
        )
        assert (run.returncode, run.stderr.count("\n")) == (2, 1), run.stderr
        assert "No space left on device; free some, or choose another place" in run.stderr
        assert list(disk.iterdir()) == []


def test_rows_of_a_column_are_numbers_of_the_whole_dataset(tmp_path: Path) -> None:
    dataset = write(tmp_path / "d", shards=3, series=7)
    series = np.concatenate([dataset.column("series", shard, "series") for shard in range(3)])
    assert series.tolist() == list(range(21))
    assert dataset.column("observations", 2, "series").min() >= 14
