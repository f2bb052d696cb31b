"""Headers of batches, and the time of one message: information in files that needs no decoding of
messages.

A header has counts, bytes and times of its batch, and the check of the bytes after it. Views need
no more, and only that is checked: bytes after the headers are ignored, except for the time of a
message inside a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from fluxmq.model.batch_format import BatchError
from fluxmq.model.batches import columns
from fluxmq.model.segments import (
    BATCH_HEADER_BYTES,
    FOOTER_BYTES,
    INDEX_ENTRY_BYTES,
    PAGE_BYTES,
    HeaderPage,
    IndexEntries,
    SegmentError,
    batch_span,
)
from fluxmq_spark.catalog import Log, SegmentFile
from fluxmq_spark.decode import HEADER, Batches, Integers, Window, batch_starts, candidates
from fluxmq_spark.errors import Damage
from fluxmq_spark.storage import OpenFile, Storage
from fluxmq_spark.times import walk

LOG: Final = logging.getLogger(__name__)

WINDOW_BYTES: Final = 4 << 20
"""Bytes read at once: larger windows are slower, because fresh memory is costly."""

_ALIGNED: Final = 8


class Headers(NamedTuple):
    """Consecutive batches of a segment: the start of each, and its header as a row of a table."""

    positions: Integers
    headers: NDArray[Any]


def headers_of(
    storage: Storage, queue: str, segment: SegmentFile, *, skip_damage: bool
) -> Iterator[Headers]:
    """Yield the headers of a segment's batches, in order, some thousand at a time.

    Raises FileNotFoundError, and Damage for the page, a header, or offsets that do not follow each
    other. With `skip_damage` it continues with the next batch it finds, whatever its offset.
    """
    with storage.open(segment.path) as file:
        try:
            _check_page(file, queue, segment)
        except Damage as damage:
            _damaged(damage, skip=skip_damage)
        yield from _Walk(file, segment, _anchors(storage, segment), skip=skip_damage).run()


def _damaged(damage: Damage, *, skip: bool) -> None:
    if not skip:
        raise damage
    LOG.warning("continuing after damage: %s", damage)


def _check_page(file: OpenFile, queue: str, segment: SegmentFile) -> None:
    try:
        page = HeaderPage.decode(_read(file, 0, PAGE_BYTES))
    except SegmentError as error:
        raise Damage(file.path, 0, str(error)) from None
    if (page.queue, page.base_offset) != (queue, segment.base_offset):
        what = f"the page is of queue {page.queue!r} from offset {page.base_offset}"
        raise Damage(file.path, 0, what)


def _anchors(storage: Storage, segment: SegmentFile) -> Integers:
    """Return the starts of batches according to the index; wrong ones are ignored."""
    try:
        data = storage.read(segment.index_path)
    except FileNotFoundError:
        return numpy.empty(0, numpy.int64)
    entries = numpy.frombuffer(data[: len(data) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES], "<u4")
    positions = entries[1::4].astype(numpy.int64)
    rising = positions[positions % _ALIGNED == 0]
    return rising if bool((numpy.diff(rising) > 0).all()) else numpy.unique(rising)


class _Walk:
    """A walk over one segment's headers. `position` and `expected`: of the next batch, and its
    offset."""

    def __init__(
        self, file: OpenFile, segment: SegmentFile, anchors: Integers, *, skip: bool
    ) -> None:
        self._file = file
        self._segment = segment
        self._anchors = anchors
        self._skip = skip
        self._window = Window(WINDOW_BYTES)
        self._end = file.size() - FOOTER_BYTES if segment.end < 0 else segment.end
        self._position = PAGE_BYTES
        self._expected = segment.base_offset

    def run(self) -> Iterator[Headers]:
        """Yield headers up to the segment's end."""
        while self._position < self._end:
            self._fill()
            batches = self._batches()
            begun, after = self._position, self._position + batches.next_position()
            if after > self._end:
                what = f"a batch up to byte {after}, and the segment ends at {self._end}"
                self._damaged(begun, what)
                break
            if len(batches):
                yield Headers(begun + batches.starts, batches.headers)
                self._position = after
                self._expected = int(batches.base_offsets[-1] + batches.counts[-1])
                if batches.fault is None:
                    continue
            self._damaged(after, batches.fault or "the file ends within a batch")
            if not self._find_next():
                break
        if self._expected != self._segment.next_offset:
            what = f"the batches end at offset {self._expected}, not {self._segment.next_offset}"
            self._damaged(self._end, what)

    def _damaged(self, position: int, what: str) -> None:
        _damaged(Damage(self._file.path, position, what), skip=self._skip)

    def _fill(self) -> None:
        size = min(self._window.size, self._end - self._position)
        filled = self._file.read_into(self._window.target[:size], self._position)
        self._window.fill(self._position, filled)

    def _batches(self) -> Batches:
        window = self._window
        starts = batch_starts(window, self._anchors - self._position)
        if not starts.size and window.filled >= BATCH_HEADER_BYTES:
            # One that is larger than the window: its header is enough.
            starts = numpy.zeros(1, numpy.int64)
        return Batches(window, starts, self._expected)

    def _find_next(self) -> bool:
        """Move to the next place where a possible batch of this segment begins; False when there is
        none."""
        while self._position + BATCH_HEADER_BYTES <= self._end:
            self._fill()
            starts = candidates(self._window)
            headers = self._window.headers(starts).view(HEADER)
            offsets = headers["base_offset"].astype(numpy.int64)
            here = (offsets >= self._segment.base_offset) & (offsets < self._segment.next_offset)
            # The bytes where a batch is due are one; elsewhere they may be part of a message.
            here &= (starts == 0) | (offsets >= self._expected)
            if here.any():
                at = int(here.argmax())
                self._position += int(starts[at])
                self._expected = int(offsets[at])
                return True
            step = self._window.filled - BATCH_HEADER_BYTES + _ALIGNED
            if step < _ALIGNED:
                return False
            self._position += step - step % _ALIGNED
        return False


