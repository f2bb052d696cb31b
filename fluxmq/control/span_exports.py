"""Takes spans from the shards and sends them to an OpenTelemetry collector.

The library (`otlp`) makes the spans and encodes them, and a thread sends them, a few hundred at a time. What waits is
bounded; what does not fit, and what the collector does not take, is dropped and counted. The shards never wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from fluxmq.ipc.messages import Body, ControlMessage
from fluxmq.ipc.span_messages import SPANS, SpanBatch, SpanRecord
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.settings.traces import Tracing

WAITING_MAX: Final = 10_000
"""Spans that wait for the collector: a few megabytes."""
EXPORT_MAX: Final = 512
"""Spans of a request to the collector: as many as the library's own processor sends."""
COMPANY_SECONDS: Final = 0.2
"""Time that spans wait for others before they are sent."""
END_SECONDS: Final = 1.5
"""Time to send what waits when the process ends: less than all of it has."""
OUTCOMES: Final = ("sent", "full", "refused")
"""Spans that the collector has taken, or not taken; those for which there was no room."""
KINDS: Final = (SPANS,)

_log = get_logger(__name__)


class TracingError(Exception):
    """Spans cannot be sent; the text names the setting, and says what to do."""


class SpanExporter(Protocol):
    """Sends spans. Its methods run on a thread of their own."""

    def export(self, spans: Sequence[SpanRecord], /) -> str:
        """Send spans; return why that failed, empty if it did not."""

    def close(self) -> object:
        """End; an export that is under way ends soon."""


class SpanExports:
    """The spans on their way to the collector. Lives on control's loop."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._thread = ThreadPoolExecutor(1, "spans")
        self._waiting: deque[SpanRecord] = deque()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._said = RateLimited(_log, per_second=0.1, burst=3)
        self.counts: Counter[str] = Counter()
        """Spans by outcome."""

    def start(self) -> None:
        """Send spans until ``stop``."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Send what waits, unless the collector is slow or away; return when the thread has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                while self._waiting and await self._export():
                    pass
        self._exporter.close()
        # Behind what is under way.
        await asyncio.get_running_loop().run_in_executor(self._thread, lambda: None)
        self._thread.shutdown()

    async def answer(self, message: ControlMessage) -> Body:
        """Take spans from a shard. Raises MessageError."""
        for span in SpanBatch.from_body(message.body).spans:
            if len(self._waiting) >= WAITING_MAX:
                self.counts["full"] += 1
            else:
                self._waiting.append(span)
        self._arrived.set()
        return {}

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                # Not asyncio.wait_for: before Python 3.12 it may lose a cancellation at the end.
                async with asyncio.timeout(COMPANY_SECONDS):
                    await self._enough()
            while self._waiting:
                await self._export()

    async def _enough(self) -> None:
        """Wait until a request is full."""
        while len(self._waiting) < EXPORT_MAX:
            await self._arrived.wait()
            self._arrived.clear()

    async def _export(self) -> bool:
        """Send what fits into a request; return whether the collector has taken it."""
        count = min(len(self._waiting), EXPORT_MAX)
        batch = [self._waiting.popleft() for _ in range(count)]
        loop = asyncio.get_running_loop()
        problem = await loop.run_in_executor(self._thread, self._exporter.export, batch)
        if problem:
            self.counts["refused"] += count
            self._said.event(logging.WARNING, "spans", "%d spans not sent: %s", count, problem)
        else:
            self.counts["sent"] += count
        return not problem

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        for outcome in OUTCOMES:
            yield "fluxmq_tracing_exports_total", {"outcome": outcome}, self.counts[outcome]


def make_exporter(settings: Tracing, node: str, version: str) -> SpanExporter:
    """Return what sends spans to the collector of the settings. Raises TracingError."""
    try:
        from fluxmq.control.otlp import OtlpExporter

        return OtlpExporter(settings, node, version)
    except ImportError as problem:
        raise TracingError(
            f"tracing.enabled: the module {problem.name} is not installed:"
            " pip install 'fluxmq-broker[otel]'"
        ) from problem
    except OSError as problem:
        raise TracingError(f"tracing.ca_file: {problem}") from problem
