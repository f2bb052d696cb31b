"""A process's most recent log lines, kept in memory for the management interface.

They are those that `LineHandler` writes, also where nobody reads standard error.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final, NamedTuple

from fluxmq.logs.formatters import level_of, text_of

LINES_MAX: Final = 300
"""Lines that a process keeps: some minutes of a troubled one, and at most a megabyte."""
TEXT_CHARACTERS_MAX: Final = 4000
"""Characters of a line; a traceback is cut."""


class RecentLine(NamedTuple):
    """A line: when it was written (Unix time), its level, and what it says."""

    time: float
    level: str
    text: str


class RecentLines(logging.Handler):
    """Keeps the last `LINES_MAX` lines of a process."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process
        self.lines: deque[RecentLine] = deque(maxlen=LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record's line."""
        text = text_of(record)[:TEXT_CHARACTERS_MAX]
        self.lines.append(RecentLine(record.created, level_of(record), text))


def keep_lines(process: str) -> None:
    """Keep the lines of this process from now on, with those that it has kept under this name."""
    top = logging.getLogger()
    for earlier in top.handlers[:]:
        if isinstance(earlier, RecentLines):
            if earlier.process == process:
                return
            top.removeHandler(earlier)  # of the process that this one was forked from
    top.addHandler(RecentLines(process))


def recent_lines() -> list[RecentLine]:
    """Return the lines that this process keeps, oldest first."""
    return [
        line
        for handler in logging.getLogger().handlers
        if isinstance(handler, RecentLines)
        for line in list(handler.lines)
    ]
