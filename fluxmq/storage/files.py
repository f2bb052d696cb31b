"""All file operations of storage, so that tests can make any of them fail.

Responsible for complete writes (a short write is continued), for errors that name the operation and
the file, and for the failpoints at which a test kills the process. Knows nothing of the bytes'
meaning. Nothing else in `fluxmq.storage` opens, writes, renames or lists; `fluxmq.storage.syncer`
syncs in the background.

Every system call goes through `call`: a subclass that overrides it can observe and fail all of
them. Methods block; several threads may call them, each on its own descriptors.

Sources: pwritev(2), pwritev2(2), fdatasync(2), sync_file_range(2), rename(2); a name survives a power cut only
when its directory was synced after the change (reference: "All File Systems Are Not Created Equal",
OSDI 2014).
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from typing import Final, ParamSpec, TypeVar

from fluxmq.storage.errors import (
    FileMissing,
    ReadFailed,
    StorageError,
    WriteFailed,
    is_out_of_descriptors,
    storage_error,
)
from fluxmq.storage.failpoints import Failpoints

Buffer = bytes | bytearray | memoryview
P = ParamSpec("P")
T = TypeVar("T")

BUFFERS_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)
"""Buffers that one pwritev takes; more need several calls."""

ZEROES = bytes(1 << 20)
"""Fill of a new file, 1 MiB at a time."""

_WRITTEN_OUT: Final = 1 | 2 | 4
"""SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER."""
RWF_DONTCACHE: Final = 0x80
"""Flag of Linux 6.14: the data is written out at once, and then leaves the page cache."""
_NO_FLAG: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL})
"""Errors of a kernel or file system without it."""
_NOT_HERE: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EPERM})
"""Errors of a kernel, file system or container without sync_file_range."""

_READING = frozenset({"open", "pread", "size", "listdir", "map", "readlink"})


class Files:
    """The file system, with errors of this package. Descriptors are ordinary integers."""

    def __init__(self, failpoints: Failpoints | None = None) -> None:
        self._failpoints = Failpoints() if failpoints is None else failpoints
        self._names: dict[int, str] = {}
        self.make_room: Callable[[], bool] = lambda: False
        """Closes a descriptor that can be spared when a call finds none; False when none can. Runs
        in any thread."""

    def call(
        self, operation: str, path: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Make one system call. Raises Exhausted, FileMissing, ReadFailed or WriteFailed for an
        OSError.

        When the process has no descriptor left, close one that can be spared and repeat the call.
        """
        while True:
            try:
                return function(*args, **kwargs)
            except OSError as error:
                if is_out_of_descriptors(operation, error) and self.make_room():
                    continue
                reading = operation in _READING
                raise storage_error(operation, path, error, reading=reading) from error

    def reach(self, failpoint: str) -> None:
        """Pass a failpoint, at which a test may kill the process."""
        self._failpoints.reach(failpoint)

    def path_of(self, fd: int) -> str:
        """Return the path a descriptor was opened by, for messages."""
        return self._names.get(fd, f"descriptor {fd}")

    # Descriptors

    def open_(self, path: str, create: bool = False, *, readonly: bool = False) -> int:
        """Open a file for reading and writing (or reading only); with `create`, create it if
        missing."""
        flags = os.O_CLOEXEC | (os.O_RDONLY if readonly else os.O_RDWR)
        flags |= os.O_CREAT if create else 0
        fd = self.call("create" if create else "open", path, os.open, path, flags, 0o640)
        self._names[fd] = path
        return fd

    def renamed(self, fd: int, path: str) -> None:
        """Record a new path for a descriptor's file."""
        self._names[fd] = path

    def close(self, fd: int) -> None:
        """Close a descriptor, without a sync."""
        path = self._names.pop(fd, f"descriptor {fd}")
        self.call("close", path, os.close, fd)

    # Contents

    def pwritev(
        self, fd: int, buffers: Sequence[Buffer], position: int, *, passing: bool = False
    ) -> int:
        """Write all buffers consecutively from `position`; return the number of bytes written.

        One system call unless the kernel writes less than asked, or there are more than BUFFERS_MAX
        buffers. `passing`: nobody reads them soon, so that they need not stay in the page cache.
        """
        path = self.path_of(fd)
        function = _pwritev_passing if passing else os.pwritev
        written = 0
        for first in range(0, len(buffers), BUFFERS_MAX):
            part = [
                buffer if type(buffer) is bytes else memoryview(buffer).cast("B")
                for buffer in buffers[first : first + BUFFERS_MAX]
            ]
            left = sum(map(len, part))
            while left:
                done = self.call("pwritev", path, function, fd, part, position + written)
                if done == 0:
                    raise WriteFailed(f"pwritev of {path}: nothing was written")
                written += done
                left -= done
                if left:
                    part = _behind(part, done)
        return written

    def overwrite(self, fd: int, data: bytes, position: int) -> None:
        """Write a few bytes within a sector, so that a crash leaves either the old or the new
        ones."""
        path = self.path_of(fd)
        if self.call("overwrite", path, os.pwrite, fd, data, position) != len(data):
            raise WriteFailed(f"pwrite of {path}: not everything was written")

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Read `size` bytes from `position`; fewer only at the end of the file."""
        path = self.path_of(fd)
        data = self.call("pread", path, os.pread, fd, size, position)
        if len(data) == size or not data:
            return data
        pieces = [data]
        got = len(data)
        while got < size:
            data = self.call("pread", path, os.pread, fd, size - got, position + got)
            if not data:
                break
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def pread_now(self, fd: int, size: int, position: int) -> bytes | None:
        """Read `size` bytes from `position` if the page cache has them; None where the disk would
        be needed."""
        data = bytearray(size)
        try:
            done = self.call(
                "pread", self.path_of(fd), os.preadv, fd, [data], position, os.RWF_NOWAIT
            )
        except ReadFailed as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return None
            raise
        return bytes(data) if done == size else None

    def fdatasync(self, fd: int) -> None:
        """Make a file's contents and length survive a power cut. Must not be retried after an
        error: a second attempt does not see what the first lost."""
        self.call("fdatasync", self.path_of(fd), os.fdatasync, fd)

    def write_out(self, fd: int, position: int, size: int) -> None:
        """Make the kernel write these bytes now rather than all at once later, and wait. This makes
        nothing durable, but a later sync no longer reports an error seen here, so one counts like a
        failed sync. Does nothing where unsupported."""
        self.call("write_out", self.path_of(fd), _write_out, fd, position, size)

    def truncate(self, fd: int, size: int) -> None:
        """Set a file's length; added bytes read as zeroes."""
        self.call("truncate", self.path_of(fd), os.ftruncate, fd, size)

    def allocate_zeroed(self, fd: int, size: int) -> None:
        """Give a file `size` bytes of written zeroes, synced.

        Space is reserved first, so that a full disk is noticed before anything is written; zeroes
        are then written, because a later sync into merely reserved space goes through the file
        system's journal. They are written out in pieces, so that the disk can serve others
        meanwhile.
        """
        path = self.path_of(fd)
        self.call("allocate", path, os.posix_fallocate, fd, 0, size)
        for position in range(0, size, len(ZEROES)):
            piece = min(len(ZEROES), size - position)
            self.write_zeroes(fd, position, position + piece)
            self.write_out(fd, position, piece)
        self.fdatasync(fd)

    def write_zeroes(self, fd: int, start: int, end: int) -> None:
        """Overwrite bytes `start` up to `end` with zeroes; not synced."""
        for position in range(start, end, len(ZEROES)):
            self.pwritev(fd, [ZEROES[: min(len(ZEROES), end - position)]], position, passing=True)

    def size(self, file: int | str) -> int:
        """Return the length in bytes of an open file, or of the one at a path."""
        path = file if isinstance(file, str) else self.path_of(file)
        return self.call("size", path, os.stat, file).st_size

    # Names

    def fsync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory survive a power cut.

        Raises OutOfDescriptors before anything is synced, so that it may be retried; no other error
        may.
        """
        fd = self.open_directory(path)
        try:
            self.fsync_names(fd)
        finally:
            del self._names[fd]
            os.close(fd)

    def open_directory(self, path: str) -> int:
        """Open a directory for `fsync_names`."""
        fd = self.call(
            "open directory", path, os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        )
        self._names[fd] = path
        return fd

    def fsync_names(self, fd: int) -> None:
        """Sync an open directory as `fsync_directory` does, without needing a descriptor."""
        self.call("fsync_directory", self.path_of(fd), os.fsync, fd)

    def rename(self, path: str, target: str) -> None:
        """Rename a file, replacing an existing target; not synced."""
        self.call("rename", path, os.rename, path, target)

    def unlink(self, path: str) -> None:
        """Remove a file; not synced."""
        self.call("unlink", path, os.unlink, path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; not synced."""
        self.call("remove_directory", path, os.rmdir, path)

    def make_directory(self, path: str, *, synced: bool = True) -> None:
        """Create a directory with its parents, and sync the names; do nothing if it exists.

        With `synced` false, the caller syncs the directory's own name; its parents' names are still
        synced.
        """
        if self.exists(path):
            return
        parent = os.path.dirname(path)
        if parent and parent != path:
            self.make_directory(parent)
        self.call("make_directory", path, os.makedirs, path, 0o750, exist_ok=True)
        if synced:
            self.fsync_directory(parent or ".")

    def symlink(self, target: str, path: str) -> None:
        """Create a symbolic link; fails when the name is taken. Not synced."""
        self.call("symlink", path, os.symlink, target, path)

    def link_target(self, path: str) -> str | None:
        """Return a symbolic link's target, existing or not; None for anything else."""
        try:
            return self.call("readlink", path, os.readlink, path)
        except FileMissing:
            return None
        except ReadFailed as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno == errno.EINVAL:
                return None
            raise

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(self.call("listdir", path, os.listdir, path))

    def exists(self, path: str) -> bool:
        """Return whether a file or directory of this name exists."""
        try:
            self.size(path)
        except FileMissing:
            return False
        return True

    # Whole files

    def read_file(self, path: str) -> bytes:
        """Return a whole file's contents."""
        fd = self.open_(path, readonly=True)
        try:
            return self.pread(fd, self.size(fd), 0)
        finally:
            self.close(fd)

    def write_whole(self, path: str, data: Buffer) -> None:
        """Replace a file so that after a crash either the complete old or new contents are there.

        Writes a `.tmp` file beside it, syncs, renames, and syncs the directory; on return the new
        contents are durable. On an error the `.tmp` file is removed and the old file is unchanged.
        """
        beside = path + ".tmp"
        fd = self.open_(beside, create=True)
        try:
            try:
                self.truncate(fd, 0)
                self.pwritev(fd, [data], 0)
                self.reach("file.write")
                self.fdatasync(fd)
            finally:
                self.close(fd)
            self.reach("file.rename")
            self.rename(beside, path)
        except StorageError:
            self._discard(beside)
            raise
        self.fsync_directory(os.path.dirname(path) or ".")

    def _discard(self, path: str) -> None:
        """Remove the remains of a failed write; only the original failure is reported."""
        try:
            self.unlink(path)
        except StorageError:
            return


def _behind(buffers: list[bytes | memoryview], written: int) -> list[bytes | memoryview]:
    """Return the rest of the buffers after the first `written` bytes."""
    for number, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[number + 1 :]]
        written -= len(buffer)
    return []


def _pwritev_passing(fd: int, buffers: list[bytes | memoryview], position: int) -> int:
    """Call pwritev with RWF_DONTCACHE, or without it where it is not known. Raises OSError."""
    try:
        return os.pwritev(fd, buffers, position, RWF_DONTCACHE)
    except OSError as error:
        if error.errno not in _NO_FLAG:
            raise
        return os.pwritev(fd, buffers, position)


def _write_out(fd: int, position: int, size: int) -> None:
    """Call sync_file_range. Raises OSError."""
    function = getattr(_libc, "sync_file_range", None)
    if function is None:
        return
    if function(fd, ctypes.c_int64(position), ctypes.c_int64(size), ctypes.c_uint(_WRITTEN_OUT)):
        code = ctypes.get_errno()
        if code not in _NOT_HERE:
            raise OSError(code, os.strerror(code))


_libc = ctypes.CDLL(None, use_errno=True)
