"""Whoever runs the group: replaces members that are lost for ever, one step at a time.

Another member takes the place of a lost one: it is added as a learner, promoted, and the lost one is removed, before
or after. It has a number of its own, so nothing that the lost one has promised, and nothing of it that is still under
way, can be taken for the new one's. The operator sees what leaders say; an old leader's word is as good as a new one's
to it. It goes on when faults have ended: a group is whole again when every lost member has been replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluxmq.raft.memberships import changed
from fluxmq.raft.types import ChangeVerb, Membership, MembershipChange, ProposalAccepted
from tests.sim.events import OPERATE, START
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
        """Who was lost, and who takes its place."""
        self._removed_first: list[int] = []

    def replace(self, lost: Member) -> None:
        """A member is lost; another one is started in its place, with nothing on its disk."""
        world = self._world
        new = world.new_member()
        self._places[lost.id] = new.id
        if world.chance() < 0.5:
            self._removed_first.append(lost.id)
        world.at(int(world.chance() * 300_000), START, new)
        if len(self._places) == 1:
            world.at(OPERATE_US, OPERATE)

    def done(self) -> bool:
        """Whether every lost member has been replaced, as far as is committed."""
        membership = self._world.invariants.membership
        members = self._world.members
        return all(
            not is_member(membership, lost)
            and (new in membership.voters or members[new].removed)
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
        if lost in self._removed_first and is_member(membership, lost):
            return MembershipChange(ChangeVerb.REMOVE, lost)
        if not world.members[new].removed and new not in membership.voters:
            if new not in membership.learners:
                if world.was_removed(new):
                    return None
                return MembershipChange(ChangeVerb.ADD_LEARNER, new)
            if self._has_caught_up(leader, new) or world.chance() < world.swarm.early:
                return MembershipChange(ChangeVerb.ADD_VOTER, new)
            return None
        if is_member(membership, lost):
            return MembershipChange(ChangeVerb.REMOVE, lost)
        return None

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
