"""A replica that changes its shard keeps what it promised: its vote, and every entry that it acknowledged.

A node of three with two shards, whose leader is the test.

Longer than 500 lines because moves while the shards run and moves between two starts keep the same promises, of the same node.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fluxmq.engine.group import ReplicationGroup
from fluxmq.ipc.messages import Body, Failure
from fluxmq.ipc.placements import (
    EXPECT,
    PLACEMENT,
    RECEIVE,
    RELEASE,
    Release,
    ReleasedGroup,
    placement_to_body,
    shard_of,
)
from fluxmq.queues import commands
from fluxmq.queues.commands import encode_entry
from fluxmq.queues.config import QueueConfig, QueueType
from fluxmq.raft.types import COMMAND, TRANSFER, Entry, Message, MessageKind
from fluxmq.replication.open_group import OpenGroup
from fluxmq.settings.plans import member_number
from fluxmq.shards.relocate import Relocation
from fluxmq.storage.directory import DataPaths, Placement, read_placement, write_placement
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.hand_over import is_marked, tail_path
from tests.damage.shard import Tracked
from tests.faults import Crash
from tests.unit.replication.member import GROUP, LEADER, OWN, TERM, LoneMember, settings_of
from tests.unit.replication.trio import NOW_US, message

OTHER = member_number("node3")
"""The number of a member that does not lead."""
SECONDS_MAX = 20.0


def entry(index: int) -> Entry:
    """The leader's entry: the first declares the queue, the others have a message each."""
    if index == 1:
        said = [commands.declare(QueueConfig("work", QueueType.STREAM, max_depth=0))]
    else:
        batch = message(b"%6d" % index + bytes(500))
        said = [commands.append_header(1, len(batch), 0) + batch]
    return Entry(TERM, index, COMMAND, encode_entry(NOW_US, said))


