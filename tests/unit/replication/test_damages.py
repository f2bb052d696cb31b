"""A damaged copy begins anew as a member that has lost everything, and only where others have it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.queues.machine import SNAPSHOT_VERSION
from fluxmq.raft.types import EMPTY, Entry, Message, MessageKind
from fluxmq.replication.member_record import Known, MemberRecord, read_record, write_record
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import Corruption, Misfit
from fluxmq.storage.files import Files
from fluxmq.storage.snapshots import GroupSnapshotContent, find_snapshots, write_snapshot
from fluxmq.storage.wal_files import file_name
from tests.unit.replication.member import GROUP, LEADER, OWN, TERM, LoneMember

Start = Callable[..., LoneMember]
ENTRIES = 60


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Begins lives of the node, one after another."""
    lives: list[LoneMember] = []
    with asyncio.Runner() as runner:

        def begin(*groups: str) -> LoneMember:
            if lives:
                lives.pop().kill()
            life = LoneMember(tmp_path / "data", runner, groups)
            lives.append(life)
            return life

        yield begin
        for life in lives:
            life.kill()


@pytest.fixture
def paths(tmp_path: Path) -> DataPaths:
    """Where things are."""
    return DataPaths(str(tmp_path / "data"))


def flip(path: str | Path, position: int) -> None:
    """Turn a bit."""
    content = bytearray(Path(path).read_bytes())
    content[position] ^= 1
    Path(path).write_bytes(content)


def record(paths: DataPaths) -> MemberRecord:
    """What the node is as a member."""
    found = read_record(Files(), paths, GROUP)
    assert found is not None
    return found


def remember(paths: DataPaths) -> None:
    """Have the node remember another one, and a floor."""
    before = record(paths)
    known = {LEADER: Known(5, 6, 7, 8)}
    changed = MemberRecord(
        before.incarnation, before.life, before.mark, True, before.voters, (), known, (2, 9)
    )
    write_record(Files(), paths, GROUP, changed)


def snapshot(paths: DataPaths) -> Path:
    """The newest one's file."""
    return max(Path(paths.snapshots(GROUP)).iterdir())


def segment(paths: DataPaths) -> Path:
    """The first segment."""
    return min(Path(paths.queue(GROUP, "work")).glob("*.seg"))


def begun_anew(member: LoneMember, paths: DataPaths, before: MemberRecord) -> None:
    """It has nothing, says so, votes for nobody by itself, and remembers the others."""
    now = record(paths)
    assert now.incarnation != before.incarnation
    assert (now.known, now.floor) == (before.known, before.floor)
    assert OWN not in now.voters
    assert LEADER in now.voters
    assert (member.hosted.group.applied_index, member.hosted.log.last_index()) == (0, 0)
    assert OWN not in member.hosted.driver.node.status().membership.voters
    assert not member.hosted.group.failed
    assert member.cluster.damages.found[GROUP] == 1


@pytest.mark.parametrize("what", ["snapshot", "log behind", "record"])
def test_a_copy_that_cannot_be_opened_begins_anew(
    start: Start, paths: DataPaths, what: str
) -> None:
    member = start()
    member.append(ENTRIES)
    member.checkpoint()
    remember(paths)
    before = record(paths)
    if what == "snapshot":
        flip(snapshot(paths), 200)
    elif what == "log behind":
        snapshot(paths).unlink()
    else:
        flip(Path(paths.group(GROUP)) / "member", 40)
        before = MemberRecord(before.incarnation, 0, 0, True, before.voters)
    member = start()
    begun_anew(member, paths, before)
    kept = Path(paths.group(GROUP)) / "damaged" / "1"
    assert (kept / "queues" / "work").is_dir()
    assert (kept / "member").is_file()
    member.append(5)  # as whoever leads fills it
    member.checkpoint()
    assert start().hosted.group.machine.queue("work") is not None


def test_who_begins_anew_does_not_lead_however_long_nobody_else_does(
    start: Start, paths: DataPaths
) -> None:
    member = start()
    member.append(ENTRIES)
    member.checkpoint()
    flip(snapshot(paths), 200)
    member = start()
    sent: list[Message] = []
    member.hosted.driver.send = sent.extend
    for _ in range(200):
        member.within(member.hosted.driver.tick)
        member.work()
    assert sent == []
    assert member.hosted.driver.node.status().term == 0


def test_a_damaged_log_is_set_aside_with_all_its_groups(start: Start, paths: DataPaths) -> None:
    member = start("other")
    member.append(ENTRIES)
    member.append(ENTRIES, "other")
    before = record(paths)
    wal = Path(paths.wal(0))
    flip(wal / file_name(1), 2000)
    member = start("other")
    begun_anew(member, paths, before)
    assert member.cluster.damages.found["other"] == 1
    assert (wal.parent / "wal.damaged-1" / file_name(1)).is_file()
    member.append(3)
    member.append(3, "other")
    assert start("other").hosted.log.last_index() == 3


def test_a_log_with_what_only_this_node_has_is_never_set_aside(
    start: Start, paths: DataPaths
) -> None:
    member = start()
    member.append(ENTRIES)
    member.within(lambda: member.queues.service.durable.open("local-0"))
    member.work()
    before = record(paths)
    wal = Path(paths.wal(0)) / file_name(1)
    flip(wal, 2000)
    damaged = wal.read_bytes()
    with pytest.raises(Corruption):
        start()
    assert wal.read_bytes() == damaged
    assert record(paths).incarnation == before.incarnation
    assert not (Path(paths.group(GROUP)) / "damaged").exists()


