"""Entry points of the MQTT parsers for fuzzing: bytes in, an outcome out, errors are findings.

The first byte of an input chooses version and sender where these matter. A packet that is read must
also be written and read again, to the same values.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from fluxmq.protocols.mqtt.codec import Limits, decode, decode_length, encode
from fluxmq.protocols.mqtt.packet_types import PacketType, Sender
from fluxmq.protocols.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Publish,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    WillPacket,
)
from fluxmq.protocols.mqtt.properties import (
    Properties,
    decode_properties,
    parse_publish_properties,
    properties_with,
)
from fluxmq.protocols.mqtt.reasons import ProtocolError
from fluxmq.protocols.mqtt.topics import validate_filter, validate_topic
from fluxmq.protocols.mqtt.wire import Reader

LIMITS: Final = Limits(max_user_properties=8, max_topic_bytes=64, max_topic_levels=8, max_filters=8)
_SENDERS: Final = (Sender.CLIENT, Sender.SERVER)


def fuzz_packet(data: bytes) -> Hashable:
    """Choice byte, first byte of the packet, body."""
    if len(data) < 2:
        return "short"
    version = 4 + (data[0] & 1)
    sender = _SENDERS[data[0] >> 1 & 1]
    try:
        packet = decode(data[1], data[2:], version, sender=sender, limits=LIMITS)
    except ProtocolError as error:
        return data[1] >> 4, version, error.text
    if isinstance(packet, Connect):
        version = packet.version
    raw = encode(packet, version)
    found = decode_length(raw, 1)
    assert found is not None
    assert decode(raw[0], raw[found[1] :], version, sender=sender) == packet
    return type(packet).__name__, version


def fuzz_length(data: bytes) -> Hashable:
    """A Remaining Length anywhere in a buffer."""
    try:
        found = decode_length(data, 0)
    except ProtocolError as error:
        return error.text
    if found is None:
        assert len(data) < 4
        return None
    value, stop = found
    assert 0 <= value <= 268_435_455
    return stop


def fuzz_properties(data: bytes) -> Hashable:
    """Choice of the packet, then a property block with its length."""
    if not data:
        return "short"
    packet = PacketType(data[0] & 0x0F)
    reader = Reader(data, 1, len(data))
    try:
        properties = decode_properties(reader, packet, 8)
    except ProtocolError as error:
        return packet, error.text
    assert reader.position <= len(data)
    return packet, *(
        name
        for name in Properties.__dataclass_fields__
        if getattr(properties, name) not in (None, [])
    )


def fuzz_publish_properties(data: bytes) -> Hashable:
    """A property block of PUBLISH without its length: what is forwarded parses to itself."""
    try:
        parsed = parse_publish_properties(data, 8)
    except ProtocolError as error:
        return error.text
    again = parse_publish_properties(parsed.forward, 8)
    assert (again.topic_alias, again.message_expiry) == (None, None)
    assert again.forward == parsed.forward
    block = properties_with(parsed.forward, parsed.message_expiry, parsed.topic_alias, (1, 2))
    decode_properties(Reader(block, 0, len(block)), PacketType.PUBLISH, 8)
    return parsed.topic_alias is None, parsed.message_expiry is None, bool(parsed.forward)


def fuzz_topic(data: bytes) -> Hashable:
    """Topic names and filters."""
    outcomes: list[str] = []
    for validate in (validate_topic, validate_filter):
        try:
            validate(data, 64, 8)
            outcomes.append("fine")
        except ProtocolError as error:
            outcomes.append(error.text)
    return tuple(outcomes)


def _choice(version: int, sender: Sender) -> int:
    return (version - 4) | _SENDERS.index(sender) << 1


def _packet_corpus() -> list[bytes]:
    everything = Properties(user_properties=[("a", "b")], reason_string="because")
    message = Properties(
        payload_format_indicator=1,
        message_expiry_interval=9,
        content_type="t",
        response_topic="r/s",
        correlation_data=b"\x00\xff",
        topic_alias=3,
        user_properties=[("é", "漢")],
    )
    method = Properties(authentication_method="m", authentication_data=b"d")
    will = WillPacket(b"w/t", b"gone", 1, True)
    connect = Properties(
        session_expiry_interval=1, receive_maximum=2, maximum_packet_size=3, topic_alias_maximum=4
    )
    of_clients: list[tuple[int, Packet]] = [
        (4, Connect("id", False, 60, will, "user", b"secret", version=4)),
        (5, Connect("id", True, 60, will, "user", b"secret", properties=connect)),
        (4, Publish(b"a/b", b"payload", 1, packet_id=7)),
        (5, Publish(b"a/b", b"payload", 2, True, True, 7, message)),
        (5, Puback(7, 0x10, everything)),
        (5, Pubrel(7)),
        (4, Subscribe(1, [Subscription(b"a/+", 1), Subscription(b"$share/g/#", 2)])),
        (5, Subscribe(1, [Subscription(b"a/#", 2, True, True, 1)])),
        (5, Unsubscribe(1, [b"a/#", b"$share/g/b"])),
        (5, Disconnect(4, Properties(session_expiry_interval=3))),
        (5, Auth(0x18, method)),
    ]
    of_servers: list[tuple[int, Packet]] = [
        (4, Connack(True)),
        (5, Connack(False, 0x87, Properties(maximum_qos=1, server_keep_alive=9))),
        (4, Suback(1, [0, 0x80])),
        (5, Suback(1, [2, 0x97], everything)),
        (5, Unsuback(1, [0x11])),
        (5, Disconnect(0x8E, everything)),
    ]
    corpus = [b"\x00\xc0", b"\x03\xd0"]
    for sender, several in zip(_SENDERS, (of_clients, of_servers), strict=True):
        for version, packet in several:
            raw = encode(packet, version)
            found = decode_length(raw, 1)
            assert found is not None
            corpus.append(bytes((_choice(version, sender), raw[0])) + raw[found[1] :])
    return corpus


_PUBLISH_BLOCK: Final = bytes.fromhex(
    "0101 0200000009 03000174 080003722f73 09000200ff 230003 2600016100 0162".replace(" ", "")
)

TARGETS: Final = {
    "packet": (fuzz_packet, _packet_corpus()),
    "length": (fuzz_length, [b"\x00", b"\x80\x01", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x7f"]),
    "properties": (
        fuzz_properties,
        [
            bytes((kind,)) + block
            for kind in PacketType
            for block in (
                bytes((len(_PUBLISH_BLOCK),)) + _PUBLISH_BLOCK,
                bytes.fromhex(
                    "1f 1100000001 210002 2700000003 220004 150001 6d 160001 64 1701 1901"
                ),
                bytes.fromhex("16 120001 61 130001 1a0001 62 1c0001 63 1f0001 64 2401"),
                bytes.fromhex("0b 1800000001 2501 2801 2901"),
                bytes.fromhex("06 2a01 0b8101 "),
            )
        ],
    ),
    "publish_properties": (fuzz_publish_properties, [b"", _PUBLISH_BLOCK]),
    "topic": (
        fuzz_topic,
        [b"a/b", b"+/+/#", b"$share/g/a/#", b"$SYS/x", "é/漢".encode(), b"a/" * 40, b"/" * 9],
    ),
}
