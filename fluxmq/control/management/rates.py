"""Message statistics of all nodes: each samples its own queues, and is asked for those that it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from fluxmq.control.management.list_query import JsonRow
from fluxmq.control.management.requests import Call, bad_request
from fluxmq.control.other_nodes import ControlOfNodes
from fluxmq.control.peers import RequestError
from fluxmq.control.traffic import LENGTHS, TrafficSampler
from fluxmq.ipc.column_messages import RATE_COLUMN, RateColumn, RateColumnAnswer
from fluxmq.ipc.messages import Body, ControlMessage, MessageError
from fluxmq.ipc.traffic_messages import (
    ASKED_QUEUES_MAX,
    NODE_RATES,
    NodeRates,
    NodeRatesAnswer,
    SeriesSpan,
)
from fluxmq.routing.topology.records import QueueRecord

NODE_SECONDS: Final = 2.0
"""Time for another node to answer."""
NOTHING: Final = SeriesSpan()
TOTALS: Final = (*LENGTHS, *(f"{each}_details" for each in LENGTHS))
"""Parts of statistics that overviews show as ``queue_totals``."""
SAMPLED: Final = frozenset({"message_stats", *(f"{each}_details" for each in LENGTHS)})
"""Columns of a queue's row that are sampled."""


class MessageRates:
    """Asks this node's sampler, and other nodes. ``node``: this one's name."""

    def __init__(self, sampler: TrafficSampler, node: str, others: ControlOfNodes) -> None:
        self._sampler = sampler
        self._node = node
        self._others = others

    async def answer(self, message: ControlMessage) -> Body:
        """Answer another node. Raises MessageError."""
        wanted = NodeRates.from_body(message.body)
        return NodeRatesAnswer(tuple(await self._own(wanted))).to_body()

    async def _own(self, wanted: NodeRates) -> Sequence[JsonRow]:
        """Return what this node answers."""
        await self._sampler.refresh()
        if wanted.queues:
            return [self._sampler.of_queue(each, wanted.span) for each in wanted.queues]
        if wanted.vhosts:
            return [self._sampler.of_vhost(each, wanted.span) for each in wanted.vhosts]
        if wanted.exchanges:
            return [self._sampler.of_exchange(each, wanted.span) for each in wanted.exchanges]
        return [self._sampler.of_node(wanted.span)]

    async def of_cluster(self, span: SeriesSpan = NOTHING) -> JsonRow:
        """Return the sums of the nodes that answer."""
        return (await self._summed(NodeRates(span=span)))[0]

    async def of_vhosts(self, names: Sequence[str]) -> list[JsonRow]:
        """Return the statistics of virtual hosts: the sums of their queues'."""
        found: list[JsonRow] = []
        for begin in range(0, len(names), ASKED_QUEUES_MAX):
            part = tuple(names[begin : begin + ASKED_QUEUES_MAX])
            found += await self._summed(NodeRates(vhosts=part))
        return found

    async def add_to_exchanges(self, rows: Sequence[JsonRow], span: SeriesSpan = NOTHING) -> None:
        """Add to exchanges' rows their statistics: the sums of all nodes'."""
        for begin in range(0, len(rows), ASKED_QUEUES_MAX):
            part = rows[begin : begin + ASKED_QUEUES_MAX]
            names = tuple((row["vhost"], row["name"]) for row in part)
            found = await self._summed(NodeRates(exchanges=names, span=span))
            for row, told in zip(part, found, strict=True):
                row.update(told)

    async def _summed(self, wanted: NodeRates) -> list[JsonRow]:
        others = (self._asked(each, wanted) for each in self._others.nodes)
        own, *answers = await asyncio.gather(self._own(wanted), *others)
        rows = [own, *(each for each in answers if len(each) == len(own))]
        return [summed([row for row in some if row]) for some in zip(*rows, strict=True)]

    async def add_to(self, rows: Sequence[JsonRow], span: SeriesSpan = NOTHING) -> None:
        """Add to queues' rows their statistics, from the nodes that lead them."""
        await self._sampler.refresh()
        led: dict[str, list[JsonRow]] = {}
        for row in rows:
            led.setdefault(str(row.get("leader") or self._node), []).append(row)
        for row in led.pop(self._node, ()):
            _add(row, self._sampler.of_queue((row["vhost"], row["name"]), span))
        for node, some in led.items():
            if node not in self._others.nodes:
                continue
            for begin in range(0, len(some), ASKED_QUEUES_MAX):
                part = some[begin : begin + ASKED_QUEUES_MAX]
                names = tuple((row["vhost"], row["name"]) for row in part)
                answers = await self._asked(node, NodeRates(names, span=span))
                for row, found in zip(part, answers, strict=False):
                    _add(row, found)
        for row in rows:
            for name in LENGTHS:
                row.setdefault(f"{name}_details", {"rate": 0.0})

    async def answer_column(self, message: ControlMessage) -> Body:
        """Answer another node's question for one column. Raises MessageError."""
        await self._sampler.refresh()
        found = self._sampler.column(RateColumn.from_body(message.body).column)
        return RateColumnAnswer(tuple(found), tuple(found.values())).to_body()

    async def column(self, queues: Sequence[QueueRecord], column: str) -> list[float]:
        """Return a figure of these queues, whichever node samples them; 0 where nothing is known."""
        await self._sampler.refresh()
        wanted = RateColumn(column).to_body()
        answers = await self._others.ask_all(RATE_COLUMN, wanted, NODE_SECONDS)
        found: dict[tuple[str, str], float] = {}
        for each in answers:
            # A node that cannot be reached is told by the list of nodes.
            if not isinstance(each, RequestError):
                with suppress(MessageError):
                    told = RateColumnAnswer.from_body(each)
                    found.update(zip(told.names, told.values, strict=True))
        found |= self._sampler.column(column)
        return [found.get((each.vhost, each.name), 0.0) for each in queues]

    async def _asked(self, node: str, wanted: NodeRates) -> Sequence[JsonRow]:
        try:
            found = await self._others.ask(node, NODE_RATES, wanted.to_body(), NODE_SECONDS)
            return NodeRatesAnswer.from_body(found).rows
        except (RequestError, MessageError):
            return ()  # the node cannot be reached; the list of nodes says so


