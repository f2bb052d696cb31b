"""What a follower takes from a leader, and what it must not."""

from __future__ import annotations

import pytest

from fluxmq.raft.errors import InconsistentLog, MalformedMessage
from fluxmq.raft.types import (
    COMMAND,
    Entry,
    HardState,
    Membership,
    Message,
    MessageKind,
    Role,
    Snapshot,
    SnapshotMark,
)
from tests.unit.raft.cluster import Cluster, Disk, Member

VOTERS = Membership((1, 2, 3))


def entries(first: int, *terms: int) -> list[Entry]:
    return [Entry(term, index, COMMAND, b"%d" % term) for index, term in enumerate(terms, first)]


def follower(*terms: int, commit: int = 0) -> Member:
    """Member 2 of three, with a log of these terms."""
    cluster = Cluster(3)
    disk = Disk(VOTERS, entries(1, *terms))
    disk.hard_state = HardState(max(terms, default=0), 0, commit)
    return cluster.add(2, disk)


def append(
    term: int, index: int, log_term: int, new: list[Entry] | None = None, commit: int = 0
) -> Message:
    return Message(MessageKind.APPEND, 1, 2, term, index, log_term, new or [], commit)


def answer(member: Member) -> Message:
    """The one answer that leaves after everything is durable."""
    member.collect()
    member.sync()
    (message,) = member.cluster.network
    member.cluster.network.clear()
    return message


def terms(member: Member) -> list[int]:
    return [entry.term for entry in member.disk.log]


def test_an_answer_leaves_only_when_the_entries_are_durable() -> None:
    member = follower()
    member.node.step(append(1, 0, 0, entries(1, 1, 1)))
    member.collect()
    assert member.cluster.network == []
    member.sync()
    assert [(message.index, message.reject) for message in member.cluster.network] == [(2, False)]


def test_so_does_the_answer_to_a_copy() -> None:
    """The copy brings nothing to write, yet what it acknowledges is still being written."""
    member = follower()
    member.node.step(append(1, 0, 0, entries(1, 1, 1)))
    member.collect()
    member.node.step(append(1, 0, 0, entries(1, 1, 1)))
    ready = member.node.ready()
    assert ready is not None
    assert ready.entries == []
    assert ready.messages == []
    assert [message.index for message in ready.messages_after_persistence] == [2]


def test_a_duplicate_append_cuts_nothing() -> None:
    """A late copy of an append ends before the log does; what follows it was acknowledged."""
    member = follower(1)
    member.node.step(append(1, 1, 1, entries(2, 1, 1, 1)))
    assert answer(member).index == 4
    member.node.step(append(1, 1, 1, entries(2, 1)))
    assert answer(member).index == 2
    assert terms(member) == [1, 1, 1, 1]
    member.node.step(append(1, 1, 1, []))
    assert answer(member).index == 1
    assert terms(member) == [1, 1, 1, 1]
    member.node.step(append(1, 3, 1, entries(4, 1, 1)))
    assert answer(member).index == 5
    assert terms(member) == [1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "new",
    [entries(3, 1), entries(2, 1) + entries(2, 1), entries(2, 2)],
    ids=["gap", "twice", "term"],
)
def test_entries_that_do_not_follow_are_no_message(new: list[Entry]) -> None:
    member = follower(1)
    with pytest.raises(MalformedMessage):
        member.node.step(append(1, 1, 1, new))
    with pytest.raises(MalformedMessage):
        member.node.step(Message(MessageKind.SNAPSHOT, 1, 2, 1))
    assert member.node.status().last_index == 1


def test_a_conflict_cuts_from_there() -> None:
    member = follower(1, 2, 2, 2)
    member.node.step(append(3, 1, 1, entries(2, 2, 3)))
    assert answer(member).index == 3
    assert terms(member) == [1, 2, 3]


def test_a_gap_is_refused() -> None:
    member = follower(1, 1)
    member.node.step(append(1, 5, 1, entries(6, 1)))
    reply = answer(member)
    assert (reply.reject, reply.index, reply.hint, reply.hint_term) == (True, 5, 2, 1)
    assert terms(member) == [1, 1]


def test_the_hint_passes_over_terms_that_cannot_match() -> None:
    """The leader has term 3 at index 6: nothing of terms 4 and 5 here can be its."""
    member = follower(1, 2, 4, 4, 5, 5)
    member.node.step(append(7, 6, 3))
    reply = answer(member)
    assert (reply.reject, reply.hint, reply.hint_term) == (True, 2, 2)


def test_commit_goes_no_further_than_what_is_proven() -> None:
    """The leader has committed 3, but of this log only the first entry is proven to be the leader's."""
    member = follower(1, 2, 2)
    member.node.step(append(3, 1, 1, [], commit=3))
    assert answer(member).index == 1
    assert member.node.status().commit == 1
    assert member.commands == [b"1"]
    member.node.step(append(3, 1, 1, entries(2, 3), commit=3))
    assert answer(member).index == 2
    assert member.node.status().commit == 2


def test_a_heartbeats_commit_is_believed_and_a_lost_log_is_noticed() -> None:
    member = follower(1, 1)
    member.node.step(Message(MessageKind.HEARTBEAT, 1, 2, 1, commit=2, context=7))
    member.collect()
    assert member.commands == [b"1", b"1"]
    assert [message.context for message in member.cluster.network] == [7]
    with pytest.raises(InconsistentLog, match="ends at 2"):
        member.node.step(Message(MessageKind.HEARTBEAT, 1, 2, 1, commit=3))


