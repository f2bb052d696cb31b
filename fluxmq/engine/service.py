"""The queues of the groups that a shard hosts, and the order of work at the end of a tick.

At the end of a tick, clients' answers become settlements, every group with work delivers messages
and proposes its entry, all entries go to the log in one write, and answers to other shards are
sent. Then connections are written. Meanwhile the log syncs; the end of the sync wakes the shard
again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from typing import Protocol

from fluxmq.engine.cluster_groups import OWN_GROUPS, GroupObserver
from fluxmq.engine.counts import QueueCounts
from fluxmq.engine.dead_letters import DeadLetters
from fluxmq.engine.ephemeral import EphemeralGroup
from fluxmq.engine.group import ENTRY_BYTES_MAX, ReplicationGroup
from fluxmq.engine.group_files import GroupFiles
from fluxmq.engine.memory import MemoryDriver, MemoryStores
from fluxmq.engine.names import QueueInfo, QueueNames
from fluxmq.engine.ports import GroupTarget
from fluxmq.logs import get_logger
from fluxmq.net.reactor import Reactor
from fluxmq.protocols.connection import Connection
from fluxmq.queues.config import QueueConfig, ephemeral
from fluxmq.queues.migration import is_arriving
from fluxmq.replication.disk import Disk
from fluxmq.replication.hosted_groups import HostedGroups
from fluxmq.replication.open_group import Member, OpenGroup
from fluxmq.replication.stores import DiskStores, segment_options
from fluxmq.settings.clustering import EPHEMERAL
from fluxmq.settings.schema import Settings
from fluxmq.settings.values import microseconds
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import OutOfDescriptors

ROOM_SECONDS = 1.0
"""Seconds between checks of free disk space."""
TIMER_AHEAD_US = 2_000_000
"""Timers due later than this are left to housekeeping, which runs once a second when nothing
happens, otherwise more often. Nearly all of
them (consumer timeouts of half an hour) are for messages settled long before."""
PAUSED_QUEUE = 16
"""Reason for pausing a connection: a group's appends exceed the high watermark."""
OVERHEAD_BYTES = 4096
"""Upper bound of the overhead of an entry or segment beside its batch."""

_log = get_logger("fluxmq.queues")


class QueueObserver(Protocol):
    """Follows the queues of groups on this shard."""

    def queue_declared(self, config: QueueConfig) -> None:
        """Note a queue that is declared, or declared again with other arguments."""

    def queue_deleted(self, queue: str, by_leader: bool) -> None:
        """Note a queue that is deleted; ``by_leader``: this shard leads its group."""

    def queue_unused(self, queue: str) -> None:
        """Note a queue whose last consumer has left."""


class QueueSurroundings(Protocol):
    """The clients of groups on this shard, and what they do in a tick."""

    def sender(self, group: str) -> GroupTarget:
        """Return the client for messages that queues themselves send to a group."""

    def before_groups(self) -> None:
        """Do the first work at the end of a tick."""

    def after_groups(self) -> None:
        """Do the work that follows that of the groups."""

    @property
    def remote_above_high_watermark(self) -> bool:
        """True while unanswered appends to groups elsewhere exceed the high watermark."""


