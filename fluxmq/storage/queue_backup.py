"""The backup of one queue: a directory with its definition, and the copy of its log.

::

    DIR/queue.json                              definition, bindings, and the position (`QueueManifest`)
    DIR/groups/<group>/queues/<queue>/*         segments, indexes, head, and the file `groups`

The copy has the layout of a data directory, so that other tools read it as one. The file `groups` is
of the moment of the backup: `queue.json` names the offset after the last message then, and the file
says which of those before were settled. Later messages in the segments are not part of the backup.

Reads the copy and builds batches to append; knows nothing of the broker that takes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, Self

from fluxmq.model import group_states
from fluxmq.model.batch_format import (
    ATTRIBUTE_REDELIVERED,
    MESSAGES_MAX,
    PAYLOAD_BYTES_MAX,
)
from fluxmq.model.batches import BatchMessage, columns, encode
from fluxmq.model.group_states import GROUPS_NAME, ConsumerGroupState, QueueGroups
from fluxmq.model.segments import SegmentError
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.inspect import log_batches

MANIFEST_NAME: Final = "queue.json"
FORMAT_VERSION: Final = 1
STREAM_TYPE: Final = "stream"


class NotABackupError(StorageError):
    """The directory is no backup of a queue that this program reads."""


@dataclass(frozen=True, slots=True)
class QueueManifest:
    """The file `queue.json`.

    ``definition``: ``queues`` (one) and ``bindings``, as RabbitMQ's JSON has them. ``next_offset``:
    the backup's position. ``messages``: how many a restore appends. ``made``: UTC, as in ISO 8601.
    """

    definition: dict[str, Any]
    group: str
    internal: str
    next_offset: int
    messages: int
    made: str
    version: str

    @property
    def queue(self) -> dict[str, Any]:
        """The queue's definition."""
        found: dict[str, Any] = self.definition["queues"][0]
        return found

    @property
    def bindings(self) -> list[dict[str, Any]]:
        """The queue's bindings."""
        return list(self.definition.get("bindings", ()))

    @property
    def is_stream(self) -> bool:
        """True for a stream, whose messages stay when they have been read."""
        return self.queue.get("type") == STREAM_TYPE

    def encode(self) -> bytes:
        """Return the file's content."""
        body = {
            "format": FORMAT_VERSION,
            "version": self.version,
            "made": self.made,
            "group": self.group,
            "internal_name": self.internal,
            "next_offset": self.next_offset,
            "messages": self.messages,
            **self.definition,
        }
        return json.dumps(body, indent=2).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read the file's content. Raises NotABackupError."""
        try:
            body = json.loads(data)
            if body["format"] != FORMAT_VERSION:
                text = f"a backup of format {body['format']}; this program reads {FORMAT_VERSION}"
                raise NotABackupError(text)
            definition = {"queues": body["queues"], "bindings": body["bindings"]}
            (queue,) = definition["queues"]
            found = cls(
                definition,
                *(str(body["group"]), str(body["internal_name"])),
                *(int(body["next_offset"]), int(body["messages"])),
                *(str(body["made"]), str(body["version"])),
            )
            str(queue["name"]), str(queue["vhost"]), [dict(each) for each in found.bindings]
        except (ValueError, KeyError, TypeError) as problem:
            raise NotABackupError(f"{MANIFEST_NAME} cannot be read: {problem!r}") from problem
        return found


class OffsetRange(NamedTuple):
    """First and last offset of messages, and whether they have been delivered before."""

    first: int
    last: int
    delivered: bool


def wanted_ranges(state: QueueGroups, *, stream: bool) -> list[OffsetRange]:
    """Return the messages of a queue that a restore has to append, in order and disjoint: all of a
    stream, otherwise those that any consumer group has not settled."""
    end = state.next_offset
    if stream or not state.groups:
        return _cut([(state.start, end - 1)], [], state)
    open_, delivered = [], []
    for group in state.groups:
        open_ += _unsettled(group, end)
        delivered += [(first, last) for first, last, attempts in group.pending if attempts]
    return _cut(open_, delivered, state)


