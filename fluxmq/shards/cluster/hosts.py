"""Who stands for a group on this shard: whoever leads it, or the node's own copy for those who read."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import IntEnum

from fluxmq.logs import RateLimited, get_logger
from fluxmq.net.links import FrameLink
from fluxmq.protocols.mqtt.reasons import Reason
from fluxmq.sessions.mqtt.explanations import Explanations
from fluxmq.settings.plans import GroupPlans, UnknownGroup
from fluxmq.shards.cluster.leader_host import NUMBERS_APART, LeaderHost
from fluxmq.shards.cluster.leaders import OWN, Leader, Leaders
from fluxmq.shards.cluster.local_host import LocalHost
from fluxmq.shards.cluster.outbox import Carrying, Outboxes
from fluxmq.shards.cluster.queue_plans import QueuePlans
from fluxmq.shards.queues.counts import NOT_LEADER
from fluxmq.shards.queues.group import Group
from fluxmq.shards.queues.once import Once
from fluxmq.shards.queues.placement import Places
from fluxmq.shards.queues.ports import QueueHost
from fluxmq.shards.queues.remote import RemoteHosts
from fluxmq.shards.queues.service import QueueService

_log = get_logger("fluxmq.cluster")


class For(IntEnum):
    """Whose appends a host takes. Names of appends differ by it, but for those that have one already."""

    CLIENTS = 0
    QUEUES = 1
    """What queues themselves send is forwarded, whatever clients are told."""
    OUTBOXES = 2
    """What was kept here is acknowledged: it is asked for until it is taken, and nobody is kept waiting by it."""


class GroupHosts:
    """The hosts of groups that are not this node's own. ``copy_of`` gives what this shard has of a group that is led
    elsewhere, ``is_member`` whether this node has it; ``epoch``: a number of this shard's life; ``local_max_bytes``: what an
    outbox may hold."""

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
        """What is told with refusals."""
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
        """By group, where appends are kept on this node while another one leads."""
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
        """Use links to other shards; ``node_of`` gives the node of a shard elsewhere, empty for one that is not."""
        self._shard_links = shard_links
        self._remote = remote
        self._node_of = node_of

    def own_name(self, group: str) -> str:
        """A group's name on this node, where others add the node's name to it."""
        name, at, node = group.partition("@")
        return name if at and node == self._node else group

    def host(self, group: str) -> QueueHost | None:
        """Who stands for a group that this node does not host alone; None for a group of its own."""
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
        """As `host`, for what queues themselves send: it is forwarded, whatever clients are told."""
        if "@" in group or not self._plans.replicated(group):
            return None
        if self.policy(group) == "forward":
            return self.host(group)
        return self._hosts.get((group, For.QUEUES)) or self._new(group, For.QUEUES)

    def _carried(self, queue: str) -> QueueHost | None:
        """Who takes what was kept for a queue; None while it is not known here, nobody leads it, or too much is under way."""
        info = self._service.names.find(queue)
        if info is None:
            return None
        if "@" in info.group or not self._plans.replicated(info.group):
            return self._service.find(self.own_name(info.group))
        found = self._hosts.get((info.group, For.OUTBOXES))
        host = found or self._new(info.group, For.OUTBOXES)
        return None if host.crowded or not host.led else host

    def _is_clear(self, queue: str) -> bool:
        """Whether clients of this shard have nothing under way to a queue's leader."""
        info = self._service.names.find(queue)
        host = None if info is None else self._hosts.get((info.group, For.CLIENTS))
        return host is None or not host.owes(queue)

    def _undeclared(self, queue: str) -> None:
        """It is decided that a queue is no more."""
        self.outboxes.deleted(queue)
        for host in self._hosts.values():
            host.forget_queue(queue)

    def _withdraw(self, queue: str, origins: AbstractSet[int]) -> None:
        """What was kept for a queue is asked for by somebody else from now on, or by nobody."""
        for (_, whose), host in self._hosts.items():
            if whose == For.OUTBOXES:
                host.withdraw(queue, origins)

    def moved(self, queue: str, before: str, after: str) -> None:
        """A queue is in another group from now on."""
        for whose in For:
            source = self._hosts.get((before, whose))
            if source is not None and self._plans.replicated(after):
                source.hand_over(queue, self._hosts.get((after, whose)) or self._new(after, whose))

    def carrier(self, group: str) -> Group | Once | None:
        """Who leads a group, for what is carried to it of a queue that moves; None while nobody is known."""
        target = self.target(group, self._leaders.of(group))
        return target if isinstance(target, Group | Once) else None

    def policy(self, group: str) -> str:
        """What becomes of appends of clients while another node leads a group (`write_policy`)."""
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
        """Why an append is not taken here (`write_policy: reject`); 0 where the group is led on this node.

        PUBACK has no code that names another server, and no property but a text (MQTT 5, sections 3.4.2.1 and 3.4.2.2).
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
        """Who leads a group; None while nobody is known, or can be reached."""
        if leader.peer is None:
            return None
        if leader.peer == OWN:
            return self._service.find(self.own_name(group))
        return self._once(leader.peer)

    def _once(self, peer: int) -> QueueHost | None:
        host = self._remote.hosts.get(peer)
        return None if host is None or not host.serving else Once(host)

    def _reader(self, group: str, leader: Leader, queue: str) -> QueueHost | None:
        """Who gives messages to consumers here: the node's own copy, where that is wanted and somebody else leads."""
        target = self.target(group, leader)
        if target is None or "@" in group or self.is_here(leader):
            return target
        plan = self._queue_plans.of(group, queue)
        if plan.distribution_mode != "replicate" or not self._is_member(group):
            return target
        return self._copy_of(group) or self._once(self._places.shard_of(group))

    def is_here(self, leader: Leader) -> bool:
        """Whether it is a shard of this node."""
        return leader.peer is not None and (leader.peer == OWN or leader.peer in self._shard_links)

    @property
    def crowded(self) -> bool:
        """Whether more is unanswered than is good."""
        return any(host.crowded for host in self._waited_for())

    @property
    def idle(self) -> bool:
        """Whether everything that clients asked is answered."""
        return all(host.idle for host in self._waited_for())

    def _waited_for(self) -> Iterator[LeaderHost]:
        """Hosts whose answers somebody waits for."""
        return (host for (_, whose), host in self._hosts.items() if whose != For.OUTBOXES)

    @property
    def timeouts(self) -> int:
        """Appends refused because nobody had answered in time."""
        return sum(host.timeouts for host in self._hosts.values())

    def housekeeping(self) -> None:
        """A tenth of a second has passed."""
        for host in self._hosts.values():
            host.housekeeping()
        self.outboxes.housekeeping()
