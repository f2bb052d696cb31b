"""Connections whose first bytes are still awaited.

The table is bounded in total and per address. When it is full it makes room instead of rejecting
the new one: an attacker's thousands of silent connections then only push each other out, while a
real client, which speaks within a round trip, gets through. Those that have sent nothing go first,
the oldest first.

Decides and stores; closes nothing and reads no clock. Connections of one listener share one timeout
and arrive in order of time, so insertion order is expiry order and no timer wheel is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

PENDING_MAX = 10_000
"""Connections awaited in total: at 8 KiB each 80 MiB at worst, 5 MiB when they are silent."""

PENDING_PER_ADDRESS_MAX = 1_000
"""Connections awaited from one address; many devices may share one behind a router. Loopback is
exempt."""


@dataclass(slots=True, eq=False)
class PendingConnection:
    """One accepted connection without a decision.

    ``listener`` is an index into the acceptor's listeners; ``address`` is the key for per-address
    limits, None when exempt; ``accepted_at`` is in seconds, monotonic; ``data`` has the bytes read
    so far.
    """

    fd: int
    listener: int
    peer: str
    address: str | None
    accepted_at: float
    data: bytearray = field(default_factory=bytearray)


class PendingConnections:
    """The table, by descriptor. `busiest_address` and `full` name the connection to close to make
    room."""

    def __init__(self, capacity: int, per_address: int = PENDING_PER_ADDRESS_MAX) -> None:
        assert capacity > 0
        assert per_address > 0
        self.capacity = capacity
        self._per_address = per_address
        self._by_fd: dict[int, PendingConnection] = {}
        self._silent: dict[int, PendingConnection] = {}
        self._speaking: dict[int, PendingConnection] = {}
        self._by_listener: dict[int, dict[int, PendingConnection]] = {}
        self._by_address: dict[str, dict[int, PendingConnection]] = {}

    def __len__(self) -> int:
        return len(self._by_fd)

    def __iter__(self) -> Iterator[PendingConnection]:
        return iter(list(self._by_fd.values()))

    def get(self, fd: int) -> PendingConnection | None:
        """Return the connection with this descriptor."""
        return self._by_fd.get(fd)

    def busiest_address(self, address: str | None) -> PendingConnection | None:
        """Return the connection to close before admitting one more from ``address``, if its share
        is used up."""
        if address is None:
            return None
        others = self._by_address.get(address)
        if others is None or len(others) < self._per_address:
            return None
        return next(iter(others.values()))

    def full(self) -> PendingConnection | None:
        """Return the connection to close before admitting any other, if the table is full."""
        return self.oldest() if len(self._by_fd) >= self.capacity else None

    def oldest(self) -> PendingConnection | None:
        """Return the connection to close first: the oldest that has sent nothing, else the
        oldest."""
        for group in (self._silent, self._speaking):
            for pending in group.values():
                return pending
        return None

    def add(self, pending: PendingConnection) -> None:
        """Add a connection. The caller has made room."""
        assert pending.fd not in self._by_fd
        assert len(self._by_fd) < self.capacity
        self._by_fd[pending.fd] = pending
        (self._speaking if pending.data else self._silent)[pending.fd] = pending
        self._by_listener.setdefault(pending.listener, {})[pending.fd] = pending
        if pending.address is not None:
            self._by_address.setdefault(pending.address, {})[pending.fd] = pending

    def spoke(self, pending: PendingConnection) -> None:
        """Note that the connection has sent something."""
        if self._silent.pop(pending.fd, None) is not None:
            self._speaking[pending.fd] = pending

    def remove(self, pending: PendingConnection) -> None:
        """Forget a connection."""
        del self._by_fd[pending.fd]
        if self._silent.pop(pending.fd, None) is None:
            del self._speaking[pending.fd]
        del self._by_listener[pending.listener][pending.fd]
        if pending.address is not None:
            others = self._by_address[pending.address]
            del others[pending.fd]
            if not others:
                del self._by_address[pending.address]

    def expired(self, listener: int, accepted_before: float) -> list[PendingConnection]:
        """Return the connections of ``listener`` accepted before that time, oldest first."""
        found = []
        for pending in self._by_listener.get(listener, {}).values():
            if pending.accepted_at > accepted_before:
                break
            found.append(pending)
        return found
