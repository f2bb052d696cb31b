"""Nodes with a data directory: shards whose queues outlive them, on disks and syncs that a test rules."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fluxmq.engine.service import QueueService
from fluxmq.replication.disk import Disk
from fluxmq.storage.files import Files
from fluxmq.storage.wal_options import NO_MARK, MarkWrite
from tests.broker import merged
from tests.conformance import wire
from tests.conformance.client import Client
from tests.conformance.received import Packet
from tests.faults import FailingFiles, write_mark
from tests.unit.shards.node import Clock, Node, Shard, drain

KEPT = ".kept"
"""Suffix of the copy of a log."""
FOREVER = 80_000
"""Seconds: longer than any test's time, so that checkpoints come when asked for."""


class StepSyncer:
    """Syncs at once, or with `held` when told."""

    def __init__(self, synced: Callable[[], None] = lambda: None) -> None:
        self.held = False
        self._synced = synced
        self._asked: deque[tuple[int, MarkWrite]] = deque()
        self._done: list[tuple[int, int, float]] = []
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Readable when something completed."""
        return self._event

    def submit(self, fd: int, number: int, mark: MarkWrite = NO_MARK) -> None:
        """A sync is asked for."""
        self._asked.append((number, mark))
        if not self.held:
            self.sync()

    def begin(self, fd: int) -> None:
        """Whichever file it is, the log writes to it."""

    def write(
        self, parts: list[bytes], position: int, number: int, mark: MarkWrite = NO_MARK
    ) -> bool:
        """The log does."""
        return False

    @property
    def waiting(self) -> int:
        """Syncs asked for and not done."""
        return len(self._asked)

    def sync(self, error: int = 0) -> None:
        """Do what was asked for, or have it fail."""
        files = Files()
        for number, mark in self._asked:
            self._done.append((number, error or -write_mark(files, mark), 0.001))
        self._asked.clear()
        self._synced()
        self.wake()

    def completed(self) -> list[tuple[int, int, float]]:
        """What was done since the last call."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return []
        done, self._done = self._done, []
        return done

    def wake(self) -> None:
        """Make `fileno` readable."""
        os.eventfd_write(self._event, 1)

    def close(self) -> None:
        """Let go of the descriptor; again does nothing."""
        if self._event >= 0:
            os.close(self._event)
            self._event = -1


