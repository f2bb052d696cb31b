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

from typing import Annotated, Final

from msgspec import Meta

from fluxmq.ipc.messages import MessageBody, Name, Natural, NaturalOrUnknown, Text, Word
from fluxmq.ipc.placements import GROUPS_MAX

RAFT: Final = "raft"
TRANSFER: Final = "transfer"
REBALANCE: Final = "rebalance"
CAN_STOP: Final = "can_stop"
MEMBER_CHANGE: Final = "member_change"
FORGET_NODE: Final = "forget_node"
AUDIT: Final = "audit"
HASH: Final = "hash"

RollingHash = Annotated[str, Meta(max_length=16)]
"""64 bits in hexadecimal: messages' integers are below that."""
MEMBERS_LISTED_MAX: Final = 64
"""Members of one group, the maximum a group may have."""
UNKNOWN: Final = -1
"""Stands for a number that at most the leader knows."""

VOTER: Final = "voter"
LEARNER: Final = "learner"

ADD: Final = "add"
REMOVE: Final = "remove"
CHANGES: Final = (ADD, REMOVE)


class MemberRow(MessageBody, frozen=True):
    """A member of a group. ``match``: index up to which its log is known to match the leader's;
    ``lag``: entries it is behind; ``state``: how the leader sends to it (probe, replicate,
    snapshot). `UNKNOWN` when the leader was not asked.

    ``contact``: milliseconds since ``seen_by`` last heard from it, `UNKNOWN` for that node itself
    or before the first contact.
    """

    node: Name
    number: Natural
    kind: Word
    leads: bool
    seen_by: Name
    match: NaturalOrUnknown
    lag: NaturalOrUnknown
    state: Word
    connected: bool
    contact: NaturalOrUnknown
    doubt: Text
    """Reason to distrust its reports; empty when there is none."""


class RaftRow(MessageBody, frozen=True):
    """A replicated group as one node reports it; ``members`` as its leader does, if reachable.

    ``role`` of ``node``: leader, follower, candidate, starting (a leader still taking over),
    leaving, failed. ``leader``: a node, empty while unknown. ``elections``: times that the node
    became leader. ``snapshot``: index. ``fsync_p99``: seconds. ``shard``: `UNKNOWN` for the control
    processes' group.
    """

    group: Name
    node: Name
    shard: NaturalOrUnknown
    role: Word
    problem: Text
    term: Natural
    leader: Name
    commit: Natural
    applied: Natural
    last: Natural
    snapshot: Natural
    elections: Natural
    fsync_p99: float
    members: Annotated[tuple[MemberRow, ...], Meta(max_length=MEMBERS_LISTED_MAX)]


class OfGroup(MessageBody, frozen=True):
    """The group that a command concerns; its other fields are the command's own."""

    group: Name


class Leaving(MessageBody, frozen=True):
    """Question to a group's leader whether the group can continue without a node."""

    group: Name
    node: Name


class RaftRequest(MessageBody, frozen=True):
    """Request for one group, or with an empty name all; ``everywhere``: include groups without a
    copy on this node."""

    group: Name = ""
    everywhere: bool = False


class RaftListing(MessageBody, frozen=True):
    """Replicated groups; ``missing`` are the shards that did not answer."""

    groups: Annotated[tuple[RaftRow, ...], Meta(max_length=GROUPS_MAX)]
    missing: Annotated[tuple[Text, ...], Meta(max_length=MEMBERS_LISTED_MAX * 4)] = ()


class Transfer(MessageBody, frozen=True):
    """Transfer of a group's leadership to a node; an empty name: to the most up-to-date one. Also
    the answer."""

    group: Name
    node: Name = ""


class MemberChange(MessageBody, frozen=True):
    """Command to make a node a member of a group (``add``), or to remove it (``remove``)."""

    group: Name
    node: Name
    change: Word

    def unusable(self) -> str | None:
        """Return why the change is none."""
        if self.change in CHANGES:
            return None
        return f"{MEMBER_CHANGE}.change {self.change!r} is not one of {', '.join(CHANGES)}"


EQUAL: Final = "equal"
DIFFERS: Final = "differs"
NOT_COMPARED: Final = "not compared"


class AuditRequest(MessageBody, frozen=True):
    """Request to compare the copies of a group now."""

    group: Name


class HashRequest(MessageBody, frozen=True):
    """Request for a member's rolling hash once it has applied an entry. ``passed``: a shard of its
    node forwarded this."""

    group: Name
    index: Natural
    passed: bool = False


class HashReply(MessageBody, frozen=True):
    """A member's rolling hash at the requested index."""

    rolling: RollingHash


class AuditRow(MessageBody, frozen=True):
    """A member's copy at one index. ``verdict``: `EQUAL`, `DIFFERS` or `NOT_COMPARED`; ``problem``:
    why it was not compared."""

    node: Name
    kind: Word
    index: Natural
    rolling: RollingHash
    verdict: Word
    problem: Text = ""


class AuditListing(MessageBody, frozen=True):
    """The copies of one group, compared at one index."""

    group: Name
    rows: Annotated[tuple[AuditRow, ...], Meta(max_length=MEMBERS_LISTED_MAX)]


class ForgetNode(MessageBody, frozen=True):
    """Command to remove a node from every group; ``force``: although it is in contact."""

    node: Name
    force: bool = False


class GroupOutcome(MessageBody, frozen=True):
    """Result of a command for one group. ``problem``: why it failed; ``node``: the node it
    concerns."""

    group: Name
    node: Name
    problem: Text = ""


class GroupOutcomes(MessageBody, frozen=True):
    """Results by group, of rebalance and forget_node; also the answer to can_stop."""

    rows: Annotated[tuple[GroupOutcome, ...], Meta(max_length=GROUPS_MAX)]
