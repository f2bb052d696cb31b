"""Whole packets: bytes as the specification prints them, and every way to write them wrongly."""

import pytest

from fluxmq.protocols.mqtt.codec import Limits, decode, decode_length, encode
from fluxmq.protocols.mqtt.packet_types import RESERVED_FLAGS, SENT_BY, PacketType, Sender
from fluxmq.protocols.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from fluxmq.protocols.mqtt.properties import Properties
from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason

C, S = Sender.CLIENT, Sender.SERVER
MAY_BE_EMPTY = {PacketType.PINGREQ, PacketType.PINGRESP, PacketType.DISCONNECT}
METHOD = Properties(authentication_method="SCRAM-SHA-256", authentication_data=b"n,,")


def decode_whole(raw: bytes, version: int, sender: Sender) -> Packet:
    found = decode_length(raw, 1)
    assert found is not None
    length, start = found
    assert start + length == len(raw)
    return decode(raw[0], memoryview(raw)[start:], version, sender=sender)


@pytest.mark.parametrize(
    ("packet", "version", "sender", "raw"),
    [
        (Connect("a", version=4), 4, C, "100d 00044d51545404020000 000161"),
        (Connect("a"), 5, C, "100e 00044d51545405020000 00 000161"),
        (Connack(True), 4, S, "2002 0100"),
        (Connack(False, Reason.BANNED), 5, S, "2003 008a00"),
        (Publish(b"a/b", b"", qos=1, packet_id=10), 4, C, "3207 0003612f62 000a"),
        (Publish(b"a/b", b"x", retain=True), 4, S, "3106 0003612f62 78"),
        (Publish(b"a", b"x", 2, False, True, 258), 5, C, "3c07 000161 0102 00 78"),
        (
            Publish(b"", b"", properties=Properties(topic_alias=1)),
            5,
            C,
            "3006 0000 03 230001",
        ),
        (Puback(1), 4, C, "4002 0001"),
        (Puback(1), 5, S, "4002 0001"),
        (Puback(1, Reason.NO_MATCHING_SUBSCRIBERS), 5, S, "4003 0001 10"),
        (
            Pubrec(1, Reason.QUOTA_EXCEEDED, Properties(reason_string="x")),
            5,
            S,
            "5008 0001 97 04 1f000178",
        ),
        (Puback(1, 0, Properties(reason_string="x")), 5, S, "4008 0001 00 04 1f000178"),
        (Pubrel(65_535), 4, C, "6202 ffff"),
        (Pubrel(1, Reason.PACKET_IDENTIFIER_NOT_FOUND), 5, C, "6203 0001 92"),
        (Pubcomp(1), 5, S, "7002 0001"),
        (
            Subscribe(10, [Subscription(b"a/b", 1), Subscription(b"c/d", 2)]),
            4,
            C,
            "820e 000a 0003612f62 01 0003632f64 02",
        ),
        (
            Subscribe(10, [Subscription(b"a", 1, True, True, 2)]),
            5,
            C,
            "8207 000a 00 000161 2d",
        ),
        (Suback(10, [0, 2, 0x80]), 4, S, "9005 000a 000280"),
        (Suback(10, [Reason.NOT_AUTHORIZED]), 5, S, "9004 000a 00 87"),
        (Unsubscribe(10, [b"a/b", b"#"]), 4, C, "a20a 000a 0003612f62 000123"),
        (Unsuback(10), 4, S, "b002 000a"),
        (Unsuback(10, [0, 0x11]), 5, S, "b005 000a 00 0011"),
        (Pingreq(), 4, C, "c000"),
        (Pingresp(), 5, S, "d000"),
        (Disconnect(), 4, C, "e000"),
        (Disconnect(), 5, C, "e000"),
        (Disconnect(Reason.DISCONNECT_WITH_WILL), 5, C, "e001 04"),
        (
            Disconnect(0, Properties(session_expiry_interval=1)),
            5,
            C,
            "e007 00 05 1100000001",
        ),
        (Auth(), 5, S, "f000"),
        (
            Auth(Reason.CONTINUE_AUTHENTICATION, METHOD),
            5,
            C,
            "f018 18 16 15 000d 534352414d2d5348412d323536 16 0003 6e2c2c",
        ),
    ],
    ids=lambda each: type(each).__name__ if hasattr(each, "__slots__") else "",
)
def test_bytes(packet: Packet, version: int, sender: Sender, raw: str) -> None:
    data = bytes.fromhex(raw.replace(" ", ""))
    assert encode(packet, version) == data
    assert decode_whole(data, version, sender) == packet


