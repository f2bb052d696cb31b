"""Series of samples, the rates taken from them, and the sampler that asks shards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fluxmq.control import traffic
from fluxmq.control.management.list_query import value_of
from fluxmq.control.management.rates import summed
from fluxmq.control.peers import Peer
from fluxmq.control.series import KEPT_SECONDS, SampledSpan, Series
from fluxmq.control.traffic import TrafficSampler
from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import Body, ControlMessage, MessageError
from fluxmq.ipc.traffic_messages import (
    TRAFFIC,
    ChurnNumbers,
    QueueNumbers,
    SeriesSpan,
    ShardNumbers,
    TrafficReport,
    TrafficRequest,
)
from tests.control_part import alone


def test_values_stay_until_the_next_point() -> None:
    series = Series(2)
    series.add(10.0, (1, 100))
    series.add(30.0, (5, 90))
    assert list(series.at(5.0)) == [1, 100], "before the first point"
    assert [list(series.at(each)) for each in (10.0, 29.9, 30.0, 99.0)] == [
        [1, 100],
        [1, 100],
        [5, 90],
        [5, 90],
    ]


def test_rates_and_samples() -> None:
    series = Series(1)
    for time, value in ((0.0, 0), (5.0, 50), (10.0, 150)):
        series.add(time, (value,))
    found = SampledSpan(5.0, 10.0, 10, 5, 1000.0).details(series, 0, grows=True)
    assert found == {
        "rate": 20.0,
        "samples": [
            {"sample": 150, "timestamp": 1_010_000},
            {"sample": 50, "timestamp": 1_005_000},
            {"sample": 0, "timestamp": 1_000_000},
        ],
        "avg": 200 / 3,
        "avg_rate": 15.0,
    }
    falling = SampledSpan(10.0, 15.0, 0, 5, 0.0)
    series.add(15.0, (50,))
    assert falling.details(series, 0, grows=False) == {"rate": -20.0}
    assert falling.details(series, 0, grows=True) == {"rate": 0.0}, "a shard began anew"


def test_a_series_is_bounded() -> None:
    """A queue's older samples are further apart, and none is kept for longer than needed."""
    fine, coarse = Series(1), Series(1, coarse=True)
    for second in range(2000):
        for series in (fine, coarse):
            series.add(float(second), (second,))
    assert len(fine._times) <= 2 * KEPT_SECONDS / 4.5 + 2
    assert len(coarse._times) <= 2 * 65 / 4.5 + KEPT_SECONDS / 30 + 4
    for age in (0, 5, 60):
        assert 0 <= 1999 - age - coarse.at(1999.0 - age)[0] <= 5
    assert 0 <= 1999 - 500 - coarse.at(1999.0 - 500)[0] <= 35


def test_statistics_of_nodes_are_added_up() -> None:
    one = {
        "publish": 1,
        "publish_details": {"rate": 0.5, "samples": [{"sample": 1, "timestamp": 7}]},
    }
    assert summed([{"s": one}, {}, {"s": one}]) == {
        "s": {
            "publish": 2,
            "publish_details": {"rate": 1.0, "samples": [{"sample": 2, "timestamp": 7}]},
        }
    }


class ShardReports:
    """Reports that a shard gives, in order, and what it was asked."""

    def __init__(self, *reports: TrafficReport) -> None:
        self.reports = list(reports)
        self.asked: list[bool] = []

    def answer(self, body: Body, answered: Answered) -> None:
        """Give the next report; the last one stays."""
        self.asked.append(TrafficRequest.from_body(body).anew)
        report = self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]
        answered(report.to_body())


class SamplerPart(TrafficSampler):
    """The sampler as a control process of its own, on the test's clock, asked by the test."""

    def __init__(self, shards: Callable[[], list[Peer]]) -> None:
        self.clock = 100.0
        super().__init__(shards, lambda: self.clock, lambda: self.clock + 1000)

    def start(self) -> None:
        """Nothing: the test asks."""

    async def answer(self, message: ControlMessage) -> Body:
        """Answer nothing."""
        raise MessageError(message.kind)

    async def after(self, seconds: float) -> None:
        """Sample after some time."""
        self.clock += seconds
        await self.refresh()


