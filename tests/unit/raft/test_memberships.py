"""Membership: one change at a time, in effect from its entry on, undone with it."""

from __future__ import annotations

import pytest

from fluxmq.raft.errors import InconsistentLog
from fluxmq.raft.memberships import (
    MEMBERS_MAX,
    Memberships,
    changed,
    decode_membership,
    encode_membership,
)
from fluxmq.raft.types import (
    MEMBERSHIP,
    ChangeRefused,
    ChangeVerb,
    HardState,
    Membership,
    MembershipChange,
    Message,
    MessageKind,
    NotLeader,
    ProposalAccepted,
    Role,
)
from tests.unit.raft.cluster import Cluster, Disk

ADD_4 = MembershipChange(ChangeVerb.ADD_VOTER, 4)
ADD_5 = MembershipChange(ChangeVerb.ADD_VOTER, 5)
LEARN_4 = MembershipChange(ChangeVerb.ADD_LEARNER, 4)
REMOVE_1 = MembershipChange(ChangeVerb.REMOVE, 1)
REMOVE_3 = MembershipChange(ChangeVerb.REMOVE, 3)


def cluster_of(voters: int, *strangers: int) -> Cluster:
    """A cluster, beside it nodes that wait to be added."""
    cluster = Cluster(voters)
    for number in strangers:
        cluster.add(number, Disk(Membership(())))
    return cluster


def change(cluster: Cluster, number: int, wanted: MembershipChange) -> None:
    outcome = cluster[number].node.propose_membership(wanted)
    assert isinstance(outcome, ProposalAccepted), outcome


def membership(cluster: Cluster, number: int) -> Membership:
    return cluster[number].node.status().membership


# Values


def test_the_encoding_is_fixed() -> None:
    data = encode_membership(Membership((1, 2), (2**64 - 1,)))
    assert data == bytes.fromhex("0200010001000000000000000200000000000000" + "ff" * 8)
    assert decode_membership(data) == Membership((1, 2), (2**64 - 1,))
    for damaged in (b"", data[:3], data[:-1], data + b"x"):
        with pytest.raises(InconsistentLog):
            decode_membership(damaged)


@pytest.mark.parametrize(
    ("wanted", "after"),
    [
        (ADD_4, Membership((1, 2, 4), (3,))),
        (MembershipChange(ChangeVerb.ADD_VOTER, 3), Membership((1, 2, 3))),
        (LEARN_4, Membership((1, 2), (3, 4))),
        (MembershipChange(ChangeVerb.ADD_LEARNER, 2), Membership((1,), (2, 3))),
        (REMOVE_1, Membership((2,), (3,))),
        (REMOVE_3, Membership((1, 2))),
        (MembershipChange(ChangeVerb.REMOVE, 9), ChangeRefused.NO_CHANGE),
        (MembershipChange(ChangeVerb.ADD_VOTER, 1), ChangeRefused.NO_CHANGE),
    ],
)
def test_one_nodes_place_changes(
    wanted: MembershipChange, after: Membership | ChangeRefused
) -> None:
    assert changed(Membership((1, 2), (3,)), wanted) == after


def test_the_last_voter_stays_and_members_are_bounded() -> None:
    assert changed(Membership((1,), (2,)), REMOVE_1) is ChangeRefused.LAST_VOTER
    full = Membership((1,), tuple(range(10, 9 + MEMBERS_MAX)))
    assert changed(full, ADD_4) is ChangeRefused.TOO_MANY


def test_the_history_is_cut_and_compacted() -> None:
    first, second, third = Membership((1,)), Membership((1, 2)), Membership((1, 2, 3))
    history = Memberships(10, first)
    history.append(12, second)
    history.append(15, third)
    assert [history.at(index) for index in (10, 11, 12, 14, 15, 99)] == [
        first,
        first,
        second,
        second,
        third,
        third,
    ]
    with pytest.raises(InconsistentLog):
        history.at(9)
    assert history.cut(15)
    assert not history.cut(15)
    assert (history.current, history.since) == (second, 12)
    history.append(16, third)
    history.compact(12)
    assert history.at(12) == second
    with pytest.raises(InconsistentLog):
        history.at(11)
    assert history.before_current() == second


# One at a time


def test_no_change_while_one_is_uncommitted() -> None:
    cluster = cluster_of(3, 4, 5)
    cluster.elect(1)
    change(cluster, 1, ADD_4)
    assert membership(cluster, 1).voters == (1, 2, 3, 4)
    assert cluster[1].node.propose_membership(ADD_5) is ChangeRefused.UNCOMMITTED
    cluster.settle()
    change(cluster, 1, ADD_5)
    cluster.settle()
    assert {membership(cluster, number).voters for number in range(1, 6)} == {(1, 2, 3, 4, 5)}


