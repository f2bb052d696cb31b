"""Members of a group with logs of their own, for the tests of snapshots between them: what is copied, byte by byte."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from fluxmq.storage.directory import DataPaths
from fluxmq.storage.files import Files
from fluxmq.storage.queue_log import QueueLog
from fluxmq.storage.snapshots import GroupSnapshot, GroupSnapshotContent, write_snapshot
from fluxmq.storage.transfer import Piece
from fluxmq.storage.transfer_source import SnapshotSource
from fluxmq.storage.transfer_target import SnapshotTarget
from tests.damage.shard import TrackedPowerCut
from tests.faults import FailingFiles, Naming
from tests.unit.storage.logs import SMALL, batches, checkpoint, fill

P = ParamSpec("P")
T = TypeVar("T")
GROUP = "default"


class Replica:
    """A group's queues in a data directory, without a state machine: `add` is what an entry does."""

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self.files: Files = FailingFiles() if files is None else files
        self.paths = DataPaths(str(root))
        self.root = Path(self.paths.group(GROUP))
        self.logs: dict[str, QueueLog] = {}
        self.term = 3

    def add(self, queue: str, count: int, size: int = 600) -> None:
        """Append messages to a queue, which is made if it is not there."""
        if queue not in self.logs:
            self.logs[queue] = QueueLog.open(
                self.files, self.paths.queue(GROUP, queue), queue, SMALL
            )
        log = self.logs[queue]
        fill(log, batches(count, log.next_offset, size))

    def delete(self, queue: str) -> None:
        """Delete a queue."""
        self.logs.pop(queue).delete()

    def snapshot(self, index: int) -> GroupSnapshot:
        """A checkpoint of everything, durable."""
        logs = {queue: checkpoint(log) for queue, log in self.logs.items()}
        content = GroupSnapshotContent(b"machine %d" % index, (1, 2, 3), (), logs).encode()
        write_snapshot(self.files, self.paths.snapshots(GROUP), index, self.term, content)
        return GroupSnapshot(index, self.term, content)

    def source(self, index: int) -> SnapshotSource:
        """A snapshot that others may read."""
        return SnapshotSource(self.files, self.paths, GROUP, self.snapshot(index))

    def target(self, manifest: bytes, *, thorough: bool = False) -> SnapshotTarget:
        """What takes another's snapshot."""
        return SnapshotTarget(
            self.files, self.paths, GROUP, manifest, thorough=thorough, sleep=lambda _: None
        )

    def close(self) -> None:
        """Close all files."""
        for log in self.logs.values():
            log.close()
        self.logs.clear()

    @property
    def segments(self) -> dict[str, bytes]:
        """Every segment file of the group by path below its queues."""
        return segments_below(self.root / "queues")


def segments_below(directory: Path) -> dict[str, bytes]:
    """Every segment file below a directory, by its path from there."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*.seg"))
    }


def segment_files(source: SnapshotSource) -> dict[str, bytes]:
    """What a source gives of each of its segments, by path below the queues."""
    return {
        f"{directory}/{wanted}": source.read(directory, wanted, 0, length)
        for directory, wanted, length in (
            (each.directory, each.file, each.state.file_bytes)
            for each in source._manifest.segments()
        )
    }


def confirm(source: SnapshotSource, target: SnapshotTarget) -> int:
    """Answer a target's questions; how many there were."""
    asked = 0
    while questions := target.questions():
        asked += len(questions)
        for question in questions:
            digest = source.digest(question.queue, question.file, question.length)
            target.matches(question, digest)
    return asked


def gather(
    source: SnapshotSource,
    target: SnapshotTarget,
    stop: Callable[[Piece], bool] = lambda _piece: False,
) -> int:
    """Give a target what it lacks, until `stop` says so; the bytes that it was given."""
    confirm(source, target)
    target.begin()
    given = 0
    for piece in target.pieces():
        if stop(piece):
            return given
        target.write(piece, source.read(*piece))
        given += piece.length
    return given


def names(directory: Path) -> list[str]:
    """What is in a directory; nothing when it is not there."""
    return sorted(os.listdir(directory)) if directory.exists() else []


class MovingPowerCut(TrackedPowerCut):
    """A disk that forgets, with names that move between directories and files with several names. `crash_in` counts calls."""

    left = 0

    def crash_in(self, calls: int) -> None:
        """The process dies before one of the next calls, whatever it is."""
        self.left = calls

    def call(
        self, operation: str, path: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self.left and operation != "close" and not self.dead:
            self.left -= 1
            if not self.left:
                self.dead = True
        return super().call(operation, path, function, *args, **kwargs)

    def _note_rename(self, path: str, _source: str, target: str) -> Callable[[None], None]:
        kept = self._keep(target)
        _, origin = self._directory(os.path.dirname(path))
        key, directory = self._directory(os.path.dirname(target))
        name, new = os.path.basename(path), os.path.basename(target)

        def undo() -> None:
            os.rename(new, name, src_dir_fd=directory, dst_dir_fd=origin)
            if kept:
                os.link(kept, new, dst_dir_fd=directory)

        return lambda _result: self._namings.append(Naming(key, undo))

    def _note_link(self, path: str, _source: str, target: str) -> Callable[[None], None]:
        key, directory = self._directory(os.path.dirname(target))
        name = os.path.basename(target)
        undo = Naming(key, lambda: os.unlink(name, dir_fd=directory))
        return lambda _result: self._namings.append(undo)
