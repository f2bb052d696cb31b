"""The voters of an appointed group, and its record: which of the two changes first. Pure.

The record names the members that may be appointed, its *synchronised* ones. All of them have to be
voters by the leader's log at any time, or one that lacks committed entries could become leader (see
`fluxmq.raft.commits.EveryVoter`). So a voter leaves the record before it is made a learner, and
enters it after the change that made it a voter is committed, in the leader's own term: the leader
before may have committed entries without a voter of this log, by a change that was lost with it.

A leader hears of the record late, and of what it asked for perhaps never. It therefore relies on
answers of its own term alone, and asks about one member one thing at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple, Protocol

from fluxmq.raft.types import ChangeVerb, Membership, MembershipChange

ASK_AGAIN_SECONDS: Final = 1.0
"""Time before the record is asked again for what it has refused."""


class VoterRecord(Protocol):
    """Changes the record of an appointed group for its leader, if it names that for ``term``.

    ``answered`` is called once, with False if the record was not changed, or if that is unknown.
    """

    def enter(self, term: int, member: int, answered: Callable[[bool], None]) -> None:
        """Have a member named as synchronised."""

    def leave(self, term: int, member: int, answered: Callable[[bool], None]) -> None:
        """Have a member no longer named as synchronised.

        True means also that no earlier `enter` can take effect any more, answered or not: a
        comparison of the record with what it was before has to fail, even if it did not name the
        member.
        """


class LedGroup(NamedTuple):
    """A group as its leader sees it. ``commits``: an entry of its term is committed; ``lost``: the
    voters that it has to do without; ``gone``: members that are to leave the group; ``caught_up``:
    learners that may become voters; ``synchronised``: those that the record names for this term, as
    far as is known here."""

    term: int
    own: int
    membership: Membership
    committed: Membership
    commits: bool
    lost: Collection[int] = ()
    gone: Collection[int] = ()
    caught_up: Collection[int] = ()
    synchronised: Collection[int] = ()


class MirrorVoters:
    """Decides about the voters of one group, while this node leads it. ``now`` returns seconds."""

    def __init__(self, record: VoterRecord, now: Callable[[], float]) -> None:
        self._record = record
        self._now = now
        self._term = 0
        self._asked: set[int] = set()
        """Members that the record is being asked about."""
        self._left: set[int] = set()
        """Voters that have left the record, in this term."""
        self._entered: set[int] = set()
        self._again: dict[int, float] = {}
        """Moments from which members may be asked about again."""

    def next_change(self, group: LedGroup) -> MembershipChange | None:
        """Return the change of members that the leader has to make now, if any; ask for what has to
        come before, and for what follows an earlier one.

        Voters are taken away whatever is committed: the leader may have to do without several
        before it can commit anything.
        """
        if group.term != self._term:
            self._begin(group.term)
        self._left.intersection_update(group.membership.voters)
        self._entered.intersection_update(group.membership.voters)
        for number in group.membership.voters:
            if number == group.own or number in self._asked:
                continue
            if number in self._left:
                return _without(number, group)
            self._see_to(number, group)
        if not group.commits or group.committed != group.membership:
            return None
        for number in group.membership.learners:
            if number in group.gone:
                return _without(number, group)
        for number in group.membership.learners:
            if number in group.caught_up:
                return MembershipChange(ChangeVerb.ADD_VOTER, number)
        return None

    def _begin(self, term: int) -> None:
        self._term = term
        for known in (self._asked, self._left, self._entered):
            known.clear()
        self._again.clear()

    def _see_to(self, number: int, group: LedGroup) -> None:
        """Ask for what is next for a voter: that it leaves the record, or enters it."""
        if self._now() < self._again.get(number, 0.0):
            return
        if number in group.lost or number in group.gone:
            self._asked.add(number)
            self._entered.discard(number)
            self._record.leave(group.term, number, self._answer(number, self._left))
        elif (
            group.commits
            and number in group.committed.voters
            and number not in self._entered
            and number not in group.synchronised
        ):
            self._asked.add(number)
            self._record.enter(group.term, number, self._answer(number, self._entered))

    def _answer(self, number: int, into: set[int]) -> Callable[[bool], None]:
        term = self._term

        def answered(done: bool) -> None:
            if term != self._term:
                return
            self._asked.discard(number)
            if done:
                into.add(number)
            else:
                self._again[number] = self._now() + ASK_AGAIN_SECONDS

        return answered


def _without(number: int, group: LedGroup) -> MembershipChange:
    """Return the change that takes a member's vote, or removes it."""
    verb = ChangeVerb.REMOVE if number in group.gone else ChangeVerb.ADD_LEARNER
    return MembershipChange(verb, number)
