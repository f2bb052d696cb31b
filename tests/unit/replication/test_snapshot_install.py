"""Groups opened behind a snapshot of another member: they are what it was, go on from there, and no cut makes them half."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from fluxmq.engine.group import ReplicationGroup
from fluxmq.replication.checkpoints import capture
from fluxmq.replication.open_group import OpenGroup
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.queue_log import QueueLog
from fluxmq.storage.snapshots import GroupSnapshot
from fluxmq.storage.transfer_install import decided
from fluxmq.storage.transfer_source import SnapshotSource
from fluxmq.storage.transfer_target import SnapshotTarget
from tests.damage.shard import Clock, Shard, Tracked
from tests.damage.workload import Workload, settings_of
from tests.unit.storage.transfers import MovingPowerCut, gather, segment_files, segments_below

MODES = ("nothing", "all", "sectors", "prefix")


@dataclass
class Scene:
    """A leader, in a directory; and the directory as it was some time before, which is a member that lags."""

    base: Path
    runner: asyncio.Runner
    clock: Clock = field(default_factory=Clock)
    random: Random = field(default_factory=lambda: Random(7))

    def start(self, name: str, files: Tracked | None = None) -> Shard:
        """A shard on a directory."""
        settings = settings_of(str(self.base / name))
        return Shard(settings, self.clock, self.runner, files or Tracked())

    def work(self, shard: Shard, steps: int) -> None:
        """Clients do this and that; all of it is applied then."""
        Workload(self.random, first=self.random.randrange(1 << 30)).run(shard, steps)
        shard.come_to_rest()

    def begin(self, name: str) -> Shard:
        """A shard that takes no checkpoint, as if one went on for ever: its log keeps what it has."""
        shard = self.start(name)
        for hosted in shard.hosted.values():
            hosted.checkpointing = True
        return shard

    def copy(self, name: str, target: str) -> str:
        """A directory once more."""
        shutil.copytree(self.base / name, self.base / target)
        return target

    def paths(self, name: str) -> DataPaths:
        """Where things are in a directory."""
        return DataPaths(str(self.base / name))

    def gather(self, name: str, source: SnapshotSource, files: Files) -> SnapshotTarget:
        """Everything of a snapshot, ready to be put in place."""
        manifest = source.manifest()
        group = source._manifest.group
        target = SnapshotTarget(
            files, self.paths(name), group, manifest, sleep=lambda _seconds: None
        )
        gather(source, target)
        target.prepare()
        return target


@dataclass
class Led:
    """A group of the leader at one entry."""

    group: str
    source: SnapshotSource
    machine: bytes
    segments: dict[str, bytes]


def led(scene: Scene, shard: Shard, name: str) -> Led:
    """The group with most to give, as it is now. No snapshot of it is written."""
    hosted = max(shard.hosted.values(), key=lambda each: each.stores.bytes)
    index, term, content, parts = capture(hosted)
    hosted.stores.synced(parts, StorageError("it is not written"))
    group = hosted.group.name
    snapshot = GroupSnapshot(index, term, content)
    source = SnapshotSource(Files(), scene.paths(name), group, snapshot)
    return Led(group, source, hosted.group.machine.snapshot(), segment_files(source))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with asyncio.Runner() as runner:
        yield Scene(tmp_path_factory.mktemp("scene"), runner)


@pytest.fixture(autouse=True)
def chance(scene: Scene) -> None:
    """What clients do depends on no other test, whichever ran before."""
    scene.random = Random(7)


@pytest.fixture(scope="module")
def ahead(scene: Scene) -> Iterator[Led]:
    """What the leader has; `lagging` is the directory of who lags."""
    scene.random = Random(7)
    (scene.base / "leader").mkdir()
    shard = scene.start("leader")
    scene.work(shard, 120)
    shard.stop()
    scene.copy("leader", "lagging")
    shard = scene.start("leader")
    shard.recover()
    scene.work(shard, 250)
    found = led(scene, shard, "leader")
    yield found
    shard.kill()


def assert_is(hosted: OpenGroup[ReplicationGroup], expected: Led) -> None:
    """A group was opened at just the snapshot, with a log that is empty but for what begins its term."""
    assert hosted.snapshot_index == hosted.group.applied_index == expected.source.index
    assert hosted.group.applied_term == expected.source.term
    assert hosted.log.first_index() == hosted.log.last_index() == expected.source.index + 1
    assert hosted.driver.node.term > expected.source.term
    assert hosted.group.machine.snapshot() == expected.machine


def assert_goes_on(scene: Scene, name: str, shard: Shard) -> None:
    """What is appended now is there after a crash."""
    scene.work(shard, 40)
    states = {group: each.group.machine.snapshot() for group, each in shard.hosted.items()}
    shard.kill()
    again = scene.start(name)
    again.recover()
    assert again.failures == []
    assert {group: each.group.machine.snapshot() for group, each in again.hosted.items()} == states
    for hosted in again.hosted.values():
        for queue_id, queue in hosted.group.machine.queues.items():
            log = hosted.group.logs[queue_id]
            assert isinstance(log, QueueLog)
            assert (log.start_offset, log.next_offset) == (queue.kept, queue.next_offset)
            offset = queue.kept
            while offset < queue.next_offset:
                batch = log.read(offset)
                offset = batch.base_offset + batch.count
    again.kill()


def test_a_member_that_lags_becomes_what_the_leader_is(scene: Scene, ahead: Led) -> None:
    name = scene.copy("lagging", "member")
    target = scene.gather(name, ahead.source, Tracked())
    assert 0 < target.reused_bytes < target.total_bytes
    target.install()
    shard = scene.start(name)
    assert_is(shard.hosted[ahead.group], ahead)
    shard.recover()
    queues = Path(scene.paths(name).queues(ahead.group))
    assert segments_below(queues) == ahead.segments
    paths = scene.paths(name)
    assert decided(Files(), paths, ahead.group) is not None  # it is not yet known to be durable
    assert_goes_on(scene, name, shard)
    assert decided(Files(), paths, ahead.group) is None


def test_a_running_shard_takes_a_snapshot_for_a_group_of_its_own(scene: Scene, ahead: Led) -> None:
    name = scene.copy("lagging", "running")
    shard = scene.start(name)
    shard.recover()
    shard.come_to_rest()
    target = scene.gather(name, ahead.source, shard.files)
    scene.work(shard, 5)  # the group goes on meanwhile
    shard.come_to_rest()
    service = shard.queues.service
    service.durable.release(ahead.group)
    target.install()
    service.durable.open(ahead.group)
    assert_is(shard.hosted[ahead.group], ahead)
    shard.recover()
    assert segments_below(Path(scene.paths(name).queues(ahead.group))) == ahead.segments
    assert_goes_on(scene, name, shard)


def test_entries_behind_the_snapshot_stay_if_they_follow_it(scene: Scene) -> None:
    """A member that has acknowledged entries beyond the snapshot's must not lose them by taking it."""
    (scene.base / "author").mkdir()
    author = scene.begin("author")
    scene.work(author, 100)
    early = led(scene, author, "author")
    scene.work(author, 60)
    hosted = author.hosted[early.group]
    late = hosted.group.machine.snapshot()
    last = hosted.log.last_index()
    assert last > early.source.index > hosted.snapshot_index
    name = scene.copy("author", "reader")
    author.kill()
    target = scene.gather(name, early.source, Tracked())
    target.install()
    shard = scene.start(name)
    taken = shard.hosted[early.group]
    assert taken.snapshot_index == early.source.index
    assert taken.log.last_index() == last + 1
    assert taken.group.machine.snapshot() == early.machine
    while taken.group.applied_index < last:
        for log in shard.queues.service.logs.all():
            log.flush()
        shard.sync()
    assert taken.group.machine.snapshot() == late
    shard.recover()
    assert_goes_on(scene, name, shard)


