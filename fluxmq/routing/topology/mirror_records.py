"""The record of a mirrored group in etcd, and the decisions that change it. Pure.

::

    /fluxmq/mirrors/<group>     a record, as JSON

Each function returns the record after a decision, which is put on the condition that the key has not
changed meanwhile. A decision that changes the leader also begins another epoch, the group's term in
Raft, so that two nodes never lead in one.

Rules are those of RabbitMQ 3.10 with two exceptions, neither of which loses anything: a mirror that
is synchronised may lead although it has been away, since nothing was confirmed without it; and
forgetting a node prefers such mirrors to the one that stopped last.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

MEMBERS_MAX: Final = 1000
"""Nodes of a record: more than a cluster has."""

NodeName = Annotated[str, Meta(min_length=1, max_length=128)]
Moment = Annotated[int, Meta(ge=0)]
Promotion = Literal["always", "when-synced"]


class MirrorMember(Struct, frozen=True, forbid_unknown_fields=True):
    """A node that has a copy. ``since``: number of the moment since which it has run as a mirror, 0
    while it is out of contact; moments ascend. ``synchronised``: it has all that was confirmed."""

    node: NodeName
    since: Moment
    synchronised: bool


class StoppedMember(Struct, frozen=True, forbid_unknown_fields=True):
    """A node that stopped in an orderly way, and when, in the same numbers."""

    node: NodeName
    at: Moment


class MirrorRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """State of a mirrored group. ``epoch``: term in which the leader leads; ``first``: the nodes with
    which the group began, its leader first; ``forced``: how often an unsynchronised mirror was made
    leader, whose copy the others then take over."""

    epoch: Annotated[int, Meta(ge=1)]
    leader: NodeName
    members: Annotated[tuple[MirrorMember, ...], Meta(min_length=1, max_length=MEMBERS_MAX)]
    promote_on_failure: Promotion
    promote_on_shutdown: Promotion
    first: Annotated[tuple[NodeName, ...], Meta(min_length=1, max_length=MEMBERS_MAX)]
    stopped: Annotated[tuple[StoppedMember, ...], Meta(max_length=MEMBERS_MAX)] = ()
    forced: Moment = 0

    def encode(self) -> bytes:
        """Return the value as stored."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(value: bytes) -> MirrorRecord:
        """Decode a value. Raises ValueError for one that is malformed or contradicts itself."""
        try:
            record = _decode(value)
        except msgspec.MsgspecError as problem:
            raise ValueError(f"not the record of a mirrored group: {problem}") from problem
        for nodes in (_names(record.members), _names(record.stopped), record.first):
            if len(set(nodes)) != len(nodes):
                raise ValueError("the record of a mirrored group has a node twice")
        leader = record.member(record.leader)
        if leader is None or not leader.synchronised:
            raise ValueError("the leader of a mirrored group is none of its synchronised members")
        return record

    def member(self, node: str) -> MirrorMember | None:
        """Return the member on a node; None if there is none."""
        return next((each for each in self.members if each.node == node), None)

    def stopped_at(self, node: str) -> int | None:
        """Return when a node stopped in an orderly way; None if it did not."""
        return next((each.at for each in self.stopped if each.node == node), None)

    @property
    def mirrors(self) -> tuple[str, ...]:
        """Nodes of the mirrors, without the leader: the one that has run longest first."""
        others = [each for each in self.members if each.node != self.leader]
        return tuple(each.node for each in sorted(others, key=_age))

    @property
    def synchronised_mirrors(self) -> tuple[str, ...]:
        """Those of the mirrors that are synchronised, in the same order."""
        found = _synchronised(self)
        return tuple(each for each in self.mirrors if each in found)


_decode = msgspec.json.Decoder(MirrorRecord).decode


def begun(
    nodes: Sequence[str], since: int, promote_on_failure: str, promote_on_shutdown: str
) -> MirrorRecord:
    """Return the record of a new group on these nodes, the leader first. Raises ValueError."""
    record = {
        "epoch": 1,
        "leader": nodes[0],
        "members": [{"node": each, "since": since, "synchronised": True} for each in nodes],
        "promote_on_failure": promote_on_failure,
        "promote_on_shutdown": promote_on_shutdown,
        "first": list(nodes),
    }
    return MirrorRecord.decode(msgspec.json.encode(record))


def promoted(
    record: MirrorRecord,
    alive: Collection[str],
    orderly: bool,
    present: Collection[str] | None = None,
) -> MirrorRecord | None:
    """Return the record after another mirror has become the leader in place of one that has failed, or
    that is about to stop (``orderly``); None if none may, so that the queues wait for their leader.

    The synchronised mirror that has run longest leads. Without one, the unsynchronised one that has
    does, if ``promote_on_failure`` lets it and after an orderly stop ``promote_on_shutdown`` as well.
    A leader that stopped in an orderly way leads again, not one of the mirrors that stopped before it.
    ``present``: nodes that were alive when the leader last was, None if only the record is known: an
    unsynchronised mirror that was away then lacks the most, and does not lead.
    """
    after = replaced(record, alive)
    if after is not None:
        return after
    left = record.stopped_at(record.leader)
    if record.promote_on_failure != "always":
        return None
    if (orderly or left is not None) and record.promote_on_shutdown != "always":
        return None
    for each in _candidates(record, alive):
        was_there = bool(each.since) if present is None else each.node in present
        if was_there and record.stopped_at(each.node) is None:
            return _forced(record, each.node)
    return None