def _add(row: JsonRow, found: Mapping[str, Any]) -> None:
    """Add statistics to a queue's row, whose own lengths are newer."""
    for name, value in found.items():
        if name not in LENGTHS:
            row[name] = value


def span_of(call: Call) -> SeriesSpan:
    """Return the samples that a request asks for, as RabbitMQ's query parameters do. Raises ApiError."""
    numbers: dict[str, int] = {}
    for name, key in (("msg_rates", "rates"), ("lengths", "lengths")):
        age, step = call.text(f"{name}_age", "0"), call.text(f"{name}_incr", "5")
        for given, text in ((f"{name}_age", age), (f"{name}_incr", step)):
            if not text.isascii() or not text.isdigit() or len(text) > 6:
                raise bad_request(f"{given} is not a number of seconds")
        numbers |= {f"{key}_age": int(age), f"{key}_step": int(step)}
    try:
        return SeriesSpan.from_body(numbers)
    except MessageError as problem:
        raise bad_request(str(problem)) from None


def summed(rows: Sequence[Mapping[str, Any]]) -> JsonRow:
    """Return the sums of numbers that rows have in common places; samples are added one by one."""
    found: JsonRow = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, Mapping):
                found[name] = summed([found.get(name, {}), value])
            elif isinstance(value, list):
                known = found.get(name)
                found[name] = value if known is None else list(map(_both, known, value))
            else:
                found[name] = found.get(name, 0) + value
    return found


def _both(one: JsonRow, other: JsonRow) -> JsonRow:
    return {**one, "sample": one["sample"] + other["sample"]}
