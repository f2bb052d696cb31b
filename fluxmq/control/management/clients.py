"""Connections, channels and consumers over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from fluxmq.control.management.list_query import JsonRow, ListQuery
from fluxmq.control.management.octet_rates import OctetRates
from fluxmq.control.management.requests import (
    ApiRoute,
    Ask,
    Call,
    Right,
    answer,
    bad_request,
    done,
    error_of,
    not_found,
)
from fluxmq.control.management.rows import channel_row, connection_row, consumer_row, rows_of
from fluxmq.control.peers import RequestError
from fluxmq.ipc.messages import MessageError
from fluxmq.ipc.row_messages import (
    CHANNELS,
    CLOSE_CONNECTIONS,
    CLOSE_SESSION,
    CONNECTIONS,
    CONSUMERS,
    CloseConnections,
    CloseSession,
)

REASON = "Closed via management plugin"
"""Reason that clients get, as of RabbitMQ: theirs look for it. A header may give another."""
MQTT = "MQTT"


class MessagingClients:
    """Serves the routes. ``timeout_of`` returns the time in milliseconds that a consumer's message may
    stay unacknowledged, of the consumer's row."""

    def __init__(self, ask: Ask, timeout_of: Callable[[JsonRow], int]) -> None:
        self._ask = ask
        self._timeout_of = timeout_of
        self._octets = OctetRates()

    def routes(self) -> list[ApiRoute]:
        """Return the routes."""
        return [
            ApiRoute("GET", "connections", self._connections),
            ApiRoute("GET", "vhosts/{vhost}/connections", self._connections),
            ApiRoute("GET", "connections/username/{user}", self._of_user),
            ApiRoute("DELETE", "connections/username/{user}", self._close_of_user),
            ApiRoute("GET", "connections/{name}", self._connection),
            ApiRoute("DELETE", "connections/{name}", self._close),
            ApiRoute("GET", "connections/{name}/channels", self._channels_of),
            ApiRoute("GET", "channels", self._channels),
            ApiRoute("GET", "vhosts/{vhost}/channels", self._channels),
            ApiRoute("GET", "channels/{name}", self._channel),
            ApiRoute("GET", "consumers", self._consumers),
            ApiRoute("GET", "consumers/{vhost}", self._consumers),
        ]

    async def seen(self, call: Call, what: str = CONNECTIONS) -> list[JsonRow]:
        """Return the connections, or channels, that the user may see: all with the tag monitoring,
        else those of the user's own name."""
        rows = await rows_of(self._ask, what)
        if not call.caller.has(Right.MONITORING):
            rows = [row for row in rows if row.get("user") == call.caller.user.name]
        if "vhost" in call.parts:
            rows = [row for row in rows if row.get("vhost") == call.vhost]
        if what != CONNECTIONS:
            return rows
        found = [connection_row(row) for row in rows]
        self._octets.add_to(found)
        return found

    async def _connections(self, call: Call) -> web.Response:
        return answer(ListQuery(call).whole(await self.seen(call)))

    async def _found(self, call: Call) -> JsonRow:
        name = call.part("name")
        for row in await self.seen(call):
            if name in (row["name"], row.get("pid")):
                return row
        raise not_found(f"there is no connection {name!r}")

    async def _connection(self, call: Call) -> web.Response:
        return answer(await self._found(call))

    async def _close(self, call: Call) -> web.Response:
        await self._end([await self._found(call)], call.request.headers.get("X-Reason", REASON))
        return done()

    async def _of_user(self, call: Call) -> web.Response:
        rows = [row for row in await self.seen(call) if row.get("user") == call.part("user")]
        return answer(ListQuery(call).whole(rows))

    async def _close_of_user(self, call: Call) -> web.Response:
        rows = [row for row in await self.seen(call) if row.get("user") == call.part("user")]
        await self._end(rows, call.request.headers.get("X-Reason", REASON))
        return done()

    async def _end(self, rows: list[JsonRow], reason: str) -> None:
        """Close connections; of MQTT clients with their sessions. Raises ApiError."""
        for row in rows:
            pid = str(row.get("pid") or "")
            try:
                if str(row.get("protocol", "")).startswith(MQTT):
                    if not pid:
                        raise bad_request("the connection has not been opened yet")
                    await self._ask(CLOSE_SESSION, CloseSession(pid).to_body())
                else:
                    wanted = CloseConnections(pid, None, reason[:255])
                    await self._ask(CLOSE_CONNECTIONS, wanted.to_body())
            except (RequestError, MessageError) as problem:
                raise error_of(problem) from problem

    async def _joined_channels(self, call: Call) -> list[JsonRow]:
        channels = await self.seen(call, CHANNELS)
        connections = {str(row.get("pid")): row for row in await self.seen(call)}
        return [channel_row(row, connections) for row in channels]

    async def _channels(self, call: Call) -> web.Response:
        return answer(ListQuery(call).whole(await self._joined_channels(call)))

    async def _channels_of(self, call: Call) -> web.Response:
        pid = (await self._found(call)).get("pid")
        rows = await self._joined_channels(call)
        return answer([row for row in rows if row.get("connection") == pid])

    async def _channel(self, call: Call) -> web.Response:
        for row in await self._joined_channels(call):
            if call.part("name") in (row.get("name"), row.get("pid")):
                return answer(row)
        raise not_found(f"there is no channel {call.part('name')!r}")

    async def _consumers(self, call: Call) -> web.Response:
        vhost = call.vhost if "vhost" in call.parts else None
        rows = await rows_of(self._ask, CONSUMERS, vhost)
        seen = [row for row in rows if call.caller.sees(str(row.get("vhost")))]
        channels = {str(row.get("pid")): row for row in await self._all_channels()}
        found = [consumer_row(row, channels, self._timeout_of(row)) for row in seen]
        return answer(ListQuery(call).sorted(found))

    async def _all_channels(self) -> list[JsonRow]:
        connections = {
            str(row.get("pid")): connection_row(row)
            for row in await rows_of(self._ask, CONNECTIONS)
        }
        return [channel_row(row, connections) for row in await rows_of(self._ask, CHANNELS)]
