"""Message totals and rates of the node, from the counters that its shards report for metrics.

Nothing is sampled while nobody asks: the rates are those between two requests that are some seconds
apart.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from fluxmq.control.management.list_query import JsonRow
from fluxmq.control.peers import Peer, answers_of
from fluxmq.ipc.messages import COLLECT, Report

COLLECT_SECONDS: Final = 1.0
"""Time for a shard to report."""
WINDOW_SECONDS: Final = 5.0
"""Least time over which a rate is taken."""
KEPT_SECONDS: Final = 300.0
"""Age at which a sample is forgotten."""
FRESH_SECONDS: Final = 0.5
"""Age up to which a sample is used again: pages ask for several things at once."""

_COUNTERS: Final[dict[str, dict[str, dict[str, str]]]] = {
    "publish": {"fluxmq_amqp_published_total": {}, "fluxmq_messages_received_total": {}},
    "deliver_get": {"fluxmq_amqp_delivered_total": {}, "fluxmq_messages_sent_total": {}},
    "confirm": {"fluxmq_amqp_confirms_total": {"answer": "ack"}},
    "ack": {"fluxmq_amqp_settled_total": {"verb": "ack"}},
    "redeliver": {"fluxmq_amqp_redelivered_total": {}},
    "return_unroutable": {"fluxmq_amqp_returned_total": {}},
    "get_empty": {"fluxmq_amqp_gets_total": {"answer": "empty"}},
}
"""RabbitMQ's names of message statistics: the counters that add up to each, with their labels."""


class MessageSample(NamedTuple):
    """Message statistics with rates, and the messages in queues."""

    messages: JsonRow
    queues: JsonRow


class MessageRates:
    """Totals and rates of the shards that ``shards`` returns."""

    def __init__(
        self, shards: Callable[[], list[Peer]], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._shards = shards
        self._now = now
        self._past: deque[tuple[float, dict[str, float]]] = deque()
        self._last: tuple[float, MessageSample] | None = None

    async def sample(self) -> MessageSample:
        """Return the present totals, with rates since an earlier request."""
        now = self._now()
        if self._last is not None and now - self._last[0] < FRESH_SECONDS:
            return self._last[1]
        reports = await answers_of(self._shards(), COLLECT, {}, COLLECT_SECONDS, Report)
        samples = [each for report in reports if report is not None for each in report.samples]
        totals = {
            name: sum(
                value
                for found, labels, value in samples
                if found in counters and counters[found].items() <= labels.items()
            )
            for name, counters in _COUNTERS.items()
        }
        held = _sum(samples, "fluxmq_queue_messages")
        unacknowledged = _sum(samples, "fluxmq_queue_unsettled")
        queues = {
            "messages": int(held),
            "messages_ready": int(max(held - unacknowledged, 0)),
            "messages_unacknowledged": int(unacknowledged),
        }
        made = MessageSample(self._with_rates(totals, now), queues)
        self._last = now, made
        return made

    def _with_rates(self, totals: dict[str, float], now: float) -> JsonRow:
        past = self._past
        while past and now - past[0][0] > KEPT_SECONDS:
            past.popleft()
        before = next((each for each in reversed(past) if now - each[0] >= WINDOW_SECONDS), None)
        found: JsonRow = {}
        for name, total in totals.items():
            rate = 0.0
            if before is not None:
                rate = max(total - before[1].get(name, 0.0), 0.0) / (now - before[0])
            found[name] = int(total)
            found[f"{name}_details"] = {"rate": round(rate, 2)}
        if not past or now - past[-1][0] >= 1.0:
            past.append((now, totals))
        return found


def _sum(samples: list[tuple[str, Any, float]], name: str) -> float:
    return sum(value for found, _, value in samples if found == name)
