"""Reason codes, who may carry them, and the return codes of 3.1.1."""

import pytest

from fluxmq.protocols.mqtt.packet_types import PacketType, Sender
from fluxmq.protocols.mqtt.reasons import (
    ProtocolError,
    Reason,
    allowed,
    connack_return_code,
    malformed,
    protocol_error,
    reason_of_return_code,
)


def test_errors_say_reason_and_text() -> None:
    error = malformed("too short")
    assert (error.reason, error.text, error.version) == (0x81, "too short", 0)
    assert str(error) == "0x81 too short"
    assert protocol_error("twice").reason == 0x82
    assert ProtocolError(Reason.SERVER_BUSY, "later", 5).version == 5


@pytest.mark.parametrize("code", range(6))
def test_return_codes_go_there_and_back(code: int) -> None:
    assert connack_return_code(reason_of_return_code(code)) == code


@pytest.mark.parametrize("code", [6, 0x80, 255])
def test_reserved_return_codes_are_refused(code: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        reason_of_return_code(code)
    assert caught.value.reason == Reason.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "reason", [Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR, Reason.TOPIC_NAME_INVALID]
)
def test_no_return_code_applies_to_broken_packets(reason: Reason) -> None:
    """[MQTT-3.2.2-6] of 3.1.1: close without a CONNACK."""
    assert connack_return_code(reason) is None


@pytest.mark.parametrize(
    ("kind", "sender", "reason", "expected"),
    [
        (PacketType.CONNACK, Sender.SERVER, Reason.BANNED, True),
        (PacketType.CONNACK, Sender.SERVER, Reason.SERVER_SHUTTING_DOWN, False),
        (PacketType.PUBACK, Sender.SERVER, Reason.NO_MATCHING_SUBSCRIBERS, True),
        (PacketType.PUBACK, Sender.SERVER, Reason.PROTOCOL_ERROR, False),
        (PacketType.PUBREL, Sender.CLIENT, Reason.PACKET_IDENTIFIER_NOT_FOUND, True),
        (PacketType.SUBACK, Sender.SERVER, Reason.GRANTED_QOS_2, True),
        (PacketType.UNSUBACK, Sender.SERVER, Reason.NO_SUBSCRIPTION_EXISTED, True),
        (PacketType.DISCONNECT, Sender.CLIENT, Reason.DISCONNECT_WITH_WILL, True),
        (PacketType.DISCONNECT, Sender.SERVER, Reason.DISCONNECT_WITH_WILL, False),
        (PacketType.DISCONNECT, Sender.CLIENT, Reason.SESSION_TAKEN_OVER, False),
        (PacketType.DISCONNECT, Sender.SERVER, Reason.SESSION_TAKEN_OVER, True),
        (PacketType.AUTH, Sender.CLIENT, Reason.RE_AUTHENTICATE, True),
        (PacketType.AUTH, Sender.SERVER, Reason.RE_AUTHENTICATE, False),
        (PacketType.PINGREQ, Sender.CLIENT, Reason.SUCCESS, False),
    ],
)
def test_who_may_carry_what(
    kind: PacketType, sender: Sender, reason: Reason, expected: bool
) -> None:
    assert (reason in allowed(kind, sender)) is expected
