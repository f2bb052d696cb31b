"""When a group needs nothing but heartbeats, and how a node goes on after it was left alone."""

from __future__ import annotations

import pytest

from fluxmq.raft.types import Role
from tests.unit.raft.cluster import Cluster

ELECTION = 10
PEERS = (2, 3)


@pytest.fixture
def cluster() -> Cluster:
    """Three members, of which the first leads; everybody has and knows everything."""
    made = Cluster(3, election_ticks=ELECTION)
    made.elect(1)
    made.propose(1, b"x")
    made.settle()
    made.tick()
    return made


def follows(cluster: Cluster, number: int) -> bool:
    """Whether a member follows the first quietly, by what that one says of itself."""
    return cluster[number].node.quiescence.follows_quietly(1, *cluster[1].node.quiescence.end)


def test_a_leader_and_its_followers_are_quiet_when_everything_is_committed(
    cluster: Cluster,
) -> None:
    assert cluster[1].node.quiescence.leads_quietly(PEERS)
    assert follows(cluster, 2)
    assert follows(cluster, 3)
    assert not cluster[2].node.quiescence.leads_quietly(PEERS)


def test_a_leader_is_not_quiet_while_something_is_under_way(cluster: Cluster) -> None:
    quiescence = cluster[1].node.quiescence
    cluster.propose(1, b"y")
    assert not quiescence.leads_quietly(PEERS)
    cluster.settle()
    assert quiescence.leads_quietly(PEERS)
    assert cluster[1].node.read_index(7) is None
    assert not quiescence.leads_quietly(PEERS)
    cluster.settle()
    assert quiescence.leads_quietly(PEERS)
    cluster.cut(2)
    assert cluster[1].node.transfer_leadership(2)
    assert not quiescence.leads_quietly(PEERS)


def test_a_leader_is_quiet_only_with_a_majority_that_has_everything(cluster: Cluster) -> None:
    cluster.cut(3)
    cluster.propose(1, b"y")
    cluster.settle()
    quiescence = cluster[1].node.quiescence
    assert not quiescence.leads_quietly(PEERS)
    assert quiescence.leads_quietly((2,))
    assert not quiescence.leads_quietly(())


def test_a_follower_is_quiet_only_for_its_leader_its_term_and_its_whole_log(
    cluster: Cluster,
) -> None:
    follower = cluster[2].node.quiescence
    term, index = cluster[1].node.quiescence.end
    assert follower.follows_quietly(1, term, index)
    assert not follower.follows_quietly(3, term, index)
    assert not follower.follows_quietly(0, term, index)
    assert not follower.follows_quietly(1, term - 1, index)
    assert not follower.follows_quietly(1, term + 1, index)
    assert not follower.follows_quietly(1, term, index - 1)
    assert not follower.follows_quietly(1, term, index + 1)


def test_a_follower_is_not_quiet_before_it_knows_that_all_is_committed() -> None:
    cluster = Cluster(3, election_ticks=ELECTION, eager_commit=False)
    cluster.elect(1)
    cluster.propose(1, b"x")
    cluster.settle()
    assert not follows(cluster, 2)
    cluster.tick()
    assert follows(cluster, 2)


def test_a_follower_continues_its_timeout_where_the_silence_began(cluster: Cluster) -> None:
    node = cluster[2].node
    timeout = node._state.timeout
    node.quiescence.resume(ELECTION - 1, ())
    for _ in range(timeout - ELECTION):
        node.tick()
    assert node.status().role is Role.FOLLOWER
    node.tick()
    assert node.status().role is Role.PRE_CANDIDATE


def test_votes_are_refused_only_as_long_as_the_leader_was_heard_lately(cluster: Cluster) -> None:
    state = cluster[2].node._state
    cluster[2].node.quiescence.resume(ELECTION - 1, ())
    assert state.in_lease()
    cluster[2].node.quiescence.resume(ELECTION, ())
    assert not state.in_lease()


@pytest.mark.parametrize(("heard", "leads"), [((), False), ((3,), True), (PEERS, True)])
def test_a_leader_that_goes_on_counts_only_whom_it_has_heard(
    cluster: Cluster, heard: tuple[int, ...], leads: bool
) -> None:
    cluster.cut(1)
    node = cluster[1].node
    node.quiescence.resume(0, heard)
    for _ in range(ELECTION):
        node.tick()
    assert (node.status().role is Role.LEADER) == leads


def test_a_leader_that_goes_on_sends_heartbeats_at_its_next_tick() -> None:
    cluster = Cluster(3, election_ticks=ELECTION, heartbeat_ticks=5)
    leader = cluster.elect(1).node
    leader.quiescence.resume(0, PEERS)
    leader.tick()
    ready = leader.ready()
    assert ready is not None
    assert [message.target for message in ready.messages] == list(PEERS)
