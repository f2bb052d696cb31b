"""Verdicts on the messages of a batch for a group at one moment: give, pass over, wait, expire.

Decided for a whole batch where possible: one key, no expiry or delay of its own, younger than the
queue's time to live. Only otherwise is each message examined.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fluxmq.model.batch_format import DELAY, EXPIRY, Batch
from fluxmq.queues.filters import Filter

GIVE: Final = -3
PASS: Final = -2
EXPIRED: Final = -1
"""Verdicts are negative; other values are the time in µs until which the message waits."""

AT_ONCE: Final = 1
"""Microseconds: a message with a shorter life expires unless a consumer takes it at once, as AMQP's
expiration of 0 means."""

BatchSlice = tuple[int, int, int]
"""First and last index in the batch, and their verdict."""


def expires_at(batch: Batch, index: int, ttl: int) -> int:
    """Return when a message expires: the sooner of its own time and the queue's; 0 for never."""
    own = batch.expiry(index)
    queue = batch.time(index) + ttl if ttl else 0
    if own and queue:
        return min(own, queue)
    return own or queue


def may_expire(batch: Batch, ttl: int, now: int) -> bool:
    """Return whether some message of the batch may have expired by `now`."""
    return bool(batch.flags & EXPIRY) or bool(ttl and batch.base_time + ttl <= now)


def slices(
    batch: Batch, index: int, now: int, ttl: int, wanted: Filter | None, taken: bool = False
) -> Iterator[BatchSlice]:
    """Yield the batch from `index` on in slices of one verdict, in order and without gaps.

    `taken`: a consumer is ready to take them, which keeps messages with no time to live from
    expiring.
    """
    last = batch.count - 1
    if wanted is not None and batch.uniform_key:
        if not wanted(batch.key(0)):
            yield index, last, PASS
            return
        wanted = None
    expiring = may_expire(batch, ttl, now)
    if not expiring and wanted is None and not batch.flags & DELAY:
        yield index, last, GIVE
        return
    alike = not batch.flags & (EXPIRY | DELAY) and wanted is None
    if alike and ttl and batch.last_time + ttl <= now:
        if taken and ttl <= AT_ONCE:
            yield index, last, GIVE
            return
        yield index, last, EXPIRED
        return
    first = index
    before = verdict(batch, index, now, ttl, wanted, taken)
    for at in range(index + 1, last + 1):
        each = verdict(batch, at, now, ttl, wanted, taken)
        if each != before:
            yield first, at - 1, before
            first, before = at, each
    yield first, last, before


def verdict(
    batch: Batch, index: int, now: int, ttl: int, wanted: Filter | None, taken: bool = False
) -> int:
    """Return the verdict on one message that was never given."""
    if wanted is not None and not wanted(batch.key(index)):
        return PASS
    expiry = expires_at(batch, index, ttl)
    if expiry and expiry <= now and not (taken and expiry <= batch.time(index) + AT_ONCE):
        return EXPIRED
    delay = batch.delay(index)
    return delay if delay > now else GIVE


def expired(batch: Batch, first: int, last: int, now: int, ttl: int) -> Iterator[BatchSlice]:
    """Yield slices of messages given before or delayed, indexes `first` to `last`: `EXPIRED` or
    `GIVE`."""
    if not may_expire(batch, ttl, now):
        yield first, last, GIVE
        return
    start = first
    before = _is_expired(batch, first, now, ttl)
    for at in range(first + 1, last + 1):
        each = _is_expired(batch, at, now, ttl)
        if each != before:
            yield start, at - 1, EXPIRED if before else GIVE
            start, before = at, each
    yield start, last, EXPIRED if before else GIVE


def _is_expired(batch: Batch, index: int, now: int, ttl: int) -> bool:
    expiry = expires_at(batch, index, ttl)
    return bool(expiry and expiry <= now)
