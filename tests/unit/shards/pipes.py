"""What shards in one process have between them: a clock that moves when told, and pipes that let records through when told."""

from __future__ import annotations

from collections import deque

RECORD_MAX = 32768


class Clock:
    """Seconds that pass when told. `wall` is the time of day in nanoseconds, which need not agree."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wall = 1_700_000_000_000_000_000

    def __call__(self) -> float:
        return self.now

    def wall_seconds(self) -> float:
        """The time of day in seconds, which passes as the clock does."""
        return 1_700_000_000.0 + self.now

    def wall_ns(self) -> int:
        """The time of day; no two readings are equal."""
        self.wall += 1
        return self.wall


class Pipe:
    """Records from one shard to another. `allowed` None: all may pass, else how many still may."""

    def __init__(self) -> None:
        self.records: deque[bytes] = deque()
        self.allowed: int | None = None
        self.room: int | None = None
        """Bytes it takes before it is full, None for no end."""

    def take(self) -> bytes | None:
        """The next record that may pass."""
        if not self.records or self.allowed == 0:
            return None
        if self.allowed is not None:
            self.allowed -= 1
        return self.records.popleft()


class MemoryTransport:
    """Both directions between two shards of one process."""

    def __init__(self, outgoing: Pipe, incoming: Pipe) -> None:
        self.record_max = RECORD_MAX
        self.outgoing = outgoing
        self.incoming = incoming

    def push(self, head: bytes, body: bytes | bytearray | None, start: int, end: int) -> bool:
        """Send one record."""
        record = head if body is None else head + bytes(memoryview(body)[start:end])
        assert 0 < len(record) <= self.record_max
        pipe = self.outgoing
        if pipe.room is not None and self.used() + len(record) > pipe.room:
            return False
        pipe.records.append(record)
        return True

    def pop(self) -> bytes | None:
        """The next record."""
        return self.incoming.take()

    def reset(self) -> None:
        """Forget what came before."""
        self.incoming.records.clear()

    def used(self) -> int:
        """Bytes under way."""
        return sum(map(len, self.outgoing.records))
