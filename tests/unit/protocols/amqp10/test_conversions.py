"""Messages between AMQP 1.0 and the other protocols: the table of ``docs/message-properties.md``.

Longer than 500 lines because each cell of that table has a test, and a few helpers serve all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluxmq.model.amqp10_sections import MESSAGE_ANNOTATIONS, PropertyField, scan
from fluxmq.model.properties import Item, PropertyKind, Timestamp, Value, encode, text
from fluxmq.protocols.amqp091.content import (
    HEADERS,
    BasicProperties,
    decode_properties,
    encode_properties,
    read_fields,
)
from fluxmq.protocols.amqp091.message_properties import from_block, to_block
from fluxmq.protocols.amqp091.tables import read_values
from fluxmq.protocols.amqp10 import codec
from fluxmq.protocols.amqp10.message import from_sections
from fluxmq.protocols.amqp10.message_template import sections_of
from fluxmq.protocols.amqp10.types import (
    Array,
    Byte,
    Char,
    DecimalBits,
    Described,
    Float,
    Int,
    Milliseconds,
    Short,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
)
from fluxmq.protocols.mqtt import message_properties as mqtt
from fluxmq.protocols.mqtt.packet_types import PacketType
from fluxmq.protocols.mqtt.properties import Properties
from fluxmq.protocols.mqtt.properties import encode_properties as encode_mqtt
from fluxmq.protocols.mqtt.wire import decode_length
from tests.unit.protocols.amqp10.sections import encoded

PAGE = Path(__file__).resolve().parents[4] / "docs" / "message-properties.md"
UUID_5 = Uuid(bytes(15) + b"\5")
URN = "urn:uuid:00000000-0000-0000-0000-000000000005"
LONG = "y" * 256
DATA = encoded(0x75, b"body")


def fields(**said: Any) -> bytes:
    """A properties section."""
    values = [said.get(field.name.lower()) for field in PropertyField]
    return encoded(0x73, values)


def annotated(**said: Any) -> bytes:
    """An annotations section; underscores are hyphens."""
    return encoded(0x72, {Symbol(name.replace("_", "-")): value for name, value in said.items()})


def sent(*sections: bytes, body: bytes = DATA) -> tuple[bytes, bytes]:
    """Block and payload of a message that came by AMQP 1.0."""
    message = from_sections(b"".join((*sections, body)))
    return message.block("orders", "me"), message.payload


def by_amqp091(*sections: bytes, body: bytes = DATA) -> BasicProperties:
    """What a consumer by AMQP 0.9.1 gets of it."""
    return decode_properties(from_block(sent(*sections, body=body)[0]))


def by_mqtt(*sections: bytes, body: bytes = DATA) -> bytes:
    """The same by MQTT, without what is in every message."""
    found = mqtt.from_block(sent(*sections, body=body)[0])
    for name, value in (
        (b"protocol", b"amqp1"),
        (b"amqp-exchange", b"orders"),
        (b"client_id", b"me"),
    ):
        found = found.replace(mqtt.user_property(name, value), b"")
    return found


def forward(**attributes: Any) -> bytes:
    """Encoded properties of MQTT without their length."""
    whole = encode_mqtt(Properties(**attributes), PacketType.PUBLISH)
    found = decode_length(whole, 0)
    assert found is not None
    return whole[found[1] :]


def user(**pairs: str) -> bytes:
    """Encoded user properties; underscores are hyphens."""
    listed = [(name.replace("_", "-").encode(), value.encode()) for name, value in pairs.items()]
    return mqtt.user_properties(listed)


# --- sent by AMQP 1.0 ---


@pytest.mark.parametrize(
    ("section", "properties"),
    [
        pytest.param(encoded(0x70, [True]), {"delivery_mode": 2}, id="durable"),
        pytest.param(encoded(0x70, [False]), {"delivery_mode": 1}, id="not durable"),
        pytest.param(encoded(0x70, [None, UByte(7)]), {"priority": 7}, id="priority"),
        pytest.param(encoded(0x70, [None, None, UInt(500)]), {"expiration": "500"}, id="ttl"),
        pytest.param(fields(message_id="m"), {"message_id": "m"}, id="message-id string"),
        pytest.param(fields(message_id=UUID_5), {"message_id": URN}, id="message-id uuid"),
        pytest.param(fields(message_id=ULong(7)), {"message_id": "7"}, id="message-id ulong"),
        pytest.param(
            fields(message_id=b"m"), {"headers": {"x-message-id": b"m"}}, id="message-id binary"
        ),
        pytest.param(
            fields(message_id=LONG), {"headers": {"x-message-id": LONG}}, id="message-id long"
        ),
        pytest.param(fields(user_id=b"me"), {"user_id": "me"}, id="user-id"),
        pytest.param(fields(to="/queues/q", subject="s"), {}, id="to and subject"),
        pytest.param(fields(reply_to="/queues/a%2Fb"), {"reply_to": "a/b"}, id="reply-to a queue"),
        pytest.param(fields(reply_to="elsewhere"), {"reply_to": "elsewhere"}, id="reply-to"),
        pytest.param(fields(correlation_id="c"), {"correlation_id": "c"}, id="correlation-id"),
        pytest.param(fields(correlation_id=UUID_5), {"correlation_id": URN}, id="correlation uuid"),
        pytest.param(fields(correlation_id=ULong(7)), {"correlation_id": "7"}, id="correlation 7"),
        pytest.param(
            fields(correlation_id=b"c"), {"headers": {"x-correlation-id": b"c"}}, id="correlation b"
        ),
        pytest.param(
            fields(correlation_id=LONG),
            {"headers": {"x-correlation-id": LONG}},
            id="correlation long",
        ),
        pytest.param(
            fields(content_type=Symbol("text/plain")), {"content_type": "text/plain"}, id="type"
        ),
        pytest.param(
            fields(content_encoding=Symbol("gzip")), {"content_encoding": "gzip"}, id="encoding"
        ),
        pytest.param(
            fields(creation_time=Milliseconds(1_700_000_000_999)),
            {"timestamp": 1_700_000_000},
            id="creation-time",
        ),
        pytest.param(fields(group_id="g"), {"app_id": "g"}, id="group-id"),
        pytest.param(
            fields(
                absolute_expiry_time=Milliseconds(5),
                group_sequence=UInt(1),
                reply_to_group_id="g",
            ),
            {},
            id="what AMQP 0.9.1 does not have",
        ),
        pytest.param(
            encoded(0x74, {"a": Int(1), "x-b": "t"}),
            {"headers": {"a": 1, "x-b": "t"}},
            id="application properties",
        ),
        pytest.param(
            annotated(x_a=Int(1), x_basic_priority=UByte(1), other=Int(1), x_death="no"),
            {"headers": {"x-a": 1}},
            id="annotations",
        ),
        pytest.param(annotated(x_cc=["k"]), {"headers": {"CC": ["k"]}}, id="x-cc"),
        pytest.param(annotated(x_basic_type="t"), {"type": "t"}, id="x-basic-type"),
        pytest.param(
            annotated(
                x_opt_deaths=Array(
                    0xD1,
                    [
                        {
                            Symbol("ttl"): UInt(9),
                            Symbol("queue"): "q",
                            Symbol("reason"): Symbol("expired"),
                            Symbol("count"): ULong(2),
                            Symbol("first-time"): Milliseconds(1_700_000_000_000),
                            Symbol("last-time"): Milliseconds(1_700_000_009_000),
                            Symbol("exchange"): "e",
                            Symbol("routing-keys"): Array(0xB1, ["k"]),
                        }
                    ],
                )
            ),
            {
                "headers": {
                    "x-death": [
                        {
                            "count": 2,
                            "reason": "expired",
                            "queue": "q",
                            "time": Timestamp(1_700_000_000),
                            "exchange": "e",
                            "routing-keys": ["k"],
                            "original-expiration": "9",
                        }
                    ]
                }
            },
            id="x-opt-deaths",
        ),
    ],
)
def test_sent_by_amqp_1_0_consumed_by_amqp_0_9_1(
    section: bytes, properties: dict[str, Any]
) -> None:
    assert by_amqp091(section) == BasicProperties(**properties)


@pytest.mark.parametrize(
    ("section", "properties"),
    [
        pytest.param(encoded(0x70, [True]), user(amqp_delivery_mode="2"), id="durable"),
        pytest.param(encoded(0x70, [None, UByte(7)]), user(amqp_priority="7"), id="priority"),
        pytest.param(encoded(0x70, [None, None, UInt(5)]), user(amqp_expiration="5"), id="ttl"),
        pytest.param(fields(message_id="m"), user(amqp_message_id="m"), id="message-id"),
        pytest.param(fields(message_id=UUID_5), user(amqp_message_id=URN), id="message-id uuid"),
        pytest.param(fields(message_id=ULong(7)), user(amqp_message_id="7"), id="message-id ulong"),
        pytest.param(fields(user_id=b"me"), user(amqp_user_id="me"), id="user-id"),
        pytest.param(fields(to="/queues/q", subject="s"), b"", id="to and subject"),
        pytest.param(
            fields(reply_to="/exchanges/amq.topic/a.b%2Fc"),
            forward(response_topic="a/b.c"),
            id="reply-to a topic",
        ),
        pytest.param(
            fields(reply_to="/queues/q"), forward(response_topic="$queue/q"), id="reply-to a queue"
        ),
        pytest.param(
            fields(reply_to="/queues/a%2Fb"),
            user(reply_to="/queues/a%2Fb"),
            id="reply-to a queue that topics cannot name",
        ),
        pytest.param(fields(reply_to="x/y"), user(reply_to="x/y"), id="reply-to"),
        pytest.param(
            fields(correlation_id=b"\xff\0"),
            forward(correlation_data=b"\xff\0"),
            id="correlation-id binary",
        ),
        pytest.param(
            fields(correlation_id=LONG), forward(correlation_data=LONG.encode()), id="correlation"
        ),
        pytest.param(
            fields(correlation_id=UUID_5), forward(correlation_data=URN.encode()), id="corr. uuid"
        ),
        pytest.param(
            fields(correlation_id=ULong(7)), forward(correlation_data=b"7"), id="corr. ulong"
        ),
        pytest.param(
            fields(content_type=Symbol("text/plain")), forward(content_type="text/plain"), id="type"
        ),
        pytest.param(
            fields(content_encoding=Symbol("gzip")), user(content_encoding="gzip"), id="encoding"
        ),
        pytest.param(
            fields(creation_time=Milliseconds(7_999)), user(amqp_timestamp="7"), id="creation-time"
        ),
        pytest.param(fields(group_id="g"), user(amqp_app_id="g"), id="group-id"),
        pytest.param(
            fields(absolute_expiry_time=Milliseconds(5), group_sequence=UInt(1)),
            b"",
            id="what MQTT does not have",
        ),
        pytest.param(
            encoded(0x74, {"a": Int(1), "b": True, "c": "ü"}),
            user(a="1", b="true", c="ü"),
            id="application properties",
        ),
        pytest.param(annotated(x_a=Int(1), other=Int(1)), user(x_a="1"), id="annotations"),
        pytest.param(annotated(x_cc=["k"]), b"", id="x-cc"),
        pytest.param(annotated(x_opt_deaths=Array(0xD1, [])), b"", id="x-opt-deaths"),
        pytest.param(annotated(x_basic_type="t"), user(amqp_type="t"), id="x-basic-type"),
    ],
)
def test_sent_by_amqp_1_0_consumed_by_mqtt(section: bytes, properties: bytes) -> None:
    assert by_mqtt(section) == properties


VALUE = encoded(0x77, [Int(1)])
SEQUENCES = encoded(0x76, [Int(1)]) + encoded(0x76, ["b"])
TWO = encoded(0x75, b"a") + encoded(0x75, b"b")


@pytest.mark.parametrize(
    ("body", "payload", "kind"),
    [
        pytest.param(DATA, b"body", None, id="one data section"),
        pytest.param(encoded(0x77, "grüß"), "grüß".encode(), None, id="a string"),
        pytest.param(TWO, TWO, "amqp-1.0", id="two data sections"),
        pytest.param(SEQUENCES, SEQUENCES, "amqp-1.0", id="sequences"),
        pytest.param(VALUE, VALUE, "amqp-1.0", id="another value"),
    ],
)
def test_bodies_for_amqp_0_9_1(body: bytes, payload: bytes, kind: str | None) -> None:
    assert sent(body=body)[1] == payload
    assert by_amqp091(body=body) == BasicProperties(type=kind)


@pytest.mark.parametrize(
    ("body", "properties"),
    [
        pytest.param(DATA, {"content_type": "a/b"}, id="one data section"),
        pytest.param(
            encoded(0x77, "text"), {"payload_format_indicator": 1, "content_type": "a/b"}, id="text"
        ),
        pytest.param(VALUE, {"content_type": "message/vnd.rabbitmq.amqp"}, id="another value"),
        pytest.param(TWO, {"content_type": "message/vnd.rabbitmq.amqp"}, id="two data sections"),
    ],
)
def test_bodies_for_mqtt(body: bytes, properties: dict[str, Any]) -> None:
    assert by_mqtt(fields(content_type=Symbol("a/b")), body=body) == forward(**properties)


# --- received by AMQP 1.0 ---


def received(block: bytes, payload: bytes = b"body", **terms: Any) -> dict[int, Any]:
    """Sections of a delivery by their number, decoded; without what is in every message."""
    data = sections_of(block, b"key", payload, **terms)
    found: dict[int, Any] = {}
    for section in scan(data, 0, len(data)):
        value = codec.decode(data, section.value, section.end)[0]
        if section.code == MESSAGE_ANNOTATIONS:
            del value["x-exchange"], value["x-routing-key"]
        if value or section.code >= 0x75:
            found[section.code] = value
    return found


def of_amqp091(**properties: Any) -> bytes:
    """Block of a message that came by AMQP 0.9.1."""
    return to_block(encode_properties(BasicProperties(**properties)), "orders", "me")


def listed(**said: Any) -> list[Any]:
    """The values of a properties section, as sent."""
    values = [said.get(field.name.lower()) for field in PropertyField]
    while values and values[-1] is None:
        values.pop()
    return values


@pytest.mark.parametrize(
    ("properties", "sections"),
    [
        ({"message_id": "m"}, {0x73: listed(message_id="m")}),
        ({"message_id": URN}, {0x73: listed(message_id=UUID_5)}),
        ({"message_id": "7"}, {0x73: listed(message_id=ULong(7))}),
        ({"message_id": "007"}, {0x73: listed(message_id="007")}),
        ({"message_id": str(1 << 64)}, {0x73: listed(message_id=str(1 << 64))}),
        ({"headers": {"x-message-id": b"m"}}, {0x73: listed(message_id=b"m")}),
        ({"headers": {"x-message-id": LONG}}, {0x73: listed(message_id=LONG)}),
        ({"user_id": "me"}, {0x73: listed(user_id=b"me")}),
        ({"reply_to": "a/b ü"}, {0x73: listed(reply_to="/queues/a%2Fb%20%C3%BC")}),
        ({"correlation_id": "c"}, {0x73: listed(correlation_id="c")}),
        ({"correlation_id": URN}, {0x73: listed(correlation_id=UUID_5)}),
        ({"correlation_id": "7"}, {0x73: listed(correlation_id=ULong(7))}),
        ({"headers": {"x-correlation-id": b"\xff"}}, {0x73: listed(correlation_id=b"\xff")}),
        ({"content_type": "a/b"}, {0x73: listed(content_type=Symbol("a/b"))}),
        ({"content_type": "ü"}, {}),
        ({"content_encoding": "gzip"}, {0x73: listed(content_encoding=Symbol("gzip"))}),
        (
            {"timestamp": Timestamp(1_700_000_000)},
            {0x73: listed(creation_time=Milliseconds(1_700_000_000_000))},
        ),
        ({"app_id": "g"}, {0x73: listed(group_id="g")}),
        ({"type": "t"}, {0x72: {"x-basic-type": "t"}}),
        ({"cluster_id": "c"}, {}),
        (
            {"headers": {"a": 1, "x-b": 2, "list": [1], "table": {"t": 1}}},
            {0x72: {"x-b": Int(2)}, 0x74: {"a": Int(1)}},
        ),
        (
            {"headers": {"x-list": [1, "a"], "x-table": {"t": {}}}},
            {0x72: {"x-list": [Int(1), "a"], "x-table": {"t": {}}}},
        ),
        ({"headers": {"CC": ["k"]}}, {0x72: {"x-cc": ["k"]}}),
    ],
    ids=lambda each: str(each)[:50],
)
def test_published_by_amqp_0_9_1_received_by_amqp_1_0(
    properties: dict[str, Any], sections: dict[int, Any]
) -> None:
    found = received(of_amqp091(**properties))
    assert found.pop(0x75) == b"body"
    assert found.pop(0x70) == [False, None, None, True, UInt(0)]
    assert found == sections


@pytest.mark.parametrize(
    ("properties", "header"),
    [
        ({"delivery_mode": 2}, [True, None, None]),
        ({"delivery_mode": 1}, [False, None, None]),
        ({"priority": 9}, [False, UByte(9), None]),
        ({"expiration": "5000"}, [False, None, UInt(4000)]),
    ],
    ids=str,
)
def test_headers_of_messages_by_amqp_0_9_1(properties: dict[str, Any], header: list[Any]) -> None:
    ttl = 4000 if "expiration" in properties else None
    block = of_amqp091(**properties)
    found = received(block, ttl_ms=ttl, delivery_count=2, first_acquirer=False)
    assert found[0x70] == [*header, False, UInt(2)]


def test_deaths_by_amqp_0_9_1() -> None:
    death = {
        "count": 2,
        "reason": "expired",
        "queue": "q",
        "time": Timestamp(1_700_000_000),
        "exchange": "e",
        "routing-keys": ["k"],
        "original-expiration": "9",
    }
    (found,) = received(of_amqp091(headers={"x-death": [death]}))[0x72]["x-opt-deaths"].items
    assert found == {
        "ttl": 9,
        "queue": "q",
        "reason": "expired",
        "count": 2,
        "first-time": 1_700_000_000_000,
        "last-time": 1_700_000_000_000,
        "exchange": "e",
        "routing-keys": Array(0xB1, ["k"]),
    }
    assert type(found[Symbol("reason")]) is Symbol
    assert type(found[Symbol("count")]) is ULong


def test_bodies_that_were_published_encoded() -> None:
    block = of_amqp091(type="amqp-1.0")
    for body, code in ((VALUE, 0x77), (TWO, 0x75)):
        assert sections_of(block, b"key", body).endswith(body)
        assert code in received(block, body)
    for wrong in (b"", b"\0\x53", encoded(0x73, [])):
        assert received(block, wrong)[0x75] == wrong


def of_mqtt(**attributes: Any) -> bytes:
    """Block of a message that came by MQTT."""
    return encode([*mqtt.to_items(forward(**attributes)), Item(PropertyKind.PROTOCOL, 1)])


@pytest.mark.parametrize(
    ("attributes", "sections"),
    [
        ({"content_type": "a/b"}, {0x73: listed(content_type=Symbol("a/b"))}),
        ({"content_type": "ü"}, {}),
        ({"response_topic": "a/b.c"}, {0x73: listed(reply_to="/exchanges/amq.topic/a.b%2Fc")}),
        ({"response_topic": "$queue/q ü"}, {0x73: listed(reply_to="/queues/q%20%C3%BC")}),
        ({"correlation_data": b"c"}, {0x73: listed(correlation_id="c")}),
        ({"correlation_data": b"\xff"}, {0x73: listed(correlation_id=b"\xff")}),
        ({"correlation_data": URN.encode()}, {0x73: listed(correlation_id=UUID_5)}),
        ({"user_properties": [("a", "1"), ("a", "2"), ("b", "")]}, {0x74: {"a": "1", "b": ""}}),
        ({"user_properties": [("x-a", "1"), ("x-ü", "2")]}, {0x72: {"x-a": "1"}}),
    ],
    ids=lambda each: str(each)[:50],
)
def test_published_by_mqtt_received_by_amqp_1_0(
    attributes: dict[str, Any], sections: dict[int, Any]
) -> None:
    found = received(of_mqtt(**attributes), ttl_ms=1500)
    assert found.pop(0x75) == b"body"
    assert found.pop(0x70) == [True, None, UInt(1500), True, UInt(0)]
    assert found.pop(0x74) == {**sections.pop(0x74, {}), "protocol": "mqtt"}
    assert found == sections


def test_the_publisher_by_mqtt() -> None:
    block = encode([Item(PropertyKind.PUBLISHER, b"me"), Item(PropertyKind.PROTOCOL, 1)])
    assert received(block)[0x74] == {"client_id": "me", "protocol": "mqtt"}


def test_text_by_mqtt() -> None:
    block = of_mqtt(payload_format_indicator=1)
    assert received(block, "grüß".encode())[0x77] == "grüß"
    assert received(block, b"\xff")[0x75] == b"\xff"
    assert received(of_mqtt(payload_format_indicator=0), b"text")[0x75] == b"text"


def test_the_address_of_a_delivery() -> None:
    def address(block: bytes, key: bytes) -> tuple[str, str]:
        data = sections_of(block, key, b"")
        (found,) = [each for each in scan(data, 0, len(data)) if each.code == MESSAGE_ANNOTATIONS]
        value = codec.decode(data, found.value, found.end)[0]
        return value["x-exchange"], value["x-routing-key"]

    assert address(of_amqp091(), b"a.b") == ("orders", "a.b")
    assert address(of_mqtt(), b"a/b.c") == ("amq.topic", "a.b/c")
    assert address(of_mqtt(), b"$queue/q/k") == ("", "$queue/q/k")
    assert address(sent()[0], b"k") == ("orders", "k")


# --- values ---

BOTH = [
    (None, Value("V", None)),
    (True, Value("t", True)),
    (UByte(5), Value("B", 5)),
    (UShort(5), Value("u", 5)),
    (UInt(5), Value("i", 5)),
    (Byte(-5), Value("b", -5)),
    (Short(-5), Value("s", -5)),
    (Int(-5), Value("I", -5)),
    (-5, Value("l", -5)),
    (Float(1.5), Value("f", 1.5)),
    (2.5, Value("d", 2.5)),
    (Milliseconds(7000), Value("T", 7)),
    ("ü", text("ü".encode())),
    (b"\xff", Value("x", b"\xff")),
]


@pytest.mark.parametrize(("one", "other"), BOTH, ids=str)
def test_values_keep_their_type_both_ways(one: Any, other: Value) -> None:
    there = decode_headers(sent(encoded(0x74, {"a": one}))[0])
    assert there == {b"a": other}
    block = encode([Item(PropertyKind.PROTOCOL, 2), Item(PropertyKind.HEADER, other, b"a")])
    back = received(block)[0x74]["a"]
    assert (back, type(back)) == (one, type(one))


@pytest.mark.parametrize(
    ("value", "header"),
    [
        (ULong(5), Value("l", 5)),
        (ULong(1 << 63), text(b"9223372036854775808")),
        (Symbol("s"), text(b"s")),
        (Char("ü"), text("ü".encode())),
        (UUID_5, text(URN.encode())),
        (DecimalBits(b"1234"), Value("x", b"1234")),
        (Milliseconds(-1), Value("T", 0)),
    ],
    ids=str,
)
def test_values_that_amqp_0_9_1_does_not_have(value: Any, header: Value) -> None:
    assert decode_headers(sent(encoded(0x74, {"a": value}))[0]) == {b"a": header}


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ([Int(1), "a"], Value("A", (Value("I", 1), text(b"a")))),
        (Array(0xA3 + 0x10, [Symbol("s")]), Value("A", (text(b"s"),))),
        (
            {"k": {Symbol("s"): None}},
            Value("F", ((b"k", Value("F", ((b"s", Value("V", None)),))),)),
        ),
        (Described(Symbol("d"), Int(1)), Value("I", 1)),
    ],
    ids=str,
)
def test_annotations_may_have_values_inside_values(value: Any, header: Value) -> None:
    assert decode_headers(sent(annotated(x_a=value))[0]) == {b"x-a": header}


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (Value("D", (2, -150)), "-1.50"),
        (text(b"\xff"), b"\xff"),
        (Value("T", (1 << 64) - 1), Milliseconds((1 << 63) - 1)),
    ],
    ids=str,
)
def test_values_that_amqp_1_0_does_not_have(header: Value, value: Any) -> None:
    block = encode([Item(PropertyKind.PROTOCOL, 2), Item(PropertyKind.HEADER, header, b"a")])
    assert received(block)[0x74] == {"a": value}


def decode_headers(block: bytes) -> dict[bytes, Value]:
    """Headers that a consumer by AMQP 0.9.1 gets, with their types."""
    raw = read_fields(from_block(block))[HEADERS]
    return dict(read_values(raw or b""))


def test_the_page_names_every_field() -> None:
    page = PAGE.read_text("utf-8")
    for field in PropertyField:
        assert field.name.lower().replace("_", "-") in page
