"""The generator's own cost per message: if it is not far below a broker's, it measures itself."""

from __future__ import annotations

from collections.abc import Iterator

from perf import codec
from perf.codec import Histogram, NatsReceiver, Receiver, Sender
from perf.micro import Benchmark


def benchmarks(scale: int) -> Iterator[Benchmark]:
    """Stamp and count ``scale`` messages of 256 bytes; MQTT at each QoS, and NATS."""
    for qos in (0, 1, 2):
        template = codec.publish_template("perf/0", 256, qos, 4)
        yield from _pair(f"MQTT QoS {qos}", template, scale, Receiver)
    yield from _pair("NATS", codec.nats_template("perf.0", 256), scale, NatsReceiver)


def _pair(
    name: str, template: tuple[bytes, int, int], scale: int, kind: type[Receiver]
) -> Iterator[Benchmark]:
    sender = Sender(*template, scale, 32_767, 0, Histogram())

    def stamp() -> int:
        sender.in_flight = 0
        return int(sender.prepare(scale, 1, 0) // sender.stride)

    yield Benchmark(f"generator: stamp, {name}", scale, stamp)
    received = bytes(sender.chunk)
    if kind is NatsReceiver:
        received = received.replace(b"PUB perf.0 256", b"MSG perf.0 1 256")
    inbound = bytearray(received)
    receiver = kind(inbound, bytearray(len(inbound)), 4, None, Histogram(), 1)

    def count() -> int:
        before = receiver.publishes
        receiver.feed(len(inbound), 2, True)
        return int(receiver.publishes - before)

    yield Benchmark(f"generator: count, {name}", scale, count)
