"""The brokers of ``python -m perf cluster``: clusters of three nodes, by where their clients connect.

Names of one cluster share it, so that what is compared within a round is where clients are and how queues are laid
out, not two clusters. A cluster stops with the last of its names. Clients connect to the node that leads the queue
unless the name says otherwise: ``follower`` has both at a node that does not lead, ``forward`` and ``replicate`` have
the consumer there, given messages by the leader or out of its own node's copy. Ordinary MQTT messages have no leader:
``one-node`` has both at the first node, ``across`` the subscriber at the second; of peers too.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Protocol

from perf import amqp, handshake, rabbitmq
from perf.brokers import HOST, BrokerError, Prepared
from perf.cases import shard_of
from perf.cluster_nodes import NODES, Nodes, Shape, control
from perf.cluster_peers import MIRRORED, LavinMQ, Nats, RabbitMQ, check
from perf.copier import copying
from perf.dialects import GROUP
from perf.run import RunError, Target, Timing
from perf.saturate import Background
from perf.workload import Workload

FLUXMQ, FLUXMQ_MQTT = "fluxmq-cluster", "fluxmq-cluster-mqtt"
FLUXMQ_FOLLOWER, FLUXMQ_MQTT_FOLLOWER = "fluxmq-cluster-follower", "fluxmq-cluster-mqtt-follower"
FLUXMQ_FORWARD, FLUXMQ_REPLICATE = "fluxmq-cluster-forward", "fluxmq-cluster-replicate"
FLUXMQ_ONE_NODE, FLUXMQ_ACROSS = "fluxmq-cluster-one-node", "fluxmq-cluster-across"
FLUXMQ_COLD, FLUXMQ_BESIDE = "fluxmq-cluster-cold", "fluxmq-cluster-beside-hot"
FLUXMQ_BESIDE_COPIER = "fluxmq-cluster-beside-copier"
RABBITMQ, RABBITMQ_FOLLOWER = "rabbitmq-cluster", "rabbitmq-cluster-follower"
NATS, LAVINMQ = "nats-cluster", "lavinmq-cluster"
FLUXMQ_MIRRORED, RABBITMQ_MIRRORED = "fluxmq-mirrored", "rabbitmq-mirrored"
NATS_ACROSS, RABBITMQ_ACROSS = "nats-cluster-across", "rabbitmq-cluster-mqtt-across"

COUNTS = (1, 2, 4, 8, 16)
"""Groups of the sweep."""

SPREAD: Mapping[int, str] = {count: f"fluxmq-cluster-{count}-groups" for count in COUNTS}
GATHERED: Mapping[int, str] = {count: f"fluxmq-cluster-{count}-in-one" for count in COUNTS[1:]}
"""So many queues, each in a group of its own, and all in one group."""

TOGETHER, COPIED, COLD, HOT = "one", "copied", "cold", "hot"
"""Names of queues beside ``perf-0`` ...: all in one group; delivered from copies; measured beside the hot one."""

COPIER = "copier"
"""Another load that a cold queue is measured beside: ``perf.copier``."""

CORES_APART = 8
"""Cores from which on a hot and a cold queue have shards with cores of their own on every node, with some left for generators.
From two on, the hot shards of all nodes share one core with the clients of the hot queue, the cold ones another."""

HOT_LOAD = Workload(
    protocol="queue", version=5, qos=1, shape="pairs", window=500, outstanding=4000, topic=HOT
)
"""Load that the cold queue is measured beside."""


class Cluster(Protocol):
    """A running cluster. ``prepare`` has the queues ready and says which node leads each; ``ports`` are in the order of
    the nodes."""

    def prepare(self, workload: Workload) -> list[int]: ...
    def ports(self, protocol: str) -> list[int]: ...
    def pids(self) -> tuple[int, ...]: ...
    def stop(self) -> None: ...


@dataclass(slots=True)
class Fluxmq:
    """FluxMQ's nodes as a cluster among others. ``together``: one node leads all groups; ``mirrored``: queues are classic
    ones with mirrors on all nodes, led by the first."""

    folder: tempfile.TemporaryDirectory[str]
    nodes: Nodes
    together: bool = False
    mirrored: bool = False

    @classmethod
    def start(cls, shape: Shape, together: bool = False, mirrored: bool = False) -> Fluxmq:
        """Start three nodes. Raises ``BrokerError``."""
        cores = ",".join(str(core) for core in shared_cores(shape))
        kept = tempfile.TemporaryDirectory(prefix="perf-fluxmq-", ignore_cleanup_errors=True)
        try:
            nodes = Nodes.create(Path(kept.name), shape, [cores] * NODES if cores else None)
            nodes.start()
            if mirrored:
                check(control(nodes.nodes[0], "set_policy", *MIRRORED))
        except BaseException:
            kept.cleanup()
            raise
        return cls(kept, nodes, together, mirrored)

    def prepare(self, workload: Workload) -> list[int]:
        """Spread the leaders over the nodes as far as nodes let them be moved; who leads the queues' groups. For messages that
        no queue keeps, the first node."""
        if not workload.durable:
            return [0] * workload.subscribers
        if self.mirrored:
            for number in range(workload.subscribers):
                with handshake.dial(HOST, self.nodes.nodes[0].addresses.amqp) as connection:
                    amqp.open_channel(connection)
                    amqp.declare(connection, workload.queue_name(number), "", "classic")
                    connection.sendall(amqp.close())
            return [0] * workload.subscribers
        groups = dict(self.nodes.shape.listed())
        wanted = [groups[workload.queue_name(number)] for number in range(workload.subscribers)]
        spread = {
            group: 0 if self.together else place % NODES
            for place, group in enumerate(dict.fromkeys(wanted))
        }
        leaders = self.nodes.lead(spread)
        return [leaders[group].index for group in wanted]

    def ports(self, protocol: str) -> list[int]:
        """Return each node's address for clients of a protocol."""
        if protocol not in ("amqp", "mqtt", "queue"):
            raise RunError(f"{protocol} is not measured with FluxMQ's cluster")
        found = [node.addresses for node in self.nodes.nodes]
        return [each.amqp if protocol == "amqp" else each.mqtt for each in found]

    def pids(self) -> tuple[int, ...]:
        """The roots of the process trees."""
        return self.nodes.pids()

    def stop(self) -> None:
        """End all of them; what they stored goes."""
        self.nodes.stop()
        self.folder.cleanup()


