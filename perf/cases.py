"""The cases of a comparison and what is asked of them.

A case is a workload, the brokers it is run against, and goals: a ratio between two of them in one metric,
with the least that must hold and the aim. The bounds are those of the performance plan; they are about
ratios in one interleaved run on one machine, never about absolute figures.

``outstanding`` differs between cases for two reasons. It must hold enough messages that a broker can work in
batches if it knows how to, and few enough that none drops: mosquitto above QoS 0 beyond 1000 waiting, FluxMQ
at QoS 0 beyond ``session.max_output_bytes`` (1 MiB) that a subscriber has not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from perf.workload import Workload

SUBJECT, PURE, TWO_SHARDS = "fluxmq", "fluxmq-pure", "fluxmq-2"
MOSQUITTO, NATS = "mosquitto", "nats"

THROUGHPUT, CPU = "throughput", "cpu"
DELIVERY_P50, DELIVERY_P99 = "delivery p50", "delivery p99"
ACKNOWLEDGEMENT_P50, ACKNOWLEDGEMENT_P99 = "ack p50", "ack p99"
MEMORY = "bytes per connection"
RESTART, BACKLOG_MEMORY = "restart, s", "memory of the backlog, bytes"

AT_MOST = {
    *(CPU, DELIVERY_P50, DELIVERY_P99, ACKNOWLEDGEMENT_P50, ACKNOWLEDGEMENT_P99),
    *(MEMORY, RESTART, BACKLOG_MEMORY),
}
"""Metrics where less is better; in the others more is."""

IDLE_CONNECTIONS = 10_000
IDLE_BYTES_MAX = 6 * 1024


@dataclass(frozen=True, slots=True)
class Goal:
    """``subject``'s metric divided by ``against``'s; with no ``against`` the bare figure."""

    metric: str
    against: str | None
    least: float
    aim: float

    def met(self, value: float, bound: float) -> bool:
        """Return whether a figure is on the right side of a bound."""
        return value <= bound if self.metric in AT_MOST else value >= bound


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the comparison. ``kind`` is ``run``, ``idle``, ``backlog``, ``drain``, ``amqp-idle``,
    ``idle-links`` or ``many-links``. ``processes``: the least of the
    generator. ``also``: brokers measured for the record, with nothing asked. ``adapt``: the workload as a
    broker takes it, where that is not this module's to say.
    """

    name: str
    title: str
    workload: Workload
    goals: tuple[Goal, ...]
    subject: str = SUBJECT
    kind: str = "run"
    note: str = ""
    processes: int = 1
    also: tuple[str, ...] = ()
    adapt: Callable[[Workload, str], Workload] | None = None

    def brokers(self) -> tuple[str, ...]:
        """The brokers this case needs, the subject first."""
        against = [goal.against for goal in self.goals if goal.against is not None]
        return tuple(dict.fromkeys([self.subject, *against, *self.also]))

    def workload_for(self, broker: str) -> Workload:
        """The workload as this broker takes it: its protocol, and where its clients shall live."""
        if self.adapt is not None:
            return self.adapt(self.workload, broker)
        if broker == NATS:
            return self.workload.changed(protocol="nats")
        if broker == TWO_SHARDS:
            return on_two_shards(self.workload, shard_of())
        return self.workload


Placement = Callable[[bytes, int], int | None]
"""(client identifier, number of shards) to the shard of its session."""


def shard_of() -> Placement:
    """The acceptor's own placement."""
    from fluxmq.protocols.sniff import shard_of as placement

    return placement


def on_two_shards(workload: Workload, placement: Placement) -> Workload:
    """The same with client identifiers that put publishers on shard 0 and subscribers on shard 1."""

    def identifiers(role: str, count: int, shard: int) -> tuple[str, ...]:
        found: list[str] = []
        number = 0
        while len(found) < count:
            candidate = f"{workload.client_prefix}-{role}{number}"
            if placement(candidate.encode(), 2) == shard:
                found.append(candidate)
            number += 1
        return tuple(found)

    return workload.changed(
        publisher_ids=identifiers("p", workload.publishers, 0),
        subscriber_ids=identifiers("s", workload.subscribers, 1),
    )


LOW_RATES = (100, 1000)
"""Messages per second at which what costs anything is to wake up; 5,000 are the rate of the other open loops."""


def _throughput(against: str, least: float, aim: float) -> Goal:
    return Goal(THROUGHPUT, against, least, aim)