def test_entries_behind_the_snapshot_go_if_they_follow_another(scene: Scene, ahead: Led) -> None:
    """A member of another opinion about the entry of the snapshot: what it has behind it was never committed."""
    name = scene.copy("lagging", "astray")
    shard = scene.start(name)
    shard.recover()
    shard.kill()
    shard = scene.begin(name)  # another term than the leader's
    shard.recover()
    hosted = shard.hosted[ahead.group]
    while hosted.log.last_index() < ahead.source.index + 20:
        scene.work(shard, 20)
    assert hosted.log.term(ahead.source.index) != ahead.source.term
    assert hosted.snapshot_index < ahead.source.index
    shard.kill()
    scene.gather(name, ahead.source, Tracked()).install()
    shard = scene.start(name)
    assert_is(shard.hosted[ahead.group], ahead)
    assert_goes_on(scene, name, shard)


def live_and_die(
    scene: Scene, name: str, files: MovingPowerCut, random: Random, steps: int = 0
) -> None:
    """A life of a shard that ends with a power cut."""
    shard = None
    try:
        shard = scene.start(name, files)
        shard.recover()
        if steps:
            scene.work(shard, steps)
    except StorageError:
        assert files.dead
    files.cut(random, random.choice(MODES))
    if shard is not None:
        shard.steps.drop()
        scene.runner.run(shard.queues.service.durable.checkpoints.drain())
        shard.kill()
    files.close_all()


@pytest.mark.parametrize("seed", range(14))
def test_no_cut_makes_a_group_half(scene: Scene, ahead: Led, seed: int) -> None:
    """The power fails while it is put in place, while the group is opened, or when it goes on; then while that is mended."""
    random = Random(seed)
    name = scene.copy("lagging", f"cut {seed}")
    files = MovingPowerCut(str(scene.base / f"stash {seed}"))
    target = scene.gather(name, ahead.source, Tracked())
    target._files = files
    installed = False
    try:
        files.crash_in(random.choice((random.randint(1, 60), 0)))
        target.install()
        installed = True
    except StorageError:
        files.cut(random, random.choice(MODES))
        files.close_all()
    if installed:
        files.crash_in(random.randint(1, 250))
        live_and_die(scene, name, files, random, steps=10)
    for again in range(random.randint(0, 2)):
        files = MovingPowerCut(str(scene.base / f"stash {seed} {again}"))
        files.crash_in(random.randint(1, 200))
        live_and_die(scene, name, files, random)
    shard = scene.start(name)
    hosted = shard.hosted[ahead.group]
    if hosted.snapshot_index == ahead.source.index:
        assert hosted.group.machine.snapshot() == ahead.machine
        assert hosted.log.first_index() == ahead.source.index + 1
    else:
        assert not installed
        assert hosted.snapshot_index < ahead.source.index
    shard.recover()
    assert shard.failures == []
    assert_goes_on(scene, name, shard)
    shutil.rmtree(scene.base / name)
