"""Common parts of the jobs' command lines: the directory, the queues, and their range.

Turns words into the source's options and never looks at a file. A mistake is one line and exit code
2.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn

EXIT_DONE: Final = 0
EXIT_FOUND: Final = 1
EXIT_USAGE: Final = 2
EXIT_FAILED: Final = 3

SIZE_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

RANGE_HELP: Final = (
    "an offset (with one --queue), a time (2026-09-21, 2026-09-21T14:13:20Z; UTC unless it says so), "
    "now, now-15m, now-12h, now-7d, earliest or latest"
)

OFFSET_DIGITS_MAX: Final = 18
"""Maximum digits of an offset: any such number fits Spark's long, and no queue has come so far."""

_AGO: Final = re.compile(r"now(?:-(\d{1,9})([smhd]))?")
_SIZE: Final = re.compile(r"(\d{1,18})([kmg]?)(?:i?b)?")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class UsageError(Exception):
    """The arguments ask for something impossible; the text is one line for a person."""


class JobError(Exception):
    """The job cannot do what was requested; the text is one line for a person."""


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, and takes no abbreviated options, which later ones would make
    ambiguous."""

    def __init__(self, name: str, text: str, *, epilog: str = "") -> None:
        super().__init__(
            prog=name,
            description=text,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Write the message to standard error and exit with code 2."""
        self.exit(EXIT_USAGE, f"{self.prog}: {message} (see --help)\n")


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range: an offset, a time in µs since the epoch, or neither: everything there
    is."""

    offset: int | None = None
    time: int | None = None


def bound_of(text: str, now: datetime) -> Bound:
    """Return the end of a range that a word names, see `RANGE_HELP`. Raises `UsageError`."""
    word = text.strip()
    if word in ("earliest", "latest"):
        return Bound()
    if word.isascii() and word.isdigit():
        if len(word) > OFFSET_DIGITS_MAX:
            raise UsageError(f"{text!r} is neither an offset nor a time: it has too many digits")
        return Bound(offset=int(word))
    ago = _AGO.fullmatch(word)
    if ago is not None:
        amount, unit = ago.groups(default="0")
        then = now - timedelta(seconds=int(amount) * _SECONDS.get(unit, 0))
        return Bound(time=microseconds(then))
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise UsageError(f"{text!r} is neither an offset nor a time: {RANGE_HELP}") from None
    return Bound(time=microseconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC)))


def microseconds(moment: datetime) -> int:
    """Return µs since the epoch."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def size_of(text: str) -> int:
    """Return the bytes of a size like ``64m`` or ``1GiB``. Raises `UsageError`."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or int(found[1]) == 0:
        raise UsageError(f"{text!r} is not a size: write a number with k, m or g, as in 64m")
    return int(found[1]) * SIZE_UNITS[found[2]]


def add_source(parser: Parser, *, several_paths: bool = False, queues: bool = True) -> None:
    """Add the options of the data to read: ``--path``, ``--queue``, ``--queue-pattern``,
    ``--storage-options``."""
    group = parser.add_argument_group("source")
    if several_paths:
        group.add_argument(
            "--path",
            action="append",
            required=True,
            metavar="DIR",
            help="data directory of a node, or a copy of one; repeat it to compare nodes",
        )
    else:
        group.add_argument(
            "--path",
            required=True,
            metavar="DIR",
            help="data directory of a node, a copy made by fluxmqctl snapshot, or a URL that fsspec supports",
        )
    if queues:
        group.add_argument(
            "--queue",
            action="append",
            default=[],
            metavar="NAME",
            help="a queue to read; may be repeated",
        )
        group.add_argument(
            "--queue-pattern",
            metavar="RE",
            help="read the queues whose full name matches this regular expression",
        )
    group.add_argument(
        "--storage-options",
        metavar="JSON",
        help="fsspec options for opening the URL, as a JSON object",
    )


def add_range(parser: Parser) -> None:
    """Add ``--from`` and ``--to``."""
    group = parser.add_argument_group("messages", f"A bound is {RANGE_HELP}.")
    group.add_argument(
        "--from",
        dest="start",
        default="earliest",
        metavar="BOUND",
        help="the first message; a time: the first one not before it (default: earliest)",
    )
    group.add_argument(
        "--to",
        dest="stop",
        default="latest",
        metavar="BOUND",
        help="the end, exclusive (default: latest)",
    )


def add_session(parser: Parser, *, output: str | None = None) -> None:
    """Add ``--master``, ``--quiet`` and, with its text, ``--output``."""
    group = parser.add_argument_group("run")
    if output is not None:
        group.add_argument("--output", metavar="DIR", help=output)
    group.add_argument(
        "--master",
        metavar="URL",
        help="Spark master; spark-submit's own, or else local[*], unless given",
    )
    group.add_argument("--quiet", action="store_true", help="no progress on standard error")


@dataclass(frozen=True, slots=True)
class Selection:
    """Queues and a range, checked as far as possible without looking at files."""

    path: str
    queues: tuple[str, ...]
    pattern: str | None
    storage_options: str | None
    start: Bound = Bound()
    stop: Bound = Bound()

    def options(self) -> dict[str, str]:
        """Return the options of the source ``fluxmq`` that read this."""
        options = self.where()
        for which, bound in (("starting", self.start), ("ending", self.stop)):
            if bound.offset is not None:
                options[f"{which}Offsets"] = json.dumps({self.queues[0]: bound.offset})
            if bound.time is not None:
                options[f"{which}Timestamp"] = iso(bound.time)
        return options

    def where(self) -> dict[str, str]:
        """Return the same without the range."""
        options = {"path": self.path}
        if self.queues:
            options["queues"] = ",".join(self.queues)
        if self.pattern is not None:
            options["queuePattern"] = self.pattern
        if self.storage_options is not None:
            options["storageOptions"] = self.storage_options
        return options

    def filesystem(self) -> dict[str, object] | None:
        """Return the storage options as fsspec takes them."""
        return None if self.storage_options is None else dict(json.loads(self.storage_options))


def selection_of(
    arguments: argparse.Namespace, now: datetime, *, path: str | None = None
) -> Selection:
    """Return the selection in the arguments of `add_source` and `add_range`. Raises
    `UsageError`."""
    queues = tuple(dict.fromkeys(getattr(arguments, "queue", [])))
    pattern = getattr(arguments, "queue_pattern", None)
    if queues and pattern is not None:
        raise UsageError("--queue and --queue-pattern are mutually exclusive")
    if any("," in queue or not queue for queue in queues):
        raise UsageError("the name of a queue is not empty and has no comma: use --queue-pattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as problem:
            raise UsageError(
                f"--queue-pattern {pattern!r} is not a regular expression: {problem}"
            ) from None
    start = bound_of(getattr(arguments, "start", "earliest"), now)
    stop = bound_of(getattr(arguments, "stop", "latest"), now)
    if (start.offset is not None or stop.offset is not None) and len(queues) != 1:
        raise UsageError("an offset as --from or --to needs exactly one --queue")
    for low, high in ((start.offset, stop.offset), (start.time, stop.time)):
        if low is not None and high is not None and low > high:
            raise UsageError("--from is after --to")
    object_of(arguments.storage_options, "--storage-options")
    return Selection(
        path if path is not None else arguments.path,
        queues,
        pattern,
        arguments.storage_options,
        start,
        stop,
    )


def object_of(text: str | None, option: str) -> dict[str, object] | None:
    """Return the JSON object in an option. Raises `UsageError`."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as problem:
        raise UsageError(f"{option} is not JSON: {problem}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{option} is not a JSON object")
    return found


def iso(time: int) -> str:
    """Return a time in µs since the epoch as the source's options take it."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time)).isoformat()


def positive(text: str) -> int:
    """Parse a whole number above 0, for argparse."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1 << 53):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


Job = Callable[[argparse.Namespace], int]


def parse(parser: Parser, words: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line; exit with code 2 for a wrong one."""
    return parser.parse_args(words)
