"""Samples the traffic of a node's queues every few seconds, for rates.

A shard reports only queues in which something has changed. What is kept of a queue is bounded, and
so is the number of queues: those that have not changed for longest are forgotten first.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from fluxmq.control.peers import Peer, answers_of
from fluxmq.control.series import STEP_SECONDS, SampledSpan, Series
from fluxmq.ipc.traffic_messages import (
    TRAFFIC,
    ChurnNumbers,
    ExchangeNumbers,
    QueueNumbers,
    SeriesSpan,
    ShardNumbers,
    TrafficReport,
    TrafficRequest,
)

REPORT_SECONDS: Final = 1.0
"""Time for a shard to report."""
FRESH_SECONDS: Final = 1.0
"""Age up to which a sample is used again: pages ask for several things at once."""
REPORTS_MAX: Final = 20
"""Reports that are asked for at once, while shards have more to tell."""
TRACKED_QUEUES_MAX: Final = 10_000
"""Queues with rates: about 3 KiB each."""
TRACKED_VHOSTS_MAX: Final = 1_000
TRACKED_EXCHANGES_MAX: Final = 1_000

LENGTHS: Final = ("messages", "messages_ready", "messages_unacknowledged")
QUEUE_FIELDS: Final = (*QueueNumbers._fields, "deliver_get", "messages")
NODE_FIELDS: Final = (*ShardNumbers._fields, "messages")
EXCHANGE_FIELDS: Final = ExchangeNumbers._fields
CHURN_FIELDS: Final = ChurnNumbers._fields
_COUNTERS: Final = len(QueueNumbers._fields) - 2
"""Numbers of a queue that only grow come first."""

Row = dict[str, Any]
QueueName = tuple[str, str]


class TrackedQueue(NamedTuple):
    """A queue's series, its last numbers, and the shard that reports it."""

    shard: str
    series: Series
    last: QueueNumbers


class TrackedExchange(NamedTuple):
    """An exchange's series, and its last numbers by shard."""

    series: Series
    last: dict[str, tuple[int, ...]]


