from dataclasses import replace
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from seft.data import ragged
from seft.data.batch import Batch, segment_of_row
from seft.data.dataset import Dataset
from seft.data.schema import Static
from seft.data.sources import physionet2012
from seft.models.seft import Seft, SeftConfig
from seft.training.recipe import Recipe
from tests.data.example import BINARY, SCHEMA, write
from tests.data.random_batch import random_batch

SMALL = SeftConfig(
    n_phi_layers=2,
    phi_width=7,
    latent_width=5,
    n_rho_layers=1,
    rho_width=6,
    n_psi_layers=1,
    psi_width=6,
    psi_latent_width=4,
    n_heads=3,
    dot_prod_dim=4,
    n_positional_dims=4,
)
VARIANTS = [
    {"keys": "arrived"},
    {"keys": "set"},
    {"keys": "arrived", "statics": "rho"},
    {"keys": "arrived", "psi_final_layer": False},
    {"aggregation": "mean"},
    {"aggregation": "sum"},
    {"aggregation": "max"},
    {"aggregation": "max", "statics": "rho"},
]
TWO_STATICS = replace(SCHEMA, statics=(Static(name="Age"), Static(name="Height")))
variants = pytest.mark.parametrize("variant", VARIANTS, ids=str)
few = settings(max_examples=25)


def model(variant: dict[str, Any], dtype: torch.dtype = torch.float32) -> Seft:
    """A small model in the middle of its life: queries that are not zero, statistics that are not 0 and 1."""
    torch.manual_seed(5)
    made = Seft(replace(SMALL, **variant), TWO_STATICS, BINARY)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.6)
    made.normaliser.mean.copy_(torch.tensor([0.3, 0.0, -0.2]))
    made.normaliser.sd.copy_(torch.tensor([1.5, 1.0, 0.7]))
    return made.to(dtype).eval()


def doubled(batch: Batch) -> Batch:
    return replace(
        batch,
        **{
            name: getattr(batch, name).double()
            for name in ("time", "arrival", "value", "static", "query_time", "label")
        },
    )


# --- against the paper, written plainly ------------------------------------------------------------


def plain_answer(m: Seft, static: Tensor, rows: list[tuple[float, float, int, int]]) -> Tensor:
    """Section 3 for one query: the rows that it sees as (time, value, modality, moment)."""
    config = m.config
    known = m.normaliser.static(static[None])[0]
    elements: list[tuple[Tensor, int]] = []
    if config.statics == "element":
        elements.append((m.static_element(known), -1))
    for time, value, modality, moment in rows:
        angles = torch.tensor(time, dtype=static.dtype) / m.time.scale
        z = (value - m.normaliser.mean[modality]) / m.normaliser.sd[modality]
        onehot = torch.eye(m.schema.modalities, dtype=static.dtype)[modality]
        elements.append((torch.cat([angles.sin(), angles.cos(), z[None], onehot]), moment))
    s = [element for element, _ in elements]
    h = [m.phi(element) for element in s]
    extra = known if config.statics == "rho" else known[:0]
    if config.aggregation != "attention":
        width = config.latent_width
        stacked = torch.stack(h) if h else static.new_zeros(0, width)
        if config.aggregation == "sum":
            pooled = stacked.sum(0)
        elif config.aggregation == "mean":
            pooled = stacked.sum(0) / max(len(h), 1)
        else:
            pooled = stacked.amax(0) if len(h) else static.new_zeros(width)
        return read_out(m, [pooled, extra])
    heads = []
    for head in range(config.n_heads):
        logits = []
        for element, moment in elements:
            key = element
            if config.keys == "arrived":
                seen = [other for other, when in elements if when <= moment]
                summary = m.psi_final(torch.stack([m.psi(other) for other in seen]).mean(0))
                key = torch.cat([element, summary])
            logits.append(key @ m.key[:, head] @ m.query[head] / sqrt(config.dot_prod_dim))
        weights = torch.stack(logits).softmax(0) if logits else static.new_zeros(0)
        heads.append(
            sum((w * x for w, x in zip(weights, h, strict=True)), static.new_zeros(config.latent_width))
        )
    return read_out(m, [*heads, extra])


def read_out(m: Seft, parts: list[Tensor]) -> Tensor:
    answer: Tensor = m.rho(torch.cat(parts))
    return answer


@variants
@given(batch=random_batch())
@few
def test_answers_are_those_of_the_papers_formulas(variant: dict[str, Any], batch: Batch) -> None:
    m, batch = model(variant, torch.float64), doubled(batch)
    answers = m(batch)
    for q in range(batch.queries):
        b = int(segment_of_row(batch.query_offsets)[q])
        own = slice(int(batch.offsets[b]), int(batch.offsets[b] + batch.query_visible[q]))
        rows = list(
            zip(
                batch.time[own].tolist(),
                batch.value[own].tolist(),
                batch.modality[own].tolist(),
                batch.moment[own].tolist(),
                strict=True,
            )
        )
        torch.testing.assert_close(answers[q], plain_answer(m, batch.static[b], rows), rtol=1e-9, atol=1e-9)