def test_forms_that_are_longer_than_needed_are_read() -> None:
    assert decode(0x40, b"\x00\x01\x00", 5) == Puback(1)
    assert decode(0x40, b"\x00\x01\x00\x00", 5) == Puback(1)
    assert decode(0xE0, b"\x00\x00", 5) == Disconnect()


def reason_for(first: int, raw: str, version: int, sender: Sender = C) -> int:
    with pytest.raises(ProtocolError) as caught:
        decode(first, bytes.fromhex(raw.replace(" ", "")), version, sender=sender)
    return caught.value.reason


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("sender", Sender)
@pytest.mark.parametrize("kind", PacketType)
def test_only_what_the_sender_may_send(kind: PacketType, sender: Sender, version: int) -> None:
    flags = RESERVED_FLAGS.get(kind, 0)
    legal = kind in SENT_BY[sender]
    if version == 4 and (kind is PacketType.AUTH or (kind, sender) == (PacketType.DISCONNECT, S)):
        legal = False
    if not legal:
        expected = {0x81} if kind is PacketType.WILL or kind in SENT_BY[sender] else {0x82}
        assert reason_for(kind << 4 | flags, "", version, sender) in expected
    elif (kind, sender) != (PacketType.AUTH, S) and kind not in MAY_BE_EMPTY:
        assert reason_for(kind << 4 | flags, "", version, sender) in (0x81, 0x82)


@pytest.mark.parametrize("kind", RESERVED_FLAGS)
def test_reserved_flags(kind: PacketType) -> None:
    """[MQTT-2.1.3-1]"""
    sender = C if kind in SENT_BY[C] else S
    for flags in set(range(16)) - {RESERVED_FLAGS[kind]}:
        assert reason_for(kind << 4 | flags, "0001", 5, sender) == Reason.MALFORMED_PACKET


