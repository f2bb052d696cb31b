"""Clusters of three nodes, A, B and C, for the scripts about mirrored queues: FluxMQ's and RabbitMQ's.

Both know the same: where clients of a node connect, the command line at a node, and to kill, stop, start, pause and
resume one.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fluxmq.cli import rabbitmq as cli
from perf import brokers, rabbitmq
from tests.broker import HOST
from tests.cluster import nodes as fluxmq_nodes
from tests.differential.runner import Target
from tests.differential.targets import FLUXMQ, RABBITMQ

LETTERS = "ABC"
START_S = 100.0
STOP_S = 60.0
PROBE_S = 0.2
TICK_S = 5
"""Time after which a silent node is out of contact. Erlang takes between three and five quarters of it."""
TIMED_OUT = 124


class ClusterError(RuntimeError):
    """A node that does not do what every script needs: it does not start or does not stop."""


class MirrorCluster(Protocol):
    """A running cluster. Nodes are named by letters."""

    name: str

    def node_name(self, letter: str) -> str:
        """The name of a node in commands and texts."""

    def port(self, letter: str) -> int:
        """Its port for AMQP."""

    def control(self, letter: str, words: Sequence[str]) -> tuple[int, str]:
        """The exit code of a command of ``rabbitmqctl`` at a node, and what it printed."""

    def kill(self, letter: str) -> None:
        """End a node without a word."""

    def stop(self, letter: str) -> bool:
        """End a node in order; whether it ended so."""

    def start(self, letter: str) -> None:
        """Start a node again; `serves` says when it is there."""

    def is_up(self, letter: str) -> bool:
        """Whether a node was started and not ended since."""

    def signal(self, letter: str, number: int) -> None:
        """Send a signal to all processes of a node."""

    def keep_logs(self, folder: Path) -> None:
        """Copy what the nodes have written to a folder."""

    def end(self) -> None:
        """End everything."""


def serves(cluster: MirrorCluster, letter: str, seconds: float = START_S) -> bool:
    """Whether clients are let in at a node within so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError):
            rabbitmq.answers_amqp(cluster.port(letter))
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(PROBE_S)


def heal(cluster: MirrorCluster, paused: Sequence[str]) -> None:
    """Have all nodes run and serve. Raises ``ClusterError``."""
    for letter in paused:
        cluster.signal(letter, signal.SIGCONT)
    for letter in LETTERS:
        if not cluster.is_up(letter):
            cluster.start(letter)
    for letter in LETTERS:
        if not serves(cluster, letter):
            raise ClusterError(f"{cluster.name}: node {letter} does not serve")


def target_of(cluster: MirrorCluster) -> Target:
    """The cluster for a script: its connections go to node A unless their names begin with another letter."""
    ports = {letter: cluster.port(letter) for letter in LETTERS}

    def control(words: Sequence[str]) -> bool:
        return cluster.control("A", words)[0] == 0

    return Target(cluster.name, HOST, ports["A"], control, ports)


