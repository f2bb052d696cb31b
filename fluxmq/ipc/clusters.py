"""Messages about the replication groups of a cluster: their state, and commands to change it.

::

    control -> shard             raft, transfer, member_change, can_stop, audit
    fluxmqctl -> control         raft, transfer, rebalance, can_stop, member_change, forget_node,
                                 audit
    shard -> shard               hash

Shards of different nodes use the same bodies among each other: a shard asked about a group forwards
the question to the shard that leads it. Pure, like `messages`.
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
"""Members of one group, the maximum a group may have."""
UNKNOWN: Final = -1
"""Stands for a number that only the leader knows, or nobody."""

VOTER: Final = "voter"
LEARNER: Final = "learner"

ADD: Final = "add"
REMOVE: Final = "remove"
CHANGES: Final = (ADD, REMOVE)


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member of a group. ``match``: index up to which its log is known to match the leader's;
    ``lag``: entries it is behind; ``state``: how the leader sends to it (probe, replicate,
    snapshot). `UNKNOWN` when the leader was not asked.

    ``contact``: milliseconds since ``seen_by`` last heard from it, `UNKNOWN` for that node itself
    or before the first contact.
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
    """Reason to distrust its reports; empty when there is none."""

    def to_body(self) -> dict[str, object]:
        """Encode the row."""
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
    """A replicated group as one node reports it; ``members`` as its leader does, if reachable.

    ``role`` of ``node``: leader, follower, candidate, starting (a leader still taking over),
    leaving, failed. ``leader``: a node, empty while unknown. ``elections``: times that the node
    became leader. ``snapshot``: index. ``fsync_p99``: seconds. ``shard``: `UNKNOWN` for the control
    processes' group.
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
        """Encode the row."""
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
    """Request for one group, or with an empty name all; ``everywhere``: include groups without a
    copy on this node."""

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
    """Transfer of a group's leadership to a node; an empty name: to the most up-to-date one. Also
    the answer."""

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
    """Command to make a node a member of a group (``add``), or to remove it (``remove``)."""

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
            raise MessageError(
                f"{MEMBER_CHANGE}.change {change!r} is not one of {', '.join(CHANGES)}"
            )
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
    """Request to compare the copies of a group now."""

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
    """Request for a member's rolling hash once it has applied an entry. ``passed``: a shard of its
    node forwarded this."""

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
    """A member's rolling hash at the requested index, in hexadecimal: messages' integers are below
    64 bits."""

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
    """A member's copy at one index. ``verdict``: `EQUAL`, `DIFFERS` or `NOT_COMPARED`; ``problem``:
    why it was not compared."""

    node: str
    kind: str
    index: int
    rolling: str
    verdict: str
    problem: str = ""

    def to_body(self) -> dict[str, object]:
        """Encode the row."""
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
    """Command to remove a node from every group; ``force``: although it is in contact."""

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
    """Result of a command for one group. ``problem``: why it failed; ``node``: the node it
    concerns."""

    group: str
    node: str
    problem: str = ""

    def to_body(self) -> dict[str, object]:
        """Encode the row."""
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
    """Results by group, of rebalance and forget_node; also the answer to can_stop."""

    rows: tuple[Outcome, ...]

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"rows": [row.to_body() for row in self.rows]}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        items = Fields(body, "outcomes").items("rows", GROUPS_MAX)
        return cls(tuple(Outcome.from_body(item) for item in items))
