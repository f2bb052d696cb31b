"""Reads sealed segments of replicated groups, slowly and continuously, so that damage is found
while other nodes have copies.

Most of what a queue keeps is not read otherwise until a consumer wants it. Every pass reads each
sealed segment of each group here once, batch by batch, in a thread that rests most of the time.
Damaged segments are fetched anew from the leader (`Damages`). A member that fetched a damaged
segment from here reports it, and that segment is checked next.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from fluxmq.model.segments import segment_name
from fluxmq.net.links import FrameLink
from fluxmq.replication.replica import Replica
from fluxmq.replication.snapshot_calls import live_logs
from fluxmq.storage.errors import Corruption, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.inspect import read_through
from fluxmq.storage.log_state import SegmentState

BYTES_PER_SECOND: Final = 8 << 20
"""Maximum read rate: little beside the throughput of disks, and a terabyte in a day and a half."""
TURN_SECONDS: Final = 0.0005
"""Time to check batches without a rest: the thread shares the interpreter with the shard's loop."""
SHARE: Final = 50
"""Ratio of a rest to the turn before it: at most 2 % of a core, however small the batches are."""
PASS_SECONDS: Final = 600.0
"""Interval between two passes over a group: a small one is not read all the time."""
LOOK_SECONDS: Final = 1.0
"""Interval between two checks for groups that are due."""
ASKED_MAX: Final = 64
"""Maximum number of segments that others reported as damaged and that are still to be checked;
beyond it the oldest are left to the next pass.
"""


class Sealed(NamedTuple):
    """A sealed segment as it should be: its queue, the queue's directory, its file, its state."""

    queue: str
    directory: str
    file: str
    state: SegmentState


class Pacer:
    """Paces the reader. ``clock``: seconds; ``rest``: waits for seconds, or raises to end it."""

    def __init__(self, clock: Callable[[], float], rest: Callable[[float], None]) -> None:
        self.bytes = 0
        """Bytes read so far."""
        self._clock = clock
        self._rest = rest
        self._position = 0
        self._turn_bytes = 0
        self._turn = 0.0

    def begin(self) -> None:
        """Begin another file, and a turn."""
        self._position = self._turn_bytes = 0
        self._turn = self._clock()

    def read(self, position: int) -> None:
        """Account for a file that was read up to a position, and rest if due."""
        size = position - self._position
        self._position = position
        self.bytes += size
        self._turn_bytes += size
        now = self._clock()
        worked = now - self._turn
        due = self._turn_bytes / BYTES_PER_SECOND
        if worked >= TURN_SECONDS or due >= TURN_SECONDS * (1 + SHARE):
            self._rest(max(worked * SHARE, due - worked))
            self._turn_bytes = 0
            self._turn = self._clock()


class Scrub:
    """Scrubs the segments of one shard's groups. ``met`` is called with a damaged group, and the
    damage."""

    def __init__(
        self,
        replicas: Mapping[str, Replica],
        met: Callable[[str, str], None],
        files: Files,
        now: Callable[[], float],
    ) -> None:
        self._replicas = replicas
        self._met = met
        self._files = files
        self._now = now
        self._thread = ThreadPoolExecutor(1, "scrub")
        self._stopping = threading.Event()
        self._pacer = Pacer(time.monotonic, self._rest)
        self._due: dict[str, float] = {}
        self._asked: deque[tuple[str, str, str]] = deque(maxlen=ASKED_MAX)
        self._task: asyncio.Task[None] | None = None

    @property
    def bytes(self) -> int:
        """Bytes checked so far."""
        return self._pacer.bytes

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {"damaged": self._on_damaged}

    def start(self) -> None:
        """Begin, in the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop at the next pause."""
        self._stopping.set()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown(wait=False)

    def _rest(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise _Stopped

    def _on_damaged(
        self, _link: FrameLink, group: str, _member: int, directory: str, file: str
    ) -> None:
        """Note a segment fetched from here that a member found damaged, here or in its copy."""
        self._asked.append((group, directory, file))

    async def _run(self) -> None:
        while True:
            while self._asked:
                group, directory, file = self._asked.popleft()
                await self._look(group, partial(_is_file, directory, file))
            for group in list(self._replicas):
                now = self._now()
                if now >= self._due.get(group, 0.0) and await self._look(group, lambda _each: True):
                    self._due[group] = self._now() + PASS_SECONDS
            self._due = {group: due for group, due in self._due.items() if group in self._replicas}
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, group: str, wanted: Callable[[Sealed], bool]) -> bool:
        """Check a group's ``wanted`` segments; return whether its state allowed that."""
        replica = self._replicas.get(group)
        if replica is None or not _is_steady(replica):
            return False
        for segment in [each for each in sealed_segments(replica) if wanted(each)]:
            if self._replicas.get(group) is not replica or replica.hosted.group.failed:
                return True
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._thread, self._check, segment)
            if found and self._replicas.get(group) is replica:
                self._met(group, found)
                return True
        return True

    def _check(self, segment: Sealed) -> str:
        """Return the damage of a segment; empty if there is none, or the segment has gone."""
        path = f"{segment.directory}/{segment.file}"
        self._pacer.begin()
        try:
            read_through(self._files, path, segment.queue, segment.state, self._pacer.read)
        except Corruption as damage:
            return str(damage) if self._files.exists(path) else ""
        except (StorageError, _Stopped):
            return ""  # it has gone, or cannot be read now: the next reader reports the problem
        return ""


class _Stopped(Exception):  # noqa: N818 (the end of the thread's work, not an error)
    """The shard stops."""


def _is_file(directory: str, file: str, segment: Sealed) -> bool:
    """Return whether a segment has this queue directory (name only) and this file."""
    return segment.directory.endswith(f"/{directory}") and segment.file == file


def _is_steady(replica: Replica) -> bool:
    """Return whether the files match the log and the snapshot."""
    return not replica.hosted.group.failed and not replica.hosted.stores.recovering


def sealed_segments(replica: Replica) -> Iterator[Sealed]:
    """Yield all sealed segments of a group; none if appended data cannot be written."""
    try:
        logs = live_logs(replica.hosted)
    except StorageError:
        return
    for queue, log in logs.items():
        for state in log.state.segments:
            if state.sealed:
                yield Sealed(queue, log.directory, segment_name(state.base_offset), state)
