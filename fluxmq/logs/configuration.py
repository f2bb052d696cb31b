"""Destination of log lines, and the promise that writing them never stalls a process.

Each process writes to its standard error, which the supervisor passed on. A terminal stopped by
Ctrl-S or a pipe whose reader sleeps would block a plain write, and with it the event loop; so
`LineHandler` first checks whether the descriptor can take a line, and drops and counts the line if
not. Lines are one `write` each, so that lines of several processes on one pipe do not mix.
"""

from __future__ import annotations

import logging
import os
import select
from typing import Final, Literal

from fluxmq.logs.formatters import JsonFormatter, TextFormatter
from fluxmq.logs.recent import keep_lines

LogFormat = Literal["auto", "json", "text"]
ROOT: Final = "fluxmq"
STANDARD_ERROR: Final = 2

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class LineHandler(logging.Handler):
    """Writes each record as one line to a descriptor, or counts it in `dropped` when the descriptor
    is not ready.

    The first line after a gap is preceded by one with the number of missing lines. Lives in the
    process it was configured in; `logging` serialises calls by the handler's lock.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.dropped = 0
        self._unreported = 0
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record's line if possible at once; never raises for a closed or full
        descriptor."""
        if not self._ready():
            self._drop()
            return
        if self._unreported:
            gap = logging.makeLogRecord(
                {
                    "name": f"{ROOT}.logs",
                    "levelno": logging.WARNING,
                    "msg": "log lines dropped: standard error was not read",
                    "created": record.created,
                    "lines": self._unreported,
                }
            )
            self._unreported = 0
            self._write(self.format(gap))
        self._write(self.format(record))

    def _ready(self) -> bool:
        events = self._poll.poll(0)
        return bool(events) and bool(events[0][1] & select.POLLOUT)

    def _write(self, line: str) -> None:
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            # Nobody reads standard error any more. There is no other place to report that, except
            # the count.
            self._drop()

    def _drop(self) -> None:
        self.dropped += 1
        self._unreported += 1


def configure(
    level: str, line_format: LogFormat, process: str, *, descriptor: int = STANDARD_ERROR
) -> LineHandler:
    """Send every line of this process to `descriptor`; calling again replaces the earlier
    configuration.

    `level` is debug, info, warning or error; `line_format` is json, text, or auto (text on a
    terminal, else JSON); `process` names this process in every line ("shard-0"). Colour is used
    only for text on a terminal. Libraries log at warning or above. Raises ValueError for an unknown
    level or format.
    """
    number = _LEVELS.get(level.lower())
    if number is None:
        raise ValueError(f"log level must be one of {', '.join(_LEVELS)}, not {level!r}")
    if line_format not in ("auto", "json", "text"):
        raise ValueError(f"log format must be auto, json or text, not {line_format!r}")
    terminal = _is_terminal(descriptor)
    formatter: logging.Formatter
    if line_format == "json" or (line_format == "auto" and not terminal):
        formatter = JsonFormatter(process)
    else:
        formatter = TextFormatter(process, colour=terminal)
    handler = LineHandler(descriptor)
    handler.setFormatter(formatter)
    top = logging.getLogger()
    for earlier in top.handlers[:]:
        if isinstance(earlier, LineHandler):
            top.removeHandler(earlier)
    top.addHandler(handler)
    keep_lines(process)
    top.setLevel(max(number, logging.WARNING))
    logging.getLogger(ROOT).setLevel(number)
    logging.captureWarnings(True)
    return handler


def dropped_lines() -> int:
    """Return the number of lines this process could not write since it was last configured."""
    return sum(
        handler.dropped
        for handler in logging.getLogger().handlers
        if isinstance(handler, LineHandler)
    )


def get_logger(name: str) -> logging.Logger:
    """Return the logger for a module of the broker; `name` is the module's `__name__`."""
    if name != ROOT and not name.startswith(f"{ROOT}."):
        name = f"{ROOT}.{name}"
    return logging.getLogger(name)


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
