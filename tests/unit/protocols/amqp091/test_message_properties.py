"""Properties of a message between AMQP 0.9.1 and the canonical block: the table of ``docs/message-properties.md``."""

from __future__ import annotations

from pathlib import Path

import pytest

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
from fluxmq.protocols.amqp091.content import (
    NO_PROPERTIES,
    BasicProperties,
    decode_properties,
    encode_properties,
)
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.message_properties import (
    address_of,
    block_headers,
    from_block,
    routing_key_to_topic,
    stream_properties,
    to_block,
    topic_to_routing_key,
)
from fluxmq.protocols.amqp091.tables import FieldTableError
from tests.unit.protocols.amqp091.test_content import EVERYTHING, EVERYTHING_RAW

PAGE = Path(__file__).resolve().parents[4] / "docs" / "message-properties.md"
MQTT = Item(PropertyKind.PROTOCOL, 1)
BROKERS = [
    Item(PropertyKind.PROTOCOL, 2),
    Item(PropertyKind.EXCHANGE, b"e"),
    Item(PropertyKind.PUBLISHER, b"me"),
]


def said(items: list[Item], **extra: object) -> BasicProperties:
    """What a consumer gets of a message that came by MQTT with these items."""
    return decode_properties(from_block(encode([*items, MQTT]), extra=extra))


def test_every_property() -> None:
    block = to_block(EVERYTHING_RAW, "e", "me")
    assert decode(block) == [
        *BROKERS,
        Item(PropertyKind.CONTENT_TYPE, b"text/plain"),
        Item(PropertyKind.CONTENT_ENCODING, b"gzip"),
        Item(PropertyKind.HEADER, Value("I", 1), b"a"),
        Item(PropertyKind.DELIVERY_MODE, 2),
        Item(PropertyKind.PRIORITY, 9),
        Item(PropertyKind.CORRELATION, b"c"),
        Item(PropertyKind.REPLY_TO, b"r"),
        Item(PropertyKind.EXPIRATION, b"1000"),
        Item(PropertyKind.MESSAGE_ID, b"m"),
        Item(PropertyKind.TIMESTAMP, 1_700_000_000),
        Item(PropertyKind.TYPE, b"t"),
        Item(PropertyKind.USER_ID, b"u"),
        Item(PropertyKind.APP_ID, b"ap"),
        Item(PropertyKind.CLUSTER_ID, b"cl"),
    ]
    assert from_block(block) == EVERYTHING_RAW


@pytest.mark.parametrize(
    "raw",
    [
        NO_PROPERTIES,
        pytest.param(b"\x20\0\0\0\0\0", id="no headers in the table"),
        pytest.param(b"\x80\0\1\xff", id="text that is not UTF-8"),
        pytest.param(b"\x20\0\0\0\0\7\1aV\1at\1", id="a name that stands twice"),
        pytest.param(b"\x20\0\0\0\0\3\1\xffV", id="a name that is not UTF-8"),
        pytest.param(b"\x20\0\0\0\0\x0c\x09client_idb\1", id="a name of the broker's"),
        pytest.param(b"\x20\0\0\0\0\x0c\7_dlq_xyB\1\0V", id="a name like a dead letter's"),
        pytest.param(b"\x20\0\0\0\0\x12\1as\0\1\1bu\0\2\1cD\1\xff\xff\xff\xff", id="types"),
    ],
)
def test_the_same_bytes_come_out(raw: bytes) -> None:
    assert from_block(to_block(raw, "e", "me")) == raw


def test_no_properties() -> None:
    assert decode(to_block(NO_PROPERTIES, "e", "me")) == BROKERS
    assert from_block(b"") == NO_PROPERTIES


@pytest.mark.parametrize("raw", [b"", b"\0\1", b"\x80\0\5a", b"\x20\0\0\0\0\4\1AZ\0"])
def test_what_are_no_properties(raw: bytes) -> None:
    with pytest.raises(HardError) as caught:
        to_block(raw, "e", "me")
    assert caught.value.code == 502


def test_what_is_no_block() -> None:
    for read in (from_block, stream_properties, block_headers):
        with pytest.raises(PropertyError):
            read(b"\xff")
    with pytest.raises(PropertyError):
        address_of(b"\xff", b"k")


def test_headers_that_are_dropped() -> None:
    raw = encode_properties(BasicProperties(headers={"BCC": ["x"], "CC": ["y"], "a": 1}))
    found = decode_properties(from_block(to_block(raw, "e", "me", drop=["BCC"])))
    assert found == BasicProperties(headers={"CC": ["y"], "a": 1})
    raw = encode_properties(BasicProperties(headers={"BCC": ["x"]}))
    assert from_block(to_block(raw, "e", "me", drop=["BCC"])) == b"\x20\0\0\0\0\0"