@dataclass(slots=True)
class _Use:
    cluster: Cluster
    names: int = 0


_running: dict[str, _Use] = {}
"""The clusters that run, by what they hold."""


@dataclass(slots=True)
class ClusterBroker:
    """One name of a cluster. ``publisher`` and ``consumer``: how many nodes after the leader's their node is. ``beside``: what
    else runs meanwhile, the ``HOT`` queue's load or a program that copies memory."""

    name: str
    held: str
    cluster: Cluster
    publisher: int = 0
    consumer: int = 0
    beside: str = ""
    stopped: bool = False

    @contextmanager
    def prepared(self, workload: Workload, timing: Timing) -> Iterator[Prepared]:
        """Queues ready and led, addresses known; the hot load on, where it belongs to the name. Raises ``RunError``."""
        leaders = self.cluster.prepare(workload)
        cores = self._cores()
        found = Prepared(self._target(workload, leaders), workload, cores=cores[-1:])
        for number in range(NODES):
            found.counts[f"led_by_node{number + 1}"] = leaders.count(number)
        if self.beside != HOT:
            with copying(cores[:1]) if self.beside else nullcontext():
                yield found
            return
        load = placed(HOT_LOAD, 0, self._workers())
        hot = self._target(load, self.cluster.prepare(load))
        with Background(hot, load, timing, cores[:1]) as background:
            yield found
        assert background.result is not None
        found.counts["hot_per_s"] = int(background.result.messages_per_s)

    def _workers(self) -> int:
        assert isinstance(self.cluster, Fluxmq)
        return self.cluster.nodes.shape.workers

    def _cores(self) -> tuple[int, ...]:
        return shared_cores(self.cluster.nodes.shape) if isinstance(self.cluster, Fluxmq) else ()

    def _target(self, workload: Workload, leaders: list[int]) -> Target:
        to, of = self.cluster.ports(workload.protocol), self.cluster.ports(workload.consumes())
        many = max(workload.publishers, workload.subscribers)
        pairs = tuple(
            (to[(leader + self.publisher) % NODES], of[(leader + self.consumer) % NODES])
            for leader in islice(cycle(leaders), many)
        )
        return Target(self.name, HOST, pairs[0][0], self.cluster.pids(), 0, pairs)

    def stop(self) -> None:
        """Give the name back."""
        if self.stopped:
            return
        self.stopped = True
        use = _running[self.held]
        use.names -= 1
        if not use.names:
            del _running[self.held]
            use.cluster.stop()


def placed(workload: Workload, shard: int, workers: int) -> Workload:
    """The same with client identifiers whose sessions are on this shard of a node, for MQTT clients of queues."""
    placement = shard_of()

    def identifier(role: str, prefix: str) -> str:
        number = 0
        while placement(f"{prefix}{workload.topic}-{role}{number}".encode(), workers) != shard:
            number += 1
        return f"{workload.topic}-{role}{number}"

    return workload.changed(
        publisher_ids=(identifier("p", ""),), subscriber_ids=(identifier("s", f"{GROUP}-"),)
    )


