"""A progress bar while a run lasts: on a terminal with rich installed; silence anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from perf.run import Progress


@contextmanager
def bar(title: str) -> Iterator[Progress | None]:
    """What a run reports its progress to, or None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
    except ImportError:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    # auto_refresh would redraw from a thread; the run's own calls are enough.
    display = RichProgress(
        *columns, console=Console(stderr=True), auto_refresh=False, transient=True
    )
    with display:
        task = display.add_task(title, total=1.0)

        def update(done: float, total: float) -> None:
            display.update(task, completed=done, total=total, refresh=True)

        yield update
