"""What a desk has under way: claims applied in their order, joined claims as one."""

import pytest

from fluxmq.queues.flights import Flights


def test_what_is_claimed_again_is_not_claimed_twice() -> None:
    flights = Flights()
    assert not flights
    flights.add_again([(3, 5)])
    assert flights
    assert list(flights.unclaimed(1, 9)) == [(1, 2), (6, 9)]
    flights.applied()
    assert list(flights.unclaimed(1, 9)) == [(1, 9)]
    assert not flights


def test_ranges_count_until_their_claim_is_applied() -> None:
    flights = Flights()
    flights.add_new(3, 10)
    flights.add_again([(1, 1), (4, 4)])
    flights.add_new(1, 12)
    assert flights.ranges == 3 + 2 * 2 + 1
    for left in (5, 1, 0):
        flights.applied()
        assert flights.ranges == left


def test_joined_claims_are_applied_once() -> None:
    flights = Flights()
    flights.add_new(1, 10)
    flights.add_new(2, 12)
    flights.add_again([(1, 1)])  # asked for in the same run, behind both
    flights.add_new(4, 15)
    flights.join(12)
    assert flights.ranges == 9
    flights.applied()
    assert flights.ranges == 6
    assert list(flights.unclaimed(0, 2)) == [(0, 0), (2, 2)]
    flights.applied()
    assert list(flights.unclaimed(0, 2)) == [(0, 2)]
    flights.applied()
    assert not flights
    with pytest.raises(AssertionError, match="never proposed"):
        flights.applied()


def test_only_claims_of_new_messages_are_joined() -> None:
    flights = Flights()
    flights.add_again([(1, 1)])
    flights.add_new(1, 10)
    with pytest.raises(AssertionError, match="new messages"):
        flights.join(10)