def test_no_change_before_an_entry_of_the_own_term_is_committed() -> None:
    """Without this rule two leaders could each add a node, and commit with majorities that share none."""
    cluster = cluster_of(4, 5)
    cluster[1].node.campaign()
    cluster.settle(lambda message: message.kind is not MessageKind.APPEND)
    assert cluster[1].node.status().role is Role.LEADER
    assert cluster[1].node.propose_membership(ADD_5) is ChangeRefused.TERM_NOT_COMMITTED
    cluster.settle()
    change(cluster, 1, ADD_5)


def test_other_refusals() -> None:
    cluster = cluster_of(2)
    assert cluster[1].node.propose_membership(ADD_4) == NotLeader(0)
    cluster.elect(1)
    assert cluster[2].node.propose_membership(ADD_4) == NotLeader(1)
    assert (
        cluster[1].node.propose_membership(MembershipChange(ChangeVerb.ADD_VOTER, 2))
        is ChangeRefused.NO_CHANGE
    )
    cluster[1].node.transfer_leadership(2)
    assert cluster[1].node.propose_membership(ADD_4) == NotLeader(2)


def test_a_change_is_committed_by_the_new_majority() -> None:
    cluster = cluster_of(1, 4)
    cluster.elect(1)
    change(cluster, 1, ADD_4)
    cluster[1].collect()
    cluster[1].sync()
    assert cluster[1].node.status().commit == 1, "alone it is no majority any more"
    cluster.settle()
    assert cluster[1].node.status().commit == 2


def test_a_change_that_is_cut_off_is_undone() -> None:
    cluster = cluster_of(3, 4)
    cluster.elect(1)
    cluster.cut(1)
    change(cluster, 1, ADD_4)
    cluster.settle()
    assert membership(cluster, 1).voters == (1, 2, 3, 4)
    for number in (2, 3):
        cluster[number].crash()
    cluster.elect(2)
    cluster.heal()
    cluster.tick(3)
    assert membership(cluster, 1).voters == (1, 2, 3)


def test_a_change_is_found_in_the_log_after_a_restart() -> None:
    """Committed or not: the entry is what counts."""
    cluster = cluster_of(3, 4)
    cluster.elect(1)
    cluster.cut(1)
    change(cluster, 1, ADD_4)
    cluster[1].collect()
    cluster[1].sync()
    cluster[1].disk.hard_state = HardState(1, 1, 0)
    cluster[1].crash()
    assert membership(cluster, 1).voters == (1, 2, 3, 4)
    assert cluster[1].node.membership_at(1).voters == (1, 2, 3)


# Learners, promotion, removal


def test_a_learner_receives_and_does_not_count() -> None:
    cluster = cluster_of(2, 4)
    cluster.elect(1)
    cluster.propose(1, b"a")
    change(cluster, 1, LEARN_4)
    cluster.settle()
    assert cluster[4].commands == [b"a"]
    assert cluster[1].node.status().progress[4].learner
    cluster.cut(2)
    cluster.propose(1, b"b")
    cluster.settle()
    assert cluster[4].node.status().last_index == 4
    assert cluster[1].node.status().commit == 3


def test_a_promoted_learner_counts() -> None:
    cluster = cluster_of(2, 4)
    cluster.elect(1)
    change(cluster, 1, LEARN_4)
    cluster.settle()
    change(cluster, 1, ADD_4)
    cluster.settle()
    assert membership(cluster, 4) == Membership((1, 2, 4))
    cluster.cut(2)
    cluster.propose(1, b"a")
    cluster.settle()
    assert cluster[1].commands == cluster[4].commands == [b"a"]
    cluster.tick(30)
    assert cluster[1].node.status().role is Role.LEADER, "it counts for the quorum check, too"


def test_a_learner_behind_the_log_gets_a_snapshot_from_before_its_time() -> None:
    """The snapshot's membership does not name it yet."""
    cluster = cluster_of(2, 4)
    cluster.elect(1)
    cluster.propose(1, b"a")
    cluster.settle()
    cluster[1].compact()
    change(cluster, 1, LEARN_4)
    cluster.settle()
    assert cluster[1].snapshot_wanted == [4]
    message = cluster[1].node.offer_snapshot(4, cluster[1].snapshot())
    assert message is not None
    cluster.post([message])
    cluster[1].node.report_snapshot(4, ok=True)
    cluster.settle()
    cluster.tick()
    assert cluster[4].commands == [b"a"]
    assert membership(cluster, 4) == Membership((1, 2), (4,))


