"""A shard's part of a node's backup: snapshots of its durable groups, and logs that continue from
there.

A group is captured as for a lagging member: a checkpoint and hard links to its segments, while it
continues. A separate thread then copies the files at the requested rate, one group after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fluxmq.cluster.errors import CallRefused
from fluxmq.ipc.backups import BACKUP, BackedUp, Backup
from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import ERROR_EXISTS, ERROR_FAILED, Body, Failure
from fluxmq.replication.hosted_groups import AnyHostedGroups
from fluxmq.replication.member_record import record_path
from fluxmq.replication.open_group import AnyHosted
from fluxmq.replication.shard_logs import WAL, WAL_BUFFERED
from fluxmq.settings.clustering import BUFFERED
from fluxmq.settings.schema import Settings
from fluxmq.storage.backup import CopiedGroup, copy_file, copy_group, declare_groups
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.transfer_source import SnapshotSource

T = TypeVar("T")


class GroupBackups:
    """Writes one shard's groups into the backups that the control process makes, one at a time."""

    def __init__(
        self,
        shard: int,
        settings: Settings,
        files: Files,
        paths: DataPaths,
        groups: AnyHostedGroups,
    ) -> None:
        self._shard = shard
        self._file_bytes = settings.storage.wal_file_bytes
        self._files = files
        self._paths = paths
        self._hosting = groups
        self._task: asyncio.Task[None] | None = None

    def commands(self) -> dict[str, RequestHandler]:
        """Return the commands of the control process."""
        return {BACKUP: self._on_backup}

    def _on_backup(self, body: Body, answered: Answered) -> None:
        wanted = Backup.from_body(body)
        if self._task is not None and not self._task.done():
            answered(Failure(ERROR_EXISTS, "another backup is being made"))
            return
        self._task = asyncio.get_running_loop().create_task(self._answer(wanted, answered))

    async def _answer(self, wanted: Backup, answered: Answered) -> None:
        thread = ThreadPoolExecutor(1, "backup")
        try:
            done = await self._back_up(wanted, thread)
        except (StorageError, CallRefused) as problem:
            answered(Failure(ERROR_FAILED, str(problem)))
        else:
            answered(done.to_body())
        finally:
            thread.shutdown(wait=False)

    async def _back_up(self, wanted: Backup, thread: ThreadPoolExecutor) -> BackedUp:
        """Copy every group that is not empty. Raises StorageError, CallRefused."""
        # A single node imports the code that serves other nodes only now.
        from fluxmq.replication.snapshot_calls import SnapshotCalls
        from fluxmq.replication.snapshot_fetch import Pace

        loop = asyncio.get_running_loop()
        hosting, files, target = self._hosting, self._files, DataPaths(wanted.directory)
        calls = SnapshotCalls(
            files, self._paths, hosting.checkpoints, thread, hosting.groups.get, loop.time
        )
        pace = Pace(wanted.rate)
        copied: list[CopiedGroup] = []
        queues = size = 0
        for name in sorted(hosting.groups):
            hosted = hosting.groups.get(name)
            if hosted is None or not (hosted.group.applied_index or hosted.group.failed):
                continue
            if hosted.group.failed:
                raise StorageError(f"group {name} has failed: {hosted.group.failed}")
            source = await calls.make(hosted)
            try:
                turns = copy_group(files, target, name, source)
                while (turn := await _in(thread, next, turns, None)) is not None:
                    size += turn
                    await pace.wait(turn)
            finally:
                await _in(thread, source.close)
            member = record_path(self._paths, name), record_path(target, name)
            await _in(thread, copy_file, files, *member)
            copied.append(_state_of(hosted, source))
            queues += len(hosted.stores.by_number)
        await _in(thread, self._declare, target, copied)
        return BackedUp(len(copied), queues, size)

    def _declare(self, target: DataPaths, copied: list[CopiedGroup]) -> None:
        for kind in (WAL, WAL_BUFFERED):
            groups = [
                each for each in copied if each.name.startswith(BUFFERED) == (kind == WAL_BUFFERED)
            ]
            if groups:
                directory = target.wal(self._shard) + kind.removeprefix(WAL)
                declare_groups(self._files, directory, groups, self._file_bytes)


def _state_of(hosted: AnyHosted, source: SnapshotSource) -> CopiedGroup:
    """Return a group's state with its current hard state: a later vote counts, later entries do
    not."""
    term, vote = hosted.driver.hard_state
    return CopiedGroup(hosted.group.name, term, vote, source.index, source.index, source.term)


async def _in(thread: ThreadPoolExecutor, work: Callable[..., T], *args: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(thread, work, *args)
