"""Checks, at recovery, whether a segment's file matches its checkpoint, as far as both ends show.

Reads page, length and footer, and truncates what follows. Does not read batches: each is checked
when it is read, and `fluxmqctl log verify` reads them all.
"""

from __future__ import annotations

from collections.abc import Collection

from fluxmq.model.segments import (
    FOOTER_BYTES,
    INDEX_ENTRY_BYTES,
    PAGE_BYTES,
    Footer,
    HeaderPage,
    SegmentError,
    index_name,
    segment_name,
)
from fluxmq.storage.errors import Corruption
from fluxmq.storage.files import Files
from fluxmq.storage.log_state import SegmentState


def check_growing(
    files: Files, directory: str, queue: str, segment: SegmentState, names: Collection[str]
) -> None:
    """Check the growing segment and truncate what follows it. Raises Corruption."""
    fd = _opened(files, directory, segment, names)
    try:
        _check_page(files, fd, queue, segment)
        _cut(files, fd, segment.length)
    finally:
        files.close(fd)
    name = index_name(segment.base_offset)
    if name in names:
        fd = files.open_(f"{directory}/{name}")
        try:
            if files.size(fd) > segment.index_entries * INDEX_ENTRY_BYTES:
                files.truncate(fd, segment.index_entries * INDEX_ENTRY_BYTES)
        finally:
            files.close(fd)


def check_sealed(
    files: Files, directory: str, queue: str, segment: SegmentState, names: Collection[str]
) -> None:
    """Check a sealed segment's page, length and footer. Raises Corruption."""
    fd = _opened(files, directory, segment, names)
    try:
        _check_page(files, fd, queue, segment)
        _cut(files, fd, segment.file_bytes)
        path = files.path_of(fd)
        try:
            footer = Footer.decode(files.pread(fd, FOOTER_BYTES, segment.length))
        except SegmentError as error:
            raise Corruption(path, segment.length, str(error)) from None
        if footer != footer_of(segment):
            raise Corruption(path, segment.length, "the footer is not the one of the checkpoint")
    finally:
        files.close(fd)


def footer_of(segment: SegmentState) -> Footer:
    """Return the footer that a sealed segment must have."""
    return Footer(
        segment.next_offset - segment.base_offset,
        segment.next_offset - 1,
        segment.created,
        segment.last_time,
        segment.hash,
        segment.length,
    )


def _opened(files: Files, directory: str, segment: SegmentState, names: Collection[str]) -> int:
    name = segment_name(segment.base_offset)
    if name not in names:
        raise Corruption(f"{directory}/{name}", 0, "the segment is missing")
    return files.open_(f"{directory}/{name}")


def _check_page(files: Files, fd: int, queue: str, segment: SegmentState) -> None:
    path = files.path_of(fd)
    try:
        page = HeaderPage.decode(files.pread(fd, PAGE_BYTES, 0))
    except SegmentError as error:
        raise Corruption(path, 0, str(error)) from None
    if page != HeaderPage(queue, segment.base_offset, segment.created):
        raise Corruption(path, 0, f"the header page is another segment's: {page}")


def _cut(files: Files, fd: int, length: int) -> None:
    size = files.size(fd)
    if size < length:
        what = f"the file ends here, and {length} bytes were written to it"
        raise Corruption(files.path_of(fd), size, what)
    if size > length:
        files.truncate(fd, length)
