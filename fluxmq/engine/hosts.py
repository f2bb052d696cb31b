"""The queue hosts of groups on this shard: a group's leader, or the node's own copy for readers."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import IntEnum

from fluxmq.engine.counts import NOT_LEADER
from fluxmq.engine.group import Group
from fluxmq.engine.leader_host import NUMBERS_APART, LeaderHost
from fluxmq.engine.local_host import LocalHost
from fluxmq.engine.once import Once
from fluxmq.engine.outbox import Carrying, Outboxes
from fluxmq.engine.ports import QueueHost
from fluxmq.engine.remote import RemoteHosts
from fluxmq.engine.service import QueueService
from fluxmq.logs import RateLimited, get_logger
from fluxmq.net.links import FrameLink
from fluxmq.protocols.mqtt.reasons import Reason
from fluxmq.replication.leaders import OWN, Leader, Leaders
from fluxmq.replication.placement import Places
from fluxmq.replication.queue_plans import QueuePlans
from fluxmq.sessions.mqtt.explanations import Explanations
from fluxmq.settings.plans import GroupPlans, UnknownGroup

_log = get_logger("fluxmq.cluster")


class For(IntEnum):
    """Origin of a host's appends; part of the names generated for unnamed ones."""

    CLIENTS = 0
    QUEUES = 1
    """Messages that queues themselves send: always forwarded, whatever the policy for clients."""
    OUTBOXES = 2
    """Batches from outboxes here: already acknowledged, retried until accepted, never awaited."""


