"""``python -m perf queue``, ``amqp``, ``amqp10`` and ``cluster``: durable queues of FluxMQ and its peers in the same interleaved rounds.

Runs the cases of a suite by the rules of ``perf.compare``, measures the disk before each of them, and writes one
page, one picture and one JSON file. A figure never stands without the disk's sync time.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from perf import amqp_brokers, backlog, brokers, cases, cluster_cases, disk, plots, report
from perf.amqp10_cases import AMQP10_CASES
from perf.amqp10_idle import IdleLinksMeasurement
from perf.amqp_cases import AMQP_CASES
from perf.amqp_idle import AmqpIdleMeasurement
from perf.artemis import ARTEMIS
from perf.backlog import BacklogMeasurement
from perf.cases import Case
from perf.compare import CaseResult, Plan, Result, ratios, run_case
from perf.disk import Disk
from perf.durable import (
    FLUXMQ,
    JETSTREAM,
    JETSTREAM_SYNC,
    JETSTREAM_WORK,
    RABBIT_AMQP,
    RABBIT_MQTT,
)
from perf.lavinmq import LAVINMQ
from perf.progress import Announce, display, say
from perf.queue_cases import QUEUE_CASES
from perf.run import Measurement, RunError, Timing
from perf.workload import WorkloadError

ROUNDS = 5
QUICK = Timing(0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Suite:
    """Runs of a command. ``name``: of the files written."""

    name: str
    title: str
    peers: tuple[str, ...]
    cases: Mapping[str, Case]
    sentence: str


QUEUE = Suite(
    "queue",
    "Durable queues",
    (RABBIT_AMQP, RABBIT_MQTT, JETSTREAM, JETSTREAM_SYNC, JETSTREAM_WORK),
    QUEUE_CASES,
    "FluxMQ: one shard, fsync before PUBACK.",
)
AMQP = Suite(
    "amqp",
    "Durable queues over AMQP 0.9.1",
    (
        *(amqp_brokers.CLASSIC, amqp_brokers.QUORUM, amqp_brokers.STREAM),
        *(LAVINMQ, JETSTREAM, JETSTREAM_SYNC),
    ),
    AMQP_CASES,
    "FluxMQ: one shard, quorum queues, fsync before basic.ack.",
)
AMQP10 = Suite(
    "amqp10",
    "Durable queues over AMQP 1.0",
    (amqp_brokers.RABBIT_10, ARTEMIS),
    AMQP10_CASES,
    "FluxMQ: one shard, quorum queues, fsync before a disposition; its own AMQP 0.9.1 is what it is compared with.",
)
CLUSTER = Suite(
    "cluster",
    "Queues of three copies on three nodes",
    ("rabbitmq", "nats"),
    cluster_cases.CLUSTER_CASES,
    "Three nodes of each on this machine, three copies. FluxMQ: one shard a node unless said otherwise, a majority synced"
    " before it confirms; RabbitMQ: quorum queues, as much; JetStream: R3 streams in files, which are not synced.",
)
SUITES: Mapping[str, Suite] = {suite.name: suite for suite in (QUEUE, AMQP, AMQP10, CLUSTER)}
"""By the names of their commands."""

HEAD = [
    *("case", "broker", "msg/s", "range", "CPU µs/msg", "end to end p50 / p99 µs"),
    *("confirm p50 / p99 µs", "cores broker / generator", "sync p50 / p99 µs", "lost"),
]
BACKLOG_HEAD = [
    *("messages", "fill msg/s", "on disk", "resident growth", "anonymous growth"),
    *("start after", "ready s", "first delivery s", "ready s when empty"),
]
IDLE_HEAD = [
    *("broker", "connections", "B each", "made per s"),
    *("queues", "B each", "made per s", "start s"),
]
LINKS_HEAD = [
    "case",
    "broker",
    "connections",
    "B each",
    "range",
    "made per s",
    "B per further link",
]


def add_options(command: argparse.ArgumentParser, suite: Suite) -> None:
    """The options of a suite's command beside those of timing."""
    command.add_argument("--peers", default=",".join(suite.peers), help="comma-separated")
    command.add_argument("--cases", default=",".join(suite.cases), help="comma-separated")
    command.add_argument("--rounds", type=int, default=ROUNDS)
    command.add_argument("--name", default=suite.name, help="of the files written")
    if suite is CLUSTER:
        command.add_argument(
            "--quick", action="store_true", help="one round of a second each: does everything work"
        )
        return
    command.add_argument(
        "--connections", type=int, default=cases.IDLE_CONNECTIONS, help="that are idle"
    )
    command.add_argument("--messages", type=int, default=backlog.MESSAGES, help="of the backlog")
    command.add_argument("--pin", action="store_true", help="brokers on core 0, generator on 1")


