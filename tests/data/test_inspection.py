import io
import json
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import polars as pl
import pytest
from rich.console import Console

from seft.cli import main
from seft.data.assembly import assemble
from seft.data.dataset import Dataset
from seft.data.folder import Writer
from seft.data.inspection import plot, render, sparkline, summary
from seft.data.schema import Schema, Variable
from seft.data.task import Task
from seft.error import InputError
from tests.data.example import BINARY, recordings, write


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write(tmp_path_factory.mktemp("inspection") / "d")


def test_the_summary_counts_what_polars_counts(dataset: Dataset) -> None:
    facts = summary(dataset)
    observations = pl.read_ipc(str(dataset.path / "observations" / "*.arrow"))
    series = pl.read_ipc(str(dataset.path / "series" / "*.arrow"))
    queries = pl.read_ipc(str(dataset.path / "queries" / "*.arrow")).join(
        series.select("series", "split"), on="series"
    )
    for name, split in facts["splits"].items():
        inside = series.filter(pl.col("split") == name)
        asked = queries.filter(pl.col("split") == name)
        assert split == {
            "series": len(inside),
            "observations": inside["observations"].sum(),
            "queries": len(asked),
            "positive": asked.filter(pl.col("label") == 1).height,
        }
    for modality, record in enumerate(facts["modalities"]):
        own = observations.filter(pl.col("modality") == modality)
        assert record["count"] == len(own)
        assert record["series"] == own["series"].n_unique()
        assert record["mean"] == pytest.approx(own["value"].mean(), abs=1e-6)
        assert record["quantiles"]["50%"] == pytest.approx(own["value"].median(), abs=1e-6)
    age = next(record for record in facts["statics"] if record["name"] == "Age")
    assert age["quantiles"]["50%"] == pytest.approx(series["static_Age"].median())
    arrivals = observations.group_by("series").agg(pl.col("arrival").max() / 3.6e9)["arrival"]
    assert facts["last_hour"]["100%"] == pytest.approx(arrivals.max(), rel=1e-6)


def test_the_summary_is_plain_json(dataset: Dataset) -> None:
    facts = summary(dataset)
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["modalities"][0]["unit"] == "1/min"


@pytest.mark.parametrize(
    "task",
    [
        Task(kind="multiclass", classes=("a", "b", "c"), metric="balanced_accuracy"),
        Task(kind="multilabel", classes=("x", "y"), metric="auprc"),
    ],
)
def test_classes_are_counted_by_name(tmp_path: Path, task: Task) -> None:
    dataset = write(tmp_path / "d", task=task)
    queries = pl.read_ipc(str(dataset.path / "queries" / "*.arrow"))
    counted = {
        name: sum(split["positive"][name] for split in summary(dataset)["splits"].values())
        for name in task.classes
    }
    if task.kind == "multiclass":
        assert counted == {c: queries.filter(pl.col("label") == k).height for k, c in enumerate(task.classes)}
    else:
        assert counted == {c: queries.filter(pl.col(f"label_{c}") == 1).height for c in task.classes}


def test_people_see_every_split_variable_and_note(dataset: Dataset) -> None:
    facts = summary(dataset)
    console = Console(width=140, file=io.StringIO())
    with console.capture() as printed:
        console.print(render(facts))
    text = printed.get()
    for name in (*facts["splits"], "HR", "Drug", "Temp", "Age", "Sex", *facts["notes"]):
        assert name in text


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], ""),
        ([3.0], "█"),
        ([0.0, 1.0], "█" + " " * 10 + "█"),
        (np.repeat(np.arange(12.0), 50).tolist(), "████████████"),
        ([0.0] * 700 + [1.0] * 100, "█" + " " * 10 + "▂"),
    ],
)
def test_a_sparkline_is_a_histogram(values: list[float], expected: str) -> None:
    assert sparkline(np.array(values, np.float32)) == expected


def test_names_are_shown_as_they_are_and_not_as_markup(tmp_path: Path) -> None:
    odd = Schema(variables=(Variable(name="HR [bpm]"), Variable(name="a[/red]"), Variable(name="$x_$")))
    with Writer(tmp_path / "d", source="x", schema=odd, task=BINARY) as writer:
        part = replace(recordings(9), static=np.zeros((9, 0), np.float32))
        writer.add(assemble(part, odd, writer.notes))
        writer.finish({})
    main(["inspect", str(tmp_path / "d"), "--plot", str(tmp_path / "x.png")])
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_a_picture_of_an_unknown_kind_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x.xyz: pictures end in .*\.png"):
        plot(dataset, tmp_path / "x.xyz")


def test_the_plot_is_a_picture_with_ink_on_it(dataset: Dataset, tmp_path: Path) -> None:
    plot(dataset, tmp_path / "series.png")
    picture = matplotlib.image.imread(tmp_path / "series.png")
    assert picture.shape[0] > 300
    assert picture.shape[1] > 600
    assert (picture[..., :3].min(axis=2) < 0.5).mean() > 0.005
