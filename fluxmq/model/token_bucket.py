"""A token bucket: how much may happen per second, and how long to wait for more.

More may be taken than there is, so that a whole batch is one question; the debt is waited for. Time comes from the caller.
"""

from __future__ import annotations


class TokenBucket:
    """``rate`` tokens per second, of which at most those of a second are saved up; full at first."""

    __slots__ = ("_at", "_tokens", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._tokens = rate
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take tokens; return the seconds until there are no debts, 0 if there are none."""
        rate = self.rate
        self._tokens = min(rate, self._tokens + (now - self._at) * rate) - amount
        self._at = now
        return -self._tokens / rate if self._tokens < 0 else 0.0
