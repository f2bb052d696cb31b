"""What can go wrong with files, for whoever owns the policy.

Four cases are told apart because they are answered differently: something of the system's that is used up, as space or
descriptors (wait, refuse publishers, go on later), a write or sync that failed (nothing on that file is acknowledged
again), a file that cannot be read or opened, and bytes that are not what was written.
"""

from __future__ import annotations

import errno

from fluxmq.model.errors import FluxmqError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_OPENING = {"create", "open", "open directory", "listdir"}
"""Operations that need a descriptor; where the system has no memory for one, it is as if it had no descriptor."""
_ADVICE = {
    errno.EMFILE: "raise the limit of open files of the process (ulimit -n, LimitNOFILE= of the unit)",
    errno.ENFILE: "raise the system's limit of open files (sysctl fs.file-max)",
    errno.ENOMEM: "the system has no memory for another descriptor",
}


class StorageError(FluxmqError):
    """Something is wrong with the files of the data directory."""


class Exhausted(StorageError):  # noqa: N818 (the name of the condition)
    """Something is used up for now; what was asked for was not done and may be tried again."""


class DiskFull(Exhausted):
    """No space is left (ENOSPC, EDQUOT)."""


class OutOfDescriptors(Exhausted):
    """The process or the system opens no more files (EMFILE, ENFILE, ENOMEM of an open)."""


class AwaitsSync(Exhausted):
    """As many files as may be open hold what is not synced: one of them has to be synced first, which is under way."""


class WriteFailed(StorageError):  # noqa: N818 (the name of the condition)
    """A write, sync, rename or the like failed; the state of the file on disk is unknown."""


class ReadFailed(StorageError):  # noqa: N818 (the name of the condition)
    """A file could not be opened, read, listed or mapped."""


class FileMissing(ReadFailed):
    """The file or directory is not there."""


class Corruption(StorageError):  # noqa: N818 (the name of the condition)
    """Bytes are not what was written: `what` is wrong at `position` of the file `path`."""

    def __init__(self, path: str, position: int, what: str) -> None:
        super().__init__(f"{path}, byte {position}: {what}")
        self.path = path
        self.position = position
        self.what = what


class Misfit(Corruption):
    """Every byte is what was written, but it does not belong here: to these settings, this placement, this version.

    Nothing is mended by itself then: what is wrong is around the files, and may be wrong on every node.
    """


def storage_error(operation: str, path: str, error: OSError, *, reading: bool) -> StorageError:
    """The error of this package for one of the operating system, naming the operation and the file."""
    text = f"{operation} of {path}: {error.strerror or error}"
    if error.errno in _FULL:
        return DiskFull(text)
    if is_out_of_descriptors(operation, error):
        return OutOfDescriptors(f"{text}: {_ADVICE[error.errno or 0]}")
    if error.errno == errno.ENOENT:
        return FileMissing(text)
    return ReadFailed(text) if reading else WriteFailed(text)


def is_out_of_descriptors(operation: str, error: OSError) -> bool:
    """Whether an operation failed because no file can be opened; another descriptor closed, it may work."""
    if error.errno == errno.ENOMEM:
        return operation in _OPENING
    return error.errno in (errno.EMFILE, errno.ENFILE)
