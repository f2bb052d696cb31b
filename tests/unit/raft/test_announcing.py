"""When a leader tells the others what is committed."""

from __future__ import annotations

from fluxmq.raft.types import MessageKind
from tests.unit.raft.cluster import Cluster


def appends_to(cluster: Cluster, number: int) -> int:
    """Appends to a member that are on the network."""
    return sum(
        message.kind is MessageKind.APPEND and message.target == number
        for message in cluster.network
    )


def committed_and_unsaid(*, eager: bool) -> Cluster:
    """Three members; one entry is committed, and the leader has said what it says then."""
    cluster = Cluster(3, eager_commit=eager)
    cluster.elect(1)
    cluster[1].node.announce()
    cluster.settle()
    cluster.propose(1, b"a")
    cluster[1].collect()
    cluster[1].sync()
    cluster.deliver()
    for number in (2, 3):
        cluster[number].collect()
        cluster[number].sync()
    cluster.deliver()
    cluster[1].collect()
    assert cluster[1].commands == [b"a"]
    return cluster


def test_an_eager_leader_says_at_once_what_is_committed() -> None:
    cluster = committed_and_unsaid(eager=True)
    assert [appends_to(cluster, number) for number in (2, 3)] == [1, 1]
    assert not cluster[1].node.quiescence.unannounced


def test_another_says_it_when_it_is_told_to_and_once() -> None:
    cluster = committed_and_unsaid(eager=False)
    assert cluster.network == []
    assert cluster[1].node.quiescence.unannounced
    cluster[1].node.announce()
    cluster[1].collect()
    assert [appends_to(cluster, number) for number in (2, 3)] == [1, 1]
    assert not cluster[1].node.quiescence.unannounced
    cluster.settle()
    assert [cluster[number].commands for number in (2, 3)] == [[b"a"], [b"a"]]
    cluster[1].node.announce()
    cluster[1].collect()
    assert cluster.network == []


def test_another_says_it_with_the_next_entry() -> None:
    cluster = committed_and_unsaid(eager=False)
    cluster.propose(1, b"b")
    cluster.settle()
    assert cluster[2].commands == [b"a"]
    assert cluster[1].commands == [b"a", b"b"]


def test_a_follower_announces_nothing() -> None:
    cluster = committed_and_unsaid(eager=False)
    cluster[2].node.announce()
    cluster[2].collect()
    assert not cluster[2].node.quiescence.unannounced
    assert cluster.network == []
