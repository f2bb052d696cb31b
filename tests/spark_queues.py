"""Data directories with queues in them, made without a broker: what the tests of the Spark package read.

Written by the broker's own log (``fluxmq.storage.queue_log``), so that what is read is what a broker writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from fluxmq.model.batch_format import parse
from fluxmq.model.batches import BatchMessage, encode
from fluxmq.storage.directory import DataPaths, check_version
from fluxmq.storage.files import Files
from fluxmq.storage.log_state import LogState
from fluxmq.storage.queue_log import QueueLog, SegmentOptions

EPOCH_US = 1_790_000_000_000_000
"""Time of the first message, µs since the epoch: 2026-09-21T14:13:20Z. Each later one is a millisecond younger."""

SMALL = SegmentOptions(segment_bytes=64 << 10, index_bytes=4 << 10)
"""Segments that a few hundred messages fill, each with several index entries."""


class QueueOnDisk:
    """One queue's log under ``root/groups/<group>/queues/<queue>``; appends what it is given and keeps all of it.

    ``messages`` has every message by offset. ``close`` when done; the files stay.
    """

    def __init__(
        self,
        root: Path,
        queue: str = "orders",
        *,
        group: str = "default",
        options: SegmentOptions = SMALL,
    ) -> None:
        files = Files()
        paths = DataPaths(str(root))
        root.mkdir(parents=True, exist_ok=True)
        if not (root / "VERSION").exists():
            (root / "VERSION").write_text("fluxmq data 1\n")
        check_version(files, paths)
        self.root = root
        self.directory = Path(paths.queue(group, queue))
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        self.log = QueueLog.open(files, str(self.directory), queue, options, LogState(0, 0, ()))
        self.messages: list[BatchMessage] = []

    def append(self, messages: Sequence[BatchMessage], term: int = 1) -> int:
        """Append one batch of messages, which become readable at once; returns the first one's offset."""
        base = len(self.messages)
        batch = parse(encode(messages))
        batch.stamp(base, messages[0].time_us, term)
        self.log.append(batch)
        self.log.flush()
        self.messages.extend(messages)
        return base

    def fill(
        self, count: int, *, size: int = 64, per_batch: int = 10, key: bytes = b"orders/eu"
    ) -> None:
        """Append ``count`` messages of ``size`` bytes that begin with their offset."""
        messages = (
            BatchMessage(
                key, b"", f"{offset} ".encode().ljust(size, b"."), EPOCH_US + offset * 1000
            )
            for offset in range(len(self.messages), len(self.messages) + count)
        )
        while batch := list(islice(messages, per_batch)):
            self.append(batch)

    def trim(self, start: int) -> None:
        """Let retention remove what is before ``start``, whole segments at a time."""
        self.log.trim(start)
        self.log.flush()

    def segments(self) -> list[Path]:
        """The segment files, oldest first."""
        return sorted(self.directory.glob("*.seg"))

    def close(self) -> None:
        """Close the files."""
        self.log.flush()
        self.log.close()


def messages_of(
    payloads: Iterable[bytes], *, key: bytes = b"", properties: bytes = b""
) -> list[BatchMessage]:
    """Messages with these payloads, a millisecond apart."""
    return [
        BatchMessage(key, properties, payload, EPOCH_US + index * 1000)
        for index, payload in enumerate(payloads)
    ]
