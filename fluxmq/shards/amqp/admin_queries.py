"""Answers ``fluxmqctl`` for a shard: queues, connections, channels and consumers, row by row.

Columns have the names of ``rabbitmqctl``; an unknown requested column is left out of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from msgspec.structs import replace

from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.wiring import Queues
from fluxmq.ipc.messages import ERROR_FAILED, ERROR_NOT_FOUND, Failure
from fluxmq.ipc.row_messages import (
    CHANNELS,
    CONNECTIONS,
    CONSUMERS,
    MQTT_LISTS,
    POSITION,
    AffectedCount,
    CloseConnections,
    CloseSession,
    QueueExtent,
    QueueRequest,
    RowsPage,
    RowsRequest,
    TableRow,
    page_of,
    plain,
)
from fluxmq.net.secure_websocket import SecureWebSocketStream
from fluxmq.net.socket_figures import figures_of_socket
from fluxmq.net.tls import TlsStream
from fluxmq.queues.migration import is_arriving
from fluxmq.queues.states import QueueState
from fluxmq.routing.topology.effective import policy_of
from fluxmq.routing.topology.names import internal_name, public_name
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.sessions.amqp091.channel import ChannelState
from fluxmq.sessions.amqp091.channel_methods import ChannelMethods
from fluxmq.sessions.amqp091.client import AmqpClient, AmqpStage
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.amqp091.consume_request import SINGLE_ACTIVE
from fluxmq.sessions.amqp091.handler import AmqpSession
from fluxmq.sessions.amqp10.client import Amqp10Client
from fluxmq.sessions.amqp10.handler import Amqp10Connection
from fluxmq.sessions.amqp10.session import Amqp10Session
from fluxmq.sessions.mqtt.session import MqttClient
from fluxmq.shards.amqp.broker import AmqpBroker
from fluxmq.shards.mqtt_queries import MqttQueries

MQTT_PROTOCOLS = {4: "MQTT 3.1.1", 5: "MQTT 5.0"}
QUEUE_TYPES = {0: "classic", 1: "quorum", 2: "stream", 3: "classic"}


class AdminQueries:
    """Implements `fluxmq.ipc.row_messages.ShardQueries` for one shard."""

    def __init__(
        self,
        broker: AmqpBroker,
        queues: Queues,
        migration: Callable[[str], str],
        end_session: Callable[[str, Callable[[int], None]], None],
        mqtt: MqttQueries,
    ) -> None:
        """`end_session` ends an MQTT session and calls back with the count once that is on disk."""
        self.mqtt = mqtt
        self._migration = migration
        self._end_session = end_session
        self._broker = broker
        self.queues = queues

    def rows(self, wanted: RowsRequest, done: Callable[[RowsPage | Failure], None]) -> None:
        """Return rows with the requested columns."""
        begin = wanted.after
        found: Iterator[TableRow]
        if wanted.what == CONNECTIONS:
            # Those before the page have no rows made.
            found = (make() for make in islice(self._connections(), begin, None))
            begin = 0
        elif wanted.what == CHANNELS:
            found = self._channel_rows()
        elif wanted.what == CONSUMERS:
            found = self._consumers()
        elif wanted.what in MQTT_LISTS:
            found = self.mqtt.rows(wanted.what, [name for _, name in wanted.names])
        else:
            found = self._queue_rows(wanted.names)
        columns = wanted.columns
        cut = ({name: row[name] for name in columns if name in row} for row in found)
        page = page_of(cut, begin)
        if page.following >= 0:
            page = replace(page, following=page.following + wanted.after - begin)
        done(page)

    # Queues

    def _queue_rows(self, names: tuple[tuple[str, str], ...]) -> Iterator[TableRow]:
        if names:
            for vhost, name in names:
                internal = internal_name(vhost, name)
                group = self.queues.service.find(self.queues.names.info(internal).group)
                if group is not None and group.machine.queue(internal) is not None:
                    yield self._queue_row(group, internal)
            return
        for group in self.queues.service.all_groups():
            for state in list(group.machine.queues.values()):
                if not is_arriving(state):
                    yield self._queue_row(group, state.config.name)

    def _queue_row(self, group: ReplicationGroup, internal: str) -> TableRow:
        state = group.machine.queue(internal)
        assert state is not None
        vhost, name = public_name(internal)
        row = {"name": name, "vhost": vhost, **self.figures_of(group, state)}
        known = self._broker.topology.queue(vhost, name)
        if known is not None:
            row.update(self._declared_columns(known))
        return row

    def figures_of(self, group: ReplicationGroup, state: QueueState) -> TableRow:
        """Return the columns of a queue that its group knows."""
        ready, unsettled, consumers = group.dispatch.consumers.counts(state.id)
        memory = group is self.queues.service.ephemeral
        leader = f"shard-{self._broker.shard}"
        return {
            "type": QUEUE_TYPES[state.config.type],
            "messages": ready + unsettled,
            "messages_ready": ready,
            "messages_unacknowledged": unsettled,
            "messages_persistent": 0 if memory else ready + unsettled,
            "message_bytes": state.size,
            "consumers": consumers,
            "group": group.name,
            "leader": leader,
            "members": [leader],
            "online": [] if group.failed else [leader],
            "pid": f"<{group.name}.{state.id}>",
            "state": "stopped" if group.failed else "running",
            "migration": self._migration(state.name),
            POSITION: QueueExtent(state.identity, state.start, state.next_offset),
        }

    def _declared_columns(self, queue: QueueRecord) -> TableRow:
        policy = policy_of(self._broker.topology, queue)
        operator = policy_of(self._broker.topology, queue, operator=True)
        return {
            "type": queue.type,
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "exclusive": queue.exclusive,
            "owner_pid": queue.owner,
            "arguments": plain(queue.arguments),
            "policy": policy.name if policy is not None else "",
            "operator_policy": operator.name if operator is not None else "",
        }

    # Connections

    def _connections(self) -> Iterator[Callable[[], TableRow]]:
        """Yield the makers of rows."""
        for connection in list(self._broker.reactor.connections.values()):
            session = connection.identity
            if isinstance(session, AmqpSession):
                client = session.client
                # A closed connection may linger until its last bytes are read.
                if client.info.counted and client.stage is not AmqpStage.CLOSED:
                    yield partial(_connection_row, session.client, len(session.channels))
            elif isinstance(session, Amqp10Connection):
                if session.client.info.counted and session.client.running:
                    yield partial(_connection_row, session.client, len(session.sessions))
            elif isinstance(session, MqttClient) and connection.open:
                yield partial(_mqtt_row, session)

    def _channel_rows(self) -> Iterator[TableRow]:
        for methods in self._channels():
            yield _channel_row(methods)
        for session in self._sessions():
            yield _session_row(session)

    def _sessions(self) -> Iterator[Amqp10Session]:
        for connection in list(self._broker.handler.amqp10.clients.values()):
            yield from connection.sessions.values()

    def _channels(self) -> Iterator[ChannelMethods]:
        for session in list(self._broker.handler.clients.values()):
            yield from session.channels.values()

    def _consumers(self) -> Iterator[TableRow]:
        for methods in self._channels():
            channel = methods.channel
            for tag, consumer in methods.consumers.by_tag.items():
                member = f"{channel.client.info.owner}:{channel.number}:{tag}"
                active = self._active(consumer.queue, member)
                yield {
                    "queue_name": consumer.queue.name,
                    "vhost": consumer.queue.vhost,
                    "channel_pid": _channel_pid(channel.client.info, channel.number),
                    "consumer_tag": tag,
                    "ack_required": not consumer.automatic,
                    "exclusive": consumer.exclusive,
                    "prefetch_count": consumer.prefetch,
                    "priority": consumer.priority,
                    "active": active,
                    "activity_status": self._activity(consumer.queue, active),
                    "arguments": plain(consumer.arguments or {}),
                }
        for session in self._sessions():
            for link in session.consumers():
                active = self._active(link.queue, link.member)
                yield {
                    "queue_name": link.queue.name,
                    "vhost": link.queue.vhost,
                    "channel_pid": _channel_pid(session.client.info, session.channel),
                    "consumer_tag": link.name,
                    "ack_required": not link.settles,
                    "exclusive": False,
                    "prefetch_count": link.credit.left,
                    "priority": link.priority,
                    "active": active,
                    "activity_status": self._activity(link.queue, active),
                    "arguments": {},
                }

    def _active(self, queue: QueueRecord, member: str) -> bool | None:
        """Return whether a consumer is active; None if another shard has the queue and decides."""
        if not _is_single_active(queue):
            return True
        internal = queue.internal_name
        names = self.queues.names
        group = self.queues.service.find(names.group_of(internal, queue.group))
        state = group.machine.queue(internal) if group is not None else None
        if group is None or state is None:
            return None
        found = group.dispatch.consumers.consumers_of(state.id)
        first = next((each for each in found if each.active and each.counts), None)
        return first is not None and first.member == member

    def _activity(self, queue: QueueRecord, active: bool | None) -> str | None:
        """Return a consumer's activity status as RabbitMQ names it."""
        if not _is_single_active(queue):
            return "up"
        return {True: "single_active", False: "waiting", None: None}[active]

    def close_connections(
        self, wanted: CloseConnections, done: Callable[[AffectedCount | Failure], None]
    ) -> None:
        """Close AMQP connections by pid, by vhost, or all."""
        count = 0
        for client in list(self._broker.handler.clients):
            meant = wanted.pid in (None, client.info.owner)
            meant = meant and wanted.vhost in (None, client.info.vhost)
            if meant and client.stage is AmqpStage.RUNNING:
                count += 1
                client.disconnect(wanted.reason)
        for other in list(self._broker.handler.amqp10.clients):
            meant = wanted.pid in (None, other.info.owner)
            meant = meant and wanted.vhost in (None, other.info.vhost)
            if meant and other.running:
                count += 1
                other.disconnect(wanted.reason)
        self._broker.wake()
        done(AffectedCount(count))

    def close_session(
        self, wanted: CloseSession, done: Callable[[AffectedCount | Failure], None]
    ) -> None:
        """End the session of an MQTT client id, connected or not, if it is here."""
        self._end_session(wanted.client_id, lambda count: done(AffectedCount(count)))

    # Orders about queues

    def purge_queue(
        self, request: QueueRequest, done: Callable[[AffectedCount | Failure], None]
    ) -> None:
        """Purge a queue, wherever it is."""
        queue = self._broker.topology.queue(request.vhost, request.name)
        if queue is None:
            done(_unknown(request))
        else:
            self._broker.purge(queue, _counting(done))

    def delete_queue(
        self, request: QueueRequest, done: Callable[[AffectedCount | Failure], None]
    ) -> None:
        """Delete a queue, wherever it is."""
        queue = self._broker.topology.queue(request.vhost, request.name)
        if queue is None:
            done(_unknown(request))
            return
        try:
            self._broker.topology.check_delete_queue(request.vhost, request.name)
        except Refusal as refusal:
            done(Failure(ERROR_FAILED, refusal.text))
            return
        self._broker.delete(queue, request.if_unused, request.if_empty, _counting(done))


