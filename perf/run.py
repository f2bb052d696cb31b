"""One measured run: start the generator processes, let them warm up, measure an interval, collect.

The parent measures: it reads the delivery count from the board and the broker's processor time at both ends
of the interval, so rate and cost come from the same two moments. The workers only count. Everything is
bounded: a run that does not end by its deadline is killed and raises.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perf import board as words
from perf import processes
from perf.board import Board
from perf.percentiles import merged, summary
from perf.workload import Workload

CONNECT_TIMEOUT_S = 60.0
"""For all connections of a run to stand."""

DRAIN_TIMEOUT_S = 10.0
"""From the end of publishing to the end of the run."""

PROGRESS_S = 0.25
"""Between two redraws of the progress bar, whose drawing costs the run processor time."""

START_DELAY_NS = 20_000_000
"""From the parent's word to the first message: every worker has seen the start time by then."""

REPORT_COUNTS = (
    "sent",
    "received",
    "acknowledged",
    "gaps",
    "reordered",
    "unexpected",
    "malformed",
    "refused",
    "spurious",
)

Progress = Callable[[float, float], None]
"""Called with the seconds gone and the seconds in all."""


class RunError(RuntimeError):
    """The run gave no result; the text says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A broker under test: where it listens and the roots of its process tree (none: cost is not measured).

    ``subscriber_port`` is another port for subscribers that speak another protocol; 0 is the same. Of a cluster,
    ``pair_ports`` has the ports of publisher and subscriber i, who may live on different nodes, and counts instead.
    """

    name: str
    host: str
    port: int
    pids: tuple[int, ...] = ()
    subscriber_port: int = 0
    pair_ports: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of warm-up and of measurement."""

    warmup_s: float = 1.0
    duration_s: float = 3.0


@dataclass(slots=True)
class Measurement:
    """Result of one run. Rates are per second; a message is a delivery (for churn, a connection; with a
    durable queue between, what was both confirmed to its publisher and acknowledged by its consumer).

    ``delivery_us`` and ``acknowledgement_us`` are quantiles in microseconds, the latter from publish to the
    last acknowledgement (PUBACK or PUBCOMP; for churn from connect to CONNACK). ``lost`` counts deliveries
    that never came; ``written_off`` those that the generator stopped waiting for while running.
    """

    target: str
    seconds: float
    messages_per_s: float
    published_per_s: float
    broker_cpu_us: float
    broker_cores: float
    generator_cores: float
    lost: int
    written_off: int
    counts: dict[str, int]
    delivery_us: dict[str, float]
    acknowledgement_us: dict[str, float]
    delivery_cells: dict[int, int] = field(default_factory=dict)
    acknowledgement_cells: dict[int, int] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """For JSON, without the histograms' cells."""
        kept = asdict(self)
        del kept["delivery_cells"], kept["acknowledgement_cells"]
        return kept


