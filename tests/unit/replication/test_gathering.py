"""A follower whose copy nobody reads leaves a little of what is committed unapplied, and never for long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxmq.replication.raft_driver import GATHERED_BYTES, GATHERED_ENTRIES
from tests.unit.replication.test_following import Led
from tests.unit.replication.trio import Trio


@pytest.fixture
def led(tmp_path: Path) -> Iterator[Led]:
    trio = Trio(tmp_path)
    found = Led(trio)
    for member in trio.members.values():
        member.driver.gathers = True
    yield found
    trio.close()


def unapplied(led: Led) -> int:
    """Entries that the follower knows to be committed and has not applied."""
    return led.follower.driver.node.status().commit - led.follower.group.applied_index


def test_few_entries_wait_and_ask_for_no_tick(led: Led) -> None:
    before = led.follower.group.applied_index
    for number in range(1, GATHERED_ENTRIES):
        led.answered(b"%d" % number)
        assert unapplied(led) == number - 1
    assert led.follower.group.applied_index == before
    led.answered(b"last")
    led.answered(b"and one more")
    assert unapplied(led) == 0


def test_much_does_not_wait(led: Led) -> None:
    led.answered(b"x" * GATHERED_BYTES)
    led.answered(b"y")
    assert unapplied(led) == 0


def test_a_tick_of_the_groups_clock_applies_what_waits(led: Led) -> None:
    led.answered(b"a", b"b", b"c")
    assert unapplied(led) == 2
    led.follower.driver.tick()
    assert unapplied(led) == 0


def test_what_comes_without_entries_applies_what_waits(led: Led) -> None:
    led.answered(b"a", b"b", b"c")
    while not led.leader.sent:
        led.leader.driver.tick()
    told = next(each for each in led.leader.sent if each.target == 2)
    assert not told.entries
    led.follower.driver.step([told])
    assert unapplied(led) == 0
    assert led.follower.group.applied_index == led.leader.group.applied_index
    # All of it, and in order: their machines are the same.
    assert led.follower.group.machine.state_hash() == led.leader.group.machine.state_hash()


def test_a_member_that_is_to_lead_applies_everything_first(led: Led) -> None:
    led.answered(b"a", b"b", b"c")
    assert unapplied(led) > 0
    assert led.trio.elect(2) is led.follower
    assert unapplied(led) == 0
    state = led.follower.group.machine.queue("work")
    assert state is not None
    assert state.depth == 3


def test_members_agree_on_what_is_applied(led: Led) -> None:
    for number in range(3 * GATHERED_ENTRIES):
        led.answered(b"%d" % number)
    led.trio.settle()
    led.trio.tick()
    led.trio.settle()
    led.trio.tick()
    led.trio.settle()
    hashes = {
        (member.group.applied_index, member.group.machine.state_hash())
        for member in led.trio.members.values()
    }
    assert len(hashes) == 1
