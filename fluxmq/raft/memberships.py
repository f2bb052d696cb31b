"""The members of the group: the changes in the log, and the one in effect.

**A change takes effect on a node when its entry is appended to that node's log, committed or not**
(paper section 6, dissertation section 4.1), and is undone when the entry is cut off again. The
alternative, taken by etcd, is to change when the entry is applied. It needs no undoing, but then a
node's majority depends on how far it has applied, which nothing in the log proves: its safety rests
on refusing to campaign with unapplied changes, on the commit index surviving restarts together with
the entries, and on leaders waiting for their own state machine. Here the log alone decides; a host
may apply as late as it likes, and a lost commit index changes nothing.

One node at a time: two majorities of memberships that differ by one node share a node, so no joint
membership is needed. That holds only between neighbours, hence two rules enforced in ``leader``:
no change while an earlier one is uncommitted, and none before an entry of the leader's own term is
committed (a leader could otherwise build on a change that a later term has overwritten; found by D.
Ongaro in 2015).

In an appointed group (see ``commits``) no majorities have to meet, so neither rule is needed for
safety: all that counts is that the synchronised members stay voters of the leader. The change of a
voter into a learner, or its removal, is therefore allowed at any time, and the host has it taken
out of the record before. It must be: a new leader whose predecessor is dead and still a voter
commits nothing until it has made it a learner, and there may be several such voters. Entries before
the change that only the former voter lacked are committed by it at once. If the change itself is
lost with its leader, the next one begins with a voter too many, which it may take away again.
Voters and learners are added one at a time all the same: that can wait. The leader stays a voter
until another one is appointed.

An entry holds the whole new membership, so its meaning does not depend on where reading starts.
"""

from __future__ import annotations

import struct
from typing import Final

from fluxmq.raft.errors import InconsistentLog
from fluxmq.raft.types import ChangeRefused, ChangeVerb, Membership, MembershipChange

MEMBERS_MAX: Final = 64
"""Maximum number of voters and learners: each costs the leader a stream of appends."""

_COUNTS: Final = struct.Struct("<HH")


def encode_membership(membership: Membership) -> bytes:
    """Encode a membership: two counts (u16), then ids (u64), little-endian, voters first."""
    ids = membership.voters + membership.learners
    counts = _COUNTS.pack(len(membership.voters), len(membership.learners))
    return counts + struct.pack(f"<{len(ids)}Q", *ids)


def decode_membership(data: bytes) -> Membership:
    """Decode an entry's membership. Raises InconsistentLog for other data."""
    if len(data) < _COUNTS.size:
        raise InconsistentLog("a membership entry is too short")
    voters, learners = _COUNTS.unpack_from(data)
    if len(data) != _COUNTS.size + 8 * (voters + learners):
        raise InconsistentLog("a membership entry has a wrong length")
    ids = struct.unpack_from(f"<{voters + learners}Q", data, _COUNTS.size)
    return Membership(ids[:voters], ids[voters:])


def changed(membership: Membership, change: MembershipChange) -> Membership | ChangeRefused:
    """Return the membership after the change of one node's place, or why that is impossible."""
    verb, node = change
    voters = set(membership.voters) - {node}
    learners = set(membership.learners) - {node}
    if verb is ChangeVerb.ADD_VOTER:
        voters.add(node)
    elif verb is ChangeVerb.ADD_LEARNER:
        learners.add(node)
    after = Membership(tuple(sorted(voters)), tuple(sorted(learners)))
    if after == membership:
        return ChangeRefused.NO_CHANGE
    if not voters:
        return ChangeRefused.LAST_VOTER
    if len(voters) + len(learners) > MEMBERS_MAX:
        return ChangeRefused.TOO_MANY
    return after


def takes_vote(membership: Membership, change: MembershipChange) -> bool:
    """Return whether a change makes a voter a learner, or removes it."""
    return change.verb is not ChangeVerb.ADD_VOTER and change.node in membership.voters


class Memberships:
    """The memberships of a log, from the one at its beginning to the last one appended.

    It grows with the membership entries of the log and shrinks with `compact`; the last is in
    effect.
    """

    __slots__ = ("_history", "current", "since")

    def __init__(self, index: int, membership: Membership) -> None:
        self._history = [(index, membership)]
        self.current = membership
        self.since = index
        """The index of the entry that brought the current membership."""

    def append(self, index: int, membership: Membership) -> None:
        """Add the membership of an entry appended at `index`."""
        self._history.append((index, membership))
        self.current = membership
        self.since = index

    def cut(self, index: int) -> bool:
        """Cut at `index`; return whether that undid a change."""
        before = self.since
        while len(self._history) > 1 and self._history[-1][0] >= index:
            self._history.pop()
        self.since, self.current = self._history[-1]
        return self.since != before

    def at(self, index: int) -> Membership:
        """Return the membership of the log up to `index`, which a snapshot at `index` must hold."""
        for since, membership in reversed(self._history):
            if since <= index:
                return membership
        raise InconsistentLog(f"the membership at {index} is not known any more")

    def before_current(self) -> Membership:
        """Return the membership before the last change; the current one when there is none."""
        return self._history[-2][1] if len(self._history) > 1 else self.current

    def compact(self, index: int) -> None:
        """Forget memberships replaced before `index`."""
        while len(self._history) > 1 and self._history[1][0] <= index:
            del self._history[0]
