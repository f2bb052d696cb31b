"""The cases of ``python -m perf queue`` and what is asked of them.

256-byte messages to a durable queue, each confirmed to its publisher and acknowledged by its consumer; FluxMQ
with one shard, syncing before it confirms. Windows are per broker where brokers differ in what suits them:
each gets one with which it was seen to do as well as with any other.
"""

from __future__ import annotations

from collections.abc import Mapping

from perf import cases
from perf.cases import Case, Goal
from perf.durable import (
    FLUXMQ,
    FLUXMQ_GROUPS,
    FLUXMQ_ONE_GROUP,
    FLUXMQ_SLOW,
    GROUPS,
    JETSTREAM,
    JETSTREAM_SYNC,
    JETSTREAM_WORK,
    RABBIT_AMQP,
    RABBIT_MQTT,
)
from perf.workload import Workload

THROUGHPUT_MIN = 250_000
RESTART_MAX_S = 10.0
BACKLOG_BYTES_MAX = 200e6
GROUPS_WINDOW = 256
"""In flight per queue with 64 of them; one queue alone gets 64 times as much."""

STREAM = Workload(
    protocol="queue", version=5, qos=1, shape="pairs", window=5000, outstanding=20_000
)
STEADY = STREAM.changed(rate=5000.0, window=500, outstanding=4000)
MANY = STREAM.changed(
    publishers=GROUPS,
    subscribers=GROUPS,
    window=GROUPS_WINDOW,
    outstanding=2 * GROUPS * GROUPS_WINDOW,
)

WINDOWS: Mapping[str, tuple[int, int]] = {
    RABBIT_AMQP: (500, 4000),
    RABBIT_MQTT: (500, 4000),
    JETSTREAM: (1000, 4000),
    JETSTREAM_SYNC: (1000, 4000),
    JETSTREAM_WORK: (1000, 4000),
}
"""Unconfirmed, and deliveries under way, of a streaming pair."""


def adapted(workload: Workload, broker: str) -> Workload:
    """A workload as this broker takes it: its protocols, and the windows that suit it."""
    if broker in (RABBIT_AMQP, RABBIT_MQTT):
        publishing = "amqp" if broker == RABBIT_AMQP else "mqtt"
        workload = workload.changed(protocol=publishing, subscriber_protocol="amqp", version=4)
    elif broker in (JETSTREAM, JETSTREAM_SYNC, JETSTREAM_WORK):
        retention = "workqueue" if broker == JETSTREAM_WORK else "limits"
        workload = workload.changed(protocol="jetstream", retention=retention, version=4)
    if broker in WINDOWS and not workload.rate:
        window, outstanding = WINDOWS[broker]
        workload = workload.changed(window=window, outstanding=outstanding)
    if broker == FLUXMQ and workload.publishers > 1:
        window = workload.publishers * workload.window
        workload = workload.changed(publishers=1, subscribers=1, window=window)
    return workload


QUEUE_CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        Case(
            "queue_stream",
            "durable queue, streamed",
            STREAM,
            (
                Goal(cases.THROUGHPUT, None, THROUGHPUT_MIN, 2 * THROUGHPUT_MIN),
                Goal(cases.THROUGHPUT, RABBIT_AMQP, 6, 12),
                Goal(cases.THROUGHPUT, RABBIT_MQTT, 6, 12),
                Goal(cases.THROUGHPUT, JETSTREAM, 2, 4),
            ),
            subject=FLUXMQ,
            also=(JETSTREAM_SYNC, JETSTREAM_WORK),
            adapt=adapted,
            note="JetStream does not sync before it acknowledges, and its stream (limits retention) removes"
            " nothing; with work-queue retention, which does what a queue does, it is slower.",
        ),
        Case(
            "queue_5k",
            "durable queue, 5,000 messages/s (open loop)",
            STEADY,
            (
                Goal(cases.ACKNOWLEDGEMENT_P50, RABBIT_AMQP, 0.6, 0.35),
                Goal(cases.ACKNOWLEDGEMENT_P50, RABBIT_MQTT, 0.6, 0.35),
            ),
            subject=FLUXMQ,
            also=(JETSTREAM, JETSTREAM_SYNC),
            adapt=adapted,
        ),
        Case(
            "queue_64_groups",
            "64 queues, each in a replication group of its own",
            MANY,
            (Goal(cases.CPU, FLUXMQ_ONE_GROUP, 1.5, 1.2),),
            subject=FLUXMQ_GROUPS,
            also=(FLUXMQ,),
            adapt=adapted,
            note=f"Against the same 64 queues in one group: what the groups cost. One queue with one connection each way and"
            f" {GROUPS} times the window, whose batches are as much longer, stands beside them.",
        ),
        Case(
            "queue_stream_5ms",
            "durable queue, streamed, every sync 5 ms slower",
            STREAM,
            (),
            subject=FLUXMQ_SLOW,
            also=(FLUXMQ,),
            adapt=adapted,
            note="The delay is injected into FluxMQ; no peer has it.",
        ),
        Case(
            "queue_5k_5ms",
            "durable queue, 5,000 messages/s, every sync 5 ms slower",
            STEADY,
            (),
            subject=FLUXMQ_SLOW,
            also=(FLUXMQ,),
            adapt=adapted,
            note="The delay is injected into FluxMQ; no peer has it.",
        ),
        Case(
            "queue_backlog",
            "backlog of 10 M messages",
            STREAM,
            (
                Goal(cases.RESTART, None, RESTART_MAX_S, RESTART_MAX_S / 5),
                Goal(cases.BACKLOG_MEMORY, None, BACKLOG_BYTES_MAX, BACKLOG_BYTES_MAX / 4),
            ),
            subject=FLUXMQ,
            kind="backlog",
            adapt=adapted,
            note="The slowest of a start after a clean stop and one after SIGKILL, to the first delivery.",
        ),
    )
}
