"""Which change of members a leader makes by itself."""

from fluxmq.raft.types import ChangeVerb, Membership, MembershipChange, RaftStatus, Role
from fluxmq.replication.membership import next_change
from fluxmq.replication.open_group import ALONE, Member

A, B, C, D = 1, 2, 3, 4
ONLY = 222182736891072
"""Number of a node that begins a cluster."""


def change(membership, *, committed=None, doubted=(), caught_up=()):
    status = RaftStatus(A, Role.LEADER, 1, A, A, 9, 9, 9, 9, membership)
    return next_change(status, committed or membership, doubted, caught_up)


def test_nothing_changes_by_itself_while_all_is_well():
    assert change(Membership((A, B, C), (D,))) is None


def test_a_voter_that_is_not_believed_becomes_a_learner():
    expected = MembershipChange(ChangeVerb.ADD_LEARNER, C)
    assert change(Membership((A, B, C)), doubted=[C]) == expected
    assert change(Membership((A, B, C), (D,)), doubted=[C], caught_up=[D]) == expected


def test_a_learner_that_has_caught_up_becomes_a_voter():
    members = Membership((A, B), (C, D))
    assert change(members, caught_up=[D]) == MembershipChange(ChangeVerb.ADD_VOTER, D)
    assert change(members, caught_up=[D], doubted=[D]) is None


def test_one_change_at_a_time():
    before = Membership((A, B, C))
    assert change(Membership((A, B), (C,)), committed=before, doubted=[B], caught_up=[C]) is None


def test_a_leader_does_not_judge_itself():
    assert change(Membership((A, B, C)), doubted=[A]) is None


def test_a_group_of_a_cluster_that_begins_with_one_node_may_grow():
    assert not Member(ONLY, (ONLY,)).alone
    assert ALONE.alone
