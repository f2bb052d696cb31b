"""Duplicate detection: the sequence numbers that each producer has used in one queue.

A window is bounded: sequences and ranges per producer, producers per queue. A repeat of a forgotten
sequence is stored again, never refused: at least once comes first.
"""

from __future__ import annotations

import struct
from typing import Any

from fluxmq.model.batch_format import Batch
from fluxmq.queues.interval_set import IntervalSet
from fluxmq.queues.limits import PRODUCER_RANGES_MAX, PRODUCERS_MAX, UNLIMITED

Identity = tuple[int, int]
"""Producer and sequence of a message."""


def identities(batch: Batch) -> list[Identity]:
    """Return producer and sequence of every message of a batch that has the column."""
    count = batch.count
    numbers = struct.unpack_from(f"<{count}Q{count}q", batch.data, batch.producer_at)
    return list(zip(numbers[:count], numbers[count:], strict=True))


class Producers:
    """Windows by producer, the least recently used first."""

    __slots__ = ("_windows",)

    def __init__(self) -> None:
        self._windows: dict[int, IntervalSet] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def fresh(self, messages: list[Identity]) -> list[int]:
        """Return indexes of messages not seen before; a message without a producer is always new.

        Of equal ones within `messages` only the first counts as new.
        """
        found = []
        seen: dict[Identity, None] = {}
        for index, (producer, sequence) in enumerate(messages):
            if producer:
                window = self._windows.get(producer)
                known = window is not None and bool(window.within(sequence, sequence))
                if known or (producer, sequence) in seen:
                    continue
                seen[(producer, sequence)] = None
            found.append(index)
        return found

    def remember(
        self,
        messages: list[Identity],
        window_max: int = UNLIMITED,
        producers_max: int = PRODUCERS_MAX,
    ) -> None:
        """Record stored messages. Of each producer at most the `window_max` highest sequences are
        kept."""
        windows = self._windows
        for producer, sequence in messages:
            if not producer:
                continue
            window = windows.pop(producer, None) or IntervalSet()
            window.add(sequence, sequence)
            if len(window) > PRODUCER_RANGES_MAX:
                window.drop_lowest()
            while window.count > window_max:
                first, last = window.firsts[0], window.lasts[0]
                window.remove(first, min(last, first + window.count - window_max - 1))
            windows[producer] = window
            while len(windows) > producers_max:
                del windows[next(iter(windows))]

    def pack(self) -> list[Any]:
        """Return plain values in order of use, for msgpack."""
        return [[producer, window.pack()] for producer, window in self._windows.items()]

    @staticmethod
    def unpack(packed: list[Any]) -> Producers:
        """Decode the result of `pack`."""
        producers = Producers()
        producers._windows = {producer: IntervalSet.unpack(numbers) for producer, numbers in packed}
        return producers
