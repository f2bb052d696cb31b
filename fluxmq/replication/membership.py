"""Membership of a shard's replicated groups: members that join, catch up, leave, or have lost what
they promised.

A group's members are those in its log. Its leader makes changes one at a time: it demotes a voter
that is not believed to a learner (see ``incarnation``), promotes a learner that has caught up to a
voter, tells nodes that have become members (they open the group, and the log or a snapshot fills
them) and nodes that were removed (they close it).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from fluxmq.ipc.clusters import ADD, MEMBER_CHANGE, MemberChange
from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import ERROR_FAILED, ERROR_INVALID, Body, Failure
from fluxmq.logs import RateLimited, get_logger
from fluxmq.net.links import FrameLink
from fluxmq.raft.types import (
    ChangeRefused,
    ChangeVerb,
    Membership,
    MembershipChange,
    NotLeader,
    ProposalAccepted,
    RaftStatus,
    ReplicationMode,
    Role,
)
from fluxmq.replication.group_commands import GroupCommands
from fluxmq.replication.hosted_groups import AnyHostedGroups
from fluxmq.replication.incarnation import Acquaintances, GroupView
from fluxmq.replication.member_record import (
    NEVER_FORCED,
    MemberRecord,
    random_number,
    read_record,
    record_path,
    write_record,
)
from fluxmq.replication.mirror_leaders import MirrorLeaders
from fluxmq.replication.replica import Replica, committed_membership, name_of
from fluxmq.replication.shard_links import ShardLinks
from fluxmq.settings.group_names import is_mirrored
from fluxmq.settings.plans import GroupMember, GroupPlan, GroupPlans, UnknownGroup, member_number
from fluxmq.storage.directory import DataPaths, delete_directory
from fluxmq.storage.errors import Corruption, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.set_aside import set_group_aside
from fluxmq.storage.transfer import TransferPaths
from fluxmq.storage.transfer_install import clean, forget_install

LOOK_SECONDS: Final = 0.2
"""Interval between two checks of the memberships here."""
TELL_SECONDS: Final = 1.0
"""Interval between two attempts to tell a node that it is a member, or was removed."""
CAUGHT_UP_ENTRIES: Final = 1000
"""A learner with at most this lag counts as caught up: as a voter it commits soon."""
CAUGHT_UP_SECONDS: Final = 1.0
"""Time that a learner has to stay caught up: one that falls behind again under load would slow a
majority down.
"""

_log = get_logger("fluxmq.cluster")


class GroupMembers:
    """The memberships of one shard's groups."""

    def __init__(
        self,
        replicas: Mapping[str, Replica],
        links: ShardLinks,
        commands: GroupCommands,
        plans: GroupPlans,
        hosting: AnyHostedGroups,
        files: Files,
        paths: DataPaths,
        now: Callable[[], float],
    ) -> None:
        self._replicas = replicas
        self._links = links
        self._orders = commands
        self._plans = plans
        self._hosting = hosting
        self._files = files
        self._paths = paths
        self._now = now
        self._next_look = 0.0
        self._refused = RateLimited(_log, per_second=0.1, burst=1)
        self.mirrors: MirrorLeaders | None = None
        """The leaders of mirrored groups, which decide about members by other rules."""
        commands.serve(MEMBER_CHANGE, self._change)

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {"member": self._on_member, "removed": self._on_removed}

    # This node as a member

    def record(self, group: str) -> MemberRecord | None:
        """Return this node's record as a member of a group, None if none. Raises StorageError."""
        replica = self._replicas.get(group)
        if replica is not None:
            return replica.acquaintances.record
        return read_record(self._files, self._paths, group)

    def is_member(self, plan: GroupPlan) -> bool:
        """Return whether this node is to host a group: by its record, or else by the group's
        initial members. Raises StorageError, but not for a damaged record.
        """
        try:
            record = self.record(plan.name)
        except Corruption:
            record = None  # opening the group reports the damage and has it mended
        return bool(plan.own) if record is None else record.hosted

    def left(self, group: str) -> bool:
        """Return whether this node was a member and was removed. Raises StorageError."""
        record = self.record(group)
        return record is not None and not record.hosted

    def begins_with(self, plan: GroupPlan) -> tuple[int, ...]:
        """Return the voters that the group's log begins with. Raises StorageError."""
        record = self.record(plan.name)
        return record.voters if record is not None else tuple(each.number for each in plan.members)

    def live(self, plan: GroupPlan) -> MemberRecord:
        """Begin another life as a member, or the first; durable on return. Raises StorageError."""
        record = read_record(self._files, self._paths, plan.name)
        if record is None:
            record = MemberRecord(random_number(), 0, 0, True, self.begins_with(plan))
        record = replace(record, life=record.life + 1, mark=random_number())
        write_record(self._files, self._paths, plan.name, record)
        return record

    def acquaintances(
        self, replica: Callable[[], Replica], record: MemberRecord, name: str
    ) -> Acquaintances:
        """Return a member's acquaintances. ``replica`` returns its replica once that exists."""

        def save(changed: MemberRecord) -> None:
            write_record(self._files, self._paths, name, changed)

        def acknowledged(number: int) -> int:
            status = _status(replica())
            peer = status.progress.get(number)
            diverged = replica().acquaintances.record.diverged
            commit = status.commit if diverged is None else diverged.commit
            return 0 if peer is None else min(peer.match, commit)

        asked: set[int] = set()

        def readmit(number: int) -> None:
            driver = replica().hosted.driver
            if number in asked or not driver.leading:
                return
            asked.add(number)

            def told(leads: bool) -> None:
                asked.discard(number)
                if leads:
                    self._take_back(replica(), number)

            driver.confirm(told)

        def start_over(number: int) -> None:
            replica().hosted.driver.node.start_over(number)

        def hold(term: int, index: int) -> None:
            driver = replica().hosted.driver
            driver.node.hold(term, index)
            driver.pump()

        def say(number: int, frame: bytes) -> None:
            replica().raft_transport.say(number, frame)

        return Acquaintances(
            record,
            save,
            lambda: _status(replica()).persisted,
            lambda: view_of(replica()),
            acknowledged,
            say,
            readmit,
            start_over,
            hold,
        )

    def _take_back(self, replica: Replica, number: int) -> None:
        """Readmit a member that had lost its promises; a majority has confirmed this leader."""
        try:
            replica.acquaintances.take_back(number, replica.hosted.driver.node.term)
        except StorageError as problem:
            replica.hosted.group.fail(str(problem))
            return
        _log.warning(
            "a member that lost its data is being restored",
            extra={"group": replica.plan.name, "node": name_of(replica, number)},
        )

    # Time

    def housekeeping(self) -> None:
        """Check memberships when due; called by the shard's timer."""
        now = self._now()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        for name in list(self._hosting.attended.groups):
            replica = self._replicas.get(name)
            if replica is not None and not replica.hosted.group.failed:
                self._look(replica, now)
            elif replica is not None and self.mirrors is not None and is_mirrored(name):
                self.mirrors.look(replica)
        if self.mirrors is not None:
            self.mirrors.copies.forced.housekeeping()
            self.mirrors.copies.ended.housekeeping()

    def _look(self, replica: Replica, now: float) -> None:
        if self._is_left_behind(replica):
            self._retire(replica)
            return
        try:
            replica.acquaintances.look_again()
        except StorageError as problem:
            replica.hosted.group.fail(str(problem))
            return
        status = _status(replica)
        members = {*status.membership.voters, *status.membership.learners}
        forced = replica.acquaintances.record.forced != NEVER_FORCED
        # Copies that were left behind have to hear of it, or two of them would go on by themselves.
        replica.raft_transport.follow(
            {each.number for each in replica.plan.nodes} if forced else members
        )
        mirrors = self.mirrors if is_mirrored(replica.plan.name) else None
        if mirrors is not None:
            mirrors.look(replica)
            # It may have to do without a voter to commit anything.
            leads = status.role is Role.LEADER
        else:
            leads = replica.hosted.driver.leading
        if not leads:
            replica.caught_up.clear()
            replica.settled = True
            return
        ready = self._caught_up(replica, status, now)
        committed = committed_membership(replica)
        if mirrors is not None:
            change = mirrors.next_change(replica, status, committed, ready)
        else:
            change = next_change(status, committed, replica.acquaintances.doubted, ready)
        if change is not None:
            self._propose(replica, change)
        if now >= replica.next_tell:
            replica.next_tell = now + TELL_SECONDS
            told = self._tell(replica, members)
            replica.settled = not (told or status.membership.learners)

    def _is_left_behind(self, replica: Replica) -> bool:
        """Return whether a copy is retired. About a divergent one the group's record alone decides."""
        met = replica.acquaintances
        if met.record.diverged is None or self.mirrors is None:
            return met.superseded != NEVER_FORCED
        record = self.mirrors.groups.get(replica.plan.name)
        return self.mirrors.copies.divergent.is_over(replica, record)

    def _retire(self, replica: Replica) -> None:
        """Set aside a copy that was left behind by a forced one, and leave the group. The copy of a
        mirrored group is discarded: the leader has this node join again."""
        if replica.hosted.checkpointing:
            return  # it is checked again
        group, record = replica.plan.name, replica.acquaintances.record
        fresh = MemberRecord(
            random_number(), 0, 0, False, record.voters, forced=replica.acquaintances.superseded
        )
        try:
            raw = self._files.read_file(record_path(self._paths, group))
            if self.mirrors is not None:
                self.mirrors.copies.divergent.discarding(replica)
            write_record(self._files, self._paths, group, fresh)
            self._hosting.leave(group)
            if is_mirrored(group):
                self._clear(group)
                _log.warning("a mirror discards its copy and joins anew", extra={"group": group})
                return
            kept = set_group_aside(self._files, self._paths, group, raw)
        except StorageError as problem:
            replica.hosted.group.fail(str(problem))
            return
        _log.error(
            "another node's copy of a group was declared authoritative; this one is set aside, and"
            " fluxmqctl grow restores it",
            extra={"group": group, "kept": kept or "nothing"},
        )

    def _caught_up(self, replica: Replica, status: RaftStatus, now: float) -> set[int]:
        """Return the learners that have been close to the log's end for long enough."""
        near = {
            number
            for number, peer in status.progress.items()
            if peer.learner
            and peer.match
            and peer.state is ReplicationMode.REPLICATE
            and status.last_index - peer.match <= CAUGHT_UP_ENTRIES
            and replica.acquaintances.believed(number)
        }
        replica.caught_up = {number: replica.caught_up.get(number, now) for number in near}
        return {
            number
            for number, since in replica.caught_up.items()
            if now - since >= CAUGHT_UP_SECONDS
        }

    def _propose(self, replica: Replica, change: MembershipChange) -> bool:
        driver = replica.hosted.driver
        outcome = driver.node.propose_membership(change)
        driver.pump()
        if isinstance(outcome, ProposalAccepted):
            _log.info(
                "membership change proposed",
                extra={
                    "group": replica.plan.name,
                    "node": name_of(replica, change.node),
                    "becomes": change.verb.name.lower(),
                    "why": replica.acquaintances.doubt(change.node),
                },
            )
            return True
        return False

    def _tell(self, replica: Replica, members: Collection[int]) -> bool:
        """Tell nodes that they are members, or were removed; return whether there are any."""
        told = False
        if replica.acquaintances.record.diverged is not None:
            return True  # another leader may have other members
        group, driver = replica.plan.name, replica.hosted.driver
        membership = committed_membership(replica)
        known = replica.acquaintances.record.known
        for node, number, _address in replica.plan.nodes:
            if number == replica.hosted.driver.node.status().id:
                continue
            if number in members:
                if not replica.raft_transport.reaches(number):
                    voters, learners = membership
                    self._send(node, "member", group, list(voters), list(learners))
                    told = True
            elif number in known and number not in (*membership.voters, *membership.learners):
                self._send(node, "removed", group, driver.node.term)
                told = True
        return told

    def _send(self, node: str, what: str, *arguments: object) -> None:
        for link in self._links.of(node)[:1]:
            link.send_control(what, *arguments)

    # Requested changes

    def _change(self, replica: Replica, body: Body, answered: Answered) -> None:
        wanted = MemberChange.from_body(body)
        adding = wanted.change == ADD
        found = next((each for each in replica.plan.nodes if each.node == wanted.node), None)
        problem = self._problem(replica, wanted, found)
        if problem or found is None:
            answered(Failure(ERROR_INVALID, f"group {wanted.group}: {problem}"))
            return
        verb = ChangeVerb.ADD_LEARNER if adding else ChangeVerb.REMOVE
        driver = replica.hosted.driver
        outcome = driver.node.propose_membership(MembershipChange(verb, found.number))
        driver.pump()
        if isinstance(outcome, ChangeRefused):
            answered(Failure(ERROR_INVALID, f"group {wanted.group}: {outcome.value}"))
        elif isinstance(outcome, NotLeader):
            answered(
                Failure(
                    ERROR_FAILED, f"group {wanted.group} is being transferred to another leader"
                )
            )
        else:
            replica.next_tell = 0.0

            def done() -> Body | Failure | None:
                membership = committed_membership(replica)
                there = found.number in (*membership.voters, *membership.learners)
                return wanted.to_body() if there is adding else None

            late = f"group {wanted.group}: the change is not committed yet; see its members"
            self._orders.wait(done, late, answered)

    def _problem(self, replica: Replica, wanted: MemberChange, found: GroupMember | None) -> str:
        """Return why a change is not tried; empty if nothing is against it."""
        status = _status(replica)
        if is_mirrored(wanted.group):
            return "policies decide which nodes have mirrors"
        if found is None:
            nodes = ", ".join(each.node for each in replica.plan.nodes)
            return f"{wanted.node} is not one of its nodes in the settings, which are {nodes}"
        number = found.number
        if wanted.change != ADD:
            members = (*status.membership.voters, *status.membership.learners)
            return "" if number in members else f"{wanted.node} is not a member"
        if number in status.membership.voters:
            return f"{wanted.node} is a voter already"
        if number in status.membership.learners:
            return f"{wanted.node} is a learner already and becomes a voter when it has caught up"
        return "" if self._links.of(wanted.node) else f"{wanted.node} is not connected"

    # Announcements of leaders on other nodes

    def _on_member(
        self, link: FrameLink, group: str, voters: list[int], learners: list[int]
    ) -> None:
        """Join a group of which this node is a member, as its leader announces."""
        forwarded = self._links.forward(group, "member", group, voters, learners)
        ended = self.mirrors is not None and group in self.mirrors.copies.ended
        if forwarded or ended or group in self._hosting.groups:
            return
        own = member_number(self._links.node)
        try:
            plan = self._plans.of(group)
            record = read_record(self._files, self._paths, group)
            if own not in (*voters, *learners) or (record is not None and record.hosted):
                return
            if record is not None:
                self._clear(group)
            others = tuple(number for number in voters if number != own)
            if not others:
                return
            # It learns from the log that it is a member, and is none before.
            fresh = MemberRecord(random_number(), 0, 0, True, others)
            write_record(self._files, self._paths, group, fresh)
            self._hosting.open(group)
        except (UnknownGroup, StorageError) as problem:
            text = "cannot join group %s, as node %s asks: %s"
            self._refused.event(logging.ERROR, group, text, group, link.peer, problem)
            return
        _log.info("joining a group", extra={"group": plan.name})

    def _clear(self, group: str) -> None:
        """Delete what is left of an earlier membership, to be replaced by the current state."""
        for parent in (self._paths.queues(group),):
            if self._files.exists(parent):
                for name in self._files.listdir(parent):
                    delete_directory(self._files, f"{parent}/{name}")
        if self._files.exists(self._paths.snapshots(group)):
            delete_directory(self._files, self._paths.snapshots(group))
        installing = TransferPaths(self._paths, group).installing
        if self._files.exists(installing):
            forget_install(self._files, self._paths, group)  # it refers to files that are gone
        clean(self._files, self._paths, group)

    def _on_removed(self, _link: FrameLink, group: str, term: int) -> None:
        """Leave a group from which this node was removed, as its leader announces."""
        if self._links.forward(group, "removed", group, term):
            return
        replica = self._replicas.get(group)
        if replica is None or replica.hosted.checkpointing:
            return  # the leader repeats it
        if replica.hosted.driver.node.term > term or replica.hosted.driver.leading:
            return
        record = replica.acquaintances.record
        try:
            write_record(self._files, self._paths, group, replace(record, hosted=False))
            self._hosting.leave(group)
        except StorageError as problem:
            replica.hosted.group.fail(str(problem))
            return
        _log.warning("leaving a group: this node was removed from it", extra={"group": group})


def next_change(
    status: RaftStatus, committed: Membership, doubted: Collection[int], caught_up: Collection[int]
) -> MembershipChange | None:
    """Return the change that a leader makes on its own: demote a voter that is not believed to a
    learner, promote a learner that has caught up. One at a time, and none while another is pending.
    """
    membership = status.membership
    if committed != membership:
        return None
    for number in membership.voters:
        if number in doubted and number != status.id:
            return MembershipChange(ChangeVerb.ADD_LEARNER, number)
    for number in membership.learners:
        if number in caught_up and number not in doubted:
            return MembershipChange(ChangeVerb.ADD_VOTER, number)
    return None


def view_of(replica: Replica) -> GroupView:
    """Return a group's state by this node's copy."""
    status = _status(replica)
    committed = committed_membership(replica)
    return GroupView(status.commit, committed.voters, status.membership.voters)


def _status(replica: Replica) -> RaftStatus:
    return replica.hosted.driver.node.status()
