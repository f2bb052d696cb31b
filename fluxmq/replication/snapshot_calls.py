"""Serves snapshots of this shard's groups to other members: three calls on a group's own address.

* ``snapshot-manifest`` [least]: the contents (see `Manifest`), in chunks. Takes a checkpoint unless
  a source at entry `least` or beyond exists from which the group's log continues.
* ``snapshot-digest`` [index, term, [[queue, file, length], ...]]: a digest per prefix, one a chunk.
* ``snapshot-read`` [index, term, queue, file, position, length]: those bytes.

Requests are untrusted msgpack. A source is dropped when it is unused for a while or old, because it
keeps files that the group has removed. A fetch that still needs it is refused and requests a new
manifest; what it fetched is reused. Files are read in a thread, except for what is in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final, ParamSpec, TypeVar

import msgpack  # type: ignore[import-untyped]

from fluxmq.cluster.connection import StreamHello
from fluxmq.cluster.errors import CallRefused
from fluxmq.logs import get_logger
from fluxmq.replication.checkpoints import Checkpoints, Parts
from fluxmq.replication.open_group import AnyHosted
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.snapshots import GroupSnapshot
from fluxmq.storage.transfer import CHUNK_BYTES, TransferError
from fluxmq.storage.transfer_source import LiveLog, Pinned, SnapshotSource

MANIFEST: Final = "snapshot-manifest"
DIGEST: Final = "snapshot-digest"
READ: Final = "snapshot-read"

IDLE_SECONDS: Final = 60.0
"""Time for which an unused source is kept; a member that restarts meanwhile continues with it."""
FETCHED_SECONDS: Final = 15.0
"""Time after the last use of a source, or a fetcher's report, for which the group's log keeps later
entries: the fetcher continues from there."""
AGE_SECONDS_MAX: Final = 3600.0
"""Maximum lifetime of a source: it keeps data on disk that retention has removed since."""
SOURCES_MAX: Final = 2
"""Maximum number of a group's sources: the newest, and one that may still be being fetched."""
QUESTIONS_MAX: Final = 64
"""Maximum number of digests per call; each may cover a whole segment."""
READS_MAX: Final = 256
"""Maximum number of pieces of all groups being read and sent, 16 MiB in total; more calls wait."""
CHECKPOINT_SECONDS_MAX: Final = 60.0
"""Time limit for waiting on a checkpoint in progress."""
_STEP_SECONDS: Final = 0.01
_REQUEST_BYTES_MAX: Final = 1 << 20

P = ParamSpec("P")
T = TypeVar("T")
CallHandler = Callable[[StreamHello, bytes], AsyncIterator[bytes]]

_log = get_logger("fluxmq.cluster")


@dataclass(slots=True)
class _Kept:
    """A source, with its creation and last use in monotonic seconds."""

    source: SnapshotSource
    made: float
    used: float


@dataclass(slots=True)
class _Group:
    """A group's sources, newest first. `making`: one is made at a time."""

    kept: list[_Kept] = field(default_factory=list)
    making: asyncio.Lock = field(default_factory=asyncio.Lock)


