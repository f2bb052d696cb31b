"""Disks that fail: `Files` whose calls fail when told to, a disk that forgets what was not synced, and a syncer by hand.

`FailingFiles` spoils the n-th call of an operation (names as `Files.call` gets them: "pwritev", "fdatasync", "create",
"rename", ...). `PowerCutFiles` keeps what a power cut would lose and takes it back in `cut`, whole or in part.
`ManualSyncer` syncs when the test says so. None of them replaces code of ours: they are what stands where the system does.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar

from fluxmq.storage.errors import DiskFull, StorageError
from fluxmq.storage.failpoints import Failpoints
from fluxmq.storage.files import Files
from fluxmq.storage.wal_options import NO_MARK, MarkWrite

P = ParamSpec("P")
T = TypeVar("T")
SECTOR_BYTES = 512
_SYNCS = {"fdatasync", "fsync_directory"}
"""Not passed on to the system: a real sync shows nothing in a test and costs its time."""


class Crash(StorageError):  # noqa: N818 (an event)
    """The process is dead from here on; whatever it does has no effect."""


@dataclass(frozen=True)
class Fault:
    """What happens to a call: `code` of an OSError, only `kept` bytes written, or (neither) a crash before it."""

    code: int = 0
    kept: int = -1


class FailingFiles(Files):
    """Files of which chosen calls fail. `calls` counts the calls of each operation so far."""

    def __init__(self) -> None:
        super().__init__(Failpoints({}))
        self.calls: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()
        self.dead = False
        self._faults: dict[tuple[str, int], Fault] = {}
        self._always: dict[str, Fault] = {}
        self._crash_at: dict[str, int] = {}

    def fail(self, operation: str, code: int, nth: int = 1) -> None:
        """The n-th call from now on fails with this errno."""
        self._faults[operation, self.calls[operation] + nth] = Fault(code=code)

    def fail_always(self, operation: str, code: int) -> None:
        """Every call fails with this errno, until `work_again`."""
        self._always[operation] = Fault(code=code)

    def work_again(self) -> None:
        """No call fails any longer."""
        self._always.clear()
        self._faults.clear()

    def shorten(self, operation: str, kept: int, nth: int = 1) -> None:
        """The n-th call from now on writes only the first `kept` bytes, and says so."""
        self._faults[operation, self.calls[operation] + nth] = Fault(kept=kept)

    def crash(self, operation: str, nth: int = 1) -> None:
        """The process dies just before the n-th call from now on."""
        self._faults[operation, self.calls[operation] + nth] = Fault()

    def crash_at(self, failpoint: str, nth: int = 1) -> None:
        """The process dies at the n-th reach of a failpoint from now on."""
        self._crash_at[failpoint] = self.reached[failpoint] + nth

    def reach(self, failpoint: str) -> None:
        if self.dead:
            raise Crash(failpoint)
        self.reached[failpoint] += 1
        if self._crash_at.get(failpoint) == self.reached[failpoint]:
            self.dead = True
            raise Crash(failpoint)

    def call(
        self, operation: str, path: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self.dead:
            if operation == "close":
                return super().call(operation, path, function, *args, **kwargs)
            raise Crash(f"{operation} of {path}")
        self.calls[operation] += 1
        fault = self._faults.pop((operation, self.calls[operation]), None)
        fault = fault or self._always.get(operation)
        if fault is None:
            if operation in _SYNCS:
                return super().call(operation, path, _nothing, *args, **kwargs)  # type: ignore[no-any-return]  # a sync returns None
            return super().call(operation, path, function, *args, **kwargs)
        if fault.code:
            return super().call(operation, path, _raise, fault.code)
        if fault.kept >= 0:
            return super().call(operation, path, _shortened(function, fault.kept), *args, **kwargs)
        self.dead = True
        raise Crash(f"{operation} of {path}")


def _nothing(*_arguments: object) -> Any:
    """Return None, as a sync does."""


def _raise(code: int) -> NoReturn:
    raise OSError(code, os.strerror(code))


def _shortened(function: Callable[..., T], kept: int) -> Callable[..., T]:
    """A pwritev of the first `kept` bytes only."""

    def write(fd: int, buffers: list[bytes], position: int) -> T:
        return function(fd, [b"".join(buffers)[:kept]], position)

    return write


@dataclass
class Change:
    """A change of a file's bytes that may not survive: `old` stood at `position` of a file of `old_size` bytes."""

    position: int
    old: bytes
    old_size: int
    new: bytes
    new_size: int