class Pair:
    """Both shards of a node, and its placement, which the test writes and tells as the control process does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runner = asyncio.Runner()
        self.placement = Placement(2, 4, {GROUP: 0}, revision=1)
        self.shards: list[LoneMember] = []
        self.sent: list[Message] = []
        directory.mkdir()
        self.start()

    def start(self) -> None:
        """Start both shards; those that ran are killed."""
        self.kill()
        write_placement(Files(), DataPaths(str(self.directory)), self.placement)
        for shard in range(2):
            life = LoneMember(self.directory, self.runner, shard=shard, workers=2)
            self.shards.append(life)
        self.settle()

    def kill(self) -> None:
        """End both without a word."""
        for shard in self.shards:
            shard.steps.drop()
            shard.kill()
        self.shards.clear()

    def close(self) -> None:
        """The end of the test."""
        self.kill()
        self.runner.close()

    def settle(self) -> None:
        """Let both work until nothing is left to do."""
        for _ in range(3):
            for shard in self.shards:
                if not shard.files.dead:
                    shard.work()

    # The group

    @property
    def place(self) -> int:
        """The one shard that has the group open."""
        (found,) = [
            at for at, each in enumerate(self.shards) if GROUP in each.queues.service.groups
        ]
        return found

    @property
    def hosted(self) -> OpenGroup[ReplicationGroup]:
        """The group, wherever it is."""
        return self.shards[self.place].queues.service.groups[GROUP]

    def listen(self) -> None:
        """Note what the group says from now on."""
        self.sent = []
        self.hosted.driver.send = self.sent.extend

    def step(self, told: Message) -> None:
        """The group hears something."""
        shard = self.shards[self.place]
        shard.within(lambda: self.hosted.driver.step([told]))
        self.settle()

    def append(self, count: int, committed: int) -> None:
        """The leader sends entries, and says up to which everything is committed."""
        log = self.hosted.log
        last = log.last_index()
        entries = [entry(index) for index in range(last + 1, last + 1 + count)]
        self.step(
            Message(MessageKind.APPEND, LEADER, OWN, TERM, last, log.term(last), entries, committed)
        )
        assert self.hosted.driver.node.status().persisted == last + count

    def heartbeat(self, committed: int) -> None:
        """The leader says what is committed."""
        self.step(Message(MessageKind.HEARTBEAT, LEADER, OWN, TERM, commit=committed))

    # The move

    def order(self, shard: int, kind: str, body: Body) -> Body | Failure:
        """What a shard answers to an order."""
        return self.runner.run(asyncio.wait_for(self.ordered(shard, kind, body), SECONDS_MAX))

    async def ordered(self, shard: int, kind: str, body: Body) -> Body | Failure:
        """As `order`, within the loop."""
        answers: list[Body | Failure] = []
        self.shards[shard].queues.commands()[kind](body, answers.append)
        while not answers:
            for each in self.shards:
                if not each.files.dead:
                    each.steps.run()
                    each.work()
            await asyncio.sleep(0)
            if any(each.files.dead for each in self.shards):
                raise Crash("a shard is dead")
        return answers[0]

    def release(self) -> ReleasedGroup:
        """Have the group leave."""
        answer = self.order(self.place, RELEASE, Release(GROUP).to_body())
        assert not isinstance(answer, Failure), answer
        return ReleasedGroup.from_body(answer)

    def receive(self, released: ReleasedGroup, shard: int) -> None:
        """Have a shard take its log."""
        assert self.order(shard, EXPECT, Release(GROUP).to_body()) == {}
        assert self.order(shard, RECEIVE, released.to_body()) == {}

    def decide(self, *shards: int, **changes: Any) -> None:
        """Write a placement and tell it to these shards."""
        revision = self.placement.revision + 1
        self.placement = replace(self.placement, **changes, revision=revision)
        write_placement(Files(), DataPaths(str(self.directory)), self.placement)
        for shard in shards:
            assert self.order(shard, PLACEMENT, placement_to_body(self.placement)) == {}
        self.settle()

    def move(self) -> ReleasedGroup:
        """Move the group to the other shard."""
        source = self.place
        target = 1 - source
        self.decide(source, target, moving={GROUP: target})
        released = self.release()
        self.receive(released, target)
        self.decide(target, source, moving={}, pins={GROUP: target})
        assert self.place == target
        return released

    def wal(self, shard: int) -> Any:
        """A shard's log."""
        return self.shards[shard].queues.service.logs.of(GROUP).wal


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A node with the group on its first shard."""
    made = Pair(tmp_path / "data")
    yield made
    made.close()


def held(pair: Pair) -> list[Entry]:
    """Everything in the group's log behind its snapshot, as the node would read it."""
    log = pair.hosted.log
    return log.entries(log.first_index(), log.last_index() + 1, 1 << 30)


def whole(pair: Pair, last: int, applied: int | None = None) -> None:
    """The member holds all entries up to the last, and goes on where it stood, if that is known."""
    status = pair.hosted.driver.node.status()
    assert not pair.hosted.group.failed
    assert (status.last_index, status.persisted) == (last, last)
    assert applied in (None, status.applied)
    assert [each.data for each in held(pair)] == [
        entry(index).data for index in range(pair.hosted.log.first_index(), last + 1)
    ]
    pair.listen()
    pair.heartbeat(last)  # the leader knows that this member holds them all
    assert not pair.hosted.group.failed
    assert pair.hosted.group.applied_index == last
    queue = pair.hosted.group.machine.queue("work")
    assert queue is not None
    assert queue.next_offset == last - 1
    pair.append(2, last + 2)
    answers = [each for each in pair.sent if each.kind is MessageKind.APPEND_ANSWER]
    assert [(each.index, each.reject) for each in answers] == [(last + 2, False)]