def report(ready: int, *queues: tuple[str, QueueNumbers], **more: Any) -> TrafficReport:
    """A report of queues in the first virtual host."""
    totals = ShardNumbers(publish=ready, messages_ready=ready)
    return TrafficReport(totals, tuple(("/", name, numbers) for name, numbers in queues), **more)


def sampled(path: Path, shard: ShardReports, act: Callable[[SamplerPart], Awaitable[None]]) -> None:
    """Run a sampler with a shard."""

    async def run() -> None:
        async with alone(path, SamplerPart, {TRAFFIC: shard.answer}) as sampler:
            await act(sampler)

    asyncio.run(run())


def rate(row: dict[str, Any], name: str = "publish") -> float:
    """A rate in a row."""
    return float(row["message_stats"][f"{name}_details"]["rate"])


SPAN = SeriesSpan()


def test_a_queue_has_rates_until_it_is_still(tmp_path: Path) -> None:
    first = QueueNumbers(publish=1000, messages_ready=10)
    shard = ShardReports(
        report(10, ("q", first)),
        report(
            60, ("q", first._replace(publish=1050, messages_ready=60)), ("new", QueueNumbers(20))
        ),
        report(60),
    )

    async def act(sampler: SamplerPart) -> None:
        await sampler.after(0)
        assert rate(sampler.of_queue(("/", "q"), SPAN)) == 0.0, "nobody knows since when"
        await sampler.after(5)
        row = sampler.of_queue(("/", "q"), SPAN)
        assert (rate(row), row["messages_details"]["rate"], row["messages"]) == (10.0, 10.0, 60)
        assert rate(sampler.of_queue(("/", "new"), SPAN)) == 4.0, "it began after the last sample"
        assert rate(sampler.of_vhost("/", SPAN)) == 14.0
        assert rate(sampler.of_node(SPAN)) == 10.0
        await sampler.after(5)
        assert rate(sampler.of_queue(("/", "q"), SPAN)) == 0.0
        assert rate(sampler.of_vhost("/", SPAN)) == 0.0
        assert sampler.of_queue(("/", "none"), SPAN) == {}
        assert shard.asked == [True, False, False]

    sampled(tmp_path / "s", shard, act)


def test_an_exchange_has_rates(tmp_path: Path) -> None:
    shard = ShardReports(
        report(0, exchanges=(("/", "x", (10, 20)),)),
        report(0, exchanges=(("/", "x", (20, 30)), ("/", "new", (5, 0)))),
    )

    async def act(sampler: SamplerPart) -> None:
        await sampler.after(0)
        await sampler.after(5)
        row = sampler.of_exchange(("/", "x"), SPAN)["message_stats"]
        assert (row["publish_in"], row["publish_in_details"]["rate"]) == (20, 2.0)
        assert (row["publish_out"], row["publish_out_details"]["rate"]) == (30, 2.0)
        assert rate(sampler.of_exchange(("/", "new"), SPAN), "publish_in") == 1.0

    sampled(tmp_path / "s", shard, act)


def test_samples_are_shared_for_a_moment(tmp_path: Path) -> None:
    shard = ShardReports(report(0))

    async def act(sampler: SamplerPart) -> None:
        await asyncio.gather(*(sampler.after(0) for _ in range(10)))
        await sampler.after(0.5)
        assert len(shard.asked) == 1
        await sampler.after(0.6)
        assert len(shard.asked) == 2

    sampled(tmp_path / "s", shard, act)


def test_the_rest_of_a_long_report_is_asked_for(tmp_path: Path) -> None:
    shard = ShardReports(
        report(0, ("a", QueueNumbers(1)), left=1), report(0, ("b", QueueNumbers(1)))
    )

    async def act(sampler: SamplerPart) -> None:
        await sampler.after(0)
        assert shard.asked == [True, False]
        assert sampler.of_queue(("/", "b"), SPAN)["message_stats"]["publish"] == 1

    sampled(tmp_path / "s", shard, act)


