"""Whether the members of a group have become the same: rolling hashes compared at equal index.

Each member notes its machine's rolling hash, over every entry and every result so far, at the same indexes. Those that follow
tell the leader the newest; the leader compares with its own. Who has another hash than a majority of the members has been
damaged, or has behaved otherwise than the others: what it holds is not to be trusted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

EVERY: Final = 64
"""Entries between two indexes at which hashes are noted."""
NOTED_MAX: Final = 4096
"""Hashes kept: followers further behind than that many are compared when they have come nearer."""
RECENT_MAX: Final = 4096
"""Last entries whose hashes are kept each: a member is asked for the one that the leader has just applied, and may have
applied as many more by then, some seconds of the busiest group."""


class Hashes:
    """One member's hashes at the indexes that all members note."""

    __slots__ = ("_noted", "_recent", "newest")

    def __init__(self) -> None:
        self._noted: dict[int, int] = {}
        self._recent: list[tuple[int, int]] = [(0, 0)] * RECENT_MAX
        self.newest = 0
        """The last index noted; 0 for none."""

    def note(self, index: int, rolling: int) -> None:
        """The machine has applied an entry, and its hash is this now."""
        self._recent[index % RECENT_MAX] = (index, rolling)
        if index % EVERY == 0:
            self._noted[index] = rolling
            self.newest = index
            if len(self._noted) > NOTED_MAX:
                del self._noted[next(iter(self._noted))]

    def at(self, index: int) -> int | None:
        """The hash at an index; None when it was not noted, or is forgotten."""
        return self._noted.get(index)

    def recent(self, index: int) -> int | None:
        """The hash at an index of the last `RECENT_MAX`; None when it was not seen, or is forgotten."""
        at, rolling = self._recent[index % RECENT_MAX]
        return rolling if at == index else None


class Comparison:
    """A leader's view of all members' hashes."""

    __slots__ = ("_told", "compared", "mismatched")

    def __init__(self) -> None:
        self._told: dict[int, tuple[int, int]] = {}
        self.compared: dict[int, int] = {}
        """Up to which index each member was found equal."""
        self.mismatched: set[int] = set()
        """Members found to differ since they last were equal."""

    def told(self, member: int, index: int, rolling: int) -> None:
        """A member has told its hash at an index."""
        self._told[member] = (index, rolling)

    def deviating(self, own: int, hashes: Hashes, voters: Iterable[int]) -> list[int]:
        """Members whose hash is not that of a majority of the voters, this one (`own`) included.

        Without a majority that agrees nobody can say who is right: then every member that differs from this one is named.
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
        """What a member told is no longer so: it begins anew, or has left."""
        self._told.pop(member, None)
        self.mismatched.discard(member)
