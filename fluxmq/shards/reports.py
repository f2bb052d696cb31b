"""A shard's metrics by their declared names, and its numbers for ``fluxmqctl status``.

The hot path counts in plain integers, which are read here on request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fluxmq import logs
from fluxmq.engine.reports import QueueReports
from fluxmq.engine.wiring import Queues
from fluxmq.ipc.handoff import LISTENERS
from fluxmq.ipc.messages import ProcessNumbers
from fluxmq.metrics.instruments import Instruments
from fluxmq.metrics.registry import DROP_REASONS, Sample
from fluxmq.net.reactor import Reactor
from fluxmq.protocols.mqtt.packet_types import PacketType
from fluxmq.sessions.mqtt.session import Session
from fluxmq.shards.amqp.reports import AmqpReports, message_samples
from fluxmq.shards.broker import ShardBroker
from fluxmq.shards.intake import Intake
from fluxmq.shards.peers import Peers
from fluxmq.shards.steady import NodeClock
from fluxmq.storage.state_store import StateStore

CENSUS_STEP = 2000
"""Sessions counted per step: a scrape or timer takes a millisecond, however many there are."""


@dataclass(slots=True)
class SessionTotals:
    """Totals over all sessions."""

    connected: int = 0
    absent: int = 0
    inflight: int = 0
    pending: int = 0
    pending_bytes: int = 0
    wills: int = 0


class Census:
    """Counts sessions in steps; ``result`` is the last complete count."""

    def __init__(self, broker: ShardBroker, amqp: AmqpReports) -> None:
        self._broker = broker
        self._amqp = amqp
        self._left: list[Session] = []
        self._count = SessionTotals()
        self.result = SessionTotals()
        self._calm = False
        """Whether nothing has happened since the count began."""
        self._settled = -1
        """Number of sessions in the last count, if nothing has happened since it began; else -1."""

    def step(self, *, resting: bool = False) -> None:
        """Count a step; after the last session publish the result. Counts AMQP's connections
        likewise. ``resting``: nothing has happened since the last step, so that a whole count is
        true until sessions expire."""
        self._amqp.census.step()
        sessions = self._broker.sessions.by_id
        if not resting:
            self._settled = -1
        elif self._settled == len(sessions):
            return
        if not self._left:
            self._left = list(sessions.values())
            self._count = SessionTotals()
            self._calm = True
        self._calm = self._calm and resting
        count = self._count
        for session in self._left[-CENSUS_STEP:]:
            delivery = session.delivery
            away = session.client is None
            count.absent += away
            count.connected += not away
            count.inflight += delivery.inflight
            count.pending += delivery.pending_count
            count.pending_bytes += delivery.pending_bytes
            count.wills += away and session.will is not None
        del self._left[-CENSUS_STEP:]
        if not self._left:
            self.result = count
            self._settled = len(sessions) if self._calm else -1


class Reports:
    """Reads one shard's counts."""

    def __init__(
        self,
        reactor: Reactor,
        broker: ShardBroker,
        intake: Intake,
        peers: Peers,
        queues: Queues,
        store: StateStore,
        clock: NodeClock,
        amqp: AmqpReports,
    ) -> None:
        self._reactor = reactor
        self._broker = broker
        self._intake = intake
        self._peers = peers
        self._store = store
        self._clock = clock
        self._instruments = Instruments()
        self._queues = QueueReports(queues, self._instruments)
        self._amqp = amqp
        self.census = Census(broker, amqp)
        self.lag = self._instruments.histogram("fluxmq_loop_lag_seconds")
        self.collections = self._instruments.histogram("fluxmq_garbage_collection_seconds")
        self.lag_max = self._instruments.maximum("fluxmq_loop_lag_max_seconds")

    def status(self) -> ProcessNumbers:
        """Return the numbers of ``fluxmqctl status``."""
        tally = self._reactor.tally
        return ProcessNumbers(
            connections=sum(self._intake.open_now),
            sessions=len(self._broker.sessions.by_id),
            subscriptions=self._broker.subscriptions.count,
            retained=len(self._broker.retained.store),
            messages_received=tally.received0
            + tally.received1
            + tally.received2
            + tally.amqp_published,
            messages_sent=tally.sent0 + tally.sent1 + tally.sent2 + tally.amqp_delivered,
            users_revision=max(self._broker.authentication.revision, 0),
            state_failed=int(bool(self._store.failed)),
            state_full=int(self._store.full),
            **self._queues.numbers(),
        )

    def samples(self) -> Iterator[Sample]:
        """Yield every metric of this shard."""
        yield from self._instruments.samples()
        yield from self._connections()
        yield from self._messages()
        yield from self._sessions()
        yield from self._loop()
        yield from self._access()
        yield from self._kept()
        yield from self._time()
        yield from self._broker.alarms.samples()
        yield from self._broker.user_limits.samples()
        yield from self._broker.rates.samples()
        yield from self._peers.nodes.samples()
        yield from self._queues.samples()
        yield from message_samples(self._reactor.tally)
        yield from self._amqp.samples()

    def _time(self) -> Iterator[Sample]:
        ahead = self._clock.ahead
        yield "fluxmq_clock_ahead_seconds", {}, ahead / 1_000_000
        most = ahead + max(group.time.ahead for group in self._queues.groups())
        yield "fluxmq_group_time_ahead_seconds", {}, most / 1_000_000

    def _connections(self) -> Iterator[Sample]:
        for index, listener in enumerate(LISTENERS):
            labels = {"listener": listener}
            yield "fluxmq_connections", labels, self._intake.open_now[index]
            yield "fluxmq_connections_opened_total", labels, self._intake.opened[index]
        for reason, count in self._broker.counts.closed.items():
            yield "fluxmq_connections_closed_total", {"reason": reason}, count

    def _messages(self) -> Iterator[Sample]:
        tally = self._reactor.tally
        received = (tally.received0, tally.received1, tally.received2)
        received_bytes = (tally.received_bytes0, tally.received_bytes1, tally.received_bytes2)
        sent = (tally.sent0, tally.sent1, tally.sent2)
        sent_bytes = (tally.sent_bytes0, tally.sent_bytes1, tally.sent_bytes2)
        for qos in range(3):
            labels = {"qos": str(qos)}
            yield "fluxmq_messages_received_total", labels, received[qos]
            yield "fluxmq_message_bytes_received_total", labels, received_bytes[qos]
            yield "fluxmq_messages_sent_total", labels, sent[qos]
            yield "fluxmq_message_bytes_sent_total", labels, sent_bytes[qos]
        drops = dict.fromkeys(DROP_REASONS, 0)
        drops.update(self._broker.counts.drops.by_reason)
        drops["slow_subscriber"] += tally.dropped_slow
        drops["offline_queue_full"] += tally.dropped_full
        drops["expired"] += tally.dropped_expired
        drops["too_large"] += tally.dropped_large
        drops["link_full"] += sum(link.dropped for link in self._peers.links.values())
        for reason, count in drops.items():
            yield "fluxmq_messages_dropped_total", {"reason": reason}, count
        for kind, count in self._broker.counts.packets.items():
            name = PacketType(kind).name.lower()
            yield "fluxmq_packets_received_total", {"type": name}, count
        store = self._broker.retained.store
        yield "fluxmq_retained_messages", {}, len(store)
        yield "fluxmq_retained_bytes", {}, store.byte_count

    def _sessions(self) -> Iterator[Sample]:
        broker = self._broker
        if len(broker.sessions.by_id) <= CENSUS_STEP:
            self.census.step()
        census = self.census.result
        yield "fluxmq_sessions", {"state": "connected"}, census.connected
        yield "fluxmq_sessions", {"state": "absent"}, census.absent
        yield "fluxmq_sessions_expired_total", {}, broker.sessions.expired
        yield "fluxmq_session_takeovers_total", {}, broker.takeover.count
        yield "fluxmq_wills_pending", {}, census.wills
        yield "fluxmq_wills_published_total", {}, broker.counts.wills
        yield "fluxmq_inflight_messages", {}, census.inflight
        yield "fluxmq_pending_messages", {}, census.pending
        yield "fluxmq_pending_bytes", {}, census.pending_bytes
        yield "fluxmq_subscriptions", {}, broker.subscriptions.count
        yield "fluxmq_shared_groups", {}, len(broker.subscriptions.groups)

    def _kept(self) -> Iterator[Sample]:
        store = self._store
        yield "fluxmq_state_failed", {}, int(bool(store.failed))
        yield "fluxmq_state_full", {}, int(store.full)
        yield "fluxmq_state_commits_total", {}, store.commits
        yield "fluxmq_state_rows_written_total", {}, store.written_rows
        yield "fluxmq_state_rows_waiting", {}, store.waiting_rows
        yield "fluxmq_state_commit_seconds", {}, store.last_seconds

    def _loop(self) -> Iterator[Sample]:
        tally = self._reactor.tally
        yield "fluxmq_route_cache_entries", {}, len(self._reactor.routes)
        yield "fluxmq_route_cache_hits_total", {}, tally.route_hits
        yield "fluxmq_route_cache_misses_total", {}, tally.route_misses
        yield "fluxmq_ticks_total", {}, tally.ticks
        for peer, link in self._peers.links.items():
            labels = {"peer": str(peer)}
            yield "fluxmq_link_up", labels, int(link.up)
            yield "fluxmq_link_bytes", labels, link.transport.used() + link.backlog_bytes
            yield "fluxmq_link_bytes_sent_total", labels, link.sent_bytes
            yield "fluxmq_link_full_total", labels, link.full_count

    def _access(self) -> Iterator[Sample]:
        broker = self._broker
        for code, count in broker.counts.errors.items():
            yield "fluxmq_protocol_errors_total", {"code": f"0x{code:02x}"}, count
        authentication = broker.authentication
        for (method, result), count in authentication.results.items():
            labels = {"method": method, "result": result}
            yield "fluxmq_authentications_total", labels, count
        for method, count in authentication.bans.refused.items():
            labels = {"method": method, "result": "banned"}
            yield "fluxmq_authentications_total", labels, count
        yield "fluxmq_authentications_pending", {}, authentication.pending
        for operation, count in broker.counts.drops.denied.items():
            yield "fluxmq_authorization_denied_total", {"operation": operation}, count
        yield "fluxmq_users_revision", {}, authentication.revision
        yield "fluxmq_log_lines_suppressed_total", {}, broker.counts.log.suppressed_total
        yield "fluxmq_log_lines_dropped_total", {}, logs.dropped_lines()
