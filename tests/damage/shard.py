"""The queues of one shard without a process around them: what a shard starts and what it does in a tick, by hand.

`Queues` is the broker's own, on a disk that the test gives; nothing here stands in for code of ours but the reactor's
host, which only notes that a tick is wanted. Everything happens in one thread, when the test says so.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from random import Random
from typing import Any

from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.ports import ConsumerHandle
from fluxmq.engine.proposal_buffer import ALONE_US
from fluxmq.engine.wiring import Queues
from fluxmq.model.batch_format import Batch
from fluxmq.net.reactor import Reactor
from fluxmq.replication.disk import Disk
from fluxmq.replication.open_group import OpenGroup
from fluxmq.replication.placement import placement_of
from fluxmq.settings.schema import Settings
from fluxmq.storage.directory import DataPaths, check_unplaced, check_version, write_placement
from fluxmq.storage.wal_options import NO_MARK, MarkWrite
from tests.faults import Crash, FailingFiles, ManualSyncer, Naming, PowerCutFiles

TURNS_MAX = 400
"""Ticks in which a shard that is left alone comes to rest."""


class Clock:
    """Wall clock in µs and the loop's in seconds, both set by the test."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us

    @property
    def seconds(self) -> float:
        return self.now_us / 1_000_000


class Tracked(FailingFiles):
    """Files whose descriptors can all be closed, as the end of a process does."""

    def __init__(self) -> None:
        super().__init__()
        self.descriptors: set[int] = set()

    def open_(self, path: str, create: bool = False, *, readonly: bool = False) -> int:
        fd = super().open_(path, create, readonly=readonly)
        self.descriptors.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.descriptors.discard(fd)
        super().close(fd)

    def work_again(self) -> None:
        super().work_again()
        self._crash_at.clear()

    def close_all(self) -> None:
        """Close every descriptor."""
        for fd in list(self.descriptors):
            self.close(fd)


class TrackedPowerCut(Tracked, PowerCutFiles):
    """The same for a disk that forgets; directories that are renamed and removed are directories all the same.

    Names are kept by the directory itself rather than by its path.
    """

    def __init__(self, stash: str) -> None:
        PowerCutFiles.__init__(self, stash)
        self.descriptors = set()
        self._directories: dict[str, int] = {}

    def _directory(self, path: str) -> tuple[str, int]:
        """What stands for a directory whatever becomes of its name, and a descriptor of it."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        key = str(os.fstat(fd).st_ino)
        if key in self._directories:
            os.close(fd)
        else:
            self._directories[key] = fd
        return key, self._directories[key]

    def _note_create(self, path: str, *_flags: int) -> Callable[[int], None] | None:
        if os.path.exists(path):
            return None
        key, directory = self._directory(os.path.dirname(path))
        name = os.path.basename(path)

        def after(_fd: int) -> None:
            self._namings.append(Naming(key, lambda: os.unlink(name, dir_fd=directory)))

        return after

    def _note_rename(self, path: str, _source: str, target: str) -> Callable[[None], None]:
        kept = self._keep(target)
        key, directory = self._directory(os.path.dirname(path))
        assert os.path.dirname(path) == os.path.dirname(target)
        name, new = os.path.basename(path), os.path.basename(target)

        def undo() -> None:
            os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
            if kept:
                os.link(kept, new, dst_dir_fd=directory)

        return lambda _result: self._namings.append(Naming(key, undo))

    def _note_unlink(self, path: str, _path: str) -> Callable[[None], None] | None:
        kept = self._keep(path)
        if not kept:
            return None
        key, directory = self._directory(os.path.dirname(path))
        name = os.path.basename(path)
        naming = Naming(key, lambda: os.link(kept, name, dst_dir_fd=directory))
        return lambda _result: self._namings.append(naming)

    def _note_fsync_directory(self, path: str, fd: int) -> Callable[[None], None]:
        key = str(os.fstat(fd).st_ino)

        def after(_result: None) -> None:
            self._namings = [naming for naming in self._namings if naming.directory != key]

        return after

    def remove_directory(self, path: str) -> None:
        """Out of the way, until it is known to be gone for good."""
        self._stashed += 1
        kept = os.path.join(self._stash, str(self._stashed))
        key, directory = self._directory(os.path.dirname(path))
        name = os.path.basename(path)
        self.call("remove_directory", path, os.rename, path, kept)
        undo = Naming(key, lambda: os.rename(kept, name, dst_dir_fd=directory))
        self._namings.append(undo)

    def cut(self, random: Random, mode: str = "sectors") -> None:
        super().cut(random, mode)
        for fd in self._directories.values():
            os.close(fd)
        self._directories.clear()


class HandSyncer(ManualSyncer):
    """Syncs by hand, or at once when the test says so: for what blocks until it is done."""

    at_once = False
    direct = True  # as the real one where the disk allows it

    def submit(self, fd: int, number: int, mark: MarkWrite = NO_MARK) -> None:
        super().submit(fd, number, mark)
        if self.at_once:
            self.sync()

    def write(
        self, parts: list[bytes], position: int, number: int, mark: MarkWrite = NO_MARK
    ) -> bool:
        waiting = self.waiting
        written = super().write(parts, position, number, mark)
        if self.at_once and self.waiting > waiting:
            self.sync()
        return written


class Steps(Executor):
    """Does what it is given when the test says so, in the test's thread."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run(self) -> None:
        """Do everything that waits."""
        while self._waiting:
            future, work = self._waiting.popleft()
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 (whatever it is belongs to who asked)
                future.set_exception(error)

    def drop(self) -> None:
        """The process has ended: what waits is never done."""
        while self._waiting:
            self._waiting.popleft()[0].set_exception(Crash("the process has ended"))


