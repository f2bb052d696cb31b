"""``python -m perf node-loss``: a node with many MQTT sessions is killed, and its clients connect to the two others.

All clients are connected to the first of three nodes, which is then killed with its member of etcd (SIGKILL to all of its
processes). What counts is the time from the kill until every session is there again (CONNACK, and SUBACK of its
subscription). The sessions' own state was on the killed node, so they begin anew; what takes time is that the former
owner's leases have to end first: no client id may be connected twice.
"""

from __future__ import annotations

import argparse
import math
import resource
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from perf import processes, report
from perf.brokers import HOST
from perf.cluster_nodes import Node, Nodes, Shape
from perf.many_sessions import Clients, Crowd, Outcome
from perf.progress import say
from perf.run import RunError

SESSIONS = (2_000, 10_000, 100_000)
CLEAN = 0.2
SPREAD_S = 5.0
LEASE_S = 10.0
"""Time after which etcd forgets a node that is silent."""
GOAL_S = LEASE_S + 10.0

CONNECTIONS_OF_SHARD = 16_000
"""With the usual limit of 20,000 open files of a process."""
SETTLE_S = 5.0
"""From the last connection to the kill: keys of subscriptions are put behind the clients' backs."""
CONNECTING_S_OF_THOUSAND = 3.0
AGAIN_S = 120.0
POLL_S = 0.05
SAMPLE_S = 1.0
PAGE_S = 5.0


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument("--sessions", type=int, nargs="+", default=list(SESSIONS))
    command.add_argument("--clean", type=float, default=CLEAN, help="share without kept sessions")
    command.add_argument(
        "--spread", type=float, default=SPREAD_S, help="seconds within which clients come back"
    )
    command.add_argument(
        "--no-subscriptions", dest="subscribe", action="store_false", help="CONNECT only"
    )
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--workers", type=int, help="shards of a node")
    command.add_argument("--name", default="node-loss", help="of the files written")
    command.add_argument("--results", type=Path, default=report.RESULTS, help="folder for files")


def etcd_counts(node: Node) -> dict[str, float]:
    """What a node's member of etcd has done so far; see ``counts_of``."""
    url = f"http://{HOST}:{node.addresses.etcd + 1}/metrics"
    with urllib.request.urlopen(url, timeout=PAGE_S) as answer:
        return counts_of(answer.read().decode())


def counts_of(page: str) -> dict[str, float]:
    """Numbers on etcd's page of metrics: transactions that the member was asked for, and commits of the cluster."""
    found = {"transactions": 0.0, "commits": 0.0}
    for line in page.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("grpc_server_handled_total{") and 'method="Txn"' in name:
            found["transactions"] += float(value)
        elif name == "etcd_server_proposals_applied_total":
            found["commits"] = float(value)
    return found


class Watcher:
    """Figures of the nodes that are left, from the kill on."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._pids = processes.tree([n.process.pid for n in nodes if n.process is not None])
        self._cpu = processes.cpu_by_name(self._pids)
        self._etcd = [etcd_counts(node) for node in nodes]
        self._next = 0.0
        self._began = time.monotonic()
        self.peak = processes.memory(self._pids).pss
        self.before = self.peak
        self.line: list[tuple[float, int]] = []
        """Seconds and sessions there."""

    def look(self, there: int) -> None:
        """Take a sample, once in a while."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + SAMPLE_S
            self.line.append((round(now - self._began, 2), there))
            self.peak = max(self.peak, processes.memory(self._pids).pss)

    def found(self, generator: Sequence[int]) -> dict[str, Any]:
        """Return the figures. ``generator``: processes of the clients."""
        took = time.monotonic() - self._began
        used = processes.cpu_by_name(self._pids)
        etcd = [etcd_counts(node) for node in self._nodes]
        pairs = list(zip(etcd, self._etcd, strict=True))
        return {
            "megabytes_before": self.before / 1e6,
            "megabytes_peak": self.peak / 1e6,
            "etcd_transactions": sum(
                new["transactions"] - old["transactions"] for new, old in pairs
            ),
            "etcd_commits": max(new["commits"] - old["commits"] for new, old in pairs),
            "cores": {
                **{name: (used[name] - self._cpu.get(name, 0.0)) / took for name in used},
                "clients (since their start)": processes.cpu_seconds(generator),
            },
            "there": self.line,
        }


