"""Assembles a shard from its parts, for its process and for tests that step whole shards by
hand."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fluxmq.engine.wiring import Queues
from fluxmq.ipc.conversation import RequestHandler
from fluxmq.ipc.topology_client import RequestSender
from fluxmq.metrics.registry import Sample
from fluxmq.net import frames
from fluxmq.net.links import Link
from fluxmq.net.reactor import WATCH_SPANS, Reactor
from fluxmq.routing.node_interest import NodeInterest
from fluxmq.settings.clustering import ClusterSettings
from fluxmq.settings.schema import Settings
from fluxmq.shards.amqp.broker_messages import BrokerMessages
from fluxmq.shards.amqp.events import BrokerEvents
from fluxmq.shards.amqp.firehose import Firehose
from fluxmq.shards.amqp.replies import Replies
from fluxmq.shards.amqp.wiring import Amqp
from fluxmq.shards.authentication import Authentication
from fluxmq.shards.bans import CurrentBans
from fluxmq.shards.broker import ShardBroker
from fluxmq.shards.cluster_sessions import ClusterSessions
from fluxmq.shards.counts import Drops
from fluxmq.shards.durable.durability import Durability
from fluxmq.shards.durable.links import DurableLinks
from fluxmq.shards.durable.retained_rows import RetainedRows
from fluxmq.shards.durable.rows import Clock
from fluxmq.shards.durable.wiring import Durable
from fluxmq.shards.groups import GroupTable
from fluxmq.shards.home_relay import HomeRelay
from fluxmq.shards.intake import Intake
from fluxmq.shards.limits import RECEIVE_BUFFER_BYTES
from fluxmq.shards.node_peers import NO_NODES, BesideMessages, NodePeers, OtherNodes, StreamUser
from fluxmq.shards.node_questions import NodeQuestions
from fluxmq.shards.parts import Parts
from fluxmq.shards.permissions import PermissionUpdates
from fluxmq.shards.publish_rates import PublishRates
from fluxmq.shards.records import Records
from fluxmq.shards.retained import RetainedMessages
from fluxmq.shards.retained_commits import RetainedCommits
from fluxmq.shards.retained_fetch import RetainedFetch
from fluxmq.shards.retained_sync import RetainedSync
from fluxmq.shards.routes import RouteTable
from fluxmq.shards.shared_counts import SharedCounts
from fluxmq.shards.surroundings import Surroundings, Times
from fluxmq.shards.switch import Switch
from fluxmq.shards.user_limits import UserLimitChecks
from fluxmq.shards.wills import ClusterWills

if TYPE_CHECKING:
    from fluxmq.cluster.shard_endpoint import ShardEndpoint
    from fluxmq.shards.publish_links import PublishLinks


class ControlUser(Protocol):
    """A part of a shard that is in conversation with the control process."""

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """Handlers of control's messages by kind."""

    def connect(self, control: RequestSender, /) -> None:
        """Send requests through this client from now on."""

    def established(self) -> None:
        """Begin anew: control is connected (again)."""

    @property
    def next_due(self) -> float:
        """Moment at which something becomes due, in monotonic seconds; 0.0 while there is work
        for every turn of the timer."""

    def housekeeping(self) -> None:
        """Run periodic work; called every tenth of a second while something happens."""

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of its metrics."""


class ClientWatch(NamedTuple):
    """Limits of users and rates, and the broker's own messages about its clients."""

    user_limits: UserLimitChecks
    firehose: Firehose
    events: BrokerEvents
    rates: PublishRates