@given(batch=random_batch())
@few
def test_a_summary_of_the_whole_set_cancels_in_the_softmax(batch: Batch) -> None:
    """Why `keys="set"` leaves f' out: any constant added to a head's logits changes nothing."""
    m = model({"keys": "set"}, torch.float64)
    before = m(doubled(batch))
    plain = m._logits
    shift = torch.randn(m.config.n_heads, dtype=torch.float64) * 10
    m._logits = lambda element, summary: plain(element, summary) + shift  # type: ignore[method-assign]
    torch.testing.assert_close(m(doubled(batch)), before, rtol=1e-9, atol=1e-9)


# --- streaming, causality, order -------------------------------------------------------------------


def piece(batch: Batch, begin: int, end: int) -> Batch:
    """The moments begin … end - 1 of every series, counted from 0, and the queries that see just these."""
    rows = (batch.moment >= begin) & (batch.moment < end)
    of_row, of_query = segment_of_row(batch.offsets), segment_of_row(batch.query_offsets)
    before = torch.bincount(of_row[batch.moment < begin], minlength=len(batch))
    upto = torch.bincount(of_row[batch.moment < end], minlength=len(batch))
    size = batch.offsets.diff()
    last = (
        (batch.query_visible <= upto[of_query]) if end < 99 else torch.ones_like(of_query, dtype=torch.bool)
    )
    first = (batch.query_visible > before[of_query]) | (begin == 0)
    asked = last & first
    assert int(upto.sum()) <= int(size.sum())

    def offsets(of: Tensor) -> Tensor:
        counts = torch.bincount(of, minlength=len(batch))
        return torch.cat([counts.new_zeros(1), counts.cumsum(0)])

    return replace(
        batch,
        time=batch.time[rows],
        arrival=batch.arrival[rows],
        value=batch.value[rows],
        modality=batch.modality[rows],
        moment=batch.moment[rows] - begin,
        offsets=offsets(of_row[rows]),
        query_time=batch.query_time[asked],
        query_visible=batch.query_visible[asked] - before[of_query[asked]],
        query_offsets=offsets(of_query[asked]),
        label=batch.label[asked],
    )