def workers_of(sessions: int) -> int:
    """Shards that a node needs for so many connections: each has few open files on some machines."""
    limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1] * 4 // 5, 1 << 20)
    return math.ceil(sessions / min(limit, CONNECTIONS_OF_SHARD))


def lose(crowd: Crowd, workers: int) -> dict[str, Any]:
    """One round: connect all, kill, wait. Raises ``RunError`` if they do not all come back."""
    with tempfile.TemporaryDirectory(prefix="fluxmq-node-loss-") as folder:
        shape = Shape(queues=0, workers=workers, connections=max(10_000, 2 * crowd.count))
        nodes = Nodes.create(Path(folder), shape)
        nodes.start()
        clients = Clients(crowd, [nodes.nodes[0].addresses.mqtt])
        try:
            return _lose(crowd, nodes, clients)
        finally:
            clients.kill()
            for node in nodes.nodes:
                said = node.log.read_text(errors="replace").strip()
                if said:
                    say(f"{node.name}: {said[-1500:]}")
            nodes.stop()


def _await(clients: Clients, count: int, seconds: float, watcher: Watcher | None = None) -> None:
    deadline = time.monotonic() + seconds
    while clients.there < count or (watcher is not None and clients.again < count):
        if not clients.alive():
            raise RunError("a process of clients has failed")
        if time.monotonic() > deadline:
            raise RunError(f"{clients.there} of {count} sessions are there after {seconds:g} s")
        if watcher is not None:
            watcher.look(clients.there)
        time.sleep(POLL_S)


def _lose(crowd: Crowd, nodes: Nodes, clients: Clients) -> dict[str, Any]:
    began = time.monotonic()
    _await(clients, crowd.count, 30.0 + crowd.count / 1000 * CONNECTING_S_OF_THOUSAND)
    connected = time.monotonic() - began
    time.sleep(SETTLE_S)
    before = clients.refused
    survivors = nodes.nodes[1:]
    watcher = Watcher(survivors)
    clients.choose([node.addresses.mqtt for node in survivors])
    killed = time.monotonic()
    nodes.nodes[0].kill()
    problem = ""
    try:
        _await(clients, crowd.count, AGAIN_S, watcher)
    except RunError as error:
        problem = str(error)
    found = watcher.found(clients.pids())
    outcome = clients.finish()
    moments = sorted(each - killed for each in outcome.moments)
    if problem:
        raise RunError(f"{problem}; {summary(outcome)}; {found}")
    return {
        "connecting_s": connected,
        "refused_while_connecting": before,
        "all_there_s": moments[-1],
        "half_there_s": median(moments),
        "refusals": dict(outcome.refusals),
        "sessions_present": outcome.present,
        **found,
    }


def summary(outcome: Outcome) -> str:
    """What clients have met, in a line."""
    return ", ".join(f"{reason}: {count}" for reason, count in sorted(outcome.refusals.items()))


def main(options: argparse.Namespace) -> int:
    """Measure, write the figures and show them; 1 if sessions were away longer than they should."""
    found: dict[str, list[dict[str, Any]]] = {}
    for count in options.sessions:
        workers = options.workers or workers_of(count)
        crowd = Crowd(count, HOST, options.clean, options.subscribe, options.spread)
        for _ in range(options.rounds):
            one = lose(crowd, workers)
            found.setdefault(str(count), []).append(one)
            say(f"{count}: {one}")
    about = {"time": report.now(), **report.machine()}
    asked = {"clean": options.clean, "subscribe": options.subscribe, "spread_s": options.spread}
    report.write_json(
        options.results / f"{options.name}.json", {"about": about, **asked, "sessions": found}
    )
    report.show(
        ["sessions", "all there, s", "range", "half there, s", "refused", "peak, MB"],
        [_row(count, rounds) for count, rounds in found.items()],
    )
    slowest = max(one["all_there_s"] for rounds in found.values() for one in rounds)
    return 1 if slowest > GOAL_S else 0


def _row(count: str, rounds: list[dict[str, Any]]) -> list[str]:
    times = sorted(one["all_there_s"] for one in rounds)
    return [
        f"{int(count):,}",
        report.number(median(times)),
        f"{report.number(times[0])} to {report.number(times[-1])}",
        report.number(median(one["half_there_s"] for one in rounds)),
        report.number(median(sum(one["refusals"].values()) for one in rounds)),
        report.number(max(one["megabytes_peak"] for one in rounds)),
    ]
