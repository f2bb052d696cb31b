"""Pages of the list of queues over HTTP: one column sorts them, and only a page's queues have rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from fluxmq.control.listings import Listings
from fluxmq.control.management.amqp_calls import AmqpCaller
from fluxmq.control.management.objects import MessagingObjects
from fluxmq.control.management.rates import MessageRates
from fluxmq.control.management.requests import Call, Caller
from fluxmq.control.mirror_requests import MirrorRequests
from fluxmq.control.other_nodes import ControlOfNodes
from fluxmq.control.peers import Peer
from fluxmq.ipc.column_messages import QUEUE_COLUMN, QueueColumn, QueueColumnPage
from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import Body, ControlMessage, MessageError
from fluxmq.ipc.row_messages import ROWS, RowsRequest, TableRow, page_of
from fluxmq.ipc.traffic_messages import TRAFFIC, QueueNumbers
from fluxmq.routing.topology.changes import AddVhost, DeclareQueue, SetPolicy
from fluxmq.routing.topology.records import Policy, QueueRecord, Vhost
from fluxmq.routing.topology.topology import Topology
from tests.control_part import alone
from tests.unit.control.management import user
from tests.unit.control.test_traffic import SamplerPart, ShardReports, report

QUEUES = 1000
STEP = 300
"""Queues in a shard's answer."""
ADMINISTRATOR = user("root", "administrator", vhosts=["/"])


