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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from fluxmq.ipc.messages import Body, Fields, MessageError
from fluxmq.storage.directory import Placement

PLACEMENT: Final = "placement"
RELEASE: Final = "release"
EXPECT: Final = "expect"
RECEIVE: Final = "receive"
PIN: Final = "pin"
UNPIN: Final = "unpin"
GROUPS: Final = "groups"
QUEUES: Final = "queues"

GROUP_CHARACTERS_MAX: Final = 255
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


def placement_to_body(placement: Placement) -> dict[str, object]:
    """Encode a placement."""
    return {
        "workers": placement.workers,
        "local_groups": placement.local_groups,
        "pins": dict(placement.pins),
        "groups": dict(placement.groups),
        "moving": dict(placement.moving),
        "revision": placement.revision,
    }


def placement_from_body(body: Body) -> Placement:
    """Read a placement. Raises MessageError."""
    fields = Fields(body, PLACEMENT)
    return Placement(
        fields.integer("workers", 1, SHARDS_MAX),
        fields.integer("local_groups", 1),
        _shards(fields, "pins"),
        _shards(fields, "groups"),
        _shards(fields, "moving"),
        fields.integer("revision"),
    )


def _shards(fields: Fields, name: str) -> Mapping[str, int]:
    found = fields.optional(name)
    if not isinstance(found, dict) or len(found) > GROUPS_MAX:
        raise MessageError(f"placement.{name} is not a map")
    for group, shard in found.items():
        if not isinstance(group, str) or type(shard) is not int or shard < 0:
            raise MessageError(f"placement.{name} holds something that is no group and shard")
    return found


@dataclass(frozen=True, slots=True)
class Release:
    """Command for a group to leave the shard, answered with `Released` once all of it is durable
    for the next shard."""

    group: str

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"group": self.group}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        return cls(Fields(body, RELEASE).text("group", GROUP_CHARACTERS_MAX))


@dataclass(frozen=True, slots=True)
class Released:
    """Final state of a released group: its hard state, index and term of its snapshot, and its last
    log entry.

    `stopped`: since when, seconds.
    """

    group: str
    term: int
    vote: int
    commit: int
    index: int
    index_term: int
    last: int
    stopped: float

    def to_body(self) -> dict[str, object]:
        """Return the body to send; also that of `receive`."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, RELEASE)
        group = fields.text("group", GROUP_CHARACTERS_MAX)
        return cls(
            group,
            fields.integer("term"),
            fields.integer("vote"),
            fields.integer("commit"),
            fields.integer("index"),
            fields.integer("index_term"),
            fields.integer("last"),
            fields.number("stopped"),
        )


@dataclass(frozen=True, slots=True)
class Pin:
    """Pin a group to the shard of a core, or to a shard by number. Exactly one of them is not
    -1."""

    group: str
    core: int = -1
    shard: int = -1

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"group": self.group, "core": self.core, "shard": self.shard}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, PIN)
        return cls(
            fields.text("group", GROUP_CHARACTERS_MAX),
            fields.integer("core", -1),
            fields.integer("shard", -1),
        )


@dataclass(frozen=True, slots=True)
class Placed:
    """The answer to pin and unpin: the group's shard, whether it moved, and how long it paused, in
    seconds."""

    shard: int
    core: int
    moved: bool
    pause: float

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, PIN)
        return cls(
            fields.integer("shard"),
            fields.integer("core", -1),
            fields.boolean("moved"),
            fields.number("pause"),
        )


# --- listings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A replication group as its shard reports it.

    `role`: "leader", "follower", "candidate", "starting", "leaving" or "failed" (`problem` says
    why). `bytes`: of its queues' segments. `fsync_p99`: seconds, of its log's last syncs; 0 before
    the first. `leader`: the node that leads it, empty while unknown; None for a group local to this
    node.
    """

    group: str
    shard: int
    core: int
    pinned: bool
    role: str
    problem: str
    durability: str
    queues: int
    bytes: int
    messages: int
    term: int
    applied: int
    snapshot: int
    uncommitted: int
    fsync_p99: float
    leader: str | None = None

    def to_body(self) -> dict[str, object]:
        """Encode the row."""
        body: dict[str, object] = {name: getattr(self, name) for name in self.__slots__}
        if self.leader is None:
            del body["leader"]
        return body

    @classmethod
    def from_body(cls, body: object) -> Self:
        """Read a row. Raises MessageError."""
        fields = Fields(body, "group")
        led = fields.optional("leader") is not None
        return cls(
            fields.text("group", GROUP_CHARACTERS_MAX),
            fields.integer("shard"),
            fields.integer("core", -1),
            fields.boolean("pinned"),
            fields.text("role", 32),
            fields.text("problem"),
            fields.text("durability", 32),
            fields.integer("queues"),
            fields.integer("bytes"),
            fields.integer("messages"),
            fields.integer("term"),
            fields.integer("applied"),
            fields.integer("snapshot"),
            fields.integer("uncommitted"),
            fields.number("fsync_p99"),
            fields.text("leader", GROUP_CHARACTERS_MAX) if led else None,
        )


