"""What a leader sends, counts, confirms and hands over."""

from __future__ import annotations

import pytest

import fluxmq.raft.leader
from fluxmq.raft.types import (
    ChangeVerb,
    Membership,
    MembershipChange,
    Message,
    MessageKind,
    NotLeader,
    Overloaded,
    ProposalAccepted,
    ReplicationMode,
    Role,
    Snapshot,
    SnapshotMark,
)
from tests.unit.raft.cluster import Cluster


def not_answers(message: Message) -> bool:
    return message.kind is not MessageKind.APPEND_ANSWER


# Persistence


def test_appends_leave_before_the_leader_has_written() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.propose(1, b"a")
    cluster[1].collect()
    assert [message.kind for message in cluster.network] == [MessageKind.APPEND] * 2


def test_a_leader_counts_itself_only_when_its_write_is_durable() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.cut(3)
    cluster.propose(1, b"a")
    cluster[1].collect()
    cluster.deliver()
    cluster[2].collect()
    cluster[2].sync()
    cluster.deliver()
    cluster[1].collect()
    assert cluster[1].node.status().commit == 1
    cluster[1].sync()
    cluster[1].collect()
    assert cluster[1].commands == [b"a"]


def test_the_others_may_commit_without_it_but_it_applies_nothing_before() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.propose(1, b"a")
    cluster[1].collect()
    for _ in range(4):
        cluster.deliver()
        for number in (2, 3):
            cluster[number].collect()
            cluster[number].sync()
        cluster[1].collect()
    assert cluster[1].node.status().commit == 2
    assert cluster[1].commands == []
    assert cluster[2].commands == [b"a"]
    cluster.settle()
    assert cluster[1].commands == [b"a"]


def test_a_leader_that_nobody_voted_for_sends_nothing_before_its_term_is_durable() -> None:
    """After a crash it would lead the same term again, with other entries at the same places."""
    cluster = Cluster(1, learners=1)
    cluster[1].node.campaign()
    cluster.propose(1, b"a")
    cluster[1].collect()
    assert cluster.network == []
    cluster[1].sync()
    assert [message.kind for message in cluster.network] == [MessageKind.APPEND]
    cluster.propose(1, b"b")
    cluster.network.clear()
    cluster.settle()
    cluster.tick()
    cluster.propose(1, b"c")
    cluster[1].collect()
    assert [message.kind for message in cluster.network] == [MessageKind.APPEND]


def test_such_a_leader_does_not_show_before_either() -> None:
    """A crash undoes its vote for itself. Node 2, which does not know yet that it was removed, is elected with node
    1's vote in the same term, and must be the only one that ever led it."""
    cluster = Cluster(2)
    cluster.elect(2)
    change = MembershipChange(ChangeVerb.REMOVE, 2)
    assert isinstance(cluster[2].node.propose_membership(change), ProposalAccepted)
    cluster.settle(lambda message: message.kind is not MessageKind.APPEND_ANSWER)
    cluster.network.clear()
    for number in (1, 2):
        cluster[number].crash()
    cluster[1].node.campaign()
    cluster[1].collect()
    assert cluster[1].node.status().term == 2
    assert cluster[1].node.status().role is Role.CANDIDATE
    cluster[1].node.step(Message(MessageKind.VOTE_ANSWER, 2, 1, 2))
    cluster[1].crash()
    cluster[2].node.campaign()
    cluster.settle()
    assert cluster.leaders == {1: 2, 2: 2}


# Replication


def test_the_window_is_bounded_in_bytes_and_opens_with_answers() -> None:
    cluster = Cluster(2, max_inflight_bytes=500, max_message_bytes=100)
    cluster.elect(1)
    cluster.propose(1, *[b"x" * 100] * 20)
    cluster[1].collect()
    # An append of 100 bytes weighs 132 in the window, which is full at the fourth.
    assert [len(message.entries) for message in cluster.network] == [1, 1, 1, 1]
    assert cluster[1].node.status().progress[2].inflight_bytes == 4 * 132
    cluster[1].collect()
    assert len(cluster.network) == 4
    cluster.settle()
    assert len(cluster[2].commands) == 20
    assert cluster[1].node.status().progress[2].inflight_bytes == 0