# --- headers that the broker adds ---


def test_extra_headers_take_the_place_of_the_publishers() -> None:
    raw = encode_properties(
        BasicProperties(headers={"x-delivery-count": "forged", "a": 1}, priority=1)
    )
    found = from_block(
        to_block(raw, "e", "me"),
        extra={"x-delivery-count": 2, "x-death": [{"count": 1, "time": Timestamp(5)}]},
    )
    assert list((decode_properties(found).headers or {}).items()) == [
        ("a", 1),
        ("x-delivery-count", 2),
        ("x-death", [{"count": 1, "time": Timestamp(5)}]),
    ]
    assert decode_properties(found).priority == 1
    # 64 bits, which is what RabbitMQ writes.
    assert b"\x10x-delivery-countl\0\0\0\0\0\0\0\2" in found
    assert b"\5countl\0\0\0\0\0\0\0\1\4timeT" in found


def test_an_extra_header_that_is_none() -> None:
    with pytest.raises(FieldTableError):
        from_block(b"", extra={"a": 1 << 64})
    with pytest.raises(FieldTableError):
        from_block(b"", extra={"n" * 256: 1})


@pytest.mark.parametrize(
    "properties",
    [
        BasicProperties(),
        EVERYTHING,
        BasicProperties(content_type="c", headers={"x-stream-offset": "forged"}),
    ],
)
def test_where_the_offset_of_a_stream_stands(properties: BasicProperties) -> None:
    block = to_block(encode_properties(properties), "e", "me")
    raw, at = stream_properties(block, extra={"b": 2})
    assert raw[at - 17 : at] == b"\x0fx-stream-offsetl"
    patched = raw[:at] + (77).to_bytes(8, "big") + raw[at + 8 :]
    assert patched == from_block(block, extra={"b": 2, "x-stream-offset": 77})


# --- what came by MQTT ---


@pytest.mark.parametrize(
    ("items", "properties"),
    [
        ([Item(PropertyKind.CONTENT_TYPE, b"c")], BasicProperties(content_type="c")),
        ([Item(PropertyKind.REPLY_TO, b"a/b")], BasicProperties(reply_to="a/b")),
        ([Item(PropertyKind.CORRELATION, b"c")], BasicProperties(correlation_id="c")),
        ([Item(PropertyKind.CORRELATION, b"")], BasicProperties(correlation_id="")),
        ([Item(PropertyKind.HEADER, text(b"v"), b"n")], BasicProperties(headers={"n": "v"})),
        (
            [Item(PropertyKind.PAYLOAD_FORMAT, 1)],
            BasicProperties(headers={"mqtt-payload-format": 1}),
        ),
        ([Item(PropertyKind.PUBLISHER, b"me")], BasicProperties(headers={"client_id": "me"})),
        (
            [Item(PropertyKind.CONTENT_TYPE, b"c" * 256)],
            BasicProperties(headers={"content-type": "c" * 256}),
        ),
        (
            [Item(PropertyKind.REPLY_TO, b"r" * 256)],
            BasicProperties(headers={"reply-to": "r" * 256}),
        ),
        (
            [Item(PropertyKind.CORRELATION, b"\xff")],
            BasicProperties(headers={"x-correlation-id": b"\xff"}),
        ),
        (
            [Item(PropertyKind.CORRELATION, b"c" * 256)],
            BasicProperties(headers={"x-correlation-id": b"c" * 256}),
        ),
        ([Item(PropertyKind.HEADER, text(b"v"), b"n" * 256)], BasicProperties()),
        (
            [
                Item(PropertyKind.HEADER, text(b"v"), b"n"),
                Item(PropertyKind.HEADER, Value("F", ((b"n" * 256, text(b"v")),)), b"m"),
            ],
            BasicProperties(headers={"n": "v"}),
        ),
        (
            [Item(PropertyKind.CONTENT_TYPE, b"first"), Item(PropertyKind.CONTENT_TYPE, b"second")],
            BasicProperties(content_type="first"),
        ),
        (
            [
                Item(PropertyKind.HEADER, text(b"forged"), b"client_id"),
                Item(PropertyKind.PUBLISHER, b"me"),
            ],
            BasicProperties(headers={"client_id": "me"}),
        ),
    ],
    ids=lambda each: str(each)[:60],
)
def test_mqtt(items: list[Item], properties: BasicProperties) -> None:
    headers = {**(properties.headers or {}), "protocol": "mqtt"}
    assert said(items) == properties._replace(headers=headers)


@pytest.mark.parametrize(
    ("protocol", "name"), [(1, "mqtt"), (9, "9"), (2, None), (3, None)], ids=str
)
def test_protocols(protocol: int, name: str | None) -> None:
    headers = decode_properties(from_block(encode([Item(PropertyKind.PROTOCOL, protocol)]))).headers
    assert headers == ({"protocol": name} if name else None)


