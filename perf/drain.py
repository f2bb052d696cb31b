"""A backlog taken over AMQP: a queue is filled with nobody consuming, then one consumer takes it all.

What counts is the rate from basic.consume to the last delivery, every one acknowledged; the rate of filling is
recorded beside it. The queue is made anew for every round.
"""

from __future__ import annotations

import socket
import time

from perf import amqp, backlog, dialects, handshake, processes
from perf.codec import Histogram
from perf.percentiles import summary
from perf.run import Measurement, Progress, RunError, Target
from perf.workload import Workload

MESSAGES = 200_000
INBOUND_BYTES = 1 << 18
QUIET_S = 10.0
"""Without any delivery, the run is given up."""


def take_all(connection: socket.socket, work: Workload, messages: int) -> tuple[float, Histogram]:
    """Consume until so many were delivered: seconds, and the time from publish to delivery. Raises ``RunError``."""
    latency = Histogram()
    inbound, outbound = bytearray(INBOUND_BYTES), bytearray(INBOUND_BYTES)
    receiver = dialects.DIALECTS["amqp"].receiver(work, (inbound, outbound), None, latency)
    view, out = memoryview(inbound), memoryview(outbound)
    connection.settimeout(QUIET_S)
    kept = 0
    began = time.monotonic()
    amqp.consume(connection, work.queue_name(0), amqp.PREFETCH, work.queue_type)
    while receiver.publishes < messages:
        try:
            count = connection.recv_into(view[kept:])
        except TimeoutError as error:
            raise RunError(f"{receiver.publishes} of {messages} messages came") from error
        if not count:
            raise RunError("the broker closed the connection")
        end = kept + count
        done = receiver.feed(end, time.monotonic_ns(), True)
        kept = end - done
        view[:kept] = bytes(view[done:end])
        if receiver.out_length:
            connection.sendall(out[: receiver.out_length])
    if receiver.lost or receiver.reordered or receiver.malformed:
        raise RunError(f"lost {receiver.lost}, reordered {receiver.reordered} messages")
    return time.monotonic() - began, latency


def measure(
    target: Target, work: Workload, messages: int = MESSAGES, progress: Progress | None = None
) -> Measurement:
    """Fill and drain once. Raises ``RunError`` or ``OSError``."""
    pids = processes.tree(target.pids)
    with handshake.dial(target.host, target.port) as connection:
        amqp.open_channel(connection)
        amqp.declare(connection, work.queue_name(0), "", work.queue_type)
        filled = backlog.fill(target.port, messages, work, progress)
        before = processes.cpu_seconds(pids)
        seconds, latency = take_all(connection, work, messages)
        used = processes.cpu_seconds(pids) - before
        connection.sendall(amqp.close())
    counts = {"sent": messages, "received": messages, "acknowledged": messages, "reordered": 0}
    return Measurement(
        target=target.name,
        seconds=seconds,
        messages_per_s=messages / seconds,
        published_per_s=messages / filled,
        broker_cpu_us=used / messages * 1e6,
        broker_cores=used / seconds,
        generator_cores=0.0,
        lost=0,
        written_off=0,
        counts=counts,
        delivery_us=summary(dict(enumerate(latency.counts))),
        acknowledgement_us=summary({}),
    )
