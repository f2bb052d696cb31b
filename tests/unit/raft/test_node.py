"""A node from outside: what goes in, what `ready` says, what `advance` does."""

from __future__ import annotations

from fluxmq.raft.types import (
    EMPTY,
    Entry,
    HardState,
    MessageKind,
    NotLeader,
    Overloaded,
    ProposalAccepted,
    Role,
)
from tests.unit.raft.cluster import Cluster, Disk


def test_a_single_voter_leads_and_commits_by_its_own_disk() -> None:
    cluster = Cluster(1)
    member = cluster[1]
    member.node.campaign()
    ready = member.node.ready()
    assert ready is not None
    assert (ready.role, ready.leader) == (Role.CANDIDATE, 0)
    assert ready.hard_state == HardState(1, 1, 0)
    assert [(entry.index, entry.kind) for entry in ready.entries] == [(1, EMPTY)]
    assert ready.committed == []
    assert member.node.ready() is None
    member.disk.write(ready)
    member.node.advance(persisted=(1, 1))
    ready = member.node.ready()
    assert ready is not None
    assert (ready.role, ready.leader) == (Role.LEADER, 1)
    assert [entry.index for entry in ready.committed] == [1]
    assert ready.hard_state is None, "a commit index is not worth a write of its own"
    assert member.node.ready() is None


def test_a_single_voter_may_take_proposals_before_it_shows_as_leader() -> None:
    cluster = Cluster(1)
    cluster[1].node.campaign()
    cluster.propose(1, b"a")
    cluster.settle()
    assert cluster[1].commands == [b"a"]
    assert cluster[1].node.status().role is Role.LEADER


def test_proposals_are_committed_in_order_once_they_are_durable() -> None:
    cluster = Cluster(1)
    member = cluster.elect(1)
    assert cluster.propose(1, b"a", b"b") == ProposalAccepted(2, 1)
    member.collect()
    assert cluster.propose(1, b"c") == ProposalAccepted(4, 1)
    member.collect()
    assert member.commands == []
    member.sync(1)
    member.collect()
    assert member.commands == [b"a", b"b"]
    assert member.node.status().commit == 3, "what follows is still being written"
    cluster.settle()
    assert member.commands == [b"a", b"b", b"c"]


def test_the_usual_course_asks_the_disk_nothing() -> None:
    """Proposals, writes and commits of a group of one work on memory alone, however long its log is."""

    class Silent(Disk):
        asked = 0

        def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
            self.asked += 1
            return super().entries(low, high, max_bytes)

        def term(self, index: int) -> int:
            self.asked += 1
            return super().term(index)

    cluster = Cluster(1)
    disk = Silent(cluster.membership, [Entry(1, index, 0, b"") for index in range(1, 1001)])
    node = cluster.add(1, disk).node
    cluster.elect(1)
    disk.asked = 0
    for number in range(100):
        accepted = cluster.propose(1, b"%d" % number)
        ready = node.ready()
        assert ready is not None
        disk.write(ready)
        node.advance(persisted=(accepted.first_index, accepted.term))
        ready = node.ready()
        assert ready is not None
        assert [entry.index for entry in ready.committed] == [accepted.first_index]
        node.advance(applied=accepted.first_index)
    assert disk.asked == 0


def test_three_nodes_elect_replicate_and_commit() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.propose(1, b"a")
    cluster.propose(1, b"b")
    cluster.settle()
    cluster.tick()
    for member in cluster.members.values():
        assert member.commands == [b"a", b"b"]
        assert member.node.status().leader == 1


def test_followers_name_the_leader() -> None:
    cluster = Cluster(3)
    assert cluster[2].node.propose([b"a"]) == NotLeader(0)
    cluster.elect(1)
    assert cluster[2].node.propose([b"a"]) == NotLeader(1)
    assert cluster[2].node.read_index(1) == NotLeader(1)
    assert not cluster[2].node.transfer_leadership(3)


def test_a_turn_is_one_append_per_peer() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    for _ in range(5):
        cluster.propose(1, b"a")
    ready = cluster[1].node.ready()
    assert ready is not None
    assert [(message.kind, message.target, len(message.entries)) for message in ready.messages] == [
        (MessageKind.APPEND, 2, 5),
        (MessageKind.APPEND, 3, 5),
    ]


def test_what_is_neither_durable_nor_committed_is_bounded() -> None:
    """In bytes, and in entries, which weigh 32 bytes besides their data."""
    cluster = Cluster(1, max_unstable_bytes=180)
    member = cluster.elect(1)
    cluster.propose(1, b"x" * 60)
    cluster.propose(1, b"x" * 60)
    assert member.node.propose([b"x"]) == Overloaded(184)
    cluster.settle()
    cluster.propose(1, *[b""] * 6)
    assert member.node.propose([b""]) == Overloaded(192)
