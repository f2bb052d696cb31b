"""``python -m perf mirror-sync``: a queue with a gigabyte gets mirrors on two more nodes, in FluxMQ and in RabbitMQ.

Three nodes of each. A durable classic queue on the first one is filled; 200 messages a second go on coming, and their times to
the confirm are kept. Then a policy wants the queue on all nodes, synchronised at once. The clock runs until both mirrors are
listed as synchronised, which this process itself asks FluxMQ's node, and an expression within RabbitMQ's node waits for: starting
a control tool for each look takes as much of two cores as a node. RabbitMQ's queue does nothing else meanwhile; it sends batches of
4,096 messages.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fluxmq.cli import main as fluxmqctl
from perf import amqp, backlog, handshake, report
from perf.brokers import HOST
from perf.catch_up import size
from perf.cluster_brokers import STANDARD, Fluxmq
from perf.cluster_nodes import NODES, START_S, Node, control
from perf.cluster_peers import RabbitMQ, check
from perf.failover import wait
from perf.percentiles import sparse, summary
from perf.run import RunError
from perf.stubborn import Publisher
from perf.workload import Workload

BYTES, QUICK_BYTES = 1_000_000_000, 20_000_000
PAYLOAD = 1024
RATE = 200.0
LOAD_MESSAGES = 1_000_000
"""Bound on the load: more than an hour of it."""
BEFORE_S, QUICK_BEFORE_S = 10.0, 2.0
"""Seconds for which the load is watched before."""
SYNC_S = 900.0
LOOK_S = 0.2
"""Between two looks whether the mirrors are synchronised."""
QUEUE = "bulk"
POLICY = (
    "bulk",
    f"^{QUEUE}-",
    '{"ha-mode":"all","ha-sync-mode":"automatic","ha-sync-batch-size":4096}',
)
LISTED = ("-q", "list_queues", "name", "synchronised_slave_pids")
WAITS = f"""
    Name = rabbit_misc:r(<<"/">>, queue, <<"{QUEUE}-0">>),
    Wait = fun (Wait) ->
        {{ok, Queue}} = rabbit_amqqueue:lookup(Name),
        [{{_, Mirrors}}] = rabbit_amqqueue:info(Queue, [synchronised_slave_pids]),
        case is_list(Mirrors) andalso length(Mirrors) of
            {NODES - 1} -> synchronised;
            _ -> timer:sleep({int(LOOK_S * 1000)}), Wait(Wait)
        end
    end,
    Wait(Wait).
