"""Putting another member's snapshot in place: the old state or the new one, whole, wherever the power fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from fluxmq.storage import transfer_target
from fluxmq.storage.errors import Corruption, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.inspect import scan_log
from fluxmq.storage.snapshots import GroupSnapshotContent, latest_snapshot
from fluxmq.storage.transfer_install import (
    Installed,
    clean,
    decide,
    decided,
    finish,
    forget_install,
    recover_install,
)
from fluxmq.storage.transfer_source import SnapshotSource
from tests.faults import FailingFiles
from tests.unit.storage.transfers import (
    GROUP,
    MovingPowerCut,
    Replica,
    gather,
    names,
    segment_files,
)

OLD, NEW = 5, 10
MODES = ("nothing", "all", "sectors")


@dataclass
class Pair:
    """A leader's snapshot, and the directory of a member that lags."""

    source: SnapshotSource
    member: Path
    old: dict[str, bytes]

    def copy(self, root: Path) -> Path:
        """The member's directory once more."""
        return Path(shutil.copytree(self.member, root))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The member lacks most of one queue, has another that is deleted by now, and not yet a third."""
    base = tmp_path_factory.mktemp("pair")
    leader, member = Replica(base / "leader"), Replica(base / "member")
    for replica in (leader, member):
        replica.add("work", 60)
        replica.add("passing", 3)
    member.snapshot(OLD)
    old = member.segments
    member.close()
    leader.add("work", 60)
    leader.delete("passing")
    leader.add("new", 2)
    leader.logs["work"].trim(50)
    yield Pair(leader.source(NEW), base / "member", old)
    leader.close()


def target_of(pair: Pair, replica: Replica) -> transfer_target.SnapshotTarget:
    """A target that is ready to be put in place."""
    target = replica.target(pair.source.manifest())
    gather(pair.source, target)
    target.prepare()
    return target


def state_of(pair: Pair, replica: Replica) -> int:
    """Which snapshot the group's files are, all of them."""
    found = latest_snapshot(Files(), replica.paths.snapshots(GROUP))
    assert found is not None
    wanted = {OLD: pair.old, NEW: segment_files(pair.source)}[found.index]
    assert replica.segments == wanted
    logs = GroupSnapshotContent.decode(found.content).logs
    assert names(replica.root / "queues") == sorted(logs)
    for queue, state in logs.items():
        report = scan_log(Files(), replica.paths.queue(GROUP, queue), state)
        assert [problem for problem in report.problems if not problem.mended] == []
    return found.index


def power_cut(files: MovingPowerCut, random: Random, mode: str) -> None:
    files.cut(random, mode)
    files.close_all()


def test_every_call_may_be_the_last(pair: Pair, tmp_path: Path) -> None:
    """The power fails before each call in turn; then once more while that is mended."""
    calls, outcomes, random = 0, [], Random(1)
    while True:
        calls += 1
        root = pair.copy(tmp_path / f"{calls}")
        target = target_of(pair, Replica(root))
        target._files = files = MovingPowerCut(str(tmp_path / f"stash {calls}"))
        files.crash_in(calls)
        try:
            target.install()
        except StorageError:
            assert files.dead
        ended = not files.dead
        power_cut(files, random, MODES[calls % len(MODES)])
        for again in range(random.randint(0, 2)):
            mending = MovingPowerCut(str(tmp_path / f"stash {calls} {again}"))
            mending.crash_in(random.randint(1, 20))
            try:
                recover_install(mending, Replica(root).paths, GROUP)
            except StorageError:
                assert mending.dead
            power_cut(mending, random, random.choice(MODES))
        replica = Replica(root)
        installed = recover_install(replica.files, replica.paths, GROUP)
        outcomes.append(state_of(pair, replica))
        assert (installed is None) == (outcomes[-1] == OLD)
        if installed is None:
            # Nothing of what was fetched is lost.
            assert names(replica.root) == ["incoming", "queues", "snapshots"]
            target = replica.target(pair.source.manifest())
            assert gather(pair.source, target) == 0
            target.prepare()
            installed = target.install()
            assert state_of(pair, replica) == NEW
        assert installed == Installed(NEW, 3)
        assert names(replica.root) == ["incoming", "installing", "queues", "snapshots"]
        assert names(replica.root / "incoming") == []
        shutil.rmtree(root)
        if ended:
            break
    assert calls > 30
    assert (outcomes[0], outcomes[-1]) == (OLD, NEW)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_prepared_is_durable(pair: Pair, tmp_path: Path, mode: str) -> None:
    files = MovingPowerCut(str(tmp_path / "stash"))
    replica = Replica(pair.copy(tmp_path / "member"), files)
    target = target_of(pair, replica)
    decide(files, replica.paths, GROUP, Installed(NEW, 3))
    power_cut(files, Random(1), mode)
    replica.files = Files()
    assert recover_install(replica.files, replica.paths, GROUP) == Installed(NEW, 3)
    assert state_of(pair, replica) == NEW
    assert target.manifest.snapshot.index == NEW


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_while_it_is_fetched_costs_only_what_was_not_on_the_disk(
    pair: Pair, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_target, "CHUNK_BYTES", 4096)
    random, root, given = Random(seed), pair.copy(tmp_path / "member"), 0
    for life in range(3):
        files = MovingPowerCut(str(tmp_path / f"stash {life}"))
        replica = Replica(root, files)
        files.crash_in(random.randint(1, 200))
        try:
            target = replica.target(pair.source.manifest())
            given += gather(pair.source, target)
            target.prepare()
            target.close()
        except StorageError:
            assert files.dead
        power_cut(files, random, random.choice(MODES))
        whole = Replica(root)
        assert recover_install(whole.files, whole.paths, GROUP) is None
        assert state_of(pair, whole) == OLD
    replica = Replica(root)
    target_of(pair, replica).install()
    assert state_of(pair, replica) == NEW


