"""CONNECT and CONNACK, the only packets that exist before the version is agreed.

CONNECT names its own version, so it is read without one; an error in it carries the version in
which a CONNACK may answer, and `refusal` writes that CONNACK.
"""

from __future__ import annotations

from typing import Final

from fluxmq.protocols.mqtt import wire
from fluxmq.protocols.mqtt.packet_types import VERSION_3_1_1, VERSION_5, PacketType
from fluxmq.protocols.mqtt.packets import Connack, Connect, WillPacket
from fluxmq.protocols.mqtt.properties import Properties, decode_properties, encode_properties
from fluxmq.protocols.mqtt.reasons import (
    ProtocolError,
    Reason,
    connack_return_code,
    malformed,
    protocol_error,
    reason_of_return_code,
)
from fluxmq.protocols.mqtt.topics import LEVELS_MAX, validate_topic

_CLEAN_START: Final = 0x02
_WILL: Final = 0x04
_WILL_QOS_SHIFT: Final = 3
_WILL_RETAIN: Final = 0x20
_PASSWORD: Final = 0x40
_USERNAME: Final = 0x80

_LEVEL_OF_3_1: Final = 3

_MQTT: Final = b"\x00\x04MQTT"
_NAMES: Final = (_MQTT, b"\x00\x06MQIsdp")
_LENGTH_END: Final = 4
"""Last possible position of the final byte of a fixed header's length."""
_PLAIN_BYTES_MIN: Final = 13
"""Header of 3.1.1 (10 bytes), length and one byte of a client id."""

NO_PROPERTIES: Final = Properties()
"""Properties of a CONNECT without any: shared, never to be changed."""


def decode_connect(
    body: bytes,
    max_user_properties: int,
    max_topic_bytes: int = wire.FIELD_BYTES_MAX,
    max_topic_levels: int = LEVELS_MAX,
    control_characters: bool = True,
) -> Connect:
    """Decode the body of a CONNECT. The topic limits and ``control_characters`` also apply to the
    will's topic. MQTT 3.1 is served like 3.1.1: on the wire they differ in name and level alone.

    Raises `ProtocolError` with `version` set as `refusal` needs it.
    """
    plain = _plain_connect(body)
    if plain is not None:
        return plain
    reader = wire.Reader(body, 0, len(body))
    version = _decode_version(reader)
    try:
        connect = _decode_connect(
            reader,
            version,
            max_user_properties,
            max_topic_bytes,
            max_topic_levels,
            control_characters,
        )
        reader.finish()
    except ProtocolError as error:
        error.version = version
        raise
    return connect


def version_of(beginning: bytes | bytearray) -> int:
    """Return the version for an answer to this beginning of a CONNECT; 0 while it is unknown."""
    if not beginning or beginning[0] != PacketType.CONNECT << 4:
        return 0
    at = 1
    while at < min(len(beginning), _LENGTH_END) and beginning[at] & 0x80:
        at += 1
    at += 1
    for name in _NAMES:
        end = at + len(name)
        if beginning.startswith(name, at) and end < len(beginning):
            level = beginning[end]
            return VERSION_5 if level == VERSION_5 else VERSION_3_1_1
    return 0


def _plain_connect(body: bytes) -> Connect | None:
    """Decode the CONNECT of most reconnecting clients (no will, user or properties) in one go.

    None for every other, valid or not: those take the general path, which reports errors. The two
    paths agree, and a test ensures it.
    """
    if len(body) < _PLAIN_BYTES_MIN or not body.startswith(_MQTT):
        return None
    version, flags = body[6], body[7]
    if version == VERSION_3_1_1:
        at = 10
    elif version == VERSION_5 and body[10] == 0:
        at = 11
    else:
        return None
    client_id = body[at + 2 :]
    if (
        flags & ~_CLEAN_START
        or not client_id
        or len(client_id) != body[at] << 8 | body[at + 1]
        or not client_id.isascii()
        or 0 in client_id
    ):
        return None
    keep_alive = body[8] << 8 | body[9]
    return Connect(
        client_id.decode("ascii"),
        flags != 0,
        keep_alive,
        None,
        None,
        None,
        "MQTT",
        version,
        NO_PROPERTIES,
    )


def _decode_version(reader: wire.Reader) -> int:
    """Return the version of protocol name and level (3.1.2.1, 3.1.2.2), or raise an error with the
    version of the answer.

    A stranger who does not say "MQTT" gets no CONNACK; a level beyond 5 is answered in version 5
    and everything below in 3.1.1, whose readers are the ones that may be at the other end.
    """
    name = reader.binary()
    level = reader.byte()
    if name == b"MQTT":
        if level in (VERSION_3_1_1, VERSION_5):
            return level
        answer = VERSION_5 if VERSION_5 < level < 0x80 else VERSION_3_1_1
    elif name == b"MQIsdp":
        if level == _LEVEL_OF_3_1:
            return VERSION_3_1_1
        answer = VERSION_3_1_1
    else:
        answer = 0
    raise ProtocolError(Reason.UNSUPPORTED_PROTOCOL_VERSION, "unknown protocol version", answer)


