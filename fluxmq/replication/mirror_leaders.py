"""The mirrored groups of a shard: who leads them and which mirrors have everything, as records in etcd
say, which the control process tells.

Nobody votes in such a group, and an entry is committed when all its voters have it on disk. So the
voters have to be the mirrors that have everything, and the rules are:

* A node leads in a term that it has asked for, after the record has come to name it.
* A voter that is out of contact first leaves the record, so that it cannot become the leader any more;
  then the leader makes it a learner, and what waited for it is committed.
* A learner that has caught up first becomes a voter, which has all entries as soon as that is
  committed; then the record has it as synchronised.

A leader that cannot have the record changed can therefore confirm nothing without the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import Body, Failure, MessageBody
from fluxmq.ipc.mirrored_groups import (
    LOST,
    MIRROR_CHANGE,
    MIRROR_LEAD,
    MIRRORS,
    RETURNED,
    SYNCHRONISED,
    GroupMirrors,
    MirrorChange,
    MirrorEpoch,
    MirrorLead,
    Mirrors,
)
from fluxmq.ipc.topology_client import RequestSender
from fluxmq.logs import get_logger
from fluxmq.raft.types import ChangeVerb, Membership, MembershipChange, RaftStatus, Role
from fluxmq.replication.forced_mirrors import ForcedMirrors
from fluxmq.replication.replica import Replica, contact_seconds, name_of

ASK_SECONDS: Final = 1.0
"""Time before a request that failed is made again."""
APART_SECONDS: Final = 2.0
"""Time without a stream to a mirror after which the leader does without it: a node that has ended has no
streams, and one that is only slow keeps them."""

_log = get_logger("fluxmq.cluster")


class MirrorLeaders:
    """The part of one shard of ``node``. ``silence``: seconds after which a mirror that has a stream and
    says nothing is done without; ``known`` is called with the nodes that the groups begin on, and
    ``stirred`` with a group of which something has changed."""

    def __init__(
        self,
        node: str,
        silence: float,
        replicas: Mapping[str, Replica],
        forced: ForcedMirrors,
        known: Callable[[Mapping[str, tuple[str, ...]]], None],
        stirred: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        self._node = node
        self._silence = silence
        self._replicas = replicas
        self.forced = forced
        self._known = known
        self._stirred = stirred
        self._now = now
        self.groups: Mapping[str, GroupMirrors] = {}
        self._control: RequestSender | None = None
        self._asking: set[tuple[str, str]] = set()
        """Requests under way: by group and node, with the own one to lead."""
        self._again: dict[tuple[str, str], float] = {}
        """When those that failed may be made again."""
        self._apart: dict[tuple[str, str], float] = {}
        """Since when there is no stream to a mirror, by group and node."""

    # In conversation with control

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """Handlers of control's messages by kind."""
        return {MIRRORS: self._told}

    def connect(self, control: RequestSender) -> None:
        """Send requests through this client from now on."""
        self._control = control

    def _told(self, body: Body, answered: Answered) -> None:
        before, self.groups = self.groups, Mirrors.from_body(body).groups
        if before.keys() != self.groups.keys():
            self._known({group: each.first for group, each in self.groups.items()})
        for group, each in self.groups.items():
            if before.get(group) != each and group in self._replicas:
                self._stirred(group)
        answered({})

    def _ask(
        self, key: tuple[str, str], kind: str, body: MessageBody, done: Callable[[int], None]
    ) -> None:
        if self._control is None or key in self._asking or self._now() < self._again.get(key, 0.0):
            return
        self._asking.add(key)

        def answered(answer: Body | Failure) -> None:
            self._asking.discard(key)
            self._again[key] = self._now() + ASK_SECONDS  # by then the record is known here
            done(0 if isinstance(answer, Failure) else MirrorEpoch.from_body(answer).epoch)

        if not self._control.request(kind, body.to_body(), answered):
            self._asking.discard(key)
            self._again[key] = self._now() + ASK_SECONDS

    # Leading

    def look(self, replica: Replica) -> None:
        """Lead a group if its record says so."""
        group = replica.plan.name
        record, driver = self.groups.get(group), replica.hosted.driver
        if record is None or record.leader != self._node:
            return
        status = driver.node.status()
        if status.role is Role.LEADER:
            return
        if status.last_index and self.forced.is_due(replica, record, status):
            self.forced.force(replica, record)
            return
        if driver.halted:
            return

        def appointed(epoch: int) -> None:
            if self._replicas.get(group) is replica and epoch > driver.node.term:
                _log.info("appointed to lead", extra={"group": group, "term": epoch})
                driver.appoint(epoch)

        wanted = MirrorLead(group, status.term, not status.last_index)
        self._ask((group, self._node), MIRROR_LEAD, wanted, appointed)

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
        membership = status.membership
        record = self.groups.get(replica.plan.name)
        if record is None or record.leader != self._node:
            return None
        settled = committed == membership
        for number in membership.voters:
            if number != status.id:
                change = self._change_of_voter(replica, record, status, number, settled)
                if change is not None:
                    return change
        if not settled:
            return None
        for number in membership.learners:
            if name_of(replica, number) not in record.members:
                return MembershipChange(ChangeVerb.REMOVE, number)
            if number in caught_up:
                return MembershipChange(ChangeVerb.ADD_VOTER, number)
            self._watch(replica, record, status, number)
        return None

    def _change_of_voter(
        self, replica: Replica, record: GroupMirrors, status: RaftStatus, number: int, settled: bool
    ) -> MembershipChange | None:
        """Return the change of another voter, if any; ``settled``: no other change is pending."""
        group, name = replica.plan.name, name_of(replica, number)
        if name in record.synchronised:
            if self._is_lost(replica, number):
                self._request(replica, name, status.term, LOST)
        elif name not in record.members or not self._has_all(replica, status, number):
            # Nobody makes it the leader, so that what waits for it can be committed at once.
            if (group, name) not in self._asking:
                return MembershipChange(ChangeVerb.ADD_LEARNER, number)
        elif settled:
            self._request(replica, name, status.term, SYNCHRONISED)
        return None

    def _watch(
        self, replica: Replica, record: GroupMirrors, status: RaftStatus, number: int
    ) -> None:
        """Have the record say whether a mirror that lacks something is there."""
        name = name_of(replica, number)
        if self._is_lost(replica, number):
            if name in record.running:
                self._request(replica, name, status.term, LOST)
        elif replica.raft_transport.reaches(number) and name not in record.running:
            self._request(replica, name, status.term, RETURNED)

    def _request(self, replica: Replica, node: str, term: int, state: str) -> None:
        group = replica.plan.name
        change = MirrorChange(group, term, node, state)

        def changed(epoch: int) -> None:
            if epoch:
                extra = {"group": group, "node": node, "state": state}
                _log.info("a mirror has another state", extra=extra)

        self._ask((group, node), MIRROR_CHANGE, change, changed)

    @staticmethod
    def _has_all(replica: Replica, status: RaftStatus, number: int) -> bool:
        """Return whether a voter has what is committed: in this term, since nobody else knows."""
        progress = status.progress.get(number)
        return (
            replica.hosted.driver.leading
            and replica.raft_transport.reaches(number)
            and replica.acquaintances.believed(number)
            and progress is not None
            and progress.match >= status.commit
        )

    def _is_lost(self, replica: Replica, number: int) -> bool:
        """Return whether the leader has to do without a voter."""
        key, now = (replica.plan.name, name_of(replica, number)), self._now()
        if not replica.acquaintances.believed(number) and replica.acquaintances.doubt(number):
            return True
        if not replica.raft_transport.reaches(number):
            return now - self._apart.setdefault(key, now) >= APART_SECONDS
        self._apart.pop(key, None)
        contact = contact_seconds(replica, number, now)
        return contact is not None and contact >= self._silence
