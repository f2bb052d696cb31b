"""Batches, and logs of them, for the tests of storage: what was appended, and what is on the disk."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

import xxhash

from fluxmq.model.batch_format import Batch, parse
from fluxmq.model.message_batch import build_message
from fluxmq.storage.batch_cache import BatchCache
from fluxmq.storage.files import Files
from fluxmq.storage.log_state import LogState
from fluxmq.storage.queue_log import QueueLog, SegmentOptions

SECOND = 1_000_000
SMALL = SegmentOptions(segment_bytes=32 << 10, segment_age=3600 * SECOND, index_bytes=4 << 10)
"""Segments that hold a few dozen batches, with several index entries."""


def batch(offset: int, payload: bytes, time: int | None = None, term: int = 1) -> Batch:
    """One message as a batch that was stamped; by default a second after the one before it."""
    made = parse(build_message(b"key", b"", payload, 0))
    made.stamp(offset, offset * SECOND if time is None else time, term)
    return made


def batch_of(offset: int, payloads: list[bytes]) -> Batch:
    """Several messages, a second apart, as one stamped batch; written out as the format says."""
    ends = [0, *accumulate(map(len, payloads))]
    times = [index * SECOND for index in range(len(payloads))]
    body = struct.pack(f"<{len(times)}i{len(ends)}i", *times, *ends) + b"key" + b"".join(payloads)
    body += bytes(-len(body) % 8)
    fields = [0, 0, xxhash.xxh3_64_intdigest(body), len(payloads), 3, 0, ends[-1], 0, times[-1]]
    start = [int.from_bytes(b"FLXB", "little"), 0, 64 + len(body), 1, 0, 1]
    header = struct.pack("<IIIBBHQqQIIIIIi", *start, *fields)
    check = xxhash.xxh3_64_intdigest(header) & 0xFFFF_FFFF
    made = parse(header[:4] + struct.pack("<I", check) + header[8:] + body)
    made.stamp(offset, offset * SECOND, 1)
    return made


def payload(offset: int, size: int = 600) -> bytes:
    """What the message with an offset holds."""
    return (f"message {offset} " * (size // 8 + 1)).encode()[:size]


def batches(count: int, first: int = 0, size: int = 600) -> list[Batch]:
    """Batches of one message each, of about `size` bytes."""
    return [batch(offset, payload(offset, size)) for offset in range(first, first + count)]


def opened(
    directory: Path,
    state: LogState | None = None,
    *,
    options: SegmentOptions = SMALL,
    files: Files | None = None,
    cached: bool = False,
    recovering: bool = False,
) -> QueueLog:
    """A log of the queue "orders"; `cached`: appended batches stay in memory."""
    cache = BatchCache() if cached else BatchCache(recent_bytes=0, window_bytes=0)
    return QueueLog.open(
        files or Files(),
        str(directory),
        "orders",
        options,
        state,
        cache=cache,
        recovering=recovering,
    )


def fill(log: QueueLog, made: Iterable[Batch], per_flush: int = 7) -> None:
    """Append, with a flush after every few."""
    for number, each in enumerate(made, 1):
        log.append(each)
        if number % per_flush == 0:
            log.flush()
    log.flush()


def contents(directory: Path) -> dict[str, bytes]:
    """All segments and indexes of a log, by name."""
    return {
        name: (directory / name).read_bytes()
        for name in sorted(os.listdir(directory))
        if name != "head"
    }


def checkpoint(log: QueueLog) -> LogState:
    """Sync everything and give the state."""
    unsynced = log.unsynced()
    unsynced.sync()
    log.synced(unsynced)
    return unsynced.state


def assert_holds(log: QueueLog, first: int, end: int, size: int = 600) -> None:
    """Every offset reads as what was appended under it."""
    assert (log.start_offset, log.next_offset) == (first, end)
    for offset in range(first, end):
        found = log.read(offset)
        assert found.base_offset == offset
        assert found.payload(0) == payload(offset, size)
        assert found.time(0) == offset * SECOND
