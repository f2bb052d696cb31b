"""The property table: every row in every packet, and each statement with a code of its own."""

import pytest

from fluxmq.protocols.mqtt.packet_types import PacketType
from fluxmq.protocols.mqtt.properties import (
    RULES,
    DataType,
    Properties,
    PropertyRule,
    PublishProperties,
    decode_properties,
    encode_properties,
    parse_publish_properties,
    properties_with,
)
from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason
from fluxmq.protocols.mqtt.wire import Reader, write_variable_integer

VALUES = {
    DataType.BYTE: b"\x01",
    DataType.TWO_BYTES: b"\x00\x02",
    DataType.FOUR_BYTES: b"\x00\x00\x00\x03",
    DataType.VARIABLE: b"\x04",
    DataType.STRING: b"\x00\x02ab",
    DataType.BINARY: b"\x00\x02\xff\x00",
    DataType.PAIR: b"\x00\x01a\x00\x01b",
}
METHOD = b"\x15\x00\x01m"


def raw_of(rule: PropertyRule) -> bytes:
    return bytes((rule.identifier,)) + VALUES[rule.data_type]


def decode(block: bytes, packet: PacketType, max_user_properties: int = 8) -> Properties:
    raw = write_variable_integer(len(block)) + block
    reader = Reader(raw, 0, len(raw))
    properties = decode_properties(reader, packet, max_user_properties)
    reader.finish()
    return properties


def refused(block: bytes, packet: PacketType) -> int:
    with pytest.raises(ProtocolError) as caught:
        decode(block, packet)
    return caught.value.reason


def test_the_table_is_complete() -> None:
    assert len(RULES) == 27
    assert {rule.attribute for rule in RULES} == set(Properties.__dataclass_fields__)
    assert [rule.identifier for rule in RULES] == sorted({rule.identifier for rule in RULES})


@pytest.mark.parametrize("packet", PacketType)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.attribute)
def test_each_property_in_each_packet(rule: PropertyRule, packet: PacketType) -> None:
    """[2.2.2.2]: a property in a packet it does not belong to is malformed."""
    block = raw_of(rule)
    if packet not in rule.packets:
        assert refused(block, packet) == Reason.MALFORMED_PACKET
        return
    if rule.attribute == "authentication_data":
        assert refused(block, packet) == Reason.PROTOCOL_ERROR
        block = METHOD + block
    properties = decode(block, packet)
    assert getattr(properties, rule.attribute) not in (None, [])
    assert encode_properties(properties, packet) == write_variable_integer(len(block)) + block
    if rule.may_repeat(packet):
        assert len(getattr(decode(block + block, packet), rule.attribute)) == 2
    else:
        assert refused(block + raw_of(rule), packet) == Reason.PROTOCOL_ERROR


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.attribute)
def test_each_property_cut_short(rule: PropertyRule) -> None:
    packet = min(rule.packets)
    for cut in range(1, len(raw_of(rule))):
        assert refused(raw_of(rule)[:cut], packet) == Reason.MALFORMED_PACKET


@pytest.mark.parametrize(
    ("block", "packet", "reason"),
    [
        pytest.param("0102", PacketType.PUBLISH, 0x82, id="payload format 2"),
        pytest.param("0b00", PacketType.PUBLISH, 0x82, id="subscription identifier 0"),
        pytest.param("0b00", PacketType.SUBSCRIBE, 0x82, id="subscription identifier 0"),
        pytest.param("0b8000", PacketType.SUBSCRIBE, 0x81, id="padded subscription identifier"),
        pytest.param("1702", PacketType.CONNECT, 0x82, id="request problem information 2"),
        pytest.param("1902", PacketType.CONNECT, 0x82, id="request response information 2"),
        pytest.param("210000", PacketType.CONNECT, 0x82, id="receive maximum 0"),
        pytest.param("2700000000", PacketType.CONNECT, 0x82, id="maximum packet size 0"),
        pytest.param("230000", PacketType.PUBLISH, 0x94, id="topic alias 0"),
        pytest.param("2402", PacketType.CONNACK, 0x82, id="maximum QoS 2"),
        pytest.param("2502", PacketType.CONNACK, 0x82, id="retain available 2"),
        pytest.param("080003612f2b", PacketType.PUBLISH, 0x82, id="[MQTT-3.3.2-14]"),
        pytest.param("080000", PacketType.PUBLISH, 0x82, id="[MQTT-4.7.3-1] response topic"),
        pytest.param("03000100", PacketType.PUBLISH, 0x81, id="[MQTT-1.5.4-2] content type"),
        pytest.param("030001ff", PacketType.PUBLISH, 0x81, id="[MQTT-1.5.4-1] content type"),
        pytest.param("160000", PacketType.CONNECT, 0x82, id="data without method"),
        pytest.param("00", PacketType.CONNECT, 0x81, id="identifier 0"),
        pytest.param("7f", PacketType.CONNECT, 0x81, id="unknown identifier"),
        pytest.param("a600", PacketType.CONNECT, 0x81, id="padded identifier"),
        pytest.param("ffffffff", PacketType.CONNECT, 0x81, id="endless identifier"),
    ],
)
def test_statements_with_a_code(block: str, packet: PacketType, reason: int) -> None:
    assert refused(bytes.fromhex(block), packet) == reason


