"""Requests to synchronise mirrored queues: of fluxmqctl and over HTTP, with the rows of queues there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, cast

import pytest
from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request

from fluxmq.control.listings import Listings
from fluxmq.control.management.amqp_calls import AmqpCaller
from fluxmq.control.management.objects import MessagingObjects
from fluxmq.control.management.rates import MessageRates
from fluxmq.control.management.requests import ApiError, Call, Caller
from fluxmq.control.mirror_requests import MirrorRequests
from fluxmq.control.mirrors import MirrorState
from fluxmq.control.other_nodes import ControlOfNodes
from fluxmq.control.peers import RequestError
from fluxmq.ipc.messages import ERROR_FAILED, ERROR_INVALID, ERROR_NOT_FOUND, Body, ControlMessage
from fluxmq.ipc.mirror_messages import CANCEL_SYNC_QUEUE, SYNC_QUEUE, MirroredQueue, SyncState
from fluxmq.routing.topology.changes import AddVhost, DeclareQueue
from fluxmq.routing.topology.records import QueueRecord, Vhost
from fluxmq.routing.topology.topology import Topology
from tests.unit.control.management import user
from tests.unit.control.test_traffic import SamplerPart

ADMINISTRATOR = user("root", "administrator", vhosts=["/"])
STATE = MirrorState("n1", ("n2", "n3"), ("n2",), ("n2", "n3", "n4"))


def topology() -> Topology:
    found = Topology()
    names = ("mirrored", "plain", "broken")
    declared = [DeclareQueue(QueueRecord("/", each, durable=True)) for each in names]
    found.apply_all([AddVhost(Vhost("/")), *declared])
    return found


def state_of(queue: QueueRecord) -> MirrorState | None:
    return None if queue.name == "plain" else STATE


class Sync:
    """Synchronisation that ends when it has been asked about twice; of the queue ``broken`` it fails."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, bool]] = []
        self.left = 0

    async def synchronise(self, queue: QueueRecord, *, begin: bool) -> SyncState:
        if queue.name == "broken":
            raise RequestError(ERROR_FAILED, "etcd does not answer")
        self.begun.append((queue.name, begin))
        self.left = 2 if begin else self.left - 1
        return SyncState(self.left > 0, f"{self.left} left")

    async def cancel(self, queue: QueueRecord) -> SyncState:
        state = SyncState(self.left > 0)
        self.begun.append((queue.name, False))
        self.left = 0
        return state


class MirrorPart:
    """The requests, and the interface over HTTP that sends them."""

    def __init__(self) -> None:
        found = topology()
        self.sync = Sync()
        self.requests = MirrorRequests(lambda: found, state_of, self.sync)
        rates = MessageRates(SamplerPart(list), "n1", ControlOfNodes((), list))
        listings = Listings(lambda: found, list, node="n1", mirrors=state_of)
        self.objects = MessagingObjects(
            *(lambda: found, listings, AmqpCaller(list), rates, "n1", self.ask)
        )

    async def ask(self, kind: str, body: Body) -> Body:
        """Have the control process carry a request out."""
        return await self.requests.answer(ControlMessage(kind, 0, body))

    async def told(self, kind: str, name: str, *, begin: bool = True) -> SyncState:
        """Send a request as fluxmqctl does."""
        return SyncState.from_body(await self.ask(kind, MirroredQueue("/", name, begin).to_body()))

    async def http(
        self, method: str, path: str, name: str, body: Mapping[str, Any]
    ) -> web.Response:
        """Send a request over HTTP."""
        whole = "queues/{vhost}/{name}" + path
        route = next(
            each for each in self.objects.routes() if (each.method, each.path) == (method, whole)
        )
        stream = StreamReader(BaseProtocol(asyncio.get_running_loop()), 1 << 16)
        stream.feed_data(json.dumps(body).encode())
        stream.feed_eof()
        parts = {"vhost": "/", "name": name}
        request = make_mocked_request(
            method, f"/api/queues/%2F/{name}{path}", match_info=parts, payload=stream
        )
        return cast(web.Response, await route.handler(Call(request, Caller(ADMINISTRATOR))))


