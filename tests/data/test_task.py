import math

import numpy as np
import pytest
import torch

from seft.data.task import Task

BINARY = Task(kind="binary", classes=("no", "yes"), metric="auprc")
MULTICLASS = Task(kind="multiclass", classes=("a", "b", "c"), metric="balanced_accuracy")
MULTILABEL = Task(kind="multilabel", classes=("x", "y"), metric="auprc", utility=True)
NAN = float("nan")


@pytest.mark.parametrize("task", [BINARY, MULTICLASS, MULTILABEL])
def test_a_task_is_the_same_after_json(task: Task) -> None:
    assert Task.from_json(task.to_json()) == task


def test_the_loss_is_that_of_a_plain_loop_over_scored_labels() -> None:
    logits = torch.tensor([[0.3], [-2.0], [5.0]], dtype=torch.float64)
    total, count = BINARY.loss(logits, torch.tensor([[1.0], [NAN], [0.0]], dtype=torch.float64))
    expected = math.log(1 + math.exp(-0.3)) + math.log(1 + math.exp(5.0))
    assert total.item() == pytest.approx(expected)
    assert count.item() == 2

    label = torch.tensor([[1.0, NAN], [0.0, 1.0]], dtype=torch.float64)
    logits = torch.tensor([[0.3, 9.0], [-1.0, 2.0]], dtype=torch.float64)
    total, count = MULTILABEL.loss(logits, label)
    expected = sum(math.log(1 + math.exp(x)) for x in (-0.3, -1.0, -2.0))
    assert total.item() == pytest.approx(expected)
    assert count.item() == 3

    encoded = torch.from_numpy(MULTICLASS.encode(np.array([[2.0], [NAN], [0.0]], np.float32))).double()
    logits = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [0.5, -0.5, 1.0]], dtype=torch.float64)
    total, count = MULTICLASS.loss(logits, encoded)
    expected = sum(
        math.log(sum(math.exp(x) for x in row)) - row[answer]
        for row, answer in (([1.0, 2.0, 3.0], 2), ([0.5, -0.5, 1.0], 0))
    )
    assert total.item() == pytest.approx(expected)
    assert count.item() == 2


def test_an_unscored_query_has_no_gradient() -> None:
    logits = torch.zeros(2, 1, requires_grad=True)
    total, _ = BINARY.loss(logits, torch.tensor([[NAN], [1.0]]))
    (gradient,) = torch.autograd.grad(total, logits)
    assert gradient[0].item() == 0
    assert gradient[1].item() != 0


def test_positives_are_counted_by_class() -> None:
    assert BINARY.positives(np.array([[1], [0], [1], [NAN]], np.float32)) == {"yes": 2}
    assert MULTICLASS.positives(np.array([[1], [2], [1], [NAN]], np.float32)) == {"a": 0, "b": 2, "c": 1}
    assert MULTILABEL.positives(np.array([[1, 0], [1, NAN]], np.float32)) == {"x": 2, "y": 0}
