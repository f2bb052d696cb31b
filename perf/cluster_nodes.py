"""Three FluxMQ nodes on this machine: their addresses, their settings, who leads, and killing one of them.

Each node is a supervisor of its own with a configuration file as ``config/cluster`` has them, one shard and a data
directory of its own. Ports lie below those that the system gives to clients, so that a node which is away for a while
gets its own back. Who leads a group is read from the nodes' ``/metrics``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perf import brokers, durable, processes
from perf.brokers import HOST, BrokerError
from perf.run import RunError

NODES = 3
TOPIC = "perf"
"""Queues are called ``perf-0`` and so on."""
MIRRORED_QUEUES = "mirrored"
"""Queues that a policy has mirrored are called ``mirrored-0`` and so on."""

PORTS_FROM, PORTS_TO = 23_000, 24_000
"""Ports among which free blocks are searched for."""

PORTS_OF_MANY_TO = 32_000
"""The same for a shape with many groups."""

TRANSPORT_PORTS = 64
"""A node's transport claims as many, one for each shard it may have."""

OTHER_PORTS = 6
"""MQTT, AMQP, HTTP, the group ``default``, and etcd's two; groups of their own follow."""

GROUPS_MAX = 16
NODE_PORTS = TRANSPORT_PORTS + OTHER_PORTS + GROUPS_MAX
"""With so many groups; a shape with more of them takes more."""

START_S = 60.0
START_OF_GROUP_S = 0.3
"""Longest start, and what each group adds."""
STOP_S = 30.0
LEADERS_S = 30.0
TRANSFER_S = 10.0
CONTROL_S = 30.0
POLL_S = 0.02
PAGE_S = 2.0

SESSIONS = 100_000
"""Sessions of a node, unless its listener takes more connections."""

HEARTBEAT_S, ELECTION_S = 0.15, 1.0
"""Raft's timings: those of ``config/cluster``."""

