"""Acknowledgements from clients: of messages sent to them, and the second half of their own QoS 2.

Source: MQTT 5.0 sections 3.4 to 3.7 and 4.3.
"""

from __future__ import annotations

from functools import partial

from fluxmq.protocols.mqtt.codec import encode
from fluxmq.protocols.mqtt.delivery import SessionDelivery
from fluxmq.protocols.mqtt.packets import Pubcomp, Pubrel
from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason
from fluxmq.protocols.mqtt.window import PUBACK, PUBCOMP, PUBREC
from fluxmq.sessions.mqtt.session import MqttClient

_PUBREC = 0x50
_PUBREL = 0x62
_PUBCOMP = 0x70


def on_short(client: MqttClient, first: int, body: bytes) -> bool:
    """Handle PUBREC, PUBREL and PUBCOMP without reason, the usual form; return False for others."""
    packet_id = (body[0] << 8) | body[1]
    if not packet_id:
        return False
    if first == _PUBREC:
        on_acknowledgement(client, packet_id, 0, 2)
    elif first == _PUBREL:
        on_pubrel(client, packet_id)
    elif first == _PUBCOMP:
        on_pubcomp(client, packet_id)
    else:
        return False
    return True


def on_acknowledgement(client: MqttClient, packet_id: int, reason: int, qos: int) -> None:
    """Handle PUBACK or PUBREC for a message we sent. Raises ProtocolError for one of the other
    QoS."""
    delivery = _delivery(client)
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


def on_pubcomp(client: MqttClient, packet_id: int) -> None:
    """Complete a QoS 2 message. Raises ProtocolError before its PUBREC."""
    delivery = _delivery(client)
    if not delivery.complete(packet_id):
        check_place(delivery, packet_id, PUBCOMP)


def on_pubrel(client: MqttClient, packet_id: int) -> None:
    """Release a QoS 2 message."""
    session = client.session
    assert session is not None
    received = session.received
    known = received is not None and packet_id in received
    if known:
        assert received is not None
        received.discard(packet_id)
    if known or client.connection.version == 4:
        answer_id = b"\x70\x02" + packet_id.to_bytes(2, "big")
        journal = session.delivery.durable
        if journal is None or not known:
            client.connection.append(answer_id)
        else:
            journal.completed(packet_id, partial(client.connection.append, answer_id))
    else:
        answer = Pubcomp(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND)
        client.connection.append(encode(answer, 5))


def _delivery(client: MqttClient) -> SessionDelivery:
    session = client.session
    assert session is not None
    return session.delivery


def check_place(delivery: SessionDelivery, packet_id: int, kind: int) -> None:
    """Raise ProtocolError for an acknowledgement that does not fit its message's state [MQTT-4.3.2,
    MQTT-4.3.3]."""
    if delivery.is_out_of_place(packet_id, kind):
        raise ProtocolError(Reason.PROTOCOL_ERROR, "acknowledgement of the wrong type")
