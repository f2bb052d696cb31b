"""Appointed groups: a record names the leader of each term, and all voters have what is committed."""

from __future__ import annotations

import pytest

from fluxmq.raft.commits import EVERY_VOTER, MAJORITY
from fluxmq.raft.errors import InconsistentLog
from fluxmq.raft.node import Config
from fluxmq.raft.types import (
    TRANSFER,
    ChangeRefused,
    ChangeVerb,
    Membership,
    MembershipChange,
    Message,
    MessageKind,
    ProposalAccepted,
    Role,
)
from tests.unit.raft.cluster import Cluster, Disk, Member

ELECTION_TICKS = 10


def group_of(voters: int, learners: int = 0) -> Cluster:
    return Cluster(voters, learners, appointed=True, commit_rule=EVERY_VOTER)


def appoint(cluster: Cluster, number: int, term: int) -> Member:
    """Have a member lead a term, and settle."""
    assert cluster[number].node.appoint(term)
    cluster.settle()
    assert cluster[number].node.status().role is Role.LEADER
    return cluster[number]


def demote(cluster: Cluster, leader: int, number: int) -> None:
    wanted = MembershipChange(ChangeVerb.ADD_LEARNER, number)
    assert isinstance(cluster[leader].node.propose_membership(wanted), ProposalAccepted)
    cluster.settle()


def end(cluster: Cluster, number: int) -> tuple[int, int]:
    status = cluster[number].node.status()
    return status.commit, status.last_index


# Appointing


def test_an_appointed_node_leads_exactly_that_term() -> None:
    cluster = group_of(3)
    leader = appoint(cluster, 2, 7)
    cluster.propose(2, b"a")
    cluster.settle()
    assert leader.node.term == 7
    assert [cluster[number].commands for number in (1, 2, 3)] == [[b"a"]] * 3
    assert cluster[1].node.status().leader == 2
    assert leader.node.appoint(7)
    assert end(cluster, 2) == (2, 2), "it goes on as before"


@pytest.mark.parametrize("term", [4, 5])
def test_a_term_that_has_passed_here_is_not_led(term: int) -> None:
    cluster = group_of(3)
    appoint(cluster, 1, 5)
    assert not cluster[2].node.appoint(term)
    assert cluster[2].node.status().role is Role.FOLLOWER


def test_a_leader_that_has_restarted_needs_a_new_term() -> None:
    cluster = group_of(3)
    appoint(cluster, 1, 5)
    cluster[1].crash()
    assert not cluster[1].node.appoint(5)
    appoint(cluster, 1, 6)


def test_an_appointment_that_a_crash_forgot_can_be_repeated() -> None:
    cluster = group_of(2)
    assert cluster[1].node.appoint(3)
    cluster.collect()
    cluster[1].crash()
    appoint(cluster, 1, 3)


def test_nothing_of_a_term_leaves_before_it_is_durable() -> None:
    cluster = group_of(3)
    assert cluster[1].node.appoint(1)
    cluster.tick_alone(1, ELECTION_TICKS)
    cluster.propose(1, b"a")
    cluster.collect()
    assert cluster.network == []
    assert cluster[1].node.status().role is Role.CANDIDATE
    cluster[1].sync()
    cluster.collect()
    assert {message.kind for message in cluster.network} >= {MessageKind.APPEND}
    assert cluster[1].node.status().role is Role.LEADER


def test_a_leader_can_be_appointed_anew() -> None:
    cluster = group_of(2)
    leader = appoint(cluster, 1, 1)
    cluster.cut(2)
    assert leader.node.read_index(4) is None
    cluster.settle()
    assert leader.node.appoint(2)
    cluster.settle()
    assert (leader.node.term, leader.reads_failed) == (2, [4])


def test_a_leader_follows_that_of_a_higher_term() -> None:
    cluster = group_of(3)
    appoint(cluster, 1, 1)
    cluster.cut(1)
    cluster.propose(1, b"lost")
    cluster.settle()
    assert cluster[3].node.appoint(2)
    cluster.heal()
    cluster.settle()
    assert cluster[1].node.status().role is Role.FOLLOWER
    cluster.propose(3, b"kept")
    cluster.settle()
    assert cluster[1].commands == [b"kept"]


def test_a_leader_learns_from_an_answer_that_another_leads() -> None:
    cluster = group_of(2)
    appoint(cluster, 1, 1)
    assert cluster[2].node.appoint(2)
    cluster.settle(lambda message: message.source == 1 or message.kind is MessageKind.APPEND_ANSWER)
    assert cluster[1].node.status().role is Role.LEADER
    cluster[1].node.tick()
    cluster.settle(lambda message: message.source == 1 or message.kind is MessageKind.APPEND_ANSWER)
    assert cluster[1].node.status().role is Role.FOLLOWER


def test_only_a_voter_can_be_appointed() -> None:
    cluster = group_of(2, 1)
    assert not cluster[3].node.appoint(1)
    assert cluster[3].node.term == 0


def test_a_member_that_lacks_what_it_promised_is_not_appointed() -> None:
    cluster = group_of(2)
    appoint(cluster, 1, 1)
    cluster[2].node.hold(1, 5)
    assert not cluster[2].node.appoint(2)
    assert cluster[2].node.term == 1


