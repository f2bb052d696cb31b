"""The queue hosts of groups on this shard: a group's leader, or the node's own copy for readers."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from enum import IntEnum

from fluxmq.cluster.clock_links import SteeredClock
from fluxmq.engine.counts import NOT_LEADER
from fluxmq.engine.fail_fast import FailFastClient
from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.leader_client import NUMBERS_APART, LeaderClient
from fluxmq.engine.leader_handle import Attaching
from fluxmq.engine.outbox import Carrying, Outboxes
from fluxmq.engine.ports import (
    AppendCallback,
    AttachRequest,
    ConsumerPort,
    GroupClient,
    StatusCallback,
)
from fluxmq.engine.remote_client import RemoteClients
from fluxmq.engine.replica_client import ReplicaClient
from fluxmq.engine.service import QueueService
from fluxmq.engine.wiring import Queues
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.model.outcomes import Explanations, Outcome
from fluxmq.queues.origins import Identity
from fluxmq.replication.leaders import OWN, Leader, LeaderNews
from fluxmq.replication.queue_plans import QueuePlans
from fluxmq.replication.replicated_groups import ReplicatedGroups
from fluxmq.replication.shard_links import ShardLinks
from fluxmq.routing.topology.names import is_reserved
from fluxmq.settings.clustering import LOCAL
from fluxmq.settings.plans import UnknownGroup
from fluxmq.settings.schema import Settings

_log = get_logger("fluxmq.cluster")


class For(IntEnum):
    """Origin of a host's appends; part of the names generated for unnamed ones."""

    CLIENTS = 0
    QUEUES = 1
    """Messages that queues themselves send: always forwarded, whatever the policy for clients."""
    OUTBOXES = 2
    """Batches from outboxes here: already acknowledged, retried until accepted, never awaited."""


