"""A queue that moves to another group, from the side of those who use it: nothing is lost, order and names stay."""

from __future__ import annotations

import itertools

import pytest

from fluxmq.engine.group_client import NUMBERS_APART
from fluxmq.engine.ports import Attached
from fluxmq.model.outcomes import Outcome, QueueOutcome
from tests.unit.engine.test_group_client import REFUSED, TIMEOUT, WANTED, Case, Holding, Port


@pytest.fixture
def case() -> Case:
    """A host before anybody leads."""
    return Case()


def test_a_queue_that_moves_holds_up_its_own_appends_and_no_others(case: Case) -> None:
    one = case.lead(1)
    for body in (b"1", b"2"):
        case.append(body)
    for _, _, done in one.appends:
        done(Outcome.FENCED)
    case.append(b"3")
    case.append(b"other", "hasty")
    assert one.bodies == [b"1", b"2", b"other"]
    case.wait(0.1)
    assert one.bodies[3:] == [b"1"]  # asked for now and then: perhaps it stays
    one.appends[3][2](Outcome.FENCED)
    case.wait(0.1)
    assert one.bodies[4:] == [b"1"]
    one.appends[4][2](0)
    assert one.bodies[5:] == [b"2", b"3"]
    for _, _, done in one.appends[5:]:
        done(0)
    assert case.said == [(b"1", 0), (b"2", 0), (b"3", 0)]


def test_a_new_leader_is_asked_for_what_was_held_up(case: Case) -> None:
    one = case.lead(1)
    case.append(b"1")
    one.appends[0][2](Outcome.FENCED)
    case.append(b"2")
    assert case.lead(2).bodies == [b"1", b"2"]


class Moved(Case):
    """Two groups that share the names of their appends, each led by a node of its own."""

    def __init__(self) -> None:
        super().__init__()
        numbers = itertools.count(NUMBERS_APART, NUMBERS_APART)
        self.host, self.other = (self.client(group, numbers=numbers) for group in ("g", "h"))
        self.here = self.lead(1)
        self.leaders.leads("h", 1, 2)
        self.there = self.nodes[2]

    def append_there(self, body: bytes, queue: str = "q") -> None:
        """Append to the other group."""
        self.other.append(queue, body, lambda reason: self.said.append((body, reason)))


def test_what_is_not_answered_moves_with_its_queue_in_order_and_under_its_names() -> None:
    case = Moved()
    case.append(b"1")
    case.append(b"stays", "hasty")
    case.append(b"2")
    case.append_there(b"theirs", "hasty")
    case.here.appends[2][2](Outcome.FENCED)
    case.append(b"3")
    case.host.hand_over("q", case.other)
    assert case.there.bodies == [b"theirs", b"1", b"2", b"3"]
    names = [identity.number for _, identity, _ in case.here.appends]
    assert [identity.number for _, identity, _ in case.there.appends][1:3] == [names[0], names[2]]
    # Who comes late is sent after them, behind those that were made before.
    case.append(b"4")
    assert case.there.bodies[4:] == [b"4"]
    numbers = [identity.number for _, identity, _ in case.there.appends[1:]]
    assert numbers == sorted(numbers)
    # What is said of them where they were counts no more.
    case.here.appends[0][2](REFUSED)
    assert case.said == []
    for _, _, done in case.there.appends:
        done(0)
    assert {body for body, _ in case.said} == {b"theirs", b"1", b"2", b"3", b"4"}
    assert not case.host.idle  # the other queue's append stays
    case.here.appends[1][2](0)
    assert case.host.idle
    assert case.other.idle


def test_what_moved_is_given_up_in_its_own_time() -> None:
    case = Moved()
    case.append(b"1")
    case.now += TIMEOUT - 1
    case.append_there(b"2")
    case.host.hand_over("q", case.other)
    case.now += 1
    case.host.housekeeping()
    case.other.housekeeping()
    assert case.said == [(b"1", REFUSED)]


def test_a_queue_that_comes_back_is_used_where_it_is() -> None:
    case = Moved()
    case.host.hand_over("q", case.other)
    case.other.hand_over("q", case.host)
    case.append(b"1")
    case.append_there(b"2")
    assert case.here.bodies == [b"1", b"2"]
    assert case.there.bodies == []


def test_a_queue_that_is_declared_again_where_it_was_is_used_there() -> None:
    """Review finding 18: nothing is remembered of a move of a deleted queue."""
    case = Moved()
    case.host.hand_over("q", case.other)
    case.host.forget_queue("q")
    case.append(b"1")
    assert case.here.bodies == [b"1"]
    assert case.there.bodies == []


def test_consumers_move_with_their_queue() -> None:
    case = Moved()
    port, answers, held = Port(), [], Holding()
    case.host.attach(WANTED, port, lambda answer, _held: answers.append(answer))
    case.here.attached[0][2](Attached(0, "g"), held)
    case.here.attached[0][1].cancelled()  # fenced
    case.host.housekeeping()
    unavailable = Attached(Outcome.MOVED, outcome=QueueOutcome.UNAVAILABLE)
    case.here.attached[1][2](unavailable, None)
    case.host.hand_over("q", case.other)
    assert len(case.there.attached) == 1
    case.there.attached[0][2](unavailable, None)  # it is about to be there
    case.other.housekeeping()
    again = Holding()
    case.there.attached[1][2](Attached(0, "g"), again)
    assert not port.ended
    assert len(answers) == 1
    case.host.housekeeping()
    assert len(case.here.attached) == 2
    late: list[Attached] = []
    case.host.attach(WANTED, Port(), lambda answer, _held: late.append(answer))
    assert len(case.there.attached) == 3
