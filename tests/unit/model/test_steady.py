"""Steady time passes, whatever the wall clock does, and a start counts the shortest time that can be meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.model.steady import SLEW_PARTS, ClockReadings, SteadyClock, resumed

SECOND = 1_000_000
HOUR = 3600 * SECOND
YEAR = 365 * 24 * HOUR
NOW = 1_700_000_000 * SECOND
JUMPS = st.sampled_from([0, 8 * HOUR, -8 * HOUR, YEAR, -YEAR]) | st.integers(-HOUR, HOUR)
STEPS = st.lists(st.tuples(st.integers(0, 10 * HOUR), st.none() | JUMPS), max_size=30)


@given(STEPS)
def test_time_never_goes_back_nor_faster_than_it_may(steps: list[tuple[int, int | None]]) -> None:
    """Review finding 3: wherever the wall clock jumps, a span of steady time is real time, but for a twentieth."""
    clock, elapsed, time = SteadyClock(NOW, 5), 5, NOW
    for passed, jump in steps:
        elapsed += passed
        now = clock.at(elapsed)
        most = passed // SLEW_PARTS
        assert passed - most <= now - time <= passed + most
        clock.steer(elapsed, None if jump is None else now + jump)
        assert clock.at(elapsed) == now
        time = now


@given(st.integers(-HOUR, HOUR))
def test_it_arrives_where_it_is_steered_and_stays(adrift: int) -> None:
    clock = SteadyClock(NOW, 0)
    clock.steer(0, NOW + adrift)
    there = SLEW_PARTS * abs(adrift)
    assert clock.at(there) == NOW + adrift + there
    assert clock.at(there + YEAR) == NOW + adrift + there + YEAR
    if abs(adrift) > 1:  # one microsecond has no half
        assert abs(clock.at(there // 2) - NOW - adrift - there // 2) < abs(adrift)


def test_a_clock_that_goes_back_stands_still() -> None:
    clock = SteadyClock(NOW, 100)
    clock.steer(200, None)
    assert clock.at(150) == clock.at(200) == NOW + 100


def test_it_is_set_when_a_process_starts() -> None:
    clock = SteadyClock(NOW, 0)
    clock.steer(0, NOW + HOUR)
    clock.step(SECOND, -YEAR)
    assert clock.at(SECOND) == NOW + SECOND + SECOND // SLEW_PARTS - YEAR
    assert clock.at(2 * SECOND) - clock.at(SECOND) == SECOND


def test_a_mark_comes_back_as_it_was() -> None:
    for mark in (ClockReadings(NOW, NOW - YEAR, 77, "a-boot"), ClockReadings(-1, 0, 0, "-")):
        assert ClockReadings.decode(mark.encode()) == mark
    assert ClockReadings.decode(ClockReadings(1, 2, 3, "").encode()) == ClockReadings(1, 2, 3, "-")


@pytest.mark.parametrize("spoil", [0, 5, 20, -2])
def test_a_mark_that_was_cut_or_changed_is_none(spoil: int) -> None:
    line = ClockReadings(NOW, NOW, 77, "a-boot").encode()
    assert ClockReadings.decode(line[:spoil]) is None
    assert ClockReadings.decode(line[:spoil] + b"\x00" + line[spoil:][1:]) is None
    assert ClockReadings.decode(b"\xff\xfe") is None


def after(
    mark: ClockReadings, *, real: int, wall: int, same_boot: bool, boot_clock: int | None = None
) -> int:
    """How much time is counted after `real` has passed and the wall clock shows `wall` more than it would."""
    elapsed = mark.elapsed + real if boot_clock is None else boot_clock
    boot = mark.boot if same_boot else "another"
    return resumed(mark, mark.wall + real + wall, elapsed, boot) - mark.steady


RIGHT = ClockReadings(NOW, NOW, HOUR, "boot")


def test_a_node_that_was_off_for_a_week_counts_it() -> None:
    week = 7 * 24 * HOUR
    assert after(RIGHT, real=week, wall=0, same_boot=False, boot_clock=SECOND) == week
    assert after(RIGHT, real=week, wall=0, same_boot=True) == week


@pytest.mark.parametrize("wall", [8 * HOUR, YEAR])
def test_within_a_boot_a_wall_clock_that_is_ahead_is_not_believed(wall: int) -> None:
    """Review finding 3: a process that is started again while the wall clock is wrong."""
    assert after(RIGHT, real=SECOND, wall=wall, same_boot=True) == SECOND


@pytest.mark.parametrize("wall", [-8 * HOUR, -YEAR])
def test_a_wall_clock_that_is_behind_takes_nothing_back(wall: int) -> None:
    for same_boot in (True, False):
        assert after(RIGHT, real=SECOND, wall=wall, same_boot=same_boot) == 0


def test_a_hardware_clock_in_local_time_counts_once() -> None:
    """It is 8 hours ahead at each boot, until NTP sets the wall clock; steady time is ahead since the first one."""
    mark = ClockReadings(NOW + 8 * HOUR, NOW, HOUR, "boot")
    assert after(mark, real=SECOND, wall=8 * HOUR, same_boot=False, boot_clock=9) == SECOND


def test_a_machine_without_a_clock_of_its_own_is_not_taken_to_have_slept_for_years() -> None:
    """It began in 1970, NTP set it right; steady time is still in 1970."""
    mark = ClockReadings(HOUR, NOW, HOUR, "boot")
    assert after(mark, real=SECOND, wall=0, same_boot=False, boot_clock=9) == SECOND


def test_without_a_mark_it_is_the_wall_clock() -> None:
    assert resumed(None, NOW, 5, "boot") == NOW
