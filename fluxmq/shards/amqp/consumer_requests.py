"""Translation of AMQP consumers into requests to a queue's group, and of its answers into AMQP's."""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.engine.ports import BROWSE, QOS_TOLD, Attached, Attaching, AttachRequest, QueueStats
from fluxmq.engine.ports import ConsumerHandle as QueueHeld
from fluxmq.model.outcomes import QueueOutcome
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.refusals import Refusal, precondition
from fluxmq.sessions.amqp091.ports import (
    AmqpConsumerHandle,
    AmqpConsumerPort,
    ConsumeRequest,
    QueueStatus,
)

QOS = 1
"""AMQP consumers settle their messages, as MQTT's do at QoS 1."""


def consume(
    attach: Callable[[AttachRequest, AmqpConsumerPort, Attaching], None],
    wanted: ConsumeRequest,
    port: AmqpConsumerPort,
    done: Callable[[AmqpConsumerHandle | Refusal], None],
    refusal_of: Callable[[QueueRecord, int], Refusal],
) -> None:
    """Attach a consumer to the queue's group. ``refusal_of``: a refusal for the engine's outcome."""
    if len(wanted.filters) > 1:
        done(precondition("a consumer has one filter at most"))
        return

    def attached(answer: Attached, handle: QueueHeld | None) -> None:
        done(handle if handle is not None else refusal_of(wanted.queue, answer.outcome))

    attach(wanted_of(wanted), port, attached)


def wanted_of(wanted: ConsumeRequest) -> AttachRequest:
    """Return the attach request for the queue's group."""
    stream = wanted.queue.type == "stream"
    start = (BROWSE, 0) if wanted.browsing else None
    return AttachRequest(
        queue=wanted.queue.internal_name,
        group=wanted.group or (wanted.tag if stream else ""),
        member=wanted.member,
        pattern=wanted.filters[0].encode() if wanted.filters else b"",
        start=_start(wanted) if stream else start,
        limit=wanted.limit,
        qos=0 if wanted.browsing else QOS_TOLD if wanted.activity else QOS,
        explicit=not wanted.auto_commit,
        priority=wanted.priority,
        exclusive=wanted.exclusive,
        automatic=wanted.automatic,
        taking=wanted.taking,
        temporary=stream and not wanted.group,
        timeout=0 if stream else wanted.timeout,
        asker=wanted.asker,
        cancel_on_failover=wanted.cancel_on_failover,
    )


def _start(wanted: ConsumeRequest) -> tuple[str, int] | None:
    """Return a stream consumer's start: by default a named group resumes, another starts at the
    end.
    """
    if wanted.start is None and not wanted.group:
        return ("next", 0)
    return wanted.start


def status_of(stats: QueueStats) -> QueueStatus | None:
    """Return a queue's numbers; None if it could not be asked."""
    if stats.outcome != QueueOutcome.OK:
        return None
    return QueueStatus(stats.ready, stats.consumers)