def test_a_user_property_of_a_name_that_the_broker_says() -> None:
    forged = [Item(PropertyKind.HEADER, text(b"forged"), b"x-delivery-count")]
    assert said(forged, **{"x-delivery-count": 1}).headers == {
        "protocol": "mqtt",
        "x-delivery-count": 1,
    }


DEAD = [
    (Item(PropertyKind.DEAD_REASON, b"rejected"), "_dlq_reason", "rejected"),
    (Item(PropertyKind.DEAD_QUEUE, b"q"), "_dlq_original_queue", "q"),
    (Item(PropertyKind.DEAD_OFFSET, 7), "_dlq_original_id", "q:7"),
    (Item(PropertyKind.DEAD_KEY, b"a/b"), "_dlq_original_topic", "a/b"),
    (Item(PropertyKind.DEAD_GROUP, b"g"), "_dlq_group", "g"),
    (Item(PropertyKind.DEAD_ATTEMPTS, 5), "_dlq_delivery_count", 5),
    (
        Item(PropertyKind.DEAD_FIRST_TIME, 1_700_000_000_000_001),
        "_dlq_first_delivered_at",
        "2023-11-14T22:13:20.000001Z",
    ),
    (Item(PropertyKind.DEAD_TIME, 2**64 - 1), "_dlq_moved_at", "18446744073709551615"),
    (Item(PropertyKind.DEAD_TRANSFER, b"\x01\xff"), "_dlq_transfer_id", "01ff"),
]


@pytest.mark.parametrize("came_by", [1, 2])
def test_dead_letters(came_by: int) -> None:
    """Of every protocol's messages; a publisher's headers of these names do not count."""
    items = [
        Item(PropertyKind.PROTOCOL, came_by),
        Item(PropertyKind.HEADER, text(b"forged"), b"_dlq_reason"),
    ]
    block = encode([*items, *(item for item, _, _ in DEAD)])
    headers = decode_properties(from_block(block)).headers or {}
    headers.pop("protocol", None)
    assert headers == {name: value for _, name, value in DEAD}


def test_the_page_names_every_header_and_property() -> None:
    page = PAGE.read_text("utf-8")
    for _, name, _ in DEAD:
        assert f"`{name}`" in page
    for name in ("mqtt-payload-format", "x-correlation-id", "client_id", "protocol"):
        assert f"header `{name}`" in page
    for name in BasicProperties._fields:
        assert f"| {name.replace('_', '-')}" in page or name == "headers"


# --- addresses ---


@pytest.mark.parametrize("exchange", ["", "e", "é" * 127, "x" * 127, "x" * 128, "x" * 255])
def test_what_came_by_amqp_was_published_where_it_says(exchange: str) -> None:
    block = to_block(EVERYTHING_RAW, exchange, "me")
    assert address_of(block, b"a.b/c") == (exchange.encode(), b"a.b/c")


@pytest.mark.parametrize(
    ("key", "address"),
    [
        (b"a/b", (b"amq.topic", b"a.b")),
        (b"a/b.c", (b"amq.topic", b"a.b/c")),
        (b"/", (b"amq.topic", b".")),
        (b"$queue/orders", (b"", b"$queue/orders")),
        (b"$queue/orders/new", (b"", b"$queue/orders/new")),
        (b"$dlq/orders", (b"", b"$dlq/orders")),
        (b"$SYS/x", (b"amq.topic", b"$SYS.x")),
        (b"a" * 256, (b"amq.topic", b"a" * 255)),
        ("é".encode() * 128, (b"amq.topic", "é".encode() * 127)),
    ],
)
def test_what_came_by_mqtt_was_published_to_the_topic_exchange(
    key: bytes, address: tuple[bytes, bytes]
) -> None:
    assert address_of(encode([Item(PropertyKind.CONTENT_TYPE, b"c"), MQTT]), key) == address
    assert address_of(b"", key) == address


def test_headers_of_a_block() -> None:
    properties = EVERYTHING._replace(headers={"a": [1, {"b": None}], "\udcff": b"\xff"})
    assert block_headers(to_block(encode_properties(properties), "e", "me")) == properties.headers
    assert block_headers(encode([MQTT, Item(PropertyKind.HEADER, text(b"v"), b"n")])) == {"n": "v"}
    assert block_headers(b"") == {}


def test_topics_and_routing_keys() -> None:
    assert topic_to_routing_key(b"a/b.c/+*#") == b"a.b/c.+*#"
    assert routing_key_to_topic(b"a.b/c") == b"a/b.c"


def test_they_are_one_space() -> None:
    everything = bytes(range(256))
    assert routing_key_to_topic(topic_to_routing_key(everything)) == everything
