"""Other nodes that a shard has met again, and whose messages may be for sessions that have left.

A node that is away from this one does not know, when it is back, that a session has moved from here
to a third one: what it sends before it knows reaches no session, and must not be acknowledged. The
same holds for what it sent before this shard restarted. So the answers to what comes over a new
stream wait: until the sessions that were leaving when it began have left, it is known which of those
that a shard has restored are still here, and the other node has confirmed the interest that is left.
They are refusals if a session has left since the former stream ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fluxmq.model.outcomes import Outcome
from fluxmq.protocols.mqtt.pending_acks import PendingAck

SettledCallback = Callable[[bool], None]
"""Called with whether no session has left."""
KEPT_FACTOR: Final = 2.0
"""A node keeps unanswered messages for `route_publish_timeout` by its own clock: sessions that left
before so many times that cannot matter."""


class _Doubt:
    """A stream whose answers wait. ``sequence``: of the announcement to be confirmed; 0 before it."""

    def __init__(self) -> None:
        self.waiting: list[PendingAck] = []
        self.sequence = 0
        self.reason = int(Outcome.OVER_LIMIT)

    def end(self, reason: int) -> None:
        """Send the answers."""
        for pending_ack in self.waiting:
            pending_ack.done(reason)


class DoubtfulPeers:
    """The new streams of a shard whose answers wait.

    ``settle`` asks all shards of this node whether sessions have left since a moment, once that is
    known for all that are leaving now.
    """

    def __init__(self, now: Callable[[], float], kept_seconds: float) -> None:
        """``kept_seconds``: time for which other nodes keep unanswered messages."""
        self._now = now
        self._window = KEPT_FACTOR * kept_seconds
        self._doubts: dict[int, _Doubt] = {}
        self._ended: dict[int, float] = {}
        """Moments at which streams ended whose answers did not wait any more."""
        self.settle: Callable[[float, SettledCallback], None] = _nothing_left

    def came(self, peer: int, announce: Callable[[bool], int]) -> None:
        """Note a new stream; ``announce`` tells the peer this node's interest once more, and whether
        sessions have left, and returns the announcement's number."""
        doubt = self._doubts[peer] = _Doubt()

        def settled(nothing_left: bool) -> None:
            if self._doubts.get(peer) is doubt:
                doubt.reason = 0 if nothing_left else Outcome.OVER_LIMIT
                doubt.sequence = announce(not nothing_left)

        oldest = self._now() - self._window
        self.settle(max(self._ended.get(peer, oldest), oldest), settled)

    def gone(self, peer: int) -> None:
        """Note the end of a stream: what it brought is refused if it is sent again."""
        doubt = self._doubts.pop(peer, None)
        if doubt is None:
            self._ended[peer] = self._now()
        else:  # it may not have brought everything that was sent before the former one ended
            doubt.end(Outcome.OVER_LIMIT)

    def confirmed(self, peer: int, sequence: int) -> None:
        """Note that a peer has confirmed announcements up to a number."""
        doubt = self._doubts.get(peer)
        if doubt is not None and 0 < doubt.sequence <= sequence:
            del self._doubts[peer]
            doubt.end(doubt.reason)

    def answer(self, peer: int, pending_ack: PendingAck) -> None:
        """End a pending ack when the peer's stream is not doubtful (any more)."""
        doubt = self._doubts.get(peer)
        if doubt is None:
            pending_ack.done(0)
        else:
            doubt.waiting.append(pending_ack)


def _nothing_left(_since: float, done: SettledCallback) -> None:
    done(True)
