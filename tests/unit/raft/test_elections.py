"""Votes: to whom they are given, that they are kept, and that a leader is not disturbed without need."""

from __future__ import annotations

import pytest

from fluxmq.raft.types import (
    TRANSFER,
    Entry,
    HardState,
    Membership,
    Message,
    MessageKind,
    Role,
)
from tests.unit.raft.cluster import Cluster, Disk


def ask(candidate: int, term: int, index: int, log_term: int, target: int = 3) -> Message:
    return Message(MessageKind.VOTE, candidate, target, term, index, log_term)


def answers(cluster: Cluster, number: int) -> list[tuple[int, int, bool]]:
    """(candidate, term, given) of the votes that a member has sent."""
    found = [
        (message.target, message.term, not message.reject)
        for message in cluster.network
        if message.source == number and message.kind is MessageKind.VOTE_ANSWER
    ]
    cluster.network.clear()
    return found


def test_a_vote_leaves_only_when_it_is_durable() -> None:
    cluster = Cluster(3)
    cluster[3].node.step(ask(1, 1, 0, 0))
    cluster[3].collect()
    assert answers(cluster, 3) == []
    cluster[3].sync()
    assert cluster[3].disk.hard_state == HardState(1, 1, 0)
    assert answers(cluster, 3) == [(1, 1, True)]


def test_nobody_votes_twice_in_a_term_restart_or_not() -> None:
    """The term is durable before the vote, so that the vote does not become durable by the term's change."""
    cluster = Cluster(3)
    log = [Entry(1, 1, 0, b"")]
    cluster.add(3, Disk(cluster.membership, log))
    member = cluster[3]
    member.node.step(ask(2, 5, 0, 0))
    cluster.settle(lambda message: False)
    assert answers(cluster, 3) == [(2, 5, False)]
    member.node.step(ask(1, 5, 1, 1))
    member.collect()
    member.sync()
    assert answers(cluster, 3) == [(1, 5, True)]
    member.node.step(ask(2, 5, 9, 4))
    member.crash()
    member.node.step(ask(2, 5, 9, 4))
    member.collect()
    member.sync()
    assert answers(cluster, 3) == [(2, 5, False)]
    member.node.step(ask(1, 5, 1, 1))
    member.collect()
    member.sync()
    assert answers(cluster, 3) == [(1, 5, True)], "the same vote may be given again"


def test_a_vote_that_was_lost_with_its_answer_may_be_given_anew() -> None:
    cluster = Cluster(3)
    cluster[3].node.step(ask(1, 1, 0, 0))
    cluster[3].collect()
    cluster[3].crash()
    cluster[3].node.step(ask(2, 1, 0, 0))
    cluster[3].collect()
    cluster[3].sync()
    assert answers(cluster, 3) == [(2, 1, True)]


@pytest.mark.parametrize(
    ("index", "log_term", "given"),
    [(3, 2, True), (9, 2, True), (1, 3, True), (2, 2, False), (9, 1, False), (0, 0, False)],
)
def test_a_vote_needs_a_log_as_complete(index: int, log_term: int, given: bool) -> None:
    """Section 5.4.1: the last term decides, then the length."""
    cluster = Cluster(3)
    terms = [1, 2, 2]
    cluster.add(3, Disk(cluster.membership, [Entry(t, i, 0, b"") for i, t in enumerate(terms, 1)]))
    cluster[3].node.step(ask(1, 7, index, log_term))
    cluster[3].collect()
    cluster[3].sync()
    assert answers(cluster, 3) == [(1, 7, given)]


def test_a_candidate_asks_only_after_its_own_vote_is_durable() -> None:
    cluster = Cluster(3, pre_vote=False)
    cluster[1].node.campaign()
    cluster[1].collect()
    assert cluster.network == []
    cluster[1].sync()
    assert [message.kind for message in cluster.network] == [MessageKind.VOTE] * 2


def test_split_votes_end_by_chance() -> None:
    draws = iter([0, 0, 0, 9, 3, 6] * 20)
    cluster = Cluster(3, random=lambda below: next(draws) % below, pre_vote=False)
    for number in (1, 2):
        cluster[number].node.campaign()
    for number in (1, 2):
        cluster[number].collect()
        cluster[number].sync()
    cluster.deliver(lambda message: message.target in (1, 2))
    cluster.network.clear()
    assert cluster.leader() is None
    cluster.tick(20)
    leader = cluster.leader()
    assert leader is not None
    assert leader.node.status().term >= 2


def test_timeouts_are_drawn_from_one_to_two_election_times() -> None:
    for draw, expected in ((0, 10), (9, 19)):
        cluster = Cluster(1, random=lambda below, draw=draw: draw)  # type: ignore[misc]
        for _ in range(expected - 1):
            cluster[1].node.tick()
        assert cluster[1].node.status().role is Role.FOLLOWER
        cluster[1].node.tick()
        assert cluster[1].node.status().role is Role.CANDIDATE


def test_a_rejoining_node_does_not_disturb() -> None:
    """Pre-vote: a node that was cut off has not raised its term, and nobody would vote for it."""
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.cut(3)
    cluster.tick(50)
    assert cluster[3].node.status().role is Role.PRE_CANDIDATE
    assert cluster[3].node.status().term == 1
    cluster.propose(1, b"a")
    cluster.settle()
    cluster.heal()
    for _ in range(15):
        cluster[3].node.tick()
        cluster.settle()
    assert cluster[1].node.status().role is Role.LEADER
    cluster.tick(2)
    assert cluster[1].node.status().term == 1
    assert cluster[3].commands == [b"a"]


