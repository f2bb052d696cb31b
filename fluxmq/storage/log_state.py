"""A queue log's state in a checkpoint: its segments, and how far each was written.

Values only; no files. A snapshot holds one for each queue of the group, and the log is reopened
with it: later bytes are unknown until the write-ahead log has been replayed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fluxmq.model.segments import FOOTER_BYTES, INDEX_CHAIN_START, PAGE_BYTES

HASH_BYTES: Final = 16


class SegmentState(NamedTuple):
    """One segment. Times in µs since the epoch; `length`: bytes of page and batches, without the
    footer.

    `index_*`: entries, position of the last one, and check of the index so far; used only for the
    growing segment, since a sealed one's file carries its own check. `bytes_max`: the size at which
    it is full, 0 for the options' value.
    """

    base_offset: int
    next_offset: int
    length: int
    created: int
    last_time: int
    sealed: bool
    hash: bytes
    index_entries: int = 0
    index_position: int = PAGE_BYTES
    index_check: int = INDEX_CHAIN_START
    bytes_max: int = 0

    @property
    def file_bytes(self) -> int:
        """The file's length."""
        return self.length + (FOOTER_BYTES if self.sealed else 0)


class LogState(NamedTuple):
    """A log at one moment: first offset kept, offset after the last message, segments in order.

    The segments are contiguous; all but the last are sealed, and the last may be.
    """

    start: int
    next_offset: int
    segments: tuple[SegmentState, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.file_bytes for segment in self.segments)

    def pack(self) -> list[object]:
        """Return the state as lists, numbers and bytes, for a snapshot."""
        return [self.start, self.next_offset, [_packed(segment) for segment in self.segments]]

    @classmethod
    def unpack(cls, packed: object) -> LogState:
        """Decode the result of `pack`. Raises ValueError when it is invalid or contradicts
        itself."""
        match packed:
            case [int(start), int(next_offset), [*listed]]:
                pass
            case _:
                raise ValueError("the state of a log is two offsets and a list of segments")
        state = cls(start, next_offset, tuple(_segment(each) for each in listed))
        state._check()
        return state

    def _check(self) -> None:
        if not all(type(number) is int for number in self[:2]) or not 0 <= self.start <= self[1]:
            raise ValueError(f"a log from {self.start!r} to {self.next_offset!r}")
        first = self.segments[0].base_offset if self.segments else self.next_offset
        if first > self.start:
            raise ValueError(f"a log from {self.start}, and the first segment is {first}")
        expected = first
        for number, segment in enumerate(self.segments):
            if segment.base_offset != expected or segment.next_offset <= expected:
                raise ValueError(f"segment {segment.base_offset} does not follow {expected}")
            if not segment.sealed and number + 1 < len(self.segments):
                raise ValueError(f"segment {segment.base_offset} is not sealed and not the last")
            expected = segment.next_offset
        if expected != self.next_offset:
            raise ValueError(f"the segments end at {expected}, the log at {self.next_offset}")


def _packed(segment: SegmentState) -> list[object]:
    """Return the fields, without an empty last one, which older versions lack."""
    fields = list(segment)
    return fields if segment.bytes_max else fields[:-1]


def _segment(packed: object) -> SegmentState:
    fields = len(SegmentState._fields)
    if not isinstance(packed, list | tuple) or len(packed) not in (fields - 1, fields):
        raise ValueError("not the state of a segment")
    segment = SegmentState(*packed)
    for name, value in segment._asdict().items():
        wanted = {"sealed": bool, "hash": bytes}.get(name, int)
        if type(value) is not wanted:
            raise ValueError(f"a segment's {name} is {value!r}")
    if len(segment.hash) != HASH_BYTES or segment.length <= PAGE_BYTES:
        raise ValueError(f"segment {segment.base_offset} has no hash or no batches")
    return segment
