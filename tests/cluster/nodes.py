"""Three real nodes for tests: their files, processes and ports, and who leads.

Responsible for starting, killing and restarting whole nodes (`fluxmq-supervisor`, with one shard each unless a test says
otherwise) on free loopback ports, and for saying which of them leads a group. A cluster is expensive to start and is shared by the tests of a module.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from fluxmq.cli.main import run as fluxmqctl
from fluxmq.settings.group_names import MIRRORED, SetGroup, name_of_set
from fluxmq.settings.node_sets import id_of_set
from fluxmq.settings.plans import derived_offset
from tests.broker import HOST, POLL_INTERVAL, REPOSITORY, Broker, free_ports, loopback, merged
from tests.conformance.client import eventually
from tests.etcd import program

NODES = ("node1", "node2", "node3")
ELECTION_SECONDS = 1.0
START_SECONDS = 100.0
GROUPS = ("default", "other")
NODE_FOLDER = "NODE_FOLDER"
"""Stands in settings for the directory of each node."""
SHARD_PORTS = 64
"""Ports from that of ``cluster.transport`` on that belong to a node's shards, used or not."""
WITH_FOURTH = dict.fromkeys(NODES, 0) | {"node4": 1}
"""The nodes after a fourth one has joined, each with how often it has."""
OF_FOURTH = name_of_set(SetGroup(id_of_set(WITH_FOURTH), 3, "node4"))
"""The group of queues that this one leads."""
RULES = ("always", "when-synced")
"""When an unsynchronised mirror leads, by RabbitMQ's defaults."""
_PARTS = ("node1", *(f"{node}={times}" for node, times in WITH_FOURTH.items()), *RULES)
MIRRORED_BY_FOURTH = MIRRORED + hashlib.sha256("\0".join(_PARTS).encode()).hexdigest()[:16]
"""The first group of queues that the first node leads and the fourth one mirrors too."""
LEADING = re.compile(r"\bleading( no longer)?\b.*?\bgroup=(\S+).*?\bterm=(\d+)")


