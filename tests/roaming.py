"""``python -m tests.roaming --seconds N --seed S``: clients that go from node to node of a real cluster while it is maltreated.

Three nodes, each with a member of etcd, on loopback. Clients with persistent sessions connect to one node after the other
and are sent numbered messages of QoS 1 and 2, published at all nodes, while nodes and members of etcd are killed or stopped
for a moment. A node that is killed is started again at once: what is on its disk is not lost. Exit status 0: every message
that was acknowledged has reached its client, CONNACK has said each time that the session was there, unless a node needed
so long for its start that its leases ended, and of QoS 2 nothing came twice, unless a node was killed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from tests.broker import HOST
from tests.cluster.nodes import Cluster, Node
from tests.conformance import wire
from tests.conformance.client import Client, tcp
from tests.conformance.received import NonconformingError, Packet

ROAMERS = 12
SETTLE_SECONDS = 30.0
"""Time for everything to arrive when the faults are over."""
FAULT_SECONDS = (1.0, 3.0)
"""Pause before a fault, and duration of one that ends: shorter than leases."""
AWAY_SECONDS = 6.0
"""A node that is away for longer, as on a busy machine, may have lost its leases, which are of nine seconds and are renewed
every three."""
FAULTS = ("kill node", "stop node", "kill etcd", "stop etcd")
LASTING = ((wire.SESSION_EXPIRY_INTERVAL, 3600),)
LOST = (OSError, TimeoutError, AssertionError, NonconformingError)
"""Ends of a connection, as a client of a node that is maltreated meets them."""


def accept(client: Client, packet: Packet, begun: set[int], got: list[bytes]) -> bool:
    """Take and acknowledge a packet of a delivery; return whether it was one. ``begun``: identifiers of QoS 2 whose message
    has come, in any connection; ``got``: payloads, of QoS 2 of what is new."""
    if packet.kind == wire.PUBLISH:
        if packet.qos == 1 or packet.packet_id not in begun:
            got.append(packet.payload)
        if packet.qos == 2:
            begun.add(packet.packet_id)
        kind = wire.PUBREC if packet.qos == 2 else wire.PUBACK
        client.send(wire.acknowledge(kind, packet.packet_id))
    elif packet.kind == wire.PUBREL:
        begun.discard(packet.packet_id)
        client.send(wire.acknowledge(wire.PUBCOMP, packet.packet_id))
    else:
        return False
    return True


class Roamer:
    """A client identifier, what it has got, and what was wrong."""

    def __init__(self, name: str, chosen: random.Random) -> None:
        self.name = name
        self.got: list[bytes] = []
        self.wrong: list[tuple[float, str]] = []
        self.moves = 0
        self._chosen = chosen
        self._known = False
        self._begun: set[int] = set()

    def has_been(self) -> bool:
        """Whether any node has let the client in."""
        return self.moves > 0

    def has(self, sent: set[bytes]) -> bool:
        """Whether these have come."""
        return sent <= {*self.got}

    def visit(self, node: Node, seconds: float) -> bool:
        """Connect to a node and read for so long; return whether it let the client in."""
        try:
            stream = tcp(HOST, node.port)
        except OSError:
            return False
        with Client(stream, 5) as client:
            try:
                return self._use(client, node, seconds)
            except LOST:
                return False

    def _use(self, client: Client, node: Node, seconds: float) -> bool:
        client.send(wire.connect(5, self.name, clean=False, keep_alive=0, props=LASTING))
        answer = client.expect(wire.CONNACK)
        if answer.reason:
            return False
        if answer.session_present != self._known:
            text = (
                f"session present: {answer.session_present}, at {node.name}, {time.strftime('%X')}"
            )
            self.wrong.append((time.monotonic(), text))
        self._known = True
        self.moves += 1
        if not answer.session_present:
            self._begun.clear()
            client.subscribe(f"roam/{self.name}", qos=2)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                packet = client.next(left)
            except TimeoutError:
                break
            if not accept(client, packet, self._begun, self.got):
                return True  # DISCONNECT: the node has lost its lease
        if self._chosen.random() < 0.5:
            client.send(wire.disconnect(0))
        return True


class Publisher:
    """Publishes at one node after the other, and knows what was acknowledged."""

    def __init__(self, name: str, roamers: list[str], chosen: random.Random) -> None:
        self.name = name
        self.acknowledged: list[tuple[str, bytes]] = []
        self._roamers = roamers
        self._chosen = chosen
        self._number = 0

    def visit(self, node: Node, stopping: threading.Event) -> None:
        """Publish at a node until it fails, or for a few seconds."""
        end = time.monotonic() + self._chosen.uniform(1, 5)
        try:
            with Client(tcp(HOST, node.port), 5) as client:
                client.connect(self.name, keep_alive=0)
                while time.monotonic() < end and not stopping.is_set():
                    self._number += 1
                    to, qos = self._chosen.choice(self._roamers), self._chosen.randint(1, 2)
                    payload = f"{self.name} {qos} {self._number}".encode()
                    if client.publish(f"roam/{to}", payload, qos=qos) < 0x80:
                        self.acknowledged.append((to, payload))
        except LOST:
            return


class Campaign:
    """Clients and faults on a cluster that runs."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._chosen = random.Random(seed)
        self._stopping = threading.Event()
        names = [f"roamer{number}" for number in range(ROAMERS)]
        self.roamers = [Roamer(name, self._new()) for name in names]
        self.publishers = [Publisher(f"p{number}", names, self._new()) for number in range(3)]
        self.faults: list[str] = []
        self.logs: list[str] = []
        """Of nodes that were killed."""
        self.away: list[tuple[float, float]] = []
        """Times in which a node was away for so long that its clients may have begun new sessions elsewhere."""

    def _new(self) -> random.Random:
        return random.Random(self._chosen.random())

    def run(self, seconds: float) -> list[str]:
        """Run for so long; return what was wrong."""
        for roamer in self.roamers:
            self._visit_until(roamer, roamer.has_been)
        threads = [self._thread(self._roam, each) for each in self.roamers]
        threads += [self._thread(self._publish, each) for each in self.publishers]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(self._chosen.uniform(*FAULT_SECONDS))
            self._fault(self._chosen.choice(FAULTS))
        self._stopping.set()
        for thread in threads:
            thread.join()
        self._cluster.wait_ready()
        return self._missing()

    def _thread(self, work: Callable[[object], None], subject: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=(subject,))
        thread.start()
        return thread

    def _roam(self, roamer: object) -> None:
        assert isinstance(roamer, Roamer)
        chosen = self._new()
        while not self._stopping.is_set():
            roamer.visit(chosen.choice(self._cluster.nodes), chosen.choice((0.05, 0.2, 0.5, 1.0)))

    def _publish(self, publisher: object) -> None:
        assert isinstance(publisher, Publisher)
        chosen = self._new()
        while not self._stopping.is_set():
            publisher.visit(chosen.choice(self._cluster.nodes), self._stopping)

    def _fault(self, kind: str) -> None:
        node = self._chosen.choice(self._cluster.nodes)
        self.faults.append(f"{kind} {node.name}")
        if kind == "kill node":
            node.kill()
            killed = time.monotonic()
            self.logs.append(
                f"--- {node.name}, killed at {time.strftime('%X')}\n{node.broker.log()}"
            )
            node.start()
            self._cluster.wait_ready()
            away = time.monotonic() - killed
            self.faults[-1] += f" for {away:.1f} s"
            if away > AWAY_SECONDS:
                self.away.append((killed, killed + away + 1.0))
            return
        if kind == "stop node":
            node.pause()
            time.sleep(self._chosen.uniform(*FAULT_SECONDS))
            node.resume()
            return
        members = [each for each in node.processes() if each.name() == "etcd"]
        for member in members:
            try:
                os.kill(member.pid, signal.SIGKILL if kind == "kill etcd" else signal.SIGSTOP)
                if kind == "stop etcd":
                    time.sleep(self._chosen.uniform(*FAULT_SECONDS))
                    os.kill(member.pid, signal.SIGCONT)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue

    def _visit_until(self, roamer: Roamer, done: Callable[[], bool]) -> bool:
        """Let a client connect until something is so; return whether it came to be."""
        end = time.monotonic() + SETTLE_SECONDS
        while not done() and time.monotonic() < end:
            roamer.visit(self._chosen.choice(self._cluster.nodes), 0.5)
        return done()

    def _missing(self) -> list[str]:
        """Let everything arrive; return what was wrong."""
        wrong = []
        killed = any(fault.startswith("kill node") for fault in self.faults)
        for roamer in self.roamers:
            sent = {
                payload
                for publisher in self.publishers
                for to, payload in publisher.acknowledged
                if to == roamer.name
            }
            if not self._visit_until(roamer, partial(roamer.has, sent)):
                lost = sorted(sent - {*roamer.got})
                wrong.append(f"{roamer.name}: {len(lost)} lost, such as {lost[:3]}")
            twice = [each for each in roamer.got if each.split()[1] == b"2"]
            if not killed and len(twice) != len({*twice}):
                wrong.append(f"{roamer.name}: {len(twice) - len({*twice})} of QoS 2 came twice")
            wrong += [
                f"{roamer.name}: {text}"
                for moment, text in roamer.wrong
                if not any(begin <= moment <= end for begin, end in self.away)
            ]
        return wrong