class QueueNode(Node):
    """A node that keeps its queues in a directory. `disks` and `syncers` by shard, in the order started."""

    def __init__(
        self, directory: Path, clock: Clock, loop: Any, settings: dict[str, Any], workers: int = 1
    ) -> None:
        self.failing: list[FailingFiles] = []
        self.syncers: list[StepSyncer] = []
        self.directories: list[str] = []
        self.held = False
        self.keeps_synced = False
        """Whether `cut_power` can be asked for: a copy of each log is kept, as of its last sync."""
        storage = {
            "data_dir": str(directory),
            "wal_file_bytes": 1 << 20,
            "min_free_bytes": 0,
            "checkpoint_interval": FOREVER,
        }

        async def begin() -> None:
            Node.__init__(self, workers, clock, loop, merged({"storage": storage}, settings))

        loop.run_until_complete(begin())
        self.advance(0.01)
        for shard in self:
            assert shard.queues.service.ready

    def queue_disk(self) -> Disk:
        """A disk that can be made to fail, and whose syncs can be held."""
        self.failing.append(FailingFiles())
        return Disk(self.failing[-1], self._syncer, background=False)

    def _syncer(self, directory: str) -> StepSyncer:
        self.directories.append(directory)
        self.syncers.append(StepSyncer(lambda: self._keep(directory)))
        self.syncers[-1].held = self.held
        return self.syncers[-1]

    def run(self) -> bool:
        """Let all shards work until nothing is left to do, nor for their logs."""
        worked = super().run()
        while not self.held and any(map(self._is_writing, self)):
            worked |= super().run()
        return worked

    def _is_writing(self, shard: Shard) -> bool:
        logs = shard.queues.service.logs.all()
        return any(
            not log.failed and (log.wal.in_flight or (log.wal.buffered_bytes and not log.full))
            for log in logs
        )

    def advance(self, seconds: float) -> None:
        """Let time pass, and the checkpoints that were begun meanwhile end."""

        async def pass_time() -> None:
            Node.advance(self, seconds)
            for shard in self:
                await shard.queues.service.durable.checkpoints.drain()

        self.loop.run_until_complete(pass_time())
        self.run()

    def hold_syncs(self, held: bool = True) -> None:
        """From now on nothing becomes durable; with False everything does."""
        self.held = held
        for syncer in self.syncers:
            syncer.held = held
            if not held:
                syncer.sync()
        self.run()

    def checkpoint(self, shard: int = 0) -> None:
        """Take a checkpoint of every group of a shard."""
        service = self[shard].queues.service

        async def take() -> None:
            for hosted in service.groups.values():
                service.durable.checkpoints.begin(hosted)
            await service.durable.checkpoints.drain()

        self.loop.run_until_complete(take())
        self.run()

    def kill(self, index: int) -> None:
        """SIGKILL: files are closed as they are."""
        service = self[index].queues.service
        super().kill(index)
        self.syncers = [each for each in self.syncers if each not in service.logs.syncers]
        _close(service)

    def _keep(self, directory: str) -> None:
        if self.keeps_synced:
            shutil.copytree(directory, directory + KEPT, dirs_exist_ok=True)

    def cut_power(self, index: int = 0) -> None:
        """End a shard, whose log loses all that was not synced. All else that was written is still there."""
        self.kill(index)
        (directory,) = {each for each in self.directories if each.endswith(f"/{index}/wal")}
        if Path(directory + KEPT).exists():
            shutil.rmtree(directory)
            shutil.copytree(directory + KEPT, directory)
        self.held = False
        self.start(index)
        self.advance(0.01)

    def close(self) -> None:
        """End everything."""
        services = [shard.queues.service for shard in self]
        super().close()
        for service in services:
            _close(service)

    def restart(self, index: int = 0, kill: bool = True) -> None:
        """SIGKILL a shard (or end it in order) and start it anew."""
        if not kill:
            service = self[index].queues.service
            self.loop.run_until_complete(service.stop())
            self.syncers = [each for each in self.syncers if each not in service.logs.syncers]
            service.logs.syncers.clear()
        self.kill(index)
        self.held = False
        self.start(index)
        self.advance(0.01)

    def machine(self, queue: str, shard: int = 0) -> Any:
        """What the state machine knows of a queue; None when it has none of this name."""
        service = self[shard].queues.service
        group = service.find(service.names.info(queue).group)
        return None if group is None else group.machine.queue(queue)

    def turn(self) -> None:
        """Run, in the middle of something that waits."""
        self.run()

    def group(self, queue: str, shard: int = 0) -> Any:
        """The group of a queue."""
        service = self[shard].queues.service
        return service.find(service.names.info(queue).group)


def _close(service: QueueService) -> None:
    """What the end of a process does to its descriptors."""
    for fd in list(service._files._names):
        service._files.close(fd)
    for syncer in service.logs.syncers:
        syncer.close()


def user(*pairs: tuple[str, str]) -> list[tuple[int, Any]]:
    """User properties."""
    return [(wire.USER_PROPERTY, pair) for pair in pairs]


def said(message: Packet) -> dict[str, str]:
    """The user properties of a message, the first of each name."""
    found: dict[str, str] = {}
    for name, value in message.all(wire.USER_PROPERTY):
        found.setdefault(name, value)
    return found


def offsets(messages: list[Packet]) -> list[int]:
    """Where messages stand in their queue."""
    return [int(said(message)["offset"]) for message in messages]


def fill(client: Client, queue: str, count: int, first: int = 0) -> None:
    """Publish numbered messages to a queue."""
    for number in range(first, first + count):
        assert client.publish(f"$queue/{queue}", b"%d" % number, qos=1) == 0


def consume(client: Client) -> list[Packet]:
    """Everything that has come for a client, acknowledged, until nothing more comes."""
    found: list[Packet] = []
    while some := drain(client):
        for packet in some:
            assert packet.kind == wire.PUBLISH, str(packet)
            client.acknowledge(packet)
        found += some
    return found


__all__ = ["QueueNode", "StepSyncer", "consume", "drain", "fill", "offsets", "said", "user"]
