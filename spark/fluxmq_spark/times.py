"""Search for a queue's first message that is not before a time, exact and by the times in files.

A footer has the latest time of its segment, an index entry the latest before it; only one interval
of one index is then walked, header by header, and one batch is examined. Clocks sometimes go back,
so footers are read from the oldest on instead of by binary search: 64 bytes each. The index of the
segment that still grows cannot be verified against anything, so that segment is walked from its
first batch.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy

from fluxmq.model.batch_format import BatchError
from fluxmq.model.batches import columns
from fluxmq.model.segments import (
    BATCH_HEADER_BYTES,
    FOOTER_BYTES,
    BatchSpan,
    Footer,
    IndexEntries,
    SegmentError,
    batch_span,
    sealed_index,
)
from fluxmq_spark.catalog import Log, SegmentFile
from fluxmq_spark.errors import Damage
from fluxmq_spark.storage import LocalStorage, OpenFile, Storage

LOG: Final = logging.getLogger(__name__)

WALK_BYTES: Final = 256 << 10
"""Bytes read at once when walking over batches: a few index intervals."""

FOOTERS_AT_ONCE: Final = 16
"""Footers requested at the same time when each answer crosses a network."""


class TimeSearch:
    """Searches one queue's log. `skip_damage`: continue after damage, and without missing files.

    Raises Damage and FileNotFoundError unless `skip_damage`.
    """

    def __init__(self, storage: Storage, log: Log, *, skip_damage: bool) -> None:
        self._storage = storage
        self._log = log
        self._skip_damage = skip_damage

    def first_not_before(self, time: int) -> int:
        """Return the first kept offset whose message is not before `time` (µs since the epoch).

        The committed end, the offset after the last, if there is none.
        """
        at_once = 1 if isinstance(self._storage, LocalStorage) else FOOTERS_AT_ONCE
        everything = self._log.segments
        for begin in range(0, len(everything), at_once):
            segments = everything[begin : begin + at_once]
            for segment, footer in zip(segments, self._footers(segments), strict=True):
                latest = self._log.head.time if footer is None else footer.last_time
                if (segment.sealed and footer is None) or latest >= time:
                    found = self._in_segment(segment, footer, time)
                    if found is not None:
                        return found
        return self._log.head.committed

    def _footers(self, segments: Sequence[SegmentFile]) -> list[Footer | None]:
        if len(segments) == 1:
            return [self._footer(segments[0])]
        with ThreadPoolExecutor(len(segments)) as pool:
            return list(pool.map(self._footer, segments))

    def _footer(self, segment: SegmentFile) -> Footer | None:
        """Return a sealed segment's footer; None for a growing one, or an invalid one that is to be
        skipped."""
        if not segment.sealed:
            return None
        position = 0
        try:
            with self._storage.open(segment.path) as file:
                position = max(file.size() - FOOTER_BYTES, 0)
                return Footer.decode(_read(file, position, FOOTER_BYTES))
        except SegmentError as error:
            self._damaged(Damage(segment.path, position, str(error)))
        except FileNotFoundError:
            if not self._skip_damage:
                raise
        return None

    def _damaged(self, damage: Damage) -> None:
        if not self._skip_damage:
            raise damage
        LOG.warning("looking for a time, skipping damage: %s", damage)

    def _in_segment(self, segment: SegmentFile, footer: Footer | None, time: int) -> int | None:
        try:
            entries = None if footer is None else self._index(segment, footer)
            with self._storage.open(segment.path) as file:
                end = segment.end
                if end < 0:
                    end = file.size() - FOOTER_BYTES if footer is None else footer.length
                return self._in_file(segment, file, end, entries or IndexEntries(), time)
        except FileNotFoundError:
            if not self._skip_damage:
                raise
            return None

    def _index(self, segment: SegmentFile, footer: Footer) -> IndexEntries | None:
        try:
            return sealed_index(self._storage.read(segment.index_path), footer.hash)
        except FileNotFoundError:
            return None

    def _in_file(
        self, segment: SegmentFile, file: OpenFile, end: int, entries: IndexEntries, time: int
    ) -> int | None:
        offset, position = entries.by_time(time)
        offset += segment.base_offset
        while True:
            try:
                for place, span in walk(file, position, offset, end):
                    if span.last_time >= time and span.next_offset > self._log.head.start:
                        found = self._in_batch(file, place, span, time)
                        if found is not None:
                            return found
                return None
            except Damage as damage:
                self._damaged(damage)
                after = bisect_right(entries.positions, damage.position)
                if after == len(entries):
                    return None
                offset = segment.base_offset + entries.offsets[after]
                position = entries.positions[after]

    def _in_batch(self, file: OpenFile, position: int, span: BatchSpan, time: int) -> int | None:
        low = max(self._log.head.start - span.base_offset, 0)
        if low == 0 and span.base_time >= time:
            return span.base_offset
        try:
            times = columns(_read(file, position, span.length)).times
        except BatchError as error:
            raise Damage(file.path, position, str(error)) from None
        found = numpy.flatnonzero(times[low:] >= time)
        return span.base_offset + low + int(found[0]) if len(found) else None


def walk(file: OpenFile, position: int, offset: int, end: int) -> Iterator[tuple[int, BatchSpan]]:
    """Yield position and header of every batch from `position`, where the one with `offset` begins,
    to `end`.

    Checks headers only. Raises Damage at the first invalid one.
    """
    data, start = b"", position
    while position < end:
        at = position - start
        if at + BATCH_HEADER_BYTES > len(data):
            start, at = position, 0
            data = _read(file, position, min(WALK_BYTES, end - position))
        try:
            span = batch_span(data, at)
        except SegmentError as error:
            raise Damage(file.path, position, str(error)) from None
        if span.base_offset != offset:
            what = f"a batch from offset {span.base_offset} where {offset} was expected"
            raise Damage(file.path, position, what)
        if position + span.length > end:
            what = f"a batch of {span.length} bytes, and the segment ends at {end}"
            raise Damage(file.path, position, what)
        yield position, span
        position += span.length
        offset = span.next_offset


def _read(file: OpenFile, position: int, size: int) -> bytes:
    target = bytearray(size)
    return bytes(memoryview(target)[: file.read_into(memoryview(target), position)])
