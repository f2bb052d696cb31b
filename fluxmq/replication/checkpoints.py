"""Checkpoints, which free the log behind a group; and early write-out of segments.

A group's state and the shape of its logs are captured between two ticks; a thread then syncs the
segments and writes the snapshot while the group continues; when both are durable the group's
entries up to there are released. A group with new entries is checkpointed after a time, one that
holds back old files of the log at once.

Segments are not synced when written. The kernel would write out half a minute's data all at once,
with the log's writes waiting behind it; so data a few seconds old that was not deleted since is
written out a little at a time.

Unsynced files keep their descriptors. When the shard runs out of them, the least recently written
files are synced between checkpoints, so that others can be opened.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from itertools import islice

from fluxmq.logs import get_logger
from fluxmq.replication.open_group import AnyHosted
from fluxmq.settings.clustering import BUFFERED, LOCAL
from fluxmq.settings.schema import Settings
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.open_files import WRITE_OUT_BYTES, OpenFile, OpenFiles, note_synced
from fluxmq.storage.queue_log import QueueLog, Unsynced
from fluxmq.storage.snapshots import GroupSnapshot, GroupSnapshotContent, write_snapshot

_log = get_logger("fluxmq.checkpoints")

ENTRIES_MAX = 65_536
"""Maximum number of entries of a shard's groups behind their checkpoints: each takes about 40 µs to
read and apply again, so a restart after a crash takes a few seconds at most, however small they
are."""
RETRY_SECONDS = 5.0
"""Delay before a group's failed checkpoint (a full disk) is retried."""
AGE_SECONDS = 5.0
"""Interval of looks at unwritten data; data present at two looks is written out. Much less than the
kernel's half a minute, and long enough for queues whose consumers keep up to have deleted it."""
TURN_BYTES = 8 << 20
"""Bytes written out at a time, some tens of milliseconds: due syncs wait for the same thread."""
LOGS_PER_LOOK = 500
"""Logs looked at in a tenth of a second."""

Parts = dict[str, tuple[QueueLog, Unsynced]]
Captured = Callable[[GroupSnapshot, Parts], None]


def capture(hosted: AnyHosted) -> tuple[int, int, bytes, Parts]:
    """Capture a group at the last applied entry: index, term, snapshot, and what to sync.

    Raises StorageError.
    """
    group = hosted.group
    parts = hosted.stores.unsynced()
    membership = hosted.driver.node.membership_at(group.applied_index)
    state = GroupSnapshotContent(
        group.snapshot(),
        membership.voters,
        membership.learners,
        {queue: part.state for queue, (_, part) in parts.items()},
    )
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
        # A queue deleted before the snapshot must not reappear after a power failure.
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
        self.now = now
        self._wake = wake
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: Iterator[QueueLog] = iter(())
        self.next_begin = 0.0
        """Moment of the next check for due checkpoints."""
        self._next_look = 0.0
        self._writing_out = False
        self._relieving = False
        self.taken = 0
        self.failed = 0

    def begin(
        self, hosted: AnyHosted, captured: Captured | None = None
    ) -> asyncio.Task[None] | None:
        """Begin a checkpoint in the background; return None if there is nothing new or one is in
        progress.

        `captured` is called at once, while logs and files match the snapshot exactly; with it a
        checkpoint is taken even if nothing was applied since the last.
        """
        group = hosted.group
        if hosted.checkpointing or group.failed:
            return None
        if group.applied_index == hosted.snapshot_index and (
            captured is None or not group.applied_index
        ):
            return None
        if not group.flush():
            return None  # what waits for space or a descriptor is only in the log
        hosted.checkpointing = True
        try:
            index, term, content, parts = capture(hosted)
        except StorageError as error:
            self._give_up(hosted, error)
            return None
        if captured is not None:
            captured(GroupSnapshot(index, term, content), parts)
        task = asyncio.get_running_loop().create_task(
            self._take(hosted, index, term, content, parts)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take(
        self, hosted: AnyHosted, index: int, term: int, content: bytes, parts: Parts
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
        hosted.checkpointed_at = self.now()
        hosted.snapshot_index = index
        trim(hosted)
        self.taken += 1
        self._wake()

    def look(self, groups: Iterable[AnyHosted]) -> None:
        """Write out data in the page cache that is not new; run by the shard's timer."""
        if self._writing_out:
            return
        logs = list(islice(self._looking, LOGS_PER_LOOK))
        if not logs and (now := self.now()) >= self._next_look:
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
            # The file records failures: no checkpoint counts it as synced.
            with contextlib.suppress(StorageError):
                while end - file.begun > WRITE_OUT_BYTES:
                    turn = file.begun + TURN_BYTES + WRITE_OUT_BYTES  # all but a last piece
                    await loop.run_in_executor(self._executor, file.write_out, min(end, turn))
            file.give_back()
        self._writing_out = False

    def relieve(self, table: OpenFiles) -> None:
        """Sync the oldest files if a write found no place for its file; runs every tenth of a
        second."""
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

    def _give_up(self, hosted: AnyHosted, error: StorageError) -> None:
        """Record a failed checkpoint; the log keeps what it holds, and a later attempt follows."""
        self.failed += 1
        hosted.checkpointing = False
        hosted.not_before = self.now() + RETRY_SECONDS
        _log.error("a checkpoint failed", extra={"group": hosted.group.name, "problem": str(error)})

    async def drain(self) -> None:
        """Wait for work in progress."""
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def due(
        self, groups: Iterable[AnyHosted], interval: float, lagging: Callable[[AnyHosted], bool]
    ) -> list[AnyHosted]:
        """Return groups whose checkpoint is due: those that hold back the log, have not had one for
        the interval, or have most entries behind their last one."""
        now = self.now()
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
            set(found).difference(due),
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
    """Sync files, in any one thread; return how many precede the first failure. The failed file
    records that: its next checkpoint fails."""
    for number, file in enumerate(files):
        try:
            file.sync()
        except StorageError:
            return number
    return len(files)


def _gathered(log: QueueLog) -> Iterator[tuple[OpenFile, int]]:
    """Yield a log's files, with an end, that had much unwritten data at the last look already."""
    for file in log.written_files():
        aged, file.aged = file.aged, file.end
        if aged - file.begun > WRITE_OUT_BYTES and file.dirty:
            yield file, aged


def trim(hosted: AnyHosted) -> None:
    """Trim the log to the last checkpoint, or to an earlier one while a member fetches that."""
    until = hosted.snapshot_index
    if hosted.keep_behind and not hosted.pressed:
        until = min(until, hosted.keep_behind)
    log = hosted.log
    if hosted.group.failed or until < log.first_index():
        return
    term = log.term(until)
    # A failure is the log's, not this group's: the log's next write reports it to all its groups.
    with contextlib.suppress(StorageError):
        log.compact(until)
        hosted.driver.node.compact(until, term)


def _has_many_entries(hosted: AnyHosted, now: float) -> bool:
    """Return whether a look at a group's entries is due and they make a checkpoint due."""
    if not hosted.entries_max or now < hosted.looked_at + hosted.look_interval:
        return False
    hosted.looked_at = now
    return hosted.entries_behind >= hosted.entries_max


def snapshot_rule(settings: Settings, group: str) -> tuple[float, int]:
    """Return a group's ``look_interval`` and ``entries_max``: from its queues, else its own, else
    the global ones. Local groups have none."""
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