@pytest.mark.parametrize(
    ("entries", "committed"), [(9, 9), (9, 6), (9, 1), (9, 0)], ids=["all", "some", "one", "none"]
)
def test_what_a_follower_acknowledged_moves_with_it(
    pair: Pair, entries: int, committed: int
) -> None:
    """Review finding 1, second variant: entries that the leader counted and did not call committed yet were forgotten."""
    pair.append(entries, committed)
    released = pair.move()
    assert (released.index, released.last) == (committed, entries)
    whole(pair, entries, committed)


def test_what_is_committed_and_not_applied_moves(pair: Pair) -> None:
    """Review finding 1, first variant: what was known to be committed lay behind the end of the new log."""
    pair.append(3, 3)
    driver = pair.hosted.driver
    assert driver.gathers
    pair.append(4, 7)
    for index in (8, 9):  # each comes with the news that the one before is committed
        log = pair.hosted.log
        told = Message(
            MessageKind.APPEND, LEADER, OWN, TERM, index - 1, log.term(index - 1), [entry(index)], 7
        )
        shard = pair.shards[0]
        shard.within(lambda told=told: driver.step([told]))  # type: ignore[misc]
    released = pair.move()
    assert released.commit == released.index == 7
    whole(pair, 9, 7)


def test_there_and_back(pair: Pair) -> None:
    """Review finding 1: a log that had the group before begins anew with what the group has now."""
    pair.append(5, 3)
    pair.move()
    pair.append(5, 7)
    pair.move()
    assert pair.place == 0
    whole(pair, 10, 7)
    pair.move()
    whole(pair, 12, 12)


def test_a_restart_finds_what_moved(pair: Pair) -> None:
    """Review finding 1: what moved is on the disk where the group is opened."""
    pair.append(9, 4)
    pair.move()
    pair.start()
    assert pair.place == 1
    whole(pair, 9, 4)


def test_a_vote_moves_that_nothing_was_written_behind(pair: Pair) -> None:
    """Review finding 1: a member that has written nothing since it was started keeps its term and its vote."""
    pair.append(3, 3)
    pair.listen()
    asks = Message(MessageKind.VOTE, OTHER, OWN, TERM + 1, index=3, log_term=TERM)
    asks.context = TRANSFER  # its leader wants it so
    pair.step(asks)
    assert [(each.kind, each.reject) for each in pair.sent] == [(MessageKind.VOTE_ANSWER, False)]
    pair.start()
    released = pair.move()
    assert (released.term, released.vote) == (TERM + 1, OTHER)
    status = pair.hosted.driver.node.status()
    assert (status.term, status.vote) == (TERM + 1, OTHER)
    pair.listen()
    again = Message(MessageKind.VOTE, LEADER, OWN, TERM + 1, index=9, log_term=TERM)
    again.context = TRANSFER
    pair.step(again)
    assert [each.reject for each in pair.sent] == [True]


def test_a_follower_that_leaves_takes_and_promises_nothing(pair: Pair) -> None:
    """Review finding 1: no vote and no acknowledgement when the hard state has been read."""
    pair.append(5, 3)
    pair.listen()
    hosted, shard = pair.hosted, pair.shards[0]
    last = hosted.log.last_index()
    late = [
        Message(MessageKind.APPEND, LEADER, OWN, TERM, last, TERM, [entry(last + 1)], last),
        Message(MessageKind.VOTE, OTHER, OWN, TERM + 5, index=99, log_term=TERM, context=TRANSFER),
        Message(MessageKind.HEARTBEAT, LEADER, OWN, TERM, commit=last),
    ]

    async def leave() -> Body | Failure:
        task = asyncio.create_task(pair.ordered(0, RELEASE, Release(GROUP).to_body()))
        while not task.done():
            if hosted.driver.halted and not hosted.group.failed:
                hosted.driver.step(late)
                hosted.driver.tick()
            await asyncio.sleep(0)
        return await task

    answer = pair.runner.run(asyncio.wait_for(leave(), SECONDS_MAX))
    assert not isinstance(answer, Failure), answer
    released = ReleasedGroup.from_body(answer)
    assert (released.term, released.last, released.commit) == (TERM, last, 3)
    assert pair.sent == []
    assert shard.queues.service.groups == {}


