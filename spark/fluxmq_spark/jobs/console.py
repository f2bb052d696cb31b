"""Output of a job for people: progress on standard error, a report of aligned tables on standard
output.

Progress on a terminal is one line that changes; elsewhere a line every few seconds, so that a log
stays short.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final, TextIO

TERMINAL_INTERVAL_S: Final = 0.5
LOG_INTERVAL_S: Final = 10.0
"""Interval of progress reports on a terminal and elsewhere."""

CELL_WIDTH_MAX: Final = 60
"""Characters of a table's cell: names may be far longer than a line."""

Doing = Callable[[], str]


class Console:
    """Destination of a job's output. `quiet`: no progress."""

    def __init__(
        self,
        name: str,
        *,
        quiet: bool = False,
        out: TextIO | None = None,
        err: TextIO | None = None,
    ) -> None:
        self.name = name
        self.quiet = quiet
        self.out = out if out is not None else sys.stdout
        self.err = err if err is not None else sys.stderr

    def write(self, text: str = "") -> None:
        """Write a line of the report."""
        self.out.write(f"{text}\n")

    def title(self, text: str) -> None:
        """Write the title of a part of the report."""
        self.write(f"\n{text}\n{'-' * len(text)}")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Write a table; columns of numbers only are right-aligned."""
        for line in table_lines(columns, rows):
            self.write(line)

    def note(self, text: str) -> None:
        """Write a line of progress."""
        if not self.quiet:
            self.err.write(f"{self.name}: {text}\n")
            self.err.flush()

    @contextmanager
    def stage(self, text: str, doing: Doing | None = None) -> Iterator[None]:
        """Report the start of a stage, its progress according to `doing`, and its duration."""
        if self.quiet:
            yield
            return
        began = time.monotonic()
        ended = threading.Event()
        terminal = self.err.isatty()
        teller = threading.Thread(
            target=self._tell, args=(text, doing, ended, terminal), name="progress", daemon=True
        )
        teller.start()
        try:
            yield
        finally:
            ended.set()
            teller.join()
            before = "\r\x1b[K" if terminal else ""
            self.err.write(f"{before}{self.name}: {text}: {seconds(time.monotonic() - began)}\n")
            self.err.flush()

    def _tell(self, text: str, doing: Doing | None, ended: threading.Event, terminal: bool) -> None:
        while not ended.wait(TERMINAL_INTERVAL_S if terminal else LOG_INTERVAL_S):
            state = f": {doing()}" if doing is not None else ""
            if terminal:
                self.err.write(f"\r\x1b[K{self.name}: {text}{state}")
            else:
                self.err.write(f"{self.name}: {text}{state}\n")
            self.err.flush()


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table: a header, a rule, and the rows, two blanks between columns."""
    if not rows:
        return ["(nothing)"]
    cells = [[cell_text(value) for value in row] for row in rows]
    right = [
        all(isinstance(row[at], int | float) or row[at] is None for row in rows)
        for at in range(len(columns))
    ]
    widths = [max(len(title), *(len(row[at]) for row in cells)) for at, title in enumerate(columns)]

    def line(texts: Sequence[str]) -> str:
        placed = (
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(texts, widths, right, strict=True)
        )
        return "  ".join(placed).rstrip()

    return [line(columns), line(["-" * width for width in widths]), *map(line, cells)]


def cell_text(value: object) -> str:
    """Return a value as the text of a table's cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"
    text = "".join(each if each.isprintable() else "\N{MIDDLE DOT}" for each in str(value))
    return text if len(text) <= CELL_WIDTH_MAX else text[: CELL_WIDTH_MAX - 1] + "…"


def plural(count: int, word: str, several: str | None = None) -> str:
    """Return a count with its word: ``1 message``, ``2 messages``."""
    return f"{count:,} {word if count == 1 else several or word + 's'}"


def size(count: float) -> str:
    """Return bytes for a person: ``512 B``, ``1.5 KiB``."""
    if abs(count) < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if abs(count) < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:,.1f} TiB"


def seconds(amount: float) -> str:
    """Return a duration for a person: ``0.4 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if amount < 60:
        return f"{amount:.1f} s"
    whole = round(amount)
    for unit, next_unit, length, next_length in (
        ("min", "s", 60, 1),
        ("h", "min", 3600, 60),
        ("d", "h", 86400, 3600),
    ):
        if whole < length * (60 if length == 60 else 24) or unit == "d":
            return f"{whole // length:,} {unit} {whole % length // next_length} {next_unit}"
    raise AssertionError("days have no end")


def moment(time_us: int | None) -> str:
    """Return a time in µs since the epoch, in UTC to the second."""
    if time_us is None:
        return "-"
    then = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    return then.strftime("%Y-%m-%d %H:%M:%S")
