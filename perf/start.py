"""``python -m perf.start``: how fast a node starts, what it holds idle, and how fast a killed shard serves again.

Each round starts a node on a new data directory, waits for its log line ``ready``, stops it, and starts it on the same
directory. Once that one is idle, the proportional set size of its processes is summed; then each shard is killed with
SIGKILL, and a client whose sessions that shard owns sends CONNECT. A node with two more shards, likewise idle, gives the
memory of one further shard. Medians over the rounds; the first round warms the file cache and is not counted.

``--tree`` measures another checkout with the same interpreter. Exit status 0: every goal is met.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from fluxmq.protocols.sniff import shard_of
from perf import codec, handshake, processes, report
from perf.brokers import HOST, ROOT, free_port

READY_S_MAX: Final = 0.6
TOTAL_MB_MAX: Final = 150.0
SHARD_MB_MAX: Final = 40.0
SERVING_S_MAX: Final = 0.05
"""The goals: command to ready, all processes of two idle shards, one shard more, SIGKILL to CONNACK."""

IDLE_S: Final = 6.0
"""From ready to the reading of memory: a shard that had nothing to do for five seconds has tidied up."""

TIMEOUT_S: Final = 60.0
MORE_SHARDS: Final = 2
MB: Final = 1e6

SETTINGS: Final = """\
server:
  mqtt: {{tcp: {{addr: "127.0.0.1:{mqtt}"}}}}
  amqp: {{tcp: {{addr: "127.0.0.1:{amqp}"}}}}
  http: {{addr: "127.0.0.1:{http}"}}
storage: {{data_dir: "{data}"}}
log: {{format: json}}
"""


@dataclass(slots=True)
class Round:
    """Figures of one round: seconds, and megabytes by process."""

    first_ready_s: float
    ready_s: float
    megabytes: dict[str, float]
    more_megabytes: float
    serving_s: list[float] = field(default_factory=list)

    @property
    def total_mb(self) -> float:
        """Sum over the processes."""
        return sum(self.megabytes.values())

    @property
    def shard_mb(self) -> float:
        """Memory that each further shard adds."""
        return (self.more_megabytes - self.total_mb) / MORE_SHARDS


class Node:
    """A node of a checkout, started anew."""

    def __init__(self, tree: Path, folder: Path, workers: int) -> None:
        self.workers = workers
        self.port = free_port()
        settings = folder / "fluxmq.yaml"
        settings.write_text(
            SETTINGS.format(
                mqtt=self.port, amqp=free_port(), http=free_port(), data=folder / "data"
            )
        )
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        arguments = ["--config", str(settings), "--workers", str(workers)]
        self.pids: dict[str, int] = {}
        begun = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fluxmq.supervisor.main", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self.await_line("supervisor", "ready")
        self.ready_s = time.monotonic() - begun

    def await_line(self, process: str, message: str) -> None:
        """Read the log until this line, and take note of process ids. Raises ``RuntimeError``."""
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line.decode())
            try:
                entry: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            if "pid" in entry:
                self.pids[entry["process"]] = entry["pid"]
            if (entry["process"], entry["message"]) == (process, message):
                return
        raise RuntimeError(f"the node ended: {''.join(said)}")

    def megabytes(self) -> dict[str, float]:
        """Proportional set size by process."""
        found = {}
        for pid in processes.tree([self.process.pid]):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            name = "supervisor" if pid == self.process.pid else name
            found[f"{name} {pid}"] = processes.memory([pid]).pss / MB
        return found

    def serving_again(self, shard: int) -> float:
        """Kill a shard; return the seconds until a client of it has its CONNACK."""
        client = next(
            name
            for name in (f"perf-start-{number}" for number in range(10_000))
            if shard_of(name.encode(), self.workers) == shard
        )
        with socket.create_connection((HOST, self.port), TIMEOUT_S) as connection:
            begun = time.monotonic()
            os.kill(self.pids[f"shard-{shard}"], signal.SIGKILL)
            connection.sendall(codec.connect(client, 4))
            first, body = handshake.read_packet(connection)
            took = time.monotonic() - begun
        if first != 0x20 or body[1]:
            raise RuntimeError(f"CONNECT was answered {first:#04x} {body.hex()}")
        return took

    def stop(self) -> None:
        """End it in order."""
        self.process.terminate()
        assert self.process.stderr is not None
        self.process.stderr.read()
        self.process.wait(TIMEOUT_S)


def measure(tree: Path, workers: int) -> Round:
    """Do one round."""
    with tempfile.TemporaryDirectory(prefix="perf-start-") as name:
        folder = Path(name)
        node = Node(tree, folder, workers)
        first = node.ready_s
        node.stop()
        node = Node(tree, folder, workers)
        try:
            time.sleep(IDLE_S)
            result = Round(first, node.ready_s, node.megabytes(), 0.0)
            result.serving_s = [node.serving_again(shard) for shard in range(workers)]
        finally:
            node.stop()
    with tempfile.TemporaryDirectory(prefix="perf-start-") as name:
        node = Node(tree, Path(name), workers + MORE_SHARDS)
        try:
            time.sleep(IDLE_S)
            result.more_megabytes = sum(node.megabytes().values())
        finally:
            node.stop()
    return result


def figures(rounds: Sequence[Round]) -> dict[str, tuple[float, float]]:
    """Return each figure's median and its goal, by name."""
    serving = [seconds for each in rounds for seconds in each.serving_s]
    return {
        "ready, s": (median(each.ready_s for each in rounds), READY_S_MAX),
        "all processes idle, MB": (median(each.total_mb for each in rounds), TOTAL_MB_MAX),
        "each further shard, MB": (median(each.shard_mb for each in rounds), SHARD_MB_MAX),
        "killed shard serves again, s": (median(serving), SERVING_S_MAX),
    }


