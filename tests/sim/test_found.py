"""What the simulator has found in the core, each as the few messages that show it."""

from __future__ import annotations

import pytest

from fluxmq.raft.node import Config, Node
from fluxmq.raft.types import HardState, Membership, Message, MessageKind, Role
from tests.sim.disk import Store

VOTERS = Membership((1, 2, 3))


def node(me: int, term: int, *, pre_vote: bool, check_quorum: bool) -> Node:
    """A node that has been in `term` and is empty otherwise."""
    config = Config(me, 10, 1, 1_000, 1_000, pre_vote, check_quorum)
    hard_state = HardState(term, 0, 0)
    return Node(config, Store(VOTERS), hard_state, VOTERS, 0, lambda below: 0)


@pytest.mark.parametrize("pre_vote", [False, True])
@pytest.mark.parametrize("check_quorum", [False, True])
def test_a_candidate_behind_is_told_the_term(pre_vote: bool, check_quorum: bool) -> None:
    ahead = node(1, 350, pre_vote=pre_vote, check_quorum=check_quorum)
    behind = node(2, 331, pre_vote=False, check_quorum=check_quorum)
    behind.campaign()
    ready = behind.ready()
    assert ready is not None
    (request,) = [each for each in ready.messages_after_persistence if each.target == 1]
    assert (request.kind, request.term) == (MessageKind.VOTE, 332)
    ahead.step(request)
    ready = ahead.ready()
    assert ready is not None
    (answer,) = ready.messages_after_persistence
    assert answer == Message(MessageKind.VOTE_ANSWER, 1, 2, 350, reject=True)
    behind.step(answer)
    status = behind.status()
    assert (status.term, status.role) == (350, Role.FOLLOWER)
