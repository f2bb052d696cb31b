"""What goes wrong among simulated nodes, by the rates that the seed has drawn.

A disk may lose what was not synced, fail and fill up, and flip bits; a group never loses a majority of its voters for
good, since none recovers from that.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from fluxmq.raft.types import ChangeVerb, Membership, MembershipChange
from tests.sim.queues.host import Host

if TYPE_CHECKING:
    from tests.sim.queues.world import World

CALLS = ("pwritev", "fdatasync", "create", "rename", "unlink", "fsync_directory", "overwrite")
"""Calls of the file system in which a process may die."""
MODES = ("nothing", "prefix", "sectors", "sectors", "all")
"""What a power cut leaves of what was not synced."""
FULL_US = 400_000
VOTERS_MAX = 5


class Faults:
    """The faults of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance

    def strike(self) -> None:
        """Called every `fault_us`."""
        world, chance = self._world, self._chance
        swarm = world.swarm
        if chance() < swarm.cut:
            self._cut()
        if chance() < swarm.crash:
            self.crash(self._anybody(), power=chance() < swarm.power)
        if chance() < swarm.blackout:
            world.seen["blackouts"] += 1
            for host in world.hosts.values():
                self.crash(host, power=True)
        if chance() < swarm.crash_in_call:
            self._arm(self._anybody())
        if chance() < swarm.write_error:
            self._fail_writes(self._anybody())
        if chance() < swarm.sync_error:
            world.fail_sync(self._anybody())
        if chance() < swarm.full:
            self._fill(self._anybody())
        if chance() < swarm.flip:
            self._flip(self._anybody())
        if chance() < swarm.campaign and (host := self._anybody()).listens:
            assert host.hosted is not None, "it listens"
            world.note("campaign", host.number)
            host.hosted.driver.campaign()
            world.after(host)
        if chance() < swarm.transfer and (leader := world.leader()) is not None:
            self._transfer(leader)
        if chance() < swarm.membership and (leader := world.leader()) is not None:
            self._change_members(leader)

    def _anybody(self) -> Host:
        """The leader half of the time: that is where it hurts."""
        world = self._world
        if self._chance() < 0.5 and (leader := world.leader()) is not None:
            return leader
        return world.pick(list(world.hosts.values()))

    # Nodes and disks

    def crash(self, host: Host, *, power: bool) -> None:
        """A node ends without a word."""
        world = self._world
        if not host.up:
            return
        mode = world.pick(MODES)
        world.note("crash", host.number, power, MODES.index(mode))
        world.seen["power cuts" if power else "kills"] += 1
        host.end(power=power or host.faulted, mode=mode)
        world.start_later(host)

    def _arm(self, host: Host) -> None:
        world = self._world
        if host.up:
            operation = world.pick(CALLS)
            nth = 1 + int(self._chance() * 6)
            world.note("arm", host.number, CALLS.index(operation), nth)
            host.files.crash(operation, nth)

    def _fail_writes(self, host: Host) -> None:
        world = self._world
        if host.up:
            world.note("write error", host.number)
            world.seen["write errors"] += 1
            host.faulted = True
            operation = world.pick(("pwritev", "fdatasync", "create", "rename"))
            host.files.fail(operation, errno.EIO, 1 + int(self._chance() * 3))

    def _fill(self, host: Host) -> None:
        world = self._world
        if host.up:
            world.note("full", host.number)
            world.seen["full disks"] += 1
            host.files.full = True
            world.free_later(host, int(FULL_US * self._chance()))

    def _flip(self, host: Host) -> None:
        world = self._world
        if not host.damaged and not host.gone and self.may_lose(host) and host.flip():
            world.note("flip", host.number)
            world.seen["bits flipped"] += 1

    # Links

    def _cut(self) -> None:
        world, chance = self._world, self._chance
        numbers = list(world.hosts)
        side = (
            [self._anybody().number] if chance() < 0.6 else [n for n in numbers if chance() < 0.5]
        )
        others = [number for number in numbers if number not in side]
        if chance() < 0.3 and others:
            others = [others[int(chance() * len(others))]]
        one_way = chance() < world.swarm.one_way
        until = world.now_us + int(chance() * world.swarm.cut_us)
        outward = chance() < 0.5
        world.seen["cuts"] += 1
        for one in side:
            for other in others:
                if not one_way or outward:
                    world.cut((one, other), until)
                if not one_way or not outward:
                    world.cut((other, one), until)

    # Members

    def _transfer(self, leader: Host) -> None:
        world = self._world
        assert leader.hosted is not None, "leaders run"
        driver = leader.hosted.driver
        voters = driver.node.status().membership.voters
        target = voters[int(self._chance() * len(voters))]
        if driver.node.transfer_leadership(target):
            world.note("transfer", leader.number, target)
            world.seen["transfers"] += 1
        driver.pump()
        world.after(leader)

    def memberships(self) -> list[Membership]:
        """All that may be in effect: those of the nodes that run, and the last one committed."""
        hosted = [host.hosted for host in self._world.hosts.values()]
        of_nodes = [each.driver.node.status().membership for each in hosted if each is not None]
        return [self._world.membership, *of_nodes]

    def may_lose(self, host: Host) -> bool:
        """Whether every membership that may be in effect keeps a majority without this node and those lost before.

        Of nodes that hold all that is committed, that is: one that begins anew after a crash does not know how far that
        is, and no longer has the segments of its last checkpoint that later entries trimmed. It can give no snapshot to
        an empty node before a majority has confirmed its log.
        """
        hosts, last = self._world.hosts, self._world.ledger.last
        if not all(each.up or each.gone for each in hosts.values()):
            return False  # nobody knows what the log of those who are down ends with
        for membership in self.memberships():
            voters = membership.voters
            bad = [
                number
                for number in voters
                if number == host.number
                or hosts[number].gone
                or hosts[number].damaged
                or not hosts[number].holds(last)
            ]
            if len(bad) > (len(voters) - 1) // 2:
                return False
        return True

    def _change_members(self, leader: Host) -> None:
        """Add a spare node, or remove one."""
        world = self._world
        membership = self._settled_membership(leader)
        if membership is None:
            return
        everybody = (*membership.voters, *membership.learners)
        spares = [
            host for host in world.hosts.values() if host.number not in everybody and not host.gone
        ]
        learners = membership.learners
        if learners and self._chance() < 0.6:
            self._promote(leader, membership)
        elif spares and len(membership.voters) < VOTERS_MAX and self._chance() < 0.6:
            world.propose_change(leader, MembershipChange(ChangeVerb.ADD_LEARNER, spares[0].number))
        elif len(membership.voters) > 3:
            number = membership.voters[int(self._chance() * len(membership.voters))]
            if self.may_lose(world.hosts[number]):
                world.propose_change(leader, MembershipChange(ChangeVerb.REMOVE, number))

    def _settled_membership(self, leader: Host) -> Membership | None:
        """The leader's membership, if it is committed."""
        assert leader.hosted is not None, "leaders run"
        current = leader.hosted.driver.node.status().membership
        return current if current == self._world.membership else None

    def _promote(self, leader: Host, membership: Membership) -> bool:
        """Make a learner that has caught up a voter."""
        assert leader.hosted is not None, "leaders run"
        status = leader.hosted.driver.node.status()
        for number in membership.learners:
            peer = status.progress.get(number)
            if peer is not None and peer.match and status.last_index - peer.match <= 20:
                change = MembershipChange(ChangeVerb.ADD_VOTER, number)
                return self._world.propose_change(leader, change)
        return False

    def replace_lost(self, leader: Host) -> None:
        """Replace members that are lost for good, as an operator would: a new node first, then the lost one goes."""
        world = self._world
        membership = self._settled_membership(leader)
        if membership is None:
            return
        everybody = (*membership.voters, *membership.learners)
        lost = [number for number in everybody if world.hosts[number].gone]
        if not lost:
            self._promote(leader, membership)
        elif lost[0] in membership.learners or len(membership.voters) > 3:
            world.propose_change(leader, MembershipChange(ChangeVerb.REMOVE, lost[0]))
        elif membership.learners:
            self._promote(leader, membership)
        else:
            spare = world.spare_host(everybody)
            change = MembershipChange(ChangeVerb.ADD_LEARNER, spare.number)
            world.propose_change(leader, change)