def test_the_window_is_bounded_in_appends_and_each_answer_lets_the_next_take_all() -> None:
    cluster = Cluster(2, max_inflight_appends=2)
    cluster.elect(1)
    for each in range(6):
        cluster.propose(1, b"%d" % each)
        cluster[1].collect()
    assert [len(message.entries) for message in cluster.network] == [1, 1]
    cluster.deliver()
    cluster[2].collect()
    cluster[2].sync(1)
    cluster.deliver()
    cluster[1].collect()
    assert [len(message.entries) for message in cluster.network] == [4]
    cluster.settle()
    assert cluster[2].commands == [b"%d" % each for each in range(6)]


def test_a_window_full_of_lost_appends_opens_again() -> None:
    cluster = Cluster(2, max_inflight_appends=1)
    cluster.elect(1)
    cluster.propose(1, b"a")
    cluster[1].collect()
    cluster.network.clear()
    cluster.propose(1, b"b")
    cluster.tick(2)
    assert cluster[2].commands == [b"a", b"b"]


def test_a_message_is_bounded_but_takes_one_entry_of_any_size() -> None:
    cluster = Cluster(2, max_message_bytes=100)
    cluster.elect(1)
    cluster.propose(1, *[b"x" * 40] * 5, b"y" * 1000, b"z")
    cluster[1].collect()
    assert [len(message.entries) for message in cluster.network] == [2, 2, 1, 1, 1]


def test_appends_that_were_lost_are_sent_again() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    for each in (b"a", b"b", b"c"):
        cluster.propose(1, each)
        cluster[1].collect()
        cluster.network = [m for m in cluster.network if m.target != 3]
    cluster.settle()
    assert cluster[3].commands == [b"a", b"b", b"c"], "what comes next shows the gap"


def test_a_full_window_whose_messages_were_lost_opens_again() -> None:
    cluster = Cluster(2, max_inflight_bytes=100, max_message_bytes=50)
    cluster.elect(1)
    cluster.propose(1, *[b"x" * 50] * 5)
    cluster[1].collect()
    cluster.network.clear()
    cluster.tick(2)
    assert len(cluster[2].commands) == 5


def test_answers_that_were_lost_do_not_stop_it() -> None:
    cluster = Cluster(2)
    cluster.elect(1)
    cluster.propose(1, b"a")
    cluster.settle(not_answers)
    cluster.network.clear()
    cluster.tick(2)
    assert cluster[1].commands == [b"a"]


def test_an_unreachable_peer_is_probed() -> None:
    cluster = Cluster(2)
    cluster.elect(1)
    assert cluster[1].node.status().progress[2].state is ReplicationMode.REPLICATE
    cluster[1].node.report_unreachable(2)
    cluster[1].node.report_unreachable(9)
    assert cluster[1].node.status().progress[2].state is ReplicationMode.PROBE
    cluster.propose(1, b"a")
    cluster.settle()
    assert cluster[1].node.status().progress[2].state is ReplicationMode.REPLICATE
    assert cluster[2].commands == [b"a"]


def test_followers_hear_of_the_commit_without_waiting_for_a_heartbeat() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.propose(1, b"a")
    cluster.settle()
    assert cluster[2].commands == cluster[3].commands == [b"a"]


def test_a_heartbeats_commit_is_what_the_follower_is_proven_to_hold() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.cut(3)
    cluster.propose(1, b"a", b"b")
    cluster.settle()
    assert cluster[1].node.status().commit == 3
    cluster.heal()
    cluster[1].node.tick()
    cluster[1].collect()
    beats = {m.target: m.commit for m in cluster.network if m.kind is MessageKind.HEARTBEAT}
    assert beats == {2: 3, 3: 1}


