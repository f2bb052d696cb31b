"""``python -m perf catch_up``: a follower comes back after a gigabyte was appended without it.

Three nodes; one that does not lead is killed, so many bytes are published to a queue, and it is started again. The
clock runs from the start of its processes until it has applied all that had been committed by then. Beside it 1,000
messages a second go through another queue of the same group, and their times to confirm are compared with those before: while
the processes start, which want the same cores, and from then on, while the follower catches up.
In a second turn the follower is killed half-way and started again: what crosses the loopback interface beyond what the
first turn needed was fetched twice.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perf import backlog, disk, report
from perf.cluster_nodes import ELECTION_S, HEARTBEAT_S, START_S, Node, Nodes, Shape
from perf.disk import Disk
from perf.failover import wait
from perf.percentiles import sparse, summary
from perf.progress import display, say
from perf.run import Progress, RunError
from perf.stubborn import Consumer, Publisher
from perf.workload import Workload

GROUP = "default"
BYTES, QUICK_BYTES = 1_000_000_000, 20_000_000
PAYLOAD = 1024
RATE = 1000.0
LOAD_PAYLOAD = 256
LOAD_MESSAGES = 2_000_000
"""Bound on the load, half an hour of it."""

PHASE_S, QUICK_PHASE_S = 10.0, 2.0
"""Seconds for which the load is watched before and after."""

BEFORE_PHASES = 4
"""So many times that long before, since all else is compared with it: a disk that takes its time once in half a minute does
so in one phase and not in another."""

P99_MAX = 2.0
"""Times the 99th percentile before: what is asked of that during catching up."""

AGAIN_MAX = 0.1
"""Part of the appended bytes that may be fetched again after a kill half-way."""

RATE_MIN = 2e6
"""Bytes per second below which catching up is given up."""

CHECK_S = 0.2
"""Between two looks at the metrics of a node that starts, which cost it time."""

WATCH_S = 1.0
"""Between two looks in every other phase: a look costs the node and whoever measures the same in all of them."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(|[kMG]i?)B?")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "ki": 2**10, "Mi": 2**20, "Gi": 2**30}

LOAD = Workload(
    protocol="amqp",
    qos=1,
    shape="pairs",
    payload=LOAD_PAYLOAD,
    window=500,
    mode="single",
    topic="load",
)
FILL = LOAD.changed(payload=PAYLOAD, mode="stream", topic="perf")


@dataclass(frozen=True, slots=True)
class Phase:
    """Times to confirm of the load during a part of the run, and the longest pause between two confirms."""

    name: str
    seconds: float
    pause_s: float
    confirm_us: dict[str, float]


@dataclass(slots=True)
class CatchUp:
    """One run. Seconds run from the start of the follower's processes; ``started_s`` is when it answered questions,
    ``restart_s`` when it was done with a mere restart.

    ``crossed``: bytes over the loopback interface while it caught up, without those of the load; ``again``: those
    beyond ``crossed`` when it was killed half-way.
    """

    appended: int
    fill_s: float = 0.0
    restart_s: float = 0.0
    started_s: float = 0.0
    seconds: float = 0.0
    crossed: float = 0.0
    interrupted_s: float = 0.0
    again: float = 0.0
    phases: list[Phase] = field(default_factory=list)

    @property
    def bytes_per_s(self) -> float:
        """Messages per second caught up, in the time beyond that of a mere restart."""
        return self.appended / max(WATCH_S, self.seconds - self.restart_s)

    def p99(self, phase: str) -> float:
        """Of the times to confirm, in microseconds."""
        return next(each.confirm_us["p99"] for each in self.phases if each.name == phase)

    @property
    def p99_factor(self) -> float:
        """During catching up, relative to before."""
        return self.p99(DURING) / self.p99(BEFORE)

    @property
    def restart_factor(self) -> float:
        """The same of a mere restart, whose processes want the cores that the others have."""
        return self.p99(RESTART) / self.p99(BEFORE)

    def faults(self) -> list[str]:
        """Requirements that are not met."""
        found = []
        if self.p99_factor > P99_MAX:
            found.append(f"p99 of confirms {self.p99_factor:.2f} times that before")
        if self.again > AGAIN_MAX * self.appended:
            found.append(f"{self.again / 1e6:,.0f} MB fetched again after a kill half-way")
        return found

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        names = ("bytes_per_s", "p99_factor", "restart_factor")
        more = {name: getattr(self, name) for name in names}
        return {**asdict(self), **more, "faults": self.faults()}


BEFORE, RESTART, WITHOUT = "before", "restarted, nothing missed", "without the follower"
STARTING, DURING, AFTER = "starting", "catching up", "after"


