"""Queues and storage under the simulator, with Raft: some seeds, regressions, and that broken nodes are noticed.

As in ``test_sim``, the two passes of the tests run different seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from fluxmq.storage.snapshots import GroupSnapshotContent
from tests.sim.__main__ import main
from tests.sim.campaign import check_seeds, outputs_under_other_hashes, seeds_of_tests
from tests.sim.queues.files import NodeFiles
from tests.sim.queues.host import Checkpoint, Host
from tests.sim.queues.parts import OpenGroup, ReplicationGroup, trim
from tests.sim.queues.swarm import Swarm, draw
from tests.sim.queues.world import EVENTS, World

P = ParamSpec("P")
T = TypeVar("T")

SEEDS = 60

HAPPENS = (
    "confirmed",
    "refused",
    "delivered again",
    "settled",
    "sent again",
    "reject asked",
    "checkpoints",
    "snapshots installed",
    "power cuts",
    "died in a call",
    "cuts",
)


@pytest.mark.parametrize("seeds", seeds_of_tests(SEEDS), ids=lambda seeds: str(seeds.start))
def test_seeds_keep_every_promise(seeds: range) -> None:
    check_seeds(seeds, HAPPENS, EVENTS, World)


def test_seldom_faults_happen() -> None:
    drawn = [draw(seed) for seed in range(200)]
    assert {each.voters for each in drawn} == {1, 2, 3, 5}
    for fault in ("flip", "full", "write_error", "sync_error", "blackout", "membership"):
        assert sum(bool(getattr(each, fault)) for each in drawn) > 20, fault


# What seeds have found; a recovery without disk space is in tests/unit/engine/test_stores.py


class DiesBehindARename(NodeFiles):
    """A file system in whose next sync of the snapshots' names the process dies."""

    deadly = False

    def call(
        self, operation: str, path: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self.deadly and operation == "fsync_directory" and path.endswith("/snapshots"):
            self.crash(operation)
        return super().call(operation, path, function, *args, **kwargs)


class DyingHost(Host):
    """A node on such a file system."""

    files_type: type[NodeFiles] = DiesBehindARename

    def settle(self) -> None:
        """Do all there is to do, and sync it."""
        self.turn()
        while self.syncer.waiting:
            self.synced()
            self.turn()


def test_a_log_does_not_go_on_from_a_snapshot_whose_name_is_not_durable() -> None:
    """Seeds 5241 and 7072: a kill between rename and sync, a start from that snapshot, and a power cut lost the group."""
    world = World(1, replace(harsh(1), voters=1), host_type=DyingHost)
    (host,) = world.hosts.values()
    assert isinstance(host, DyingHost)
    try:
        host.start()
        host.settle()
        assert host.begin_checkpoint()
        assert isinstance(host.files, DiesBehindARename)
        host.files.deadly = True
        host.end_checkpoint()
        assert host.files.dead
        host.end(power=False)
        host.files.deadly = False
        host.start()
        host.settle()
        assert host.hosted is not None
        assert host.hosted.snapshot_index
        host.end(power=True, mode="nothing")
        host.start()
        host.settle()
        assert host.leads
        assert world.history.violations == []
    finally:
        host.destroy()


# A seed is one run


def test_a_seed_runs_the_same_under_other_hashes(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--queues", "--seed", "6", "--events", "400"]
    outputs = outputs_under_other_hashes(command)
    assert outputs[0] == outputs[1]
    assert main(command) == 0
    assert capsys.readouterr().out.encode() == outputs[0]


def test_seeds_differ() -> None:
    digests = set()
    for seed in range(5):
        world = World(seed)
        assert world.run(200)
        digests.add(world.digest)
    assert len(digests) == 5


def test_many_seeds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["--queues", "--seeds", "1..3", "--nodes", "3", "--events", "200"]
    assert main([*command, "--record", str(tmp_path / "summary.json")]) == 0
    assert capsys.readouterr().out.startswith("3 seeds, ")
    assert "--queues" in (tmp_path / "summary.json").read_text()


# Nodes that break their part are noticed; for the program's own lines see tests/mutations/simulated_queues.py


def harsh(seed: int) -> Swarm:
    """Three nodes that lose power all the time, and nothing else."""
    return replace(
        draw(seed, 3),
        crash=0.3,
        blackout=0.2,
        power=1.0,
        crash_in_call=0.0,
        write_error=0.0,
        sync_error=0.0,
        full=0.0,
        flip=0.0,
        checkpoint_every=4,
        administer=0.0,
        identified=0.5,
        membership=0.0,
        spares=0,
        sync_us=20_000,
        command_us=4_000,
    )


class AcknowledgesAtOnce(Host):
    """Says that the log is durable as soon as it is written."""

    def turn(self) -> None:
        """Report everything, whatever the disk has of it."""
        super().turn()
        hosted = self.hosted
        if hosted is not None and hosted.log.last_index():
            last = hosted.log.last_index()
            hosted.driver.persisted(last, hosted.log.term(last), 1 << 40)
            super().turn()


class ForgetfulFiles(NodeFiles):
    """A disk that syncs no segments."""

    def _note_fdatasync(self, path: str, fd: int) -> Callable[[None], None]:
        if path.endswith(".seg"):
            return lambda _result: None
        return super()._note_fdatasync(path, fd)


class SyncsNoQueues(Host):
    """Takes checkpoints whose segments are not synced."""

    files_type: type[NodeFiles] = ForgetfulFiles


class MissesAQueue(Host):
    """Takes checkpoints that know nothing of one queue's segments."""

    def captured(self, hosted: OpenGroup[ReplicationGroup]) -> Checkpoint:
        """The first queue with segments is forgotten."""
        index, term, content, parts = super().captured(hosted)
        state = GroupSnapshotContent.decode(content)
        logs = dict(state.logs)
        for name in [name for name, log in logs.items() if log.segments][:1]:
            del logs[name]
        return index, term, replace(state, logs=logs).encode(), parts


class TrimsTooEarly(Host):
    """Frees the log before the checkpoint behind it is durable."""

    def captured(self, hosted: OpenGroup[ReplicationGroup]) -> Checkpoint:
        """As if the snapshot were written already."""
        checkpoint = super().captured(hosted)
        before, hosted.snapshot_index = hosted.snapshot_index, checkpoint[0]
        trim(hosted)
        hosted.snapshot_index = before
        return checkpoint


class ComesBackEmpty(Host):
    """Loses its directory with the power, and goes on under its number."""

    def end(self, *, power: bool, mode: str = "sectors") -> None:
        """Nothing stays."""
        super().end(power=power, mode=mode)
        if power:
            self.forget_everything()


@pytest.mark.parametrize(
    ("broken", "rules"),
    [
        (AcknowledgesAtOnce, {"confirmed is kept", "state-machine safety"}),
        (SyncsNoQueues, {"what is written is read"}),
        (MissesAQueue, {"what is written is read", "groups do not fail by themselves"}),
        (TrimsTooEarly, {"what is written is read", "groups do not fail by themselves"}),
        (ComesBackEmpty, {"one vote per term", "state-machine safety", "leader completeness"}),
    ],
)
def test_broken_nodes_are_noticed(broken: type[Host], rules: set[str]) -> None:
    found: Counter[str] = Counter()
    for seed in range(12):
        world = World(seed, harsh(seed), host_type=broken)
        if not world.run(600):
            found[world.history.violations[0].rule] += 1
    assert rules & found.keys(), f"{broken.__name__}: {found}"


def test_whole_nodes_keep_their_promises_there() -> None:
    for seed in range(12):
        world = World(seed, harsh(seed))
        assert world.run(600), world.history.violations