class LocalClient:
    """Delegates to ``leader``, except that appends are kept unless ``is_here`` returns True."""

    def __init__(
        self, leader: LeaderClient, outboxes: Outboxes, is_here: Callable[[], bool]
    ) -> None:
        self._leader = leader
        self._outboxes = outboxes
        self._is_here = is_here

    def append(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Append a batch if the group is led here and no earlier batch is kept; else keep it."""
        if self._is_here() and self._outboxes.is_empty(queue):
            return self._leader.append(queue, batch, done, identity, by_address)
        if by_address and is_reserved(queue):
            # The leader refuses it: once kept here, its origin would be lost.
            return self._leader.append(queue, batch, done, identity, by_address)
        kept = self._outboxes.append(queue, batch, done)
        if kept is not None:
            return kept
        return self._leader.append(queue, batch, done, identity, by_address)

    def attach(self, wanted: AttachRequest, port: ConsumerPort, done: Attaching) -> None:
        """Attach a consumer to the leader."""
        self._leader.attach(wanted, port, done)

    def status(self, queue: str, done: StatusCallback) -> None:
        """Count what the leader has."""
        self._leader.status(queue, done)

    def purge(self, queue: str, done: StatusCallback) -> None:
        """Drop the ready messages at the leader."""
        self._leader.purge(queue, done)

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: StatusCallback) -> None:
        """Delete a queue; what is kept for it goes when the deletion is known."""
        self._leader.delete(queue, if_unused, if_empty, done)


class GroupClients:
    """The hosts of groups that are not this node's own; implements ``ClusterHosts``. ``epoch`` is
    a number of this shard's life; ``local_max_bytes`` limits an outbox.
    """

    def __init__(
        self,
        epoch: int,
        local_max_bytes: int,
        queue_plans: QueuePlans,
        is_member: Callable[[str], bool],
        links: ShardLinks,
        news: LeaderNews,
        service: QueueService,
        now: Callable[[], float],
    ) -> None:
        self.refused = RateLimited(_log, per_second=1.0, burst=5)
        self.plans = queue_plans.groups
        self._explanations = Explanations()
        self._epoch = epoch
        self._queue_plans = queue_plans
        self._is_member = is_member
        self._links = links
        self._news = news
        self._leaders = news.leaders
        self._service = service
        self._now = now
        self._numbers = itertools.count(NUMBERS_APART, NUMBERS_APART)
        self._hosts: dict[tuple[str, For], LeaderClient] = {}
        self._local: dict[str, LocalClient] = {}
        """By group, the hosts that keep appends on this node while another one leads."""
        self._copies: dict[str, ReplicaClient] = {}
        """By group, this shard's copies, for consumers that read them."""
        self.outboxes = Outboxes(
            epoch.to_bytes(8, "little"),
            local_max_bytes,
            Carrying(self._carried, self._is_clear, self._withdraw, now),
        )
        service.names.undeclared = self._undeclared
        self._remote: RemoteClients
        # The shard's memory is open from the beginning: clients of other nodes may use an exclusive
        # queue's name, too.
        self._leaders.leads(self._abroad(service.ephemeral.name), 1, OWN)

    def join(self, remote: RemoteClients) -> None:
        """Use the hosts on other shards."""
        self._remote = remote

    def explain(self, reason: int) -> str:
        """Return the text that goes with a refusal; empty for none."""
        return self._explanations.text(reason)

    # Groups that are open here

    def _abroad(self, group: str) -> str:
        """Return the name by which other nodes know one of this node's own groups."""
        return f"{group}@{self._links.node}"

    def opened(self, group: ReplicationGroup) -> None:
        """Note a group that was recovered, before it is started."""
        if not group.replicated:
            self._news.leads(self._abroad(group.name), 1)
            return
        leader = self._leaders.of(group.name)
        copy = ReplicaClient(group, lambda: self.target(group.name, leader))
        self._copies[group.name] = copy
        group.on_applied = copy.applied

    def closed(self, group: ReplicationGroup) -> None:
        """Note a group that this shard no longer hosts."""
        copy = self._copies.pop(group.name, None)
        if copy is not None:
            copy.close()
            return
        self.outboxes.closed(group.name)
        self._news.follows(self._abroad(group.name), 1)

    def leads(self, group: ReplicationGroup) -> None:
        """Use a group of this node alone that leads here for outboxes."""
        if group.name.startswith(LOCAL) and not group.replicated:
            self.outboxes.leads(group)

    def copy_of(self, group: ReplicationGroup) -> GroupClient | None:
        """Return the host of a copy here that another node leads, for this node's other shards."""
        return self._copies.get(group.name) if group.absent else None

    def keeps_here(self, group: str) -> bool:
        """Return whether a group's appends are kept here while another node leads it."""
        return self.plans.replicated(group) and self.policy(group) == "local"

    # Hosts

    def own_name(self, group: str) -> str:
        """Return a group's name on this node, without the node's name that others append to it."""
        name, at, node = group.partition("@")
        return name if at and node == self._links.node else group

    def host(self, group: str) -> GroupClient | None:
        """Return the host of a group that this node does not host alone; None for its own."""
        found = self._local.get(group) or self._hosts.get((group, For.CLIENTS))
        if found is not None:  # as for every publish but the first
            return found
        if "@" not in group and not self.plans.replicated(group):
            return None
        host = self._new(group, For.CLIENTS)
        if self.policy(group) != "local":
            return host
        leader = self._leaders.of(group)
        self._local[group] = LocalClient(host, self.outboxes, lambda: self.is_here(leader))
        return self._local[group]

    def sender(self, group: str) -> GroupClient | None:
        """Return the host for messages sent by queues: like `host`, but always forwarding."""
        if "@" in group or not self.plans.replicated(group):
            return None
        if self.policy(group) == "forward":
            return self.host(group)
        return self._hosts.get((group, For.QUEUES)) or self._new(group, For.QUEUES)

    def _carried(self, queue: str) -> GroupClient | None:
        """Return the host for kept appends of a queue; None while it cannot take any."""
        info = self._service.names.find(queue)
        if info is None:
            return None
        if "@" in info.group or not self.plans.replicated(info.group):
            return self._service.find(self.own_name(info.group))
        found = self._hosts.get((info.group, For.OUTBOXES))
        host = found or self._new(info.group, For.OUTBOXES)
        return None if host.above_high_watermark or not host.led else host

    def _is_clear(self, queue: str) -> bool:
        """Return whether clients of this shard have no appends in flight to a queue's leader."""
        info = self._service.names.find(queue)
        host = None if info is None else self._hosts.get((info.group, For.CLIENTS))
        return host is None or not host.has_pending(queue)

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
            if source is not None and self.plans.replicated(after):
                source.hand_over(queue, self._hosts.get((after, whose)) or self._new(after, whose))

    def mover(self, group: str) -> ReplicationGroup | FailFastClient | None:
        """Return the target for a moving queue's content; None while its group has no leader."""
        target = self.target(group, self._leaders.of(group))
        return target if isinstance(target, ReplicationGroup | FailFastClient) else None

    def policy(self, group: str) -> str:
        """Return what happens to clients' appends while another node leads (`write_policy`)."""
        try:
            return "forward" if "@" in group else self.plans.of(group).write_policy
        except UnknownGroup as problem:
            _log.warning("no such group", extra={"group": group, "problem": problem.why})
            return "forward"

    def _new(self, group: str, whose: For) -> LeaderClient:
        leader = self._leaders.of(group)
        rejects = whose == For.CLIENTS and self.policy(group) == "reject"
        waits = self._queue_plans.ack_timeout
        host = self._hosts[group, whose] = LeaderClient(
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
        """Return the outcome to refuse an append here (`write_policy: reject`); 0 if the group is
        led on this node.

        PUBACK has no code that names another server, and no property but a text (MQTT 5, sections
        3.4.2.1 and 3.4.2.2).
        """
        if self.is_here(leader):
            return 0
        led_by = "" if leader.peer is None else self._links.node_of(leader.peer)
        text = f"group {group} is led by {led_by or 'nobody now'}"
        self._service.counts.refused[NOT_LEADER] += 1
        self.refused.event(
            logging.WARNING, group, "appends are refused here", group=group, leader=led_by or "-"
        )
        return self._explanations.explain(Outcome.FAILED, text)

    def target(self, group: str, leader: Leader) -> GroupClient | None:
        """Return the leader of a group; None while it is unknown or cannot be reached."""
        if leader.peer is None:
            return None
        if leader.peer == OWN:
            return self._service.find(self.own_name(group))
        return self._once(leader.peer)

    def _once(self, peer: int) -> GroupClient | None:
        host = self._remote.hosts.get(peer)
        return None if host is None or not host.serving else FailFastClient(host)

    def _reader(self, group: str, leader: Leader, queue: str) -> GroupClient | None:
        """Return the host that delivers here: the leader, or the node's own copy if so planned."""
        target = self.target(group, leader)
        if target is None or "@" in group or self.is_here(leader):
            return target
        plan = self._queue_plans.of(group, queue)
        if plan.distribution_mode != "replicate" or not self._is_member(group):
            return target
        return self._copies.get(group) or self._once(self._links.place_of(group))

    def is_here(self, leader: Leader) -> bool:
        """Return whether the leader is a shard of this node."""
        return leader.peer is not None and (leader.peer == OWN or leader.peer in self._links.own)

    @property
    def above_high_watermark(self) -> bool:
        """True while unacknowledged appends exceed the high watermark."""
        return any(host.above_high_watermark for host in self._waited_for())

    def _waited_for(self) -> Iterator[LeaderClient]:
        """Return the hosts on whose answers clients or queues wait."""
        return (host for (_, whose), host in self._hosts.items() if whose != For.OUTBOXES)

    @property
    def outbox_batches(self) -> int:
        """Number of batches in all outboxes of this shard."""
        return sum(self.outboxes.depths())

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of appends to groups that other nodes lead."""
        timeouts = sum(host.timeouts for host in self._hosts.values())
        waiting, counts = self.outboxes.depths(), self.outboxes.counts
        yield "fluxmq_cluster_append_timeouts_total", {}, timeouts
        yield "fluxmq_outboxes", {}, len(waiting)
        yield "fluxmq_outbox_batches", {}, sum(waiting)
        yield "fluxmq_outbox_kept_total", {}, counts.kept
        yield "fluxmq_outbox_carried_total", {}, counts.carried
        yield "fluxmq_outbox_refused_total", {}, counts.refused

    def housekeeping(self) -> None:
        """Run periodic work; called every tenth of a second."""
        for host in self._hosts.values():
            host.housekeeping()
        self.outboxes.housekeeping()


def share(
    queues: Queues,
    settings: Settings,
    workers: int,
    epoch: int,
    clock: SteeredClock,
    now: Callable[[], float] = time.monotonic,
) -> ReplicatedGroups:
    """Share the groups of a shard with other nodes. ``epoch``: a number of this shard's life.

    Called before the shard's groups are opened.
    """
    service = queues.service
    nodes = ReplicatedGroups(
        *(settings, queues.shard, workers, epoch, queues.durable, queues.places, clock),
        now,
    )
    hosts = GroupClients(
        *(epoch, settings.cluster.raft.local_max_bytes, nodes.queue_plans, nodes.is_member),
        *(nodes.shards, nodes.news, service, now),
    )
    queues.share(nodes, hosts)
    return nodes
