"""``python -m perf failover``: a leader's node is killed while messages are published, confirmed and consumed.

Two publishers, over AMQP at the leader's node and over MQTT at another one, publish to one queue of three copies; two
consumer groups take all of it, over AMQP at the leader's node and over MQTT at another one. All processes of the
leader's node are killed at once; clients connect to the next node and publish again what may not have been confirmed.

What is asked: every message comes to both groups; of each publisher in order, repeats aside; and the longest pause
between two confirms, at either publisher, is at most two election timeouts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from perf import amqp, disk, handshake, report
from perf.brokers import HOST
from perf.cluster_nodes import ELECTION_S, HEARTBEAT_S, NODES, START_S, Node, Nodes, Shape
from perf.disk import Disk
from perf.percentiles import sparse, summary
from perf.progress import display, say
from perf.run import Progress, RunError
from perf.stubborn import Client, Consumer, Publisher
from perf.workload import Workload

GROUP = "default"
MESSAGES, QUICK_MESSAGES = 1_000_000, 20_000
WINDOW, PAYLOAD = 500, 256
GAP_MAX_S = 2 * ELECTION_S
"""Longest pause between two confirms: what is asked."""

RESUME_S = 30.0
"""Without a confirm for so long after a kill, the run is given up."""

AFTERWARDS_S = 1.0
"""Seconds after confirms have resumed in which a pause still counts for the kill."""

RATE_MIN = 1_000.0
"""Messages per second below which a run is given up."""

QUIET_S = 20.0
"""Consumers that got nothing for so long will get no more."""

POLL_S = 0.01

SHARED = Workload(
    protocol="amqp",
    version=5,
    qos=1,
    shape="all",
    publishers=2,
    subscribers=1,
    payload=PAYLOAD,
    window=WINDOW,
    topic="perf",
)
"""Both publishers have queue 0."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A node was killed when so many messages had been confirmed; the longest pause of each publisher, in seconds."""

    node: str
    after_messages: int
    gaps_s: dict[str, float]

    @property
    def gap_s(self) -> float:
        """The longest."""
        return max(self.gaps_s.values(), default=0.0)


@dataclass(frozen=True, slots=True)
class Taken:
    """Messages of a consumer group. ``lost`` never arrived; ``late`` arrived for the first time after a
    later one of their publisher."""

    group: str
    received: int
    lost: int
    late: int
    repeated: int
    connections: int
    delivery_us: dict[str, float]


@dataclass(frozen=True, slots=True)
class Sent:
    """Result of a publisher. ``repeated``: messages published again; ``refused``: answered with a
    refusal; ``opening_s``: seconds that its newest connection took until it could publish."""

    publisher: str
    repeated: int
    refused: int
    connections: int
    opening_s: float
    confirm_us: dict[str, float]


@dataclass(slots=True)
class Failover:
    """One run."""

    messages: int
    seconds: float = 0.0
    kill: Kill = field(default_factory=lambda: Kill("", 0, {}))
    sent: list[Sent] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        """Requirements that are not met."""
        found = [f"{each.group}: {each.lost} messages lost" for each in self.taken if each.lost]
        found += [f"{each.group}: {each.late} out of order" for each in self.taken if each.late]
        if self.kill.gap_s > GAP_MAX_S:
            found.append(f"no confirms for {self.kill.gap_s:.2f} s")
        return found

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "faults": self.faults()}


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of the command."""
    command.add_argument(
        "--messages",
        type=int,
        help=f"of both publishers: {MESSAGES}, with --quick {QUICK_MESSAGES}",
    )
    command.add_argument("--rounds", type=int, default=1, help="each on three fresh nodes")
    command.add_argument("--quick", action="store_true", help="does it work")
    command.add_argument("--name", default="failover", help="of the files written")
    command.add_argument("--results", type=Path, default=report.RESULTS, help="folder for files")


def log_in(nodes: Nodes) -> None:
    """Once at every node: a node's first look at a password is slow on purpose, and later ones are remembered."""
    for node in nodes.nodes:
        with handshake.dial(HOST, node.addresses.amqp) as connection:
            amqp.open_channel(connection)
            connection.sendall(amqp.close())


def ports(nodes: Nodes, first: Node, protocol: str) -> list[int]:
    """Return the addresses that a client tries: a node, then the others."""
    order = [nodes.nodes[(first.index + step) % NODES] for step in range(NODES)]
    return [n.addresses.amqp if protocol == "amqp" else n.addresses.mqtt for n in order]


