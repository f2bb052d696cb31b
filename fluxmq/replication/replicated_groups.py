"""The replicated groups of a shard, and its links to other nodes: builds every part, and tells each
what it needs of a group's events.

Longer than 500 lines because it names every part once, with what each needs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from fluxmq.cluster.clock_links import CLOCK, ClockLinks, SteeredClock
from fluxmq.cluster.node_links import NodeLink, NodeLinks
from fluxmq.cluster.shard_endpoint import SHARD, ShardEndpoint
from fluxmq.cluster.shard_pairs import every_shard
from fluxmq.ipc.cluster_nodes import CLUSTER_NODES, ClusterNodes
from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import Body
from fluxmq.logs import get_logger
from fluxmq.metrics.registry import GROUP_SERIES_MAX, Sample
from fluxmq.net.links import FrameLink
from fluxmq.raft.commits import EVERY_VOTER, MAJORITY
from fluxmq.raft.types import Message, MessageKind
from fluxmq.replication.audits import Audits
from fluxmq.replication.damages import Damages
from fluxmq.replication.divergent_mirrors import DivergentMirrors
from fluxmq.replication.ended_mirrors import EndedMirrors
from fluxmq.replication.forced_mirrors import ForcedMirrors
from fluxmq.replication.group_commands import GroupCommands
from fluxmq.replication.heartbeat_links import HeartbeatLinks
from fluxmq.replication.heartbeats import ANSWER, BEAT
from fluxmq.replication.hosted_groups import AnyHostedGroups
from fluxmq.replication.leaders import LeaderNews, Leaders
from fluxmq.replication.membership import GroupMembers
from fluxmq.replication.mirror_leaders import MirrorCopies, MirrorLeaders
from fluxmq.replication.nodes import Traffic
from fluxmq.replication.open_group import ALONE, AnyHosted, Member
from fluxmq.replication.placement import Places
from fluxmq.replication.queue_plans import QueuePlans, wish_of
from fluxmq.replication.raft_transport import RaftTransport
from fluxmq.replication.replica import (
    TICKS_PER_ELECTION,
    Replica,
    heartbeat_ticks,
    leader_of,
)
from fluxmq.replication.reports import group_samples, guard_samples, link_samples
from fluxmq.replication.scrub import Scrub
from fluxmq.replication.shard_links import ShardLinks
from fluxmq.replication.snapshot_calls import SnapshotCalls
from fluxmq.replication.snapshot_offers import SnapshotOffers
from fluxmq.replication.snapshots import Snapshots
from fluxmq.replication.spread import LeaderSpread
from fluxmq.replication.unheard_groups import UnheardGroups
from fluxmq.settings.clustering import LOCAL
from fluxmq.settings.group_names import is_mirrored
from fluxmq.settings.membership import effective, with_mirrors
from fluxmq.settings.plans import GroupPlans, UnknownGroup, member_number
from fluxmq.settings.schema import Settings
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import Corruption, StorageError
from fluxmq.storage.files import Files

TRANSFER_SECONDS_MAX: Final = 2.0
"""Time that a stopping shard waits for others to take its groups over."""
_STEP_SECONDS: Final = 0.005
_ROUTINE: Final = frozenset(
    (MessageKind.APPEND_ANSWER, MessageKind.HEARTBEAT, MessageKind.HEARTBEAT_ANSWER)
)
"""Messages that seldom change anything the end of a tick would have to handle."""
QUIET_FRAMES: Final = (BEAT, ANSWER, CLOCK)
"""Control frames of other nodes' shards that come also while nothing happens."""
_HEARTBEATS: Final = frozenset((MessageKind.HEARTBEAT, MessageKind.HEARTBEAT_ANSWER))

_log = get_logger("fluxmq.cluster")


