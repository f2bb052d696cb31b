"""``python -m perf resting``: what three nodes cost while nothing happens, alone and in a cluster, and with more groups.

The processor time of all processes of the nodes, members of etcd included, is counted over some seconds in which no client
is connected; then their memory (proportional set size). Groups beside ``default`` have three copies each. ``--groups`` measures
nodes without etcd and with that many groups beside ``default`` instead.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from perf import processes, report
from perf.cluster_nodes import GROUPS_MAX, Nodes, Shape

SETTLE_S = 8.0
"""From ready to the first reading: elections and what is done once are over."""
SETTLE_OF_MANY_S = 110.0
"""The same with many groups: a minute after its last entry, a group has its checkpoint, and is left alone."""
SECONDS = 15.0
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
    command.add_argument("--name", default="resting", help="of the files written")
    command.add_argument("--results", type=Path, default=report.RESULTS, help="folder for files")


def rest(shape: Shape, settle: float, seconds: float) -> dict[str, float]:
    """Start nodes and let them rest; return the share of a core that they take, and megabytes, both for all together."""
    with tempfile.TemporaryDirectory(prefix="fluxmq-resting-") as folder:
        nodes = Nodes.create(Path(folder), shape)
        nodes.start()
        try:
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
    found: dict[str, list[dict[str, float]]] = {name: [] for name in shapes}
    for _ in range(options.rounds):
        for name, shape in shapes.items():
            found[name].append(rest(shape, settle, options.seconds))
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