@variants
@given(batch=random_batch(), cuts=st.lists(st.integers(1, 4), max_size=3, unique=True))
@few
def test_stepping_equals_answering_at_once(variant: dict[str, Any], batch: Batch, cuts: list[int]) -> None:
    m = model(variant)
    edges = [0, *sorted(cuts), 99]
    state = m.start(batch.static)
    answers: list[list[Tensor]] = [[] for _ in range(len(batch))]
    for begin, end in pairwise(edges):
        new = piece(batch, begin, end)
        new.check(SCHEMA.modalities)
        state, logits = m.step(state, new)
        for row, b in zip(logits, segment_of_row(new.query_offsets).tolist(), strict=True):
            answers[b].append(row)
    stepped = [row for of_series in answers for row in of_series]
    assert len(stepped) == batch.queries
    if stepped:
        torch.testing.assert_close(torch.stack(stepped), m(batch), rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write(tmp_path_factory.mktemp("seft") / "d")


def on_dataset(dataset: Dataset, variant: dict[str, Any]) -> tuple[Seft, Batch]:
    torch.manual_seed(1)
    m = Seft(replace(SMALL, **variant), dataset.schema, BINARY)
    for parameter in m.parameters():
        nn.init.normal_(parameter, std=0.4)
    batch = dataset.batch(np.arange(60))
    m.adapt([batch])
    return m.eval(), batch


@variants
def test_the_future_changes_no_bit_of_an_answer(dataset: Dataset, variant: dict[str, Any]) -> None:
    m, batch = on_dataset(dataset, variant)
    before = m(batch)
    generator = torch.Generator().manual_seed(0)
    of_query = segment_of_row(batch.query_offsets)
    for q in range(0, batch.queries, 7):
        b = int(of_query[q])
        seen = torch.arange(batch.observations) < batch.offsets[b] + batch.query_visible[q]
        later = ~seen & (torch.arange(batch.observations) < batch.offsets[b + 1])
        noise = torch.randn(batch.observations, generator=generator)
        for value in (noise, 1e6 * batch.value, torch.full_like(noise, 1e30)):
            changed = replace(batch, value=torch.where(later, value, batch.value))
            assert torch.equal(m(changed)[q], before[q])


@variants
def test_cutting_the_future_off_changes_nothing_beyond_rounding(
    dataset: Dataset, variant: dict[str, Any]
) -> None:
    m, batch = on_dataset(dataset, variant)
    torch.testing.assert_close(m(ragged.expand_prefixes(batch)), m(batch), rtol=1e-5, atol=1e-5)


@variants
def test_order_within_a_moment_and_within_a_batch_does_not_matter(
    dataset: Dataset, variant: dict[str, Any]
) -> None:
    m, batch = on_dataset(dataset, variant)
    order = torch.randperm(batch.observations, generator=torch.Generator().manual_seed(0))
    rows = segment_of_row(batch.offsets)
    order = order[torch.argsort(batch.moment[order], stable=True)]
    order = order[torch.argsort(rows[order], stable=True)]
    shuffled = replace(
        batch,
        **{name: getattr(batch, name)[order] for name in ("time", "arrival", "value", "modality", "moment")},
    )
    torch.testing.assert_close(m(shuffled), m(batch), rtol=1e-5, atol=1e-5)
    turned = torch.arange(len(batch)).flip(0)
    answers = m(ragged.take(batch, turned))
    back = [
        answers[segment_of_row(ragged.take(batch, turned).query_offsets) == len(batch) - 1 - b]
        for b in range(60)
    ]
    torch.testing.assert_close(torch.cat(back), m(batch), rtol=1e-5, atol=1e-5)


@variants
def test_every_parameter_has_a_gradient_within_two_steps(dataset: Dataset, variant: dict[str, Any]) -> None:
    torch.manual_seed(3)
    m = Seft(replace(SMALL, **variant, attn_dropout=0.0, phi_dropout=0.0), dataset.schema, BINARY)
    batch = dataset.batch(np.arange(60))
    m.adapt([batch])
    seen: set[str] = set()
    optimizer = torch.optim.Adam(m.parameters(), lr=0.01)
    for _ in range(20):
        loss, count = m.objective(batch, None)
        optimizer.zero_grad()
        (loss / count).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seen |= {name for name, p in m.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert seen == {name for name, _ in m.named_parameters()}


def test_attention_dropout_removes_elements_in_training_alone(dataset: Dataset) -> None:
    m, batch = on_dataset(
        dataset, {"keys": "arrived", "attn_dropout": 0.5, "phi_dropout": 0.0, "rho_dropout": 0.0}
    )
    assert torch.equal(m(batch), m(batch))
    m.train()
    torch.manual_seed(0)
    one = m(batch)
    torch.manual_seed(1)
    assert not torch.equal(m(batch), one)
    torch.manual_seed(0)
    assert torch.equal(m(batch), one)
    assert one.isfinite().all()


def test_a_state_stays_of_one_size_and_rows_of_it_can_be_put_back(dataset: Dataset) -> None:
    m, batch = on_dataset(dataset, {"keys": "arrived"})
    state = m.start(batch.static)
    grown, _ = m.step(state, batch)
    assert [t.shape for t in vars_of(state)] == [t.shape for t in vars_of(grown)]
    rows = torch.tensor([5, 2])
    one, _ = m.step(state.take(rows), ragged.take(batch, rows))
    put = m.start(batch.static).put(rows, one)
    for mine, theirs in zip(vars_of(put.take(rows)), vars_of(grown.take(rows)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def vars_of(state: Any) -> list[Tensor]:
    return [getattr(state, name) for name in ("level", "value", "summary", "count", "static")]


# --- settings --------------------------------------------------------------------------------------


def test_without_a_preset_the_training_times_give_the_scales(dataset: Dataset) -> None:
    m, batch = on_dataset(dataset, {})
    rows = segment_of_row(batch.offsets)
    gaps = batch.time.diff()[rows[1:] == rows[:-1]]
    assert m.time.scale[0].item() == pytest.approx(gaps[gaps > 0].median().item(), rel=1e-5)
    assert 40 < m.time.scale[-1].item() < 48
    seconds = Seft(SMALL, dataset.schema, BINARY)
    seconds.adapt([replace(batch, time=batch.time / 3600, arrival=batch.arrival / 3600)])
    torch.testing.assert_close(seconds.time.scale, m.time.scale / 3600)


def test_the_papers_model_has_as_many_weights_as_the_released_one() -> None:
    """514,253 there, two of which are its time scales, no weights here; with f', which `set` leaves out."""
    recipe = Recipe.preset("seft-physionet2012")
    config = replace(recipe.config, keys="arrived")
    assert Seft(config, physionet2012.SCHEMA, physionet2012.TASK).parameters_count() == 514_251


def test_at_the_start_attention_is_the_mean(dataset: Dataset) -> None:
    """The paper's zero queries."""
    torch.manual_seed(0)
    m = Seft(replace(SMALL, n_heads=1), dataset.schema, BINARY).eval()
    batch = dataset.batch(np.arange(60))
    mean = Seft(replace(SMALL, aggregation="mean"), dataset.schema, BINARY).eval()
    mean.load_state_dict({name: m.state_dict()[name] for name in mean.state_dict()})
    torch.testing.assert_close(m(batch), mean(batch))