@pytest.mark.parametrize(
    ("first", "raw", "version", "reason"),
    [
        pytest.param(0x36, "000161 0001", 4, 0x81, id="[MQTT-3.3.1-4] QoS 3"),
        pytest.param(0x36, "000161 0001 00", 5, 0x81, id="[MQTT-3.3.1-4] QoS 3"),
        pytest.param(0x38, "000161", 4, 0x81, id="[MQTT-3.3.1-2] DUP with QoS 0"),
        pytest.param(0x32, "000161 0000", 4, 0x82, id="[MQTT-2.2.1-3] packet identifier 0"),
        pytest.param(0x32, "000161 00", 4, 0x81, id="cut in the packet identifier"),
        pytest.param(0x30, "0000", 4, 0x90, id="[MQTT-4.7.3-1] empty topic"),
        pytest.param(0x30, "0000 00", 5, 0x82, id="empty topic without alias"),
        pytest.param(0x30, "0000 03 230000", 5, 0x94, id="alias 0"),
        pytest.param(0x30, "00012b 00", 5, 0x90, id="[MQTT-3.3.2-2] wildcard"),
        pytest.param(0x30, "000100 00", 5, 0x81, id="[MQTT-1.5.4-2] U+0000 in topic"),
        pytest.param(0x30, "0002c080", 4, 0x81, id="[MQTT-1.5.3-1] of 3.1.1"),
        pytest.param(0x30, "000161", 5, 0x81, id="no property length"),
        pytest.param(0x30, "000161 02 0b01", 5, 0x82, id="[MQTT-3.3.4-6]"),
        pytest.param(0x30, "000161 05 1100000001", 5, 0x81, id="[2.2.2.2]"),
        pytest.param(0x40, "0000", 4, 0x82, id="PUBACK of identifier 0"),
        pytest.param(0x40, "000100", 4, 0x81, id="reason in 3.1.1"),
        pytest.param(0x40, "000181", 5, 0x82, id="[MQTT-3.4.2-1]"),
        pytest.param(0x50, "000101", 5, 0x82, id="[MQTT-3.5.2-1]"),
        pytest.param(0x62, "000110", 5, 0x82, id="[MQTT-3.6.2-1]"),
        pytest.param(0x70, "000110", 5, 0x82, id="[MQTT-3.7.2-1]"),
        pytest.param(0x40, "0001 00 00 00", 5, 0x81, id="bytes behind the properties"),
        pytest.param(0x82, "0000 000161 00", 4, 0x82, id="SUBSCRIBE with identifier 0"),
        pytest.param(0x82, "0001", 4, 0x82, id="[MQTT-3.8.3-3] of 3.1.1: no filter"),
        pytest.param(0x82, "0001 00", 5, 0x82, id="[MQTT-3.8.3-2] no filter"),
        pytest.param(0x82, "0001 000161", 4, 0x81, id="filter without options"),
        pytest.param(0x82, "0001 000161 03", 4, 0x82, id="[MQTT-3.8.3-4] of 3.1.1: QoS 3"),
        pytest.param(0x82, "0001 000161 04", 4, 0x81, id="[MQTT-3.8.3-4] of 3.1.1: reserved"),
        pytest.param(0x82, "0001 00 000161 03", 5, 0x82, id="QoS 3"),
        pytest.param(0x82, "0001 00 000161 30", 5, 0x82, id="retain handling 3"),
        pytest.param(0x82, "0001 00 000161 40", 5, 0x81, id="[MQTT-3.8.3-5]"),
        pytest.param(0x82, "0001 00 000161 80", 5, 0x81, id="[MQTT-3.8.3-5]"),
        pytest.param(0x82, "0001 00 000a 2473686172652f672f61 04", 5, 0x82, id="[MQTT-3.8.3-4]"),
        pytest.param(0x82, "0001 0000 00", 4, 0x8F, id="[MQTT-4.7.3-1] empty filter"),
        pytest.param(0x82, "0001 0005 6162", 4, 0x81, id="cut filter"),
        pytest.param(0x82, "0001 0002 2361 00", 4, 0x8F, id="[MQTT-4.7.1-1]"),
        pytest.param(0x82, "0001 0001ff 00", 4, 0x81, id="[MQTT-3.8.3-1]"),
        pytest.param(0x82, "0001 04 0b01 0b02 000161 00", 5, 0x82, id="two identifiers"),
        pytest.param(0xA2, "0001", 4, 0x82, id="[MQTT-3.10.3-2] of 3.1.1"),
        pytest.param(0xA2, "0001 00", 5, 0x82, id="[MQTT-3.10.3-2]"),
        pytest.param(0xA2, "0000 000161", 4, 0x82, id="UNSUBSCRIBE with identifier 0"),
        pytest.param(0xA2, "0001 0001ff", 4, 0x81, id="[MQTT-3.10.3-1]"),
        pytest.param(0xC0, "00", 4, 0x81, id="PINGREQ with a body"),
        pytest.param(0xE0, "00", 4, 0x81, id="DISCONNECT with a body in 3.1.1"),
        pytest.param(0xE0, "8e", 5, 0x82, id="[MQTT-3.14.2-1]"),
        pytest.param(0xE0, "00 05 1100000001 00", 5, 0x81, id="bytes behind the properties"),
        pytest.param(0xF0, "", 5, 0x82, id="success from a client"),
        pytest.param(0xF0, "00 00", 5, 0x82, id="[MQTT-3.15.2-1]"),
        pytest.param(0xF0, "18", 5, 0x81, id="no property length"),
        pytest.param(0xF0, "18 00", 5, 0x82, id="no authentication method"),
        pytest.param(0xF1, "18 00", 5, 0x81, id="[MQTT-3.15.1-1]"),
    ],
)
def test_bad_packets_of_clients(first: int, raw: str, version: int, reason: int) -> None:
    assert reason_for(first, raw, version) == reason