def test_a_voter_that_has_lost_its_log_is_filled_anew_as_a_learner() -> None:
    """Left alone it would be told, by heartbeats, that it holds what it has lost."""
    cluster = cluster_of(3)
    cluster.elect(1)
    cluster.propose(1, b"a")
    cluster.settle()
    cluster.cut(3)
    assert not cluster[1].node.start_over(3), "a voter's log has been counted on"
    assert not cluster[2].node.start_over(3), "only who leads knows of it"
    cluster.add(3, Disk(Membership((1, 2, 3))))
    change(cluster, 1, MembershipChange(ChangeVerb.ADD_LEARNER, 3))
    cluster.settle()
    assert membership(cluster, 1) == Membership((1, 2), (3,))
    assert cluster[1].node.start_over(3)
    assert cluster[1].node.status().progress[3].match == 0
    cluster.heal()
    cluster.tick(3)
    cluster.settle()
    assert cluster[3].commands == [b"a"]
    change(cluster, 1, MembershipChange(ChangeVerb.ADD_VOTER, 3))
    cluster.settle()
    assert membership(cluster, 3) == Membership((1, 2, 3))


def test_a_removed_follower_is_sent_nothing_more() -> None:
    cluster = cluster_of(3)
    cluster.elect(1)
    change(cluster, 1, REMOVE_3)
    cluster[1].collect()
    assert {message.target for message in cluster.network} == {2}
    cluster.settle()
    cluster.tick(60)
    assert cluster[1].node.status().role is Role.LEADER, "the removed node cannot disturb"
    assert cluster[1].node.status().term == 1


def test_a_leader_that_removes_itself_leads_until_that_is_committed() -> None:
    cluster = cluster_of(3)
    cluster.elect(1)
    change(cluster, 1, REMOVE_1)
    cluster[1].collect()
    cluster[1].sync()
    assert cluster[1].node.status().role is Role.LEADER
    cluster.deliver()
    cluster[2].collect()
    cluster[2].sync()
    cluster.deliver()
    assert cluster[1].node.status().commit == 1, "its own disk counts no more"
    cluster.settle()
    assert cluster[1].node.status().role is Role.FOLLOWER
    assert cluster[2].node.status().commit == 2, "the others were told before it went"
    cluster.tick(50)
    assert cluster[1].node.status().role is Role.FOLLOWER
    leader = cluster.leader()
    assert leader is not None
    assert leader.number in (2, 3)


def test_a_node_that_an_uncommitted_change_removes_may_still_win() -> None:
    """It alone has the change, and the other's log is behind: without it nobody could lead again."""
    cluster = cluster_of(2)
    cluster.elect(1)
    cluster.cut(2)
    change(cluster, 1, REMOVE_1)
    cluster.settle()
    cluster[1].crash()
    cluster[2].crash()
    cluster.heal()
    cluster[2].node.campaign()
    cluster.settle()
    assert cluster[2].node.status().role is not Role.LEADER
    cluster[1].node.campaign()
    cluster.settle()
    assert cluster[2].node.status().membership.voters == (2,)
    assert cluster[1].node.status().role is Role.FOLLOWER
    cluster.elect(2)


def test_a_transfer_to_a_node_that_is_removed_is_given_up() -> None:
    cluster = cluster_of(3)
    cluster.elect(1)
    cluster.cut(3)
    cluster[1].node.transfer_leadership(3)
    assert cluster[1].node.propose([b"a"]) == NotLeader(3)
    cluster.tick(10)
    change(cluster, 1, REMOVE_3)
    assert not cluster[1].node.transfer_leadership(3)


def test_a_removed_nodes_votes_and_answers_do_not_count() -> None:
    cluster = cluster_of(3)
    cluster.elect(1)
    change(cluster, 1, REMOVE_3)
    cluster.settle()
    cluster.cut(2)
    cluster.propose(1, b"a")
    cluster.settle()
    last = cluster[1].node.status().last_index
    cluster[1].node.step(Message(MessageKind.APPEND_ANSWER, 3, 1, 1, last))
    assert cluster[1].node.status().commit == last - 1


def test_membership_entries_are_handed_out_with_the_others() -> None:
    cluster = cluster_of(3, 4)
    cluster.elect(1)
    change(cluster, 1, LEARN_4)
    cluster.settle()
    entry = cluster.committed[2]
    assert entry.kind == MEMBERSHIP
    assert decode_membership(entry.data) == Membership((1, 2, 3), (4,))
