"""What commands came to, as clients are told."""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.protocols.mqtt.reasons import Reason
from fluxmq.queues.results import Code, Result
from fluxmq.shards.queues.ports import Answer

Done = Callable[[Result], None]
"""Called with what a command came to."""

REFUSED = {
    Code.FULL: Reason.QUOTA_EXCEEDED,
    Code.LIMIT: Reason.QUOTA_EXCEEDED,
    Code.TOO_LARGE: Reason.QUOTA_EXCEEDED,
    Code.NOT_PENDING: Reason.NO_MATCHING_SUBSCRIBERS,
}
"""What a client is told; anything else is an implementation specific error."""


def reason_of(result: Result) -> int:
    """The MQTT reason code for what a command came to; 0 when it took effect."""
    return 0 if result.ok else REFUSED.get(Code(result.code), Reason.IMPLEMENTATION_SPECIFIC_ERROR)


def answering(done: Answer) -> Done:
    """Tell a client's side, which knows reason codes only."""

    def applied(result: Result) -> None:
        done(reason_of(result))

    return applied
