"""When entries are committed: by a majority, or by the rule that a group is given."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest

from fluxmq.raft.commits import EVERY_VOTER, MAJORITY
from tests.unit.raft.cluster import Cluster


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ([7], 7),
        ([7, 5], 5),
        ([7, 5, 0], 5),
        ([7, 7, 0], 7),
        ([9, 7, 5, 0], 5),
        ([9, 8, 7, 0, 0], 7),
    ],
)
def test_a_majority_commits(held: list[int], expected: int) -> None:
    for order in permutations(held):
        assert MAJORITY.committed(range(1, len(held) + 1), order) == expected


@pytest.mark.parametrize(("members", "expected"), [(1, 9), (2, 7), (3, 5), (4, 0)])
def test_an_answer_waits_for_as_many_members_as_it_wants(members: int, expected: int) -> None:
    assert MAJORITY.acknowledged((5, 9, 7), members) == expected


@pytest.mark.parametrize(("held", "expected"), [([7], 7), ([7, 5], 5), ([9, 8, 7, 0, 8], 0)])
def test_every_voter_commits(held: list[int], expected: int) -> None:
    for order in permutations(held):
        assert EVERY_VOTER.committed(range(1, len(held) + 1), order) == expected


def test_an_answer_of_every_voters_rule_waits_for_as_many_members() -> None:
    assert [EVERY_VOTER.acknowledged((5, 9, 7), members) for members in (1, 3, 4)] == [9, 5, 0]


class InSync:
    """Commits what all of these have."""

    def __init__(self, members: set[int]) -> None:
        self.members = members

    def committed(self, voters: Sequence[int], held: Sequence[int]) -> int:
        """Return the last index that all of them have."""
        return min(
            index for voter, index in zip(voters, held, strict=True) if voter in self.members
        )

    def acknowledged(self, held: Sequence[int], members: int) -> int:
        """Return the last index that so many of the voters have."""
        return MAJORITY.acknowledged(held, members)


def test_a_group_commits_by_the_rule_that_it_is_given() -> None:
    rule = InSync({1, 2, 3})
    cluster = Cluster(3, commit_rule=rule)
    cluster.elect(1)
    cluster.settle()
    before = cluster[1].node.status().commit
    cluster.cut(3)
    cluster.propose(1, b"a")
    cluster.settle()
    assert cluster[1].node.status().commit == before, "a majority has it, and that is not enough"
    rule.members.discard(3)
    cluster.propose(1, b"b")
    cluster.settle()
    assert cluster[1].commands == [b"a", b"b"]
    assert cluster[2].commands == [b"a", b"b"]
