"""Limits on the rates of publishers: messages and bytes per second of a connection, and of a vhost.

A connection above its rate is not read until it has paid for what it has sent, so that its client is
slowed down by TCP. Messages that were sent at once are handled at once, and waited for afterwards: a run of
messages is charged as a whole. Connections are looked at ten times a second.

A vhost's limit is for the whole cluster. Each shard has the share of it that its publishers are among
all of the vhost, as the shards have told each other within the last second.

Bytes are those of MQTT's packets, and of AMQP's bodies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from fluxmq.metrics.registry import Sample
from fluxmq.model.token_bucket import TokenBucket
from fluxmq.net.links import Link
from fluxmq.net.reactor import WATCH_RATES, Reactor
from fluxmq.protocols.connection import Connection
from fluxmq.routing.topology.records import VHOST
from fluxmq.routing.topology.rules import MAX_PUBLISH_BYTE_RATE, MAX_PUBLISH_RATE
from fluxmq.routing.topology.topology import Delta, Topology
from fluxmq.settings.schema import PublishRate
from fluxmq.shards.node_connections import NodeConnections
from fluxmq.shards.shared_counts import SharedCounts

PAUSED_RATE = 128
"""Not reading: the connection publishes faster than it may."""
SHARE_SECONDS = 1.0
"""Time after which a vhost's publishers are counted anew."""
CLIENT, OF_VHOST = "client", "vhost"
"""Owners of a limit."""


class _Rates(NamedTuple):
    """Messages and bytes per second; 0 for no limit."""

    messages: float
    bytes: float


UNLIMITED = _Rates(0, 0)


