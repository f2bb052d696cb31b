"""The HTTP listener: routes, errors as JSON, limits, deadlines."""

import asyncio
import json

import pytest
import uvloop

from fluxmq.control import http
from fluxmq.control.http import HttpServer
from fluxmq.control.overview import ProcessReadiness, Readiness
from fluxmq.metrics.exposition import Scrape
from fluxmq.settings.listeners import HttpListener
from tests.broker import free_port
from tests.unit.control.management import make_api


class Site:
    """A server with a node behind it that is as ready as the test says."""

    def __init__(self, *, managed=True, **limits):
        self.port = free_port()
        listener = HttpListener(addr=f"127.0.0.1:{self.port}", **limits)
        self.problem = None
        self.metrics_wait = 0.0
        self.callers = []
        self.server = HttpServer(
            listener, self._ready, self._metrics, make_api() if managed else None
        )

    async def _ready(self):
        return Readiness((ProcessReadiness("shard-0", 0.1, self.problem),), None)

    async def _metrics(self, wanted):
        self.wanted = wanted
        if self.metrics_wait < 0:
            raise ZeroDivisionError
        await asyncio.sleep(self.metrics_wait)
        return Scrape(b"fluxmq_users 1.0\n", "text/plain; version=0.0.4; charset=utf-8")

    async def connect(self):
        self.callers.append(Caller(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.callers[-1]

    async def get(self, path, method="GET", headers=()):
        caller = await self.connect()
        try:
            return await caller.get(path, method, headers)
        finally:
            caller.writer.close()


class Caller:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def get(self, path, method="GET", headers=()):
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]
        self.writer.write("\r\n".join(lines).encode())
        return await self.answer(method)

    async def answer(self, method="GET"):
        async with asyncio.timeout(5):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            length = 0 if method == "HEAD" else int(fields.get("content-length", 0))
            body = await self.reader.readexactly(length)
        return int(head[0].split()[1]), fields, body

    async def ended(self):
        async with asyncio.timeout(5):
            try:
                while await self.reader.read(65536):
                    continue
            except ConnectionError:
                return True
        return True


def run(scenario, **limits):
    async def main():
        site = Site(**limits)
        await site.server.start()
        try:
            async with asyncio.timeout(20):
                await scenario(site)
        finally:
            for caller in site.callers:
                caller.writer.close()
            await site.server.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_health_ready_and_metrics():
    async def scenario(site):
        status, fields, body = await site.get("/health")
        assert (status, json.loads(body)) == (200, {"status": "ok"})
        assert fields["server"] == "fluxmq"
        assert fields["cache-control"] == "no-store"
        status, _, body = await site.get("/ready")
        assert (status, json.loads(body)["status"]) == (200, "ready")
        site.problem = "no heartbeat yet"
        status, _, body = await site.get("/ready")
        assert (status, json.loads(body)["processes"][0]["problem"]) == (503, "no heartbeat yet")
        accept = "Accept: application/openmetrics-text"
        status, _, _ = await site.get("/metrics/per-object?prefix=rabbitmq", headers=[accept])
        assert status == 200
        assert site.wanted == ("rabbitmq", True, "application/openmetrics-text")
        status, _, body = await site.get("/metrics?prefix=other")
        assert (status, json.loads(body)["error"]) == (400, "prefix is none of fluxmq, rabbitmq")
        status, fields, body = await site.get("/metrics")
        assert site.wanted == ("fluxmq", False, "")
        assert (status, body) == (200, b"fluxmq_users 1.0\n")
        assert fields["content-type"] == "text/plain; version=0.0.4; charset=utf-8"

    run(scenario)


def test_everything_else_is_refused_as_json():
    async def scenario(site):
        for path, method, expected in (
            ("/absent", "GET", 404),
            ("/", "POST", 405),
            ("/metrics/", "GET", 404),
            ("/../etc/passwd", "GET", 404),
            ("/health", "POST", 405),
            ("/health", "DELETE", 405),
        ):
            status, fields, body = await site.get(path, method)
            assert status == expected
            assert fields["content-type"].startswith("application/json")
            assert "error" in json.loads(body)
        status, fields, _ = await site.get("/ready", "PUT")
        assert fields["allow"] == "get, head"
        assert (await site.get("/health", "HEAD"))[0] == 200

    run(scenario)


def test_without_the_management_interface_there_are_health_and_metrics_alone():
    async def scenario(site):
        for path, expected in (
            ("/health", 200),
            ("/metrics", 200),
            ("/", 404),
            ("/api/whoami", 404),
        ):
            assert (await site.get(path))[0] == expected

    run(scenario, managed=False)


def test_bodies_are_refused():
    async def scenario(site):
        caller = await site.connect()
        caller.writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
        assert (await caller.answer())[0] == 413
        caller.writer.close()

    run(scenario)


def test_a_bug_is_a_500_without_details():
    async def scenario(site):
        site.metrics_wait = -1.0
        status, _, body = await site.get("/metrics")
        assert (status, json.loads(body)) == (500, {"error": "internal error; see the log"})

    run(scenario)


@pytest.mark.parametrize(
    "data",
    [
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
    ],
)
def test_what_is_not_http_or_too_large_is_answered_400_and_closed(data, caplog):
    async def scenario(site):
        caller = await site.connect()
        caller.writer.write(data)
        assert (await caller.answer())[0] == 400
        assert await caller.ended()
        assert (await site.get("/health"))[0] == 200
        assert (site.server.full, site.server.malformed) == (0, 1)

    run(scenario)
    # aiohttp tells a TLS handshake apart and only mentions it at debug level.
    for record in caplog.records:
        assert record.message.startswith("http request refused")
        assert record.exc_info is None
    assert len(caplog.records) <= 1


def test_connections_are_kept_alive_and_requests_may_be_pipelined():
    async def scenario(site):
        caller = await site.connect()
        assert (await caller.get("/health"))[0] == 200
        caller.writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        assert [(await caller.answer())[0] for _ in range(3)] == [200] * 3
        caller.writer.close()

    run(scenario)


def test_a_head_that_does_not_end_in_time_is_closed():
    async def scenario(site):
        silent, slow = await site.connect(), await site.connect()
        slow.writer.write(b"GET /health HTTP/1.1\r\nHost:")
        assert await silent.ended()
        assert await slow.ended()
        # Also on a connection that has been served before.
        again = await site.connect()
        assert (await again.get("/health"))[0] == 200
        again.writer.write(b"GET")
        assert await again.ended()

    run(scenario, request_timeout=0.1)


def test_an_idle_connection_is_closed_after_its_time(monkeypatch):
    monkeypatch.setattr(http, "KEEP_ALIVE_SECONDS", 0.1)

    async def scenario(site):
        caller = await site.connect()
        assert (await caller.get("/health"))[0] == 200
        assert await caller.ended()

    run(scenario)


def test_an_answer_that_takes_too_long_is_a_503():
    async def scenario(site):
        site.metrics_wait = 10.0
        status, _, body = await site.get("/metrics")
        assert status == 503
        assert "in time" in json.loads(body)["error"]

    run(scenario, request_timeout=0.1)


def test_connections_are_bounded():
    async def scenario(site):
        first = await site.connect()
        assert (await first.get("/health"))[0] == 200
        second = await site.connect()
        assert await second.ended()
        assert site.server.full == 1
        assert (await first.get("/health"))[0] == 200
        first.writer.close()
        async with asyncio.timeout(5):
            while site.server._guards:  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.005)
        assert (await site.get("/health"))[0] == 200

    run(scenario, max_connections=1)


def test_stopping_ends_idle_connections_at_once():
    async def scenario(site):
        caller = await site.connect()
        assert (await caller.get("/health"))[0] == 200
        began = asyncio.get_running_loop().time()
        await site.server.stop()
        assert await caller.ended()
        assert asyncio.get_running_loop().time() - began < 5.0

    run(scenario)


def test_an_address_in_use_is_an_os_error():
    async def scenario(site):
        other = Site()
        other.server._listener = site.server._listener
        with pytest.raises(OSError, match="in use"):
            await other.server.start()
        await other.server.stop()

    run(scenario)
