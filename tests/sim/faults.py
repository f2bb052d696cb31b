"""What goes wrong in a simulated world, by the rates that its seed has drawn.

It chooses what happens and to whom, and draws from the world's own source of chance; what a crash or a cut means is the
disk's and the network's business. Messages that are lost one by one are the network's, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluxmq.raft.types import ChangeVerb, MembershipChange
from tests.sim.events import FAULT, HEAL, START
from tests.sim.member import Member

if TYPE_CHECKING:
    from tests.sim.world import World


class Faults:
    """The faults of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance

    def strike(self) -> None:
        """Called every `fault_us`."""
        world = self._world
        swarm = world.swarm
        chance = self._chance
        if chance() < swarm.cut:
            self._cut()
        if chance() < swarm.crash:
            self._crash(self._anybody())
        if chance() < swarm.power_cut:
            for member in world.members.values():
                self._crash(member)
        if chance() < swarm.pause:
            self._anybody().paused_until = world.now_us + int(chance() * 1_000_000)
        if chance() < swarm.campaign:
            member = self._anybody()
            if member.node is not None:
                world.note(FAULT, member.id, 1)
                member.node.campaign()
                member.pump()
        if chance() < swarm.transfer and (leader := world.leader()) is not None:
            assert leader.node is not None, "leaders run"
            leader.node.transfer_leadership(self._anybody().id)
            leader.pump()
        if chance() < swarm.unreachable and (leader := world.leader()) is not None:
            assert leader.node is not None, "leaders run"
            leader.node.report_unreachable(self._anybody().id)
            leader.pump()
        if chance() < swarm.membership:
            self._change_membership()

    def _anybody(self) -> Member:
        """The leader half of the time: that is where it hurts."""
        world = self._world
        if self._chance() < 0.5 and (leader := world.leader()) is not None:
            return leader
        return world.members[1 + int(self._chance() * len(world.members))]

    def _crash(self, member: Member) -> None:
        world = self._world
        if member.node is not None:
            world.note(FAULT, member.id, 2)
            world.seen["crashes"] += 1
            member.crash()
            world.at(int(self._chance() * 800_000), START, member)

    def _cut(self) -> None:
        """Part the members in two, or cut one pair off; both ways or one."""
        world = self._world
        chance = self._chance
        ids = list(world.members)
        side = [self._anybody().id] if chance() < 0.6 else [me for me in ids if chance() < 0.5]
        others = [me for me in ids if me not in side]
        if chance() < 0.3 and others:
            others = [others[int(chance() * len(others))]]
        one_way = chance() < world.swarm.one_way
        until = int(chance() * world.swarm.cut_us)
        outward = chance() < 0.5
        for one in side:
            for other in others:
                links = ((one, other), (other, one))
                for link in links[:1] if one_way and outward else links[one_way:]:
                    world.cuts[link] = max(world.cuts.get(link, 0), world.now_us + until)
                    world.at(until, HEAL, None, link)

    def _change_membership(self) -> None:
        world = self._world
        leader = world.leader()
        if leader is None:
            return
        assert leader.node is not None, "leaders run"
        target = world.members[1 + int(self._chance() * len(world.members))]
        if target.removed:
            return
        draw_ = self._chance()
        current = leader.voters
        verb = ChangeVerb.ADD_LEARNER if draw_ < 0.4 else ChangeVerb.ADD_VOTER
        if draw_ > 0.8 and len(current) > 1:
            verb = ChangeVerb.REMOVE
        if self._was_removed(target.id):
            return
        world.note(FAULT, leader.id, target.id, int(verb))
        leader.node.propose_membership(MembershipChange(verb, target.id))
        leader.pump()

    def _was_removed(self, me: int) -> bool:
        """Whether a member was in the group once and is not any more: its id is not used again."""
        world = self._world
        known = world.invariants.memberships
        was = any(me in (*each.voters, *each.learners) for _, each in known)
        now = world.invariants.membership
        return was and me not in (*now.voters, *now.learners)
