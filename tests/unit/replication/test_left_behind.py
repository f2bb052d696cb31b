"""A member that led while another copy was declared the truth: nobody goes on believing that it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fluxmq.raft.types import Message, MessageKind
from fluxmq.replication.forced_quorum import TERMS_AHEAD, Forcing
from fluxmq.replication.leaders import OWN as THIS_SHARD
from fluxmq.replication.member_record import read_record
from tests.unit.replication.member import GROUP, LEADER, OWN, LoneMember, settings_of

SYNCS_MAX = 20
FORCED = (1, 1001)
"""The number of the copy that was declared the truth."""


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """The loop of all lives."""
    with asyncio.Runner() as found:
        yield found


def lead(member: LoneMember) -> None:
    """Have it lead with the vote of one other, which stores whatever it is sent."""
    sent: list[Message] = []
    driver = member.hosted.driver
    driver.send = sent.extend

    def campaign() -> None:
        driver.node.campaign()
        driver.pump()

    member.within(campaign)
    for _ in range(SYNCS_MAX):
        member.work()
        if member.cluster.leaders.of(GROUP).peer == THIS_SHARD:
            return
        heard = [each for each in sent if each.target == LEADER]
        sent.clear()
        for told in heard:
            answer = {
                MessageKind.PRE_VOTE: MessageKind.PRE_VOTE_ANSWER,
                MessageKind.VOTE: MessageKind.VOTE_ANSWER,
                MessageKind.APPEND: MessageKind.APPEND_ANSWER,
            }.get(told.kind)
            if answer is not None:
                last = told.index + len(told.entries)
                back = Message(answer, LEADER, OWN, told.term, last)
                member.within(partial(driver.step, [back]))
    raise AssertionError("it was not elected")


def test_a_leader_that_is_left_behind_is_named_no_longer(tmp_path: Path, runner) -> None:
    member = LoneMember(tmp_path / "data", runner)
    lead(member)
    leader = member.cluster.leaders.of(GROUP)
    member.replica.acquaintances.superseded = FORCED
    member.now += 60.0
    member.within(member.cluster.housekeeping)
    record = read_record(member.files, member.paths, GROUP)
    assert record is not None
    assert record.forced == FORCED
    assert leader.peer is None
    member.kill()


def test_those_left_behind_cannot_pass_the_term_of_the_forced_copy(tmp_path: Path, runner) -> None:
    """Other shards believe the leader of the highest term: two of three may have gone on for a while."""
    directory = tmp_path / "data"
    member = LoneMember(directory, runner)
    member.append(3)
    before = member.hosted.driver.node.term
    member.kill()
    forcing = Forcing(member.files.__class__(), member.paths, settings_of(directory))
    forcing.force(GROUP, apply=True)
    again = LoneMember(directory, runner)
    assert again.hosted.driver.node.term == before + TERMS_AHEAD
    assert again.hosted.log.term(4) == before + TERMS_AHEAD
    again.kill()
