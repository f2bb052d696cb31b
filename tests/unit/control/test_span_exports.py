"""Spans on their way from the shards to a collector: nothing is lost silently, and nothing waits for it."""

from __future__ import annotations

import asyncio
import builtins
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from fluxmq.control import span_exports
from fluxmq.control.span_attributes import span_attributes, span_name
from fluxmq.control.span_exports import EXPORT_MAX, SpanExports, TracingError, make_exporter
from fluxmq.ipc.messages import ControlMessage, MessageError
from fluxmq.ipc.span_messages import SPANS, SPANS_MAX, SpanBatch, SpanRecord, SpanStage
from fluxmq.model.outcomes import Outcome
from fluxmq.settings.traces import Tracing
from tests.collector import collector
from tests.etcd import is_true

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


def span(stage: SpanStage = SpanStage.ACCEPT, **values: Any) -> SpanRecord:
    """A span that took 5 µs."""
    values.setdefault("destination", "t")
    return SpanRecord(stage, TRACE, SPAN, 1, values.pop("state", ""), 1000, 1005, **values)


def message(count: int) -> ControlMessage:
    """A shard's request with spans."""
    return ControlMessage(SPANS, 1, SpanBatch((span(),) * count).to_body())


class Exporter:
    """Takes spans, once it is let; ``problem``: why it does not."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.let = threading.Event()
        self.let.set()
        self.problem = ""
        self.closed = False

    def export(self, taken: Sequence[SpanRecord]) -> str:
        assert self.let.wait(10)
        self.sizes.append(len(taken))
        return self.problem

    def close(self) -> None:
        self.closed = True
        self.let.set()


def numbers(exports: SpanExports) -> dict[str, float]:
    return {labels["outcome"]: value for _, labels, value in exports.samples()}


def test_spans_are_sent_together() -> None:
    async def main() -> None:
        exporter = Exporter()
        exports = SpanExports(exporter)
        exports.start()
        for _ in range(2):
            assert await exports.answer(message(SPANS_MAX)) == {}
        await is_true(lambda: numbers(exports)["sent"] == 2 * SPANS_MAX)
        assert exporter.sizes == [EXPORT_MAX, 2 * SPANS_MAX - EXPORT_MAX]
        await exports.answer(message(3))
        await exports.stop()
        assert exporter.sizes[2:] == [3]
        assert exporter.closed
        with pytest.raises(MessageError):
            await exports.answer(ControlMessage(SPANS, 1, {"spans": [["x"]]}))

    asyncio.run(main())


def test_what_does_not_fit_and_what_is_not_taken_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(span_exports, "WAITING_MAX", 10)

    async def main() -> None:
        exporter = Exporter()
        exporter.let.clear()
        exporter.problem = "away"
        exports = SpanExports(exporter)
        exports.start()
        await exports.answer(message(12))
        assert numbers(exports)["full"] == 2
        exporter.let.set()
        await is_true(lambda: numbers(exports)["refused"] == 10)
        assert numbers(exports)["sent"] == 0
        await exports.stop()

    asyncio.run(main())


def test_a_collector_that_does_not_answer_delays_the_end_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(span_exports, "END_SECONDS", 0.05)

    async def main() -> None:
        exporter = Exporter()
        exporter.let.clear()
        exports = SpanExports(exporter)
        await exports.answer(message(1))
        await exports.stop()
        assert exporter.closed

    asyncio.run(main())


def test_a_missing_library_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "fluxmq.control.otlp", raising=False)
    imported = builtins.__import__

    def refuse(name: str, *arguments: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return imported(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(TracingError) as raised:
        make_exporter(Tracing(enabled=True), "n1", "1.0")
    assert str(raised.value) == (
        "tracing.enabled: the module opentelemetry is not installed: pip install 'fluxmq-broker[otel]'"
    )


def test_certificates_that_cannot_be_read_stop_the_start() -> None:
    with pytest.raises(TracingError, match=r"tracing\.ca_file: .*no-such-file"):
        make_exporter(Tracing(enabled=True, ca_file="/no-such-file"), "n1", "1.0")


def test_the_library_sends_what_shards_record() -> None:
    with collector() as taken:
        exporter = make_exporter(
            Tracing(enabled=True, endpoint=taken.endpoint, timeout=1.0), "n1", "1.0"
        )
        refused = span(SpanStage.COMMIT, queue="q", outcome=Outcome.OVER_LIMIT, state="a=1")
        assert exporter.export([span(SpanStage.DELIVER), refused]) == ""
        deliver, commit = taken.spans
        assert (deliver.trace_id, deliver.parent, deliver.links) == (TRACE, SPAN, ((TRACE, SPAN),))
        assert (deliver.start, deliver.end) == (1_000_000, 1_005_000)
        assert deliver.span_id not in ("", SPAN, commit.span_id)
        assert (commit.failed, commit.state, commit.links) == (True, "a=1", ())
        assert commit.attributes["error.type"] == "over_limit"
        expected = {"service.name": "fluxmq", "service.version": "1.0", "service.instance.id": "n1"}
        assert expected.items() <= deliver.resource.items()
        taken.status = 400
        assert exporter.export([span()])
        taken.status = 200
        assert exporter.export([span()]) == "", "the refused ones are not sent again"
        assert len(taken.spans) == 3
        exporter.close()


def test_names_and_attributes() -> None:
    several = span(
        SpanStage.DELIVER, protocol="mqtt", client="c", messages=3, receivers=2, attempts=2
    )
    assert span_name(several) == "deliver t"
    assert span_attributes(several) == {
        "messaging.system": "fluxmq",
        "messaging.operation.name": "deliver",
        "messaging.operation.type": "send",
        "messaging.destination.name": "t",
        "messaging.client.id": "c",
        "network.protocol.name": "mqtt",
        "messaging.batch.message_count": 3,
        "fluxmq.receivers": 2,
        "fluxmq.delivery.attempts": 2,
    }
    commit = span(SpanStage.COMMIT, queue="t", outcome=0x300 | Outcome.FAILED)
    assert span_attributes(commit)["error.type"] == "failed"
    assert "messaging.operation.type" not in span_attributes(commit)
