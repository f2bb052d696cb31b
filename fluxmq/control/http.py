"""HTTP of the control process: /health, /ready, /metrics, and the management interface below /api.

aiohttp parses and answers; this module closes connections that do not finish a request's head in
time, counts connections, answers in JSON, and keeps nothing a client sends beyond the limits below.
Only requests to the management interface may have a body.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, cast

from aiohttp import web

from fluxmq.control.management.api import ManagementApi
from fluxmq.control.management.requests import BODY_BYTES_MAX, PREFIX, Right
from fluxmq.control.overview import Readiness
from fluxmq.control.scrape import ScrapeRequest
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.exposition import Scrape
from fluxmq.metrics.rabbitmq_names import RABBITMQ
from fluxmq.metrics.registry import Sample
from fluxmq.net.certificates import ListenerCertificates
from fluxmq.settings.listeners import HttpEndpoint, HttpsListener

# Bytes of the request line and of one header field: what common servers allow.
HEAD_LINE_BYTES_MAX: Final = 8190
PER_OBJECT: Final = "/per-object"
METRIC_PREFIXES: Final = ("fluxmq", RABBITMQ)
"""Names of metrics that a scraper may ask for; the first is the default."""
API_SECONDS: Final = 60.0
"""Time for an answer of the management interface: definitions may take that long."""
# Scrapers keep their connection between scrapes, which are 15 to 60 s apart.
KEEP_ALIVE_SECONDS: Final = 75.0
# Time for answers in progress at shutdown; the longest is a scrape's second.
SHUTDOWN_SECONDS: Final = 1.5

_log = get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Guarded(asyncio.Protocol):
    """One connection: aiohttp's protocol inside, with deadlines around it.

    The deadline is `KEEP_ALIVE_SECONDS` between requests and the request timeout from the first
    byte of a request until its head is complete; while a request is served, the server's own
    timeout applies instead.
    """

    def __init__(self, server: HttpServer, inner: asyncio.Protocol) -> None:
        self._server = server
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._serving = False
        self._more = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)
        if self._server.admit(transport, self):
            self._arm(self._server.request_timeout)
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._serving:
            self._more = True
        elif not self._more:
            self._more = True
            self._arm(self._server.request_timeout)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self._transport is not None:
            self._server.dismiss(self._transport)
        self._inner.connection_lost(exc)

    def begin(self) -> None:
        """Note that a request's head is complete."""
        self._serving, self._more = True, False
        self._disarm()

    def end(self) -> None:
        """Note that the request's answer is ready; it remains to be sent, then comes the next
        request."""
        self._serving = False
        self._arm(self._server.request_timeout if self._more else KEEP_ALIVE_SECONDS)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._timer = asyncio.get_running_loop().call_later(seconds, transport.abort)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class HttpServer:
    """The HTTP listener. Lives on control's loop.

    `ready` judges the node, `metrics` answers a scrape; without `api` there is nothing else. Raises
    TlsSettingsError for a certificate that cannot be used.
    """

    def __init__(
        self,
        listener: HttpEndpoint,
        ready: Callable[[], Awaitable[Readiness]],
        metrics: Callable[[ScrapeRequest], Awaitable[Scrape]],
        api: ManagementApi | None,
    ) -> None:
        self._listener = listener
        self.certificates = (
            ListenerCertificates(listener) if isinstance(listener, HttpsListener) else None
        )
        self._api = api
        self._ready = ready
        self._metrics = metrics
        self._guards: dict[asyncio.BaseTransport, _Guarded] = {}
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._limited = RateLimited(_log, per_second=0.2, burst=5)
        self.full = 0
        self.malformed = 0

    @property
    def request_timeout(self) -> float:
        """Maximum seconds from a request's first byte to its complete head, and again to its
        answer."""
        return self._listener.request_timeout

    @property
    def port(self) -> int:
        """Port in use, also when the settings asked for any (0)."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Open the listener. Raises OSError when the address cannot be used."""
        application = web.Application(
            middlewares=[self._deadline, _json_errors], client_max_size=BODY_BYTES_MAX
        )
        application.router.add_get("/health", self._answer_health)
        application.router.add_get("/ready", self._answer_ready)
        application.router.add_get("/metrics", self._answer_metrics)
        application.router.add_get("/metrics" + PER_OBJECT, self._answer_metrics)
        if self._api is not None:
            self._api.add_to(application.router)
        application.on_response_prepare.append(_name_server)
        self._runner = web.AppRunner(
            application,
            handle_signals=False,
            access_log=None,
            logger=self._library_logger(),
            max_line_size=HEAD_LINE_BYTES_MAX,
            max_field_size=HEAD_LINE_BYTES_MAX,
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            lingering_time=0.0,
            shutdown_timeout=SHUTDOWN_SECONDS,
        )
        await self._runner.setup()
        make = self._runner.server
        assert make is not None
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Guarded(self, make()),
            self._listener.host or None,
            self._listener.port,
            backlog=self._listener.backlog,
            ssl=None if self.certificates is None else self.certificates.fixed_context(),
            reuse_address=True,
        )

    async def stop(self) -> None:
        """Stop listening; requests in progress get a moment to be answered."""
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()
        for transport in list(self._guards):
            cast(asyncio.Transport, transport).abort()

    def admit(self, transport: asyncio.BaseTransport, guard: _Guarded) -> bool:
        """Admit a connection unless there are too many."""
        if len(self._guards) >= self._listener.max_connections:
            self.full += 1
            self._limited.event(
                logging.WARNING, "full", "http connection refused: too many are open"
            )
            return False
        self._guards[transport] = guard
        return True

    def dismiss(self, transport: asyncio.BaseTransport) -> None:
        """Forget an ended connection."""
        self._guards.pop(transport, None)

    def _note_malformed(self, cause: str) -> None:
        self.malformed += 1
        self._limited.event(logging.WARNING, "malformed", "http request refused: %s", cause)

    def _divert(self, record: logging.LogRecord) -> bool:
        """Intercept aiohttp's log records: they are reported here instead."""
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno >= logging.WARNING or error is not None:
            self._note_malformed(type(error).__name__ if error is not None else record.getMessage())
        return False

    def _library_logger(self) -> logging.Logger:
        """Return the logger to give to aiohttp, which writes a traceback per malformed request."""
        logger = get_logger(f"{__name__}.requests")
        logger.filters[:] = [self._divert]
        logger.setLevel(logging.DEBUG)
        return logger

    @web.middleware
    async def _deadline(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Bound the time of one request and inform the connection's guard."""
        transport = request.transport
        guard = None if transport is None else self._guards.get(transport)
        if guard is not None:
            guard.begin()
        try:
            seconds = API_SECONDS if request.path.startswith(PREFIX) else self.request_timeout
            async with asyncio.timeout(seconds):
                return await handler(request)
        except TimeoutError:
            return _json({"error": "the broker did not answer in time"}, 503)
        finally:
            if guard is not None:
                guard.end()

    async def _answer_health(self, _request: web.Request) -> web.StreamResponse:
        return _json({"status": "ok"}, 200)

    async def _answer_ready(self, _request: web.Request) -> web.StreamResponse:
        verdict = await self._ready()
        return _json(verdict.to_json(), 200 if verdict.ready else 503)

    async def _answer_metrics(self, request: web.Request) -> web.StreamResponse:
        """Answer a scraper; one on another machine has to be a user with the tag monitoring."""
        if self._api is not None and not self._listener.loopback:
            refusal = await self._api.refuses(request, Right.MONITORING)
            if refusal is not None:
                return refusal
        prefix = request.query.get("prefix", METRIC_PREFIXES[0])
        if prefix not in METRIC_PREFIXES:
            return _json({"error": f"prefix is none of {', '.join(METRIC_PREFIXES)}"}, 400)
        per_object = request.path.endswith(PER_OBJECT)
        accept = request.headers.get("Accept", "")
        found = await self._metrics(ScrapeRequest(prefix, per_object, accept))
        return web.Response(
            body=found.body, headers={"Content-Type": found.content_type, **_HEADERS}
        )


class HttpServers:
    """The HTTP listeners that are open."""

    def __init__(self) -> None:
        self._servers: list[HttpServer] = []

    async def start(self, server: HttpServer) -> None:
        """Open one more. Raises OSError."""
        await server.start()
        self._servers.append(server)

    async def stop(self) -> None:
        """Close all."""
        await asyncio.gather(*(server.stop() for server in self._servers))

    def samples(self) -> Iterator[Sample]:
        """Yield the refused requests by reason."""
        full = sum(server.full for server in self._servers)
        malformed = sum(server.malformed for server in self._servers)
        yield "fluxmq_http_refused_total", {"reason": "full"}, full
        yield "fluxmq_http_refused_total", {"reason": "malformed"}, malformed


_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def _json(body: dict[str, object], status: int) -> web.Response:
    return web.json_response(body, status=status, headers=_HEADERS)


@web.middleware
async def _json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error as JSON; log a bug and answer 500."""
    if request.can_read_body and not request.path.startswith(PREFIX):
        return _json({"error": "requests may not have a body"}, 413)
    try:
        return await handler(request)
    except web.HTTPException as problem:
        answer = _json({"error": problem.reason.lower()}, problem.status)
        if isinstance(problem, web.HTTPMethodNotAllowed):
            answer.headers["Allow"] = ", ".join(sorted(problem.allowed_methods))
        return answer
    except Exception:  # noqa: BLE001 - a request's outermost frame
        _log.exception("request failed", extra={"path": request.path})
        return _json({"error": "internal error; see the log"}, 500)


async def _name_server(_request: web.Request, response: web.StreamResponse) -> None:
    """Omit library versions from the Server header."""
    response.headers["Server"] = "FluxMQ"