"""
"""Waits in a node of RabbitMQ."""

LOAD = Workload(
    protocol="amqp",
    qos=1,
    shape="pairs",
    payload=256,
    window=500,
    mode="single",
    topic=QUEUE,
    declares=False,
)
FILL = LOAD.changed(payload=PAYLOAD, mode="stream")

Control = Callable[[Sequence[str]], tuple[int, str]]
Awaiting = Callable[[float], None]
"""Waits until the mirrors are synchronised, for so many seconds at most."""


@dataclass(frozen=True, slots=True)
class Synchronised:
    """One run. Times to the confirm in microseconds, before and while mirrors are synchronised; ``pause_s``: the longest time
    without a confirm meanwhile; ``gave_up``: how often the publisher connected anew after ten seconds without one."""

    broker: str
    appended: int
    fill_s: float
    seconds: float
    pause_s: float
    gave_up: int
    before_us: dict[str, float]
    during_us: dict[str, float]

    @property
    def bytes_per_s(self) -> float:
        """Bytes that each mirror has got per second."""
        return self.appended / self.seconds


def synchronised_mirrors(listed: str) -> int:
    """Return how many mirrors of the queue a list of queues calls synchronised."""
    for line in listed.splitlines():
        name, _, pids = line.partition("\t")
        if name.strip() == f"{QUEUE}-0":
            return pids.count("<")
    return 0


def await_fluxmq(node: Node, longest: float) -> None:
    """Wait until a node lists both mirrors as synchronised. Raises ``RunError``."""
    until = time.monotonic() + longest
    words = ("--data-dir", str(node.folder / "data"), *LISTED)
    while time.monotonic() < until:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            fluxmqctl.run(words)
        if synchronised_mirrors(said.getvalue()) == NODES - 1:
            return
        time.sleep(LOOK_S)
    raise RunError("the mirrors of fluxmq do not get synchronised")


def measured(
    broker: str, port: int, ask: Control, synchronised: Awaiting, appended: int, before_s: float
) -> Synchronised:
    """Run once on nodes that are up, the first at ``port``. Raises ``RunError`` or ``BrokerError``."""
    with handshake.dial(HOST, port) as connection:
        amqp.open_channel(connection)
        amqp.declare(connection, f"{QUEUE}-0", "", "classic")
        connection.sendall(amqp.close())
    fill_s = backlog.fill(port, appended // PAYLOAD, FILL)
    load = Publisher(LOAD, 0, [port], LOAD_MESSAGES, RATE)
    load.start()
    try:
        wait(load.connected.is_set, START_S, "a publisher")
        time.sleep(before_s / 5)
        load.begin_phase()
        time.sleep(before_s)
        before = summary(sparse(load.latency.counts))
        load.begin_phase()
        began = time.monotonic()
        check(ask(("set_policy", *POLICY)))
        synchronised(SYNC_S)
        seconds = time.monotonic() - began
        pause = load.confirms.longest
        during = summary(sparse(load.latency.counts))
    finally:
        load.ended.set()
        load.join()
    gave_up = len(load.problems)
    return Synchronised(broker, appended, fill_s, seconds, pause, gave_up, before, during)


def fluxmq(appended: int, before_s: float) -> Synchronised:
    """Run once on three new nodes of FluxMQ."""
    cluster = Fluxmq.start(STANDARD)
    try:
        first = cluster.nodes.nodes[0]
        port = first.addresses.amqp
        ask: Control = lambda words: control(first, *words)  # noqa: E731 - a control tool and its node
        awaiting: Awaiting = lambda longest: await_fluxmq(first, longest)  # noqa: E731 - as above
        return measured("fluxmq", port, ask, awaiting, appended, before_s)
    finally:
        cluster.stop()


def rabbitmq(appended: int, before_s: float) -> Synchronised:
    """Run once on three new nodes of RabbitMQ."""
    cluster = RabbitMQ.start()
    try:
        first = cluster.nodes[0]
        ask: Control = lambda words: first.control(*words)  # noqa: E731 - as above
        awaiting: Awaiting = lambda longest: check(  # noqa: E731 - as above
            first.control("eval", WAITS, timeout_s=longest)
        )
        return measured("rabbitmq", first.amqp_port, ask, awaiting, appended, before_s)
    finally:
        cluster.stop()


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of the command."""
    command.add_argument("--bytes", type=size, help="in the queue: 1GB, with --quick 20MB")
    command.add_argument("--quick", action="store_true", help="less of everything")
    command.add_argument("--rounds", type=int, default=1)
    command.add_argument("--name", default="mirror-sync", help="of the files written")
    command.add_argument("--results", type=Path, default=report.RESULTS, help="folder for files")


HEAD = [
    "broker",
    "synchronised in s",
    "MB/s",
    "confirm p50 / p99 before, µs",
    "meanwhile",
    "longest pause, ms",
    "gave up",
]


def rows(runs: Sequence[Synchronised]) -> list[list[str]]:
    """A row for each run."""

    def times(found: dict[str, float]) -> str:
        return " / ".join(report.number(found[name]) for name in ("p50", "p99"))

    return [
        [
            each.broker,
            f"{each.seconds:.1f}",
            f"{each.bytes_per_s / 1e6:.1f}",
            times(each.before_us),
            times(each.during_us),
            report.number(each.pause_s * 1000),
            str(each.gave_up),
        ]
        for each in runs
    ]


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    appended = options.bytes or (QUICK_BYTES if options.quick else BYTES)
    before_s = QUICK_BEFORE_S if options.quick else BEFORE_S
    runs: list[Synchronised] = []
    for _ in range(options.rounds):
        for broker in (fluxmq, rabbitmq):
            runs.append(broker(appended, before_s))
            report.show(HEAD, rows(runs[-1:]))
    report.show(HEAD, rows(runs))
    plain: list[dict[str, Any]] = [asdict(each) for each in runs]
    about = {"time": report.now(), **report.machine()}
    report.write_json(options.results / f"{options.name}.json", {"about": about, "runs": plain})
    return 0
