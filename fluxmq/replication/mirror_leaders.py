"""The mirrored groups of a shard: who leads them and which mirrors have everything, as records in etcd
say, which the control process tells.

Nobody votes in such a group, and an entry is committed when all its voters have it on disk. A node leads
in a term that it has asked for, after the record has come to name it. It does without a voter that is
out of contact, and makes a voter of a learner that has caught up, in the order of `mirror_voters`. A leader
that cannot have the record changed can confirm nothing without the others, unless the settings have it go on
in a partition (`divergent_mirrors`). A mirror has another one lead once the process of the leader has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, NamedTuple

from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import ERROR_UNREACHABLE, Body, Failure, MessageBody
from fluxmq.ipc.mirrored_groups import (
    ALONE,
    LOST,
    MIRROR_CHANGE,
    MIRROR_ENDED,
    MIRROR_LEAD,
    MIRRORS,
    RETURNED,
    SYNCHRONISED,
    GroupMirrors,
    MirrorChange,
    MirrorEnded,
    MirrorEpoch,
    MirrorLead,
    Mirrors,
)
from fluxmq.logs import get_logger
from fluxmq.raft.types import Membership, MembershipChange, RaftStatus, Role
from fluxmq.replication.divergent_mirrors import DivergentMirrors
from fluxmq.replication.ended_leaders import EndedLeaders, NamedLeader
from fluxmq.replication.ended_mirrors import EndedMirrors
from fluxmq.replication.forced_mirrors import ForcedMirrors
from fluxmq.replication.mirror_voters import LedGroup, MirrorVoters
from fluxmq.replication.replica import Replica, contact_seconds, name_of
from fluxmq.settings.plans import member_number

ASK_SECONDS: Final = 1.0
"""Time before a request that failed is made again."""
APART_SECONDS: Final = 2.0
"""Time without a stream to a mirror after which the leader does without it: a node that has ended has no
streams, and one that is only slow keeps them."""

_OF_LEADER: Final = ""
"""Stands for no node in the key of a request to have another one lead: requests about the former leader as a
mirror do not wait for it."""

_log = get_logger("fluxmq.cluster")


RequestControl = Callable[[str, Body, Answered], bool]


def _unsent(_kind: str, _body: Body, _answered: Answered) -> bool:
    return False


class MirrorRecordChanges:
    """Has the record of one group changed; implements ``VoterRecord``. ``request`` gets the leader's
    term, a member, its state, and what to call with whether that is done."""

    def __init__(self, request: Callable[[int, int, str, Callable[[bool], None]], None]) -> None:
        self._request = request

    def enter(self, term: int, member: int, answered: Callable[[bool], None]) -> None:
        """Have a member named as synchronised."""
        self._request(term, member, SYNCHRONISED, answered)

    def leave(self, term: int, member: int, answered: Callable[[bool], None]) -> None:
        """Have a member no longer named as synchronised."""
        self._request(term, member, LOST, answered)


class MirrorCopies(NamedTuple):
    """Copies of a shard that are declared the truth, that go on alone in a partition, and that are removed with
    their groups."""

    forced: ForcedMirrors
    divergent: DivergentMirrors
    ended: EndedMirrors


class MirrorLeaders:
    """The part of one shard of ``node``. ``silence``: seconds after which a mirror that has a stream and
    says nothing is done without; ``known`` is called with the nodes that the groups begin on, and
    ``stirred`` with a group of which something has changed."""

    def __init__(
        self,
        node: str,
        silence: float,
        replicas: Mapping[str, Replica],
        copies: MirrorCopies,
        known: Callable[[Mapping[str, tuple[str, ...]]], None],
        stirred: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        self._node = node
        self._silence = silence
        self._replicas = replicas
        self.copies = copies
        self._known = known
        self._stirred = stirred
        self._now = now
        self.groups: Mapping[str, GroupMirrors] = {}
        self.request: RequestControl = _unsent
        """Sends a request to the control process; returns whether it was sent."""
        self._asking: set[tuple[str, str]] = set()
        """Requests under way: by group and node, with the own one to lead, and with `_OF_LEADER`."""
        self._again: dict[tuple[str, str], float] = {}
        """Moments from which requests that failed may be made again."""
        self._voters: dict[Replica, MirrorVoters] = {}
        self._apart: dict[tuple[str, str], float] = {}
        """Since when there is no stream to a mirror, by group and node."""
        self._ended_leaders = EndedLeaders(now)

    # In conversation with control

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """Handlers of control's messages by kind."""
        return {MIRRORS: self._told}

    def _told(self, body: Body, answered: Answered) -> None:
        told = Mirrors.from_body(body)
        for group in self.copies.ended.told(told.ended) & self._replicas.keys():
            self.copies.divergent.discarding(self._replicas[group])
        before, self.groups = self.groups, told.groups
        self.copies.divergent.answered(self.groups)
        if before.keys() != self.groups.keys():
            self._known({group: each.first for group, each in self.groups.items()})
        for group, each in self.groups.items():
            if before.get(group) != each and group in self._replicas:
                self._stirred(group)
        answered({})

    def _ask(
        self, key: tuple[str, str], kind: str, body: MessageBody, done: Callable[[int], None]
    ) -> bool:
        """Ask control, unless it is asked about this already, or was a moment ago; return whether it is
        asked. ``done`` gets the epoch of the answer, 0 for a refusal."""
        if key in self._asking or self._now() < self._again.get(key, 0.0):
            return False
        self._asking.add(key)

        def answered(answer: Body | Failure) -> None:
            self._asking.discard(key)
            if key[1] in (self._node, _OF_LEADER) or isinstance(answer, Failure):
                self._again[key] = self._now() + ASK_SECONDS
            if not isinstance(answer, Failure):
                self.copies.divergent.answered((key[0],))
            elif answer.code == ERROR_UNREACHABLE:
                self.copies.divergent.unanswered(key[0])
            done(0 if isinstance(answer, Failure) else MirrorEpoch.from_body(answer).epoch)

        if not self.request(kind, body.to_body(), answered):
            self._asking.discard(key)
            self._again[key] = self._now() + ASK_SECONDS
            return False
        return True

    # Leading

    def look(self, replica: Replica) -> None:
        """Lead a group if its record says so, unless this copy lacks what it has promised to hold, or
        has failed: then another one is to lead it. See to it that somebody leads it otherwise."""
        group = replica.plan.name
        record, driver = self.groups.get(group), replica.hosted.driver
        if record is None or record.leader != self._node:
            if record is not None and self._is_without_leader(replica, record):
                self._replace(replica, record)
            return
        status = driver.node.status()
        unfit = _is_unfit(replica)
        diverged = replica.acquaintances.record.diverged
        if status.role is Role.LEADER and not unfit:
            if diverged is None:
                return
            if record.epoch == status.term:
                self._stay_alone(replica, status.term)
                return
        if not unfit and status.last_index and self.copies.forced.is_due(replica, record, status):
            self.copies.forced.force(replica, record)
            return
        if driver.halted:
            return

        def appointed(epoch: int) -> None:
            if self._replicas.get(group) is not replica or replica.acquaintances.abstains:
                return
            if epoch:
                self.copies.divergent.end(replica, diverged)
            if epoch > driver.node.term:
                _log.info("appointed to lead", extra={"group": group, "term": epoch})
                driver.appoint(epoch)

        wanted = MirrorLead(
            *(group, status.term, unfit or not status.last_index, diverged is not None),
            0 if diverged is None else diverged.forced,
        )
        self._ask((group, self._node), MIRROR_LEAD, wanted, appointed)

    def _stay_alone(self, replica: Replica, term: int) -> None:
        """Have all others leave the record: a divergent leader that it still names goes on."""
        group, mark = replica.plan.name, replica.acquaintances.record.diverged

        def left(epoch: int) -> None:
            known = self.groups.get(group)
            named = known is not None and known.leader == self._node
            if epoch and named and self._replicas.get(group) is replica:
                self.copies.divergent.end(replica, mark)

        body = MirrorChange(group, term, self._node, ALONE)
        self._ask((group, self._node), MIRROR_CHANGE, body, left)

    def _is_without_leader(self, replica: Replica, record: GroupMirrors) -> bool:
        """Return whether the leader's process has ended, as far as this synchronised mirror can tell. One that
        could not lead itself leaves the leader the time to come back."""
        transport = replica.raft_transport
        able = self._node in record.synchronised and not _is_unfit(replica)
        whole = able and bool(replica.hosted.driver.node.status().last_index)
        if not whole or transport.reaches(member_number(record.leader)):
            self._ended_leaders.forget(replica.plan.name)
            return False
        addresses = [each.address for each in replica.plan.nodes if each.node == record.leader]
        named = NamedLeader(record.leader, record.epoch, next(iter(addresses), ""))
        return self._ended_leaders.has_ended(replica.plan.name, named)

    def _replace(self, replica: Replica, record: GroupMirrors) -> None:
        """Have a synchronised mirror lead."""
        group, reaches = replica.plan.name, replica.raft_transport.reaches
        reached = tuple(
            each for each in record.members if each == self._node or reaches(member_number(each))
        )

        def changed(epoch: int) -> None:
            if epoch:
                extra = {"group": group, "node": record.leader, "epoch": epoch}
                _log.info("the process of a leader has ended: another one leads", extra=extra)

        body = MirrorEnded(group, record.epoch, record.leader, reached)
        self._ask((group, _OF_LEADER), MIRROR_ENDED, body, changed)

    # Members

    def next_change(
        self,
        replica: Replica,
        status: RaftStatus,
        committed: Membership,
        caught_up: Collection[int],
    ) -> MembershipChange | None:
        """Return the change of members that the leader makes next, and have the record changed where
        that comes first, or follows."""
        group, membership = replica.plan.name, status.membership
        record = self.groups.get(group)
        if record is None or record.leader != self._node or replica.acquaintances.abstains:
            return None  # a member that doubts this copy is right, and not lost
        if replica.acquaintances.record.diverged is not None:
            return self.copies.divergent.without_others(status)
        lost = {
            number
            for number in membership.voters
            if number != status.id and self._is_lost(replica, record, number)
        }
        if (
            lost
            and record.epoch == status.term
            and self.copies.divergent.may_begin(group)
            and self.copies.divergent.begin(replica, record, status)
        ):
            return self.copies.divergent.without_others(status)
        names = {
            number: name_of(replica, number)
            for number in (*membership.voters, *membership.learners)
        }
        for number in membership.learners:
            self._watch(replica, record, status, number)
        return self._voters_of(replica).next_change(
            LedGroup(
                status.term,
                status.id,
                membership,
                committed,
                commits=replica.hosted.driver.leading,
                lost=lost,
                gone={number for number, name in names.items() if name not in record.members},
                caught_up=caught_up,
                synchronised={
                    number
                    for number, name in names.items()
                    if name in record.synchronised and record.epoch == status.term
                },
            )
        )

    def _voters_of(self, replica: Replica) -> MirrorVoters:
        found = self._voters.get(replica)
        if found is None:
            for former in [
                each for each in self._voters if self._replicas.get(each.plan.name) is not each
            ]:
                del self._voters[former]
            record = MirrorRecordChanges(partial(self._request, replica))
            found = self._voters[replica] = MirrorVoters(record, self._now)
        return found

    def _watch(
        self, replica: Replica, record: GroupMirrors, status: RaftStatus, number: int
    ) -> None:
        """Have the record say whether a mirror that lacks something is there."""
        name = name_of(replica, number)
        lost, running = self._is_lost(replica, record, number), name in record.running
        if name in record.members and lost == running:
            self._request(replica, status.term, number, LOST if lost else RETURNED)

    def _request(
        self,
        replica: Replica,
        term: int,
        number: int,
        state: str,
        answered: Callable[[bool], None] = lambda _done: None,
    ) -> None:
        group, node = replica.plan.name, name_of(replica, number)

        def changed(epoch: int) -> None:
            if epoch:
                extra = {"group": group, "node": node, "state": state}
                _log.info("a mirror has another state", extra=extra)
            answered(bool(epoch))

        body = MirrorChange(group, term, node, state)
        if not self._ask((group, node), MIRROR_CHANGE, body, changed):
            answered(False)

    def _is_lost(self, replica: Replica, record: GroupMirrors, number: int) -> bool:
        """Return whether the leader has to do without a mirror: at once without one that cannot lead."""
        key, now = (replica.plan.name, name_of(replica, number)), self._now()
        if number in replica.acquaintances.doubted:
            return True
        if not replica.raft_transport.reaches(number):
            apart = now - self._apart.setdefault(key, now)
            return apart >= APART_SECONDS or key[1] not in record.synchronised
        self._apart.pop(key, None)
        contact = contact_seconds(replica, number, now)
        named = key[1] in record.synchronised
        patience = self._silence if named else max(replica.plan.election_timeout, APART_SECONDS)
        return contact is not None and contact >= patience


def _is_unfit(replica: Replica) -> bool:
    """Return whether a copy has failed, or lacks what it has promised to hold."""
    return bool(replica.hosted.group.failed) or replica.acquaintances.abstains