Q0_STREAM = Workload()
# A message between two shards passes one more process, each of which works on a burst at a time: to keep all
# busy takes about twice as many under way, still within what sockets and output buffers hold. Both sides of
# the comparison get it.
Q0_STREAM_DEEP = Workload(outstanding=8000)
Q1_STREAM = Workload(qos=1, window=100, outstanding=1000)
LONE = Workload(mode="single", window=100, outstanding=1000)

CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        Case(
            "q0_1to1",
            "QoS 0, 1 to 1, streamed",
            Q0_STREAM,
            (_throughput(MOSQUITTO, 15, 20), _throughput(NATS, 2.5, 4)),
        ),
        Case(
            "q0_1to100",
            "QoS 0, 1 to 100, streamed",
            Workload(subscribers=100, outstanding=16_000),
            (_throughput(MOSQUITTO, 10, 20), _throughput(NATS, 6, 8)),
        ),
        Case(
            "q1_w100",
            "QoS 1, 1 to 1, 100 in flight",
            Q1_STREAM,
            (_throughput(MOSQUITTO, 8, 12),),
        ),
        Case(
            "q2_w100",
            "QoS 2, 1 to 1, 100 in flight",
            Q1_STREAM.changed(qos=2),
            (_throughput(MOSQUITTO, 5, 10),),
        ),
        *(
            Case(
                f"q{qos}_{rate}",
                f"QoS {qos}, {rate:,} messages/s (open loop), one send per message",
                LONE.changed(qos=qos, rate=float(rate)),
                (Goal(CPU, MOSQUITTO, 1.5 if (qos, rate) == (1, 5000) else 1, 1),),
            )
            for qos in (0, 1)
            for rate in (*LOW_RATES, 5000)
        ),
        Case(
            "q0_100conns",
            "QoS 0, 100 publishers, one send per message",
            Workload(publishers=100, mode="single", outstanding=400),
            (_throughput(MOSQUITTO, 2, 3),),
            # A send per message costs one process as much as it costs a broker to take it.
            processes=2,
        ),
        Case(
            "q1_100conns_w1",
            "QoS 1, 100 publishers, 1 in flight each, one send per message",
            Workload(
                qos=1, publishers=100, mode="single", window=1, outstanding=400, subscriber_qos=0
            ),
            (_throughput(MOSQUITTO, 2, 3),),
            note="The subscriber asks for QoS 0: mosquitto 2.0 takes one packet per socket and turn,"
            " so a lone QoS 1 subscriber's acknowledgements starve and it drops deliveries.",
            processes=2,
        ),
        Case(
            "q1_100conns_w1_lossy",
            "the same with a QoS 1 subscriber",
            Workload(qos=1, publishers=100, mode="single", window=1, outstanding=400),
            (_throughput(MOSQUITTO, 1.5, 2),),
            note="mosquitto loses messages here (see the losses); its rate counts what arrived.",
            processes=2,
        ),
        Case(
            "q1_single_w1",
            "QoS 1, lone client, 1 in flight",
            Workload(qos=1, mode="single", window=1, outstanding=1000),
            (
                Goal(DELIVERY_P50, MOSQUITTO, 1.5, 1.2),
                Goal(ACKNOWLEDGEMENT_P50, MOSQUITTO, 1.1, 0.9),
            ),
        ),
        Case(
            "q0_16k",
            "QoS 0, 1 to 1, 16 KiB",
            Workload(payload=16_384, outstanding=128),
            (_throughput(MOSQUITTO, 1.3, 2),),
        ),
        Case(
            "churn",
            "new connections, 64 at once",
            Workload(kind="churn", publishers=64, subscribers=0),
            (Goal(CPU, MOSQUITTO, 1.5, 1.2),),
        ),
        Case(
            "q0_1to1_pure",
            "uncompiled: QoS 0, 1 to 1, streamed",
            Q0_STREAM,
            (_throughput(MOSQUITTO, 3, 5),),
            subject=PURE,
        ),
        Case(
            "q1_w100_pure",
            "uncompiled: QoS 1, 1 to 1, 100 in flight",
            Q1_STREAM,
            (_throughput(MOSQUITTO, 3, 5),),
            subject=PURE,
        ),
        Case(
            "two_shards",
            "two shards: publisher on one, subscriber on the other, against one shard",
            Q0_STREAM_DEEP,
            (_throughput(SUBJECT, 0.7, 1.0),),
            subject=TWO_SHARDS,
        ),
        Case(
            "idle",
            f"memory of {IDLE_CONNECTIONS} idle connections",
            Workload(kind="churn", subscribers=0),
            (Goal(MEMORY, None, IDLE_BYTES_MAX, IDLE_BYTES_MAX),),
            kind="idle",
        ),
    )
}
