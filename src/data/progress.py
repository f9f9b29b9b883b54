"""A progress bar for data preparation, on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(description: str, total: int | None, unit: str = "samples") -> Iterator[Callable[[int], None]]:
    """Show a bar with elapsed and remaining time; yield a function to call with the number of units just done.

    Args:
        description: what is being done.
        total: units in all, or None when unknown.
        unit: name of a unit.
    """
    # Imported here: rich costs a noticeable part of a second, and cached data need no bar.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)
