"""A snapshot from one member to another: pinned at its moment, only what is lacking goes over, and it is what it says."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxmq.model.segments import newest_head
from fluxmq.storage import transfer_target
from fluxmq.storage.errors import WriteFailed
from fluxmq.storage.files import Files
from fluxmq.storage.inspect import scan_log
from fluxmq.storage.snapshots import GroupSnapshotContent, latest_snapshot
from fluxmq.storage.transfer import TransferError
from fluxmq.storage.transfer_source import SnapshotSource
from fluxmq.storage.transfer_target import SnapshotTarget
from tests.faults import FailingFiles
from tests.unit.storage.logs import SECOND, batch, fill, payload
from tests.unit.storage.transfers import (
    GROUP,
    Replica,
    confirm,
    gather,
    names,
    segment_files,
    segments_below,
)

CHUNK = 4096
"""Segments of these tests have 32 KiB: several chunks each."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_target, "CHUNK_BYTES", CHUNK)


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Replica]:
    """A stream in several segments, trimmed at the front, and two short queues, one without messages."""
    made = Replica(tmp_path / "leader")
    made.add("events/é", 200)
    made.logs["events/é"].trim(60)
    made.add("work", 5)
    made.add("idle", 1)
    made.logs["idle"].trim(1, purge=True)
    yield made
    made.close()


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Replica]:
    made = Replica(tmp_path / "member")
    yield made
    made.close()


# The target


def assert_installed(leader: Replica, member: Replica, source: SnapshotSource) -> None:
    """The member's files are the snapshot's, and nothing is left over."""
    assert member.segments == segment_files(source)
    found = latest_snapshot(Files(), member.paths.snapshots(GROUP))
    assert found is not None
    assert (found.index, found.term) == (source.index, source.term)
    assert names(member.root / "snapshots") == [f"{source.index:020d}.snap"]
    for queue, state in GroupSnapshotContent.decode(found.content).logs.items():
        directory = member.paths.queue(GROUP, queue)
        with open(f"{directory}/head", "rb") as file:
            head = newest_head(file.read())
        assert head is not None
        assert (head.start, head.committed) == (state.start, state.next_offset)
        report = scan_log(Files(), directory, state)
        assert [problem for problem in report.problems if not problem.mended] == []
    assert names(member.root) == ["incoming", "installing", "queues", "snapshots"]
    assert names(member.root / "incoming") == []


def test_what_comes_reaches_the_disk_as_it_comes(
    leader: Replica, member: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_target, "SYNC_BYTES", 2 * CHUNK)
    synced: list[int] = []
    source = leader.source(10)
    target = member.target(source.manifest())
    fdatasync = Files.fdatasync

    def noted(files: Files, fd: int) -> None:
        synced.append(target.fetched_bytes)
        fdatasync(files, fd)

    monkeypatch.setattr(Files, "fdatasync", noted)
    given = gather(source, target)
    assert len(synced) >= given // (2 * CHUNK) - len(leader.segments)
    assert synced[0] < 3 * CHUNK