def _unsettled(group: ConsumerGroupState, end: int) -> list[tuple[int, int]]:
    """Return the ranges that a group has not settled; from its floor on if they are not known."""
    if not group.whole:
        return [(group.floor, end - 1)]
    ranges = [(first, last) for first, last, _ in (*group.pending, *group.dead)]
    return [*ranges, (group.cursor, end - 1)]


def _cut(
    ranges: list[tuple[int, int]], delivered: list[tuple[int, int]], state: QueueGroups
) -> list[OffsetRange]:
    """Return the union of `ranges` within the queue, cut where messages begin or cease to be in
    `delivered`."""
    known = _union(delivered, state)
    found: list[OffsetRange] = []
    number = 0
    for first, last in _union(ranges, state):
        at = first
        while number < len(known) and known[number][1] < at:
            number += 1
        for begin, end in islice(known, number, None):
            if begin > last:
                break
            begin, end = max(begin, at), min(end, last)
            if begin > at:
                found.append(OffsetRange(at, begin - 1, False))
            found.append(OffsetRange(begin, end, True))
            at = end + 1
        if at <= last:
            found.append(OffsetRange(at, last, False))
    return found


def _union(ranges: Iterable[tuple[int, int]], state: QueueGroups) -> list[tuple[int, int]]:
    """Return ranges of what the queue holds, in order and disjoint."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        first, last = max(first, state.start), min(last, state.next_offset - 1)
        if first > last:
            continue
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


class QueueBackup:
    """A backup on disk. Raises NotABackupError, or StorageError when it cannot be read."""

    def __init__(self, files: Files, directory: str) -> None:
        path = f"{directory}/{MANIFEST_NAME}"
        if not files.exists(path):
            raise NotABackupError(f"{directory} is no backup of a queue: it has no {MANIFEST_NAME}")
        self._files = files
        self.manifest = QueueManifest.decode(files.read_file(path))
        self._log = DataPaths(directory).queue(self.manifest.group, self.manifest.internal)

    def ranges(self) -> list[OffsetRange]:
        """Return the messages to append."""
        try:
            state = group_states.decode(self._files.read_file(f"{self._log}/{GROUPS_NAME}"))
        except SegmentError as problem:
            raise NotABackupError(f"{self._log}/{GROUPS_NAME}: {problem}") from problem
        return wanted_ranges(state, stream=self.manifest.is_stream)

    def messages(self) -> Iterator[BatchMessage]:
        """Yield the messages to append, in order, without what belongs to the old queue: their times
        and the numbers of their producers. Raises Corruption at the first defect."""
        ranges = self.ranges()
        if not ranges:
            return
        at = 0
        for batch in log_batches(self._files, self._log, ranges[0].first):
            if batch.last_offset < ranges[at].first:
                continue
            whole = columns(batch.header() + bytes(batch.body()), verify=False)
            for offset, message in enumerate(whole.messages(), batch.base_offset):
                if offset > ranges[at].last:
                    at += 1
                    if at == len(ranges):
                        return
                if offset >= ranges[at].first:
                    attributes = message.attributes
                    attributes |= ATTRIBUTE_REDELIVERED if ranges[at].delivered else 0
                    yield message._replace(time_us=0, producer=0, sequence=0, attributes=attributes)

    def batches(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number of messages and the bytes of each batch to append: always the same
        batches, so that a restore continues where another one ended."""
        waiting: list[BatchMessage] = []
        waiting_bytes = 0
        for message in self.messages():
            size = len(message.key) + len(message.properties) + len(message.payload)
            full = len(waiting) == MESSAGES_MAX or waiting_bytes + size > PAYLOAD_BYTES_MAX
            if waiting and full:
                yield len(waiting), encode(waiting)
                waiting, waiting_bytes = [], 0
            waiting.append(message)
            waiting_bytes += size
        if waiting:
            yield len(waiting), encode(waiting)
