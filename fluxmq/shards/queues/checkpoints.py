"""Checkpoints: what lets the log behind a group be used again; and segments written out before much has gathered.

A group's state and its logs' shape are taken between two ticks; a thread then syncs the segments and writes the
snapshot, while the group goes on; when both are durable the group's entries up to there are released. A group that
was written to is checkpointed after a time, one that holds back old files of the log at once.

Segments are not synced when they are written. What has gathered for half a minute the kernel writes all at once, and the
log's writes wait behind it; so what is a few seconds old, and was not removed since, is written out a little at a time.

What is not synced keeps its descriptor. When that uses up those of the shard, the files written to longest ago are synced
between checkpoints, so that others can be opened.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from itertools import islice

from fluxmq.logs import get_logger
from fluxmq.settings.schema import Settings
from fluxmq.shards.queues.hosted import Hosted
from fluxmq.shards.queues.names import BUFFERED, LOCAL
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.open_files import WRITE_OUT_BYTES, OpenFile, OpenFiles, note_synced
from fluxmq.storage.queue_log import QueueLog, Unsynced
from fluxmq.storage.snapshots import GroupState, Snapshot, write_snapshot

_log = get_logger("fluxmq.checkpoints")

ENTRIES_MAX = 65_536
"""Entries of a shard's groups behind their checkpoints: each takes about 40 µs to read and apply again, so that a
restart after a crash takes no more than a few seconds for them, however small they are."""
RETRY_SECONDS = 5.0
"""Time before a group whose checkpoint failed (a full disk) is tried again."""
AGE_SECONDS = 5.0
"""Time between two looks at what has gathered; what was there at the last is written out. Much less than the kernel's half a
minute, and long enough that queues whose consumers keep up have removed it."""
TURN_BYTES = 8 << 20
"""Bytes written out at a time, some tens of milliseconds: syncs that have a time wait for the same thread."""
LOGS_PER_LOOK = 500
"""Logs looked at in a tenth of a second."""

Parts = dict[str, tuple[QueueLog, Unsynced]]
Captured = Callable[[Snapshot, Parts], None]


def capture(hosted: Hosted) -> tuple[int, int, bytes, Parts]:
    """State of a group and shape of its logs at the entry applied last: index, term, snapshot, what to sync.

    Raises StorageError.
    """
    group = hosted.group
    parts = hosted.stores.unsynced()
    membership = hosted.keeper.node.membership_at(group.applied_index)
    state = GroupState(
        group.machine.snapshot(),
        membership.voters,
        membership.learners,
        {queue: part.state for queue, (_, part) in parts.items()},
    )
    group.applied_bytes = 0
    return group.applied_index, group.applied_term, state.encode(), parts


def write(
    files: Files,
    paths: DataPaths,
    name: str,
    index: int,
    term: int,
    content: bytes,
    parts: Parts,
) -> None:
    """Make a captured group durable; in any one thread. Raises StorageError."""
    for _, part in parts.values():
        part.sync()
    if files.exists(paths.queues(name)):
        # A queue that the snapshot does not know any more must not be there again after a power cut.
        files.fsync_directory(paths.queues(name))
    write_snapshot(files, paths.snapshots(name), index, term, content)


class Checkpoints:
    """Takes checkpoints of one shard's groups, one after another."""

    def __init__(
        self,
        files: Files,
        paths: DataPaths,
        executor: Executor,
        now: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._files = files
        self._paths = paths
        self._executor = executor
        self._now = now
        self._wake = wake
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: Iterator[QueueLog] = iter(())
        self._next_look = 0.0
        self._writing_out = False
        self._relieving = False
        self.taken = 0
        self.failed = 0

    def begin(self, hosted: Hosted, captured: Captured | None = None) -> asyncio.Task[None] | None:
        """Take a checkpoint of a group in the background; None when there is nothing to take or one is under way.

        `captured` is called at once, while logs and files are just what the snapshot says; with it, one is taken also when
        nothing was applied since the last.
        """
        group = hosted.group
        if hosted.checkpointing or group.failed:
            return None
        if group.applied_index == hosted.snapshot_index and (
            captured is None or not group.applied_index
        ):
            return None
        if group.writes.waiting:
            group.write()
        if group.writes.refused or group.writes.held:
            return None  # what waits for space or a descriptor is in the log, and nowhere else
        hosted.checkpointing = True
        try:
            index, term, content, parts = capture(hosted)
        except StorageError as error:
            self._give_up(hosted, error)
            return None
        if captured is not None:
            captured(Snapshot(index, term, content), parts)
        task = asyncio.get_running_loop().create_task(
            self._take(hosted, index, term, content, parts)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take(
        self, hosted: Hosted, index: int, term: int, content: bytes, parts: Parts
    ) -> None:
        loop = asyncio.get_running_loop()
        name = hosted.group.name
        try:
            await loop.run_in_executor(
                self._executor,
                write,
                self._files,
                self._paths,
                name,
                index,
                term,
                content,
                parts,
            )
        except StorageError as error:
            hosted.stores.synced(parts, error)
            self._give_up(hosted, error)
            return
        hosted.stores.synced(parts, None)
        hosted.checkpointing = False
        if hosted.group.failed:
            return
        hosted.checkpointed_at = self._now()
        hosted.snapshot_index = index
        trim(hosted)
        self.taken += 1
        self._wake()

    def look(self, groups: Iterable[Hosted]) -> None:
        """A tenth of a second has passed: what has gathered in the page cache and is not new is written out."""
        if self._writing_out:
            return
        logs = list(islice(self._looking, LOGS_PER_LOOK))
        if not logs and (now := self._now()) >= self._next_look:
            self._next_look = now + AGE_SECONDS
            grown = (each for each in groups if each.group.applied_bytes > WRITE_OUT_BYTES)
            self._looking = iter([log for hosted in grown for log in hosted.stores.logs()])
        files = [(file.shared(), end) for log in logs for file, end in _gathered(log)]
        if files:
            self._writing_out = True
            task = asyncio.get_running_loop().create_task(self._write_out(files))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _write_out(self, files: list[tuple[OpenFile, int]]) -> None:
        loop = asyncio.get_running_loop()
        for file, end in files:
            # It is remembered when it fails: no checkpoint counts the file as synced.
            with contextlib.suppress(StorageError):
                while end - file.begun > WRITE_OUT_BYTES:
                    turn = file.begun + TURN_BYTES + WRITE_OUT_BYTES  # all but a last piece
                    await loop.run_in_executor(self._executor, file.write_out, min(end, turn))
            file.give_back()
        self._writing_out = False

    def relieve(self, table: OpenFiles) -> None:
        """A tenth of a second has passed: if a write has found no place for its file, the oldest files are synced."""
        if table.wanting and not self._relieving:
            self._relieving = True
            task = asyncio.get_running_loop().create_task(self._relieve(table))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _relieve(self, table: OpenFiles) -> None:
        loop = asyncio.get_running_loop()
        table.wanting = False
        files = [(file, file.writes) for file in table.oldest_unsynced()]
        try:
            synced = await loop.run_in_executor(self._executor, _sync, [file for file, _ in files])
            note_synced(islice(files, synced))
        finally:
            for file, _ in files:
                file.give_back()
            self._relieving = False
        self._wake()

    def _give_up(self, hosted: Hosted, error: StorageError) -> None:
        """The group's files are not what they should be: nothing more is taken, what the log holds stays there."""
        self.failed += 1
        hosted.checkpointing = False
        hosted.not_before = self._now() + RETRY_SECONDS
        _log.error("a checkpoint failed", extra={"group": hosted.group.name, "problem": str(error)})

    async def drain(self) -> None:
        """Wait for what is under way."""
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def due(
        self, groups: Iterable[Hosted], interval: float, lagging: Callable[[Hosted], bool]
    ) -> list[Hosted]:
        """Groups whose checkpoint is due: those that hold back the log, were written to long ago, or have much behind
        their last one, the most first."""
        now = self._now()
        groups = list(groups)
        for each in groups:
            each.pressed = lagging(each)
            trim(each)
        found = [
            each
            for each in groups
            if not each.checkpointing and not each.group.failed and now >= each.not_before
        ]
        due = [
            each
            for each in found
            if lagging(each)
            or (each.entries_behind and now - each.checkpointed_at >= interval)
            or _has_many_entries(each, now)
        ]
        rest = sorted(
            (each for each in found if each not in due),
            key=lambda each: each.entries_behind,
            reverse=True,
        )
        excess = sum(each.entries_behind for each in rest) - ENTRIES_MAX
        for each in rest:
            if excess <= 0:
                break
            excess -= each.entries_behind
            due.append(each)
        return due


def _sync(files: list[OpenFile]) -> int:
    """Sync files, in any one thread; how many were before one failed, which is remembered on it: its next checkpoint fails."""
    for number, file in enumerate(files):
        try:
            file.sync()
        except StorageError:
            return number
    return len(files)


def _gathered(log: QueueLog) -> Iterator[tuple[OpenFile, int]]:
    """Files of a log in which much was there at the last look already and is not written out, and up to where."""
    for file in log.written_files():
        aged, file.aged = file.aged, file.end
        if aged - file.begun > WRITE_OUT_BYTES and file.dirty:
            yield file, aged


def trim(hosted: Hosted) -> None:
    """Have the log begin behind the last checkpoint; or behind an earlier one, as long as a member fetches that."""
    until = hosted.snapshot_index
    if hosted.keep_behind and not hosted.pressed:
        until = min(until, hosted.keep_behind)
    log = hosted.log
    if hosted.group.failed or until < log.first_index():
        return
    term = log.term(until)
    log.compact(until)
    hosted.keeper.node.compact(until, term)


def _has_many_entries(hosted: Hosted, now: float) -> bool:
    """Whether it is time to look at a group's entries, and there are as many as make a checkpoint due."""
    if not hosted.entries_max or now < hosted.looked_at + hosted.look_interval:
        return False
    hosted.looked_at = now
    return hosted.entries_behind >= hosted.entries_max


def snapshot_rule(settings: Settings, group: str) -> tuple[float, int]:
    """``look_interval`` and ``entries_max`` of a group: of its queues, else its own, else those of all. Local groups
    have none."""
    if group.startswith((LOCAL + "-", BUFFERED + "-")):
        return 0.0, 0
    raft = settings.cluster.raft
    sections = [
        queue.replication for queue in settings.queues if queue.replication_group(raft) == group
    ]
    own = raft.groups.get(group, raft)
    intervals = [each.snapshot_interval for each in sections if each.snapshot_interval is not None]
    thresholds = [
        each.snapshot_threshold for each in sections if each.snapshot_threshold is not None
    ]
    interval = min(intervals, default=own.snapshot_interval or raft.snapshot_interval)
    threshold = min(thresholds, default=own.snapshot_threshold or raft.snapshot_threshold)
    return interval, threshold