def workers_apart() -> int:
    """Shards of a node with a hot and a cold queue: two unless there is one core only."""
    return min(2, len(os.sched_getaffinity(0)))


def shared_cores(shape: Shape) -> tuple[int, ...]:
    """The core of each shard, the same on all nodes, where groups are pinned to shards and not every node has cores of its
    own; else none."""
    cores = sorted(os.sched_getaffinity(0))
    return tuple(cores[: shape.workers]) if shape.pins and len(cores) < CORES_APART else ()


STANDARD = Shape()
"""One queue in the group ``default``."""

COPIES = Shape(named=((f"{COPIED}-0", "default"),), copied=(f"{COPIED}-0",))
"""And one there that consumers get out of their node's copy, for which the whole group tells at once what is committed."""


def swept(count: int) -> Shape:
    """So many queues in groups of their own, and as many in the first of these."""
    together = tuple((f"{TOGETHER}-{number}", "g0") for number in range(count))
    return Shape(count, count, together)


def hot_and_cold(workers: int) -> Shape:
    """Two queues in two groups, which have shards of their own where there are two."""
    named = ((f"{HOT}-0", HOT), (f"{COLD}-0", COLD))
    pins = ((HOT, 0), (COLD, 1)) if workers > 1 else ()
    return Shape(0, 0, named, workers=workers, pins=pins)


@dataclass(frozen=True, slots=True)
class Name:
    """Meaning of a name: the cluster, and the nodes of its clients."""

    held: str
    start: Callable[[], Cluster]
    publisher: int = 0
    consumer: int = 0
    beside: str = ""


def _standard() -> Cluster:
    return Fluxmq.start(STANDARD)


def _copies() -> Cluster:
    return Fluxmq.start(COPIES)


def _apart() -> Cluster:
    return Fluxmq.start(hot_and_cold(workers_apart()), together=True)


def _mirrored() -> Cluster:
    return Fluxmq.start(STANDARD, mirrored=True)


def _rabbitmq_mirrored() -> Cluster:
    return RabbitMQ.start(mirrored=True)


def _rabbitmq_with_mqtt() -> Cluster:
    return RabbitMQ.start(rabbitmq.PLUGINS)


def _swept(count: int) -> Name:
    return Name(f"{count} groups", lambda: Fluxmq.start(swept(count)))


NAMES: Mapping[str, Name] = {
    FLUXMQ: Name("standard", _standard),
    FLUXMQ_MQTT: Name("standard", _standard),
    FLUXMQ_FOLLOWER: Name("standard", _standard, 1, 1),
    FLUXMQ_MQTT_FOLLOWER: Name("standard", _standard, 1, 1),
    FLUXMQ_FORWARD: Name("standard", _standard, 0, 1),
    FLUXMQ_REPLICATE: Name("copies", _copies, 0, 1),
    FLUXMQ_ONE_NODE: Name("standard", _standard),
    FLUXMQ_ACROSS: Name("standard", _standard, 0, 1),
    FLUXMQ_COLD: Name("hot and cold", _apart),
    FLUXMQ_BESIDE: Name("hot and cold", _apart, beside=HOT),
    FLUXMQ_BESIDE_COPIER: Name("hot and cold", _apart, beside=COPIER),
    RABBITMQ: Name("rabbitmq", RabbitMQ.start),
    RABBITMQ_FOLLOWER: Name("rabbitmq", RabbitMQ.start, 1, 1),
    RABBITMQ_ACROSS: Name("rabbitmq with mqtt", _rabbitmq_with_mqtt, 0, 1),
    FLUXMQ_MIRRORED: Name("mirrored", _mirrored),
    RABBITMQ_MIRRORED: Name("rabbitmq mirrored", _rabbitmq_mirrored),
    NATS: Name("nats", Nats.start),
    LAVINMQ: Name("lavinmq", LavinMQ.start),
    NATS_ACROSS: Name("nats", Nats.start, 0, 1),
    **{name: _swept(count) for count, name in (*SPREAD.items(), *GATHERED.items())},
}


def start(name: str, cores: str | None) -> ClusterBroker:
    """A cluster by one of its names. Raises ``BrokerError`` where it is not installed or does not start."""
    if cores is not None:
        raise BrokerError("clusters choose their cores themselves: leave --pin out")
    meant = NAMES[name]
    if meant.held not in _running:
        _running[meant.held] = _Use(meant.start())
    use = _running[meant.held]
    use.names += 1
    return ClusterBroker(
        name, meant.held, use.cluster, meant.publisher, meant.consumer, meant.beside
    )
