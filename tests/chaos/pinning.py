"""``python -m tests.chaos.pinning --rounds N``: a follower changes its shard while it is the leader's only majority.

Three nodes with two shards each, on loopback. A round: publishers at the leader; the second follower is held up for about a
second, so that what the leader confirms is on its own disk and the first follower's alone; the first follower is pinned to
its other shard, and the leader killed when that has let the group go. The second follower goes on, and the two that are left
have to elect a leader that has every message that was confirmed. Then the old leader comes back, and no member may doubt
another.

Exit 0: nothing was lost; 1: something was, or nobody led. No privileges are needed, and no network but loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import orjson
import psutil

from fluxmq.cli.main import run as fluxmqctl
from tests.broker import HOST
from tests.cluster.nodes import Cluster, Node
from tests.conformance import wire
from tests.conformance.client import Client, tcp

GROUP = "default"
PUBLISHERS = 4
WINDOW = 16
"""Publishes of one client that are sent before their answers are waited for."""
LOAD_SECONDS = (0.2, 0.6)
"""Of publishing before the second follower is held up."""
HELD_SECONDS = (0.1, 0.4)
"""How long it has been held up when the pin is asked for. Its supervisor would end a shard that stands still for seconds."""
RELEASE_SECONDS = 2.0
"""How long the group may take to leave before the round is begun again."""
LEADER_SECONDS = 20.0
"""How long the two that are left may take to have a leader."""
QUIET_SECONDS = 5.0
"""A queue that has given nothing for so long has given all."""
ATTEMPTS_MAX = 8
"""Pins of one round, of which one has to succeed."""
RELEASED = re.compile(r"group released.*?\bgroup=default\b")
DOUBTS = re.compile(
    r"has acknowledged entry|is set aside|nowhere else|group not forgotten|but the log ends at"
)
"""What members say of each other, and of themselves, when a promise was broken."""


@dataclass
class Round:
    """What came of one round."""

    number: int
    pinned: str = ""
    killed: str = ""
    confirmed: int = 0
    missing: list[bytes] = field(default_factory=list)
    leaderless: bool = False
    doubts: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether all was kept."""
        return bool(self.killed) and not (self.missing or self.leaderless or self.doubts)

    def __str__(self) -> str:
        said = f"round {self.number}: pinned {self.pinned}, killed {self.killed or 'nobody'}, "
        said += f"{self.confirmed} confirmed, {len(self.missing)} missing"
        said += ", no leader" if self.leaderless else ""
        said += "".join(f"\n    {each}" for each in dict.fromkeys(self.doubts))
        return f"{said} ({self.seconds:.1f} s)"


def settings(rounds: int) -> dict[str, Any]:
    """A replicated queue for each round."""
    queues = [{"name": f"r{number}", "replication": {"enabled": True}} for number in range(rounds)]
    return {"queues": queues, "cluster": {"raft": {"ack_timeout": "3s"}}}


class Publisher(threading.Thread):
    """Publishes to a queue until its node is gone; ``confirmed``: what was acknowledged, by payload."""

    def __init__(self, node: Node, queue: str, name: str) -> None:
        super().__init__(name=name)
        self.confirmed: list[bytes] = []
        self.ended = threading.Event()
        self._node = node
        self._queue = queue

    def run(self) -> None:
        lost = contextlib.suppress(OSError, AssertionError, TimeoutError)
        with lost, Client(tcp(HOST, self._node.port), wire.V5) as client:
            client.connect(f"{self._queue}-{self.name}")
            number = 0
            while not self.ended.is_set():
                self._publish(client, number)
                number += WINDOW

    def _publish(self, client: Client, first: int) -> None:
        waiting: dict[int, bytes] = {}
        packets = []
        for number in range(first, first + WINDOW):
            packet_id = number % 60_000 + 1
            waiting[packet_id] = b"%s-%d" % (self.name.encode(), number)
            topic, body = f"$queue/{self._queue}", waiting[packet_id]
            packets.append(wire.publish(wire.V5, topic, body, qos=1, packet_id=packet_id))
        client.send(*packets)
        while waiting:
            answer = client.expect(wire.PUBACK, LEADER_SECONDS)
            body = waiting.pop(answer.packet_id)
            if answer.reason < 0x80:
                self.confirmed.append(body)


