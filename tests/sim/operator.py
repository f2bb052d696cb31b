"""Whoever runs the group: replaces members that are lost for ever, one step at a time.

Another member takes the place of a lost one: it is added as a learner, promoted, and the lost one is removed, before
or after. It has a number of its own, so nothing that the lost one has promised, and nothing of it that is still under
way, can be taken for the new one's. Or a lost member
comes back under its own number, with what its directory holds: it may not run before a leader that is one still, says
that it has no vote by what is committed. By then a majority of the others will neither elect anybody who counts its old
votes, nor follow a leader who counts its old acknowledgements. It begins in that leader's term, so it does not listen to
earlier leaders, who think of it as it was; no stream of its earlier life goes on; and it
weighs votes as if it held what is committed, for who was removed long ago may still count its vote. The operator sees what leaders say; an old leader's word is as good as a new one's
to it. It goes on when faults have ended: a group is whole again when every lost member has been replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluxmq.raft.memberships import changed
from fluxmq.raft.types import ChangeVerb, HardState, Membership, MembershipChange, ProposalAccepted
from tests.sim.events import LOST, OPERATE, REPLACED, START
from tests.sim.member import Member

if TYPE_CHECKING:
    from tests.sim.world import World

OPERATE_US = 50_000
BEHIND_MAX = 5
"""Entries that a learner may lack when it is promoted by somebody who looks."""


class Operator:
    """The replacements of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._places: dict[int, int] = {}
        """Who was lost, and who takes its place: another, or it itself."""
        self._removed_first: list[int] = []

    def lose(self, member: Member, why: str) -> None:
        """A member is gone for ever; somebody will take its place."""
        world = self._world
        world.note(LOST, member.id)
        if world.trace is not None:
            world.trace(f"member {member.id}: {why}")
        world.seen[f"lost, {why}"] += 1
        member.give_up()
        self._replace(member)

    def _replace(self, lost: Member) -> None:
        """A member is lost; another one is started in its place, with nothing on its disk, or it will be."""
        world = self._world
        if not self._places:
            world.at(OPERATE_US, OPERATE)
        if world.chance() < 0.5 and lost.id not in self._removed_first:
            self._removed_first.append(lost.id)
        if world.chance() < world.swarm.same_number:
            self._places[lost.id] = lost.id
            return
        new = world.new_member()
        self._places[lost.id] = new.id
        world.at(int(world.chance() * 300_000), START, new)

    def done(self) -> bool:
        """Whether every lost member has been replaced, as far as is committed."""
        membership = self._world.invariants.membership
        members = self._world.members
        return all(
            (lost == new or not is_member(membership, lost))
            and (new in membership.voters or (members[new].removed and lost != new))
            for lost, new in self._places.items()
        )

    def work(self) -> None:
        """Take the next step of one replacement, if there is a leader to ask."""
        world = self._world
        world.at(OPERATE_US, OPERATE)
        leader = world.leader()
        world.note(OPERATE, leader.id if leader is not None else 0)
        if leader is None or leader.paused_until > world.now_us:
            return
        membership = leader.memberships[-1][1]
        for lost, new in self._places.items():
            change = self._next_step(leader, membership, lost, new)
            if change is not None:
                self._propose(leader, membership, change)
                return

    def _next_step(
        self, leader: Member, membership: Membership, lost: int, new: int
    ) -> MembershipChange | None:
        world = self._world
        if lost == new and world.members[lost].lost:
            return self._take_vote_away(leader, membership, lost)
        if lost != new and lost in self._removed_first and is_member(membership, lost):
            return MembershipChange(ChangeVerb.REMOVE, lost)
        if not world.members[new].removed and new not in membership.voters:
            if new not in membership.learners:
                if lost != new and world.was_removed(new):
                    return None
                return MembershipChange(ChangeVerb.ADD_LEARNER, new)
            if self._has_caught_up(leader, new) or world.chance() < world.swarm.early:
                return MembershipChange(ChangeVerb.ADD_VOTER, new)
            return None
        if lost != new and is_member(membership, lost):
            return MembershipChange(ChangeVerb.REMOVE, lost)
        return None

    def _take_vote_away(
        self, leader: Member, membership: Membership, lost: int
    ) -> MembershipChange | None:
        """Remove a lost member, or make it a learner; when that is committed, it may run again."""
        world = self._world
        remove = lost in self._removed_first
        if lost in membership.voters or (remove and lost in membership.learners):
            verb = ChangeVerb.REMOVE if remove else ChangeVerb.ADD_LEARNER
            return MembershipChange(verb, lost)
        if membership == world.invariants.membership and self._leads_still(leader):
            self._bring_back(world.members[lost], leader)
        return None

    def _leads_still(self, leader: Member) -> bool:
        """Whether nobody leads a later term, which a leader knows after a round of reads; removed members must have been
        told, or one that comes back would be told what its earlier life is."""
        world = self._world
        commit = world.invariants.committed[-1]
        newest = leader.term == max(world.invariants.leaders) == commit[0]
        return world.removals_are_told() and newest

    def _bring_back(self, member: Member, leader: Member) -> None:
        """A lost member runs again, in the leader's term; what it sent and was sent before ended with its streams."""
        world = self._world
        world.note(REPLACED, member.id, leader.id)
        world.seen["came back under the same number"] += 1
        assert leader.node is not None, "leaders run"
        leader.node.start_over(member.id)
        world.invariants.began_anew(member.id, member.disk.durable)
        state = HardState(leader.term, leader.id, 0)
        floor = (leader.term, leader.node.status().commit)
        incarnation = world.incarnations[member.id]
        world.disks[member.id] = member.begin_anew(incarnation, state, floor)
        world.invariants.hard_state_durable(member.id, state)
        world.forget_messages(member)
        world.at(int(world.chance() * 300_000), START, member)

    def _has_caught_up(self, leader: Member, new: int) -> bool:
        assert leader.node is not None, "leaders run"
        status = leader.node.status()
        return new in status.progress and status.progress[new].match >= status.commit - BEHIND_MAX

    def _propose(self, leader: Member, membership: Membership, change: MembershipChange) -> None:
        world = self._world
        after = changed(membership, change)
        if not isinstance(after, Membership) or not world.wear.may_change_to(after):
            return
        assert leader.node is not None, "leaders run"
        world.note(OPERATE, leader.id, int(change.verb), change.node)
        taken = isinstance(leader.node.propose_membership(change), ProposalAccepted)
        leader.pump()
        if taken:
            world.seen[f"replacing, {change.verb.name.lower()}"] += 1
            if not world.calm and world.chance() < world.swarm.step_fault:
                world.disturb(leader, world.members[change.node])


def is_member(membership: Membership, node: int) -> bool:
    """Whether a node is a voter or a learner."""
    return node in membership.voters or node in membership.learners
