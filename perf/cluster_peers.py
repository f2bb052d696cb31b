"""The three-node clusters that FluxMQ's is measured against: RabbitMQ's quorum queues and MQTT plugin, JetStream's R3
streams, NATS core, and LavinMQ's durable queues.

All nodes live on this machine, as FluxMQ's do. Queues are made anew before each run, by a client of the node that shall
lead them; JetStream chooses by itself who leads a stream, and clients go there.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

from fluxmq.supervisor.etcd import BUILT
from perf import amqp, brokers, dialects, handshake, jetstream, lavinmq, rabbitmq
from perf.brokers import HOST, Broker, BrokerError
from perf.cluster_nodes import MIRRORED_QUEUES, NODES, POLL_S
from perf.handshake import HandshakeError
from perf.run import RunError
from perf.workload import Workload

NAME = "perf"
MIRRORED = ("mirrored", f"^{MIRRORED_QUEUES}-", '{"ha-mode":"all","ha-sync-mode":"automatic"}')
"""Arguments of set_policy for mirrored queues."""
LEADER_S = 30.0
"""For a new cluster's first leader, and for a new stream's."""
IN_SYNC = "In sync with leader"
"""A line of a LavinMQ follower's log."""


def check(answer: tuple[int, str]) -> None:
    """Raise ``BrokerError`` unless a command of a control tool has succeeded."""
    code, said = answer
    if code:
        raise BrokerError(f"the control tool ended with {code}: {said}")


@dataclass(slots=True)
class RabbitMQ:
    """Three nodes of RabbitMQ; queue i is led by node i modulo three. ``mirrored``: queues are classic ones with mirrors on
    all nodes."""

    nodes: list[rabbitmq.Node] = field(default_factory=list)
    mirrored: bool = False

    @classmethod
    def start(cls, plugins: Sequence[str] = (), mirrored: bool = False) -> RabbitMQ:
        """Start and join three nodes. Raises ``BrokerError``; nothing is left running then."""
        found = cls(mirrored=mirrored)
        try:
            for number in range(NODES):
                first = found.nodes[0] if number else None
                found.nodes.append(rabbitmq.start("rabbitmq", plugins=plugins, beside=first))
            for node in found.nodes[1:]:
                node.join(found.nodes[0])
                brokers.await_answer(node.broker, rabbitmq.answers_amqp, rabbitmq.START_S)
            if mirrored:
                check(found.nodes[0].control("set_policy", *MIRRORED))
        except BaseException:
            found.stop()
            raise
        return found

    def brokers(self) -> list[Broker]:
        """The processes."""
        return [node.broker for node in self.nodes]

    def prepare(self, workload: Workload) -> list[int]:
        """Declare the queues with a copy on each node; the node that leads each. For messages that no queue keeps, the first
        node. Raises ``OSError``."""
        if not workload.durable:
            return [0] * workload.subscribers
        leaders = [number % NODES for number in range(workload.subscribers)]
        for number, leader in enumerate(leaders):
            with handshake.dial(HOST, self.nodes[leader].amqp_port) as connection:
                amqp.open_channel(connection)
                name = workload.queue_name(number)
                if self.mirrored:
                    amqp.declare(connection, name, "", "classic")
                else:
                    amqp.declare(connection, name, "", "quorum", NODES)
                connection.sendall(amqp.close())
        return leaders

    def ports(self, protocol: str) -> list[int]:
        """Return each node's address for clients of a protocol."""
        if protocol not in ("amqp", "mqtt"):
            raise RunError(f"{protocol} is not measured with RabbitMQ's cluster")
        return [node.amqp_port if protocol == "amqp" else node.mqtt_port for node in self.nodes]

    def pids(self) -> tuple[int, ...]:
        """The roots of the process trees."""
        return tuple(node.broker.process.pid for node in self.nodes)

    def stop(self) -> None:
        """End all of them: the first last, whose port mapper the others use."""
        for node in reversed(self.nodes):
            # The stored data is not needed any more.
            node.broker.stop_timeout_s = 0.0
            node.broker.stop()


