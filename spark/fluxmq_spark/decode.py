"""Many batches at once, from a window of a segment to arrays: numpy and Arrow, no loop per message.

The layout is at the top of ``fluxmq.model.batch_format``; ``fluxmq.model.batches`` reads one batch
at a time by the same definition, and tests compare the two. The checks are the same, for all
batches of a window together: magic, header check, version, flags, counts, offsets and times, the
length as the sum of the parts; of every column used that its ends begin at 0, never decrease and
reach the area's end; and on request, the check of everything after the header. Nothing is used
before it is checked. Knows nothing of files and of property blocks. Only digests take one (C) call
per batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from fluxmq.model.batch_format import (
    AREA_BYTES_MAX,
    ATTRIBUTES,
    CODEC_NONE,
    DELAY,
    EXPIRY,
    FLAGS,
    HEADER_BYTES,
    KEYS,
    MAGIC,
    MESSAGES_MAX,
    PRODUCER,
    PROPERTIES,
    TIME_MAX,
    TIMES,
    VERSION,
    BatchError,
)
from fluxmq.model.batches import read_header

GRANULE_BYTES: Final = 8
"""Alignment of batches in a segment, and so in a window."""

OFFSET_MAX: Final = (1 << 63) - 1
"""Last offset that a column of Spark's longs can hold."""

HEADER: Final = numpy.dtype(
    [
        *(("magic", "<u4"), ("check", "<u4"), ("length", "<u4")),
        *(("version", "u1"), ("codec", "u1"), ("flags", "<u2")),
        *(("base_offset", "<u8"), ("base_time", "<i8"), ("payload_check", "<u8")),
        *(("count", "<u4"), ("key_bytes", "<u4"), ("property_bytes", "<u4")),
        *(("payload_bytes", "<u4"), ("term", "<u4"), ("last_delta", "<i4")),
    ]
)
"""A batch's header as a row of a table."""

_LENGTH_WORD: Final = 2
_HEADER_GRANULES: Final = HEADER_BYTES // GRANULE_BYTES
_WORD_BYTES: Final = 4
_CHECK_MASK: Final = 0xFFFF_FFFF

assert HEADER.itemsize == HEADER_BYTES

Integers = NDArray[numpy.int64]


