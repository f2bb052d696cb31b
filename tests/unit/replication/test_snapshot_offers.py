"""A snapshot that nobody speaks of is offered again soon; one that is fetched is left in peace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fluxmq.raft.types import Membership, Message, MessageKind, Snapshot, SnapshotMark
from fluxmq.replication.snapshot_offers import SILENT_SECONDS, UNHEARD_SECONDS
from fluxmq.settings.plans import member_number
from tests.unit.replication.member import GROUP, LEADER, OWN, TERM, LoneMember

LAGGING = member_number("node3")


class Leading:
    """The member, which leads; ``sent`` is what it says to who lags."""

    def __init__(self, member: LoneMember) -> None:
        self.member = member
        self.sent: list[Message] = []
        hosted = member.hosted
        hosted.driver.send = self.sent.extend
        member.within(hosted.driver.node.campaign)
        self.turn()
        for kind in (MessageKind.PRE_VOTE_ANSWER, MessageKind.VOTE_ANSWER):
            term = max(each.term for each in self.sent)
            self.step(Message(kind, LEADER, OWN, term))
        self.term = hosted.driver.node.term
        self.step(Message(MessageKind.APPEND_ANSWER, LEADER, OWN, self.term, self.last))
        assert hosted.driver.leading

    @property
    def last(self) -> int:
        """The last entry."""
        return self.member.hosted.log.last_index()

    def turn(self) -> None:
        """What is to be done is done."""
        self.member.within(self.member.hosted.driver.pump)
        self.member.work()

    def step(self, message: Message) -> None:
        """Somebody says something."""
        self.member.within(lambda: self.member.hosted.driver.step([message]))
        self.turn()

    def lags(self) -> None:
        """Who lags is there, and has nothing."""
        tried = self.appends()[-1].index
        answer = Message(MessageKind.APPEND_ANSWER, LAGGING, OWN, self.term, tried)
        answer.reject = True
        self.step(answer)
        self.step(Message(MessageKind.HEARTBEAT_ANSWER, LAGGING, OWN, self.term))

    def pass_time(self, seconds: float) -> None:
        """Time passes; who lags answers heartbeats."""
        self.member.now += seconds
        self.member.within(self.member.cluster.offers.housekeeping)
        self.step(Message(MessageKind.HEARTBEAT_ANSWER, LAGGING, OWN, self.term))

    def appends(self) -> list[Message]:
        """Entries sent to who lags."""
        kind = MessageKind.APPEND
        return [each for each in self.sent if each.kind is kind and each.target == LAGGING]

    def offers(self) -> int:
        """Snapshots offered so far."""
        return sum(each.kind is MessageKind.SNAPSHOT for each in self.sent)

    def says(self, what: str, *rest: int) -> None:
        """Who lags tells how it does."""
        say = self.member.cluster.offers.handlers()[what]
        self.member.within(lambda: say(None, GROUP, LAGGING, *rest))


@pytest.fixture
def leading(tmp_path: Path) -> Iterator[Leading]:
    """A leader that has let go of its log, and offered a snapshot."""
    with asyncio.Runner() as runner:
        member = LoneMember(tmp_path / "data", runner)
        member.append(60)
        member.checkpoint()
        made = Leading(member)
        made.lags()
        assert made.offers() == 1
        yield made
        member.kill()


def test_an_offer_of_which_not_a_word_is_heard_is_repeated(leading: Leading) -> None:
    leading.pass_time(UNHEARD_SECONDS * 0.9)
    assert leading.offers() == 1
    leading.pass_time(UNHEARD_SECONDS * 0.2)
    assert leading.offers() == 2
    leading.pass_time(UNHEARD_SECONDS * 1.1)
    assert leading.offers() == 3


def test_who_fetches_is_left_in_peace_as_long_as_it_says_so(leading: Leading) -> None:
    for _ in range(5):
        leading.says("fetching")
        leading.pass_time(SILENT_SECONDS * 0.9)
    assert leading.offers() == 1
    leading.pass_time(SILENT_SECONDS * 0.2)
    assert leading.offers() == 2


def test_who_could_not_fetch_is_offered_another(leading: Leading) -> None:
    leading.says("fetching")
    leading.says("fetched", 0)
    leading.pass_time(0.1)
    assert leading.offers() == 2


def test_who_has_it_gets_entries(leading: Leading) -> None:
    leading.says("fetching")
    before = len(leading.appends())
    leading.says("fetched", 60)
    leading.turn()
    assert leading.offers() == 1
    assert leading.appends()[before].index == 60


def test_what_is_here_already_is_not_fetched_again(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        member = LoneMember(tmp_path / "data", runner)
        member.append(60)
        said: list[Message] = []
        member.hosted.driver.send = said.extend
        for index in (50, 60):
            mark = SnapshotMark(index, TERM, Membership((LEADER, OWN, LAGGING)))
            offer = Message(MessageKind.SNAPSHOT, LEADER, OWN, TERM)
            offer.snapshot = Snapshot(mark, b"")
            member.within(partial(member.cluster.step, member.hosted, [offer]))
            member.work()
            assert [(each.kind, each.index) for each in said] == [(MessageKind.APPEND_ANSWER, 60)]
            said.clear()
        assert member.cluster.snapshots.fetching == {}
        member.kill()
