from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from seft.cli import main
from seft.data.dataset import Dataset, open_dataset
from seft.data.task import Task
from seft.error import InputError
from seft.evaluation.judgement import compare, judge, to_json
from seft.evaluation.prediction import Predictions, predict
from seft.metrics.ranking import auprc, auroc
from seft.models.predictor import Calibration, Predictor
from seft.models.seft import Seft, SeftConfig
from tests.data.example import BINARY, write

MULTICLASS = Task(kind="multiclass", classes=("a", "b", "c"), metric="balanced_accuracy")
MULTILABEL = Task(kind="multilabel", classes=("x", "y"), metric="auprc")
TASKS = pytest.mark.parametrize("task", [BINARY, MULTICLASS, MULTILABEL], ids=lambda task: task.kind)


def made(at: Path, task: Task = BINARY) -> tuple[Dataset, Predictor]:
    dataset = write(at / "d", task=task, series=30)
    torch.manual_seed(0)
    model = Seft(SeftConfig(), dataset.schema, task)
    model.adapt([dataset.batch(np.arange(90))])
    calibration = Calibration(slope=(0.5,) * task.outputs, bias=(0.1,) * task.outputs)
    return dataset, Predictor(name="seft", model=model.eval(), calibration=calibration)


@TASKS
def test_each_query_has_its_row(tmp_path: Path, task: Task) -> None:
    dataset, predictor = made(tmp_path, task)
    predict(predictor, dataset, np.arange(90)).write(tmp_path / "p.parquet")
    table = pl.read_parquet(tmp_path / "p.parquet")
    queries = pl.read_ipc(str(dataset.path / "queries" / "*.arrow"))
    series = pl.read_ipc(str(dataset.path / "series" / "*.arrow"))
    asked = queries.join(series.select("series", "id"), on="series", maintain_order="left")
    assert table["id"].to_list() == asked["id"].to_list()
    assert table["time"].to_list() == (asked["time"] / 3.6e9).cast(pl.Float32).to_list()
    shown = predictor.probability(predictor.model(dataset.batch(np.arange(90))))
    if task.kind == "binary":
        assert table.columns == ["id", "time", "label", "probability"]
        np.testing.assert_array_equal(table["label"].to_numpy(), asked["label"].to_numpy())
        np.testing.assert_allclose(table["probability"].to_numpy(), shown[:, 0].detach().numpy(), rtol=1e-5)
    elif task.kind == "multiclass":
        assert table.columns == ["id", "time", "label", "probability_a", "probability_b", "probability_c"]
        names = [None if label != label else task.classes[int(label)] for label in asked["label"]]
        assert table["label"].to_list() == names
    else:
        assert table.columns == ["id", "time", "label_x", "probability_x", "label_y", "probability_y"]
        np.testing.assert_array_equal(table["label_y"].to_numpy(), asked["label_y"].to_numpy())


def test_data_without_labels_is_predicted(tmp_path: Path) -> None:
    dataset, predictor = made(tmp_path)
    dataset.task = None
    answers = predict(predictor, dataset, np.arange(90))
    assert np.isnan(answers.label).all()
    with pytest.raises(InputError, match="all labels are missing"):
        judge(answers, 0.0)


def test_other_classes_are_refused(tmp_path: Path) -> None:
    dataset, predictor = made(tmp_path)
    dataset.task = Task(kind="binary", classes=("alive", "dead"), metric="auprc")
    with pytest.raises(InputError, match="its classes are alive, dead and the predictor's are no, yes"):
        predict(predictor, dataset, np.arange(90))


def test_judging_gives_the_metrics_and_an_interval_around_them(tmp_path: Path) -> None:
    dataset, predictor = made(tmp_path)
    answers = predict(predictor, dataset, np.arange(90))
    found = judge(answers, 0.0, draws=200)
    scored = ~np.isnan(answers.label[:, 0])
    label, logit = answers.label[scored, 0], answers.logits[scored, 0]
    assert found["auroc"].value == pytest.approx(auroc(label, logit))
    assert found["auprc"].value == pytest.approx(auprc(label, logit))
    assert all(
        interval.low <= interval.value <= interval.high for interval in (found["auroc"], found["auprc"])
    )
    assert to_json(found)["auroc"]["value"] == found["auroc"].value


def test_the_threshold_acts_on_the_raw_logit(tmp_path: Path) -> None:
    dataset, predictor = made(tmp_path)
    answers = predict(predictor, dataset, np.arange(90))
    scored = ~np.isnan(answers.label[:, 0])
    for threshold in (-0.2, 0.0, 0.3):
        correct = (answers.logits[scored, 0] >= threshold) == (answers.label[scored, 0] == 1)
        assert judge(answers, threshold, draws=2)["accuracy"].value == pytest.approx(correct.mean())


def test_a_run_does_not_differ_from_itself(tmp_path: Path) -> None:
    dataset, predictor = made(tmp_path)
    answers = predict(predictor, dataset, np.arange(90))
    same = compare(answers, answers, (0.0, 0.0), draws=50)
    assert same["auroc"].interval.value == same["auroc"].interval.low == same["auroc"].interval.high == 0
    with pytest.raises(InputError, match="were not asked the same queries"):
        compare(answers, replace(answers, id=answers.id[::-1]), (0.0, 0.0))
    assert isinstance(answers, Predictions)


def test_the_commands_judge_predict_and_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "d", series=40)
    small = "--max-epochs 1 --phi-width 8 --latent-width 8 --n-phi-layers 1"
    main(f"train seft d --out run {small} --record runs.csv --note first".split())
    main(f"train seft d --out run2 {small} --seed 1 --record runs.csv".split())
    rows = pl.read_csv("runs.csv")
    assert rows["seed"].to_list() == [0, 1]
    assert rows["note"][0] == "first"
    capsys.readouterr()
    main(["evaluate", "run", "--json"])
    assert '"auroc"' in capsys.readouterr().out
    main(["evaluate", "run", "d", "--split", "val"])
    assert "95 % interval" in capsys.readouterr().out
    main(["predict", "run", "--out", "p.parquet", "--split", "test"])
    assert len(pl.read_parquet("p.parquet")) == open_dataset("d").splits["test"]["queries"]
    for line, message in (
        ("evaluate nowhere", "nowhere is no saved predictor"),
        ("evaluate nowhere d", "nowhere is no saved predictor"),
        ("evaluate run d --split dev", "has no split 'dev'"),
        ("train sefd d --out x", "there is no model 'sefd'; did you mean seft"),
        ("train seft d --out x --preset seft-physionet201", "there is no preset"),
        ("train seft d --out x --n-heads 0", "n_heads is 0; it must lie between 1 and 256"),
        ("train seft nowhere --out x", "nowhere is no dataset folder"),
        ("train seft d --out d", "d exists and holds no run"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(line.split())
        error = capsys.readouterr().err
        assert (stopped.value.code, error.count("\n")) == (2, 1), error
        assert message in error
    assert not (tmp_path / "x").exists()
