"""Nodes whose clients roam, in one process: virtual clock, streams, store, faults and clients, all drawn from one seed.

The nodes are whole: their shards are put together as in their processes (``tests.unit.shards.node``). A run has two
parts. In the first, faults act while clients connect anywhere and others publish for them; then the faults stop, all
clients come back and receive everything. The promises: a client id is connected at one node at a time; a session is
lost only by a clean start or with a lease; what was acknowledged for a session is received; QoS 2 is received once; in
the end the store's owner of an id and no other node has its session.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, cast
from zlib import crc32

from fluxmq.net import reactor
from fluxmq.shards.publish_links import MEETING_SECONDS
from tests.sim.history import History
from tests.sim.sessions.clients import Publisher, Roamer, polite_of
from tests.sim.sessions.store import LeasedPlane
from tests.sim.sessions.swarm import FAULTS, draw
from tests.unit.shards.net_of_nodes import FakeLink, Net
from tests.unit.shards.pipes import Clock

STEPS = 60
"""Steps of the first part unless told otherwise."""
STEP_OF_TIME = 0.1
"""Shards run their timers ten times a second."""
CALM_SECONDS = 40.0
"""Time for everything that was begun to end: longer than a lease, and two clients' patience."""
CALM_STEP = 0.5
AFTERWARDS_SECONDS = 2.0
"""Time for what should not come."""


