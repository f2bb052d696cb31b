"""What one session has been sent and not answered yet, in bytes. Counts and identifiers are in `test_delivery`."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.protocols.mqtt.lines import Line, messages

Lines = Callable[..., Line]


def test_what_is_in_flight_has_a_bound_in_bytes(line: Lines) -> None:
    """Review finding 14: a window of a thousand messages is a gigabyte when they are large."""
    one = line(pending_bytes=50_000)
    one.attach(window=100)
    for start in range(9):
        one.offer(messages(1, start=start, size=10_000))
    assert one.numbers() == [0, 1, 2, 3, 4]
    assert 50_000 < one.delivery.unanswered_bytes < 61_000
    one.puback(1)
    assert one.numbers() == [5]
    one.detach()
    assert one.delivery.unanswered_bytes == 0
    one.attach(window=100)
    assert one.numbers() == [1, 2, 3, 4, 5]
    one.puback(*range(2, 7))
    assert one.numbers() == [6, 7, 8]
    one.puback(7, 8, 9)
    assert (one.delivery.unanswered_bytes, one.tally.dropped_full) == (0, 0)
    one.detach()
    assert one.delivery.unanswered_bytes == 0