_SAMPLE = re.compile(r"^(fluxmq_\w+)\{([^}]*)\} ([0-9.e+-]+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Shape:
    """Content of the cluster. ``queues`` queues are spread over ``groups`` groups named ``g0``, ``g1`` ...; with no
    groups they are in ``default``. ``named`` are further queues, by name, with the group of each. Consumers on nodes that
    do not lead get messages from the leader, and those of the queues in ``copied`` out of their node's copy. ``workers``:
    shards of a node; ``pins``: groups that have a certain one of them. ``clustered``: False for nodes that know nothing of
    each other. ``connections``: the most of a listener."""

    queues: int = 1
    groups: int = 0
    named: tuple[tuple[str, str], ...] = ()
    copied: tuple[str, ...] = ()
    workers: int = 1
    pins: tuple[tuple[str, int], ...] = ()
    clustered: bool = True
    connections: int = 10_000

    def group_names(self) -> list[str]:
        """The groups beside ``default``."""
        spread = [f"g{number}" for number in range(self.groups)]
        named = [group for _, group in self.named if group != "default"]
        return list(dict.fromkeys([*spread, *named]))

    def group_of(self, queue: int) -> str:
        """The group of the queue with this number."""
        return f"g{queue % self.groups}" if self.groups else "default"

    def listed(self) -> list[tuple[str, str]]:
        """Every queue with its group."""
        numbered = [(f"{TOPIC}-{n}", self.group_of(n)) for n in range(self.queues)]
        return [*numbered, *self.named]


@dataclass(frozen=True, slots=True)
class Addresses:
    """A node's ports."""

    transport: int

    @property
    def mqtt(self) -> int:
        """Of MQTT's listener."""
        return self.transport + TRANSPORT_PORTS

    @property
    def amqp(self) -> int:
        """Of AMQP's listener."""
        return self.mqtt + 1

    @property
    def http(self) -> int:
        """Of ``/ready`` and ``/metrics``."""
        return self.mqtt + 2

    @property
    def default(self) -> int:
        """Of the group ``default``."""
        return self.mqtt + 3

    @property
    def etcd(self) -> int:
        """Of etcd, for its other members; the next one is for brokers."""
        return self.mqtt + 4

    def group(self, place: int) -> int:
        """Of the group with this place among those that have a name."""
        return self.mqtt + OTHER_PORTS + place


def node_name(index: int) -> str:
    """The name of a node: ``node1`` and so on."""
    return f"node{index + 1}"


def free_addresses(nodes: int = NODES, groups: int = 0) -> list[Addresses]:
    """A block of free ports for each node. Raises ``BrokerError`` where there is none."""
    ports = NODE_PORTS + max(0, groups - GROUPS_MAX)
    count = nodes * ports
    to = PORTS_TO if groups <= GROUPS_MAX else PORTS_OF_MANY_TO
    for base in range(PORTS_FROM, to - count + 1, min(count, 1000)):
        if all(_is_free(port) for port in range(base, base + count)):
            return [Addresses(base + index * ports) for index in range(nodes)]
    raise BrokerError(f"no {count} free ports in a row from {PORTS_FROM} to {to}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def settings(
    addresses: Sequence[Addresses], index: int, shape: Shape, data: Path
) -> dict[str, Any]:
    """The configuration of one node."""
    own = addresses[index]
    others = {node_name(n): each for n, each in enumerate(addresses) if n != index}

    def peers(port: str, *arguments: int) -> dict[str, str]:
        return {
            name: f"{HOST}:{getattr(each, port)(*arguments) if arguments else getattr(each, port)}"
            for name, each in others.items()
        }

    groups = {}
    for place, name in enumerate(shape.group_names()):
        groups[name] = {"bind_addr": f"{HOST}:{own.group(place)}", "peers": peers("group", place)}
    members = ",".join(
        f"{node_name(n)}=http://{HOST}:{each.etcd}" for n, each in enumerate(addresses)
    )
    member = {
        "bind_addr": f"{HOST}:{own.etcd}",
        "client_addr": f"{HOST}:{own.etcd + 1}",
        "initial_cluster": members,
    }
    return {
        "server": {
            "mqtt": {"tcp": {"addr": f"{HOST}:{own.mqtt}", "max_connections": shape.connections}},
            "amqp": {"tcp": {"addr": f"{HOST}:{own.amqp}", "max_connections": 10_000}},
            "http": {"addr": f"{HOST}:{own.http}"},
        },
        "session": {
            "max_inflight_messages": 65_535,
            "max_sessions": max(SESSIONS, shape.connections),
        },
        "storage": {"data_dir": str(data), "queue_ack_durability": "fsync"},
        "log": {"level": "warning", "format": "text"},
        "queues": [
            {
                "name": name,
                "topics": [f"$queue/{name}"],
                "replication": {
                    "enabled": True,
                    "group": "" if group == "default" else group,
                    "distribution_mode": "replicate" if name in shape.copied else "forward",
                },
            }
            for name, group in shape.listed()
        ],
        "cluster": {
            "enabled": shape.clustered,
            "node_id": node_name(index),
            "etcd": member,
            "transport": {
                "bind_addr": f"{HOST}:{own.transport}",
                "peers": peers("transport") if shape.clustered else {},
            },
            "raft": {
                "enabled": shape.clustered,
                "bind_addr": f"{HOST}:{own.default}",
                "peers": peers("default") if shape.clustered else {},
                "replication_factor": len(addresses),
                "min_in_sync_replicas": len(addresses) // 2 + 1,
                "heartbeat_timeout": f"{HEARTBEAT_S * 1000:g}ms",
                "election_timeout": f"{ELECTION_S:g}s",
                "groups": groups,
            },
        },
    }


def placement(cores: Sequence[int], nodes: int = NODES) -> list[str | None]:
    """The cores of each node, as ``taskset`` takes them.

    A supervisor binds its shards to the first cores it may use, so that nodes which may use all would share the first. With
    more cores than nodes each has an equal part, and what is left over is for the generator; with fewer the kernel chooses.
    """
    if len(cores) <= nodes:
        return [None] * nodes
    each = len(cores) // (nodes + 1) or 1
    return [",".join(str(core) for core in cores[n * each : (n + 1) * each]) for n in range(nodes)]


Sample = tuple[str, dict[str, str], float]
"""A name, labels and a value."""


def samples(page: str) -> list[Sample]:
    """The samples with labels of a metrics page."""
    lines = (_SAMPLE.match(line) for line in page.splitlines())
    return [(m[1], dict(_LABEL.findall(m[2])), float(m[3])) for m in lines if m]


def leading(told: Mapping[str, Sequence[Sample]]) -> dict[str, str]:
    """Return each group's leader by the nodes' samples; of two that claim it, the one with the higher
    term."""
    found: dict[str, tuple[float, str]] = {}
    for node, listed in told.items():
        terms = {lab["group"]: value for name, lab, value in listed if name == "fluxmq_raft_term"}
        for name, labels, value in listed:
            if name == "fluxmq_raft_leader" and value:
                own = terms.get(labels["group"], 0.0)
                if own >= found.get(labels["group"], (-1.0, ""))[0]:
                    found[labels["group"]] = (own, node)
    return {group: node for group, (_, node) in found.items()}


@dataclass(slots=True)
class Node:
    """One node, running or not."""

    index: int
    addresses: Addresses
    folder: Path
    cores: str | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """Name by which the others know it."""
        return node_name(self.index)

    @property
    def log(self) -> Path:
        """File with the output of its processes since the last start."""
        return self.folder / "output"

    @property
    def config(self) -> Path:
        """Its configuration file."""
        return self.folder / "fluxmq.yaml"

    def command(self, shape: Shape) -> list[str]:
        """Command that starts its processes."""
        arguments = ["--config", str(self.config), "--workers", str(shape.workers)]
        if shape.pins:
            assert self.cores is not None, "groups are pinned to cores of the node's own"
            cores = self.cores.split(",")
            arguments += [f"--pin={group}={cores[shard]}" for group, shard in shape.pins]
        command = [sys.executable, "-m", "fluxmq.supervisor.main", *arguments]
        if self.cores is None:
            command += ["--bind", "never"]
        else:
            command = ["taskset", "-c", self.cores, *command]
        return command

    def start(self, shape: Shape) -> None:
        """Start its processes; they are not waited for."""
        command = self.command(shape)
        self.process = brokers.spawn(command, self.folder, durable.environment(), self.log)

    def ready(self) -> bool:
        """Return whether it accepts clients and all its groups have leaders."""
        try:
            self.page("ready")
        except OSError:
            return False
        return True

    def page(self, name: str) -> str:
        """A page of its HTTP listener. Raises ``OSError``, also for an answer that is not 200."""
        url = f"http://{HOST}:{self.addresses.http}/{name}"
        try:
            with urllib.request.urlopen(url, timeout=PAGE_S) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            error.close()
            raise OSError(f"{self.name}: /{name} was answered {error.code}") from None

    def metrics(self) -> list[Sample]:
        """Its samples; none while it does not answer."""
        try:
            return samples(self.page("metrics"))
        except OSError:
            return []

    def alive(self) -> bool:
        """Return whether its supervisor runs."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """End all its processes at once, as if the machine were gone."""
        if self.process is None:
            return
        below = processes.tree((self.process.pid,))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def stop(self) -> None:
        """End it cleanly if it lets itself, else at once."""
        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        self.kill()


@dataclass(slots=True)
class Nodes:
    """The three of them."""

    folder: Path
    shape: Shape
    nodes: list[Node] = field(default_factory=list)

    @classmethod
    def create(cls, folder: Path, shape: Shape, cores: Sequence[str | None] | None = None) -> Nodes:
        """Choose ports and write the configurations; nothing runs yet. ``cores``: those of each node, where ``placement`` is
        not to choose. Raises ``BrokerError``."""
        addresses = free_addresses(groups=len(shape.group_names()))
        cores = placement(sorted(os.sched_getaffinity(0))) if cores is None else cores
        found = cls(folder, shape)
        for index, own in enumerate(addresses):
            node = Node(index, own, folder / node_name(index), cores[index])
            node.folder.mkdir()
            content = settings(addresses, index, shape, node.folder / "data")
            # JSON is YAML.
            node.config.write_text(json.dumps(content, indent=1))
            found.nodes.append(node)
        return found

    def start(self) -> None:
        """Start all and wait until every group is led. Raises ``BrokerError``; nothing is left running then."""
        for node in self.nodes:
            node.start(self.shape)
        try:
            groups = len(self.shape.group_names())
            self.await_ready(self.nodes, START_S + groups * START_OF_GROUP_S)
        except BrokerError:
            self.stop()
            raise

    def await_ready(self, nodes: Sequence[Node], timeout_s: float) -> None:
        """Wait until these nodes are ready. Raises ``BrokerError`` with what one of them said."""
        deadline = time.monotonic() + timeout_s
        for node in nodes:
            while not node.ready():
                if not node.alive() or time.monotonic() > deadline:
                    said = node.log.read_text(errors="replace")[-2000:].strip()
                    raise BrokerError(f"{node.name} is not ready: {said or 'it said nothing'}")
                time.sleep(POLL_S)

    def stop(self) -> None:
        """End all of them, together: who stops waits for the others to take over otherwise."""
        for node in self.nodes:
            if node.process is not None:
                node.process.terminate()
        for node in self.nodes:
            node.stop()

    def pids(self) -> tuple[int, ...]:
        """The roots of the process trees."""
        return tuple(node.process.pid for node in self.nodes if node.process is not None)

    def leaders(self) -> dict[str, Node]:
        """Return each group's current leader, as far as the nodes report it."""
        told = {node.name: node.metrics() for node in self.nodes if node.alive()}
        named = {node.name: node for node in self.nodes}
        return {group: named[name] for group, name in leading(told).items()}

    def leader(self, group: str, timeout_s: float = LEADERS_S) -> Node:
        """Return a group's leader. Raises ``RunError`` if it has none until the timeout."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.leaders()
            if group in found:
                return found[group]
            if time.monotonic() > deadline:
                raise RunError(f"nobody leads group {group}")
            time.sleep(POLL_S)

    def lead(self, wanted: Mapping[str, int]) -> dict[str, Node]:
        """Have groups led by the nodes with these indexes; who leads them then, which may be another one where a node
        would not. Raises ``RunError`` when nobody leads one."""
        asked = {}
        for group, index in wanted.items():
            leader = self.leader(group)
            if leader.index != index:
                code, _ = control(leader, "transfer", group, node_name(index))
                asked[group] = not code
        found = {group: self.leader(group) for group in wanted}
        deadline = time.monotonic() + TRANSFER_S
        while any(asked.get(group) and found[group].index != wanted[group] for group in wanted):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
            found = {group: self.leader(group) for group in wanted}
        return found


def control(node: Node, *arguments: str) -> tuple[int, str]:
    """``fluxmqctl`` on one node: its exit code and what it printed."""
    command = [sys.executable, "-m", "fluxmq.cli.main", "--data-dir", str(node.folder / "data")]
    done = subprocess.run(
        [*command, *arguments],
        env=durable.environment(),
        capture_output=True,
        text=True,
        timeout=CONTROL_S,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).strip()
