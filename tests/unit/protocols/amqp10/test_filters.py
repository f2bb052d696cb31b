"""Filters of a source: each kind, what is refused, and messages of all protocols."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.model.properties import Item, PropertyKind, Timestamp, encode
from fluxmq.protocols.amqp091.content import BasicProperties, encode_properties
from fluxmq.protocols.amqp091.message_properties import to_block
from fluxmq.protocols.amqp10.filters import (
    BLOCKS_MAX,
    FILTERS_MAX,
    VALUES_MAX,
    FilterError,
    SourceFilters,
    read_filters,
)
from fluxmq.protocols.amqp10.types import (
    Array,
    Described,
    Int,
    Milliseconds,
    Symbol,
    UByte,
    UInt,
    ULong,
    Uuid,
)
from fluxmq.protocols.mqtt import message_properties as mqtt
from tests.unit.protocols.amqp10.sections import encoded
from tests.unit.protocols.amqp10.test_conversions import annotated, fields, of_mqtt, sent

NOW = 1_700_000_000_000
UUID_5 = Uuid(bytes(15) + b"\5")


def described(kind: str | int, value: object) -> Described:
    """A filter."""
    return Described(ULong(kind) if isinstance(kind, int) else Symbol(kind), value)


def passes(block: bytes, *each: Described) -> bool:
    """Whether a message passes these filters."""
    found = read_filters({Symbol(f"filter-{n}"): value for n, value in enumerate(each)})
    return found.messages is None or found.messages.matches(block, NOW)


def message(*sections: bytes) -> bytes:
    """Block of a message by AMQP 1.0."""
    return sent(*sections)[0]


def sql(text: str) -> Described:
    """A filter with a selector of AMQP."""
    return described("amqp:sql-filter", text)


def jms(text: str) -> Described:
    """A filter with a selector of JMS."""
    return described("apache.org:selector-filter:string", text)


@pytest.mark.parametrize(
    ("value", "offset"),
    [
        ("first", "first"),
        (Symbol("next"), "next"),
        ("10m", "10m"),
        (ULong(7), 7),
        (0, 0),
        (Milliseconds(1_700_000_000_999), Timestamp(1_700_000_000)),
    ],
    ids=repr,
)
def test_offsets(value: object, offset: object) -> None:
    found = read_filters({Symbol("any"): described("rabbitmq:stream-offset-spec", value)})
    assert found.offset == offset
    assert type(found.offset) is type(offset)
    older = read_filters({Symbol("rabbitmq:stream-offset-spec"): value})
    assert (older.offset, list(older.effective)) == (offset, ["rabbitmq:stream-offset-spec"])


def test_values_of_streams() -> None:
    eu, us = (message(annotated(x_stream_filter_value=each)) for each in ("eu", "us"))
    none = message()
    one = described("rabbitmq:stream-filter", "eu")
    more = described("rabbitmq:stream-filter", ["eu", "asia"])
    array = described("rabbitmq:stream-filter", Array(0xB1, ["eu"]))
    too = described("rabbitmq:stream-match-unfiltered", True)
    for each in (one, more, array):
        assert [passes(block, each) for block in (eu, us, none)] == [True, False, False]
        assert [passes(block, each, too) for block in (eu, us, none)] == [True, False, True]
    assert passes(us, too)
    by_amqp091 = to_block(
        encode_properties(BasicProperties(headers={"x-stream-filter-value": "eu"})), "", "me"
    )
    assert passes(by_amqp091, one)


def test_property_filters() -> None:
    block = message(
        fields(
            message_id=UUID_5,
            user_id=b"me",
            to="/queues/q",
            subject="&orders.new",
            correlation_id=ULong(7),
            content_type=Symbol("a/b"),
            creation_time=Milliseconds(5),
            group_sequence=UInt(3),
        )
    )

    def matches(**expected: Any) -> bool:
        named = {Symbol(name.replace("_", "-")): value for name, value in expected.items()}
        return passes(block, described(0x173, named))

    assert matches(
        message_id=UUID_5,
        user_id=b"me",
        to="/queues/q",
        correlation_id=ULong(7),
        content_type=Symbol("a/b"),
        creation_time=Milliseconds(5),
        group_sequence=UInt(3),
        reply_to=None,
    )
    assert matches(subject="&&orders.new")
    assert matches(subject="&p:&ord")
    assert matches(subject="&s:.new")
    assert not matches(subject="&s:.old")
    assert not matches(subject="&p:orders")
    assert not matches(message_id="5")
    assert not matches(to="/queues/q", user_id=b"you")
    assert not matches(group_id="g")


def test_application_property_filters() -> None:
    block = message(encoded(0x74, {"region": "eu", "price": 1.0, "paid": True, "none": None}))

    def matches(**expected: Any) -> bool:
        return passes(block, described("amqp:application-properties-filter", expected))

    assert matches(region="eu", price=Int(1), paid=True)
    assert matches(region="&p:e")
    assert matches(anything=None)
    assert not matches(paid=Int(1))
    assert not matches(region="us")
    assert not matches(missing="eu")
    assert not matches(none="eu")


def test_all_filters_must_match() -> None:
    block = message(fields(subject="s"), encoded(0x74, {"a": "b"}))
    right = described(0x173, {Symbol("subject"): "s"})
    assert passes(block, right, described(0x174, {"a": "b"}))
    assert not passes(block, right, described(0x174, {"a": "c"}))
    assert not passes(block, right, sql("a = 'c'"))


@pytest.mark.parametrize(
    "text",
    [
        "header.priority = 7 AND h.priority = 7 AND header.durable",
        "properties.subject LIKE 's%' AND p.subject = 's'",
        "properties.creation_time = 5 AND properties.group_sequence = 3",
        "application_properties.region = 'eu' AND a.region = 'eu' AND region = 'eu'",
        "application-properties.region = 'eu'",
        "[region] = 'eu'",
        "[a.b] = 1",
        "p.message_id = 0x00000000000000000000000000000005",
        "p.to IS NULL AND missing IS NULL",
        "UTC() = 1700000000000",
    ],
)
def test_names_of_sections(text: str) -> None:
    block = message(
        encoded(0x70, [True, UByte(7)]),
        fields(
            message_id=UUID_5, subject="s", creation_time=Milliseconds(5), group_sequence=UInt(3)
        ),
        encoded(0x74, {"region": "eu", "b": Int(1)}),
    )
    assert passes(block, sql(text))


@pytest.mark.parametrize(
    "text",
    [
        "JMSDeliveryMode = 'PERSISTENT' AND JMSPriority = 7",
        "JMSMessageID = 'ID:AMQP_UUID:00000000-0000-0000-0000-000000000005'",
        "JMSCorrelationID = 'ID:AMQP_ULONG:7' AND JMSTimestamp = 5",
        "JMSType = 's' AND JMSXGroupID = 'g' AND JMSXGroupSeq = 3 AND JMSXUserID = 'me'",
        "amqp.subject = 's' AND amqp.priority = 7 AND amqp.nothing IS NULL",
        "region IN ('eu', 'us') AND dotted.name = 1 AND JMSFoo IS NULL",
    ],
)
def test_names_of_jms(text: str) -> None:
    block = message(
        encoded(0x70, [True, UByte(7)]),
        fields(
            message_id=UUID_5,
            user_id=b"me",
            subject="s",
            correlation_id=ULong(7),
            creation_time=Milliseconds(5),
            group_id="g",
            group_sequence=UInt(3),
        ),
        encoded(0x74, {"region": "eu", "dotted.name": Int(1)}),
    )
    assert passes(block, jms(text))


@pytest.mark.parametrize(
    ("message_id", "shown"),
    [
        ("ID:1", "ID:1"),
        ("1", "ID:AMQP_NO_PREFIX:1"),
        (b"\xab", "ID:AMQP_BINARY:AB"),
        (ULong(1), "ID:AMQP_ULONG:1"),
    ],
    ids=repr,
)
def test_message_ids_as_clients_of_jms_show_them(message_id: Any, shown: str) -> None:
    assert passes(message(fields(message_id=message_id)), jms(f"JMSMessageID = '{shown}'"))


def test_defaults_of_a_header() -> None:
    assert passes(message(), jms("JMSPriority = 4 AND JMSDeliveryMode = 'NON_PERSISTENT'"))


def test_messages_of_other_protocols() -> None:
    by_amqp091 = to_block(
        encode_properties(
            BasicProperties(headers={"region": "eu"}, priority=7, delivery_mode=2, message_id="m")
        ),
        "orders",
        "me",
    )
    assert passes(by_amqp091, sql("region = 'eu' AND h.priority = 7 AND p.message_id = 'm'"))
    by_mqtt = of_mqtt(user_properties=[("region", "eu")], content_type="a/b")
    assert passes(by_mqtt, sql("region = 'eu' AND h.durable AND p.content_type = 'a/b'"))
    assert mqtt.from_block(by_mqtt)


def test_a_block_that_cannot_be_read_does_not_match() -> None:
    assert not passes(b"\xff", sql("TRUE"))
    assert not passes(encode([Item(PropertyKind.AMQP10, b"\0\x40")]), sql("TRUE"))


def test_filters_of_other_kinds_are_not_in_place() -> None:
    known = described("rabbitmq:stream-offset-spec", "first")
    found = read_filters(
        {
            Symbol("a"): described("some:other", 1),
            Symbol("b"): described(0x999, 1),
            Symbol("c"): "no filter",
            Symbol("e"): described("apache.org:no-local-filter:list", []),
            Symbol("d"): known,
        }
    )
    assert found == SourceFilters(offset="first", effective={"d": known})
    assert read_filters(None) == read_filters({}) == SourceFilters()


@pytest.mark.parametrize(
    ("each", "why"),
    [
        (described("rabbitmq:stream-offset-spec", -1), "an offset or a timestamp"),
        (described("rabbitmq:stream-offset-spec", True), "an offset or a timestamp"),
        (described("rabbitmq:stream-offset-spec", 1.5), "an offset or a timestamp"),
        (described("rabbitmq:stream-filter", []), "one to 128 texts"),
        (described("rabbitmq:stream-filter", ["a", Int(1)]), "one to 128 texts"),
        (described("rabbitmq:stream-filter", ["a"] * (VALUES_MAX + 1)), "one to 128 texts"),
        (described("rabbitmq:stream-match-unfiltered", "yes"), "a boolean"),
        (described(0x173, {}), "one to 16 entries"),
        (described(0x173, "x"), "one to 16 entries"),
        (described(0x173, {Symbol("other"): "x"}), "no field"),
        (described(0x173, {"subject": "x"}), "no field"),
        (described(0x173, {Symbol("subject"): Symbol("x")}), "another type"),
        (described(0x173, {Symbol("message-id"): Int(1)}), "another type"),
        (described(0x173, {Symbol("subject"): "&x:1"}), "&p:, &s: and && are known"),
        (described(0x174, {Symbol("a"): "x"}), "names are strings"),
        (described(0x174, {"a": ["x"]}), "a value of type list"),
        (described(0x174, {str(n): "x" for n in range(FILTERS_MAX + 1)}), "one to 16 entries"),
        (sql("a ="), "amqp:sql-filter: unexpected"),
        (sql("q.other = 1"), "no field 'q.other'"),
        (sql("p.other = 1"), "no field 'p.other'"),
        (sql("h.ttl = 1"), "no field 'h.ttl'"),
        (sql("a. = 1"), "no field"),
        (jms("a ="), "selector-filter:string: unexpected"),
        (described(0x120, b"x"), "a string is due"),
    ],
    ids=repr,
)
def test_invalid_filters_are_refused(each: Described, why: str) -> None:
    with pytest.raises(FilterError, match=why) as refused:
        read_filters({Symbol("f"): each})
    assert refused.value.condition == "amqp:invalid-field"


def test_one_filter_of_each_kind() -> None:
    with pytest.raises(FilterError, match="two filters amqp:sql-filter"):
        read_filters({Symbol("a"): sql("TRUE"), Symbol("b"): sql("TRUE")})
    with pytest.raises(FilterError, match="more than 16 filters"):
        read_filters({Symbol(str(n)): sql("TRUE") for n in range(FILTERS_MAX + 1)})


def test_answers_are_remembered_for_equal_blocks_only_while_they_hold() -> None:
    clock = read_filters({Symbol("f"): sql("UTC() < 1700000000001")}).messages
    assert clock is not None
    assert clock.matches(message(), NOW)
    assert not clock.matches(message(), NOW + 1)
    plain = read_filters({Symbol("f"): sql("n < 5")}).messages
    assert plain is not None
    for number in range(BLOCKS_MAX + 5):
        block = message(encoded(0x74, {"n": number}))
        assert plain.matches(block, NOW) is (number < 5)
        assert plain.matches(block, NOW) is (number < 5)
