"""A range of a segment's messages as Arrow record batches: reading in windows, and what to do about damage.

One task reads one portion: from the index entry before the first message that is wanted, in windows of a few MiB, up to
the last. That a row is right rests on the segment alone, never on the index: each batch has a right header whose offset
follows the one before, and where anything behind the header is used, the check of that. Offset and queue need no more than
headers; the time does where messages of a batch have times of their own.

What is not right is a ``Damage`` that names file and byte. With ``fail_on_data_loss`` false the batch is left out, and
where its header is wrong, reading goes on at the next batch that can be told from bytes that only look like one: the
lengths that lead on from it must lead to a batch that the index knows, or to the segment's end. Only where damage is so
wide that nothing does, the next batch that is right in itself and fits the offsets is taken. Rows that are not yielded
are counted exactly: offsets have no gaps.
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
    Page,
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

__all__ = ["Portion", "Selection", "Statistics", "scan"]

WINDOW_BYTES: Final = 4 << 20
"""Bytes read at once: many batches, and few enough to stay where the processor reaches them soon."""

DAMAGES_MAX: Final = 100
"""Damaged places of a portion that are reported one by one: a file that is damaged everywhere has millions."""

ENTRIES_TRIED_MAX: Final = 16
"""Index entries that are tried before a portion is read from its segment's first batch: each is a read of its own."""

SEARCH_BYTES: Final = 256 << 10
"""Bytes that are searched at once for a batch behind damage: it is near, as a rule."""

_CONTENTS: Final = "the messages do not match their check"
_ENTRY: Final = numpy.dtype([("offset", "<u4"), ("position", "<u4"), ("time", "<i8")])

_log = logging.getLogger(__name__)

Integers = NDArray[numpy.int64]


@dataclass(frozen=True)
class Portion:
    """What one task reads of one segment: offsets from `first` to before `stop`.

    `base_offset`, `segment_next`, `end` and `sealed` are as the catalogue's ``SegmentFile`` has them. Can be pickled.
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
    """What was read; counts grow from portion to portion.

    `bytes` are those that were asked of the storage. `batches` are those with a row that was yielded. `damage`: a text for
    each damaged place.
    """

    segments: int = 0
    bytes: int = 0
    batches: int = 0
    rows: int = 0
    skipped_rows: int = 0
    damage: list[str] = field(default_factory=list)


def scan(
    storage: Storage,
    portion: Portion,
    columns: Sequence[str],
    schema: pa.Schema,
    *,
    verify: bool,
    fail_on_data_loss: bool,
    statistics: Statistics,
    selection: Selection | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a portion's messages in order of offsets, in record batches of at most 8192 rows.

    `columns` are names of `schema`, which says their types. `verify`: whether contents are held against their checks
    besides; headers always are. Raises ``Damage`` and, when the file is gone, ``DataLoss``; with `fail_on_data_loss` false
    neither, but what was not there or not right is logged, and counted in `statistics`.
    """
    wanted = portion.stop - portion.first
    if selection is not None:
        wanted = selection.count(portion.first, portion.stop)
    if wanted <= 0:
        return
    reader = _Reader(storage, portion, verify, fail_on_data_loss, statistics, selection)
    before = statistics.rows
    try:
        with storage.open(portion.path) as file:
            yield from reader.read(file, Columns(portion.queue, columns, schema, selection))
    except FileNotFoundError:
        what = (
            f"queue {portion.queue!r}: of offsets {portion.first} to {portion.stop - 1} "
            f"{wanted - statistics.rows + before} are gone, because {portion.path} was removed while it was to be read"
        )
        if fail_on_data_loss:
            raise DataLoss(f"{what}; set failOnDataLoss=false to skip") from None
        _log.warning("%s", what)
    left = wanted - statistics.rows + before
    if left and fail_on_data_loss:
        raise Damage(portion.path, reader.position, f"{left} of {wanted} messages were not found")
    statistics.skipped_rows += left


class _Place(NamedTuple):
    """A byte of the segment, and the offset of the batch that should begin there."""

    position: int
    offset: int