def test_a_follower_leaves_under_load(pair: Pair) -> None:
    """Review finding 1: it went on applying, so that no checkpoint ever had all of it, and most moves failed."""
    pair.append(5, 5)
    hosted = pair.hosted

    async def leave() -> Body | Failure:
        task = asyncio.create_task(pair.ordered(0, RELEASE, Release(GROUP).to_body()))
        while not task.done():
            if not hosted.group.failed:
                last = hosted.log.last_index()
                term = hosted.log.term(last)
                told = [entry(last + 1)]
                hosted.driver.step(
                    [Message(MessageKind.APPEND, LEADER, OWN, TERM, last, term, told, last)]
                )
            await asyncio.sleep(0)
        return await task

    answer = pair.runner.run(asyncio.wait_for(leave(), SECONDS_MAX))
    assert not isinstance(answer, Failure), answer
    released = ReleasedGroup.from_body(answer)
    assert released.last == hosted.log.last_index() > 5
    pair.receive(released, 1)
    pair.decide(1, 0, pins={GROUP: 1})
    whole(pair, released.last, released.index)


def test_a_move_that_fails_leaves_the_member_at_work(pair: Pair) -> None:
    """Review finding 1: a follower whose entries cannot be handed over takes part again."""
    pair.append(9, 5)
    pair.shards[0].files.fail_always("rename", errno.ENOSPC)
    answer = pair.order(0, RELEASE, Release(GROUP).to_body())
    assert isinstance(answer, Failure)
    pair.shards[0].files.work_again()
    assert pair.place == 0
    assert not is_marked(pair.wal(0), GROUP)
    whole(pair, 9, 5)


SOURCE = ["file.write", "file.rename", "handover.tail", "wal.write", "wal.synced"]
TARGET = ["wal.write", "wal.synced"]


@pytest.mark.parametrize("step", SOURCE)
def test_the_old_shard_dies_on_the_way(pair: Pair, step: str) -> None:
    """Review finding 1: until it is decided the group is where it was, with everything."""
    pair.append(9, 5)
    pair.decide(0, 1, moving={GROUP: 1})
    pair.shards[0].files.crash_at(step, 1)
    with pytest.raises(Crash):
        pair.release()
    pair.placement = replace(pair.placement, moving={}, revision=pair.placement.revision + 1)
    pair.start()
    assert pair.place == 0
    assert not Path(tail_path(DataPaths(str(pair.directory)), GROUP)).exists()
    pair.move()
    whole(pair, 9)


@pytest.mark.parametrize("step", TARGET)
def test_the_new_shard_dies_on_the_way(pair: Pair, step: str) -> None:
    """Review finding 1: until it is decided the group is where it was, with everything."""
    pair.append(9, 5)
    pair.decide(0, 1, moving={GROUP: 1})
    released = pair.release()
    pair.shards[1].files.crash_at(step, 1)
    with pytest.raises(Crash):
        pair.receive(released, 1)
    pair.placement = replace(pair.placement, moving={}, revision=pair.placement.revision + 1)
    pair.start()
    assert pair.place == 0
    assert GROUP not in pair.wal(1).groups()
    assert not is_marked(pair.wal(1), GROUP)
    pair.move()
    whole(pair, 9)


def test_a_copy_that_was_not_decided_for_is_thrown_away(pair: Pair) -> None:
    """Review finding 1: it has entries behind the snapshot, and yet it is the other one that holds."""
    pair.append(9, 5)
    pair.decide(0, 1, moving={GROUP: 1})
    pair.receive(pair.release(), 1)
    pair.decide(0, moving={})
    pair.append(4, 11)  # the group goes on where it was
    pair.start()
    assert GROUP not in pair.wal(1).groups()
    assert not is_marked(pair.wal(1), GROUP)
    assert not is_marked(pair.wal(0), GROUP)
    whole(pair, 13)


