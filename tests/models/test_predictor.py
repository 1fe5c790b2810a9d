from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given

from seft.data import ragged
from seft.data.batch import Batch, segment_of_row
from seft.data.dataset import Dataset
from seft.data.schema import Schema, Static, Variable
from seft.error import InputError
from seft.models.predictor import Calibration, Match, Predictor
from seft.models.seft import Seft, SeftConfig
from tests.data.example import BINARY, SCHEMA, write
from tests.data.random_batch import random_batch


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write(tmp_path_factory.mktemp("predictor") / "d")


def predictor(dataset: Dataset) -> Predictor:
    torch.manual_seed(0)
    model = Seft(SeftConfig(), dataset.schema, BINARY)
    torch.nn.init.normal_(model.query)
    model.adapt([dataset.batch(np.arange(60))])
    return Predictor(
        name="seft", model=model.eval(), calibration=Calibration(slope=(0.7,), bias=(-1.3,)), threshold=0.25
    )


def test_a_saved_predictor_is_the_same_to_the_bit(dataset: Dataset, tmp_path: Path) -> None:
    made = predictor(dataset)
    made.save(tmp_path / "p")
    loaded = Predictor.load(tmp_path / "p")
    batch = dataset.batch(np.arange(60))
    assert torch.equal(loaded.model(batch), made.model(batch))
    assert (loaded.calibration, loaded.threshold) == (made.calibration, 0.25)
    assert (loaded.schema, loaded.task, loaded.model.config) == (made.schema, made.task, made.model.config)
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["model.safetensors", "predictor.json"]


def test_the_same_schema_changes_nothing(dataset: Dataset) -> None:
    batch = dataset.batch(np.arange(60))
    match = Match.of(SCHEMA, dataset.schema)
    matched = match(batch)
    assert (match.ignored, match.missing) == ((), ())
    for name in Batch.__slots__:
        torch.testing.assert_close(getattr(matched, name), getattr(batch, name), equal_nan=True)


def test_variables_and_statics_are_matched_by_name_whatever_their_order(dataset: Dataset) -> None:
    batch = dataset.batch(np.arange(60))
    other = Schema(
        variables=(SCHEMA.variables[2], SCHEMA.variables[0], SCHEMA.variables[1]),
        statics=(SCHEMA.statics[1], SCHEMA.statics[0]),
    )
    numbers = torch.tensor([1, 2, 0], dtype=torch.int32)
    turned = replace(
        batch, modality=numbers[batch.modality.long()], static=batch.static[:, torch.tensor([1, 2, 0])]
    )
    back = Match.of(SCHEMA, other)(turned)
    assert torch.equal(back.modality, batch.modality)
    torch.testing.assert_close(back.static, batch.static, equal_nan=True)


def test_another_unit_is_refused_by_name() -> None:
    other = replace(SCHEMA, variables=(Variable(name="HR", unit="Hz"), *SCHEMA.variables[1:]))
    with pytest.raises(InputError, match="HR is in Hz here and was in 1/min in training; convert it"):
        Match.of(SCHEMA, other)
    with pytest.raises(InputError, match="Age is in no unit here and was in years"):
        Match.of(SCHEMA, replace(SCHEMA, statics=(Static(name="Age"),)))


@given(batch=random_batch())
def test_what_is_unknown_is_left_out_as_if_it_had_never_been(batch: Batch) -> None:
    """Against a plain loop: rows of the unknown variable are gone, queries see the others as before."""
    given = Schema(variables=(Variable(name="a"), Variable(name="x"), Variable(name="b")), statics=())
    known = Schema(variables=(Variable(name="b"), Variable(name="a"), Variable(name="c")), statics=())
    match = Match.of(known, given)
    assert (match.ignored, match.missing) == (("x",), ("c",))
    matched = match(replace(batch, static=batch.static[:, :0]))
    matched.check(3)
    rows, queries = segment_of_row(batch.offsets), segment_of_row(batch.query_offsets)
    for q in range(batch.queries):
        b = int(queries[q])
        seen = [
            (batch.time[r].item(), batch.value[r].item(), {0: 1, 2: 0}[int(batch.modality[r])])
            for r in range(int(batch.offsets[b]), int(batch.offsets[b] + batch.query_visible[q]))
            if int(batch.modality[r]) != 1
        ]
        own = range(int(matched.offsets[b]), int(matched.offsets[b] + matched.query_visible[q]))
        found = [(matched.time[r].item(), matched.value[r].item(), int(matched.modality[r])) for r in own]
        assert found == seen
    assert matched.observations == int((batch.modality != 1).sum())
    assert len(rows) == batch.observations


def test_answers_to_data_with_strangers_in_it_are_those_without_them(dataset: Dataset) -> None:
    made = predictor(dataset)
    batch = dataset.batch(np.arange(60))
    wider = Schema(variables=(*SCHEMA.variables, Variable(name="New")), statics=SCHEMA.statics)
    stranger = replace(batch, modality=torch.where(batch.modality == 2, 3, batch.modality).int())
    without = Match.of(made.schema, wider)(stranger)
    keep = Match.of(made.schema, replace(SCHEMA, variables=(*SCHEMA.variables[:2], Variable(name="New"))))(
        batch
    )
    torch.testing.assert_close(made.model(without), made.model(keep))


def test_a_missing_static_is_unknown(dataset: Dataset) -> None:
    batch = dataset.batch(np.arange(60))
    match = Match.of(SCHEMA, replace(SCHEMA, statics=SCHEMA.statics[1:]))
    matched = match(replace(batch, static=batch.static[:, 1:]))
    assert match.missing == ("Age",)
    assert matched.static[:, 0].isnan().all()
    assert torch.equal(matched.static[:, 1:], batch.static[:, 1:])


def test_calibration_keeps_the_order_of_answers(dataset: Dataset) -> None:
    made = predictor(dataset)
    logits = made.model(ragged.expand_prefixes(dataset.batch(np.arange(60))))[:, 0]
    shown = made.probability(logits[:, None])[:, 0]
    assert torch.equal(logits.argsort(stable=True), shown.argsort(stable=True))
    torch.testing.assert_close(shown, torch.sigmoid(0.7 * logits - 1.3))
