"""Starts with other shards: groups leave the logs of their old shards whole, whenever that is interrupted."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fluxmq.ipc.placements import shard_of
from fluxmq.shards.relocate import Relocation
from fluxmq.storage.directory import DataPaths, Placement, write_placement
from fluxmq.storage.errors import Corruption, StorageError
from fluxmq.storage.files import Files
from tests.faults import FailingFiles
from tests.unit.engine.support import QueueNode, consume, fill, offsets, user
from tests.unit.shards.node import Clock

QUEUES = [{"name": "q0"}, *({"name": f"q{number}", "type": "stream"} for number in range(1, 5))]
QUEUES.append({"name": "fast", "type": "stream", "ack_durability": "buffered"})
NAMES = [queue["name"] for queue in QUEUES]
GROUPS = 8
TWO = Placement(2, GROUPS, revision=1)
THREE = Placement(3, GROUPS, revision=2)
ONE = Placement(1, GROUPS, revision=3)


class Data:
    """A data directory and the placement it has."""

    def __init__(self, path: Path, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.path = path
        self.placement = TWO
        self._clock = clock
        self._loop = loop
        self.node: QueueNode | None = None

    def start(self) -> QueueNode:
        """Start a node as placed."""
        write_placement(Files(), DataPaths(str(self.path)), self.placement)
        settings = {"queues": tuple(QUEUES)}
        self.node = QueueNode(
            self.path, self._clock, self._loop, settings, workers=self.placement.workers
        )
        return self.node

    def stop(self, kill: bool = True) -> None:
        """End the node, by SIGKILL or in order."""
        assert self.node is not None
        if not kill:
            for shard in self.node:
                self._loop.run_until_complete(shard.queues.service.stop())
        self.node.close()
        self.settings = self.node.settings
        self.node = None

    def relocate(self, after: Placement, files: Files | None = None) -> list[str]:
        """Take groups out of old logs."""
        with Relocation(files or Files(), DataPaths(str(self.path)), self.settings) as relocation:
            return relocation.run(self.placement, after)


@pytest.fixture
def data(
    clock: Clock, loop: asyncio.AbstractEventLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Data]:
    """A directory in which two shards have had messages."""
    made = Data(tmp_path / "data", clock, loop)
    (tmp_path / "data").mkdir()
    monkeypatch.setattr("tests.unit.shards.node.Placement", lambda *_: made.placement)
    node = made.start()
    client = node.connect(0, "publisher")
    for name in NAMES:
        fill(client, name, 10)
    taker = node.connect(1, "taker")
    taker.subscribe("$queue/q0", qos=1, props=user(("consumer-group", "g")))
    consume(taker)
    node.advance(1)
    yield made
    if made.node is not None:
        made.node.close()


def check(data: Data, extra: int = 0) -> None:
    """Everything is there, in order, and goes on."""
    node = data.start()
    for name in NAMES:
        reader = node.connect(0, f"reader-{name}")
        reader.subscribe(f"$queue/{name}", qos=1, props=user(("consumer-group", f"late-{extra}")))
        found = consume(reader)
        expected = list(range(10 + extra * (name == "q1")))
        if name == "q0":  # its group has settled all there was
            expected = []
        assert offsets(found) == expected, name
        assert [int(each.payload) for each in found] == expected
        reader.disconnect()
    node.advance(1)
    fill(node.connect(0, "more"), "q1", 1, first=10 + extra)
    assert node.machine("q1", node_of(node, "q1")).next_offset == 11 + extra


def node_of(node: QueueNode, queue: str) -> int:
    """The one shard that has a queue's group."""
    group = node[0].queues.names.info(queue).group
    (found,) = [each.index for each in node if group in each.queues.service.groups]
    return found


@pytest.mark.parametrize("kill", [True, False])
@pytest.mark.parametrize("after", [THREE, ONE], ids=["more", "fewer"])
def test_another_number_of_shards(data: Data, kill: bool, after: Placement) -> None:
    data.stop(kill)
    moved = data.relocate(after)
    groups = {each for each in moved if shard_of(after, each) == shard_of(TWO, each)}
    assert moved
    assert not groups  # only what changes its shard is moved
    data.placement = after
    check(data)


def test_a_start_with_other_pins(data: Data) -> None:
    node = data.node
    assert node is not None
    group = node[0].queues.names.info("q1").group
    target = 1 - node_of(node, "q1")
    data.stop()
    after = replace(TWO, pins={group: target}, revision=2)
    assert data.relocate(after) == [group]
    data.placement = after
    check(data)
    assert node_of(data.node, "q1") == target  # type: ignore[arg-type]


def test_the_hard_state_goes_with_a_group(data: Data) -> None:
    node = data.node
    assert node is not None
    group = node[0].queues.names.info("q1").group
    source = node_of(node, "q1")
    for _ in range(3):
        node.restart(source)
    term = node[source].queues.service.groups[group].driver.hard_state[0]
    data.stop()
    data.relocate(ONE if source else replace(TWO, pins={group: 1}))
    data.placement = ONE if source else replace(TWO, pins={group: 1})
    node = data.start()
    found = node[node_of(node, "q1")].queues.service.groups[group].driver.hard_state[0]
    assert found == term + 1  # nobody votes on the way


def test_the_declared_hard_state_is_the_groups_own(data: Data) -> None:
    node = data.node
    assert node is not None
    group = node[0].queues.names.info("q1").group
    source = node_of(node, "q1")
    before = node[source].queues.service.groups[group].driver.hard_state[0]
    data.stop()
    after = replace(TWO, pins={group: 1 - source})
    with Relocation(Files(), DataPaths(str(data.path)), data.settings) as relocation:
        relocation.run(TWO, after)
        wal = relocation._log(1 - source, "wal")[0].wal
        term, vote, _ = wal.recovered(group).hard_state
        assert (term, vote) == (before, 1)


STEPS = [
    *((step, nth) for step in ("wal.write", "wal.synced") for nth in (1, 3)),
    ("relocate.copied", 1),
    ("relocate.marked", 1),
]


@pytest.mark.parametrize(("step", "nth"), STEPS)
def test_a_crash_on_the_way(data: Data, step: str, nth: int) -> None:
    data.stop()
    files = FailingFiles()
    files.crash_at(step, nth)
    dead = Relocation(files, DataPaths(str(data.path)), data.settings)
    with pytest.raises(StorageError, match=step):
        dead.run(TWO, ONE)
    for _, syncer in dead._logs.values():
        syncer.close()
    if nth == 1:  # the old placement is as good as ever
        check(data)
        data.stop()
    data.relocate(ONE)
    data.placement = ONE
    check(data, extra=int(nth == 1))


def test_a_disk_that_fails_ends_it_with_a_reason(data: Data) -> None:
    data.stop()
    files = FailingFiles()
    files.fail_always("rename", errno.EIO)
    with pytest.raises(StorageError, match="Input/output error"):
        data.relocate(ONE, files)
    data.relocate(ONE)
    data.placement = ONE
    check(data)


def test_entries_in_the_wrong_log_are_not_forgotten(data: Data) -> None:
    data.stop()
    data.placement = ONE  # nobody wrote that: the logs of shard 1 are its own
    with pytest.raises(Corruption, match="placed on another shard"):
        data.relocate(replace(ONE, revision=9))
    data.placement = TWO
    check(data)


def test_done_twice_is_done_once(data: Data) -> None:
    data.stop()
    moved = data.relocate(ONE)
    assert data.relocate(ONE) == moved
    data.placement = ONE
    assert data.relocate(ONE) == []
    check(data)
