from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from seft.data import ragged
from seft.data.batch import Batch, segment_of_row
from seft.data.dataset import Dataset
from seft.models.explanation import rows_seen, shapley
from seft.models.seft import Seft, SeftConfig
from tests.data.example import BINARY, SCHEMA, write


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write(tmp_path_factory.mktemp("explanation") / "d")


def seft(dataset: Dataset, keys: str = "arrived") -> Seft:
    torch.manual_seed(0)
    model = Seft(SeftConfig(keys=keys), dataset.schema, BINARY)  # type: ignore[arg-type]
    torch.nn.init.normal_(model.query)
    model.adapt([dataset.batch(np.arange(60))])
    return model.eval()


@pytest.mark.parametrize("keys", ["arrived", "set"])
def test_contributions_add_up_to_the_logit(dataset: Dataset, keys: str) -> None:
    model, batch = seft(dataset, keys), dataset.batch(np.arange(60))
    logits = model(batch)
    for query in range(0, batch.queries, 9):
        made = model.explain(batch, query, orders=2)
        total = made.observation.sum(0) + made.static.sum(0) + made.absence.sum(0) + made.bias
        torch.testing.assert_close(total, logits[query], rtol=1e-4, atol=1e-4)
        assert len(made.observation) == batch.query_visible[query]


def test_with_more_observations_than_stops_they_still_add_up(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seft.models.explanation.MOST_STOPS", 4)
    monkeypatch.setattr("seft.models.explanation.ROWS_AT_ONCE", 20)
    model, batch = seft(dataset), dataset.batch(np.arange(60))
    query = int(batch.query_visible.argmax())
    made = model.explain(batch, query, orders=3)
    total = made.observation.sum(0) + made.static.sum(0) + made.bias
    torch.testing.assert_close(total, model(batch)[query], rtol=1e-4, atol=1e-4)


def interaction(batch: Batch) -> Tensor:
    """A model whose Shapley values are known: sum of values, and a product of two variables' sums."""
    rows = segment_of_row(batch.offsets)
    seen = rows_of_queries(batch)

    def total(modality: int) -> Tensor:
        value = torch.where((batch.modality == modality) & seen, batch.value, 0.0)
        return torch.zeros(len(batch)).index_add_(0, rows, value)

    age = batch.static[:, 0].nan_to_num(0.0)
    per_series = total(0) + total(1) * total(2) + 0.5 * age + 3
    return per_series[segment_of_row(batch.query_offsets)][:, None]


def rows_of_queries(batch: Batch) -> Tensor:
    """Here every series has one query, which sees all of it."""
    return torch.ones(batch.observations, dtype=torch.bool)


def test_credit_is_the_shapley_value(dataset: Dataset) -> None:
    """Against the definition: the mean over all orders of what each one changes as it enters."""
    batch = ragged.expand_prefixes(dataset.batch(np.arange(60)))
    counts = batch.query_visible.tolist()
    query = next(q for q, count in enumerate(counts) if count == 4)
    made = shapley(interaction, SCHEMA, batch, query, orders=4000, seed=0)
    alone = ragged.take(batch, torch.tensor([query]))
    players = [*range(4), "age", "sex"]
    credit = dict.fromkeys(players, 0.0)

    def value(present: set[object]) -> float:
        sums = [0.0, 0.0, 0.0]
        for j in range(4):
            if j in present:
                sums[int(alone.modality[j])] += float(alone.value[j])
        age = float(alone.static[0, 0]) if "age" in present else 0.0
        return sums[0] + sums[1] * sums[2] + 0.5 * age + 3

    orders = list(permutations(players))
    for order in orders:
        for k, player in enumerate(order):
            credit[player] += (value(set(order[: k + 1])) - value(set(order[:k]))) / len(orders)
    expected = [credit[j] for j in range(4)]
    np.testing.assert_allclose(made.observation[:, 0].tolist(), expected, atol=0.05)
    assert made.static[0, 0].item() == pytest.approx(credit["age"], abs=1e-3)
    assert made.static[1:].abs().sum().item() == pytest.approx(0, abs=1e-4)
    assert made.bias.item() == 3


def test_attention_is_a_share_and_the_statics_have_the_rest(dataset: Dataset) -> None:
    model, batch = seft(dataset), dataset.batch(np.arange(60))
    query = int(batch.query_visible.argmax())
    attention = model.attention(batch, query)
    assert attention.shape == (int(batch.query_visible[query]), model.config.n_heads)
    assert (attention > 0).all()
    assert (attention.sum(0) < 1).all()
    # With the values that it weighs, attention gives the answer again.
    values = model.phi(model._elements(batch))[rows_seen(batch, query)]
    state = model.start(batch.static)
    b = int(segment_of_row(batch.query_offsets)[query])
    pooled = attention.T @ values + (1 - attention.sum(0))[:, None] * state.value[b]
    torch.testing.assert_close(model.rho(pooled.flatten()), model(batch)[query], rtol=1e-4, atol=1e-4)