def test_ended_and_restarted_queues(tmp_path: Path) -> None:
    """A counter that is less than before counts from nothing; what has ended is forgotten."""
    shard = ShardReports(
        report(1, ("q", QueueNumbers(100, messages_ready=7))),
        report(1, ("q", QueueNumbers(5, messages_ready=3))),
        report(1, ended=(("/", "q"),)),
    )

    async def act(sampler: SamplerPart) -> None:
        await sampler.after(0)
        await sampler.after(5)
        row = sampler.of_queue(("/", "q"), SPAN)
        assert (rate(row), row["messages"]) == (1.0, 3)
        assert sampler.of_vhost("/", SPAN)["messages"] == 3
        await sampler.after(5)
        assert sampler.of_queue(("/", "q"), SPAN) == {}
        assert sampler.of_vhost("/", SPAN)["messages"] == 0

    sampled(tmp_path / "s", shard, act)


def test_tracked_queues_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "TRACKED_QUEUES_MAX", 2)
    queues = [(f"q{number}", QueueNumbers(1)) for number in range(3)]
    shard = ShardReports(report(0, *queues))

    async def act(sampler: SamplerPart) -> None:
        await sampler.after(0)
        known = [bool(sampler.of_queue(("/", name), SPAN)) for name, _ in queues]
        assert (known, sampler.forgotten) == ([False, True, True], 1)

    sampled(tmp_path / "s", shard, act)


def test_a_queue_is_idle_since_its_last_change(tmp_path: Path) -> None:
    shard = ShardReports(
        report(0), report(0, ("q", QueueNumbers(publish=1))), report(0), report(0), report(0)
    )

    async def act(sampler: SamplerPart) -> None:
        await sampler.after(0)
        await sampler.after(5)
        assert "idle_since" not in sampler.of_queue(("/", "q"), SPAN)
        await sampler.after(5)
        assert "idle_since" not in sampler.of_queue(("/", "q"), SPAN), "in the last interval"
        await sampler.after(5)
        idle = sampler.of_queue(("/", "q"), SPAN)["idle_since"]
        assert idle == "1970-01-01 00:18:25", "1105 seconds after the beginning of the clock"

    sampled(tmp_path / "s", shard, act)


def test_what_comes_and_goes_has_rates(tmp_path: Path) -> None:
    before = ChurnNumbers(connection_created=10, queue_declared=5)
    after = before._replace(connection_created=20, connection_closed=5)
    shard = ShardReports(report(0, churn=before), report(0, churn=after))

    async def act(sampler: SamplerPart) -> None:
        await sampler.after(0)
        await sampler.after(5)
        churn = sampler.of_node(SPAN)["churn_rates"]
        assert set(churn) == {
            *ChurnNumbers._fields,
            *(f"{each}_details" for each in ChurnNumbers._fields),
        }
        assert (churn["connection_created"], churn["queue_declared"]) == (20, 5)
        rates = [
            churn[f"{name}_details"]["rate"]
            for name in ("connection_created", "connection_closed", "queue_declared")
        ]
        assert rates == [2.0, 1.0, 0.0]

    sampled(tmp_path / "s", shard, act)


def test_one_figure_of_all_queues(tmp_path: Path) -> None:
    first = QueueNumbers(publish=10, messages_ready=4)
    shard = ShardReports(
        report(4, ("q", first), ("still", QueueNumbers(publish=7))),
        report(6, ("q", first._replace(publish=30, messages_ready=6))),
    )

    async def act(sampler: SamplerPart) -> None:
        await sampler.after(0)
        await sampler.after(5)
        for column in (
            "message_stats.publish",
            "message_stats.publish_details.rate",
            "messages",
            "messages_details.rate",
        ):
            row = {name: sampler.of_queue(("/", name), SPAN) for name in ("q", "still")}
            shown = {("/", name): value_of(found, column) for name, found in row.items()}
            assert sampler.column(column) == {key: value for key, value in shown.items() if value}
        assert sampler.column("message_stats.publish_details.rate") == {("/", "q"): 4.0}
        for column in (
            "publish",
            "message_stats.messages",
            "publish_details.rate",
            "messages.rate",
            "message_stats",
        ):
            assert sampler.column(column) == {}, column

    sampled(tmp_path / "s", shard, act)
