"""Appends that a shard asked for again after leadership had moved: which of them had taken effect.

A shard numbers its appends to a group, and says with each below which number nothing is asked again: everything there has its
answer. So only what may still come again is remembered, and that exactly: a later number may have taken effect where an
earlier one was lost. (Sessions of the Raft dissertation, section 6.3, with the client's own window.)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

ORIGINS_MAX: Final = 16_384
"""Origins that a group remembers: a few for each life of a shard, and with `write_policy: local` one for each outbox, that is for
each queue on each shard that keeps appends to it. About 400 bytes each, so 6 MB, and 21 bytes each in a snapshot. Forgotten
first is the one unused for longest in the order of the log. That harms nobody who has an answer to everything; an append
that is asked for again after so many other origins were used is stored again (at least once, never lost)."""
TRAVELLING_MAX: Final = 4_096
"""Origins, the ones used last, that go along with a queue to another group, where each queue keeps its own copy. It is also what
a group remembers until its machine works as version 4."""
IDENTITY: Final = struct.Struct("<QQQ")
"""Origin, number, and the number below which nothing is asked again: in front of a batch in its command."""


@dataclass(slots=True, init=False)
class Identity:
    """Which append of which shard's life it is. ``floor``: below this number nothing is asked again. ``term``: of the leadership
    that it was asked of, 0 for whichever; another one does not take it, so that what is late does not overtake what is
    asked again. It is in no command."""

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
        """The same with another number."""
        return Identity(self.origin, number, self.floor, self.term)


class Origins:
    """Numbers of appends that took effect and may be asked for again, by origin, the one unused for longest first.

    ``wide``: more than `TRAVELLING_MAX` origins are remembered, and a repetition counts as a use of its origin.
    """

    __slots__ = ("_windows", "wide")

    def __init__(self) -> None:
        self._windows: dict[int, dict[int, None]] = {}
        self.wide = False

    def __len__(self) -> int:
        return len(self._windows)

    def known(self, identity: Identity) -> bool:
        """Whether this append has taken effect already."""
        window = self._windows.get(identity.origin)
        return window is not None and identity.number in window

    def seen(self, identity: Identity) -> bool:
        """Whether this append has taken effect already, and is asked for again."""
        known = self.known(identity)
        if known and self.wide:
            self._windows[identity.origin] = self._windows.pop(identity.origin)
        return known

    def note(self, identity: Identity) -> None:
        """This append has taken effect."""
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
        """Remember what others do as well."""
        for origin, window in others._windows.items():
            self._windows.setdefault(origin, {}).update(window)
        self._forget()

    def pack(self) -> list[Any]:
        """In order of use, for msgpack."""
        return [[origin, list(window)] for origin, window in self._windows.items()]

    def pack_latest(self) -> list[Any]:
        """As `pack`, without those that do not go along with a queue."""
        packed = self.pack()
        return packed[max(0, len(packed) - TRAVELLING_MAX) :]

    @staticmethod
    def unpack(packed: list[Any]) -> Origins:
        """The inverse of `pack`."""
        origins = Origins()
        origins._windows = {origin: dict.fromkeys(numbers) for origin, numbers in packed}
        return origins
