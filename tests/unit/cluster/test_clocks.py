"""Which clocks are believed, and when somebody is told that they differ."""

from __future__ import annotations

import pytest

from fluxmq.cluster.clocks import (
    APART_US,
    GATHER_US,
    STALE_US,
    TOGETHER_US,
    PeerClocks,
    Reading,
    lower_median,
    offset,
)

HOUR = 3_600_000_000
YEAR = 365 * 24 * HOUR


def heard(peers: PeerClocks, at: int = 0, *, settled: bool = False, **steady: int) -> PeerClocks:
    """Nodes say what they show: both clocks are off by as much."""
    for node, value in steady.items():
        peers.heard(node, Reading(value, value, settled, at))
    return peers


def test_the_lower_one_of_two_is_the_median() -> None:
    assert lower_median([5]) == 5
    assert lower_median([9, 5]) == 5
    assert lower_median([9, 5, 7]) == 7
    assert lower_median([9, 5, 7, 6]) == 6


def test_half_the_round_trip_is_on_the_way() -> None:
    assert offset(1000, 900, 40) == 120


@pytest.mark.parametrize("wrong", [8 * HOUR, -8 * HOUR, YEAR, -YEAR])
def test_a_node_that_starts_believes_those_that_run(wrong: int) -> None:
    """Review finding 3: its own clock is off by as much as the others seem to be, the other way."""
    peers = heard(PeerClocks(3), settled=True, two=-wrong)
    assert peers.correction(0) == -wrong
    assert heard(peers, settled=True, three=-wrong + 5).correction(0) == min(-wrong, -wrong + 5)


@pytest.mark.parametrize("wrong", [8 * HOUR, -8 * HOUR, YEAR, -YEAR])
def test_of_three_that_start_the_wrong_one_is_outvoted(wrong: int) -> None:
    assert heard(PeerClocks(3), two=wrong, three=3).correction(0) in (0, 3)
    assert heard(PeerClocks(3), two=-wrong, three=3 - wrong).correction(0) in (-wrong, 3 - wrong)


def test_of_two_that_start_the_earlier_one_is_believed_after_a_while() -> None:
    peers = heard(PeerClocks(3), at=7, two=-HOUR)
    assert peers.correction(7) is None
    assert peers.correction(7 + GATHER_US) == -HOUR
    peers = heard(PeerClocks(3), at=7, two=HOUR)
    assert peers.correction(7 + GATHER_US) == 0


def test_a_minority_decides_nothing() -> None:
    peers = heard(PeerClocks(5), at=1, two=HOUR)
    assert peers.correction(1 + GATHER_US) is None
    assert peers.wall_correction(1) is None
    heard(peers, at=1, three=HOUR)
    assert peers.correction(1 + GATHER_US) == HOUR
    assert peers.wall_correction(1) == HOUR


def test_what_was_said_long_ago_counts_no_longer() -> None:
    peers = heard(PeerClocks(3), at=1, settled=True, two=HOUR, three=HOUR)
    assert peers.correction(STALE_US) == HOUR
    assert peers.correction(1 + STALE_US) is None
    assert peers.wall_correction(1 + STALE_US) is None


def test_a_wall_clock_that_most_contradict_is_not_steered_by() -> None:
    """Review finding 3: a node whose clock jumps steers by the others' clocks."""
    peers = heard(PeerClocks(3), two=-YEAR, three=-YEAR + 9)
    assert peers.wall_correction(0) == -YEAR + 9
    assert heard(PeerClocks(3), two=-YEAR, three=9).wall_correction(0) == 0


def test_what_is_known_moves_with_this_node() -> None:
    peers = heard(PeerClocks(3), settled=True, two=HOUR)
    peers.shifted(HOUR)
    assert peers.fresh(0)["two"] == Reading(0, HOUR, True, 0)


def test_the_alarm_is_raised_and_ended_once() -> None:
    peers = heard(PeerClocks(3), two=APART_US, three=0)
    assert peers.changes(0) == []
    heard(peers, two=-APART_US - 1)
    assert peers.changes(0) == [("two", -APART_US - 1, True)]
    assert peers.changes(0) == []
    assert peers.apart(0) == {"two": -APART_US - 1}
    heard(peers, two=TOGETHER_US)
    assert peers.changes(0) == []
    heard(peers, two=TOGETHER_US - 1)
    assert peers.changes(0) == [("two", TOGETHER_US - 1, False)]
    assert peers.apart(0) == {}


def test_nobody_is_out_of_step_who_says_nothing() -> None:
    peers = heard(PeerClocks(3), two=YEAR)
    assert len(peers.changes(0)) == 1
    assert peers.apart(STALE_US) == {}