class _Buckets:
    """The buckets of one connection, or of a vhost's publishers on this shard."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, rates: _Rates, now: float) -> None:
        self._messages = TokenBucket(rates.messages, now) if rates.messages else None
        self._bytes = TokenBucket(rates.bytes, now) if rates.bytes else None

    def take(self, count: int, size: int, now: float) -> float:
        """Charge messages; return the seconds to wait."""
        of_messages = self._messages.take(count, now) if self._messages is not None else 0.0
        of_bytes = self._bytes.take(size, now) if self._bytes is not None else 0.0
        return max(of_messages, of_bytes)

    def scale(self, rates: _Rates, share: float) -> None:
        """Allow a share of these rates from now on."""
        if self._messages is not None:
            self._messages.rate = rates.messages * share
        if self._bytes is not None:
            self._bytes.rate = rates.bytes * share


class _VhostRates:
    """A vhost with limits: its buckets on this shard, and who has published since the last count."""

    __slots__ = ("buckets", "publishers", "rates")

    def __init__(self, rates: _Rates, now: float) -> None:
        self.rates = rates
        self.buckets = _Buckets(rates, now)
        self.publishers: set[Connection] = set()


class PublishRates:
    """Limits of one shard's publishers. ``topology`` has those of vhosts; it is set once the shard's
    copy exists."""

    def __init__(self, reactor: Reactor, links: Mapping[int, Link]) -> None:
        self.topology = Topology()
        self.held: dict[Connection, float] = {}
        """Connections that are not read, and until when."""
        self.slowed: Counter[str] = Counter()
        """Times that a connection was stopped, by the owner of the limit."""
        self._reactor = reactor
        self._of_client = UNLIMITED
        self._clients: dict[Connection, _Buckets] = {}
        self._vhosts: dict[str, _VhostRates] = {}
        self._publishers = SharedCounts(links, "publishers", "node publishers")
        self._count_at = 0.0

    def configure(self, settings: PublishRate) -> None:
        """Apply the limit of a connection."""
        rates = _Rates(settings.messages, settings.bytes)
        if rates != self._of_client:
            self._of_client = rates
            self._clients.clear()
        self._switch()

    def changed(self, delta: Delta) -> None:
        """Follow a change of the topology."""
        if all(row.kind != VHOST for row in delta.rows):
            return
        now = self._reactor.tally.now
        for row in delta.rows:
            if row.kind == VHOST:
                name = str(row.key[0])
                vhost = self.topology.vhost(name)
                rates = rates_of(vhost.limits) if vhost is not None else UNLIMITED
                known = self._vhosts.get(name)
                if rates == UNLIMITED:
                    self._vhosts.pop(name, None)
                    self._publishers.set(name, 0)
                elif known is None or known.rates != rates:
                    self._vhosts[name] = _VhostRates(rates, now)
        self._switch()

    def _switch(self) -> None:
        others = self._reactor.watching & ~WATCH_RATES
        limited = self._of_client != UNLIMITED or bool(self._vhosts)
        self._reactor.watching = others | WATCH_RATES if limited else others

    def charge(self, connection: Connection, vhost: str, count: int, size: int) -> None:
        """Charge a run of messages; stop reading the connection if it has to wait."""
        if connection.fd < 0:
            return  # the management interface
        now = self._reactor.tally.now
        wait, owner = 0.0, CLIENT
        if self._of_client != UNLIMITED:
            own = self._clients.get(connection)
            if own is None:
                own = self._clients[connection] = _Buckets(self._of_client, now)
            wait = own.take(count, size, now)
        limited = self._vhosts.get(vhost)
        if limited is not None:
            limited.publishers.add(connection)
            shared = limited.buckets.take(count, size, now)
            if shared > wait:
                wait, owner = shared, OF_VHOST
        if wait > 0:
            if connection not in self.held:
                self.slowed[owner] += 1
            self.held[connection] = now + wait
            self._reactor.pause(connection, PAUSED_RATE)

    @property
    def next_due(self) -> float:
        """Moment at which a connection has waited long enough, in monotonic seconds."""
        return min(self.held.values(), default=math.inf)

    def step(self, now: float) -> None:
        """Read connections that have waited; called ten times a second while there are any."""
        for connection, until in list(self.held.items()):
            if until <= now and self.held.get(connection) == until:
                self.release(connection)
        self._publishers.tick()
        if self._vhosts and now >= self._count_at:
            self._count_at = now + SHARE_SECONDS
            self._share_out()

    def _share_out(self) -> None:
        """Count publishers, and take this shard's share of each vhost's limit."""
        for name, limited in self._vhosts.items():
            waiting = {each for each in limited.publishers if each in self.held}
            own = len(limited.publishers)
            self._publishers.set(name, own)
            if own:
                limited.buckets.scale(limited.rates, own / max(self._publishers.count(name), own))
            limited.publishers = waiting

    def release(self, connection: Connection) -> None:
        """Read a connection again, as when it is closing and its last answer is awaited."""
        if self.held.pop(connection, None) is not None:
            # The broker did not listen: keep alive and heartbeat start anew.
            connection.active = self._reactor.tally.now
            self._reactor.resume(connection, PAUSED_RATE)

    def forget(self, connection: Connection) -> None:
        """Drop a connection that has gone."""
        self.held.pop(connection, None)
        self._clients.pop(connection, None)
        for limited in self._vhosts.values():
            limited.publishers.discard(connection)

    def samples(self) -> Iterator[Sample]:
        """Yield this shard's metrics."""
        yield "fluxmq_publishers_held", {}, len(self.held)
        for owner in (CLIENT, OF_VHOST):
            yield "fluxmq_publishers_slowed_total", {"limit": owner}, self.slowed[owner]

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return self._publishers.handlers()

    @property
    def nodes(self) -> NodeConnections:
        """The exchange of counts with other nodes."""
        return self._publishers.nodes


def rates_of(limits: Mapping[str, int]) -> _Rates:
    """Return the rates among a vhost's limits; negative ones are none."""
    return _Rates(
        max(limits.get(MAX_PUBLISH_RATE, 0), 0), max(limits.get(MAX_PUBLISH_BYTE_RATE, 0), 0)
    )
