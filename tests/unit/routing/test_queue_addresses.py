"""Addresses of queues: what topics and filters mean, and the topics of deliveries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.routing.queue_addresses import (
    QUEUE_NAME_BYTES_MAX,
    VERBS,
    MalformedAddressError,
    QueueAddress,
    QueueFilter,
    address_of,
    delivery_topic,
    effective_group,
    is_reachable_name,
    key_of,
    parse_filter,
    parse_publish,
)
from fluxmq.routing.topics import matches

LONGEST = b"q" * QUEUE_NAME_BYTES_MAX


@pytest.mark.parametrize(
    ("topic", "queue", "key", "verb"),
    [
        (b"$queue/orders", b"orders", b"", ""),
        (b"$queue/orders/", b"orders", b"", ""),
        (b"$queue/orders/eu/1", b"orders", b"eu/1", ""),
        (b"$queue/orders//x", b"orders", b"/x", ""),
        (b"$queue/orders/$ack", b"orders", b"", "ack"),
        (b"$queue/orders/eu/1/$nack", b"orders", b"eu/1", "nack"),
        (b"$queue/orders/$reject", b"orders", b"", "reject"),
        (b"$queue/orders/$commit", b"orders", b"", "commit"),
        (b"$queue/orders/$acknowledge", b"orders", b"$acknowledge", ""),
        (b"$queue/orders/a$ack/b", b"orders", b"a$ack/b", ""),
        (b"$dlq/orders", b"$dlq/orders", b"", ""),
        (b"$dlq/orders/eu/$ack", b"$dlq/orders", b"eu", "ack"),
        (b"$queue/two words \xc3\xa9", b"two words \xc3\xa9", b"", ""),
        (b"$queue/" + LONGEST, LONGEST, b"", ""),
    ],
)
def test_publishes(topic: bytes, queue: bytes, key: bytes, verb: str) -> None:
    assert parse_publish(topic) == QueueAddress(queue, key, verb)


@pytest.mark.parametrize(
    "topic",
    [b"orders", b"$queues/x", b"$queue", b"$dlq", b"a/$queue/x", b"$SYS/x", b"$share/g/$queue/x"],
)
def test_ordinary_topics(topic: bytes) -> None:
    assert parse_publish(topic) is None
    assert parse_filter(topic) is None
    assert key_of(topic) == topic


@pytest.mark.parametrize(
    "topic",
    [
        b"$queue/",
        b"$queue//key",
        b"$dlq/",
        b"$queue/$ack",
        b"$queue/$dlq/orders",
        b"$dlq/$dlq/x",
        b"$queue/a\x1fb",
        b"$queue/a\x7f",
        b"$queue/" + LONGEST + b"q",
        b"$queue/orders/$ack/more",
        b"$queue/orders/$ack/$nack",
        b"$queue/orders/a/$commit/b",
        b"$queue/orders/$ack/",
    ],
)
def test_malformed_addresses(topic: bytes) -> None:
    with pytest.raises(MalformedAddressError):
        parse_publish(topic)


@pytest.mark.parametrize(
    ("topic_filter", "queue", "pattern"),
    [
        (b"$queue/orders", b"orders", b""),
        (b"$queue/orders/#", b"orders", b""),
        (b"$queue/orders/eu/#", b"orders", b"eu/#"),
        (b"$queue/orders/+/new", b"orders", b"+/new"),
        (b"$dlq/orders", b"$dlq/orders", b""),
        (b"$dlq/orders/eu", b"$dlq/orders", b"eu"),
    ],
)
def test_filters(topic_filter: bytes, queue: bytes, pattern: bytes) -> None:
    assert parse_filter(topic_filter) == QueueFilter(queue, pattern)


@pytest.mark.parametrize(
    "topic_filter",
    [
        b"$queue/#",
        b"$queue/+",
        b"$queue/+/a",
        b"$dlq/#",
        b"$queue/",
        b"$queue/orders/$ack",
        b"$queue/orders/+/$nack",
        b"$queue/$dlq/orders",
    ],
)
def test_filters_of_no_queue(topic_filter: bytes) -> None:
    with pytest.raises(MalformedAddressError):
        parse_filter(topic_filter)


def test_every_pattern_has_its_group() -> None:
    assert effective_group(b"workers", b"") == b"workers"
    assert effective_group(b"workers", b"eu/#") == b"workers@eu/#"


@pytest.mark.parametrize(
    ("queue", "source", "key", "topic"),
    [
        (b"orders", b"$queue/orders", b"", b"$queue/orders"),
        (b"orders", b"$queue/orders/eu/1", b"eu/1", b"$queue/orders/eu/1"),
        (b"orders", b"shop/1/orders", b"shop/1/orders", b"$queue/orders/shop/1/orders"),
        (b"orders", b"/leading", b"/leading", b"$queue/orders//leading"),
        (b"$dlq/orders", b"$queue/orders/eu/1", b"eu/1", b"$dlq/orders/eu/1"),
        (b"$dlq/orders", b"shop/1", b"shop/1", b"$dlq/orders/shop/1"),
        (b"other", b"$dlq/orders/eu", b"eu", b"$queue/other/eu"),
    ],
)
def test_topics_of_deliveries(queue: bytes, source: bytes, key: bytes, topic: bytes) -> None:
    assert key_of(source) == key
    assert delivery_topic(queue, source) == topic
    assert topic.startswith(address_of(queue))


def test_a_delivery_has_a_topic_that_fits() -> None:
    fits = b"x" * (65_535 - len(b"$queue/q/"))
    assert len(delivery_topic(b"q", fits)) == 65_535
    assert delivery_topic(b"q", fits + b"x") == b"$queue/q"


LEVELS = st.lists(
    st.sampled_from([b"a", b"b", b"", b"$x", b"\xc3\xa9", b" "]), min_size=1, max_size=4
)


@given(LEVELS, st.sampled_from([b"q", b"$dlq/q"]), st.sampled_from([None, *VERBS]))
def test_an_address_says_what_went_into_it(
    levels: list[bytes], queue: bytes, verb: bytes | None
) -> None:
    key = b"/".join(levels)
    topic = address_of(queue) + b"/" + key + (b"/" + verb if verb else b"")
    assert parse_publish(topic) == QueueAddress(queue, key, VERBS[verb] if verb else "")


@given(LEVELS, st.booleans())
def test_a_delivery_matches_the_filter_that_asked_for_it(
    levels: list[bytes], captured: bool
) -> None:
    key = b"/".join(levels)
    source = key if captured and key else b"$queue/q/" + key
    topic = delivery_topic(b"q", source)
    assert matches(b"$queue/q/#", topic)
    if key:
        assert key_of(source) == key
        assert topic == b"$queue/q/" + key
        assert parse_publish(topic) == QueueAddress(b"q", key, "")


@given(st.binary(max_size=40))
def test_any_bytes_are_an_address_or_refused(rest: bytes) -> None:
    for prefix in (b"$queue/", b"$dlq/"):
        try:
            found = parse_publish(prefix + rest)
        except MalformedAddressError:
            continue
        assert found is not None
        assert is_reachable_name(found.queue.removeprefix(b"$dlq/"))
        assert found.queue.startswith(b"$dlq/") == (prefix == b"$dlq/")
