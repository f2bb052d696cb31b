"""Replication groups, their members and places, and moves of queues over HTTP: what fluxmqctl's own
verbs show and do, below ``/api/fluxmq/v1``."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from aiohttp import web

from fluxmq.control.management.list_query import JsonRow, ListQuery
from fluxmq.control.management.requests import (
    ApiRoute,
    Ask,
    Call,
    Right,
    answer,
    bad_request,
    done,
    not_found,
    number_of,
    text_of,
)
from fluxmq.ipc.clusters import (
    ADD,
    AUDIT,
    CAN_STOP,
    FORGET_NODE,
    MEMBER_CHANGE,
    RAFT,
    REBALANCE,
    REMOVE,
    TRANSFER,
    AuditListing,
    AuditRequest,
    ForgetNode,
    GroupOutcomes,
    MemberChange,
    RaftListing,
    RaftRequest,
    Transfer,
)
from fluxmq.ipc.messages import STATUS, MessageBody, NodeStatus, to_plain
from fluxmq.ipc.migrations import MIGRATE_QUEUE, MIGRATION, Migrate, Migrating
from fluxmq.ipc.placements import (
    GROUPS,
    PIN,
    QUEUES,
    UNPIN,
    GroupListing,
    GroupRow,
    Pin,
    PinResult,
    QueueListing,
    Release,
)

V1: Final = "fluxmq/v1"
_Body = TypeVar("_Body", bound=MessageBody)


class GroupRoutes:
    """Serves the routes. ``clustered``: whether the node has peers; else it has no replicated
    groups."""

    def __init__(self, ask: Ask, *, clustered: bool) -> None:
        self._ask = ask
        self._clustered = clustered

    def routes(self) -> list[ApiRoute]:
        """Return the routes."""
        see, admin = Right.MONITORING, Right.ADMINISTRATOR
        group, member = f"{V1}/groups/{{group}}", f"{V1}/members/{{group}}/{{node}}"
        raft, move = f"{V1}/raft/{{group}}", f"{V1}/queues/{{vhost}}/{{name}}/migration"
        return [
            ApiRoute("GET", f"{V1}/status", self._status, see),
            ApiRoute("GET", f"{V1}/cores", self._cores, see),
            ApiRoute("GET", f"{V1}/groups", self._groups, see),
            ApiRoute("GET", group, self._group, see),
            ApiRoute("PUT", f"{group}/pin", self._pin, admin),
            ApiRoute("DELETE", f"{group}/pin", self._unpin, admin),
            ApiRoute("GET", f"{V1}/queues", self._queues, see),
            ApiRoute("GET", move, self._migration, see),
            ApiRoute("PUT", move, self._migrate, admin),
            ApiRoute("DELETE", move, self._abort, admin),
            ApiRoute("GET", f"{V1}/raft", self._raft, see),
            ApiRoute("GET", raft, self._raft_group, see),
            ApiRoute("POST", f"{raft}/transfer", self._transfer, admin),
            ApiRoute("POST", f"{raft}/audit", self._audit, admin),
            ApiRoute("GET", f"{V1}/members", self._members, see),
            ApiRoute("PUT", member, self._grow, admin),
            ApiRoute("DELETE", member, self._shrink, admin),
            ApiRoute("POST", f"{V1}/rebalance", self._rebalance, admin),
            ApiRoute("GET", f"{V1}/can-stop", self._can_stop, see),
            ApiRoute("DELETE", f"{V1}/nodes/{{node}}", self._forget, admin),
        ]

    async def _told(self, kind: str, wanted: MessageBody | None, shape: type[_Body]) -> _Body:
        """Return an answer of the control process. Raises RequestError or MessageError."""
        return shape.from_body(await self._ask(kind, {} if wanted is None else wanted.to_body()))

    # This node

    async def _status(self, _call: Call) -> web.Response:
        return answer((await self._told(STATUS, None, NodeStatus)).to_body())

    async def _cores(self, call: Call) -> web.Response:
        """Return the shards with their cores, and the groups that each hosts."""
        status = await self._told(STATUS, None, NodeStatus)
        hosted: dict[int, list[GroupRow]] = {}
        for row in (await self._told(GROUPS, None, GroupListing)).groups:
            hosted.setdefault(row.shard, []).append(row)
        rows: list[JsonRow] = [
            {
                "name": f"shard-{each.index}",
                "shard": each.index,
                "core": each.core,
                "pid": each.pid,
                "state": each.state,
                "ready": each.ready,
                "restarts": each.restarts,
                "uptime": each.uptime,
                "connections": sum(each.connections),
                "sessions": 0 if each.numbers is None else each.numbers.sessions,
                "queues": 0 if each.numbers is None else each.numbers.queues,
                "groups": [row.group for row in hosted.get(each.index, ())],
                "pinned": [row.group for row in hosted.get(each.index, ()) if row.pinned],
            }
            for each in status.processes
            if each.role == "shard"
        ]
        return answer(ListQuery(call).whole(rows))

    async def _group_rows(self) -> list[JsonRow]:
        listing = await self._told(GROUPS, None, GroupListing)
        return [_named(row, row.group) for row in listing.groups]

    async def _groups(self, call: Call) -> web.Response:
        return answer(ListQuery(call).whole(await self._group_rows()))

    async def _group(self, call: Call) -> web.Response:
        for row in await self._group_rows():
            if row["name"] == call.part("group"):
                return answer(row)
        raise not_found(f"this node has no group {call.part('group')!r}")

    async def _pin(self, call: Call) -> web.Response:
        body = await call.body()
        if ("core" in body) == ("shard" in body):
            raise bad_request("give either a core or a shard")
        place = {name: number_of(body, name) for name in ("core", "shard") if name in body}
        if min(place.values()) < 0:
            raise bad_request("there are no numbers below 0")
        wanted = Pin(call.part("group"), **place)
        return answer((await self._told(PIN, wanted, PinResult)).to_body())

    async def _unpin(self, call: Call) -> web.Response:
        wanted = Release(call.part("group"))
        return answer((await self._told(UNPIN, wanted, PinResult)).to_body())

    async def _queues(self, call: Call) -> web.Response:
        listing = await self._told(QUEUES, None, QueueListing)
        return answer(ListQuery(call).whole([_named(row, row.queue) for row in listing.queues]))

    # Moves of queues

    async def _moved(
        self, kind: str, call: Call, group: str = "", becomes: str = ""
    ) -> web.Response:
        abort = kind == MIGRATE_QUEUE and not (group or becomes)
        wanted = Migrate(call.vhost, call.part("name"), group, abort, becomes)
        return answer((await self._told(kind, wanted, Migrating)).to_body())

    async def _migration(self, call: Call) -> web.Response:
        return await self._moved(MIGRATION, call)

    async def _migrate(self, call: Call) -> web.Response:
        body = await call.body()
        group, becomes = text_of(body, "group", ""), text_of(body, "type", "")
        if not (group or becomes):
            raise bad_request("group is the name of the group to move to, or type is quorum")
        return await self._moved(MIGRATE_QUEUE, call, group, becomes)

    async def _abort(self, call: Call) -> web.Response:
        return await self._moved(MIGRATE_QUEUE, call)

    # Replicated groups

    async def _rafts(self, group: str = "") -> RaftListing:
        if not self._clustered and not group:
            return RaftListing(())
        return await self._told(RAFT, RaftRequest(group, everywhere=True), RaftListing)

    async def _raft(self, call: Call) -> web.Response:
        rows = [_named(row, row.group) for row in (await self._rafts()).groups]
        return answer(ListQuery(call).whole(rows))

    async def _raft_group(self, call: Call) -> web.Response:
        for row in (await self._rafts(call.part("group"))).groups:
            return answer(_named(row, row.group))
        raise not_found(f"there is no replicated group {call.part('group')!r}")

    async def _members(self, call: Call) -> web.Response:
        rows = [
            {**_named(member, f"{row.group} {member.node}"), "group": row.group}
            for row in (await self._rafts()).groups
            for member in row.members
        ]
        return answer(ListQuery(call).whole(rows))

    async def _transfer(self, call: Call) -> web.Response:
        wanted = Transfer(call.part("group"), text_of(await call.body(), "node", ""))
        return answer((await self._told(TRANSFER, wanted, Transfer)).to_body())

    async def _audit(self, call: Call) -> web.Response:
        wanted = AuditRequest(call.part("group"))
        return answer((await self._told(AUDIT, wanted, AuditListing)).to_body())

    async def _change_member(self, call: Call, change: str) -> web.Response:
        wanted = MemberChange(call.part("group"), call.part("node"), change)
        await self._ask(MEMBER_CHANGE, wanted.to_body())
        return done()

    async def _grow(self, call: Call) -> web.Response:
        return await self._change_member(call, ADD)

    async def _shrink(self, call: Call) -> web.Response:
        return await self._change_member(call, REMOVE)

    async def _rebalance(self, _call: Call) -> web.Response:
        return answer((await self._told(REBALANCE, None, GroupOutcomes)).to_body())

    async def _can_stop(self, _call: Call) -> web.Response:
        outcomes = await self._told(CAN_STOP, None, GroupOutcomes)
        able = not any(row.problem for row in outcomes.rows)
        return answer({"can_stop": able, **outcomes.to_body()})

    async def _forget(self, call: Call) -> web.Response:
        wanted = ForgetNode(call.part("node"), call.flag("force"))
        return answer((await self._told(FORGET_NODE, wanted, GroupOutcomes)).to_body())


def _named(row: MessageBody, name: str) -> JsonRow:
    """Return a row with the name by which lists are searched."""
    found: dict[str, Any] = to_plain(row)
    return {"name": name, **found}
