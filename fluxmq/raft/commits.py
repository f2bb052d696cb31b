"""Rules by which entries count as committed, and conditions on answering who proposed them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol


class CommitRule(Protocol):
    """Decides how far a log is committed. Pure: what it depends on is given, or set by its owner."""

    def committed(self, voters: Sequence[int], held: Sequence[int]) -> int:
        """Return the last index that counts as committed.

        ``held``: for each of the voters, in the same order, the last index that is proven to be on
        its disk. At least one voter. The leader asks again whenever one of them has advanced.
        """


class Majority:
    """An entry is committed when more than half of the voters have it (paper section 5.3)."""

    def committed(self, voters: Sequence[int], held: Sequence[int]) -> int:
        """Return the last index that a majority has."""
        return sorted(held)[(len(held) - 1) // 2]


MAJORITY: Final = Majority()


class Wish(NamedTuple):
    """Condition of an answer. ``early``: this node has the entry on disk; ``members``: beyond the
    commit, this many members have it on disk, 0 for as many as the commit needs."""

    early: bool = False
    members: int = 0


AT_COMMIT: Final = Wish()


def held_by(members: int, held: Sequence[int]) -> int:
    """Return the last index that this many of the voters have on disk; 0 if there are fewer."""
    return sorted(held)[-members] if len(held) >= members else 0