class ManyQueues:
    """A shard with very many queues, which notes for which of them it was asked for rows. Queue number n has n messages
    where n is divisible by 7, and only the even ones are told of at all."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.columns: list[tuple[str, int]] = []

    def figures(self, number: int) -> TableRow:
        """What a queue has."""
        return {"messages": number if number % 7 == 0 else 0, "state": "running"}

    def answer_rows(self, body: Body, answered: Answered) -> None:
        """Answer with rows."""
        wanted = RowsRequest.from_body(body)
        self.rows += [name for _, name in wanted.names]
        found = [
            {"vhost": vhost, "name": name, **self.figures(_number(name))}
            for vhost, name in wanted.names
            if _number(name) % 2 == 0
        ]
        answered(page_of(found, 0).to_body())

    def answer_column(self, body: Body, answered: Answered) -> None:
        """Answer with a page of a column."""
        wanted = QueueColumn.from_body(body)
        self.columns.append((wanted.column, wanted.after))
        numbers = range(wanted.after, min(wanted.after + STEP, QUEUES))
        told = {
            _name(each): value
            for each in numbers
            if each % 2 == 0 and (value := self.figures(each).get(wanted.column))
        }
        following = numbers.stop if numbers.stop < QUEUES else -1
        answered(QueueColumnPage(tuple(told), tuple(told.values()), following).to_body())


def _name(number: int) -> str:
    return f"q-{number:04d}"


def _number(name: str) -> int:
    return int(name.removeprefix("q-"))


class PagesPart:
    """The list of queues as a control process of its own."""

    def __init__(self, shards: Callable[[], list[Peer]]) -> None:
        topology = Topology()
        topology.apply(AddVhost(Vhost("/")))
        topology.apply(SetPolicy(Policy("/", "odd", "[13579]$", "queues", 0, {"max-length": 9})))
        topology.apply_all(
            [
                DeclareQueue(
                    QueueRecord("/", _name(each), arguments={"x-max-length": QUEUES - each})
                )
                for each in range(QUEUES)
            ]
        )
        self.sampler = SamplerPart(shards)
        rates = MessageRates(self.sampler, "node1", ControlOfNodes((), shards))
        listings = Listings(lambda: topology, shards, node="node1")
        caller, told = AmqpCaller(shards), MirrorRequests(lambda: topology)
        objects = MessagingObjects(
            *(lambda: topology, listings, caller, rates, "node1"),
            lambda kind, body: told.answer(ControlMessage(kind, 0, body)),
        )
        self._route = next(each for each in objects.routes() if each.path == "queues")

    def start(self) -> None:
        """Nothing: the test asks."""

    async def stop(self) -> None:
        """End the sampler."""
        await self.sampler.stop()

    async def answer(self, message: ControlMessage) -> Body:
        """Answer nothing."""
        raise MessageError(message.kind)

    async def page(self, query: str) -> dict[str, Any]:
        """Return a page of ten queues."""
        request = make_mocked_request("GET", f"/api/queues?page_size=10&{query}")
        answer = await self._route.handler(Call(request, Caller(ADMINISTRATOR)))
        body = cast(web.Response, answer).body
        assert isinstance(body, bytes)
        return cast(dict[str, Any], json.loads(body))

    async def names(self, query: str) -> list[int]:
        """Return the numbers of the queues of a page."""
        return [_number(each["name"]) for each in (await self.page(query))["items"]]


def on_pages(
    path: Path, shard: ManyQueues, act: Callable[[PagesPart], Awaitable[None]], *reports: Any
) -> None:
    """Run the list with a shard."""
    traffic = ShardReports(*(reports or (report(0),)))
    commands: dict[str, RequestHandler] = {
        ROWS: shard.answer_rows,
        QUEUE_COLUMN: shard.answer_column,
        TRAFFIC: traffic.answer,
    }

    async def run() -> None:
        async with alone(path, PagesPart, commands) as part:
            await act(part)

    asyncio.run(run())


def test_a_sorted_page_makes_rows_of_its_queues_only(tmp_path: Path) -> None:
    shard = ManyQueues()

    async def act(part: PagesPart) -> None:
        found = await part.page("page=1&sort=messages&sort_reverse=true")
        assert [each["messages"] for each in found["items"]] == list(range(994, 994 - 140, -14))
        assert (found["filtered_count"], found["page_count"]) == (QUEUES, QUEUES // 10)
        assert shard.rows == [each["name"] for each in found["items"]]
        assert shard.columns == [("messages", each) for each in range(0, QUEUES, STEP)]
        shard.rows.clear()
        without = [each for each in range(989, QUEUES) if each != 994]
        last = await part.names("page=100&sort=messages&sort_reverse=true")
        assert last == without, "those without messages stay in their order"
        assert len(shard.rows) == 10

    on_pages(tmp_path / "s", shard, act)


def test_a_filtered_page_is_sorted_as_well(tmp_path: Path) -> None:
    shard = ManyQueues()

    async def act(part: PagesPart) -> None:
        query = "page=2&name=4$&use_regex=true&sort=messages&sort_reverse=true"
        found = await part.page(query)
        with_messages = [each for each in range(994, 0, -10) if each % 7 == 0]
        without = [each for each in range(4, QUEUES, 10) if each % 7]
        expected = [*with_messages, *without][10:20]
        assert [_number(each["name"]) for each in found["items"]] == expected
        assert (found["filtered_count"], found["total_count"]) == (QUEUES // 10, QUEUES)
        assert len(shard.rows) == 10

    on_pages(tmp_path / "s", shard, act)


def test_every_column_sorts(tmp_path: Path) -> None:
    shard = ManyQueues()
    odd, even = list(range(1, 20, 2)), list(range(0, 20, 2))

    async def act(part: PagesPart) -> None:
        assert await part.names("page=1&sort=state") == odd, "no shard tells of those"
        assert await part.names("page=1&sort=policy&sort_reverse=true") == odd
        assert await part.names("page=1&sort=policy") == even
        assert await part.names("page=1&sort=name&sort_reverse=true") == [*range(999, 989, -1)]
        assert await part.names("page=1&sort=arguments.x-max-length") == [*range(999, 989, -1)]
        for same in ("node", "leader", "vhost", "nothing", "message_stats.nothing"):
            assert await part.names(f"page=1&sort={same}") == [*range(10)], same
        assert {column for column, _ in shard.columns} == {"state"}

    on_pages(tmp_path / "s", shard, act)


def test_rates_sort_without_rows(tmp_path: Path) -> None:
    shard = ManyQueues()
    numbers = {_name(each): each for each in (4, 8, 500)}

    def published(factor: int) -> Any:
        rows = ((name, QueueNumbers(publish=factor * each)) for name, each in numbers.items())
        return report(0, *rows)

    async def act(part: PagesPart) -> None:
        for _ in range(3):
            await part.sampler.after(5.0)
        by_rate = "page=1&sort=message_stats.publish_details.rate&sort_reverse=true"
        assert (await part.names(by_rate))[:3] == [500, 8, 4]
        assert (await part.names("page=100&sort=message_stats.publish"))[-3:] == [4, 8, 500]
        assert len(shard.rows) == 20
        assert shard.columns == []

    on_pages(tmp_path / "s", shard, act, report(0), published(1), published(2), published(3))