def _counting(done: Callable[[AffectedCount | Failure], None]) -> Callable[[int | Refusal], None]:
    def answered(answer: int | Refusal) -> None:
        if isinstance(answer, Refusal):
            done(Failure(ERROR_FAILED, answer.text))
        else:
            done(AffectedCount(answer))

    return answered


def _unknown(request: QueueRequest) -> Failure:
    return Failure(ERROR_NOT_FOUND, f"no queue '{request.name}' in vhost '{request.vhost}'")


def _is_single_active(queue: QueueRecord) -> bool:
    return queue.arguments.get(SINGLE_ACTIVE) is True


def _channel_pid(info: ConnectionInfo, number: int) -> str:
    return f"<{info.owner}.{number}>"


def _connection_row(client: AmqpClient | Amqp10Client, channels: int) -> TableRow:
    info, connection = client.info, client.connection
    figures = figures_of_socket(connection.fd)
    host, _, port = info.local.rpartition(":")
    peer_host, _, peer_port = info.peer.rpartition(":")
    return {
        "pid": info.owner,
        "name": info.name,
        "host": host.strip("[]"),
        "port": int(port),
        "peer_host": peer_host.strip("[]"),
        "peer_port": int(peer_port),
        "ssl": connection.stream is not None,
        "peer_cert_subject": info.certificate_name,
        "state": state_of(client),
        "channels": channels,
        "protocol": info.protocol,
        "auth_mechanism": info.mechanism,
        "user": info.user,
        "vhost": info.vhost,
        "timeout": info.heartbeat,
        "frame_max": connection.frame_max,
        "channel_max": info.channel_max,
        "client_properties": plain(info.properties),
        "send_pend": connection.size,
        "recv_oct": figures.received,
        "send_oct": figures.sent,
        "connected_at": info.connected_at,
    }


