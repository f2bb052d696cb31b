"""CONNECT and CONNACK in both versions, and how a bad CONNECT is answered."""

import pytest

from fluxmq.protocols.mqtt.connect import (
    decode_connack,
    decode_connect,
    encode_connack,
    encode_connect,
    refusal,
    version_of,
)
from fluxmq.protocols.mqtt.packets import Connack, Connect, WillPacket
from fluxmq.protocols.mqtt.properties import Properties
from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason
from fluxmq.protocols.mqtt.wire import write_binary

FULL_4 = Connect(
    "id",
    clean_start=False,
    keep_alive=60,
    will=WillPacket(b"w/t", b"\x00gone", qos=2, retain=True),
    username="user",
    password=b"\xff\x00",
    version=4,
)
FULL_5 = Connect(
    "id",
    keep_alive=65_535,
    will=WillPacket(b"w", b"", properties=Properties(will_delay_interval=5, content_type="x")),
    password=b"token",
    properties=Properties(session_expiry_interval=10, user_properties=[("a", "b"), ("a", "b")]),
)


def body(flags: int, version: int = 4, *fields: bytes, name: bytes = b"MQTT") -> bytes:
    properties = b"\x00" if version == 5 else b""
    fields = fields or (write_binary(b"id"),)
    head = write_binary(name) + bytes((version, flags)) + b"\x00\x3c"
    return head + properties + b"".join(fields)