def size(text: str) -> int:
    """``1GB``, ``20MB``, ``512MiB`` or a number of bytes. Raises ``ValueError``."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text} is not a size like 1GB")
    return int(float(match[1]) * _UNITS[match[2]])


def loopback_bytes(table: str | None = None) -> int:
    """Bytes that crossed the loopback interface so far; ``table`` is /proc/net/dev unless given."""
    content = Path("/proc/net/dev").read_text() if table is None else table
    for line in content.splitlines():
        name, _, fields = line.partition(":")
        if name.strip() == "lo":
            return int(fields.split()[0])
    raise RunError("there is no loopback interface")


class Meter:
    """Traffic on the loopback interface beyond what the load needs."""

    def __init__(self, load_per_s: float) -> None:
        self._load = load_per_s
        self._began, self._at = time.monotonic(), loopback_bytes()

    def crossed(self) -> float:
        """Bytes since this was made."""
        return loopback_bytes() - self._at - self._load * (time.monotonic() - self._began)


def gauge(node: Node, name: str) -> float:
    """A figure of the group on a node; -1 while the node does not tell."""
    for found, labels, value in node.metrics():
        if found == f"fluxmq_raft_{name}" and labels.get("group") == GROUP:
            return value
    return -1.0


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of the command."""
    command.add_argument("--bytes", type=size, help="appended meanwhile: 1GB, with --quick 20MB")
    command.add_argument("--quick", action="store_true", help="short phases")
    command.add_argument("--name", default="catch-up", help="of the files written")
    command.add_argument("--results", type=Path, default=report.RESULTS, help="folder for files")


class Trial:
    """A run on nodes that are up."""

    def __init__(self, nodes: Nodes, appended: int, phase_s: float, progress: Progress | None):
        self.nodes, self.phase_s, self.progress = nodes, phase_s, progress
        self.found = CatchUp(appended)
        self.leader = nodes.leader(GROUP)
        self.follower = nodes.nodes[(self.leader.index + 1) % len(nodes.nodes)]
        port = [self.leader.addresses.amqp]
        self.load = Publisher(LOAD, 0, port, LOAD_MESSAGES, RATE)
        self.taker = Consumer(LOAD, 0, port, LOAD_MESSAGES, 1)

    def run(self) -> CatchUp:
        """All of it. Raises ``RunError``."""
        self.taker.start()
        wait(self.taker.connected.is_set, START_S, "a consumer of the load")
        self.load.start()
        wait(self.load.connected.is_set, START_S, "a publisher of the load")
        time.sleep(self.phase_s)  # nodes that have just started make files for their logs
        self.watched(BEFORE, lambda: self.go_on(self.follower, BEFORE_PHASES))
        began, at = time.monotonic(), loopback_bytes()
        time.sleep(self.phase_s / 2)
        load_per_s = (loopback_bytes() - at) / (time.monotonic() - began)
        self.follower.kill()
        self.watched(RESTART, lambda: self.catch_up(*self.come_back()))
        self.found.restart_s = self.found.seconds
        self.append()
        self.watched(WITHOUT, lambda: self.go_on(self.leader))
        meter = Meter(load_per_s)
        started: list[tuple[float, float]] = []
        self.watched(STARTING, lambda: started.append(self.come_back()))
        self.watched(DURING, lambda: self.catch_up(*started[0]))
        self.found.crossed = meter.crossed()
        self.watched(AFTER, lambda: self.go_on(self.follower))
        self.append()
        meter = Meter(load_per_s)
        self.found.interrupted_s = self.come_back_twice(meter)
        self.found.again = meter.crossed() - self.found.crossed
        if problems := [*self.load.problems, *self.taker.problems]:
            raise RunError(f"the load lost its connection: {problems[0]}")
        return self.found

    def stop(self) -> None:
        """End the load."""
        for thread in (self.load, self.taker):
            thread.ended.set()
            if thread.is_alive():
                thread.join()

    def watched(self, name: str, what: Callable[[], None]) -> None:
        """Do something and keep how the load did meanwhile."""
        self.load.begin_phase()
        began = time.monotonic()
        what()
        seconds = time.monotonic() - began
        confirmed = summary(sparse(self.load.latency.counts))
        self.found.phases.append(Phase(name, seconds, self.load.confirms.longest, confirmed))

    def go_on(self, node: Node, phases: int = 1) -> None:
        """Let a phase pass, or several."""
        ends = time.monotonic() + self.phase_s * phases
        while (left := ends - time.monotonic()) > 0:
            gauge(node, "applied_index")
            time.sleep(min(left, WATCH_S))

    def append(self) -> None:
        """Kill the follower and publish without it."""
        self.follower.kill()
        messages = self.found.appended // PAYLOAD
        port = self.leader.addresses.amqp
        self.found.fill_s = backlog.fill(port, messages, FILL, self.progress)

    def come_back(self) -> tuple[float, float]:
        """Start the follower and wait until it answers questions; what is committed now, and when that was asked."""
        committed, began = gauge(self.leader, "commit_index"), time.monotonic()
        self.follower.start(self.nodes.shape)
        while gauge(self.follower, "applied_index") < 0:
            self._check(began, CHECK_S)
        self.found.started_s = time.monotonic() - began
        return committed, began

    def catch_up(self, committed: float, began: float) -> None:
        """Wait until the follower has everything that was committed when it was started."""
        self._await_applied(committed, began)
        self.found.seconds = time.monotonic() - began

    def come_back_twice(self, meter: Meter) -> float:
        """Start the follower, kill it when half has crossed, start it again; seconds in all."""
        committed, began = gauge(self.leader, "commit_index"), time.monotonic()
        self.follower.start(self.nodes.shape)
        while meter.crossed() < self.found.crossed / 2:
            self._check(began, CHECK_S)
        self.follower.kill()
        self.follower.start(self.nodes.shape)
        self._await_applied(committed, began)
        return time.monotonic() - began

    def _await_applied(self, index: float, began: float) -> None:
        while (applied := gauge(self.follower, "applied_index")) < index:
            if self.progress is not None:
                self.progress(max(0.0, applied), index)
            self._check(began, WATCH_S)

    def _check(self, began: float, pause: float) -> None:
        if not self.follower.alive():
            said = self.follower.log.read_text(errors="replace")[-2000:].strip()
            raise RunError(f"{self.follower.name} has ended: {said}")
        if time.monotonic() - began > START_S + self.found.appended / RATE_MIN:
            applied, leads = gauge(self.follower, "applied_index"), self.nodes.leader(GROUP).name
            raise RunError(f"{self.follower.name} is at {applied:.0f} yet; {leads} leads")
        time.sleep(pause)