def test_answers_from_strangers_and_beyond_the_log_are_ignored() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    node = cluster[1].node
    node.step(Message(MessageKind.APPEND_ANSWER, 9, 1, 1, 1))
    node.step(Message(MessageKind.HEARTBEAT_ANSWER, 9, 1, 1))
    node.step(Message(MessageKind.APPEND_ANSWER, 2, 1, 1, 99))
    assert node.status().progress[2].match == 1
    assert set(node.status().progress) == {2, 3}


def test_match_never_falls() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.propose(1, b"a")
    cluster.settle()
    node = cluster[1].node
    node.step(Message(MessageKind.APPEND_ANSWER, 2, 1, 1, 1))
    node.step(Message(MessageKind.APPEND_ANSWER, 2, 1, 1, 1, reject=True, hint=0))
    status = node.status().progress[2]
    assert (status.match, status.next, status.state) == (2, 3, ReplicationMode.REPLICATE)


# Snapshots


def test_a_peer_behind_the_log_is_given_a_snapshot() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.cut(3)
    cluster.propose(1, b"a", b"b")
    cluster.settle()
    leader = cluster[1]
    leader.compact()
    cluster.heal()
    cluster.tick(2)
    assert leader.snapshot_wanted == [3]
    assert leader.node.status().progress[3].state is ReplicationMode.SNAPSHOT
    cluster.tick(5)
    assert leader.snapshot_wanted == [3], "it is asked for once"

    leader.node.report_snapshot(3, ok=False)
    cluster.tick(2)
    assert leader.snapshot_wanted == [3, 3], "and again when it failed"

    message = leader.node.offer_snapshot(3, leader.snapshot())
    assert message is not None
    cluster.propose(1, b"c")
    cluster.settle()
    cluster.post([message])
    leader.node.report_snapshot(3, ok=True)
    cluster.settle()
    cluster.tick()
    assert cluster[3].commands == [b"a", b"b", b"c"]
    assert leader.node.status().progress[3].state is ReplicationMode.REPLICATE
    assert leader.node.offer_snapshot(3, leader.snapshot()) is None


def test_a_snapshot_that_got_lost_after_it_was_reported_is_wanted_again() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.cut(3)
    cluster.propose(1, b"a")
    cluster.settle()
    cluster[1].compact()
    cluster.heal()
    cluster.tick(2)
    cluster[1].node.offer_snapshot(3, cluster[1].snapshot())
    cluster[1].node.report_snapshot(3, ok=True)
    cluster.tick(3)
    assert cluster[1].snapshot_wanted == [3, 3]


def test_only_leaders_offer_snapshots() -> None:
    cluster = Cluster(2)
    mark = SnapshotMark(1, 1, Membership((1, 2)))
    assert cluster[1].node.offer_snapshot(2, Snapshot(mark, b"")) is None
    cluster[1].node.report_snapshot(2, ok=True)
    cluster[1].node.report_unreachable(2)
    assert cluster[1].node.ready() is None


# Reads


def test_a_read_needs_a_majority_that_still_follows() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.propose(1, b"a")
    cluster.settle()
    cluster[1].node.read_index(7)
    cluster[1].collect()
    assert cluster[1].reads == []
    cluster.settle()
    assert cluster[1].reads == [(7, 2)]


def test_an_old_leader_answers_no_read() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.cut(1)
    for number in (2, 3):
        cluster[number].crash()
    cluster.elect(2)
    cluster.propose(2, b"new")
    cluster.settle()
    assert cluster[1].node.status().role is Role.LEADER, "it does not know yet"
    cluster[1].node.read_index(7)
    cluster.settle()
    assert cluster[1].reads == []
    cluster.heal()
    cluster.tick()
    cluster.settle()
    assert cluster[1].node.status().role is Role.FOLLOWER
    assert cluster[1].reads == []
    assert cluster[1].reads_failed == [7]


