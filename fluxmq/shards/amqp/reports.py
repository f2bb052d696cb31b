"""A shard's AMQP metrics: connections, channels, messages, errors, and its copy of the topology.

Sessions count messages, once per run or batch, in the shard's ``Tally``; everything else is read on
demand. Connections are counted some at a time, so that many of them delay nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from fluxmq.ipc.topology_client import TopologyClient
from fluxmq.metrics.registry import AMQP_STATES, Sample
from fluxmq.protocols.connection import Tally
from fluxmq.routing.topology.topology import Topology
from fluxmq.sessions.amqp091.handler import AmqpSession
from fluxmq.sessions.amqp10.handler import Amqp10Connection
from fluxmq.shards.amqp.admin_queries import state_of
from fluxmq.shards.amqp.broker import AmqpBroker
from fluxmq.shards.amqp.broker_messages import BrokerMessages

CENSUS_STEP: Final = 2000
"""Connections and channels counted in one turn: a millisecond or two."""


@dataclass(slots=True)
class AmqpCount:
    """Sums over all connections. ``states``: connections by state; ``unsettled``: unacked."""

    states: Counter[str] = field(default_factory=Counter)
    channels: int = 0
    consumers: int = 0
    unsettled: int = 0


class AmqpCensus:
    """Counts connections some at a time; ``result`` is the last complete count."""

    def __init__(self, broker: AmqpBroker) -> None:
        self._broker = broker
        self._left: list[AmqpSession | Amqp10Connection] = []
        self._count = AmqpCount()
        self.result = AmqpCount()

    def step(self) -> None:
        """Continue counting; after the last connection the count becomes the result."""
        if not self._left:
            self._left = [
                *self._broker.handler.clients.values(),
                *self._broker.handler.amqp10.clients.values(),
            ]
            self._count = AmqpCount()
        count = self._count
        work = 0
        while self._left and work < CENSUS_STEP:
            session = self._left.pop()
            if isinstance(session, Amqp10Connection):
                work += 1 + len(session.sessions)
                count.states[session.client.state] += 1
                count.channels += len(session.sessions)
                for link_session in session.sessions.values():
                    count.consumers += len(link_session.consumers())
                    count.unsettled += link_session.unsettled
                continue
            work += 1 + len(session.channels)
            count.states[state_of(session.client)] += 1
            count.channels += len(session.channels)
            for each in session.channels.values():
                consumers = each.consumers
                count.consumers += len(consumers.by_tag) + (consumers.reply is not None)
                count.unsettled += each.channel.ledger.unsettled
        if not self._left:
            self.result = count


class AmqpReports:
    """Reads one shard's counts."""

    def __init__(
        self, broker: AmqpBroker, client: TopologyClient, messages: BrokerMessages
    ) -> None:
        self._broker = broker
        self._client = client
        self._messages = messages
        self.census = AmqpCensus(broker)

    def samples(self) -> Iterator[Sample]:
        """Yield every metric of AMQP but those of messages."""
        broker = self._broker
        if len(broker.handler.clients) + len(broker.handler.amqp10.clients) <= CENSUS_STEP:
            self.census.step()
        count = self.census.result
        for state in AMQP_STATES:
            yield "fluxmq_amqp_connections", {"state": state}, count.states[state]
        yield "fluxmq_amqp_channels", {}, count.channels
        yield "fluxmq_amqp_consumers", {}, count.consumers
        yield "fluxmq_amqp_unsettled_messages", {}, count.unsettled
        yield "fluxmq_amqp_connections_opened_total", {}, broker.counted.opened
        for reason, number in broker.counted.closed.items():
            yield "fluxmq_amqp_connections_closed_total", {"reason": reason}, number
        for code, number in broker.counted.errors.items():
            yield "fluxmq_amqp_errors_total", {"code": str(int(code))}, number
        for name, number in broker.counted.methods.items():
            yield "fluxmq_amqp_methods_total", {"method": method_name(name)}, number
        yield from topology_samples(broker.topology)
        yield "fluxmq_topology_changes_waiting", {}, self._client.under_way
        yield from self._messages.samples()


def topology_samples(topology: Topology) -> Iterator[Sample]:
    """Yield the size of this shard's copy of the topology."""
    vhosts = topology.vhosts()
    numbers = dict.fromkeys(("vhost", "exchange", "queue", "binding", "policy"), 0)
    numbers["vhost"] = len(vhosts)
    for vhost in vhosts:
        space = topology.space(vhost.name)
        assert space is not None
        numbers["exchange"] += len(space.exchanges)
        numbers["queue"] += len(space.queues)
        numbers["binding"] += len(space.bindings)
        numbers["policy"] += len(space.policies)
    yield "fluxmq_topology_revision", {}, topology.revision
    for kind, number in numbers.items():
        yield "fluxmq_topology_records", {"kind": kind}, number


def message_samples(tally: Tally) -> Iterator[Sample]:
    """Yield the message counts of AMQP clients."""
    yield "fluxmq_amqp_published_total", {}, tally.amqp_published
    yield "fluxmq_amqp_published_bytes_total", {}, tally.amqp_published_bytes
    yield "fluxmq_amqp_returned_total", {}, tally.amqp_returned
    yield "fluxmq_amqp_confirms_total", {"answer": "ack"}, tally.amqp_confirmed
    yield "fluxmq_amqp_confirms_total", {"answer": "nack"}, tally.amqp_nacked
    yield "fluxmq_amqp_delivered_total", {}, tally.amqp_delivered
    yield "fluxmq_amqp_delivered_bytes_total", {}, tally.amqp_delivered_bytes
    yield "fluxmq_amqp_redelivered_total", {}, tally.amqp_redelivered
    yield "fluxmq_amqp_gets_total", {"answer": "message"}, tally.amqp_got
    yield "fluxmq_amqp_gets_total", {"answer": "empty"}, tally.amqp_got_empty
    yield "fluxmq_amqp_settled_total", {"verb": "ack"}, tally.amqp_acknowledged
    yield "fluxmq_amqp_settled_total", {"verb": "requeue"}, tally.amqp_requeued
    yield "fluxmq_amqp_settled_total", {"verb": "reject"}, tally.amqp_rejected
    yield "fluxmq_amqp_direct_replies_total", {}, tally.amqp_replies
    yield "fluxmq_amqp_transactions_total", {"outcome": "committed"}, tally.amqp_committed
    yield "fluxmq_amqp_transactions_total", {"outcome": "rolled_back"}, tally.amqp_rolled_back


@cache
def method_name(name: str) -> str:
    """Return a method as the specification writes it, such as ``queue.declare-ok``."""
    first, *others = re.findall("[A-Z][a-z]*", name)
    return f"{first.lower()}.{'-'.join(each.lower() for each in others)}"
