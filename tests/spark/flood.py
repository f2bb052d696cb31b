"""Publishes messages that say which one they are, over MQTT 5 or AMQP 0.9.1, and counts what is confirmed.

``python -m tests.spark.flood mqtt PORT QUEUE COUNT [RATE]``: message number n of a queue has the header ``n`` and a payload
that follows from n alone, so that whoever reads it back can tell whether it is right. With COUNT 0 it goes on until it
gets SIGTERM, and then waits for what is under way; RATE is messages per second, as fast as possible if absent. The last line of its output is the number of messages confirmed:
all of them from 0 on, or it fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy

from tests.differential import wire
from tests.powercut import amqp_client, client

WINDOW = 2000
"""Messages under way: below every broker's default for a client's receive window of 65,535."""
CHUNK = 250
"""Messages written at once."""
FILLERS = 251
"""Different ends of payloads: a prime, so that neither sizes nor batches go in step with them."""
SIZES = numpy.array([256, 64, 300, 256, 17, 256, 512, 128])
"""Bytes of payloads, by number modulo eight; never below the eight bytes of the number."""
SIZE_MAX = 512
DIGITS = 12
PLACEHOLDER = "9" * DIGITS
IDENTIFIERS = 60_000
QUIET_S = 60.0
PACE_S = 0.05


def fillers() -> numpy.ndarray[tuple[int, int], numpy.dtype[numpy.uint8]]:
    """What payloads end with: row n modulo ``FILLERS``, from byte 8 on."""
    return numpy.random.default_rng(20_261_122).integers(
        0, 256, (FILLERS, SIZE_MAX), dtype=numpy.uint8
    )


class Payloads:
    """The payload of each number."""

    def __init__(self) -> None:
        self._ends = [row.tobytes() for row in fillers()]
        self._sizes = SIZES.tolist()

    def __call__(self, number: int) -> bytes:
        """The number as eight bytes, then what it is filled with."""
        end = self._ends[number % FILLERS]
        return struct.pack("<Q", number) + end[8 : self._sizes[number % len(self._sizes)]]


Encoder = Callable[[int, bytes], bytes]


def mqtt_encoder(queue: str) -> Encoder:
    """Whole PUBLISH packets of MQTT 5 at QoS 1 for a queue."""
    topic = client.text(f"$queue/{queue}/flood/eu")
    properties = client.user_properties((("n", PLACEHOLDER), ("source", "flood")))
    before, after = properties.split(PLACEHOLDER.encode())

    def encode(number: int, payload: bytes) -> bytes:
        identifier = (number % IDENTIFIERS + 1).to_bytes(2, "big")
        body = b"%b%b%b%012d%b%b" % (topic, identifier, before, number, after, payload)
        return b"\x32" + client.variable(len(body)) + body

    return encode


def amqp_encoder(queue: str, frame_max: int) -> Encoder:
    """Frames of basic.publish through the default exchange, persistent."""
    method = wire.method(amqp_client.CHANNEL, "basic.publish", {"routing_key": queue})
    properties = {"delivery_mode": 2, "headers": {"n": PLACEHOLDER, "source": "flood"}}
    parts: dict[int, tuple[bytes, bytes, bytes]] = {}
    for size in {int(size) for size in SIZES}:
        whole = wire.content(amqp_client.CHANNEL, properties, b"\0" * size, frame_max)
        before, after = whole.split(PLACEHOLDER.encode())
        parts[size] = method + before, after[: -size - 1], whole[-1:]

    def encode(number: int, payload: bytes) -> bytes:
        before, after, end = parts[len(payload)]
        return b"%b%012d%b%b%b" % (before, number, after, payload, end)

    return encode


class Flood:
    """Keeps a window full over one connection."""

    def __init__(self, send: Callable[[bytes], None], encode: Encoder, count: int) -> None:
        self._send = send
        self._encode = encode
        self._payloads = Payloads()
        self._count = count
        self.allowed = 0
        """How many may have been sent by now, 0 for any number."""
        self.sent = 0
        self.confirmed = 0
        self.failure = ""
        self.done = asyncio.Event()

    def confirm(self, count: int) -> None:
        """So many more are confirmed; write what has room."""
        self.confirmed += count
        self.fill()

    def fail(self, why: str) -> None:
        """A message was refused."""
        self.failure = self.failure or why
        self.done.set()

    def stop(self) -> None:
        """Send nothing new."""
        self._count = self.sent or -1
        self.fill()

    def fill(self) -> None:
        """Write in chunks, as far as the window goes."""
        while True:
            room = WINDOW - (self.sent - self.confirmed)
            left = self._count - self.sent if self._count else CHUNK
            size = min(CHUNK, left, self.allowed - self.sent if self.allowed else CHUNK)
            if size <= 0 or room < size:
                break
            numbers = range(self.sent, self.sent + size)
            self._send(b"".join([self._encode(n, self._payloads(n)) for n in numbers]))
            self.sent += size
        if self._count and self.confirmed >= self._count:
            self.done.set()


async def mqtt(port: int, queue: str, count: int) -> Flood:
    """Over MQTT 5."""
    connection = await client.Connection.open(port, f"flood-{queue}")
    flood = Flood(connection.send, mqtt_encoder(queue), count)

    def answered(identifier: int, reason: int) -> None:
        if reason >= client.FAILURE:
            flood.fail(f"PUBACK with reason {reason:#04x}")
        elif identifier != flood.confirmed % IDENTIFIERS + 1:
            flood.fail(f"PUBACK {identifier} out of turn")
        else:
            flood.confirm(1)

    connection.on_confirm = answered
    connection.closed.add_done_callback(lambda _: flood.fail("the connection ended"))
    return flood


async def amqp(port: int, queue: str, count: int) -> Flood:
    """Over AMQP 0.9.1 with confirms."""
    connection = await amqp_client.Connection.open(port)
    await connection.call("confirm.select")
    flood = Flood(connection.send, amqp_encoder(queue, connection.frame_max), count)

    def answered(method: wire.Method) -> None:
        if method.name != "basic.ack":
            flood.fail(f"a publisher was sent {method.name}")
            return
        last = method.fields["delivery_tag"]
        if method.fields["multiple"] or last == flood.confirmed + 1:
            flood.confirm(last - flood.confirmed)
        else:
            flood.fail(f"basic.ack {last} out of turn")

    connection.on_method = answered
    connection.closed.add_done_callback(lambda _: flood.fail("the connection ended"))
    return flood


async def pace(flood: Flood, rate: int) -> None:
    """Allow so many messages a second."""
    while True:
        flood.allowed += max(1, round(rate * PACE_S))
        flood.fill()
        await asyncio.sleep(PACE_S)


async def run(protocol: str, port: int, queue: str, count: int, rate: int = 0) -> Flood:
    """Publish, until all is confirmed, SIGTERM came or something went wrong."""
    flood = await (mqtt if protocol == "mqtt" else amqp)(port, queue, count)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, flood.stop)
    pacing = loop.create_task(pace(flood, rate)) if rate else None
    flood.fill()
    before = -1
    while not flood.done.is_set():
        if flood.confirmed == before:
            flood.fail(f"nothing was confirmed for {QUIET_S:.0f} s")
            break
        before = flood.confirmed
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(flood.done.wait(), QUIET_S)
    if pacing is not None:
        pacing.cancel()
    return flood


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 0 when all that was sent was confirmed, in order."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.flood", description=__doc__)
    parser.add_argument("protocol", choices=("mqtt", "amqp"))
    parser.add_argument("port", type=int)
    parser.add_argument("queue")
    parser.add_argument("count", type=int, help="messages; 0: until SIGTERM")
    parser.add_argument("rate", type=int, nargs="?", default=0, help="messages per second")
    given = parser.parse_args(arguments)
    flood = asyncio.run(run(given.protocol, given.port, given.queue, given.count, given.rate))
    if flood.failure:
        print(flood.failure, file=sys.stderr)
        return 1
    print(flood.confirmed)
    return 0


def numbers_of(first: int, count: int) -> Iterator[tuple[int, bytes]]:
    """Numbers and their payloads, for tests of what reads them."""
    payloads = Payloads()
    for number in range(first, first + count):
        yield number, payloads(number)


if __name__ == "__main__":
    raise SystemExit(main())