def _decode_connect(
    reader: wire.Reader,
    version: int,
    max_user_properties: int,
    max_topic_bytes: int,
    max_topic_levels: int,
    control_characters: bool,
) -> Connect:
    flags = reader.byte()
    _check_connect_flags(flags, version)
    keep_alive = reader.two_byte_integer()
    properties = (
        decode_properties(reader, PacketType.CONNECT, max_user_properties)
        if version == VERSION_5
        else Properties()
    )
    client_id = reader.string()
    clean_start = bool(flags & _CLEAN_START)
    if not client_id and not clean_start and version != VERSION_5:
        # [MQTT-3.1.3-8] of 3.1.1: without an identifier there is no state to keep.
        raise ProtocolError(
            Reason.CLIENT_IDENTIFIER_NOT_VALID, "empty client identifier without clean session"
        )
    will = None
    if flags & _WILL:
        will_properties = (
            decode_properties(reader, PacketType.WILL, max_user_properties)
            if version == VERSION_5
            else Properties()
        )
        topic = reader.binary()
        validate_topic(topic, max_topic_bytes, max_topic_levels, control_characters)
        will = WillPacket(
            topic=topic,
            payload=reader.binary(),
            qos=flags >> _WILL_QOS_SHIFT & 3,
            retain=bool(flags & _WILL_RETAIN),
            properties=will_properties,
        )
    return Connect(
        client_id=client_id,
        clean_start=clean_start,
        keep_alive=keep_alive,
        will=will,
        username=reader.string() if flags & _USERNAME else None,
        password=reader.binary() if flags & _PASSWORD else None,
        protocol_name="MQTT",
        version=version,
        properties=properties,
    )


def _check_connect_flags(flags: int, version: int) -> None:
    if flags & 1:
        raise malformed("reserved connect flag is set")  # [MQTT-3.1.2-3]
    will_qos = flags >> _WILL_QOS_SHIFT & 3
    if will_qos == 3:
        raise malformed("will QoS is 3")  # [MQTT-3.1.2-12]
    if not flags & _WILL and (will_qos or flags & _WILL_RETAIN):
        raise malformed("will QoS or will retain without a will")  # [MQTT-3.1.2-11], [-13]
    if version != VERSION_5 and flags & _PASSWORD and not flags & _USERNAME:
        raise malformed("password without user name")  # [MQTT-3.1.2-22] of 3.1.1


def encode_connect(packet: Connect) -> bytes:
    """Encode the body of a CONNECT in the packet's own version.

    Raises `ValueError` for values that do not fit, or properties in version 3.1.1.
    """
    is_5 = packet.version == VERSION_5
    will = packet.will
    flags = _CLEAN_START if packet.clean_start else 0
    if will is not None:
        flags |= _WILL | will.qos << _WILL_QOS_SHIFT | (_WILL_RETAIN if will.retain else 0)
    if packet.username is not None:
        flags |= _USERNAME
    if packet.password is not None:
        flags |= _PASSWORD
    parts = [
        wire.write_string(packet.protocol_name),
        bytes((packet.version, flags)),
        wire.write_two_byte_integer(packet.keep_alive),
    ]
    if is_5:
        parts.append(encode_properties(packet.properties, PacketType.CONNECT))
    parts.append(wire.write_string(packet.client_id))
    if will is not None:
        if is_5:
            parts.append(encode_properties(will.properties, PacketType.WILL))
        parts += (wire.write_binary(will.topic), wire.write_binary(will.payload))
    if packet.username is not None:
        parts.append(wire.write_string(packet.username))
    if packet.password is not None:
        parts.append(wire.write_binary(packet.password))
    return b"".join(parts)


def decode_connack(body: bytes, version: int, max_user_properties: int) -> Connack:
    """Decode the body of a CONNACK. Raises `ProtocolError`."""
    reader = wire.Reader(body, 0, len(body))
    flags = reader.byte()
    if flags > 1:
        raise malformed("reserved CONNACK flag is set")  # [MQTT-3.2.2-1]
    code = reader.byte()
    if version == VERSION_5:
        reason = code
        properties = decode_properties(reader, PacketType.CONNACK, max_user_properties)
    else:
        reason = reason_of_return_code(code)
        properties = Properties()
    reader.finish()
    if flags and reason:
        raise protocol_error("CONNACK refuses with session present")  # [MQTT-3.2.2-6]
    return Connack(bool(flags), int(reason), properties)


def encode_connack(packet: Connack, version: int) -> bytes:
    """Encode the body of a CONNACK.

    Raises `ValueError` for a reason that 3.1.1 has no return code for: such a connection is closed
    without a CONNACK.
    """
    flags = 1 if packet.session_present else 0
    if version == VERSION_5:
        properties = encode_properties(packet.properties, PacketType.CONNACK)
        return bytes((flags, packet.reason)) + properties
    code = connack_return_code(packet.reason)
    if code is None:
        raise ValueError("MQTT 3.1.1 has no return code for this reason")
    return bytes((flags, code))


def refusal(reason: int, version: int) -> bytes:
    """Return a whole CONNACK that refuses a connection, or nothing when none may be sent.

    For an error from `decode_connect` pass its `reason` and `version`; 0 stands for "none".
    """
    if version == VERSION_5:
        return bytes((PacketType.CONNACK << 4, 3, 0, reason, 0))
    code = connack_return_code(reason) if version == VERSION_3_1_1 else None
    if code is None:
        return b""
    return bytes((PacketType.CONNACK << 4, 2, 0, code))
