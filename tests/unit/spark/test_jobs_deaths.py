"""What dead letters say, the messages that they were, and at what pace messages are published."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from fluxmq_spark.jobs.dead_letter_rows import (
    DEATH,
    LETTER,
    UNKNOWN,
    DeadLetterRow,
    address_for,
    death_of,
    flatten,
    revive,
    time_of,
)
from fluxmq_spark.jobs.pace import paced
from fluxmq_spark.jobs.publishing import Publishing, derived_id
from fluxmq_spark.jobs.replay import address_in, letters_of

AT = 1_790_000_000_000_000
OF_SETTINGS = {
    "dead_reason": "rejected",
    "dead_queue": "orders",
    "dead_key": "$queue/orders/eu",
    "dead_group": "billing",
    "dead_attempts": "3",
    "dead_time": "2026-09-21T14:13:20.000Z",
    "content_type": "text/plain",
    "expiration": "1000",
}
X_DEATH = json.dumps(
    [
        {
            "count": 2,
            "reason": "expired",
            "queue": "jobs",
            "time": 1_790_000_000,
            "exchange": "",
            "routing-keys": ["jobs"],
        },
        {
            "count": 1,
            "reason": "rejected",
            "queue": "older",
            "time": 1,
            "exchange": "",
            "routing-keys": ["x"],
        },
    ]
)


def test_both_ways_to_die() -> None:
    """A dead-letter queue's properties, and the newest entry of a dead-letter exchange's header."""
    assert death_of("k", {}, OF_SETTINGS) == DeadLetterRow(
        "orders", "rejected", "$queue/orders/eu", "billing", 3, AT
    )
    assert death_of("k", {"x-death": X_DEATH}, {}) == DeadLetterRow(
        "jobs", "expired", "jobs", None, 2, AT, True
    )


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "[1]", '"x"', "null"])
def test_headers_that_say_nothing(text: str) -> None:
    """Anybody may publish a header of that name."""
    assert death_of("k", {"x-death": text}, {}) == DeadLetterRow(None, UNKNOWN, "k")


def test_times() -> None:
    """Seconds as AMQP has them, µs as the broker has them, and RFC 3339."""
    words = ("1790000000", str(AT), "2026-09-21T14:13:20Z", 1_790_000_000)
    assert [time_of(each) for each in words] == [AT] * 4
    assert [time_of(each) for each in ("", "soon", None)] == [None] * 3


def letters(*rows: dict[str, Any]) -> pa.RecordBatch:
    texts = pa.map_(pa.string(), pa.string())
    schema = pa.schema(
        [
            *(
                ("queue", pa.string()),
                ("offset", pa.int64()),
                ("timestamp", pa.timestamp("us", "UTC")),
            ),
            *(
                ("key", pa.string()),
                ("headers", texts),
                ("properties", texts),
                ("payload", pa.binary()),
            ),
        ]
    )
    whole = [
        {
            "queue": "$dlq/orders",
            "offset": number,
            "timestamp": datetime(2026, 9, 21, 14, 13, 20, 5, UTC),
            "key": "k",
            "payload": b"pay" * 200,
            **row,
            "headers": list(row.get("headers", {}).items()),
            "properties": list(row.get("properties", {}).items()),
        }
        for number, row in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist(whole, schema=schema)


def test_flatten() -> None:
    """One row each; a letter that does not say when it died, died when it came."""
    batch = letters({"properties": OF_SETTINGS}, {"headers": {"x-death": X_DEATH}}, {})
    (found,) = flatten([batch])
    assert found.schema.equals(DEATH)
    rows = found.to_pylist()
    assert [row["reason"] for row in rows] == ["rejected", "expired", UNKNOWN]
    assert [row["source"] for row in rows] == ["orders", "jobs", None]
    assert [row["died"] for row in rows] == [AT, AT, AT + 5]
    assert [(row["size"], len(row["sample"])) for row in rows] == [(600, 256)] * 3


@pytest.mark.parametrize(
    ("death", "address"),
    [
        (DeadLetterRow("orders", "rejected", "$queue/orders/eu"), "$queue/orders/eu"),
        (DeadLetterRow("orders", "rejected", "$queue/orders"), "orders"),
        (DeadLetterRow("orders", "rejected", "orders"), "orders"),
        (DeadLetterRow("orders", "rejected", ""), "orders"),
        (DeadLetterRow("orders", "rejected", "shop/7/orders"), "$queue/orders/shop/7/orders"),
        (DeadLetterRow("orders", "rejected", "a.#"), "orders"),
        (DeadLetterRow("orders", "rejected", "k" * 255), "orders"),
        (DeadLetterRow("jobs", "expired", "a.b", exchange=True), "jobs"),
        (DeadLetterRow(None, "unknown", "k"), None),
        (DeadLetterRow("", "unknown", "k"), None),
    ],
)
def test_addresses_of_the_revived(death: DeadLetterRow, address: str | None) -> None:
    """Back to the queue, with the key if there was one that an address can hold."""
    assert address_for(death) == address


def test_revive() -> None:
    """The message as it was: without marks of its death and without what would let it die again."""
    batch = letters(
        {"properties": OF_SETTINGS, "headers": {"colour": "red", "x-delivery-count": "3"}},
        {"headers": {"x-death": X_DEATH, "x-first-death-queue": "older"}},
        {},
    )
    (found,) = revive([batch], (), ())
    assert found.schema.equals(LETTER)
    first, second = found.to_pylist()
    assert first["routing_key"] == "$queue/orders/eu"
    assert dict(first["headers"]) == {"colour": "red", "x-redriven-from": "$dlq/orders/0"}
    assert dict(first["properties"]) == {"content_type": "text/plain"}
    assert first["payload"] == b"pay" * 200
    assert (second["routing_key"], dict(second["headers"])) == (
        "jobs",
        {"x-redriven-from": "$dlq/orders/1"},
    )
    (only,) = revive([batch], ("expired",), ())
    assert only.column("routing_key").to_pylist() == ["jobs"]
    (only,) = revive([batch], (), ("orders",))
    assert only.column("routing_key").to_pylist() == ["$queue/orders/eu"]


def test_replayed() -> None:
    """A replayed message says where it was, and has its key again on request."""
    row = {
        "origin": "orders/7",
        "source": "orders",
        "key": "$queue/orders/eu",
        "headers": [("colour", "red"), ("x-replayed-from", "x/1"), ("x-deduplication-id", "a:1")],
        "properties": [("priority", "3"), ("expiration", "9")],
        "payload": b"p",
    }
    texts = pa.map_(pa.string(), pa.string())
    names = {"origin": pa.string(), "source": pa.string(), "key": pa.string()}
    schema = pa.schema(
        [*names.items(), ("headers", texts), ("properties", texts), ("payload", pa.binary())]
    )
    batch = pa.RecordBatch.from_pylist([row], schema=schema)
    (plain,) = letters_of([batch], "again", False)
    assert plain.schema.equals(LETTER)
    assert plain.to_pylist() == [
        {
            "payload": b"p",
            "routing_key": "again",
            "headers": [("colour", "red"), ("x-replayed-from", "orders/7")],
            "properties": [("priority", "3")],
        }
    ]
    (keyed,) = letters_of([batch], "again", True)
    assert keyed.column("routing_key").to_pylist() == ["$queue/again/eu"]


@pytest.mark.parametrize(
    ("key", "source", "address"),
    [
        ("shop/7", "orders", "$queue/again/shop/7"),
        ("orders", "orders", "again"),
        ("", None, "again"),
        ("a/+", "orders", "again"),
        ("k" * 255, "orders", "again"),
        ("$queue/orders", "orders", "again"),
    ],
)
def test_keys_kept(key: str, source: str | None, address: str) -> None:
    """Where no address can say the key, the queue's name is enough."""
    assert address_in("again", key, source) == address


