import re
from pathlib import Path

import numpy as np
import pytest

from seft.data.task import Task
from seft.evaluation.judgement import judge
from seft.evaluation.prediction import Predictions
from seft.evaluation.report import write


def predictions(task: Task, queries: int = 120) -> Predictions:
    """Twelve series of ten queries each, with answers that know something."""
    generator = np.random.default_rng(0)
    if task.kind == "multiclass":
        label = np.eye(task.outputs, dtype=np.float32)[generator.integers(0, task.outputs, queries)]
    else:
        label = generator.integers(0, 2, (queries, task.outputs)).astype(np.float32)
    logits = (label + generator.normal(size=label.shape)).astype(np.float32)
    return Predictions(
        task=task,
        id=[f"s{b}" for b in range(12)],
        group=[f"s{b}" for b in range(12)],
        offsets=np.arange(13) * 10,
        time=np.tile(np.arange(10, dtype=np.float32), 12),
        label=label,
        logits=logits,
        calibrated=logits,
        probability=(1 / (1 + np.exp(-logits))).astype(np.float32),
    )


@pytest.mark.parametrize(
    ("task", "pictures"),
    [
        (Task(kind="binary", classes=("no", "yes"), metric="auprc"), 3),
        (Task(kind="binary", classes=("no", "yes"), metric="auprc", utility=True), 4),
        (Task(kind="multiclass", classes=("a", "b", "c"), metric="balanced_accuracy"), 3),
        (Task(kind="multilabel", classes=("x", "y"), metric="auprc"), 3),
    ],
    ids=["binary", "utility", "multiclass", "multilabel"],
)
def test_the_report_is_one_file_with_every_number_and_curve(
    tmp_path: Path, task: Task, pictures: int
) -> None:
    made = predictions(task)
    found = judge(made, 0.0, draws=50)
    write(tmp_path / "report.html", made, found, {"run": "<mine> & yours"}, 0.0)
    text = (tmp_path / "report.html").read_text()
    assert text.count("<svg") == pictures
    assert "&lt;mine&gt; &amp; yours" in text
    for name, interval in found.items():
        assert f"<td>{name}</td><td class=n>{interval.value:.4f}</td>" in text
    loaded = re.findall(r"""(?:src|href)=["']?(?!#)([^"'\s>]+)""", text)
    assert loaded == [], "nothing is fetched from anywhere"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
