"""Members that have lost what they promised vote as if they held what was committed when they were taken back."""

from __future__ import annotations

import pytest

from fluxmq.raft.types import Message, MessageKind, Role
from tests.unit.raft.cluster import Cluster


def taken_back() -> Cluster:
    """Member 3 has an empty log, and a leader of term 2 has committed up to entry 7."""
    cluster = Cluster(3, pre_vote=False)
    cluster[3].node.hold(2, 7)
    cluster[3].collect()
    cluster[3].sync()
    return cluster


def test_it_begins_in_the_term_of_who_takes_it_back() -> None:
    cluster = taken_back()
    assert cluster[3].disk.hard_state.term == 2
    cluster[3].node.hold(1, 9)
    cluster[3].collect()
    assert cluster[3].node.term == 2


@pytest.mark.parametrize(
    ("index", "log_term", "given"), [(9, 1, False), (6, 2, False), (7, 2, True), (1, 3, True)]
)
def test_it_votes_for_nobody_who_knows_less(index: int, log_term: int, given: bool) -> None:
    cluster = taken_back()
    cluster[3].node.step(Message(MessageKind.VOTE, 2, 3, 3, index, log_term))
    cluster[3].collect()
    cluster[3].sync()
    (answer,) = cluster.network
    assert answer.kind is MessageKind.VOTE_ANSWER
    assert answer.reject is not given


def test_it_does_not_campaign_before_it_holds_that() -> None:
    cluster = taken_back()
    for _ in range(40):
        cluster[3].node.tick()
    assert cluster[3].node.status().role is Role.FOLLOWER


def test_a_floor_is_never_lowered() -> None:
    cluster = taken_back()
    cluster[3].node.hold(1, 3)
    cluster[3].node.step(Message(MessageKind.VOTE, 2, 3, 3, 6, 2))
    cluster[3].collect()
    cluster[3].sync()
    assert [message.reject for message in cluster.network] == [True]
