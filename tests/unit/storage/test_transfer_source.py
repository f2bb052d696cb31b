"""What a member gives of its snapshot: files pinned at its moment, nothing else, and a manifest that is checked."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from fluxmq.storage import transfer, transfer_target
from fluxmq.storage.errors import DiskFull, FileMissing
from fluxmq.storage.files import Files
from fluxmq.storage.log_state import LogState
from fluxmq.storage.snapshots import GroupSnapshot, GroupSnapshotContent
from fluxmq.storage.transfer import Manifest, TransferError
from fluxmq.storage.transfer_source import LiveLog, Pinned, SnapshotSource
from tests.faults import FailingFiles
from tests.unit.storage.transfers import (
    GROUP,
    Replica,
    names,
    segment_files,
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


# The source


def test_what_a_source_gives_is_of_the_moment_of_its_snapshot(leader: Replica) -> None:
    before = leader.segments
    source = leader.source(10)
    assert segment_files(source) == before
    leader.add("work", 100)  # grows, is sealed
    leader.logs["events/é"].trim(150)  # sealed segments go
    leader.logs["events/é"].flush()
    leader.logs["work"].trim(105, purge=True)  # the growing one goes
    leader.delete("idle")
    leader.delete("work")
    leader.add("work", 3, size=50)  # another queue, whose segment has the old one's name
    assert segment_files(source) == before
    assert len(source.digest("work", f"{0:020d}.seg", 4096)) == 16
    outgoing = leader.root / "outgoing"
    assert names(outgoing) == ["1"]
    source.close()
    assert names(outgoing) == []
    with pytest.raises(FileMissing):
        source.read("work", f"{0:020d}.seg", 0, 64)


def test_a_source_gives_nothing_that_the_snapshot_has_not(leader: Replica) -> None:
    source = leader.source(10)
    leader.add("work", 3)
    whole = next(each for each in source._manifest.segments() if each.queue == "work")
    size = whole.state.file_bytes
    assert os.path.getsize(leader.root / "queues" / "work" / whole.file) > size
    for position, length in (
        (0, size + 1),
        (size, 1),
        (-1, 1),
        (0, 0),
        (0, transfer.CHUNK_BYTES + 1),
    ):
        with pytest.raises(TransferError, match="are none"):
            source.read("work", whole.file, position, length)
    for length in (0, size + 1):
        with pytest.raises(TransferError, match=r"has .* bytes"):
            source.digest("work", whole.file, length)
    for queue, file in (("work", "../head"), ("..", "x.snap"), ("idle", whole.file)):
        with pytest.raises(TransferError, match="has no segment"):
            source.read(queue, file, 0, 1)


def test_most_is_pinned_ahead_and_the_rest_at_the_moment(leader: Replica) -> None:
    files = FailingFiles()
    pinned = Pinned(files, leader.paths, GROUP)

    def live(life: str = "1") -> dict[str, LiveLog]:
        return {
            queue: LiveLog(f"{life}-{number}", log.directory, log.state())
            for number, (queue, log) in enumerate(sorted(leader.logs.items()))
        }

    logs = live()
    state = logs["events/é"].state
    leader.logs["events/é"].trim(state.segments[0].next_offset)
    leader.logs["events/é"].flush()
    pinned.ahead(logs)  # one has gone already
    linked = len(list((leader.root / "outgoing" / "1").rglob("*.seg")))
    assert linked == len(leader.segments) == len(state.segments)
    leader.delete("work")
    leader.add("work", 2, size=50)
    leader.add("events/é", 60)
    now = {**live(), "work": live("another life")["work"]}
    tried = files.calls["link"]
    pinned.complete(now)
    new = len(leader.segments) - (linked - 1)
    assert new > 1
    assert files.calls["link"] - tried <= new + 1  # and one for a directory that was not there
    snapshot = leader.snapshot(11)
    lives = {queue: log.life for queue, log in now.items()}
    source = SnapshotSource(files, leader.paths, GROUP, snapshot, pinned, lives)
    assert segment_files(source) == leader.segments
    with pytest.raises(FileMissing):
        pinned.complete({"gone": logs["events/é"]._replace(life="new")})


def test_a_source_that_cannot_be_made_leaves_nothing(leader: Replica) -> None:
    snapshot = leader.snapshot(10)
    leader.logs["events/é"].trim(200)
    with pytest.raises(FileMissing):
        SnapshotSource(Files(), leader.paths, GROUP, snapshot)
    failing = FailingFiles()
    failing.fail("link", errno.ENOSPC, nth=2)
    leader.add("work", 1)
    with pytest.raises(DiskFull):
        SnapshotSource(failing, leader.paths, GROUP, leader.snapshot(11))
    assert names(leader.root / "outgoing") == []


# The manifest


def test_a_manifest_is_believed_only_if_it_is_one(leader: Replica) -> None:
    source = leader.source(10)
    data = source.manifest()
    manifest = Manifest.decode(data, GROUP)
    assert (manifest.snapshot.index, manifest.snapshot.term, manifest.name) == (10, 3, "10-3")
    assert {each.queue for each in manifest.segments()} == {"events/é", "work"}
    random = Random(1)
    for _ in range(200):
        at = random.randrange(len(data))
        damaged = data[:at] + bytes([data[at] ^ random.randint(1, 255)]) + data[at + 1 :]
        with pytest.raises(TransferError):
            Manifest.decode(damaged, GROUP)
        with pytest.raises(TransferError):
            Manifest.decode(data[:at], GROUP)
    with pytest.raises(TransferError, match="of group default, not other"):
        Manifest.decode(data, "other")


@pytest.mark.parametrize(
    "snapshot",
    [
        GroupSnapshot(0, 1, GroupSnapshotContent(b"", (1,)).encode()),
        GroupSnapshot(1, 0, GroupSnapshotContent(b"", (1,)).encode()),
        GroupSnapshot(1, 1, b"no state"),
        GroupSnapshot(1, 1, GroupSnapshotContent(b"", (1,), (), {"": LogState(0, 0, ())}).encode()),
        GroupSnapshot(
            1, 1, GroupSnapshotContent(b"", (1,), (), {"q" * 1025: LogState(0, 0, ())}).encode()
        ),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(snapshot: GroupSnapshot) -> None:
    empty = GroupSnapshotContent(b"", (1,))
    with pytest.raises(TransferError):
        Manifest.decode(Manifest(GROUP, snapshot, empty).encode(), GROUP)


def test_a_manifest_has_a_size_that_is_not_passed(
    leader: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = leader.source(10).manifest()
    monkeypatch.setattr(transfer, "MANIFEST_BYTES_MAX", len(data))
    Manifest.decode(data, GROUP)
    monkeypatch.setattr(transfer, "MANIFEST_BYTES_MAX", len(data) - 1)
    with pytest.raises(TransferError, match="bytes"):
        Manifest.decode(data, GROUP)