class QueueService:
    """The groups that one shard hosts."""

    low: bool = False
    """True while the file system has less free space than ``storage.min_free_bytes``."""

    def __init__(
        self,
        shard: int,
        settings: Settings,
        names: QueueNames,
        surroundings: QueueSurroundings,
        reactor: Reactor,
        clock: Callable[[], int],
        call_later: Callable[[float, Callable[[], None]], None],
        disk: Disk,
    ) -> None:
        self.shard = shard
        self.names = names
        self.held: set[Connection] = set()
        """Connections paused because appends in flight exceed the high watermark."""
        self.dead_letters = DeadLetters(names, surroundings.sender, clock)
        self._surroundings = surroundings
        self.observers: list[QueueObserver] = []
        """Observers of the queues of groups here."""
        self.counts = self.dead_letters.counts = QueueCounts()
        self.observer: GroupObserver = OWN_GROUPS
        """Learns which groups are open here and lead."""
        self._settings = settings
        self._files = disk.files
        self._reactor = reactor
        self._clock, self._call_later = clock, call_later
        self._marked: dict[ReplicationGroup, None] = {}
        self._blocked: dict[ReplicationGroup, None] = {}
        """Groups with commands that wait for the log's sync to end."""
        self._lingering: dict[ReplicationGroup, None] = {}
        """Groups whose only pending commands are ones that no caller waits for."""
        self._undeclared: set[str] = set()
        self._gathers = False
        """True while groups that are marked get their turn in this tick anyway."""
        self._next_look = 0.0
        self._timer_at = 0
        self.executor = disk.executor()
        self.durable: HostedGroups[ReplicationGroup] = HostedGroups(
            *(shard, settings, disk, self.executor, reactor, self),
            self.wake,
            lambda: bool(self._blocked),
        )
        self.durable.attended.is_inactive = _is_inactive
        self.groups = self.durable.groups
        self.logs = self.durable.logs
        self._paths = DataPaths(settings.storage.data_dir)
        self.group_files = GroupFiles(self._files, self._paths, clock)
        self.ephemeral = self._memory_group()

    # Groups

    def _new(
        self, kind: type[ReplicationGroup], name: str, stores: DiskStores | MemoryStores
    ) -> ReplicationGroup:
        manager = self._settings.queue_manager
        group = kind(
            name,
            stores,
            self.mark,
            self.dead_letters.dead_letter,
            self._clock,
            microseconds(manager.auto_commit_interval),
            manager.uncommitted_bytes,
            min(ENTRY_BYTES_MAX, self._settings.storage.wal_file_bytes // 4),
        )
        group.counts = self.counts
        group.events = self
        group.answers.ahead.names = self.names.before_sync
        group.migration_fence.owner_of = self.names.owner_of
        return group

    def _memory_group(self) -> EphemeralGroup:
        manager = self._settings.queue_manager
        group = self._new(EphemeralGroup, f"{EPHEMERAL}-{self.shard}", MemoryStores())
        assert isinstance(group, EphemeralGroup)
        group.driver = MemoryDriver(group)
        group.asked.linger_us = group.asked.alone_us = 0
        group.make(
            lambda name: ephemeral(
                name,
                expires=microseconds(manager.ephemeral_expiry),
                retention_bytes=manager.ephemeral_max_bytes,
            ),
            manager.max_ephemeral_queues,
        )
        group.lead()
        return group

    def make(self, name: str, stores: DiskStores, member: Member) -> ReplicationGroup:
        """Return a durable group that is about to be recovered."""
        group = self._new(ReplicationGroup, name, stores)
        storage = self._settings.storage
        batch_max = segment_options(self._settings).batch_bytes_max
        group.batch_max = min(storage.wal_file_bytes // 2, batch_max) - OVERHEAD_BYTES
        group.migration_fence.moved_away = lambda queue: self.names.is_in_another(queue, name)
        if not member.alone:
            group.is_timed = self.durable.nodes.is_timed
            group.answers.configure(member.wish, member.wishes)
        return group

    def opened(self, hosted: OpenGroup[ReplicationGroup]) -> None:
        """Announce the queues of a group that was recovered."""
        group = hosted.group
        if hosted.driver.alone:
            self._undeclared.add(group.name)
        self.observer.opened(group)
        for queue in group.machine.queues.values():
            if not is_arriving(queue):
                self.declared(group, queue.config)

    def closed(self, hosted: OpenGroup[ReplicationGroup]) -> None:
        """Drop a group that this shard no longer hosts."""
        self._marked.pop(hosted.group, None)
        self.observer.closed(hosted.group)

    # Events of groups

    def leads(self, group: ReplicationGroup) -> None:
        """Declare the configured queues of a group that this node now leads."""
        if isinstance(group, EphemeralGroup):
            return
        self._undeclared.discard(group.name)
        for config in self.names.configured(group.name):
            state = group.machine.queue(config.name)
            if state is None or state.config != config:
                group.declare(config)
                if state is None and not group.replicated:
                    self._undeclared.add(config.name)
        self.observer.leads(group)

    def declared(self, group: ReplicationGroup, config: QueueConfig) -> None:
        """Announce a queue that is declared, or declared again with other arguments."""
        if isinstance(group, EphemeralGroup) or self.names.is_hidden(config.name):
            return
        self._undeclared.discard(config.name)
        topics = tuple(topic.encode() for topic in config.topics)
        self.names.add(QueueInfo(config.name, group.name, config.type, topics))
        self.announce(config)

    def announce(self, config: QueueConfig) -> None:
        """Tell the observers of a queue here."""
        for observer in self.observers:
            observer.queue_declared(config)

    def unused(self, queue: str) -> None:
        """Report a queue whose last consumer has left."""
        for observer in self.observers:
            observer.queue_unused(queue)

    def refused(self, config: QueueConfig, batch: bytes) -> None:
        """Dead-letter a batch that a full queue rejected."""
        self.dead_letters.refused(config, batch)

    def deleted(self, group: ReplicationGroup, queue: str) -> None:
        """Forget a queue that is deleted."""
        if self.names.is_hidden(queue) or self.names.is_in_another(queue, group.name):
            return  # a leftover of a queue that moved, or of a move that was cancelled
        by_leader = group.driver.leading or not group.replicated
        for observer in self.observers:
            observer.queue_deleted(queue, by_leader)
        self.names.remove(queue)
        self.counts.dead.pop(queue, None)

    @property
    def ready(self) -> bool:
        """True once all groups lead and configured queues exist, or a log has failed."""
        return not self._undeclared or any(log.failed for log in self.logs.all())

    @property
    def full(self) -> bool:
        """True while a group here rejects appends for lack of space, or would."""
        return self.low or any(
            hosted.group.full for hosted in self.durable.attended.groups.values()
        )

    def all_groups(self) -> list[ReplicationGroup]:
        """Return all groups of this shard, including the in-memory one."""
        return self._all()

    def find(self, group: str) -> ReplicationGroup | None:
        """Return a group of this shard, or None."""
        if group == self.ephemeral.name:
            return self.ephemeral
        hosted = self.groups.get(group)
        return hosted.group if hosted is not None else None

    # The tick

    def wake(self) -> None:
        """Have ``finish`` called at the end of this tick; schedule a tick if none is running."""
        reactor = self._reactor
        reactor.unfinished = True
        if not reactor.ticking:
            reactor.host.schedule()

    def mark(self, group: ReplicationGroup) -> None:
        """Schedule work for a group at the end of the tick."""
        self._marked[group] = None
        if not self._gathers:  # otherwise its turn is about to come anyway
            self.wake()

    def finish(self) -> None:
        """End a tick.

        Publishers come first: their syncs that have ended are answered and the log is written, so
        that the disk works while messages are delivered.
        """
        reactor = self._reactor
        logs = self.logs.all()
        for log in logs:
            log.begin_tick()
        reactor.unfinished = False
        self._gathers = True
        try:
            self._surroundings.before_groups()  # confirms are made there
            if reactor.dirty:
                reactor.flush()
        finally:
            self._gathers = False
        marked = self._take_marked()
        for group in marked:
            group.propose()
        for log in logs:
            log.flush()
        for group in marked:
            self._work(group)
        awaited = 0.0
        for log in logs:
            awaited = max(awaited, log.end_tick())
        reactor.awaited = awaited
        self._surroundings.after_groups()
        if self.held:
            self._let_go(self._surroundings.remote_above_high_watermark)
        if marked:
            self._set_timer(marked)

    def _take_marked(self) -> dict[ReplicationGroup, None]:
        """Take the groups that have work now."""
        marked, self._marked = self._marked, {}
        if self._blocked:
            for group in [each for each in self._blocked if each.driver.writable]:
                del self._blocked[group]
                marked[group] = None
        return marked

    def _work(self, group: ReplicationGroup) -> None:
        if group.work():
            self.mark(group)
        elif not group.driver.writable and group.asked.due(at_once=group.leaving):
            self._blocked[group] = None  # later commands will share their entry
        elif group.asked.lingering:
            self._wait_with(group)

    def _wait_with(self, group: ReplicationGroup) -> None:
        """Schedule another look at a group for when its pending commands become due."""
        if not self._lingering:
            self._call_later(group.asked.alone_us / 1_000_000, self._linger_ends)
        self._lingering[group] = None

    def _linger_ends(self) -> None:
        lingering, self._lingering = self._lingering, {}
        for group in lingering:
            self.mark(group)

    def _set_timer(self, groups: Iterable[ReplicationGroup]) -> None:
        """Schedule a wake-up for the first of the groups' timers."""
        dues = [at for group in groups if (at := group.next_due) is not None]
        self._wake_at(min(dues, default=None), self._clock())

    def _wake_at(self, due: int | None, now: int) -> None:
        if due is None or due > now + TIMER_AHEAD_US or now < self._timer_at <= due:
            return
        self._timer_at = due
        self._call_later(max((due - now) / 1_000_000, 0.001), self._timers)

    def _timers(self) -> None:
        self._timer_at = 0
        now = self._clock()
        first: int | None = None
        for group in self._attended():
            due = group.next_due
            if due is None:
                continue
            if due <= now:
                self.mark(group)
            elif first is None or due < first:
                first = due
        self._wake_at(first, now)

    def _attended(self) -> list[ReplicationGroup]:
        return [self.ephemeral, *(hosted.group for hosted in self.durable.attended.groups.values())]

    def _all(self) -> list[ReplicationGroup]:
        return [self.ephemeral, *(hosted.group for hosted in self.groups.values())]

    # Flow

    def hold(self, connection: Connection, remote: bool) -> bool:
        """Pause a connection until groups here, and elsewhere if ``remote``, have room; return False
        if they have."""
        if not remote and not any(group.above_high_watermark for group in self._all()):
            return False
        self.held.add(connection)
        self._reactor.pause(connection, PAUSED_QUEUE)
        return True

    def _let_go(self, remote: bool) -> None:
        """Resume paused connections once all groups are below the low watermark."""
        if remote or not all(group.below_low_watermark for group in self._all()):
            return
        held, self.held = self.held, set()
        for connection in held:
            self._reactor.resume(connection, PAUSED_QUEUE)

    # Housekeeping

    def housekeeping(self) -> None:
        """Do periodic work; run by the shard's timer."""
        now = self._reactor.tally.now
        self._timers()
        self.durable.begin_housekeeping()
        self.group_files.housekeeping(self.durable.attended.groups, now)
        if now >= self._next_look:
            self._next_look = now + ROOM_SECONDS
            self._look_for_room()
            self._try_again()
        elif self.held and not self._surroundings.remote_above_high_watermark:
            self.wake()  # answers from other shards make room here
        self.durable.housekeeping()

    def _try_again(self) -> None:
        """Retry writes that wait for space and commands that wait for a busy log."""
        for log in self.logs.all():
            if log.wal.buffered_bytes and not log.failed:
                self.wake()
        for group in self._attended():
            if group.asked:
                self.mark(group)

    def _look_for_room(self) -> None:
        """Reject appends while the file system is nearly full, before a write fails."""
        wanted = self._settings.storage.min_free_bytes
        if not self._files.exists(self._paths.root):
            return  # nothing is stored yet
        free = shutil.disk_usage(self._paths.root).free
        self.low = low = wanted > 0 and free < wanted
        for hosted in self.groups.values():
            full = not hosted.group.write() or hosted.shared.full or low
            hosted.group.full = full
            if hosted.told_full != full:  # an append may have set it earlier
                hosted.told_full = full
                shared = hosted.shared
                problem = shared.problem if shared.full else hosted.group.writes.problem
                if not full:
                    what = "appends are accepted again"
                elif not low and isinstance(problem, OutOfDescriptors):
                    what = f"appends are refused: {problem}"
                else:
                    what = "appends are refused: the disk is nearly full"
                _log.warning(what, extra={"group": hosted.group.name, "free": free})

    # The end

    async def stop(self) -> None:
        """Finish pending writes, checkpoint every group and close."""
        await self.durable.checkpoint_all()
        self.finish()
        self.group_files.write_all(self.groups)
        self.durable.close()

    @property
    def idle(self) -> bool:
        """True while nothing is in flight in any group."""
        return all(group.idle for group in self._all() if not group.failed)


def _is_inactive(group: ReplicationGroup) -> bool:
    """Return whether a group has no timers, and nothing to write or to answer."""
    changes = group.machine.changed or group.machine.closed
    waits = group.full or not group.idle or not group.flush()
    return not (changes or waits) and group.next_due is None
