"""A group whose leader moves, from the side of those who use it: order, answers that never promise too much, consumers.

Longer than 500 lines because all cases have the same two leaders and their clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fluxmq.engine.group_client import NUMBERS_APART, WAITING_BYTES_MAX, GroupClient, WritePolicy
from fluxmq.engine.ports import (
    BROWSE,
    AppendCallback,
    Attached,
    AttachRequest,
    ConsumerHandle,
    ConsumerPort,
    GetCallback,
    GroupTarget,
    QueueStats,
    Range,
    StatusCallback,
    is_browser,
)
from fluxmq.engine.write_policies import RejectPolicy
from fluxmq.model.batch_format import parse
from fluxmq.model.message_batch import build_message
from fluxmq.model.outcomes import Outcome, QueueOutcome
from fluxmq.queues.commands import Verb
from fluxmq.queues.origins import Identity
from fluxmq.replication.leaders import Leader, Leaders

REFUSED = Outcome.FAILED
TIMEOUT = 5.0
WANTED = AttachRequest("q", "g", "member", b"", None, 10, 1)


class Somebody:
    """Who leads: remembers what is asked of it, and answers when the test says so."""

    def __init__(self) -> None:
        self.appends: list[tuple[bytes, Identity, Callable[[int], object]]] = []
        self.attached: list[
            tuple[AttachRequest, ConsumerPort, Callable[[Attached, ConsumerHandle | None], None]]
        ]
        self.attached = []
        self.at_once: int | None = None
        self.by_address: list[bool] = []

    def append(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Remember."""
        assert done is not None
        assert identity is not None
        self.appends.append((batch, identity, done))
        self.by_address.append(by_address)
        if self.at_once is not None:
            done(self.at_once)
        return True

    def attach(
        self,
        wanted: AttachRequest,
        port: ConsumerPort,
        done: Callable[[Attached, ConsumerHandle | None], None],
    ) -> None:
        """Remember."""
        self.attached.append((wanted, port, done))

    def status(self, queue: str, done: StatusCallback) -> None:
        """Something is there."""
        done(QueueStats(QueueOutcome.OK, 1))

    purge = status

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: StatusCallback) -> None:
        """As if it were deleted."""
        done(QueueStats(QueueOutcome.OK, 1))

    @property
    def bodies(self) -> list[bytes]:
        """What was appended, in order."""
        return [batch for batch, _, _ in self.appends]


class Holding:
    """A consumer at a leader."""

    def __init__(self) -> None:
        self.settled: list[tuple[int, AppendCallback | None]] = []
        self.gone = False

    def settle(
        self,
        verb: int,
        ranges: Sequence[Range],
        delay: int,
        reason: bytes,
        done: AppendCallback | None,
    ) -> None:
        """Remember."""
        self.settled.append((verb, done))

    def commit(self, offset: int, done: AppendCallback | None) -> None:
        """Remember."""
        self.settled.append((-1, done))

    def set_limit(self, limit: int) -> None:
        """Not here."""

    def take(self, done: GetCallback) -> None:
        """There is nothing."""
        done(False, 0)

    def stop(self) -> None:
        """Not here."""

    def detach(self) -> None:
        """Gone."""
        self.gone = True


