"""Options of reading: read once, validated, every mistake named at once.

Names are Kafka's if Kafka's source has the option, and Spark ignores their case. An option without
effect in its context is a mistake too: nobody should believe that it did something.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from fluxmq_spark.errors import OptionError
from fluxmq_spark.schema import check_names, column_names

BATCH: Final = "batch reading"
STREAM: Final = "streams"
EITHER: Final = "either"
"""Use of options; either: not known yet."""

VIEW_MESSAGES: Final = "messages"
VIEWS: Final = (VIEW_MESSAGES, "batches", "segments", "queues", "groups")

STATE_ALL: Final = "all"
STATE_UNACKNOWLEDGED: Final = "unacknowledged"
STATE_DEAD_LETTERED: Final = "dead-lettered"
STATES: Final = (STATE_ALL, STATE_UNACKNOWLEDGED, STATE_DEAD_LETTERED)

EARLIEST: Final = -2
LATEST: Final = -1
"""Value in JSON, as in Kafka's source; values above them are offsets."""

OFFSET_MAX: Final = (1 << 63) - 1
"""Maximum of Spark's long."""

BYTES_PER_PARTITION: Final = 64 << 20
"""Default size of a task, which then takes a fraction of a second, some ten times its start-up
cost."""

BYTES_PER_PARTITION_MIN: Final = 4096
"""Size of a segment's first page: smaller parts make no sense."""

