"""A range of a segment's messages as Arrow record batches: windowed reads, handling of damage.

One task reads one segment range: from the index entry before the first wanted message, in windows
of a few MiB, up to the last. The correctness of a row rests on the segment alone, never on the
index: each batch has a valid header whose offset follows the one before, and if anything after the
header is used, a valid check of that. Offset and queue need only headers; the time needs more if
messages of a batch have times of their own.

Any defect is a ``Damage`` that names file and byte. With ``fail_on_data_loss`` false the batch is
left out, and after an invalid header, reading continues at the next batch that can be told from
bytes that only look like one: the lengths that lead on from it must lead to a batch that the index
knows, or to the segment's end. Only if damage is so wide that nothing does, the next batch that is
valid in itself and fits the offsets is taken. Omitted rows are counted exactly: offsets have no
gaps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from fluxmq.model.segments import (
    BATCH_ALIGNMENT,
    BATCH_HEADER_BYTES,
    FOOTER_BYTES,
    INDEX_ENTRY_BYTES,
    PAGE_BYTES,
    HeaderPage,
)
from fluxmq_spark.columns import ROWS_MAX, WEIGHT_MAX, Columns
from fluxmq_spark.decode import (
    RIGHT,
    UNWANTED,
    WRONG,
    Batches,
    Group,
    GroupError,
    Window,
    batch_starts,
    candidates,
    groups,
)
from fluxmq_spark.errors import Damage, DataLoss
from fluxmq_spark.selection import Selection
from fluxmq_spark.storage import OpenFile, Storage

__all__ = ["SegmentRange", "Selection", "Statistics", "scan"]

WINDOW_BYTES: Final = 4 << 20
"""Bytes read at once: many batches, and few enough to stay in the processor's cache."""

DAMAGES_MAX: Final = 100
"""Damaged places of a segment range reported one by one: a fully damaged file has millions."""

ENTRIES_TRIED_MAX: Final = 16
"""Index entries tried, each a read of its own, before reading from the segment's first batch."""

SEARCH_BYTES: Final = 256 << 10
"""Bytes searched at once for a batch after damage: it is usually near."""

_CONTENTS: Final = "the messages do not match their checksum"
_ENTRY: Final = numpy.dtype([("offset", "<u4"), ("position", "<u4"), ("time", "<i8")])

_log = logging.getLogger(__name__)

Integers = NDArray[numpy.int64]


@dataclass(frozen=True)
class SegmentRange:
    """Part of one segment that one task reads: offsets from `first` to before `stop`.

    `base_offset`, `segment_next`, `end` and `sealed` are those of ``SegmentFile``. Can be pickled.
    """

    queue: str
    path: str
    index_path: str
    base_offset: int
    segment_next: int
    end: int
    sealed: bool
    first: int
    stop: int


@dataclass
class Statistics:
    """Counts of a read; they grow from segment range to segment range.

    `bytes` are those requested from the storage. `batches` are those with a row that was yielded.
    `damage`: a text for each damaged place.
    """

    segments: int = 0
    bytes: int = 0
    batches: int = 0
    rows: int = 0
    skipped_rows: int = 0
    damage: list[str] = field(default_factory=list)