def test_what_could_not_be_synced_is_fetched_anew(
    leader: Replica, member: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel holds what it lost for clean: it would be read from memory, found to be right, and be gone after a power cut."""
    monkeypatch.setattr(transfer_target, "SYNC_BYTES", CHUNK)
    source, files = leader.source(10), FailingFiles()
    target = SnapshotTarget(files, member.paths, GROUP, source.manifest())
    files.fail("fdatasync", errno.EIO)
    with pytest.raises(WriteFailed):
        gather(source, target)
    target.close()
    again = member.target(source.manifest())
    gather(source, again)
    assert again.fetched_bytes == again.total_bytes


def test_what_could_not_be_synced_at_the_end_is_gone(leader: Replica, member: Replica) -> None:
    def there() -> int:
        return sum(len(found) for _, _, found in os.walk(target.directory))

    source, files = leader.source(10), FailingFiles()
    target = SnapshotTarget(files, member.paths, GROUP, source.manifest())
    gather(source, target)
    # The heads of the three queues are made by `prepare`; that of the first is, by then.
    before = there()
    files.fail("fdatasync", errno.EIO)
    with pytest.raises(WriteFailed):
        target.prepare()
    target.close()
    assert there() == before + 1 - 1


def test_a_new_member_gets_everything(leader: Replica, member: Replica) -> None:
    source = leader.source(10)
    target = member.target(source.manifest())
    assert target.questions() == []
    given = gather(source, target)
    assert (
        given
        == target.total_bytes
        == target.fetched_bytes
        == sum(map(len, leader.segments.values()))
    )
    assert (target.reused_bytes, target.finished) == (0, True)
    target.prepare()
    target.install()
    assert_installed(leader, member, source)


def test_a_member_that_lags_gets_what_it_lacks(leader: Replica, member: Replica) -> None:
    member.add("events/é", 130)
    member.add("work", 2)
    member.snapshot(5)
    had = {path: len(data) for path, data in member.segments.items() if path in leader.segments}
    source = leader.source(10)
    target = member.target(source.manifest())
    assert confirm(source, target) == len(
        member.logs
    )  # of the growing ones; what is sealed is known
    given = gather(source, target)
    assert target.reused_bytes == sum(had.values())
    assert given == target.total_bytes - target.reused_bytes
    # All but the last of the member's segments are the same file under a second name.
    linked = [
        path for path in (member.root / "incoming").rglob("*.seg") if path.stat().st_nlink > 1
    ]
    assert len(linked) == len(had) - len(member.logs) > 1
    member.add("work", 1)  # it goes on meanwhile
    target.prepare()
    member.close()
    target.install()
    assert_installed(leader, member, source)


def test_what_differs_is_fetched_from_where_it_does(leader: Replica, member: Replica) -> None:
    member.add("work", 4)
    path = member.root / "queues" / "work" / f"{0:020d}.seg"
    data = path.read_bytes()
    member.close()
    path.write_bytes(data[:5000] + b"?" + data[5001:])
    source = leader.source(10)
    target = member.target(source.manifest())
    asked = confirm(source, target)
    assert asked == 2  # all of it, and the first chunk
    given = gather(source, target)
    assert target.reused_bytes == CHUNK
    assert given == target.total_bytes - CHUNK
    target.prepare()
    target.install()
    assert_installed(leader, member, source)


@pytest.mark.parametrize("equal", range(9))
def test_the_end_of_what_is_equal_is_found_by_halving(
    leader: Replica, member: Replica, equal: int
) -> None:
    leader.add("long", 50)
    name = f"long/{0:020d}.seg"
    data = leader.segments[name]
    path = member.root / "queues" / name
    path.parent.mkdir(parents=True)
    at = equal * CHUNK
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if at < len(data) else data)
    source = leader.source(10)
    target = member.target(source.manifest(), thorough=True)
    assert confirm(source, target) <= 5
    target.begin()
    assert target.reused_bytes == min(at, len(data))
    for piece in target.pieces():
        target.write(piece, source.read(*piece))
    target.prepare()
    target.install()
    assert_installed(leader, member, source)
    assert path.read_bytes() == data


def test_a_replica_that_differs_is_looked_at_thoroughly(leader: Replica, member: Replica) -> None:
    """A sealed segment with a flipped bit in a message: its footer says nothing of it."""
    member.add("events/é", 200)
    victim = sorted((member.root / "queues").rglob("*.seg"))[-2]
    data = victim.read_bytes()
    inode = victim.stat().st_ino
    member.close()
    os.pwrite(fd := os.open(victim, os.O_RDWR), bytes([data[9000] ^ 1]), 9000)
    os.close(fd)
    source = leader.source(10)
    target = member.target(source.manifest(), thorough=True)
    gather(source, target)
    target.prepare()
    # The group's own file is as it was: there may be others that use it.
    assert victim.stat().st_ino == inode
    assert victim.read_bytes() != data
    target.install()
    assert_installed(leader, member, source)
    assert victim.read_bytes() == data


def test_what_was_linked_by_mistake_is_not_written_to(leader: Replica, member: Replica) -> None:
    """An attempt that believed footers linked a damaged segment; a thorough one finds it among what was fetched."""
    member.add("events/é", 200)
    victim = sorted((member.root / "queues").rglob("*.seg"))[-2]
    data = bytearray(victim.read_bytes())
    data[9000] ^= 1
    member.close()
    victim.write_bytes(data)
    source = leader.source(10)
    first = member.target(source.manifest())
    confirm(source, first)
    first.begin()
    assert victim.stat().st_nlink == 2
    target = member.target(source.manifest(), thorough=True)
    gather(source, target)
    assert target.reused_bytes > 0
    assert victim.read_bytes() == data
    target.prepare()
    target.install()
    assert_installed(leader, member, source)


def test_a_segment_that_grows_is_not_shared(leader: Replica, member: Replica) -> None:
    """All of it is there already; but the group goes on writing to its own."""
    member.add("work", 5)
    source = leader.source(10)
    target = member.target(source.manifest())
    gather(source, target)
    name = f"work/{0:020d}.seg"
    assert target.reused_bytes == len(member.segments[name]) == len(leader.segments[name])
    member.add("work", 3)
    target.prepare()
    member.close()
    target.install()
    assert_installed(leader, member, source)


def test_a_sealed_segment_of_the_same_length_is_not_the_same(
    leader: Replica, member: Replica
) -> None:
    """A queue of a former life, whose messages were as long, at other times."""
    leader.add("same", 80)
    member.add("same", 1)
    log = member.logs["same"]
    fill(log, [batch(offset, payload(offset), offset * SECOND + 1) for offset in range(1, 80)])
    sealed = f"same/{0:020d}.seg"
    assert len(member.segments[sealed]) == len(leader.segments[sealed])
    source = leader.source(10)
    target = member.target(source.manifest())
    gather(source, target)
    target.prepare()
    target.install()
    assert_installed(leader, member, source)


def test_a_transfer_goes_on_where_it_broke_off(leader: Replica, member: Replica) -> None:
    source = leader.source(10)
    first = member.target(source.manifest())
    pieces = 0

    def stop(_piece: object) -> bool:
        nonlocal pieces
        pieces += 1
        return pieces > 12

    given = gather(source, first, stop)
    first.close()
    second = member.target(source.manifest())
    again = gather(source, second)
    assert given + again == second.total_bytes
    assert second.reused_bytes == given
    second.prepare()
    second.install()
    assert_installed(leader, member, source)


def test_pieces_that_came_behind_a_gap_are_fetched_again(leader: Replica, member: Replica) -> None:
    source = leader.source(10)
    first = member.target(source.manifest())
    first.begin()
    pieces = list(first.pieces())[:6]
    for piece in (*pieces[:2], *pieces[3:]):
        first.write(piece, source.read(*piece))
    first.close()
    second = member.target(source.manifest())
    confirm(source, second)
    second.begin()
    assert second.reused_bytes == 2 * CHUNK
    for piece in second.pieces():
        second.write(piece, source.read(*piece))
    second.prepare()
    second.install()
    assert_installed(leader, member, source)


def test_a_newer_snapshot_uses_what_was_fetched_of_an_older_one(
    leader: Replica, member: Replica
) -> None:
    source = leader.source(10)
    older = member.target(source.manifest())
    given = gather(source, older)
    older.close()
    source.close()
    leader.add("work", 5)
    leader.add("events/é", 30)
    newer_source = leader.source(20)
    newer = member.target(newer_source.manifest())
    again = gather(newer_source, newer)
    assert again == newer.total_bytes - given
    assert names(member.root / "incoming") == ["20-3"]
    newer.prepare()
    newer.install()
    assert_installed(leader, member, newer_source)


def test_a_queue_of_the_same_name_is_not_the_same(leader: Replica, member: Replica) -> None:
    member.add("work", 80, size=500)  # of a former life: sealed segments of the same names
    before = member.segments
    source = leader.source(10)
    target = member.target(source.manifest())
    gather(source, target)
    assert target.reused_bytes < 2 * CHUNK
    assert member.segments == before
    target.prepare()
    target.install()
    assert_installed(leader, member, source)


def test_a_second_name_is_never_written_to(leader: Replica, member: Replica) -> None:
    """What an older transfer linked from the group's own files is not what the newer one wants."""
    leader.add("same", 80)
    member.add("same", 80)
    source = leader.source(10)
    gather(source, member.target(source.manifest()))
    leader.delete("same")
    leader.add("same", 80, size=590)
    before = member.segments
    newer = leader.source(11)
    target = member.target(newer.manifest())
    gather(newer, target)
    assert member.segments == before
    target.prepare()
    target.install()
    assert_installed(leader, member, newer)


def test_damage_on_the_other_side_does_not_spread(leader: Replica, member: Replica) -> None:
    source = leader.source(10)
    victim = next((leader.root / "outgoing").rglob(f"{0:020d}.seg"))
    data = bytearray(victim.read_bytes())
    data[-10] ^= 1
    victim.write_bytes(data)
    target = member.target(source.manifest())
    with pytest.raises(TransferError, match="damaged"):
        gather(source, target)
    target.close()
    assert not list((member.root / "incoming").rglob("work/*.seg"))
    again = member.target(source.manifest())
    with pytest.raises(TransferError, match="damaged"):
        gather(source, again)
    again.close()


def test_reading_through_lets_others_have_their_turn(
    leader: Replica, member: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_target, "CHECK_TURN_SECONDS", 0.0)
    pauses: list[float] = []
    source = leader.source(10)
    target = SnapshotTarget(
        member.files, member.paths, GROUP, source.manifest(), sleep=pauses.append
    )
    gather(source, target)
    batches = sum(log.next_offset - log.start_offset for log in leader.logs.values())
    assert len(pauses) >= batches
    assert set(pauses) == {transfer_target.CHECK_PAUSE_SECONDS}


def test_damage_that_both_have_is_found_too(leader: Replica, member: Replica) -> None:
    member.add("work", 5)
    member.close()
    source = leader.source(10)
    for directory in (leader.root / "outgoing", member.root / "queues"):
        victim = next(directory.rglob(f"{0:020d}.seg"))
        data = bytearray(victim.read_bytes())
        data[-10] ^= 1
        victim.write_bytes(data)
    target = member.target(source.manifest())
    gather(source, target)
    with pytest.raises(TransferError, match="damaged"):
        target.prepare()


def test_a_piece_of_another_length_is_refused(leader: Replica, member: Replica) -> None:
    source = leader.source(10)
    target = member.target(source.manifest())
    target.begin()
    piece = next(target.pieces())
    with pytest.raises(TransferError, match="instead of"):
        target.write(piece, source.read(*piece)[1:])
    assert target.fetched_bytes == 0


def test_a_file_that_goes_meanwhile_is_fetched(leader: Replica, member: Replica) -> None:
    member.add("work", 3)
    source = leader.source(10)
    target = member.target(source.manifest())
    (question,) = target.questions()
    member.delete("work")
    target.matches(question, source.digest(question.queue, question.file, question.length))
    assert target.questions() == []
    gather(source, target)
    target.prepare()
    target.install()
    assert_installed(leader, member, source)


def test_an_older_snapshot_is_not_put_in_place(leader: Replica, member: Replica) -> None:
    source = leader.source(10)
    target = member.target(source.manifest())
    gather(source, target)
    target.prepare()
    member.add("work", 1)
    member.snapshot(11)
    before = segments_below(member.root / "queues")
    with pytest.raises(TransferError, match="newer"):
        target.install()
    assert segments_below(member.root / "queues") == before
    assert names(member.root) == ["incoming", "queues", "snapshots"]


def test_questions_come_in_portions(leader: Replica, member: Replica) -> None:
    for number in range(5):
        leader.add(f"queue {number}", 3)
        member.add(f"queue {number}", 2)
    source = leader.source(10)
    target = member.target(source.manifest())
    assert len(target.questions()) == 5
    for left in (5, 4, 3, 2, 1):
        assert len(target.questions(most=2)) == min(left, 2)
        (question,) = target.questions(most=1)
        target.matches(question, source.digest(question.queue, question.file, question.length))
    assert target.questions() == []
