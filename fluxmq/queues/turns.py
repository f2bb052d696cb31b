"""Turns of consumers with room: by priority, and round-robin among equals."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator

from fluxmq.queues.consumers import Consumer


class Turns:
    """The hungry consumers of a group. The first of the highest priority present is next."""

    __slots__ = ("_by_priority", "_ranks")

    def __init__(self) -> None:
        self._by_priority: dict[int, deque[Consumer]] = {}
        self._ranks: list[int] = []
        """Priorities present, negated, so that the first is the highest."""

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def __iter__(self) -> Iterator[Consumer]:
        """Yield all of them, in no particular order."""
        for line in self._by_priority.values():
            yield from line

    def __contains__(self, consumer: Consumer) -> bool:
        return consumer in self._by_priority.get(consumer.priority, ())

    def append(self, consumer: Consumer) -> None:
        """Queue the consumer behind its equals."""
        self._line(consumer.priority).append(consumer)

    def appendleft(self, consumer: Consumer) -> None:
        """Queue the consumer before its equals."""
        self._line(consumer.priority).appendleft(consumer)

    def popleft(self) -> Consumer:
        """Remove and return the next consumer."""
        priority = -self._ranks[0]
        line = self._by_priority[priority]
        consumer = line.popleft()
        if not line:
            self._drop(priority)
        return consumer

    def remove(self, consumer: Consumer) -> None:
        """Remove a waiting consumer."""
        line = self._by_priority[consumer.priority]
        line.remove(consumer)
        if not line:
            self._drop(consumer.priority)

    def rivals(self, consumer: Consumer) -> bool:
        """Return whether others of the consumer's priority wait."""
        return consumer.priority in self._by_priority

    def _line(self, priority: int) -> deque[Consumer]:
        line = self._by_priority.get(priority)
        if line is None:
            line = self._by_priority[priority] = deque()
            insort(self._ranks, -priority)
        return line

    def _drop(self, priority: int) -> None:
        del self._by_priority[priority]
        self._ranks.remove(-priority)
