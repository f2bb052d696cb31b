"""A member's snapshot fetched by another through the calls: whole, resumed, paced, refused."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.cluster.connection import StreamHello
from fluxmq.cluster.errors import CallFailed, CallRefused
from fluxmq.engine.group import ReplicationGroup
from fluxmq.replication import snapshot_fetch
from fluxmq.replication.checkpoints import trim
from fluxmq.replication.open_group import OpenGroup
from fluxmq.replication.snapshot_calls import (
    AGE_SECONDS_MAX,
    CHECKPOINT_SECONDS_MAX,
    DIGEST,
    FETCHED_SECONDS,
    IDLE_SECONDS,
    MANIFEST,
    QUESTIONS_MAX,
    READ,
    READS_MAX,
    SOURCES_MAX,
    SnapshotCalls,
)
from fluxmq.replication.snapshot_fetch import Pace, fetch
from fluxmq.storage import transfer_target
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.files import Files
from fluxmq.storage.transfer import Manifest, TransferError
from fluxmq.storage.transfer_target import SnapshotTarget
from tests.damage.shard import Clock, Shard, Tracked
from tests.damage.workload import Workload, settings_of
from tests.faults import FailingFiles
from tests.unit.storage.transfers import names, segments_below

T = TypeVar("T")
PEER = StreamHello("node2", 0, 1, 1, "group:local-0")
GROUP = "local-0"
UNDER_WAY = 4
"""Pieces at a time: what there is to give has a dozen."""


@dataclass
class Leader:
    """A shard with something to give, its calls, and what was asked. `fail_after`: so many calls work, then none."""

    base: Path
    shard: Shard
    executor: ThreadPoolExecutor
    runner: asyncio.Runner
    now: float = 0.0
    asked: list[str] = field(default_factory=list)
    under_way: int = 0
    most: int = 0
    fail_after: int = 1 << 30

    def __post_init__(self) -> None:
        self.calls = SnapshotCalls(
            Files(),
            DataPaths(str(self.base / "leader")),
            self.shard.queues.service.durable.checkpoints,
            self.executor,
            self.shard.hosted.get,
            lambda: self.now,
        )

    @property
    def hosted(self) -> OpenGroup[ReplicationGroup]:
        """The group."""
        return self.shard.hosted[GROUP]

    async def call(self, name: str, request: bytes, seconds: float) -> AsyncIterator[bytes]:
        """What the transport does."""
        assert seconds > 0
        self.asked.append(name)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if not self.fail_after:
                raise CallFailed("the connection was lost")
            self.fail_after -= 1
            async for chunk in self.calls.handlers(GROUP)[name](PEER, request):
                yield chunk
        finally:
            self.under_way -= 1

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the loop; checkpoints are written meanwhile."""

        async def both() -> T:
            task = asyncio.get_running_loop().create_task(work)
            while not task.done():
                self.shard.steps.run()
                await asyncio.sleep(0)
            return await task

        return self.runner.run(both())

    def ask(self, name: str, *fields: object) -> bytes:
        """The answer to one call."""

        async def ask() -> bytes:
            request = msgpack.packb(fields)
            return b"".join([chunk async for chunk in self.call(name, request, 1.0)])

        return self.run(ask())

    def manifest(self, least: int = 0) -> Manifest:
        """What the leader says that there is."""
        return Manifest.decode(self.ask(MANIFEST, least), GROUP)

    def fetch(self, member: Path, **options: Any) -> SnapshotTarget:
        """What a member does."""
        paths = DataPaths(str(member))
        return self.run(fetch(self.call, Files(), paths, GROUP, self.executor, **options))

    def work(self, steps: int = 60) -> None:
        """Clients do this and that."""
        Workload(Random(self.now), first=len(self.asked) << 20).run(self.shard, steps)
        self.shard.come_to_rest()

    def housekeeping(self) -> None:
        """Time has passed."""

        async def keep() -> None:
            self.calls.housekeeping()
            await self.calls.drain()

        self.run(keep())

    @property
    def outgoing(self) -> list[str]:
        """What is kept for others."""
        return names(Path(DataPaths(str(self.base / "leader")).group(GROUP)) / "outgoing")


