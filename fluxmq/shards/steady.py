"""This process's steady time (`fluxmq.model.steady`): read from clocks, steered, and saved on disk
for the next process.

Two clocks are read: the wall clock, and the one that counts from boot, including suspension, and
cannot be set. On a cluster node the start is a guess until other nodes have vouched for it; leaders
of replicated groups wait for that, for a short time.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from fluxmq.logs import RateLimited, get_logger
from fluxmq.model.steady import ClockReadings, SteadyClock, resumed
from fluxmq.settings.schema import Settings
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files

STEER_US: Final = 1_000_000
"""Interval of looks at the wall clock."""

MARK_US: Final = 30_000_000
"""Interval of marks on disk: after a crash and a start with a wrong clock, at most this much time
is counted twice."""

MOVED_US: Final = 1_000_000
"""A move of the wall clock against steady time that is marked at once: the node's downtime is
counted from the last wall clock reading."""

VOUCH_US: Final = 3_000_000
"""Maximum wait of a group's leader for other nodes to vouch for the time. A leader is in touch with
a majority, and each link begins with it; a leader that hears nothing continues without the
unobserved time."""

TOLD_US: Final = 60_000_000
"""Unobserved time that is worth a log line: more than a restart takes."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_BESIDE: Final = ".new"

_log = get_logger("fluxmq.clock")


def wall_us() -> int:
    """Return the wall clock, µs since the epoch."""
    return time.time_ns() // 1000


def elapsed_us() -> int:
    """Return the time since boot in µs, suspension included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def boot_id() -> str:
    """Return the identifier of this boot of the machine; empty if the kernel does not give one."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


class Clocks(NamedTuple):
    """The clocks of the machine, µs, and the name of its boot."""

    wall: Callable[[], int]
    elapsed: Callable[[], int]
    boot: str


class NodeClock:
    """Steady time in one process. `vouched`: its start needs other nodes' confirmation;
    `on_settled` is called when they have vouched for it, or the wait for them is over."""

    def __init__(
        self,
        files: Files,
        paths: DataPaths,
        shard: int,
        clocks: Clocks,
        on_settled: Callable[[], None],
        *,
        vouched: bool = False,
    ) -> None:
        self._files = files
        self._path = paths.clock(shard)
        self._clocks = clocks
        wall, elapsed = clocks.wall(), clocks.elapsed()
        mark = latest_mark(files, paths)
        start = resumed(mark, wall, elapsed, clocks.boot)
        self._clock = SteadyClock(start, elapsed)
        self._unseen = 0 if mark is None else start - mark.steady
        """Time unobserved before the start, as far as it counts; taken back if no node vouches for
        it."""
        self._drift = start - wall
        """Lead of steady time over the wall clock in the last mark."""
        self._steered_at = elapsed - STEER_US
        self._marked_at = elapsed - MARK_US
        self._waited_since = 0
        self._problems = RateLimited(_log, per_second=0.01, burst=1)
        self.settled = not vouched
        self._on_settled = on_settled
        self.target: Callable[[int], int | None] = lambda wall: wall
        """Maps the wall clock's reading to what it ought to show; None if that cannot be known."""
        if self._unseen > TOLD_US or self._drift > TOLD_US:
            _log.info(
                "steady time resumed",
                extra={"unseen": self._unseen // 1_000_000, "ahead": self._drift // 1_000_000},
            )

    def now(self) -> int:
        """Return steady time, µs since the epoch as far as it is right."""
        return self._clock.at(self._clocks.elapsed())

    def seconds(self) -> float:
        """Return steady time in seconds."""
        return self.now() / 1_000_000

    @property
    def ahead(self) -> int:
        """Lead of steady time over the wall clock, µs."""
        return self.now() - self._clocks.wall()

    def wall(self) -> int:
        """Return the wall clock, µs since the epoch."""
        return self._clocks.wall()

    def elapsed(self) -> int:
        """Return the time since boot, µs."""
        return self._clocks.elapsed()

    def is_known(self) -> bool:
        """Return whether the time is settled; the first call starts a wait of at most
        `VOUCH_US`."""
        if not self.settled and not self._waited_since:
            self._waited_since = self._clocks.elapsed()
        return self.settled

    def settle(self, correction: int) -> None:
        """Adopt the other nodes' time, once: `correction` is their lead."""
        if self.settled:
            return
        elapsed = self._clocks.elapsed()
        self._clock.step(elapsed, correction)
        if abs(correction) > MOVED_US:
            _log.warning(
                "this node's clock was corrected to the other nodes' time",
                extra={"corrected_by": round(correction / 1_000_000, 3)},
            )
        self.settled = True
        self._mark(elapsed, self._clocks.wall())
        self._on_settled()

    def housekeeping(self) -> None:
        """Do periodic work; run by the shard's timer."""
        elapsed = self._clocks.elapsed()
        if self._waited_since and not self.settled and elapsed - self._waited_since > VOUCH_US:
            self.settle(-self._unseen)
        if elapsed - self._steered_at < STEER_US:
            return
        self._steered_at = elapsed
        wall = self._clocks.wall()
        self._clock.steer(elapsed, self.target(wall))
        moved = abs(self._clock.at(elapsed) - wall - self._drift) > MOVED_US
        if moved or elapsed - self._marked_at >= MARK_US:
            self._mark(elapsed, wall)

    def _mark(self, elapsed: int, wall: int) -> None:
        """Save the clocks for the next process. Not synced: an older mark will do, unless a clock
        was set since."""
        if not self.settled:
            return  # a time that may be taken back is no start for another process
        self._marked_at = elapsed
        steady = self._clock.at(elapsed)
        self._drift = steady - wall
        mark = ClockReadings(steady, wall, elapsed, self._clocks.boot)
        try:
            _replace(self._files, self._path, mark.encode())
        except StorageError as error:
            self._problems.event(logging.WARNING, "mark", "cannot write the clock file: %s", error)


def make_clock(settings: Settings, shard: int, on_settled: Callable[[], None]) -> NodeClock:
    """Begin a shard's steady time. Raises nothing: without a readable mark it starts from the wall
    clock."""
    cluster = settings.cluster
    return NodeClock(
        Files(),
        DataPaths(settings.storage.data_dir),
        shard,
        Clocks(wall_us, elapsed_us, boot_id()),
        on_settled,
        vouched=cluster.enabled and cluster.raft.enabled and bool(cluster.transport.peers),
    )


def latest_mark(files: Files, paths: DataPaths) -> ClockReadings | None:
    """Return the latest mark of any of the node's shards, whose number may have changed."""
    marks = []
    with contextlib.suppress(StorageError):
        for name in files.listdir(paths.shards) if files.exists(paths.shards) else ():
            if name.isdecimal() and files.exists(paths.clock(int(name))):
                with contextlib.suppress(StorageError):
                    marks.append(ClockReadings.decode(files.read_file(paths.clock(int(name)))))
    return max((mark for mark in marks if mark is not None), default=None)


def _replace(files: Files, path: str, content: bytes) -> None:
    """Replace a file; readers find the old one, the new one or, after a power failure, an invalid
    one."""
    beside = path + _BESIDE
    fd = files.open_(beside, create=True)
    try:
        files.truncate(fd, 0)
        files.pwritev(fd, [content], 0)
    finally:
        files.close(fd)
    files.rename(beside, path)
