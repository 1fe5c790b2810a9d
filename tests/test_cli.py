import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from seft.cli import main
from tests.data.example import write


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it."""
    return subprocess.run(
        [Path(sys.executable).parent / "seft", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )


def test_help_answers_at_once_and_names_every_command() -> None:
    begin = time.perf_counter()
    answer = run("--help")
    taken = time.perf_counter() - begin
    assert answer.returncode == 0
    assert "not a medical device" in answer.stdout
    assert {"prepare", "inspect"} <= set(answer.stdout.split())
    assert taken < 1.0  # 0.1 s where nothing else runs


def test_every_source_is_listed_and_has_help() -> None:
    listed = run("prepare", "--help").stdout
    for source in ("physionet2012", "physionet2019", "mimic3", "meds", "table", "synthetic"):
        assert source in listed
    assert "--keep-sentinels" in run("prepare", "physionet2012", "--help").stdout


def test_the_help_of_a_model_shows_what_a_search_draws_from() -> None:
    shown = run("train", "seft", "--help").stdout
    assert "--phi-width            16, 32, 64, 128, 256, 512  (legal: 1 … 8192)" in shown
    assert "--learning-rate        0.0001 … 0.01, log-uniform" in shown
    assert "--attn-dropout FLOAT" in shown


def test_a_dataset_is_made_and_inspected(tmp_path: Path) -> None:
    out = tmp_path / "dataset"
    made = run("prepare", "synthetic", "--out", out, "--series", "100")
    assert (made.returncode, made.stderr) == (0, "")
    facts = json.loads(run("inspect", out, "--json").stdout)
    assert sum(split["series"] for split in facts["splits"].values()) == 100
    assert all("best_auroc" in split for split in facts["splits"].values())
    assert {"name", "unit", "count"} <= facts["modalities"][0].keys()
    shown = run("inspect", out, "--verify", "--plot", tmp_path / "picture.png")
    assert shown.returncode == 0
    assert "HR" in shown.stdout
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def archive_with(path: Path, member: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo(member))
    return path


def test_what_is_wrong_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write(tmp_path / "dataset")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    archive_with(tmp_path / "evil.tar.gz", "../evil.txt")
    whole = archive_with(tmp_path / "cut.tar.gz", "set-a").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    header = json.loads((dataset.path / "dataset.json").read_text())
    write(tmp_path / "newer")
    (tmp_path / "newer" / "dataset.json").write_text(json.dumps(header | {"format": 99}))
    before = sorted(tmp_path.rglob("*"))
    for line, message in (
        ("predikt", "there is no command 'predikt'"),
        ("prepare physionet", "there is no source 'physionet'; did you mean physionet20"),
        ("prepare physionet2012 --raw nowhere --out x", "nowhere"),
        ("prepare physionet2012 --raw empty --out x", "empty: holds none of set-a, set-b, set-c"),
        ("prepare physionet2019 --raw empty --out x", "empty: holds neither training_setA nor training_setB"),
        ("prepare physionet2012 --raw evil.tar.gz --out x", "evil.tar.gz"),
        ("prepare physionet2012 --raw cut.tar.gz --out x", "cut.tar.gz"),
        ("prepare table --raw empty --out x", "empty: holds no observations.csv"),
        ("prepare table --observations nowhere.csv --out x", "nowhere.csv: there is no such file"),
        ("prepare synthetic --out dataset", "dataset exists already"),
        ("prepare synthetic --out empty --overwrite", "is no dataset folder, so it is not overwritten"),
        ("prepare synthetic --out file/x", "file"),
        ("inspect nowhere", "nowhere is no dataset folder"),
        ("inspect newer", "has format 99, made by seft"),
        ("inspect dataset --plot nowhere/x.png", "nowhere/x.png"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(line.split())
        error = capsys.readouterr().err
        assert (stopped.value.code, error.count("\n")) == (2, 1), error
        assert message in error
    assert sorted(tmp_path.rglob("*")) == before, "nothing is left half-written"


def test_without_a_network_a_download_is_one_line(tmp_path: Path) -> None:
    """A proxy that nobody listens at stands for a machine without a network."""
    answer = run(
        "prepare",
        "physionet2012",
        "--out",
        tmp_path / "x",
        SEFT_CACHE=str(tmp_path / "cache"),
        https_proxy="http://127.0.0.1:9",
    )
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1, answer.stderr
    assert "--raw" in answer.stderr
    assert not (tmp_path / "x").exists()


def test_ctrl_c_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "dataset"
    seft = Path(sys.executable).parent / "seft"
    process = subprocess.Popen(
        [seft, "prepare", "synthetic", "--out", out, "--series", "1000000"],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(tmp_path.iterdir()):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error == "seft: interrupted; nothing was left half-made\n"
    assert list(tmp_path.iterdir()) == []
