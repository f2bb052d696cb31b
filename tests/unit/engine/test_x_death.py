"""What a dead letter of an exchange says: RabbitMQ's x-death, told by examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fluxmq.engine import x_death
from fluxmq.engine.x_death import Letter, letter
from fluxmq.model.properties import Item, PropertyKind, Timestamp, Value, decode, encode, text
from fluxmq.protocols.amqp091.message_properties import address_of, block_headers
from fluxmq.protocols.amqp10.message import from_sections
from fluxmq.protocols.amqp10.message_template import template_of
from fluxmq.protocols.amqp10.types import Symbol
from fluxmq.queues.commands import DeadLetterReason
from tests.unit.protocols.amqp10.sections import encoded

TIME = 1_700_000_000_000_001
AMQP = [
    Item(PropertyKind.PROTOCOL, 2),
    Item(PropertyKind.EXCHANGE, b"orders"),
    Item(PropertyKind.PUBLISHER, b"guest"),
]


def deaths_of(headers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the header says."""
    found: list[dict[str, Any]] = headers["x-death"]
    return found


def die(
    block: bytes = b"",
    key: bytes = b"eu.new",
    queue: bytes = b"work",
    reason: int = DeadLetterReason.REJECTED,
    exchange: bytes = b"dlx",
    routing_key: bytes | None = None,
) -> Letter:
    """A death in queue work."""
    return letter(
        block or encode(AMQP),
        key,
        queue=queue,
        reason=reason,
        time=TIME,
        exchange=exchange,
        routing_key=routing_key,
    )


def test_the_first_death() -> None:
    dead = die()
    assert address_of(dead.block, dead.keys[0]) == (b"dlx", b"eu.new")
    assert block_headers(dead.block) == {
        "x-first-death-reason": "rejected",
        "x-first-death-queue": "work",
        "x-first-death-exchange": "orders",
        "x-death": [
            {
                "count": 1,
                "reason": "rejected",
                "queue": "work",
                "time": 1_700_000_000,
                "exchange": "orders",
                "routing-keys": ["eu.new"],
            }
        ],
    }
    (event,) = deaths_of(block_headers(dead.block))
    assert isinstance(event["time"], Timestamp)
    assert [item for item in decode(dead.block) if item.kind is not PropertyKind.HEADER] == [
        AMQP[0],
        Item(PropertyKind.EXCHANGE, b"dlx"),
        AMQP[2],
    ]


def test_deaths_are_counted_by_queue_and_reason_and_the_newest_is_first() -> None:
    dead = die()
    dead = die(dead.block, queue=b"retry", reason=DeadLetterReason.EXPIRED)
    dead = die(dead.block, queue=b"work")
    headers: dict[str, Any] = block_headers(dead.block)
    assert [(each["queue"], each["reason"], each["count"]) for each in headers["x-death"]] == [
        ("work", "rejected", 2),
        ("retry", "expired", 1),
    ]
    assert headers["x-death"][1]["exchange"] == "dlx"
    assert headers["x-first-death-exchange"] == "orders"
    assert headers["x-first-death-reason"] == "rejected"


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (DeadLetterReason.REJECTED, "rejected"),
        (DeadLetterReason.EXPIRED, "expired"),
        (DeadLetterReason.DELIVERY_LIMIT, "delivery_limit"),
        (DeadLetterReason.MAX_RETRIES, "delivery_limit"),
        (DeadLetterReason.MAX_LENGTH, "maxlen"),
    ],
)
def test_reasons(reason: int, word: str) -> None:
    assert block_headers(die(reason=reason).block)["x-first-death-reason"] == word


def test_an_expiration_is_told_and_does_not_count_again() -> None:
    dead = die(
        encode([*AMQP, Item(PropertyKind.EXPIRATION, b"5000")]), reason=DeadLetterReason.EXPIRED
    )
    (event,) = deaths_of(block_headers(dead.block))
    assert event["original-expiration"] == "5000"
    assert all(item.kind is not PropertyKind.EXPIRATION for item in decode(dead.block))


def test_copies_go_with_the_old_routing_key_only() -> None:
    copies = Item(PropertyKind.HEADER, Value("A", (text(b"a"), text(b"b"))), b"CC")
    block = encode([*AMQP, copies])
    dead = die(block)
    assert dead.keys == (b"eu.new", b"a", b"b")
    assert "CC" in block_headers(dead.block)
    dead = die(block, routing_key=b"new")
    assert dead.keys == (b"new",)
    assert "CC" not in block_headers(dead.block)
    (event,) = deaths_of(block_headers(dead.block))
    assert event["routing-keys"] == ["eu.new", "a", "b"]


