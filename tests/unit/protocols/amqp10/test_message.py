"""A message of AMQP 1.0 as a queue keeps it: columns, what the broker adds and drops, limits and errors."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.model.amqp10_sections import SECTIONS_MAX, Body, read_fields, without_annotations
from fluxmq.model.amqp10_values import (
    NESTING_MAX,
    VALUES_MAX,
    AmqpValueError,
    Typed,
    end_of,
    read_value,
)
from fluxmq.model.properties import (
    Item,
    PropertyError,
    PropertyKind,
    Timestamp,
    Value,
    decode,
    encode,
    text,
)
from fluxmq.protocols.amqp10 import codec
from fluxmq.protocols.amqp10.message import (
    COPIES_MAX,
    DELAY_MS_MAX,
    TIME_MS_MAX,
    AnnotationError,
    MessageColumns,
    from_sections,
    hashed_properties,
    routing_headers,
)
from fluxmq.protocols.amqp10.message_template import sections_of, template_of
from fluxmq.protocols.amqp10.types import (
    Array,
    Described,
    Int,
    Milliseconds,
    Symbol,
    UByte,
    UInt,
    ULong,
)
from tests.unit.protocols.amqp10.sections import encoded
from tests.unit.protocols.amqp10.test_conversions import DATA, annotated, fields, received, sent

NOW = 1_700_000_000_000_000


def columns(*sections: bytes) -> MessageColumns:
    """MessageColumns of a message."""
    return from_sections(b"".join((*sections, DATA))).columns


def test_columns() -> None:
    found = columns(
        encoded(0x70, [True, UByte(7), UInt(500)]),
        annotated(
            x_opt_delivery_time=Milliseconds(9),
            x_opt_delivery_delay=UInt(8),
            x_stream_filter_value="eu",
            x_deduplication_id="p:1",
            x_cc=["a", "b"],
        ),
        fields(
            to="/queues/q",
            subject="s",
            user_id=b"me",
            group_id="g",
            absolute_expiry_time=Milliseconds(7),
        ),
    )
    assert found == MessageColumns(
        durable=True,
        priority=7,
        ttl_ms=500,
        expires_at_ms=7,
        deliver_at_ms=9,
        delay_ms=8,
        to=b"/queues/q",
        subject=b"s",
        user_id=b"me",
        group_id=b"g",
        filter_value=b"eu",
        identity=b"p:1",
        copies=(b"a", b"b"),
    )
    assert columns() == MessageColumns()


def test_a_block_has_items_for_what_the_header_says() -> None:
    block, _ = sent(encoded(0x70, [False, UByte(3), UInt(500)]))
    assert decode(block) == [
        Item(PropertyKind.PROTOCOL, 3),
        Item(PropertyKind.EXCHANGE, b"orders"),
        Item(PropertyKind.PUBLISHER, b"me"),
        Item(PropertyKind.DELIVERY_MODE, 1),
        Item(PropertyKind.PRIORITY, 3),
        Item(PropertyKind.EXPIRATION, b"500"),
        Item(PropertyKind.AMQP10, b"\0"),
    ]


@pytest.mark.parametrize(
    ("given", "expiry"),
    [
        (MessageColumns(), 0),
        (MessageColumns(ttl_ms=5), NOW + 5000),
        (MessageColumns(ttl_ms=0), NOW + 1),
        (MessageColumns(ttl_ms=5, expires_at_ms=1), NOW + 5000),
        (MessageColumns(expires_at_ms=1_800_000_000_000), 1_800_000_000_000_000),
        (MessageColumns(expires_at_ms=-4), 1),
        (MessageColumns(expires_at_ms=1 << 62), TIME_MS_MAX * 1000),
    ],
    ids=str,
)
def test_expiry(given: MessageColumns, expiry: int) -> None:
    assert given.expiry_us(NOW) == expiry


@pytest.mark.parametrize(
    ("given", "delay"),
    [
        (MessageColumns(), 0),
        (MessageColumns(delay_ms=5), NOW + 5000),
        (MessageColumns(delay_ms=-5), 0),
        (MessageColumns(deliver_at_ms=NOW // 1000 + 7, delay_ms=5), NOW + 7000),
        (MessageColumns(deliver_at_ms=5), 0),
        (MessageColumns(delay_ms=DELAY_MS_MAX + 1), NOW + DELAY_MS_MAX * 1000),
    ],
    ids=str,
)
def test_delay(given: MessageColumns, delay: int) -> None:
    assert given.delay_us(NOW) == delay


def test_headers_for_routing() -> None:
    content = from_sections(
        annotated(x_a=[Int(1), "b", {"k": None}], other=Int(1))
        + encoded(0x74, {"t": Milliseconds(7000), "s": Symbol("v"), "n": Int(5)})
        + DATA
    ).content
    assert routing_headers(content) == {
        "x-a": [1, "b", {"k": None}],
        "t": Timestamp(7),
        "s": "v",
        "n": 5,
    }


def test_properties_for_hashing() -> None:
    section = fields(message_id=ULong(7), correlation_id=b"\xff", creation_time=Milliseconds(7_999))
    assert hashed_properties(from_sections(section + DATA).content) == {
        "message_id": "7",
        "correlation_id": "\udcff",
        "timestamp": Timestamp(7),
    }
    assert hashed_properties(from_sections(DATA).content) == {}


def test_annotations_of_the_broker_are_its_own() -> None:
    forged = annotated(
        x_exchange="forged", x_routing_key="forged", x_opt_dlq_reason="forged", x_a="kept"
    )
    block, _ = sent(forged)
    data = sections_of(block, b"key", b"", annotations={"x-stream-offset": 5})
    assert b"forged" not in data
    assert received(block)[0x72] == {"x-a": "kept"}
    assert codec.encode(Symbol("x-stream-offset")) + codec.encode(5) in data
    only_forged, _ = sent(annotated(x_exchange="forged"))
    assert decode(only_forged)[-1] == Item(PropertyKind.AMQP10, b"\0")


def test_what_the_broker_adds_later_replaces_what_was_sent() -> None:
    block, _ = sent(annotated(x_opt_deaths="old", x_a=Int(1)))
    death = Value("F", ((b"queue", text(b"q")), (b"reason", text(b"rejected"))))
    items = [
        *decode(block),
        Item(PropertyKind.HEADER, text(b"q"), b"x-first-death-queue"),
        Item(PropertyKind.HEADER, Value("A", (death,)), b"x-death"),
        Item(PropertyKind.DEAD_REASON, b"rejected"),
        Item(PropertyKind.DEAD_ATTEMPTS, 3),
        Item(PropertyKind.DEAD_TIME, 7_000),
        Item(PropertyKind.DEAD_TRANSFER, b"\1"),
    ]
    found = received(encode(items))[0x72]
    (death_map,) = found.pop("x-opt-deaths").items
    assert death_map["queue"] == "q"
    assert found == {
        "x-a": 1,
        "x-first-death-queue": "q",
        "x-opt-dlq-reason": "rejected",
        "x-opt-dlq-delivery-count": 3,
        "x-opt-dlq-moved-at": 7,
        "x-opt-dlq-transfer-id": b"\1",
    }


def test_annotations_can_be_taken_out() -> None:
    content = from_sections(annotated(x_cc=["k"], x_a=Int(1)) + fields(subject="s") + DATA).content
    left = without_annotations(content, [b"x-cc"])
    assert [key.content for key, _ in read_fields(left).annotations] == [b"x-a"]
    assert left.endswith(fields(subject="s"))
    assert without_annotations(content, [b"x-b"]) == content
    assert without_annotations(left, [b"x-a"]) == b"\0" + fields(subject="s")


def test_a_template_serves_messages_with_their_own_terms() -> None:
    block, _ = sent(encoded(0x70, [True]))
    template = template_of(block, b"key")
    one = template.message(b"1", ttl_ms=1 << 40, delivery_count=1 << 40)
    other = template.message(b"2" * 300)
    assert one.endswith(encoded(0x75, b"1"))
    assert codec.decode(one, 3)[0] == [True, None, 0xFFFF_FFFF, True, 0xFFFF_FFFF]
    assert other.endswith(encoded(0x75, b"2" * 300))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "without a body"),
        (fields(subject="s"), "without a body"),
        (DATA + fields(subject="s"), "out of order"),
        (fields(subject="s") * 2 + DATA, "twice"),
        (DATA + encoded(0x76, []), "different sections"),
        (encoded(0x77, None) * 2, "twice"),
        (b"\0\x53\x79\x40" + DATA, "not known"),
        (b"\0\x54\x75\xa0\0", "not known"),
        (b"\xa0\0", "no section"),
        (DATA[:-1], "past the end"),
        (encoded(0x75, "text"), "not binary"),
        (encoded(0x76, Int(1)), "no list"),
        (b"\0\x53\x77\xa1\1\xff", "not UTF-8"),
        (encoded(0x70, {}) + DATA, "another form"),
        (encoded(0x70, ["no"]) + DATA, "string instead of boolean"),
        (encoded(0x73, [1.5]) + DATA, "double instead of"),
        (encoded(0x73, [None] * 14) + DATA, "another form"),
        (encoded(0x73, [None, None, Symbol("to")]) + DATA, "symbol instead of string"),
        (encoded(0x74, {Symbol("a"): Int(1)}) + DATA, "whose name is no string"),
        (encoded(0x74, {"a": [Int(1)]}) + DATA, "an application property of type list"),
        (encoded(0x72, [Int(1)]) + DATA, "no map"),
        (b"\0\x53\x72\xc1\2\1\x40" + DATA, "a key and no value"),
        (b"\0\x53\x72\xc1\3\2\x40\x99" + DATA, "not known"),
        (DATA * (SECTIONS_MAX + 1), "more sections"),
    ],
)
def test_what_is_no_message(data: bytes, why: str) -> None:
    with pytest.raises(AmqpValueError, match=why):
        from_sections(data)


@pytest.mark.parametrize("value", ["k", Int(1), {"a": "b"}, ["k"] * (COPIES_MAX + 1)], ids=repr)
def test_wrong_copies_are_an_error_of_their_own(value: Any) -> None:
    with pytest.raises(AnnotationError, match="x-cc"):
        columns(annotated(x_cc=value))


def test_values_are_bounded() -> None:
    deep: Any = None
    for _ in range(NESTING_MAX - 1):
        deep = [deep]
    assert columns(annotated(x_a=deep)) == MessageColumns()
    with pytest.raises(AmqpValueError, match="too deep"):
        columns(annotated(x_a=[deep]))
    nulls = b"\xf0\0\0\0\5" + VALUES_MAX.to_bytes(4, "big") + b"\x40"
    with pytest.raises(AmqpValueError, match="more values"):
        read_value(nulls, 0, len(nulls))
    assert end_of(nulls, 0, len(nulls)) == len(nulls)
    described = b"\0\x40" * (NESTING_MAX + 1) + b"\x40"
    for parse in (end_of, read_value):
        with pytest.raises(AmqpValueError, match="too deep"):
            parse(described, 0, len(described))


def test_typed_values() -> None:
    def read(value: object) -> Typed:
        raw = codec.encode(value)
        return read_value(raw, 0, len(raw))[0]

    assert read(Described(Symbol("d"), [None])) == (
        "described",
        (("symbol", b"d"), ("list", (("null", None),))),
    )
    assert read(Array(0xB1, ["a"])) == ("array", (("string", b"a"),))
    assert read({"a": UByte(1)}) == ("map", ((("string", b"a"), ("ubyte", 1)),))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x01",
        b"\x56\2",
        b"\x73\0\x11\0\0",
        b"\x73\0\0\xd8\0",
        b"\xa1\1\xff",
        b"\xa3\1\xff",
        b"\xa0",
        b"\xb0\0\0\0",
        b"\xc0\1",
        b"\xc0\0",
        b"\xc0\3\1\x40\x40",
        b"\xe0\1\1",
        b"\0\0\x40\x40\x40",
    ],
    ids=bytes.hex,
)
def test_malformed_values(raw: bytes) -> None:
    with pytest.raises(AmqpValueError):
        read_value(raw, 0, end_of(raw, 0, len(raw)))


def test_a_stored_item_that_is_none() -> None:
    for content in (b"", b"\0\0\x53", b"\0\x40"):
        with pytest.raises(PropertyError):
            read_fields(content)
    with pytest.raises(PropertyError):
        template_of(encode([Item(PropertyKind.AMQP10, b"\0\x40")]), b"")


def test_forms_of_bodies_are_what_is_on_disk() -> None:
    assert {each.name: int(each) for each in Body} == {
        "DATA": 0,
        "TEXT": 1,
        "SEVERAL": 5,
        "SEQUENCES": 6,
        "VALUE": 7,
    }


def test_annotations_whose_keys_are_no_symbols_are_not_routed_by() -> None:
    """Binary keys need not be UTF-8."""
    annotations = encoded(0x72, {b"x-\xff": 1, Symbol("x-b"): "c"})
    message = from_sections(annotations + encoded(0x75, b"x"))
    assert routing_headers(message.content) == {"x-b": "c"}
    assert routing_headers(b"\0" + encoded(0x74, {b"\xff": 1, "n": 2})) == {"n": 2}
