"""Properties of a message between MQTT 5 and the canonical block: the table of ``docs/message-properties.md``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluxmq.model.properties import Item, PropertyError, PropertyKind, Value, decode, encode, text
from fluxmq.protocols.mqtt.message_properties import (
    RESERVED_NAMES,
    RESERVED_PREFIX,
    from_block,
    from_items,
    to_block,
    to_items,
    user_properties,
    user_property,
)
from fluxmq.protocols.mqtt.packet_types import PacketType
from fluxmq.protocols.mqtt.properties import (
    Properties,
    encode_properties,
    parse_publish_properties,
)
from fluxmq.protocols.mqtt.reasons import ProtocolError
from fluxmq.protocols.mqtt.wire import decode_length

PAGE = Path(__file__).resolve().parents[4] / "docs" / "message-properties.md"


def forward(**attributes: Any) -> bytes:
    """Encoded properties without their length."""
    whole = encode_properties(Properties(**attributes), PacketType.PUBLISH)
    found = decode_length(whole, 0)
    assert found is not None
    return whole[found[1] :]


EVERYTHING = forward(
    payload_format_indicator=1,
    content_type="text/plain",
    response_topic="answers/1",
    correlation_data=b"\x00\xff",
    user_properties=[("a", "1"), ("a", ""), ("", "ü")],
)


def test_every_property_that_is_passed_on() -> None:
    assert to_items(EVERYTHING) == [
        Item(PropertyKind.PAYLOAD_FORMAT, 1),
        Item(PropertyKind.CONTENT_TYPE, b"text/plain"),
        Item(PropertyKind.REPLY_TO, b"answers/1"),
        Item(PropertyKind.CORRELATION, b"\x00\xff"),
        Item(PropertyKind.HEADER, text(b"1"), b"a"),
        Item(PropertyKind.HEADER, text(b""), b"a"),
        Item(PropertyKind.HEADER, text("ü".encode()), b""),
    ]
    assert decode(to_block(EVERYTHING)) == to_items(EVERYTHING)
    assert from_block(to_block(EVERYTHING)) == EVERYTHING


def test_any_order_is_kept() -> None:
    mixed = user_property(b"z", b"1") + forward(content_type="c") + user_property(b"a", b"2")
    assert parse_publish_properties(mixed, 9).forward == mixed
    assert from_block(to_block(mixed)) == mixed


def test_no_properties_are_no_block() -> None:
    assert to_block(b"") == b""
    assert from_block(b"") == b""


@pytest.mark.parametrize("raw", [b"\x02\0\0\0\1", b"\x23\0\1", b"\x26\0\1a", b"\x01", b"\xff"])
def test_what_is_no_property_to_pass_on(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        to_block(raw)


def test_what_is_no_block() -> None:
    with pytest.raises(PropertyError):
        from_block(b"\xff")


AMQP = [
    (Item(PropertyKind.CONTENT_ENCODING, b"gzip"), (b"content-encoding", b"gzip")),
    (Item(PropertyKind.DELIVERY_MODE, 2), (b"amqp-delivery-mode", b"2")),
    (Item(PropertyKind.PRIORITY, 9), (b"amqp-priority", b"9")),
    (Item(PropertyKind.EXPIRATION, b"1000"), (b"amqp-expiration", b"1000")),
    (Item(PropertyKind.MESSAGE_ID, b"m1"), (b"amqp-message-id", b"m1")),
    (Item(PropertyKind.TIMESTAMP, 1_700_000_000), (b"amqp-timestamp", b"1700000000")),
    (Item(PropertyKind.TYPE, b"t"), (b"amqp-type", b"t")),
    (Item(PropertyKind.USER_ID, b"u"), (b"amqp-user-id", b"u")),
    (Item(PropertyKind.APP_ID, b"a"), (b"amqp-app-id", b"a")),
    (Item(PropertyKind.CLUSTER_ID, b"c"), (b"amqp-cluster-id", b"c")),
    (Item(PropertyKind.PUBLISHER, b"client"), (b"client_id", b"client")),
    (Item(PropertyKind.PROTOCOL, 1), (b"protocol", b"mqtt")),
    (Item(PropertyKind.PROTOCOL, 2), (b"protocol", b"amqp")),
    (Item(PropertyKind.PROTOCOL, 3), (b"protocol", b"amqp1")),
    (Item(PropertyKind.PROTOCOL, 9), (b"protocol", b"9")),
    (Item(PropertyKind.EXCHANGE, b"orders"), (b"amqp-exchange", b"orders")),
    (Item(PropertyKind.DEAD_REASON, b"rejected"), (b"_dlq_reason", b"rejected")),
    (Item(PropertyKind.DEAD_KEY, b"a/b"), (b"_dlq_original_topic", b"a/b")),
    (Item(PropertyKind.DEAD_GROUP, b"g"), (b"_dlq_group", b"g")),
    (Item(PropertyKind.DEAD_ATTEMPTS, 5), (b"_dlq_delivery_count", b"5")),
    (
        Item(PropertyKind.DEAD_FIRST_TIME, 1_700_000_000_000_001),
        (b"_dlq_first_delivered_at", b"2023-11-14T22:13:20.000001Z"),
    ),
    (Item(PropertyKind.DEAD_TIME, 0), (b"_dlq_moved_at", b"1970-01-01T00:00:00Z")),
    (Item(PropertyKind.DEAD_TIME, 2**64 - 1), (b"_dlq_moved_at", b"18446744073709551615")),
    (Item(PropertyKind.DEAD_TRANSFER, b"\x01\xff"), (b"_dlq_transfer_id", b"01ff")),
    (Item(PropertyKind.REPLY_TO, b"not/a/#"), (b"reply-to", b"not/a/#")),
    (Item(PropertyKind.REPLY_TO, b""), (b"reply-to", b"")),
    (Item(PropertyKind.HEADER, Value("t", True), b"h"), (b"h", b"true")),
    (Item(PropertyKind.HEADER, Value("t", False), b"h"), (b"h", b"false")),
    (Item(PropertyKind.HEADER, Value("l", -5), b"h"), (b"h", b"-5")),
    (Item(PropertyKind.HEADER, Value("d", 0.5), b"h"), (b"h", b"0.5")),
    (Item(PropertyKind.HEADER, Value("D", (2, -314)), b"h"), (b"h", b"-3.14")),
    (Item(PropertyKind.HEADER, Value("T", 7), b"h"), (b"h", b"7")),
    (Item(PropertyKind.HEADER, Value("V", None), b"h"), (b"h", b"")),
]


@pytest.mark.parametrize(("item", "pair"), AMQP, ids=lambda each: str(each[0]))
def test_what_becomes_a_user_property(item: Item, pair: tuple[bytes, bytes]) -> None:
    assert from_items([item]) == user_property(*pair)


@pytest.mark.parametrize(
    "item",
    [
        Item(PropertyKind.EMPTY_HEADERS, None),
        Item(PropertyKind.PAYLOAD_FORMAT, 2),
        Item(PropertyKind.CONTENT_TYPE, b"\xff"),
        Item(PropertyKind.CONTENT_TYPE, b"a\0"),
        Item(PropertyKind.TYPE, bytes(65_536)),
        Item(PropertyKind.TYPE, b"x" * 65_536),
        Item(PropertyKind.CORRELATION, bytes(65_536)),
        Item(PropertyKind.HEADER, Value("x", b"bytes"), b"h"),
        Item(PropertyKind.HEADER, Value("A", ()), b"h"),
        Item(PropertyKind.HEADER, Value("F", ()), b"h"),
        Item(PropertyKind.HEADER, text(b"\xff"), b"h"),
        Item(PropertyKind.HEADER, text(b"v"), b"\xff"),
    ],
    ids=lambda item: f"{item.kind.name} {str(item.value)[:20]}",
)
def test_what_mqtt_cannot_say(item: Item) -> None:
    assert from_items([item]) == b""


def test_the_original_of_a_dead_letter() -> None:
    found = from_block(
        encode([Item(PropertyKind.DEAD_QUEUE, b"orders"), Item(PropertyKind.DEAD_OFFSET, 7)])
    )
    assert found == user_properties(
        [(b"_dlq_original_queue", b"orders"), (b"_dlq_original_id", b"orders:7")]
    )
    assert (
        from_items([Item(PropertyKind.DEAD_QUEUE, b"\xff"), Item(PropertyKind.DEAD_OFFSET, 7)])
        == b""
    )


def test_what_mqtt_has_once_is_said_once() -> None:
    items = [Item(PropertyKind.CONTENT_TYPE, b"a"), Item(PropertyKind.CONTENT_TYPE, b"b")]
    assert from_items(items) == forward(content_type="a")


@pytest.mark.parametrize("name", sorted({*RESERVED_NAMES, RESERVED_PREFIX + b"reason"}))
def test_a_publisher_cannot_forge_what_a_delivery_says(name: bytes) -> None:
    block = to_block(user_property(name, b"forged") + user_property(b"own", b"kept"))
    assert from_block(block, reserved=True) == user_property(b"own", b"kept")
    assert from_block(block) == user_property(name, b"forged") + user_property(b"own", b"kept")


def test_what_the_broker_knows_is_not_left_out() -> None:
    items = [Item(PropertyKind.PUBLISHER, b"c"), Item(PropertyKind.DEAD_REASON, b"r")]
    assert from_items(items, reserved=True) == from_items(items)


def test_the_page_names_every_kind_and_property() -> None:
    page = PAGE.read_text("utf-8")
    for kind in PropertyKind:
        assert f"| {int(kind)} | `{kind.name}` |" in page
    for _, (name, _) in AMQP:
        assert name == b"h" or f"`{name.decode()}`" in page
    for reserved in RESERVED_NAMES:
        assert f"`{reserved.decode()}`" in page


def test_a_user_property_too_long() -> None:
    with pytest.raises(ValueError, match="65 535"):
        user_property(b"a", bytes(65_536))