# --- one message ---------------------------------------------------------------------------------------------------


def time_at(storage: Storage, log: Log, offset: int) -> int:
    """Return the time of the message with an offset, µs since the epoch.

    Raises Damage, and FileNotFoundError when no segment has it (any more).
    """
    for segment in log.segments:
        if segment.base_offset <= offset < segment.next_offset:
            with storage.open(segment.path) as file:
                return _time_in(storage, file, segment, offset)
    raise FileNotFoundError(f"no segment has offset {offset}")


def _time_in(storage: Storage, file: OpenFile, segment: SegmentFile, offset: int) -> int:
    end = file.size() - FOOTER_BYTES if segment.end < 0 else segment.end
    position, base = _near(storage, file, segment, offset)
    for at, span in walk(file, position, base, end):
        if offset >= span.next_offset:
            continue
        if offset == span.base_offset:
            return span.base_time
        try:
            times = columns(_read(file, at, span.length), verify=False).times
        except BatchError as error:
            raise Damage(file.path, at, str(error)) from None
        return int(times[offset - span.base_offset])
    raise Damage(file.path, end, f"the batches end before offset {offset}")


def _near(storage: Storage, file: OpenFile, segment: SegmentFile, offset: int) -> tuple[int, int]:
    """Return position and offset of a batch not after an offset: the index's, if one begins there,
    else the first."""
    entries = IndexEntries()
    try:
        data = storage.read(segment.index_path)
        entries.extend(data[: len(data) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES])
        relative, position = entries.by_offset(offset - segment.base_offset)
        span = batch_span(_read(file, position, BATCH_HEADER_BYTES))
        if span.base_offset == segment.base_offset + relative:
            return position, span.base_offset
    except (FileNotFoundError, SegmentError):
        LOG.debug("the index %s is unusable", segment.index_path)
    return PAGE_BYTES, segment.base_offset


def _read(file: OpenFile, position: int, size: int) -> bytes:
    target = bytearray(size)
    return bytes(memoryview(target)[: file.read_into(memoryview(target), position)])