def clients(nodes: Nodes, leader: Node, messages: int) -> tuple[list[Publisher], list[Consumer]]:
    """Publishers and consumers: those of AMQP begin at the leader's node, those of MQTT at the next."""
    over_mqtt = SHARED.changed(protocol="queue")
    near = ports(nodes, leader, "amqp")
    far = ports(nodes, nodes.nodes[(leader.index + 1) % NODES], "queue")
    each = messages // 2
    return (
        [Publisher(SHARED, 0, near, each), Publisher(over_mqtt, 1, far, each)],
        [Consumer(SHARED, 0, near, each, 2), Consumer(over_mqtt, 1, far, each, 2)],
    )


def wait(until: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Raises ``RunError`` when it does not become so."""
    deadline = time.monotonic() + timeout_s
    while not until():
        if time.monotonic() > deadline:
            raise RunError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(POLL_S)


def kill(nodes: Nodes, publishers: Sequence[Publisher]) -> Kill:
    """Kill who leads, wait until confirms come again. Raises ``RunError``."""
    leader = nodes.leader(GROUP)
    confirmed = sum(each.confirmed for each in publishers)
    began = time.monotonic()
    for each in publishers:
        each.confirms.watch(began)
    leader.kill()
    gone = time.monotonic()
    wait(
        lambda: all(each.done or each.confirms.last > gone for each in publishers),
        RESUME_S,
        f"confirms after {leader.name} was killed",
    )
    time.sleep(AFTERWARDS_S)
    gaps = {each.label: each.confirms.longest for each in publishers}
    return Kill(leader.name, confirmed, gaps)


def measure(messages: int, progress: Progress | None = None) -> Failover:
    """Run once on three fresh nodes. Raises ``RunError`` or ``BrokerError``."""
    found = Failover(messages // 2 * 2)
    with tempfile.TemporaryDirectory(prefix="perf-failover-", ignore_cleanup_errors=True) as name:
        nodes = Nodes.create(Path(name), Shape())
        threads: list[Client] = []
        try:
            nodes.start()
            log_in(nodes)
            publishers, consumers = clients(nodes, nodes.leader(GROUP), messages)
            threads += consumers
            for consumer in consumers:
                consumer.start()
            wait(lambda: all(c.connected.is_set() for c in consumers), START_S, "consumers")
            threads += publishers
            began = time.monotonic()
            for publisher in publishers:
                publisher.start()
            _await_half(found.messages, publishers, progress)
            found.kill = kill(nodes, publishers)
            wait(
                lambda: all(each.done for each in publishers),
                found.messages / RATE_MIN + RESUME_S,
                "all messages confirmed",
            )
            found.seconds = time.monotonic() - began
            _await_end(consumers)
        finally:
            for thread in threads:
                thread.ended.set()
            for thread in threads:
                thread.join()
            nodes.stop()
    found.sent = [sent(each) for each in publishers]
    found.taken = [taken(each) for each in consumers]
    found.problems = [problem for thread in threads for problem in thread.problems]
    return found


def _await_half(messages: int, publishers: Sequence[Publisher], progress: Progress | None) -> None:
    """Until half of the messages are confirmed."""

    def reached() -> bool:
        confirmed = sum(each.confirmed for each in publishers)
        if progress is not None:
            progress(min(confirmed, messages), messages)
        return confirmed >= messages // 2

    wait(reached, messages / RATE_MIN + RESUME_S, "half of the confirms")


def _await_end(consumers: Sequence[Consumer]) -> None:
    """Until both groups have the last message of each publisher, or nothing comes any more."""
    began = time.monotonic()
    while not all(each.done for each in consumers):
        newest = max(began, *(each.last for each in consumers))
        if time.monotonic() - newest > QUIET_S:
            return
        time.sleep(POLL_S)


def sent(publisher: Publisher) -> Sent:
    """The record of a publisher that has ended."""
    return Sent(
        publisher.label,
        publisher.repeated,
        publisher.refused,
        publisher.connections,
        publisher.opening_s,
        summary(sparse(publisher.latency.counts)),
    )


def taken(consumer: Consumer) -> Taken:
    """The record of a consumer that has ended."""
    return Taken(
        consumer.label,
        consumer.received,
        consumer.missing(),
        consumer.late,
        consumer.repeated(),
        consumer.connections,
        summary(sparse(consumer.delivery.counts)),
    )


KILL_HEAD = [
    "round",
    "killed",
    "after messages",
    "pause at each publisher, s",
    "longest, s",
    "at most, s",
]
SENT_HEAD = [
    *("round", "publisher", "published again", "refused", "connections", "opening the last, s"),
    "confirm p50 / p99 µs",
]
TAKEN_HEAD = [
    *("round", "group", "received", "lost", "out of order", "repeated", "connections"),
    "end to end p50 / p99 µs",
]


def pair(quantiles: dict[str, float]) -> str:
    """Median and 99th percentile."""
    return " / ".join(report.number(quantiles[name]) for name in ("p50", "p99"))


def tables(rounds: Sequence[Failover]) -> list[tuple[list[str], list[list[str]]]]:
    """Return the report's tables."""
    kills, published, consumed = [], [], []
    for number, found in enumerate(rounds, 1):
        each = found.kill
        gaps = ", ".join(f"{name} {gap:.2f}" for name, gap in each.gaps_s.items())
        after = f"{each.after_messages:,}"
        kills.append([str(number), each.node, after, gaps, f"{each.gap_s:.2f}", f"{GAP_MAX_S:g}"])
        for s in found.sent:
            counts = [f"{s.repeated:,}", str(s.refused), str(s.connections), f"{s.opening_s:.2f}"]
            published.append([str(number), s.publisher, *counts, pair(s.confirm_us)])
        for t in found.taken:
            counts = [f"{t.received:,}", str(t.lost), str(t.late), f"{t.repeated:,}"]
            consumed.append(
                [str(number), t.group, *counts, str(t.connections), pair(t.delivery_us)]
            )
    return [(KILL_HEAD, kills), (SENT_HEAD, published), (TAKEN_HEAD, consumed)]


def page(rounds: Sequence[Failover], about: dict[str, Any], measured: Disk) -> str:
    """The record as Markdown."""
    gaps = [found.kill.gap_s for found in rounds]
    messages = sum(found.messages for found in rounds)
    heading = (
        f"{about['time']}; {about['processor']}, {about['cores']} cores, kernel {about['kernel']}, Python"
        f" {about['python']}. Three nodes on this machine, three copies, heartbeat {HEARTBEAT_S * 1000:g} ms, election"
        f" timeout {ELECTION_S:g} s; messages of {PAYLOAD} B, {WINDOW} unconfirmed at each of two publishers.\n\n"
        f"Disk: {measured.sentence()}.\n\n"
        f"{messages:,} messages confirmed in {sum(found.seconds for found in rounds):.1f} s; the leader's node killed"
        f" {len(rounds)} times. Longest pause between two confirms: median {median(gaps):.2f} s, most {max(gaps):.2f} s."
    )
    faults = [f"* round {n}: {f}" for n, found in enumerate(rounds, 1) for f in found.faults()]
    problems = [f"* round {n}: {p}" for n, found in enumerate(rounds, 1) for p in found.problems]
    parts = [
        "# A leader is killed",
        heading,
        *(report.markdown_table(head, rows) for head, rows in tables(rounds)),
        "## What was asked and is not so",
        "\n".join(faults) or "Nothing: 0 lost, order kept, confirms in time.",
        "## What clients were told",
        "\n".join(problems) or "Nothing.",
    ]
    return "\n\n".join(parts) + "\n"


def main(options: argparse.Namespace) -> int:
    """0 when everything asked was so, else 1. Raises ``DiskError``, ``RunError`` and ``BrokerError``."""
    measured = disk.measure()
    say(f"disk: {measured.sentence()}")
    messages = options.messages or (QUICK_MESSAGES if options.quick else MESSAGES)
    rounds: list[Failover] = []
    with display() as announce:
        for number in range(options.rounds):
            title = f"failover: {messages:,} messages, round {number + 1} of {options.rounds}"
            rounds.append(measure(messages, announce(title)))
    about = {"time": report.now(), **report.machine(())}
    plain = [found.plain() for found in rounds]
    record = {"about": about, "disk": measured.plain(), "rounds": plain}
    paths = [options.results / f"{options.name}.json", options.results / f"{options.name}.md"]
    report.write_json(paths[0], record)
    paths[1].write_text(page(rounds, about, measured))
    for head, rows in tables(rounds):
        report.show(head, rows)
    faults = [fault for found in rounds for fault in found.faults()]
    for fault in faults:
        print(f"not so: {fault}")
    print("written:", ", ".join(str(path) for path in paths))
    return 1 if faults else 0
