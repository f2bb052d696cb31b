"""MQTT bytes in tests: cut a stream into packets, read them by the reference codec, write publishes."""

from __future__ import annotations

from fluxmq.protocols.mqtt.codec import decode, decode_length, encode
from fluxmq.protocols.mqtt.packet_types import Sender
from fluxmq.protocols.mqtt.packets import Packet, Publish
from fluxmq.protocols.mqtt.properties import Properties


def cut(data: bytes | bytearray) -> tuple[list[bytes], bytes]:
    """Whole packets, and what is left over."""
    packets = []
    at = 0
    data = bytes(data)
    while at + 2 <= len(data):
        found = decode_length(data, at + 1)
        if found is None:
            break
        length, stop = found
        if stop + length > len(data):
            break
        packets.append(data[at : stop + length])
        at = stop + length
    return packets, data[at:]


def body_of(packet: bytes) -> bytes:
    """A packet without its fixed header."""
    found = decode_length(packet, 1)
    assert found is not None
    return packet[found[1] :]


def read(packet: bytes, version: int, sender: Sender = Sender.SERVER) -> Packet:
    """One whole packet by the reference codec."""
    return decode(packet[0], body_of(packet), version, sender=sender)


def read_all(data: bytes | bytearray, version: int, sender: Sender = Sender.SERVER) -> list[Packet]:
    """A stream that must end with a whole packet."""
    packets, rest = cut(data)
    assert rest == b"", f"{len(rest)} bytes of an incomplete packet"
    return [read(packet, version, sender) for packet in packets]


def publish(
    topic: bytes,
    payload: bytes,
    qos: int = 0,
    packet_id: int = 0,
    version: int = 4,
    *,
    retain: bool = False,
    dup: bool = False,
    properties: Properties | None = None,
) -> bytes:
    """A PUBLISH as a client writes it."""
    made = Publish(topic, payload, qos, retain, dup, packet_id, properties or Properties())
    return encode(made, version)


def puback(*packet_ids: int) -> bytes:
    """PUBACKs without reason."""
    return b"".join(b"\x40\x02" + number.to_bytes(2, "big") for number in packet_ids)


def numbered(first: int, packet_id: int) -> bytes:
    """A four-byte packet: PUBREC (0x50), PUBREL (0x62), PUBCOMP (0x70)."""
    return bytes((first, 2)) + packet_id.to_bytes(2, "big")
