"""What is said about the replication groups of a cluster: how each does, and what is to become of it.

::

    control -> shard             raft, transfer, member_change, can_stop, audit
    fluxmqctl -> control         raft, transfer, rebalance, can_stop, member_change, forget_node, audit
    shard -> shard               hash

Shards of different nodes ask each other the same things with the same bodies: whoever is asked about a group passes the
question on to the shard that leads it. Pure, like `messages`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from fluxmq.ipc.messages import Body, Fields, MessageError
from fluxmq.ipc.placements import GROUP_CHARACTERS_MAX, GROUPS_MAX

RAFT: Final = "raft"
TRANSFER: Final = "transfer"
REBALANCE: Final = "rebalance"
CAN_STOP: Final = "can_stop"
MEMBER_CHANGE: Final = "member_change"
FORGET_NODE: Final = "forget_node"
AUDIT: Final = "audit"
HASH: Final = "hash"

NODE_CHARACTERS_MAX: Final = 255
HASH_CHARACTERS_MAX: Final = 16
MEMBERS_LISTED_MAX: Final = 64
"""Members of one group: as many as a group may have."""
UNKNOWN: Final = -1
"""Stands for a number that only the leader, or nobody, knows."""

VOTER: Final = "voter"
LEARNER: Final = "learner"

ADD: Final = "add"
REMOVE: Final = "remove"
CHANGES: Final = (ADD, REMOVE)


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member of a group. ``match``: index up to which its log is known to be the leader's; ``lag``: entries it is behind;
    ``state``: how the leader sends to it (probe, replicate, snapshot). `UNKNOWN` where nobody who was asked leads.

    ``contact``: milliseconds since it was last heard of by ``seen_by``, `UNKNOWN` for that node itself, or before it was.
    """

    node: str
    number: int
    kind: str
    leads: bool
    seen_by: str
    match: int
    lag: int
    state: str
    connected: bool
    contact: int
    doubt: str
    """Why what it says is not believed; empty when it is."""

    def to_body(self) -> dict[str, object]:
        """Return the row as it travels."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_body(cls, body: object) -> Self:
        """Read a row. Raises MessageError."""
        fields = Fields(body, "member")
        return cls(
            fields.text("node", NODE_CHARACTERS_MAX),
            fields.integer("number"),
            fields.text("kind", 32),
            fields.boolean("leads"),
            fields.text("seen_by", NODE_CHARACTERS_MAX),
            fields.integer("match", UNKNOWN),
            fields.integer("lag", UNKNOWN),
            fields.text("state", 32),
            fields.boolean("connected"),
            fields.integer("contact", UNKNOWN),
            fields.text("doubt"),
        )


@dataclass(frozen=True, slots=True)
class RaftRow:
    """A replicated group as one node tells of it; ``members`` as its leader does, where that could be asked.

    ``role``: of ``node``: leader, follower, candidate, starting (it leads and is not done taking over), leaving, failed.
    ``leader``: a node, empty while nobody is known. ``elections``: times that the node began to lead. ``snapshot``: index.
    ``fsync_p99``: seconds. ``shard``: `UNKNOWN` for the group that control processes have among themselves.
    """

    group: str
    node: str
    shard: int
    role: str
    problem: str
    term: int
    leader: str
    commit: int
    applied: int
    last: int
    snapshot: int
    elections: int
    fsync_p99: float
    members: tuple[MemberRow, ...]

    def to_body(self) -> dict[str, object]:
        """Return the row as it travels."""
        body: dict[str, object] = {name: getattr(self, name) for name in self.__slots__}
        body["members"] = [member.to_body() for member in self.members]
        return body

    @classmethod
    def from_body(cls, body: object) -> Self:
        """Read a row. Raises MessageError."""
        fields = Fields(body, "group")
        return cls(
            fields.text("group", GROUP_CHARACTERS_MAX),
            fields.text("node", NODE_CHARACTERS_MAX),
            fields.integer("shard", UNKNOWN),
            fields.text("role", 32),
            fields.text("problem"),
            fields.integer("term"),
            fields.text("leader", NODE_CHARACTERS_MAX),
            fields.integer("commit"),
            fields.integer("applied"),
            fields.integer("last"),
            fields.integer("snapshot"),
            fields.integer("elections"),
            fields.number("fsync_p99"),
            tuple(
                MemberRow.from_body(item) for item in fields.items("members", MEMBERS_LISTED_MAX)
            ),
        )


@dataclass(frozen=True, slots=True)
class RaftWanted:
    """Which groups are asked about: one, or with an empty name all; ``everywhere``: those too that this node has not."""

    group: str = ""
    everywhere: bool = False

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"group": self.group, "everywhere": self.everywhere}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, RAFT)
        return cls(fields.text("group", GROUP_CHARACTERS_MAX), fields.boolean("everywhere"))


@dataclass(frozen=True, slots=True)
class RaftListing:
    """Replicated groups; ``missing`` are the shards that did not answer."""

    groups: tuple[RaftRow, ...]
    missing: tuple[str, ...] = ()

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"groups": [row.to_body() for row in self.groups], "missing": list(self.missing)}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, RAFT)
        rows = tuple(RaftRow.from_body(item) for item in fields.items("groups", GROUPS_MAX))
        return cls(rows, fields.texts("missing", MEMBERS_LISTED_MAX * 4))


@dataclass(frozen=True, slots=True)
class Transfer:
    """A group is to be led by a node; an empty one: by whoever is nearest to having all of it. Also the answer."""

    group: str
    node: str = ""

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"group": self.group, "node": self.node}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, TRANSFER)
        return cls(
            fields.text("group", GROUP_CHARACTERS_MAX), fields.text("node", NODE_CHARACTERS_MAX)
        )


@dataclass(frozen=True, slots=True)
class MemberChange:
    """A node is to become a member of a group (``add``), or to be one no longer (``remove``)."""

    group: str
    node: str
    change: str

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, MEMBER_CHANGE)
        change = fields.text("change", 16)
        if change not in CHANGES:
            raise MessageError(f"{MEMBER_CHANGE}.change {change!r} is none of {', '.join(CHANGES)}")
        return cls(
            fields.text("group", GROUP_CHARACTERS_MAX),
            fields.text("node", NODE_CHARACTERS_MAX),
            change,
        )


EQUAL: Final = "equal"
DIFFERS: Final = "differs"
NOT_COMPARED: Final = "not compared"


@dataclass(frozen=True, slots=True)
class AuditWanted:
    """The copies of a group are to be compared now."""

    group: str

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"group": self.group}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        return cls(Fields(body, AUDIT).text("group", GROUP_CHARACTERS_MAX))


@dataclass(frozen=True, slots=True)
class HashWanted:
    """A member is to tell its rolling hash once it has applied an entry. ``passed``: a shard of its node has passed this on."""

    group: str
    index: int
    passed: bool = False

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, HASH)
        return cls(
            fields.text("group", GROUP_CHARACTERS_MAX),
            fields.integer("index"),
            fields.boolean("passed"),
        )


@dataclass(frozen=True, slots=True)
class HashTold:
    """A member's rolling hash at the index that was asked for, in hexadecimal: 64 bits are more than messages' integers."""

    rolling: str

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"rolling": self.rolling}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        return cls(Fields(body, HASH).text("rolling", HASH_CHARACTERS_MAX))


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A member's copy at one index. ``verdict``: `EQUAL`, `DIFFERS` or `NOT_COMPARED`; ``problem``: why it was not."""

    node: str
    kind: str
    index: int
    rolling: str
    verdict: str
    problem: str = ""

    def to_body(self) -> dict[str, object]:
        """Return the row as it travels."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_body(cls, body: object) -> Self:
        """Read a row. Raises MessageError."""
        fields = Fields(body, "copy")
        return cls(
            fields.text("node", NODE_CHARACTERS_MAX),
            fields.text("kind", 32),
            fields.integer("index"),
            fields.text("rolling", HASH_CHARACTERS_MAX),
            fields.text("verdict", 32),
            fields.text("problem"),
        )


@dataclass(frozen=True, slots=True)
class AuditListing:
    """The copies of one group, compared at one index."""

    group: str
    rows: tuple[AuditRow, ...]

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"group": self.group, "rows": [row.to_body() for row in self.rows]}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, AUDIT)
        rows = fields.items("rows", MEMBERS_LISTED_MAX)
        return cls(
            fields.text("group", GROUP_CHARACTERS_MAX),
            tuple(AuditRow.from_body(item) for item in rows),
        )


@dataclass(frozen=True, slots=True)
class ForgetNode:
    """A node is to be a member of no group any more; ``force``: although it is in contact."""

    node: str
    force: bool = False

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"node": self.node, "force": self.force}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, FORGET_NODE)
        return cls(fields.text("node", NODE_CHARACTERS_MAX), fields.boolean("force"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an order for one group. ``problem``: why nothing; ``node``: which node it concerns."""

    group: str
    node: str
    problem: str = ""

    def to_body(self) -> dict[str, object]:
        """Return the row as it travels."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_body(cls, body: object) -> Self:
        """Read a row. Raises MessageError."""
        fields = Fields(body, "outcome")
        return cls(
            fields.text("group", GROUP_CHARACTERS_MAX),
            fields.text("node", NODE_CHARACTERS_MAX),
            fields.text("problem"),
        )


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of an order, group by group: of rebalance and forget_node, and the answer to can_stop."""

    rows: tuple[Outcome, ...]

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"rows": [row.to_body() for row in self.rows]}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        items = Fields(body, "outcomes").items("rows", GROUPS_MAX)
        return cls(tuple(Outcome.from_body(item) for item in items))