@dataclass(slots=True)
class Nats:
    """Three nats-servers with JetStream in files, as one cluster."""

    folder: tempfile.TemporaryDirectory[str]
    members: list[Broker] = field(default_factory=list)

    @classmethod
    def start(cls) -> Nats:
        """Start three servers and wait until they have a leader. Raises ``BrokerError``."""
        binary = brokers.executable("nats-server")
        if binary is None:
            raise BrokerError("nats-server is not installed")
        kept = tempfile.TemporaryDirectory(prefix="perf-nats-", ignore_cleanup_errors=True)
        found = cls(kept)
        routes = [brokers.free_port() for _ in range(NODES)]
        try:
            for number in range(NODES):
                found.members.append(found._member(binary, number, routes))
            for member in found.members:
                brokers.await_answer(member, brokers.answers_nats, brokers.START_TIMEOUT_S)
            found._await_leader()
        except BaseException:
            found.stop()
            raise
        return found

    def _member(self, binary: str, number: int, routes: list[int]) -> Broker:
        port, name = brokers.free_port(), f"{NAME}{number}"
        folder = Path(self.folder.name)
        others = ",".join(f"nats://{HOST}:{each}" for each in routes)
        arguments = [binary, "-a", HOST, "-p", str(port), "-n", name, "-js"]
        arguments += ["-sd", str(folder / name), "--cluster_name", NAME]
        arguments += ["--cluster", f"nats://{HOST}:{routes[number]}", "--routes", others]
        log = folder / f"{name}.output"
        process = brokers.spawn(arguments, folder, dict(os.environ), log)
        return Broker("nats", port, process, self.folder, log)

    def _await_leader(self) -> None:
        deadline = time.monotonic() + LEADER_S
        while True:
            with dialects.open_nats(HOST, self.members[0].port) as connection:
                jetstream.listen(connection)
                try:
                    jetstream.create_stream(connection, "ready", "limits", NODES)
                except (HandshakeError, TimeoutError) as error:
                    if time.monotonic() > deadline:
                        raise BrokerError(f"no cluster came to be: {error}") from error
                    time.sleep(POLL_S)
                    continue
                return

    def prepare(self, workload: Workload) -> list[int]:
        """Make the streams anew with three replicas; the server that leads each. For messages that no stream keeps, the first
        server. Raises ``OSError``, ``RunError``."""
        if not workload.durable:
            return [0] * workload.subscribers
        names = [f"{NAME}{number}" for number in range(NODES)]
        leaders = []
        with dialects.open_nats(HOST, self.members[0].port) as connection:
            jetstream.listen(connection)
            for number in range(workload.subscribers):
                name = workload.queue_name(number)
                jetstream.create_stream(connection, name, workload.retention, NODES)
                deadline = time.monotonic() + LEADER_S
                while (leader := jetstream.stream_leader(connection, name)) not in names:
                    if time.monotonic() > deadline:
                        raise RunError(f"stream {name} has no leader")
                    time.sleep(POLL_S)
                leaders.append(names.index(leader))
        return leaders

    def ports(self, protocol: str) -> list[int]:
        """Return each server's address for clients of a protocol."""
        if protocol not in ("jetstream", "nats"):
            raise RunError(f"{protocol} is not measured with NATS's cluster")
        return [member.port for member in self.members]

    def pids(self) -> tuple[int, ...]:
        """The roots of the process trees."""
        return tuple(member.process.pid for member in self.members)

    def stop(self) -> None:
        """End all of them."""
        for member in self.members:
            member.stop()
        self.folder.cleanup()


