"""The comparison: every case against every broker, round by round, and what the ratios say.

Brokers of a case are all started first and then measured in turn (A B A B ..., every second round in reverse),
so that a change of the machine meets all of them. A ratio is taken within a round and its median and range
over the rounds are the result: absolute figures of a noisy machine are not compared with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from perf import amqp10_idle, amqp_idle, brokers, cases, drain, idle
from perf.amqp10_cases import LINKS
from perf.amqp10_idle import IdleLinksMeasurement
from perf.amqp_idle import AmqpIdleMeasurement
from perf.backlog import BacklogMeasurement
from perf.brokers import Broker, BrokerError, Running
from perf.cases import Case, Goal
from perf.idle import IdleMeasurement
from perf.progress import Announce
from perf.run import Measurement, Progress, Run, RunError, Timing

Result = (
    Measurement | IdleMeasurement | BacklogMeasurement | AmqpIdleMeasurement | IdleLinksMeasurement
)
ONCE = ("idle", "amqp-idle", "idle-links", "many-links")
"""Kinds of case that are measured in one round."""

COMPARED = (
    cases.THROUGHPUT,
    cases.CPU,
    cases.DELIVERY_P50,
    cases.DELIVERY_P99,
    cases.ACKNOWLEDGEMENT_P50,
    cases.ACKNOWLEDGEMENT_P99,
)
"""Metrics whose ratios every result carries, asked for or not."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A metric of one broker divided by another's, paired by round."""

    subject: str
    against: str | None
    metric: str
    middle: float
    low: float
    high: float
    goal: Goal | None = None

    @property
    def verdict(self) -> str:
        """``pass``, ``aim`` (which is more), ``fail``, or nothing where nothing was asked."""
        if self.goal is None:
            return ""
        if self.goal.met(self.middle, self.goal.aim):
            return "aim"
        return "pass" if self.goal.met(self.middle, self.goal.least) else "fail"