def test_a_committed_entry_is_never_cut() -> None:
    """Not even by an append that says so: what is below the commit index is not looked at."""
    member = follower(1, 1, commit=2)
    member.node.step(append(2, 0, 0, entries(1, 1, 2)))
    assert answer(member).index == 2
    assert terms(member) == [1, 1]


def test_the_commit_written_is_of_what_is_durable_already() -> None:
    """The entries of this very write replace others: torn between the two, it must not commit those."""
    member = follower(1, 1, 1)
    member.node.step(append(2, 1, 1, entries(2, 2), commit=2))
    ready = member.node.ready()
    assert ready is not None
    assert ready.entries == entries(2, 2)
    assert ready.hard_state == HardState(2, 0, 1)
    member.disk.write(ready)
    member.node.advance(persisted=(2, 2))
    member.node.step(append(2, 2, 2, entries(3, 2), commit=2))
    ready = member.node.ready()
    assert ready is not None
    assert ready.hard_state == HardState(2, 0, 2)


def test_an_append_below_the_commit_is_answered_with_the_commit() -> None:
    member = follower(1, 1, 1, commit=3)
    member.node.step(append(1, 0, 0, entries(1, 1)))
    assert answer(member).index == 3


def test_a_candidate_yields_to_a_leader_of_its_term() -> None:
    member = follower(1)
    member.node.campaign()
    member.node.step(append(1, 1, 1))
    assert member.node.status().role is Role.FOLLOWER
    assert member.node.status().leader == 1


def test_two_leaders_in_a_term_are_noticed() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    with pytest.raises(InconsistentLog, match="as well"):
        cluster[1].node.step(Message(MessageKind.APPEND, 2, 1, 1))


def test_messages_of_an_earlier_term_are_refused_in_the_present_one() -> None:
    member = follower(1, 5)
    member.node.step(append(4, 2, 5, entries(3, 4)))
    reply = answer(member)
    assert (reply.reject, reply.term) == (True, 5)
    assert terms(member) == [1, 5]


# Snapshots

MARK = SnapshotMark(5, 2, Membership((1, 2), (4,)))


def snapshot(term: int = 3) -> Message:
    return Message(MessageKind.SNAPSHOT, 1, 2, term, snapshot=Snapshot(MARK, b"a|b"))


def test_a_snapshot_takes_the_place_of_the_log_and_is_answered_when_durable() -> None:
    member = follower(1, 1, 1)
    member.node.step(snapshot())
    member.node.step(append(3, 5, 2, entries(6, 3), commit=6))
    member.collect()
    assert member.cluster.network == []
    assert member.node.status().persisted == 0
    assert member.commands == []
    member.sync()
    member.collect()
    assert [message.index for message in member.cluster.network] == [5, 6]
    assert member.commands == [b"a", b"b", b"3"]
    assert member.node.status().membership == MARK.membership


def test_a_snapshot_of_entries_that_are_here_only_commits_them() -> None:
    member = follower(1, 1, 1, 2, 2, 2)
    member.node.step(snapshot())
    assert answer(member).index == 5
    assert terms(member) == [1, 1, 1, 2, 2, 2]
    assert len(member.commands) == 5


def test_an_old_snapshot_is_answered_with_the_commit() -> None:
    member = follower(1, 1, 1, 2, 2, 2, commit=6)
    member.node.step(snapshot())
    assert answer(member).index == 6


def test_a_node_that_installs_a_snapshot_does_not_campaign() -> None:
    member = follower(1)
    member.node.step(snapshot())
    for _ in range(50):
        member.node.tick()
    assert member.node.status().role is Role.FOLLOWER
    member.collect()
    member.sync()
    member.node.tick()
    assert member.node.status().role is Role.PRE_CANDIDATE


def test_a_crash_before_the_snapshot_is_durable_forgets_it() -> None:
    member = follower(1)
    member.node.step(snapshot())
    member.collect()
    member.crash()
    assert member.node.status().last_index == 1


def test_commit_while_a_snapshot_is_under_way() -> None:
    """A node with entries of its own that nobody else has, and a leader that knows more: its heartbeats commit
    nothing here until the snapshot has replaced those entries."""
    cluster = Cluster(3)
    cluster.elect(3)
    cluster.cut(3)
    for each in (b"x", b"y", b"z"):
        cluster.propose(3, each)
    cluster.settle()
    cluster.tick(40)
    leader = cluster.leader()
    assert leader is not None
    assert leader.number != 3
    for each in (b"a", b"b", b"c", b"d"):
        cluster.propose(leader.number, each)
    cluster.settle()
    leader.compact()
    cluster.heal()
    cluster.tick(3)
    assert leader.snapshot_wanted == [3]
    assert cluster[3].node.status().leader == leader.number
    assert cluster[3].node.status().commit == 1
    assert cluster[3].commands == []
    message = leader.node.offer_snapshot(3, leader.snapshot())
    assert message is not None
    cluster.post([message])
    leader.node.report_snapshot(3, ok=True)
    cluster.tick(2)
    assert cluster[3].commands == [b"a", b"b", b"c", b"d"]