MIN_PARTITIONS_MAX: Final = 100_000
"""Maximum tasks of one job: Spark's driver keeps state for each."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SIZE: Final = re.compile(r"(\d{1,15})\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SHIFTS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_MILLISECONDS: Final = re.compile(r"-?\d{1,16}")


@dataclass(frozen=True)
class Bounds:
    """Start or end of reading: by offset or by time.

    `offset` is for all queues that `offsets` does not name; EARLIEST and LATEST are positions.
    `time`, µs since the epoch: at the first message not before it; then the others do not count.
    """

    offset: int
    offsets: Mapping[str, int] = field(default_factory=dict)
    time: int | None = None

    def of(self, queue: str) -> int:
        """Return the offset of a queue, EARLIEST or LATEST."""
        return self.offsets.get(queue, self.offset)


@dataclass(frozen=True)
class ReadOptions:
    """Parsed options of reading. Values only; can be pickled.

    `queues`: None for those that `pattern` matches. `columns`: None for all. `metrics_path`: "" for
    none.
    """

    path: str
    storage_options: Mapping[str, object]
    queues: tuple[str, ...] | None
    pattern: str
    starting: Bounds
    ending: Bounds
    min_partitions: int
    bytes_per_partition: int
    columns: tuple[str, ...] | None
    include_headers: bool
    group: str
    state: str
    fail_on_data_loss: bool
    verify_checksums: bool
    view: str
    max_offsets_per_trigger: int | None
    metrics_path: str

    def all_columns(self) -> tuple[str, ...]:
        """Return the names of all message columns with these options."""
        return column_names(headers=self.include_headers, state=bool(self.group))


_NAMES: Final = (
    *("path", "storageOptions", "queue", "queues", "queuePattern"),
    *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
    *("minPartitions", "maxBytesPerPartition", "maxOffsetsPerTrigger"),
    *("columns", "includeHeaders", "group", "state", "view"),
    *("failOnDataLoss", "verifyChecksums", "metricsPath"),
)
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "group")
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger",)
_OF_VIEWS: Final = (
    *("path", "storageOptions", "queue", "queues", "queuePattern"),
    *("columns", "view", "failOnDataLoss"),
)


class _Reader:
    """Reads one option after the other, and collects the mistakes."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = {name.lower(): str(value) for name, value in given.items()}
        self.mistakes: list[str] = []

    def has(self, name: str) -> bool:
        return name.lower() in self.given

    def text(self, name: str, default: str = "") -> str:
        value = self.given.get(name.lower())
        if value is None:
            return default
        if not value.strip():
            self.mistakes.append(f"{name} is empty")
        return value.strip()

    def wrong(self, name: str, what: str) -> None:
        self.mistakes.append(f"{name} is {self.given[name.lower()]!r}: {what}")

    def choice(self, name: str, values: tuple[str, ...]) -> str:
        value = self.text(name, values[0]).lower()
        if value not in values:
            self.wrong(name, f"it must be one of {', '.join(values)}")
        return value

    def truth(self, name: str, default: bool) -> bool:
        value = self.text(name, str(default)).lower()
        if value not in ("true", "false"):
            self.wrong(name, "it must be true or false")
        return value == "true"

    def number(self, name: str, default: int, most: int) -> int:
        value = self.text(name, str(default))
        number = int(value) if re.fullmatch(r"[0-9]{1,19}", value) else 0
        if self.has(name) and not 1 <= number <= most:
            self.wrong(name, f"it must be a whole number from 1 to {most}")
        return number

    def size(self, name: str, default: int, least: int) -> int:
        value = self.text(name, str(default))
        found = _SIZE.fullmatch(value)
        size = int(found[1]) << _SHIFTS[found[2].lower()] if found else 0
        if size < least:
            self.wrong(name, f"it must be a number of bytes such as 64m, of at least {least}")
        return size

    def json_object(self, name: str) -> dict[str, object]:
        try:
            value = json.loads(self.text(name, "{}"))
        except ValueError as error:
            self.wrong(name, f"it must be a JSON object: {error}")
            return {}
        if not isinstance(value, dict):
            self.wrong(name, "it must be a JSON object")
            return {}
        return value

    def names(self, name: str) -> tuple[str, ...]:
        return tuple(part for part in map(str.strip, self.text(name).split(",")) if part)

    def time(self, name: str) -> int | None:
        """Return microseconds since the epoch."""
        if not self.has(name):
            return None
        value = self.text(name)
        if _MILLISECONDS.fullmatch(value):
            return int(value) * 1000
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.wrong(
                name, "it must be milliseconds since the epoch, or a time as ISO 8601 writes it"
            )
            return None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(microseconds=1)

    def bounds(self, side: str, default: int, refused: tuple[int, str] | None) -> Bounds:
        """Return the start or end of reading; `refused`: a position invalid there, and its name."""
        offsets_name, time_name = f"{side}Offsets", f"{side}Timestamp"
        if self.has(offsets_name) and self.has(time_name):
            self.mistakes.append(f"{offsets_name} and {time_name} are given, only one is allowed")
        time = self.time(time_name)
        offset, offsets = self._offsets(offsets_name, default)
        if refused and refused[0] in (offset, *offsets.values()):
            other = "earliest" if refused[0] == LATEST else "latest"
            self.wrong(
                offsets_name, f"nothing would be read; {side[:-3]} at {other} or at given offsets"
            )
        return Bounds(offset, offsets, time)

    def _offsets(self, name: str, default: int) -> tuple[int, dict[str, int]]:
        value = self.text(name).lower()
        if not value:
            return default, {}
        if value in ("earliest", "latest"):
            return (EARLIEST if value == "earliest" else LATEST), {}
        given = self.json_object(name)
        offsets = {
            queue: offset
            for queue, offset in given.items()
            if type(offset) is int and EARLIEST <= offset <= OFFSET_MAX
        }
        if len(offsets) < len(given) or not given:
            what = "offsets by queue, -2 for earliest and -1 for latest"
            self.wrong(name, f"it must be earliest, latest, or a JSON object of {what}")
        return default, offsets


