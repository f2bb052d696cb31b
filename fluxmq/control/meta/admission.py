"""Admission of voters to ``_meta``. Pure: introductions and committed records in, next step out.

A directory that lost its promises must not promise again: two majorities could then agree on
different things (a vote given twice, an acknowledged entry forgotten). So each directory has a
random *incarnation*, and the group records which one each node has.

* A new directory says nothing until it knows its standing. When a majority of the nodes, itself
  included, is new as well, they form the group. When it meets a node with a log, a group exists
  already, and it is *returning*, whether it was lost or joined later: it takes entries and neither
  votes nor campaigns.
* The leader records the incarnation of a returning node, removes it from the voters, adds it as a
  learner, whose acknowledgements do not count, and makes it a voter when it has caught up. Each
  step is committed before the next. The node is a member again when it has applied the last one,
  with its own incarnation recorded before.
* A directory that has less than others know it had (a restored copy) forgets its log and returns as
  well.

Not covered: the loss of a majority of the directories at once, which loses the group.
Source: D. Ongaro, dissertation, sections 4.2.1 (learners) and 11.2 (lost disks).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from fluxmq.control.meta.frames import Introduction
from fluxmq.control.meta.tables import MemberState, NodeRecord
from fluxmq.raft.types import ChangeVerb, MembershipChange, RaftStatus

CAUGHT_UP_ENTRIES: Final = 100
"""Entries that a learner may lack to become a voter: those that arrive during one exchange."""


def state_of_new_member(known: Iterable[Introduction], nodes: int) -> MemberState:
    """Return the member state of a new directory after these of ``nodes`` nodes introduced
    themselves."""
    new = 1
    for each in known:
        if each.last_index > 0 or each.standing is MemberState.RETURNING:
            return MemberState.RETURNING
        new += 1
    return MemberState.MEMBER if new > nodes // 2 else MemberState.NEW


def is_old_copy(
    introduction: Introduction,
    incarnation: int,
    standing: MemberState,
    applied: int,
    last_index: int,
) -> bool:
    """Return whether another node's introduction shows this directory, with these facts, to be a
    restored copy."""
    if standing is not MemberState.MEMBER or introduction.known_incarnation == 0:
        return False
    if introduction.known_incarnation == incarnation:
        return introduction.known_index > last_index
    # A node that lags may know an earlier directory.
    return introduction.applied >= applied


class NoteNode(NamedTuple):
    """A record about a node for the group to commit."""

    number: int
    record: NodeRecord


def next_step(
    status: RaftStatus, known: Mapping[int, Introduction], records: Mapping[int, NodeRecord]
) -> NoteNode | MembershipChange | None:
    """Return the leader's next step for returning nodes, None when there is nothing to do now."""
    for number in sorted({*known, *records} - {status.id}):
        step = _step_for(number, status, known.get(number), records.get(number))
        if step is not None:
            return step
    return None


def _step_for(
    number: int, status: RaftStatus, introduction: Introduction | None, record: NodeRecord | None
) -> NoteNode | MembershipChange | None:
    voter = number in status.membership.voters
    learner = number in status.membership.learners
    returns = introduction is not None and introduction.standing is MemberState.RETURNING
    if (
        introduction is not None
        and returns
        and (record is None or record.incarnation != introduction.incarnation)
    ):
        if learner:
            # Its acknowledgements came from its previous directory.
            return MembershipChange(ChangeVerb.REMOVE, number)
        queues = () if record is None else record.queues
        return NoteNode(number, NodeRecord(introduction.incarnation, readmit=True, queues=queues))
    if record is None:
        return None
    if record.readmit and voter:
        return MembershipChange(ChangeVerb.REMOVE, number)
    if not returns:
        return None
    if record.readmit and not learner:
        return MembershipChange(ChangeVerb.ADD_LEARNER, number)
    if not learner or not _caught_up(number, status):
        return None
    if record.readmit:
        return NoteNode(number, record._replace(readmit=False))
    return MembershipChange(ChangeVerb.ADD_VOTER, number)


def _caught_up(number: int, status: RaftStatus) -> bool:
    progress = status.progress.get(number)
    return (
        progress is not None
        and progress.match > 0
        and progress.match + CAUGHT_UP_ENTRIES >= status.commit
    )


def is_welcome(
    number: int, status: RaftStatus, introduction: Introduction | None, record: NodeRecord | None
) -> bool:
    """Return whether the leader's messages are meant for the node's present directory: its progress
    was forgotten when the node was removed from the voters."""
    if introduction is None or introduction.standing is not MemberState.RETURNING:
        return False
    if record is None or record.incarnation != introduction.incarnation:
        return False
    if number in status.membership.learners:
        return True
    return number in status.membership.voters and not record.readmit
