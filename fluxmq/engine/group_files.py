"""Keeps every durable queue's `groups` file current, for readers outside the broker (Spark).

The file of a changed queue is written within a second or so, at most once a second: a few files per
housekeeping, longest waiting first. A file with many ranges takes longer and is written less often,
so that no queue takes more than a small share of the shard's time. Files are not synced and nothing
depends on them: a failed write is counted, logged and retried later.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from typing import Final

from fluxmq.engine.group import ReplicationGroup
from fluxmq.logs import get_logger
from fluxmq.logs.rate import RateLimited
from fluxmq.model.group_states import (
    GROUPS_NAME,
    MODES,
    RANGES_MAX,
    ConsumerGroupState,
    QueueGroups,
    Range,
    encode,
    joined,
)
from fluxmq.queues.groups import ConsumerGroup
from fluxmq.queues.states import QueueState
from fluxmq.replication.open_group import OpenGroup
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files

INTERVAL_SECONDS: Final = 1.0
"""Minimum time between two writes of one queue's file."""
SHARE: Final = 50
"""A slow file is rewritten after this multiple of its write time: 2 % of the time at most."""
RETRY_SECONDS: Final = 10.0
"""Delay before a failed write is retried: a full or failing disk has other troubles."""
FILES_MAX: Final = 20
"""Maximum number of files written per housekeeping, 100 µs each."""
TURN_SECONDS: Final = 0.002
"""Time budget of one housekeeping, because clients wait meanwhile; the next continues."""
LINES_PER_SECOND: Final = 0.1
"""Maximum rate of log lines about failed writes."""

BESIDE: Final = ".tmp"
"""Suffix of a file until it is complete."""

Key = tuple[str, int]
"""Name of a replication group and number of one of its queues."""


class GroupFiles:
    """The files of one shard's queues. `failures`: number of failed writes."""

    def __init__(
        self,
        files: Files,
        paths: DataPaths,
        clock: Callable[[], int],
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock`: µs since the epoch; `stopwatch`: seconds, to measure writes."""
        self.failures = 0
        self._files = files
        self._paths = paths
        self._clock = clock
        self._stopwatch = stopwatch
        self._changed: dict[Key, bool] = {}
        """Queues in the heap, and whether they have something to write."""
        self._due: list[tuple[float, Key]] = []
        self._log = RateLimited(get_logger("fluxmq.queues"), per_second=LINES_PER_SECOND, burst=1)

    def housekeeping(self, hosted: Mapping[str, OpenGroup[ReplicationGroup]], now: float) -> None:
        """Write some of the changed files that are due; `now`: seconds of any monotonic clock."""
        self._collect(hosted, now)
        due, written = self._due, 0
        if not due or due[0][0] > now:
            return
        end = self._stopwatch() + TURN_SECONDS
        while due and due[0][0] <= now and written < FILES_MAX:
            if written and self._stopwatch() > end:
                break
            _, key = heappop(due)
            if not self._changed[key]:
                del self._changed[key]
                continue
            written += 1
            again = self._write(hosted, key)
            if again is None:
                del self._changed[key]
            else:
                heappush(due, (now + again, key))

    def write_all(self, hosted: Mapping[str, OpenGroup[ReplicationGroup]]) -> None:
        """Write all changed files, at the end, when the state no longer changes."""
        self._collect(hosted, 0.0)
        for key, changed in self._changed.items():
            if changed:
                self._write(hosted, key)

    def _collect(self, hosted: Mapping[str, OpenGroup[ReplicationGroup]], now: float) -> None:
        """Collect the groups' changed queues."""
        for name, each in hosted.items():
            machine = each.group.machine
            if not machine.changed or each.stores.recovering or each.group.failed:
                continue
            for queue_id in machine.changed:
                key = (name, queue_id)
                if key not in self._changed:
                    heappush(self._due, (now, key))
                self._changed[key] = True
            machine.changed.clear()

    def _write(self, hosted: Mapping[str, OpenGroup[ReplicationGroup]], key: Key) -> float | None:
        """Write a queue's file; return seconds until the next write, or None if the queue is
        gone."""
        group, queue_id = key
        each = hosted.get(group)
        queue = None if each is None else each.group.machine.queues.get(queue_id)
        if queue is None:
            return None
        began = self._stopwatch()
        content = encode(state_of(queue, self._clock()))
        try:
            self._replace(f"{self._paths.queue(group, queue.name)}/{GROUPS_NAME}", content)
        except StorageError as error:
            self.failures += 1
            self._log.event(
                logging.WARNING,
                "write",
                "cannot write the file with a queue's consumer groups",
                queue=queue.name,
                error=str(error),
            )
            return RETRY_SECONDS
        self._changed[key] = False
        return max(INTERVAL_SECONDS, SHARE * (self._stopwatch() - began))

    def _replace(self, path: str, content: bytes) -> None:
        """Replace a file so that concurrent readers find the old or the new one; not synced."""
        files, beside = self._files, path + BESIDE
        fd = files.open_(beside, create=True)
        try:
            try:
                files.truncate(fd, 0)
                files.pwritev(fd, [content], 0)
            finally:
                files.close(fd)
            files.rename(beside, path)
        except StorageError:
            with contextlib.suppress(StorageError):
                files.unlink(beside)
            raise


def state_of(queue: QueueState, time: int) -> QueueGroups:
    """Return the contents of a queue's file at a time, µs since the epoch."""
    room = RANGES_MAX
    groups = []
    for group in queue.groups.values():
        ranges = len(group.pending) + len(group.dead)
        whole = ranges <= room
        room -= ranges if whole else 0
        groups.append(_state_of_group(group, whole=whole))
    return QueueGroups(time, queue.start, queue.next_offset, tuple(groups))


def _state_of_group(group: ConsumerGroup, *, whole: bool) -> ConsumerGroupState:
    pending: tuple[Range, ...] = ()
    dead: tuple[Range, ...] = ()
    if whole:
        pending = joined((each.first, each.last, each.state.attempts) for each in group.pending)
        dead = joined((each.first, each.last, int(each.state.reason)) for each in group.dead)
    return ConsumerGroupState(
        group.name,
        MODES[group.mode],
        group.filter.decode("utf-8", "backslashreplace"),
        group.cursor,
        len(group.members),
        pending,
        dead,
        group.floor,
        group.pending.count,
        group.dead.count,
        whole,
    )
