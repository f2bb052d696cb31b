"""The shard's one timer: it runs a turn of all periodic work ten times a second while something
happens, and otherwise when the next thing is due, at the latest after a second.

Each event in a shard (input of clients and other shards, answers, requests for a tick) stirs the
timer; the next turn is then at most a tenth of a second away, and a few more follow. Timeouts
(silent connections, expiries, wills, retries, leases) tell when they are due. So an idle shard
wakes once a second, for its heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

TURN_SECONDS: Final = 0.1
"""Interval of turns while something happens."""
REST_SECONDS: Final = 1.0
"""The same while nothing does and nothing is due: of heartbeats, samples of memory, and looks at
the wall clock."""
CALM_TURNS: Final = 3
"""Turns in which nothing happens before the longer interval begins, so that work in several steps
comes to its end."""


class Scheduled(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Do not call."""


class TurnTimer:
    """Calls ``turn``, which calls ``begin`` and in the end ``end``. ``call_later`` and ``clock``
    are an event loop's."""

    def __init__(
        self,
        turn: Callable[[], None],
        call_later: Callable[[float, Callable[[], None]], Scheduled],
        clock: Callable[[], float],
    ) -> None:
        self._turn = turn
        self._call_later = call_later
        self._clock = clock
        self._next: Scheduled | None = None
        self._began = clock()
        self._calm = 0
        self._stirred = False
        self.tenths = 0
        """Turns so far, each counted as the tenths of a second since the one before."""
        self._before = 0
        self.expected = clock()
        """Moment at which the next turn begins."""

    def begin(self, now: float) -> float:
        """Note that a turn begins; return how late it is, in seconds."""
        self._next = None
        self._calm = 0 if self._stirred else self._calm + 1
        self._stirred = False
        self._before = self.tenths
        self.tenths = max(self.tenths + 1, int((now - self._began) / TURN_SECONDS))
        return max(0.0, now - self.expected)

    @property
    def resting(self) -> bool:
        """True if nothing has happened for some turns."""
        return self._calm >= CALM_TURNS and not self._stirred

    def passes(self, tenths: int) -> bool:
        """Return whether a multiple of that many tenths of a second has passed with this turn."""
        return self.tenths // tenths != self._before // tenths

    def end(self, due: Callable[[], float]) -> None:
        """Schedule the next turn. ``due`` returns when something becomes due by time alone; 0.0:
        there is work for every turn. It is asked at rest only."""
        now = self._clock()
        seconds = TURN_SECONDS
        if self.resting:
            seconds = max(TURN_SECONDS, min(due() - now, REST_SECONDS))
        self._schedule(now, seconds)

    def stir(self) -> None:
        """Note that something happens: a turn follows soon."""
        if self._stirred:
            return
        self._stirred = True
        if self._next is not None:
            now = self._clock()
            if self.expected > now + TURN_SECONDS:
                self._next.cancel()
                self._schedule(now, TURN_SECONDS)

    def stop(self) -> None:
        """Run no more turns, whatever happens."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _schedule(self, now: float, seconds: float) -> None:
        self.expected = now + seconds
        self._next = self._call_later(seconds, self._turn)
