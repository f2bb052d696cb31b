"""Nodes that tell each other what their clocks show, over links with a delay."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from fluxmq.cluster.clock_links import TELL_US, ClockLinks
from fluxmq.cluster.clocks import ROUND_TRIP_US_MAX
from fluxmq.cluster.connection import StreamHello
from fluxmq.cluster.node_links import NodeLink
from fluxmq.net import frames
from fluxmq.shards.steady import Clocks, NodeClock
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.files import Files

SECOND = 1_000_000
HOUR = 3600 * SECOND
YEAR = 365 * 24 * HOUR
WALL = 1_700_000_000 * SECOND
NAMES = ("a", "b", "c")


class Stream:
    """What a link is written to: frames arrive at the other node after the world's delay."""

    def __init__(self, world: World, source: str, target: str, *, tells_time: bool) -> None:
        self.open = True
        self.hello = StreamHello(target, 0, 1, 1, "shard", tells_time)
        self._world, self._source, self._target = world, source, target

    def send(self, frame: bytes) -> None:
        """Send it."""
        self._world.under_way.append(
            (self._world.time + self._world.delay, self._source, self._target, frame)
        )


class Node:
    """One node: its clocks are the world's, but for what is wrong with its wall clock."""

    def __init__(self, world: World, name: str, wrong: int) -> None:
        self.wrong = wrong
        folder = world.folder / name
        (folder / "shards" / "0").mkdir(parents=True, exist_ok=True)
        # Each machine was booted at another time.
        self.offset = NAMES.index(name) * HOUR
        clocks = Clocks(
            lambda: WALL + world.time + self.wrong, lambda: self.offset + world.time, f"boot {name}"
        )
        self.clock = NodeClock(
            Files(), DataPaths(str(folder)), 0, clocks, lambda: None, vouched=True
        )
        self.links: dict[str, NodeLink] = {}
        self.clocks = ClockLinks(self.clock, len(NAMES), lambda: iter(self.links.values()))

    @property
    def ahead(self) -> int:
        """By how much its steady time is ahead of the world's."""
        return self.clock.now() - WALL - self._world_time()

    def _world_time(self) -> int:
        return self.clock.elapsed() - self.offset


class World:
    """Nodes and links."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.time = SECOND
        self.delay = 0
        self.nodes: dict[str, Node] = {}
        self.under_way: list[tuple[int, str, str, bytes]] = []

    def start(self, name: str, wrong: int = 0, *, tells_time: bool = True) -> Node:
        """A node starts, and meets those that are there."""
        node = self.nodes[name] = Node(self, name, wrong)
        for other in self.nodes.values():
            for one, two in ((node, other), (other, node)):
                if one is two:
                    continue
                source = next(key for key, value in self.nodes.items() if value is one)
                target = next(key for key, value in self.nodes.items() if value is two)
                link = one.links[target] = NodeLink(NAMES.index(target), target, 0)
                stream: Any = Stream(self, source, target, tells_time=tells_time)
                link.connection = stream
                one.clocks.lost(link)
                one.clocks.tell(link)
        self.carry()
        return node

    def carry(self) -> None:
        """What is due arrives."""
        due = [each for each in self.under_way if each[0] <= self.time]
        self.under_way = [each for each in self.under_way if each[0] > self.time]
        for _, source, target, frame in due:
            name, *arguments = frames.decode_control(frame)
            node = self.nodes[target]
            node.clocks.handlers()[str(name)](node.links[source], *arguments)

    def pass_(self, seconds: float) -> None:
        """Time passes, in tenths of seconds."""
        for _ in range(round(seconds * 10)):
            self.time += SECOND // 10
            self.carry()
            for node in self.nodes.values():
                node.clock.housekeeping()
                node.clocks.housekeeping()
            self.carry()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty one."""
    return World(tmp_path)


def start_all(world: World) -> None:
    """All three, with right clocks."""
    for name in NAMES:
        world.start(name)
    world.pass_(5)
    assert all(node.clock.settled for node in world.nodes.values())


@pytest.mark.parametrize("wrong", [8 * HOUR, -8 * HOUR, YEAR, -YEAR])
def test_a_node_that_starts_with_a_wrong_clock_believes_the_others(
    world: World, wrong: int
) -> None:
    """Review finding 3: whether it comes back or is new."""
    start_all(world)
    node = world.start("b", wrong)
    assert node.clock.settled
    assert abs(node.ahead) < SECOND
    world.pass_(300)
    assert abs(node.ahead) < SECOND


@pytest.mark.parametrize("wrong", [8 * HOUR, -8 * HOUR, YEAR, -YEAR])
def test_a_wrong_clock_is_outvoted_when_all_start(world: World, wrong: int) -> None:
    """Review finding 3."""
    world.start("a", wrong)
    world.start("b")
    world.start("c")
    world.pass_(5)
    assert [abs(node.ahead) < SECOND for node in world.nodes.values()] == [True] * 3


@pytest.mark.parametrize("wrong", [8 * HOUR, -8 * HOUR, YEAR, -YEAR])
def test_a_clock_that_jumps_raises_the_alarm_and_moves_nothing(
    world: World, wrong: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Review finding 3: an alarm says how far clocks differ, until they agree again."""
    start_all(world)
    node, other = world.nodes["a"], world.nodes["b"]
    with caplog.at_level(logging.INFO, "fluxmq.clock"):
        node.wrong = wrong
        world.pass_(120)
        assert abs(node.ahead) < SECOND
        assert node.clocks.apart == 2
        assert other.clocks.apart == 1
        shown = {
            labels.get("node"): value
            for name, labels, value in other.clocks.samples()
            if name == "fluxmq_cluster_clock_offset_seconds"
        }
        assert shown == {"a": pytest.approx(wrong / SECOND), "c": pytest.approx(0)}
        assert ("fluxmq_cluster_clocks_apart", {}, 1) in list(other.clocks.samples())
        node.wrong = 0
        world.pass_(10)
    assert other.clocks.apart == node.clocks.apart == 0
    warned = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warned) == 4  # two nodes see one that differs, which sees two
    assert len([each for each in caplog.records if "agree again" in each.message]) == 4


def test_a_delay_is_measured(world: World) -> None:
    world.delay = 200_000
    start_all(world)
    world.pass_(3 * TELL_US / SECOND)
    (reading,) = [
        each
        for name, each in world.nodes["a"].clocks.peers.fresh(world.time).items()
        if name == "b"
    ]
    assert abs(reading.wall) <= 100_000  # ticks of the test are as long


def test_what_took_too_long_says_nothing(world: World) -> None:
    start_all(world)
    world.pass_(2 * TELL_US / SECOND)
    node = world.nodes["a"]
    before = node.clocks.peers.fresh(world.time)["b"]
    world.delay = ROUND_TRIP_US_MAX
    world.pass_(3 * TELL_US / SECOND)
    after = node.clocks.peers.fresh(world.time)["b"]
    assert after.at <= before.at + 2 * TELL_US
    assert abs(after.wall) < SECOND


def test_nothing_is_told_to_nodes_that_do_not_understand_it(world: World) -> None:
    world.start("a", tells_time=False)
    world.start("b", tells_time=False)
    world.pass_(2 * TELL_US / SECOND)
    assert world.under_way == []
    assert not world.nodes["a"].clock.settled
