"""Batches: built from runs, read, checked, written for subscribers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fluxmq.model.batch_format import parse, verify
from fluxmq.model.message_batch import build_message
from fluxmq.protocols.mqtt.batch_delivery import OffsetProperties, delivery_runs
from fluxmq.protocols.mqtt.batches import build_batches
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.protocols.mqtt.scan import PUBLISH, Scanner
from perf import codec
from perf.micro import Benchmark
from perf.micro.codecs import MAX_PACKET, numbered

RUN = 240
"""Messages of 256 bytes that one read of 64 KiB brings."""
TOPIC = b"perf/0"
OFFSET = 10_000_000


def benchmarks(scale: int) -> Iterator[Benchmark]:
    """About ``scale`` messages of 256 bytes, in runs of 240 and alone."""
    rounds = max(1, scale // RUN)
    many, one = _run(RUN), _run(1)
    yield Benchmark("batch: build from runs of 240", rounds * RUN, _build(many, rounds))
    yield Benchmark("batch: build from runs of one", scale, _build(one, scale))
    yield Benchmark("batch: build one message", scale, _single(scale))
    yield Benchmark("batch: parse, 240 messages", rounds * RUN, _parse(many, rounds))
    yield Benchmark("batch: parse and verify, 240", rounds * RUN, _parse(many, rounds, check=True))
    yield Benchmark("batch: parse, one message", scale, _parse(one, scale))
    for name, version, offsets in (
        ("3.1.1", 4, None),
        ("5", 5, None),
        ("5 with offsets", 5, OffsetProperties(b"orders")),
    ):
        for run, times in ((many, rounds), (one, scale)):
            step = _deliver(run, times, version, offsets)
            label = f"batch: deliver {run.count} for version {name}"
            yield Benchmark(label, times * run.count, step)


def _run(count: int) -> PublishRun:
    buffer = numbered(codec.publish_template(TOPIC.decode(), 256, 1, 4), count)
    scanner = Scanner(MAX_PACKET)
    assert scanner.next(buffer, 0, len(buffer)) == PUBLISH
    return PublishRun(
        buffer,
        scanner.start,
        scanner.end,
        scanner.count,
        scanner.stride,
        4,
        scanner.first,
        scanner.variable,
        scanner.pid_at,
        scanner.largest,
        TOPIC,
    )


def _build(run: PublishRun, rounds: int) -> Callable[[], int]:
    def step() -> int:
        for _ in range(rounds):
            build_batches(run, TOPIC, b"", 1)
        return rounds * run.count

    return step


def _single(rounds: int) -> Callable[[], int]:
    payload = bytes(256)

    def step() -> int:
        for _ in range(rounds):
            build_message(TOPIC, b"", payload, 1)
        return rounds

    return step


def _parse(run: PublishRun, rounds: int, *, check: bool = False) -> Callable[[], int]:
    data = build_batches(run, TOPIC, b"", 1)[0]

    def step() -> int:
        count = 0
        for _ in range(rounds):
            batch = parse(data)
            if check:
                verify(batch)
            count += batch.count
        return count

    return step


def _deliver(
    run: PublishRun, rounds: int, version: int, offsets: OffsetProperties | None
) -> Callable[[], int]:
    batch = parse(build_batches(run, TOPIC, b"", 1)[0])
    batch.stamp(OFFSET, 1, 1)

    def step() -> int:
        count = 0
        for _ in range(rounds):
            for made in delivery_runs(batch, 0, batch.count, version, TOPIC, b"", offsets):
                count += made.count
        return count

    return step