class Shard:
    """One shard: its parts, connected but not started."""

    def __init__(
        self,
        settings: Settings,
        around: Surroundings,
        share: Callable[[Queues, ShardEndpoint], None] = lambda _queues, _endpoint: None,
    ) -> None:
        """Connect the parts; ``share`` has replicated queues shared with other nodes. Raises
        StorageError, and errors of opening TLS listeners' certificates."""
        self.authentication = make_authentication(settings, around)
        self.reactor = make_reactor(settings, around)
        drops = Drops()
        self.queues = Queues(
            around.index,
            settings,
            around.placement,
            self.reactor,
            around.times.call_later,
            drops.count,
            around.times.steady_us,
            around.disk,
        )
        self.retained_sync: RetainedSync | None = None
        self.node_questions = NodeQuestions(around.times.monotonic)
        self.endpoint = around.endpoint
        replicated = settings.cluster.raft.enabled
        if self.endpoint is not None and replicated:
            share(self.queues, self.endpoint)
        switch = Switch(lambda received, blocked: around.connect(self.reactor, received, blocked))
        vhost_connections, relay = SharedCounts(switch.links), HomeRelay(around.index, switch.links)
        switch.on_control(vhost_connections.handlers())
        switch.on_control(relay.link_handlers())
        replies = make_replies(settings, around, switch)
        watched = make_watched(settings, around, self.reactor, switch)
        beside: list[StreamUser] = [self.node_questions, vhost_connections.nodes, replies, relay]
        beside += (*watched.user_limits.nodes, watched.rates.nodes)
        parts = self._make_parts(settings, around, drops, switch, beside, watched)
        self.broker = self.reactor.host = ShardBroker(
            self.reactor, settings, around, parts, self.queues.elsewhere.explain
        )
        self.control_users = make_control_users(
            around.index, settings.cluster, relay, self.broker, self.queues, self.retained_sync
        )
        self.control_users += trace_messages(settings, around.times, self.queues, parts.groups)
        self.peers = self.broker.peers
        self.nodes = parts.nodes
        watched.events.connected = lambda: parts.nodes.connected
        if isinstance(parts.nodes, NodePeers):
            parts.nodes.runs.doubtful.settle = self.peers.settle
        self.publish_links = make_publish_links(
            self.endpoint, parts.nodes, self.queues, replicated, around.times.monotonic
        )
        self.durable = Durable(self.broker.sessions.durable, parts.durable_links)
        self.permissions = PermissionUpdates(self.reactor, self.broker, self.authentication)
        self.amqp = Amqp(
            *(settings, self.broker, self.queues, replies, vhost_connections),
            around.times.call_later,
            around.times.steady_us,
            around.workers,
        )
        self.intake = Intake(
            around.handoff_fd,
            self.reactor,
            self.broker,
            self.amqp.adopt,
            settings,
            around.count_connections,
            around.take_connections,
            around.times.steady_us,
        )

    @property
    def next_due(self) -> float:
        """Moment at which something becomes due, in monotonic seconds; 0.0 while there is work
        for every turn of the timer."""
        queues = self.queues
        idle = queues.clients.idle and queues.node_groups.idle and not any(queues.elsewhere.waiting)
        if queues.service.held or self.peers.nodes.holds or not idle:
            return 0.0  # requests wait for a group, here or elsewhere, or publishers for room
        dues = [user.next_due for user in self.control_users]
        dues += [queues.service.logs.next_due, self.broker.next_due, self.amqp.next_due]
        return min(dues)

    def _make_parts(
        self,
        settings: Settings,
        around: Surroundings,
        drops: Drops,
        switch: Switch,
        beside: Sequence[StreamUser],
        watched: ClientWatch,
    ) -> Parts:
        """Create what sessions use and other shards talk about. Raises StorageError."""
        times, links, limits = around.times, switch.links, settings.broker
        durability = Durability(
            around.index,
            around.workers,
            around.store,
            self.reactor,
            links,
            Clock(times.monotonic, times.wall_seconds),
            times.call_later,
            drops.count,
        )
        interest = NodeInterest() if settings.cluster.enabled else None
        routes = RouteTable(
            self.reactor,
            limits.max_topic_bytes,
            limits.max_topic_levels,
            limits.allow_control_characters,
            self.queues.clients.targets,
            links,
            durability.kept,
            interest,
        )
        groups = GroupTable(
            routes.add_group,
            routes.remove_group,
            drops.count,
            self._tell_peers,
            durability.commit_waiter.pass_on,
            links,
            durability.kept,
            interest,
        )
        around.expect_others(routes, groups)
        retained = make_retained(settings, around, links, durability.rows, self.reactor)
        nodes: OtherNodes = NO_NODES
        if interest is not None:
            fetch = RetainedFetch(retained, times.monotonic)
            nodes = NodePeers(
                *(around.index, routes, groups, interest, self.reactor, durability.commit_waiter),
                settings.cluster.transport,
                BesideMessages(fetch, *beside),
            )
            self.retained_sync = make_sync(settings.cluster, durability, retained, fetch)
        return Parts(
            self.authentication,
            self.queues,
            self.queues.join(links, around.epoch),
            switch,
            routes,
            groups,
            retained,
            durability.commit_waiter,
            DurableLinks(links, durability, routes, groups),
            drops,
            nodes,
            watched.user_limits,
            watched.firehose,
            watched.events,
            watched.rates,
        )

    def _tell_peers(self) -> None:
        self.peers.tell()


def make_publish_links(
    endpoint: ShardEndpoint | None,
    nodes: OtherNodes,
    queues: Queues,
    replicated: bool,
    now: Callable[[], float],
) -> PublishLinks | None:
    """Return the streams for messages between nodes; None without other nodes."""
    if endpoint is None or not isinstance(nodes, NodePeers):
        return None
    # Imported only where it is used: it costs time and memory.
    from fluxmq.shards.publish_links import PublishLinks

    tally = queues.reactor.tally

    def arrived() -> None:
        """Take the time: what other nodes send is handled outside of ticks, and the last one may be
        long ago."""
        tally.now = now()

    return PublishLinks(endpoint, nodes, queues.service.wake, replicated, arrived)


