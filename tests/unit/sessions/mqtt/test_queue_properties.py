"""User properties that steer queues and that queues speak with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.model.deduplication import producer_number
from fluxmq.protocols.mqtt.message_properties import RESERVED_NAMES, user_property
from fluxmq.protocols.mqtt.reasons import ProtocolError
from fluxmq.sessions.mqtt.queue_properties import (
    DELAY_MS_MAX,
    QueueOptions,
    delivery_properties,
    queue_options,
    strip_reserved,
    user_properties,
)
from tests.conformance import wire


def encoded(*pairs: tuple[str, str], others: Any = ()) -> bytes:
    """Properties of a PUBLISH without their length: `others`, then user properties."""
    entries = [*others, *((wire.USER_PROPERTY, pair) for pair in pairs)]
    block = wire.properties(entries)
    return block[next(i for i, byte in enumerate(block) if byte < 0x80) + 1 :]


OTHERS = (
    (wire.PAYLOAD_FORMAT_INDICATOR, 1),
    (wire.CONTENT_TYPE, "text/plain"),
    (wire.RESPONSE_TOPIC, "x-delay/producer"),
    (wire.CORRELATION_DATA, b"\x26\x00\x05queue\x26\x00\x05queue"),
)


def test_user_properties_among_others() -> None:
    forward = encoded(("a", "1"), ("b", ""), ("a", "2"), others=OTHERS)
    found = list(user_properties(forward))
    assert [(item.name, item.value) for item in found] == [(b"a", b"1"), (b"b", b""), (b"a", b"2")]
    assert [forward[item.start : item.end] for item in found] == [
        user_property(b"a", b"1"),
        user_property(b"b", b""),
        user_property(b"a", b"2"),
    ]


@pytest.mark.parametrize(
    ("pairs", "options"),
    [
        ((), None),
        ((("sequence", "abc"),), None),
        ((("other", "x-delay"),), None),
        ((("x-delay", "0"),), None),
        ((("x-delay", "1500"),), QueueOptions(1500, 0, 0)),
        (
            (("producer-id", "p"), ("sequence", "7")),
            QueueOptions(0, producer_number(b"p"), 7),
        ),
        (
            (("sequence", "0"), ("x-delay", "1"), ("producer-id", "p")),
            QueueOptions(1, producer_number(b"p"), 0),
        ),
        (
            (("x-deduplication-id", "site:1:p:42"),),
            QueueOptions(0, producer_number(b"site:1:p"), 42),
        ),
    ],
)
def test_options(pairs: tuple[tuple[str, str], ...], options: QueueOptions | None) -> None:
    assert queue_options(encoded(*pairs, others=OTHERS)) == options


@pytest.mark.parametrize(
    "pairs",
    [
        (("x-delay", ""),),
        (("x-delay", "-1"),),
        (("x-delay", "1.5"),),
        (("x-delay", "5s"),),
        (("x-delay", "²"),),
        (("x-delay", str(DELAY_MS_MAX + 1)),),
        (("x-delay", "1"), ("x-delay", "1")),
        (("producer-id", "p"),),
        (("producer-id", ""), ("sequence", "1")),
        (("producer-id", "p" * 1025), ("sequence", "1")),
        (("producer-id", "p"), ("sequence", "x")),
        (("producer-id", "p"), ("sequence", str(1 << 63))),
        (("producer-id", "p"), ("sequence", "0" * 20)),
        (("x-deduplication-id", "42"),),
        (("x-deduplication-id", "p:"),),
        (("x-deduplication-id", "p:1"), ("producer-id", "p")),
    ],
)
def test_options_that_say_nothing_usable(pairs: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(ProtocolError) as caught:
        queue_options(encoded(*pairs))
    assert caught.value.reason == 0x83


def test_producers_have_numbers_of_their_own() -> None:
    numbers = {producer_number(b"p%d" % number) for number in range(1000)}
    assert len(numbers) == 1000
    assert all(0 < number < 1 << 64 for number in numbers)


def test_nobody_speaks_for_a_queue() -> None:
    forged = [(name.decode(), "x") for name in sorted(RESERVED_NAMES)]
    dead = [("_dlq_reason", "x"), ("_dlq_anything", "x")]
    own = [("message-ids", "1"), ("my-queue", "2"), ("Queue", "3")]
    forward = encoded(own[0], *forged, own[1], *dead, own[2], others=OTHERS)
    assert strip_reserved(forward) == encoded(*own, others=OTHERS)
    assert {b"message-id", b"group-id", b"queue", b"offset", b"client_id"} <= RESERVED_NAMES
    assert {b"x-source-topic", b"x-delivery-count", b"protocol"} <= RESERVED_NAMES


def test_what_is_not_forged_is_not_touched() -> None:
    forward = encoded(("a", "queue"), others=OTHERS)
    assert strip_reserved(forward) == forward
    assert strip_reserved(b"") == b""
    untouched = encoded(("a", "b"))
    assert strip_reserved(untouched) is untouched


NAMES = st.sampled_from(["queue", "offset", "a", "b", "message-id", "_dlq_x", "", "é"])


@given(st.lists(st.tuples(NAMES, st.text(max_size=5)), max_size=8), st.booleans())
def test_stripping_keeps_order_and_everything_else(
    pairs: list[tuple[str, str]], with_others: bool
) -> None:
    others = OTHERS if with_others else ()
    kept = [
        pair
        for pair in pairs
        if pair[0].encode() not in RESERVED_NAMES and not pair[0].startswith("_dlq_")
    ]
    assert strip_reserved(encoded(*pairs, others=others)) == encoded(*kept, others=others)


def said(properties: bytes) -> list[tuple[bytes, bytes]]:
    """User properties as pairs."""
    return [(item.name, item.value) for item in user_properties(properties)]


def test_what_a_delivery_says() -> None:
    forward = encoded(("own", "1"), others=OTHERS)
    properties = delivery_properties(b"g@eu/#", b"orders", b"$queue/orders/eu/1", 1, forward)
    assert properties.endswith(forward)
    assert said(properties) == [
        (b"group-id", b"g@eu/#"),
        (b"queue", b"orders"),
        (b"x-source-topic", b"$queue/orders/eu/1"),
        (b"x-delivery-count", b"0"),
        (b"own", b"1"),
    ]
    again = dict(said(delivery_properties(b"g", b"orders", b"t", 3, b"")))
    assert again[b"x-delivery-count"] == b"2"


def test_what_a_streams_delivery_says() -> None:
    plain = said(delivery_properties(b"g", b"log", b"a/b", 0, b""))
    assert [name for name, _ in plain] == [b"group-id", b"queue", b"x-source-topic"]
    told = dict(said(delivery_properties(b"g", b"log", b"a/b", 0, b"", (b"archive", 17))))
    assert told[b"x-work-group"] == b"archive"
    assert told[b"x-work-committed-offset"] == b"17"