def state_of(client: AmqpClient | Amqp10Client) -> str:
    """Return a connection's state in RabbitMQ's words: one of ``AMQP_STATES``."""
    if isinstance(client, Amqp10Client):
        return client.state
    if client.stage is not AmqpStage.RUNNING:
        return "closing" if client.stage in (AmqpStage.CLOSING, AmqpStage.CLOSED) else "starting"
    if client.blocked:
        return "blocked"
    return "flow" if client.connection.paused else "running"


def _mqtt_row(client: MqttClient) -> TableRow:
    peer_host, _, peer_port = client.peer.rpartition(":")
    figures = figures_of_socket(client.connection.fd)
    session = client.session
    return {
        "pid": session.client_id if session is not None else "",
        "name": session.client_id if session is not None else client.peer,
        "host": figures.host,
        "port": figures.port,
        "peer_host": peer_host.strip("[]"),
        "peer_port": int(peer_port or 0),
        "ssl": isinstance(client.connection.stream, (TlsStream, SecureWebSocketStream)),
        "peer_cert_subject": client.certificate_name,
        "state": "flow" if client.connection.paused else "running",
        "channels": 0,
        "protocol": MQTT_PROTOCOLS.get(client.connection.version, "MQTT"),
        "user": client.username,
        "vhost": "/",
        "timeout": client.keep_alive,
        "client_properties": {"client_id": session.client_id} if session is not None else {},
        "send_pend": client.connection.size,
        "recv_oct": figures.received,
        "send_oct": figures.sent,
        "connected_at": client.connected_at,
    }