class Port:
    """A consumer of the test's: what it was given and has not settled."""

    def __init__(self) -> None:
        self.held: ConsumerHandle | None = None
        self.given: deque[tuple[int, bytes]] = deque()
        """Offset and payload."""
        self.gone = False

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        for index in range(first, first + count):
            self.given.append((batch.base_offset + index, batch.payload(index)))

    def cancelled(self) -> None:
        self.gone = True

    def take(self, count: int) -> list[tuple[int, bytes]]:
        """The oldest messages given."""
        return [self.given.popleft() for _ in range(min(count, len(self.given)))]


def ranges_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Offsets as ranges, first and last inside."""
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset - 1:
            found[-1] = (found[-1][0], offset)
        else:
            found.append((offset, offset))
    return found


class Shard:
    """One shard's queues in a data directory. Raises what a start raises."""

    def __init__(
        self, settings: Settings, clock: Clock, runner: asyncio.Runner, files: Tracked
    ) -> None:
        self.files = files
        self.clock = clock
        self.steps = Steps()
        self.syncers: list[HandSyncer] = []
        self.woken = False
        self.later: list[tuple[float, Callable[[], None]]] = []
        self._runner = runner
        self.reactor = Reactor(self, 4096, 1 << 16, 1 << 16, 16)
        self.reactor.tally.now = clock.seconds
        paths = DataPaths(settings.storage.data_dir)
        try:
            check_version(files, paths, create=True)
            placement = placement_of(settings, 1)
            if not files.exists(paths.placement):  # as the supervisor does
                check_unplaced(files, paths)
                write_placement(files, paths, placement)
            self.queues = Queues(
                0,
                settings,
                placement,
                self.reactor,
                self._later,
                lambda _client, _count: None,
                clock,
                Disk(files, self._syncer, lambda: self.steps, background=False),
            )
            self.queues.join({}, 1)
            self.queues.open(lambda: None)
        except BaseException:
            self._close_descriptors()
            raise

    def _syncer(self, _directory: str) -> HandSyncer:
        self.syncers.append(HandSyncer(self.files))
        return self.syncers[-1]

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self.later.append((self.clock.seconds + seconds, action))

    def schedule(self) -> None:
        """A tick is wanted."""
        self.woken = True

    @property
    def hosted(self) -> dict[str, OpenGroup[ReplicationGroup]]:
        """The durable groups."""
        return self.queues.service.groups

    @property
    def failures(self) -> list[str]:
        """Why groups have failed."""
        return [each.group.failed for each in self.hosted.values() if each.group.failed]

    @property
    def leading(self) -> bool:
        """Whether every group takes commands or has failed."""
        return all(each.driver.leading or each.group.failed for each in self.hosted.values())

    # Ticks

    def finish(self) -> None:
        """The end of a tick: entries are proposed and written."""
        self.woken = False
        self.reactor.tally.now = self.clock.seconds
        self.queues.service.finish()

    def sync(self, error: int = 0) -> bool:
        """Syncs asked for are done, and who waited is told; whether there were any."""
        worked = False
        for syncer in self.syncers:
            while syncer.waiting:
                syncer.sync(error)
                worked = True
        for log in self.queues.service.logs.all():
            log.completed()  # also a buffered one, which has its own answers
        return worked

    def come_to_rest(self) -> None:
        """Ticks and syncs until nothing is under way."""
        for _ in range(TURNS_MAX):
            self.pass_time(ALONE_US)
            self.finish()
            if not self.sync() and not self.woken:
                return
        raise AssertionError("the shard does not come to rest")

    def recover(self) -> None:
        """Syncs until every group leads, or has failed; nothing is proposed beyond what a start proposes."""
        for _ in range(TURNS_MAX):
            if self.leading:
                return
            for log in self.queues.service.logs.all():
                log.flush()
            self.sync()
        raise AssertionError("a group neither leads nor has it failed")

    def pass_time(self, microseconds: int) -> None:
        """Time passes, and what was to be done later is done."""
        self.clock.now_us += microseconds
        now = self.clock.seconds
        due = [action for at, action in self.later if at <= now]
        self.later = [(at, action) for at, action in self.later if at > now]
        for action in due:
            action()

    # Checkpoints

    def begin_checkpoint(self, name: str) -> None:
        """Capture a group's state; `steps.run` writes it, `end_checkpoints` takes note."""

        async def begin() -> None:
            self.queues.service.durable.checkpoints.begin(self.hosted[name])
            await asyncio.sleep(0)

        self._runner.run(begin())

    def end_checkpoints(self) -> None:
        """Whatever was captured is written, and the log released."""
        self.steps.run()
        self._runner.run(self.queues.service.durable.checkpoints.drain())

    def checkpoint(self, name: str) -> None:
        """A whole checkpoint."""
        self.begin_checkpoint(name)
        self.end_checkpoints()

    # The end

    def stop(self) -> None:
        """End in order."""
        self.come_to_rest()

        async def stop() -> None:
            task = asyncio.get_running_loop().create_task(self.queues.service.stop())
            while not task.done():
                self.steps.run()
                self.sync()
                await asyncio.sleep(0)
            await task

        for syncer in self.syncers:
            syncer.at_once = True
        self._runner.run(stop())
        self.reactor.poller.close()

    def kill(self) -> None:
        """The process ends here: nothing is written any more, descriptors are closed."""
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        self.files.close_all()
        for syncer in self.syncers:
            syncer.close()
        self.reactor.poller.close()