def test_user_properties_are_bounded_and_keep_their_order() -> None:
    pair = b"\x26\x00\x01a\x00\x01"
    block = b"".join(pair + bytes((0x30 + index,)) for index in range(3))
    assert decode(block, PacketType.PUBLISH, 3).user_properties == [
        ("a", "0"),
        ("a", "1"),
        ("a", "2"),
    ]
    for parse in (
        lambda: decode(block, PacketType.PUBLISH, 2),
        lambda: parse_publish_properties(block, 2),
    ):
        with pytest.raises(ProtocolError) as caught:
            parse()
        assert caught.value.reason == Reason.QUOTA_EXCEEDED


def test_a_block_longer_than_the_packet_is_malformed() -> None:
    for raw in (b"", b"\x02\x01", b"\x80", b"\xff\xff\xff\xff"):
        with pytest.raises(ProtocolError) as caught:
            decode_properties(Reader(raw, 0, len(raw)), PacketType.CONNECT)
        assert caught.value.reason == Reason.MALFORMED_PACKET


def test_what_a_packet_may_not_carry_is_not_written() -> None:
    with pytest.raises(ValueError, match="CONNECT may not carry topic_alias"):
        encode_properties(Properties(topic_alias=1), PacketType.CONNECT)
    with pytest.raises(ValueError, match="SUBSCRIBE may carry one"):
        encode_properties(Properties(subscription_identifiers=[1, 2]), PacketType.SUBSCRIBE)
    with pytest.raises(ValueError, match="exceeds"):
        encode_properties(Properties(receive_maximum=65_536), PacketType.CONNECT)
    with pytest.raises(ValueError, match="range"):
        encode_properties(Properties(maximum_qos=256), PacketType.CONNACK)


USER = b"\x26\x00\x01a\x00\x01b"
EXPIRY = b"\x02\x00\x00\x00\x3c"
ALIAS = b"\x23\x00\x07"
TYPE = b"\x03\x00\x01t"
RESPONSE = b"\x08\x00\x03r/s"
CORRELATION = b"\x09\x00\x02\x00\xff"
FORMAT = b"\x01\x01"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", PublishProperties(None, None, b"")),
        (ALIAS, PublishProperties(7, None, b"")),
        (EXPIRY, PublishProperties(None, 60, b"")),
        (USER + TYPE + USER, PublishProperties(None, None, USER + TYPE + USER)),
        (
            USER + ALIAS + FORMAT + EXPIRY + RESPONSE + CORRELATION + USER,
            PublishProperties(7, 60, USER + FORMAT + RESPONSE + CORRELATION + USER),
        ),
        (EXPIRY + ALIAS + TYPE, PublishProperties(7, 60, TYPE)),
    ],
)
def test_publish_properties_in_transit(raw: bytes, expected: PublishProperties) -> None:
    """[MQTT-3.3.2-4], [MQTT-3.3.2-15], [MQTT-3.3.2-16], [MQTT-3.3.2-18], [MQTT-3.3.2-20]"""
    assert parse_publish_properties(raw, 8) == expected


@pytest.mark.parametrize(
    "raw",
    [
        *(each + each for each in (FORMAT, EXPIRY, TYPE, RESPONSE, CORRELATION, ALIAS)),
        b"\x01\x02",
        b"\x23\x00\x00",
        b"\x0b\x01",
        b"\x08\x00\x01#",
        b"\x08\x00\x00",
        b"\x03\x00\x01\xff",
        b"\x26\x00\x01a\x00\x01\x00",
        b"\x11\x00\x00\x00\x01",
        b"\x04\x00",
        b"\x27\x00\x00\x00\x01",
        b"\xa6\x00",
    ],
)
def test_both_parsers_of_publish_refuse_alike(raw: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_publish_properties(raw, 8)
    if raw == b"\x0b\x01":  # [MQTT-3.3.4-6], which the general parser leaves to the codec
        assert caught.value.reason == Reason.PROTOCOL_ERROR
    else:
        assert refused(raw, PacketType.PUBLISH) == caught.value.reason


@pytest.mark.parametrize("raw", [FORMAT, EXPIRY, TYPE, RESPONSE, CORRELATION, ALIAS, USER])
def test_publish_properties_cut_short(raw: bytes) -> None:
    for cut in range(1, len(raw)):
        with pytest.raises(ProtocolError) as caught:
            parse_publish_properties(raw[:cut], 8)
        assert caught.value.reason == Reason.MALFORMED_PACKET


def test_the_block_of_an_outgoing_publish() -> None:
    assert properties_with(b"") == b"\x00"
    assert properties_with(TYPE) == b"\x04" + TYPE
    assert properties_with(TYPE, expiry=60) == b"\x09" + EXPIRY + TYPE
    assert properties_with(b"", topic_alias=7) == b"\x03" + ALIAS
    assert properties_with(b"", subscription_ids=[5]) == b"\x02\x0b\x05"
    block = properties_with(TYPE, expiry=60, topic_alias=7, subscription_ids=(1, 300))
    assert block == b"\x11" + ALIAS + EXPIRY + b"\x0b\x01" + b"\x0b\xac\x02" + TYPE
    properties = decode_properties(Reader(block, 0, len(block)), PacketType.PUBLISH)
    assert properties == Properties(
        topic_alias=7,
        message_expiry_interval=60,
        subscription_identifiers=[1, 300],
        content_type="t",
    )
    with pytest.raises(ValueError, match="two byte"):
        properties_with(b"", topic_alias=65_536)
