"""Placement of groups, and the messages that move a group from shard to shard.

Only the control process writes the placement. It sends it to every shard that says hello, and to
all of them at each change::

    control -> shard             placement, expect (a group may come), release (a group is to
                                 leave), receive (it will come), groups, queues
    fluxmqctl -> control         pin, unpin, groups, queues

Pure, like `messages`; `control.placing` and the shards carry moves out.
"""

from __future__ import annotations

import zlib
from typing import Annotated, Any, Final

from msgspec import Meta
from msgspec.structs import astuple

from fluxmq.ipc.messages import (
    Body,
    MessageBody,
    Name,
    Natural,
    NaturalOrUnknown,
    Text,
    Word,
    to_plain,
)
from fluxmq.storage.directory import Placement

PLACEMENT: Final = "placement"
RELEASE: Final = "release"
EXPECT: Final = "expect"
RECEIVE: Final = "receive"
PIN: Final = "pin"
UNPIN: Final = "unpin"
GROUPS: Final = "groups"
QUEUES: Final = "queues"

GROUPS_MAX: Final = 65_536
"""Maximum number of groups of a shard's log, and of a message."""
SHARDS_MAX: Final = 256
QUEUES_LISTED_MAX: Final = 5000
"""Queues of one shard in one listing, which has to fit in a frame and tells when there are more."""
CONSUMER_GROUPS_LISTED_MAX: Final = 100
"""Consumer groups listed of one queue."""


def number_of(name: str, count: int) -> int:
    """Return a number below `count` that depends on the name alone, equal in every process and
    release."""
    return zlib.crc32(name.encode()) % count


def shard_of(placement: Placement, group: str) -> int:
    """Return the shard of a group: where it is pinned, else recorded, else where its name hashes
    to."""
    workers = placement.workers
    for where in (placement.pins, placement.groups):
        found = where.get(group)
        if found is not None and found < workers:
            return found
    return number_of(group, workers)


def placement_to_body(placement: Placement) -> dict[str, Any]:
    """Encode a placement."""
    body: dict[str, Any] = to_plain(placement)
    return body


Shards = Annotated[dict[Text, Natural], Meta(max_length=GROUPS_MAX)]
"""Shards by group."""


class _Placement(MessageBody, frozen=True):
    """The bounds of a placement."""

    workers: Annotated[int, Meta(ge=1, le=SHARDS_MAX)]
    local_groups: Annotated[int, Meta(ge=1)]
    pins: Shards
    groups: Shards
    moving: Shards
    revision: Natural


def placement_from_body(body: Body) -> Placement:
    """Read a placement. Raises MessageError."""
    return Placement(*astuple(_Placement.from_body(body)))


class Release(MessageBody, frozen=True):
    """Command for a group to leave the shard, answered with `ReleasedGroup` once all of it is
    durable for the next shard."""

    group: Name


class ReleasedGroup(MessageBody, frozen=True):
    """Final state of a released group: its hard state, index and term of its snapshot, and its last
    log entry.

    `stopped`: since when, seconds.
    """

    group: Name
    term: Natural
    vote: Natural
    commit: Natural
    index: Natural
    index_term: Natural
    last: Natural
    stopped: float


class Pin(MessageBody, frozen=True):
    """Pin a group to the shard of a core, or to a shard by number. Exactly one of them is not
    -1."""

    group: Name
    core: NaturalOrUnknown = -1
    shard: NaturalOrUnknown = -1


class PinResult(MessageBody, frozen=True):
    """The answer to pin and unpin: the group's shard, whether it moved, and how long it paused, in
    seconds."""

    shard: Natural
    core: NaturalOrUnknown
    moved: bool
    pause: float


# --- listings --------------------------------------------------------------------------------------------------------


class GroupRow(MessageBody, frozen=True, omit_defaults=True):
    """A replication group as its shard reports it.

    `role`: "leader", "follower", "candidate", "starting", "leaving" or "failed" (`problem` says
    why). `bytes`: of its queues' segments. `fsync_p99`: seconds, of its log's last syncs; 0 before
    the first. `leader`: the node that leads it, empty while unknown; None for a group local to this
    node.
    """

    group: Name
    shard: Natural
    core: NaturalOrUnknown
    pinned: bool
    role: Word
    problem: Text
    durability: Word
    queues: Natural
    bytes: Natural
    messages: Natural
    term: Natural
    applied: Natural
    snapshot: Natural
    uncommitted: Natural
    fsync_p99: float
    leader: Name | None = None


class ConsumerGroupRow(MessageBody, frozen=True):
    """A consumer group of a queue. `lag`: messages not delivered to it yet; `unsettled`: delivered
    and not settled."""

    name: Text
    mode: Word
    members: Natural
    lag: Natural
    unsettled: Natural


class QueueRow(MessageBody, frozen=True):
    """A queue as its shard reports it. `first` and `next`: offsets of the first message kept and of
    the next one."""

    queue: Text
    type: Word
    group: Name
    shard: Natural
    durability: Word
    messages: Natural
    bytes: Natural
    first: Natural
    next: Natural
    dead_lettered: Natural
    consumers: Natural
    groups: Annotated[tuple[ConsumerGroupRow, ...], Meta(max_length=CONSUMER_GROUPS_LISTED_MAX)]


Missing = Annotated[tuple[Text, ...], Meta(max_length=SHARDS_MAX)]
"""Shards that did not answer."""


class GroupListing(MessageBody, frozen=True):
    """Groups of a shard, or of the node; `missing` are the shards that did not answer."""

    groups: Annotated[tuple[GroupRow, ...], Meta(max_length=GROUPS_MAX)]
    missing: Missing = ()


class QueueListing(MessageBody, frozen=True):
    """Queues of a shard, or of the node; `left_out` counts those beyond the limit, `missing` as in
    `GroupListing`."""

    queues: Annotated[tuple[QueueRow, ...], Meta(max_length=QUEUES_LISTED_MAX * SHARDS_MAX)]
    left_out: Natural = 0
    missing: Missing = ()