def test_where_there_are_elections_nobody_is_appointed() -> None:
    cluster = Cluster(3)
    assert not cluster[1].node.appoint(1)
    assert cluster[1].node.term == 0


def test_two_leaders_of_a_term_are_reported() -> None:
    cluster = group_of(2)
    assert cluster[1].node.appoint(1)
    with pytest.raises(InconsistentLog, match="node 2 leads term 1"):
        cluster[1].node.step(Message(MessageKind.HEARTBEAT, 2, 1, 1))


def test_the_rule_of_an_appointed_group_is_every_voter() -> None:
    with pytest.raises(AssertionError, match="lost"):
        Config(1, 10, 1, 1000, 1000, appointed=True, commit_rule=MAJORITY)


# No elections


def test_nobody_campaigns() -> None:
    cluster = group_of(3)
    appoint(cluster, 1, 1)
    cluster.cut(1)
    for member in cluster.members.values():
        member.node.campaign()
    cluster.tick(5 * ELECTION_TICKS)
    assert {cluster[number].node.term for number in (1, 2, 3)} == {1}
    assert [cluster[number].node.status().leader for number in (2, 3)] == [0, 0]


def test_the_only_voter_waits_as_well() -> None:
    cluster = group_of(1, 1)
    cluster[1].node.campaign()
    cluster.tick(5 * ELECTION_TICKS)
    assert (cluster[1].node.status().role, cluster[1].node.term) == (Role.FOLLOWER, 0)


@pytest.mark.parametrize(
    "kind",
    [
        MessageKind.VOTE,
        MessageKind.PRE_VOTE,
        MessageKind.VOTE_ANSWER,
        MessageKind.PRE_VOTE_ANSWER,
        MessageKind.TIMEOUT_NOW,
    ],
)
@pytest.mark.parametrize("term", [1, 9])
def test_messages_of_elections_change_nothing(kind: MessageKind, term: int) -> None:
    cluster = group_of(3)
    appoint(cluster, 1, 1)
    for target in (1, 2):
        before = cluster[target].node.status()
        cluster[target].node.step(Message(kind, 3, target, term, 99, term, context=TRANSFER))
        cluster.collect()
        assert cluster.network == []
        assert cluster[target].node.status() == before


def test_a_leader_stays_one_though_nobody_is_heard() -> None:
    cluster = group_of(3)
    appoint(cluster, 1, 1)
    cluster.cut(1)
    cluster.propose(1, b"a")
    cluster.tick(5 * ELECTION_TICKS)
    assert cluster[1].node.status().role is Role.LEADER
    assert end(cluster, 1) == (1, 2)
    cluster.heal()
    cluster.tick(2)
    assert cluster[3].commands == [b"a"]


def test_leadership_is_not_transferred() -> None:
    cluster = group_of(2)
    leader = appoint(cluster, 1, 1)
    assert not leader.node.transfer_leadership(2)
    cluster.propose(1, b"a")
    cluster.settle()
    assert cluster[2].commands == [b"a"]


# Commits and members


def test_an_entry_is_committed_when_every_voter_has_it() -> None:
    """S3-01, S4-47."""
    cluster = group_of(3, 1)
    appoint(cluster, 1, 1)
    cluster.cut(4)
    cluster.propose(1, b"a")
    cluster.settle()
    assert end(cluster, 1) == (2, 2), "a learner does not count"
    cluster.cut(3)
    cluster.propose(1, b"b")
    cluster.settle()
    assert end(cluster, 1) == (2, 3)


def test_an_entry_is_sent_once_to_each_voter() -> None:
    """S3-02, S4-38: by the leader, and by nobody else."""
    cluster = group_of(3)
    appoint(cluster, 1, 1)
    sent: list[tuple[int, int]] = []

    def note(message: Message) -> bool:
        sent.extend(
            (message.source, message.target) for each in message.entries if each.data == b"a"
        )
        return True

    cluster.propose(1, b"a")
    cluster.settle(note)
    assert sorted(sent) == [(1, 2), (1, 3)]


def test_a_member_that_returns_keeps_what_it_has_and_gets_the_rest() -> None:
    """S3-04."""
    cluster = group_of(2)
    appoint(cluster, 1, 1)
    cluster.propose(1, b"a")
    cluster.settle()
    cluster.cut(2)
    demote(cluster, 1, 2)
    cluster.propose(1, b"b")
    cluster.settle()
    got: list[bytes] = []

    def note(message: Message) -> bool:
        if message.target == 2:
            got.extend(each.data for each in message.entries if each.data in (b"a", b"b"))
        return True

    cluster.heal()
    cluster.tick(2)
    cluster.settle(note)
    assert cluster[2].commands == [b"a", b"b"]
    assert b"a" not in got


