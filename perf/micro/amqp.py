"""AMQP 0.9.1: publishes cut out of a buffer and made batches, deliveries written, acknowledgements and confirms."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator

from fluxmq.model.batch_format import parse
from fluxmq.net import sockets
from fluxmq.protocols.amqp091.confirms import ConfirmWindow
from fluxmq.protocols.amqp091.delivery import encode_deliveries
from fluxmq.protocols.amqp091.ledger import ChannelLedger
from fluxmq.protocols.amqp091.parser import AmqpParser
from fluxmq.protocols.amqp091.run import AmqpPublishRun, build_amqp_batches
from fluxmq.protocols.connection import WIRE_AMQP_0_9_1, Connection, Tally
from perf.micro import Benchmark

RUN = 190
"""Publishes of 256 bytes that one read of 64 KiB brings."""
FRAME_MAX = 131_072
PROPERTIES = b"\x10\x00\x02"
"""delivery-mode 2: persistent."""
QUEUE = b"perf"


def benchmarks(scale: int) -> Iterator[Benchmark]:
    """About ``scale`` messages of 256 bytes, in runs of 190, one by one, and of sizes that differ."""
    rounds = max(1, scale // RUN)
    uniform = b"".join(_publish(bytes(256)) for _ in range(RUN))
    mixed = b"".join(_publish(bytes(200 + 7 * (index % 16))) for index in range(RUN))
    single = _publish(bytes(256))
    for name, data, count, times in (
        ("runs of 190", uniform, RUN, rounds),
        ("runs of 190, sizes differ", mixed, RUN, rounds),
        ("runs of one", single, 1, scale),
    ):
        yield Benchmark(f"amqp: scan {name}", times * count, _scan(data, times, build=False))
        yield Benchmark(
            f"amqp: scan and build {name}", times * count, _scan(data, times, build=True)
        )
    yield Benchmark("amqp: deliver 190", rounds * RUN, _deliver(uniform, RUN, rounds))
    yield Benchmark(
        "amqp: deliver 190 with offsets", rounds * RUN, _deliver(uniform, RUN, rounds, 0)
    )
    yield Benchmark("amqp: deliver one", scale, _deliver(single, 1, scale))
    every = [*range(50, scale, 50), scale]
    yield Benchmark("amqp: acknowledge in order", scale, _acknowledge(scale, range(1, scale + 1)))
    yield Benchmark("amqp: acknowledge in reverse", scale, _acknowledge(scale, range(scale, 0, -1)))
    yield Benchmark("amqp: acknowledge every 50", scale, _acknowledge(scale, every, multiple=True))
    yield Benchmark("amqp: confirm runs of one", scale, _confirm(scale))


def _frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


def _publish(payload: bytes) -> bytes:
    method = struct.pack(">HHHB", 60, 40, 0, 0) + bytes((len(QUEUE),)) + QUEUE + b"\0"
    header = struct.pack(">HHQ", 60, 0, len(payload)) + PROPERTIES
    return _frame(1, method) + _frame(2, header) + _frame(3, payload)


class _Handler:
    """Counts what it is given; ``build``: makes batches of it as well."""

    def __init__(self, *, build: bool) -> None:
        self.count = 0
        self.build = build
        self.run: AmqpPublishRun | None = None

    def publish_run(self, connection: Connection, channel: int, run: AmqpPublishRun) -> None:
        """Whole publishes."""
        self.count += run.count
        self.run = run
        if self.build:
            build_amqp_batches(run, QUEUE, b"", 1)

    def protocol_header(self, connection: Connection, header: bytes) -> None:
        """Never comes."""

    def frame(self, connection: Connection, kind: int, channel: int, payload: bytes) -> None:
        """Never comes."""

    def broken(self, connection: Connection, code: int, text: str) -> None:
        """Never comes."""

    def lost(self, connection: Connection) -> None:
        """Never comes."""

    def drained(self, connection: Connection) -> None:
        """Never comes."""


def _line(handler: _Handler, ledger: ChannelLedger) -> Connection:
    connection = Connection(0, Tally(), [], 1 << 20, sockets.send)
    connection.wire = WIRE_AMQP_0_9_1
    connection.version = 1
    connection.frame_max = FRAME_MAX
    connection.handler = handler
    connection.ledgers = {1: ledger}
    return connection


def _scan(data: bytes, rounds: int, *, build: bool) -> Callable[[], int]:
    buffer = bytearray(data)
    handler = _Handler(build=build)
    connection = _line(handler, ChannelLedger(1))
    parser = AmqpParser(65_536)

    def step() -> int:
        handler.count = 0
        for _ in range(rounds):
            parser.process(connection, buffer, len(buffer))
        return handler.count

    return step


def _deliver(data: bytes, count: int, rounds: int, offset_at: int = -1) -> Callable[[], int]:
    handler = _Handler(build=False)
    buffer = bytearray(data)
    AmqpParser(65_536).process(_line(handler, ChannelLedger(1)), buffer, len(buffer))
    assert handler.run is not None
    batch = parse(build_amqp_batches(handler.run, QUEUE, b"", 1)[0])
    properties = PROPERTIES if offset_at < 0 else bytes(8)

    def step() -> int:
        for _ in range(rounds):
            encode_deliveries(
                batch, 0, count, 1, b"ctag", 1, False, b"", QUEUE, properties, FRAME_MAX, offset_at
            )
        return rounds * count

    return step


def _acknowledge(scale: int, tags: Iterable[int], *, multiple: bool = False) -> Callable[[], int]:
    data = bytearray(
        b"".join(_frame(1, struct.pack(">HHQB", 60, 80, tag, multiple)) for tag in tags)
    )
    parser = AmqpParser(65_536)
    connection = _line(_Handler(build=False), ChannelLedger(1))

    def step() -> int:
        ledger = ChannelLedger(1)
        connection.ledgers = {1: ledger}
        for first in range(0, scale, RUN):
            ledger.given(QUEUE, min(RUN, scale - first), first)
        parser.process(connection, data, len(data))
        ledger.take_acknowledged()
        return scale - ledger.unsettled

    return step


def _confirm(scale: int) -> Callable[[], int]:
    def step() -> int:
        window = ConfirmWindow()
        for _ in range(scale):
            window.done(window.publish(1), 1, True)
        window.answers(1)
        return scale - window.unanswered

    return step