def test_a_queue_is_synchronised_until_it_is() -> None:
    """S4-55: a query begins nothing."""

    async def run() -> None:
        part = MirrorPart()
        assert (await part.told(SYNC_QUEUE, "mirrored", begin=False)) == SyncState(False, "-1 left")
        assert (await part.told(SYNC_QUEUE, "mirrored")).syncing
        assert (await part.told(SYNC_QUEUE, "mirrored", begin=False)).syncing
        assert not (await part.told(SYNC_QUEUE, "mirrored", begin=False)).syncing
        assert part.sync.begun[:2] == [("mirrored", False), ("mirrored", True)]

    asyncio.run(run())


def test_a_synchronisation_is_cancelled() -> None:
    """S4-56: and the answer says whether there was one."""

    async def run() -> None:
        part = MirrorPart()
        assert not (await part.told(CANCEL_SYNC_QUEUE, "mirrored")).syncing
        await part.told(SYNC_QUEUE, "mirrored")
        assert (await part.told(CANCEL_SYNC_QUEUE, "mirrored")).syncing
        assert not (await part.told(CANCEL_SYNC_QUEUE, "plain")).syncing

    asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "name", "code", "text"),
    [
        (SYNC_QUEUE, "nothing", ERROR_NOT_FOUND, "no queue 'nothing' in vhost '/'"),
        (CANCEL_SYNC_QUEUE, "nothing", ERROR_NOT_FOUND, "no queue 'nothing' in vhost '/'"),
        (SYNC_QUEUE, "plain", ERROR_INVALID, "queue 'plain' in vhost '/' is not mirrored"),
        (SYNC_QUEUE, "broken", ERROR_FAILED, "etcd does not answer"),
    ],
)
def test_requests_that_are_refused(kind: str, name: str, code: str, text: str) -> None:
    with pytest.raises(RequestError, match=text) as refusal:
        asyncio.run(MirrorPart().told(kind, name))
    assert refusal.value.code == code


def test_a_node_without_a_cluster_mirrors_nothing() -> None:
    found = topology()
    alone = MirrorRequests(lambda: found)
    body = MirroredQueue("/", "mirrored").to_body()
    with pytest.raises(RequestError, match="is not mirrored"):
        asyncio.run(alone.answer(ControlMessage(SYNC_QUEUE, 0, body)))
    answer = asyncio.run(alone.answer(ControlMessage(CANCEL_SYNC_QUEUE, 0, body)))
    assert not SyncState.from_body(answer).syncing


def test_queues_are_synchronised_over_http() -> None:
    """S4-57: one that is not mirrored is no error there."""

    async def run() -> None:
        part = MirrorPart()
        for name, action in (("mirrored", "sync"), ("mirrored", "cancel_sync"), ("plain", "sync")):
            answer = await part.http("POST", "/actions", name, {"action": action})
            assert answer.status == 204
        assert part.sync.begun == [("mirrored", True), ("mirrored", False)]
        with pytest.raises(ApiError, match="unknown action") as refusal:
            await part.http("POST", "/actions", "mirrored", {"action": "paint"})
        assert refusal.value.status == 400
        with pytest.raises(ApiError, match="etcd does not answer") as refusal:
            await part.http("POST", "/actions", "broken", {"action": "sync"})
        assert refusal.value.status == 400

    asyncio.run(run())


def test_rows_over_http_have_nodes_under_old_and_new_names() -> None:
    """S4-07, S4-18, S4-57: and no list where a queue is not mirrored."""

    async def run() -> tuple[dict[str, Any], dict[str, Any]]:
        part = MirrorPart()
        answers = [await part.http("GET", "", each, {}) for each in ("mirrored", "plain")]
        mirrored, plain = (json.loads(cast(bytes, each.body)) for each in answers)
        return mirrored, plain

    mirrored, plain = asyncio.run(run())
    for word in ("slave", "mirror"):
        assert mirrored[f"{word}_nodes"] == ["n2", "n3"]
        assert mirrored[f"synchronised_{word}_nodes"] == ["n2"]
        assert f"{word}_nodes" not in plain
        assert f"{word}_pids" not in mirrored
    assert mirrored["recoverable_slaves"] == ["n2", "n3", "n4"]
    assert mirrored["mirrors_syncing"] is False
    assert plain["recoverable_slaves"] is None
    assert (mirrored["node"], mirrored["leader"]) == ("n1", "n1")
