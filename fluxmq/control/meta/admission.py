"""Who may vote in ``_meta``. Pure: what nodes said of themselves and what is committed go in, what to do comes out.

A directory that lost what it had promised must not promise again: two majorities could then agree on different things
(a vote given twice, an acknowledged entry forgotten). So each directory has a random *incarnation*, and the group keeps
which one each node has.

* A new directory says nothing until it knows what it is. When a majority of the nodes, itself included, is as new, they
  begin the group. When it meets a node that has a log, there is a group already, and it *returns*, whether it was
  lost or came later: it takes entries and neither votes nor campaigns.
* The leader notes the incarnation of who returns, takes the node out of the voters, takes it in again as a learner,
  whose acknowledgements count for nothing, and makes it a voter when it has caught up. Each step is committed before
  the next one. The node is a member again when it has applied the last one, with its own incarnation noted before.
* A directory that has less than others know it had (a copy that was put back) forgets its log and returns as well.

What that does not cover: a majority of the directories lost at once, which is the loss of the group.
Source: D. Ongaro, dissertation, sections 4.2.1 (learners) and 11.2 (lost disks).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from fluxmq.control.meta.frames import Introduction
from fluxmq.control.meta.tables import NodeRecord, Standing
from fluxmq.raft.types import ChangeVerb, MembershipChange, Status

CAUGHT_UP_ENTRIES: Final = 100
"""Entries that a learner may lack to be made a voter: what comes in during one exchange."""


def standing_of_new(known: Iterable[Introduction], nodes: int) -> Standing:
    """What a new directory is, after these nodes of so many have introduced themselves."""
    new = 1
    for each in known:
        if each.last_index > 0 or each.standing is Standing.RETURNING:
            return Standing.RETURNING
        new += 1
    return Standing.MEMBER if new > nodes // 2 else Standing.NEW


def is_old_copy(
    told: Introduction, incarnation: int, standing: Standing, applied: int, last_index: int
) -> bool:
    """Whether this directory, of which the other facts are, is one that was put back, as another node can tell."""
    if standing is not Standing.MEMBER or told.known_incarnation == 0:
        return False
    if told.known_incarnation == incarnation:
        return told.known_index > last_index
    # Who is behind may know a directory of before.
    return told.applied >= applied


class NoteNode(NamedTuple):
    """The group shall note this of a node."""

    number: int
    record: NodeRecord


def next_step(
    status: Status, known: Mapping[int, Introduction], records: Mapping[int, NodeRecord]
) -> NoteNode | MembershipChange | None:
    """What the leader does next for nodes that return, None when there is nothing to do now."""
    for number in sorted({*known, *records} - {status.id}):
        step = _step_for(number, status, known.get(number), records.get(number))
        if step is not None:
            return step
    return None


def _step_for(
    number: int, status: Status, told: Introduction | None, record: NodeRecord | None
) -> NoteNode | MembershipChange | None:
    voter = number in status.membership.voters
    learner = number in status.membership.learners
    returns = told is not None and told.standing is Standing.RETURNING
    if told is not None and returns and (record is None or record.incarnation != told.incarnation):
        if learner:
            # What it acknowledged was in the directory it had before.
            return MembershipChange(ChangeVerb.REMOVE, number)
        queues = () if record is None else record.queues
        return NoteNode(number, NodeRecord(told.incarnation, readmit=True, queues=queues))
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


def _caught_up(number: int, status: Status) -> bool:
    progress = status.progress.get(number)
    return (
        progress is not None
        and progress.match > 0
        and progress.match + CAUGHT_UP_ENTRIES >= status.commit
    )


def is_welcome(
    number: int, status: Status, told: Introduction | None, record: NodeRecord | None
) -> bool:
    """Whether what the leader sends is meant for the directory that the node has now: what it knew of the node's log was
    forgotten when the node was taken out of the voters."""
    if told is None or told.standing is not Standing.RETURNING:
        return False
    if record is None or record.incarnation != told.incarnation:
        return False
    if number in status.membership.learners:
        return True
    return number in status.membership.voters and not record.readmit
