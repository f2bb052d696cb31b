"""Power cuts: the workload on a disk that forgets what was not synced, cut at any operation, started again and again.

After each cut every group has to be exactly what its log's entries make of the last state that anybody was told of:
nothing that was confirmed is lost, every offset holds what it held, nothing is there that nobody sent. Recovery is cut
as well.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from fluxmq.engine.group import ReplicationGroup
from fluxmq.queues.machine import Machine
from fluxmq.raft.types import COMMAND, Entry
from fluxmq.replication.open_group import OpenGroup
from fluxmq.settings.schema import Settings
from fluxmq.storage.errors import StorageError
from fluxmq.storage.queue_log import QueueLog
from tests.damage.shard import Clock, Shard, Tracked, TrackedPowerCut
from tests.damage.verdict import WrongError
from tests.damage.workload import Record, Workload, settings_of

OPERATIONS = {
    "pwritev": 60,
    "overwrite": 30,
    "fdatasync": 20,
    "create": 12,
    "rename": 8,
    "unlink": 12,
    "truncate": 6,
    "fsync_directory": 12,
    "pread": 40,
    "allocate": 5,
}
"""Operations that are cut, each at one of so many calls."""
FAILPOINTS = (
    *("wal.write", "wal.written", "wal.synced", "wal.rotate", "wal.recycle", "wal.recycled"),
    *("wal.create", "wal.remove", "wal.cut", "segment.write", "segment.roll", "segment.trim"),
    *("segment.sync", "segment.sync_directory", "segment.cut", "snapshot.write"),
    *("snapshot.written", "file.write", "file.rename", "directory.delete"),
)
MODES = ("nothing", "all", "prefix", "sectors", "sectors")
ERRORS = (errno.EIO, errno.EIO, errno.ENOSPC)
FAILING = ("pwritev", "overwrite", "fdatasync", "create", "rename", "unlink", "truncate")
ATTEMPTS_MAX = 6
"""Starts that are cut in a row."""


@dataclass
class Witness:
    """The state of each group that was told of, and every entry that was proposed behind it."""

    told: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    entries: dict[str, dict[int, Entry]] = field(default_factory=dict)

    def after_finish(self, shard: Shard) -> None:
        """Entries were proposed."""
        for name, hosted in shard.hosted.items():
            low, high = hosted.group.applied_index + 1, hosted.log.last_index() + 1
            known = self.entries.setdefault(name, {})
            if low < high:
                for entry in hosted.log.entries(low, high, 1 << 40):
                    known[entry.index] = entry

    def after_sync(self, shard: Shard) -> None:
        """Entries were applied, and told of."""
        for name, hosted in shard.hosted.items():
            group = hosted.group
            if group.failed:
                continue
            self.told[name] = (group.applied_index, group.machine.snapshot())
            known = self.entries.get(name, {})
            for index in [index for index in known if index <= group.applied_index]:
                del known[index]

    def expected(self, name: str, last: int) -> bytes | None:
        """State of a group whose log goes to an entry; None if that is less than was told."""
        index, content = self.told.get(name, (0, Machine().snapshot()))
        if last < index:
            return None
        machine = Machine()
        machine.restore(content)
        for at in range(index + 1, last + 1):
            entry = self.entries[name][at]
            if entry.kind == COMMAND:
                machine.apply(entry.index, entry.term, entry.data)
        return machine.snapshot()


@dataclass
class Power:
    """One directory through several lives. `cuts`: how many.

    `failing`: before the power goes some call fails (EIO, ENOSPC, a short write, a sync), and the shard goes on with
    what is left of it; what it confirms then has to be there after the cut as well.
    """

    base: Path
    random: Random
    runner: asyncio.Runner
    failing: bool = False
    buffered: bool = False
    """Publishers are answered before the sync: what comes back need only be a beginning of what was."""
    lost: int = 0
    failed: int = 0
    """Lives in which a group gave up."""
    settings: Settings = field(init=False)
    clock: Clock = field(default_factory=Clock)
    record: Record = field(default_factory=Record)
    witness: Witness = field(default_factory=Witness)
    cuts: int = 0
    lives: int = 0

    def __post_init__(self) -> None:
        data = self.base / "data"
        data.mkdir()
        durability = "buffered" if self.buffered else "fsync"
        self.settings = settings_of(str(data), queue_ack_durability=durability)

    def run(self, lives: int) -> None:
        """Live so many times. Raises WrongError."""
        workload = Workload(self.random, self.record)
        for _ in range(lives):
            shard = self._start()
            workload.forget_consumers()
            self._live(shard, workload)
            self._cut(shard)
        shard = self._start(cut=False)
        shard.kill()
        if self.record.problems:
            raise WrongError(self.record.problems[0])

    @property
    def confirmed(self) -> int:
        """Messages whose publishers were told that they are stored."""
        return sum(map(len, self.record.stored.values()))

    def _disk(self) -> TrackedPowerCut:
        self.lives += 1
        return TrackedPowerCut(str(self.base / f"stash {self.lives}"))

    def _arm(self, files: Tracked, reach: float = 1.0) -> None:
        """Have the power cut at one of the coming operations, or one of them fail."""
        if self.failing:
            self._arm_failure(files, reach)
            return
        if self.random.random() < 0.5:
            name = self.random.choice(sorted(OPERATIONS))
            most = max(1, round(OPERATIONS[name] * reach))
            files.crash(name, self.random.randint(1, most))
        else:
            files.crash_at(self.random.choice(FAILPOINTS), self.random.randint(1, 4))

    def _arm_failure(self, files: Tracked, reach: float) -> None:
        name = self.random.choice((*FAILING, "short"))
        nth = self.random.randint(1, max(1, round(OPERATIONS.get(name, 40) * reach)))
        if name == "short":
            files.shorten("pwritev", self.random.randint(1, 600), nth)
        elif self.random.random() < 0.2:
            files.fail_always(name, errno.ENOSPC)
        else:
            files.fail(name, self.random.choice(ERRORS), nth)

    def _start(self, *, cut: bool = True) -> Shard:
        """Recover, cut or not, and hold what comes back against what was told."""
        for attempt in range(ATTEMPTS_MAX):
            files = self._disk()
            armed = cut and attempt + 1 < ATTEMPTS_MAX and self.random.random() < 0.4
            if armed:
                self._arm(files, 0.3)
            try:
                shard = Shard(self.settings, self.clock, self.runner, files)
            except StorageError:
                if not files.dead and not (self.failing and armed):
                    raise
                self._fail(files)
                continue
            last = {name: each.log.last_index() - 1 for name, each in shard.hosted.items()}
            self.witness.after_finish(shard)
            try:
                shard.recover()
            except StorageError:
                if not files.dead:
                    raise
            if files.dead or (self.failing and armed and shard.failures):
                self._cut(shard)
                continue
            files.work_again()
            self._check(shard, last)
            return shard
        raise AssertionError("every start was cut, though the last was not to be")

    def _live(self, shard: Shard, workload: Workload) -> None:
        self._arm(shard.files)
        for _ in range(self.random.randint(5, 120)):
            try:
                workload.step(shard)
                shard.finish()
            except StorageError:
                if not shard.files.dead:
                    raise
            self.witness.after_finish(shard)
            if shard.files.dead:
                return
            if self.random.random() < 0.6:
                shard.sync(errno.EIO if self.failing and self.random.random() < 0.01 else 0)
                if shard.files.dead:
                    return
                self.witness.after_sync(shard)
            if shard.failures and not self.failing:
                raise WrongError(f"a group failed: {shard.failures[0]}")
        self.failed += bool(shard.failures)

    def _cut(self, shard: Shard) -> None:
        self._fail(shard.files)
        shard.steps.drop()
        self.runner.run(shard.queues.service.durable.checkpoints.drain())
        shard.kill()

    def _fail(self, files: Tracked) -> None:
        assert isinstance(files, TrackedPowerCut)
        files.cut(self.random, self.random.choice(MODES))
        files.close_all()
        self.cuts += 1

    # What came back

    def _check(self, shard: Shard, last: dict[str, int]) -> None:
        if shard.failures:
            raise WrongError(f"not recovered: {shard.failures[0]}")
        for name, hosted in shard.hosted.items():
            if self.buffered:
                self._forget_lost(name, hosted)
                self._check_messages(name, hosted)
                continue
            expected = self.witness.expected(name, last[name])
            if expected is None:
                told = self.witness.told[name][0]
                raise WrongError(f"group {name} goes to entry {last[name]}, {told} were told of")
            if hosted.group.machine.snapshot() != expected:
                raise WrongError(f"group {name} is not what its entries make of it")
            self._check_messages(name, hosted)
        self.witness.after_sync(shard)

    def _forget_lost(self, name: str, hosted: OpenGroup[ReplicationGroup]) -> None:
        """What came after the last whole write may be lost, and its offsets are given again."""
        self.record.settled.clear()
        for place in [place for place in self.record.stored if place[0] == name]:
            queue = hosted.group.machine.queues.get(place[1])
            end = 0 if queue is None else queue.next_offset
            stored = self.record.stored[place]
            for offset in [offset for offset in stored if offset >= end]:
                del stored[offset]
                self.lost += 1

    def _check_messages(self, name: str, hosted: OpenGroup[ReplicationGroup]) -> None:
        tried = {payload for payloads in self.record.tried.values() for payload in payloads}
        for queue_id, queue in hosted.group.machine.queues.items():
            log = hosted.group.logs[queue_id]
            assert isinstance(log, QueueLog)
            stored = self.record.stored.get((name, queue_id), {})
            if stored and max(stored) >= queue.next_offset:
                raise WrongError(
                    f"{queue.name} ends at {queue.next_offset}, {max(stored)} was stored"
                )
            if (log.start_offset, log.next_offset) != (queue.kept, queue.next_offset):
                raise WrongError(f"{queue.name} and its log have other offsets")
            offset = max(queue.start, queue.kept)
            while offset < queue.next_offset:
                batch = log.read(offset)
                for index in range(offset - batch.base_offset, batch.count):
                    payload = bytes(batch.payload(index))
                    if stored.get(batch.base_offset + index, payload) != payload:
                        raise WrongError(f"{queue.name}: another message at {offset}")
                    if payload not in tried:
                        raise WrongError(f"{queue.name}: nobody sent what is at {offset}")
                offset = batch.base_offset + batch.count
