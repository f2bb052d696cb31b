"""``python -m perf cores``: the cost of a message by a node's number of shards, and a model of more cores than this machine has.

Nodes with more and more shards run on the cores that there are, one after the other, at a rate that they all keep up with;
the processor time of all their processes, less what they take without messages, is counted for each message. The publisher
and the subscriber are on one shard, or on two; other shards have nothing to do. From the costs with the most shards follows
how many messages a second so many cores carry (`capacity`). The assumptions are in docs/many-cores.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from perf import processes, report
from perf.brokers import Broker, start_fluxmq
from perf.cases import shard_of
from perf.progress import say
from perf.run import Run, Timing
from perf.workload import Workload

SHARDS = (1, 2, 16, 64)
MODELLED = (2, 4, 8, 16, 32, 64)
SETTLE_S = 4.0
"""From the first answer until all shards have started."""
LONE = Workload(qos=1, mode="single", rate=500.0)
STREAM = Workload(rate=50_000.0)
COSTS_HEAD = (
    "shards",
    "idle, ms/s",
    "lone, together",
    "lone, apart",
    "streamed, together",
    "streamed, apart",
)
CAPACITY_HEAD = ("cores", "lone messages/s", "streamed messages/s")


@dataclass(frozen=True, slots=True)
class Costs:
    """Microseconds of processor time a message, by where its publisher and subscriber are. ``idle``: milliseconds a second
    without messages."""

    shards: int
    idle: float
    lone_together: float
    lone_apart: float
    stream_together: float
    stream_apart: float


def capacity(shards: int, together: float, apart: float) -> float:
    """Return how many messages a second cores carry, a shard on each, whose clients are anywhere: one of so many
    subscribers is on its publisher's shard. ``together``, ``apart``: microseconds of all shards for a message."""
    return shards * 1e6 / (together / shards + apart * (1 - 1 / shards))


def with_shards(workload: Workload, shards: int, apart: bool) -> Workload:
    """Return a workload whose publisher is on shard 0, and whose subscriber is there or on the last shard."""
    place = shard_of()

    def client(role: str, shard: int) -> str:
        numbers = (f"cores-{role}{number}" for number in range(1 << 20))
        return next(name for name in numbers if place(name.encode(), shards) == shard)

    subscriber = client("s", shards - 1 if apart else 0)
    return workload.changed(publisher_ids=(client("p", 0),), subscriber_ids=(subscriber,))


def resting(broker: Broker, seconds: float) -> float:
    """Return the milliseconds of processor time that a broker takes in a second without messages."""
    time.sleep(SETTLE_S)
    pids = processes.tree((broker.process.pid,))
    before, began = processes.cpu_seconds(pids), time.monotonic()
    time.sleep(seconds)
    return (processes.cpu_seconds(pids) - before) / (time.monotonic() - began) * 1e3


def measured(
    counts: Sequence[int], rounds: int, timing: Timing, say: Callable[[str], None]
) -> list[Costs]:
    """Return the costs with each number of shards, medians of the rounds. Raises ``BrokerError`` and ``RunError``."""
    seen: dict[tuple[int, str], list[float]] = {}
    for turn in range(rounds):
        for count in counts:
            broker = start_fluxmq(f"fluxmq-{count}", count)
            try:
                idle = resting(broker, timing.duration_s)
                seen.setdefault((count, "idle"), []).append(idle)
                for kind, workload in (("lone", LONE), ("stream", STREAM)):
                    for place in ("together", "apart") if count > 1 else ("together",):
                        placed = with_shards(workload, count, place == "apart")
                        run = Run(broker.target(), placed, timing)
                        cost = run.measure().broker_cpu_us - idle * 1e3 / workload.rate
                        seen.setdefault((count, f"{kind}_{place}"), []).append(cost)
                        say(f"round {turn + 1}: {count} shards, {kind}, {place}: {cost:.2f} µs")
            finally:
                broker.stop()
    names = ("idle", "lone_together", "lone_apart", "stream_together", "stream_apart")
    return [
        Costs(count, *(median(seen.get((count, name), [0.0])) for name in names))
        for count in counts
    ]


def cost_rows(costs: Sequence[Costs]) -> list[list[str]]:
    """Return the rows of ``COSTS_HEAD``."""
    rows = []
    for each in costs:
        shards, *values = asdict(each).values()
        rows.append([str(shards), *(f"{value:.2f}" if value else "" for value in values)])
    return rows


def capacity_rows(costs: Costs) -> list[list[str]]:
    """Return the rows of ``CAPACITY_HEAD``, by the costs of one number of shards."""
    lone, stream = (
        (costs.lone_together, costs.lone_apart),
        (costs.stream_together, costs.stream_apart),
    )
    return [
        [str(cores), *(f"{capacity(cores, *each):,.0f}" for each in (lone, stream))]
        for cores in MODELLED
    ]


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument("--shards", type=int, nargs="+", default=list(SHARDS))
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--duration", type=float, default=3.0, help="seconds measured")
    command.add_argument("--warmup", type=float, default=1.0, help="seconds before")
    command.add_argument("--name", default="cores", help="of the files written")
    command.add_argument("--results", type=Path, default=report.RESULTS, help="folder for files")


def main(options: argparse.Namespace) -> int:
    """Measure, print and record."""
    costs = measured(options.shards, options.rounds, Timing(options.warmup, options.duration), say)
    report.show(COSTS_HEAD, cost_rows(costs))
    report.show(CAPACITY_HEAD, capacity_rows(costs[-1]))
    record = {
        "time": report.now(),
        **report.machine(),
        "rounds": options.rounds,
        "microseconds": [asdict(each) for each in costs],
    }
    report.write_json(options.results / f"{options.name}.json", record)
    return 0