def measure(appended: int, phase_s: float, progress: Progress | None = None) -> CatchUp:
    """Run once on three fresh nodes. Raises ``RunError`` or ``BrokerError``."""
    with tempfile.TemporaryDirectory(prefix="perf-catch-up-", ignore_cleanup_errors=True) as name:
        nodes = Nodes.create(Path(name), Shape(named=(("load-0", GROUP),)))
        nodes.start()
        try:
            trial = Trial(nodes, appended, phase_s, progress)
            try:
                return trial.run()
            finally:
                trial.stop()
        finally:
            nodes.stop()


HEAD = ["load", "s", "confirm p50 / p99 / most µs", "longest pause between confirms, ms"]


def rows(found: CatchUp) -> list[list[str]]:
    """A row for each phase."""
    return [
        [
            each.name,
            f"{each.seconds:.1f}",
            " / ".join(report.number(each.confirm_us[name]) for name in ("p50", "p99", "max")),
            report.number(each.pause_s * 1000),
        ]
        for each in found.phases
    ]


def sentence(found: CatchUp) -> str:
    """The figures."""
    return (
        f"{found.appended / 1e6:,.0f} MB in messages of {PAYLOAD} B appended in {found.fill_s:.1f} s; caught up"
        f" {found.seconds:.1f} s after the start of the node's processes, which took {found.started_s:.1f} s to answer;"
        f" a mere restart takes {found.restart_s:.1f} s, hence {found.bytes_per_s / 1e6:,.1f} MB/s. {found.crossed / 1e6:,.0f} MB crossed the loopback interface. p99 of the"
        f" load's confirms while it caught up {found.p99_factor:.2f} times that before (at most {P99_MAX:g} is asked), during a"
        f" mere restart {found.restart_factor:.2f} times. Killed half-way and started again:"
        f" {found.interrupted_s:.1f} s in all, {found.again / 1e6:,.1f} MB more crossed (at most"
        f" {AGAIN_MAX * found.appended / 1e6:,.0f} MB is asked)."
    )


def page(found: CatchUp, about: dict[str, Any], measured: Disk) -> str:
    """The record as Markdown."""
    heading = (
        f"{about['time']}; {about['processor']}, {about['cores']} cores, kernel {about['kernel']}, Python"
        f" {about['python']}. Three nodes on this machine, three copies, heartbeat {HEARTBEAT_S * 1000:g} ms, election"
        f" timeout {ELECTION_S:g} s; load: {RATE:,.0f} messages/s of {LOAD_PAYLOAD} B, {LOAD.window} unconfirmed at most.\n\n"
        f"Disk: {measured.sentence()}."
    )
    faults = "\n".join(f"* {fault}" for fault in found.faults())
    parts = [
        "# A follower catches up",
        heading,
        sentence(found),
        report.markdown_table(HEAD, rows(found)),
        "## What was asked and is not so",
        faults or "Nothing.",
    ]
    return "\n\n".join(parts) + "\n"


def main(options: argparse.Namespace) -> int:
    """0 when everything asked was so, else 1. Raises ``DiskError``, ``RunError`` and ``BrokerError``."""
    measured = disk.measure()
    say(f"disk: {measured.sentence()}")
    appended = options.bytes or (QUICK_BYTES if options.quick else BYTES)
    phase_s = QUICK_PHASE_S if options.quick else PHASE_S
    with display() as announce:
        found = measure(appended, phase_s, announce(f"catch_up: {appended / 1e6:,.0f} MB"))
    about = {"time": report.now(), **report.machine(())}
    record = {"about": about, "disk": measured.plain(), "catch_up": found.plain()}
    paths = [options.results / f"{options.name}.json", options.results / f"{options.name}.md"]
    report.write_json(paths[0], record)
    paths[1].write_text(page(found, about, measured))
    report.show(HEAD, rows(found))
    print(sentence(found))
    for fault in found.faults():
        print(f"not so: {fault}")
    print("written:", ", ".join(str(path) for path in paths))
    return 1 if found.faults() else 0
