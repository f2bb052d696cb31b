"""Checks of a queue's log that is not being written: every byte, and the contents.

For tools on a stopped node; nothing is changed. Trusts no index and no head: walks every batch.
What a crash may leave after the last checkpoint, and the next start repairs from the write-ahead
log, is distinguished from damage by the checkpoint's state. Memory is bounded by a stretch of a
segment, or one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from fluxmq.model.batch_format import Batch, BatchError, parse, verify
from fluxmq.model.segments import (
    BATCH_HEADER_BYTES,
    FOOTER_BYTES,
    PAGE_BYTES,
    TIME_NONE,
    Footer,
    HeaderPage,
    QueueHead,
    SegmentError,
    base_of,
    batch_span,
    chain,
    chain_start,
    segment_name,
)
from fluxmq.storage.errors import Corruption
from fluxmq.storage.files import Files
from fluxmq.storage.head import read_head
from fluxmq.storage.log_state import LogState, SegmentState
from fluxmq.storage.segment_index import WALK_BYTES, load_sealed
from fluxmq.storage.segments import sealed_extent
from fluxmq.storage.shape import footer_of


class Defect(NamedTuple):
    """A defect; `mended`: a crash may cause it, and the next start repairs it."""

    path: str
    position: int
    what: str
    mended: bool

    def __str__(self) -> str:
        return f"{self.path}, byte {self.position}: {self.what}"


@dataclass(slots=True)
class SegmentReport:
    """Contents of one segment's file; times in µs since the epoch, TIME_NONE when there are no
    messages."""

    path: str
    base_offset: int
    next_offset: int
    bytes: int
    first_time: int
    last_time: int
    sealed: bool


@dataclass(slots=True)
class LogReport:
    """Contents of a log's directory. `queue`: the name in its segments, None if none could be
    read."""

    directory: str
    queue: str | None = None
    head: QueueHead | None = None
    segments: list[SegmentReport] = field(default_factory=list)
    problems: list[Defect] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.bytes for segment in self.segments)

    @property
    def start(self) -> int:
        """The first offset kept: the head's, if the segments allow it."""
        first = self.segments[0].base_offset if self.segments else 0
        return first if self.head is None else max(first, self.head.start)

    @property
    def next_offset(self) -> int:
        """The offset after the last whole message."""
        return self.segments[-1].next_offset if self.segments else self.start


