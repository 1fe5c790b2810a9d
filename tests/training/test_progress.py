import io

import pytest
from rich.console import Console

from seft.training.fit import Epoch
from seft.training.progress import watching


def epochs(count: int) -> list[Epoch]:
    return [
        Epoch(
            epoch=number,
            loss=1 / number,
            metrics={"auroc": 0.8, "auprc": 0.5, "balanced_accuracy": 0.7},
            best=0.5,
            best_epoch=1,
            learning_rate=1e-3,
            seconds=2.0,
        )
        for number in range(1, count + 1)
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_each_epoch_is_told_with_its_loss_metrics_and_the_best_so_far(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=140, markup=False, highlight=False)
    with watching(console, 10) as tell:
        for epoch in epochs(3):
            tell(epoch)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "loss 0.3333" in shown
    assert "auroc 0.8000" in shown
    assert "best 0.5000 at 1" in shown
    assert ("3/10" in shown) == terminal
    assert ("\x1b" in shown) == terminal
    if not terminal:
        assert len(shown.splitlines()) == 3
