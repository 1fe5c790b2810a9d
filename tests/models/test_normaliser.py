from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seft.data.dataset import Dataset
from seft.data.schema import Schema, Static, Variable
from seft.models.normaliser import Normaliser
from tests.data.example import SCHEMA, write


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write(tmp_path_factory.mktemp("normaliser") / "d")


@given(cuts=st.lists(st.integers(1, 59), max_size=4, unique=True))
def test_statistics_do_not_depend_on_how_the_data_is_cut(dataset: Dataset, cuts: list[int]) -> None:
    whole = dataset.batch(np.arange(60))
    normaliser = Normaliser(SCHEMA)
    normaliser.adapt(dataset.batch(part) for part in np.split(np.arange(60), sorted(cuts)))
    for modality in range(SCHEMA.modalities):
        values = whole.value[whole.modality == modality].double().numpy()
        spread = values.std(ddof=1)
        assert normaliser.mean[modality].item() == pytest.approx(values.mean(), abs=1e-6)
        # Events never vary here but where they add up.
        assert normaliser.sd[modality].item() == pytest.approx(spread if spread > 1e-6 else 1.0, rel=1e-5)
    age = whole.static[:, 0].double().numpy()
    assert normaliser.static_mean.tolist() == pytest.approx([np.nanmean(age), 0, 0], rel=1e-5)
    assert normaliser.static_sd.tolist() == pytest.approx([np.nanstd(age, ddof=1), 1, 1], rel=1e-5)


def test_large_values_lose_nothing_to_cancellation(dataset: Dataset) -> None:
    batch = dataset.batch(np.arange(60))
    moved = torch.where(batch.modality == 0, batch.value + 100_000, batch.value)
    normaliser = Normaliser(SCHEMA)
    normaliser.adapt([replace(batch, value=moved)])
    expected = moved[batch.modality == 0].double().std()
    assert normaliser.sd[0].item() == pytest.approx(expected.item(), rel=1e-4)


def test_unknown_statics_become_the_mean_and_levels_stay() -> None:
    schema = Schema(
        variables=(Variable(name="x"),), statics=(Static(name="Age"), Static(name="Sex", levels=("f", "m")))
    )
    normaliser = Normaliser(schema)
    normaliser.static_mean.copy_(torch.tensor([60.0, 0, 0]))
    normaliser.static_sd.copy_(torch.tensor([10.0, 1, 1]))
    known = normaliser.static(torch.tensor([[torch.nan, 0.0, 1.0], [80.0, 1.0, 0.0]]))
    assert known.tolist() == [[0.0, 0.0, 1.0], [2.0, 1.0, 0.0]]
