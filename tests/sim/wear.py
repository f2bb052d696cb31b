"""What goes wrong with the storage of a worn group: writes that fail, bits that flip, directories that are not the own.

It chooses what happens to whom. Never so much that a majority of voters could be gone for ever, by any membership that
may be in effect: nothing could bring such a group back. A copy of a directory is always one from before the member's
last start, for only a start raises its incarnation; a copy of a running member's directory is not recognised, which is
why hosts tell operators not to make such copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluxmq.raft.types import Membership
from tests.sim.disk import Disk
from tests.sim.events import FAULT, START
from tests.sim.member import Member

if TYPE_CHECKING:
    from tests.sim.world import World

MEMBERS_MAX = 16
"""Members of a run, lost ones and those in their place included."""

NOBODY = Membership((), ())


class Wear:
    """The storage faults of one run."""

    def __init__(self, world: World) -> None:
        self._world = world

    def strike(self, member: Member) -> None:
        """Called at every step of faults with somebody it may strike."""
        world = self._world
        swarm = world.swarm
        chance = world.chance
        if swarm.write_error and chance() < swarm.write_error and member.node is not None:
            world.note(FAULT, member.id, 3)
            member.sync_fails = True
        if swarm.snapshot_now and chance() < swarm.snapshot_now and member.node is not None:
            world.note(FAULT, member.id, 4)
            member.take_snapshot()
            member.pump()
        if swarm.damage and chance() < swarm.damage and self.may_lose(member):
            self._flip(member)
        if swarm.old_directory and chance() < swarm.old_directory and self.may_lose(member):
            self._replace_directory(member)

    def sync_failed(self, member: Member) -> None:
        """The member's disk has refused what it was syncing: nothing after it can be relied on."""
        world = self._world
        world.seen["writes failed"] += 1
        if world.chance() < world.swarm.stops and self.may_lose(member):
            world.operator.lose(member, "disk failed")
        else:
            member.crash()
            world.at(int(world.chance() * 800_000), START, member)

    def _flip(self, member: Member) -> None:
        """An entry or the snapshot, rather one that was not applied yet; half of the time it is read soon."""
        world = self._world
        chance = world.chance
        store = member.disk.durable
        high = store.last_index()
        low = store.base + (store.base == 0)
        if chance() < 0.3:
            low = high = store.base  # the snapshot
        elif chance() < 0.5 and member.node is not None:
            low = max(low, min(member.applied + 1, high))
        if not 0 < low <= high:
            return
        index = low + int(chance() * (high - low + 1))
        world.note(FAULT, member.id, 5, index)
        world.seen["bits flipped"] += 1
        member.disk.flip(index)
        if chance() < 0.5 and member.node is not None:
            member.crash()
            world.at(int(chance() * 800_000), START, member)

    def _replace_directory(self, member: Member) -> None:
        """The member finds an earlier copy of its directory at its next start, or an empty one."""
        world = self._world
        if member.disk.incarnation == 0:
            return
        world.note(FAULT, member.id, 6)
        earlier = member.earlier
        empty = earlier is None or world.chance() < 0.3
        member.found = Disk(NOBODY) if empty or earlier is None else earlier
        world.seen["directories replaced"] += 1
        if member.node is not None:
            member.crash()
            world.at(int(world.chance() * 800_000), START, member)

    def may_lose(self, member: Member) -> bool:
        """Whether a majority stays when this member is lost as well, and another may take its place."""
        world = self._world
        if member.lost or member.removed or len(world.members) >= MEMBERS_MAX:
            return False
        now = world.invariants.membership
        if member.id not in now.voters and member.id not in now.learners:
            return False  # nobody would miss it
        gone = self._gone()
        gone.append(member.id)
        return all(keeps_majority(each, gone) for each in self._memberships())

    def may_change_to(self, membership: Membership) -> bool:
        """Whether those who are not lost are a majority of these voters."""
        return keeps_majority(membership, self._gone())

    def _gone(self) -> list[int]:
        """Who is lost, or will be as soon as it looks."""
        return [
            member.id
            for member in self._world.members.values()
            if member.lost or member.disk.durable.damaged or member.found is not None
        ]

    def _memberships(self) -> list[Membership]:
        """What may be in effect: the last one known to be committed, and all behind it in somebody's log.

        Also those that were cut off by a write which a crash may undo.
        """
        invariants = self._world.invariants
        since, committed = invariants.memberships[-1]
        found = [committed]
        for member in self._world.members.values():
            found += [each for index, each in member.memberships if index > since]
            found += member.disk.durable.memberships(since)
        return found


def keeps_majority(membership: Membership, gone: list[int]) -> bool:
    """Whether more than half of the voters are not gone."""
    left = sum(voter not in gone for voter in membership.voters)
    return left > len(membership.voters) // 2
