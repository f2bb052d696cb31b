"""The durable groups that are open on this shard: their coming and going, logs and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, Generic, Protocol

from fluxmq.logs import get_logger
from fluxmq.net.reactor import Reactor
from fluxmq.replication.attended_groups import AttendedGroups
from fluxmq.replication.checkpoints import Checkpoints, snapshot_rule
from fluxmq.replication.disk import Disk
from fluxmq.replication.nodes import Nodes, SingleNode
from fluxmq.replication.open_group import AnyHosted, Member, OpenGroup, open_group
from fluxmq.replication.orphaned_groups import forget, forget_marks
from fluxmq.replication.ports import Made
from fluxmq.replication.shard_logs import WAL, WAL_BUFFERED, ShardLogs
from fluxmq.replication.stores import DiskStores, segment_options
from fluxmq.settings.clustering import BUFFERED
from fluxmq.settings.schema import Settings
from fluxmq.storage.batch_cache import BatchCache
from fluxmq.storage.directory import DataPaths, place_group
from fluxmq.storage.errors import Corruption, StorageError
from fluxmq.storage.hand_over import discard, groups_of
from fluxmq.storage.log_reader import OpenSegments
from fluxmq.storage.open_files import OpenFiles

BEGIN_SECONDS: Final = 0.02
"""Time budget for beginning checkpoints, per tenth of a second: each takes some microseconds per
queue, during which the shard serves nobody."""

GROUPS_PER_TURN: Final = 100
"""Groups that are checked for a due checkpoint every tenth of a second; more are checked less often,
but at least once in `TURNS_MAX`."""
TURNS_MAX: Final = 10
TURN_SECONDS: Final = 0.1
"""Shortest interval of turns; a shard in which nothing happens takes one a second."""

_log = get_logger("fluxmq.queues")


class Machines(Protocol[Made]):
    """Makes the state machines of groups, and learns which groups are open."""

    def make(self, name: str, stores: DiskStores, member: Member) -> Made:
        """Return the state machine of a group that is about to be recovered."""

    def opened(self, hosted: OpenGroup[Made]) -> None:
        """Note a group that was recovered, before it is started."""

    def closed(self, hosted: OpenGroup[Made]) -> None:
        """Note a group that this shard no longer hosts; its files are still open."""


class HostedGroups(Generic[Made]):
    """The durable groups of one shard. ``wake`` schedules the end of a tick; ``is_awaited``
    returns whether commands wait for a busy log."""

    def __init__(
        self,
        shard: int,
        settings: Settings,
        disk: Disk,
        executor: Executor,
        reactor: Reactor,
        machines: Machines[Made],
        wake: Callable[[], None],
        is_awaited: Callable[[], bool],
    ) -> None:
        self.groups: dict[str, OpenGroup[Made]] = {}
        self.attended: AttendedGroups[Made] = AttendedGroups()
        self.broken: dict[str, str] = {}
        """Groups assigned to this shard that could not be opened, with the reason."""
        self.replacing: set[str] = set()
        """Groups whose files are being replaced and which must not be opened meanwhile."""
        self.nodes: Nodes = SingleNode()
        self.wake = wake
        self._settings = settings
        self._paths = DataPaths(settings.storage.data_dir)
        self._files = disk.files
        self._executor = executor
        self._machines = machines
        self.logs = ShardLogs(shard, settings, self._paths, disk, reactor, wake, is_awaited)
        self._cache = BatchCache(settings.queue_manager.cache_bytes)
        self._segments = OpenSegments(OpenFiles(self._files, disk.places))
        self.checkpoints = Checkpoints(
            self._files, self._paths, executor, lambda: reactor.tally.now, wake
        )

    def open(self, name: str) -> None:
        """Host a group: recover and start it. Raises StorageError."""
        if name in self.replacing:
            raise StorageError(f"group {name} is being replaced")
        try:
            self._open(name)
        except Corruption as damage:
            if name in self.groups:
                self.release(name)
            if not self.nodes.mend(name, damage):
                raise
            self._open(name)

    def _open(self, name: str) -> None:
        member = self.nodes.member_of(name)
        stores = DiskStores(
            self._files,
            self._paths,
            name,
            segment_options(self._settings),
            self._cache,
            self._segments,
            self.logs.settle if name.startswith(BUFFERED) else None,
        )
        group = self._machines.make(name, stores, member)
        place_group(self._files, self._paths, name, member.data_dir)
        try:
            hosted = open_group(group, stores, self.logs.of(name), self._files, self._paths, member)
        except StorageError:
            stores.close()
            raise
        hosted.look_interval, hosted.entries_max = snapshot_rule(self._settings, name)
        hosted.checkpointed_at = self.checkpoints.now()
        self.groups[name] = hosted
        self.attended.add(hosted)
        self.nodes.opened(hosted)
        self._machines.opened(hosted)
        hosted.driver.start()

    def reopen(self, name: str) -> bool:
        """Host a group that is placed here now, or note why that is not possible."""
        try:
            self.open(name)
        except StorageError as problem:
            self.broken[name] = str(problem)
            _log.error("group not opened", extra={"group": name, "problem": str(problem)})
            return False
        self.broken.pop(name, None)
        return True

    def release(self, name: str) -> None:
        """Stop hosting a group and close its files. Its log entries stay until
        `forget_orphaned_groups`."""
        hosted = self.groups.pop(name)
        self.attended.remove(name)
        self.nodes.closed(hosted)
        hosted.group.fail("the group has moved to another shard")
        hosted.shared.leave(hosted.driver)
        self._machines.closed(hosted)
        hosted.stores.close()

    def leave(self, name: str) -> None:
        """Stop hosting a group that this node left, and remove it from the log."""
        self.release(name)
        self.forget(name)

    def forget(self, name: str) -> None:
        """Remove a group that is not hosted here from this shard's logs."""
        for log in self.logs.all():
            discard(log.wal, name)
        self.wake()

    def forget_orphaned_groups(self, is_elsewhere: Callable[[str], bool]) -> None:
        """Drop groups that live elsewhere from the logs. Raises Corruption to avoid loss."""
        for kind in (WAL, WAL_BUFFERED):
            if kind not in self.logs.opened and not self._files.exists(self.logs.directory(kind)):
                continue
            wal = self.logs.open(kind).wal
            forget_marks(wal)
            for name in groups_of(wal):
                if name not in self.groups and is_elsewhere(name):
                    forget(self._files, self._paths, wal, name)
                    self.wake()

    def unhosted(self) -> list[str]:
        """Return the groups with entries in this shard's logs that are not open here."""
        names = {name for log in self.logs.all() for name in groups_of(log.wal)}
        return sorted(names - self.groups.keys())

    @property
    def open_files(self) -> OpenFiles:
        """The table of open files of queues' logs."""
        return self._segments.table

    @property
    def failure(self) -> str:
        """Error of a failed group here whose log works and that is not being repaired; or empty."""
        for hosted in self.groups.values():
            if hosted.group.failed and not (hosted.shared.failed or hosted.mending):
                return f"group {hosted.group.name}: {hosted.group.failed}"
        return ""

    def begin_housekeeping(self) -> None:
        """Write buffered batches; run by the shard's timer."""
        table = self._segments.table
        table.attended = True  # set at the first run: groups are recovered before
        if self.groups:
            table.keep_spares()
        for hosted in self.attended.groups.values():
            hosted.group.flush()

    def housekeeping(self) -> None:
        """Begin the checkpoints that are due, and write out segments; runs every tenth of a
        second."""
        now = self.checkpoints.now()
        if now >= self.checkpoints.next_begin:
            turns = min(1 + len(self.attended.groups) // GROUPS_PER_TURN, TURNS_MAX)
            self.checkpoints.next_begin = now + (turns - 1) * TURN_SECONDS
            self._begin_checkpoints()
        self.checkpoints.look(self.attended.groups.values())
        self.checkpoints.relieve(self._segments.table)
        self.logs.sync_later(now, self._executor)

    def _begin_checkpoints(self) -> None:
        lagging = set(self.lagging())
        began = time.perf_counter()
        for hosted in self.checkpoints.due(
            self.attended.groups.values(),
            self._settings.storage.checkpoint_interval,
            lagging.__contains__,
        ):
            self.checkpoints.begin(hosted)
            if time.perf_counter() - began > BEGIN_SECONDS:
                break  # groups with very many queues begin one after another

    def lagging(self) -> list[AnyHosted]:
        """Return the groups that hold back too many files of the logs."""
        storage = self._settings.storage
        files = max(storage.checkpoint_bytes // storage.wal_file_bytes, 2)
        numbers = {log: set(log.wal.lagging(files)) for log in self.logs.all()}
        return [
            hosted
            for hosted in self.attended.groups.values()
            if hosted.log.number in numbers[hosted.shared]
        ]

    async def checkpoint_all(self) -> None:
        """Checkpoint every group, after those in progress."""
        await self.checkpoints.drain()
        for hosted in self.groups.values():
            self.checkpoints.begin(hosted)
        await self.checkpoints.drain()

    def close(self) -> None:
        """Close all files."""
        self.logs.close()
        for hosted in self.groups.values():
            hosted.stores.close()
        self._segments.close()
        self._segments.table.close_spares()


AnyHostedGroups = HostedGroups[Any]
"""The groups of a shard, whatever they replicate."""
