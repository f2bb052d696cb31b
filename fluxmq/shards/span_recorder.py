"""Spans of one shard: what has happened to messages that carry a sampled trace context.

There are three stages. *Accept*: a client's messages have arrived, and may be published. *Commit*: a queue has them,
synced by a majority of its members, as far as the publisher's shard knows. *Deliver*: messages are handed to a queue's
consumer, or to this shard's MQTT subscribers. The messages themselves are not changed.

A shard has this only if ``tracing.enabled`` is set; messages without a trace context then cost a search for its name
among their properties. Spans wait in a bounded buffer until control takes them, several times a second. Beyond the
buffer, and beyond the number of a second, spans are dropped and counted.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fluxmq.engine.ports import (
    AttachCallback,
    Attaching,
    AttachRequest,
    ConsumerPort,
    GroupTarget,
)
from fluxmq.ipc.conversation import RequestHandler
from fluxmq.ipc.messages import Body, Failure
from fluxmq.ipc.span_messages import (
    SPANS,
    SPANS_MAX,
    TEXT_MAX,
    SpanBatch,
    SpanRecord,
    SpanStage,
)
from fluxmq.ipc.topology_client import RequestSender
from fluxmq.metrics.registry import Sample
from fluxmq.model.batch_format import Batch, parse
from fluxmq.model.trace_context import (
    TRACEPARENT,
    TraceContext,
    context_of,
    context_of_block,
)
from fluxmq.net.ports import AppendedCallback
from fluxmq.protocols.connection import Connection, Tally
from fluxmq.protocols.mqtt.message_properties import to_items
from fluxmq.protocols.mqtt.reasons import ProtocolError
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.routing.topology.names import DEFAULT_VHOST, public_name
from fluxmq.sessions.mqtt.session import MqttClient
from fluxmq.settings.traces import Tracing

WAITING_MAX = 5000
"""Spans that wait for control: a megabyte or two."""
WINDOW_SECONDS = 1.0
RETRY_SECONDS = 1.0
"""Pause after a request that failed."""
OUTCOMES = ("taken", "rate", "full", "refused")
"""Control has taken the span, or refused it; there were more than in a second, or the buffer was full."""
MQTT, AMQP = "mqtt", "amqp"


class Subject(NamedTuple):
    """Names in a span, as `SpanRecord` has them."""

    destination: str
    protocol: str = ""
    queue: str = ""
    client: str = ""


class TracedConsumer:
    """Stands between a queue's group and a consumer, and sees what is delivered."""

    def __init__(self, spans: SpanRecorder, wanted: AttachRequest, port: ConsumerPort) -> None:
        self._spans = spans
        self._wanted = wanted
        self._port = port

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Note messages with a trace context, and deliver all."""
        if batch.uniform_properties:
            if TRACEPARENT in batch.properties(first):
                self._spans.consumed(self._wanted, batch, first, count, attempts)
        elif batch.data.find(TRACEPARENT, batch.properties_at, batch.payloads_at) >= 0:
            for index in range(first, first + count):
                if TRACEPARENT in batch.properties(index):
                    self._spans.consumed(self._wanted, batch, index, 1, attempts)
        self._port.deliver(batch, first, count, attempts, committed)

    def cancelled(self) -> None:
        """Pass the end of the queue on."""
        self._port.cancelled()


class SpanRecorder:
    """Records spans, and hands them to control. ``now_us``: time of day; ``monotonic``: the clock of
    ``tally``; ``attach``:
    attaches a consumer."""

    def __init__(
        self,
        settings: Tracing,
        tally: Tally,
        now_us: Callable[[], int],
        monotonic: Callable[[], float],
        attach: AttachCallback,
    ) -> None:
        self._attach = attach
        self._settings = settings
        self._tally = tally
        self._now_us = now_us
        self._monotonic = monotonic
        self._control: RequestSender | None = None
        self._waiting: deque[SpanRecord] = deque()
        self._window_end = 0.0
        self._in_window = 0
        self._asking = False
        self._retry_at = 0.0
        self.counts: Counter[str] = Counter()
        """Spans by what became of them."""

    # What happens to messages

    def accepted(self, connection: Connection, run: PublishRun) -> None:
        """Record that an MQTT client's run has arrived."""
        context = self._wanted(context_of_run(run))
        if context is not None:
            client: MqttClient = connection.identity
            session = client.session
            client_id = "" if session is None else session.client_id[:TEXT_MAX]
            subject = Subject(cut(run.topic), MQTT, client=client_id)
            self._note(SpanStage.ACCEPT, context, self._arrival(), subject, run.count)

    def published(self, exchange: str, key: str, block: bytes, messages: int) -> None:
        """Record that messages from an AMQP client have arrived."""
        context = self._wanted(context_of_block(block))
        if context is not None:
            subject = Subject(of_exchange(exchange, key), AMQP)
            self._note(SpanStage.ACCEPT, context, self._arrival(), subject, messages)

    def appended(
        self, queue: str, block: bytes, batch: bytes, done: AppendedCallback | None
    ) -> AppendedCallback | None:
        """Return what to call when a queue has a batch; it calls ``done`` as well."""
        context = self._wanted(context_of_block(block))
        if context is None:
            return done
        start, messages = self._now_us(), parse(batch).count

        def committed(reason: int) -> None:
            subject = Subject(of_queue(queue), queue=of_queue(queue))
            self._note(SpanStage.COMMIT, context, start, subject, messages, outcome=reason)
            if done is not None:
                done(reason)

        return committed

    def delivered(self, run: PublishRun, receivers: int) -> None:
        """Record that a run is delivered to subscribers here."""
        context = self._wanted(context_of_run(run))
        if context is not None:
            subject, now = Subject(cut(run.topic), MQTT), self._now_us()
            self._note(SpanStage.DELIVER, context, now, subject, run.count, receivers)

    def consumed(
        self, wanted: AttachRequest, batch: Batch, first: int, count: int, attempts: int
    ) -> None:
        """Record that messages with equal properties are delivered to a queue's consumer."""
        context = self._wanted(context_of_block(batch.properties(first)))
        if context is not None:
            queue, protocol = of_queue(wanted.queue), AMQP if wanted.asker else MQTT
            subject = Subject(queue, protocol, queue, wanted.member[:TEXT_MAX])
            self._note(SpanStage.DELIVER, context, self._now_us(), subject, count, 1, attempts)

    def attach(
        self, target: GroupTarget, wanted: AttachRequest, port: ConsumerPort, done: Attaching
    ) -> None:
        """Attach a consumer, and see its deliveries."""
        self._attach(target, wanted, TracedConsumer(self, wanted, port), done)

    def _arrival(self) -> int:
        """Return when this tick began, in which the messages were read."""
        return self._now_us() - round((self._monotonic() - self._tally.now) * 1_000_000)

    def _wanted(self, context: TraceContext | None) -> TraceContext | None:
        """Return the context if its trace is sampled, and there is room."""
        if context is None or not context.sampled or not context.drawn(self._settings.sample_ratio):
            return None
        now = self._monotonic()
        if now >= self._window_end:
            self._window_end = now + WINDOW_SECONDS
            self._in_window = 0
        if self._in_window >= self._settings.max_spans_per_second:
            self.counts["rate"] += 1
            return None
        self._in_window += 1
        return context

    def _note(
        self,
        stage: SpanStage,
        context: TraceContext,
        start: int,
        subject: Subject,
        messages: int,
        receivers: int = 0,
        attempts: int = 0,
        outcome: int = 0,
    ) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self.counts["full"] += 1
            return
        self._waiting.append(
            SpanRecord(
                stage,
                f"{context.trace_id:032x}",
                f"{context.span_id:016x}",
                context.flags,
                context.state,
                start,
                max(self._now_us(), start),
                subject.destination,
                subject.protocol,
                subject.queue,
                subject.client,
                messages,
                receivers,
                attempts,
                outcome,
            )
        )

    # Control

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """Handlers of control's messages: none."""
        return {}

    def connect(self, control: RequestSender) -> None:
        """Send requests through this client from now on."""
        self._control = control

    def established(self) -> None:
        """Begin anew: control is connected (again)."""
        self._retry_at = 0.0

    @property
    def next_due(self) -> float:
        """Moment at which something becomes due, in monotonic seconds; 0.0 while there is work
        for every turn of the timer."""
        return 0.0 if self._waiting else math.inf

    def housekeeping(self) -> None:
        """Hand spans to control; called by the shard's timer."""
        if (
            not self._waiting
            or self._asking
            or self._control is None
            or self._monotonic() < self._retry_at
        ):
            return
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), SPANS_MAX))]
        self._asking = True
        body = SpanBatch(tuple(batch)).to_body()
        if not self._control.request(
            SPANS, body, lambda answer: self._answered(len(batch), answer)
        ):
            self._asking = False
            self._retry_at = self._monotonic() + RETRY_SECONDS
            self._waiting.extendleft(reversed(batch))

    def _answered(self, count: int, answer: Body | Failure) -> None:
        self._asking = False
        if isinstance(answer, Failure):
            self.counts["refused"] += count
            self._retry_at = self._monotonic() + RETRY_SECONDS
        else:
            self.counts["taken"] += count
            self.housekeeping()

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        for outcome in OUTCOMES:
            yield "fluxmq_tracing_spans_total", {"outcome": outcome}, self.counts[outcome]


def context_of_run(run: PublishRun) -> TraceContext | None:
    """Return the trace context of an MQTT run."""
    try:
        return context_of(to_items(run.properties))
    except ProtocolError:
        return None


def cut(text: bytes) -> str:
    """Return as much of a name as a span takes."""
    return text.decode("utf-8", "replace")[:TEXT_MAX]


def of_exchange(exchange: str, key: str) -> str:
    """Return the destination of a publish, as OpenTelemetry names RabbitMQ's."""
    return (f"{exchange}:{key}" if exchange else key)[:TEXT_MAX]


def of_queue(internal: str) -> str:
    """Return the name of a queue; with its virtual host, unless that is the first one."""
    vhost, name = public_name(internal)
    return (name if vhost == DEFAULT_VHOST else f"{vhost}:{name}")[:TEXT_MAX]
