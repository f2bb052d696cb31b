"""Messages about exchanges, queues, bindings, policies and virtual hosts.

    control -> shard             topology (after hello from nothing, then each change)
    shard, fluxmqctl -> control  topology_change

Control decides; a shard keeps a copy by applying deltas in order. Rows and changes are the plain
values of `fluxmq.routing.topology`; only their shape is checked here. A delta too large for one
message comes in parts, and takes effect with the last. Pure, like `messages`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import msgpack  # type: ignore[import-untyped]
from msgspec import Meta

from fluxmq.ipc.messages import Body, MessageBody, Natural, NaturalOrUnknown, ProcessNames
from fluxmq.routing.topology.changes import Change, pack, unpack
from fluxmq.routing.topology.records import KINDS
from fluxmq.routing.topology.refusals import PRECONDITION_FAILED, Refusal
from fluxmq.routing.topology.topology import TopologyRow

TOPOLOGY: Final = "topology"
TOPOLOGY_CHANGE: Final = "topology_change"

FROM_NOTHING: Final = -1
"""Revision before the first part of a whole topology."""
PART_ROWS_MAX: Final = 8192
PART_BYTES_MAX: Final = 1 << 20
"""Rows and bytes of one part, by their number and size as msgpack; a larger row travels alone."""
SETS_MAX: Final = 1024
"""Sets of changes in one request, and changes in a set."""
SET_BYTES_MAX: Final = 1 << 20
"""Bytes of one set of changes: an AMQP method, an eighth of this, makes one set."""


def connection_id(shard: int, pid: int, number: int, node: str = "") -> str:
    """Return the id of a shard's connection, which its exclusive queues carry; `node` in a cluster.

    The shard's process id in it identifies what a dead shard left behind.
    """
    return f"{shard}.{pid}.{number}" + (f"@{node}" if node else "")


def shard_of_connection(connection: str, node: str = "") -> tuple[int, int] | None:
    """Return number and process id of a connection's shard; None for another id, or node."""
    place, _, where = connection.partition("@")
    found = re.fullmatch(r"(\d{1,6})\.(\d{1,12})\.\d+", place, re.ASCII)
    return None if found is None or where != node else (int(found[1]), int(found[2]))


class TopologyPart(MessageBody, frozen=True):
    """Rows that lead from revision `previous` (`FROM_NOTHING`) to `revision`.

    `number` counts the parts from 0; `more`: others follow before it takes effect. The shard
    answers each with the revision it has then (`user_messages.Confirmed`). `rows` are those of
    `topology.Row`.
    """

    previous: NaturalOrUnknown
    revision: Natural
    rows: Annotated[
        tuple[tuple[str, Annotated[tuple[Any, ...], Meta(min_length=1)], Any], ...],
        Meta(max_length=PART_ROWS_MAX),
    ]
    number: Natural = 0
    more: bool = False

    def unusable(self) -> str | None:
        """Return which row is of an unknown kind, or has a key that is not texts."""
        for kind, key, _ in self.rows:
            if kind not in KINDS or not all(isinstance(part, str | bytes) for part in key):
                return f"topology.rows holds a row of kind {kind!r} with the key {key!r}"
        return None


def parts(previous: int, revision: int, rows: Sequence[TopologyRow]) -> Iterator[TopologyPart]:
    """Cut the rows from one revision to another into messages; at least one."""
    begin, size, number = 0, 0, 0
    for index, row in enumerate(rows):
        row_bytes = len(msgpack.packb(row))
        full = size + row_bytes > PART_BYTES_MAX or index - begin == PART_ROWS_MAX
        if full and index > begin:
            yield TopologyPart(previous, revision, tuple(rows[begin:index]), number, more=True)
            begin, size, number = index, 0, number + 1
        size += row_bytes
    yield TopologyPart(previous, revision, tuple(rows[begin:]), number)


Packed = list[list[Any]]
"""Encoded set of changes."""


def pack_set(changes: Sequence[Change]) -> Packed:
    """Encode a set of changes. Raises ValueError when it is malformed or too large."""
    if not 0 < len(changes) <= SETS_MAX:
        raise ValueError(f"not 1 to {SETS_MAX} changes")
    packed = [pack(change) for change in changes]
    if packed_bytes(packed) > SET_BYTES_MAX:
        raise ValueError(f"the changes take more than {SET_BYTES_MAX} bytes")
    return packed


def packed_bytes(packed: Packed) -> int:
    """Return the bytes that a set takes in a message."""
    return len(msgpack.packb(packed))


def change_body(sets: Sequence[Packed]) -> dict[str, object]:
    """Return the body of topology_change: sets requested together, each made whole or not at all,
    in order."""
    return {"sets": list(sets)}


class _Sets(MessageBody, frozen=True):
    """Sets of changes as packed by `pack_set`; each is unpacked by itself."""

    sets: Annotated[tuple[Any, ...], Meta(max_length=SETS_MAX)]


def read_sets(body: Body) -> list[tuple[Change, ...] | Refusal]:
    """Read a body; a malformed set is refused alone. Raises MessageError."""
    return [_changes(item) for item in _Sets.from_body(body).sets]


def _changes(item: object) -> tuple[Change, ...] | Refusal:
    if not isinstance(item, list | tuple) or not 0 < len(item) <= SETS_MAX:
        return Refusal(PRECONDITION_FAILED, "not a set of changes")
    try:
        return tuple(unpack(change) for change in item)
    except ValueError as error:
        return Refusal(PRECONDITION_FAILED, str(error))


class TopologyChanged(MessageBody, frozen=True):
    """The answer: per set None or its refusal; the revision of all of it; the shards that did not
    confirm in time."""

    revision: Natural
    results: Annotated[tuple[Refusal | None, ...], Meta(max_length=SETS_MAX)]
    unconfirmed: ProcessNames = ()
