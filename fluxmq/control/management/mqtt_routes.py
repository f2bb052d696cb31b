"""MQTT sessions, subscriptions, retained messages and outboxes over HTTP, below ``/api/fluxmq/v1``."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from fluxmq.control.management.group_routes import V1
from fluxmq.control.management.list_query import JsonRow, ListQuery
from fluxmq.control.management.requests import (
    ApiError,
    ApiRoute,
    Ask,
    Call,
    Right,
    answer,
    done,
    error_of,
    not_found,
)
from fluxmq.control.management.rows import rows_of
from fluxmq.control.peers import Peer, RequestError, forwarded
from fluxmq.ipc.row_messages import (
    CLOSE_SESSION,
    DELETE_RETAINED,
    OUTBOXES,
    RETAINED,
    SESSIONS,
    SUBSCRIPTIONS,
    CloseSession,
    DeleteRetained,
)

DELETE_SECONDS = 5.0
"""Time for a shard to delete a retained message."""
VERSIONS = {4: "MQTT 3.1.1", 5: "MQTT 5.0"}


class MqttRoutes:
    """Serves the routes. ``shards`` returns those that are connected."""

    def __init__(self, ask: Ask, shards: Callable[[], list[Peer]]) -> None:
        self._ask = ask
        self._shards = shards

    def routes(self) -> list[ApiRoute]:
        """Return the routes."""
        see, admin = Right.MONITORING, Right.ADMINISTRATOR
        session, retained = f"{V1}/sessions/{{client}}", f"{V1}/retained/{{topic}}"
        return [
            ApiRoute("GET", f"{V1}/sessions", self._sessions, see),
            ApiRoute("GET", session, self._session, see),
            ApiRoute("DELETE", session, self._end_session, admin),
            ApiRoute("GET", f"{session}/subscriptions", self._subscriptions, see),
            ApiRoute("GET", f"{V1}/subscriptions", self._subscriptions, see),
            ApiRoute("GET", f"{V1}/retained", self._all_retained, see),
            ApiRoute("GET", retained, self._retained, admin),
            ApiRoute("DELETE", retained, self._delete_retained, admin),
            ApiRoute("GET", f"{V1}/outboxes", self._outboxes, see),
        ]

    async def _rows(self, what: str, subject: str = "") -> list[JsonRow]:
        return await rows_of(self._ask, what, subject=subject)

    async def _sessions(self, call: Call) -> web.Response:
        rows = [_session_row(row) for row in await self._rows(SESSIONS)]
        return answer(ListQuery(call).whole(rows))

    async def _session(self, call: Call) -> web.Response:
        for row in await self._rows(SESSIONS, call.part("client")):
            return answer(_session_row(row))
        raise not_found(f"there is no session of {call.part('client')!r}")

    async def _end_session(self, call: Call) -> web.Response:
        await self._ask(CLOSE_SESSION, CloseSession(call.part("client")).to_body())
        return done()

    async def _subscriptions(self, call: Call) -> web.Response:
        client = call.parts.get("client", "")
        return answer(ListQuery(call).whole(await self._rows(SUBSCRIPTIONS, client)))

    async def _all_retained(self, call: Call) -> web.Response:
        rows = [_without_payload(row) for row in await self._rows(RETAINED)]
        return answer(ListQuery(call).whole(rows))

    async def _retained(self, call: Call) -> web.Response:
        """Return a message with its payload, which an administrator alone may read."""
        for row in await self._rows(RETAINED, call.part("topic")):
            return answer(row)
        raise not_found(f"there is no retained message of topic {call.part('topic')!r}")

    async def _delete_retained(self, call: Call) -> web.Response:
        shards = sorted(self._shards(), key=lambda each: each.name)
        if not shards:
            raise ApiError(503, "service_unavailable", "no shard is connected")
        body = DeleteRetained(call.part("topic")).to_body()
        try:
            await forwarded(shards[0], DELETE_RETAINED, body, DELETE_SECONDS)
        except RequestError as problem:
            raise error_of(problem) from problem
        return done()

    async def _outboxes(self, call: Call) -> web.Response:
        return answer(ListQuery(call).whole(await self._rows(OUTBOXES)))


def _session_row(row: JsonRow) -> JsonRow:
    return {**row, "protocol": VERSIONS.get(row.get("protocol") or 0, "")}


def _without_payload(row: JsonRow) -> JsonRow:
    return {name: value for name, value in row.items() if name != "payload"}
