"""The cases of ``python -m perf amqp`` and what is asked of them.

Persistent messages to a durable queue over AMQP 0.9.1, each confirmed to its publisher and acknowledged by its
consumer; FluxMQ with one shard, syncing before it confirms, its queues declared as quorum queues. A window is the
same for every broker: how far a publisher may run ahead is the application's choice, not the broker's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perf import cases
from perf.amqp_brokers import (
    CLASSIC,
    FLUXMQ,
    FLUXMQ_BESIDE,
    FLUXMQ_EARLY,
    FLUXMQ_PURE,
    QUEUE_TYPES,
    QUORUM,
    STREAM,
)
from perf.cases import Case, Goal
from perf.durable import JETSTREAM, JETSTREAM_SYNC
from perf.lavinmq import LAVINMQ
from perf.workload import CHURNS, Workload

ONE = Workload(
    protocol="amqp", qos=1, shape="pairs", payload=256, window=500, outstanding=4000, topic="perf"
)
TEN = ONE.changed(publishers=10, subscribers=10, window=100, outstanding=8000)
MANY = ONE.changed(
    publishers=50, subscribers=1, shape="all", mode="single", window=4, outstanding=4000
)
STEADY = ONE.changed(rate=5000.0)
CHURN = ONE.changed(kind="churn", shape="all", subscribers=0, publishers=8)
RABBITS = (CLASSIC, QUORUM, STREAM)
CPU_OF_LAVINMQ = Goal(cases.CPU, LAVINMQ, 1, 0.7)
"""LavinMQ is compiled to native code and syncs before it confirms: the measure of what a message may cost."""


def adapted(workload: Workload, broker: str) -> Workload:
    """A workload as this broker takes it: its protocol, its queue type."""
    if broker in (JETSTREAM, JETSTREAM_SYNC):
        return workload.changed(protocol="jetstream")
    return workload.changed(queue_type=QUEUE_TYPES.get(broker, "quorum"))


def throughput(bounds: Iterable[tuple[str, float, float]]) -> tuple[Goal, ...]:
    """Goals of messages per second."""
    return tuple(Goal(cases.THROUGHPUT, against, least, aim) for against, least, aim in bounds)


def recorded(name: str, title: str, workload: Workload, note: str = "") -> Case:
    """A case in which nothing is asked."""
    return Case(name, title, workload, (), subject=FLUXMQ, also=RABBITS, adapt=adapted, note=note)


ASKED = (
    Case(
        "amqp_w500",
        "1 to 1, 500 unconfirmed",
        ONE,
        throughput(
            [
                *((CLASSIC, 8, 15), (QUORUM, 6, 12), (STREAM, 4, 8)),
                *((LAVINMQ, 3, 4), (JETSTREAM, 2, 4)),
            ]
        ),
        subject=FLUXMQ,
        also=(JETSTREAM_SYNC,),
        adapt=adapted,
        note="JetStream does not sync before it acknowledges, jetstream-sync does.",
    ),
    Case(
        "amqp_w1",
        "1 to 1, 1 unconfirmed",
        ONE.changed(window=1),
        (*throughput([(LAVINMQ, 1.4, 1.8)]), CPU_OF_LAVINMQ),
        subject=FLUXMQ,
        also=(*RABBITS, JETSTREAM_SYNC),
        adapt=adapted,
    ),
    Case(
        "amqp_50x4",
        "50 publishers, 4 unconfirmed each, one send per message, one queue",
        MANY,
        (*throughput([(QUORUM, 2, 4), (LAVINMQ, 1.6, 2.5)]), CPU_OF_LAVINMQ),
        subject=FLUXMQ,
        also=(CLASSIC, STREAM),
        adapt=adapted,
    ),
    Case(
        "amqp_16k",
        "1 to 1, 500 unconfirmed, 16 KiB",
        ONE.changed(payload=16_384),
        throughput([(QUORUM, 1.2, 2)]),
        subject=FLUXMQ,
        also=(CLASSIC, STREAM),
        adapt=adapted,
    ),
    Case(
        "amqp_5k",
        "5,000 messages/s (open loop)",
        STEADY,
        (
            Goal(cases.ACKNOWLEDGEMENT_P50, QUORUM, 0.6, 0.35),
            Goal(cases.DELIVERY_P50, LAVINMQ, 2, 1.2),
            CPU_OF_LAVINMQ,
        ),
        subject=FLUXMQ,
        also=(CLASSIC, STREAM, JETSTREAM, JETSTREAM_SYNC),
        adapt=adapted,
        note="LavinMQ delivers before it syncs.",
    ),
    *(
        Case(
            f"amqp_{rate}",
            f"{rate} messages/s (open loop)",
            ONE.changed(rate=float(rate)),
            (CPU_OF_LAVINMQ,),
            subject=FLUXMQ,
            also=(CLASSIC,),
            adapt=adapted,
        )
        for rate in cases.LOW_RATES
    ),
    Case(
        "amqp_5k_early",
        "5,000 messages/s (open loop), delivered before the sync",
        STEADY,
        (
            Goal(cases.DELIVERY_P50, CLASSIC, 1, 0.6),
            Goal(cases.DELIVERY_P50, LAVINMQ, 1, 0.7),
            Goal(cases.DELIVERY_P50, FLUXMQ, 0.8, 0.5),
            Goal(cases.ACKNOWLEDGEMENT_P50, FLUXMQ, 1.1, 1),
        ),
        subject=FLUXMQ_EARLY,
        adapt=adapted,
        note="RabbitMQ's classic queues and LavinMQ deliver before they sync as well.",
    ),
    Case(
        "amqp_w500_pure",
        "uncompiled: 1 to 1, 500 unconfirmed",
        ONE,
        throughput([(QUORUM, 1, 2)]),
        subject=FLUXMQ_PURE,
        adapt=adapted,
    ),
    Case(
        "amqp_slow",
        "5,000 messages/s beside a queue whose consumer is too slow",
        STEADY,
        (Goal(cases.ACKNOWLEDGEMENT_P99, FLUXMQ, 1.1, 1.05),),
        subject=FLUXMQ_BESIDE,
        adapt=adapted,
        note="Against the same without the other queue.",
    ),
)
"""Cases with goals."""

RECORDED = (
    recorded("amqp_w200", "1 to 1, 200 unconfirmed", ONE.changed(window=200)),
    recorded("amqp_10", "10 publishers, 10 queues, 100 unconfirmed each", TEN),
    recorded(
        "amqp_ack1",
        "1 to 1, 500 unconfirmed, every delivery acknowledged",
        ONE.changed(ack_every=1),
    ),
    recorded(
        "amqp_ack50", "1 to 1, 500 unconfirmed, every 50 acknowledged", ONE.changed(ack_every=50)
    ),
    recorded("amqp_16b", "1 to 1, 500 unconfirmed, 16 B", ONE.changed(payload=16)),
    recorded("amqp_1m", "1 to 1, 10 unconfirmed, 1 MiB", ONE.changed(payload=1 << 20, window=10)),
    Case(
        "amqp_drain",
        "backlog taken by one consumer",
        ONE,
        (),
        subject=FLUXMQ,
        also=RABBITS,
        kind="drain",
        adapt=adapted,
        note="Messages per second from basic.consume to the last delivery.",
    ),
    *(
        recorded(
            f"amqp_churn_{what}",
            f"churn: {what}s, 8 at once",
            CHURN.changed(churn_of=what),
            "A message is one that came and went.",
        )
        for what in CHURNS
    ),
    Case(
        "amqp_idle",
        "10,000 idle connections and queues",
        CHURN,
        (),
        subject=FLUXMQ,
        also=(CLASSIC,),
        kind="amqp-idle",
        adapt=adapted,
    ),
)
"""Cases of which the figures are recorded."""

AMQP_CASES: Mapping[str, Case] = {case.name: case for case in (*ASKED, *RECORDED)}
"""By name, those with goals first."""