def test_answers_to_earlier_heartbeats_confirm_no_read() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster[1].node.tick()
    cluster[1].collect()
    cluster.deliver()
    cluster.collect()
    cluster[1].node.read_index(7)
    cluster[1].collect()
    cluster.deliver(lambda message: message.context == 0)
    cluster[1].collect()
    assert cluster[1].reads == []
    cluster.settle()
    assert cluster[1].reads == [(7, 1)]


def test_no_read_before_an_entry_of_the_own_term_is_committed() -> None:
    """Until then the leader may not know how much of its log is committed."""
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.propose(1, b"a")
    cluster.settle()
    cluster.cut(1)
    cluster[2].crash()
    cluster[3].crash()
    cluster[2].node.campaign()
    cluster.settle(not_answers)
    node = cluster[2].node
    assert node.status().role is Role.LEADER
    node.read_index(7)
    cluster.settle(not_answers)
    assert cluster[2].reads == []
    cluster.settle()
    assert cluster[2].reads == [(7, 3)]


def test_reads_of_a_turn_share_a_round() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    for context in range(5):
        cluster[1].node.read_index(context)
    cluster[1].collect()
    assert len(cluster.network) == 2
    cluster.settle()
    assert cluster[1].reads == [(context, 1) for context in range(5)]


def test_a_lost_round_is_made_up_by_the_next_heartbeat() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster[1].node.read_index(7)
    cluster[1].collect()
    cluster.network.clear()
    cluster.tick()
    assert cluster[1].reads == [(7, 1)]


def test_a_single_voter_reads_at_once() -> None:
    for learners in (0, 1):
        cluster = Cluster(1, learners)
        cluster.elect(1)
        cluster[1].node.read_index(7)
        cluster[1].collect()
        assert cluster[1].reads == [(7, 1)]


@pytest.mark.uncompiled
def test_waiting_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fluxmq.raft.leader, "READS_MAX", 2)
    cluster = Cluster(3)
    cluster.elect(1)
    node = cluster[1].node
    assert node.read_index(1) is None
    cluster[1].collect()
    assert node.read_index(2) is None
    assert node.read_index(3) == Overloaded(2)
    cluster.settle()
    assert node.read_index(4) is None


def test_confirmed_reads_that_were_not_taken_fail_with_the_leadership() -> None:
    cluster = Cluster(1)
    cluster.elect(1)
    cluster[1].node.read_index(7)
    cluster[1].node.step(Message(MessageKind.HEARTBEAT, 2, 1, 9))
    cluster[1].collect()
    assert (cluster[1].reads, cluster[1].reads_failed) == ([], [7])


# Transfer


def test_leadership_is_handed_over_although_the_leader_is_heard() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    assert cluster[1].node.transfer_leadership(3)
    assert cluster[1].node.propose([b"a"]) == NotLeader(3)
    cluster.settle()
    assert cluster[3].node.status().role is Role.LEADER
    assert cluster[1].node.status().role is Role.FOLLOWER
    cluster.propose(3, b"a")
    cluster.settle()
    assert cluster[1].commands == [b"a"]


def test_a_target_that_is_behind_catches_up_first() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.cut(3)
    cluster.propose(1, b"a", b"b")
    cluster.settle()
    cluster.heal()
    assert cluster[1].node.transfer_leadership(3)
    cluster[1].collect()
    assert MessageKind.TIMEOUT_NOW not in [message.kind for message in cluster.network]
    cluster.tick(2)
    assert cluster[3].node.status().role is Role.LEADER
    assert cluster[3].commands == [b"a", b"b"]


def test_a_transfer_that_does_not_happen_is_given_up() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.cut(3)
    assert cluster[1].node.transfer_leadership(3)
    cluster.tick(9)
    assert cluster[1].node.propose([b"a"]) == NotLeader(3)
    cluster.tick()
    cluster.propose(1, b"a")


def test_leadership_goes_to_other_voters_only() -> None:
    cluster = Cluster(2, learners=1)
    cluster.elect(1)
    for target in (1, 3, 9):
        assert not cluster[1].node.transfer_leadership(target)
    cluster.propose(1, b"a")