class Node:
    """One node. ``amqp_port``: of its AMQP listener; ``broker``: the running one; ``workers``: shards of its next life;
    ``raft_host``: the address on which its groups have their ports, those that appear when queues are declared too."""

    def __init__(
        self, name: str, folder: Path, ports: Sequence[int], workers: int = 1, raft_host: str = HOST
    ) -> None:
        self.name = name
        self.raft_host = raft_host
        self.workers = workers
        self.folder = folder
        self.port, self.amqp_port, self.http_port, self.transport, *rest = ports
        *groups, self.etcd_peer_port, self.etcd_port = rest
        self.groups = dict(zip(GROUPS, groups, strict=True))
        self.ports = frozenset(ports)
        self.shard_ports = range(self.transport, self.transport + SHARD_PORTS)
        self.broker: Broker
        self.up = False
        self._lives = 0

    def configure(self, others: Sequence[Node], settings: Mapping[str, Any]) -> None:
        """Write the file with which it is started."""

        def peers(group: str) -> dict[str, str]:
            return {other.name: other.raft_address(group) for other in others}

        own: dict[str, Any] = {
            "server": {
                "mqtt": {"tcp": {"addr": f"{HOST}:{self.port}"}},
                "amqp": {"tcp": {"addr": f"{HOST}:{self.amqp_port}"}},
                "http": {"addr": f"{HOST}:{self.http_port}"},
                "shutdown_timeout": "5s",
            },
            "auth": {
                "anonymous": {
                    "publish": ["#", "$queue/#", "$dlq/#"],
                    "subscribe": ["#", "$SYS/#", "$queue/#", "$dlq/#"],
                }
            },
            "storage": {
                "data_dir": str(self.folder / "data"),
                "wal_file_bytes": "16MiB",
                "min_free_bytes": 0,
            },
            "log": {"level": "info", "format": "text"},
            "cluster": {
                "enabled": True,
                "node_id": self.name,
                "transport": {
                    "bind_addr": f"{HOST}:{self.transport}",
                    "peers": {other.name: f"{HOST}:{other.transport}" for other in others},
                },
                "raft": {
                    "enabled": True,
                    "bind_addr": self.raft_address("default"),
                    "peers": peers("default"),
                    "heartbeat_timeout": "150ms",
                    "election_timeout": f"{ELECTION_SECONDS:g}s",
                    "groups": {
                        group: {"bind_addr": self.raft_address(group), "peers": peers(group)}
                        for group in GROUPS[1:]
                    },
                },
            },
        }
        text = yaml.safe_dump(merged(own, settings))
        self.file.write_text(text.replace(NODE_FOLDER, str(self.folder)))

    def raft_address(self, group: str) -> str:
        """The address of one of `GROUPS` at this node."""
        return f"{self.raft_host}:{self.groups[group]}"

    @property
    def file(self) -> Path:
        """Its settings."""
        return self.folder / "node.yaml"

    @property
    def output(self) -> Path:
        """What it has written in this life."""
        return self.folder / f"life{self._lives}.log"

    def start(self, tree: Path = REPOSITORY) -> None:
        """Start it with the program in `tree`, uncompiled if that is another one; `Cluster.wait_ready` waits."""
        self._lives += 1
        variables = dict(os.environ)
        if tree != REPOSITORY:
            variables["FLUXMQ_PURE"] = "1"
        command = [sys.executable, "-m", "fluxmq.supervisor.main"]
        command += ["--config", str(self.file), "--workers", str(self.workers)]
        with self.output.open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tree, env=variables)
        self.broker = Broker(
            HOST,
            self.port,
            http_port=self.http_port,
            config=self.file,
            output=self.output,
            process=process,
        )
        self.up = True

    def processes(self) -> list[psutil.Process]:
        """Its processes, the supervisor first."""
        assert self.broker.process is not None
        supervisor = psutil.Process(self.broker.process.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def kill(self) -> None:
        """End all of its processes at once, without a word, and wait until they are gone."""
        processes = self.processes()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self.broker.stop(check=False)
        _, alive = psutil.wait_procs(processes, timeout=START_SECONDS)
        assert not alive, f"{alive} outlived SIGKILL"
        self.up = False

    def stop(self) -> None:
        """End it in order."""
        self.up = False
        self.broker.stop()

    def pause(self) -> None:
        """Hold all of its processes, as a machine is held that does not answer any more."""
        for process in self.processes():
            os.kill(process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        for process in reversed(self.processes()):
            os.kill(process.pid, signal.SIGCONT)

    def led(self, group: str) -> int:
        """The term in which it leads a group by what it has logged; 0 when it does not."""
        term = 0
        for ended, name, number in LEADING.findall(self.broker.log()):
            if name.strip('"') == group:
                term = 0 if ended else int(number)
        return term if self.up else 0


class Cluster:
    """Three nodes."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], workers: int = 1) -> None:
        program()
        self._folder, self._settings, self._workers = folder, settings, workers
        ports = _ports(len(NODES), 6 + len(GROUPS))
        self.nodes: list[Node] = []
        for number, (name, own) in enumerate(zip(NODES, ports, strict=True), 1):
            (folder / name).mkdir()
            self.nodes.append(Node(name, folder / name, own, workers, loopback(number)))
        members = ",".join(
            f"{node.name}=http://{HOST}:{node.etcd_peer_port}" for node in self.nodes
        )
        for node in self.nodes:
            member = {
                "bind_addr": f"{HOST}:{node.etcd_peer_port}",
                "client_addr": f"{HOST}:{node.etcd_port}",
                "initial_cluster": members,
            }
            more = merged({"cluster": {"etcd": member}}, settings)
            node.configure([other for other in self.nodes if other is not node], more)

    def newcomer(self, name: str) -> Node:
        """Another node, which knows no others yet and waits until it has joined them."""
        (self._folder / name).mkdir()
        node = self._beside(name)
        member = {
            "bind_addr": f"{HOST}:{node.etcd_peer_port}",
            "client_addr": f"{HOST}:{node.etcd_port}",
        }
        node.configure(
            (), merged({"cluster": {"join": True, "etcd": member}}, dict(self._settings))
        )
        return node

    def _beside(self, name: str) -> Node:
        """A node with ports that are not among those that belong to the others' shards, nor its groups'; others know it by one
        address, so that these are on that too."""
        while True:
            (ports,) = _ports(1, 6 + len(GROUPS))
            node = Node(name, self._folder / name, ports, self._workers)
            taken = {port for each in self.nodes for port in (*each.ports, *each.shard_ports)}
            groups = {
                node.groups[GROUPS[0]] + derived_offset(group)
                for group in (OF_FOURTH, MIRRORED_BY_FOURTH)
            }
            if taken.isdisjoint((*node.ports, *node.shard_ports, *groups)):
                return node

    def start(self) -> None:
        """Start all nodes and wait until each is ready."""
        for node in self.nodes:
            node.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until every node that is up says that it is ready."""
        for node in self.nodes:
            if node.up:
                node.broker.wait_ready(START_SECONDS)

    def leader(self, group: str = "default") -> Node:
        """The node that leads a group, waited for."""

        def found() -> Node | None:
            term, node = max(((node.led(group), node) for node in self.nodes), key=lambda at: at[0])
            if not term:
                time.sleep(POLL_INTERVAL)
            return node if term else None

        node: Node = eventually(found, f"group {group} is led", START_SECONDS)
        return node

    def spread_leaders(self) -> None:
        """Have the groups of queues led on different nodes now: the nodes would do so by themselves some time during a test."""

        def spread() -> bool:
            leader = self.leader(GROUPS[0])
            if leader is not self.leader(GROUPS[1]):
                return True
            # Not `rebalance`, which counts the groups that have a queue's leader on a given node as well.
            other = next(node for node in self.nodes if node is not leader)
            data = str(self.nodes[0].folder / "data")
            fluxmqctl(["--data-dir", data, "transfer", GROUPS[1], other.name])
            return False

        eventually(spread, "leaders are spread", START_SECONDS)

    def followers(self, group: str = "default") -> list[Node]:
        """The nodes that run and do not lead a group."""
        leader = self.leader(group)
        return [node for node in self.nodes if node.up and node is not leader]

    def stop(self) -> None:
        """Stop all nodes at once; each must end in order."""
        with ThreadPoolExecutor(len(self.nodes)) as together:
            list(together.map(Node.stop, [node for node in self.nodes if node.up]))

    def end(self) -> None:
        """End whatever still runs, after a failure."""
        for node in self.nodes:
            if node.up:
                with suppress(psutil.NoSuchProcess):
                    node.kill()

    def log(self) -> str:
        """What all nodes have written."""
        return "".join(f"--- {node.name}\n{node.broker.log()}" for node in self.nodes)


def _ports(nodes: int, each: int) -> list[list[int]]:
    """Free ports for each node; none of them is among those that belong to a node's shards beside its first."""
    while True:
        found = free_ports(nodes * each)
        split = [found[at : at + each] for at in range(0, len(found), each)]
        shards = [range(own[3], own[3] + SHARD_PORTS) for own in split]
        if all(ports.stop < 1 << 16 for ports in shards) and not any(
            port in ports[1:] for ports in shards for port in found
        ):
            return split
