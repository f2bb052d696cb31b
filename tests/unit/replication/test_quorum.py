"""Whether a group could go on without one of its nodes."""

import pytest

from fluxmq.ipc.clusters import MemberRow, RaftRow
from fluxmq.replication.group_commands import LAG_ENTRIES_MAX, quorum_problem


def member(node, *, leads=False, lag=0, contact=100, connected=True, kind="voter", doubt=""):
    return MemberRow(
        node, 1, kind, leads, "a", 5, lag, "replicate", connected, -1 if leads else contact, doubt
    )


def group(*members):
    return RaftRow("g", "a", 0, "leader", "", 1, "a", 5, 5, 5, 0, 1, 0.0, members)


LED = member("a", leads=True)


@pytest.mark.parametrize("stopping", ["a", "b"])
def test_two_of_three_are_enough(stopping):
    row = group(LED, member("b"), member("c"))
    assert quorum_problem(row, stopping, 1.0) == ""


@pytest.mark.parametrize(
    ("third", "why"),
    [
        (member("c", contact=1001), "c is not in contact"),
        (member("c", contact=-1), "c is not in contact"),
        (member("c", connected=False), "c is not in contact"),
        (member("c", lag=LAG_ENTRIES_MAX + 1), f"c is {LAG_ENTRIES_MAX + 1} entries behind"),
        (member("c", doubt="has lost its data directory"), "c has lost its data directory"),
    ],
)
def test_a_voter_that_could_not_go_on_does_not_count(third, why):
    row = group(LED, member("b"), third)
    expected = f"1 of 3 voters would be left, and 2 are needed: {why}"
    assert quorum_problem(row, "b", 1.0) == expected
    assert quorum_problem(row, "c", 1.0) == ""  # it is missed by nobody


def test_learners_do_not_count():
    row = group(LED, member("b"), member("c", kind="learner"))
    assert quorum_problem(row, "b", 1.0) == "1 of 2 voters would be left, and 2 are needed"
    assert quorum_problem(row, "c", 1.0) == ""
