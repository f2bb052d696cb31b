"""Property blocks as columns: what numpy makes of many is what the model's reading of each one says."""

from __future__ import annotations

import json

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.model.amqp10_readers import SectionReader, expanded
from fluxmq.model.properties import (
    ITEMS_MAX,
    NUMBERS,
    Item,
    PropertyError,
    PropertyKind,
    Timestamp,
    Value,
    decode,
    encode,
    text,
)
from fluxmq.protocols.amqp10.types import Int, Milliseconds, Symbol, UByte, ULong, Uuid
from fluxmq_spark.block_texts import name_of, strings, text_of
from fluxmq_spark.blocks import (
    KNOWN_MAX,
    PLAIN_BYTES_MAX,
    STEPS_MAX,
    UNASKED,
    BlockError,
    BlockReader,
    addresses,
    decode_blocks,
)
from tests.unit.protocols.amqp10.sections import encoded

SECTIONS = st.sampled_from(
    [
        b"\0",
        b"\1\0\x53\x73\xc0\x08\4\x44\x40\x40\xa1\2hi",
        b"\7\0\x53\x74\xc1\x09\4\xa1\1a\x41\xa1\1b\x44",
        b"\0\0\x53\x72\xc1\x08\2\xa3\3x-a\x54\5",
    ]
)
"""Contents of an item AMQP10: nothing, properties, application properties, annotations."""
TEXTS = st.one_of(
    st.sampled_from([b"", b"eu", b"x" * 127, b"y" * 128, "größer".encode(), b"\xff\xfe", b"a\0b"]),
    st.binary(max_size=20),
)
NAMES = st.one_of(st.sampled_from([b"a", b"b", b"region", b""]), TEXTS)
SCALARS = st.one_of(
    st.builds(text, TEXTS),
    st.builds(lambda content: Value("x", content), TEXTS),
    st.builds(lambda number: Value("l", number), st.integers(-(1 << 63), (1 << 63) - 1)),
    st.builds(lambda number: Value("I", number), st.integers(-(1 << 31), (1 << 31) - 1)),
    st.builds(lambda number: Value("i", number), st.integers(0, (1 << 32) - 1)),
    st.builds(lambda number: Value("b", number), st.integers(-128, 127)),
    st.builds(lambda number: Value("B", number), st.integers(0, 255)),
    st.builds(lambda number: Value("s", number), st.integers(-32768, 32767)),
    st.builds(lambda number: Value("u", number), st.integers(0, 65535)),
    st.builds(lambda number: Value("T", Timestamp(number)), st.integers(0, (1 << 64) - 1)),
    st.builds(lambda number: Value("d", number), st.floats()),
    st.builds(lambda number: Value("f", number), st.floats(width=32)),
    st.builds(lambda truth: Value("t", truth), st.booleans()),
    st.builds(
        lambda scale, number: Value("D", (scale, number)), st.integers(0, 255), st.integers(-9, 99)
    ),
    st.just(Value("V", None)),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.builds(lambda each: Value("A", tuple(each)), st.lists(inner, max_size=3)),
        st.builds(
            lambda each: Value("F", tuple(each)), st.lists(st.tuples(NAMES, inner), max_size=3)
        ),
    ),
    max_leaves=6,
)


def _item(kind: PropertyKind) -> st.SearchStrategy[Item]:
    width = NUMBERS.get(kind)
    if width is not None:
        return st.builds(lambda number: Item(kind, number), st.integers(0, (1 << 8 * width) - 1))
    if kind is PropertyKind.HEADER:
        return st.builds(lambda name, value: Item(kind, value, name), NAMES, VALUES)
    if kind is PropertyKind.EMPTY_HEADERS:
        return st.just(Item(kind, None))
    if kind is PropertyKind.AMQP10:
        return st.builds(Item, st.just(kind), SECTIONS)
    return st.builds(lambda content: Item(kind, content), TEXTS)


ITEMS = st.one_of(
    _item(PropertyKind.HEADER),
    _item(PropertyKind.PUBLISHER),
    _item(PropertyKind.EXCHANGE),
    *map(_item, PropertyKind),
)
BLOCKS = st.lists(ITEMS, max_size=6).map(encode)


