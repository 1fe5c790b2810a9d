"""Watching a training: one live line in a terminal, a line an epoch elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from seft.training.fit import Epoch


@contextmanager
def watching(console: Console, max_epochs: int) -> Iterator[Callable[[Epoch], None]]:
    """What to tell of each epoch; the time left is that to the last one, if nothing stops it before."""
    if not console.is_terminal:
        yield lambda epoch: console.print(epoch.line(), soft_wrap=True)
        return
    columns = (
        *(TextColumn("epoch"), MofNCompleteColumn(), BarColumn(bar_width=20)),
        *(TextColumn("{task.description}"), TextColumn("left at most"), TimeRemainingColumn()),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=max_epochs)

        def tell(epoch: Epoch) -> None:
            line = epoch.line()
            progress.update(bar, completed=epoch.epoch, description=line[line.index("loss") :])

        yield tell