def scan(
    storage: Storage,
    segment_range: SegmentRange,
    columns: Sequence[str],
    schema: pa.Schema,
    *,
    verify: bool,
    fail_on_data_loss: bool,
    statistics: Statistics,
    selection: Selection | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a segment range's messages in order of offsets, in record batches of at most 8192 rows.

    `columns` are names of `schema`, which gives their types. `verify`: also verify contents against
    their checks; headers always are. Raises ``Damage`` and, when the file is gone, ``DataLoss``;
    with `fail_on_data_loss` false it logs missing or invalid data, and counts it in `statistics`.
    """
    wanted = segment_range.stop - segment_range.first
    if selection is not None:
        wanted = selection.count(segment_range.first, segment_range.stop)
    if wanted <= 0:
        return
    reader = _Reader(storage, segment_range, verify, fail_on_data_loss, statistics, selection)
    before = statistics.rows
    try:
        with storage.open(segment_range.path) as file:
            yield from reader.read(file, Columns(segment_range.queue, columns, schema, selection))
    except FileNotFoundError:
        what = (
            f"queue {segment_range.queue!r}: of offsets {segment_range.first} to {segment_range.stop - 1} "
            f"{wanted - statistics.rows + before} are gone, because {segment_range.path} was removed while it was to be read"
        )
        if fail_on_data_loss:
            raise DataLoss(f"{what}; set failOnDataLoss=false to skip") from None
        _log.warning("%s", what)
    left = wanted - statistics.rows + before
    if left and fail_on_data_loss:
        raise Damage(
            segment_range.path, reader.position, f"{left} of {wanted} messages were not found"
        )
    statistics.skipped_rows += left


class _Place(NamedTuple):
    """A byte of the segment, and the offset of the batch that should begin there."""

    position: int
    offset: int


class _Reader:
    """Reads one segment range."""

    def __init__(
        self,
        storage: Storage,
        segment_range: SegmentRange,
        verify: bool,
        fail: bool,
        statistics: Statistics,
        selection: Selection | None,
    ) -> None:
        self._storage = storage
        self._segment_range = segment_range
        self._verify = verify
        self._fail = fail
        self._statistics = statistics
        self._selection = selection
        self._damages = 0
        self._end = 0
        self._entries = numpy.empty((0, 2), numpy.int64)
        self._window = Window(0)
        self.position = 0

    def read(self, file: OpenFile, columns: Columns) -> Iterator[pa.RecordBatch]:
        """Yield the segment range's wanted rows from its open file."""
        segment_range = self._segment_range
        self._statistics.segments += 1
        if not self._page_is_right(file):
            return
        self._end = self._readable(file)
        self._entries = self._index()
        self._window = Window(min(WINDOW_BYTES, max(PAGE_BYTES, self._end)))
        place: _Place | None = self._begin(file)
        while place is not None and place.offset < segment_range.stop:
            self.position = place.position
            place = self._jump(file, place)
            if place is None:
                return
            batches, fault = self._batches(file, place)
            yield from self._groups(batches, columns)
            place = _Place(
                place.position + batches.next_position(), place.offset + int(batches.counts.sum())
            )
            if fault is not None and place.offset < segment_range.stop:
                self._damaged(place.position, fault)
                place = self._resume(file, place)

    # --- reading ---

    def _page_is_right(self, file: OpenFile) -> bool:
        segment_range = self._segment_range
        target = bytearray(PAGE_BYTES)
        read = file.read_into(memoryview(target), 0)
        self._statistics.bytes += read
        try:
            page = HeaderPage.decode(bytes(target[:read]))
        except ValueError as error:
            self._damaged(0, str(error))
            return False
        if page.queue != segment_range.queue or page.base_offset != segment_range.base_offset:
            self._damaged(
                0,
                f"a segment of queue {page.queue!r} from offset {page.base_offset} where one of "
                f"{segment_range.queue!r} from {segment_range.base_offset} should be",
            )
            return False
        return True

    def _readable(self, file: OpenFile) -> int:
        """Return the end of the readable bytes."""
        segment_range = self._segment_range
        size = file.size()
        if segment_range.end < 0:
            return max(0, size - FOOTER_BYTES) if segment_range.sealed else size
        # The existing bytes are readable all the same; the end reveals that some are missing.
        return min(segment_range.end, size)

    def _index(self) -> Integers:
        """Return offset and position of plausible index entries: it may be torn, or missing."""
        segment_range = self._segment_range
        try:
            data = self._storage.read(segment_range.index_path)
        except FileNotFoundError:
            return numpy.empty((0, 2), numpy.int64)
        self._statistics.bytes += len(data)
        table = numpy.frombuffer(data, _ENTRY, len(data) // INDEX_ENTRY_BYTES)
        entries = numpy.stack((table["offset"], table["position"]), axis=1).astype(numpy.int64)
        entries[:, 0] += segment_range.base_offset
        right = entries[:, 1] % 8 == 0
        right &= (entries[:, 1] > PAGE_BYTES) & (entries[:, 1] + BATCH_HEADER_BYTES <= self._end)
        right &= (entries[:, 0] > segment_range.base_offset) & (
            entries[:, 0] < segment_range.segment_next
        )
        entries = entries[right]
        # Both grow from entry to entry; others are ignored.
        grows = (entries[1:] > numpy.maximum.accumulate(entries[:-1])).all(axis=1)
        kept: Integers = entries[numpy.concatenate(([True], grows))] if len(entries) else entries
        return kept

    def _begin(self, file: OpenFile) -> _Place:
        """Return the last certain start of a batch before the first wanted message."""
        known = self._before(self._segment_range.first)
        for number in range(known - 1, max(-1, known - 1 - ENTRIES_TRIED_MAX), -1):
            place = self._entry(number)
            if self._is_batch(file, place):
                return place
        return _Place(PAGE_BYTES, self._segment_range.base_offset)

    def _jump(self, file: OpenFile, place: _Place) -> _Place | None:
        """Return where to continue after unwanted offsets; None if nothing more is wanted."""
        if self._selection is None:
            return place
        following = self._selection.following(max(place.offset, self._segment_range.first))
        if following is None or following >= self._segment_range.stop:
            return None
        number = self._before(following) - 1
        if number >= 0 and self._entry(number).position > place.position:
            ahead = self._entry(number)
            if self._is_batch(file, ahead):
                return ahead
        return place

    def _before(self, offset: int) -> int:
        """Return the number of index entries not after an offset."""
        return int(self._entries[:, 0].searchsorted(numpy.int64(offset), "right"))

    def _entry(self, number: int) -> _Place:
        return _Place(int(self._entries[number, 1]), int(self._entries[number, 0]))

    def _is_batch(self, file: OpenFile, place: _Place) -> bool:
        """Return whether a batch with a valid header and this offset begins at a place."""
        window = Window(BATCH_HEADER_BYTES)
        self._fill(file, window, place.position)
        found = candidates(window)
        if not found.size:
            return False
        return int(window.rows(found)["base_offset"][0]) == place.offset

    def _fill(
        self, file: OpenFile, window: Window, position: int, until: int | None = None
    ) -> None:
        """Read from a position, up to a window's size, `until` or the end of readable bytes."""
        until = self._end if until is None else until
        wanted = max(0, min(window.size, until - position))
        read = file.read_into(window.target[:wanted], position)
        self._statistics.bytes += read
        window.fill(position, read)
        if read < wanted:
            # The file was truncated after it was opened.
            self._end = position + read

    def _batches(self, file: OpenFile, place: _Place) -> tuple[Batches, str | None]:
        """Return the batches from a place that fit a window, and the next one's defect."""
        until = self._behind(place)
        if self._window.size > WINDOW_BYTES:
            self._window = Window(WINDOW_BYTES)
        while True:
            window = self._window
            self._fill(file, window, place.position, until)
            starts = batch_starts(window, self._entries[:, 1] - place.position)
            batches = Batches(window, starts, place.offset)
            if len(batches) or batches.fault is not None:
                return batches, batches.fault
            if until < self._end:
                until = self._end
                continue
            length, fault = self._first(window, place)
            if fault is not None:
                return batches, fault
            self._window = Window(length)

    def _behind(self, place: _Place) -> int:
        """Return the end of the bytes to read from a place on, as far as the index knows."""
        number = int(
            self._entries[:, 0].searchsorted(numpy.int64(self._segment_range.stop), "left")
        )
        if number < len(self._entries) and self._entries[number, 1] > place.position:
            return int(self._entries[number, 1])
        return self._end

    def _first(self, window: Window, place: _Place) -> tuple[int, str | None]:
        """Return the length of a batch that is not entirely in the window, or its defect."""
        left = self._end - place.position
        if left < BATCH_HEADER_BYTES:
            last = self._segment_range.segment_next - 1
            return 0, f"the segment ends with offset {place.offset - 1}; its last should be {last}"
        alone = Batches(window, numpy.zeros(1, numpy.int64), place.offset)
        length = 0 if alone.fault is not None else int(alone.headers["length"][0])
        if length > left:
            return 0, f"a batch of {length} bytes where the segment has {left} left"
        return length, alone.fault

    # --- yielding ---

    def _groups(self, batches: Batches, columns: Columns) -> Iterator[pa.RecordBatch]:
        """Yield the wanted messages of a table of batches, and report defects of wanted ones."""
        if not len(batches):
            return
        segment_range = self._segment_range
        stops = batches.base_offsets + batches.counts
        kinds = numpy.where(
            (stops > segment_range.first) & (batches.base_offsets < segment_range.stop),
            RIGHT,
            UNWANTED,
        )
        if self._selection is not None:
            kinds[~self._selection.overlaps(batches.base_offsets, stops)] = UNWANTED
        if self._verify:
            checked = numpy.flatnonzero(columns.behind_headers(batches) & (kinds == RIGHT))
            kinds[checked[~batches.bodies_right(checked)]] = WRONG
        weights = columns.weights(batches.headers, batches.counts)
        runs = groups(batches.counts, weights, kinds, rows=ROWS_MAX, weight=WEIGHT_MAX)
        for first, stop, kind in runs:
            if kind == RIGHT:
                yield from self._group(batches, first, stop, columns)
            elif kind == WRONG:
                for number in range(first, stop):
                    self._damaged(batches.position(number), _CONTENTS)

    def _group(
        self, batches: Batches, first: int, stop: int, columns: Columns
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a run of batches, except those with invalid contents."""
        while first < stop:
            until, what = stop, None
            try:
                yield from self._built(Group(batches, first, until), columns)
            except GroupError as fault:
                until, what = first + fault.batch, fault.what
                if fault.batch:
                    yield from self._built(Group(batches, first, until), columns)
            if what is not None:
                self._damaged(batches.position(until), what)
            first = until + 1

    def _built(self, group: Group, columns: Columns) -> Iterator[pa.RecordBatch]:
        for batch in columns.build(group, self._segment_range.first, self._segment_range.stop):
            self._statistics.rows += batch.num_rows
            yield batch
        self._statistics.batches += len(group.counts)

    # --- damage ---

    def _damaged(self, position: int, what: str) -> None:
        """Report damage. Raises ``Damage`` unless it is to be skipped."""
        damage = Damage(self._segment_range.path, position, what)
        if self._fail:
            raise damage
        self._damages += 1
        if self._damages <= DAMAGES_MAX:
            _log.warning("%s; left out", damage)
            self._statistics.damage.append(str(damage))
        elif self._damages == DAMAGES_MAX + 1:
            more = f"{self._segment_range.path}: more than {DAMAGES_MAX} damaged places"
            _log.warning("%s", more)
            self._statistics.damage.append(more)

    def _resume(self, file: OpenFile, place: _Place) -> _Place | None:
        """Return where to continue after an invalid header; None if no certain batch follows.

        A message may hold bytes that look like a batch. So a place is trusted when the lengths from
        there on lead to one that is known otherwise: a batch that the index names, or the end. If
        none does (several places are damaged, or the file was truncated, and there is no index
        after it), the rest is lost: better that than a row that was never sent.
        """
        anchor = self._anchor(file, place)
        position = place.position
        while True:
            found = self._search(file, position, anchor.position, place.offset)
            if found is None:
                break
            reached, last = self._leads(file, found, anchor)
            if reached:
                return found
            # A chain from this one would end in the same way.
            position = last + BATCH_ALIGNMENT
        return anchor if anchor.position < self._end else None

    def _anchor(self, file: OpenFile, place: _Place) -> _Place:
        """Return the next batch that the index knows and that is one, else the end."""
        ahead = (self._entries[:, 1] > place.position) & (self._entries[:, 0] >= place.offset)
        for number in numpy.flatnonzero(ahead).tolist():
            entry = self._entry(number)
            if self._is_batch(file, entry):
                return entry
        return _Place(self._end, self._segment_range.segment_next)

    def _search(self, file: OpenFile, position: int, until: int, offset: int) -> _Place | None:
        """Return the next batch with a valid header that may follow an offset."""
        window = Window(SEARCH_BYTES)
        until = min(until, self._end)
        while position + BATCH_HEADER_BYTES <= until:
            self._fill(file, window, position, until)
            starts = candidates(window)
            rows = window.rows(starts)
            bases = rows["base_offset"].astype(numpy.int64)
            fits = (bases >= offset) & (bases + rows["count"] <= self._segment_range.segment_next)
            fits &= starts + rows["length"] + position <= self._end
            if fits.any():
                at = int(fits.argmax())
                return _Place(position + int(starts[at]), int(bases[at]))
            position += max(BATCH_ALIGNMENT, window.filled - BATCH_HEADER_BYTES + BATCH_ALIGNMENT)
        return None

    def _leads(self, file: OpenFile, place: _Place, anchor: _Place) -> tuple[bool, int]:
        """Return whether batches from a place lead exactly to the anchor; and the last start."""
        window = Window(WINDOW_BYTES)
        last = place.position
        while place.position < anchor.position:
            self._fill(file, window, place.position, anchor.position)
            if window.filled < BATCH_HEADER_BYTES:
                return False, last
            starts = batch_starts(window, self._entries[:, 1] - place.position)
            batches = Batches(window, starts, place.offset)
            if not len(batches):
                # Only the header matters here, and the rest may be larger than any window.
                batches = Batches(window, numpy.zeros(1, numpy.int64), place.offset)
            if not len(batches):
                return False, last
            last = batches.position(len(batches) - 1)
            place = _Place(
                place.position + batches.next_position(), place.offset + int(batches.counts.sum())
            )
        return place == anchor, last
