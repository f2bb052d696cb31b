"""The cases of ``python -m perf amqp10`` and what is asked of them.

The cases of ``perf.amqp_cases`` over AMQP 1.0, against FluxMQ's own AMQP 0.9.1 with the same window: durable
messages to a durable queue, each with an outcome for its publisher and accepted by its consumer.
"""

from __future__ import annotations

from collections.abc import Mapping

from perf import amqp_cases, cases
from perf.amqp_brokers import (
    FLUXMQ,
    FLUXMQ_10,
    FLUXMQ_10_BESIDE,
    FLUXMQ_10_PURE,
    FLUXMQ_PURE,
    RABBIT_10,
)
from perf.artemis import ARTEMIS
from perf.cases import Case, Goal
from perf.workload import BY_LINK, Workload

ONE = amqp_cases.ONE.changed(protocol="amqp10")
STAMPED = ONE.changed(protocol="amqp10-stamped")
MANY = amqp_cases.MANY.changed(protocol="amqp10")
STEADY = amqp_cases.STEADY.changed(protocol="amqp10")
LINKS = 10
"""Links of each idle connection in the case of many, one half for each direction."""


def adapted(workload: Workload, broker: str) -> Workload:
    """A workload as this broker takes it: the other version's over AMQP 0.9.1."""
    if broker in (FLUXMQ, FLUXMQ_PURE):
        return workload.changed(protocol="amqp")
    return workload.changed(queue_type=BY_LINK) if broker == ARTEMIS else workload


def recorded(name: str, title: str, workload: Workload, note: str = "") -> Case:
    """A case in which nothing is asked."""
    also = (FLUXMQ, RABBIT_10, ARTEMIS)
    return Case(name, title, workload, (), FLUXMQ_10, also=also, adapt=adapted, note=note)


AMQP10_CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        Case(
            "amqp10_w500",
            "1 to 1, 500 unsettled, equal sections",
            ONE,
            (
                Goal(cases.THROUGHPUT, FLUXMQ, 0.9, 1),
                Goal(cases.THROUGHPUT, RABBIT_10, 8, 15),
                Goal(cases.THROUGHPUT, ARTEMIS, 3, 6),
            ),
            subject=FLUXMQ_10,
            adapt=adapted,
        ),
        Case(
            "amqp10_stamped",
            "1 to 1, 500 unsettled, ids and creation times",
            STAMPED,
            (Goal(cases.THROUGHPUT, FLUXMQ, 0.6, 0.8),),
            subject=FLUXMQ_10,
            also=(RABBIT_10, ARTEMIS),
            adapt=adapted,
            note="Over AMQP 0.9.1 the messages have neither.",
        ),
        recorded("amqp10_w1", "1 to 1, 1 unsettled", ONE.changed(window=1)),
        recorded(
            "amqp10_50x4", "50 publishers, 4 unsettled each, one send per message, one queue", MANY
        ),
        recorded(
            "amqp10_ack1",
            "1 to 1, 500 unsettled, every delivery accepted by itself",
            ONE.changed(ack_every=1),
        ),
        recorded("amqp10_16k", "1 to 1, 500 unsettled, 16 KiB", ONE.changed(payload=16_384)),
        Case(
            "amqp10_slow",
            "5,000 messages/s beside a queue whose receiver is too slow",
            STEADY,
            (Goal(cases.ACKNOWLEDGEMENT_P99, FLUXMQ_10, 1.1, 1.05),),
            subject=FLUXMQ_10_BESIDE,
            adapt=adapted,
            note="Against the same without the other queue.",
        ),
        Case(
            "amqp10_w500_pure",
            "uncompiled: 1 to 1, 500 unsettled, equal sections",
            ONE,
            (),
            subject=FLUXMQ_10_PURE,
            also=(FLUXMQ_PURE,),
            adapt=adapted,
        ),
        Case(
            "amqp10_idle",
            "idle connections with a session and two links",
            ONE,
            (Goal(cases.MEMORY, FLUXMQ, 1.3, 1),),
            subject=FLUXMQ_10,
            kind="idle-links",
            adapt=adapted,
            note="Over AMQP 0.9.1: with a channel and a consumer.",
        ),
        Case(
            "amqp10_links",
            f"idle connections with {LINKS} links each",
            ONE,
            (),
            subject=FLUXMQ_10,
            kind="many-links",
            adapt=adapted,
        ),
    )
}
"""By name."""