def run_backlog(name: str, messages: int, announce: Announce) -> CaseResult:
    """The backlog case: one run, FluxMQ alone."""
    outcome = CaseResult(QUEUE_CASES[name])
    progress = announce(f"{name}: {messages} messages")
    try:
        measured: list[Result] = [backlog.measure(messages, progress=progress)]
        outcome.results[FLUXMQ] = measured
    except (RunError, OSError) as error:
        outcome.missing[FLUXMQ] = str(error)
    outcome.ratios = ratios(outcome.case, outcome.results)
    return outcome


def spread(values: Sequence[float]) -> str:
    """Least and most."""
    return f"{report.number(min(values))} to {report.number(max(values))}"


def rows(result: CaseResult) -> list[list[str]]:
    """Medians of each broker of a case; the sync time is the disk's of 4 KiB before the case."""
    found = []
    first = result.disk["syncs"][0] if result.disk else {"p50_us": 0.0, "p99_us": 0.0}
    for name, measured in result.results.items():
        runs = [run for run in measured if isinstance(run, Measurement)]
        if not runs:
            continue

        def pair(kind: str, runs: list[Measurement] = runs) -> str:
            values = [getattr(run, kind) for run in runs]
            return " / ".join(report.number(median(v[q] for v in values)) for q in ("p50", "p99"))

        broker = median(run.broker_cores for run in runs)
        generator = median(run.generator_cores for run in runs)
        rates = [run.messages_per_s for run in runs]
        found.append(
            [
                result.case.title,
                brokers.labelled(name),
                report.number(median(rates)),
                spread(rates),
                report.number(median(run.broker_cpu_us for run in runs)),
                pair("delivery_us"),
                pair("acknowledgement_us"),
                f"{broker:.2f} / {generator:.2f}",
                f"{first['p50_us']:.0f} / {first['p99_us']:.0f}",
                str(sum(run.lost for run in runs)),
            ]
        )
    return found


def backlog_rows(result: CaseResult) -> list[list[str]]:
    """A row for each start with the backlog."""
    found = []
    for measured in result.results.get(FLUXMQ, ()):
        if not isinstance(measured, BacklogMeasurement):
            continue
        found += [
            [
                f"{measured.messages:,}",
                report.number(measured.messages / measured.fill_s),
                f"{measured.data_bytes / 1e6:,.0f} MB",
                f"{measured.memory_growth / 1e6:,.1f} MB",
                f"{measured.anonymous_growth / 1e6:,.1f} MB",
                start.after,
                f"{start.ready_s:.2f}",
                f"{start.first_delivery_s:.2f}",
                f"{measured.empty_start_s:.2f}",
            ]
            for start in measured.restarts
        ]
    return found


def idle_rows(result: CaseResult) -> list[list[str]]:
    """A row for each broker with idle connections and queues."""
    return [
        [
            name,
            f"{each.connections:,}",
            report.number(each.pss_per_connection),
            report.number(each.connections_per_s),
            f"{each.queues:,}",
            report.number(each.pss_per_queue),
            report.number(each.queues_per_s),
            f"{each.start_s:.2f}",
        ]
        for name, measured in result.results.items()
        for each in measured
        if isinstance(each, AmqpIdleMeasurement)
    ]


def link_rows(result: CaseResult) -> list[list[str]]:
    """A row for each broker with idle links or consumers: medians."""
    found = []
    for name, measured in result.results.items():
        each = [one for one in measured if isinstance(one, IdleLinksMeasurement)]
        if each:
            bytes_each = [one.pss_per_connection for one in each]
            further = median(one.pss_per_link for one in each)
            found.append(
                [
                    result.case.title,
                    name,
                    f"{each[0].connections:,}",
                    report.number(median(bytes_each)),
                    spread(bytes_each),
                    report.number(median(one.connections_per_s for one in each)),
                    report.number(further) if each[0].links > 2 else "",
                ]
            )
    return found


def faults(result: CaseResult) -> list[str]:
    """Return FluxMQ's faults apart from its speed, in every role that it has in a case."""
    found = result.faults()
    for name in result.missing:
        if name.startswith(cases.SUBJECT):
            found.append(f"{name} could not be measured: {result.missing[name]}")
    return found