def refused(raw: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decode_connect(raw, 8)
    return caught.value


@pytest.mark.parametrize(
    "packet", [Connect("a", version=4), Connect("", version=5), FULL_4, FULL_5]
)
def test_there_and_back(packet: Connect) -> None:
    assert decode_connect(encode_connect(packet), 8) == packet


def test_bytes_of_3_1_1_figure_3_6() -> None:
    raw = bytes.fromhex(
        "00044d51545404ce000a 0001 61 0001 77 0000 0001 75 0001 70".replace(" ", "")
    )
    connect = decode_connect(raw, 8)
    assert connect == Connect(
        "a",
        keep_alive=10,
        will=WillPacket(b"w", b"", qos=1),
        username="u",
        password=b"p",
        version=4,
    )


@pytest.mark.parametrize(
    ("flags", "version", "statement"),
    [
        (0x03, 4, "[MQTT-3.1.2-3] reserved flag"),
        (0x03, 5, "[MQTT-3.1.2-3] reserved flag"),
        (0x0A, 4, "[MQTT-3.1.2-11] will QoS without will"),
        (0x22, 4, "[MQTT-3.1.2-13] will retain without will"),
        (0x22, 5, "[MQTT-3.1.2-13] will retain without will"),
        (0x1E, 5, "[MQTT-3.1.2-12] will QoS 3"),
        (0x42, 4, "[MQTT-3.1.2-22] of 3.1.1: password without user name"),
    ],
)
def test_flags(flags: int, version: int, statement: str) -> None:
    error = refused(body(flags, version, *[write_binary(b"x")] * 5))
    assert error.reason == Reason.MALFORMED_PACKET, statement
    assert error.version == version


def test_password_alone_is_fine_in_version_5() -> None:
    connect = decode_connect(body(0x42, 5, write_binary(b"id"), write_binary(b"secret")), 8)
    assert (connect.username, connect.password) == (None, b"secret")


@pytest.mark.parametrize(
    ("name", "level", "version", "answer"),
    [
        (b"MQIsdp", 4, 4, "20020001"),
        (b"MQTT", 3, 4, "20020001"),
        (b"MQTT", 0x84, 4, "20020001"),
        (b"MQTT", 6, 5, "2003008400"),
        (b"MQTT", 0x7F, 5, "2003008400"),
        (b"mqtt", 4, 0, ""),
        (b"", 4, 0, ""),
    ],
)
def test_other_protocols(name: bytes, level: int, version: int, answer: str) -> None:
    """[MQTT-3.1.2-1], [MQTT-3.1.2-2]; 3.1.1's return code 0x01 for its readers."""
    error = refused(body(0x02, level, name=name))
    assert (error.reason, error.version) == (Reason.UNSUPPORTED_PROTOCOL_VERSION, version)
    assert refusal(error.reason, error.version) == bytes.fromhex(answer)


def test_mqtt_3_1_is_served_as_3_1_1() -> None:
    """Some devices know no other; client ids of any length are taken, though it allows 23 characters."""
    connect = decode_connect(body(0x02, 3, write_binary(b"c" * 100), name=b"MQIsdp"), 8)
    assert (connect.version, connect.client_id) == (4, "c" * 100)
    assert connect.clean_start
    assert refused(body(0x03, 3, write_binary(b"c"), name=b"MQIsdp")).version == 4


@pytest.mark.parametrize("name", [b"MQTT", b"MQIsdp"])
@pytest.mark.parametrize("length", [b"\x7f", b"\x80\x80\x01", b"\xff\xff\xff\x7f"])
def test_the_version_of_a_beginning(name: bytes, length: bytes) -> None:
    start = b"\x10" + length + write_binary(name)
    assert version_of(start + b"\x05") == 5
    assert version_of(start + b"\x04\x02") == 4
    assert version_of(start + b"\x77") == 4
    for cut in range(len(start) + 1):
        assert version_of(start[:cut]) == 0
    assert version_of(b"\x30" + start[1:] + b"\x05") == 0
    assert version_of(b"\x10" + length + write_binary(b"HTTP") + b"\x05") == 0


def test_an_empty_client_identifier_needs_a_clean_session_in_3_1_1() -> None:
    """[MQTT-3.1.3-7], [MQTT-3.1.3-8] of 3.1.1."""
    empty = write_binary(b"")
    assert decode_connect(body(0x02, 4, empty), 8).client_id == ""
    assert decode_connect(body(0x00, 5, empty), 8).client_id == ""
    error = refused(body(0x00, 4, empty))
    assert refusal(error.reason, error.version) == bytes.fromhex("20020002")


@pytest.mark.parametrize("version", [4, 5])
def test_every_cut_and_every_surplus_is_malformed(version: int) -> None:
    raw = encode_connect(FULL_4 if version == 4 else FULL_5)
    for cut in range(len(raw)):
        error = refused(raw[:cut])
        assert error.reason == Reason.MALFORMED_PACKET
        assert error.version == (version if cut > 6 else 0)
    assert refused(raw + b"\0").reason == Reason.MALFORMED_PACKET


def test_will_topics_are_topic_names_within_the_limits() -> None:
    raw = encode_connect(Connect("a", will=WillPacket(b"a/b", b"")))
    assert decode_connect(raw, 8, max_topic_bytes=3, max_topic_levels=2).will is not None
    for most, levels in ((2, 2), (3, 1)):
        with pytest.raises(ProtocolError) as caught:
            decode_connect(raw, 8, max_topic_bytes=most, max_topic_levels=levels)
        assert (caught.value.reason, caught.value.version) == (Reason.TOPIC_NAME_INVALID, 5)
    assert refused(encode_connect(Connect("a", will=WillPacket(b"a/#", b"")))).reason == 0x90


@pytest.mark.parametrize("field", [b"\xff", b"a\0"])
def test_strings_are_checked_in_both_versions(field: bytes) -> None:
    for version in (4, 5):
        assert refused(body(0x02, version, write_binary(field))).reason == 0x81
        user = body(0x82, version, write_binary(b"id"), write_binary(field))
        assert refused(user).reason == 0x81


def test_connack_there_and_back() -> None:
    for packet in (
        Connack(True),
        Connack(reason=Reason.NOT_AUTHORIZED),
        Connack(properties=Properties(server_keep_alive=5, assigned_client_identifier="x")),
    ):
        assert decode_connack(encode_connack(packet, 5), 5, 8) == packet
    assert encode_connack(Connack(True), 4) == b"\x01\x00"
    assert decode_connack(b"\x00\x04", 4, 8) == Connack(False, Reason.BAD_USER_NAME_OR_PASSWORD)


def test_connack_without_a_return_code_is_not_written() -> None:
    with pytest.raises(ValueError, match="no return code"):
        encode_connack(Connack(reason=Reason.MALFORMED_PACKET), 4)
    assert refusal(Reason.MALFORMED_PACKET, 4) == b""
    assert refusal(Reason.MALFORMED_PACKET, 5) == bytes.fromhex("2003008100")


@pytest.mark.parametrize(
    ("raw", "version", "reason"),
    [
        (b"\x02\x00", 4, 0x81),
        (b"\x00", 4, 0x81),
        (b"\x00\x00\x00", 4, 0x81),
        (b"\x00\x06", 4, 0x82),
        (b"\x01\x05", 4, 0x82),
        (b"\x01\x87\x00", 5, 0x82),
        (b"\x00\x00", 5, 0x81),
    ],
)
def test_bad_connack(raw: bytes, version: int, reason: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_connack(raw, version, 8)
    assert caught.value.reason == reason
