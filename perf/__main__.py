"""The command line: ``python -m perf mqtt | nats | compare | queue | amqp | amqp10 | cluster | failover | catch_up | roaming | node-loss | resting | wakeups | cores | observers | queue-pages | mirror-sync | cases | micro``; see ``perf/README.md``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from perf import (
    catch_up,
    cores,
    failover,
    idle,
    mirror_sync,
    node_loss,
    observers,
    plots,
    queue,
    queue_pages,
    report,
    resting,
    roaming,
    wakeups,
)
from perf.brokers import BrokerError
from perf.cases import CASES, IDLE_CONNECTIONS
from perf.compare import CaseResult, Plan, run_case
from perf.micro import run_all
from perf.progress import display, say
from perf.run import Measurement, Run, RunError, Target, Timing
from perf.worker import raise_descriptor_limit
from perf.workload import Workload, WorkloadError

HOST = "127.0.0.1"


def parser() -> argparse.ArgumentParser:
    """All commands and options."""
    top = argparse.ArgumentParser(prog="python -m perf", description="measure MQTT brokers")
    commands = top.add_subparsers(dest="command", required=True)
    mqtt = commands.add_parser("mqtt", help="load one MQTT broker")
    _generator_options(mqtt, 1883)
    mqtt.add_argument("--qos", type=int, choices=(0, 1, 2))
    mqtt.add_argument("--subscriber-qos", type=int, choices=(0, 1, 2))
    mqtt.add_argument(
        "--protocol-version", dest="version", type=int, choices=(4, 5), help="4 is MQTT 3.1.1"
    )
    mqtt.add_argument("--window", type=int, help="unacknowledged per publisher, QoS 1 and 2")
    mqtt.add_argument("--connections", type=int, default=IDLE_CONNECTIONS, help="of case idle")
    nats = commands.add_parser("nats", help="load one NATS server (core)")
    _generator_options(nats, 4222)
    compare = commands.add_parser("compare", help="FluxMQ against installed peers")
    compare.add_argument("--peers", default="mosquitto,nats", help="comma-separated")
    compare.add_argument("--cases", default=",".join(CASES), help="comma-separated")
    compare.add_argument("--rounds", type=int, default=3)
    compare.add_argument("--connections", type=int, default=IDLE_CONNECTIONS, help="of case idle")
    compare.add_argument("--protocol-version", dest="version", type=int, choices=(4, 5), default=4)
    compare.add_argument("--name", default="compare", help="of the files written")
    compare.add_argument("--pin", action="store_true", help="brokers on core 0, generator on 1")
    _timing_options(compare)
    for suite, text in (
        (queue.QUEUE, "durable queues against installed peers"),
        (queue.AMQP, "durable queues over AMQP 0.9.1 against installed peers"),
        (queue.AMQP10, "durable queues over AMQP 1.0 against AMQP 0.9.1 and installed peers"),
        (queue.CLUSTER, "queues of three copies on three nodes against installed peers"),
    ):
        durable = commands.add_parser(suite.name, help=text)
        queue.add_options(durable, suite)
        _timing_options(durable)
    follower = commands.add_parser("catch_up", help="a follower comes back after a gigabyte")
    catch_up.add_options(follower)
    failover.add_options(commands.add_parser("failover", help="a leader's node is killed"))
    roaming.add_options(commands.add_parser("roaming", help="clients go from node to node"))
    node_loss.add_options(
        commands.add_parser("node-loss", help="a node with many sessions is killed")
    )
    resting.add_options(commands.add_parser("resting", help="nodes without anything to do"))
    queue_pages.add_options(
        commands.add_parser("queue-pages", help="pages of the list of very many queues")
    )
    wakeups.add_options(commands.add_parser("wakeups", help="what wakes idle processes"))
    cores.add_options(
        commands.add_parser("cores", help="nodes with many shards, and a model of as many cores")
    )
    observers.add_options(
        commands.add_parser("observers", help="scrapes and open pages beside messages")
    )
    mirror_sync.add_options(
        commands.add_parser("mirror-sync", help="a full queue gets mirrors on two more nodes")
    )
    commands.add_parser("cases", help="list the cases")
    micro = commands.add_parser("micro", help="micro-benchmarks of the codecs, trie and ring")
    micro.add_argument("--seconds", type=float, default=0.5, help="for each")
    return top


def _timing_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--duration", type=float, default=3.0, help="seconds measured")
    command.add_argument("--warmup", type=float, default=1.0, help="seconds before")
    command.add_argument(
        "--processes", type=int, default=1, help="of the generator; from 2 on one half publishes"
    )
    command.add_argument("--results", type=Path, default=report.RESULTS, help="folder for files")


def _generator_options(command: argparse.ArgumentParser, port: int) -> None:
    command.add_argument("--host", default=HOST)
    command.add_argument("--port", type=int, default=port)
    command.add_argument("--case", choices=sorted(CASES), help="start from a case's workload")
    command.add_argument("--publishers", type=int)
    command.add_argument("--subscribers", type=int)
    command.add_argument("--shape", choices=("all", "pairs"), help="who hears whom")
    command.add_argument("--mode", choices=("stream", "single"), help="messages per send")
    command.add_argument("--payload", type=int, help="bytes")
    command.add_argument("--outstanding", type=int, help="most deliveries under way")
    command.add_argument("--rate", type=float, help="messages/s in all (open loop)")
    command.add_argument("--rounds", type=int, default=1)
    command.add_argument("--pid", type=int, action="append", default=[], help="of the broker")
    command.add_argument("--core", type=int, action="append", default=[], help="for the generator")
    command.add_argument("--name", help="of the files written")
    _timing_options(command)


def workload(options: argparse.Namespace) -> Workload:
    """The case's workload, or the plainest one, with what the options change. Raises ``WorkloadError``."""
    base = CASES[options.case].workload if options.case else Workload()
    names = (
        *("publishers", "subscribers", "shape", "mode", "payload", "outstanding", "rate"),
        *("qos", "subscriber_qos", "version", "window"),
    )
    changes: dict[str, Any] = {
        name: getattr(options, name) for name in names if getattr(options, name, None) is not None
    }
    if options.command == "nats":
        changes["protocol"] = "nats"
    chosen = base.changed(**changes)
    chosen.check()
    return chosen