class ShardTraffic:
    """Observer of links to other nodes' shards: exchanges readings of the clocks before the traffic
    of queues, which depends on the time."""

    def __init__(self, clocks: ClockLinks, heartbeats: HeartbeatLinks, traffic: Traffic) -> None:
        self._clocks = clocks
        self._heartbeats = heartbeats
        self._traffic = traffic

    def added(self, link: NodeLink) -> None:
        """Introduce a link."""
        self._traffic.add(link.peer, link)

    def came(self, link: NodeLink) -> None:
        """Announce this shard to one that has connected."""
        self._clocks.tell(link)
        self._heartbeats.came(link)
        self._traffic.tell_everything(link)

    def gone(self, link: NodeLink) -> None:
        """Handle the loss of a shard."""
        self._clocks.lost(link)
        self._heartbeats.gone(link)
        self._traffic.lose(link.peer)

    def handlers(self) -> Mapping[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return self._traffic.handlers()

    def received(self, link: NodeLink, frame: bytes) -> None:
        """Handle a frame that is not a control frame."""
        self._traffic.received(link, frame)


class GroupListener:
    """Passes what the streams of a group bring to the group; implements ``TransportListener``."""

    def __init__(self, groups: ReplicatedGroups, hosted: AnyHosted) -> None:
        self._hosted = hosted
        self._name = hosted.group.name
        self._heartbeats = groups.heartbeats
        self._step = groups.step

    def stirred(self) -> None:
        """Wake the group."""
        self._heartbeats.stirred(self._name)

    def step(self, messages: Sequence[Message]) -> None:
        """Pass a member's messages to the group, and wake it unless they are the last heartbeats
        before it went to rest, or answers to them."""
        if self._heartbeats.rests(self._name):
            term = self._hosted.driver.node.term
            if not all(each.term == term and each.kind in _HEARTBEATS for each in messages):
                self.stirred()
        self._step(self._hosted, messages)

    def unreachable(self, member: int) -> None:
        """Have what was sent to a member sent again."""
        if not self._hosted.group.failed:
            self._hosted.driver.node.report_unreachable(member)

    def failed(self, why: str) -> None:
        """Stop the group."""
        self._hosted.group.fail(why)

    def heard_of(self, member: int) -> float:
        """Return when a member's shard was last heard, if the group rests."""
        return self._heartbeats.heard_of(self._name, member)


class ReplicatedGroups:
    """Groups that other nodes have too. Made only if the settings name any; implements ``Nodes``.

    ``endpoint``: the shard's address, which its owner starts after `join` and before `start`, and
    stops before `stop`.
    """

    states: tuple[str, ...] = ("following", "leaderless")

    def __init__(
        self,
        settings: Settings,
        endpoint: ShardEndpoint,
        hosting: AnyHostedGroups,
        places: Places,
        clock: SteeredClock,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        own = endpoint.own
        self.now = now
        self.plans = GroupPlans(settings)
        self.queue_plans = QueuePlans(settings, self.plans)
        self.leaders = Leaders()
        self.replicas: dict[str, Replica] = {}
        self.shards = ShardLinks(own.node, own.shard, places)
        self.news = LeaderNews(self.leaders, self.shards)
        self.links: NodeLinks
        self.is_timed = clock.is_known
        self._settings = settings
        self._hosting = hosting
        self._endpoint = endpoint
        self._started = False
        self._ending: dict[str, asyncio.Task[None]] = {}
        """By group: transports of closed replicas that are still releasing their address."""
        self._unheard = UnheardGroups()
        self._build(clock)

    def _build(self, clock: SteeredClock) -> None:
        """Create the parts, each with what it needs of the others."""
        replicas, shards, hosting, now = self.replicas, self.shards, self._hosting, self.now
        files, paths = Files(), DataPaths(self._settings.storage.data_dir)
        self.clocks = ClockLinks(
            clock,
            len(self._settings.cluster.transport.peers) + 1,
            lambda: iter(shards.abroad.values()),
        )
        self.orders_here = GroupCommands(replicas, self.leaders, shards, now)
        self.members = GroupMembers(
            *(replicas, shards, self.orders_here, self.plans, hosting, files, paths, now)
        )
        self._reading = ThreadPoolExecutor(2, "snapshot-read")
        self.served = SnapshotCalls(
            *(files, paths, hosting.checkpoints, self._reading, hosting.groups.get, now)
        )
        self.offers = SnapshotOffers(replicas, self.served, now)
        self.snapshots = Snapshots(
            *(replicas, self.leaders, shards, self._endpoint.security, hosting, self.served),
            self._settings,
            now,
        )
        refetch = self.snapshots.refetch
        self.damages = Damages(replicas, shards, self.plans, hosting, refetch, files, paths)
        self.scrub = Scrub(replicas, self.damages.met, files, now)
        self.audits = Audits(replicas, self.leaders, shards, self.orders_here, refetch, now)
        self.spread = LeaderSpread(replicas, self.leaders, shards, self.plans)
        self.heartbeats = HeartbeatLinks(shards, hosting, now)
        cluster = self._settings.cluster
        copies = MirrorCopies(
            ForcedMirrors(hosting, files, paths),
            DivergentMirrors(cluster.cluster_partition_handling, shards.node, now),
            EndedMirrors(
                *(hosting, shards.shard, shards.places, files, paths),
                *(self._on_removed, now),
            ),
        )
        self.members.mirrors = MirrorLeaders(
            *(shards.node, cluster.net_ticktime, replicas, copies),
            *(self._on_mirrors, self.heartbeats.stirred, now),
        )

    # Joining

    def join(
        self,
        shard_links: Mapping[int, FrameLink],
        traffic: Traffic,
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        """Use the links to this node's shards, and make those to other nodes, with their
        traffic; ``arrived`` is called before frames are handled."""
        observer = ShardTraffic(self.clocks, self.heartbeats, traffic)
        self.links = NodeLinks(
            self._endpoint,
            SHARD,
            every_shard,
            observer,
            self._hosting.wake,
            QUIET_FRAMES,
            arrived,
        )
        self.shards.own, self.shards.abroad = shard_links, self.links.links

    def commands(self) -> dict[str, RequestHandler]:
        """Return the handlers of control's questions and orders by kind."""
        orders = self.orders_here.commands()
        assert self.members.mirrors is not None, "they were made"
        return {**orders, CLUSTER_NODES: self._on_nodes, **self.members.mirrors.commands}

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames of shards of this node and others, by name."""
        frames = {**self.news.handlers(), **self.orders_here.handlers(), **self.members.handlers()}
        frames |= {**self.audits.handlers(), **self.scrub.handlers(), **self.clocks.handlers()}
        frames |= {**self.spread.handlers(), **self.offers.handlers()}
        return {**frames, **self.heartbeats.handlers()}

    def came(self, link: FrameLink) -> None:
        """Tell a shard that has connected which groups lead here."""
        self.news.tell(link)

    def went(self, peer: int) -> None:
        """Note a shard that has died."""
        self.leaders.lost(peer)
        self.orders_here.lost(peer)

    async def start(self) -> None:
        """Dial the shards of other nodes; listen and dial for each group. Raises ClusterError."""
        self._started = True
        self.links.start()
        for replica in self.replicas.values():
            await replica.raft_transport.start()
            replica.tick(self._hosting.wake)
        self.heartbeats.start()
        self.scrub.start()

    async def stop(self) -> None:
        """End every stream."""
        self.heartbeats.stop()
        await self.scrub.stop()
        await self.snapshots.close()
        await self.served.close()
        self._reading.shutdown(wait=False)
        for replica in list(self.replicas.values()):
            self.heartbeats.remove(replica.plan.name)  # or the end of its streams would wake it
            replica.still()
            if replica.starting is not None:
                replica.starting.cancel()
            await replica.raft_transport.stop()
        await asyncio.gather(self.links.stop(), *self._ending.values())

    # Groups

    def groups_here(self) -> Iterator[str]:
        """Yield the settings' replicated groups of this node, and one of its own for outboxes."""
        if self._settings.cluster.raft.write_policy == "local":
            yield from self.shards.places.first_of(LOCAL, self.shards.shard)
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
            self._unheard.note(problem)
            return False

    def left(self, group: str) -> bool:
        """Return whether this node was a member and was removed. Raises StorageError."""
        return self.members.left(group)

    def mend(self, group: str, damage: Corruption) -> bool:
        """Reset a damaged group that could not be opened; return whether to try again."""
        return self.damages.mend(group, damage)

    def leader_of(self, group: str) -> str | None:
        """Return the leader of a group here, empty if unknown; None for this node's own groups."""
        replica = self.replicas.get(group)
        return None if replica is None else leader_of(replica)

    def member_of(self, group: str) -> Member:
        """Return this node's member configuration in a group."""
        if not self.plans.replicated(group):
            return ALONE
        plan = self.plans.of(group)
        heartbeat, mirrored = heartbeat_ticks(plan), is_mirrored(group)
        return Member(
            member_number(self.shards.node),
            self.members.begins_with(plan),
            max(TICKS_PER_ELECTION, heartbeat + 1),
            heartbeat,
            plan.data_dir,
            self.queue_plans.reads_copies(group),
            EVERY_VOTER if mirrored else MAJORITY,
            appointed=mirrored,
            wish=wish_of(plan),
            wishes=self.queue_plans.wishes(group),
        )

    def opened(self, hosted: AnyHosted) -> None:
        """Connect a group that was opened to its other members, if it has any."""
        if hosted.driver.alone:
            return
        group, driver = hosted.group, hosted.driver
        plan = self.plans.of(group.name)
        acquaintances = self.members.acquaintances(
            lambda: self.replicas[group.name], self.members.live(plan), group.name
        )
        raft_transport = RaftTransport(
            plan,
            self._endpoint.security,
            self._endpoint.own,
            GroupListener(self, hosted),
            acquaintances,
            self.now,
            self.served.handlers(group.name),
        )
        status = driver.node.status()
        raft_transport.follow((*status.membership.voters, *status.membership.learners))
        audit = self.audits.add(hosted, status.id)
        replica = self.replicas[group.name] = Replica(
            *(plan, hosted, raft_transport, acquaintances, audit, self.news),
            self.damages.met,
            self.offers.wanted,
        )
        driver.gathers = not self.queue_plans.reads_copies(group.name)
        driver.node.hold(*acquaintances.record.floor)
        driver.join(replica)
        self.heartbeats.add(replica)
        if self._started:
            replica.starting = asyncio.get_running_loop().create_task(self._start(replica))

    async def _start(self, replica: Replica) -> None:
        name = replica.plan.name
        former = self._ending.pop(name, None)
        if former is not None:
            await asyncio.wait([former])  # it has the address

        def refused(problem: str) -> None:
            _log.error(
                "cannot open a group's address: it is tried again",
                extra={"group": name, "problem": problem},
            )

        await replica.raft_transport.start_when_free(refused)
        if self.replicas.get(name) is replica:
            replica.tick(self._hosting.wake)
        else:  # closed meanwhile
            await replica.raft_transport.stop()

    def closed(self, hosted: AnyHosted) -> None:
        """Disconnect a group that is no longer hosted here."""
        name = hosted.group.name
        replica = self.replicas.pop(name, None)
        if replica is None:
            return
        self.heartbeats.remove(name)
        if hosted.driver.leading:
            # Closed while it led, as a copy that is left behind is: no client may keep asking this
            # shard.
            replica.follows()
        self.audits.remove(name)
        replica.acquaintances.closed = True
        replica.still()
        if replica.starting is not None and not replica.raft_transport.started:
            replica.starting.cancel()
        self._ending[name] = asyncio.get_running_loop().create_task(replica.raft_transport.stop())

    def step(self, hosted: AnyHosted, messages: Sequence[Message]) -> None:
        """Pass a member's messages to its group. Raises MalformedMessage."""
        driver = hosted.driver
        replica = self.replicas.get(hosted.group.name)
        if replica is None or replica.hosted is not hosted:
            return  # it has left, and its streams are still ending
        try:
            rest = messages
            if MessageKind.SNAPSHOT in [message.kind for message in messages]:
                rest = self.snapshots.intercept(replica, messages)
            driver.step(rest)
        finally:
            if driver.changed or messages[0].kind not in _ROUTINE:
                self._hosting.wake()

    # Work

    def _on_nodes(self, body: Body, answered: Answered) -> None:
        """Work with the nodes that the cluster has now: some have joined, or have left."""
        known = ClusterNodes.from_body(body)
        settings = effective(self._settings, known.nodes, known.sets)
        self._follow(settings)  # before they connect
        self._endpoint.follow(settings.cluster)
        answered({})

    def _on_mirrors(self, first: Mapping[str, tuple[str, ...]]) -> None:
        """Work with the mirrored groups that there are now."""
        assert self.members.mirrors is not None, "they were made"
        before = self._settings.cluster.history.mirrors
        open_ones = {
            name: before[name]
            for name in self.members.mirrors.copies.ended.needed()
            if name in before
        }
        self._follow(with_mirrors(self._settings, {**open_ones, **first}))

    def _on_removed(self, ended: Collection[str]) -> None:
        """Give other groups the addresses of mirrored groups that have ended."""
        first = self._settings.cluster.history.mirrors
        self.plans.release(ended)
        left = {name: nodes for name, nodes in first.items() if name not in ended}
        self._follow(with_mirrors(self._settings, left))

    def _follow(self, settings: Settings) -> None:
        """Know the nodes that these settings name."""
        self._settings = settings
        self.plans.follow(settings)
        self.clocks.peers.nodes = len(settings.cluster.transport.peers) + 1
        for name, replica in self.replicas.items():
            try:
                replica.plan = self.plans.of(name)
            except UnknownGroup as problem:  # an address is in use by now: it goes on as it was
                self._unheard.note(problem)
                continue
            replica.raft_transport.learn(replica.plan)
            replica.settled = False
        self._open_unheard()

    def _open_unheard(self) -> None:
        """Open the groups here that begin on nodes of which this node has heard now."""
        places = self.shards.places
        for name in self._unheard.heard(self.plans):
            here = places.shard_of(name) == self.shards.shard and not places.is_moving(name)
            if name in self._hosting.groups or not here or not self.is_member(name):
                continue
            try:
                self._hosting.open(name)
            except StorageError as problem:
                _log.error(
                    "a group could not be opened", extra={"group": name, "problem": str(problem)}
                )

    def housekeeping(self) -> None:
        """Run periodic work; called by the shard's timer."""
        now = self.now()
        self.clocks.housekeeping()
        self.orders_here.housekeeping()
        self.members.housekeeping()
        self.audits.housekeeping(now, self._hosting.attended.groups)
        self.offers.housekeeping()
        self.snapshots.housekeeping()
        self.spread.housekeeping(now)

    @property
    def clocks_apart(self) -> int:
        """Number of nodes whose wall clocks differ from this one's by too much."""
        return self.clocks.apart

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of replicated groups and of streams to other nodes."""
        replicas, now = list(self.replicas.values()), self.now()
        for replica in replicas[:GROUP_SERIES_MAX]:
            yield from group_samples(replica, self.damages.found[replica.plan.name], now)
        yield "fluxmq_raft_groups_at_rest", {}, self.heartbeats.combined.resting
        yield "fluxmq_raft_groups_not_shown", {}, max(0, len(replicas) - GROUP_SERIES_MAX)
        malformed = self.links.malformed.events
        malformed += sum(replica.raft_transport.malformed.events for replica in replicas)
        yield "fluxmq_cluster_malformed_messages_total", {}, malformed
        yield from guard_samples(self._endpoint.security.guard)
        yield "fluxmq_raft_snapshots_installed_total", {}, self.snapshots.installed
        yield "fluxmq_raft_scrubbed_bytes_total", {}, self.scrub.bytes
        assert self.members.mirrors is not None, "they were made"
        yield from self.members.mirrors.copies.divergent.samples(replicas)
        yield from self.clocks.samples()
        yield from link_samples(self._settings.cluster.transport.peers, self.shards.abroad.values())

    async def hand_over(self, turn: Callable[[], None]) -> None:
        """Transfer the groups led here to other members, for a bounded time."""
        asked: set[str] = set()
        deadline = self.now() + TRANSFER_SECONDS_MAX
        while self.now() < deadline:
            led = [
                each
                for each in self.replicas.values()
                if each.hosted.driver.leading and not is_mirrored(each.plan.name)
            ]
            if not led:
                return
            for replica in led:
                if replica.plan.name not in asked and replica.transfer():
                    asked.add(replica.plan.name)
            if not asked:
                return
            turn()
            await asyncio.sleep(_STEP_SECONDS)