def test_pace() -> None:
    """Rows keep their order and never come earlier than the rate allows, in small pieces."""
    now = [100.0]
    slept: list[float] = []

    def sleep(amount: float) -> None:
        slept.append(amount)
        now[0] += amount

    batch = pa.RecordBatch.from_pydict({"n": list(range(25))})
    sent, times = [], []
    for piece in paced([batch, batch], 100, clock=lambda: now[0], sleep=sleep):
        sent += piece.column(0).to_pylist()
        times.append((now[0], len(sent)))
    assert sent == [*range(25), *range(25)]
    assert all(count <= 100 * (at - 100) + 5 + 1e-6 for at, count in times)
    assert sum(slept) == pytest.approx(0.45, abs=0.01)


def test_pace_is_not_slower_than_its_source() -> None:
    """Nothing sleeps when rows come more slowly than the rate."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    batch = pa.RecordBatch.from_pydict({"n": list(range(10))})

    def sleep(amount: float) -> None:
        raise AssertionError(f"slept {amount} s")

    assert sum(piece.num_rows for piece in paced([batch], 20, clock=clock, sleep=sleep)) == 10


def test_what_is_shown_and_derived() -> None:
    """A password is never shown; a long producer id becomes its hash, the same each time."""
    to = Publishing("amqp://me:secret@host:5672/vhost", False, 0, "")
    assert to.shown_url() == "amqp://host:5672/vhost"
    assert derived_id("replay", "a:b", "1-2") == "replay/a-b/1-2"
    long = derived_id("replay", "q" * 300)
    assert long == derived_id("replay", "q" * 300) != derived_id("replay", "r" * 300)
    assert len(long) < 100
