"""Messages about the traffic of queues.

::

    control -> shard     traffic: what has changed in the queues that this shard leads
    control -> control   node_rates, of another node: message statistics of queues that it leads

Pure, like `messages`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

from msgspec import Meta

from fluxmq.ipc.messages import MessageBody, Name, Natural

TRAFFIC: Final = "traffic"
NODE_RATES: Final = "node_rates"

REPORTED_QUEUES_MAX: Final = 1000
"""Queues in a report; others that have changed follow in the next, so that no report takes a shard
longer than a few milliseconds, however many queues it has."""
SAMPLES_ASKED_MAX: Final = 360
"""Samples of a series: a chart is not wider."""
REPORTED_EXCHANGES_MAX: Final = 1000
ASKED_QUEUES_MAX: Final = 500
"""Queues asked about at once: a page."""


class QueueNumbers(NamedTuple):
    """Messages of a queue since its group is led here, and those in it now."""

    publish: int = 0
    deliver: int = 0
    deliver_no_ack: int = 0
    get: int = 0
    get_no_ack: int = 0
    redeliver: int = 0
    ack: int = 0
    messages_ready: int = 0
    messages_unacknowledged: int = 0


class ShardNumbers(NamedTuple):
    """Messages between a shard and its clients since its start, and those in the queues that it
    leads now."""

    publish: int = 0
    confirm: int = 0
    return_unroutable: int = 0
    deliver_get: int = 0
    get_empty: int = 0
    redeliver: int = 0
    ack: int = 0
    messages_ready: int = 0
    messages_unacknowledged: int = 0


class ExchangeNumbers(NamedTuple):
    """Messages that clients have published to an exchange through a shard, and copies that it has
    routed, since the shard's start."""

    publish_in: int = 0
    publish_out: int = 0


class ChurnNumbers(NamedTuple):
    """Clients' connections and channels since a shard's start, queue.declare methods, and queues that it
    saw created and deleted: one shard of a cluster counts these."""

    connection_created: int = 0
    connection_closed: int = 0
    channel_created: int = 0
    channel_closed: int = 0
    queue_declared: int = 0
    queue_created: int = 0
    queue_deleted: int = 0


Numbers = Annotated[tuple[Natural, ...], Meta(min_length=9, max_length=9)]


class TrafficRequest(MessageBody, frozen=True):
    """A question for what has changed; `anew`: for everything, since the caller knows nothing."""

    anew: bool = False


class TrafficReport(MessageBody, frozen=True):
    """A shard's answer: `totals` as `ShardNumbers`; by virtual host and name, the `QueueNumbers` of
    queues that have changed since the last report; queues that have ended, or are led elsewhere;
    and how many changed ones are `left` for the next report. `exchanges` that have changed, with
    their `ExchangeNumbers`. ``churn``: `ChurnNumbers`."""

    totals: Numbers
    queues: Annotated[tuple[tuple[Name, Name, Numbers], ...], Meta(max_length=REPORTED_QUEUES_MAX)]
    ended: tuple[tuple[Name, Name], ...] = ()
    left: Natural = 0
    exchanges: Annotated[
        tuple[tuple[Name, Name, tuple[Natural, Natural]], ...],
        Meta(max_length=REPORTED_EXCHANGES_MAX),
    ] = ()
    churn: Annotated[tuple[Natural, ...], Meta(min_length=7, max_length=7)] = ChurnNumbers()


class SeriesSpan(MessageBody, frozen=True):
    """The samples wanted of series: as many as fit into `age` seconds, `step` seconds apart, of
    rates and of lengths; 0: none."""

    rates_age: Annotated[int, Meta(ge=0, le=86_400)] = 0
    rates_step: Annotated[int, Meta(ge=1, le=86_400)] = 5
    lengths_age: Annotated[int, Meta(ge=0, le=86_400)] = 0
    lengths_step: Annotated[int, Meta(ge=1, le=86_400)] = 5

    def unusable(self) -> str | None:
        """Return why there would be too many samples."""
        most = max(self.rates_age // self.rates_step, self.lengths_age // self.lengths_step)
        return None if most <= SAMPLES_ASKED_MAX else f"more than {SAMPLES_ASKED_MAX} samples"


class NodeRates(MessageBody, frozen=True):
    """A request for message statistics of a node's `queues`, of its `vhosts`, or of `exchanges`
    that are published to there; without any, of the node."""

    queues: Annotated[tuple[tuple[Name, Name], ...], Meta(max_length=ASKED_QUEUES_MAX)] = ()
    vhosts: Annotated[tuple[Name, ...], Meta(max_length=ASKED_QUEUES_MAX)] = ()
    exchanges: Annotated[tuple[tuple[Name, Name], ...], Meta(max_length=ASKED_QUEUES_MAX)] = ()
    span: SeriesSpan = SeriesSpan()


class NodeRatesAnswer(MessageBody, frozen=True):
    """The answer: for each queue, virtual host or exchange, or for the node, its statistics as RabbitMQ's management
    interface shows them; empty where there are none."""

    rows: tuple[dict[str, Any], ...]