@dataclass
class Disk:
    """One file by its inode. `fd` is our own descriptor, which outlives names."""

    fd: int
    pending: list[Change] = field(default_factory=list)
    settled: int = 0
    """Changes ever made durable; with those pending, a mark in the sequence of changes."""

    def close(self) -> None:
        """Let go of the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass
class Naming:
    """A change of a directory that may not survive; `undo` takes it back."""

    directory: str
    undo: Callable[[], None]


class PowerCutFiles(FailingFiles):
    """A disk in a directory: `cut` takes back what was not synced. Names count only once their directory is synced.

    `stash` is a directory beside it, on the same file system, where removed files wait until their removal is durable.
    """

    def __init__(self, stash: str) -> None:
        super().__init__()
        self._stash = stash
        os.makedirs(stash, exist_ok=True)
        self._stashed = 0
        self.all_changes: list[Change] = []
        """Every change of a file's bytes, durable or not."""
        self._disks: dict[int, Disk] = {}
        self._namings: list[Naming] = []
        self._lock = threading.RLock()

    def call(
        self, operation: str, path: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        with self._lock:
            if self.dead:
                return super().call(operation, path, function, *args, **kwargs)
            note = getattr(self, f"_note_{operation}", None)
            after = None if note is None else note(path, *args)
            result = super().call(operation, path, function, *args, **kwargs)
            if after is not None:
                after(result)
            return result

    # What operations leave behind

    def _disk(self, fd: int) -> Disk:
        inode = os.fstat(fd).st_ino
        if inode not in self._disks:
            self._disks[inode] = Disk(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
        return self._disks[inode]

    def _note_pwritev(
        self, _path: str, fd: int, buffers: list[Any], position: int
    ) -> Callable[[int], None]:
        disk = self._disk(fd)
        new = b"".join(buffers)
        size = os.fstat(fd).st_size
        old = os.pread(fd, len(new), position)

        def after(written: int) -> None:
            end = max(size, position + written)
            disk.pending.append(Change(position, old[:written], size, new[:written], end))
            self.all_changes.append(disk.pending[-1])

        return after

    def _note_overwrite(
        self, path: str, fd: int, data: bytes, position: int
    ) -> Callable[[int], None]:
        return self._note_pwritev(path, fd, [data], position)

    def _note_truncate(self, _path: str, fd: int, size: int) -> Callable[[None], None]:
        disk = self._disk(fd)
        before = os.fstat(fd).st_size
        old = os.pread(fd, max(0, before - size), size)

        def after(_result: None) -> None:
            disk.pending.append(Change(size, old, before, b"", size))

        return after

    def _note_allocate(self, _path: str, fd: int, _start: int, size: int) -> Callable[[None], None]:
        disk = self._disk(fd)
        before = os.fstat(fd).st_size

        def after(_result: None) -> None:
            disk.pending.append(Change(before, b"", before, b"", max(before, size)))

        return after

    def _note_fdatasync(self, _path: str, fd: int) -> Callable[[None], None]:
        mark = self.mark(fd)
        return lambda _result: self.settle(fd, mark)

    def _note_create(self, path: str, *_flags: int) -> Callable[[int], None] | None:
        if os.path.exists(path):
            return None

        def after(_fd: int) -> None:
            self._namings.append(Naming(os.path.dirname(path), lambda: os.unlink(path)))

        return after

    def _note_rename(self, path: str, _source: str, target: str) -> Callable[[None], None]:
        kept = self._keep(target)

        def undo() -> None:
            os.rename(target, path)
            if kept:
                os.link(kept, target)

        return lambda _result: self._namings.append(Naming(os.path.dirname(path), undo))

    def _note_unlink(self, path: str, _path: str) -> Callable[[None], None] | None:
        kept = self._keep(path)
        if not kept:
            return None
        naming = Naming(os.path.dirname(path), lambda: os.link(kept, path))
        return lambda _result: self._namings.append(naming)

    def _note_fsync_directory(self, path: str, _fd: int) -> Callable[[None], None]:
        def after(_result: None) -> None:
            self._namings = [naming for naming in self._namings if naming.directory != path]

        return after

    def _keep(self, path: str) -> str:
        if not os.path.exists(path):
            return ""
        self._stashed += 1
        kept = os.path.join(self._stash, str(self._stashed))
        os.link(path, kept)
        return kept

    # Syncing from outside

    def mark(self, fd: int) -> int:
        """How far the changes of a file have come."""
        disk = self._disk(fd)
        return disk.settled + len(disk.pending)

    def settle(self, fd: int, mark: int) -> None:
        """Changes up to a mark are durable."""
        with self._lock:
            disk = self._disk(fd)
            count = max(0, mark - disk.settled)
            del disk.pending[:count]
            disk.settled += count

    def close(self, fd: int) -> None:
        """Close a descriptor; after a cut there are none, and whoever held one may let go of it."""
        if not self.dead or fd in self._names:
            super().close(fd)

    # The cut

    def cut(self, random: Random, mode: str = "sectors") -> None:
        """The power fails. Of changes not synced stay: "nothing", "all", a "prefix" in bytes, or some "sectors"."""
        with self._lock:
            self.dead = True
            for disk in self._disks.values():
                _fall_back(disk, random, mode)
                disk.close()
            self._disks.clear()
            by_directory: dict[str, list[Naming]] = {}
            for naming in self._namings:
                by_directory.setdefault(naming.directory, []).append(naming)
            for namings in by_directory.values():
                kept = {"nothing": 0, "all": len(namings)}.get(
                    mode, random.randint(0, len(namings))
                )
                for naming in reversed(namings[kept:]):
                    naming.undo()
            self._namings.clear()
            shutil.rmtree(self._stash)
            for fd in self._names:  # the process ended with the power
                os.close(fd)
            self._names.clear()


def _fall_back(disk: Disk, random: Random, mode: str) -> None:
    """Set a file back to what is durable, then apply what happens to have come to the disk besides."""
    for change in reversed(disk.pending):
        os.ftruncate(disk.fd, change.old_size)
        os.pwrite(disk.fd, change.old, change.position)
    budget = random.randint(0, sum(len(change.new) for change in disk.pending))
    for change in disk.pending:
        if mode == "nothing":
            return
        if not change.new:
            if mode == "all" or random.random() < 0.5:
                os.ftruncate(disk.fd, change.new_size)
            continue
        for start, piece in _pieces(change, random, mode, budget):
            os.pwrite(disk.fd, piece, start)
        budget = max(0, budget - len(change.new))


def _pieces(change: Change, random: Random, mode: str, budget: int) -> list[tuple[int, bytes]]:
    """The parts of one write that came to the disk, each with its position."""
    if mode == "all":
        return [(change.position, change.new)]
    if mode == "prefix":
        return [(change.position, change.new[:budget])]
    pieces = []
    share = random.random()
    at = change.position
    while at < change.position + len(change.new):
        end = min((at // SECTOR_BYTES + 1) * SECTOR_BYTES, change.position + len(change.new))
        if random.random() < share:
            pieces.append((at, change.new[at - change.position : end - change.position]))
        at = end
    return pieces


def write_mark(files: Files, mark: MarkWrite) -> int:
    """Write the mark of a sync that has worked: 0 or the error, none for a full disk."""
    try:
        if mark.fd >= 0:
            files.overwrite(mark.fd, mark.data, mark.position)
    except DiskFull:
        return 0
    except StorageError:
        return errno.EIO
    return 0


class _Asked(NamedTuple):
    """A sync to do, of what was written up to a mark of the disk; and what to write first."""

    fd: int
    number: int
    written: int
    mark: MarkWrite
    blocks: bytes = b""
    position: int = 0


BLOCK_BYTES = 4096


class ManualSyncer:
    """Syncs when told. With `files` a `PowerCutFiles`, that disk learns what is durable.

    `direct`: it writes as well, whole blocks, and only when it syncs: before that the file is what it was. A disk whose
    power is cut has the write before its sync, so that any part of it may be there afterwards.
    """

    direct = False

    def __init__(self, files: Files) -> None:
        self._files = files
        self._fd = -1
        self._asked: deque[_Asked] = deque()
        self._done: list[tuple[int, int, float]] = []
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Readable when something completed or something was asked: a test must not wait for ever."""
        return self._event

    def submit(self, fd: int, number: int, mark: MarkWrite = NO_MARK) -> None:
        written = self._files.mark(fd) if isinstance(self._files, PowerCutFiles) else 0
        self._asked.append(_Asked(fd, number, written, mark))

    def begin(self, fd: int) -> None:
        self._fd = fd

    def write(
        self, parts: list[bytes], position: int, number: int, mark: MarkWrite = NO_MARK
    ) -> bool:
        if not self.direct:
            return False
        first = position - position % BLOCK_BYTES
        blocks = self._files.pread(self._fd, position - first, first) + b"".join(parts)
        blocks += bytes(-len(blocks) % BLOCK_BYTES)
        if first + len(blocks) > self._files.size(self._fd):
            return False
        if isinstance(self._files, PowerCutFiles):
            self._files.pwritev(self._fd, [blocks], first)
            self.submit(self._fd, number, mark)
        else:
            self._asked.append(_Asked(self._fd, number, 0, mark, blocks, first))
        return True

    @property
    def waiting(self) -> int:
        """Syncs asked for and not done."""
        return len(self._asked)

    def sync(self, error: int = 0) -> None:
        """Do the oldest sync asked for, or have it fail."""
        asked = self._asked.popleft()
        if not error and asked.blocks:
            try:
                self._files.pwritev(asked.fd, [asked.blocks], asked.position)
            except StorageError:
                error = errno.EIO
        if not error and isinstance(self._files, PowerCutFiles):
            self._files.settle(asked.fd, asked.written)
        if not error:
            error = -write_mark(self._files, asked.mark)
        self._done.append((asked.number, error, 0.001))
        self.wake()

    def land(self) -> None:
        """The process ends: the kernel carries out what it was given, and nobody hears of it."""
        for asked in self._asked:
            if asked.blocks:
                self._files.pwritev(asked.fd, [asked.blocks], asked.position)
        self._asked.clear()

    def completed(self) -> list[tuple[int, int, float]]:
        done, self._done = self._done, []
        if done:
            os.eventfd_read(self._event)
        return done

    def wake(self) -> None:
        os.eventfd_write(self._event, 1)

    def close(self) -> None:
        os.close(self._event)