def test_what_was_decided_is_believed_only_if_it_is_right(pair: Pair, tmp_path: Path) -> None:
    replica = Replica(pair.copy(tmp_path / "member"))
    files, paths = replica.files, replica.paths
    assert decided(files, paths, GROUP) is None
    target_of(pair, replica).install()
    assert decided(files, paths, GROUP) == Installed(NEW, 3)
    path = replica.root / "installing"
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(Corruption):
            recover_install(files, paths, GROUP)
    path.write_bytes(data)
    (replica.root / "snapshots" / f"{NEW:020d}.snap").unlink()
    with pytest.raises(Corruption, match="nowhere"):
        recover_install(files, paths, GROUP)
    shutil.copy(path, path.with_name("other"))
    forget_install(files, paths, GROUP)
    assert recover_install(files, paths, GROUP) is None
    other = Replica(tmp_path / "other")
    other.root.mkdir(parents=True)
    path.with_name("other").rename(Path(paths.root) / "groups" / "x")
    (Path(paths.root) / "groups" / "another").mkdir()
    (Path(paths.root) / "groups" / "x").rename(
        Path(paths.root) / "groups" / "another" / "installing"
    )
    with pytest.raises(Corruption, match="not of group another"):
        decided(files, paths, "another")


def test_what_nobody_needs_is_removed_at_the_start(pair: Pair, tmp_path: Path) -> None:
    replica = Replica(pair.copy(tmp_path / "member"))
    incoming = replica.root / "incoming"
    target_of(pair, replica)
    for name in (f"{OLD}-2", f"{OLD - 1}-3", "8-3", "9-3.ready", "nonsense", "-", "1-x"):
        (incoming / name / "queues" / "q").mkdir(parents=True)
        (incoming / name / "queues" / "q" / "x.seg").write_bytes(b"x")
        (incoming / name / "x.snap.tmp").write_bytes(b"x")
    (replica.root / "outgoing" / "3" / "life").mkdir(parents=True)
    (replica.root / "outgoing" / "3" / "life" / "x.seg").write_bytes(b"x")
    (replica.root / "replaced" / "queue").mkdir(parents=True)
    (replica.root / "replaced" / "queue" / "x.seg").write_bytes(b"x")
    assert recover_install(replica.files, replica.paths, GROUP) is None
    assert names(replica.root) == ["incoming", "queues", "snapshots"]
    assert names(incoming) == [f"{NEW}-3"]  # the newest that the group is not ahead of
    assert state_of(pair, replica) == OLD
    target = replica.target(pair.source.manifest())
    assert gather(pair.source, target) == 0


def test_fetching_again_what_is_being_put_in_place_does_not_touch_it(
    pair: Pair, tmp_path: Path
) -> None:
    """The same snapshot is fetched a second time (the replica was found to differ) before the first is forgotten."""
    replica = Replica(pair.copy(tmp_path / "member"))
    target_of(pair, replica).install()
    again = replica.target(pair.source.manifest(), thorough=True)
    gather(pair.source, again, lambda _piece: True)
    again.close()
    assert recover_install(replica.files, replica.paths, GROUP) == Installed(NEW, 3)
    assert state_of(pair, replica) == NEW
    target_of(pair, replica).install()
    assert state_of(pair, replica) == NEW


def test_steps_may_be_repeated(pair: Pair, tmp_path: Path) -> None:
    replica = Replica(pair.copy(tmp_path / "member"))
    target_of(pair, replica)
    decide(replica.files, replica.paths, GROUP, Installed(NEW, 3))
    for _ in range(3):
        finish(replica.files, replica.paths, GROUP, Installed(NEW, 3))
        assert state_of(pair, replica) == NEW
    clean(replica.files, replica.paths, GROUP)
    assert names(replica.root) == ["incoming", "installing", "queues", "snapshots"]


def test_a_group_without_a_directory_has_nothing_to_recover(tmp_path: Path) -> None:
    files = FailingFiles()
    assert recover_install(files, Replica(tmp_path).paths, "unknown") is None
    assert names(tmp_path) == []
    assert sum(files.calls.values()) < 12
