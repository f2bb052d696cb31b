"""Rules by which a leader commits entries, and conditions on answering their proposers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol


class CommitRule(Protocol):
    """Decides from what the voters hold how far a log is committed, and who may be answered.

    ``held``: for each voter, the last index that is proven to be on its disk. Pure: a rule reads
    nothing else but its own values.

    A new leader must have everything that counts as committed. Elections see to that as long as a
    majority has it; a rule that is content with less needs another way to find its leaders.
    """

    def committed(self, voters: Sequence[int], held: Sequence[int]) -> int:
        """Return the last index that is committed; ``held`` has the order of ``voters``, of which
        there is at least one. The leader asks whenever one of them advances."""

    def acknowledged(self, held: Sequence[int], members: int) -> int:
        """Return the last index that so many members have (`min_in_sync_replicas`), 0 if there are
        fewer; what is also committed may be answered."""


class Majority:
    """An entry is committed when more than half of the voters have it (paper section 5.3)."""

    def committed(self, voters: Sequence[int], held: Sequence[int]) -> int:
        """Return the last index that a majority has."""
        return sorted(held)[(len(held) - 1) // 2]

    def acknowledged(self, held: Sequence[int], members: int) -> int:
        """Return the last index that so many of the voters have."""
        return sorted(held)[-members] if len(held) >= members else 0


MAJORITY: Final = Majority()


class EveryVoter:
    """An entry is committed when every voter has it: one that is lost holds all commits up until
    the leader has made it a learner. For *appointed groups* (`Config.appointed`).

    Nobody is elected in those. A record outside the group names the leader of each term, and some
    members as *synchronised*; it is changed by comparison with what it was. Only synchronised
    members are appointed. The leader has a voter taken out of the record before it makes it a
    learner, and a voter entered only after the change that made it one is committed; the record
    refuses both once it names the leader of another term. So at any time all synchronised members
    are voters of the record's leader and have everything that is committed, by this leader or by
    one before it that does not know yet that it was replaced; the next leader is one of them. No
    two majorities have to meet for that; ``memberships`` and ``leader`` say what follows. A leader that
    its host has go on in a partition, without the record's agreement, commits what may be lost: such a
    copy is marked and takes no part in the group until the record has decided.
    """

    def committed(self, voters: Sequence[int], held: Sequence[int]) -> int:
        """Return the last index that all voters have."""
        return min(held)

    def acknowledged(self, held: Sequence[int], members: int) -> int:
        """Return the last index that so many of the voters have."""
        return MAJORITY.acknowledged(held, members)


EVERY_VOTER: Final = EveryVoter()


class Wish(NamedTuple):
    """Condition of an answer. ``early``: this node has the entry on disk; ``members``: beyond the
    commit, this many members have it on disk, 0 for as many as the commit needs."""

    early: bool = False
    members: int = 0


AT_COMMIT: Final = Wish()
