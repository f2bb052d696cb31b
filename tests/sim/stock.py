"""The positive control: a small replicated log on stock pysyncobj, under the checker that judges our own core.

A clean result of a simulation means something only if the same checker finds the losses of a core that is known to
lose. pysyncobj 0.3.17 does, with `appendEntriesUseBatch=False`: each success of a follower takes the leader's send
position back, what was in flight is sent again, and the follower cuts off what it had already acknowledged before it
takes it again (its leader may be gone in between). The package is unmodified: its public transport interface carries
messages in memory, its own journal file is a perfect disk (a crash abandons the object and loses nothing that
was written), and two names of its module are replaced while a seed runs, the clock and the random source.

Links are FIFO as TCP is: delays vary, nothing overtakes, a reset loses what is under way and reconnects later.
"""

from __future__ import annotations

import heapq
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pysyncobj.syncobj
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from tests.sim.campaign import Summary
from tests.sim.history import History, Violation

TICK_US = 10_000
FAULTS_US = 8_000_000
"""Faults act in this first part of a run."""
CALM_US = 12_000_000
"""Then nothing fails any more, and all members have this long to agree."""
LAST_US = 4_000_000
"""So long before the end comes the last command."""
STEPS_MAX = 30_000
"""The library may send the same again and again without end; such a run ends without a verdict."""


class Link(Transport):  # type: ignore[misc]
    """A member's end of all its connections."""

    def __init__(self, world: World, me: int) -> None:
        super().__init__(None, None, [])
        self.world = world
        self.me = me

    def send(self, node: Any, message: Any) -> bool:
        """Queue for delivery; False when there is no connection."""
        return self.world.send(self.me, node.id, message)

    def receive(self, source: int, message: Any) -> None:
        """What the world delivers."""
        self._onMessageReceived(self.world.nodes[source], message)

    def connection(self, peer: int, up: bool) -> None:
        """Tell the member that a connection was made or lost."""
        tell = self._onNodeConnected if up else self._onNodeDisconnected
        tell(self.world.nodes[peer])


class ReplicatedLog(SyncObj):  # type: ignore[misc]
    """The smallest state machine there is: it remembers what it was given, and where."""

    def __init__(self, world: World, me: int, journal: Path) -> None:
        self.world = world
        self.me = me
        self.content: dict[int, int] = {}
        self.link = Link(world, me)
        settings = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=False,
            appendEntriesBatchSizeBytes=world.batch_bytes,
            commandsWaitLeader=False,
            journalFile=str(journal),
            pollerType="select",
        )
        others = [node for number, node in world.nodes.items() if number != me]
        super().__init__(world.nodes[me], others, conf=settings, transport=self.link)

    @replicated  # type: ignore[untyped-decorator]
    def append(self, command: int) -> int:
        """Called by the library for each committed command."""
        index = int(self.raftLastApplied) + 1
        self.content[index] = command
        self.world.history.applied(self.me, index, command)
        return index