class Runs:
    """The cluster, and the rounds that it has been through."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self.cluster = cluster
        self._random = random

    def round(self, number: int) -> Round:
        """One round."""
        begun = time.monotonic()
        found = Round(number)
        logged = {node.output: len(node.broker.log().encode()) for node in self.cluster.nodes}
        leader = self.cluster.leader(GROUP)
        first, second = self.cluster.followers(GROUP)
        found.pinned = first.name
        publishers = [Publisher(leader, f"r{number}", f"p{each}") for each in range(PUBLISHERS)]
        for each in publishers:
            each.start()
        try:
            for _ in range(ATTEMPTS_MAX):
                time.sleep(self._random.uniform(*LOAD_SECONDS))
                if self._pin(leader, first, second):
                    found.killed = leader.name
                    break
        finally:
            for each in publishers:
                each.ended.set()
            for each in publishers:
                each.join()
        confirmed = {body for each in publishers for body in each.confirmed}
        found.confirmed = len(confirmed)
        self._look(found, [first, second], confirmed)
        for node in self.cluster.nodes:
            if not node.up:
                node.start()
        try:
            self.cluster.wait_ready()
        except AssertionError as problem:
            found.doubts.append(str(problem).partition("\n")[0])
        for node in self.cluster.nodes:
            lines = node.broker.log(logged.get(node.output, 0)).splitlines()
            found.doubts += [f"{node.name}: {line}" for line in lines if DOUBTS.search(line)]
        found.seconds = time.monotonic() - begun
        return found

    def _pin(self, leader: Node, first: Node, second: Node) -> bool:
        """Hold up the second follower and pin the first; whether that let the group go, and the leader was killed then."""
        target = 1 - shard_of(first)
        doomed = leader.processes()
        since = len(first.broker.log().encode())
        held = shards(second)
        with ThreadPoolExecutor(1) as beside, stopped(held):
            time.sleep(self._random.uniform(*HELD_SECONDS))
            pin = beside.submit(ctl, first, "pin", GROUP, f"shard-{target}")
            deadline = time.monotonic() + RELEASE_SECONDS
            while time.monotonic() < deadline:
                if RELEASED.search(first.broker.log(since)):
                    for process in doomed:
                        with contextlib.suppress(psutil.NoSuchProcess):
                            process.send_signal(signal.SIGKILL)
                    break
                if pin.done():
                    return False
                time.sleep(0.0005)
            else:
                return False
        leader.kill()
        return True

    def _look(self, found: Round, left: list[Node], confirmed: set[bytes]) -> None:
        """Whether the two that are left have a leader, and that has what was confirmed."""
        deadline = time.monotonic() + LEADER_SECONDS
        while not any(node.led(GROUP) for node in left):
            if time.monotonic() > deadline:
                found.leaderless = True
                return
            time.sleep(0.02)
        came = drain(self.cluster.leader(GROUP), f"r{found.number}", confirmed)
        found.missing = sorted(confirmed - came)


def shard_of(node: Node) -> int:
    """The shard that has the group on a node."""
    rows = orjson.loads(ctl(node, "groups", "--json"))
    (found,) = [int(row["shard"]) for row in rows["groups"] if row["group"] == GROUP]
    return found


def ctl(node: Node, *arguments: str) -> str:
    """Run fluxmqctl in this process: one of its own takes longer to start than what is to be hit."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        fluxmqctl(["--data-dir", str(node.folder / "data"), *arguments])
    return said.getvalue()


def shards(node: Node) -> list[psutil.Process]:
    """A node's shard processes."""
    return [each for each in node.processes() if each.name().startswith("fluxmq-shard-")]


@contextlib.contextmanager
def stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Hold processes up meanwhile."""
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)


def drain(node: Node, queue: str, wanted: set[bytes]) -> set[bytes]:
    """What a queue gives, until all that is wanted has come, or nothing more does."""
    came: set[bytes] = set()
    with Client(tcp(HOST, node.port), wire.V5) as client:
        client.connect(f"reader-{queue}")
        client.subscribe(f"$queue/{queue}", qos=1)
        with contextlib.suppress(TimeoutError, AssertionError):
            while not wanted <= came:
                packet = client.next(QUIET_SECONDS)
                if packet.kind == wire.PUBLISH:
                    came.add(packet.payload)
                    client.acknowledge(packet)
    return came


def run(folder: Path, rounds: int, seed: int, told: Any = print) -> list[Round]:
    """So many rounds with one cluster; after a round that was not clean with a new one."""
    random = Random(seed)
    found: list[Round] = []
    while len(found) < rounds:
        place = folder / f"from{len(found)}"
        place.mkdir(parents=True)
        cluster = Cluster(place, settings(rounds), workers=2)
        try:
            cluster.start()
            runs = Runs(cluster, random)
            while len(found) < rounds:
                found.append(runs.round(len(found)))
                told(str(found[-1]))
                if not found[-1].clean:
                    break
        finally:
            cluster.end()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.pinning", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a new directory for data and logs, kept")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.keep or Path(temporary)
        found = run(folder, asked.rounds, asked.seed, lambda line: print(line, flush=True))
    lost = sum(len(each.missing) for each in found)
    clean = sum(each.clean for each in found)
    confirmed = sum(each.confirmed for each in found)
    leaderless = sum(each.leaderless for each in found)
    print(
        f"{clean} of {len(found)} rounds clean; {confirmed} confirmed, {lost} of them lost; "
        f"{leaderless} without a leader"
    )
    return 0 if clean == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
