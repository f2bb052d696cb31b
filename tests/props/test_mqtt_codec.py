"""The MQTT codec: what is written is read back, and nothing but `ProtocolError` comes of garbage."""

from __future__ import annotations

import contextlib

from hypothesis import event, given
from hypothesis import strategies as st

from fluxmq.protocols.mqtt.codec import decode, decode_length, encode
from fluxmq.protocols.mqtt.packet_types import PacketType, Sender
from fluxmq.protocols.mqtt.packets import Connect, Packet
from fluxmq.protocols.mqtt.properties import (
    Properties,
    decode_properties,
    encode_properties,
    parse_publish_properties,
    properties_with,
)
from fluxmq.protocols.mqtt.reasons import ProtocolError
from fluxmq.protocols.mqtt.topics import validate_filter, validate_topic
from fluxmq.protocols.mqtt.wire import Reader, write_variable_integer
from tests.props.mqtt_packets import filters, mutated, packets, properties, topics

VERSION = st.sampled_from([4, 5])
SENDER = st.sampled_from(Sender)


def read(raw: bytes, version: int, sender: Sender) -> Packet:
    found = decode_length(raw, 1)
    assert found is not None
    length, start = found
    assert start + length == len(raw)
    return decode(raw[0], raw[start:], version, sender=sender)


@given(st.data(), VERSION, SENDER)
def test_what_is_written_is_read_back(data: st.DataObject, version: int, sender: Sender) -> None:
    packet = data.draw(packets(version, sender))
    event(type(packet).__name__)
    assert read(encode(packet, version), version, sender) == packet


@given(st.integers(0, 255), st.binary(max_size=64), VERSION, SENDER)
def test_random_bytes(first: int, body: bytes, version: int, sender: Sender) -> None:
    with contextlib.suppress(ProtocolError):
        packet = decode(first, body, version, sender=sender)
        again = packet.version if isinstance(packet, Connect) else version
        assert read(encode(packet, again), again, sender) == packet


@given(st.data(), VERSION, SENDER)
def test_mutated_packets(data: st.DataObject, version: int, sender: Sender) -> None:
    """Whatever is still read is a packet that can be written and read again."""
    raw = encode(data.draw(packets(version, sender)), version)
    found = decode_length(raw, 1)
    assert found is not None
    body = data.draw(mutated(raw[found[1] :]))
    first = raw[0] ^ data.draw(st.sampled_from([0, 0, 0, 1, 2, 4, 8, 16, 0x80]))
    try:
        packet = decode(first, body, version, sender=sender)
    except ProtocolError as error:
        event(f"refused 0x{error.reason:02x}")
        return
    event("read")
    again = packet.version if isinstance(packet, Connect) else version
    assert read(encode(packet, again), again, sender) == packet


@given(st.binary(max_size=6))
def test_lengths(raw: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        found = decode_length(raw, 0)
        if found is not None:
            value, stop = found
            assert write_variable_integer(value) == raw[:stop]


@given(properties(PacketType.PUBLISH, Sender.CLIENT))
def test_publish_properties_in_transit(given_properties: Properties) -> None:
    """Taking a block apart and putting it together again changes nothing but the order."""
    block = encode_properties(given_properties, PacketType.PUBLISH)
    parsed = parse_publish_properties(block[len(block) - _length_of(block) :], 8)
    again = properties_with(parsed.forward, parsed.message_expiry, parsed.topic_alias, ())
    reader = Reader(again, 0, len(again))
    assert decode_properties(reader, PacketType.PUBLISH) == given_properties


def _length_of(block: bytes) -> int:
    found = decode_length(block, 0)
    assert found is not None
    return found[0]


@given(st.data())
def test_both_parsers_of_publish_properties_agree(data: st.DataObject) -> None:
    made = encode_properties(
        data.draw(properties(PacketType.PUBLISH, Sender.CLIENT)), PacketType.PUBLISH
    )
    raw = data.draw(mutated(made[len(made) - _length_of(made) :]) | st.binary(max_size=24))
    block = write_variable_integer(len(raw)) + raw
    general: Properties | int
    quick: tuple[int | None, int | None] | int
    try:
        general = decode_properties(Reader(block, 0, len(block)), PacketType.PUBLISH, 4)
        if general.subscription_identifiers:
            general = 0x82
    except ProtocolError as error:
        general = error.reason
    try:
        parsed = parse_publish_properties(raw, 4)
        quick = (parsed.topic_alias, parsed.message_expiry)
    except ProtocolError as error:
        quick = error.reason
    if isinstance(general, Properties):
        assert quick == (general.topic_alias, general.message_expiry_interval)
    else:
        assert isinstance(quick, int)


@given(topics())
def test_valid_topics_are_accepted(topic: bytes) -> None:
    validate_topic(topic)
    assert validate_filter(topic).wildcard is False or topic.startswith(b"$share/")


@given(filters(shared=False), st.none() | st.sampled_from([b"g", "gruppe ü".encode()]))
def test_valid_filters_are_taken_apart(topic_filter: bytes, group: bytes | None) -> None:
    raw = topic_filter if group is None else b"$share/" + group + b"/" + topic_filter
    parsed = validate_filter(raw)
    assert (parsed.group, parsed.filter) == (group, topic_filter)
    assert parsed.wildcard == (b"+" in topic_filter or b"#" in topic_filter)


@given(st.binary(max_size=24) | st.text(st.sampled_from("a/+#$\0"), max_size=12).map(str.encode))
def test_any_bytes_as_topics(raw: bytes) -> None:
    for validate in (validate_topic, validate_filter):
        with contextlib.suppress(ProtocolError):
            validate(raw)
            assert raw
            assert 0 not in raw
            assert raw.decode("utf-8").encode("utf-8") == raw