class _Reader:
    """Reads one portion."""

    def __init__(
        self,
        storage: Storage,
        portion: Portion,
        verify: bool,
        fail: bool,
        statistics: Statistics,
        selection: Selection | None,
    ) -> None:
        self._storage = storage
        self._portion = portion
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
        """Yield what the portion wants of its file, which is open."""
        portion = self._portion
        self._statistics.segments += 1
        if not self._page_is_right(file):
            return
        self._end = self._readable(file)
        self._entries = self._index()
        self._window = Window(min(WINDOW_BYTES, max(PAGE_BYTES, self._end)))
        place: _Place | None = self._begin(file)
        while place is not None and place.offset < portion.stop:
            self.position = place.position
            place = self._jump(file, place)
            if place is None:
                return
            batches, fault = self._batches(file, place)
            yield from self._groups(batches, columns)
            place = _Place(
                place.position + batches.next_position(), place.offset + int(batches.counts.sum())
            )
            if fault is not None and place.offset < portion.stop:
                self._damaged(place.position, fault)
                place = self._resume(file, place)

    # --- what is read ---

    def _page_is_right(self, file: OpenFile) -> bool:
        portion = self._portion
        target = bytearray(PAGE_BYTES)
        read = file.read_into(memoryview(target), 0)
        self._statistics.bytes += read
        try:
            page = Page.decode(bytes(target[:read]))
        except ValueError as error:
            self._damaged(0, str(error))
            return False
        if page.queue != portion.queue or page.base_offset != portion.base_offset:
            self._damaged(
                0,
                f"a segment of queue {page.queue!r} from offset {page.base_offset} where one of "
                f"{portion.queue!r} from {portion.base_offset} should be",
            )
            return False
        return True

    def _readable(self, file: OpenFile) -> int:
        """Return where the bytes end that may be read."""
        portion = self._portion
        size = file.size()
        if portion.end < 0:
            return max(0, size - FOOTER_BYTES) if portion.sealed else size
        # What there is can be read all the same; that there is too little is found where it ends.
        return min(portion.end, size)

    def _index(self) -> Integers:
        """Return offset and position of index entries, as far as they can be an index: it may be torn, or missing."""
        portion = self._portion
        try:
            data = self._storage.read(portion.index_path)
        except FileNotFoundError:
            return numpy.empty((0, 2), numpy.int64)
        self._statistics.bytes += len(data)
        table = numpy.frombuffer(data, _ENTRY, len(data) // INDEX_ENTRY_BYTES)
        entries = numpy.stack((table["offset"], table["position"]), axis=1).astype(numpy.int64)
        entries[:, 0] += portion.base_offset
        right = entries[:, 1] % 8 == 0
        right &= (entries[:, 1] > PAGE_BYTES) & (entries[:, 1] + BATCH_HEADER_BYTES <= self._end)
        right &= (entries[:, 0] > portion.base_offset) & (entries[:, 0] < portion.segment_next)
        entries = entries[right]
        # Both grow from entry to entry; whatever does not is not used.
        grows = (entries[1:] > numpy.maximum.accumulate(entries[:-1])).all(axis=1)
        kept: Integers = entries[numpy.concatenate(([True], grows))] if len(entries) else entries
        return kept

    def _begin(self, file: OpenFile) -> _Place:
        """Return the last place before the first message that is wanted where a batch surely begins."""
        known = self._before(self._portion.first)
        for number in range(known - 1, max(-1, known - 1 - ENTRIES_TRIED_MAX), -1):
            place = self._entry(number)
            if self._is_batch(file, place):
                return place
        return _Place(PAGE_BYTES, self._portion.base_offset)

    def _jump(self, file: OpenFile, place: _Place) -> _Place | None:
        """Return where to go on if nothing is wanted for a while; None if nothing is wanted any more."""
        if self._selection is None:
            return place
        following = self._selection.following(max(place.offset, self._portion.first))
        if following is None or following >= self._portion.stop:
            return None
        number = self._before(following) - 1
        if number >= 0 and self._entry(number).position > place.position:
            ahead = self._entry(number)
            if self._is_batch(file, ahead):
                return ahead
        return place

    def _before(self, offset: int) -> int:
        """Return how many index entries are not behind an offset."""
        return int(self._entries[:, 0].searchsorted(numpy.int64(offset), "right"))

    def _entry(self, number: int) -> _Place:
        return _Place(int(self._entries[number, 1]), int(self._entries[number, 0]))

    def _is_batch(self, file: OpenFile, place: _Place) -> bool:
        """Tell whether a batch with a right header and this offset begins at a place."""
        window = Window(BATCH_HEADER_BYTES)
        self._fill(file, window, place.position)
        found = candidates(window)
        if not found.size:
            return False
        return int(window.rows(found)["base_offset"][0]) == place.offset

    def _fill(
        self, file: OpenFile, window: Window, position: int, until: int | None = None
    ) -> None:
        """Read what fits a window from a position on, up to `until` or what may be read."""
        until = self._end if until is None else until
        wanted = max(0, min(window.size, until - position))
        read = file.read_into(window.target[:wanted], position)
        self._statistics.bytes += read
        window.fill(position, read)
        if read < wanted:
            # The file was cut after it was opened.
            self._end = position + read

    def _batches(self, file: OpenFile, place: _Place) -> tuple[Batches, str | None]:
        """Return the batches from a place on that fit a window, and what is wrong with the one behind them."""
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
        """Return the end of what has to be read from a place on, as far as the index knows."""
        number = int(self._entries[:, 0].searchsorted(numpy.int64(self._portion.stop), "left"))
        if number < len(self._entries) and self._entries[number, 1] > place.position:
            return int(self._entries[number, 1])
        return self._end

    def _first(self, window: Window, place: _Place) -> tuple[int, str | None]:
        """Return the length of a batch that is not in the window whole, or what is wrong with it."""
        left = self._end - place.position
        if left < BATCH_HEADER_BYTES:
            last = self._portion.segment_next - 1
            return 0, f"the segment ends with offset {place.offset - 1}; its last should be {last}"
        alone = Batches(window, numpy.zeros(1, numpy.int64), place.offset)
        length = 0 if alone.fault is not None else int(alone.headers["length"][0])
        if length > left:
            return 0, f"a batch of {length} bytes where the segment has {left} left"
        return length, alone.fault

    # --- what is yielded ---

    def _groups(self, batches: Batches, columns: Columns) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a table of batches that are wanted, and report what is wrong with any of these."""
        if not len(batches):
            return
        portion = self._portion
        stops = batches.base_offsets + batches.counts
        kinds = numpy.where(
            (stops > portion.first) & (batches.base_offsets < portion.stop), RIGHT, UNWANTED
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
        """Yield the messages of a run of batches; those whose contents make no sense are left out."""
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
        for batch in columns.build(group, self._portion.first, self._portion.stop):
            self._statistics.rows += batch.num_rows
            yield batch
        self._statistics.batches += len(group.counts)

    # --- damage ---

    def _damaged(self, position: int, what: str) -> None:
        """Report damage. Raises ``Damage`` where it is not to be skipped."""
        damage = Damage(self._portion.path, position, what)
        if self._fail:
            raise damage
        self._damages += 1
        if self._damages <= DAMAGES_MAX:
            _log.warning("%s; left out", damage)
            self._statistics.damage.append(str(damage))
        elif self._damages == DAMAGES_MAX + 1:
            more = f"{self._portion.path}: more than {DAMAGES_MAX} damaged places"
            _log.warning("%s", more)
            self._statistics.damage.append(more)

    def _resume(self, file: OpenFile, place: _Place) -> _Place | None:
        """Return where to go on behind a header that is not right; None if nothing follows that can be told.

        A message may hold bytes that look like a batch. So a place is believed when the lengths from there on lead to
        one that is known otherwise: a batch that the index names, or the end. Where none does (several places are damaged,
        or the file was cut, and there is no index behind), the rest is lost: better that than a row that was never sent.
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
            # What follows from this one would end as it did.
            position = last + BATCH_ALIGNMENT
        return anchor if anchor.position < self._end else None

    def _anchor(self, file: OpenFile, place: _Place) -> _Place:
        """Return the next batch that the index knows and that is one, else the end."""
        ahead = (self._entries[:, 1] > place.position) & (self._entries[:, 0] >= place.offset)
        for number in numpy.flatnonzero(ahead).tolist():
            entry = self._entry(number)
            if self._is_batch(file, entry):
                return entry
        return _Place(self._end, self._portion.segment_next)

    def _search(self, file: OpenFile, position: int, until: int, offset: int) -> _Place | None:
        """Return the next batch with a right header from a position on that may follow an offset."""
        window = Window(SEARCH_BYTES)
        until = min(until, self._end)
        while position + BATCH_HEADER_BYTES <= until:
            self._fill(file, window, position, until)
            starts = candidates(window)
            rows = window.rows(starts)
            bases = rows["base_offset"].astype(numpy.int64)
            fits = (bases >= offset) & (bases + rows["count"] <= self._portion.segment_next)
            fits &= starts + rows["length"] + position <= self._end
            if fits.any():
                at = int(fits.argmax())
                return _Place(position + int(starts[at]), int(bases[at]))
            position += max(BATCH_ALIGNMENT, window.filled - BATCH_HEADER_BYTES + BATCH_ALIGNMENT)
        return None

    def _leads(self, file: OpenFile, place: _Place, anchor: _Place) -> tuple[bool, int]:
        """Tell whether the batches from a place on lead to just the anchor; and where the last of them begins."""
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
