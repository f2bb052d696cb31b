"""Outcomes of requests to the engine, in numbers that cross links and stay the same for good.

Queues, shards, durable sessions and the cluster answer each other in these; every protocol
translates them into its own codes at its edge (`fluxmq.sessions.mqtt.outcomes`,
`fluxmq.sessions.amqp091.refusals`). Where several parts answer one request, the greatest number is
the answer: numbers below `REFUSED_MIN` mean that the request took effect.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

REFUSED_MIN: Final = 0x80
"""Lowest number of a refusal."""


class Outcome(IntEnum):
    """Outcome of an append, a settlement, an attach, or a change that is written to disk."""

    OK = 0x00
    NOT_PENDING = 0x10
    """The consumer does not hold some of the messages; the others are settled."""
    CANCELLED = 0x80
    """The consumer was ended before its group had answered."""
    FAILED = 0x83
    """The request cannot be carried out: no such queue, a conflict, a failed disk or group."""
    DENIED = 0x87
    """The queue belongs to another connection, or does not accept appends by its address."""
    OVER_LIMIT = 0x97
    """A queue, a buffer or the disk is full, or another limit is reached."""
    MOVED = 0x183
    """Between shards only: this shard does not (or no longer) lead the queue's group and the
    request's fate is unknown. The caller locates the leader and retries."""
    FENCED = 0x283
    """Between shards only: the queue is moving to another group and the request had no effect. The
    caller retries, there or here."""


class QueueOutcome(IntEnum):
    """Outcome of a request that names a queue, in detail."""

    OK = 0
    NO_QUEUE = 1
    UNAVAILABLE = 2
    """The queue's group is unreachable or has failed."""
    REFUSED = 3
    """The consumer group has another mode or filter, or a limit is reached."""
    EXCLUSIVE = 4
    """The queue has an exclusive consumer, or other consumers where an exclusive one was
    requested."""
    IN_USE = 5
    NOT_EMPTY = 6
    LOCKED = 7
    """The queue is exclusive to another connection."""


EXPLANATIONS_MAX: Final = 4096
"""Maximum number of texts; further outcomes are answered without. Texts name groups and nodes,
which are few."""
_FIRST: Final = 3
"""Lower numbers belong to `Outcome.MOVED` and `Outcome.FENCED`."""


class Explanations:
    """Texts by number: an outcome passes the hot path as a plain number, whose lowest byte is the
    `Outcome` and whose upper bits select the text that explains it."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []

    def explain(self, outcome: Outcome, text: str) -> int:
        """Return the number of an outcome with a text."""
        number = self._numbers.get(text)
        if number is None:
            if len(self._texts) >= EXPLANATIONS_MAX:
                return outcome
            number = self._numbers[text] = len(self._texts) + _FIRST
            self._texts.append(text)
        return number << 8 | outcome

    def text(self, outcome: int) -> str:
        """Return the text of an outcome; empty for none."""
        at = (outcome >> 8) - _FIRST
        return self._texts[at] if 0 <= at < len(self._texts) else ""