@pytest.fixture
def leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leader]:
    monkeypatch.setattr(transfer_target, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(snapshot_fetch, "UNDER_WAY", UNDER_WAY)
    (tmp_path / "leader").mkdir()
    settings = settings_of(str(tmp_path / "leader"))
    with asyncio.Runner() as runner, ThreadPoolExecutor(1) as executor:
        shard = Shard(settings, Clock(), runner, Tracked())
        made = Leader(tmp_path, shard, executor, runner)
        made.work(150)
        yield made
        made.run(made.calls.close())
        assert made.outgoing == []
        shard.kill()


class Counted(Pace):
    asked = 0

    async def wait(self, size: int) -> None:
        self.asked += size


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_member_fetches_what_the_leader_has(
    leader: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    if not in_memory:
        monkeypatch.setattr(Files, "pread_now", lambda *_arguments: None)
    pace = Counted(0)
    target = leader.fetch(tmp_path / "member", pace=pace)
    assert pace.asked == target.fetched_bytes
    assert target.index == leader.hosted.snapshot_index == leader.hosted.group.applied_index
    assert leader.asked[0] == MANIFEST
    assert in_memory or leader.most == UNDER_WAY
    assert leader.asked.count(READ) > 8
    assert leader.calls.sent_bytes == target.fetched_bytes == target.total_bytes
    target.install()
    paths, own = DataPaths(str(tmp_path / "member")), DataPaths(str(tmp_path / "leader"))
    assert segments_below(Path(paths.queues(GROUP))) == segments_below(Path(own.queues(GROUP)))
    assert names(Path(paths.group(GROUP)) / "incoming") == []
    state = target.manifest.state
    assert state.machine == leader.hosted.group.machine.snapshot()


def test_a_fetch_that_ended_early_goes_on(leader: Leader, tmp_path: Path) -> None:
    """What came before is asked for no more, although the group goes on and has a newer snapshot by then."""
    total, lives = 0, 0
    leader.work(250)
    leader.fail_after = 1 + 4
    while lives < 20:
        lives += 1
        began: list[SnapshotTarget] = []
        try:
            target = leader.fetch(tmp_path / "member", began=began.append)
        except CallFailed:
            total += began[0].fetched_bytes
            leader.fail_after = 10
            leader.work(1)
            continue
        break
    assert lives > 2
    total += target.fetched_bytes
    assert target.reused_bytes > 0
    assert total < 1.3 * target.total_bytes
    assert leader.calls.sent_bytes <= total + lives * UNDER_WAY * 4096
    target.install()


def test_a_fetch_that_is_cancelled_leaves_nothing_under_way(leader: Leader, tmp_path: Path) -> None:
    paths = DataPaths(str(tmp_path / "member"))
    files = FailingFiles()

    async def cancel() -> int:
        task = asyncio.get_running_loop().create_task(
            fetch(leader.call, files, paths, GROUP, leader.executor)
        )
        while leader.asked.count(READ) < 6:
            leader.shard.steps.run()
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return leader.under_way

    assert leader.runner.run(cancel()) == 0
    leader.executor.submit(lambda: None).result()
    assert files._names == {}  # every file is closed
    assert leader.fetch(tmp_path / "member").reused_bytes > 0


def test_what_the_other_says_is_not_believed(leader: Leader, tmp_path: Path) -> None:
    honest, member = leader.call, tmp_path / "member"

    leader.fail_after = 1 + 5
    with pytest.raises(CallFailed):
        leader.fetch(member)
    leader.fail_after = 1 << 30
    for lie, what in (
        ({READ: -1}, "bytes instead of"),
        ({MANIFEST: 1}, "digest"),
        ({MANIFEST: -1}, "digest"),
        ({DIGEST: 1}, "answer of more"),
        ({DIGEST: -1}, "of digests instead of"),
    ):

        async def lying(
            name: str, request: bytes, seconds: float, lie: dict[str, int] = lie
        ) -> AsyncIterator[bytes]:
            async for chunk in honest(name, request, seconds):
                yield chunk[:-1] if lie.get(name, 0) < 0 else chunk
            if lie.get(name, 0) > 0:
                yield b"more"

        leader.call = lying  # type: ignore[method-assign]
        with pytest.raises(TransferError, match=what):
            leader.fetch(member)
    leader.call = honest  # type: ignore[method-assign]
    leader.fetch(member).install()


def test_a_call_that_is_not_right_is_refused(leader: Leader) -> None:
    index, term = leader.manifest().snapshot[:2]
    for name, fields in (
        (MANIFEST, []),
        (MANIFEST, ["x"]),
        (MANIFEST, [1, 2]),
        (DIGEST, [1, 1]),
        (DIGEST, [1, 1, "x"]),
        (DIGEST, [index, term, [[1, "y", 1]]]),
        (DIGEST, [index, term, ["x"]]),
        (DIGEST, [index, term, [["x", "y", 1]]]),
        (DIGEST, [index, term, [["x", "y", 1]] * (QUESTIONS_MAX + 1)]),
        (READ, []),
        (READ, [index, term, "x", "y", 1]),
        (READ, [index, term, "x", "y", 0, 1]),
        (READ, [index + 1, term, "x", "y", 0, 1]),
        (READ, [index, term + 1, "x", "y", 0, 1]),
    ):
        with pytest.raises(CallRefused):
            leader.ask(name, *fields)


def test_a_request_that_cannot_be_read_is_refused(leader: Leader) -> None:
    for request in (b"", b"\xc1", b"\x91", bytes(100), b"\x91\x01" + bytes(2 << 20)):

        async def ask(request: bytes = request) -> list[bytes]:
            return [chunk async for chunk in leader.call(MANIFEST, request, 1.0)]

        with pytest.raises(CallRefused, match="not understood"):
            leader.run(ask())


def test_a_snapshot_is_made_only_when_there_is_none_to_go_on_from(leader: Leader) -> None:
    first = leader.manifest()
    leader.work()
    assert leader.manifest().snapshot == first.snapshot  # the log has the rest
    assert (leader.calls.made, leader.outgoing) == (1, ["1"])
    needed = leader.hosted.group.applied_index
    assert needed > first.snapshot.index
    assert leader.manifest(least=needed).snapshot.index == needed
    leader.work()
    leader.now += FETCHED_SECONDS + 1
    leader.calls.housekeeping()  # nobody fetches any more
    leader.shard.checkpoint(GROUP)  # the log lets go
    assert leader.manifest().snapshot.index == leader.hosted.group.applied_index
    assert leader.calls.made == 3
    assert leader.outgoing == ["2", "3"]  # SOURCES_MAX of them
    assert SOURCES_MAX == 2
    with pytest.raises(CallRefused, match="no longer kept"):
        leader.ask(READ, first.snapshot.index, first.snapshot.term, "x", "y", 0, 1)
    with pytest.raises(CallRefused, match="only"):
        leader.manifest(least=leader.hosted.group.applied_index + 1)


def test_the_log_keeps_what_is_behind_a_snapshot_that_is_fetched(leader: Leader) -> None:
    index = leader.manifest().snapshot.index
    leader.work()
    leader.shard.checkpoint(GROUP)
    assert leader.hosted.snapshot_index > index
    assert leader.hosted.log.first_index() == index + 1
    leader.now += FETCHED_SECONDS / 2
    leader.calls.is_fetched(GROUP)
    leader.now += FETCHED_SECONDS
    leader.calls.housekeeping()
    trim(leader.hosted)
    assert leader.hosted.log.first_index() == index + 1
    leader.now += 1
    leader.calls.housekeeping()
    trim(leader.hosted)
    assert leader.hosted.log.first_index() == leader.hosted.snapshot_index + 1


def test_the_log_keeps_nothing_for_others_when_it_has_too_much(leader: Leader) -> None:
    index = leader.manifest().snapshot.index
    leader.work()
    leader.shard.checkpoint(GROUP)
    assert leader.hosted.log.first_index() == index + 1
    leader.hosted.pressed = True
    trim(leader.hosted)
    assert leader.hosted.log.first_index() == leader.hosted.snapshot_index + 1


def test_a_snapshot_is_made_also_when_nothing_was_applied_since_the_last(leader: Leader) -> None:
    leader.shard.checkpoint(GROUP)
    applied = leader.hosted.group.applied_index
    assert leader.hosted.snapshot_index == applied
    assert leader.manifest().snapshot.index == applied


def test_what_is_captured_is_pinned_at_that_moment(leader: Leader, tmp_path: Path) -> None:
    """The group goes on between the capture and the end of the checkpoint, and before it is read."""
    expected: dict[str, bytes] = {}

    async def meddle() -> bytes:
        leader.hosted.checkpointing = True  # as while one is written
        task = asyncio.get_running_loop().create_task(read())
        directory = Path(DataPaths(str(tmp_path / "leader")).group(GROUP))
        before = segments_below(directory / "queues")
        while len(segments_below(directory / "outgoing")) < len(before):  # noqa: ASYNC110 (nobody would set an event)
            await asyncio.sleep(0)
        workload = Workload(Random(3), first=1 << 40)
        while len(segments_below(directory / "queues")) < len(before) + 2:
            workload._publish(leader.shard)
            leader.shard.finish()
            leader.shard.sync()
        leader.hosted.checkpointing = False
        while not leader.hosted.checkpointing:  # noqa: ASYNC110 (nobody would set an event)
            await asyncio.sleep(0)
        index = leader.hosted.group.applied_index
        paths = DataPaths(str(tmp_path / "leader"))
        expected.update(segments_below(Path(paths.queues(GROUP))))
        group = leader.hosted.group
        for queue in [each.name for each in group.machine.queues.values()]:
            group.delete(queue, False, False, lambda _status: None)
        for _ in range(20):
            leader.shard.finish()
            leader.shard.sync()
        assert group.applied_index > index
        assert group.machine.queues == {}
        assert segments_below(Path(paths.queues(GROUP))) == {}
        while not task.done():
            leader.shard.steps.run()
            await asyncio.sleep(0)
        return await task

    async def read() -> bytes:
        return b"".join([each async for each in leader.call(MANIFEST, msgpack.packb([0]), 1.0)])

    manifest = Manifest.decode(leader.runner.run(meddle()), GROUP)
    mark = (manifest.snapshot.index, manifest.snapshot.term)
    given = {
        f"{each.directory}/{each.file}": leader.ask(
            READ, *mark, each.directory, each.file, 0, each.state.file_bytes
        )
        for each in manifest.segments()
    }
    assert given == expected
    assert len(given) > 2


def test_a_source_that_nobody_asks_for_is_given_up(leader: Leader) -> None:
    mark = leader.manifest().snapshot[:2]
    leader.now = IDLE_SECONDS - 1
    leader.housekeeping()
    assert leader.outgoing == ["1"]
    leader.ask(DIGEST, *mark, [])
    leader.now += IDLE_SECONDS
    leader.housekeeping()
    assert leader.outgoing == []
    with pytest.raises(CallRefused):
        leader.ask(READ, *mark, "x", "y", 0, 1)
    with pytest.raises(CallRefused):
        leader.ask(DIGEST, *mark, [["x", "y", 1]])


def test_a_source_does_not_become_old(leader: Leader) -> None:
    leader.manifest()
    while leader.now < AGE_SECONDS_MAX:
        leader.housekeeping()
        assert leader.outgoing == ["1"]
        leader.now += IDLE_SECONDS / 2
        leader.manifest()
    leader.housekeeping()
    assert leader.outgoing == []


def test_a_group_that_is_not_here_has_no_snapshot(leader: Leader) -> None:
    service = leader.shard.queues.service
    leader.manifest()
    service.durable.release(GROUP)
    leader.run(leader.calls.forget(GROUP))
    assert leader.outgoing == []
    with pytest.raises(CallRefused, match="not here"):
        leader.manifest()


def test_a_checkpoint_that_does_not_end_is_not_waited_for(leader: Leader) -> None:
    leader.hosted.checkpointing = True

    async def ask() -> None:
        task = asyncio.get_running_loop().create_task(leader.calls._current(GROUP, 0))
        while not leader.calls._groups:  # noqa: ASYNC110 (nobody would set an event)
            await asyncio.sleep(0)
        leader.now = 1.0
        await asyncio.sleep(0)
        while not task.done():
            leader.now += CHECKPOINT_SECONDS_MAX
            await asyncio.sleep(0)
        await task

    with pytest.raises(CallRefused, match="too long"):
        leader.runner.run(ask())
    leader.hosted.checkpointing = False
    leader.run(leader.calls.drain())
    assert leader.outgoing == []


def test_a_disk_that_is_full_is_a_refusal(leader: Leader) -> None:
    leader.shard.files.fail("rename", errno.ENOSPC)
    with pytest.raises(CallRefused, match="no checkpoint"):
        leader.manifest()
    assert leader.manifest().snapshot.index == leader.hosted.snapshot_index
    assert leader.outgoing == ["1"]  # nothing is left of the first attempt
    leader.calls._files = failing = FailingFiles()
    failing.fail("link", errno.ENOSPC)
    leader.work(5)
    with pytest.raises(CallRefused, match="No space"):
        leader.manifest(least=leader.hosted.group.applied_index)


def test_no_more_than_so_many_reads_are_under_way(leader: Leader) -> None:
    snapshot = leader.manifest()
    segment = next(iter(snapshot.segments()))
    request = msgpack.packb([*snapshot.snapshot[:2], segment.directory, segment.file, 0, 100])

    async def first(stream: AsyncIterator[bytes]) -> bytes:
        return await anext(stream)

    async def ask() -> int:
        streams = [leader.call(READ, request, 1.0) for _ in range(READS_MAX + 5)]
        tasks = [asyncio.get_running_loop().create_task(first(each)) for each in streams]
        await asyncio.wait(tasks[:READS_MAX])
        done = sum(task.done() for task in tasks)
        for each in streams[:READS_MAX]:
            await each.aclose()  # type: ignore[attr-defined]
        await asyncio.wait(tasks)
        for each in streams[READS_MAX:]:
            await each.aclose()  # type: ignore[attr-defined]
        return done

    assert leader.run(ask()) == READS_MAX
