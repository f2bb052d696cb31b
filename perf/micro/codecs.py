"""The broker's MQTT codecs: cutting runs out of a buffer, writing them anew, and single packets as objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fluxmq.protocols.mqtt import codec as packets
from fluxmq.protocols.mqtt import run as runs
from fluxmq.protocols.mqtt.scan import PUBLISH, Scanner
from perf import codec
from perf.micro import Benchmark

MAX_PACKET = 1 << 20
TOPIC = "perf/0"


def benchmarks(scale: int) -> Iterator[Benchmark]:
    """Scan and encode ``scale`` messages of 256 bytes; decode a CONNECT, a SUBSCRIBE and a PUBLISH."""
    for qos in (0, 1):
        same = numbered(codec.publish_template(TOPIC, 256, qos, 4), scale)
        yield Benchmark(f"scan: one run, QoS {qos}", scale, _scan(same))
    mixed = b"".join(codec.publish_template(f"perf/{n}", 256, 0, 4)[0] for n in range(scale))
    yield Benchmark("scan: a run per message", scale, _scan(bytearray(mixed)))
    yield from _encoders(scale)
    yield from _objects(scale)


def numbered(template: tuple[bytes, int, int], count: int) -> bytearray:
    """``count`` copies of a packet, with packet identifiers from 1 on where it has one."""
    whole, _, pid_at = template
    buffer = bytearray(whole * count)
    for index in range(count if pid_at else 0):
        at = index * len(whole) + pid_at
        buffer[at : at + 2] = (index % 65_535 + 1).to_bytes(2, "big")
    return buffer


def _scan(buffer: bytearray) -> Callable[[], int]:
    scanner = Scanner(MAX_PACKET)

    def step() -> int:
        at = count = 0
        while scanner.next(buffer, at, len(buffer)) == PUBLISH:
            count += scanner.count
            at = scanner.end
        return count

    return step


def _run_of(buffer: bytearray) -> runs.PublishRun:
    scanner = Scanner(MAX_PACKET)
    assert scanner.next(buffer, 0, len(buffer)) == PUBLISH
    return runs.PublishRun(
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
        TOPIC.encode(),
    )


def _encoders(scale: int) -> Iterator[Benchmark]:
    run = _run_of(numbered(codec.publish_template(TOPIC, 256, 1, 4), scale))

    def copied() -> int:
        out = bytearray()
        runs.append_numbered(out, run, run.start, run.count, 0x32, 1)
        return len(out) // int(run.stride)

    def anew() -> int:
        out = bytearray()
        runs.append_publishes(out, run, run.start, run.count, 0x32, run.topic, b"\x00", 1)
        return len(out) // (int(run.stride) + 1)

    def acknowledged() -> int:
        out = bytearray()
        runs.append_acknowledgements(out, run, 0x40)
        return len(out) // 4

    yield Benchmark("encode: copy with new packet identifiers", scale, copied)
    yield Benchmark("encode: write anew for version 5", scale, anew)
    yield Benchmark("encode: PUBACK run", scale, acknowledged)


def _objects(scale: int) -> Iterator[Benchmark]:
    one_by_one = (
        ("CONNECT", codec.connect("perf", 5), 5),
        ("SUBSCRIBE", codec.subscribe("perf/+", 1, 5), 5),
        ("PUBLISH", codec.publish_template(TOPIC, 256, 0, 5)[0], 5),
    )
    for name, whole, version in one_by_one:
        body = whole[2:] if whole[1] < 128 else whole[3:]
        yield Benchmark(f"decode: {name}", scale, _decode(whole[0], body, version, scale))


def _decode(first: int, body: bytes, version: int, scale: int) -> Callable[[], int]:
    def step() -> int:
        for _ in range(scale):
            packets.decode(first, body, version)
        return scale

    return step