class Window:
    """Bytes of a segment in memory, to be read into again and again.

    ``target`` is the buffer to read into; ``fill`` says where its bytes come from and how many.
    Arrays made from a window are copies: they survive the next fill.
    """

    def __init__(self, size: int) -> None:
        self.size = size - size % GRANULE_BYTES
        self.buffer = pa.allocate_buffer(self.size)
        self.target = memoryview(self.buffer).cast("B")
        self.words: NDArray[numpy.int32] = numpy.frombuffer(self.buffer, "<i4")
        self._headers: NDArray[Any] = numpy.ndarray(
            (max(0, self.size // GRANULE_BYTES - _HEADER_GRANULES + 1),),
            f"V{HEADER_BYTES}",
            self.buffer,
            0,
            (GRANULE_BYTES,),
        )
        self.position = 0
        self.filled = 0

    def fill(self, position: int, filled: int) -> None:
        """Note that the first `filled` bytes are those from byte `position` of the segment on."""
        self.position = position
        self.filled = filled

    def headers(self, starts: Integers) -> NDArray[Any]:
        """Copy out the 64 bytes at each of `starts`, multiples of 8, all of them in the window."""
        found: NDArray[Any] = self._headers[starts >> 3]
        return found

    def rows(self, starts: Integers) -> NDArray[Any]:
        """Copy out the same as rows of ``HEADER``."""
        return self.headers(starts).view(HEADER)


# --- where batches begin ---


def batch_starts(window: Window, anchors: Integers) -> Integers:
    """Return the starts of batches in the window, from its first byte on and without a gap.

    `anchors`: further starts according to the index, ascending multiples of 8. Lengths are followed
    from all of them at once, or from the first byte only if the results are inconsistent. Ends
    before the first batch that lacks the magic, has an impossible length, or is not entirely in the
    window. Headers are not checked otherwise.
    """
    if window.filled < HEADER_BYTES:
        return numpy.empty(0, numpy.int64)
    starts = _lock_step(window, anchors)
    if starts is None:
        starts = _one_by_one(window)
    return starts


def _lock_step(window: Window, anchors: Integers) -> Integers | None:
    """Follow lengths from byte 0 and all anchors at once; return None if the chains do not meet."""
    words = window.words
    end = window.filled >> 3
    inside = anchors[(anchors > 0) & (anchors <= window.filled - HEADER_BYTES)] >> 3
    at = numpy.concatenate((numpy.zeros(1, numpy.int64), inside))
    until = numpy.append(at[1:], end)
    found = [at]
    while at.size:
        # Without a batch, the garbage length leads nowhere, and this chain ends.
        length = words[2 * at + _LENGTH_WORD].view(numpy.uint32).astype(numpy.int64) >> 3
        length[words[2 * at] != MAGIC] = 0
        following = at + length
        going = (length >= _HEADER_GRANULES) & (following + _HEADER_GRANULES <= until)
        at, until = following[going], until[going]
        found.append(at)
    starts = numpy.concatenate(found)
    starts.sort()
    length = words[2 * starts + _LENGTH_WORD].view(numpy.uint32).astype(numpy.int64)
    whole = (words[2 * starts] == MAGIC) & (length % GRANULE_BYTES == 0)
    whole &= length >= HEADER_BYTES
    starts <<= 3
    if not whole[:-1].all() or (starts[:-1] + length[:-1] != starts[1:]).any():
        return None
    return starts if whole[-1] and starts[-1] + length[-1] <= window.filled else starts[:-1]


def _one_by_one(window: Window) -> Integers:
    words = window.target.cast("I")
    found = []
    at = 0
    while at + HEADER_BYTES <= window.filled:
        word = at >> 2
        length = words[word + _LENGTH_WORD]
        if words[word] != MAGIC or length < HEADER_BYTES or length % GRANULE_BYTES:
            break
        if at + length > window.filled:
            break
        found.append(at)
        at += length
    return numpy.array(found, numpy.int64)


def candidates(window: Window) -> Integers:
    """Return every start of a batch with a valid header in the window, found by its magic alone."""
    magic = window.words[: max(0, window.filled - HEADER_BYTES + _WORD_BYTES) >> 2 : 2] == MAGIC
    starts = numpy.flatnonzero(magic) << 3
    raw = window.headers(starts)
    return starts[_headers_right(raw.view(HEADER), raw)]


# --- batches of a window ---


class Fault(NamedTuple):
    """Defect of the batch of that number in its table."""

    batch: int
    what: str


class Batches:
    """The table of consecutive batches of a window, built from their starts.

    Keeps only those whose headers are valid and chain in offsets from `expected` on; `fault`
    describes the next one if it is invalid. All columns are arrays by batch: ``starts`` (bytes in
    the window), ``counts``, ``base_offsets``, ``headers`` (the whole rows).
    """

    def __init__(self, window: Window, starts: Integers, expected: int) -> None:
        raw = window.headers(starts)
        headers: NDArray[Any] = raw.view(HEADER)
        right = _headers_right(headers, raw)
        good = starts.size if right.all() else int(right.argmin())
        self.fault: str | None = None
        if good < starts.size:
            self.fault = _header_fault(window, int(starts[good]))
            headers = headers[:good]
        counts = headers["count"].astype(numpy.int64)
        base_offsets = headers["base_offset"].astype(numpy.int64)
        due = numpy.cumsum(counts) - counts + expected
        if (base_offsets != due).any():
            good = int((base_offsets != due).argmax())
            self.fault = f"a batch of offset {base_offsets[good]} where {due[good]} should follow"
        self.window = window
        self.starts = starts[:good]
        self.headers = headers[:good]
        self.counts = counts[:good]
        self.base_offsets = base_offsets[:good]

    def __len__(self) -> int:
        return len(self.starts)

    def have_times(self) -> NDArray[numpy.bool_]:
        """Return for each batch whether its messages' times follow its header."""
        result: NDArray[numpy.bool_] = (self.headers["flags"] & TIMES) != 0
        return result

    def position(self, number: int) -> int:
        """Return the byte of the segment at which a batch begins."""
        return self.window.position + int(self.starts[number])

    def next_position(self) -> int:
        """Return the byte in the window after the last batch."""
        return int(self.starts[-1]) + int(self.headers["length"][-1]) if len(self) else 0

    def bodies_right(self, which: Integers) -> NDArray[numpy.bool_]:
        """Return for each of these batches whether the bytes after its header match its check."""
        starts = self.starts[which] + HEADER_BYTES
        ends = self.starts[which] + self.headers["length"][which]
        view = self.window.target
        bodies = map(view.__getitem__, map(slice, starts.tolist(), ends.tolist()))
        digests = numpy.fromiter(map(xxh3_64_intdigest, bodies), numpy.uint64, len(which))
        right: NDArray[numpy.bool_] = digests == self.headers["payload_check"][which]
        return right


def _headers_right(headers: NDArray[Any], raw: NDArray[Any]) -> NDArray[numpy.bool_]:
    """Return for each header whether it passes the checks of ``fluxmq.model.batches``."""
    zeroed = headers.copy()
    zeroed["check"] = 0
    digests = map(xxh3_64_intdigest, zeroed.view(raw.dtype).tolist())
    checks = numpy.fromiter(digests, numpy.uint64, len(headers)) & numpy.uint64(_CHECK_MASK)
    count = headers["count"].astype(numpy.int64)
    base = headers["base_offset"]
    right = (headers["magic"] == MAGIC) & (checks == headers["check"])
    right &= (headers["version"] == VERSION) & (headers["codec"] == CODEC_NONE)
    right &= (headers["flags"] & (0xFFFF ^ FLAGS)) == 0
    right &= (count >= 1) & (count <= MESSAGES_MAX)
    right &= base <= numpy.uint64(OFFSET_MAX - MESSAGES_MAX)
    right &= abs(headers["base_time"]) <= TIME_MAX
    # The smallest number has no positive counterpart.
    right &= headers["base_time"] != numpy.iinfo(numpy.int64).min
    for area in ("key_bytes", "property_bytes", "payload_bytes"):
        right &= headers[area] <= AREA_BYTES_MAX
    right &= headers["length"] == _layout(headers).end
    result: NDArray[numpy.bool_] = right
    return result


def _header_fault(window: Window, start: int) -> str:
    """Return the defect of an invalid header."""
    try:
        header = read_header(window.target[start : start + HEADER_BYTES])
    except BatchError as error:
        return str(error)
    if header.base_offset > OFFSET_MAX - MESSAGES_MAX:
        return "an offset beyond all that Spark can count"
    if header.length != _layout(window.rows(numpy.array([start]))).end[0]:
        return "a length that differs from the sum of its parts"
    return "more bytes than one area takes"


# --- where columns are ---


class Layout(NamedTuple):
    """Starts of a batch's columns and areas, and its end, in bytes from its start, by batch."""

    times: Integers
    key_ends: Integers
    property_ends: Integers
    payload_ends: Integers
    keys: Integers
    properties: Integers
    payloads: Integers
    end: Integers


def _layout(headers: NDArray[Any]) -> Layout:
    flags = headers["flags"].astype(numpy.int64)
    count = headers["count"].astype(numpy.int64)

    def has(flag: int) -> Integers:
        return (flags & flag) // flag

    eights = has(EXPIRY) + has(DELAY) + 2 * has(PRODUCER)
    ends = _WORD_BYTES * (count + 1)
    times = HEADER_BYTES + 8 * count * eights + _WORD_BYTES * count * has(ATTRIBUTES)
    key_ends = times + _WORD_BYTES * count * has(TIMES)
    property_ends = key_ends + ends * has(KEYS)
    payload_ends = property_ends + ends * has(PROPERTIES)
    keys = payload_ends + ends
    properties = keys + headers["key_bytes"]
    payloads = properties + headers["property_bytes"]
    end = (payloads + headers["payload_bytes"] + 7) & ~7
    return Layout(times, key_ends, property_ends, payload_ends, keys, properties, payloads, end)


# --- columns ---


@dataclass(frozen=True)
class Pieces:
    """Byte strings, and which of them each message has.

    `values`: Arrow binary. `rows`: value number of each message; None if each has its own.
    """

    values: pa.BinaryArray
    rows: Integers | None

    def of(self, first: int, stop: int) -> tuple[pa.BinaryArray, Integers | None]:
        """Return values and value numbers of messages `first` to `stop`; None if consecutive."""
        if self.rows is None:
            return self.values.slice(first, stop - first), None
        return self.values, self.rows[first:stop]


class Group:
    """A run of valid batches of a table, ``first`` to ``stop``, to be made into columns together.

    Methods that read columns raise ``GroupError`` when the batch of that number is invalid.
    """

    def __init__(self, batches: Batches, first: int, stop: int) -> None:
        self.window = batches.window
        self.headers = batches.headers[first:stop]
        self.starts = batches.starts[first:stop]
        self.counts = batches.counts[first:stop]
        self.flags = self.headers["flags"]
        self.base_offset = int(batches.base_offsets[first])
        self.rows = int(self.counts.sum())
        self._row_starts: Integers = numpy.cumsum(self.counts) - self.counts
        self._layout = _layout(self.headers)

    def offsets(self) -> Integers:
        """Return the offset of each message."""
        return numpy.arange(self.base_offset, self.base_offset + self.rows)

    def times(self) -> Integers:
        """Return the time of each message, µs since the epoch."""
        times = self._repeat(self.headers["base_time"])
        has = (self.flags & TIMES) != 0
        deltas = self.headers["last_delta"]
        if has.any():
            words = self._row_words(self._layout.times)
            # If there is no such column the words are another's, and ignored.
            column = self.window.words[numpy.minimum(words, self.window.words.size - 1)]
            times += column if has.all() else column * self._repeat(has)
            last = self.window.words[(self.starts + self._layout.times) // 4 + self.counts - 1]
            wrong = numpy.where(has, last, 0) != deltas
        else:
            wrong = deltas != 0
        _refuse(wrong, "a last time that differs from the last message's")
        return times

    def payloads(self) -> pa.BinaryArray:
        """Return the payload of each message."""
        return self._pieces(
            0, self._layout.payload_ends, self._layout.payloads, "payload_bytes", "payloads"
        ).values

    def keys(self) -> Pieces:
        """Return the keys."""
        return self._pieces(KEYS, self._layout.key_ends, self._layout.keys, "key_bytes", "keys")

    def properties(self) -> Pieces:
        """Return the property blocks."""
        return self._pieces(
            PROPERTIES,
            self._layout.property_ends,
            self._layout.properties,
            "property_bytes",
            "properties",
        )

    def batch_of(self, row: int) -> int:
        """Return the number of the batch that contains a message."""
        return int(self._row_starts.searchsorted(numpy.int64(row), "right")) - 1

    def _repeat(self, by_batch: NDArray[Any]) -> NDArray[Any]:
        return numpy.repeat(by_batch, self.counts)

    def _row_words(self, at: Integers) -> Integers:
        """Return for each message the window word of its entry in the column at `at`."""
        first = (self.starts + at) // _WORD_BYTES - self._row_starts
        words: Integers = numpy.arange(self.rows) + self._repeat(first)
        return words

    def _pieces(self, flag: int, ends: Integers, area: Integers, total: str, what: str) -> Pieces:
        """Return an area's pieces, cut by `ends` where `flag` is set (0: always), else whole."""
        sizes = self.headers[total].astype(numpy.int64)
        data = self._areas(self.starts + area, sizes)
        base = numpy.cumsum(sizes) - sizes
        cut = numpy.ones(len(sizes), bool) if not flag else (self.flags & flag) != 0
        if not cut.any():
            offsets = numpy.append(base, base[-1] + sizes[-1])
            rows = self._repeat(numpy.arange(len(sizes)))
            return Pieces(_binary(offsets, data), rows)
        counts = numpy.where(cut, self.counts, 1)
        words = (self.starts + ends) // _WORD_BYTES
        column = self.window.words
        wrong = (column[words] != 0) | (column[numpy.where(cut, words + counts, 0)] != sizes)
        _refuse(wrong & cut, f"{what} whose ends are not ascending")
        first = numpy.cumsum(counts) - counts
        pieces = int(counts.sum())
        low = column[numpy.arange(pieces) + numpy.repeat(words - first, counts)]
        if not cut.all():
            low = low * numpy.repeat(cut, counts)
        offsets = numpy.empty(pieces + 1, numpy.int64)
        numpy.add(low, numpy.repeat(base, counts), out=offsets[:-1])
        offsets[-1] = base[-1] + sizes[-1]
        # Between two batches this holds exactly when the last piece of the first is not too long.
        back = offsets[1:] < offsets[:-1]
        if back.any():
            at = int(first.searchsorted(back.argmax(), "right")) - 1
            raise GroupError(at, f"{what} whose ends are not ascending")
        if cut.all():
            return Pieces(_binary(offsets, data), None)
        inside = (numpy.arange(self.rows) - self._repeat(self._row_starts)) * self._repeat(cut)
        return Pieces(_binary(offsets, data), self._repeat(first) + inside)

    def _areas(self, starts: Integers, sizes: Integers) -> pa.Buffer:
        """Return a copy of all batches' areas, one after the other."""
        if len(starts) == 1:
            at = int(starts[0])
            return pa.py_buffer(bytes(self.window.target[at : at + int(sizes[0])]))
        # Every second value of an array over the whole window is an area: one copy in C takes them.
        gaps = numpy.empty(2 * len(starts), numpy.int32)
        gaps[::2] = starts
        gaps[1::2] = starts + sizes
        over = [None, pa.py_buffer(gaps), self.window.buffer]
        values = pa.BinaryArray.from_buffers(pa.binary(), len(gaps) - 1, over)
        return values.take(pa.array(numpy.arange(0, len(gaps), 2))).buffers()[2]


class GroupError(Exception):
    """The batch of number `batch` of a group is invalid: `what`."""

    def __init__(self, batch: int, what: str) -> None:
        super().__init__(batch, what)
        self.batch = batch
        self.what = what


def _refuse(wrong: NDArray[numpy.bool_], what: str) -> None:
    if wrong.any():
        raise GroupError(int(wrong.argmax()), what)


def _binary(offsets: Integers, data: pa.Buffer | None) -> pa.BinaryArray:
    ends = pa.py_buffer(offsets.astype(numpy.int32))
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(offsets) - 1, [None, ends, data or pa.py_buffer(b"")]
    )


RIGHT: Final = 0
WRONG: Final = 1
UNWANTED: Final = 2


def groups(
    counts: Integers, weights: Integers, kinds: Integers, *, rows: int, weight: int
) -> Iterator[tuple[int, int, int]]:
    """Yield first, stop and kind (``RIGHT``, ``WRONG``, ``UNWANTED``) of runs of equal kind.

    Runs of right ones have at most `rows` rows and `weight`; a larger batch is a run of its own.
    """
    row_ends, weight_ends = numpy.cumsum(counts), numpy.cumsum(weights)
    turns = numpy.flatnonzero(kinds[1:] != kinds[:-1]) + 1
    first = 0
    for turn in (*turns.tolist(), len(counts)):
        while first < turn:
            stop = turn
            if kinds[first] == RIGHT:
                for ends, sizes, most in ((row_ends, counts, rows), (weight_ends, weights, weight)):
                    limit = ends[first] - sizes[first] + most
                    stop = min(stop, int(ends.searchsorted(limit, "right")))
                stop = max(stop, first + 1)
            yield first, stop, int(kinds[first])
            first = stop