def test_votes_are_refused_while_a_leader_is_heard() -> None:
    """Check-quorum: a node that did raise its term is not even answered (dissertation section 4.2.3)."""
    cluster = Cluster(3, pre_vote=False)
    cluster.elect(1)
    cluster[2].node.step(ask(3, 9, 99, 8, target=2))
    cluster[1].node.step(ask(3, 9, 99, 8, target=1))
    cluster.settle()
    assert cluster[1].node.status().role is Role.LEADER
    assert cluster[2].node.status().term == 1
    for _ in range(10):
        cluster[2].node.tick()
    cluster.collect()
    cluster.sync()
    cluster.network.clear()
    cluster[2].node.step(ask(3, 19, 99, 8, target=2))
    assert cluster[2].node.status().vote == 3


def test_a_vote_at_a_leaders_wish_is_given_although_it_is_heard() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    request = ask(3, 2, 1, 1, target=2)
    request.context = TRANSFER
    cluster[2].node.step(request)
    assert cluster[2].node.status().vote == 3


def test_a_node_stuck_in_a_higher_term_makes_the_group_follow() -> None:
    """It refuses the leader's appends as too old; the leader learns its term and a new election brings it back."""
    cluster = Cluster(3, pre_vote=False)
    cluster.elect(1)
    cluster.cut(3)
    for _ in range(40):
        cluster[3].node.tick()
    cluster.settle()
    assert cluster[3].node.status().term > 2
    cluster.heal()
    cluster.tick(60)
    statuses = [member.node.status() for member in cluster.members.values()]
    assert len({status.term for status in statuses}) == 1
    assert len({status.leader for status in statuses} - {0}) == 1


def test_a_leader_without_a_majority_steps_down() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.tick(30)
    assert cluster[1].node.status().role is Role.LEADER
    cluster.cut(1)
    for _ in range(20):
        cluster[1].node.tick()
    assert cluster[1].node.status().role is not Role.LEADER


def test_without_check_quorum_it_stays() -> None:
    cluster = Cluster(3, check_quorum=False)
    cluster.elect(1)
    cluster.cut(1)
    for _ in range(50):
        cluster[1].node.tick()
    assert cluster[1].node.status().role is Role.LEADER


def test_late_votes_of_an_earlier_campaign_do_not_count() -> None:
    cluster = Cluster(3, pre_vote=False)
    cluster[1].node.campaign()
    cluster[1].node.campaign()
    cluster[1].node.step(Message(MessageKind.VOTE_ANSWER, 2, 1, 1))
    assert cluster[1].node.status().role is Role.CANDIDATE
    cluster[1].node.step(Message(MessageKind.VOTE_ANSWER, 9, 1, 2))
    assert cluster[1].node.status().role is Role.CANDIDATE, "not a voter"
    cluster[1].node.step(Message(MessageKind.VOTE_ANSWER, 2, 1, 2))
    assert cluster[1].node.status().role is Role.LEADER


def test_a_pre_vote_for_another_term_does_not_count() -> None:
    """It was given when this node was in the term before; since then its voter may have voted in this one."""
    cluster = Cluster(3)
    cluster[1].node.campaign()
    cluster[1].node.step(Message(MessageKind.PRE_VOTE_ANSWER, 2, 1, 5))
    assert cluster[1].node.status().role is Role.PRE_CANDIDATE
    cluster[1].node.step(Message(MessageKind.PRE_VOTE_ANSWER, 2, 1, 1))
    assert cluster[1].node.status().role is Role.CANDIDATE


def test_a_refused_pre_vote_ends_the_campaign_and_leaves_the_term() -> None:
    cluster = Cluster(3)
    for number in (2, 3):
        cluster.add(number, Disk(cluster.membership, [Entry(1, 1, 0, b"")]))
    cluster[1].node.campaign()
    cluster.settle()
    assert cluster[1].node.status().role is Role.FOLLOWER
    assert cluster[1].disk.hard_state.vote == 0


def test_learners_and_strangers_do_not_campaign() -> None:
    cluster = Cluster(2, learners=1)
    cluster.add(4, Disk(Membership(())))
    for number in (3, 4):
        for _ in range(50):
            cluster[number].node.tick()
        cluster[number].node.campaign()
        cluster[number].node.step(Message(MessageKind.TIMEOUT_NOW, 1, number, 0))
        assert cluster[number].node.status().role is Role.FOLLOWER


def test_a_learner_that_hears_of_no_leader_any_more_knows_of_none() -> None:
    cluster = Cluster(2, learners=1)
    cluster[1].node.campaign()
    cluster.settle()
    learner = cluster[3]
    assert learner.node.status().leader == 1
    for _ in range(50):
        learner.node.tick()
    status = learner.node.status()
    assert (status.role, status.leader) == (Role.FOLLOWER, 0)
    cluster.tick(2)
    assert learner.node.status().leader == 1


def test_a_term_is_recovered_from_the_log_when_the_hard_state_was_torn_off() -> None:
    cluster = Cluster(3)
    disk = Disk(cluster.membership, [Entry(4, 1, 0, b"")])
    disk.hard_state = HardState(3, 2, 0)
    member = cluster.add(1, disk)
    assert (member.node.status().term, member.node.status().vote) == (4, 0)
