"""Dispatch of packets of MQTT connections: the one handler that all connections of a shard share.

The hot path handles plain PUBLISH runs, PUBACK runs and PINGREQ; everything else comes here, one
packet at a time. Client errors are ``ProtocolError`` up to here, where they become a DISCONNECT
(MQTT 5) or a closed connection.

Source: MQTT 3.1.1 and 5.0 chapter 3, sections 4.3 and 4.13.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fluxmq.auth.logins import AmqpAuthResult
from fluxmq.model.outcomes import REFUSED_MIN
from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.codec import decode, encode
from fluxmq.protocols.mqtt.connect import version_of
from fluxmq.protocols.mqtt.delivery import SessionDelivery
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
from fluxmq.protocols.mqtt.window import PUBACK, PUBCOMP, PUBREC
from fluxmq.sessions.mqtt import connect_flow, publishing, subscribing
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
_PUBREL = 0x62
_PUBCOMP = 0x70


class MqttConnectionHandler:
    """Connection events, called by the reactor and by the shard's timers."""

    def __init__(self, broker: MqttBrokerPort, explain: Callable[[int], str]) -> None:
        """``explain`` returns the text that goes with an outcome; empty for none."""
        self.broker = broker
        self._explain = explain

    def packet(self, connection: Connection, first: int, body: bytes) -> None:
        """Handle a packet off the hot path."""
        client: MqttClient = connection.identity
        try:
            self.dispatch(client, first, body)
        except ProtocolError as error:
            self.fail(client, error.reason, error.text)

    def dispatch(self, client: MqttClient, first: int, body: bytes) -> None:
        """Handle one packet. Raises ProtocolError."""
        self.broker.count_packet(first >> 4)
        stage = client.stage
        if stage is CLOSED:
            return
        if stage is OPENED:
            if first != _CONNECT:
                raise ProtocolError(Reason.PROTOCOL_ERROR, "the first packet is not CONNECT")
            connect_flow.on_connect(self.broker, client, body)
            return
        connected = stage is CONNECTED
        if connected and len(body) == 2 and self.short_acknowledgement(client, first, body):
            return
        if first == _CONNECT:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "second CONNECT")
        packet = decode(first, body, client.connection.version, limits=self.broker.limits.packets)
        if isinstance(packet, Auth):
            self.on_auth(client, packet)
        elif connected:
            self.connected(client, packet)
        elif isinstance(packet, Disconnect):
            self.end(client, with_will=False, reason="client")
        else:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "only AUTH may follow CONNECT")

    def authenticated(self, client: MqttClient, result: AmqpAuthResult) -> None:
        """Continue after the client's credentials were checked."""
        connect_flow.on_authenticated(self.broker, client, result)

    def claimed(self, client: MqttClient, session: Session | None) -> None:
        """Continue after this shard became the owner of the client's id."""
        connect_flow.on_claimed(self.broker, client, session)

    def acquire_refused(self, client: MqttClient) -> None:
        """Refuse a client whose id belongs to another principal, whose session stays as it is."""
        connect = client.connect
        if client.stage is CLAIMING and connect is not None:
            text = "the client id belongs to another user"
            reason = Reason.CLIENT_IDENTIFIER_NOT_VALID
            connect_flow.refuse(self.broker, client, reason, text, connect.version)

    def connected(self, client: MqttClient, packet: Packet) -> None:
        """Handle a packet of a connected client. Raises ProtocolError."""
        match packet:
            case Puback():
                self.on_acknowledgement(client, packet.packet_id, packet.reason, 1)
            case Pubrec():
                self.on_acknowledgement(client, packet.packet_id, packet.reason, 2)
            case Pubrel():
                self.on_pubrel(client, packet.packet_id)
            case Pubcomp():
                self.on_pubcomp(client, packet.packet_id)
            case Subscribe():
                subscribing.on_subscribe(self.broker, client, packet)
            case Unsubscribe():
                subscribing.on_unsubscribe(self.broker, client, packet)
            case Disconnect():
                self.on_disconnect(client, packet)
            case _:
                raise ProtocolError(Reason.PROTOCOL_ERROR, "unexpected packet")

    def session_of(self, client: MqttClient) -> Session:
        """Return the session of a connected client."""
        session = client.session
        assert session is not None, "a connected client has a session"
        return session

    def delivery_of(self, client: MqttClient) -> SessionDelivery:
        """Return the delivery state of the client's session."""
        return self.session_of(client).delivery

    def short_acknowledgement(self, client: MqttClient, first: int, body: bytes) -> bool:
        """Handle PUBREC, PUBREL and PUBCOMP without reason, the usual form."""
        packet_id = (body[0] << 8) | body[1]
        if not packet_id:
            return False
        if first == _PUBREC:
            self.on_acknowledgement(client, packet_id, 0, 2)
        elif first == _PUBREL:
            self.on_pubrel(client, packet_id)
        elif first == _PUBCOMP:
            self.on_pubcomp(client, packet_id)
        else:
            return False
        return True

    def on_acknowledgement(self, client: MqttClient, packet_id: int, reason: int, qos: int) -> None:
        """Handle PUBACK or PUBREC for a message we sent. Raises ProtocolError for one of the other
        QoS."""
        delivery = self.delivery_of(client)
        if reason >= Reason.UNSPECIFIED_ERROR:
            known = delivery.refuse(packet_id, qos)
        elif qos == 1:
            known = delivery.acknowledge(packet_id, 1)
            delivery.report_front()
            delivery.pump()
        else:
            known = delivery.receive(packet_id)
        if not known:
            check_place(delivery, packet_id, PUBACK if qos == 1 else PUBREC)
        if reason >= Reason.UNSPECIFIED_ERROR or qos == 1:
            return
        if known or client.connection.version == 4:
            answer_id = b"\x62\x02" + packet_id.to_bytes(2, "big")
            if delivery.durable is None:
                client.connection.append(answer_id)
            else:
                delivery.durable.released(packet_id, partial(client.connection.append, answer_id))
        else:
            answer = Pubrel(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND)
            client.connection.append(encode(answer, 5))

    def on_pubcomp(self, client: MqttClient, packet_id: int) -> None:
        """Complete a QoS 2 message. Raises ProtocolError before its PUBREC."""
        delivery = self.delivery_of(client)
        if not delivery.complete(packet_id):
            check_place(delivery, packet_id, PUBCOMP)

    def on_pubrel(self, client: MqttClient, packet_id: int) -> None:
        """Release a QoS 2 message."""
        received = self.session_of(client).received
        known = received is not None and packet_id in received
        if known:
            assert received is not None
            received.discard(packet_id)
        if known or client.connection.version == 4:
            answer_id = b"\x70\x02" + packet_id.to_bytes(2, "big")
            journal = self.delivery_of(client).durable
            if journal is None or not known:
                client.connection.append(answer_id)
            else:
                journal.completed(packet_id, partial(client.connection.append, answer_id))
        else:
            answer = Pubcomp(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND)
            client.connection.append(encode(answer, 5))

    def on_auth(self, client: MqttClient, packet: Auth) -> None:
        """Handle AUTH: a step of the exchange begun by CONNECT, or a new one (MQTT 5.0 section
        4.12)."""
        data = packet.properties.authentication_data or b""
        method = packet.properties.authentication_method
        if method != connect_flow.SCRAM_METHOD:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "AUTH without the method of CONNECT")
        if client.stage is CONNECTED and packet.reason == Reason.RE_AUTHENTICATE:
            if not client.enhanced or client.scram is not None:
                raise ProtocolError(Reason.PROTOCOL_ERROR, "nothing to re-authenticate")
            client.reauthenticating = True
            connect_flow.begin_scram(self.broker, client, method, data)
            return
        if packet.reason != Reason.CONTINUE_AUTHENTICATION or client.scram is None:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "no authentication is going on")
        connect_flow.scram_step(self.broker, client, data)

    def on_disconnect(self, client: MqttClient, packet: Disconnect) -> None:
        """Handle DISCONNECT (MQTT 5.0 section 3.14)."""
        session = self.session_of(client)
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
            self.broker.count_error(client, reason, text)
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
            if first == _PUBREC and reason >= Reason.UNSPECIFIED_ERROR and session.received:
                session.received.discard(packet_id)

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
            publishing.check_topic(self.broker, topic)
        except ProtocolError as error:
            reason, text = error.reason, error.text
        self.fail(connection.identity, reason, text)

    def fail(self, client: MqttClient, reason: int, text: str) -> None:
        """Close a connection for the client's fault."""
        if client.stage is CLOSED:
            return
        self.broker.count_error(client, reason, text)
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
        self.broker.count_closed(client, reason)
        if session is not None and session.client is client:
            self.leave(session, with_will)
        client.session = None
        self.broker.close(client.connection, linger=linger)

    def leave(self, session: Session, with_will: bool) -> None:
        """Handle the end of the session's connection."""
        broker = self.broker
        now = broker.now()
        session.delivery.detach()
        session.client = None
        will = session.will
        if not with_will:
            session.will = will = None
        if session.expiry == 0:
            self.finish(session)
            return
        session.expires_at = now + session.expiry
        if will is not None:
            delay = min(will.delay, session.expiry)
            session.will_at = now + delay
            if delay == 0:
                self.publish_will(session)
        broker.hand_over(session, ended=False)
        session.delivery.trim()
        broker.schedule(session)

    def publish_will(self, session: Session) -> None:
        """Publish the will, which is due."""
        will = session.will
        session.will = None
        session.will_at = 0.0
        if will is not None:
            publishing.publish_will(self.broker, session, will)

    def finish(self, session: Session) -> None:
        """End the session: publish its will, drop its messages and subscriptions."""
        self.broker.hand_over(session, ended=True)
        self.broker.ended(session)
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
            self.broker.schedule(session)

    def expired(self, client: MqttClient) -> None:
        """Disconnect a client that was silent for too long."""
        if client.stage is CONNECTED:
            self.broker.count_error(client, Reason.KEEP_ALIVE_TIMEOUT, "keep-alive timeout")
            self._disconnect(client, Reason.KEEP_ALIVE_TIMEOUT, "keep_alive")
        elif client.stage is not CLOSED:
            self.end(client, with_will=False, reason="connect_timeout")

    def drained(self, connection: Connection) -> None:
        """Continue feeding the connection, whose output is written."""
        subscribing.feed(self.broker, connection.identity)


def check_place(delivery: SessionDelivery, packet_id: int, kind: int) -> None:
    """Raise ProtocolError for an acknowledgement that does not fit its message's state [MQTT-4.3.2,
    MQTT-4.3.3]."""
    if delivery.is_out_of_place(packet_id, kind):
        raise ProtocolError(Reason.PROTOCOL_ERROR, "acknowledgement of the wrong type")
