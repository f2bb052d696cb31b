"""A process's steady time: what it begins with, what it leaves on disk, and what it believes of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxmq.model.steady import SLEW_PARTS, ClockReadings
from fluxmq.shards.steady import MARK_US, STEER_US, VOUCH_US, Clocks, NodeClock, latest_mark
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.files import Files
from tests.faults import FailingFiles

SECOND = 1_000_000
HOUR = 3600 * SECOND
YEAR = 365 * 24 * HOUR
WALL = 1_700_000_000 * SECOND


class Machine:
    """A machine with a data directory of one shard, whose clocks a test sets. ``right``: what the wall clock ought to show."""

    def __init__(self, folder: Path) -> None:
        self.right = WALL
        self.wrong = 0
        self.elapsed = HOUR
        self.boot = "boot"
        self.settled: list[bool] = []
        """For each start that was vouched for: whether its clock says so."""
        self.files = FailingFiles()
        self.paths = DataPaths(str(folder))
        (folder / "shards" / "0").mkdir(parents=True)

    def start(self, *, vouched: bool = False, shard: int = 0) -> NodeClock:
        """A process of it."""
        clocks = Clocks(lambda: self.right + self.wrong, lambda: self.elapsed, self.boot)
        clock = NodeClock(
            *(self.files, self.paths, shard, clocks),
            lambda: self.settled.append(clock.settled),
            vouched=vouched,
        )
        return clock

    def pass_(self, time: int, *clocks: NodeClock) -> None:
        """Let time pass, and a tenth of a second begin."""
        self.right += time
        self.elapsed += time
        for clock in clocks:
            clock.housekeeping()

    def reboot(self, off: int) -> None:
        """The machine is off for a time."""
        self.right += off
        self.elapsed, self.boot = SECOND, self.boot + "'"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One."""
    return Machine(tmp_path)


@pytest.mark.parametrize("wrong", [8 * HOUR, -8 * HOUR, YEAR, -YEAR])
def test_a_wall_clock_that_jumps_moves_nothing(machine: Machine, wrong: int) -> None:
    """Review finding 3."""
    clock = machine.start()
    assert clock.now() == WALL
    machine.wrong = wrong
    for _ in range(100):
        before = clock.now()
        machine.pass_(SECOND, clock)
        assert abs(clock.now() - before - SECOND) <= SECOND // SLEW_PARTS
    machine.wrong = 0
    machine.pass_(200 * SECOND, clock)
    machine.pass_(2 * SECOND, clock)
    for _ in range(10):
        machine.pass_(30 * SECOND, clock)
    assert abs(clock.ahead) <= STEER_US


@pytest.mark.parametrize("wrong", [8 * HOUR, -8 * HOUR, YEAR, -YEAR])
def test_a_process_that_starts_while_the_wall_clock_is_wrong(machine: Machine, wrong: int) -> None:
    """Review finding 3: it goes on where the last one was, by the clock that counts from boot or not at all."""
    clock = machine.start()
    machine.pass_(MARK_US, clock)
    machine.pass_(5 * SECOND)
    machine.wrong = wrong
    again = machine.start()
    assert again.now() == WALL + MARK_US + (5 * SECOND if wrong > 0 else 0)


def test_the_time_that_a_machine_was_off_counts(machine: Machine) -> None:
    clock = machine.start()
    machine.pass_(0, clock)
    machine.reboot(7 * 24 * HOUR)
    assert machine.start().now() == machine.right


def test_a_wall_clock_that_was_set_right_before_the_machine_was_switched_off(
    machine: Machine,
) -> None:
    """It was a year behind until NTP ran; what was set is marked at once, and no year passes at the next start."""
    machine.wrong = -YEAR
    clock = machine.start()
    machine.pass_(0, clock)
    machine.wrong = 0
    machine.pass_(STEER_US, clock)
    machine.reboot(HOUR)
    # Steered for no moment yet, it is still a year behind; an hour has passed.
    assert machine.start().now() == WALL - YEAR + STEER_US + HOUR


def test_a_mark_is_written_now_and_then_and_when_the_wall_clock_is_set(machine: Machine) -> None:
    clock = machine.start()
    machine.pass_(0, clock)
    path = machine.paths.clock(0)
    first = machine.files.read_file(path)
    machine.pass_(STEER_US, clock)
    assert machine.files.read_file(path) == first
    machine.pass_(MARK_US, clock)
    second = ClockReadings.decode(machine.files.read_file(path))
    assert second == ClockReadings(
        WALL + STEER_US + MARK_US, machine.right, machine.elapsed, "boot"
    )
    machine.wrong = HOUR
    machine.pass_(STEER_US, clock)
    third = ClockReadings.decode(machine.files.read_file(path))
    assert third is not None
    assert third.drift() == -HOUR


def test_the_latest_mark_of_any_shard_counts(machine: Machine, tmp_path: Path) -> None:
    """There may have been more shards, or fewer; what is no mark is passed over."""
    for shard, steady in ((1, 5), (2, 9), (3, 7)):
        (tmp_path / "shards" / str(shard)).mkdir()
        mark = ClockReadings(steady, 0, 0, "b")
        Path(machine.paths.clock(shard)).write_bytes(mark.encode())
    (tmp_path / "shards" / "4").mkdir()
    Path(machine.paths.clock(4)).write_bytes(b"half a li")
    assert latest_mark(machine.files, machine.paths) == ClockReadings(9, 0, 0, "b")
    assert latest_mark(Files(), DataPaths(str(tmp_path / "nowhere"))) is None


def test_a_disk_that_fails_stops_no_clock(machine: Machine) -> None:
    clock = machine.start(shard=7)  # it has no directory
    machine.pass_(SECOND, clock)
    assert clock.now() == WALL + SECOND


def test_a_start_that_others_have_to_vouch_for(machine: Machine) -> None:
    """Review finding 3: the machine was off, and its clock is 8 hours ahead; another node knows."""
    clock = machine.start()
    machine.pass_(0, clock)
    machine.reboot(HOUR)
    machine.wrong = 8 * HOUR
    again = machine.start(vouched=True)
    assert again.now() == machine.right + 8 * HOUR
    assert not again.is_known()
    machine.pass_(MARK_US // 100, again)
    assert ClockReadings.decode(machine.files.read_file(machine.paths.clock(0))) == ClockReadings(
        WALL, WALL, HOUR, "boot"
    )
    again.settle(-8 * HOUR)
    assert again.is_known()
    assert machine.settled == [True]
    assert again.now() == machine.right
    again.settle(YEAR)
    assert again.now() == machine.right


def test_a_leader_that_hears_nothing_goes_on_without_the_time_nobody_saw(machine: Machine) -> None:
    clock = machine.start()
    machine.pass_(0, clock)
    machine.reboot(HOUR)
    again = machine.start(vouched=True)
    machine.pass_(VOUCH_US * 2, again)
    assert not again.settled  # nobody has asked
    assert not again.is_known()
    machine.pass_(VOUCH_US, again)
    assert not again.settled
    machine.pass_(1, again)
    assert again.is_known()
    assert again.now() == WALL + 3 * VOUCH_US + 1


def test_it_steers_by_what_the_wall_clock_ought_to_show(machine: Machine) -> None:
    clock = machine.start()
    machine.wrong = YEAR
    clock.target = lambda wall: wall - YEAR
    for _ in range(10):
        machine.pass_(STEER_US, clock)
    assert clock.now() == machine.right
    clock.target = lambda _wall: None
    machine.pass_(HOUR, clock)
    machine.pass_(HOUR, clock)
    assert clock.now() == machine.right