def _session_row(session: Amqp10Session) -> TableRow:
    info = session.client.info
    return {
        "pid": _channel_pid(info, session.channel),
        "connection": info.owner,
        "name": f"{info.name} ({session.channel})",
        "number": session.channel,
        "user": info.user,
        "vhost": info.vhost,
        "transactional": bool(session.outcomes.transactions),
        "confirm": True,
        "consumer_count": len(session.consumers()),
        "messages_unacknowledged": session.unsettled,
        "messages_uncommitted": 0,
        "acks_uncommitted": 0,
        "messages_unconfirmed": session.outcomes.unanswered,
        "prefetch_count": 0,
        "global_prefetch_count": 0,
        "state": "running",
    }


def _channel_row(methods: ChannelMethods) -> TableRow:
    channel, info = methods.channel, methods.client.info
    window, transaction = methods.publisher.window, methods.publisher.transaction
    restored = len(transaction.restored) if transaction is not None else 0
    settled = len(transaction.settled) if transaction is not None else 0
    publishes = transaction.publishes if transaction is not None else []
    row: dict[str, Any] = {
        "pid": _channel_pid(info, channel.number),
        "connection": info.owner,
        "name": f"{info.name} ({channel.number})",
        "number": channel.number,
        "user": info.user,
        "vhost": info.vhost,
        "transactional": transaction is not None,
        "confirm": window is not None,
        "consumer_count": len(methods.consumers.by_tag),
        "messages_unacknowledged": channel.ledger.unsettled + restored,
        "messages_uncommitted": sum(run.count for _, run in publishes),
        "acks_uncommitted": settled,
        "messages_unconfirmed": window.unanswered if window is not None else 0,
        "prefetch_count": methods.consumers.prefetch,
        "global_prefetch_count": methods.consumers.shared_limit,
        "state": _channel_state(methods),
    }
    return row


def _channel_state(methods: ChannelMethods) -> str:
    """Return a channel's state in RabbitMQ's words."""
    if methods.channel.state is not ChannelState.OPEN:
        return "closing"
    return "flow" if methods.client.connection.paused else "running"
