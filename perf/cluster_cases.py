"""The cases of ``python -m perf cluster`` and what is asked of them.

256-byte messages to a queue of three copies on three nodes of this machine, each confirmed to its publisher when a
majority of the nodes has it, and acknowledged by its consumer. FluxMQ and RabbitMQ sync on a majority before they
confirm; JetStream does not sync. Windows are the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping

from perf import cases
from perf.amqp_cases import throughput
from perf.cases import Case, Goal
from perf.cluster_brokers import (
    COLD,
    COPIED,
    COUNTS,
    FLUXMQ,
    FLUXMQ_ACROSS,
    FLUXMQ_BESIDE,
    FLUXMQ_BESIDE_COPIER,
    FLUXMQ_COLD,
    FLUXMQ_FOLLOWER,
    FLUXMQ_FORWARD,
    FLUXMQ_MIRRORED,
    FLUXMQ_MQTT,
    FLUXMQ_MQTT_FOLLOWER,
    FLUXMQ_ONE_NODE,
    FLUXMQ_REPLICATE,
    GATHERED,
    LAVINMQ,
    NATS,
    NATS_ACROSS,
    RABBITMQ,
    RABBITMQ_ACROSS,
    RABBITMQ_FOLLOWER,
    RABBITMQ_MIRRORED,
    SPREAD,
    TOGETHER,
    placed,
    workers_apart,
)
from perf.cluster_nodes import MIRRORED_QUEUES
from perf.workload import Workload

STREAM = Workload(
    protocol="amqp",
    qos=1,
    shape="pairs",
    payload=256,
    window=500,
    outstanding=4000,
    topic="perf",
    declares=False,
)
ALONE = STREAM.changed(window=1, mode="single")
MANY = STREAM.changed(publishers=50, subscribers=1, shape="all", mode="single", window=4)
STEADY = STREAM.changed(rate=2000.0)
MIRRORED = STREAM.changed(topic=MIRRORED_QUEUES)
COLD_RATE = 200.0
"""Messages per second of the cold queue: so few that it is idle beside the hot one."""

BETWEEN = Workload(shape="pairs", outstanding=8000)
"""Ordinary MQTT messages, streamed."""

NO_SYNC = "JetStream does not sync before it acknowledges."
MQTT_NAMES = frozenset(
    {FLUXMQ_MQTT, FLUXMQ_MQTT_FOLLOWER, FLUXMQ_COLD, FLUXMQ_BESIDE, FLUXMQ_BESIDE_COPIER}
)


def adapted(workload: Workload, broker: str) -> Workload:
    """A workload as clients of this cluster speak it, to the queues that its name is about."""
    if broker == NATS:
        return workload.changed(protocol="jetstream")
    if broker == NATS_ACROSS:
        return workload.changed(protocol="nats")
    if broker in MQTT_NAMES:
        workload = workload.changed(protocol="queue", version=5)
    if broker in (FLUXMQ_COLD, FLUXMQ_BESIDE, FLUXMQ_BESIDE_COPIER):
        workers = workers_apart()
        return placed(workload.changed(topic=COLD), workers - 1, workers)
    if broker == FLUXMQ and workload.topic == MIRRORED_QUEUES:
        return workload.changed(topic="perf")
    if broker == FLUXMQ_REPLICATE:
        return workload.changed(topic=COPIED)
    if broker in GATHERED.values():
        return workload.changed(topic=TOGETHER)
    return workload


def across(name: str, title: str, workload: Workload, goal: Goal) -> Case:
    """A case of MQTT between nodes, against the same within one node of the same cluster, and against peers. NATS has QoS 0
    only."""
    if goal.metric != cases.THROUGHPUT:
        return Case(name, title, workload, (goal,), subject=FLUXMQ_ACROSS, adapt=adapted)
    peers = [Goal(goal.metric, RABBITMQ_ACROSS, 15, 15)]
    if not workload.qos:
        peers.append(Goal(goal.metric, NATS_ACROSS, 1, 1))
    return Case(name, title, workload, (goal, *peers), subject=FLUXMQ_ACROSS, adapt=adapted)


def swept(count: int) -> Case:
    """A case of the sweep over groups. Each queue has its window; one generator process for four of them at most."""
    goals = (Goal(cases.THROUGHPUT, GATHERED[count], 1.6, 1.9),) if count == 2 else ()
    also = (GATHERED[count],) if count > 2 else ()
    return Case(
        f"cluster_groups_{count}",
        f"{count} queue{'s' if count > 1 else ''} in groups of their own, led on all nodes, 500 unconfirmed each",
        STREAM.changed(publishers=count, subscribers=count, outstanding=4000 * count),
        goals,
        subject=SPREAD[count],
        also=also,
        adapt=adapted,
        note="Against the same queues in one group. The factor needs cores for two leaders and their followers."
        if count > 1
        else "",
    )


ASKED = (
    Case(
        "cluster_w500",
        "1 to 1, 500 unconfirmed, 256 B, 3 copies",
        STREAM,
        throughput([(RABBITMQ, 5, 10), (NATS, 2, 4), (LAVINMQ, 3, 5)]),
        subject=FLUXMQ,
        also=(FLUXMQ_MQTT,),
        adapt=adapted,
        note=NO_SYNC,
    ),
    Case(
        "cluster_50x4",
        "50 publishers, 4 unconfirmed each, one send per message, one queue, 3 copies",
        MANY,
        throughput([(LAVINMQ, 1.8, 2.5)]),
        subject=FLUXMQ,
        also=(RABBITMQ,),
        adapt=adapted,
    ),
    Case(
        "cluster_w1",
        "1 to 1, 1 unconfirmed, 256 B, 3 copies",
        ALONE,
        throughput([(RABBITMQ, 1.5, 2.5), (LAVINMQ, 1.3, 1.6)]),
        subject=FLUXMQ,
        also=(FLUXMQ_MQTT, NATS),
        adapt=adapted,
        note=NO_SYNC,
    ),
    Case(
        "cluster_2k",
        "2,000 messages/s (open loop), 256 B, 3 copies",
        STEADY,
        (
            Goal(cases.ACKNOWLEDGEMENT_P50, RABBITMQ, 0.6, 0.35),
            Goal(cases.ACKNOWLEDGEMENT_P50, LAVINMQ, 0.7, 0.5),
        ),
        subject=FLUXMQ,
        also=(FLUXMQ_MQTT, NATS),
        adapt=adapted,
        note=NO_SYNC,
    ),
    Case(
        "mirrored_w500",
        "mirrored classic queue, 500 unconfirmed, 256 B, 3 nodes",
        MIRRORED,
        throughput([(RABBITMQ_MIRRORED, 10, 20)]),
        subject=FLUXMQ_MIRRORED,
        also=(FLUXMQ,),
        adapt=adapted,
        note="Against RabbitMQ's mirrored queues; beside a quorum queue.",
    ),
    Case(
        "mirrored_2k",
        "mirrored classic queue, 2,000 messages/s (open loop), 256 B, 3 nodes",
        MIRRORED.changed(rate=2000.0),
        (Goal(cases.ACKNOWLEDGEMENT_P50, RABBITMQ_MIRRORED, 0.5, 0.3),),
        subject=FLUXMQ_MIRRORED,
        also=(FLUXMQ,),
        adapt=adapted,
    ),
    across(
        "across_q0",
        "MQTT, QoS 0, 1 to 1, streamed, subscriber at another node",
        BETWEEN,
        Goal(cases.THROUGHPUT, FLUXMQ_ONE_NODE, 0.5, 0.5),
    ),
    across(
        "across_q1",
        "MQTT, QoS 1, 1 to 1, 500 in flight, subscriber at another node",
        BETWEEN.changed(qos=1, window=500, outstanding=4000),
        Goal(cases.THROUGHPUT, FLUXMQ_ONE_NODE, 0.5, 0.5),
    ),
    across(
        "across_1k",
        "MQTT, QoS 0, 1,000 messages/s (open loop), subscriber at another node",
        BETWEEN.changed(mode="single", rate=1000.0),
        Goal(cases.DELIVERY_P50, FLUXMQ_ONE_NODE, 4.0, 4.0),
    ),
    swept(2),
    Case(
        "cluster_isolated",
        f"{COLD_RATE:.0f} messages/s (open loop) to a cold queue beside a saturated one in another group",
        STEADY.changed(rate=COLD_RATE),
        (Goal(cases.ACKNOWLEDGEMENT_P99, FLUXMQ_COLD, 1.1, 1.05),),
        subject=FLUXMQ_BESIDE,
        also=(FLUXMQ_BESIDE_COPIER,),
        adapt=adapted,
        note="Over MQTT, against the same queue with the other one idle. Each group has a shard of its own on every node. On"
        " fewer than 8 cores the hot shards of all nodes share one core, the cold ones another; on one core all share it,"
        " and the factor is not to be had. The disk is everybody's. The copier copies memory on the hot core and does nothing else:"
        " what the cold queue is slower beside it is the machine's.",
    ),
)
"""Cases with goals."""

RECORDED = (
    Case(
        "cluster_w500_follower",
        "1 to 1, 500 unconfirmed, clients at a node that does not lead",
        STREAM,
        (),
        subject=FLUXMQ_FOLLOWER,
        also=(FLUXMQ, FLUXMQ_MQTT_FOLLOWER, RABBITMQ_FOLLOWER),
        adapt=adapted,
    ),
    Case(
        "cluster_w1_follower",
        "1 to 1, 1 unconfirmed, clients at a node that does not lead",
        ALONE,
        (),
        subject=FLUXMQ_FOLLOWER,
        also=(FLUXMQ, FLUXMQ_MQTT_FOLLOWER, RABBITMQ_FOLLOWER),
        adapt=adapted,
    ),
    Case(
        "cluster_distribution",
        "1 to 1, 500 unconfirmed, consumer at another node: its copy against the leader's",
        STREAM,
        (),
        subject=FLUXMQ_REPLICATE,
        also=(FLUXMQ_FORWARD, FLUXMQ),
        adapt=adapted,
        note="distribution_mode replicate against forward.",
    ),
    Case(
        "cluster_distribution_16k",
        "the same with 16 KiB and 50 unconfirmed",
        STREAM.changed(payload=16_384, window=50),
        (),
        subject=FLUXMQ_REPLICATE,
        also=(FLUXMQ_FORWARD, FLUXMQ),
        adapt=adapted,
    ),
    *(swept(count) for count in COUNTS if count != 2),
)
"""Cases of which the figures are recorded."""

CLUSTER_CASES: Mapping[str, Case] = {case.name: case for case in (*ASKED, *RECORDED)}
"""By name, those with goals first."""
