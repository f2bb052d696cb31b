"""A progress bar while a run lasts: on a terminal with rich installed; plain lines anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from perf.run import Progress

Announce = Callable[[str], Progress | None]
"""Called with what is about to run; returns where its progress goes, or None where nobody looks."""


def say(text: str) -> None:
    """One line on standard error."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def display() -> Iterator[Announce]:
    """A place to announce runs and see them advance."""
    if not sys.stderr.isatty():
        yield say
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
    except ImportError:
        yield say
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    # auto_refresh would redraw from a thread; the run's own calls are enough.
    bars = RichProgress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    with bars:
        task = bars.add_task("", total=1.0)

        def update(done: float, total: float) -> None:
            bars.update(task, completed=done, total=total, refresh=True)

        def announce(text: str) -> Progress:
            bars.reset(task, description=text)
            return update

        yield announce