@dataclass(frozen=True, slots=True)
class ConsumerGroupRow:
    """A consumer group of a queue. `lag`: messages not delivered to it yet; `unsettled`: delivered
    and not settled."""

    name: str
    mode: str
    members: int
    lag: int
    unsettled: int

    def to_body(self) -> dict[str, object]:
        """Encode the row."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_body(cls, body: object) -> Self:
        """Read a row. Raises MessageError."""
        fields = Fields(body, "consumer group")
        return cls(
            fields.text("name"),
            fields.text("mode", 32),
            fields.integer("members"),
            fields.integer("lag"),
            fields.integer("unsettled"),
        )


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue as its shard reports it. `first` and `next`: offsets of the first message kept and of
    the next one."""

    queue: str
    type: str
    group: str
    shard: int
    durability: str
    messages: int
    bytes: int
    first: int
    next: int
    dead_lettered: int
    consumers: int
    groups: tuple[ConsumerGroupRow, ...]

    def to_body(self) -> dict[str, object]:
        """Encode the row."""
        body: dict[str, object] = {name: getattr(self, name) for name in self.__slots__}
        body["groups"] = [group.to_body() for group in self.groups]
        return body

    @classmethod
    def from_body(cls, body: object) -> Self:
        """Read a row. Raises MessageError."""
        fields = Fields(body, "queue")
        return cls(
            fields.text("queue"),
            fields.text("type", 32),
            fields.text("group", GROUP_CHARACTERS_MAX),
            fields.integer("shard"),
            fields.text("durability", 32),
            fields.integer("messages"),
            fields.integer("bytes"),
            fields.integer("first"),
            fields.integer("next"),
            fields.integer("dead_lettered"),
            fields.integer("consumers"),
            tuple(
                ConsumerGroupRow.from_body(item)
                for item in fields.items("groups", CONSUMER_GROUPS_LISTED_MAX)
            ),
        )


@dataclass(frozen=True, slots=True)
class GroupListing:
    """Groups of a shard, or of the node; `missing` are the shards that did not answer."""

    groups: tuple[GroupRow, ...]
    missing: tuple[str, ...] = ()

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"groups": [row.to_body() for row in self.groups], "missing": list(self.missing)}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, GROUPS)
        rows = tuple(GroupRow.from_body(item) for item in fields.items("groups", GROUPS_MAX))
        return cls(rows, fields.texts("missing", SHARDS_MAX))


@dataclass(frozen=True, slots=True)
class QueueListing:
    """Queues of a shard, or of the node; `left_out` counts those beyond the limit, `missing` as in
    `GroupListing`."""

    queues: tuple[QueueRow, ...]
    left_out: int = 0
    missing: tuple[str, ...] = ()

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {
            "queues": [row.to_body() for row in self.queues],
            "left_out": self.left_out,
            "missing": list(self.missing),
        }

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, QUEUES)
        limit = QUEUES_LISTED_MAX * SHARDS_MAX
        rows = tuple(QueueRow.from_body(item) for item in fields.items("queues", limit))
        return cls(rows, fields.integer("left_out"), fields.texts("missing", SHARDS_MAX))