def replaced(record: MirrorRecord, alive: Collection[str]) -> MirrorRecord | None:
    """Return the record after the synchronised mirror that has run longest has become the leader, which
    loses nothing; None if there is none."""
    for each in _candidates(record, alive):
        if each.synchronised:
            return _led_by(record, each.node)
    return None


def stopped(record: MirrorRecord, node: str, at: int) -> MirrorRecord:
    """Return the record after a node has stopped in an orderly way; ``at``: the number of the moment."""
    if record.member(node) is None:
        return record
    others = [each for each in record.stopped if each.node != node]
    return replace(record, stopped=(*others, StoppedMember(node, at)))


def returned(record: MirrorRecord, node: str, since: int) -> MirrorRecord:
    """Return the record after a node is back, which is the leader or in contact with it.

    A mirror that comes back while its leader is away is not returned before the leader is there.
    """
    left = tuple(each for each in record.stopped if each.node != node)
    member = record.member(node)
    record = record if len(left) == len(record.stopped) else replace(record, stopped=left)
    if member is None or member.since:
        return record
    return _with_member(record, replace(member, since=since))


def removed(record: MirrorRecord, node: str) -> MirrorRecord:
    """Return the record after the leader has lost contact with a mirror, and confirms without it.
    Raises ValueError for the leader itself."""
    if node == record.leader:
        raise ValueError("a mirrored group cannot do without its leader")
    member = record.member(node)
    if member is None or not (member.since or member.synchronised):
        return record
    return _with_member(record, MirrorMember(node, 0, synchronised=False))


def alone(record: MirrorRecord) -> MirrorRecord:
    """Return the record after the leader has confirmed without all others."""
    for each in record.mirrors:
        record = removed(record, each)
    return record


def synchronised(record: MirrorRecord, node: str, since: int) -> MirrorRecord:
    """Return the record after a mirror has got everything that the leader has; ``since``: the moment
    from which it counts as running unless it already does. Raises ValueError for another node."""
    member = record.member(node)
    if member is None:
        raise ValueError(f"node {node!r} is no member of the mirrored group")
    if member.synchronised:
        return record
    return _with_member(record, MirrorMember(node, member.since or since, synchronised=True))


def forgotten(record: MirrorRecord, node: str) -> MirrorRecord | None:
    """Return the record after a node has been removed from the cluster; None if no copy is left.

    If it was the leader, a synchronised mirror leads, or else an unsynchronised one, whatever the
    policy says, since the operator has given up the leader: of either kind one that runs,
    else the one that stopped last.
    """
    left = [each for each in sorted(record.members, key=_age) if each.node != node]
    if not left:
        return None
    after = record
    if node == record.leader:
        heir = min(left, key=lambda each: (not each.synchronised, *_recency(record, each)))
        after = (_led_by if heir.synchronised else _forced)(record, heir.node)
    return replace(
        after,
        members=tuple(each for each in after.members if each.node != node),
        stopped=tuple(each for each in after.stopped if each.node != node),
    )


def _names(members: Sequence[MirrorMember | StoppedMember]) -> tuple[str, ...]:
    return tuple(each.node for each in members)


def _synchronised(record: MirrorRecord) -> set[str]:
    return {each.node for each in record.members if each.synchronised}


def _age(member: MirrorMember) -> tuple[bool, int]:
    """Return the sort key by which the mirror that has run longest is first."""
    return not member.since, member.since


def _recency(record: MirrorRecord, member: MirrorMember) -> tuple[bool, int]:
    """Return the sort key by which a running mirror is first, then the one that stopped last."""
    at = record.stopped_at(member.node)
    if at is None:
        return not member.since, 0 if member.since else 1
    return True, -at


def _candidates(record: MirrorRecord, alive: Collection[str]) -> list[MirrorMember]:
    """Return the mirrors that may follow the leader, the one that has run longest first."""
    left = record.stopped_at(record.leader)
    return [
        each
        for each in sorted(record.members, key=_age)
        if each.node != record.leader
        and each.node in alive
        and not _stopped_before(record, each.node, left)
    ]


def _stopped_before(record: MirrorRecord, node: str, left: int | None) -> bool:
    """Return whether a mirror stopped before the leader did, at ``left``."""
    at = record.stopped_at(node)
    return at is not None and left is not None and at <= left


def _with_member(record: MirrorRecord, member: MirrorMember) -> MirrorRecord:
    members = (member if each.node == member.node else each for each in record.members)
    return replace(record, members=tuple(members))


def _led_by(record: MirrorRecord, node: str) -> MirrorRecord:
    """Return the record with another leader, which needs the former one's agreement no longer."""
    after = replace(record, epoch=record.epoch + 1, leader=node)
    return removed(after, record.leader)


def _forced(record: MirrorRecord, node: str) -> MirrorRecord:
    """Return the record with a leader that lacks messages: the others' copies count no longer."""
    members = (
        replace(each, synchronised=each.node == node)
        if each.node != record.leader
        else MirrorMember(each.node, 0, synchronised=False)
        for each in record.members
    )
    return replace(
        record,
        epoch=record.epoch + 1,
        leader=node,
        members=tuple(members),
        forced=record.forced + 1,
    )