def _by_definition(
    block: bytes,
) -> tuple[dict[str, str], dict[str, str], str | None, str | None]:
    """Headers, properties, publisher and exchange of one block: of equal names the last."""
    items = expanded(decode(block), SectionReader.TABLE)
    own = (PropertyKind.HEADER, PropertyKind.PUBLISHER)
    alone = {item.kind: text_of(item) for item in items if not item.name}
    return (
        {name_of(item): text_of(item) for item in items if item.kind is PropertyKind.HEADER},
        {name_of(item): text_of(item) for item in items if item.kind not in own},
        alone.get(PropertyKind.PUBLISHER),
        alone.get(PropertyKind.EXCHANGE),
    )


def _decoded(
    blocks: list[bytes],
) -> list[tuple[dict[str, str], dict[str, str], str | None, str | None]]:
    found = decode_blocks(pa.array(blocks, pa.binary()))
    columns = (found.headers, found.properties, found.publisher, found.exchange)
    values = []
    for column in columns:
        assert column is not None
        column.validate(full=True)
        values.append(column.to_pylist())
    headers, properties, publishers, exchanges = values
    for pairs in (*headers, *properties):
        assert len(dict(pairs)) == len(pairs), "a name twice in one map"
    return [
        (dict(of_block[0]), dict(of_block[1]), of_block[2], of_block[3])
        for of_block in zip(headers, properties, publishers, exchanges, strict=True)
    ]


@given(st.lists(BLOCKS, min_size=1, max_size=8))
def test_many_blocks_say_what_each_says(blocks: list[bytes]) -> None:
    assert _decoded(blocks) == [_by_definition(block) for block in blocks]


@given(st.lists(BLOCKS, min_size=1, max_size=4), st.data())
def test_damaged_blocks_are_refused_just_when_the_model_refuses(
    blocks: list[bytes], data: st.DataObject
) -> None:
    which = data.draw(st.integers(0, len(blocks) - 1))
    damaged = bytearray(blocks[which])
    change = data.draw(st.sampled_from(("byte", "cut", "more")))
    if change == "cut" or not damaged:
        damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    elif change == "byte":
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    else:
        damaged += data.draw(st.binary(min_size=1, max_size=8))
    blocks[which] = bytes(damaged)
    why = ""
    try:
        expanded(decode(blocks[which]), SectionReader.TABLE)
    except PropertyError as error:
        why = str(error)
    if why:
        with pytest.raises(BlockError) as refused:
            _decoded(blocks)
        assert (refused.value.block, str(refused.value)) == (which, why)
    else:
        assert _decoded(blocks) == [_by_definition(block) for block in blocks]


@given(st.lists(st.binary(max_size=24), min_size=1, max_size=4))
def test_any_bytes_are_read_as_the_model_reads_them(blocks: list[bytes]) -> None:
    try:
        expected = [_by_definition(block) for block in blocks]
    except PropertyError:
        with pytest.raises(BlockError):
            _decoded(blocks)
    else:
        assert _decoded(blocks) == expected


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b"\x06", id="the end instead of a size"),
        pytest.param(b"\x02\x81\x00a", id="a size longer than needed"),
        pytest.param(b"\x02\xff\xff\xff\xff\x0f", id="a size past the end"),
        pytest.param(b"\x63\x00", id="an unknown kind"),
        pytest.param(b"\x09\x02\x01\x00", id="a number of another width"),
        pytest.param(b"\x07\x01a", id="empty headers with a value"),
        pytest.param(b"\x06\x03\x01aS", id="the end instead of a text"),
        pytest.param(b"\x06\x05\x01aS\x00b", id="bytes behind a text"),
        pytest.param(b"\x06\x04\x01aI\x00", id="the end inside a number"),
        pytest.param(b"\x06\x04\x01at\x02", id="neither true nor false"),
        pytest.param(b"\x06\x03\x01aZ", id="an unknown tag"),
    ],
)
def test_a_wrong_block_is_named_by_its_number(block: bytes) -> None:
    right = encode([Item(PropertyKind.MESSAGE_ID, b"1")])
    with pytest.raises(PropertyError) as expected:
        decode(block)
    with pytest.raises(BlockError) as refused:
        _decoded([right, right, block, right])
    assert (refused.value.block, str(refused.value)) == (2, str(expected.value))


