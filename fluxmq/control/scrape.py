"""One scrape: ask every process for its numbers, wait a moment, and combine them.

A process that does not answer within `COLLECT_SECONDS` appears with its last numbers and is marked
in `fluxmq_scrape_stale`. Scrapes that arrive during another share its result, so that many scrapers
cost no more than one.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import fluxmq
from fluxmq.control import procfs
from fluxmq.control.overview import heartbeat_age
from fluxmq.control.peers import Peer, PeerError
from fluxmq.ipc.launch import process_name
from fluxmq.ipc.messages import COLLECT, MessageError, Report
from fluxmq.ipc.table import ProcessRow
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.exposition import UNDECLARED, Exposition, MetricSource, Scrape, rendered
from fluxmq.metrics.metric import Scope
from fluxmq.metrics.rabbitmq_names import RABBITMQ, ScrapedNode, renamed
from fluxmq.metrics.registry import Sample
from fluxmq.routing.topology.names import public_name

COLLECT_SECONDS: Final = 1.0

_SCOPES: Final = {"shard": Scope.SHARD, "acceptor": Scope.ACCEPTOR}

_log = get_logger(__name__)


class ScrapeRequest(NamedTuple):
    """The metrics that a scraper asks for: the prefix of their names, whether those of queues are
    one by one even under RabbitMQ's names, and the formats it accepts (HTTP's header)."""

    prefix: str = ""
    per_object: bool = False
    accept: str = ""


class Scraper:
    """Renders /metrics. Lives on control's loop.

    `rows` reads the process table, `processes` returns the connected peers, `users` the number of
    users, `own` further samples of the control process itself. Keeps the last report of each
    process.
    """

    def __init__(
        self,
        rows: Callable[[], Sequence[ProcessRow]],
        processes: Callable[[], list[Peer]],
        users: Callable[[], int],
        own: Callable[[], Iterable[Sample]] = tuple,
        identity: ScrapedNode = ScrapedNode("fluxmq", "fluxmq"),  # noqa: B008 (a value)
    ) -> None:
        self._rows = rows
        self._processes = processes
        self._users = users
        self._own = own
        self._identity = identity
        self._last: dict[str, Report] = {}
        self._undeclared = 0
        self._running: asyncio.Task[Exposition] | None = None
        self._limited = RateLimited(_log, per_second=0.1, burst=5)

    async def text(self, wanted: ScrapeRequest = ScrapeRequest()) -> Scrape:  # noqa: B008 (a value)
        """Return all metrics of the node; or, under RabbitMQ's names, those that it has."""
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._scrape())
        # Shielded: a caller that hangs up must not cancel the scrape for the others.
        exposition = await asyncio.shield(self._running)
        families = exposition.families()
        if wanted.prefix == RABBITMQ:
            named = public_name if wanted.per_object else None
            families = renamed(families, self._identity, named)
        return rendered(families, wanted.accept)

    async def _scrape(self) -> Exposition:
        peers = {peer.name: peer for peer in self._processes()}
        fresh = dict(
            zip(peers, await asyncio.gather(*map(self._collect, peers.values())), strict=True)
        )
        rows = self._rows()
        exposition = Exposition()
        stale: list[Sample] = []
        for row in rows:
            scope = _SCOPES.get(row.role)
            if scope is None:
                continue
            name = process_name(row.role, row.index)
            report = fresh.get(name)
            if report is not None:
                self._last[name] = report
            shard = row.index if scope is Scope.SHARD else None
            if shard is not None:
                shown = {"shard": str(shard)}
                stale.append(("fluxmq_scrape_stale", shown, float(report is None)))
            samples = self._last[name].samples if name in self._last else ()
            exposition.add(MetricSource(scope, samples, shard))
        self._undeclared += exposition.undeclared
        if exposition.undeclared:
            self._limited.event(
                logging.WARNING,
                "undeclared",
                "scrape omits samples of undeclared metrics",
                samples=exposition.undeclared,
            )
        exposition.add(MetricSource(Scope.NODE, [*stale, *self._own(), *self._node(rows)]))
        return exposition

    async def _collect(self, peer: Peer) -> Report | None:
        try:
            return Report.from_body(await peer.ask(COLLECT, {}, COLLECT_SECONDS))
        except (PeerError, MessageError, TimeoutError) as problem:
            self._limited.event(
                logging.WARNING,
                f"collect:{peer.name}",
                "no metrics from %s: %s",
                peer.name,
                str(problem) or "no answer in time",
            )
            return None

    def _node(self, rows: Sequence[ProcessRow]) -> Iterator[Sample]:
        now_ns, now = time.monotonic_ns(), time.time()
        version = {"version": fluxmq.__version__, "python": platform.python_version()}
        yield "fluxmq_build_info", version, 1.0
        yield "fluxmq_users", {}, self._users()
        yield UNDECLARED, {}, self._undeclared
        for row in rows:
            process = {"process": process_name(row.role, row.index)}
            up = bool(row.pid) and row.ready
            yield "fluxmq_process_up", process, float(up)
            yield "fluxmq_process_restarts_total", process, row.restarts
            if not row.pid:
                continue
            yield "fluxmq_process_uptime_seconds", process, max(0.0, now - row.started_at)
            age = heartbeat_age(row, now_ns)
            if age is not None:
                yield "fluxmq_process_heartbeat_age_seconds", process, age
            numbers = procfs.read(row.pid)
            if numbers is not None:
                yield "fluxmq_process_resident_memory_bytes", process, numbers.resident_bytes
                yield "fluxmq_process_cpu_seconds_total", process, numbers.cpu_seconds
