"""What the simulator has found in the core, each as the few messages that show it."""

from __future__ import annotations

import pytest

from fluxmq.raft.node import Config, Node
from fluxmq.raft.types import EMPTY, Entry, HardState, Membership, Message, MessageKind, Role
from tests.sim.disk import ENTRIES, Store
from tests.sim.swarm import unlimited
from tests.sim.world import World

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


def without_promises(floor: tuple[int, int], entries: int = 0) -> Node:
    """Node 3, which has lost its disk, with so many entries of term 2 again; a leader of term 2 took it back."""
    config = Config(3, 10, 1, 1_000, 1_000, False, False, floor=floor)
    store = Store(VOTERS)
    for index in range(1, entries + 1):
        store.write((ENTRIES, Entry(2, index, EMPTY, b"")))
    return Node(config, store, HardState(2, 1, 0), VOTERS, 0, lambda below: 0)


@pytest.mark.parametrize(
    ("index", "log_term", "given"), [(0, 0, False), (9, 1, False), (6, 2, False), (7, 2, True)]
)
def test_who_came_back_votes_as_if_it_held_what_is_committed(
    index: int, log_term: int, given: bool
) -> None:
    """Node 2 was removed while it was cut off, and node 3 after it: the two are still a majority of what node 2 knows."""
    back = without_promises((2, 7))
    back.step(Message(MessageKind.VOTE, 2, 3, 3, index, log_term))
    ready = back.ready()
    assert ready is not None
    (answer,) = ready.messages_after_persistence
    assert answer.reject is not given


@pytest.mark.parametrize(
    ("entries", "role"), [(0, Role.FOLLOWER), (6, Role.FOLLOWER), (7, Role.CANDIDATE)]
)
def test_who_came_back_campaigns_when_it_holds_that(entries: int, role: Role) -> None:
    back = without_promises((2, 7), entries)
    back.campaign()
    assert back.status().role is role
    back.step(Message(MessageKind.TIMEOUT_NOW, 1, 3, back.term))
    assert back.status().role is role


WORN = {
    (
        53,
        3,
    ): "a removed member, cut off since, was elected by one that had come back with an empty log",
    (2699, 3): "the same",
}
"""Seeds of worn groups with their voters, and what they found."""


@pytest.mark.parametrize(("seed", "voters"), WORN)
def test_what_worn_storage_once_found_stays_away(seed: int, voters: int) -> None:
    assert World(seed, unlimited(seed, voters)).run(2_000)
