"""Clients of groups that other nodes have too: of a group's leader, and of the node's own copy for
readers."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from enum import IntEnum

from fluxmq.cluster.clock_links import SteeredClock
from fluxmq.cluster.shard_endpoint import ShardEndpoint
from fluxmq.engine.appended_messages import appended_messages
from fluxmq.engine.cluster_groups import WaitingRequests
from fluxmq.engine.counts import NOT_LEADER
from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.group_client import NUMBERS_APART, GroupClient, WritePolicy
from fluxmq.engine.outbox import Carrying, Outboxes
from fluxmq.engine.ports import GroupTarget
from fluxmq.engine.remote_shards import RemoteShard, RemoteShards
from fluxmq.engine.replica_client import ReplicaClient
from fluxmq.engine.service import QueueService
from fluxmq.engine.wiring import Queues
from fluxmq.engine.write_policies import LocalPolicy, RejectPolicy
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.model.outcomes import Explanations, Outcome
from fluxmq.replication.leaders import OWN, Leader, LeaderNews
from fluxmq.replication.node_map import NodeMap
from fluxmq.replication.queue_plans import QueuePlans
from fluxmq.replication.replicated_groups import ReplicatedGroups
from fluxmq.replication.shard_links import ShardLinks
from fluxmq.settings.clustering import LOCAL
from fluxmq.settings.plans import UnknownGroup
from fluxmq.settings.schema import Settings

_log = get_logger("fluxmq.cluster")


class For(IntEnum):
    """Origin of a client's appends; part of the names generated for unnamed ones."""

    CLIENTS = 0
    QUEUES = 1
    """Messages that queues themselves send: always forwarded, whatever the policy for clients."""
    OUTBOXES = 2
    """Batches from outboxes here: already acknowledged, retried until accepted, never awaited."""


class LeaderRoute:
    """Implements ``GroupRoute``: finds the leader of a group that other nodes have too.

    ``ack_timeout`` returns how long a queue's appends wait, in seconds.
    """

    of_node = False
    given_up = False  # appends wait for a leader until their own deadlines

    def __init__(
        self, clients: GroupClients, group: str, leader: Leader, ack_timeout: Callable[[str], float]
    ) -> None:
        self._clients = clients
        self._group = group
        self._leader = leader
        self.ack_timeout = ack_timeout

    @property
    def term(self) -> int:
        """Term of the group's leader."""
        return self._leader.term

    def target(self) -> GroupTarget | None:
        """Return the leader; None while it is unknown or cannot be reached."""
        return self._clients.target(self._group, self._leader)

    def reader(self, queue: str) -> GroupTarget | None:
        """Return the target that delivers here: the leader, or the node's own copy if so
        planned."""
        return self._clients.reader(self._group, self._leader, queue)


