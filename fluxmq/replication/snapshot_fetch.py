"""Fetches the missing parts of another member's snapshot of a group, beside the running group.

A few pieces are in flight at a time to keep the other's disk and the network busy together; a limit
of bytes per second leaves room for others. After an early end (the other restarts or refuses, a
full disk, cancellation) received data stays on disk, and the next fetch continues from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeVar

import msgpack  # type: ignore[import-untyped]

from fluxmq.replication.snapshot_calls import DIGEST, MANIFEST, QUESTIONS_MAX, READ
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.files import Files
from fluxmq.storage.transfer import DIGEST_BYTES, MANIFEST_BYTES_MAX, Piece, TransferError
from fluxmq.storage.transfer_target import SnapshotTarget

UNDER_WAY: Final = 64
"""Pieces in flight: 4 MiB together, more than a fast network holds at once."""
MANIFEST_SECONDS: Final = 120.0
"""Time limit for a manifest, for which the other takes a checkpoint and syncs."""
DIGEST_SECONDS: Final = 120.0
"""Time limit for the digests of one call, for which the other reads up to as many segments."""
READ_SECONDS: Final = 30.0
"""Time limit for a piece."""

T = TypeVar("T")
Call = Callable[[str, bytes, float], AsyncIterator[bytes]]
"""Calls the other member: name, request, seconds; yields chunks. As `Dialer.call`."""


class Pace:
    """Spreads bytes over time. `bytes_per_second`: 0 for no limit."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free = 0.0

    async def wait(self, size: int) -> None:
        """Wait until this many bytes may be requested."""
        if not self._rate:
            return
        now = asyncio.get_running_loop().time()
        begins = max(self._free, now)
        self._free = begins + size / self._rate
        if begins > now:
            await asyncio.sleep(begins - now)


async def fetch(
    call: Call,
    files: Files,
    paths: DataPaths,
    group: str,
    executor: Executor,
    *,
    least: int = 0,
    thorough: bool = False,
    pace: Pace | None = None,
    began: Callable[[SnapshotTarget], None] = lambda _target: None,
) -> SnapshotTarget:
    """Fetch a snapshot of a group, at entry `least` or beyond; return it durable, ready for its
    `install`.

    `executor` has one thread, for work on files. `pace`: shared by all fetches. `thorough`: see
    `SnapshotTarget`. `began` gets the target early, to follow its progress. Raises CallRefused,
    CallFailed, TransferError (invalid data) and other StorageErrors.
    """

    reader = _MemberReader(call, executor, pace or Pace(0))
    manifest = await reader.manifest(least)
    target = await reader.run(
        lambda: SnapshotTarget(files, paths, group, manifest, thorough=thorough)
    )
    began(target)
    try:
        await reader.confirm(target)
        await reader.run(target.begin)
        await reader.pieces(target)
        await reader.run(target.prepare)
    except BaseException:
        # Runs after the thread's pending work; a cancelled caller does not wait for it.
        executor.submit(target.close)
        raise
    return target


class _MemberReader:
    """Requests data from one member and passes it to a target in the thread."""

    def __init__(self, call: Call, executor: Executor, pace: Pace) -> None:
        self._call = call
        self._executor = executor
        self._pace = pace

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def manifest(self, least: int) -> bytes:
        """Return the other member's manifest."""
        request = msgpack.packb([least])
        return await _whole(self._call(MANIFEST, request, MANIFEST_SECONDS), MANIFEST_BYTES_MAX)

    async def confirm(self, target: SnapshotTarget) -> None:
        """Compare prefixes of files by the other's digests."""
        snapshot = target.manifest.snapshot
        while questions := await self.run(lambda: target.questions(QUESTIONS_MAX)):
            asked = [[each.queue, each.file, each.length] for each in questions]
            request = msgpack.packb([snapshot.index, snapshot.term, asked])
            size = DIGEST_BYTES * len(questions)
            answer = await _whole(self._call(DIGEST, request, DIGEST_SECONDS), size)
            if len(answer) != size:
                raise TransferError(f"{len(answer)} bytes of digests instead of {size}")
            digests = [answer[at : at + DIGEST_BYTES] for at in range(0, size, DIGEST_BYTES)]
            for question, digest in zip(questions, digests, strict=True):
                await self.run(partial(target.matches, question, digest))

    async def pieces(self, target: SnapshotTarget) -> None:
        """Fetch everything missing, several pieces at once; the first error ends all."""
        pieces = target.pieces()
        tasks = [
            asyncio.get_running_loop().create_task(self._take(target, pieces))
            for _ in range(UNDER_WAY)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, target: SnapshotTarget, pieces: Iterator[Piece]) -> None:
        snapshot = target.manifest.snapshot
        for piece in pieces:
            await self._pace.wait(piece.length)
            request = msgpack.packb([snapshot.index, snapshot.term, *piece])
            data = await _whole(self._call(READ, request, READ_SECONDS), piece.length)
            await self.run(partial(target.write, piece, data))


async def _whole(chunks: AsyncIterator[bytes], most: int) -> bytes:
    """Return all chunks of an answer, at most `most` bytes. Raises TransferError if there are
    more."""
    found: list[bytes] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > most:
            raise TransferError(f"an answer of more than {most} bytes")
        found.append(chunk)
    return b"".join(found)
