import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seft.data.batch import Batch
from seft.data.dataset import Dataset
from seft.data.task import Task
from seft.error import InputError
from tests.data.example import SCHEMA, write

MULTICLASS = Task(kind="multiclass", classes=("a", "b", "c"), metric="balanced_accuracy")
MULTILABEL = Task(kind="multilabel", classes=("x", "y"), metric="auprc")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write(tmp_path_factory.mktemp("dataset") / "d")


def table(dataset: Dataset, name: str) -> pl.DataFrame:
    return pl.read_ipc(str(dataset.path / name / "*.arrow"))


@settings(deadline=None, max_examples=50)
@given(rows=st.lists(st.integers(0, 59), max_size=12))
def test_a_batch_holds_the_rows_of_the_tables_in_the_order_asked(dataset: Dataset, rows: list[int]) -> None:
    batch = dataset.batch(np.array(rows, dtype=np.int64))
    batch.check(SCHEMA.modalities, dataset.ids(np.array(rows, dtype=np.int64)))
    observations, queries = table(dataset, "observations"), table(dataset, "queries")
    for b, row in enumerate(rows):
        expected = observations.filter(pl.col("series") == row)
        own = slice(batch.offsets[b], batch.offsets[b + 1])
        hours = (expected["time"] / 3.6e9).cast(pl.Float32)
        assert batch.time[own].tolist() == hours.to_list()
        assert batch.arrival[own].tolist() == (expected["arrival"] / 3.6e9).cast(pl.Float32).to_list()
        for name in ("value", "modality", "moment"):
            assert getattr(batch, name)[own].tolist() == expected[name].to_list()
        asked = queries.filter(pl.col("series") == row)
        own = slice(batch.query_offsets[b], batch.query_offsets[b + 1])
        assert batch.query_visible[own].tolist() == asked["visible"].to_list()
        np.testing.assert_array_equal(batch.label[own, 0].numpy(), asked["label"].to_numpy())
    assert batch.series.tolist() == rows


def test_a_batch_has_the_types_of_the_contract(dataset: Dataset) -> None:
    batch = dataset.batch(np.arange(5))
    kinds = {name: getattr(batch, name).dtype for name in Batch.__slots__}
    assert kinds == {
        "series": torch.int64,
        "time": torch.float32,
        "arrival": torch.float32,
        "value": torch.float32,
        "modality": torch.int32,
        "moment": torch.int32,
        "offsets": torch.int64,
        "static": torch.float32,
        "query_time": torch.float32,
        "query_visible": torch.int64,
        "query_offsets": torch.int64,
        "label": torch.float32,
    }


def test_changing_a_batch_changes_nothing_on_disk(dataset: Dataset) -> None:
    batch = dataset.batch(np.arange(20))
    batch.value.zero_()
    batch.static.zero_()
    again = dataset.batch(np.arange(20))
    assert again.value.abs().sum() > 0
    assert again.static.nan_to_num().abs().sum() > 0


@pytest.mark.parametrize("rows", [[-1], [60], [0.5], [True]])
def test_rows_that_are_none_are_refused(dataset: Dataset, rows: list[float]) -> None:
    with pytest.raises(IndexError, match="whole numbers from 0 to 59"):
        dataset.batch(np.array(rows))


def test_splits_are_the_rows_that_say_so(dataset: Dataset) -> None:
    series = table(dataset, "series")
    for name in ("train", "val", "test"):
        assert dataset.split(name).tolist() == series.filter(pl.col("split") == name)["series"].to_list()
    with pytest.raises(InputError, match="has no split 'dev'; it has test, train, val"):
        dataset.split("dev")


def test_a_series_is_positive_if_any_of_its_queries_is(dataset: Dataset) -> None:
    scored = table(dataset, "queries").filter(pl.col("label").is_not_nan())
    highest = dict(scored.group_by("series").agg(pl.col("label").max()).iter_rows())
    assert dataset.classes(np.arange(60)).tolist() == [highest.get(row, -1) for row in range(60)]


def test_a_series_of_many_classes_has_that_of_its_last_scored_query(tmp_path: Path) -> None:
    dataset = write(tmp_path / "d", task=MULTICLASS)
    scored = table(dataset, "queries").filter(pl.col("label").is_not_nan())
    last = dict(
        scored.sort("time").group_by("series", maintain_order=True).agg(pl.col("label").last()).rows()
    )
    assert dataset.classes(np.arange(60)).tolist() == [last.get(row, -1) for row in range(60)]


def test_labels_of_many_classes_become_one_hot_rows(tmp_path: Path) -> None:
    dataset = write(tmp_path / "d", task=MULTICLASS)
    label = dataset.batch(np.arange(60)).label
    stored = table(dataset, "queries")["label"].to_numpy()
    assert label.shape == (len(stored), 3)
    scored = ~np.isnan(stored)
    assert label[scored].argmax(1).tolist() == stored[scored].tolist()
    assert label[scored].sum(1).eq(1).all()
    assert label[~scored].isnan().all()


def test_several_labels_stand_side_by_side(tmp_path: Path) -> None:
    dataset = write(tmp_path / "d", task=MULTILABEL)
    stored = table(dataset, "queries").select("label_x", "label_y").to_numpy()
    np.testing.assert_array_equal(dataset.batch(np.arange(60)).label.numpy(), stored)
    with pytest.raises(InputError, match="no single class"):
        dataset.classes(np.arange(3))


def test_drawing_batches_needs_neither_polars_nor_tyro(dataset: Dataset) -> None:
    script = (
        "import sys; sys.modules['polars'] = None; sys.modules['tyro'] = None\n"
        "import numpy as np\n"
        "from seft.data.dataset import open_dataset\n"
        "from seft.data.loader import Held, shuffled\n"
        f"dataset = open_dataset({str(dataset.path)!r})\n"
        "rows = dataset.split('train')\n"
        "for source in (dataset, Held(dataset, rows, 'cpu')):\n"
        "    for part in shuffled(rows, 8, seed=0, epoch=0):\n"
        "        source.batch(part).check(dataset.schema.modalities)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