def read_options(given: Mapping[str, str], use: str = BATCH) -> ReadOptions:
    """Return the options for batch reading or streams. Raises OptionError, which names all
    mistakes."""
    reader = _Reader(given)
    _check_known(reader, use)
    stream = use == STREAM
    view = reader.choice("view", VIEWS)
    queues, pattern = _selection(reader)
    # A stream may begin with new messages; a batch would have nothing.
    refused = (LATEST, "latest") if use == BATCH else None
    starting = reader.bounds("starting", LATEST if stream else EARLIEST, refused)
    ending = reader.bounds("ending", LATEST, (EARLIEST, "earliest"))
    if view in VIEWS[1:]:
        _check_view(reader, view, stream)
    options = ReadOptions(
        path=_path(reader),
        storage_options=reader.json_object("storageOptions"),
        queues=queues,
        pattern=pattern,
        starting=starting,
        ending=ending,
        min_partitions=reader.number("minPartitions", 0, MIN_PARTITIONS_MAX),
        bytes_per_partition=reader.size(
            "maxBytesPerPartition", BYTES_PER_PARTITION, BYTES_PER_PARTITION_MIN
        ),
        columns=reader.names("columns") if reader.has("columns") else None,
        include_headers=reader.truth("includeHeaders", True),
        group=reader.text("group"),
        state=reader.choice("state", STATES),
        fail_on_data_loss=reader.truth("failOnDataLoss", True),
        verify_checksums=reader.truth("verifyChecksums", True),
        view=view,
        max_offsets_per_trigger=(
            reader.number("maxOffsetsPerTrigger", 0, OFFSET_MAX)
            if reader.has("maxOffsetsPerTrigger")
            else None
        ),
        metrics_path=reader.text("metricsPath"),
    )
    _check_states(reader, options, stream)
    if options.columns is not None and view == VIEW_MESSAGES:
        reader.mistakes += check_names(options.columns, options.all_columns())
    if reader.mistakes:
        raise OptionError(f"options: {'; '.join(reader.mistakes)}")
    return options


def _path(reader: _Reader) -> str:
    if not reader.has("path"):
        reader.mistakes.append("path is missing: a data directory, or a copy of one")
    return reader.text("path")


def _check_known(reader: _Reader, use: str) -> None:
    known = {name.lower(): name for name in _NAMES}
    unknown = sorted(name for name in reader.given if name not in known)
    if unknown:
        reader.mistakes.append(f"unknown: {', '.join(unknown)} (there are {', '.join(_NAMES)})")
    if use != EITHER:
        refused, where = (_BATCH_ONLY, BATCH) if use == STREAM else (_STREAM_ONLY, STREAM)
        reader.mistakes += [f"{name} is for {where}" for name in refused if reader.has(name)]


def _selection(reader: _Reader) -> tuple[tuple[str, ...] | None, str]:
    given = [name for name in ("queue", "queues", "queuePattern") if reader.has(name)]
    if len(given) > 1:
        reader.mistakes.append(f"{' and '.join(given)} are given, only one is allowed")
    if reader.has("queue"):
        return (reader.text("queue"),), ""
    if reader.has("queues"):
        names = tuple(dict.fromkeys(reader.names("queues")))
        if not names and reader.text("queues"):
            reader.wrong("queues", "it names none")
        return names, ""
    pattern = reader.text("queuePattern", ".*")
    try:
        re.compile(pattern)
    except re.error as error:
        reader.wrong("queuePattern", f"it is not a regular expression: {error}")
    return None, pattern


def _check_view(reader: _Reader, view: str, stream: bool) -> None:
    if stream:
        reader.mistakes.append(f"view={view} is for {BATCH}")
    allowed = {name.lower() for name in _OF_VIEWS}
    reader.mistakes += [
        f"{name} is for messages, not for view={view}"
        for name in _NAMES
        if reader.has(name) and name.lower() not in allowed
    ]


def _check_states(reader: _Reader, options: ReadOptions, stream: bool) -> None:
    if options.state == STATE_UNACKNOWLEDGED:
        if stream:
            reader.mistakes.append(f"state={STATE_UNACKNOWLEDGED} is for {BATCH}")
        elif not options.group:
            reader.mistakes.append(f"state={STATE_UNACKNOWLEDGED} needs group, a consumer group")
    if options.state == STATE_DEAD_LETTERED and options.group:
        reader.mistakes.append(f"group does not go with state={STATE_DEAD_LETTERED}")


def given_options(path: str, options: Mapping[str, object]) -> dict[str, str]:
    """Return Python values as options: numbers, booleans, tuples of names, and mappings as JSON."""
    written: dict[type, Callable[[object], str]] = {
        bool: lambda value: str(value).lower(),
        dict: json.dumps,
        list: lambda value: ",".join(map(str, value)),  # type: ignore[call-overload]
        tuple: lambda value: ",".join(map(str, value)),  # type: ignore[call-overload]
    }
    texts = {name: written.get(type(value), str)(value) for name, value in options.items()}
    return {"path": path, **texts}