class SegmentScan:
    """A walk over one segment's file that checks every byte: iterate, then read the attributes.

    `position`, `next_offset`, `last_time` and `hash` cover the part walked so far; `footer` is set
    once it was read. Raises Corruption at the first defect. With `headers_only` only batch headers
    are read, and a sealed segment's footer is trusted: nothing is yielded for it.
    """

    def __init__(self, files: Files, path: str, *, headers_only: bool = False) -> None:
        self._files = files
        self._headers_only = headers_only
        self.path = path
        self.size = files.size(path)
        base = base_of(path.rpartition("/")[2])
        self.next_offset = self.base_offset = 0 if base is None else base
        self.position = 0
        self.last_time = TIME_NONE
        self.page: HeaderPage | None = None
        self.hash = b""
        self.footer: Footer | None = None

    def __iter__(self) -> Iterator[Batch | None]:
        """Yield after every batch: the batch, or None with `headers_only`."""
        fd = self._files.open_(self.path, readonly=True)
        try:
            self._read_page(fd)
            if self._headers_only and self._believe_footer(fd):
                return
            data, start = b"", self.position
            while self.position < self.size:
                at = self.position - start
                if at + BATCH_HEADER_BYTES > len(data):
                    data, start, at = self._read(fd, WALK_BYTES), self.position, 0
                if self._is_footer(data, at):
                    return
                length = self._span(data, at)
                if not self._headers_only and at + length > len(data):
                    data, start, at = self._read(fd, max(WALK_BYTES, length)), self.position, 0
                batch = None if self._headers_only else self._batch(data, at)
                self.hash = chain(self.hash, data[at : at + BATCH_HEADER_BYTES])
                self.position += length
                yield batch
        finally:
            self._files.close(fd)

    def _read(self, fd: int, size: int) -> bytes:
        return self._files.pread(fd, min(size, self.size - self.position), self.position)

    def _wrong(self, what: object) -> Corruption:
        return Corruption(self.path, self.position, str(what))

    def _read_page(self, fd: int) -> None:
        data = self._files.pread(fd, PAGE_BYTES, 0)
        try:
            self.page = HeaderPage.decode(data)
        except SegmentError as error:
            raise self._wrong(error) from None
        if self.page.base_offset != self.base_offset:
            raise self._wrong(f"the page is of the segment {self.page.base_offset}")
        self.hash = chain_start(data)
        self.position = PAGE_BYTES

    def _believe_footer(self, fd: int) -> bool:
        position = self.size - FOOTER_BYTES
        try:
            footer = Footer.decode(self._files.pread(fd, FOOTER_BYTES, max(position, 0)))
        except SegmentError:
            return False
        if footer.length != position:
            return False
        self.footer, self.position, self.hash = footer, position, footer.hash
        self.next_offset, self.last_time = footer.last_offset + 1, footer.last_time
        return True

    def _is_footer(self, data: bytes, at: int) -> bool:
        try:
            footer = Footer.decode(data[at : at + FOOTER_BYTES])
        except SegmentError:
            return False
        assert self.page is not None, "the page comes first"
        messages = self.next_offset - self.base_offset
        times = (self.page.created, self.last_time)
        expected = Footer(messages, self.next_offset - 1, *times, self.hash, self.position)
        if footer != expected:
            raise self._wrong(f"the footer says {footer}, the batches {expected}")
        if self.position + FOOTER_BYTES != self.size:
            self.position += FOOTER_BYTES
            raise self._wrong("there is data after the footer")
        self.footer = footer
        return True

    def _span(self, data: bytes, at: int) -> int:
        try:
            span = batch_span(data, at)
        except SegmentError as error:
            raise self._wrong(error) from None
        if span.base_offset != self.next_offset:
            what = f"a batch from offset {span.base_offset} where {self.next_offset} was expected"
            raise self._wrong(what)
        if self.position + span.length > self.size:
            raise self._wrong(f"a batch of {span.length} bytes is cut short")
        self.next_offset = span.next_offset
        self.last_time = max(self.last_time, span.last_time)
        return span.length

    def _batch(self, data: bytes, at: int) -> Batch:
        try:
            batch = parse(data, at)
            verify(batch)
        except BatchError as error:
            self.next_offset = batch_span(data, at).base_offset
            raise self._wrong(error) from None
        return batch


def read_through(
    files: Files, path: str, queue: str, state: SegmentState, rest: Callable[[int], None]
) -> None:
    """Check every byte of a queue's segment against an expected state. `rest` is called after each
    batch with the bytes walked so far. Raises Corruption, and other StorageErrors when the file
    cannot be read."""
    scan = SegmentScan(files, path)
    for _ in scan:
        rest(scan.position)
    page = HeaderPage(queue, state.base_offset, state.created)
    footer = footer_of(state) if state.sealed else None
    expected = (page, state.length, state.next_offset, state.hash, footer)
    if (scan.page, scan.position, scan.next_offset, scan.hash, scan.footer) != expected:
        raise Corruption(path, scan.position, "the segment was replaced meanwhile")


def segment_bases(files: Files, directory: str) -> list[int]:
    """Return the base offsets of a log's segments, in order."""
    bases = (base_of(name) for name in files.listdir(directory))
    return sorted(base for base in bases if base is not None)


def queue_name(files: Files, directory: str) -> str | None:
    """Return the queue name in a log's first segment, None if there is none or it cannot be
    read."""
    bases = segment_bases(files, directory)
    if not bases:
        return None
    fd = files.open_(f"{directory}/{segment_name(bases[0])}", readonly=True)
    try:
        return HeaderPage.decode(files.pread(fd, PAGE_BYTES, 0)).queue
    except SegmentError:
        return None
    finally:
        files.close(fd)


