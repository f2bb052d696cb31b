"""``python -m perf resting``: what three nodes cost while nothing happens, alone and in a cluster, and with more groups.

The processor time of all processes of the nodes, members of etcd included, is counted over some seconds in which no client
is connected; then their memory (proportional set size). Groups beside ``default`` have three copies each. ``--groups`` measures
nodes without etcd and with that many groups beside ``default`` instead, ``--queues`` a cluster with so many durable classic
queues, mirrored on no other node and on all.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from perf import amqp, amqp_idle, handshake, processes, report
from perf.brokers import HOST
from perf.cluster_nodes import GROUPS_MAX, Nodes, Shape, control
from perf.cluster_peers import check

SETTLE_S = 8.0
"""From ready to the first reading: elections and what is done once are over."""
SETTLE_OF_MANY_S = 110.0
"""The same with many groups: a minute after its last entry, a group has its checkpoint, and is left alone."""
SECONDS = 15.0
POLICY = ("all", "", '{"ha-mode":"all"}')
"""Arguments of set_policy that mirror every queue on all nodes."""
SHAPES = {
    "alone": Shape(queues=0, clustered=False),
    "in a cluster": Shape(queues=0),
    f"in a cluster with {GROUPS_MAX} groups more": Shape(queues=0, groups=GROUPS_MAX),
}


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument("--seconds", type=float, default=SECONDS)
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--settle", type=float, help="seconds before counting")
    command.add_argument(
        "--groups", type=int, nargs="+", help="groups beside default, several times"
    )
    command.add_argument("--queues", type=int, help="classic queues, mirrored and not")
    command.add_argument("--name", default="resting", help="of the files written")
    command.add_argument("--results", type=Path, default=report.RESULTS, help="folder for files")


@dataclass(frozen=True, slots=True)
class Queues:
    """Durable classic queues that are there: how many, and whether all nodes have mirrors of them."""

    count: int = 0
    mirrored: bool = False

    def declare(self, nodes: Nodes) -> None:
        """Declare them on the first node. Raises ``BrokerError`` or ``OSError``."""
        first = nodes.nodes[0]
        if self.mirrored:
            check(control(first, "set_policy", *POLICY))
        if self.count:
            with handshake.dial(HOST, first.addresses.amqp) as connection:
                amqp.open_channel(connection)
                amqp_idle.declare_queues(connection, "classic", 0, self.count, None)
                connection.sendall(amqp.close())


NO_QUEUES = Queues()


def rest(
    shape: Shape, settle: float, seconds: float, queues: Queues = NO_QUEUES
) -> dict[str, float]:
    """Start nodes and let them rest; return the share of a core that they take, and megabytes, both for all together."""
    with tempfile.TemporaryDirectory(prefix="fluxmq-resting-") as folder:
        nodes = Nodes.create(Path(folder), shape)
        nodes.start()
        try:
            queues.declare(nodes)
            time.sleep(settle)
            pids = processes.tree(nodes.pids())
            before, began = processes.cpu_seconds(pids), time.monotonic()
            time.sleep(seconds)
            used, took = processes.cpu_seconds(pids) - before, time.monotonic() - began
            return {"cores": used / took, "megabytes": processes.memory(pids).pss / 1e6}
        finally:
            nodes.stop()


def main(options: argparse.Namespace) -> int:
    """Measure, write the figures and show them: medians, and the range."""
    shapes, settle = SHAPES, options.settle or SETTLE_S
    if options.groups:
        settle = options.settle or SETTLE_OF_MANY_S
        shapes = {f"{count} groups more": Shape(queues=0, groups=count) for count in options.groups}
    queues = dict.fromkeys(shapes, Queues())
    if options.queues:
        shape, count = Shape(queues=0), options.queues
        shapes = {f"{count} queues": shape, f"{count} mirrored queues": shape}
        queues = {name: Queues(count, "mirrored" in name) for name in shapes}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in shapes}
    for _ in range(options.rounds):
        for name, shape in shapes.items():
            found[name].append(rest(shape, settle, options.seconds, queues[name]))
    about = {"time": report.now(), **report.machine()}
    record: dict[str, Any] = {"about": about, "seconds": options.seconds, **found}
    report.write_json(options.results / f"{options.name}.json", record)
    for name, rounds in found.items():
        figures = []
        for unit in ("cores", "megabytes"):
            values = sorted(each[unit] for each in rounds)
            figures.append(f"{median(values):.3g} ({values[0]:.3g} to {values[-1]:.3g}) {unit}")
        print(f"{name}: {', '.join(figures)}")
    return 0