@dataclass(slots=True)
class CaseResult:
    """All rounds of a case: results by broker, in the order of the rounds, and why some are missing.

    ``disk`` is what syncing cost just before, where messages go to a disk.
    """

    case: Case
    results: dict[str, list[Result]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    ratios: list[Ratio] = field(default_factory=list)
    disk: dict[str, Any] = field(default_factory=dict)

    def faults(self) -> list[str]:
        """Faults of the subject apart from its speed: messages lost or out of order."""
        runs = [r for r in self.results.get(self.case.subject, ()) if isinstance(r, Measurement)]
        lost = sum(run.lost for run in runs)
        reordered = sum(run.counts.get("reordered", 0) for run in runs)
        found = [f"lost {lost} messages"] if lost else []
        return found + ([f"reordered {reordered} messages"] if reordered else [])

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "case": self.case.name,
            "title": self.case.title,
            "note": self.case.note,
            "workload": self.case.workload.to_json(),
            "missing": self.missing,
            "disk": self.disk,
            "ratios": [
                {
                    "subject": ratio.subject,
                    "against": ratio.against,
                    "metric": ratio.metric,
                    "median": ratio.middle,
                    "low": ratio.low,
                    "high": ratio.high,
                    "least": ratio.goal.least if ratio.goal else None,
                    "aim": ratio.goal.aim if ratio.goal else None,
                    "verdict": ratio.verdict,
                }
                for ratio in self.ratios
            ],
            "rounds": {
                name: [result.plain() for result in results]
                for name, results in self.results.items()
            },
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """Runs of a comparison. ``peers`` limits the other brokers that take part; ``pin`` puts brokers on
    core 0 and the generator on core 1."""

    names: tuple[str, ...]
    peers: tuple[str, ...]
    rounds: int = 3
    timing: Timing = field(default_factory=Timing)
    workers: int = 1
    version: int = 4
    pin: bool = False
    idle_connections: int = cases.IDLE_CONNECTIONS


def figure(result: Result, metric: str) -> float:
    """One metric of one result; 0 where it was not measured."""
    if isinstance(result, (IdleMeasurement, IdleLinksMeasurement)):
        return result.pss_per_connection if metric == cases.MEMORY else 0.0
    if isinstance(result, AmqpIdleMeasurement):
        of_idle = {cases.MEMORY: result.pss_per_connection, cases.RESTART: result.start_s}
        return of_idle.get(metric, 0.0)
    if isinstance(result, BacklogMeasurement):
        of_backlog = {
            cases.RESTART: result.restart_s,
            cases.BACKLOG_MEMORY: float(result.memory_growth),
        }
        return of_backlog.get(metric, 0.0)
    values: Mapping[str, float] = {
        cases.THROUGHPUT: result.messages_per_s,
        cases.CPU: result.broker_cpu_us,
        cases.DELIVERY_P50: result.delivery_us["p50"],
        cases.DELIVERY_P99: result.delivery_us["p99"],
        cases.ACKNOWLEDGEMENT_P50: result.acknowledgement_us["p50"],
        cases.ACKNOWLEDGEMENT_P99: result.acknowledgement_us["p99"],
    }
    return values.get(metric, 0.0)


def paired(subject: Sequence[Result], against: Sequence[Result] | None, metric: str) -> list[float]:
    """The metric's ratio in each round, or the bare figure where there is nothing to divide by."""
    if against is None:
        return [figure(result, metric) for result in subject]
    pairs = [
        (figure(mine, metric), figure(theirs, metric))
        for mine, theirs in zip(subject, against, strict=True)
    ]
    return [mine / theirs for mine, theirs in pairs if mine and theirs]


def ratios(case: Case, results: Mapping[str, Sequence[Result]]) -> list[Ratio]:
    """The goals of a case first, then the other metrics against the same brokers."""
    asked = {(goal.metric, goal.against): goal for goal in case.goals}
    wanted: list[tuple[str, str | None]] = list(asked)
    for broker in case.brokers()[1:]:
        wanted += [(metric, broker) for metric in COMPARED if (metric, broker) not in asked]
    found = []
    for metric, against in wanted:
        if case.subject not in results or (against is not None and against not in results):
            continue
        theirs = None if against is None else results[against]
        values = paired(results[case.subject], theirs, metric)
        if values:
            goal = asked.get((metric, against))
            middle, low, high = median(values), min(values), max(values)
            found.append(Ratio(case.subject, against, metric, middle, low, high, goal))
    return found


def taking_part(case: Case, peers: Iterable[str]) -> list[str]:
    """The brokers of a case that the plan allows: its own always, others when chosen, by name or by the first word of it."""
    wanted = {cases.SUBJECT, *peers}
    return [n for n in case.brokers() if n in wanted or n.partition("-")[0] in wanted]


def run_case(case: Case, plan: Plan, announce: Announce) -> CaseResult:
    """All rounds of one case. A broker that cannot be started or measured is missing, with the reason."""
    outcome = CaseResult(case)
    running: dict[str, Running] = {}
    try:
        for name in taking_part(case, plan.peers):
            try:
                running[name] = brokers.start(name, "0" if plan.pin else None)
            except (BrokerError, OSError) as error:
                outcome.missing[name] = str(error)
        rounds = 1 if case.kind in ONCE else plan.rounds
        for number in range(rounds):
            names = list(running) if number % 2 == 0 else list(reversed(running))
            for name in [name for name in names if name not in outcome.missing]:
                progress = announce(f"{case.name}: round {number + 1} of {rounds}, {name}")
                try:
                    result = measure(case, running[name], plan, progress)
                except (RunError, BrokerError, OSError) as error:
                    outcome.missing[name] = str(error)
                    outcome.results.pop(name, None)
                    continue
                outcome.results.setdefault(name, []).append(result)
    finally:
        for broker in running.values():
            broker.stop()
    outcome.ratios = ratios(case, outcome.results)
    return outcome


def measure(case: Case, broker: Running, plan: Plan, progress: Progress | None) -> Result:
    """One run of a case against one broker. Raises ``RunError`` or ``OSError``."""
    if case.kind != "run":
        assert isinstance(broker, Broker)
        return measure_otherwise(case, broker, plan, progress)
    workload = case.workload_for(broker.name)
    if case.adapt is None:
        workload = workload.changed(version=plan.version)
    cores = (1,) if plan.pin else ()
    processes = max(plan.workers, case.processes)
    with broker.prepared(workload, plan.timing) as ready:
        run = Run(ready.target, ready.workload, plan.timing, processes, ready.cores or cores)
        found = run.measure(progress)
    found.counts.update(ready.counts)
    if not found.messages_per_s:
        raise RunError(f"nothing arrived of {found.counts['sent']} messages sent")
    return found


def measure_otherwise(case: Case, broker: Broker, plan: Plan, progress: Progress | None) -> Result:
    """A case that is not one run of the generator."""
    if case.kind == "idle":
        return idle.measure(broker.target(), plan.idle_connections, plan.version, progress)
    workload = case.workload_for(broker.name)
    if case.kind == "amqp-idle":
        connections = plan.idle_connections
        return amqp_idle.measure(broker, workload.queue_type, connections, progress=progress)
    if case.kind in ("idle-links", "many-links"):
        links = LINKS if case.kind == "many-links" else 2
        protocol, connections = workload.protocol, plan.idle_connections
        return amqp10_idle.measure(broker, protocol, connections, links, progress)
    return drain.measure(broker.target(), workload, progress=progress)
