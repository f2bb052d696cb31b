"""Acknowledgements from clients: of messages sent to them, and the second half of their own QoS 2.

Plain packets come as ranges of identifiers, which are answered by as many packets at once; a
packet with a reason comes alone.

Source: MQTT 5.0 sections 3.4 to 3.7 and 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable

from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.codec import encode
from fluxmq.protocols.mqtt.delivery import SessionDelivery
from fluxmq.protocols.mqtt.identifiers import IdRange, append_range
from fluxmq.protocols.mqtt.packets import Pubcomp, Pubrel
from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason
from fluxmq.protocols.mqtt.window import PUBACK, PUBCOMP, PUBREC
from fluxmq.sessions.mqtt.session import MqttClient

_PUBREC = 0x50
_PUBREL = 0x62
_PUBCOMP = 0x70


def on_run(client: MqttClient, first: int, ranges: Iterable[IdRange]) -> None:
    """Handle plain PUBREC, PUBREL or PUBCOMP packets, by ``first``, their first byte. Raises
    ProtocolError for one that does not fit its message's state; those before it count."""
    if first == _PUBREC:
        for packet_id, count in ranges:
            on_pubrecs(client, packet_id, count)
    elif first == _PUBREL:
        for packet_id, count in ranges:
            on_pubrels(client, packet_id, count)
    else:
        for packet_id, count in ranges:
            on_pubcomps(client, packet_id, count)


def on_acknowledgement(client: MqttClient, packet_id: int, reason: int, qos: int) -> None:
    """Handle PUBACK or PUBREC for a message we sent. Raises ProtocolError for one of the other
    QoS."""
    if reason < Reason.UNSPECIFIED_ERROR and qos == 2:
        on_pubrecs(client, packet_id, 1)
        return
    delivery = _delivery(client)
    if reason >= Reason.UNSPECIFIED_ERROR:
        known = delivery.refuse(packet_id, qos)
    else:
        known = delivery.acknowledge(packet_id, 1)
        delivery.report_front()
        delivery.pump()
    if not known:
        check_place(delivery, packet_id, PUBACK if qos == 1 else PUBREC)


def on_pubrecs(client: MqttClient, packet_id: int, count: int) -> None:
    """Release ``count`` QoS 2 messages that the client has received, from ``packet_id`` on. Raises
    ProtocolError for one of QoS 1."""
    delivery = _delivery(client)
    while count:
        known = delivery.receive_front(packet_id, count)
        if known:
            _release(client, packet_id, known)
        else:
            known = 1
            if delivery.receive(packet_id):
                _release(client, packet_id, 1)
            else:
                check_place(delivery, packet_id, PUBREC)
                _answer_unknown(client.connection, _PUBREL, packet_id, 1)
        packet_id += known
        count -= known


def on_pubrels(client: MqttClient, packet_id: int, count: int) -> None:
    """Complete ``count`` QoS 2 messages of the client, from ``packet_id`` on."""
    session = client.session
    assert session is not None
    journal = session.delivery.durable
    at, end = packet_id, packet_id + count
    for first, known in session.received.remove(packet_id, count) if session.received else ():
        _answer_unknown(client.connection, _PUBCOMP, at, first - at)
        if journal is None:
            _answer(client.connection, _PUBCOMP, first, known)
        else:
            journal.completed(first, known, _Answers(client.connection, _PUBCOMP))
        at = first + known
    _answer_unknown(client.connection, _PUBCOMP, at, end - at)


def on_pubcomps(client: MqttClient, packet_id: int, count: int) -> None:
    """Complete ``count`` QoS 2 messages we sent, from ``packet_id`` on. Raises ProtocolError before
    the PUBREC of one."""
    delivery = _delivery(client)
    if delivery.complete(packet_id, count) < count:
        for each in range(packet_id, packet_id + count):
            check_place(delivery, each, PUBCOMP)
    delivery.pump()


class _Answers:
    """Sends plain answers of one type, when it is called with a range of identifiers."""

    __slots__ = ("connection", "kind")

    def __init__(self, connection: Connection, kind: int) -> None:
        self.connection = connection
        self.kind = kind

    def __call__(self, packet_id: int, count: int) -> None:
        _answer(self.connection, self.kind, packet_id, count)


def _release(client: MqttClient, packet_id: int, count: int) -> None:
    """Send PUBREL for messages whose PUBREC has come, once that is on disk if the session is."""
    journal = _delivery(client).durable
    if journal is None:
        _answer(client.connection, _PUBREL, packet_id, count)
    else:
        journal.released(packet_id, count, _Answers(client.connection, _PUBREL))


def _answer(connection: Connection, kind: int, packet_id: int, count: int) -> None:
    append_range(connection.buffer(), kind, packet_id, count)
    connection.size += 4 * count


def _answer_unknown(connection: Connection, kind: int, packet_id: int, count: int) -> None:
    """Answer identifiers that are not in use, which MQTT 3.1.1 cannot say."""
    if connection.version == 4:
        _answer(connection, kind, packet_id, count)
        return
    packet = Pubrel if kind == _PUBREL else Pubcomp
    for each in range(packet_id, packet_id + count):
        connection.append(encode(packet(each, Reason.PACKET_IDENTIFIER_NOT_FOUND), 5))


def _delivery(client: MqttClient) -> SessionDelivery:
    session = client.session
    assert session is not None
    return session.delivery


def check_place(delivery: SessionDelivery, packet_id: int, kind: int) -> None:
    """Raise ProtocolError for an acknowledgement that does not fit its message's state [MQTT-4.3.2,
    MQTT-4.3.3]."""
    if delivery.is_out_of_place(packet_id, kind):
        raise ProtocolError(Reason.PROTOCOL_ERROR, "acknowledgement of the wrong type")
