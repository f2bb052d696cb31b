"""Rate limits on log lines: token buckets that keep frequent events from filling the disk.

A hostile peer can cause the same event a hundred thousand times a second. Each kind of event (its
*key*) may write `per_second` lines with a burst of `burst`; the rest are counted, and the next
written line reports how many were suppressed. The table of keys is bounded: idle keys are
forgotten, and when all are busy, further keys share one bucket, so the number of lines per second
has an upper bound whatever the keys are. Time comes from the caller or from the injected clock.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from weakref import WeakSet

OTHER_KEYS = "(other)"
KEYS_MAX = 1024  # about 200 KiB of table; a kind of event rarely has more than a handful of keys


# Names reserved by `logging`: such a field gets a trailing underscore instead of raising.
_TAKEN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def _field_name(name: str) -> str:
    return f"{name}_" if name in _TAKEN else name


# All limited loggers of this process, for `flush_all`; removed with their owners.
_instances: WeakSet[RateLimited] = WeakSet()


def flush_all() -> int:
    """Call `RateLimited.flush` on every instance of this process; return the number of lines
    written.

    Each process's housekeeping calls it about once a second.
    """
    return sum(limited.flush() for limited in list(_instances))


class _LineBucket:
    __slots__ = ("level", "refilled_at", "suppressed", "template", "tokens")

    def __init__(self, tokens: float, now: float) -> None:
        self.tokens = tokens
        self.refilled_at = now
        self.suppressed = 0
        self.level = logging.INFO
        self.template = ""


class RateLimited:
    """A logger whose lines are limited per key; every event is counted in `events`, written or not.

    Invariants: at most `keys_max` + 1 buckets; each writes at most `burst` + `per_second` × elapsed
    lines; `events` = lines written + `suppressed_total`.
    """

    __slots__ = (
        "__weakref__",
        "_buckets",
        "_burst",
        "_clock",
        "_keys_max",
        "_logger",
        "_other",
        "_per_second",
        "events",
        "suppressed_total",
    )

    def __init__(
        self,
        logger: logging.Logger,
        per_second: float,
        burst: int,
        *,
        keys_max: int = KEYS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set the limits. Raises ValueError when one is not positive."""
        if per_second <= 0 or burst < 1 or keys_max < 1:
            raise ValueError("per_second, burst and keys_max must be positive")
        self._logger = logger
        self._per_second = per_second
        self._burst = burst
        self._keys_max = keys_max
        self._clock = clock
        self._buckets: OrderedDict[str, _LineBucket] = OrderedDict()
        self._other: _LineBucket | None = None
        self.events = 0
        self.suppressed_total = 0
        _instances.add(self)

    def event(
        self,
        level: int,
        key: str,
        message: str,
        *arguments: object,
        now: float | None = None,
        **fields: object,
    ) -> bool:
        """Count one event of kind `key`; write its line, and return True, if the key's rate allows.

        `now` is in seconds on the same scale as the clock. `fields` become the line's extra fields;
        ``suppressed`` is added when earlier lines of this key were suppressed.
        """
        self.events += 1
        if now is None:
            now = self._clock()
        bucket = self._bucket(key, now)
        bucket.level = level
        bucket.template = message
        if bucket.tokens < 1.0:
            bucket.suppressed += 1
            self.suppressed_total += 1
            return False
        bucket.tokens -= 1.0
        extra: dict[str, object] = {_field_name(name): value for name, value in fields.items()}
        if bucket.suppressed:
            extra["suppressed"] = bucket.suppressed
            bucket.suppressed = 0
        self._logger.log(level, message, *arguments, extra=extra)
        return True

    def flush(self, now: float | None = None) -> int:
        """Report the suppressed lines of every key whose events stopped; return the number of lines
        written.

        Without it (see `flush_all`) the last suppressed lines of a burst would never be reported.
        """
        if now is None:
            now = self._clock()
        written = 0
        pending = list(self._buckets.items())
        if self._other is not None:
            pending.append((OTHER_KEYS, self._other))
        for key, bucket in pending:
            if not bucket.suppressed:
                continue
            self._refill(bucket, now)
            if bucket.tokens < 1.0:
                continue
            bucket.tokens -= 1.0
            extra = {"suppressed": bucket.suppressed, "key": key, "like": bucket.template}
            bucket.suppressed = 0
            self._logger.log(bucket.level, "similar lines suppressed", extra=extra)
            written += 1
        return written

    def _bucket(self, key: str, now: float) -> _LineBucket:
        bucket = self._buckets.get(key)
        if bucket is not None:
            self._buckets.move_to_end(key)
            self._refill(bucket, now)
            return bucket
        if len(self._buckets) >= self._keys_max and not self._forget_oldest(now):
            if self._other is None:
                self._other = _LineBucket(float(self._burst), now)
            self._refill(self._other, now)
            return self._other
        bucket = self._buckets[key] = _LineBucket(float(self._burst), now)
        return bucket

    def _forget_oldest(self, now: float) -> bool:
        """Drop the least recently used key if its bucket is full again and it has nothing left to
        report."""
        key, bucket = next(iter(self._buckets.items()))
        self._refill(bucket, now)
        if bucket.suppressed or bucket.tokens < self._burst:
            return False
        del self._buckets[key]
        return True

    def _refill(self, bucket: _LineBucket, now: float) -> None:
        elapsed = now - bucket.refilled_at
        if elapsed > 0:
            bucket.tokens = min(float(self._burst), bucket.tokens + elapsed * self._per_second)
            bucket.refilled_at = now
