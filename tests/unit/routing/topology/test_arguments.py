"""Arguments of queues against RabbitMQ 3.10.8's recorded answers, and those of exchanges and bindings."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from fluxmq.model.properties import Timestamp
from fluxmq.routing.topology.arguments import (
    HASH_PROPERTIES,
    LENGTH_MAX,
    MILLISECONDS_MAX,
    QUEUE_KEYS,
    WEIGHT_MAX,
    QueueArguments,
    age_seconds,
    applies_to_type,
    check_binding,
    check_exchange,
    check_exchange_type,
    check_queue,
    consumer_timeout,
    parse_queue,
    queue_type,
    table_type,
)
from fluxmq.routing.topology.records import Binding, Exchange, QueueRecord
from fluxmq.routing.topology.refusals import Refusal

RECORDED = json.loads(
    Path(__file__).with_name("rabbitmq_3_10_queue_arguments.json").read_text("utf-8")
)
INTERNAL_ERROR = "541"
STRICTER = {"x-delivery-limit"}
"""Arguments with values that RabbitMQ takes and does nothing with."""


def _queue(arguments: dict[str, Any], **flags: Any) -> QueueRecord:
    owner = "me" if flags.get("exclusive") else ""
    return QueueRecord("/", "q", queue_type(arguments), arguments=arguments, owner=owner, **flags)


def _refused(queue: QueueRecord) -> str:
    try:
        check_queue(queue)
    except Refusal as refusal:
        return refusal.text if refusal.code == 406 else f"code {refusal.code}"
    return ""


@pytest.mark.parametrize(("arguments", "flags", "answer"), RECORDED)
def test_queues_are_refused_as_rabbitmq_refuses_them(
    arguments: dict[str, Any], flags: dict[str, bool], answer: str
) -> None:
    refused = _refused(_queue(arguments, **flags))
    if answer == INTERNAL_ERROR or (STRICTER & arguments.keys() and not answer):
        valid = all(type(arguments.get(key, 0)) is int for key in STRICTER)
        assert bool(refused) is (answer == INTERNAL_ERROR or not valid)
    else:
        assert refused == answer


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-message-ttl": 1.5}, "double"),
        ({"x-message-ttl": Decimal("1.5")}, "decimal"),
        ({"x-message-ttl": Timestamp(5)}, "timestamp"),
        ({"x-message-ttl": [1]}, "array"),
        ({"x-message-ttl": {"a": 1}}, "table"),
        ({"x-message-ttl": b"\xff"}, "longstr"),
    ],
)
def test_types_have_the_names_of_the_wire(arguments: dict[str, Any], text: str) -> None:
    assert _refused(_queue(arguments)).endswith(f'"expected integer, got {text}"')


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-length": LENGTH_MAX + 1},
        {"x-deduplication-header": 5},
        {"x": float},
        {"x": 1 << 70},
        {"x": "\ud800"},
        {"x": "a" * (129 << 10)},
        {"x-dead-letter-exchange": "\ud800"},
    ],
)
def test_what_cannot_be_kept_is_refused(arguments: dict[str, Any]) -> None:
    assert _refused(_queue(arguments))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("5", '"expected integer, got longstr"'),
        (True, '"expected integer, got bool"'),
        (0, "{value_zero,0}"),
        (-1, "{value_negative,-1}"),
        (MILLISECONDS_MAX + 1, "{value_too_large,315360000001}"),
    ],
)
def test_a_consumer_timeout_is_a_number_of_milliseconds(value: Any, why: str) -> None:
    """Of a queue and of a consumer: RabbitMQ has both since 3.12, here 0 is refused."""
    text = f"invalid arg 'x-consumer-timeout' for queue 'q' in vhost '/': {why}"
    assert _refused(_queue({"x-consumer-timeout": value})) == text
    with pytest.raises(Refusal) as refused:
        consumer_timeout({"x-consumer-timeout": value}, "queue 'q' in vhost '/'")
    assert (refused.value.code, refused.value.text) == (406, text)


def test_a_consumer_may_say_its_timeout() -> None:
    assert consumer_timeout({"x-consumer-timeout": MILLISECONDS_MAX}, "q") == MILLISECONDS_MAX
    assert consumer_timeout({}, "q") == 0
    assert parse_queue({"x-consumer-timeout": 5}).consumer_timeout == 5


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"x-queue-type": "quorum", "x-deliver-before-sync": True},
            "invalid arg 'x-deliver-before-sync' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue",
        ),
        (
            {"x-queue-type": "stream", "x-deliver-before-sync": False},
            "invalid arg 'x-deliver-before-sync' for queue 'q' in vhost '/' of queue type rabbit_stream_queue",
        ),
        (
            {"x-deliver-before-sync": "true"},
            "invalid arg 'x-deliver-before-sync' for queue 'q' in vhost '/': {unacceptable_type,longstr}",
        ),
        (
            {"x-deliver-before-sync": 1},
            "invalid arg 'x-deliver-before-sync' for queue 'q' in vhost '/': {unacceptable_type,signedint}",
        ),
        ({"x-deliver-before-sync": True}, ""),
        ({"x-deliver-before-sync": False}, ""),
    ],
)
def test_delivery_before_the_sync_is_for_classic_queues(
    arguments: dict[str, Any], text: str
) -> None:
    assert _refused(_queue(arguments, durable=True)) == text


def test_depth_of_arguments_is_bounded() -> None:
    nested: Any = 1
    for _ in range(100_000):
        nested = [nested]
    assert _refused(_queue({"x": nested})) == "invalid arguments for queue 'q' in vhost '/'"


def test_parsed_arguments_have_their_types() -> None:
    queue = _queue(
        {
            "x-queue-type": "stream",
            "x-max-age": "2h",
            "x-max-length-bytes": 5,
            "unknown": [1],
            "x-deduplication-header": "id",
        },
        durable=True,
    )
    wanted = QueueArguments(max_age=7200, max_length_bytes=5, deduplication_header="id")
    assert check_queue(queue) == parse_queue(queue.arguments) == wanted


def test_every_known_argument_has_a_field() -> None:
    names = {key.removeprefix("x-").replace("-", "_") for key in QUEUE_KEYS}
    assert names == set(QueueArguments.__dataclass_fields__)
    assert applies_to_type("x-max-age", "stream")
    assert not applies_to_type("x-max-age", "classic")
    assert not applies_to_type("x-unknown", "classic")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1s", 1), ("2m", 120), ("3h", 10_800), ("1D", 86_400), ("1M", 2_592_000), ("1Y", 31_536_000)],
)
def test_ages(text: str, seconds: int) -> None:
    assert age_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "D", "-1D", "1d", "1.5h", "1D ", "1D\n", "1" * 10 + "D", "٣D"]
)
def test_no_ages(text: str) -> None:
    assert age_seconds(text) == 0


def test_the_type_is_that_of_the_arguments_or_the_default() -> None:
    assert queue_type({}) == "classic"
    assert queue_type({}, "quorum") == "quorum"
    assert queue_type({"x-queue-type": "stream"}, "quorum") == "stream"
    assert queue_type({"x-queue-type": 5}) == "classic"


def test_a_queue_that_says_two_types_is_refused() -> None:
    queue = QueueRecord("/", "q", "quorum", durable=True, arguments={"x-queue-type": "classic"})
    assert "x-queue-type" in _refused(queue)


def _exchange_refused(kind: str, arguments: dict[str, Any]) -> str:
    try:
        check_exchange(Exchange("/", "e", kind, arguments=arguments))
    except Refusal as refusal:
        return refusal.text if refusal.code == 406 else f"code {refusal.code}"
    return ""


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        ("direct", {"alternate-exchange": "a"}, ""),
        ("direct", {"unknown": 5}, ""),
        (
            "direct",
            {"alternate-exchange": 4},
            "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'e' in vhost '/'",
        ),
        ("x-consistent-hash", {"hash-header": "a"}, ""),
        ("x-consistent-hash", {"hash-header": ""}, ""),
        (
            "x-consistent-hash",
            {"hash-header": "a", "hash-property": "message_id"},
            "hash-header and hash-property are mutually exclusive",
        ),
        ("x-consistent-hash", {"hash-property": "zork"}, "Unsupported property: zork"),
        (
            "x-consistent-hash",
            {"hash-header": 4},
            "invalid type 'signedint' for arg 'hash-header' in exchange 'e' in vhost '/'",
        ),
        ("direct", {"hash-property": "zork"}, ""),
        ("x-delayed-message", {"x-delayed-type": "topic"}, ""),
        *(
            (
                "x-delayed-message",
                wrong,
                "Invalid argument, 'x-delayed-type' must be an existing exchange type",
            )
            for wrong in (
                {},
                {"x-delayed-type": "zork"},
                {"x-delayed-type": 4},
                {"x-delayed-type": "x-delayed-message"},
            )
        ),
        (
            "x-delayed-message",
            {"x-delayed-type": "x-consistent-hash", "hash-property": "zork"},
            "Unsupported property: zork",
        ),
    ],
)
def test_exchanges(kind: str, arguments: dict[str, Any], text: str) -> None:
    assert _exchange_refused(kind, arguments) == text


@pytest.mark.parametrize("name", HASH_PROPERTIES)
def test_properties_that_are_hashed(name: str) -> None:
    assert not _exchange_refused("x-consistent-hash", {"hash-property": name})


def test_an_unknown_type_of_exchange_ends_the_connection() -> None:
    with pytest.raises(Refusal, match="unknown exchange type 'nope'") as caught:
        check_exchange_type(Exchange("/", "e", "nope"))
    assert caught.value.code == 503


def test_a_delaying_exchange_is_of_the_type_it_delays_for() -> None:
    delayed = Exchange("/", "e", "x-delayed-message", arguments={"x-delayed-type": "topic"})
    assert table_type(delayed) == "topic"
    assert table_type(Exchange("/", "e", "x-delayed-message")) == "direct"
    assert table_type(Exchange("/", "e", "fanout")) == "fanout"


def _binding_refused(source: Exchange, binding: Binding) -> str:
    try:
        check_binding(source, binding)
    except Refusal as refusal:
        return refusal.text if refusal.code == 406 else f"code {refusal.code}"
    return ""


@pytest.mark.parametrize(
    ("kind", "key", "arguments", "text"),
    [
        (
            "headers",
            "",
            {"x-match": "zork"},
            'Invalid x-match field value <<"zork">>; expected all, any, all-with-x, or any-with-x',
        ),
        (
            "headers",
            "",
            {"x-match": 4},
            "Invalid x-match field type signedint (value 4); expected longstr",
        ),
        *(
            ("headers", "", {"x-match": match}, "")
            for match in ("all", "any", "all-with-x", "any-with-x")
        ),
        ("headers", "", {"a": 4}, ""),
        ("direct", "", {"x-match": 4}, ""),
        *(
            ("x-consistent-hash", key, {}, f"The binding key must be an integer: <<{quoted}>>")
            for key, quoted in (
                ("abc", '"abc"'),
                (" 5", '" 5"'),
                ("", ""),
                ("5.0", '"5.0"'),
                ("٣", '"٣"'),
            )
        ),
        ("x-consistent-hash", "0", {}, "The binding key must be greater than 0"),
        ("x-consistent-hash", "-1", {}, "The binding key must be greater than 0"),
        ("x-consistent-hash", "3", {}, ""),
        ("x-consistent-hash", "+5", {}, ""),
        ("x-consistent-hash", str(WEIGHT_MAX), {}, ""),
        *(
            ("x-consistent-hash", key, {}, f"The binding key must not be greater than {WEIGHT_MAX}")
            for key in (str(WEIGHT_MAX + 1), "9" * 255)
        ),
    ],
)
def test_bindings(kind: str, key: str, arguments: dict[str, Any], text: str) -> None:
    binding = Binding("/", "e", "q", routing_key=key, arguments=arguments)
    assert _binding_refused(Exchange("/", "e", kind), binding) == text


def test_arguments_of_bindings_are_bounded() -> None:
    binding = Binding("/", "e", "q", arguments={"a": b"x" * (129 << 10)})
    with pytest.raises(Refusal, match="have more than"):
        check_binding(Exchange("/", "e"), binding)