def load(options: argparse.Namespace) -> int:
    """``mqtt`` and ``nats``: run one workload against a broker that is already there."""
    target = Target(options.command, options.host, options.port, tuple(options.pid))
    name = options.name or f"{options.command}-{options.case or 'run'}"
    if options.case == "idle":
        with display() as announce:
            progress = announce("idle")
            found = idle.measure(target, options.connections, options.version or 4, progress)
        report.write_json(options.results / f"{name}.json", {"idle": found.plain()})
        for key, value in found.plain().items():
            print(f"{key}: {value}")
        return 0
    chosen = workload(options)
    timing = Timing(options.warmup, options.duration)
    runs: list[Measurement] = []
    for number in range(options.rounds):
        with display() as announce:
            progress = announce(f"{name}, round {number + 1} of {options.rounds}")
            run = Run(target, chosen, timing, options.processes, options.core)
            runs.append(run.measure(progress))
    report.write_json(
        options.results / f"{name}.json",
        {
            "about": {"time": report.now(), **report.machine()},
            "workload": chosen.to_json(),
            "runs": [run.plain() for run in runs],
        },
    )
    plots.latency(options.results / f"{name}.png", name, runs)
    _print_runs(runs)
    return 0


def _print_runs(runs: Sequence[Measurement]) -> None:
    report.show(
        ["", *(f"round {number + 1}" for number in range(len(runs))), "median"],
        [
            [title, *(report.number(value) for value in values), report.number(median(values))]
            for title, values in (
                ("msg/s", [run.messages_per_s for run in runs]),
                ("broker CPU µs/msg", [run.broker_cpu_us for run in runs]),
                ("broker cores", [run.broker_cores for run in runs]),
                ("generator cores", [run.generator_cores for run in runs]),
                ("delivery p50 µs", [run.delivery_us["p50"] for run in runs]),
                ("delivery p99 µs", [run.delivery_us["p99"] for run in runs]),
                ("ack p50 µs", [run.acknowledgement_us["p50"] for run in runs]),
                ("ack p99 µs", [run.acknowledgement_us["p99"] for run in runs]),
                ("lost", [float(run.lost) for run in runs]),
                ("reordered", [float(run.counts["reordered"]) for run in runs]),
            )
        ],
    )


def compare(options: argparse.Namespace) -> int:
    """``compare``: 0 when every goal that could be judged was met, else 1."""
    names = tuple(name for name in options.cases.split(",") if name)
    if unknown := [name for name in names if name not in CASES]:
        raise WorkloadError(f"no such case: {', '.join(unknown)}")
    plan = Plan(
        names=names,
        peers=tuple(options.peers.split(",")),
        rounds=options.rounds,
        timing=Timing(options.warmup, options.duration),
        workers=options.processes,
        version=options.version,
        pin=options.pin,
        idle_connections=options.connections,
    )
    results: list[CaseResult] = []
    with display() as announce:
        for name in names:
            results.append(run_case(CASES[name], plan, announce))
            for broker, reason in results[-1].missing.items():
                say(f"{name}: {broker} is missing: {reason}")
    written = report.write_comparison(results, plan, options.results, options.name)
    picture = options.results / f"{options.name}.png"
    if plots.ratios(picture, results):
        written.append(picture)
    report.show(report.RATIO_HEAD, report.goal_rows(results))
    report.show(report.ABSOLUTE_HEAD, [c for r in results for c in report.absolute_rows(r)])
    print("written:", ", ".join(str(path) for path in written))
    missed = any(ratio.verdict == "fail" for r in results for ratio in r.ratios)
    broken = any(r.case.subject in r.missing or r.faults() for r in results)
    return 1 if missed or broken else 0


SPECIAL: Final = {
    "catch_up": catch_up.main,
    "mirror-sync": mirror_sync.main,
    "failover": failover.main,
    "node-loss": node_loss.main,
    "observers": observers.main,
    "queue-pages": queue_pages.main,
    "resting": resting.main,
    "cores": cores.main,
    "wakeups": wakeups.main,
    "roaming": roaming.main,
}
"""Commands with modules of their own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 (goals missed) or 2 (could not run)."""
    options = parser().parse_args(arguments)
    raise_descriptor_limit()
    try:
        if options.command == "compare":
            return compare(options)
        if options.command in queue.SUITES:
            return queue.main(options)
        if options.command in SPECIAL:
            return SPECIAL[options.command](options)
        if options.command == "cases":
            suites = (CASES, *(suite.cases for suite in queue.SUITES.values()))
            for case in [case for found in suites for case in found.values()]:
                print(f"{case.name:22} {case.title}")
            return 0
        if options.command == "micro":
            rows = run_all(options.seconds)
            report.show(["benchmark", "ns per item", "items/s"], [row.cells() for row in rows])
            return 0
        return load(options)
    except (RunError, WorkloadError, BrokerError, OSError) as error:
        say(f"{type(error).__name__}: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
