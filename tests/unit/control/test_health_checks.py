"""Health checks that fail: their status, and the fields that tools read."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from fluxmq.control.management.overview import ENDANGERED_MAX
from fluxmq.control.management.requests import Call, Caller, CallPlace
from fluxmq.control.mirrors import MirrorState
from fluxmq.ipc.clusters import MemberRow, RaftListing, RaftRow
from fluxmq.routing.topology.changes import AddVhost, DeclareQueue
from fluxmq.routing.topology.records import QueueRecord, Vhost
from fluxmq.routing.topology.topology import Topology
from tests.unit.control.management import make_api, user

NODES = ("node1", "node2", "node3")
MIRRORED = "mirrors-0123456789abcdef"


def checked(name: str, **node: Any) -> tuple[int, Any]:
    """Status and body of a check's answer."""
    path = f"health/checks/{name}"
    (route,) = [each for each in make_api(**node).routes if each.path == path]
    place = CallPlace(path, {}, {})
    call = Call(make_mocked_request("GET", f"/api/{path}"), Caller(user("u")), place)

    async def answered() -> web.StreamResponse:
        return await route.handler(call)

    answer = asyncio.run(answered())
    assert isinstance(answer, web.Response)
    assert isinstance(answer.body, bytes)
    return answer.status, orjson.loads(answer.body)


def group(name: str, *connected: str) -> RaftRow:
    """A group of three voters of which some are connected."""
    members = tuple(
        MemberRow(each, at, "voter", at == 0, "node1", 5, 0, "replicate", each in connected, 5, "")
        for at, each in enumerate(NODES)
    )
    return RaftRow(name, "node1", 0, "leader", "", 1, "node1", 5, 5, 5, 0, 1, 0.001, members)


@pytest.mark.parametrize("name", ["alarms", "local-alarms"])
def test_alarms_name_the_node(name: str) -> None:
    assert checked(name) == (200, {"status": "ok"})
    status, body = checked(name, alarms=("memory",))
    assert (status, body["status"]) == (503, "failed")
    assert body["alarms"] == [{"node": "node1", "resource": "memory"}]


def test_queues_that_would_lose_their_majority_are_named() -> None:
    topology = Topology()
    topology.apply(AddVhost(Vhost("/")))
    for at in range(ENDANGERED_MAX + 1):
        record = QueueRecord("/", f"q{at}", "quorum", durable=True, group="endangered")
        topology.apply(DeclareQueue(record))
    topology.apply(DeclareQueue(QueueRecord("/", "safe", "quorum", durable=True, group="safe")))

    async def replicas() -> RaftListing:
        mirrored = group(MIRRORED, "node1")  # nobody votes in it
        return RaftListing((group("endangered", "node1", "node2"), mirrored, group("safe", *NODES)))

    status, body = checked("node-is-quorum-critical", topology=topology, replicas=replicas)
    assert (status, body["status"]) == (503, "failed")
    assert "endangered" in body["reason"]
    assert len(body["queues"]) == ENDANGERED_MAX
    assert {each["name"] for each in body["queues"]} <= {f"q{at}" for at in range(200)}
    assert body["queues"][0] == {
        "name": "q0",
        "readable_name": "queue 'q0' in vhost '/'",
        "virtual_host": "/",
        "type": "quorum",
    }


def test_mirrored_queues_without_a_synchronised_mirror_are_named() -> None:
    """S3-06: those that this node leads, while there are others."""
    states = {
        "late": MirrorState("node1", ("node2",)),
        "safe": MirrorState("node1", ("node2",), ("node2",)),
        "elsewhere": MirrorState("node2", ("node1",)),
    }
    topology = Topology()
    topology.apply(AddVhost(Vhost("/")))
    for name in (*states, "plain"):
        where = "local-1@node1" if name == "plain" else MIRRORED
        topology.apply(DeclareQueue(QueueRecord("/", name, durable=True, group=where)))

    def state(queue: QueueRecord) -> MirrorState | None:
        return states.get(queue.name)

    check = "node-is-mirror-sync-critical"
    alone = checked(check, topology=topology, mirrors=state)
    assert alone == (200, {"status": "ok"})
    status, body = checked(check, topology=topology, mirrors=state, others=("node2",))
    assert (status, body["status"]) == (503, "failed")
    text = "There are classic mirrored queues without online synchronised mirrors"
    assert body["reason"] == text
    assert [each["name"] for each in body["queues"]] == ["late"]
    states["late"] = states["safe"]
    assert checked(check, topology=topology, mirrors=state, others=("node2",))[0] == 200
