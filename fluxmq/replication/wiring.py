"""Builds a shard's part in the cluster, and joins it to the shard's queues.

Longer than 500 lines because it is the one place that knows every part, and which events of a group
each of them needs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence

from fluxmq.cluster.clock_links import ClockLinks
from fluxmq.cluster.connection import Hello
from fluxmq.cluster.errors import ClusterError
from fluxmq.cluster.node_links import NodeLink, NodeLinks
from fluxmq.cluster.security import Security
from fluxmq.engine.group import Group
from fluxmq.engine.hosts import GroupHosts
from fluxmq.engine.names import LOCAL
from fluxmq.engine.ports import QueueHost
from fluxmq.engine.queue_links import QueueLinks
from fluxmq.engine.remote import RemoteHosts
from fluxmq.engine.replica_host import ReplicaHost
from fluxmq.engine.service import QueueService
from fluxmq.logs import RateLimited, get_logger
from fluxmq.net.links import FrameLink, Link
from fluxmq.raft.types import Message, MessageKind
from fluxmq.replication.audit import Audits
from fluxmq.replication.carrier import Carrier
from fluxmq.replication.damages import Damages
from fluxmq.replication.hosted import ALONE, Hosted, Member
from fluxmq.replication.leaders import OWN, Leaders
from fluxmq.replication.membership import GroupMembers
from fluxmq.replication.orders import ClusterOrders
from fluxmq.replication.placement import Places
from fluxmq.replication.queue_plans import QueuePlans, wish_of
from fluxmq.replication.replica import (
    TICKS_PER_ELECTION,
    Replica,
    heartbeat_ticks,
    tick_seconds,
)
from fluxmq.replication.reports import ClusterReports, leader_of
from fluxmq.replication.scrub import Scrub
from fluxmq.replication.snapshots import Snapshots
from fluxmq.replication.spread import LeaderSpread
from fluxmq.settings.plans import GroupPlan, GroupPlans, UnknownGroup, member_number
from fluxmq.settings.schema import Settings
from fluxmq.shards.steady import NodeClock
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.files import Files

ANNOUNCE_SECONDS = 0.01
"""Delay before other members are told the commit index, unless entries have carried it: where
nobody reads their copies, it only keeps them near the end.
"""
TRANSFER_SECONDS_MAX = 2.0
"""Time that a stopping shard waits for others to take its groups over."""
_STEP_SECONDS = 0.005
_ROUTINE = frozenset(
    (MessageKind.APPEND_ANSWER, MessageKind.HEARTBEAT, MessageKind.HEARTBEAT_ANSWER)
)
"""Messages that seldom change anything the end of a tick would have to handle."""

_log = get_logger("fluxmq.cluster")


class Cluster:
    """Other nodes from the side of one shard. Made only if the settings name any."""

    def __init__(
        self,
        settings: Settings,
        shard: int,
        workers: int,
        epoch: int,
        service: QueueService,
        places: Places,
        wake: Callable[[], None],
        clock: NodeClock,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        cluster = settings.cluster
        self.node = cluster.node_id
        self.shard = shard
        self.peers = tuple(cluster.transport.peers)
        self.now = now
        self.plans = GroupPlans(settings)
        self.leaders = Leaders()
        self.replicas: dict[str, Replica] = {}
        self._settings, self._service = settings, service
        self._places = places
        self._queue_plans = QueuePlans(settings, self.plans)
        self._wake = wake
        self.hosts = GroupHosts(
            self.node,
            epoch,
            self.plans,
            self._queue_plans,
            self.leaders,
            service,
            places,
            lambda group: self.replicas[group].copy if group in self.replicas else None,
            self.is_member,
            now,
            cluster.raft.local_max_bytes,
        )
        self._own = Hello(self.node, shard, workers, epoch, "shard", tells_time=True)
        self.clock = clock
        self.clocks = ClockLinks(
            clock, len(self.peers) + 1, lambda: iter(self.links.links.values())
        )
        self._security = Security.of(cluster)
        self._started = False
        self._ending: dict[str, asyncio.Task[None]] = {}
        """By group: transports of closed replicas that are still releasing their address."""
        self.unknown = RateLimited(_log, per_second=0.01, burst=1)
        self._queue_links: QueueLinks
        self._shard_links: dict[int, Link] = {}
        self.links: NodeLinks
        self.reports = ClusterReports(self, self._security.guard)
        self.orders = ClusterOrders(self)
        files, paths = Files(), DataPaths(settings.storage.data_dir)
        self.members = GroupMembers(self, files, paths, service.open, service.leave)
        self.damages = Damages(self, files, paths, service)
        self.scrub = Scrub(self, files)
        self.audits = Audits(self)
        self.spread = LeaderSpread(self)
        self.snapshots = Snapshots(self, self._security, service, settings)
        service.member_of = self.member_of
        service.opened = self._opened
        service.closed = self._closed
        # The shard's memory is open from the beginning: clients of other nodes may use an exclusive
        # queue's name, too.
        self.leaders.leads(f"{service.ephemeral.name}@{self.node}", 1, OWN)

    # Joining

    def join(
        self, shard_links: dict[int, Link], queue_links: QueueLinks, remote: RemoteHosts
    ) -> None:
        """Use the links to this node's shards, and share the queues' traffic with other nodes."""
        self._shard_links = shard_links
        self._queue_links = queue_links
        transport = self._settings.cluster.transport
        queue_links.came = self._tell
        queue_links.more = self.handlers()
        queue_links.went = self._went
        self.links = NodeLinks(
            self._security,
            transport.bind_addr,
            self._own,
            transport.peers,
            self._added,
            self._came,
            self._gone,
            queue_links.handlers(),
            queue_links.received,
            self._wake,
        )
        self.hosts.join(shard_links, remote, self.node_of)

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames of shards of this node and others, by name."""
        frames = {"leads": self._on_leads, "follows": self._on_follows}
        frames |= {**self.orders.handlers(), **self.members.handlers()}
        frames |= {**self.audits.handlers(), **self.scrub.handlers(), **self.clocks.handlers()}
        return {**frames, **self.snapshots.handlers()}

    def _came(self, link: NodeLink) -> None:
        self.clocks.tell(link)
        self._queue_links.tell_everything(link)

    def _added(self, link: NodeLink) -> None:
        self._queue_links.add(link.peer, link)

    def _went(self, peer: int) -> None:
        self.leaders.lost(peer)
        self.orders.lost(peer)

    @property
    def hosted(self) -> dict[str, Hosted]:
        """The groups of this shard."""
        return self._service.groups

    def place_of(self, group: str) -> int:
        """Return the shard of this node that hosts a group, or would."""
        return self._places.shard_of(group)

    def link_to(self, peer: int) -> FrameLink | None:
        """Return the link to a shard of this node, or of another."""
        return self._shard_links.get(peer) or self.links.links.get(peer)

    def _gone(self, link: NodeLink) -> None:
        self.clocks.lost(link)
        self._queue_links.lose(link.peer)

    async def start(self) -> None:
        """Listen and dial. Raises ClusterError."""
        self._started = True
        await self.links.start()
        for replica in self.replicas.values():
            await replica.carrier.start()
            self._tick(replica)
        self.scrub.start()

    async def stop(self) -> None:
        """End every stream."""
        await self.scrub.stop()
        await self.snapshots.close()
        for replica in list(self.replicas.values()):
            self.still(replica)
            await replica.carrier.stop()
        await asyncio.gather(self.links.stop(), *self._ending.values())

    # Groups

    def plan_of(self, group: str) -> GroupPlan:
        """Return a group's initial plan. Raises UnknownGroup."""
        return self.plans.of(group)

    def groups_here(self) -> Iterator[str]:
        """Yield the settings' replicated groups of this node, and one of its own for outboxes."""
        if self._settings.cluster.raft.write_policy == "local":
            yield from self._places.first_of(LOCAL, self.shard)
        for name in self.plans.configured():
            if self.plans.replicated(name) and self.is_member(name):
                yield name

    def is_member(self, group: str) -> bool:
        """Return whether this node is to have a group, as its own or as a member."""
        if not self.plans.replicated(group):
            return True
        try:
            return self.members.is_member(self.plans.of(group))
        except UnknownGroup as problem:
            self.unknown.event(logging.WARNING, group, "no such group here: %s", problem)
            return False

    def member_of(self, group: str) -> Member:
        """Return this node's member configuration in a group."""
        if not self.plans.replicated(group):
            return ALONE
        plan = self.plans.of(group)
        heartbeat = heartbeat_ticks(plan)
        return Member(
            member_number(self.node),
            self.members.begins_with(plan),
            max(TICKS_PER_ELECTION, heartbeat + 1),
            heartbeat,
            plan.data_dir,
            self._queue_plans.reads_copies(group),
        )

    def _opened(self, hosted: Hosted) -> None:
        """Connect a group that was opened."""
        group = hosted.group
        if not group.replicated:
            name = f"{group.name}@{self.node}"
            self.leaders.leads(name, 1, OWN)
            self._say("leads", name, 1)
            self.hosts.outboxes.opened(group, LOCAL)
            return
        plan = self.plans.of(group.name)
        keeper = hosted.keeper
        acquaintances = self.members.acquaintances(
            lambda: self.replicas[group.name], self.members.live(plan), group.name
        )
        carrier = Carrier(
            plan,
            self._security,
            self._own,
            lambda messages: self._step(hosted, messages),
            lambda number: self._unreachable(hosted, number),
            acquaintances,
            group.fail,
            self.now,
            self.snapshots.call_handlers(group.name),
        )
        keeper.on_snapshot_wanted = lambda member: self.snapshots.wanted(group.name, member)
        membership = keeper.node.status().membership
        carrier.follow((*membership.voters, *membership.learners))
        copy = ReplicaHost(
            group, lambda: self.hosts.target(group.name, self.leaders.of(group.name))
        )
        replica = self.replicas[group.name] = Replica(plan, hosted, carrier, copy, acquaintances)
        audit = self.audits.add(hosted, keeper.node.status().id)

        def applied() -> None:
            audit.applied()
            copy.applied()

        group.on_applied = applied
        replica.tick_seconds = tick_seconds(plan)
        keeper.gathers = not self._queue_plans.reads_copies(group.name)
        if keeper.gathers:
            keeper.on_unannounced = lambda: self._announce_soon(replica)
        keeper.node.hold(*acquaintances.record.floor)
        keeper.hand_lead = lambda: self.transfer(replica)
        keeper.send = carrier.send
        group.answers.configure(wish_of(plan), self._queue_plans.wishes(group.name))
        declare = group.on_leading

        def leading(led: Group) -> None:
            declare(led)
            # Announced once the queues of the settings exist: clients may ask for them at once.
            led.when_applied(lambda: self._led(hosted))

        group.is_timed = self.clock.is_known
        group.on_leading = leading
        group.on_following = lambda _group: self._follows(hosted)
        group.on_damaged = lambda why: self.damages.met(group.name, why)
        if self._started:
            replica.starting = asyncio.get_running_loop().create_task(self._start(replica))

    async def _start(self, replica: Replica) -> None:
        former = self._ending.pop(replica.plan.name, None)
        if former is not None:
            await asyncio.wait([former])  # it has the address
        try:
            await replica.carrier.start()
        except ClusterError as problem:
            _log.error(
                "a group's address could not be opened",
                extra={"group": replica.plan.name, "problem": str(problem)},
            )
            replica.hosted.group.fail(str(problem))
            return
        self._tick(replica)

    def _closed(self, hosted: Hosted) -> None:
        """Disconnect a group that is no longer hosted here."""
        name = hosted.group.name
        replica = self.replicas.pop(name, None)
        if replica is not None and hosted.keeper.leading:
            # Closed while it led, as a copy that is left behind is: no client may keep asking this
            # shard.
            self._follows(hosted)
        self.audits.remove(name)
        if replica is None:
            self.hosts.outboxes.closed(name)
            self.leaders.ends(f"{name}@{self.node}", 1, OWN)
            self._say("follows", f"{name}@{self.node}", 1)
            return
        replica.acquaintances.closed = True
        replica.copy.close()
        self.still(replica)
        self._ending[name] = asyncio.get_running_loop().create_task(replica.carrier.stop())

    def still(self, replica: Replica) -> None:
        """Stop a group's clock."""
        for timer in (replica.timer, replica.announcement):
            if timer is not None:
                timer.cancel()

    def _announce_soon(self, replica: Replica) -> None:
        """Schedule an announcement of the commit index, in case no other message carries it."""
        if replica.announcement is None:
            loop = asyncio.get_running_loop()
            replica.announcement = loop.call_later(ANNOUNCE_SECONDS, self._announce, replica)

    def _announce(self, replica: Replica) -> None:
        replica.announcement = None
        replica.hosted.keeper.announce()

    def _tick(self, replica: Replica) -> None:
        """Advance a group's clock by one tick, even if the shard was held up for longer."""
        if replica.hosted.group.failed:
            return
        replica.hosted.keeper.tick()
        loop = asyncio.get_running_loop()
        replica.timer = loop.call_later(replica.tick_seconds, self._tick, replica)
        self._wake()

    def _step(self, hosted: Hosted, messages: Sequence[Message]) -> None:
        """Pass a member's messages to its group. Raises MalformedMessage."""
        keeper = hosted.keeper
        replica = self.replicas.get(hosted.group.name)
        if replica is None or replica.hosted is not hosted:
            return  # it has left, and its streams are still ending
        try:
            rest = messages
            if MessageKind.SNAPSHOT in [message.kind for message in messages]:
                rest = self.snapshots.intercept(replica, messages)
            keeper.step(rest)
        finally:
            if keeper.changed or messages[0].kind not in _ROUTINE:
                self._wake()

    def _unreachable(self, hosted: Hosted, number: int) -> None:
        if not hosted.group.failed:
            hosted.keeper.node.report_unreachable(number)

    # Leaders

    def _led(self, hosted: Hosted) -> None:
        if not hosted.keeper.leading:
            return
        name, term = hosted.group.name, hosted.keeper.node.term
        _log.info("leading", extra={"group": name, "term": term})
        self.leaders.leads(name, term, OWN)
        self._say("leads", name, term)

    def _follows(self, hosted: Hosted) -> None:
        name, term = hosted.group.name, hosted.keeper.node.term
        _log.info("leading no longer", extra={"group": name, "term": term})
        self.leaders.ends(name, term, OWN)
        self._say("follows", name, term)
        self.audits.lose(name)

    def _say(self, what: str, group: str, term: int) -> None:
        links: list[FrameLink] = [*self._shard_links.values(), *self.links.links.values()]
        for link in links:
            if link.up:
                link.send_control(what, group, term)

    def _tell(self, link: FrameLink) -> None:
        """Tell a shard that has connected which groups are led here."""
        for name, leader in self.leaders.all().items():
            if leader.peer == OWN:
                link.send_control("leads", name, leader.term)

    def _on_leads(self, link: FrameLink, group: str, term: int) -> None:
        self.leaders.leads(group, term, link.peer)

    def _on_follows(self, link: FrameLink, group: str, term: int) -> None:
        self.leaders.ends(group, term, link.peer)

    # Hosts

    def node_of(self, peer: int) -> str:
        """Return a shard's node: this one for its own shards, empty for one never connected."""
        if peer in self._shard_links:
            return self.node
        link = self.links.links.get(peer)
        return "" if link is None else link.node

    def own_name(self, group: str) -> str:
        """Return a group's name on this node, without the node's name that others append to it."""
        return self.hosts.own_name(group)

    def host(self, group: str) -> QueueHost | None:
        """Return the host of a group that this node does not host alone; None for its own."""
        return self.hosts.host(group)

    def sender(self, group: str) -> QueueHost | None:
        """Return the host for messages that queues themselves send, like `host`."""
        return self.hosts.sender(group)

    def moved(self, queue: str, before: str, after: str) -> None:
        """Move a queue's appends and consumers to its new group."""
        self.hosts.moved(queue, before, after)

    def keeps_here(self, group: str) -> bool:
        """Return whether a replicated group's appends are kept here while another node leads."""
        return self.plans.replicated(group) and self.hosts.policy(group) == "local"

    def copy_of(self, group: Group) -> QueueHost | None:
        """Return the host of a copy here that another node leads, for this node's other shards."""
        replica = self.replicas.get(group.name)
        if replica is None or not group.absent:
            return None
        return replica.copy

    def leader_of(self, group: str) -> str | None:
        """Return the leader of a group here, empty if unknown; None for this node's own groups."""
        replica = self.replicas.get(group)
        return None if replica is None else leader_of(replica)

    @property
    def crowded(self) -> bool:
        """True while unacknowledged appends exceed the high watermark."""
        return self.hosts.crowded

    @property
    def idle(self) -> bool:
        """True when all requests of clients are answered."""
        return self.hosts.idle

    def housekeeping(self) -> None:
        """Run periodic work; called every tenth of a second."""
        self.hosts.housekeeping()
        self.clocks.housekeeping()
        self.orders.housekeeping()
        self.members.housekeeping()
        self.audits.housekeeping(self.now())
        self.snapshots.housekeeping()
        self.spread.housekeeping(self.now())

    @property
    def append_timeouts(self) -> int:
        """Number of appends refused because no leader answered in time."""
        return self.hosts.timeouts

    # Shutdown

    async def hand_over(self, turn: Callable[[], None]) -> None:
        """Transfer the groups led here to other members, for a bounded time."""
        asked: set[str] = set()
        deadline = self.now() + TRANSFER_SECONDS_MAX
        while self.now() < deadline:
            led = [each for each in self.replicas.values() if each.hosted.keeper.leading]
            if not led:
                return
            for replica in led:
                if replica.plan.name not in asked and self.transfer(replica):
                    asked.add(replica.plan.name)
            if not asked:
                return
            turn()
            await asyncio.sleep(_STEP_SECONDS)

    def transfer(self, replica: Replica, to: int = 0) -> bool:
        """Transfer leadership to a member, by default the most advanced; return whether one was
        asked.
        """
        node = replica.hosted.keeper.node
        status = node.status()
        reachable = [
            (peer.match, number)
            for number, peer in status.progress.items()
            if not peer.learner and replica.acquaintances.believed(number) and to in (0, number)
        ]
        if not reachable:
            return False
        asked = node.transfer_leadership(max(reachable)[1])
        replica.hosted.keeper.pump()
        return asked
