"""Answers as server-sent events: for pages, which would otherwise ask again and again.

A stream has the answers to some paths, each sent when it has changed, at most once a second and so
that the answers of all streams together take a fiftieth of the time. Streams end after a minute, and clients open them
anew; they end earlier with the right to have them. Source: HTML Living Standard, section 9.2.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote

import orjson
from aiohttp import web
from multidict import MultiDictProxy
from yarl import URL

from fluxmq.control.management.group_routes import V1
from fluxmq.control.management.requests import (
    HEADERS,
    PREFIX,
    ApiError,
    ApiRoute,
    Call,
    Caller,
    CallPlace,
    bad_request,
    error_of,
    not_found,
)
from fluxmq.control.peers import RequestError
from fluxmq.ipc.messages import MessageError

PATHS_MAX: Final = 8
"""Paths of a stream: a page shows no more lists."""
STREAMS_MAX: Final = 64
"""Open streams: with more, each would be told too seldom, and connections would be used up."""
USER_STREAMS_MAX: Final = 16
"""Open streams of one user: tabs of a browser, and some to spare for other users."""
UPDATE_SECONDS: Final = 1.0
"""Least time between two updates of a stream."""
COST_FACTOR: Final = 50
"""Times that an update took, for which the next one waits, for each open stream: long lists are
updated less often, and shards have their time for messages."""
STREAM_SECONDS: Final = 50.0
"""Length of a stream: less than the time for any answer of the interface."""
CHECK_SECONDS: Final = 5.0
"""Time between two looks at whether the user may still log in."""
NAME: Final = f"{V1}/events"

_PART: Final = re.compile(r"\{(\w+)(?::([^}]+))?\}")


class WatchedPath(NamedTuple):
    """A path of a stream: its number, its route, and its place."""

    number: int
    route: ApiRoute
    place: CallPlace


class EventStreams:
    """Serves the streams. ``routes`` returns those of the interface; ``check`` raises ApiError
    unless a user may use one; ``caller`` identifies the user of a request."""

    def __init__(
        self,
        routes: Callable[[], Sequence[ApiRoute]],
        check: Callable[[ApiRoute, Caller, CallPlace], None],
        caller: Callable[[web.Request], Awaitable[Caller]],
    ) -> None:
        self._routes = routes
        self._check = check
        self._caller = caller
        self._patterns: list[tuple[re.Pattern[str], ApiRoute]] = []
        self._open: Counter[str] = Counter()
        self.refused = 0
        """Number of streams that were refused because too many were open."""

    def routes(self) -> list[ApiRoute]:
        """Return the routes."""
        return [ApiRoute("GET", NAME, self._stream)]

    @property
    def open_now(self) -> int:
        """Number of open streams."""
        return self._open.total()

    async def _stream(self, call: Call) -> web.StreamResponse:
        watched = self._watched(call)
        user = call.caller.user.name
        if self.open_now >= STREAMS_MAX or self._open[user] >= USER_STREAMS_MAX:
            self.refused += 1
            reason = f"{self.open_now} event streams are open, {self._open[user]} of {user}"
            raise ApiError(
                503, "too_many_event_streams", f"{reason}: close one, or ask again later"
            )
        self._open[user] += 1
        try:
            return await self._send(call, watched)
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]

    def _watched(self, call: Call) -> list[WatchedPath]:
        paths = call.request.query.getall("path", [])
        if not 0 < len(paths) <= PATHS_MAX:
            raise bad_request(f"from 1 to {PATHS_MAX} times path=..., as below /api/, are needed")
        return [self._of_path(number, path, call.caller) for number, path in enumerate(paths)]

    def _of_path(self, number: int, path: str, caller: Caller) -> WatchedPath:
        """Return the route of a path. Raises ApiError."""
        if not self._patterns:
            self._patterns = [
                (path_pattern(each.path), each)
                for each in self._routes()
                if each.method == "GET" and not each.enters and each.path != NAME
            ]
        try:
            url = URL(PREFIX + path, encoded=True)
        except ValueError as problem:
            raise bad_request(f"path: {problem}") from None
        raw = url.raw_path.removeprefix(PREFIX)
        for pattern, route in self._patterns:
            found = pattern.fullmatch(raw)
            if found is not None:
                parts = {name: unquote(value) for name, value in found.groupdict().items()}
                query: MultiDictProxy[str] = url.query
                place = CallPlace(unquote(raw), parts, query)
                self._check(route, caller, place)
                return WatchedPath(number, route, place)
        raise not_found(f"nothing can be watched at {path!r}")

    async def _send(self, call: Call, watched: Sequence[WatchedPath]) -> web.StreamResponse:
        headers = {**HEADERS, "Content-Type": "text/event-stream; charset=utf-8"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(call.request)
        try:
            async with asyncio.timeout(STREAM_SECONDS + CHECK_SECONDS):
                await self._follow(call, watched, response)
                await response.write_eof()
        except ConnectionError:
            pass  # the client has hung up
        except TimeoutError:
            if call.request.transport is not None:
                call.request.transport.abort()  # the client does not read
        return response

    async def _follow(
        self, call: Call, watched: Sequence[WatchedPath], response: web.StreamResponse
    ) -> None:
        """Send answers until the end of the stream."""
        sent: dict[int, bytes] = {}
        begun = checked = time.monotonic()
        try:
            while (now := time.monotonic()) < begun + STREAM_SECONDS:
                if call.request.transport is None:
                    break  # the client has hung up
                if now > checked + CHECK_SECONDS:
                    await self._check_again(call, watched)
                    checked = now
                for each in watched:
                    data = await _answer_to(each, call)
                    if sent.get(each.number) != data:
                        sent[each.number] = data
                        await response.write(b"event: %d\ndata: %s\n\n" % (each.number, data))
                took = time.monotonic() - now
                await asyncio.sleep(max(UPDATE_SECONDS, COST_FACTOR * took * self.open_now))
        except ApiError as problem:
            data = orjson.dumps({"error": problem.error, "reason": problem.reason})
            await response.write(b"event: ended\ndata: %s\n\n" % data)

    async def _check_again(self, call: Call, watched: Sequence[WatchedPath]) -> None:
        """Check that the user may still see this. Raises ApiError."""
        try:
            caller = await self._caller(call.request)
        except web.HTTPException as problem:
            raise ApiError(problem.status, "not_authorised", problem.reason) from None
        for each in watched:
            self._check(each.route, caller, each.place)


async def _answer_to(watched: WatchedPath, call: Call) -> bytes:
    """Return the body of an answer, or of its error."""
    try:
        found = await watched.route.handler(Call(call.request, call.caller, watched.place))
    except (ApiError, RequestError, MessageError) as problem:
        error = problem if isinstance(problem, ApiError) else error_of(problem)
        told = {"status": error.status, "error": error.error, "reason": error.reason}
        return orjson.dumps({"refused": told})
    body = found.body if isinstance(found, web.Response) else b""
    return b'{"found":%s}' % body if isinstance(body, bytes) and body else b"{}"


def path_pattern(path: str) -> re.Pattern[str]:
    """Return the pattern of a route's path as it is encoded."""
    pieces, end = [], 0
    for part in _PART.finditer(path):
        name, among = part.groups()
        pieces.append(re.escape(path[end : part.start()]))
        pieces.append(f"(?P<{name}>{among or '[^/]+'})")
        end = part.end()
    return re.compile("".join(pieces) + re.escape(path[end:]))