@pytest.mark.parametrize("restarted", [False, True])
def test_the_old_shard_forgets_what_moved(
    pair: Pair, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Review finding 1: "group not forgotten", an error at every move of a follower with entries behind its snapshot."""
    pair.append(9, 5)
    pair.decide(0, 1, moving={GROUP: 1})
    pair.receive(pair.release(), 1)
    if restarted:
        pair.placement = replace(pair.placement, moving={}, pins={GROUP: 1}, revision=9)
        pair.start()
    else:
        pair.decide(1, 0, moving={}, pins={GROUP: 1})
    assert not [each for each in caplog.records if each.levelname == "ERROR"]
    assert GROUP not in pair.wal(0).groups()
    assert not is_marked(pair.wal(0), GROUP)
    assert not is_marked(pair.wal(1), GROUP)
    whole(pair, 9)


def test_a_tail_of_another_move_is_not_taken(pair: Pair) -> None:
    """Review finding 1: what is received is what was released."""
    pair.append(9, 5)
    pair.decide(0, 1, moving={GROUP: 1})
    released = pair.release()
    wrong = structs.replace(released, last=8)
    answer = pair.order(1, RECEIVE, wrong.to_body())
    assert isinstance(answer, Failure)
    assert "does not belong to the released group" in answer.text
    pair.receive(released, 1)
    pair.decide(1, 0, moving={}, pins={GROUP: 1})
    whole(pair, 9)


# --- starts with another number of shards ----------------------------------------------------------------------------


def relocation_of(pair: Pair, files: Files) -> Relocation:
    """What a start with another placement uses before its shards begin."""
    return Relocation(files, DataPaths(str(pair.directory)), settings_of(pair.directory))


def relocate(pair: Pair, after: Placement) -> Sequence[str]:
    """What such a start does."""
    before = read_placement(Files(), DataPaths(str(pair.directory)))
    assert before is not None
    with relocation_of(pair, Tracked()) as relocation:
        return relocation.run(before, after)


@pytest.mark.parametrize("committed", [9, 5, 0])
@pytest.mark.parametrize("target", [0, 1])
def test_a_replicated_group_changes_its_shard_between_starts(
    pair: Pair, target: int, committed: int
) -> None:
    """Review finding 13: the start was refused; what nobody has called committed must not be applied by the move."""
    if target == 0:
        pair.move()
    pair.append(9, committed)
    pair.kill()
    after = replace(pair.placement, pins={GROUP: target}, revision=pair.placement.revision + 1)
    assert shard_of(pair.placement, GROUP) == 1 - target
    assert relocate(pair, after) == [GROUP]
    pair.placement = after
    pair.start()
    assert pair.place == target
    status = pair.hosted.driver.node.status()
    assert (status.term, status.vote) == (TERM, 0)  # it has elected nobody on the way
    assert GROUP not in pair.wal(1 - target).groups()
    whole(pair, 9)


@pytest.mark.parametrize("step", ["wal.write", "wal.synced", "relocate.copied", "relocate.marked"])
def test_a_start_that_is_cut_short_changes_nothing(pair: Pair, step: str) -> None:
    """Review finding 13: whenever it ends, the placement that holds has the group with everything."""
    pair.append(9, 5)
    pair.kill()
    after = replace(pair.placement, pins={GROUP: 1}, revision=2)
    files = Tracked()
    files.crash_at(step)
    dead = relocation_of(pair, files)
    with pytest.raises(StorageError, match=step):
        dead.run(pair.placement, after)
    for _, syncer in dead._logs.values():
        syncer.close()
    files.close_all()
    pair.start()
    assert pair.place == 0
    pair.append(2, 7)
    pair.kill()
    relocate(pair, after)
    pair.placement = after
    pair.start()
    assert pair.place == 1
    whole(pair, 11)