@dataclass
class World:
    """Three or five members, their connections and their clients under one virtual clock."""

    seed: int
    folder: Path
    members: int = 3
    history: History = field(default_factory=History)
    now_us: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.members = self.random.choice((3, 3, 3, 5))
        self.nodes = {number: Node(number) for number in range(1, self.members + 1)}
        self.delay_us = self.random.choice((5_000, 20_000, 50_000))
        self.command_us = self.random.choice((1_000, 2_000, 5_000))
        # As commands of 40 kB are to the library's own 64 KiB: a few to a message.
        self.batch_bytes = self.random.choice((100, 300, 1_000))
        self.slow_rate = self.random.choice((0.01, 0.02, 0.05))
        self.reset_rate = self.random.choice((0.0, 0.01))
        self.crash_rate = self.random.choice((0.01, 0.02, 0.04))
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.made = 0
        self.running: dict[int, ReplicatedLog] = {}
        self.connected: dict[tuple[int, int], int] = {}
        """Number of the connection between two members; messages of an earlier one are lost."""
        self.slow: dict[int, int] = {}
        """Until when messages to a member take twenty times as long."""
        self.last_arrival: dict[tuple[int, int], int] = {}
        self.commands = 0
        self.calm = False

    def at(self, delay_us: int, action: Callable[[], None]) -> None:
        """Do `action` in `delay_us`; in the order given when at the same time."""
        self.made += 1
        heapq.heappush(self.events, (self.now_us + delay_us, self.made, action))

    # Connections

    def send(self, source: int, target: int, message: Any) -> bool:
        """Deliver after a delay, never before what was sent earlier on this connection."""
        number = self.connected.get((min(source, target), max(source, target)))
        if number is None:
            return False
        delay = int(self.delay_us * (0.2 + self.random.expovariate(1.0)))
        if self.slow.get(target, 0) > self.now_us and not self.calm:
            delay *= 10
        arrival = max(self.now_us + delay, self.last_arrival.get((source, target), 0))
        self.last_arrival[source, target] = arrival

        def deliver() -> None:
            if self.connected.get((min(source, target), max(source, target))) == number:
                log = self.running[target]
                log.link.receive(source, message)
                log.doTick(0)

        self.at(arrival - self.now_us, deliver)
        return True

    def connect(self, one: int, other: int) -> None:
        """Make the connection of two running members."""
        pair = (min(one, other), max(one, other))
        if pair in self.connected or not {one, other} <= self.running.keys():
            return
        self.made += 1
        self.connected[pair] = self.made
        for source, target in (pair, pair[::-1]):
            self.last_arrival[source, target] = self.now_us
            self.running[source].link.connection(target, True)

    def disconnect(self, one: int, other: int) -> None:
        """Reset a connection; members try again as soon as they may."""
        pair = (min(one, other), max(one, other))
        if self.connected.pop(pair, None) is None:
            return
        for source, target in (pair, pair[::-1]):
            if source in self.running:
                self.running[source].link.connection(target, False)
        self.at(self._reconnect_us(), lambda: self.connect(one, other))

    def _reconnect_us(self) -> int:
        return 100_000 if self.calm else int(self.random.uniform(10_000, 2_000_000))

    # Members

    def start(self, me: int) -> None:
        """Start or restart a member on its journal."""
        if me in self.running:
            return
        self.running[me] = ReplicatedLog(self, me, self.folder / f"{me}.journal")
        for peer in list(self.running):
            if peer != me:
                self.connect(me, peer)

    def crash(self, me: int) -> None:
        """The process ends between two of its steps; what it wrote stays."""
        log = self.running.pop(me)
        for peer in self.nodes:
            self.disconnect(me, peer)
        log.destroy()
        self.at(int(self.random.uniform(50_000, 3_000_000)), lambda: self.start(me))

    def tick(self, me: int) -> None:
        """A member's own timer."""
        if me in self.running:
            self.running[me].doTick(0)
        self.at(TICK_US, lambda: self.tick(me))

    # Clients and faults

    def propose(self) -> None:
        """A client gives the next command to a leader, if it knows one; it may be an old one."""
        if self.now_us > FAULTS_US + CALM_US - LAST_US:
            return
        leaders = [log for log in self.running.values() if log._isLeader()]
        if leaders:
            self.commands += 1
            command = self.commands
            log = self.random.choice(leaders)

            def answered(index: int | None, failure: int) -> None:
                if failure == FAIL_REASON.SUCCESS and index is not None:
                    self.history.acknowledge(index, command)

            log.append(command, callback=answered)
            log.doTick(0)
        self.at(int(self.command_us * self.random.uniform(0.2, 1.8)), self.propose)

    def fault(self) -> None:
        """Every 50 ms something may happen."""
        if self.calm:
            return
        if self.random.random() < self.reset_rate and self.connected:
            self.disconnect(*self.random.choice(sorted(self.connected)))
        if self.random.random() < self.slow_rate:
            until = self.now_us + int(self.random.uniform(500_000, 3_000_000))
            self.slow[self.random.choice(sorted(self.nodes))] = until
        if self.random.random() < self.crash_rate and self.running:
            leaders = [number for number, log in self.running.items() if log._isLeader()]
            crashed = leaders if leaders and self.random.random() < 0.9 else sorted(self.running)
            self.crash(self.random.choice(crashed))
        self.at(50_000, self.fault)

    def run(self) -> list[Violation]:
        """The whole life of the seed."""
        for me in self.nodes:
            self.start(me)
            self.at(self.random.randrange(TICK_US), lambda me=me: self.tick(me))  # type: ignore[misc]
        self.at(2_000_000, self.propose)
        self.at(2_000_000, self.fault)
        while self.now_us < FAULTS_US + CALM_US and not self.history.violations:
            if self.steps == STEPS_MAX:
                break
            if self.now_us >= FAULTS_US and not self.calm:
                self.calm = True
                self.command_us = 500_000
                for me in self.nodes:
                    self.start(me)
            self.now_us, _, action = heapq.heappop(self.events)
            self.history.now_us = self.now_us
            self.steps += 1
            action()
        if not self.history.violations and self.steps < STEPS_MAX:
            self.history.finish({me: log.content for me, log in self.running.items()})
        for log in self.running.values():
            log.destroy()
        return self.history.violations


@contextmanager
def virtual_time(world: World) -> Iterator[None]:
    """Put the world's clock and random source where the library reads its own, and silence its log."""
    module: Any = pysyncobj.syncobj
    before = module.monotonicTime, module.random, module.PIPE_NOTIFIER_ENABLED
    logger = logging.getLogger("pysyncobj")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    module.monotonicTime = lambda: world.now_us / 1e6
    module.random = Random(world.seed)
    module.PIPE_NOTIFIER_ENABLED = False  # it wakes a poller that nobody sleeps in
    try:
        yield
    finally:
        module.monotonicTime, module.random, module.PIPE_NOTIFIER_ENABLED = before
        logger.setLevel(level)


def run_stock(seed: int) -> World:
    """One seed over the library; what it broke is in the world's history."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(seed, Path(folder))
        with virtual_time(world):
            world.run()
    return world


def run_stock_seeds(first: int, last: int) -> Iterator[Summary]:
    """Seeds `first` to `last`, both included; a summary of each."""
    for seed in range(first, last + 1):
        began = time.process_time()
        world = run_stock(seed)
        summary = Summary(1, world.steps, time.process_time() - began)
        if world.history.violations:
            violation = world.history.violations[0]
            summary.violations.append((seed, str(violation)))
            summary.seen[violation.rule] += 1
        summary.seen["acknowledged"] += len(world.history.acknowledged)
        yield summary
