"""The record of an appointed group and its voters: which of the two changes first."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluxmq.raft.types import ChangeVerb, Membership, MembershipChange
from fluxmq.replication.mirror_voters import ASK_AGAIN_SECONDS, LedGroup, MirrorVoters

A, B, C, D = 1, 2, 3, 4
ALL = Membership((A, B, C))
DEMOTE_B = MembershipChange(ChangeVerb.ADD_LEARNER, B)


class AskedRecord:
    """Takes what the record is asked for; a test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []
        self.answers: list[Callable[[bool], None]] = []

    def enter(self, term: int, member: int, answered: Callable[[bool], None]) -> None:
        self.asked.append(("enter", term, member))
        self.answers.append(answered)

    def leave(self, term: int, member: int, answered: Callable[[bool], None]) -> None:
        self.asked.append(("leave", term, member))
        self.answers.append(answered)


class Led:
    """A group that node A leads in term 5, with everything as it should be."""

    def __init__(self) -> None:
        self.record = AskedRecord()
        self.now = 100.0
        self.voters = MirrorVoters(self.record, lambda: self.now)
        self.group = LedGroup(5, A, ALL, ALL, True, synchronised=(A, B, C))

    def change(self, **values: object) -> MembershipChange | None:
        """The next change after something has become different."""
        self.group = self.group._replace(**values)  # type: ignore[arg-type]
        if "membership" in values and "committed" not in values:
            self.group = self.group._replace(committed=self.group.membership)
        return self.voters.next_change(self.group)


@pytest.fixture
def led() -> Led:
    return Led()


def test_nothing_is_asked_while_all_is_well(led: Led) -> None:
    assert led.change() is None
    assert led.record.asked == []


@pytest.mark.parametrize("synchronised", [(A, B, C), (A,)])
@pytest.mark.parametrize("commits", [True, False])
def test_a_voter_leaves_the_record_before_it_is_demoted(
    led: Led, synchronised: tuple[int, ...], commits: bool
) -> None:
    for _ in range(2):
        assert led.change(lost=[B], synchronised=synchronised, commits=commits) is None
    assert [asked for asked in led.record.asked if asked[0] == "leave"] == [("leave", 5, B)]
    led.record.answers[0](True)
    assert led.change() == DEMOTE_B
    assert led.change(lost=()) == DEMOTE_B, "it is out of the record, lost or not"


def test_what_the_record_refuses_is_asked_again_later(led: Led) -> None:
    """S3-08: a leader that does not reach the record does without nobody."""
    led.change(lost=[B])
    led.record.answers[0](False)
    assert led.change() is None
    assert len(led.record.asked) == 1
    led.now += ASK_AGAIN_SECONDS
    led.change()
    assert led.record.asked == [("leave", 5, B)] * 2


def test_several_are_lost_before_anything_is_committed(led: Led) -> None:
    led.change(lost=[B, C], commits=False)
    assert led.record.asked == [("leave", 5, B), ("leave", 5, C)]
    led.record.answers[1](True)
    assert led.change() == MembershipChange(ChangeVerb.ADD_LEARNER, C)
    led.record.answers[0](True)
    pending = Membership((A, B), (C,))
    assert led.change(membership=pending, committed=ALL) == DEMOTE_B
    assert led.change(membership=Membership((A,), (B, C)), committed=ALL) is None


def test_answers_of_an_earlier_term_do_not_count(led: Led) -> None:
    led.change(lost=[B])
    led.change(term=7)
    led.record.answers[0](True)
    assert led.change() is None
    assert led.record.asked == [("leave", 5, B), ("leave", 7, B)]


def test_a_voter_enters_the_record_when_the_change_is_committed(led: Led) -> None:
    members = Membership((A, C), (B,))
    led.change(synchronised=(A, C), membership=members)
    assert led.change(caught_up=[B]) == MembershipChange(ChangeVerb.ADD_VOTER, B)
    led.change(membership=ALL, committed=members)
    assert led.record.asked == []
    led.change(committed=ALL)
    assert led.record.asked == [("enter", 5, B)]
    led.record.answers[0](True)
    assert led.change() is None
    assert len(led.record.asked) == 1, (
        "though it is not yet heard of the record that it has changed"
    )


def test_a_voter_of_the_leader_before_enters_when_this_one_commits(led: Led) -> None:
    led.change(synchronised=(A, C), commits=False)
    assert led.record.asked == []
    led.change(commits=True)
    assert led.record.asked == [("enter", 5, B)]


def test_one_thing_at_a_time_is_asked_about_a_member(led: Led) -> None:
    led.change(synchronised=(A, C))
    led.change(lost=[B])
    assert led.record.asked == [("enter", 5, B)]
    led.record.answers[0](True)
    led.change()
    assert led.record.asked == [("enter", 5, B), ("leave", 5, B)]


def test_a_member_whose_leaving_is_unknown_enters_again(led: Led) -> None:
    led.change(synchronised=(A, C))
    led.record.answers[0](True)
    led.change(lost=[B])
    led.record.answers[1](False)
    led.now += ASK_AGAIN_SECONDS
    led.change(lost=())
    assert led.record.asked == [("enter", 5, B), ("leave", 5, B), ("enter", 5, B)]


def test_a_voter_that_came_back_leaves_again_when_it_is_lost_again(led: Led) -> None:
    led.change(lost=[B])
    led.record.answers[0](True)
    led.change(lost=(), membership=Membership((A, C), (B,)), synchronised=(A, C))
    led.change(membership=ALL)
    assert led.record.asked == [("leave", 5, B), ("enter", 5, B)]
    led.record.answers[1](True)
    assert led.change(lost=[B]) is None
    assert led.record.asked[2:] == [("leave", 5, B)]


def test_learners_wait_for_earlier_changes(led: Led) -> None:
    before, members = Membership((A, B, C)), Membership((A, B), (C, D))
    led.change(membership=members, synchronised=(A, B), caught_up=[D])
    assert led.change(committed=before) is None
    assert led.change(committed=members, commits=False) is None
    assert led.change(commits=True) == MembershipChange(ChangeVerb.ADD_VOTER, D)


def test_who_is_to_leave_the_group_is_removed(led: Led) -> None:
    assert led.change(gone=[B]) is None
    led.record.answers[0](True)
    assert led.change() == MembershipChange(ChangeVerb.REMOVE, B)
    members = Membership((A, C), (D,))
    assert led.change(membership=members, gone=[D]) == MembershipChange(ChangeVerb.REMOVE, D)


def test_a_leader_neither_loses_nor_enters_itself(led: Led) -> None:
    assert led.change(lost=[A], gone=[A], synchronised=(B, C)) is None
    assert led.record.asked == []
