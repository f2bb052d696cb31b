"""Formatting of log records as one line: JSON for machines, text for people.

Pure: a record in, a string out; the time is the one that `logging` put into the record. Two
promises hold here for the whole broker: a field whose name indicates a secret is never shown, and
bytes (payloads) are shown by their length only.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime

import orjson

from fluxmq.logs.escapes import escape, escape_lines

# A line is meant to be read. With these limits an ordinary line stays below PIPE_BUF (4096 bytes),
# so lines of several processes that share one pipe do not mix; only a traceback may be longer.
MESSAGE_CHARACTERS_MAX = 2048
FIELD_CHARACTERS_MAX = 512
FIELDS_MAX = 32
EXCEPTION_CHARACTERS_MAX = 16384

# Attributes that `logging` itself sets in every record; all others came through `extra`.
_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLUMNS = frozenset({"time", "level", "process", "logger", "message", "exception"})
_SECRET_WORDS = (
    "password",
    "passwd",
    "secret",
    "token",
    "authorization",
    "credential",
    "private_key",
    "payload",
)
_HIDDEN = "***"

_LEVEL_NAMES = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
}
_COLOURS = {
    logging.DEBUG: "\x1b[2m",
    logging.INFO: "\x1b[32m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}
_DIM = "\x1b[2m"
_RESET = "\x1b[0m"

FieldValue = str | int | float | bool | None


def _shown(value: object) -> FieldValue:
    """Reduce a value to something JSON and a person can read; bytes become their length."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        # JSON readers keep 64 bits; a larger number is shown as text instead of rounded.
        return int(value) if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    return escape(str(value), FIELD_CHARACTERS_MAX)


def _message(record: logging.LogRecord) -> str:
    """Return the record's message, escaped, with bytes arguments replaced by their length."""
    arguments = record.args
    if isinstance(arguments, tuple):
        arguments = tuple(
            _shown(value) if isinstance(value, bytes | bytearray | memoryview) else value
            for value in arguments
        )
    text = str(record.msg)
    if arguments:
        try:
            text = text % arguments
        except (TypeError, ValueError, KeyError):
            # A wrong template must not lose the line: show the template, which is ours and
            # harmless.
            text = f"{text} (arguments do not fit the message)"
    return escape(text, MESSAGE_CHARACTERS_MAX)


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, FieldValue]]:
    """Yield the extra fields in the order given, at most `FIELDS_MAX`, secrets hidden."""
    shown = 0
    for name, value in vars(record).items():
        if name in _OWN_ATTRIBUTES:
            continue
        if shown == FIELDS_MAX:
            yield "fields_cut", True
            return
        shown += 1
        lowered = name.lower()
        hidden = any(word in lowered for word in _SECRET_WORDS)
        safe = escape(name, 64)
        yield (f"{safe}_" if safe in _COLUMNS else safe), (_HIDDEN if hidden else _shown(value))


def _exception(record: logging.LogRecord) -> str | None:
    if record.exc_info is None or record.exc_info[0] is None:
        return None
    text = "".join(traceback.format_exception(*record.exc_info))
    return escape_lines(text.rstrip("\n"), EXCEPTION_CHARACTERS_MAX)


def level_of(record: logging.LogRecord) -> str:
    """Return a record's level as it is shown."""
    return _LEVEL_NAMES.get(record.levelno, f"level-{record.levelno}")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (ISO 8601, UTC), level, process, logger, message, extra
    fields, exception."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its line end."""
        line: dict[str, FieldValue] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": level_of(record),
            "process": self._process,
            "logger": record.name,
            "message": _message(record),
        }
        line.update(_fields(record))
        exception = _exception(record)
        if exception is not None:
            line["exception"] = exception
        return orjson.dumps(line).decode()


class TextFormatter(logging.Formatter):
    """Lines for a person: time of day, level, process, message, then ``name=value`` fields;
    tracebacks indented."""

    def __init__(self, process: str, *, colour: bool) -> None:
        super().__init__()
        self._process = process
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Return the line (or, with a traceback, lines of which only the first begins at the
        margin)."""
        moment = (
            datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
        )
        level = f"{level_of(record):<8}"
        fields = _fields_text(record)
        if self._colour:
            moment = f"{_DIM}{moment}{_RESET}"
            level = f"{_COLOURS.get(record.levelno, '')}{level}{_RESET}"
            fields = f"{_DIM}{fields}{_RESET}" if fields else ""
        line = f"{moment} {level} {self._process:<10} {_message(record)}"
        if fields:
            line = f"{line}  {fields}"
        exception = _exception(record)
        if exception is not None:
            line = line + "\n" + "\n".join(f"    {part}" for part in exception.split("\n"))
        return line


def text_of(record: logging.LogRecord) -> str:
    """Return what a line says: message and fields, and a traceback on further lines."""
    parts = [each for each in (_message(record), _fields_text(record)) if each]
    return "\n".join(filter(None, ("  ".join(parts), _exception(record))))


def _fields_text(record: logging.LogRecord) -> str:
    return " ".join(f"{name}={_quoted(value)}" for name, value in _fields(record))


def _quoted(value: FieldValue) -> str:
    """Return a field's value, quoted when it contains a space, quote or ``=``, so that its end is
    unambiguous."""
    if value is None:
        return "-"
    text = str(value)
    if text == "" or any(mark in text for mark in " \"'="):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text
