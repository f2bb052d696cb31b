"""Property blocks: any items come back, any bytes are a block that is written again as it was, or are refused."""

from __future__ import annotations

import math

from hypothesis import event, given
from hypothesis import strategies as st

from fluxmq.model.properties import (
    NUMBERS,
    Item,
    PropertyError,
    PropertyKind,
    Value,
    decode,
    encode,
)
from fluxmq.protocols.mqtt.message_properties import from_block, to_block
from fluxmq.protocols.mqtt.packet_types import PacketType, Sender
from fluxmq.protocols.mqtt.properties import Properties, encode_properties, parse_publish_properties
from fluxmq.protocols.mqtt.wire import decode_length, write_binary
from tests.props.mqtt_packets import properties

BYTES = st.binary(max_size=8)
INTEGERS = {"b": 8, "s": 16, "I": 32, "l": 64}
UNSIGNED = {"B": 8, "u": 16, "i": 32, "T": 64}
LEAVES = st.one_of(
    st.just(Value("V", None)),
    st.builds(Value, st.just("t"), st.booleans()),
    st.builds(Value, st.sampled_from("Sx"), BYTES),
    st.builds(Value, st.just("f"), st.floats(width=32, allow_nan=False)),
    st.builds(Value, st.just("d"), st.floats(allow_nan=False)),
    st.builds(
        Value,
        st.just("D"),
        st.tuples(st.integers(0, 255), st.integers(-(2**31), 2**31 - 1)),
    ),
    *(
        st.builds(Value, st.just(tag), st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1))
        for tag, bits in INTEGERS.items()
    ),
    *(
        st.builds(Value, st.just(tag), st.integers(0, (1 << bits) - 1))
        for tag, bits in UNSIGNED.items()
    ),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(Value, st.just("A"), st.lists(inner, max_size=3).map(tuple))
        | st.builds(Value, st.just("F"), st.lists(st.tuples(BYTES, inner), max_size=3).map(tuple))
    ),
    max_leaves=6,
)


@st.composite
def items(draw: st.DrawFn) -> Item:
    kind = draw(st.sampled_from(PropertyKind))
    if kind is PropertyKind.HEADER:
        return Item(kind, draw(VALUES), draw(BYTES))
    if kind is PropertyKind.EMPTY_HEADERS:
        return Item(kind, None)
    if kind in NUMBERS:
        return Item(kind, draw(st.integers(0, 256 ** NUMBERS[kind] - 1)))
    return Item(kind, draw(BYTES))


ITEMS = st.lists(items(), max_size=6)


@given(ITEMS)
def test_what_is_written_is_read_back(given_items: list[Item]) -> None:
    assert decode(encode(given_items)) == given_items


def holds_nan(value: object) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    return isinstance(value, tuple) and any(holds_nan(each) for each in value)


@given(st.data(), ITEMS)
def test_bytes_have_one_reading(data: st.DataObject, given_items: list[Item]) -> None:
    block = bytearray(encode(given_items))
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)))):
        if at < len(block):
            block[at] = byte
    raw = bytes(block[: data.draw(st.integers(0, len(block)))])
    try:
        found = decode(raw)
    except PropertyError:
        event("refused")
        return
    event("read")
    if not any(holds_nan(item.value) for item in found):
        assert encode(found) == raw


@st.composite
def forwards(draw: st.DrawFn) -> bytes:
    """Properties of a PUBLISH as they are passed on, in any order."""
    drawn = draw(properties(PacketType.PUBLISH, Sender.CLIENT))
    names = ("payload_format_indicator", "content_type", "response_topic", "correlation_data")
    parts = [
        _only(Properties(**{name: value}))
        for name in names
        if (value := getattr(drawn, name)) is not None
    ]
    parts += [_only(Properties(user_properties=[pair])) for pair in drawn.user_properties]
    return b"".join(draw(st.permutations(parts)))


def _only(one: Properties) -> bytes:
    whole = encode_properties(one, PacketType.PUBLISH)
    found = decode_length(whole, 0)
    assert found is not None
    return whole[found[1] :]


@given(forwards())
def test_mqtt_gets_back_the_same_bytes(forward: bytes) -> None:
    assert parse_publish_properties(forward, 100).forward == forward
    assert from_block(to_block(forward)) == forward


@given(ITEMS)
def test_whatever_a_block_holds_is_valid_in_mqtt(given_items: list[Item]) -> None:
    forward = from_block(encode(given_items))
    assert parse_publish_properties(forward, 1000).forward == forward
    assert from_block(to_block(forward)) == forward


@given(st.lists(st.tuples(BYTES, BYTES), max_size=3))
def test_user_properties_are_text_headers(pairs: list[tuple[bytes, bytes]]) -> None:
    forward = b"".join(b"\x26" + write_binary(a) + write_binary(b) for a, b in pairs)
    assert decode(to_block(forward)) == [
        Item(PropertyKind.HEADER, Value("S", b), a) for a, b in pairs
    ]