class Port:
    """A client's consumer."""

    def __init__(self) -> None:
        self.ended = False

    def deliver(
        self, batch: Any, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Not here."""

    def cancelled(self) -> None:
        """The end."""
        self.ended = True


class LedRoute:
    """Finds a group's leader among nodes that a test has; its appends have deadlines."""

    of_node = False
    given_up = False

    def __init__(
        self,
        leader: Leader,
        nodes: dict[int, Somebody],
        ack_timeout: Callable[[str], float] = lambda _queue: TIMEOUT,
    ) -> None:
        self.leader = leader
        self.nodes = nodes
        self.ack_timeout = ack_timeout

    @property
    def term(self) -> int:
        """The leader's."""
        return self.leader.term

    def target(self) -> GroupTarget | None:
        """The leader, if there is one."""
        return None if self.leader.peer is None else self.nodes[self.leader.peer]

    def reader(self, queue: str) -> GroupTarget | None:
        """The same."""
        return self.target()


def follow(client: GroupClient, leader: Leader) -> None:
    """Have a client hear of its group's leaders."""
    leader.listeners.append(lambda: client.leader_changed(leader.peer is not None))


class Case:
    """A host, two nodes that may lead, and a clock."""

    def __init__(self, refusal: Callable[[], int] | None = None) -> None:
        self.now = 100.0
        self.leaders = Leaders()
        self.nodes = {1: Somebody(), 2: Somebody()}
        self.term = 0
        self.timeouts = {"q": TIMEOUT, "hasty": 1.0}
        self.host = self.client("g", None if refusal is None else RejectPolicy(refusal))
        self.said: list[tuple[bytes, int]] = []

    def client(
        self, group: str, policy: WritePolicy | None = None, numbers: Iterator[int] | None = None
    ) -> GroupClient:
        """A client of a group."""
        leader = self.leaders.of(group)
        route = LedRoute(leader, self.nodes, self.timeouts.__getitem__)
        client = GroupClient(route, 77, lambda: self.now, numbers, policy)
        follow(client, leader)
        return client

    def lead(self, peer: int) -> Somebody:
        """Somebody leads in a new term."""
        self.term += 1
        self.leaders.leads("g", self.term, peer)
        return self.nodes[peer]

    def append(self, body: bytes, queue: str = "q") -> bool:
        """Append, and note the answer."""
        return self.host.append(queue, body, lambda reason: self.said.append((body, reason)))

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.host.housekeeping()


@pytest.fixture
def case() -> Case:
    """A host before anybody leads."""
    return Case()


def test_what_is_asked_before_anybody_leads_goes_to_the_first_who_does(case: Case) -> None:
    case.append(b"1")
    case.append(b"2")
    one = case.lead(1)
    case.append(b"3")
    assert one.bodies == [b"1", b"2", b"3"]
    for _, _, done in one.appends:
        done(0)
    assert case.said == [(b"1", 0), (b"2", 0), (b"3", 0)]
    assert case.host.idle


def test_a_caller_that_asked_for_one_leader_is_told_that_it_has_moved(case: Case) -> None:
    """It asks again itself; one who asked for no leader in particular is served by the next."""
    one = case.lead(1)
    said: list[int] = []
    case.host.append("q", b"1", said.append, Identity(9, 44, 40, case.term))
    case.host.append("q", b"2", said.append, Identity(9, 45, 40))
    assert [identity.term for _, identity, _ in one.appends] == [case.term, case.term]
    for _, _, done in one.appends[:]:
        done(Outcome.MOVED)
    assert said == [Outcome.MOVED]
    assert case.lead(2).bodies == [b"2"]


def test_an_answer_of_nobody_knows_is_no_success_and_no_refusal(case: Case) -> None:
    one = case.lead(1)
    case.append(b"1")
    one.appends[0][2](Outcome.MOVED)
    assert case.said == []
    two = case.lead(2)
    assert two.bodies == [b"1"]
    two.appends[0][2](0)
    assert case.said == [(b"1", 0)]


def test_every_leader_is_told_what_came_by_address(case: Case) -> None:
    """Review finding 9: the leader may be another node's, and refuses what is sent to the address of an exclusive queue."""
    case.host.append("q", b"1", lambda _reason: None, by_address=True)
    case.append(b"2")
    assert [case.lead(peer).by_address for peer in (1, 2)] == [[True, False]] * 2


def test_it_is_sent_again_with_the_identity_it_had(case: Case) -> None:
    one = case.lead(1)
    case.append(b"1")
    case.append(b"2")
    two = case.lead(2)
    before, after = ([identity for _, identity, _ in each.appends] for each in (one, two))
    assert [identity.number for identity in before] == [identity.number for identity in after]
    assert after == [
        Identity(77, NUMBERS_APART, NUMBERS_APART, term=2),
        Identity(77, 2 * NUMBERS_APART, NUMBERS_APART, term=2),
    ]
    two.appends[0][2](0)
    case.append(b"3")
    # Nothing below the floor is asked for again: the second is not answered yet.
    assert two.appends[-1][1] == Identity(77, 3 * NUMBERS_APART, 2 * NUMBERS_APART, term=2)


def test_what_a_former_leader_has_not_answered_goes_before_what_is_newer(case: Case) -> None:
    one = case.lead(1)
    case.append(b"1")
    case.append(b"2")
    two = case.lead(2)  # and the former leader says nothing: it is cut off
    case.append(b"3")
    assert two.bodies == [b"1", b"2", b"3"]
    one.appends[0][2](Outcome.MOVED)
    case.wait(0.1)
    assert two.bodies == [b"1", b"2", b"3"]
    one.appends[1][2](Outcome.OVER_LIMIT)  # what a former leader refuses may be stored by now
    assert case.said == []
    one.appends[0][2](0)  # that it was committed is true whoever says so
    assert case.said == [(b"1", 0)]
    for _, _, done in two.appends:
        done(0)
    assert case.said == [(b"1", 0), (b"2", 0), (b"3", 0)]


def test_nothing_overtakes_what_came_back_at_once(case: Case) -> None:
    case.nodes[1].at_once = Outcome.MOVED
    for body in (b"1", b"2", b"3"):
        case.append(body)
    one = case.lead(1)
    assert one.bodies == [b"1"]
    one.at_once = None
    case.append(b"4")
    case.wait(0.1)
    assert one.bodies[1:] == [b"1", b"2", b"3", b"4"]


def test_what_is_withdrawn_is_asked_for_no_more(case: Case) -> None:
    """Review finding 2: who keeps appends elsewhere by now asks for them there, by the names they have."""
    case.lead(1)
    case.host.append("q", b"1", None, Identity(5, 1, 1))
    case.append(b"2")
    case.host.append("hasty", b"3", None, Identity(5, 2, 1))
    case.host.append("q", b"4", None, Identity(6, 1, 1))
    case.host.withdraw("q", {5})
    assert case.lead(2).bodies == [b"2", b"3", b"4"]


def test_a_timeout_is_a_refusal_and_each_queue_has_its_own(case: Case) -> None:
    one = case.lead(1)
    case.append(b"patient")
    case.append(b"hasty", "hasty")
    case.wait(0.9)
    assert case.said == []
    case.wait(0.2)
    assert case.said == [(b"hasty", REFUSED)]
    case.wait(TIMEOUT)
    assert case.said[1:] == [(b"patient", REFUSED)]
    assert case.host.timeouts == 2
    for _, _, done in one.appends:
        done(0)  # too late: it was said that nobody knows
    assert len(case.said) == 2
    assert case.host.idle


def test_publishers_pause_and_are_refused_while_nobody_answers(case: Case) -> None:
    case.lead(1)
    assert case.append(bytes(WAITING_BYTES_MAX))
    assert not case.append(b"more")
    assert case.host.above_high_watermark
    case.append(bytes(3 * WAITING_BYTES_MAX))
    assert case.said == []
    case.append(b"too much")
    assert case.said == [(b"too much", Outcome.OVER_LIMIT)]


def test_refusals_are_given_before_anything_is_kept() -> None:
    reasons = [0x283, 0]
    case = Case(lambda: reasons[0])
    one = case.lead(1)
    case.append(b"1")
    assert (case.said, one.bodies, case.host.idle) == ([(b"1", 0x283)], [], True)
    reasons.pop(0)
    case.append(b"2")
    assert one.bodies == [b"2"]


def attach(
    case: Case, wanted: AttachRequest = WANTED
) -> tuple[Port, list[tuple[Attached, ConsumerHandle | None]]]:
    """A client's consumer, and what it was told."""
    port, answers = Port(), list[tuple[Attached, ConsumerHandle | None]]()
    case.host.attach(wanted, port, lambda answer, held: answers.append((answer, held)))
    return port, answers


def test_a_consumer_follows_the_leader_and_settles_only_there(case: Case) -> None:
    one = case.lead(1)
    port, answers = attach(case)
    first, second = Holding(), Holding()
    one.attached[0][2](Attached(0, "g"), first)
    ((_, held),) = answers
    assert held is not None
    said: list[int] = []
    held.settle(Verb.ACK, [(0, 0)], 0, b"", said.append)
    first.settled[0][1](Outcome.MOVED)  # type: ignore[misc]  # leadership was lost before it was committed
    assert said == [REFUSED]
    one.attached[0][1].cancelled()
    case.leaders.ends("g", case.term, 1)
    held.settle(Verb.ACK, [(0, 0)], 0, b"", said.append)
    held.commit(1, said.append)
    assert said == [REFUSED] * 3
    assert len(first.settled) == 1  # nobody was asked
    two = case.lead(2)
    two.attached[0][2](Attached(0, "g"), second)
    held.settle(Verb.ACK, [(0, 0)], 0, b"", said.append)
    second.settled[0][1](0)  # type: ignore[misc]
    assert said == [REFUSED] * 3 + [0]
    assert len(answers) == 1
    assert not port.ended


def test_a_consumer_may_ask_to_be_cancelled_by_a_failover(case: Case) -> None:
    """S4-42, S4-49: when another leads, or the same anew; not when its link was lost."""
    one = case.lead(1)
    port, answers = attach(case, replace(WANTED, cancel_on_failover=True))
    one.attached[0][2](Attached(0, "g"), Holding())
    assert len(answers) == 1
    one.attached[0][1].cancelled()
    case.wait(0.1)
    one.attached[1][2](Attached(0, "g"), Holding())  # it leads as before
    assert not port.ended
    one.attached[1][1].cancelled()
    case.leaders.ends("g", case.term, 1)
    assert not port.ended, "it may lead again, or another"
    two = case.lead(2)
    assert port.ended
    assert two.attached == []
    case.wait(0.1)
    assert two.attached == [], "it is forgotten"


def test_a_consumer_of_a_queue_that_has_become_a_quorum_queue_is_not_cancelled_by_a_failover(
    case: Case,
) -> None:
    one = case.lead(1)
    port, _ = attach(case, replace(WANTED, cancel_on_failover=True))
    one.attached[0][2](Attached(0, "g"), Holding())
    other = case.client("h")
    case.leaders.leads("h", 77, 1)
    case.host.hand_over("q", other, quorum=True)
    one.attached[1][2](Attached(0, "g"), Holding())
    one.attached[1][1].cancelled()
    case.leaders.ends("h", 77, 1)
    case.leaders.leads("h", 78, 2)
    assert len(case.nodes[2].attached) == 1
    assert not port.ended


def test_a_consumer_that_asked_for_it_is_not_cancelled_before_it_was_attached(case: Case) -> None:
    """S4-49: nor by a move of its queue."""
    one = case.lead(1)
    port, answers = attach(case, replace(WANTED, cancel_on_failover=True))
    one.attached[0][2](Attached(Outcome.FAILED, outcome=QueueOutcome.UNAVAILABLE), None)
    two = case.lead(2)
    two.attached[0][2](Attached(0, "g"), Holding())
    assert len(answers) == 1
    other = case.client("h")
    case.leaders.leads("h", 77, 1)
    case.host.hand_over("q", other)
    assert len(one.attached) == 2
    assert not port.ended


def test_a_group_is_moved_to_a_start_once(case: Case) -> None:
    """Attached again, a consumer goes on where its group is: messages came meanwhile."""
    wanted = replace(WANTED, start=("next", 0))
    one = case.lead(1)
    attach(case, wanted)
    case.leaders.ends("g", case.term, 1)  # before it answers
    two = case.lead(2)
    two.attached[0][2](Attached(0, "g"), Holding())
    two.attached[0][1].cancelled()
    case.leaders.ends("g", case.term, 2)
    case.lead(1)
    asked = [wanted.start for wanted, _, _ in (one.attached[0], two.attached[0], one.attached[1])]
    assert asked == [("next", 0), ("next", 0), None]


def test_a_browser_goes_on_behind_what_it_has_seen(case: Case) -> None:
    """The next leader knows nothing of it."""
    wanted = replace(WANTED, start=(BROWSE, 0), qos=0)
    one = case.lead(1)
    attach(case, wanted)
    one.attached[0][2](Attached(0, "g"), Holding())
    batch = parse(build_message(b"", b"", b"x", 0))
    batch.stamp(7, 0, 1)
    one.attached[0][1].deliver(batch, 0, 1, 1)
    one.attached[0][1].cancelled()
    case.leaders.ends("g", case.term, 1)
    two = case.lead(2)
    asked = [each.attached[0][0] for each in (one, two)]
    assert [each.start for each in asked] == [(BROWSE, 0), (BROWSE, 8)]
    assert all(is_browser(each) for each in asked)


def test_a_consumer_nobody_takes_in_time_is_told(case: Case) -> None:
    _, answers = attach(case)
    case.wait(TIMEOUT - 0.1)
    assert answers == []
    case.wait(0.2)
    assert answers == [(Attached(REFUSED, outcome=QueueOutcome.UNAVAILABLE), None)]


def test_a_consumer_that_goes_while_it_is_being_attached_leaves_nothing_behind(case: Case) -> None:
    one = case.lead(1)
    _, answers = attach(case)
    first, late = Holding(), Holding()
    case.leaders.ends("g", case.term, 1)
    two = case.lead(2)
    two.attached[0][2](Attached(0, "g"), first)
    one.attached[0][2](Attached(0, "g"), late)  # who was asked before answers after all
    assert late.gone
    ((_, held),) = answers
    assert held is not None
    held.detach()
    assert first.gone


def test_questions_without_a_leader_have_an_answer(case: Case) -> None:
    said: list[QueueStats] = []
    case.host.status("q", said.append)
    case.host.purge("q", said.append)
    case.host.delete("q", False, False, said.append)
    assert [status.outcome for status in said] == [QueueOutcome.UNAVAILABLE] * 3
    case.lead(1)
    case.host.status("q", said.append)
    case.host.purge("q", said.append)
    case.host.delete("q", False, False, said.append)
    assert said[3:] == [QueueStats(QueueOutcome.OK, 1)] * 3


def test_the_greatest_term_is_believed() -> None:
    leaders = Leaders()
    told: list[int | None] = []
    leader = leaders.of("g")
    leader.listeners.append(lambda: told.append(leader.peer))
    leaders.leads("g", 2, 5)
    leaders.leads("g", 1, 6)  # late
    leaders.ends("g", 1, 6)
    assert (told, leader.peer) == ([5], 5)
    leaders.ends("g", 2, 5)
    leaders.leads("g", 2, 6)  # one of a term leads; it ended, and is heard of again
    leaders.lost(7)
    leaders.lost(6)
    assert told == [5, None, 6, None]