def test_what_waited_for_a_voter_is_committed_when_it_is_made_a_learner() -> None:
    cluster = group_of(3)
    leader = appoint(cluster, 1, 1)
    cluster.cut(3)
    cluster.propose(1, b"a")
    assert leader.node.read_index(1) is None
    cluster.settle()
    assert end(cluster, 1) == (1, 2)
    assert leader.reads == []
    change = MembershipChange(ChangeVerb.ADD_LEARNER, 3)
    assert isinstance(leader.node.propose_membership(change), ProposalAccepted)
    assert end(cluster, 1) == (2, 3), "before anything else is heard"
    cluster.settle()
    assert leader.reads == [(1, 1)]
    assert end(cluster, 2)[0] == 3
    cluster.heal()
    cluster.tick(2)
    assert cluster[3].commands == [b"a"]


def test_a_new_leader_takes_dead_voters_away_before_it_commits_anything() -> None:
    cluster = group_of(4)
    appoint(cluster, 1, 1)
    cluster.propose(1, b"a")
    cluster.settle()
    cluster.cut(1)
    cluster.cut(2)
    leader = appoint(cluster, 3, 2)
    assert leader.node.status().commit < leader.node.status().last_index
    demote(cluster, 3, 1)
    assert leader.node.status().commit < leader.node.status().last_index
    demote(cluster, 3, 2)
    assert leader.node.status().commit == leader.node.status().last_index == 5
    assert leader.node.status().membership == Membership((3, 4), (1, 2))
    assert cluster[4].node.status().commit == 5


def test_the_last_voter_commits_alone() -> None:
    cluster = group_of(2)
    appoint(cluster, 1, 1)
    cluster.cut(1)
    leader = appoint(cluster, 2, 2)
    demote(cluster, 2, 1)
    cluster.propose(2, b"a")
    assert leader.node.read_index(1) is None
    cluster.settle()
    assert leader.commands == [b"a"]
    assert [number for number, _ in leader.reads] == [1]


def test_a_voter_may_be_removed_at_any_time_and_others_are_added_one_by_one() -> None:
    cluster = group_of(3)
    appoint(cluster, 1, 1)
    cluster.cut(1)
    leader = appoint(cluster, 2, 2)
    add = MembershipChange(ChangeVerb.ADD_LEARNER, 4)
    promote = MembershipChange(ChangeVerb.ADD_VOTER, 4)
    assert leader.node.propose_membership(add) is ChangeRefused.TERM_NOT_COMMITTED
    assert leader.node.propose_membership(promote) is ChangeRefused.TERM_NOT_COMMITTED
    remove = MembershipChange(ChangeVerb.REMOVE, 1)
    assert isinstance(leader.node.propose_membership(remove), ProposalAccepted)
    cluster.settle()
    assert leader.node.status().membership == Membership((2, 3))
    cluster.add(4, Disk(Membership(())))
    cluster.cut(3)
    assert isinstance(leader.node.propose_membership(add), ProposalAccepted)
    assert leader.node.propose_membership(promote) is ChangeRefused.UNCOMMITTED


def test_a_leader_does_not_take_its_own_vote() -> None:
    cluster = group_of(2)
    leader = appoint(cluster, 1, 1)
    for verb in (ChangeVerb.ADD_LEARNER, ChangeVerb.REMOVE):
        change = MembershipChange(verb, 1)
        assert leader.node.propose_membership(change) is ChangeRefused.APPOINTED


def test_a_change_that_is_lost_with_its_leader_can_be_made_again() -> None:
    cluster = group_of(3)
    appoint(cluster, 1, 1)
    cluster.cut(3)
    cluster.cut(2)
    demote(cluster, 1, 3)
    cluster.cut(1)
    leader = appoint(cluster, 2, 2)
    assert leader.node.status().membership == Membership((1, 2, 3))
    demote(cluster, 2, 3)
    demote(cluster, 2, 1)
    assert leader.node.status().membership == Membership((2,), (1, 3))
    cluster.heal()
    cluster.tick(3)
    assert cluster[1].node.status().membership == Membership((2,), (1, 3))
    assert cluster[1].node.status().commit == leader.node.status().commit


# Reads


def test_a_read_is_confirmed_by_every_voter() -> None:
    cluster = group_of(3)
    leader = appoint(cluster, 1, 1)
    cluster.cut(3)
    assert leader.node.read_index(1) is None
    cluster.tick()
    assert leader.reads == []
    cluster.heal()
    cluster.tick()
    assert leader.reads == [(1, 1)]


def test_a_leader_that_was_replaced_confirms_no_read() -> None:
    cluster = group_of(3)
    leader = appoint(cluster, 1, 1)
    cluster.cuts |= {(1, 3), (3, 1), (2, 3), (3, 2)}
    assert cluster[3].node.appoint(2)
    assert leader.node.read_index(1) is None
    cluster.tick(3)
    assert leader.reads == []
    cluster.heal()
    cluster.tick(2)
    assert (leader.reads, leader.reads_failed) == ([], [1])


# Rest


def test_a_leader_rests_only_with_all_voters() -> None:
    cluster = group_of(3, 1)
    leader = appoint(cluster, 1, 1)
    cluster.settle()
    assert leader.node.quiescence.leads_quietly([2, 3])
    assert not leader.node.quiescence.leads_quietly([2])
    assert not leader.node.quiescence.suffice([3, 4])
