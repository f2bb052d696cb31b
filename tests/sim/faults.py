"""What goes wrong in a simulated world, by the rates that its seed has drawn.

It chooses what happens and to whom, and draws from the world's own source of chance; what a crash or a cut means is the
disk's and the network's business. Messages that are lost one by one are the network's, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluxmq.raft.memberships import changed
from fluxmq.raft.types import ChangeVerb, Membership, MembershipChange
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
        if swarm.cut_transfer and chance() < swarm.cut_transfer:
            self._transfer_to_who_is_cut_off()
        if swarm.pieces:
            world.wear.strike(self._anybody())

    def disturb(self, leader: Member, target: Member) -> None:
        """One of the two in a membership change crashes or is cut off, or leadership moves away."""
        draw_ = self._chance()
        if draw_ < 0.25:
            self._crash(leader)
        elif draw_ < 0.5:
            self._crash(target)
        elif draw_ < 0.65:
            self._cut_off(leader)
        elif draw_ < 0.8:
            self._cut_off(target)
        elif leader.node is not None:
            leader.node.transfer_leadership(self._anybody().id)
            leader.pump()

    def _cut_off(self, member: Member) -> None:
        """From everybody, both ways."""
        world = self._world
        until = int(self._chance() * world.swarm.cut_us)
        for other in world.members:
            for link in ((member.id, other), (other, member.id)):
                world.cuts[link] = max(world.cuts.get(link, 0), world.now_us + until)
                world.at(until, HEAL, None, link)

    def _transfer_to_who_is_cut_off(self) -> None:
        world = self._world
        leader = world.leader()
        if leader is None:
            return
        assert leader.node is not None, "leaders run"
        voters = leader.voters
        target = world.members[voters[int(self._chance() * len(voters))]]
        if leader.node.transfer_leadership(target.id):
            world.note(FAULT, leader.id, target.id, 7)
            world.seen["transfers to who is cut off"] += 1
            if self._chance() < 0.5:
                leader.pump()  # what says so is on its way already
            self._cut_off(target)
            if leader.node is not None:
                leader.pump()

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
        if target.removed or target.incarnations:
            return
        draw_ = self._chance()
        current = leader.voters
        verb = ChangeVerb.ADD_LEARNER if draw_ < 0.4 else ChangeVerb.ADD_VOTER
        if draw_ > 0.8 and len(current) > 1:
            verb = ChangeVerb.REMOVE
        if world.was_removed(target.id):
            return
        change = MembershipChange(verb, target.id)
        if world.swarm.pieces and not self._keeps_majority(leader, change):
            return
        world.note(FAULT, leader.id, target.id, int(verb))
        leader.node.propose_membership(change)
        leader.pump()

    def _keeps_majority(self, leader: Member, change: MembershipChange) -> bool:
        """Whether the group can go on after a change, with those that are lost."""
        after = changed(leader.memberships[-1][1], change)
        return not isinstance(after, Membership) or self._world.wear.may_change_to(after)