class TrafficSampler:
    """Lives on control's loop. ``shards`` returns those that are connected."""

    def __init__(
        self,
        shards: Callable[[], list[Peer]],
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._shards = shards
        self._now = now
        self._wall = wall
        self._queues: OrderedDict[QueueName, TrackedQueue] = OrderedDict()
        self._vhosts: OrderedDict[str, tuple[list[int], Series]] = OrderedDict()
        self._exchanges: OrderedDict[QueueName, TrackedExchange] = OrderedDict()
        self._node = Series(len(NODE_FIELDS))
        self._totals: dict[str, Sequence[int]] = {}
        self._churn = Series(len(CHURN_FIELDS))
        self._churned: dict[str, Sequence[int]] = {}
        self._known: dict[Peer, bool] = {}
        """Shards that have reported, and whether everything: then a new queue has just begun."""
        self._ticks: list[float] = []
        self._sampling: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self.forgotten = 0
        """Number of queues that were forgotten for lack of room."""

    def start(self) -> None:
        """Begin to sample."""
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End."""
        for task in (self._running, self._sampling):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    async def _run(self) -> None:
        while True:
            await self.refresh()
            # Until shards are connected, so that what they begin with is known early.
            await asyncio.sleep(STEP_SECONDS if self._known else FRESH_SECONDS)

    async def refresh(self) -> None:
        """Sample, unless that was done just now."""
        if self._ticks and self._now() - self._ticks[-1] < FRESH_SECONDS:
            return
        if self._sampling is None or self._sampling.done():
            self._sampling = asyncio.get_running_loop().create_task(self._sample())
        # Shielded: a caller that hangs up must not end the sampling for others.
        await asyncio.shield(self._sampling)

    async def _sample(self) -> None:
        shards = self._shards()
        self._known = {each: done for each, done in self._known.items() if each in shards}
        changed: set[str] = set()
        for _ in range(REPORTS_MAX):
            shards = await self._collect(shards, changed)
            if not shards:
                break
        now = self._now()
        for name in changed:
            sums, series = self._vhosts[name]
            series.add(now, _of_queue(QueueNumbers(*sums)))
        sums = [sum(each) for each in zip(*self._totals.values(), strict=True)] or [0] * 9
        self._node.add(now, (*sums, sums[-2] + sums[-1]))
        churn = [sum(each) for each in zip(*self._churned.values(), strict=True)]
        self._churn.add(now, churn or [0] * len(CHURN_FIELDS))
        if len(self._ticks) > 1 and now - self._ticks[-2] < STEP_SECONDS * 0.9:
            self._ticks.pop()
        self._ticks = [*self._ticks[-2:], now]

    async def _collect(self, shards: list[Peer], changed: set[str]) -> list[Peer]:
        """Ask shards once; return those that have more to report."""
        asked: dict[bool, list[Peer]] = {}
        for shard in shards:
            asked.setdefault(shard not in self._known, []).append(shard)
        more = []
        for anew, some in asked.items():
            body = TrafficRequest(anew).to_body()
            reports = await answers_of(some, TRAFFIC, body, REPORT_SECONDS, TrafficReport)
            for shard, report in zip(some, reports, strict=True):
                if report is None:
                    self._known.pop(shard, None)  # what it told is lost
                    continue
                whole = self._known.setdefault(shard, False)
                self._take(shard.name, report, changed, begun=whole)
                if report.left:
                    more.append(shard)
                else:
                    self._known[shard] = True
        return more

    def _take(self, shard: str, report: TrafficReport, changed: set[str], *, begun: bool) -> None:
        self._totals[shard] = report.totals
        self._churned[shard] = report.churn
        for vhost, name in report.ended:
            found = self._queues.get((vhost, name))
            if found is not None and found.shard == shard:
                del self._queues[vhost, name]
                self._count(vhost, found.last, QueueNumbers(*found.last[:_COUNTERS]), changed)
        for vhost, name, numbers in report.queues:
            self._moved(shard, (vhost, name), QueueNumbers(*numbers), changed, begun=begun)
        for vhost, name, counts in report.exchanges:
            self._published(shard, (vhost, name), counts, begun=begun)
        while len(self._exchanges) > TRACKED_EXCHANGES_MAX:
            self._exchanges.popitem(last=False)
        while len(self._queues) > TRACKED_QUEUES_MAX:
            self._queues.popitem(last=False)
            self.forgotten += 1

    def _moved(
        self, shard: str, name: QueueName, numbers: QueueNumbers, changed: set[str], *, begun: bool
    ) -> None:
        """Note a queue's numbers. One never seen has begun from nothing, if all others are known."""
        known = self._queues.pop(name, None)
        now = self._now()
        if known is not None and known.shard == shard and _grown(known.last, numbers):
            series, before = known.series, known.last
        else:
            series, before = Series(len(QUEUE_FIELDS), coarse=True), QueueNumbers()
            if begun and not self.forgotten and self._ticks:
                series.add(self._ticks[-1], _of_queue(before))
            else:
                before = numbers._replace(messages_ready=0, messages_unacknowledged=0)
            if known is not None:
                before = before._replace(
                    **dict(zip(LENGTHS[1:], known.last[_COUNTERS:], strict=True))
                )
        series.add(now, _of_queue(numbers))
        self._queues[name] = TrackedQueue(shard, series, numbers)
        self._count(name[0], before, numbers, changed)

    def _published(
        self, shard: str, name: QueueName, counts: tuple[int, ...], *, begun: bool
    ) -> None:
        """Note an exchange's numbers on a shard."""
        known = self._exchanges.pop(name, None)
        if known is None:
            known = TrackedExchange(Series(len(EXCHANGE_FIELDS), coarse=True), {})
            if begun and self._ticks:
                known.series.add(self._ticks[-1], ExchangeNumbers())
        known.last[shard] = counts
        known.series.add(
            self._now(), [sum(each) for each in zip(*known.last.values(), strict=True)]
        )
        self._exchanges[name] = known

    def _count(
        self, vhost: str, before: QueueNumbers, now: QueueNumbers, changed: set[str]
    ) -> None:
        """Add a queue's change to its virtual host."""
        known = self._vhosts.pop(vhost, None)
        sums, series = known or ([0] * len(before), Series(len(QUEUE_FIELDS), coarse=True))
        if known is None and self._ticks:
            series.add(self._ticks[-1], _of_queue(QueueNumbers()))
        for index, (old, new) in enumerate(zip(before, now, strict=True)):
            sums[index] = max(sums[index] + new - old, 0)
        self._vhosts[vhost] = sums, series
        changed.add(vhost)
        if len(self._vhosts) > TRACKED_VHOSTS_MAX:
            changed.discard(self._vhosts.popitem(last=False)[0])

    # Answers

    def of_queue(self, name: QueueName, wanted: SeriesSpan) -> Row:
        """Return a queue's statistics; empty if nothing is known of it."""
        found = self._queues.get(name)
        if found is None:
            return {}
        row = self._row(found.series, QUEUE_FIELDS, wanted)
        changed = found.series.last
        if changed < self._interval()[0]:
            # As of RabbitMQ 3.10: text without a zone, in UTC.
            at = datetime.fromtimestamp(changed + self._wall() - self._now(), UTC)
            row["idle_since"] = at.strftime("%Y-%m-%d %H:%M:%S")
        return row

    def column(self, column: str) -> dict[QueueName, float]:
        """Return a figure of all queues in which it is not 0: one that `of_queue` shows in this place,
        such as ``message_stats.publish_details.rate``."""
        field = column.removesuffix(".rate").removesuffix("_details").removeprefix("message_stats.")
        place = f"{'' if field in LENGTHS else 'message_stats.'}{field}"
        if field not in QUEUE_FIELDS or column not in (place, f"{place}_details.rate"):
            return {}
        number, rate = QUEUE_FIELDS.index(field), column != place
        begin, end = self._interval() if self._ticks else (0.0, 0.0)
        span = SampledSpan(begin, end, 0, 1, 0.0)
        found: dict[QueueName, float] = {}
        for name, tracked in self._queues.items():
            value = (
                span.rate(tracked.series, number, grows=field not in LENGTHS)
                if rate
                else tracked.series.at(end)[number]
            )
            if value:
                found[name] = value
        return found

    def of_vhost(self, vhost: str, wanted: SeriesSpan) -> Row:
        """Return a virtual host's statistics, the sums of its queues'."""
        found = self._vhosts.get(vhost)
        return {} if found is None else self._row(found[1], QUEUE_FIELDS, wanted)

    def of_exchange(self, name: QueueName, wanted: SeriesSpan) -> Row:
        """Return an exchange's statistics; empty if nothing is known of it."""
        found = self._exchanges.get(name)
        return {} if found is None else self._row(found.series, EXCHANGE_FIELDS, wanted)

    def of_node(self, wanted: SeriesSpan) -> Row:
        """Return the node's statistics: of messages between it and its clients, and in queues; and
        of connections, channels and queues that come and go."""
        if not self._ticks:
            return {}
        churn = self._row(self._churn, CHURN_FIELDS, wanted)["message_stats"]
        return {**self._row(self._node, NODE_FIELDS, wanted), "churn_rates": churn}

    def _interval(self) -> tuple[float, float]:
        """Return the ends of the interval that rates are of."""
        end, begin = self._ticks[-1], self._ticks[-2] if len(self._ticks) > 1 else self._ticks[-1]
        if len(self._ticks) > 2 and end - begin < STEP_SECONDS * 0.9:
            begin = self._ticks[-3]
        return begin, end

    def _row(self, series: Series, fields: Sequence[str], wanted: SeriesSpan) -> Row:
        begin, end = self._interval()
        offset = self._wall() - self._now()
        rates = SampledSpan(begin, end, wanted.rates_age, wanted.rates_step, offset)
        lengths = SampledSpan(begin, end, wanted.lengths_age, wanted.lengths_step, offset)
        last = series.at(end)
        stats: Row = {}
        found: Row = {"message_stats": stats}
        for column, name in enumerate(fields):
            into, span = (found, lengths) if name in LENGTHS else (stats, rates)
            into[name] = int(last[column])
            into[f"{name}_details"] = span.details(series, column, grows=into is stats)
        return found


def _grown(before: QueueNumbers, now: QueueNumbers) -> bool:
    """Return whether no counter has begun anew, as after another leader."""
    return all(new >= old for old, new in zip(before[:_COUNTERS], now[:_COUNTERS], strict=True))


def _of_queue(numbers: QueueNumbers) -> tuple[int, ...]:
    """Return the values of `QUEUE_FIELDS`."""
    given = numbers.deliver + numbers.deliver_no_ack + numbers.get + numbers.get_no_ack
    return *numbers, given, numbers.messages_ready + numbers.messages_unacknowledged