def page(
    results: Sequence[CaseResult],
    plan: Plan,
    about: dict[str, Any],
    measured: Disk,
    suite: Suite = QUEUE,
) -> str:
    """The whole comparison as Markdown."""
    heading = (
        f"{report.heading(plan, about)}\n\n"
        f"Disk: {measured.sentence()}.\n\n{suite.sentence} A message counts when it is"
        " both confirmed to its publisher and acknowledged by its consumer."
    )
    listed = [cells for result in results for cells in rows(result)]
    stored = [cells for result in results for cells in backlog_rows(result)]
    resting = [cells for result in results for cells in idle_rows(result)]
    linked = [cells for result in results for cells in link_rows(result)]
    notes = [f"* {r.case.title}: {r.case.note}" for r in results if r.case.note]
    notes += [f"* {r.case.title}: {fault}" for r in results for fault in faults(r)]
    notes += [
        f"* {r.case.title}: {name} is missing: {(reason.splitlines() or [''])[-1]}"
        for r in results
        for name, reason in r.missing.items()
        if not name.startswith(cases.SUBJECT)
    ]
    others = [report.row(r, ratio)[:5] for r in results for ratio in r.ratios if not ratio.goal]
    parts = [
        f"# {suite.title}",
        heading,
        "## What was asked",
        report.markdown_table(report.RATIO_HEAD, report.goal_rows(results)),
        "## Figures (medians)",
        report.markdown_table(HEAD, listed),
        *(["## Backlog", report.markdown_table(BACKLOG_HEAD, stored)] if stored else []),
        *(["## Idle", report.markdown_table(IDLE_HEAD, resting)] if resting else []),
        *(["## Idle links", report.markdown_table(LINKS_HEAD, linked)] if linked else []),
        "## Other ratios",
        report.markdown_table(report.RATIO_HEAD[:5], others),
        "## Notes",
        "\n".join(notes) or "None.",
    ]
    return "\n\n".join(parts) + "\n"


def write(
    results: Sequence[CaseResult],
    plan: Plan,
    measured: Disk,
    folder: Path,
    name: str,
    suite: Suite = QUEUE,
) -> list[Path]:
    """JSON, Markdown and picture; the paths written."""
    about = {"time": report.now(), **report.machine(("nats", "rabbitmq", "lavinmq"))}
    record = {
        "about": about,
        "disk": measured.plain(),
        "rounds": plan.rounds,
        "warmup_s": plan.timing.warmup_s,
        "duration_s": plan.timing.duration_s,
        "pinned": plan.pin,
        "cases": [result.plain() for result in results],
    }
    paths = [folder / f"{name}.json", folder / f"{name}.md"]
    report.write_json(paths[0], record)
    paths[1].write_text(page(results, plan, about, measured, suite))
    picture = folder / f"{name}.png"
    return [*paths, picture] if plots.ratios(picture, results) else paths


def main(options: argparse.Namespace) -> int:
    """A suite: 0 when every goal was met and nothing lost, else 1. Raises ``DiskError`` and others."""
    suite = SUITES[options.command]
    names = tuple(name for name in options.cases.split(",") if name)
    if unknown := [name for name in names if name not in suite.cases]:
        raise WorkloadError(f"no such case: {', '.join(unknown)}")
    plan = Plan(
        names=names,
        peers=tuple(options.peers.split(",")),
        rounds=options.rounds,
        timing=Timing(options.warmup, options.duration),
        workers=options.processes,
    )
    if suite is not CLUSTER:
        plan = replace(plan, pin=options.pin, idle_connections=options.connections)
    elif options.quick:
        plan = replace(plan, rounds=1, timing=QUICK)
    measured = disk.measure()
    say(f"disk: {measured.sentence()}")
    results: list[CaseResult] = []
    with display() as announce:
        for name in names:
            before = disk.measure().plain()
            if suite.cases[name].kind == "backlog":
                results.append(run_backlog(name, options.messages, announce))
            else:
                results.append(run_case(suite.cases[name], plan, announce))
            results[-1].disk = before
            for broker, reason in results[-1].missing.items():
                say(f"{name}: {broker} is missing: {reason}")
    written = write(results, plan, measured, options.results, options.name, suite)
    print(f"disk: {measured.sentence()}")
    report.show(report.RATIO_HEAD, report.goal_rows(results))
    report.show(HEAD, [cells for result in results for cells in rows(result)])
    if stored := [cells for result in results for cells in backlog_rows(result)]:
        report.show(BACKLOG_HEAD, stored)
    if resting := [cells for result in results for cells in idle_rows(result)]:
        report.show(IDLE_HEAD, resting)
    if linked := [cells for result in results for cells in link_rows(result)]:
        report.show(LINKS_HEAD, linked)
    print("written:", ", ".join(str(path) for path in written))
    missed = any(ratio.verdict == "fail" for r in results for ratio in r.ratios)
    return 1 if missed or any(faults(result) for result in results) else 0