def test_what_came_by_mqtt_was_published_to_the_topic_exchange() -> None:
    block = encode([Item(PropertyKind.HEADER, text(b"v"), b"k"), Item(PropertyKind.PROTOCOL, 1)])
    dead = die(block, key=b"shop/7")
    (event,) = deaths_of(block_headers(dead.block))
    assert (event["exchange"], event["routing-keys"]) == ("amq.topic", ["shop.7"])
    assert address_of(dead.block, dead.keys[0]) == (b"dlx", b"shop.7")
    assert block_headers(dead.block)["k"] == "v"


def test_what_a_dead_letter_queue_said_is_not_said_again() -> None:
    block = encode(
        [*AMQP, Item(PropertyKind.EMPTY_HEADERS, None), Item(PropertyKind.DEAD_QUEUE, b"other")]
    )
    kinds = {item.kind for item in decode(die(block).block)}
    assert not kinds & {PropertyKind.EMPTY_HEADERS, PropertyKind.DEAD_QUEUE}


@pytest.mark.parametrize("value", [text(b"x"), Value("A", (text(b"x"),)), Value("I", 1)])
def test_a_header_that_is_no_list_of_deaths(value: Value) -> None:
    dead = die(encode([*AMQP, Item(PropertyKind.HEADER, value, b"x-death")]))
    assert deaths_of(block_headers(dead.block))[0]["queue"] == "work"
    assert not dead.goes_round(b"x")


def test_deaths_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(x_death, "X_DEATHS_MAX", 3)
    dead = die()
    for number in range(5):
        dead = die(dead.block, queue=b"%d" % number)
    queues = [each["queue"] for each in deaths_of(block_headers(dead.block))]
    assert queues == ["4", "3", "2"]
    assert block_headers(dead.block)["x-first-death-queue"] == "work"


@pytest.mark.parametrize(
    ("events", "queue", "round_and_round"),
    [
        ([(b"work", DeadLetterReason.EXPIRED)], b"other", False),
        ([(b"work", DeadLetterReason.EXPIRED)], b"work", True),
        ([(b"work", DeadLetterReason.REJECTED)], b"work", False),
        (
            [(b"work", DeadLetterReason.EXPIRED), (b"retry", DeadLetterReason.EXPIRED)],
            b"work",
            True,
        ),
        (
            [(b"work", DeadLetterReason.EXPIRED), (b"retry", DeadLetterReason.REJECTED)],
            b"work",
            False,
        ),
        (
            [(b"work", DeadLetterReason.REJECTED), (b"retry", DeadLetterReason.EXPIRED)],
            b"work",
            False,
        ),
        (
            [(b"work", DeadLetterReason.REJECTED), (b"retry", DeadLetterReason.EXPIRED)],
            b"retry",
            True,
        ),
    ],
)
def test_a_circle_without_a_reject_in_it_is_one(
    events: list[tuple[bytes, int]], queue: bytes, round_and_round: bool
) -> None:
    (where, reason), *call_later = events
    dead = die(queue=where, reason=reason)
    for where, reason in call_later:
        dead = die(dead.block, queue=where, reason=reason)
    assert dead.goes_round(queue) is round_and_round


def amqp10(**annotations: object) -> bytes:
    """A message that came by AMQP 1.0."""
    said = {Symbol(name.replace("_", "-")): value for name, value in annotations.items()}
    message = from_sections(encoded(0x72, said) + encoded(0x74, {"a": "b"}) + encoded(0x75, b""))
    return message.block("orders", "guest")


def test_messages_of_amqp_1_0_die_as_others_do() -> None:
    dead = die(amqp10(x_cc=["other"], x_a="kept"))
    assert dead.keys == (b"eu.new", b"other")
    assert address_of(dead.block, dead.keys[0]) == (b"dlx", b"eu.new")
    headers = block_headers(dead.block)
    (event,) = deaths_of(headers)
    assert (event["exchange"], event["routing-keys"]) == ("orders", ["eu.new", "other"])
    assert (headers["x-a"], headers["a"], headers["CC"]) == ("kept", "b", ["other"])
    again = die(dead.block, routing_key=b"new")
    assert again.keys == (b"new",)
    (event,) = deaths_of(block_headers(again.block))
    assert event["count"] == 2
    assert "CC" not in block_headers(again.block)


def test_deaths_that_a_sender_by_amqp_1_0_returns_are_counted_on() -> None:
    once = template_of(die(amqp10()).block, b"k").message(b"")
    sent_again = from_sections(once).block("orders", "guest")
    dead = die(sent_again)
    (event,) = deaths_of(block_headers(dead.block))
    assert event["count"] == 2
    assert template_of(dead.block, b"k").message(b"").count(b"x-opt-deaths") == 1
