"""Assembles a shard from its parts, for its process and for tests that step whole shards by
hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from fluxmq._hot.reactor import Reactor
from fluxmq.net.links import Blocked, Link, Received
from fluxmq.settings.schema import Settings
from fluxmq.shards.amqp.wiring import Amqp
from fluxmq.shards.authentication import Authentication
from fluxmq.shards.broker import ShardBroker
from fluxmq.shards.claims import Claims
from fluxmq.shards.durable.homes import Store
from fluxmq.shards.durable.rows import Clock
from fluxmq.shards.durable.wiring import Durable
from fluxmq.shards.intake import Intake
from fluxmq.shards.limits import RECEIVE_BUFFER_BYTES
from fluxmq.shards.nodes import Nodes, NoNodes
from fluxmq.shards.peers import Peers
from fluxmq.shards.permissions import Permissions
from fluxmq.shards.queues.disk import Disk
from fluxmq.shards.queues.wiring import Queues
from fluxmq.shards.retained import RetainedMessages
from fluxmq.storage.directory import Placement


@dataclass(frozen=True, slots=True)
class Times:
    """The clocks of a shard, and its timer.

    `steady_us`: µs since the epoch, never going back, for queues. `later` calls an action after
    this many seconds, and ticks.
    """

    monotonic: Callable[[], float]
    wall_seconds: Callable[[], float]
    wall_ns: Callable[[], int]
    steady_us: Callable[[], int]
    later: Callable[[float, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Environment of a shard: its process, disk, clocks and the node's other shards.

    `epoch` identifies this life of the shard. `is_alive` returns whether another shard runs and has
    shown it. `expect_others` adds subscriptions of persistent sessions of shards that may start
    later. `schedule` schedules a tick. `count_connections` gets the number of connections per
    listener; `connected` returns the number of connected clients.
    """

    index: int
    workers: int
    epoch: int
    loop: asyncio.AbstractEventLoop
    placement: Placement
    times: Times
    disk: Disk
    store: Store
    expect_others: Callable[[ShardBroker], None]
    connect: Callable[[Reactor, Received, Blocked], dict[int, Link]]
    is_alive: Callable[[int], bool]
    handoff_fd: int
    schedule: Callable[[], None]
    count_connections: Callable[[int, int], None]
    connected: Callable[[], int]


class Shard:
    """One shard: its parts, connected but not started."""

    def __init__(
        self,
        settings: Settings,
        around: Surroundings,
        make_nodes: Callable[[Queues], Nodes] = lambda _queues: NoNodes(),
    ) -> None:
        """Connect the parts. Raises StorageError, and errors of opening TLS listeners'
        certificates."""
        limits = settings.broker
        self.reactor = Reactor(
            None,
            RECEIVE_BUFFER_BYTES,
            limits.max_packet_size,
            min(limits.max_connect_size, limits.max_packet_size),
            limits.route_cache_size,
        )
        self.reactor.tally.now = around.times.monotonic()
        self.broker = self.reactor.host = ShardBroker(
            self.reactor,
            settings,
            around.workers,
            self._make_authentication(settings, around),
            around.schedule,
            around.times.later,
        )
        self.permissions = Permissions(self.reactor, self.broker, self.authentication)
        self.peers = self.broker.peers = self._make_peers(around)
        self._keep(settings, around)
        self.queues = self.broker.queues = Queues(
            around.index,
            settings,
            around.placement,
            self.reactor,
            around.times.later,
            self.broker.count_drop,
            around.times.steady_us,
            around.disk,
        )
        self.nodes = make_nodes(self.queues)
        self.broker.handler.explain = self.nodes.explain
        self.broker.routes.sinks = self.queues.clients.sinks
        self.peers.join_queues(self.queues.join(self.peers.links))
        self.intake = Intake(
            around.handoff_fd,
            self.reactor,
            self.broker.handler,
            settings,
            self.broker.watch_connect,
            around.count_connections,
        )
        self.broker.open_now = self.intake.open_now
        self.amqp = Amqp(
            *(
                around.index,
                settings,
                self.broker,
                self.queues,
                self.nodes,
                self.peers.links,
                around.times.later,
            ),
            around.times.steady_us,
        )
        self.peers.join_replies(self.amqp.replies)
        self.peers.join_entered(self.amqp.entered)
        self.intake.amqp = self.amqp.adopt

    def _make_authentication(self, settings: Settings, around: Surroundings) -> Authentication:
        certificates = any(each.client_auth != "none" for _, each in settings.tls_listeners())
        self.authentication = Authentication(settings.auth, around.loop, certificates)
        return self.authentication

    def _make_peers(self, around: Surroundings) -> Peers:
        broker = self.broker
        peers = Peers(
            lambda received, blocked: around.connect(self.reactor, received, blocked),
            around.epoch,
            self.reactor,
            broker.routes,
            broker.groups,
            around.is_alive,
            self._owned,
        )
        broker.routes.links = broker.groups.links = peers.links
        return peers

    def _keep(self, settings: Settings, around: Surroundings) -> None:
        """Create the parts that keep sessions and retained messages on disk."""
        broker, peers, times = self.broker, self.peers, around.times
        claims = Claims(around.index, around.workers, peers.links, broker)
        around.expect_others(broker)
        self.durable = Durable(
            claims,
            around.workers,
            around.store,
            self.reactor,
            broker,
            peers,
            Clock(times.monotonic, times.wall_seconds),
            around.times.later,
            around.connected,
        )
        broker.retained = RetainedMessages(
            around.index,
            settings.broker.max_retained_messages,
            settings.broker.max_retained_bytes,
            times.monotonic,
            times.wall_ns,
            peers.links,
            self.durable.rows,
            self.reactor.hold,
        )
        broker.retained.load()
        peers.join(claims, broker.retained)

    def _owned(self, peer: int) -> list[str]:
        """Return the client ids with a session here whose home is `peer`."""
        home = self.peers.claims.home
        return [client_id for client_id in self.broker.sessions if home(client_id) == peer]