def make_authentication(settings: Settings, around: Surroundings) -> Authentication:
    """Return what checks the shard's clients."""
    certificates = any(each.client_auth != "none" for _, each in settings.tls_listeners())
    bans = CurrentBans(around.times.wall_seconds)
    return Authentication(settings.auth, around.loop, certificates, bans, around.times.monotonic)


def make_replies(settings: Settings, around: Surroundings, switch: Switch) -> Replies:
    """Return a shard's direct replies, connected with the node's other shards."""
    replies = Replies(
        *(around.index, switch.links, secrets.token_urlsafe, around.times.steady_us),
        around.times.call_later,
        settings.cluster.node_id if settings.cluster.enabled else "",
    )
    switch.on_control(replies.handlers())
    switch.on_frame(replies.received, frames.REPLY)
    return replies


def make_watched(
    settings: Settings, around: Surroundings, reactor: Reactor, switch: Switch
) -> ClientWatch:
    """Return a shard's limits of users and rates, connected with the node's other shards, and its
    firehose and events."""
    messages, node = BrokerMessages(), settings.cluster.node_id
    user_limits = UserLimitChecks(switch.links)
    rates = PublishRates(reactor, switch.links)
    for each in (user_limits, rates):
        switch.on_control(each.handlers())
    events = BrokerEvents(messages, around.index, node, around.times.steady_us)
    return ClientWatch(user_limits, Firehose(messages, node), events, rates)


def make_control_users(
    shard: int,
    cluster: ClusterSettings,
    relay: HomeRelay,
    broker: ShardBroker,
    queues: Queues,
    retained_sync: RetainedSync | None,
) -> tuple[ControlUser, ...]:
    """Return the parts that keep a shard in line with its cluster; none without etcd."""
    if retained_sync is None or not isinstance(broker.wills, ClusterWills):
        return ()
    sessions = ClusterSessions(
        *(cluster, relay, broker.peers.ownership, broker.sessions, broker.peers, broker.handler),
        broker.reactor,
    )
    users: tuple[ControlUser, ...] = retained_sync, broker.wills, sessions
    if cluster.etcd is not None and cluster.etcd.records:
        records = Records(
            cluster.node_id, shard, broker.sessions.by_id, broker.sessions.durable.clock.now
        )
        broker.subscriptions.changed = records.changed
        queues.attach = records.attach
        users = *users, records
    return users


def trace_messages(
    settings: Settings, times: Times, queues: Queues, groups: GroupTable
) -> tuple[ControlUser, ...]:
    """Have the shard's parts record spans, if the settings want them; return what records them."""
    if not settings.tracing.enabled:
        return ()
    # Imported only where it is used, as above.
    from fluxmq.shards.span_recorder import SpanRecorder

    reactor, clocks = queues.reactor, (times.steady_us, times.monotonic)
    groups.spans = spans = SpanRecorder(settings.tracing, reactor.tally, *clocks, queues.attach)
    reactor.watching |= WATCH_SPANS
    queues.attach = spans.attach
    return (spans,)


def make_retained(
    settings: Settings,
    around: Surroundings,
    links: dict[int, Link],
    rows: RetainedRows,
    reactor: Reactor,
) -> RetainedMessages:
    """Return a shard's retained messages, read from its disk. Raises StorageError."""
    limits, times = settings.broker, around.times
    retained = RetainedMessages(
        around.index,
        limits.max_retained_messages,
        limits.max_retained_bytes,
        times.monotonic,
        times.wall_ns,
        links,
        rows,
        reactor.hold,
    )
    retained.load()
    return retained


def make_sync(
    cluster: ClusterSettings,
    durability: Durability,
    retained: RetainedMessages,
    fetch: RetainedFetch,
) -> RetainedSync | None:
    """Return what keeps a shard's retained messages in line with the cluster's; None without etcd."""
    etcd = cluster.etcd
    if etcd is None:
        return None
    rows, waiter, node = durability.rows, durability.commit_waiter, cluster.node_id
    commits = RetainedCommits(
        *(node, etcd.hybrid_retained_size_threshold, waiter.clock, waiter.store, waiter.wake)
    )
    return RetainedSync(node, waiter.clock, retained, rows, commits, fetch)


def make_reactor(settings: Settings, around: Surroundings) -> Reactor:
    """Return the shard's loop. Its host is the broker once that exists; until then it has only to
    schedule ticks."""
    limits = settings.broker
    reactor = Reactor(
        around,
        RECEIVE_BUFFER_BYTES,
        limits.max_packet_size,
        min(limits.max_connect_size, limits.max_packet_size),
        limits.route_cache_size,
    )
    reactor.tally.now = around.times.monotonic()
    return reactor
