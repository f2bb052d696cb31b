"""The positive control: a small replicated log on stock pysyncobj, under the checker that judges our own core.

A clean result of a simulation means something only if the same checker finds the losses of a core that is known to
lose. pysyncobj 0.3.17 does, with `appendEntriesUseBatch=False`: each success of a follower takes the leader's send
position back, what was in flight is sent again, and the follower cuts off what it had already acknowledged before it
takes it again (its leader may be gone in between). The package is unmodified: its public transport interface carries
messages in memory, its own journal file is a perfect disk (a crash abandons the object and loses nothing that
was written), and two names of its module are replaced while a seed runs, the clock and the random source.

Links are FIFO as TCP is: nothing overtakes, a reset loses what is under way.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pysyncobj.syncobj
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from tests.sim.campaign import Summary
from tests.sim.history import History, Violation

STEPS = 1_500
"""Steps while faults happen."""
STEP_US = 10_000
SETTLE_TURNS = 400
"""Then every member runs and every message arrives, so often."""
SETTLE_US = 50_000


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


class World:
    """Three or five members, their connections and their clients; a seed decides what happens next, step by step.

    A step is one message delivered, one tick of a member, one command given, or a fault. Any link may be the next to
    deliver, each in its own order, so that one member can be far behind without any delay being named.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.folder = folder
        self.history = History()
        self.steps = 0
        self.now_us = 0
        self.random = random = Random(seed)
        self.members = random.choice((3, 3, 3, 5))
        self.nodes = {number: Node(number) for number in range(1, self.members + 1)}
        self.batch_bytes = random.choice((60, 100, 300))
        """As commands of 40 kB are to the library's own 64 KiB: a few to a message."""
        self.weights = (
            random.choice((0.4, 0.6)),  # deliver
            0.25,  # tick
            random.choice((0.1, 0.2, 0.4)),  # command
            random.choice((0.0, 0.002, 0.01)),  # reset
            random.choice((0.002, 0.005, 0.01)),  # crash
            0.02,  # restart
            0.02,  # connect
        )
        self.running: dict[int, ReplicatedLog] = {}
        self.links: dict[tuple[int, int], deque[Any]] = {}
        """Messages under way between two members that are connected."""
        self.commands = 0

    # Connections

    def send(self, source: int, target: int, message: Any) -> bool:
        """Put a message behind those under way; False when there is no connection."""
        link = self.links.get((source, target))
        if link is None:
            return False
        link.append(message)
        return True

    def deliver(self, source: int, target: int) -> None:
        """The first message that is under way arrives."""
        message = self.links[source, target].popleft()
        log = self.running[target]
        log.link.receive(source, message)
        log.doTick(0)

    def connect(self, one: int, other: int) -> None:
        """Make the connection of two running members."""
        if (one, other) in self.links or not {one, other} <= self.running.keys():
            return
        for source, target in ((one, other), (other, one)):
            self.links[source, target] = deque()
        for source, target in ((one, other), (other, one)):
            self.running[source].link.connection(target, True)

    def disconnect(self, one: int, other: int) -> None:
        """Reset a connection; what is under way is lost."""
        if self.links.pop((one, other), None) is None:
            return
        del self.links[other, one]
        for source, target in ((one, other), (other, one)):
            if source in self.running:
                self.running[source].link.connection(target, False)

    # Members

    def start(self, me: int) -> None:
        """Start or restart a member on its journal."""
        if me not in self.running:
            self.running[me] = ReplicatedLog(self, me, self.folder / f"{me}.journal")

    def crash(self, me: int) -> None:
        """The process ends between two of its steps; what it wrote stays."""
        log = self.running.pop(me)
        for peer in self.nodes:
            self.disconnect(me, peer)
        log.destroy()

    def leaders(self) -> list[ReplicatedLog]:
        """Who believes that it leads."""
        return [log for log in self.running.values() if log._isLeader()]

    def propose(self) -> None:
        """A client gives the next command to a leader, if there is one; it may be an old one."""
        leaders = self.leaders()
        if not leaders:
            return
        self.commands += 1
        command = self.commands
        log = self.random.choice(leaders)

        def answered(index: int | None, failure: int) -> None:
            if failure == FAIL_REASON.SUCCESS and index is not None:
                self.history.acknowledge(index, command)

        log.append(command, callback=answered)
        log.doTick(0)

    # The run

    def step(self) -> None:
        """Whatever comes next."""
        random = self.random
        action = random.choices(range(len(self.weights)), self.weights)[0]
        busy = [link for link, messages in self.links.items() if messages]
        if action == 0 and busy:
            self.deliver(*random.choice(busy))
        elif action == 1 and self.running:
            self.running[random.choice(list(self.running))].doTick(0)
        elif action == 2:
            self.propose()
        elif action == 3 and self.links:
            self.disconnect(*random.choice(list(self.links)))
        elif action == 4 and self.running:
            leaders = [log.me for log in self.leaders()]
            at_leader = leaders and random.random() < 0.7
            self.crash(random.choice(leaders if at_leader else list(self.running)))
        elif action == 5:
            self.start(random.choice(list(self.nodes)))
        elif action == 6:
            self.connect(*random.sample(list(self.nodes), 2))

    def run(self) -> list[Violation]:
        """The whole life of the seed."""
        for me in self.nodes:
            self.start(me)
        self._connect_all()
        violations = self.history.violations
        while self.steps < STEPS and not violations:
            self._pass(STEP_US)
            self.step()
        if not violations:
            self._settle()
        for log in self.running.values():
            log.destroy()
        return violations

    def _pass(self, time_us: int) -> None:
        self.now_us += time_us
        self.history.now_us = self.now_us
        self.steps += 1

    def _connect_all(self) -> None:
        for one in self.nodes:
            for other in self.nodes:
                if one < other:
                    self.connect(one, other)

    def _settle(self) -> None:
        """Nothing fails any more; commands go on for a while, then all members must hold the same."""
        for me in self.nodes:
            self.start(me)
        self._connect_all()
        for turn in range(SETTLE_TURNS):
            self._pass(SETTLE_US)
            for log in self.running.values():
                log.doTick(0)
            if turn % 20 == 0 and turn < SETTLE_TURNS // 2:
                self.propose()
            for link, messages in self.links.items():
                for _ in range(len(messages)):
                    self.deliver(*link)
        self.history.finish({me: log.content for me, log in self.running.items()})


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