def page(workers: int, rounds: Sequence[Round]) -> str:
    """Return the results as Markdown."""
    head = ("figure", "median", "goal", "range")
    ranges: dict[str, list[float]] = {
        "ready, s": [each.ready_s for each in rounds],
        "all processes idle, MB": [each.total_mb for each in rounds],
        "each further shard, MB": [each.shard_mb for each in rounds],
        "killed shard serves again, s": [s for each in rounds for s in each.serving_s],
    }
    table = [
        (
            name,
            f"{value:.3g}",
            f"{goal:g}",
            f"{min(ranges[name]):.3g} to {max(ranges[name]):.3g}",
        )
        for name, (value, goal) in figures(rounds).items()
    ]
    first = median(each.first_ready_s for each in rounds)
    held = [
        (name.rpartition(" ")[0], f"{size:.1f}")
        for name, size in sorted(rounds[-1].megabytes.items())
    ]
    about = report.machine(())
    machine = f"{about['processor']}, {about['cores']} cores, Python {about['python']}"
    return "\n".join(
        [
            "# Start, idle memory, and a killed shard",
            "",
            f"{report.now()}; {machine}; {workers} shards, {len(rounds)} rounds on a warm file cache.",
            f"Ready on a new data directory: {first:.3g} s.",
            "",
            report.markdown_table(head, table),
            "",
            "## Proportional set size by process, MB",
            "",
            report.markdown_table(("process", "MB"), held),
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; print the page, and write it where asked."""
    options = argparse.ArgumentParser(prog="python -m perf.start", description=__doc__)
    options.add_argument("--tree", type=Path, default=ROOT, help="the checkout to start")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--results", type=Path, help="folder for start.md (default: print only)")
    asked = options.parse_args(arguments)
    measured = [measure(asked.tree, asked.workers) for _ in range(asked.rounds + 1)][1:]
    text = page(asked.workers, measured)
    print(text)
    if asked.results is not None:
        asked.results.mkdir(parents=True, exist_ok=True)
        (asked.results / "start.md").write_text(text)
    return int(any(value > goal for value, goal in figures(measured).values()))


if __name__ == "__main__":
    sys.exit(main())