@pytest.mark.parametrize(
    ("first", "raw", "version", "reason"),
    [
        (0x20, "00 8b 00", 5, 0x82),
        (0x90, "0001", 4, 0x82),
        (0x90, "0001 03", 4, 0x82),
        (0x90, "0001 87", 4, 0x82),
        (0x90, "0001 00", 5, 0x82),
        (0x90, "0001 00 03", 5, 0x82),
        (0xB0, "0001 00", 4, 0x81),
        (0xB0, "0001 00", 5, 0x82),
        (0xB0, "0001 00 01", 5, 0x82),
        (0xD0, "00", 4, 0x81),
        (0xE0, "00 05 1100000001", 5, 0x82),
        (0xE0, "04", 5, 0x82),
        (0xF0, "19 04 15000161", 5, 0x82),
    ],
)
def test_bad_packets_of_servers(first: int, raw: str, version: int, reason: int) -> None:
    assert reason_for(first, raw, version, S) == reason


@pytest.mark.parametrize(
    "packet",
    [
        Publish(b"a", b"", qos=3, packet_id=1),
        Publish(b"a", b"", dup=True),
        Publish(b"a", b"", qos=1),
        Puback(0),
        Puback(65_536),
        Subscribe(1, []),
        Subscribe(1, [Subscription(b"a", qos=3)]),
        Subscribe(1, [Subscription(b"a", retain_handling=3)]),
        Unsubscribe(1, []),
        Auth(Reason.CONTINUE_AUTHENTICATION),
    ],
    ids=repr,
)
def test_what_makes_no_packet_is_not_written(packet: Packet) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any message: the caller is at fault
        encode(packet, 5)


def test_3_1_1_leaves_out_what_it_cannot_say() -> None:
    assert encode(Puback(1, Reason.QUOTA_EXCEEDED), 4) == b"\x40\x02\x00\x01"
    assert encode(Suback(1, [Reason.NOT_AUTHORIZED, 1]), 4) == b"\x90\x04\x00\x01\x80\x01"
    assert encode(Unsuback(1, [Reason.NO_SUBSCRIPTION_EXISTED]), 4) == b"\xb0\x02\x00\x01"
    with pytest.raises(ValueError, match="AUTH"):
        encode(Auth(), 4)


def test_limits_of_one_packet() -> None:
    limits = Limits(max_user_properties=1, max_topic_bytes=3, max_topic_levels=2, max_filters=2)

    def reason_of(packet: Packet, version: int = 5) -> int | None:
        raw = encode(packet, version)
        try:
            decode(raw[0], raw[2:], version, limits=limits)
        except ProtocolError as error:
            return error.reason
        return None

    assert reason_of(Publish(b"a/b", b"")) is None
    assert reason_of(Publish(b"abcd", b"")) == Reason.TOPIC_NAME_INVALID
    assert reason_of(Publish(b"//", b""), 4) == Reason.TOPIC_NAME_INVALID
    two = Properties(user_properties=[("a", "b")] * 2)
    assert reason_of(Publish(b"a", b"", properties=two)) == Reason.QUOTA_EXCEEDED
    assert reason_of(Unsubscribe(1, [b"long/filter/here"] * 2)) is None
    assert reason_of(Unsubscribe(1, [b"a"] * 3)) == Reason.QUOTA_EXCEEDED
    assert reason_of(Subscribe(1, [Subscription(b"a")] * 3), 4) == Reason.QUOTA_EXCEEDED