def scan_log(
    files: Files, directory: str, promised: LogState | None = None, *, headers_only: bool = False
) -> LogReport:
    """Walk a whole log and report its contents and defects.

    `promised`: the state in the last checkpoint; anything after it may be torn. None: nothing is
    known, and everything must be correct. Raises StorageError when files cannot be read at all.
    """
    report = LogReport(directory, head=read_head(files, directory))
    states = {} if promised is None else {state.base_offset: state for state in promised.segments}
    bases = segment_bases(files, directory)
    if report.head is None and bases:
        what = "no slot of the head is valid"
        report.problems.append(Defect(f"{directory}/head", 0, what, True))
    for base, known in states.items():
        removed = report.head is not None and known.next_offset <= report.head.start
        if base not in bases and not removed:
            what = "the segment is missing"
            path = f"{directory}/{segment_name(base)}"
            report.problems.append(Defect(path, 0, what, False))
    for base in bases:
        path = f"{directory}/{segment_name(base)}"
        state = states.get(base)
        loose = promised is not None and state is None
        if report.segments and report.segments[-1].next_offset != base:
            what = f"offsets {report.segments[-1].next_offset} to {base - 1} are missing before it"
            report.problems.append(Defect(path, 0, what, loose))
        _scan_segment(files, report, path, state, loose=loose, headers_only=headers_only)
    return report


def _scan_segment(
    files: Files,
    report: LogReport,
    path: str,
    state: SegmentState | None,
    *,
    loose: bool,
    headers_only: bool,
) -> None:
    scan = SegmentScan(files, path, headers_only=headers_only)
    promised_bytes = 0 if loose else scan.size if state is None else state.file_bytes
    try:
        for _ in scan:
            if state is not None and scan.position == state.length:
                _compare(scan, state)
        _compare_end(scan, state, promised_bytes)
    except Corruption as error:
        mended = error.position >= promised_bytes
        report.problems.append(Defect(error.path, error.position, error.what, mended))
    if scan.page is not None:
        report.queue = report.queue or scan.page.queue
        created = scan.page.created if scan.next_offset > scan.base_offset else TIME_NONE
        times = (created, scan.last_time)
        report.segments.append(
            SegmentReport(
                path,
                scan.base_offset,
                scan.next_offset,
                scan.size,
                *times,
                scan.footer is not None,
            )
        )
    if scan.footer is not None and not headers_only:
        extent = sealed_extent(report.directory, _state_of(scan))
        if load_sealed(files, extent) is None:
            what = "the index is missing or wrong"
            report.problems.append(Defect(extent.index_path, 0, what, True))


def _compare(scan: SegmentScan, state: SegmentState) -> None:
    """Compare a walk that is as long as the checkpoint with it; they must be equal."""
    if (scan.next_offset, scan.hash) != (state.next_offset, state.hash):
        raise Corruption(scan.path, 0, "the batches are not those of the checkpoint")


def _compare_end(scan: SegmentScan, state: SegmentState | None, promised_bytes: int) -> None:
    """Check that a finished walk reached the length in the checkpoint."""
    if state is not None and state.sealed and scan.footer != footer_of(state):
        what = "the segment is not the one of the checkpoint"
        raise Corruption(scan.path, scan.position, what)
    if scan.position < promised_bytes - FOOTER_BYTES * (scan.footer is not None):
        raise Corruption(scan.path, scan.position, "the file ends before what was synced")


def _state_of(scan: SegmentScan) -> SegmentState:
    footer = scan.footer
    assert footer is not None, "the segment is sealed"
    return SegmentState(
        scan.base_offset,
        scan.next_offset,
        footer.length,
        footer.first_time,
        footer.last_time,
        True,
        footer.hash,
    )


def log_batches(files: Files, directory: str, first_offset: int | None = None) -> Iterator[Batch]:
    """Yield the batches of a log, from the one with an offset on or from the first kept.

    Raises Corruption at the first defect: everything yielded before is correct. Segments before the
    offset are not read.
    """
    head = read_head(files, directory)
    start = 0 if head is None else head.start
    first_offset = start if first_offset is None else max(start, first_offset)
    bases = segment_bases(files, directory)
    expected: int | None = None
    for number, base in enumerate(bases):
        if number + 1 < len(bases) and bases[number + 1] <= first_offset:
            continue
        path = f"{directory}/{segment_name(base)}"
        if expected is not None and base != expected:
            raise Corruption(path, 0, f"offsets {expected} to {base - 1} are missing before it")
        scan = SegmentScan(files, path)
        for batch in scan:
            assert batch is not None, "contents are looked at"
            if scan.next_offset > first_offset:
                yield batch
        expected = scan.next_offset
