"""Options of a queue's log, and the errors of its limits. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from fluxmq.model.segments import (
    FOOTER_BYTES,
    PAGE_BYTES,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
)
from fluxmq.storage.errors import StorageError


class OffsetOutOfRange(StorageError):  # noqa: N818 (the name of the condition)
    """No message has this offset: it was removed, or is not yet written."""

    def __init__(self, queue: str, offset: int, start: int, next_offset: int) -> None:
        super().__init__(f"queue {queue!r} has offsets {start} up to {next_offset}, not {offset}")
        self.offset = offset
        self.start = start
        self.next_offset = next_offset


class BatchTooLarge(StorageError):  # noqa: N818 (the name of the condition)
    """A batch that no segment of this log can hold."""


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """Size and age at which segments roll, and index density: bytes, µs (0: no age limit), bytes.

    The first two must be the same in every replica of a log and when entries are replayed: they
    decide which file holds what.
    """

    segment_bytes: int = 64 << 20
    segment_age: int = 7 * 86_400 * 1_000_000
    index_bytes: int = 64 << 10

    def __post_init__(self) -> None:
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(
                f"segments of {self.segment_bytes} bytes; {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"
            )
        if self.segment_age < 0 or self.index_bytes <= 0:
            raise ValueError("no segment age is below zero, no index interval zero")

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that fits into a segment."""
        return self.segment_bytes - PAGE_BYTES - FOOTER_BYTES
