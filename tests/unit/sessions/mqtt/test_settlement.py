"""Orders to a queue, as values."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.protocols.mqtt.reasons import ProtocolError
from fluxmq.routing.queue_addresses import QueueAddress
from fluxmq.sessions.mqtt.settlement import (
    REASON_BYTES_MAX,
    SettlementCommand,
    merged,
    parse_settlement,
)
from tests.unit.sessions.mqtt.test_queue_properties import OTHERS, encoded

OFFSET_MAX = (1 << 63) - 1


def order(verb: str, *pairs: tuple[str, str]) -> SettlementCommand:
    """What a control publish to queue q means."""
    return parse_settlement(QueueAddress(b"q", b"", verb), encoded(*pairs, others=OTHERS))


def test_one_message() -> None:
    assert order("ack", ("group-id", "g"), ("message-id", "q:17")) == SettlementCommand(
        b"q", b"g", "ack", ((17, 17),)
    )
    assert order("ack", ("message-id", "17"), ("group-id", "g")).ranges == ((17, 17),)
    assert order("ack", ("message-id", "any:thing:17"), ("group-id", "g")).ranges == ((17, 17),)


def test_several_messages() -> None:
    settlement = order(
        "ack",
        ("group-id", "g@eu/#"),
        ("message-id", "q:7-9"),
        ("message-id", "q:1"),
        ("message-id", "q:9-12"),
        ("message-id", "q:13"),
        ("message-id", f"q:{OFFSET_MAX}"),
    )
    assert settlement.group == b"g@eu/#"
    assert settlement.ranges == ((1, 1), (7, 13), (OFFSET_MAX, OFFSET_MAX))


def test_nack_and_reject() -> None:
    nack = order("nack", ("group-id", "g"), ("message-id", "q:1"), ("delay", "1500"))
    assert (nack.verb, nack.delay_ms) == ("nack", 1500)
    assert order("nack", ("group-id", "g"), ("message-id", "q:1")).delay_ms is None
    assert order("nack", ("group-id", "g"), ("message-id", "q:1"), ("delay", "0")).delay_ms == 0
    reject = order("reject", ("group-id", "g"), ("message-id", "q:1"), ("reason", "no such é"))
    assert (reject.verb, reject.reason) == ("reject", "no such é")


def test_commit() -> None:
    assert order("commit", ("group-id", "g"), ("message-id", "q:5")).ranges == ((5, 5),)


GROUP = ("group-id", "g")
ONE = ("message-id", "q:1")


@pytest.mark.parametrize(
    ("verb", "pairs"),
    [
        ("ack", ()),
        ("ack", (GROUP,)),
        ("ack", (ONE,)),
        ("ack", (ONE, ("group-id", ""))),
        ("ack", (ONE, GROUP, GROUP)),
        ("ack", (GROUP, ("message-id", "q:"))),
        ("ack", (GROUP, ("message-id", "q:x"))),
        ("ack", (GROUP, ("message-id", "q:-1"))),
        ("ack", (GROUP, ("message-id", "q:1-"))),
        ("ack", (GROUP, ("message-id", "q:2-1"))),
        ("ack", (GROUP, ("message-id", f"q:{OFFSET_MAX + 1}"))),
        ("ack", (GROUP, ONE, ("message-id", "q:x"))),
        ("ack", (GROUP, ONE, ("delay", "5"))),
        ("nack", (GROUP, ONE, ("delay", "soon"))),
        ("nack", (GROUP, ONE, ("delay", "5"), ("delay", "5"))),
        ("reject", (GROUP, ONE, ("reason", "x" * (REASON_BYTES_MAX + 1)))),
        ("commit", (GROUP, ONE, ("message-id", "q:5"))),
        ("commit", (GROUP, ("message-id", "q:1-5"))),
    ],
)
def test_orders_that_are_none(verb: str, pairs: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(ProtocolError) as caught:
        order(verb, *pairs)
    assert caught.value.reason == 0x83


SPANS = st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(SPANS, max_size=12))
def test_ranges_hold_the_same_offsets_once(intervals: list[tuple[int, int]]) -> None:
    ranges = merged(intervals)
    offsets = [offset for first, last in ranges for offset in range(first, last + 1)]
    assert offsets == sorted({n for first, last in intervals for n in range(first, last + 1)})
    assert all(one[1] + 1 < other[0] for one, other in pairwise(ranges))
