"""What clients did and saw, and what was done to the nodes: one record per operation, one line of JSON each.

A history is all that the checker knows, so that it can be checked again later and elsewhere. Times are seconds since the
run began, of one clock. An operation whose outcome is ``unknown`` may have happened. A line is an array: the name of the
record's class, then its fields in order.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import orjson

OK, FAIL, UNKNOWN, SENT = "ok", "fail", "unknown", "sent"
"""Outcomes. ``fail``: it certainly did not happen. ``sent``: nobody answers this kind of operation."""

Key = tuple[int, int]
"""Publisher and sequence: the identity of a message."""


class Group(NamedTuple):
    """A consumer group that has to be given every message of a queue. ``single``: one consumer, so that order shows."""

    name: str
    single: bool


class Queue(NamedTuple):
    """A queue of the run. ``dead_letters``: the name its dead letters are read under, if any."""

    name: str
    kind: str
    group: str
    groups: tuple[Group, ...]
    dead_letters: str


class Run(NamedTuple):
    """The first record: what was run. ``window``: messages that all clients together may have under way; ``share``: the
    most that one connection may."""

    configuration: str
    seed: int
    nodes: tuple[str, ...]
    mode: str
    election_timeout: float
    ack_timeout: float
    window: int
    share: int
    queues: tuple[Queue, ...]


class Publish(NamedTuple):
    """One attempt to publish. A message that is published again has further attempts with the same key. ``why`` says
    what a bad outcome was; ``"timeout"`` means that nobody answered. ``transaction``: number of the one it was part of."""

    client: str
    protocol: str
    node: str
    connection: str
    queues: tuple[str, ...]
    publisher: int
    sequence: int
    digest: str
    invoke: float
    complete: float
    outcome: str
    why: str
    transaction: int


class Deliver(NamedTuple):
    """A message came to a consumer. ``offset`` is -1 where the protocol does not tell it; ``repeat``: it was marked as
    delivered before. A body that is not whole has publisher -1. ``audit``: a reader of everything, in order."""

    client: str
    protocol: str
    node: str
    connection: str
    queue: str
    group: str
    offset: int
    publisher: int
    sequence: int
    digest: str
    repeat: bool
    audit: bool
    time: float


class Settle(NamedTuple):
    """A consumer said what is to become of deliveries. ``verb``: ack, reject or commit (everything up to the one)."""

    client: str
    protocol: str
    node: str
    connection: str
    queue: str
    group: str
    verb: str
    offsets: tuple[int, ...]
    messages: tuple[Key, ...]
    invoke: float
    complete: float
    outcome: str


class Join(NamedTuple):
    """A connection became a consumer; ``invoke``: when it asked."""

    client: str
    connection: str
    node: str
    queue: str
    group: str
    invoke: float


class Lost(NamedTuple):
    """A client's connection ended without the client wanting it."""

    client: str
    connection: str
    node: str
    time: float
    why: str


class Fault(NamedTuple):
    """Something was done to nodes. ``silent``: those named answer nobody meanwhile."""

    kind: str
    nodes: tuple[str, ...]
    begin: float
    end: float
    silent: bool
    note: str


class Probe(NamedTuple):
    """After all faults: something that has to work within ``limit`` seconds."""

    name: str
    invoke: float
    complete: float
    limit: float
    outcome: str
    why: str


class Drained(NamedTuple):
    """Reading of a queue by a group came to its end: what it was not given by now it never will be."""

    queue: str
    group: str
    time: float


class Replica(NamedTuple):
    """A segment on a stopped node's disk: its length, and a digest of as much as every replica has of it."""

    node: str
    queue: str
    segment: str
    length: int
    common: int
    digest: str


class Moved(NamedTuple):
    """A node gave a group's leadership to another, by itself: settlements that nobody answers may be lost with that."""

    group: str
    time: float


class Forced(NamedTuple):
    """A node said that it leads a mirrored group although its copy lacks messages."""

    group: str
    node: str
    time: float


class Finding(NamedTuple):
    """A rule that the harness itself saw broken, such as a node that died of itself."""

    rule: str
    sentence: str


Record = (
    Run
    | Publish
    | Deliver
    | Settle
    | Join
    | Lost
    | Fault
    | Probe
    | Drained
    | Replica
    | Moved
    | Forced
    | Finding
)

KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(
            Run,
            Publish,
            Deliver,
            Settle,
            Join,
            Lost,
            Fault,
            Probe,
            Drained,
            Replica,
            Moved,
            Forced,
            Finding,
        ),
    )
}


class HistoryError(ValueError):
    """A line of a history says nothing that is understood."""


def encode(record: Record) -> bytes:
    """A record as a line."""
    return orjson.dumps([type(record).__name__, *record], default=list) + b"\n"


def decode(line: bytes) -> Record:
    """The record of a line. Raises ``HistoryError``."""
    try:
        name, *fields = orjson.loads(line)
        kind = KINDS[name]
        if kind is Run:
            fields[2] = tuple(fields[2])
            fields[-1] = tuple(_queue(each) for each in fields[-1])
        elif kind is Publish:
            fields[4] = tuple(fields[4])
        elif kind is Settle:
            fields[7] = tuple(fields[7])
            fields[8] = tuple((first, second) for first, second in fields[8])
        elif kind is Fault:
            fields[1] = tuple(fields[1])
        record: Record = kind(*fields)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise HistoryError(f"not a record: {line[:80]!r}: {error}") from None
    return record


def _queue(fields: list[Any]) -> Queue:
    name, kind, group, groups, dead_letters = fields
    return Queue(name, kind, group, tuple(Group(*each) for each in groups), dead_letters)


def read(lines: Iterable[bytes]) -> Iterator[Record]:
    """The records of a history. Raises ``HistoryError``; a last line that was cut off is left out."""
    for line in lines:
        if line.endswith(b"\n"):
            yield decode(line)


class History:
    """Writes records to a file as they are made, and tells the time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._file: IO[bytes] = path.open("wb", buffering=1 << 18)
        self._began = time.monotonic()
        self.epoch = time.time()
        """When the run began, as clocks on walls have it: nodes' logs do."""

    def now(self) -> float:
        """Seconds since the run began."""
        return round(time.monotonic() - self._began, 6)

    def write(self, record: Record) -> None:
        """Keep a record."""
        self._file.write(encode(record))
        self.count += 1

    def close(self) -> None:
        """No more will be written."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
