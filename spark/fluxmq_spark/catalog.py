"""Queues in a directory, and the readable parts of a queue's segments.

Readers go by the head file and never beyond it. Files are listed only to find queues and segments;
the reader of a segment detects that it is gone although the head keeps its messages.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from fluxmq.model.segments import (
    HEAD_BYTES,
    HEAD_NAME,
    PAGE_BYTES,
    HeaderPage,
    QueueHead,
    SegmentError,
    base_of,
    index_name,
    newest_head,
    segment_name,
)
from fluxmq_spark.errors import Damage, SparkSourceError
from fluxmq_spark.storage import Storage

GROUPS: Final = "groups"
QUEUES: Final = "queues"
VERSION_NAME: Final = "VERSION"
VERSION_PREFIX: Final = "fluxmq data "
VERSIONS: Final = (1, 2, 3)
"""Supported formats of data directories with their segments, heads and consumer groups."""

FOOTER_UNKNOWN: Final = -1
"""`SegmentFile.end` of a segment that is not the last: all but the footer, whose size is in the
file."""

_HASHED: Final = "~"


class QueueFiles(NamedTuple):
    """Location of a queue's files. `group`: the replication group's name, "" when only the queue's
    directory is known."""

    queue: str
    group: str
    directory: str


class SegmentFile(NamedTuple):
    """A readable segment.

    `next_offset`: after its last committed message. `end`: bytes of page and batches, without
    footer; FOOTER_UNKNOWN for one that is not the last.
    """

    path: str
    index_path: str
    base_offset: int
    next_offset: int
    end: int
    sealed: bool


class Log(NamedTuple):
    """A queue at one moment: its head, and the segments with the messages that the head keeps."""

    head: QueueHead
    segments: tuple[SegmentFile, ...]


# --- queues --------------------------------------------------------------------------------------------------------


def find_queues(storage: Storage, root: str) -> list[QueueFiles]:
    """Return the queues of a data directory, of a copy with ``groups/<group>/queues/<queue>``, or
    of a queue's own directory.

    Sorted by name. Raises SparkSourceError when it is none of these, or another version's, and
    Damage when a segment that is needed for a queue's name cannot be read.
    """
    _check_version(storage, root)
    names = storage.list(root)
    # Checked first: beside a queue's segments is a file named like the directory of groups.
    if HEAD_NAME in names or any(base_of(name) is not None for name in names):
        queue = _queue_name(storage, root)
        return [] if queue is None else [QueueFiles(queue, "", root)]
    if GROUPS in names:
        return sorted(
            found
            for group in storage.list(f"{root}/{GROUPS}")
            for found in _queues_of(storage, f"{root}/{GROUPS}/{group}", _name_of(group) or group)
        )
    if QUEUES in names:
        group = root.rpartition("/")[2]
        return sorted(_queues_of(storage, root, _name_of(group) or group))
    if VERSION_NAME in names:
        return []
    what = (
        "is neither a data directory, a copy of one, nor a queue's directory"
        if names
        else "is not there"
    )
    raise SparkSourceError(f"path {root!r} {what}")


def _check_version(storage: Storage, root: str) -> None:
    try:
        text = storage.read(f"{root}/{VERSION_NAME}").decode(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return
    if text not in {f"{VERSION_PREFIX}{version}" for version in VERSIONS}:
        raise SparkSourceError(
            f"path {root!r} is of version {text!r}; this program reads {VERSION_PREFIX}{VERSIONS[-1]}"
        )


def _queues_of(storage: Storage, group_directory: str, group: str) -> list[QueueFiles]:
    found = []
    for name in storage.list(f"{group_directory}/{QUEUES}"):
        if name.startswith("."):
            continue
        directory = f"{group_directory}/{QUEUES}/{name}"
        queue = _name_of(name) or _queue_name(storage, directory)
        if queue is not None:
            found.append(QueueFiles(queue, group, directory))
    return found


def _name_of(directory_name: str) -> str | None:
    """Return the name that a directory encodes; None if it is truncated and ends with a hash: then
    the segments have the name."""
    if _HASHED in directory_name:
        return None
    try:
        return unquote_to_bytes(directory_name).decode() or None
    except UnicodeDecodeError:
        return None


def _queue_name(storage: Storage, directory: str) -> str | None:
    """Return the queue's name from its segments, or from the directory's name if there are none."""
    for name in storage.list(directory):
        if base_of(name) is None:
            continue
        path = f"{directory}/{name}"
        try:
            with storage.open(path) as file:
                page = bytearray(PAGE_BYTES)
                read = file.read_into(memoryview(page), 0)
            return HeaderPage.decode(bytes(page[:read])).queue
        except FileNotFoundError:
            continue
        except SegmentError as error:
            raise Damage(path, 0, str(error)) from None
    return _name_of(directory.rstrip("/").rpartition("/")[2])


# --- one queue's log -----------------------------------------------------------------------------------------------


def read_head(storage: Storage, files: QueueFiles) -> QueueHead | None:
    """Return a queue's head, None while there is no valid one."""
    try:
        return newest_head(storage.read(f"{files.directory}/{HEAD_NAME}")[:HEAD_BYTES])
    except FileNotFoundError:
        return None


def read_log(storage: Storage, files: QueueFiles) -> Log | None:
    """Return a queue by its head, None while there is no valid head.

    Segments that end before the head's start are left out, and so is everything beyond the head.
    Files that are missing although the head keeps their messages are missing in `segments`:
    `missing` returns their offsets.
    """
    head = read_head(storage, files)
    while head is not None:
        log = Log(head, _segments(files, head, storage.list(files.directory)))
        if not missing(log, head.start, head.committed):
            return log
        # Retention moves the head before it removes a file, so a second look at it explains a
        # missing one.
        newer = read_head(storage, files)
        if newer is None or newer.start == head.start:
            return log
        head = newer
    return None


def _segments(files: QueueFiles, head: QueueHead, names: list[str]) -> tuple[SegmentFile, ...]:
    bases = sorted(
        base for base in map(base_of, names) if base is not None and base < head.committed
    )
    # Without the last segment's file, those before it end where it begins.
    last = head.committed if head.segment in bases else min(head.segment, head.committed)
    return tuple(
        SegmentFile(
            f"{files.directory}/{segment_name(base)}",
            f"{files.directory}/{index_name(base)}",
            base,
            next_offset,
            head.position if base == head.segment else FOOTER_UNKNOWN,
            base != head.segment,
        )
        for base, next_offset in zip(bases, [*bases[1:], last], strict=bool(bases))
        if next_offset > head.start
    )


def missing(log: Log, first: int, stop: int) -> list[tuple[int, int]]:
    """Return ranges of offsets, first and the one after the last, from `first` to before `stop`
    that no segment has.

    Detects only gaps before and after all segments: reading finds those in between.
    """
    found = []
    begin = log.segments[0].base_offset if log.segments else stop
    end = log.segments[-1].next_offset if log.segments else stop
    if first < min(begin, stop):
        found.append((first, min(begin, stop)))
    if max(first, end) < stop:
        found.append((max(first, end), stop))
    return found
