"""The property block: every kind and type comes back, and bytes that are none are refused."""

from __future__ import annotations

import math

import pytest

from fluxmq.model.properties import (
    BLOCK_BYTES_MAX,
    DEPTH_MAX,
    ITEMS_MAX,
    NUMBERS,
    Item,
    PropertyError,
    PropertyKind,
    Value,
    decode,
    encode,
    text,
)

VALUES = [
    Value("t", True),
    Value("t", False),
    Value("b", -128),
    Value("B", 255),
    Value("s", -32768),
    Value("u", 65535),
    Value("I", -(2**31)),
    Value("i", 2**32 - 1),
    Value("l", -(2**63)),
    Value("f", 0.5),
    Value("d", math.pi),
    Value("D", (255, -(2**31))),
    Value("T", 2**64 - 1),
    Value("V", None),
    Value("S", b"\xff not UTF-8 \0"),
    Value("x", b""),
    Value("A", ()),
    Value("F", ()),
    Value("A", (Value("S", b"a"), Value("A", (Value("b", 1),)), Value("V", None))),
    Value("F", ((b"k", Value("F", ((b"", Value("t", True)),))), (b"k", Value("l", 2)))),
]


def test_golden_bytes() -> None:
    """These bytes lie on disks."""
    items = [
        Item(PropertyKind.CONTENT_TYPE, b"text/plain"),
        Item(PropertyKind.PRIORITY, 9),
        Item(PropertyKind.TIMESTAMP, 1),
        Item(PropertyKind.EMPTY_HEADERS, None),
        Item(PropertyKind.HEADER, Value("F", ((b"k", Value("s", -2)),)), b"name"),
        Item(PropertyKind.HEADER, text(b"x" * 200), b""),
    ]
    block = bytes.fromhex(
        "020a746578742f706c61696e"
        "090109"
        "0c080100000000000000"
        "0700"
        "060c046e616d654605016b73feff"
        "06cc010053c801" + "78" * 200
    )
    assert encode(items) == block
    assert decode(block) == items


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_typed_headers(value: Value) -> None:
    items = [Item(PropertyKind.HEADER, value, b"name"), Item(PropertyKind.HEADER, value, b"")]
    assert decode(encode(items)) == items


@pytest.mark.parametrize("kind", [kind for kind in PropertyKind if kind is not PropertyKind.HEADER])
def test_every_kind(kind: PropertyKind) -> None:
    values: list[int | bytes | None] = [b"", b"\0\xff", b"x" * 70_000]
    if kind is PropertyKind.EMPTY_HEADERS:
        values = [None]
    elif kind in NUMBERS:
        values = [0, 1, 256 ** NUMBERS[kind] - 1]
    for value in values:
        assert decode(encode([Item(kind, value)])) == [Item(kind, value)]


def test_order_is_kept() -> None:
    items = [Item(PropertyKind.HEADER, text(b"%d" % n), b"n%d" % (n % 3)) for n in range(20)]
    items.insert(7, Item(PropertyKind.TYPE, b"between"))
    assert decode(encode(items)) == items


def test_nothing_is_no_bytes() -> None:
    assert encode([]) == b""
    assert decode(b"") == []