class World:
    """One run of one seed."""

    def __init__(
        self, seed: int, voters: int | None = None, trace: Callable[[str], None] | None = None
    ) -> None:
        self.random = Random(f"sessions {seed}")
        self.swarm = draw(seed, voters)
        self.history = History()
        self.seen: Counter[str] = Counter()
        self.events = 0
        self.digest = 0
        self._trace = trace
        self.clock = Clock()
        self._reactor = cast(Any, reactor)  # shards are not given their clock, and read it here
        self._former_clock = self._reactor.monotonic
        self._reactor.monotonic = self.clock
        self._loop = asyncio.new_event_loop()
        self.net = Net(self.clock, self._loop, *self.swarm.workers, etcd={})
        self.plane = LeasedPlane(self.net, self.random, self.swarm.drift, self._lease_ended)
        self._excused: set[str] = set()
        """Client ids whose sessions may be lost, as they went with a lease."""
        self.roamers = [Roamer(self, f"c{number}") for number in range(self.swarm.clients)]
        self.publishers = [Publisher(self, node) for node in range(len(self.net.nodes))]
        self._polite = polite_of(self.random, self.swarm.polite)
        self._ends: list[tuple[float, Callable[[], None]]] = []
        """Faults under way: the moments and means to end them."""
        self._mute: Counter[FakeLink] = Counter()
        """Ends of streams over which nothing comes, and how many faults keep them so."""
        self._payloads = 0
        self._started = [0.0] * len(self.net.nodes)
        self._advance(0.2)

    # What clients ask and tell

    @property
    def now_us(self) -> int:
        """The virtual clock in microseconds."""
        return round(self.clock.now * 1e6)

    def violated(self, rule: str, what: str) -> None:
        """Note a promise that was not kept."""
        self.history.now_us = self.now_us
        self.history.violated(rule, what)

    def excused(self, name: str) -> bool:
        """Return whether the session of an id may be lost."""
        return name in self._excused

    def is_owned(self, name: str) -> bool:
        """Return whether some node owns an id."""
        return bool(self.plane.owner_of(name))

    def pardon(self, name: str) -> None:
        """Note that an id's client knows whether it has its session."""
        self._excused.discard(name)

    def look_around(self) -> None:
        """Note for each session which nodes know of it: its own, and those connected with that."""
        known: dict[tuple[int, int], bool] = {}
        for (one, a, other, _), end in self.net.links.items():
            knows = end.up and self.net.peers(one, a).knows(end)
            known[one, other] = known.get((one, other), True) and knows
        for roamer in self.roamers:
            if roamer.subscribed:
                there = [at for at, each in enumerate(self.net.nodes) if each.holders(roamer.name)]
                for node in range(len(self.net.nodes)):
                    if all(node == at or known[node, at] for at in there):
                        roamer.known[node] = self.clock.now

    def _lease_ended(self, name: str) -> None:
        self._excused.add(name)
        self.seen["leases ended"] += 1

    # The run

    def run(self, steps: int = STEPS) -> bool:
        """Run it; return whether all promises were kept."""
        try:
            for _ in range(steps):
                self._step()
                if self.history.violations:
                    return False
            self._calm()
        finally:
            self._close()
        return not self.history.violations

    def _close(self) -> None:
        self.net.close()
        self._loop.close()
        self._reactor.monotonic = self._former_clock

    def note(self, *event: object) -> None:
        """Add an event to the digest, and to the trace if there is one."""
        self.events += 1
        line = f"{self.clock.now:9.3f} {' '.join(map(str, event))}"
        self.digest = crc32(line.encode(), self.digest)
        if self._trace is not None:
            self._trace(line)

    def _step(self) -> None:
        random, swarm = self.random, self.swarm
        for fault in FAULTS:
            if random.random() < swarm.rates[fault]:
                self._begin(fault)
        action = random.random()
        roamer = random.choice(self.roamers)
        if action < 0.25:
            self._connect(roamer, random.random() < swarm.clean)
        elif action < 0.3:
            self.note("drop", roamer.name)
            roamer.drop()
        elif action < 0.8:
            self._publish(roamer)
        if random.random() < 0.5:
            self._advance(random.expovariate(1.0) * swarm.step_seconds)
        self._receive()

    def _connect(self, roamer: Roamer, clean: bool) -> None:
        serving = self._serving()
        if not serving:
            return
        node = self.random.choice(serving)
        shard = self.random.randrange(self.swarm.workers[node])
        self.note("connect", roamer.name, node, shard, "clean" if clean else "")
        roamer.connect(node, shard, clean)

    def _publish(self, roamer: Roamer) -> None:
        random, serving = self.random, self._serving()
        if not serving:
            return
        publisher = self.publishers[random.choice(serving)]
        to, topic = ([roamer], roamer.topic) if random.random() < 0.7 else (self.roamers, "t/all")
        for _ in range(random.choice((1, 1, 5))):
            self._payloads += 1
            payload = b"%d" % self._payloads
            qos = 2 if random.random() < self.swarm.qos_2 else 1
            self.note("publish", payload, topic, qos, publisher.node)
            publisher.publish(payload, topic, qos, to)

    def _receive(self) -> None:
        for publisher in self.publishers:
            if self._is_awake(publisher.node):
                publisher.pump()
        for roamer in self.roamers:
            roamer.pump(self._polite)
        self._check_connected()

    def _awake(self) -> list[int]:
        return [node for node in range(len(self.net.nodes)) if self._is_awake(node)]

    def _serving(self) -> list[int]:
        """Nodes that let clients in: they have met the others, or waited for them."""
        return [
            node
            for node in self._awake()
            if self.clock.now > self._started[node] + MEETING_SECONDS or self.net.met(node)
        ]

    def _is_awake(self, node: int) -> bool:
        return not self.net.nodes[node].hung

    # Time

    def _advance(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now = min(end, self.clock.now + STEP_OF_TIME)
            self.plane.end_leases()
            for at, stop in sorted(self._ends, key=lambda each: each[0]):
                if at <= self.clock.now:
                    self._ends.remove((at, stop))
                    stop()
            for node in self.net.nodes:
                for shard in node:
                    if shard.index not in node.hung:
                        shard.timer()
            self.net.run()
            self.look_around()

    # Faults

    def _begin(self, fault: str) -> None:
        random = self.random
        awake = self._awake()
        if len(awake) < 2:
            return
        node, other = random.sample(awake, 2)
        seconds = random.expovariate(1.0) * self.swarm.fault_seconds
        self.note(fault, node, other, f"{seconds:.2f}")
        self.seen[fault] += 1
        stop = getattr(self, f"_{fault}")(node, other)
        self._ends.append((self.clock.now + seconds, stop))

    def _cut(self, node: int, other: int) -> Callable[[], None]:
        self.net.cut(node, other, lost=self.random.random() < 0.5)
        return lambda: self._meet(node, other)

    def _meet(self, node: int, other: int) -> None:
        if self._is_awake(node) and self._is_awake(other):
            self.net.connect(node, other)

    def _hold(self, node: int, other: int) -> Callable[[], None]:
        one_way = self.random.random() < 0.5
        ends = [end for end in self.net.ends(node, other) if not one_way or end.node == f"n{other}"]
        self._mute.update(ends)
        self._rule_streams()

        def stop() -> None:
            self._mute.subtract(ends)
            self._rule_streams()

        return stop

    def _rule_streams(self) -> None:
        """Have nothing arrive at nodes that stand still, nor over streams that carry nothing."""
        for (here, _, _, _), end in self.net.links.items():
            end.held = not self._is_awake(here) or self._mute[end] > 0

    def _undecided(self, node: int, _other: int) -> Callable[[], None]:
        connections = self.plane.of(node)
        for each in connections:
            each.undecided = True

        def stop() -> None:
            for each in connections:
                each.undecided = not self._is_awake(node)

        return stop

    def _away(self, node: int, _other: int) -> Callable[[], None]:
        for each in self.plane.of(node):
            if each.up:
                each.lose()
        return lambda: self._come_back(node)

    def _come_back(self, node: int) -> None:
        if self._is_awake(node):
            for each in self.plane.of(node):
                if not each.up:
                    each.back()

    def _no_etcd(self, node: int, _other: int) -> Callable[[], None]:
        name = self.net.names[node]
        self.plane.cut_off.add(name)
        return lambda: self.plane.cut_off.discard(name)

    def _lost_answer(self, _node: int, _other: int) -> Callable[[], None]:
        self.plane.repeat = lambda: self.random.random() < 0.5

        def stop() -> None:
            self.plane.repeat = lambda: False

        return stop

    def _crash(self, node: int, _other: int) -> Callable[[], None]:
        """Stop a node for good; its next life begins with what its disks have."""
        self._stop_at_once(node)
        for each in self.plane.of(node):
            each.up = False
            each.claims.clear()
            each.requests.clear()
        self._part(node)
        return lambda: self._restart(node)

    def _restart(self, node: int) -> None:
        self.note("restart", node)
        for disk in self.net.nodes[node].disks:
            disk.held = False
        name = self.net.names[node]
        self.plane.lives[name] = str(int(self.plane.lives[name]) + 1)
        self.net.nodes[node].hung.clear()
        self._rule_streams()
        self.net.restart(node)
        self._started[node] = self.clock.now
        for roamer in self.roamers:
            roamer.known.pop(node, None)
        self._meet_all(node)

    def _stop(self, node: int, _other: int) -> Callable[[], None]:
        """Stop a node, as SIGSTOP does: it goes on as if no time had passed."""
        self._stop_at_once(node)
        connections = self.plane.of(node)
        for each in connections:
            each.undecided = each.mute = each.silent = True
        self._ends.append((self.clock.now + 5.0, lambda: self._part_if_stopped(node)))

        def stop() -> None:
            self.note("continue", node)
            self.net.nodes[node].hung.clear()
            for each in connections:
                each.undecided = each.mute = each.silent = False
            self._rule_streams()
            self._come_back(node)
            self.net.run()
            self._meet_all(node)

        return stop

    def _stop_at_once(self, node: int) -> None:
        self.net.nodes[node].hung.update(range(self.swarm.workers[node]))
        self._rule_streams()

    def _part_if_stopped(self, node: int) -> None:
        if not self._is_awake(node):
            self._part(node)

    def _part(self, node: int) -> None:
        for other in range(len(self.net.nodes)):
            if other != node:
                self.net.cut(node, other)

    def _meet_all(self, node: int) -> None:
        for other in range(len(self.net.nodes)):
            if other != node:
                self._meet(node, other)

    def _slow_disk(self, node: int, _other: int) -> Callable[[], None]:
        disks = self.net.nodes[node].disks
        for disk in disks:
            disk.held = True

        def stop() -> None:
            for disk in disks:
                disk.held = False
            if self._is_awake(node):
                for shard in self.net.nodes[node]:
                    shard.store.commit()
                self.net.run()

        return stop

    # Promises

    def _check_connected(self) -> None:
        """A client id is connected at one node at a time."""
        for roamer in self.roamers:
            nodes = [
                number
                for number, node in enumerate(self.net.nodes)
                if not node.hung
                for shard in node
                if (session := shard.session(roamer.name)) is not None
                and session.client is not None
            ]
            if len(nodes) > 1:
                self.violated("one connection", f"{roamer.name} is connected at nodes {nodes}")

    def _calm(self) -> None:
        """End all faults, let all clients come back, and check what they have."""
        for _, stop in sorted(self._ends, key=lambda each: each[0]):
            stop()
        self._ends.clear()
        self.net.connect()
        self._polite = lambda: True
        for roamer in self.roamers:
            roamer.answer_all()
        self._receive()
        end = self.clock.now + CALM_SECONDS
        calm = 0.0
        while self.clock.now < end and calm < AFTERWARDS_SECONDS:
            for roamer in self.roamers:
                if roamer.newest is None:
                    self._connect(roamer, clean=False)
            self._advance(CALM_STEP)
            self._receive()
            calm = calm + CALM_STEP if all(map(self._is_content, self.roamers)) else 0.0
        for roamer in self.roamers:
            self._check_end(roamer)

    def _is_content(self, roamer: Roamer) -> bool:
        return (
            roamer.current is not None
            and roamer.expected <= roamer.seen.keys()
            and self._is_owners(roamer)
        )

    def _is_owners(self, roamer: Roamer) -> bool:
        """Return whether the owner of a client id, and no other node, has its session."""
        nodes = [node for node, each in enumerate(self.net.nodes) if each.holders(roamer.name)]
        return [self.net.names[node] for node in nodes] == [self.plane.owner_of(roamer.name)]

    def _check_end(self, roamer: Roamer) -> None:
        if roamer.current is None:
            self.violated("served", f"{roamer.name} is not let in")
        missing = sorted(roamer.expected - roamer.seen.keys(), key=int)
        if missing:
            self.violated("nothing lost", f"{roamer.name} has not got {missing}")
        if not self._is_owners(roamer):
            self.violated("one session", f"{roamer.name} is not at its owner alone")