def campaign(folder: Path, seconds: float, seed: int) -> tuple[Campaign, list[str]]:
    """Run a campaign on a cluster of its own; return it and what was wrong."""
    cluster = Cluster(folder, {}, 2)
    try:
        cluster.start()
        made = Campaign(cluster, seed)
        wrong = made.run(seconds)
        cluster.stop()
    finally:
        cluster.end()
    if wrong:
        print("".join(made.logs), cluster.log())
    return made, wrong


def main() -> int:
    """Run a campaign and say what it has found."""
    command = argparse.ArgumentParser(prog="python -m tests.roaming", description=__doc__)
    command.add_argument("--seconds", type=float, default=60.0, help="of load and faults")
    command.add_argument("--seed", type=int, default=1)
    options = command.parse_args()
    with tempfile.TemporaryDirectory(prefix="fluxmq-roaming-") as folder:
        made, wrong = campaign(Path(folder), options.seconds, options.seed)
    acknowledged = sum(len(each.acknowledged) for each in made.publishers)
    got = sum(len(each.got) for each in made.roamers)
    moves = sum(each.moves for each in made.roamers)
    print(f"faults: {', '.join(made.faults)}")
    print(f"connections {moves}, acknowledged {acknowledged}, received {got}, wrong {len(wrong)}")
    for each in wrong:
        print(each)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