@dataclass(slots=True)
class LavinMQ:
    """Three nodes of LavinMQ, the first one the leader, and the member of etcd that elects it."""

    folder: tempfile.TemporaryDirectory[str]
    etcd: Broker
    members: list[Broker] = field(default_factory=list)

    @classmethod
    def start(cls) -> LavinMQ:
        """Start etcd and three nodes, and wait until the two followers are in sync. Raises ``BrokerError``."""
        binary = brokers.executable(lavinmq.LAVINMQ)
        program = brokers.executable("etcd") or (str(BUILT) if BUILT.exists() else None)
        if binary is None or program is None:
            raise BrokerError("lavinmq or etcd is not installed")
        kept = tempfile.TemporaryDirectory(prefix="perf-lavinmq-", ignore_cleanup_errors=True)
        found = cls(kept, _single_etcd(program, kept))
        try:
            brokers.await_answer(found.etcd, _is_healthy, brokers.START_TIMEOUT_S)
            for number in range(NODES):
                member = found._member(binary, number)
                found.members.append(member)
                if not number:
                    brokers.await_answer(member, rabbitmq.answers_amqp, brokers.START_TIMEOUT_S)
            found._await_followers()
        except BaseException:
            found.stop()
            raise
        return found

    def _member(self, binary: str, number: int) -> Broker:
        port, between = brokers.free_port(), brokers.free_port()
        folder = Path(self.folder.name)
        name = f"{NAME}{number}"
        arguments = [binary, "--data-dir", str(folder / name), "--bind", HOST]
        arguments += [
            "--control-unix-path",
            str(folder / f"{name}.control"),
            "--amqp-port",
            str(port),
        ]
        for other in ("mqtt", "http", "metrics-http"):
            arguments += [f"--{other}-port", str(brokers.free_port())]
        arguments += ["--clustering", "--clustering-bind", HOST, "--clustering-port", str(between)]
        arguments += ["--clustering-advertised-uri", f"tcp://{HOST}:{between}"]
        arguments += ["--clustering-etcd-endpoints", f"{HOST}:{self.etcd.port}"]
        log = folder / f"{name}.output"
        process = brokers.spawn(arguments, folder, dict(os.environ), log)
        return Broker(lavinmq.LAVINMQ, port, process, self.folder, log)

    def _await_followers(self) -> None:
        deadline = time.monotonic() + LEADER_S
        followers = self.members[1:]
        while not all(IN_SYNC in each.log.read_text(errors="replace") for each in followers):
            if time.monotonic() > deadline:
                raise BrokerError("LavinMQ's followers do not get in sync")
            time.sleep(POLL_S)

    def prepare(self, workload: Workload) -> list[int]:
        """Declare the queues; all are led by the first node. Raises ``OSError``."""
        for number in range(workload.subscribers):
            with handshake.dial(HOST, self.members[0].port) as connection:
                amqp.open_channel(connection)
                amqp.declare(connection, workload.queue_name(number), "", "classic")
                connection.sendall(amqp.close())
        return [0] * workload.subscribers

    def ports(self, protocol: str) -> list[int]:
        """Return each node's address for clients of a protocol."""
        if protocol != "amqp":
            raise RunError(f"{protocol} is not measured with LavinMQ's cluster")
        return [member.port for member in self.members]

    def pids(self) -> tuple[int, ...]:
        """The roots of the process trees, without etcd."""
        return tuple(member.process.pid for member in self.members)

    def stop(self) -> None:
        """End all of them."""
        for member in (*self.members, self.etcd):
            member.stop()
        self.folder.cleanup()


def _single_etcd(program: str, kept: tempfile.TemporaryDirectory[str]) -> Broker:
    """A member of etcd alone, in a folder that is somebody else's to remove."""
    folder = Path(kept.name)
    port, peer = brokers.free_port(), f"http://{HOST}:{brokers.free_port()}"
    clients = f"http://{HOST}:{port}"
    arguments = [program, "--name", NAME, "--data-dir", str(folder / "etcd")]
    arguments += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
    arguments += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    arguments += ["--initial-cluster", f"{NAME}={peer}"]
    log = folder / "etcd.output"
    return Broker("etcd", port, brokers.spawn(arguments, folder, dict(os.environ), log), kept, log)


def _is_healthy(port: int) -> None:
    """Raise ``OSError`` unless a member of etcd answers that it serves."""
    with urlopen(f"http://{HOST}:{port}/health") as answer:
        answer.read()