class GroupClients:
    """Clients of groups that are not this node's own; implements ``ClusterGroups``.

    ``epoch`` is a number of this shard's life; ``local_max_bytes`` limits an outbox.
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
        self.cluster = NodeMap(self.plans, links, news.leaders)
        self._explanations = Explanations()
        self._epoch = epoch
        self._queue_plans = queue_plans
        self._is_member = is_member
        self._links = links
        self._news = news
        self._service = service
        self._now = now
        self.numbers = itertools.count(NUMBERS_APART, NUMBERS_APART)
        """Numbers of this shard's appends, to these and its own groups: queues may move between them."""
        self._clients: dict[tuple[str, For], GroupClient] = {}
        self._copies: dict[str, ReplicaClient] = {}
        """By group, this shard's copies, for consumers that read them."""
        self.outboxes = Outboxes(
            epoch.to_bytes(8, "little"),
            local_max_bytes,
            Carrying(self._carried, self._is_clear, self._withdraw, now),
        )
        service.names.undeclared = self._undeclared
        self._remote: RemoteShards
        # The shard's memory is open from the beginning: clients of other nodes may use an exclusive
        # queue's name, too.
        self._news.leaders.leads(self._abroad(service.ephemeral.name), 1, OWN)

    def join(self, remote: RemoteShards) -> None:
        """Use the groups on other shards."""
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
        leader = self._news.leaders.of(group.name)
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

    def copy_of(self, group: ReplicationGroup) -> GroupTarget | None:
        """Return a copy here that another node leads, for this node's other shards."""
        return self._copies.get(group.name) if group.absent else None

    def keeps_here(self, group: str) -> bool:
        """Return whether a group's appends are kept here while another node leads it."""
        return self.plans.replicated(group) and self.policy(group) == "local"

    # Clients

    def own_name(self, group: str) -> str:
        """Return a group's name on this node, without the node's name that others append to it."""
        name, at, node = group.partition("@")
        return name if at and node == self._links.node else group

    def unreachable_home(self, group: str) -> str:
        """Return the node that alone has a group, if that node cannot be reached; otherwise an
        empty string."""
        _, _, node = group.partition("@")
        return node if node not in ("", self._links.node) and not self._links.of(node) else ""

    def client(self, group: str) -> GroupTarget | None:
        """Return the client of a group that this node does not have alone; None for its own."""
        found = self._clients.get((group, For.CLIENTS))
        if found is not None:  # as for every publish but the first
            return found
        if "@" not in group and not self.plans.replicated(group):
            return None
        return self._new(group, For.CLIENTS)

    def sender(self, group: str) -> GroupTarget | None:
        """Return the client for messages sent by queues: like `client`, but always forwarding."""
        if "@" in group or not self.plans.replicated(group):
            return None
        if self.policy(group) == "forward":
            return self.client(group)
        return self._clients.get((group, For.QUEUES)) or self._new(group, For.QUEUES)

    def _carried(self, queue: str) -> GroupTarget | None:
        """Return the client for kept appends of a queue; None while it cannot take any."""
        info = self._service.names.find(queue)
        if info is None:
            return None
        if "@" in info.group or not self.plans.replicated(info.group):
            return self._service.find(self.own_name(info.group))
        found = self._clients.get((info.group, For.OUTBOXES))
        client = found or self._new(info.group, For.OUTBOXES)
        led = self._news.leaders.of(info.group).peer is not None
        return client if led and not client.above_high_watermark else None

    def _is_clear(self, queue: str) -> bool:
        """Return whether clients of this shard have no appends in flight to a queue's leader."""
        info = self._service.names.find(queue)
        client = None if info is None else self._clients.get((info.group, For.CLIENTS))
        return client is None or not client.has_pending(queue)

    def _undeclared(self, queue: str) -> None:
        """Forget a queue that has been deleted."""
        self.outboxes.deleted(queue)
        for client in self._clients.values():
            client.forget_queue(queue)

    def _withdraw(self, queue: str, origins: AbstractSet[int]) -> None:
        """Stop sending a queue's kept appends: another shard sends them now, or none does."""
        for (_, whose), client in self._clients.items():
            if whose == For.OUTBOXES:
                client.withdraw(queue, origins)

    def moved(self, queue: str, before: str, after: str) -> None:
        """Move a queue's appends and consumers to its new group."""
        own = {each: self._is_own(each) for each in (before, after)}
        source_name, target_name = (self._abroad(each) if own[each] else each for each in own)
        for whose in For:
            source = self._clients.get((source_name, whose))
            if source is not None:
                found = self._clients.get((target_name, whose))
                quorum = self._service.names.is_quorum(queue)
                source.hand_over(queue, found or self._new(target_name, whose), quorum)

    def _is_own(self, group: str) -> bool:
        return "@" not in group and not self.plans.replicated(group)

    def mover(self, group: str) -> ReplicationGroup | RemoteShard | None:
        """Return the target for a moving queue's content; None while its group has no leader."""
        target = self.target(group, self._news.leaders.of(group))
        return target if isinstance(target, ReplicationGroup | RemoteShard) else None

    def policy(self, group: str) -> str:
        """Return what happens to clients' appends while another node leads (`write_policy`)."""
        try:
            return "forward" if "@" in group else self.plans.of(group).write_policy
        except UnknownGroup as problem:
            _log.warning("no such group", extra={"group": group, "problem": problem.why})
            return "forward"

    def _new(self, group: str, whose: For) -> GroupClient:
        leader = self._news.leaders.of(group)
        waits = self._queue_plans.ack_timeout
        client = self._clients[group, whose] = GroupClient(
            LeaderRoute(
                *(self, group, leader),
                lambda queue: math.inf if whose == For.OUTBOXES else waits(group, queue),
            ),
            self._epoch ^ whose,
            self._now,
            self.numbers,
            self._write_policy(group, leader) if whose == For.CLIENTS else None,
        )
        leader.listeners.append(lambda: client.leader_changed(leader.peer is not None))
        return client

    def _write_policy(self, group: str, leader: Leader) -> WritePolicy | None:
        policy = self.policy(group)
        if policy == "local":
            return LocalPolicy(self.outboxes, lambda: self._is_here(leader))
        if policy == "reject":
            return RejectPolicy(lambda: self._refusal(group, leader))
        return None

    def _refusal(self, group: str, leader: Leader) -> int:
        """Return the outcome to refuse an append here (`write_policy: reject`); 0 if the group is
        led on this node.

        PUBACK has no code that names another server, and no property but a text (MQTT 5, sections
        3.4.2.1 and 3.4.2.2).
        """
        if self._is_here(leader):
            return 0
        led_by = "" if leader.peer is None else self._links.node_of(leader.peer)
        text = f"group {group} is led by {led_by or 'nobody now'}"
        self._service.counts.refused[NOT_LEADER] += 1
        self.refused.event(
            logging.WARNING, group, "appends are refused here", group=group, leader=led_by or "-"
        )
        return self._explanations.explain(Outcome.FAILED, text)

    def target(self, group: str, leader: Leader) -> GroupTarget | None:
        """Return the leader of a group; None while it is unknown or cannot be reached."""
        if leader.peer is None:
            return None
        if leader.peer == OWN:
            return self._service.find(self.own_name(group))
        return self._remote.serving(leader.peer)

    def reader(self, group: str, leader: Leader, queue: str) -> GroupTarget | None:
        """Return the target that delivers here: the leader, or the node's own copy if so
        planned."""
        target = self.target(group, leader)
        if target is None or "@" in group or self._is_here(leader):
            return target
        plan = self._queue_plans.of(group, queue)
        if plan.distribution_mode != "replicate" or not self._is_member(group):
            return target
        return self._copies.get(group) or self._remote.serving(self._links.place_of(group))

    def _is_here(self, leader: Leader) -> bool:
        """Return whether the leader is a shard of this node."""
        return leader.peer is not None and (leader.peer == OWN or leader.peer in self._links.own)

    @property
    def above_high_watermark(self) -> bool:
        """True while unacknowledged appends exceed the high watermark."""
        return any(client.above_high_watermark for client in self._waited_for())

    def _waited_for(self) -> Iterator[GroupClient]:
        """Yield the clients on whose answers connections or queues wait."""
        return (each for (_, whose), each in self._clients.items() if whose != For.OUTBOXES)

    @property
    def waiting(self) -> WaitingRequests:
        """Work that waits for groups that other nodes lead."""
        requests = sum(not each.idle or each.waits for each in self._clients.values())
        return WaitingRequests(sum(self.outboxes.depths()), requests)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of appends to groups that other nodes lead."""
        timeouts = sum(client.timeouts for client in self._clients.values())
        waiting, counts = self.outboxes.depths(), self.outboxes.counts
        yield "fluxmq_cluster_append_timeouts_total", {}, timeouts
        yield "fluxmq_outboxes", {}, len(waiting)
        yield "fluxmq_outbox_batches", {}, sum(waiting)
        yield "fluxmq_outbox_kept_total", {}, counts.kept
        yield "fluxmq_outbox_carried_total", {}, counts.carried
        yield "fluxmq_outbox_refused_total", {}, counts.refused

    def housekeeping(self) -> None:
        """Run periodic work; called by the shard's timer."""
        for client in self._clients.values():
            client.housekeeping()
        self.outboxes.housekeeping()


def share(
    queues: Queues,
    settings: Settings,
    endpoint: ShardEndpoint,
    clock: SteeredClock,
    now: Callable[[], float] = time.monotonic,
) -> ReplicatedGroups:
    """Share the groups of a shard with other nodes, which reach it at ``endpoint``.

    Called before the shard's groups are opened.
    """
    service = queues.service
    epoch = endpoint.own.epoch
    nodes = ReplicatedGroups(settings, endpoint, queues.durable, queues.places, clock, now)
    clients = GroupClients(
        *(epoch, settings.cluster.raft.local_max_bytes, nodes.queue_plans, nodes.is_member),
        *(nodes.shards, nodes.news, service, now),
    )
    queues.node_groups.numbers = clients.numbers
    assert nodes.members.mirrors is not None, "they were made"
    nodes.members.mirrors.copies.divergent.appended = appended_messages
    queues.share(nodes, clients)
    return nodes
