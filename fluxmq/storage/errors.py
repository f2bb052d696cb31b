"""Errors of files, classified for the code that decides the policy.

Four cases are handled differently: a system resource is exhausted, such as space or descriptors
(wait, refuse publishers, resume later); a write or sync failed (nothing on that file is
acknowledged again); a file cannot be read or opened; and bytes are not as written.
"""

from __future__ import annotations

import errno

from fluxmq.model.errors import FluxmqError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_OPENING = {"create", "open", "open directory", "listdir"}
"""Operations that need a descriptor; ENOMEM on them counts as having no descriptor."""
_ADVICE = {
    errno.EMFILE: "raise the limit of open files of the process (ulimit -n, LimitNOFILE= of the unit)",
    errno.ENFILE: "raise the system's limit of open files (sysctl fs.file-max)",
    errno.ENOMEM: "the system has no memory for another descriptor",
}


class StorageError(FluxmqError):
    """A failure of the data directory's files."""


class OffsetOutOfRange(StorageError):  # noqa: N818 (the name of the condition)
    """No message has this offset: it was removed, or is not yet written."""

    def __init__(self, queue: str, offset: int, start: int, next_offset: int) -> None:
        super().__init__(f"queue {queue!r} has offsets {start} up to {next_offset}, not {offset}")
        self.offset = offset
        self.start = start
        self.next_offset = next_offset


class BatchTooLarge(StorageError):  # noqa: N818 (the name of the condition)
    """A batch that no segment of this log can hold."""


class Exhausted(StorageError):  # noqa: N818 (the name of the condition)
    """A resource is exhausted for now; the operation was not done and may be retried."""


class DiskFull(Exhausted):
    """No space is left (ENOSPC, EDQUOT)."""


class OutOfDescriptors(Exhausted):
    """The process or the system cannot open more files (EMFILE, ENFILE, ENOMEM of an open)."""


class AwaitsSync(Exhausted):
    """All places for unsynced open files are taken: a sync in progress must finish first."""


class WriteFailed(StorageError):  # noqa: N818 (the name of the condition)
    """A write, sync, rename or the like failed; the state of the file on disk is unknown."""


class ReadFailed(StorageError):  # noqa: N818 (the name of the condition)
    """A file could not be opened, read, listed or mapped."""


class FileMissing(ReadFailed):
    """The file or directory does not exist."""


class Corruption(StorageError):  # noqa: N818 (the name of the condition)
    """Bytes are not as written: `what` is wrong at `position` of the file `path`."""

    def __init__(self, path: str, position: int, what: str) -> None:
        super().__init__(f"{path}, byte {position}: {what}")
        self.path = path
        self.position = position
        self.what = what


class Misfit(Corruption):
    """Every byte is as written, but the data does not fit these settings, this placement or this
    version.

    Nothing is repaired automatically then: the fault is outside the files, and may be on every
    node.
    """


def storage_error(operation: str, path: str, error: OSError, *, reading: bool) -> StorageError:
    """Return this package's error for an OSError, naming the operation and the file."""
    text = f"{operation} of {path}: {error.strerror or error}"
    if error.errno in _FULL:
        return DiskFull(text)
    if is_out_of_descriptors(operation, error):
        return OutOfDescriptors(f"{text}: {_ADVICE[error.errno or 0]}")
    if error.errno == errno.ENOENT:
        return FileMissing(text)
    return ReadFailed(text) if reading else WriteFailed(text)


def is_out_of_descriptors(operation: str, error: OSError) -> bool:
    """Return whether an operation failed for lack of a descriptor; closing one may help."""
    if error.errno == errno.ENOMEM:
        return operation in _OPENING
    return error.errno in (errno.EMFILE, errno.ENFILE)
