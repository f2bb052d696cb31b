"""Keeps the file `groups` of every durable queue current, for readers outside the broker (Spark).

A queue that entries have changed is written within a second or so, at most once a second: a few files at each
housekeeping, the one that has waited longest first. A file with many ranges takes longer and is written
less often, so that no queue takes more than a small part of the shard's time. Nothing is synced and nothing depends on it:
when it cannot be written, that is counted and said, and tried again later.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from typing import Final

from fluxmq.logs import get_logger
from fluxmq.logs.rate import RateLimited
from fluxmq.model.group_states import (
    GROUPS_NAME,
    MODES,
    RANGES_MAX,
    GroupState,
    QueueGroups,
    Range,
    encode,
    joined,
)
from fluxmq.queues.groups import Group as ConsumerGroup
from fluxmq.queues.states import Queue
from fluxmq.shards.queues.hosted import Hosted
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files

INTERVAL_SECONDS: Final = 1.0
"""Time between two writes of one queue's file."""
SHARE: Final = 50
"""A file that took long is written again only after so many times as long: 2 % of the time at most."""
RETRY_SECONDS: Final = 10.0
"""Time until a write that failed is tried again: a full or failing disk has other troubles."""
FILES_MAX: Final = 20
"""Files written in one housekeeping, 100 µs each."""
TURN_SECONDS: Final = 0.002
"""Time after which a housekeeping leaves the other files to the next one: clients wait meanwhile."""
LINES_PER_SECOND: Final = 0.1
"""Lines that say that a file could not be written."""

BESIDE: Final = ".tmp"
"""What a file is called until it is whole."""

Key = tuple[str, int]
"""A replication group's name and the number of one of its queues."""


class GroupFiles:
    """The files of one shard's queues. `failures`: writes that failed."""

    def __init__(
        self,
        files: Files,
        paths: DataPaths,
        clock: Callable[[], int],
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock`: µs since the epoch; `stopwatch`: seconds, for how long writing takes."""
        self.failures = 0
        self._files = files
        self._paths = paths
        self._clock = clock
        self._stopwatch = stopwatch
        self._changed: dict[Key, bool] = {}
        """Queues that stand in the heap, and whether there is something to write."""
        self._due: list[tuple[float, Key]] = []
        self._log = RateLimited(get_logger("fluxmq.queues"), per_second=LINES_PER_SECOND, burst=1)

    def housekeeping(self, hosted: Mapping[str, Hosted], now: float) -> None:
        """Write some of what has changed and is due; `now` in seconds, of any clock that does not go back."""
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

    def write_all(self, hosted: Mapping[str, Hosted]) -> None:
        """Write all that has changed; for the end, when the state stays as it is."""
        self._collect(hosted, 0.0)
        for key, changed in self._changed.items():
            if changed:
                self._write(hosted, key)

    def _collect(self, hosted: Mapping[str, Hosted], now: float) -> None:
        """Take from the groups which queues have changed."""
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

    def _write(self, hosted: Mapping[str, Hosted], key: Key) -> float | None:
        """Write a queue's file; the seconds until it may be written again, None when the queue has gone."""
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
                "the file with a queue's consumer groups could not be written",
                queue=queue.name,
                error=str(error),
            )
            return RETRY_SECONDS
        self._changed[key] = False
        return max(INTERVAL_SECONDS, SHARE * (self._stopwatch() - began))

    def _replace(self, path: str, content: bytes) -> None:
        """Replace a file so that who reads it meanwhile finds the old one or the new one; not synced."""
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


def state_of(queue: Queue, time: int) -> QueueGroups:
    """Return what a queue's file says at a time, µs since the epoch."""
    room = RANGES_MAX
    groups = []
    for group in queue.groups.values():
        ranges = len(group.pending) + len(group.dead)
        whole = ranges <= room
        room -= ranges if whole else 0
        groups.append(_state_of_group(group, whole=whole))
    return QueueGroups(time, queue.start, queue.next_offset, tuple(groups))


def _state_of_group(group: ConsumerGroup, *, whole: bool) -> GroupState:
    pending: tuple[Range, ...] = ()
    dead: tuple[Range, ...] = ()
    if whole:
        pending = joined((each.first, each.last, each.fate.attempts) for each in group.pending)
        dead = joined((each.first, each.last, int(each.fate.reason)) for each in group.dead)
    return GroupState(
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