@dataclass
class FluxCluster:
    """FluxMQ's, from this checkout."""

    cluster: fluxmq_nodes.Cluster
    folder: Path
    name: str = FLUXMQ

    def node(self, letter: str) -> fluxmq_nodes.Node:
        """The node of a letter."""
        return self.cluster.nodes[LETTERS.index(letter)]

    def node_name(self, letter: str) -> str:
        """Its name."""
        return self.node(letter).name

    def port(self, letter: str) -> int:
        """Its port for AMQP."""
        return self.node(letter).amqp_port

    def control(self, letter: str, words: Sequence[str]) -> tuple[int, str]:
        """Run a command in this process: to start another one takes longer than most commands."""
        printed = io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            try:
                code = cli.run("rabbitmqctl", [f"--config={self.node(letter).file}", *words])
            except SystemExit as ended:  # words that are no command
                code = int(ended.code or 0)
        return code, printed.getvalue()

    def kill(self, letter: str) -> None:
        """SIGKILL to all of its processes."""
        self.node(letter).kill()

    def stop(self, letter: str) -> bool:
        """SIGTERM."""
        node = self.node(letter)
        node.up = False
        return node.broker.stop(check=False, within=STOP_S) == 0

    def start(self, letter: str) -> None:
        """Start it again."""
        self.node(letter).start()

    def is_up(self, letter: str) -> bool:
        """Whether it was started and not ended since."""
        return self.node(letter).up

    def signal(self, letter: str, number: int) -> None:
        """Send a signal to all processes of a node, the supervisor first to be held and last to go on."""
        processes = self.node(letter).processes()
        for process in processes if number == signal.SIGSTOP else reversed(processes):
            os.kill(process.pid, number)

    def keep_logs(self, folder: Path) -> None:
        """Copy the logs of all lives."""
        for node in self.cluster.nodes:
            for path in sorted(node.folder.glob("life*.log")):
                shutil.copy(path, folder / f"{FLUXMQ}-{node.name}-{path.name}")

    def end(self) -> None:
        """End everything."""
        self.cluster.end()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class RabbitCluster:
    """Debian's RabbitMQ. ``up``: letters of the nodes that were started and not ended since."""

    nodes: list[rabbitmq.Node] = field(default_factory=list)
    up: set[str] = field(default_factory=set)
    name: str = RABBITMQ

    def node(self, letter: str) -> rabbitmq.Node:
        """The node of a letter."""
        return self.nodes[LETTERS.index(letter)]

    def node_name(self, letter: str) -> str:
        """Its name."""
        return self.node(letter).name

    def port(self, letter: str) -> int:
        """Its port for AMQP."""
        return self.node(letter).amqp_port

    def control(self, letter: str, words: Sequence[str]) -> tuple[int, str]:
        """Run ``rabbitmqctl``."""
        try:
            return self.node(letter).control(*words)
        except subprocess.TimeoutExpired:
            return TIMED_OUT, "no answer in time"

    def kill(self, letter: str) -> None:
        """SIGKILL to all of its processes."""
        self.up.discard(letter)
        self.signal(letter, signal.SIGKILL)
        self.node(letter).broker.process.wait()

    def stop(self, letter: str) -> bool:
        """SIGTERM."""
        self.up.discard(letter)
        broker = self.node(letter).broker
        broker.process.terminate()
        try:
            broker.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill(letter)
            return False
        return True

    def start(self, letter: str) -> None:
        """Start it again on its files and ports."""
        broker = self.node(letter).broker
        folder = Path(broker.folder.name)
        earlier = broker.log.read_bytes()
        broker.process = brokers.spawn(broker.arguments, folder, broker.environment, broker.log)
        (folder / "earlier").open("ab").write(earlier)
        self.up.add(letter)

    def is_up(self, letter: str) -> bool:
        """Whether it was started and not ended since."""
        return letter in self.up and self.node(letter).broker.process.poll() is None

    def signal(self, letter: str, number: int) -> None:
        """Send a signal to its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.node(letter).broker.process.pid, number)

    def keep_logs(self, folder: Path) -> None:
        """Copy what was printed."""
        for letter, node in zip(LETTERS, self.nodes, strict=False):
            own = Path(node.broker.folder.name)
            found = [
                path.read_bytes() for path in (own / "earlier", own / "output") if path.exists()
            ]
            (folder / f"{RABBITMQ}-{letter}.log").write_bytes(b"".join(found))

    def end(self) -> None:
        """End everything: the first last, whose port mapper the others use."""
        for node in reversed(self.nodes):
            node.broker.stop_timeout_s = 0.0
            node.broker.stop()


def start_fluxmq() -> FluxCluster:
    """Start FluxMQ's three nodes."""
    folder = Path(tempfile.mkdtemp(prefix="differential-mirrors-"))
    settings = {
        "cluster": {"net_ticktime": f"{TICK_S}s"},
        "server": {"shutdown_timeout": "10s"},
    }
    found = FluxCluster(fluxmq_nodes.Cluster(folder, settings), folder)
    try:
        found.cluster.start()
    except BaseException:
        found.end()
        raise
    return found


def start_rabbitmq(partitions: str) -> RabbitCluster:
    """Start and join RabbitMQ's three nodes; ``partitions``: its ``cluster_partition_handling``."""
    more = f"net_ticktime = {TICK_S}\ncluster_partition_handling = {partitions}\n"
    found = RabbitCluster()
    try:
        for _ in LETTERS:
            first = found.nodes[0] if found.nodes else None
            found.nodes.append(rabbitmq.start("mirrors", plugins=(), beside=first, more=more))
        for node in found.nodes[1:]:
            node.join(found.nodes[0])
            brokers.await_answer(node.broker, rabbitmq.answers_amqp, rabbitmq.START_S)
    except BaseException:
        found.end()
        raise
    found.up = {*LETTERS}
    return found


@contextmanager
def running(name: str, partitions: str) -> Iterator[list[MirrorCluster]]:
    """A list with a cluster in it, which may be replaced by another; ended afterwards."""
    held: list[MirrorCluster] = [start_cluster(name, partitions)]
    try:
        yield held
    finally:
        for each in held:
            each.end()


def start_cluster(name: str, partitions: str) -> MirrorCluster:
    """Start a cluster of one broker."""
    return start_fluxmq() if name == FLUXMQ else start_rabbitmq(partitions)
