"""Identities of appends that shards may retry after a change of leader, to apply each once.

A shard numbers its appends to a group, and with each sends the number below which it retries
nothing: all those were answered. So only what may still be retried is remembered, and exactly: a
later number may have taken effect where an earlier one was lost. (Sessions of the Raft
dissertation, section 6.3, with the client's own window.)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

ORIGINS_MAX: Final = 16_384
"""Origins that a group remembers: a few for each run of a shard, and with `write_policy: local` one
for each outbox, that is for each queue on each shard that buffers appends to it. About 400 bytes
each, so 6 MB, and 21 bytes each in a snapshot. The least recently used in log order is forgotten
first. That harms no shard that has all its answers; an append retried after so many other origins
were used is stored again (at least once, never lost)."""
TRAVELLING_MAX: Final = 4_096
"""Most recently used origins that accompany a queue to another group, where each queue keeps its
own copy. Before machine version 4 a group remembers no more than these either."""
IDENTITY: Final = struct.Struct("<QQQ")
"""Origin, number, and the number below which nothing is retried: precedes the batch in its
command."""


@dataclass(slots=True, init=False)
class Identity:
    """Identity of an append of one run of a shard. ``floor``: below this number nothing is retried.
    ``term``: the leader's term it was sent to, 0 for any; a leader of another term refuses it, so
    that a late request does not overtake its retry. The term is in no command."""

    origin: int
    number: int
    floor: int
    term: int

    def __init__(self, origin: int, number: int, floor: int, term: int = 0) -> None:
        self.origin = origin
        self.number = number
        self.floor = floor
        self.term = term

    def numbered(self, number: int) -> Identity:
        """Return a copy with another number."""
        return Identity(self.origin, number, self.floor, self.term)


class Origins:
    """Numbers of appends that took effect and may be retried, by origin, the least recently used
    first.

    ``wide``: remember more than `TRAVELLING_MAX` origins, and count a retry as a use of its origin.
    """

    __slots__ = ("_windows", "wide")

    def __init__(self) -> None:
        self._windows: dict[int, dict[int, None]] = {}
        self.wide = False

    def __len__(self) -> int:
        return len(self._windows)

    def known(self, identity: Identity) -> bool:
        """Return whether this append has taken effect already."""
        window = self._windows.get(identity.origin)
        return window is not None and identity.number in window

    def seen(self, identity: Identity) -> bool:
        """Return whether this append has taken effect already, and count the retry as a use."""
        known = self.known(identity)
        if known and self.wide:
            self._windows[identity.origin] = self._windows.pop(identity.origin)
        return known

    def note(self, identity: Identity) -> None:
        """Record that this append has taken effect."""
        origin, number, floor = identity.origin, identity.number, identity.floor
        window = self._windows.pop(origin, None)
        if window is None:
            window = {}
        for each in [each for each in window if each < floor]:
            del window[each]
        window[number] = None
        self._windows[origin] = window
        self._forget()

    def _forget(self) -> None:
        most = ORIGINS_MAX if self.wide else TRAVELLING_MAX
        while len(self._windows) > most:
            del self._windows[next(iter(self._windows))]

    def add(self, others: Origins) -> None:
        """Add everything that another instance remembers."""
        for origin, window in others._windows.items():
            self._windows.setdefault(origin, {}).update(window)
        self._forget()

    def pack(self) -> list[Any]:
        """Return plain values in order of use, for msgpack."""
        return [[origin, list(window)] for origin, window in self._windows.items()]

    def pack_latest(self) -> list[Any]:
        """Return the same as `pack`, limited to those that accompany a queue."""
        packed = self.pack()
        return packed[max(0, len(packed) - TRAVELLING_MAX) :]

    @staticmethod
    def unpack(packed: list[Any]) -> Origins:
        """Decode the result of `pack`."""
        origins = Origins()
        origins._windows = {origin: dict.fromkeys(numbers) for origin, numbers in packed}
        return origins