class SnapshotCalls:
    """Serves snapshots of one shard's groups. ``find`` returns a group hosted here; ``now``:
    monotonic seconds."""

    def __init__(
        self,
        files: Files,
        paths: DataPaths,
        checkpoints: Checkpoints,
        executor: Executor,
        find: Callable[[str], AnyHosted | None],
        now: Callable[[], float],
    ) -> None:
        self.made = 0
        """Number of snapshots made for others."""
        self.sent_bytes = 0
        """Bytes of segments sent to others."""
        self._files = files
        self._paths = paths
        self._checkpoints = checkpoints
        self._executor = executor
        self._find = find
        self._now = now
        self._groups: dict[str, _Group] = {}
        self._reads = asyncio.Semaphore(READS_MAX)
        self._tasks: set[asyncio.Future[None]] = set()

    def handlers(self, group: str) -> Mapping[str, CallHandler]:
        """Return the handlers of calls from other members of a group."""

        def manifest(_hello: StreamHello, request: bytes) -> AsyncIterator[bytes]:
            return self._manifest(group, request)

        def digest(_hello: StreamHello, request: bytes) -> AsyncIterator[bytes]:
            return self._digest(group, request)

        def read(_hello: StreamHello, request: bytes) -> AsyncIterator[bytes]:
            return self._read(group, request)

        return {MANIFEST: manifest, DIGEST: digest, READ: read}

    # The calls

    async def _manifest(self, group: str, request: bytes) -> AsyncIterator[bytes]:
        match _fields(request):
            case [int(least)]:
                pass
            case _:
                raise CallRefused("the request is not understood")
        try:
            kept = await self._current(group, least)
            data = await self._run(kept.source.manifest)
        except StorageError as problem:
            raise self._refused(group, problem) from problem
        for at in range(0, len(data), CHUNK_BYTES):
            yield data[at : at + CHUNK_BYTES]

    async def _digest(self, group: str, request: bytes) -> AsyncIterator[bytes]:
        match _fields(request):
            case [int(index), int(term), [*questions]] if len(questions) <= QUESTIONS_MAX:
                pass
            case _:
                raise CallRefused("the request is not understood")
        for question in questions:
            match question:
                case [str(queue), str(file), int(length)]:
                    kept = self._known(group, index, term)
                case _:
                    raise CallRefused("the request is not understood")
            try:
                digest = await self._run(kept.source.digest, queue, file, length)
            except StorageError as problem:
                raise self._refused(group, problem) from problem
            yield digest

    async def _read(self, group: str, request: bytes) -> AsyncIterator[bytes]:
        match _fields(request):
            case [int(index), int(term), str(queue), str(file), int(position), int(length)]:
                kept = self._known(group, index, term)
            case _:
                raise CallRefused("the request is not understood")
        async with self._reads:
            try:
                # Recent appends are mostly in memory: a thread would cost more than the read.
                data = kept.source.read_now(queue, file, position, length)
                if data is None:
                    data = await self._run(kept.source.read, queue, file, position, length)
            except StorageError as problem:
                raise self._refused(group, problem) from problem
            self.sent_bytes += len(data)
            yield data

    def _known(self, group: str, index: int, term: int) -> _Kept:
        found = self._groups.get(group)
        for kept in found.kept if found is not None else ():
            if (kept.source.index, kept.source.term) == (index, term):
                kept.used = self._now()
                return kept
        raise CallRefused(f"snapshot {index} of group {group} is no longer kept")

    def _refused(self, group: str, problem: StorageError) -> CallRefused:
        if not isinstance(problem, TransferError):
            _log.warning(
                "cannot send a snapshot to another member",
                extra={"group": group, "problem": str(problem)},
            )
        return CallRefused(str(problem))

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in a thread."""
        assert not kwargs, "a thread is given positional arguments"
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *args)

    # Sources

    async def _current(self, group: str, least: int) -> _Kept:
        """Return a source at an entry or beyond, from which a member can continue. Raises
        CallRefused, StorageError."""
        found = self._groups.setdefault(group, _Group())
        async with found.making:
            hosted = self._find(group)
            if hosted is None or hosted.group.failed:
                raise CallRefused(f"group {group} is not here")
            newest = found.kept[0] if found.kept else None
            if newest is not None and newest.source.index + 1 >= max(
                hosted.log.first_index(), least + 1
            ):
                newest.used = self._now()
                return newest
            if hosted.group.applied_index < least:
                raise CallRefused(f"group {group} is here at {hosted.group.applied_index} only")
            source = await self.make(hosted)
            if self._find(group) is not hosted:
                await self._run(source.close)
                raise CallRefused(f"group {group} is no longer here")
            self.made += 1
            kept = _Kept(source, self._now(), self._now())
            found.kept.insert(0, kept)
            self._keep(group, found.kept)
            for older in found.kept[SOURCES_MAX:]:
                self._give_up(group, older)
            return kept

    async def make(self, hosted: AnyHosted) -> SnapshotSource:
        """Take a checkpoint and keep its segments until the source is closed.

        Raises CallRefused, StorageError.
        """
        name = hosted.group.name
        pinned = await self._run(Pinned, self._files, self._paths, name)
        try:
            await self._run(pinned.ahead, live_logs(hosted))
            await self._until_free(hosted)
            snapshot, lives = await self._checkpoint(hosted, pinned)
            return await self._run(
                SnapshotSource, self._files, self._paths, name, snapshot, pinned, lives
            )
        except BaseException:
            self._later(pinned.release)
            raise

    async def _until_free(self, hosted: AnyHosted) -> None:
        deadline = self._now() + CHECKPOINT_SECONDS_MAX
        while hosted.checkpointing:
            if self._now() > deadline:
                raise CallRefused(f"a checkpoint of group {hosted.group.name} takes too long")
            await asyncio.sleep(_STEP_SECONDS)

    async def _checkpoint(
        self, hosted: AnyHosted, pinned: Pinned
    ) -> tuple[GroupSnapshot, dict[str, str]]:
        taken: list[GroupSnapshot] = []
        problems: list[StorageError] = []
        lives: dict[str, str] = {}

        def captured(snapshot: GroupSnapshot, _parts: Parts) -> None:
            logs = live_logs(hosted)
            lives.update((queue, log.life) for queue, log in logs.items())
            taken.append(snapshot)
            try:
                pinned.complete(logs)
            except StorageError as problem:
                problems.append(problem)

        task = self._checkpoints.begin(hosted, captured)
        if task is not None:
            await task
        if problems:
            raise problems[0]
        if not taken or hosted.snapshot_index < taken[0].index:
            raise CallRefused(f"no checkpoint of group {hosted.group.name} can be taken now")
        return taken[0], lives

    def _give_up(self, group: str, kept: _Kept) -> None:
        self._groups[group].kept.remove(kept)
        self._later(kept.source.close)

    def _later(self, work: Callable[[], None]) -> None:
        """Run a removal in the background; the next start removes what it cannot."""

        def remove() -> None:
            try:
                work()
            except StorageError as problem:
                _log.warning("cannot remove a snapshot", extra={"problem": str(problem)})

        future = asyncio.get_running_loop().run_in_executor(self._executor, remove)
        self._tasks.add(future)
        future.add_done_callback(self._tasks.discard)

    # Time and end

    def housekeeping(self) -> None:
        """Drop unused and old sources; call it every second or so."""
        now = self._now()
        for group, found in list(self._groups.items()):
            for kept in list(found.kept):
                if now >= kept.used + IDLE_SECONDS or now >= kept.made + AGE_SECONDS_MAX:
                    self._give_up(group, kept)
            self._keep(group, found.kept)
            if not found.kept and not found.making.locked():
                del self._groups[group]

    def _keep(self, group: str, sources: Sequence[_Kept]) -> None:
        """Make the group's log keep entries behind the sources being fetched."""
        hosted, since = self._find(group), self._now() - FETCHED_SECONDS
        if hosted is not None:
            used = (each.source.index for each in sources if each.used >= since)
            hosted.keep_behind = min(used, default=0)

    def is_fetched(self, group: str) -> None:
        """Note a member's report that it is fetching a group's snapshot, usually the newest."""
        found = self._groups.get(group)
        if found is not None and found.kept:
            found.kept[0].used = self._now()

    async def forget(self, group: str) -> None:
        """Drop the sources of a group that is not hosted here any more, or is about to be
        reopened."""
        found = self._groups.get(group)
        for kept in list(found.kept) if found is not None else ():
            self._give_up(group, kept)
        await self.drain()

    async def close(self) -> None:
        """Drop all sources."""
        for group in list(self._groups):
            await self.forget(group)

    async def drain(self) -> None:
        """Wait for removals in progress."""
        if self._tasks:
            await asyncio.gather(*self._tasks)


def live_logs(hosted: AnyHosted) -> dict[str, LiveLog]:
    """Return a group's logs as they are now, after writing appended data. Raises StorageError."""
    found: dict[str, LiveLog] = {}
    for number, log in hosted.stores.by_number.items():
        log.flush()
        found[log.queue] = LiveLog(str(number), log.directory, log.state())
    return found


def _fields(request: bytes) -> Any:
    """Return the fields of a request, or None if it is malformed."""
    if len(request) > _REQUEST_BYTES_MAX:
        return None
    try:
        return msgpack.unpackb(request)
    except ValueError:
        return None