class GroupHosts:
    """The hosts of groups that are not this node's own. ``copy_of`` returns this shard's copy of a
    group that is led elsewhere, ``is_member`` whether this node has a group; ``epoch`` is a number
    of this shard's life; ``local_max_bytes`` limits an outbox.
    """

    def __init__(
        self,
        node: str,
        epoch: int,
        plans: GroupPlans,
        queue_plans: QueuePlans,
        leaders: Leaders,
        service: QueueService,
        places: Places,
        copy_of: Callable[[str], QueueHost | None],
        is_member: Callable[[str], bool],
        now: Callable[[], float],
        local_max_bytes: int,
    ) -> None:
        self.explanations = Explanations()
        """Texts that go with refusals."""
        self.refused = RateLimited(_log, per_second=1.0, burst=5)
        self._node = node
        self._epoch = epoch
        self._plans = plans
        self._queue_plans = queue_plans
        self._leaders = leaders
        self._service = service
        self._places = places
        self._copy_of = copy_of
        self._is_member = is_member
        self._now = now
        self._numbers = itertools.count(NUMBERS_APART, NUMBERS_APART)
        self._hosts: dict[tuple[str, For], LeaderHost] = {}
        self._local: dict[str, LocalHost] = {}
        """By group, the hosts that keep appends on this node while another one leads."""
        self.outboxes = Outboxes(
            epoch.to_bytes(8, "little"),
            local_max_bytes,
            Carrying(self._carried, self._is_clear, self._withdraw, now),
        )
        service.names.undeclared = self._undeclared
        self._shard_links: Mapping[int, FrameLink] = {}
        self._remote: RemoteHosts
        self._node_of: Callable[[int], str] = lambda _peer: ""

    def join(
        self,
        shard_links: Mapping[int, FrameLink],
        remote: RemoteHosts,
        node_of: Callable[[int], str],
    ) -> None:
        """Use links to other shards; ``node_of`` returns a remote shard's node, or empty."""
        self._shard_links = shard_links
        self._remote = remote
        self._node_of = node_of

    def own_name(self, group: str) -> str:
        """Return a group's name on this node, without the node's name that others append to it."""
        name, at, node = group.partition("@")
        return name if at and node == self._node else group

    def host(self, group: str) -> QueueHost | None:
        """Return the host of a group that this node does not host alone; None for its own."""
        found = self._local.get(group) or self._hosts.get((group, For.CLIENTS))
        if found is not None:  # as for every publish but the first
            return found
        if "@" not in group and not self._plans.replicated(group):
            return None
        host = self._new(group, For.CLIENTS)
        if self.policy(group) != "local":
            return host
        leader = self._leaders.of(group)
        self._local[group] = LocalHost(host, self.outboxes, lambda: self.is_here(leader))
        return self._local[group]

    def sender(self, group: str) -> QueueHost | None:
        """Return the host for messages sent by queues: like `host`, but always forwarding."""
        if "@" in group or not self._plans.replicated(group):
            return None
        if self.policy(group) == "forward":
            return self.host(group)
        return self._hosts.get((group, For.QUEUES)) or self._new(group, For.QUEUES)

    def _carried(self, queue: str) -> QueueHost | None:
        """Return the host for kept appends of a queue; None while it cannot take any."""
        info = self._service.names.find(queue)
        if info is None:
            return None
        if "@" in info.group or not self._plans.replicated(info.group):
            return self._service.find(self.own_name(info.group))
        found = self._hosts.get((info.group, For.OUTBOXES))
        host = found or self._new(info.group, For.OUTBOXES)
        return None if host.crowded or not host.led else host

    def _is_clear(self, queue: str) -> bool:
        """Return whether clients of this shard have no appends in flight to a queue's leader."""
        info = self._service.names.find(queue)
        host = None if info is None else self._hosts.get((info.group, For.CLIENTS))
        return host is None or not host.owes(queue)

    def _undeclared(self, queue: str) -> None:
        """Forget a queue that has been deleted."""
        self.outboxes.deleted(queue)
        for host in self._hosts.values():
            host.forget_queue(queue)

    def _withdraw(self, queue: str, origins: AbstractSet[int]) -> None:
        """Stop sending a queue's kept appends: another shard sends them now, or none does."""
        for (_, whose), host in self._hosts.items():
            if whose == For.OUTBOXES:
                host.withdraw(queue, origins)

    def moved(self, queue: str, before: str, after: str) -> None:
        """Move a queue's appends and consumers to its new group."""
        for whose in For:
            source = self._hosts.get((before, whose))
            if source is not None and self._plans.replicated(after):
                source.hand_over(queue, self._hosts.get((after, whose)) or self._new(after, whose))

    def carrier(self, group: str) -> Group | Once | None:
        """Return the target for a moving queue's content; None while its group has no leader."""
        target = self.target(group, self._leaders.of(group))
        return target if isinstance(target, Group | Once) else None

    def policy(self, group: str) -> str:
        """Return what happens to clients' appends while another node leads (`write_policy`)."""
        try:
            return "forward" if "@" in group else self._plans.of(group).write_policy
        except UnknownGroup as problem:
            _log.warning("no such group", extra={"group": group, "problem": problem.why})
            return "forward"

    def _new(self, group: str, whose: For) -> LeaderHost:
        leader = self._leaders.of(group)
        rejects = whose == For.CLIENTS and self.policy(group) == "reject"
        waits = self._queue_plans.ack_timeout
        host = self._hosts[group, whose] = LeaderHost(
            leader,
            lambda leader: self.target(group, leader),
            lambda leader, queue: self._reader(group, leader, queue),
            lambda queue: math.inf if whose == For.OUTBOXES else waits(group, queue),
            (lambda: self._refusal(group, leader)) if rejects else None,
            self._epoch ^ whose,
            self._now,
            self._numbers,
        )
        return host

    def _refusal(self, group: str, leader: Leader) -> int:
        """Return the reason to refuse an append here (`write_policy: reject`); 0 if the group is
        led on this node.

        PUBACK has no code that names another server, and no property but a text (MQTT 5, sections
        3.4.2.1 and 3.4.2.2).
        """
        if self.is_here(leader):
            return 0
        led_by = "" if leader.peer is None else self._node_of(leader.peer)
        text = f"group {group} is led by {led_by or 'nobody now'}"
        self._service.counts.refused[NOT_LEADER] += 1
        self.refused.event(
            logging.WARNING, group, "appends are refused here", group=group, leader=led_by or "-"
        )
        return self.explanations.reason(Reason.IMPLEMENTATION_SPECIFIC_ERROR, text)

    def target(self, group: str, leader: Leader) -> QueueHost | None:
        """Return the leader of a group; None while it is unknown or cannot be reached."""
        if leader.peer is None:
            return None
        if leader.peer == OWN:
            return self._service.find(self.own_name(group))
        return self._once(leader.peer)

    def _once(self, peer: int) -> QueueHost | None:
        host = self._remote.hosts.get(peer)
        return None if host is None or not host.serving else Once(host)

    def _reader(self, group: str, leader: Leader, queue: str) -> QueueHost | None:
        """Return the host that delivers here: the leader, or the node's own copy if so planned."""
        target = self.target(group, leader)
        if target is None or "@" in group or self.is_here(leader):
            return target
        plan = self._queue_plans.of(group, queue)
        if plan.distribution_mode != "replicate" or not self._is_member(group):
            return target
        return self._copy_of(group) or self._once(self._places.shard_of(group))

    def is_here(self, leader: Leader) -> bool:
        """Return whether the leader is a shard of this node."""
        return leader.peer is not None and (leader.peer == OWN or leader.peer in self._shard_links)

    @property
    def crowded(self) -> bool:
        """True while unacknowledged appends exceed the high watermark."""
        return any(host.crowded for host in self._waited_for())

    @property
    def idle(self) -> bool:
        """True when all requests of clients are answered."""
        return all(host.idle for host in self._waited_for())

    def _waited_for(self) -> Iterator[LeaderHost]:
        """Return the hosts on whose answers clients or queues wait."""
        return (host for (_, whose), host in self._hosts.items() if whose != For.OUTBOXES)

    @property
    def timeouts(self) -> int:
        """Number of appends refused because no leader answered in time."""
        return sum(host.timeouts for host in self._hosts.values())

    def housekeeping(self) -> None:
        """Run periodic work; called every tenth of a second."""
        for host in self._hosts.values():
            host.housekeeping()
        self.outboxes.housekeeping()
