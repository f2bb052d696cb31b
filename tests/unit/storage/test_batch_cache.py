"""Batches in memory: bounded, and always the unbroken tail of each log."""

from __future__ import annotations

from random import Random

from fluxmq.model.batch_format import Batch
from fluxmq.storage.batch_cache import ENTRY_BYTES, BatchCache, ReadWindow, RecentBatches
from tests.unit.storage.logs import batch, batches


def test_the_oldest_leave_whichever_log_they_are_of() -> None:
    cost = batch(0, b"x" * 600).length + ENTRY_BYTES
    cache = BatchCache(recent_bytes=4 * cost)
    one, two = cache.recent(), cache.recent()
    for each in batches(3):
        cache.add(one, each)
    for each in batches(3):
        cache.add(two, each)
    assert (len(one), len(two)) == (1, 3)
    assert cache.recent_bytes == 4 * cost
    assert one.find(1) is None
    assert one.find(2) is not None
    assert one.find(3) is None
    assert [two.find(offset) is None for offset in range(4)] == [False, False, False, True]


def test_what_was_given_up_does_not_count() -> None:
    """Against a plain model, with trims and appends of several logs in any order."""
    random = Random(3)
    cache = BatchCache(recent_bytes=40_000)
    logs = [cache.recent() for _ in range(5)]
    ends = [0] * 5
    for _ in range(6_000):
        number = random.randrange(5)
        if random.random() < 0.5:
            cache.add(logs[number], batch(ends[number], b"x" * random.randrange(500)))
            ends[number] += 1
        else:
            cache.drop_below(logs[number], ends[number] - random.randrange(3))
        assert cache.recent_bytes <= 40_000
    held = [
        found
        for log, end in zip(logs, ends, strict=True)
        for offset in range(end)
        if (found := log.find(offset)) is not None
    ]
    assert len(held) == sum(map(len, logs))
    assert cache.recent_bytes == sum(each.length + ENTRY_BYTES for each in held)
    assert len(cache._order) < 5_000


def test_a_batch_larger_than_the_cache_is_not_kept() -> None:
    cache = BatchCache(recent_bytes=100)
    recent = cache.recent()
    cache.add(recent, batch(0, bytes(1000)))
    assert (len(recent), cache.recent_bytes) == (0, 0)


def test_stretches_leave_when_unused() -> None:
    cache = BatchCache(window_bytes=250)
    one: list[ReadWindow] = []
    two: list[ReadWindow] = []
    first, second, third = (ReadWindow(base, 0, bytes(100), 0) for base in (1, 2, 3))
    cache.add_window(one, first)
    cache.add_window(two, second)
    cache.used(first)
    cache.add_window(two, third)
    assert (one, two) == ([first], [third])
    cache.drop_windows(two, base=9)
    assert two == [third]
    cache.drop_windows(two, base=3)
    cache.drop_windows(one)
    assert (one, two, cache.window_bytes) == ([], [], 0)


def test_a_log_may_have_a_limit_of_its_own() -> None:
    """One log with a number of messages, one with a number of bytes, one without."""
    random = Random(5)
    cache = BatchCache(recent_bytes=60_000)
    logs = [cache.recent() for _ in range(3)]
    cache.bound(logs[0], 4, None)
    cache.bound(logs[1], None, 2_000)
    ends = [0] * 3
    most = [0, 0, 0]
    for step in range(6_000):
        number = random.randrange(3)
        if random.random() < 0.8:
            cache.add(logs[number], batch(ends[number], b"x" * random.randrange(500)))
            ends[number] += 1
        else:
            cache.drop_below(logs[number], ends[number] - random.randrange(3))
        most = [max(pair) for pair in zip(most, map(len, logs), strict=True)]
        if step % 100:
            continue
        held = [_held(log, end) for log, end in zip(logs, ends, strict=True)]
        assert sum(each.length for each in held[1]) <= 2_000
        cost = sum(each.length + ENTRY_BYTES for some in held for each in some)
        assert cache.recent_bytes == cost
    assert most[0] == 4
    assert 4 < most[1] < most[2]
    assert len(cache._order) < 5_000


def _held(log: RecentBatches, end: int) -> list[Batch]:
    found = (log.find(offset) for offset in range(end))
    return [each for each in found if each is not None]
