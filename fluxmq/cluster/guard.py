"""Shared state of one process's connections to other nodes: unread bytes, and refusals.

Each connection has its own limits, and there may be many. So the bytes that wait to be written are
counted together; above the limit connections are ended, first untrusted ones, and of those the one
that holds most.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any, Final, Protocol

from fluxmq.cluster.channels import PROBLEM_CHARS_MAX
from fluxmq.logs import RateLimited, get_logger

UNREAD_TOTAL_MAX: Final = 512 << 20
"""Bytes written but not read by the other sides, over all connections of a process: what nine nodes
of 64 shards hold that have just stopped reading, one message for each stream of two purposes.
"""

CONNECTION: Final = "connection"
HANDSHAKE: Final = "handshake"
STREAM: Final = "stream"
CALL: Final = "call"
PROTOCOL: Final = "protocol"
UNREAD: Final = "unread"
REASONS: Final = (CONNECTION, HANDSHAKE, STREAM, CALL, PROTOCOL, UNREAD)
"""Refused things: a connection at the door, its TLS handshake, a stream, a call; and reasons to end
an accepted connection.
"""

ENDED: Final = "inter-node connection closed"
OVERFULL: Final = f"inter-node connections hold more than {UNREAD_TOTAL_MAX >> 20} MiB of unread data, and this one the most"

_log = get_logger("fluxmq.cluster")


class Holder(Protocol):
    """A connection. ``trusted``: to or from a known node."""

    trusted: bool
    peer: str

    def unread(self) -> int:
        """Return the bytes that wait to be written now."""

    def overfull(self, why: str) -> None:
        """End at once: the process holds too much."""


class Guard:
    """Counts for all connections of a process. ``refused``: by reason, since the start;
    ``unread_bytes``: as far as reported. ``looked``: when one of them last looked whether its other
    side is there, monotonic seconds.
    """

    def __init__(self, unread_max: int = UNREAD_TOTAL_MAX) -> None:
        """``unread_max``: bytes that all connections together may hold."""
        self._unread_max = unread_max
        # Target after ending connections, so that this does not recur at once.
        self._unread_kept = unread_max // 8 * 7
        self.refused: Counter[str] = Counter()
        self.unread_bytes = 0
        self.looked = time.monotonic()
        self._held: dict[Holder, int] = {}
        self._said = RateLimited(_log, per_second=0.2, burst=5)

    def refuse(
        self, reason: str, key: str, message: str, level: int = logging.WARNING, **details: Any
    ) -> None:
        """Count a refusal, and log some. Refusals with the same ``key`` share a rate limit."""
        self.refused[reason] += 1
        if "problem" in details:
            details["problem"] = details["problem"][:PROBLEM_CHARS_MAX]
        self._said.event(level, f"{reason} {key}", message, **details)

    def holds(self, holder: Holder, length: int) -> None:
        """Note that a connection has ``length`` bytes that wait to be written."""
        self._set(holder, length)
        if self.unread_bytes > self._unread_max:
            self._relieve()

    def _set(self, holder: Holder, length: int) -> None:
        self.unread_bytes += length - self._held.pop(holder, 0)
        if length:
            self._held[holder] = length

    def _relieve(self) -> None:
        """Measure the bytes really held, and end connections until they are few enough."""
        for holder in list(self._held):
            self._set(holder, holder.unread())
        if self.unread_bytes <= self._unread_max:
            return
        worst = sorted(self._held, key=self._worth)
        for holder in worst:
            if self.unread_bytes <= self._unread_kept:
                return
            self._set(holder, 0)
            self.refuse(UNREAD, "", ENDED, peer=holder.peer, problem=OVERFULL)
            holder.overfull(OVERFULL)

    def _worth(self, holder: Holder) -> tuple[bool, int]:
        """Return a sort key: connections to keep longest come last."""
        return (holder.trusted, -self._held[holder])
