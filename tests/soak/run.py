"""One soak: a node of real processes under load, and what they hold in memory meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.broker import HOST, Broker, free_port, running_broker
from tests.soak.memory import Growth, Sample, growth, held_by
from tests.soak.traffic import Beat, Replies

SAMPLE_SECONDS = 1.0
WARM_UP_SHARE = 0.4
WARM_UP_SECONDS_MAX = 300.0
"""Of a run nothing is counted in its first part: caches fill, and the control process remembers its last 4,096 changes."""


@dataclass(frozen=True)
class Plan:
    """What to do: for how long, with how many shards, reply queues and MQTT messages a second."""

    seconds: float
    workers: int = 1
    queues: float = 100.0
    messages: float = 100.0

    @property
    def warm_up(self) -> float:
        """Seconds that do not count."""
        return min(self.seconds * WARM_UP_SHARE, WARM_UP_SECONDS_MAX)


@dataclass(frozen=True)
class Report:
    """What came of it. ``queues``: after the warm-up; ``pauses``: seconds that shards collected garbage, and how often."""

    plan: Plan
    queues: int
    queues_in_all: int
    messages: int
    growth: Sequence[Growth]
    pauses: tuple[float, int]

    @property
    def fine(self) -> bool:
        """Whether no process grows."""
        return all(each.fine for each in self.growth)

    def lines(self) -> list[str]:
        """For people."""
        plan = self.plan
        rate = self.queues_in_all / plan.seconds
        found = [
            f"{plan.seconds:.0f} s, {self.queues_in_all} queues ({rate:.0f}/s), {self.messages} MQTT messages",
            f"counted after {plan.warm_up:.0f} s: {self.queues} queues",
            f"garbage collections of shards: {self.pauses[1]}, {self.pauses[0] * 1000:.0f} ms in all",
            f"{'PROCESS':<12}{'RSS, MiB':>18}{'PSS, MiB':>18}{'GROWTH':>10}{'ALLOWED':>10}{'PER QUEUE':>11}",
        ]
        for each in self.growth:
            rss = f"{mib(each.first.rss)} -> {mib(each.last.rss)}"
            pss = f"{mib(each.first.pss)} -> {mib(each.last.pss)}"
            grown, allowed = mib(each.grown), mib(each.allowed)
            per_queue = f"{each.grown / max(self.queues, 1):.0f} B"
            said = "" if each.fine else "  GROWS"
            found.append(
                f"{each.role:<12}{rss:>18}{pss:>18}{grown:>10}{allowed:>10}{per_queue:>11}{said}"
            )
        return found


def mib(size: float) -> str:
    """Bytes, in MiB."""
    return f"{size / (1 << 20):.1f}"


def soak(directory: Path, plan: Plan) -> Report:
    """Start a node, use it, end it. Raises AssertionError when a message is lost or a process dies."""
    amqp_port = free_port()
    settings = {
        "server": {"amqp": {"tcp": {"addr": f"{HOST}:{amqp_port}"}}},
        "log": {"level": "warning"},
    }
    with running_broker(directory, workers=plan.workers, settings=settings) as broker:
        return asyncio.run(_soak(broker, amqp_port, plan))


async def _soak(broker: Broker, amqp_port: int, plan: Plan) -> Report:
    replies, beat = Replies(amqp_port, plan.queues), Beat(broker.port, plan.messages)
    pids = broker.pids()
    loads = [asyncio.create_task(load) for load in (replies.run(), beat.run())]
    loop = asyncio.get_running_loop()
    begun, samples, queues_before = loop.time(), [], 0
    while (at := loop.time() - begun) < plan.seconds:
        samples.append(Sample(at, {role: held_by(pid) for role, pid in pids.items()}))
        if at < plan.warm_up:
            queues_before = replies.queues
        await asyncio.wait(loads, timeout=SAMPLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for load in loads:
            if load.done():
                load.result()  # it never ends but by an error
    queues = replies.queues
    for load in loads:
        load.cancel()
    await asyncio.gather(*loads, return_exceptions=True)
    assert broker.pids() == pids, f"a process was restarted:\n{broker.log()}"
    assert queues, "no queue was made"
    assert beat.received_bytes, "no message came back"
    counted = queues - queues_before
    found = growth(samples, plan.warm_up, counted)
    return Report(plan, counted, queues, beat.sent, found, _pauses(broker))


def _pauses(broker: Broker) -> tuple[float, int]:
    name = "fluxmq_garbage_collection_seconds"
    seconds, count = (sum(broker.metrics(f"{name}_{each}").values()) for each in ("sum", "count"))
    return seconds, int(count)
