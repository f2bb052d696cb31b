"""The ledger of the power cut campaign: each rule, kept and broken."""

from __future__ import annotations

import pytest

from tests.powercut import payloads
from tests.powercut.campaign import Tally, failpoint_names
from tests.powercut.client import parse_properties, read_variable, user_properties, variable
from tests.powercut.history import History
from tests.powercut.payloads import Identity

QUEUE, GROUP = "q", "g"


def history(messages: int, confirmed: int) -> tuple[History, list[bytes]]:
    """One publisher that sent so many messages and got so many confirmed."""
    kept = History(7)
    kept.begin(1, QUEUE)
    bodies = [kept.attempt(1) for _ in range(messages)]
    for number in range(confirmed):
        kept.confirm(1, number)
    return kept, bodies


def deliver(kept: History, bodies: list[bytes], offsets: list[int], group: str = GROUP) -> None:
    for offset, body in zip(offsets, bodies, strict=True):
        kept.deliver(QUEUE, group, offset, body)


def test_a_body_says_who_sent_it_and_any_changed_byte_shows() -> None:
    for number in range(40):
        identity = Identity(3, 2, number)
        body = payloads.build(identity)
        assert payloads.parse(body) == identity
        for place in {0, 5, len(body) // 2, len(body) - 1}:
            damaged = bytearray(body)
            damaged[place] ^= 1
            assert payloads.parse(bytes(damaged)) is None
    assert payloads.parse(b"") is None
    assert len({len(payloads.build(Identity(1, 1, n))) for n in range(200)}) > 3


def test_everything_there_in_order_breaks_nothing() -> None:
    kept, bodies = history(10, 8)
    deliver(kept, bodies, list(range(10)))
    kept.check_order(QUEUE)
    assert kept.missing(QUEUE) == kept.missing_from(QUEUE, GROUP) == []
    assert kept.violations == []
    assert kept.confirmed() == 8


def test_a_confirmed_message_that_is_not_there_is_lost() -> None:
    kept, bodies = history(3, 2)
    deliver(kept, bodies[:1], [0])
    assert kept.missing(QUEUE) == [(1, 1)]


def test_a_message_that_an_earlier_group_saw_is_missing_from_a_later_reading() -> None:
    kept, bodies = history(2, 2)
    deliver(kept, bodies, [0, 1], "before")
    deliver(kept, bodies[:1], [0], "after")
    assert kept.missing(QUEUE) == []
    assert kept.missing_from(QUEUE, "after") == [(1, 1)]
    assert kept.unread(QUEUE, "after") == [1]


@pytest.mark.parametrize("unconfirmed", [0, 1, 2])
def test_unconfirmed_messages_may_be_there_or_not(unconfirmed: int) -> None:
    kept, bodies = history(5, 3)
    deliver(kept, bodies[: 3 + unconfirmed], list(range(3 + unconfirmed)))
    kept.check_order(QUEUE)
    assert kept.missing(QUEUE) == []
    assert kept.violations == []


def test_a_body_nobody_sent_is_a_phantom() -> None:
    kept, bodies = history(2, 0)
    kept.deliver(QUEUE, GROUP, 0, bodies[0][:-1] + b"!")
    kept.deliver(QUEUE, GROUP, 1, payloads.build(Identity(7, 1, 2)))
    kept.deliver(QUEUE, GROUP, 2, payloads.build(Identity(7, 5, 0)))
    kept.deliver(QUEUE, GROUP, 3, payloads.build(Identity(6, 1, 0)))
    kept.deliver("another", GROUP, 0, bodies[0])
    assert kept.phantoms == len(kept.violations) == 5


def test_an_offset_used_again_is_noticed() -> None:
    kept, bodies = history(2, 0)
    kept.deliver(QUEUE, GROUP, 0, bodies[0])
    kept.deliver(QUEUE, "later", 0, bodies[1])
    assert "offset 0 was (1, 0) and is (1, 1)" in kept.violations[0]


def test_a_message_at_a_second_offset_is_noticed() -> None:
    kept, bodies = history(1, 0)
    deliver(kept, [bodies[0], bodies[0]], [0, 1])
    assert "is at offset 0 and at 1" in kept.violations[0]


def test_a_settlement_that_was_confirmed_is_for_ever() -> None:
    kept, bodies = history(2, 2)
    deliver(kept, bodies, [0, 1])
    kept.settle(QUEUE, GROUP, [0, 1])
    kept.settled(QUEUE, GROUP, [0])
    kept.deliver(QUEUE, GROUP, 1, bodies[1])
    kept.deliver(QUEUE, "another", 0, bodies[0])
    assert kept.violations == []
    kept.deliver(QUEUE, GROUP, 0, bodies[0])
    assert "settled by g and came again" in kept.violations[0]


def test_a_refused_message_that_is_there_is_noticed() -> None:
    kept, bodies = history(1, 0)
    kept.refuse(1, 0)
    deliver(kept, bodies, [0])
    assert "was refused" in kept.violations[0]


def test_a_publishers_messages_out_of_order_are_noticed() -> None:
    kept, bodies = history(2, 0)
    deliver(kept, [bodies[1], bodies[0]], [0, 1])
    kept.check_order(QUEUE)
    assert "1/0 after 1" in kept.violations[0]


def test_a_hole_within_a_round_is_noticed_and_a_lost_end_is_none() -> None:
    kept, bodies = history(3, 0)
    kept.begin(1, QUEUE)
    bodies += [kept.attempt(1), kept.attempt(1)]
    deliver(kept, [bodies[0], bodies[3]], [0, 1])
    kept.check_order(QUEUE)
    assert kept.violations == []
    deliver(kept, [bodies[2]], [2])
    kept.check_order(QUEUE)
    assert any("1/2 is there without 1" in sentence for sentence in kept.violations)


def test_a_refused_message_leaves_no_hole() -> None:
    kept, bodies = history(3, 0)
    kept.refuse(1, 1)
    deliver(kept, [bodies[0], bodies[2]], [0, 1])
    kept.check_order(QUEUE)
    assert kept.violations == []


def test_sentences_are_bounded_and_counted() -> None:
    kept, _ = history(1, 0)
    for offset in range(200):
        kept.deliver(QUEUE, GROUP, offset, b"?")
    assert (kept.broken, len(kept.violations)) == (200, 50)


def test_the_last_line() -> None:
    assert Tally(3, 10).line() == "rounds=3 confirmed=10 0 confirmed lost, 0 phantoms"
    assert Tally(3, 10).clean
    worse = Tally(3, 10, lost=1, phantoms=2, broken=3)
    assert worse.line().endswith("1 confirmed lost, 2 phantoms, 3 rules broken")
    assert not worse.clean


def test_the_storage_layer_names_its_failpoints() -> None:
    names = failpoint_names()
    assert {"wal.write", "wal.rotate", "snapshot.write", "segment.trim", "file.rename"} <= set(
        names
    )


@pytest.mark.parametrize("value", [0, 127, 128, 16_383, 16_384, 268_435_455])
def test_variable_byte_integers(value: int) -> None:
    encoded = variable(value)
    assert read_variable(encoded, 0) == (value, len(encoded))
    assert read_variable(encoded[:-1], 0)[1] == -1


def test_user_properties_are_found_among_others() -> None:
    block = user_properties((("offset", "17"), ("queue", "q")))
    others = b"\x01\x01\x02\x00\x00\x00\x05\x0b\x80\x01\x23\x00\x01\x03\x00\x01a\x09\x00\x02xy"
    assert parse_properties(others + block[1:]) == {"offset": "17", "queue": "q"}