def test_a_group_of_this_node_alone_is_never_set_aside(start: Start, paths: DataPaths) -> None:
    member = start()
    member.within(lambda: member.queues.service.durable.open("local-0"))
    for _ in range(5):
        member.work()
    member.checkpoint("local-0")
    (found,) = Path(paths.snapshots("local-0")).iterdir()
    flip(found, 60)
    with pytest.raises(Corruption):
        start()
    assert found.is_file()


def test_a_group_whose_others_were_taken_out_is_never_set_aside(
    start: Start, paths: DataPaths
) -> None:
    member = start()
    member.append(ENTRIES)
    member.checkpoint()
    newest = find_snapshots(Files(), paths.snapshots(GROUP)).valid[0]
    others = tuple(sorted(member.cluster.members.begins_with(member.cluster.plans.of(GROUP))))
    packed = newest.content.replace(_voters(others), _voters((OWN,)))
    assert packed != newest.content
    snapshot(paths).unlink()
    write_snapshot(Files(), paths.snapshots(GROUP), newest.index - 1, newest.term, packed)
    with pytest.raises(Corruption):
        start()
    assert not (Path(paths.group(GROUP)) / "damaged").exists()


def _voters(numbers: tuple[int, ...]) -> bytes:
    packed: bytes = msgpack.packb(numbers)
    return packed


def test_what_does_not_fit_the_settings_is_not_set_aside(start: Start, paths: DataPaths) -> None:
    member = start()
    member.append(ENTRIES)
    member.checkpoint()
    for path in Path(paths.wal(0)).iterdir():
        path.unlink()
    with pytest.raises(Misfit, match="knows nothing of group"):
        start()
    assert segment(paths).is_file()


def test_a_snapshot_of_a_newer_program_stops_the_start(start: Start, paths: DataPaths) -> None:
    """Review, gap "formats": it ended in a traceback, or an older snapshot was taken."""
    member = start()
    member.append(ENTRIES)
    member.checkpoint()
    newest = find_snapshots(Files(), paths.snapshots(GROUP)).valid[0]
    state = GroupSnapshotContent.decode(newest.content)
    fields = msgpack.unpackb(state.machine)
    fields[0] = SNAPSHOT_VERSION + 1
    content = replace(state, machine=msgpack.packb(fields)).encode()
    write_snapshot(Files(), paths.snapshots(GROUP), newest.index, newest.term, content)
    with pytest.raises(
        Misfit, match=f"version {SNAPSHOT_VERSION + 1}; this program reads {SNAPSHOT_VERSION}"
    ):
        start()
    assert snapshot(paths).is_file()


def test_what_is_read_and_damaged_has_the_copy_fetched_anew_once(start: Start) -> None:
    member = start()
    member.append(ENTRIES)
    hosted = member.hosted

    async def met() -> None:
        for _ in range(3):
            hosted.driver.damaged("a bit was turned")
        assert member.cluster.damages.found[GROUP] == 1
        assert not hosted.group.failed  # it goes on, and is not elected
        hosted.driver.log_failed("it could not go on")
        await member.cluster.snapshots.close()

    member.runner.run(met())


def test_a_group_that_failed_for_damage_is_quarantined(start: Start) -> None:
    member = start()
    member.append(ENTRIES)

    async def met() -> None:
        def damaged() -> None:
            raise Corruption("file", 1, "a bit was turned")

        member.hosted.driver._guarded(damaged)
        assert member.hosted.group.failed.startswith("quarantined: file, byte 1")
        assert member.cluster.damages.found[GROUP] == 1
        assert member.queues.service.durable.failure == ""  # a shard that begins goes on for it
        await member.cluster.snapshots.close()

    member.runner.run(met())


def test_a_segment_that_a_start_finds_damaged_does_not_end_it(
    start: Start, paths: DataPaths
) -> None:
    member = start()
    member.append(ENTRIES)
    member.checkpoint()
    flip(segment(paths), 20)
    member = start()

    async def met() -> None:
        first = member.hosted.log.last_index() + 1
        entry = Entry(TERM, first, EMPTY, b"")
        told = Message(MessageKind.APPEND, LEADER, OWN, TERM, first - 1, TERM, [entry], first)
        member.hosted.driver.step([told])
        assert member.hosted.group.failed.startswith("quarantined")
        assert (member.queues.service.durable.failure, member.hosted.mending) == ("", True)
        member.hosted.driver.log_failed("for another reason")
        member.hosted.mending = False
        assert member.queues.service.durable.failure
        await member.cluster.snapshots.close()

    member.runner.run(met())


def test_nobody_opens_a_group_whose_files_are_being_replaced(start: Start) -> None:
    member = start()
    service = member.queues.service
    member.within(lambda: service.durable.release(GROUP))
    service.durable.replacing.add(GROUP)
    with pytest.raises(Exception, match="being replaced"):
        service.durable.open(GROUP)
    service.durable.replacing.discard(GROUP)
    member.within(lambda: service.durable.open(GROUP))
    assert GROUP in member.cluster.replicas


def test_the_record_that_is_kept_is_what_the_node_was(start: Start, paths: DataPaths) -> None:
    member = start()
    member.append(ENTRIES)
    member.checkpoint()
    before = record(paths)
    flip(snapshot(paths), 200)
    start()
    kept = json.loads((Path(paths.group(GROUP)) / "damaged/1/member").read_bytes())
    assert kept["incarnation"] == before.incarnation
