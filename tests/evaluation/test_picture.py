import json
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch

from seft.cli import main
from seft.data.dataset import Dataset
from seft.error import InputError
from seft.evaluation.picture import Explained, by_variable, draw, explain, important_rows
from seft.models.predictor import Calibration, Predictor
from seft.models.seft import Seft, SeftConfig
from tests.data.example import BINARY, SCHEMA, write


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write(tmp_path_factory.mktemp("picture") / "d")


def predictor(dataset: Dataset) -> Predictor:
    torch.manual_seed(0)
    model = Seft(SeftConfig(), dataset.schema, BINARY)
    torch.nn.init.normal_(model.query)
    model.adapt([dataset.batch(np.arange(60))])
    return Predictor(name="seft", model=model.eval(), calibration=Calibration.none(BINARY))


def asked(dataset: Dataset, queries: int = 2) -> str:
    """A series with that many queries at least, and with observations."""
    rows = np.arange(60)
    found = np.flatnonzero((dataset.queries(rows) >= queries) & (dataset.observations(rows) > 5))
    return dataset.ids(found[:1])[0]


def explained(dataset: Dataset, time: float | None = None) -> Explained:
    return explain(predictor(dataset), dataset, asked(dataset), time, orders=2, output=None)


def test_the_numbers_are_the_series_own(dataset: Dataset) -> None:
    made = explained(dataset)
    rows = important_rows(made, None, 5)
    sizes = [abs(row["contribution"]) for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    row = int(np.flatnonzero(np.array(dataset.ids(np.arange(60))) == made.id)[0])
    batch = dataset.batch(np.array([row]))
    known = {
        (round(t, 4), SCHEMA.variables[m].name, SCHEMA.variables[m].unit, round(v, 4))
        for t, m, v in zip(batch.time.tolist(), batch.modality.tolist(), batch.value.tolist(), strict=True)
    }
    for record in rows:
        assert (
            *(round(record["hours"], 4), record["variable"], record["unit"], round(record["value"], 4)),
        ) in known


def test_shares_by_variable_add_up_to_those_of_the_observations(dataset: Dataset) -> None:
    made = explained(dataset)
    summed = by_variable(made, 1)
    assert sum(share for _, share, _ in summed) == pytest.approx(made.attention(1).sum(), rel=1e-5)
    assert sum(part for _, _, part in summed) == pytest.approx(made.contribution.sum(), abs=1e-5)
    assert [share for _, share, _ in summed] == sorted((share for _, share, _ in summed), reverse=True)


def test_an_earlier_hour_explains_an_earlier_query(dataset: Dataset) -> None:
    last = explained(dataset)
    row = int(np.flatnonzero(np.array(dataset.ids(np.arange(60))) == last.id)[0])
    times = dataset.batch(np.array([row])).query_time.tolist()
    first = explained(dataset, time=times[0])
    assert (first.time, last.time) == (times[0], times[-1])
    assert len(first.hours) <= len(last.hours)


def test_the_picture_shows_the_variables_asked_for(dataset: Dataset, tmp_path: Path) -> None:
    draw(explained(dataset), tmp_path / "x.png", variables=("Temp", "HR"), head=0)
    picture = matplotlib.image.imread(tmp_path / "x.png")
    assert picture.shape[1] > 1000
    assert (picture[..., :3].min(axis=2) < 0.5).mean() > 0.005


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--series nobody", "there is no series called 'nobody'"),
        ("--series {id} --time -1", "its first query at"),
        ("--series {id} --variables Pulse", "--variables 'Pulse': the model knows HR, Drug, Temp"),
        ("--series {id} --head 9", "--head is 9; the model has heads 0 to 3"),
        ("--series {id} --output maybe", "--output 'maybe': the outputs are yes"),
    ],
)
def test_what_cannot_be_explained_is_one_line(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    predictor(dataset).save(tmp_path / "p")
    arguments = line.format(id=asked(dataset)).split()
    with pytest.raises(SystemExit) as stopped:
        main(
            ["explain", str(tmp_path / "p"), str(dataset.path), "--out", str(tmp_path / "x.png"), *arguments]
        )
    error = capsys.readouterr().err
    assert (stopped.value.code, error.count("\n")) == (2, 1), error
    assert message in error
    assert not (tmp_path / "x.png").exists()


def test_the_command_prints_what_adds_up(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictor(dataset).save(tmp_path / "p")
    arguments = ["explain", str(tmp_path / "p"), str(dataset.path), "--series", asked(dataset)]
    main([*arguments, "--orders", "2", "--out", str(tmp_path / "x.png")])
    assert "to start from" in capsys.readouterr().out
    main([*arguments, "--orders", "2", "--out", str(tmp_path / "x.png"), "--json"])
    assert {"hours", "variable", "value", "unit", "attention", "contribution"} == json.loads(
        capsys.readouterr().out
    )[0].keys()
    with pytest.raises(InputError, match="no series called"):
        explain(predictor(dataset), dataset, "x", None, 2, None)
