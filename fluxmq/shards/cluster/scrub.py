"""Reads sealed segments of replicated groups through, slowly and all the time, so that damage is found while others have copies.

Nothing else looks at most of what a queue keeps before somebody wants it. Every pass takes each sealed segment of each group
here once, batch by batch, in a thread that rests most of the time. What is damaged is fetched anew from whoever leads
(`Damages`). A member that fetched a damaged segment from here says so, and that one is looked at next.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from fluxmq.model.segments import segment_name
from fluxmq.net.links import FrameLink
from fluxmq.shards.queues.snapshot_calls import live_logs
from fluxmq.storage.errors import Corruption, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.inspect import read_through
from fluxmq.storage.log_state import SegmentState

if TYPE_CHECKING:
    from fluxmq.shards.cluster.replica import Replica
    from fluxmq.shards.cluster.wiring import Cluster

BYTES_PER_SECOND: Final = 8 << 20
"""Read at most: little beside what disks give, and a terabyte in a day and a half."""
TURN_SECONDS: Final = 0.0005
"""How long batches are looked at without a rest: the thread shares the interpreter with the shard's loop."""
SHARE: Final = 50
"""A rest is so many times as long as the turn: 2 % of a processor at most, however small the batches are."""
PASS_SECONDS: Final = 600.0
"""Time between two passes over a group: one that is small is not read all the time."""
LOOK_SECONDS: Final = 1.0
"""Time between two looks at what is due."""
ASKED_MAX: Final = 64
"""Segments that others found damaged and that are still to be looked at; the oldest of more are left to the next pass."""


class Sealed(NamedTuple):
    """A sealed segment as it is to be: its queue and that one's directory, its file, its state."""

    queue: str
    directory: str
    file: str
    state: SegmentState


class Pacer:
    """Says when who reads has to rest. ``clock``: seconds; ``rest``: waits for so long, and raises to end it all."""

    def __init__(self, clock: Callable[[], float], rest: Callable[[float], None]) -> None:
        self.bytes = 0
        """Bytes read so far."""
        self._clock = clock
        self._rest = rest
        self._position = 0
        self._turn_bytes = 0
        self._turn = 0.0

    def begin(self) -> None:
        """Another file begins, and a turn."""
        self._position = self._turn_bytes = 0
        self._turn = self._clock()

    def read(self, position: int) -> None:
        """A file was read up to a position."""
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
    """Looks through the segments of one shard's groups."""

    def __init__(self, cluster: Cluster, files: Files) -> None:
        self._cluster = cluster
        self._files = files
        self._thread = ThreadPoolExecutor(1, "scrub")
        self._stopping = threading.Event()
        self._pacer = Pacer(time.monotonic, self._rest)
        self._due: dict[str, float] = {}
        self._asked: deque[tuple[str, str, str]] = deque(maxlen=ASKED_MAX)
        self._task: asyncio.Task[None] | None = None

    @property
    def bytes(self) -> int:
        """Bytes looked at so far."""
        return self._pacer.bytes

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Who takes which control frame."""
        return {"damaged": self._on_damaged}

    def start(self) -> None:
        """Begin, in the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End it, at the next rest."""
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
        """A member has fetched a segment from here that is damaged: it, or what the member has of it by now."""
        self._asked.append((group, directory, file))

    async def _run(self) -> None:
        while True:
            while self._asked:
                group, directory, file = self._asked.popleft()
                await self._look(group, partial(_is_file, directory, file))
            for group in list(self._cluster.replicas):
                now = self._cluster.now()
                if now >= self._due.get(group, 0.0) and await self._look(group, lambda _each: True):
                    self._due[group] = self._cluster.now() + PASS_SECONDS
            self._due = {
                group: due for group, due in self._due.items() if group in self._cluster.replicas
            }
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, group: str, wanted: Callable[[Sealed], bool]) -> bool:
        """Look through a group's segments, as far as they are wanted; whether it was in a state to be looked at."""
        replica = self._cluster.replicas.get(group)
        if replica is None or not _is_steady(replica):
            return False
        for segment in [each for each in sealed_segments(replica) if wanted(each)]:
            if self._cluster.replicas.get(group) is not replica or replica.hosted.group.failed:
                return True
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._thread, self._check, segment)
            if found and self._cluster.replicas.get(group) is replica:
                self._cluster.damages.met(group, found)
                return True
        return True

    def _check(self, segment: Sealed) -> str:
        """What is wrong with a segment; empty if nothing is, or it has gone meanwhile."""
        path = f"{segment.directory}/{segment.file}"
        self._pacer.begin()
        try:
            read_through(self._files, path, segment.queue, segment.state, self._pacer.read)
        except Corruption as damage:
            return str(damage) if self._files.exists(path) else ""
        except (StorageError, _Stopped):
            return (
                ""  # it has gone, or cannot be read now: whoever wants it says what is the matter
            )
        return ""


class _Stopped(Exception):  # noqa: N818 (the end of the thread's work, not an error)
    """The shard stops."""


def _is_file(directory: str, file: str, segment: Sealed) -> bool:
    """Whether a segment is that of a queue's directory (its name alone) and file."""
    return segment.directory.endswith(f"/{directory}") and segment.file == file


def _is_steady(replica: Replica) -> bool:
    """Whether the files are what the log and the snapshot say."""
    return not replica.hosted.group.failed and not replica.hosted.stores.recovering


def sealed_segments(replica: Replica) -> Iterator[Sealed]:
    """All sealed segments of a group; none if what was appended cannot be written."""
    try:
        logs = live_logs(replica.hosted)
    except StorageError:
        return
    for queue, log in logs.items():
        for state in log.state.segments:
            if state.sealed:
                yield Sealed(queue, log.directory, segment_name(state.base_offset), state)
