"""Combined heartbeats of a shard's groups: their timer, and their frames over the links to other
nodes' shards. See `fluxmq.replication.heartbeats`.

A member is at a shard if the group's own stream to it leads there, to the same life of that
process, and the member is believed: the frames of that shard's link then speak for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluxmq.cluster.node_links import NodeLink
from fluxmq.raft.quiescence import Quiescence
from fluxmq.replication.heartbeats import (
    ANSWER,
    BEAT,
    CombinedHeartbeats,
    Lease,
    beat_seconds,
)
from fluxmq.replication.hosted_groups import AnyHostedGroups
from fluxmq.replication.replica import Replica, tick_seconds
from fluxmq.replication.shard_links import ShardLinks

LOOK_SECONDS = 1.0
"""Interval between two looks for groups that need no periodic work."""
ATTENDED_SECONDS = 10.0
"""Time for which a group at rest is still looked at: its members are told what they have to know, its
copies compared, its queues with the topology."""


class RestingReplica:
    """A replicated group on this shard, as one that may rest; implements ``RestingGroup``."""

    def __init__(self, replica: Replica, links: HeartbeatLinks, hosting: AnyHostedGroups) -> None:
        self.name = replica.plan.name
        self.leases: dict[int, Lease] = {}
        self.rested_at = 0.0
        """Time at which it last went to rest, in monotonic seconds."""
        self.replica = replica
        self._group = replica.hosted.group
        self._driver = replica.hosted.driver
        self._links = links
        self._hosting = hosting

    @property
    def quiescence(self) -> Quiescence:
        """The state of its Raft node."""
        return self._driver.node.quiescence

    @property
    def working(self) -> bool:
        """True if it takes part in the group."""
        return not (self._group.failed or self._driver.halted)

    def has_rested(self, now: float) -> bool:
        """Return whether it has been at rest for so long that all is told and compared."""
        settled = bool(self.leases) and self.replica.settled
        return settled and self.rested_at + ATTENDED_SECONDS <= now

    def peer_of(self, member: int) -> int | None:
        """Return the shard where a member is; 0 without a stream, None if it cannot rest."""
        stream = self.replica.raft_transport.stream(member)
        if stream is None:
            return 0
        if not self.replica.acquaintances.believed(member):
            return None
        hello = stream.hello
        return self._links.peer_of(hello.node, hello.shard, hello.epoch)

    def ticks(self, beats: int) -> int:
        """Return the ticks of its clock in so many beats."""
        return int(beats * self._links.interval / tick_seconds(self.replica.plan))

    def settle(self) -> None:
        """Apply what was left for the next tick."""
        self._driver.catch_up(at_once=True)

    def slept(self) -> None:
        """Stop the group's clock."""
        self.rested_at = self._links.now()
        self.replica.rest()
        self.replica.raft_transport.rest(True)

    def woke(self, leases: Mapping[int, Lease]) -> None:
        """Start the group's clock again."""
        heard = self.replica.raft_transport.heard
        for member, lease in leases.items():
            heard[member] = max(heard.get(member, 0.0), self._links.heard.get(lease.peer, 0.0))
        self.replica.raft_transport.rest(False)
        self.replica.resume(self._hosting.wake)
        self._hosting.attended.add(self.replica.hosted)


class HeartbeatLinks:
    """The combined heartbeats of a shard. ``interval``: seconds between beats. ``heard``: when each
    shard's last frame came."""

    def __init__(
        self, links: ShardLinks, hosting: AnyHostedGroups, now: Callable[[], float]
    ) -> None:
        self.combined = CombinedHeartbeats(self._send)
        self.interval = 1.0
        self.heard: dict[int, float] = {}
        self._links = links
        self._hosting = hosting
        self.now = now
        self._next_look = 0.0
        self._groups: dict[str, RestingReplica] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._measured = True

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {BEAT: self._on_beat, ANSWER: self._on_answer}

    # Groups

    def add(self, replica: Replica) -> None:
        """Take a group that was opened."""
        group = self._groups[replica.plan.name] = RestingReplica(replica, self, self._hosting)
        self.combined.add(group)
        self._measured = False

    def remove(self, name: str) -> None:
        """Forget a group that is no longer here."""
        group = self._groups.pop(name, None)
        if group is not None:
            self.combined.remove(group)
            self._measured = False

    def _measure(self) -> None:
        """Take the interval from the groups' timeouts."""
        self._measured = True
        plans = [group.replica.plan for group in self._groups.values()]
        timings = {(plan.heartbeat_timeout, plan.election_timeout) for plan in plans}
        if timings:
            self.interval, self.combined.silence_max = beat_seconds(timings)

    def rests(self, name: str) -> bool:
        """Return whether a group rests here."""
        group = self._groups.get(name)
        return group is not None and bool(group.leases)

    def stirred(self, name: str) -> None:
        """Wake a group: something is about to happen in it."""
        group = self._groups.get(name)
        if group is not None and group.leases:
            self.combined.wake(group)

    def heard_of(self, name: str, member: int) -> float:
        """Return when the shard of a resting group's member was last heard; 0.0 otherwise."""
        group = self._groups.get(name)
        lease = None if group is None else group.leases.get(member)
        return 0.0 if lease is None else self.heard.get(lease.peer, 0.0)

    # Time

    def start(self) -> None:
        """Begin beats."""
        if not self._measured:
            self._measure()
        self._timer = asyncio.get_running_loop().call_later(self.interval, self._beat)

    def stop(self) -> None:
        """End beats."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        """Count one beat, however long the shard was held up."""
        self.start()
        resting = self.combined.resting
        self.combined.beat()
        if self.combined.resting != resting:
            self._hosting.wake()
        now = self.now()
        if now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            self._dismiss(now)

    def _dismiss(self, now: float) -> None:
        """Leave groups out of periodic work that have rested for a while."""
        for name in list(self._hosting.attended.groups):
            group = self._groups.get(name)
            if group is not None and group.has_rested(now):
                self._hosting.attended.dismiss(name)

    # Links

    def peer_of(self, node: str, shard: int, epoch: int) -> int | None:
        """Return the number of a shard of another node, in that life of it, if there is a link to
        it and it understands combined heartbeats; None otherwise."""
        for peer, link in self._links.abroad.items():
            if (link.node, link.shard, link.epoch) == (node, shard, epoch):
                return peer if link.up and link.combines else None
        return None

    def came(self, link: NodeLink) -> None:
        """Handle a new stream to a shard."""
        if link.combines:
            self.combined.came(link.peer)

    def gone(self, link: NodeLink) -> None:
        """Handle the loss of a stream."""
        self.combined.gone(link.peer)

    def _send(self, peer: int, what: str, *arguments: Any) -> None:
        self._links.abroad[peer].send_control(what, *arguments)

    def _on_beat(
        self,
        link: NodeLink,
        number: int,
        added: Sequence[tuple[str, int, int]],
        removed: Sequence[str],
    ) -> None:
        self.heard[link.peer] = self.now()
        resting = self.combined.resting
        self.combined.on_beat(link.peer, number, added, removed)
        if added or removed or self.combined.resting != resting:
            self._hosting.wake()

    def _on_answer(self, link: NodeLink, number: int, woken: Sequence[str]) -> None:
        self.heard[link.peer] = self.now()
        self.combined.on_answer(link.peer, number, woken)
        if woken:
            self._hosting.wake()
