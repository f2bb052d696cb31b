"""A group replicates whatever implements the port: here a list of words, without any queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson

from fluxmq.replication.checkpoints import Checkpoints
from fluxmq.replication.open_group import OpenGroup, open_group
from fluxmq.replication.ports import Driver
from fluxmq.replication.shared_log import SharedLog
from fluxmq.replication.stores import DiskStores
from fluxmq.storage.batch_cache import BatchCache
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.files import Files
from fluxmq.storage.log_reader import OpenSegments
from fluxmq.storage.open_files import OpenFiles
from fluxmq.storage.queue_log import SegmentOptions
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import WalOptions
from tests.unit.engine.support import StepSyncer


class NoAhead:
    """Nothing is applied before its sync."""

    wanted = False

    def lets_through(self, index: int, data: bytes) -> bool:
        raise AssertionError("nobody asked for it")

    def synced(self, index: int) -> None:
        """Nothing waits."""


class NoAnswers:
    """Nobody waits for more or less than the commit."""

    early = held = False
    ahead = NoAhead()

    def advance(self) -> None:
        """Nothing is due."""


class Words:
    """A list of words."""

    name = "g"
    leaving = False

    def __init__(self) -> None:
        self.answers = NoAnswers()
        self.words: list[str] = []
        self.failed = ""
        self.applied_index = self.applied_term = self.applied_bytes = 0
        self.roles: list[str] = []
        self.driver: Driver

    def restore(self, index: int, term: int, snapshot: bytes, origin: str) -> None:
        self.words = orjson.loads(snapshot)
        self.applied_index, self.applied_term = index, term

    def recovered(self) -> None:
        self.roles.append("recovered")

    def snapshot(self) -> bytes:
        self.applied_bytes = 0
        return orjson.dumps(self.words)

    def flush(self) -> bool:
        return True

    def digest(self) -> int:
        return hash(tuple(self.words))

    def apply(self, index: int, term: int, data: bytes | None) -> None:
        if data is not None:
            self.words.append(data.decode())
            self.applied_bytes += len(data)
        self.applied_index, self.applied_term = index, term

    def answer_written(self, index: int) -> None:
        raise AssertionError("nobody asked for it")

    def when_applied(self, done: Callable[[], None]) -> None:
        done()

    def join(self, driver: Driver, replicated: bool) -> None:
        self.driver = driver
        assert not replicated

    def lead(self) -> None:
        self.roles.append("leads")

    def follow(self) -> None:
        self.roles.append("follows")

    def fail(self, why: str) -> None:
        self.failed = why

    def wake(self) -> None:
        """A test steps it."""


class Place:
    """A life of the group in a directory."""

    def __init__(self, directory: Path) -> None:
        self.files, self.paths = Files(), DataPaths(str(directory))
        self.syncer = StepSyncer()
        options = WalOptions(file_bytes=1 << 20, background=False)
        wal = WriteAheadLog.open(self.files, self.paths.wal(0), self.syncer, options)
        self.shared = SharedLog(wal, lambda: None)
        cache, segments = BatchCache(1 << 20), OpenSegments(OpenFiles(self.files))
        stores = DiskStores(self.files, self.paths, "g", SegmentOptions(), cache, segments)
        self.machine = Words()
        self.hosted: OpenGroup[Words] = open_group(
            self.machine, stores, self.shared, self.files, self.paths
        )
        self.hosted.driver.start()
        self.work()

    def work(self) -> None:
        """Write, sync and apply."""
        for _ in range(3):
            self.shared.flush()
            self.shared.completed()

    def say(self, *words: str) -> None:
        """Replicate words."""
        for word in words:
            assert self.machine.driver.propose(word.encode()) is not None
            self.machine.driver.pump()
        self.work()

    def checkpoint(self) -> None:
        """Take a checkpoint."""

        async def take() -> None:
            with ThreadPoolExecutor(1) as thread:
                checkpoints = Checkpoints(self.files, self.paths, thread, lambda: 0.0, lambda: None)
                task = checkpoints.begin(self.hosted)
                assert task is not None
                await task

        asyncio.run(take())
        self.work()

    def end(self) -> None:
        """The process ends."""
        self.hosted.stores.close()
        self.shared.close()
        self.syncer.close()


def test_a_state_machine_without_queues_survives_by_its_checkpoint_and_the_log(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    assert place.machine.roles == ["recovered", "leads"]
    place.say("one", "two")
    place.checkpoint()
    assert place.hosted.snapshot_index == place.machine.applied_index
    place.say("three")
    before = place.machine.digest()
    place.end()
    again = Place(tmp_path)
    assert again.machine.words == ["one", "two", "three"]
    assert again.machine.digest() == before
    assert again.machine.applied_index > again.hosted.snapshot_index > 0
    again.end()


def test_a_failed_log_ends_the_state_machine(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.hosted.driver.log_failed("the disk is gone")
    assert place.machine.failed == "the disk is gone"
    assert not place.machine.driver.leading
    place.end()