def split(workload: Workload, workers: int) -> list[tuple[list[int], list[int]]]:
    """Publishers and subscribers of each worker.

    One worker has all. Two or more: the first half publishes, the others subscribe, so that a busy
    subscriber never delays a send.
    """
    publishers = list(range(workload.publishers))
    subscribers = list(range(workload.subscribers)) if workload.kind == "messages" else []
    if workers == 1 or workload.kind == "churn":
        return [(publishers[w::workers], subscribers[w::workers]) for w in range(workers)]
    publishing = min(max(1, workers // 2), len(publishers))
    subscribing = min(workers - publishing, len(subscribers))
    first: list[tuple[list[int], list[int]]] = [
        (publishers[w::publishing], []) for w in range(publishing)
    ]
    rest: list[tuple[list[int], list[int]]] = [
        ([], subscribers[w::subscribing]) for w in range(subscribing)
    ]
    return [*first, *rest]


@dataclass(slots=True)
class _Snapshot:
    time_s: float
    received: int
    sent: int
    acknowledged: int
    broker_s: float
    generator_s: float


class Run:
    """One run of one workload against one target."""

    def __init__(
        self,
        target: Target,
        workload: Workload,
        timing: Timing,
        workers: int = 1,
        cores: Sequence[int] = (),
    ) -> None:
        workload.check()
        self.target = target
        self.workload = workload
        self.timing = timing
        self.shares = split(workload, workers)
        self.cores = list(cores)
        self.board = Board.create(len(self.shares))
        self.children: list[subprocess.Popen[str]] = []
        self.broker_pids = processes.tree(target.pids)

    def measure(self, progress: Progress | None = None) -> Measurement:
        """Do it. Raises ``RunError``; nothing started here is left behind."""
        try:
            self._start_workers()
            self._await(words.READY, time.monotonic() + CONNECT_TIMEOUT_S)
            first, last = self._interval(progress)
            reports = self._collect()
            return self._result(first, last, reports)
        finally:
            for child in self.children:
                if child.poll() is None:
                    child.kill()
                child.wait()
                for pipe in (child.stdin, child.stdout, child.stderr):
                    if pipe is not None:
                        pipe.close()
            self.board.close()

    def _start_workers(self) -> None:
        wake_fds = self.board.wake_fds
        total_s = (
            CONNECT_TIMEOUT_S + self.timing.warmup_s + self.timing.duration_s + DRAIN_TIMEOUT_S
        )
        environment = dict(os.environ)
        root = str(Path(__file__).resolve().parent.parent)
        environment["PYTHONPATH"] = os.pathsep.join(
            part for part in (root, environment.get("PYTHONPATH", "")) if part
        )
        for index, (publishers, subscribers) in enumerate(self.shares):
            child = subprocess.Popen(
                [sys.executable, "-m", "perf.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(self.board.fd, *wake_fds),
                env=environment,
                text=True,
            )
            self.children.append(child)
            task = {
                "workload": self.workload.to_json(),
                "host": self.target.host,
                "port": self.target.port,
                "subscriber_port": self.target.subscriber_port,
                "pair_ports": self.target.pair_ports,
                "publishers": publishers,
                "subscribers": subscribers,
                "board_fd": self.board.fd,
                "wake_fds": wake_fds,
                "worker": index,
                "cores": self.cores,
                "deadline_s": int(total_s) + 5,
            }
            assert child.stdin is not None
            child.stdin.write(json.dumps(task))
            child.stdin.close()
            child.stdin = None

    def _await(self, state: int, deadline_s: float) -> None:
        while not self.board.reached(state):
            self._check_alive()
            if time.monotonic() > deadline_s:
                raise RunError("the generator's connections did not come up in time")
            time.sleep(0.002)

    def _check_alive(self) -> None:
        for child in self.children:
            if child.poll() not in (None, 0):
                assert child.stderr is not None
                reason = child.stderr.read().strip()
                raise RunError(reason or f"a generator process ended with {child.returncode}")

    def _interval(self, progress: Progress | None) -> tuple[_Snapshot, _Snapshot]:
        """Set the times, wait through warm-up and measurement, snapshot both ends of the latter."""
        board = self.board.words
        start = time.monotonic_ns() + START_DELAY_NS
        begin = start + int(self.timing.warmup_s * 1e9)
        end = begin + int(self.timing.duration_s * 1e9)
        board[words.MEASURE_FROM] = begin
        board[words.MEASURE_TO] = end
        board[words.STOP_AT] = end + int(DRAIN_TIMEOUT_S * 1e9)
        board[words.START] = start
        self._sleep_until(begin, start, end, progress)
        first = self._snapshot()
        self._sleep_until(end, start, end, progress)
        return first, self._snapshot()

    def _sleep_until(self, moment: int, start: int, end: int, progress: Progress | None) -> None:
        while (left := (moment - time.monotonic_ns()) / 1e9) > 0:
            self._check_alive()
            if progress is not None:
                progress((time.monotonic_ns() - start) / 1e9, (end - start) / 1e9)
            time.sleep(min(left, PROGRESS_S))

    def _snapshot(self) -> _Snapshot:
        return _Snapshot(
            time.monotonic(),
            self.board.total(words.RECEIVED),
            self.board.total(words.SENT),
            self.board.total(words.ACKNOWLEDGED),
            processes.cpu_seconds(self.broker_pids),
            processes.cpu_seconds([child.pid for child in self.children]),
        )

    def _collect(self) -> list[dict[str, Any]]:
        deadline = time.monotonic() + DRAIN_TIMEOUT_S + 5
        reports = []
        for child in self.children:
            try:
                output, error = child.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise RunError("a generator process did not end") from None
            if child.returncode:
                raise RunError(error.strip() or f"exit code {child.returncode}")
            reports.append(json.loads(output))
        return reports

    def _result(
        self, first: _Snapshot, last: _Snapshot, reports: list[dict[str, Any]]
    ) -> Measurement:
        counts = {name: sum(r.get(name, 0) for r in reports) for name in REPORT_COUNTS}
        cells = {
            name: merged([{int(k): v for k, v in r.get(name, {}).items()} for r in reports])
            for name in ("delivery", "acknowledgement")
        }
        seconds = last.time_s - first.time_s
        messages = last.received - first.received
        if self.workload.durable:
            messages = min(messages, last.acknowledged - first.acknowledged)
        broker_s = last.broker_s - first.broker_s
        lost = 0
        if self.workload.kind == "messages":
            lost = max(0, counts["sent"] * self.workload.fan_out - counts["received"])
        return Measurement(
            target=self.target.name,
            seconds=seconds,
            messages_per_s=messages / seconds,
            published_per_s=(last.sent - first.sent) / seconds,
            broker_cpu_us=broker_s / messages * 1e6 if messages else 0.0,
            broker_cores=broker_s / seconds,
            generator_cores=(last.generator_s - first.generator_s) / seconds,
            lost=lost,
            written_off=self.board.words[words.WRITTEN_OFF],
            counts=counts,
            delivery_us=summary(cells["delivery"]),
            acknowledgement_us=summary(cells["acknowledgement"]),
            delivery_cells=cells["delivery"],
            acknowledgement_cells=cells["acknowledgement"],
        )
