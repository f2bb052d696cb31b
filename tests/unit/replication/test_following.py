"""A follower writes what has come before it applies what is committed with it; ticks are asked for when they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxmq.raft.types import Message, MessageKind
from tests.unit.replication.trio import Trio, message


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    found = Trio(tmp_path)
    yield found
    found.close()


class Led:
    """Three members of which 1 leads. ``entries``: what it sent to 2 for each message appended, not delivered yet."""

    def __init__(self, trio: Trio) -> None:
        self.leader = trio.elect(1)
        self.follower = trio[2]
        trio.settle()
        self.trio = trio

    def append(self, payload: bytes) -> Message:
        """Append at the leader; the message with the entry for member 2."""
        assert self.leader.group.append("work", message(payload), None)
        self.leader.work()
        sent = [each for each in self.leader.sent if each.target == 2]
        self.leader.sent.clear()
        return next(each for each in sent if each.kind is MessageKind.APPEND and each.entries)

    def answered(self, *payloads: bytes) -> None:
        """Member 2 takes entries and says so, so that they are committed."""
        for payload in payloads:
            self.follower.driver.step([self.append(payload)])
            self.follower.work()
            for answer in self.follower.sent:
                self.leader.driver.step([answer])
            self.follower.sent.clear()
            self.leader.work()
            self.leader.sent.clear()


@pytest.fixture
def led(trio: Trio) -> Led:
    return Led(trio)


def test_what_comes_is_written_before_what_is_committed_with_it_is_applied(led: Led) -> None:
    led.answered(b"a")
    follower = led.follower
    before = follower.group.applied_index
    sent = led.append(b"b")
    assert sent.commit > before
    follower.syncer.held = True
    follower.driver.step([sent])
    assert follower.group.applied_index == before
    follower.shared.flush()
    assert follower.syncer.waiting == 1
    assert follower.group.applied_index == before
    follower.group.work()
    assert follower.group.applied_index == sent.commit


def test_a_follower_asks_for_one_tick_for_what_comes_and_for_none_for_applying_it(led: Led) -> None:
    led.answered(b"a")
    follower = led.follower
    follower.marked = 0
    follower.driver.step([led.append(b"b")])
    assert follower.marked == 1
    follower.work()
    assert follower.marked == 1


def test_what_waits_is_applied_before_anything_that_comes_later(led: Led) -> None:
    led.answered(b"a")
    first, second = led.append(b"b"), led.append(b"c")
    follower = led.follower
    follower.driver.step([first])
    waiting = first.commit
    assert follower.group.applied_index < waiting
    follower.driver.step([second])
    assert follower.group.applied_index >= waiting
    follower.work()
    led.trio.settle()
    indexes = {member.group.applied_index for member in led.trio.members.values()}
    led.trio.tick()
    assert len(indexes) <= 2  # all are within the entries whose commit nobody was told of yet
    assert follower.group.machine.queue("work") is not None


def test_a_follower_that_is_to_lead_has_applied_everything(led: Led) -> None:
    led.answered(b"a")
    follower = led.follower
    follower.driver.step([led.append(b"b")])
    assert led.trio.elect(2) is follower
    led.trio.settle()
    state = follower.group.machine.queue("work")
    assert state is not None
    assert state.depth == 2


def test_an_answer_that_changes_nothing_asks_for_no_tick(led: Led) -> None:
    leader = led.leader
    assert leader.group.append("work", message(b"a"), None)
    leader.work()
    answers = []
    for number in (2, 3):
        member = led.trio[number]
        member.driver.step([each for each in leader.sent if each.target == number])
        member.work()
        answers.append(list(member.sent))
        member.sent.clear()
    leader.sent.clear()
    leader.driver.step(answers[0])
    assert leader.driver.changed
    leader.driver.step(answers[1])
    assert not leader.driver.changed


def test_nor_does_one_that_comes_after_the_own_disk_has_committed_something(led: Led) -> None:
    leader = led.leader
    leader.syncer.held = True
    assert leader.group.append("work", message(b"a"), None)
    leader.work()
    answers = []
    for number in (2, 3):
        member = led.trio[number]
        member.driver.step([each for each in leader.sent if each.target == number])
        member.work()
        answers.append(list(member.sent))
        member.sent.clear()
    before = leader.group.applied_index
    leader.driver.step(answers[0])
    assert leader.group.applied_index == before
    leader.syncer.held = False
    leader.syncer.sync()
    leader.shared.ready()
    assert leader.group.applied_index > before
    leader.driver.step(answers[1])
    assert not leader.driver.changed
