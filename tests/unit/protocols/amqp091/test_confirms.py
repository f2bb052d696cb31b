"""Publisher confirms: every publish is answered once, as few frames as its order allows."""

from __future__ import annotations

import struct

import pytest

from fluxmq.protocols.amqp091.confirms import Confirmation, ConfirmWindow
from tests.unit.protocols.amqp091.line import cut


def answers(window: ConfirmWindow, channel: int = 4) -> list[tuple[str, int, bool]]:
    """The frames that are due: which, number, multiple."""
    found = []
    for kind, number, payload in cut(window.answers(channel)):
        assert (kind, number) == (1, channel)
        class_id, method, tag, bits = struct.unpack(">HHQB", payload)
        assert class_id == 60
        found.append(({80: "ack", 120: "nack"}[method], tag, bool(bits)))
    return found


def test_in_order_one_frame_answers_all() -> None:
    window = ConfirmWindow()
    assert [window.publish(5), window.publish(1), window.publish(10)] == [1, 6, 7]
    assert window.answers(4) == b""
    window.done(1, 5, True)
    window.done(6, 1, True)
    assert answers(window) == [("ack", 6, True)]
    assert (window.next, window.unanswered) == (17, 10)
    window.done(7, 10, True)
    assert answers(window) == [("ack", 16, True)]
    assert answers(window) == []
    assert window.unanswered == 0


def test_a_lone_message_is_not_multiple() -> None:
    window = ConfirmWindow()
    window.done(window.publish(1), 1, True)
    assert answers(window) == [("ack", 1, False)]


def test_outcomes_are_told_apart() -> None:
    window = ConfirmWindow()
    window.publish(10)
    for first, count, ok in (
        (1, 3, True),
        (4, 2, False),
        (6, 1, False),
        (7, 1, True),
        (8, 3, True),
    ):
        window.done(first, count, ok)
    assert answers(window) == [("ack", 3, True), ("nack", 6, True), ("ack", 10, True)]


def test_whatever_the_order_within_a_tick() -> None:
    window = ConfirmWindow()
    window.publish(9)
    for first in (7, 1, 4):
        window.done(first, 3, True)
    assert answers(window) == [("ack", 9, True)]


def test_what_is_behind_a_gap_does_not_wait_for_it() -> None:
    window = ConfirmWindow()
    window.publish(9)
    window.done(4, 2, True)
    window.done(7, 1, False)
    assert answers(window) == [("ack", 4, False), ("ack", 5, False), ("nack", 7, False)]
    assert window.unanswered == 6
    window.done(1, 1, True)
    assert answers(window) == [("ack", 1, False)]
    window.done(8, 2, True)
    window.done(2, 2, True)
    # 4 and 5 were answered: only 2 and 3 are meant.
    assert answers(window) == [("ack", 3, True), ("ack", 8, False), ("ack", 9, False)]
    window.done(6, 1, False)
    assert answers(window) == [("nack", 6, False)]
    assert window.unanswered == 0


def test_the_last_answered_message_is_named_and_not_one_answered_before() -> None:
    window = ConfirmWindow()
    window.publish(3)
    window.done(2, 2, True)
    assert answers(window) == [("ack", 2, False), ("ack", 3, False)]
    window.done(1, 1, False)
    assert answers(window) == [("nack", 1, False)]


@pytest.mark.parametrize(("first", "count"), [(0, 1), (3, 1), (1, 0), (1, 3), (1, 1)])
def test_numbers_that_wait_for_nothing(first: int, count: int) -> None:
    window = ConfirmWindow()
    window.publish(2)
    window.done(1, 1, True)
    with pytest.raises(ValueError, match="wait for no answer"):
        window.done(first, count, True)
    window.answers(1)
    with pytest.raises(ValueError, match="wait for no answer"):
        window.done(1, 1, True)
    with pytest.raises(ValueError, match="no message"):
        window.publish(0)


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [([0], "ack"), ([0x10, 0], "ack"), ([0, 0x97, 0], "nack"), ([0x80], "nack")],
)
def test_a_run_that_several_take_up_is_answered_when_all_have(
    reasons: list[int], expected: str
) -> None:
    marks: list[int] = []
    window = ConfirmWindow()
    confirmation = Confirmation(window, window.publish(3), 3, lambda: marks.append(1))
    for _ in reasons:
        assert confirmation.hold() is confirmation
    for reason in reasons:
        assert (marks, answers(window)) == ([], [])
        confirmation.done(reason)
    assert marks == [1]
    assert answers(window) == [(expected, 3, True)]


def test_a_confirmation_without_a_mark() -> None:
    window = ConfirmWindow()
    Confirmation(window, window.publish(1), 1).hold().done()
    assert answers(window) == [("ack", 1, False)]