def test_long_blocks_and_blocks_of_many_items_are_read_as_well() -> None:
    blocks = [
        encode(
            [
                Item(PropertyKind.HEADER, text(b"%d" % number), b"n%d" % number)
                for number in range(count)
            ]
        )
        for count in (STEPS_MAX - 1, STEPS_MAX, STEPS_MAX + 1, 3 * STEPS_MAX, 1)
    ]
    blocks.append(encode([Item(PropertyKind.HEADER, text(b"v" * PLAIN_BYTES_MAX), b"long")]))
    blocks.append(
        encode([Item(PropertyKind.HEADER, text(b"%d" % number), b"n") for number in range(40)])
    )
    found = _decoded(blocks)
    assert found == [_by_definition(block) for block in blocks]
    assert found[-1][0] == {"n": "39"}
    assert len(found[3][0]) == 3 * STEPS_MAX


def test_values_inside_values_count_towards_the_items_of_a_block() -> None:
    half = Item(PropertyKind.HEADER, Value("A", (Value("V", None),) * (ITEMS_MAX // 2)), b"n")
    right = encode([half])
    assert _decoded([right]) == [_by_definition(right)]
    with pytest.raises(BlockError, match="more items than a block takes"):
        _decoded([right, right + right])


def test_what_values_become_is_what_the_documents_say() -> None:
    death = Value("F", ((b"count", Value("l", 2)), (b"reason", text(b"expired"))))
    block = encode(
        [
            Item(PropertyKind.PROTOCOL, 2),
            Item(PropertyKind.EXCHANGE, b"orders"),
            Item(PropertyKind.PUBLISHER, b"shop"),
            Item(PropertyKind.PRIORITY, 7),
            Item(PropertyKind.TIMESTAMP, 1_700_000_000),
            Item(PropertyKind.CORRELATION, b"\xff\x00"),
            Item(PropertyKind.DEAD_TIME, 1_790_000_000_000_000),
            Item(PropertyKind.DEAD_FIRST_TIME, 1_790_000_000_000_001),
            Item(PropertyKind.DEAD_TRANSFER, b"\x01\xab"),
            Item(PropertyKind.DEAD_OFFSET, 1 << 40),
            Item(PropertyKind.HEADER, Value("t", True), b"true"),
            Item(PropertyKind.HEADER, Value("V", None), b"void"),
            Item(PropertyKind.HEADER, Value("T", Timestamp(1_700_000_000)), b"time"),
            Item(PropertyKind.HEADER, Value("d", 1.5), b"double"),
            Item(PropertyKind.HEADER, Value("D", (2, -150)), b"decimal"),
            Item(PropertyKind.HEADER, Value("x", b"\x00\x01"), b"bytes"),
            Item(PropertyKind.HEADER, Value("A", (death, Value("d", float("nan")))), b"x-death"),
            Item(PropertyKind.HEADER, text(b"\xc3\x28"), b"broken"),
        ]
    )
    [(headers, properties, publisher, exchange)] = _decoded([block])
    assert (publisher, exchange) == ("shop", "orders")
    assert properties == {
        "protocol": "amqp",
        "exchange": "orders",
        "priority": "7",
        "timestamp": "1700000000",
        "correlation": "/wA=",
        "dead_time": "2026-09-21T14:13:20Z",
        "dead_first_time": "2026-09-21T14:13:20.000001Z",
        "dead_transfer": "01ab",
        "dead_offset": str(1 << 40),
    }
    deaths = json.loads(headers.pop("x-death"))
    assert deaths == [{"count": 2, "reason": "expired"}, "nan"]
    assert headers == {
        "true": "true",
        "void": "",
        "time": "1700000000",
        "double": "1.5",
        "decimal": "-1.50",
        "bytes": "AAE=",
        "broken": "\ufffd(",
    }


def test_sections_of_amqp_1_0_are_in_the_columns() -> None:
    sections = b"".join(
        (
            encoded(0x72, {Symbol("x-a"): Int(5), Symbol("x-opt-jms-dest"): UByte(0)}),
            encoded(
                0x73,
                [
                    *(
                        Uuid(bytes(15) + b"\5"),
                        b"shop",
                        "/queues/q",
                        "offer",
                        "/queues/r",
                        ULong(7),
                    ),
                    *(Symbol("text/plain"), None, None, Milliseconds(1_700_000_000_123), "g"),
                ],
            ),
            encoded(0x74, {"region": "eu", "paid": True, "price": 1.5}),
        )
    )
    block = encode(
        [
            Item(PropertyKind.PROTOCOL, 3),
            Item(PropertyKind.EXCHANGE, b"orders"),
            Item(PropertyKind.PUBLISHER, b"shop"),
            Item(PropertyKind.PRIORITY, 7),
            Item(PropertyKind.AMQP10, b"\1" + sections),
        ]
    )
    [(headers, properties, publisher, exchange)] = _decoded([block])
    assert (publisher, exchange) == ("shop", "orders")
    assert headers == {
        "x-a": "5",
        "x-opt-jms-dest": "0",
        "region": "eu",
        "paid": "true",
        "price": "1.5",
    }
    assert properties == {
        "protocol": "amqp1",
        "exchange": "orders",
        "priority": "7",
        "payload_format": "1",
        "message_id": "urn:uuid:00000000-0000-0000-0000-000000000005",
        "user_id": "shop",
        "to": "/queues/q",
        "subject": "offer",
        "reply_to": "/queues/r",
        "correlation": "7",
        "content_type": "text/plain",
        "timestamp": "1700000000",
        "app_id": "g",
    }


def test_sections_that_are_none_are_named_by_the_number_of_their_block() -> None:
    right = encode([Item(PropertyKind.MESSAGE_ID, b"1")])
    wrong = encode([Item(PropertyKind.AMQP10, b"\0\0\x53\x99\x40")])
    with pytest.raises(BlockError, match="a section that is not known") as refused:
        _decoded([right, wrong])
    assert refused.value.block == 1


def test_equal_blocks_are_read_once_and_bad_ones_are_named_among_them() -> None:
    reader = BlockReader()
    one, other, third = (
        encode([Item(PropertyKind.MESSAGE_ID, each)]) for each in (b"1", b"2", b"3")
    )
    first = _read(reader, [one, one, other, one])
    assert first == ["1", "1", "2", "1"]
    known = reader.read(pa.array([one], pa.binary()))[0]
    assert _read(reader, [other, one, one]) == ["2", "1", "1"]
    assert reader.read(pa.array([other], pa.binary()))[0] is known
    with pytest.raises(BlockError) as refused:
        _read(reader, [one, one, one, b"\x63", third, b"\x63"])
    assert refused.value.block == 3
    assert _read(reader, [third, one]) == ["3", "1"]


def test_more_blocks_than_are_remembered() -> None:
    reader = BlockReader()
    names = [b"%d" % (number // 3) for number in range(3 * KNOWN_MAX)]
    blocks = [encode([Item(PropertyKind.MESSAGE_ID, name)]) for name in names]
    for first in range(0, len(blocks), 500):
        segment_range = blocks[first : first + 500]
        assert _read(reader, segment_range) == [
            name.decode() for name in names[first : first + 500]
        ]


def test_blocks_that_are_mostly_different_are_read_as_they_are_for_a_while() -> None:
    reader = BlockReader()
    distinct = [encode([Item(PropertyKind.MESSAGE_ID, b"%d" % number)]) for number in range(500)]
    found, codes = reader.read(pa.array(distinct, pa.binary()))
    assert codes is None
    assert found.properties is not None
    assert [dict(each)["message_id"] for each in found.properties.to_pylist()] == [
        str(number) for number in range(500)
    ]
    equal = [distinct[0]] * 100
    for _ in range(UNASKED):
        assert reader.read(pa.array(equal, pa.binary()))[1] is None
    assert _read(reader, equal) == ["0"] * 100


def _read(reader: BlockReader, blocks: list[bytes]) -> list[str]:
    """The message ids of blocks."""
    found, codes = reader.read(pa.array(blocks, pa.binary()))
    assert found.properties is not None
    assert codes is not None
    return [dict(found.properties[int(code)].as_py())["message_id"] for code in codes]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=6))))
def test_bytes_become_text_as_python_decodes_them(values: list[bytes | None]) -> None:
    expected = [None if each is None else each.decode("utf-8", "replace") for each in values]
    assert strings(pa.array(values, pa.binary())).to_pylist() == expected


def test_addresses_have_the_exchange_where_it_has_a_name() -> None:
    keys = pa.array(["a/b", "orders", "eu.west"])
    exchanges = pa.array([None, "", "sales"], pa.string())
    assert addresses(keys, exchanges).to_pylist() == ["a/b", "orders", "sales/eu.west"]
    assert addresses(keys, pa.nulls(3, pa.string())) is keys
