"""Start of a stream's consumer: the argument ``x-stream-offset``.

``first``, ``last``, ``next``; an offset as number or ``offset=<n>``; a timestamp, or
``timestamp=<n>`` in seconds or milliseconds since the epoch; an interval back from now as text
(``1h``; units Y, M, D, h, m, s). Source: RabbitMQ's streams.
"""

from __future__ import annotations

import re
from typing import Final

from fluxmq.model.properties import Timestamp
from fluxmq.protocols.amqp091.errors import SoftError
from fluxmq.routing.topology.arguments import age_seconds
from fluxmq.routing.topology.records import Queue
from fluxmq.routing.topology.refusals import named
from fluxmq.sessions.amqp091.channel import precondition

OFFSET_MAX: Final = (1 << 63) - 1
SECONDS_MAX: Final = OFFSET_MAX // 1_000_000
"""Times are microseconds in 64 bits."""
MILLISECONDS_FROM: Final = 100_000_000_000
"""Timestamps from here on are milliseconds: as seconds they would be beyond the year 5000."""

_POSITIONS: Final = ("first", "last", "next")
_NUMBERED: Final = re.compile(r"(offset|timestamp)=([0-9]{1,19})")


def stream_start(value: object, queue: Queue) -> tuple[str, int] | None:
    """Return the position and its number, see ``ports.ConsumerWanted``; None without the argument.

    Raises SoftError 406 for anything else.
    """
    if value is None:
        return None
    if isinstance(value, Timestamp):
        return "timestamp", min(int(value), SECONDS_MAX) * 1_000_000
    if isinstance(value, int) and not isinstance(value, bool):
        return "offset", min(max(value, 0), OFFSET_MAX)
    if isinstance(value, str):
        if value in _POSITIONS:
            return value, 0
        seconds = age_seconds(value)
        if seconds:
            return "interval", min(seconds, SECONDS_MAX) * 1_000_000
        found = _NUMBERED.fullmatch(value)
        if found is not None:
            number = int(found[2])
            if found[1] == "offset":
                return "offset", min(number, OFFSET_MAX)
            scale = 1000 if number >= MILLISECONDS_FROM else 1_000_000
            return "timestamp", min(number, OFFSET_MAX // scale) * scale
    raise invalid(value, queue)


def invalid(value: object, queue: Queue) -> SoftError:
    """Return 406 for an invalid position."""
    what = named("queue", queue.name, queue.vhost)
    return precondition(
        f"invalid arg 'x-stream-offset' for {what}: \"expected first, last, next, an offset, a timestamp or an "
        f"interval, got '{value}'\""
    )
