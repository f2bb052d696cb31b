"""Dispatch of packets of MQTT connections: the one handler that all connections of a shard share.

The hot path handles plain PUBLISH runs, PUBACK runs and PINGREQ; runs of plain PUBREC, PUBREL and
PUBCOMP come here as they are, and everything else one packet at a time. Client errors are
``ProtocolError`` up to here, where they become a DISCONNECT (MQTT 5) or a closed connection.

Source: MQTT 3.1.1 and 5.0 chapter 3, sections 4.3 and 4.13.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fluxmq.auth.remote_rights import UndecidedError
from fluxmq.model.outcomes import REFUSED_MIN
from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.codec import decode
from fluxmq.protocols.mqtt.connect import version_of
from fluxmq.protocols.mqtt.identifiers import identifier_ranges
from fluxmq.protocols.mqtt.packet_types import PacketType
from fluxmq.protocols.mqtt.packets import (
    Auth,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.sessions.mqtt import acknowledgements, connect_flow, publishing, subscribing
from fluxmq.sessions.mqtt.outcomes import DISCONNECTS, Cause, reason_of
from fluxmq.sessions.mqtt.ports import MqttBrokerPort
from fluxmq.sessions.mqtt.session import (
    AUTHENTICATING,
    CLAIMING,
    CLOSED,
    CONNECTED,
    EXPIRY_NEVER,
    OPENED,
    MqttClient,
    Session,
)

_CONNECT = 0x10
_PUBREC = 0x50


class MqttConnectionHandler:
    """Connection events, called by the reactor and by the shard's timers."""

    def __init__(self, broker: MqttBrokerPort, explain: Callable[[int], str]) -> None:
        """``explain`` returns the text that goes with an outcome; empty for none."""
        self.broker = broker
        self._counts = broker.counts
        self._explain = explain

    def packet(self, connection: Connection, first: int, body: bytes) -> None:
        """Handle a packet off the hot path."""
        client: MqttClient = connection.identity
        try:
            self.dispatch(client, first, body)
        except ProtocolError as error:
            self.fail(client, error.reason, error.text)
        except UndecidedError as undecided:
            self._wait(client, undecided, partial(self._packet_again, client, first, body))

    def _packet_again(self, client: MqttClient, first: int, body: bytes) -> None:
        """Handle SUBSCRIBE once it is decided what is permitted; its answer resumes the
        connection."""
        try:
            limits = self.broker.limits.packets
            self.connected(client, decode(first, body, client.connection.version, limits=limits))
        except ProtocolError as error:
            self.fail(client, error.reason, error.text)
        except UndecidedError as undecided:
            self._wait(client, undecided, partial(self._packet_again, client, first, body))

    def _wait(
        self, client: MqttClient, undecided: UndecidedError, retry: Callable[[], None]
    ) -> None:
        """Have another backend decide. The connection is not read until ``retry`` resumes it, so
        that what follows stays behind what waits."""

        def decided() -> None:
            if client.stage is CONNECTED:
                retry()

        self.broker.connections.pause(client.connection)
        undecided.ask(decided)

    def dispatch(self, client: MqttClient, first: int, body: bytes) -> None:
        """Handle one packet. Raises ProtocolError."""
        self._counts.packet_received(first >> 4)
        stage = client.stage
        if stage is CLOSED:
            return
        if stage is OPENED:
            if first != _CONNECT:
                raise ProtocolError(Reason.PROTOCOL_ERROR, "the first packet is not CONNECT")
            connect_flow.on_connect(self.broker, client, body)
            return
        connected = stage is CONNECTED
        if first == _CONNECT:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "second CONNECT")
        packet = decode(first, body, client.connection.version, limits=self.broker.limits.packets)
        if isinstance(packet, Auth):
            connect_flow.on_auth(self.broker, client, packet, self.fail)
        elif connected:
            self.connected(client, packet)
        elif isinstance(packet, Disconnect):
            self.end(client, with_will=False, reason="client")
        else:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "only AUTH may follow CONNECT")

    def acknowledgements(
        self, connection: Connection, first: int, buffer: bytearray, start: int, count: int
    ) -> None:
        """Handle a run of plain PUBREC, PUBREL or PUBCOMP packets."""
        client: MqttClient = connection.identity
        self._counts.packet_received(first >> 4, count)
        if client.stage is not CONNECTED:
            return
        try:
            acknowledgements.on_run(client, first, identifier_ranges(buffer, start, count))
        except ProtocolError as error:
            self.fail(client, error.reason, error.text)

    def claimed(self, client: MqttClient, session: Session | None) -> None:
        """Continue after this shard became the owner of the client's id."""
        connect_flow.on_claimed(self.broker, client, session)

    def acquire_refused(self, client: MqttClient, *, unavailable: bool) -> None:
        """Refuse a client whose id belongs to another principal, whose session stays as it is, or,
        ``unavailable``, with an id that this node cannot own now."""
        connect = client.connect
        if client.stage is CLAIMING and connect is not None:
            text = "the client id belongs to another user"
            reason = Reason.CLIENT_IDENTIFIER_NOT_VALID
            if unavailable:
                text = "the cluster cannot say now which node has the client's session"
                reason = Reason.SERVER_UNAVAILABLE
            connect_flow.refuse(self.broker, client, reason, text, connect.version)

    def connected(self, client: MqttClient, packet: Packet) -> None:
        """Handle a packet of a connected client. Raises ProtocolError."""
        match packet:
            case Puback():
                acknowledgements.on_acknowledgement(client, packet.packet_id, packet.reason, 1)
            case Pubrec():
                acknowledgements.on_acknowledgement(client, packet.packet_id, packet.reason, 2)
            case Pubrel():
                acknowledgements.on_pubrels(client, packet.packet_id, 1)
            case Pubcomp():
                acknowledgements.on_pubcomps(client, packet.packet_id, 1)
            case Subscribe():
                subscribing.on_subscribe(self.broker, client, packet)
            case Unsubscribe():
                subscribing.on_unsubscribe(self.broker, client, packet)
            case Disconnect():
                self._on_disconnect(client, packet)
            case _:
                raise ProtocolError(Reason.PROTOCOL_ERROR, "unexpected packet")

    def _on_disconnect(self, client: MqttClient, packet: Disconnect) -> None:
        """Handle DISCONNECT (MQTT 5.0 section 3.14)."""
        session = client.session
        assert session is not None
        expiry = packet.properties.session_expiry_interval
        if expiry is not None:
            if expiry and not session.expiry:
                raise ProtocolError(
                    Reason.PROTOCOL_ERROR, "session expiry cannot be set at DISCONNECT"
                )
            limit = self.broker.limits.max_expiry
            session.expiry = limit if expiry == EXPIRY_NEVER else min(expiry, limit)
        with_will = packet.reason != Reason.NORMAL_DISCONNECTION
        self.end(client, with_will=with_will, reason="client")

    def publish(self, connection: Connection, run: PublishRun, raw: bytes) -> bool:
        """Handle a run that is not plain; return True if the hot path should route it."""
        client: MqttClient = connection.identity
        try:
            return publishing.on_publish(self.broker, client, run, raw)
        except ProtocolError as error:
            self.fail(client, error.reason, error.text)
            return False
        except UndecidedError as undecided:
            run.detach()
            self._wait(client, undecided, partial(self._publish_again, connection, run, raw))
            return False

    def _publish_again(self, connection: Connection, run: PublishRun, raw: bytes) -> None:
        """Handle a kept run once it is decided whether the client may publish it."""
        client: MqttClient = connection.identity
        try:
            if publishing.on_publish(self.broker, client, run, raw):
                self.broker.reactor.accept(connection, run)
        except ProtocolError as error:
            self.fail(client, error.reason, error.text)
        except UndecidedError as undecided:
            self._wait(client, undecided, partial(self._publish_again, connection, run, raw))
        else:
            self.broker.connections.resume(connection)

    def refused(self, connection: Connection, answers: bytes, outcome: int) -> None:
        """Report the outcome of publishes that failed: ``answers`` are the acknowledgements they
        would have got.

        A client of 3.1.1 cannot be told; it is disconnected, and republishes unacknowledged
        messages.
        """
        client: MqttClient = connection.identity
        session = client.session
        if client.stage is not CONNECTED or session is None:
            return
        if connection.version == 4:
            if outcome < REFUSED_MIN:
                connection.append(answers)
                return
            reason = reason_of(outcome, PacketType.PUBACK)
            text = self._explain(outcome) or "a publish could not be stored"
            self._counts.client_error(client, reason, text)
            self._disconnect(client, reason, "publish_refused")
            return
        # Request Problem Information 0 forbids the text [MQTT-3.1.2-29].
        text = self._explain(outcome) if client.problem_information else ""
        for at in range(0, len(answers), 4):
            packet_id = int.from_bytes(answers[at + 2 : at + 4], "big")
            first = answers[at]
            reason = reason_of(outcome, PacketType(first >> 4))
            if text:
                kind = Pubrec if first == _PUBREC else Puback
                connect_flow.send_explained(connection, kind(packet_id, reason), text)
            else:
                connection.append(bytes((first, 3)) + answers[at + 2 : at + 4] + bytes((reason,)))
            received = session.received
            if first == _PUBREC and reason >= Reason.UNSPECIFIED_ERROR and received is not None:
                received.remove(packet_id, 1)

    def broken(self, connection: Connection, reason: int, packet: bytes | bytearray = b"") -> None:
        """Handle a protocol violation found by the hot path; ``packet`` is its beginning."""
        client: MqttClient = connection.identity
        version = version_of(packet) if client.stage is OPENED else 0
        if reason == Reason.PACKET_TOO_LARGE and version:
            text = "CONNECT is larger than broker.max_connect_size"
            connect_flow.refuse(self.broker, client, reason, text, version)
        else:
            self.fail(client, reason, "malformed or unacceptable packet")

    def bad_topic(self, connection: Connection, topic: bytes) -> None:
        """Handle an invalid topic found by the hot path: report what is wrong with it."""
        reason, text = int(Reason.TOPIC_NAME_INVALID), "the topic name is not accepted"
        try:
            publishing.check_topic(self.broker.limits, topic)
        except ProtocolError as error:
            reason, text = error.reason, error.text
        self.fail(connection.identity, reason, text)

    def fail(self, client: MqttClient, reason: int, text: str) -> None:
        """Close a connection for the client's fault."""
        if client.stage is CLOSED:
            return
        self._counts.client_error(client, reason, text)
        self._disconnect(client, reason, "protocol_error", text)

    def disconnect(self, client: MqttClient, cause: Cause) -> None:
        """Close for a cause that is not the client's fault or request."""
        self._disconnect(client, DISCONNECTS[cause], cause.value)

    def _disconnect(self, client: MqttClient, reason: int, cause: str, text: str = "") -> None:
        """Close from our side, telling an MQTT 5 client ``reason`` and, for people, ``text``."""
        connection = client.connection
        if client.stage is CONNECTED and connection.version == 5:
            connect_flow.send_explained(connection, Disconnect(reason), text)
            self.end(client, with_will=True, reason=cause, linger=True)
            return
        if client.stage in (AUTHENTICATING, CLAIMING):
            connect_flow.refuse(self.broker, client, reason, cause, 0)
            return
        self.end(client, with_will=True, reason=cause)

    def lost(self, connection: Connection) -> None:
        """Handle the loss of the network connection."""
        client: MqttClient = connection.identity
        self.end(client, with_will=True, reason="lost")

    def end(
        self, client: MqttClient, *, with_will: bool, reason: str, linger: bool = False
    ) -> None:
        """End a connection, and its session as its expiry says."""
        if client.stage is CLOSED:
            return
        session = client.session
        client.stage = CLOSED
        client.feeds = None
        client.connection.feeding = False
        self.broker.user_limits.leave(client)
        self.broker.events.mqtt_disconnected(client)
        self._counts.connection_closed(reason)
        if session is not None and session.client is client:
            self.leave(session, with_will)
        client.session = None
        self.broker.connections.close(client.connection, linger=linger)

    def leave(self, session: Session, with_will: bool) -> None:
        """Handle the end of the session's connection."""
        now = self.broker.now()
        session.delivery.detach()
        session.client = None
        former = will = session.will
        if not with_will:
            session.will = will = None
            self.broker.wills.changed(session, former)
        if session.expiry == 0:
            self.finish(session)
            return
        session.expires_at = now + session.expiry
        if will is not None:
            delay = min(will.delay, session.expiry)
            session.will_at = now + delay
            if delay == 0:
                self.publish_will(session)
        self.broker.subscriptions.hand_over(session, ended=False)
        session.delivery.trim()
        self.broker.sessions.schedule(session)

    def publish_will(self, session: Session) -> None:
        """Publish the will, which is due."""
        will = session.will
        session.will = None
        session.will_at = 0.0
        if will is not None:
            self.broker.wills.due(session, will)

    def finish(self, session: Session) -> None:
        """End the session: publish its will, drop its messages and subscriptions."""
        self.broker.subscriptions.hand_over(session, ended=True)
        self.broker.sessions.ended(session)
        self.publish_will(session)

    def due(self, session: Session) -> None:
        """Handle an expired timer of the session."""
        if session.client is not None:
            return
        now = self.broker.now()
        if session.expires_at and session.expires_at <= now:
            self.finish(session)
        elif session.will_at and session.will_at <= now:
            self.publish_will(session)
            self.broker.sessions.schedule(session)

    def expired(self, client: MqttClient) -> None:
        """Disconnect a client that was silent for too long."""
        if client.stage is CONNECTED:
            self._counts.client_error(client, Reason.KEEP_ALIVE_TIMEOUT, "keep-alive timeout")
            self._disconnect(client, Reason.KEEP_ALIVE_TIMEOUT, "keep_alive")
        elif client.stage is not CLOSED:
            self.end(client, with_will=False, reason="connect_timeout")

    def drained(self, connection: Connection) -> None:
        """Continue feeding the connection, whose output is written."""
        subscribing.feed(self.broker, connection.identity)
