"""Divergence checks between the members of a group: rolling hashes compared at equal index.

Each member records its machine's rolling hash, over every entry and every result so far, at the
same indexes. Followers report the newest to the leader, which compares it with its own. A member
whose hash differs from that of a majority has damaged state or applied an entry differently: its
state cannot be trusted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

EVERY: Final = 64
"""Entries between two indexes at which hashes are recorded."""
NOTED_MAX: Final = 4096
"""Hashes kept: followers that lag by more are compared once they have caught up that far."""
RECENT_MAX: Final = 4096
"""Last entries of which every hash is kept: a member is asked for the one that the leader has just
applied, and may have applied as many more by then, some seconds of the busiest group."""


class Hashes:
    """One member's hashes at the indexes that all members record."""

    __slots__ = ("_noted", "_recent", "newest")

    def __init__(self) -> None:
        self._noted: dict[int, int] = {}
        self._recent: list[tuple[int, int]] = [(0, 0)] * RECENT_MAX
        self.newest = 0
        """The last index recorded; 0 for none."""

    def note(self, index: int, rolling: int) -> None:
        """Record the machine's hash after an entry was applied."""
        self._recent[index % RECENT_MAX] = (index, rolling)
        if index % EVERY == 0:
            self._noted[index] = rolling
            self.newest = index
            if len(self._noted) > NOTED_MAX:
                del self._noted[next(iter(self._noted))]

    def at(self, index: int) -> int | None:
        """Return the hash at an index; None when it was not recorded, or is forgotten."""
        return self._noted.get(index)

    def recent(self, index: int) -> int | None:
        """Return the hash at one of the last `RECENT_MAX` indexes; None if not seen, or
        forgotten."""
        at, rolling = self._recent[index % RECENT_MAX]
        return rolling if at == index else None


class Comparison:
    """A leader's view of all members' hashes."""

    __slots__ = ("_told", "compared", "mismatched")

    def __init__(self) -> None:
        self._told: dict[int, tuple[int, int]] = {}
        self.compared: dict[int, int] = {}
        """Index up to which each member was found equal."""
        self.mismatched: set[int] = set()
        """Members found to differ since they were last equal."""

    def told(self, member: int, index: int, rolling: int) -> None:
        """Store the hash that a member reports at an index."""
        self._told[member] = (index, rolling)

    def deviating(self, own: int, hashes: Hashes, voters: Iterable[int]) -> list[int]:
        """Return members whose hash differs from that of a majority of the voters, `own` included.

        Without an agreeing majority it is unknown which is right: every member that differs
        from this one is returned.
        """
        found: list[int] = []
        members = set(voters) | {own}
        for member, (index, rolling) in self._told.items():
            mine = hashes.at(index)
            if mine is None:
                continue
            if mine == rolling:
                self.compared[member] = max(index, self.compared.get(member, 0))
                self.mismatched.discard(member)
                continue
            against = [
                other
                for other, (at, hash_) in self._told.items()
                if other in members and at == index and hash_ == rolling
            ]
            found.append(own if len(against) > len(members) // 2 else member)
        self.mismatched.update(found)
        return sorted(set(found))

    def forget(self, member: int) -> None:
        """Forget a member's report: it starts over, or has left."""
        self._told.pop(member, None)
        self.mismatched.discard(member)