@pytest.mark.parametrize(
    "item",
    [
        Item(PropertyKind.PRIORITY, 256),
        Item(PropertyKind.PRIORITY, -1),
        Item(PropertyKind.PRIORITY, b"1"),
        Item(PropertyKind.CONTENT_TYPE, 1),
        Item(PropertyKind.CONTENT_TYPE, None),
        Item(PropertyKind.EMPTY_HEADERS, b""),
        Item(PropertyKind.HEADER, b"untyped", b"k"),
        Item(PropertyKind.HEADER, Value("b", 128), b"k"),
        Item(PropertyKind.HEADER, Value("f", 1e300), b"k"),
        Item(PropertyKind.HEADER, Value("t", 1), b"k"),
        Item(PropertyKind.HEADER, Value("S", "text"), b"k"),
        Item(PropertyKind.HEADER, Value("D", (1, 2, 3)), b"k"),
        Item(PropertyKind.HEADER, Value("V", 0), b"k"),
        Item(PropertyKind.HEADER, Value("?", None), b"k"),
    ],
    ids=repr,
)
def test_values_that_do_not_fit(item: Item) -> None:
    with pytest.raises(PropertyError):
        encode([item])


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        (b"\x00\x00", "kind 0"),
        (b"\xff\x00", "kind 255"),
        (b"\x02", "inside a size"),
        (b"\x02\x80", "inside a size"),
        (b"\x02\x80\x00", "longer than needed"),
        (b"\x02\xff\xff\xff\xff\xff\x01", "too many bytes"),
        (b"\x02\xff\xff\xff\xff\x7f", "past the end"),
        (b"\x02\x02x", "past the end"),
        (b"\x09\x00", "another width"),
        (b"\x09\x02\x01\x00", "another width"),
        (b"\x07\x01x", "EMPTY_HEADERS with a value"),
        (b"\x06\x00", "inside a size"),
        (b"\x06\x01\x00", "where a value was due"),
        (b"\x06\x02\x01k", "where a value was due"),
        (b"\x06\x02\x00?", "tag '\\?'"),
        (b"\x06\x02\x00t", "neither 0 nor 1"),
        (b"\x06\x03\x00t\x02", "neither 0 nor 1"),
        (b"\x06\x03\x00I\x00", "inside a value"),
        (b"\x06\x03\x00VV", "behind a header's value"),
        (b"\x06\x03\x00S\x01", "past the end"),
        (b"\x06\x04\x00A\x01b", "inside a value"),
        (b"\x06\x05\x00F\x02\x01k", "where a value was due"),
        (b"\x06\x04\x00F\x01\x01", "past the end"),
    ],
)
def test_bytes_that_are_no_block(block: bytes, complaint: str) -> None:
    with pytest.raises(PropertyError, match=complaint):
        decode(block)


def test_a_size_stays_within_what_surrounds_it() -> None:
    """The header ends before the text that it announces, though the block goes on."""
    with pytest.raises(PropertyError, match="past the end"):
        decode(b"\x06\x04\x00S\x05a" + b"\x02\x08abcdefgh")


def nested(depth: int) -> Value:
    value = Value("A", ())
    for _ in range(depth - 1):
        value = Value("A", (value,))
    return value


def test_depth_is_bounded() -> None:
    deepest = [Item(PropertyKind.HEADER, nested(DEPTH_MAX), b"")]
    block = encode(deepest)
    assert decode(block) == deepest
    with pytest.raises(PropertyError, match="too deep"):
        encode([Item(PropertyKind.HEADER, nested(DEPTH_MAX + 1), b"")])
    content = bytes([0, *b"A\0"])
    for _ in range(DEPTH_MAX):
        content = bytes([0, ord("A"), len(content) - 1]) + content[1:]
    with pytest.raises(PropertyError, match="too deep"):
        decode(bytes([6, len(content)]) + content)


def test_items_are_bounded() -> None:
    most = [Item(PropertyKind.TYPE, b"")] * ITEMS_MAX
    block = encode(most)
    assert len(decode(block)) == ITEMS_MAX
    with pytest.raises(PropertyError, match="more items"):
        encode([*most, most[0]])
    with pytest.raises(PropertyError, match="more items"):
        decode(block + block[:2])
    with pytest.raises(PropertyError, match="more items"):
        encode([Item(PropertyKind.HEADER, Value("A", (Value("V", None),) * ITEMS_MAX), b"")])


def test_bytes_are_bounded() -> None:
    half = Item(PropertyKind.TYPE, bytes(BLOCK_BYTES_MAX // 2))
    with pytest.raises(PropertyError, match="more bytes"):
        encode([half, half])
