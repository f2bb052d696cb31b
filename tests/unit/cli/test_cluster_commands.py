"""What fluxmqctl shows of replicated groups and their members."""

import argparse

import pytest

from fluxmq.cli.cluster_commands import audit, audit_lines, member_lines, raft_lines
from fluxmq.cli.queue_commands import group_lines
from fluxmq.ipc.clusters import (
    DIFFERS,
    EQUAL,
    NOT_COMPARED,
    AuditListing,
    AuditRequest,
    AuditRow,
    ForgetNode,
    GroupOutcome,
    GroupOutcomes,
    HashReply,
    HashRequest,
    MemberChange,
    MemberRow,
    RaftListing,
    RaftRequest,
    RaftRow,
    Transfer,
)
from fluxmq.ipc.messages import MessageError
from fluxmq.ipc.placements import GroupListing, GroupRow
from fluxmq.ipc.polling_client import ControlCaller

LEADER = MemberRow("n1", 1, "voter", True, "n1", 1200, 0, "", True, -1, "")
MEMBERS = (
    LEADER,
    MemberRow("n2", 2, "voter", False, "n1", 1000, 200, "replicate", True, 12, ""),
    MemberRow("n3", 3, "learner", False, "n1", 0, 1200, "snapshot", True, 30, ""),
    MemberRow(
        "n4", 4, "voter", False, "n1", -1, -1, "probe", False, 9000, "has lost its data directory"
    ),
)
ROW = RaftRow(
    "hot", "n2", 0, "follower", "", 7, "n1", 1200, 1190, 1201, 800, 3, 0.00042, MEMBERS
)  # fmt: skip


def test_a_group_as_this_node_has_it():
    lines = raft_lines(RaftListing((ROW,), ("shard-1",)), colour=False)
    assert lines[1].split() == [
        "hot", "follower", "7", "n1", "n1,n2,n4", "n3", "1,200", "1,190", "1,201", "800", "3",
        "0.42", "ms",
    ]  # fmt: skip
    assert lines[-2:] == [
        "hot: n4 has lost its data directory",
        "shard-1: did not answer in time",
    ]
    assert raft_lines(RaftListing(()), colour=False) == ["there are no replicated groups here"]


def test_members_as_the_leader_has_them():
    lines = member_lines(RaftListing((ROW,)), colour=False)
    shown = [line.split() for line in lines[1:5]]
    assert shown == [
        ["hot", "n1", "voter", "leader", "1,200", "0", "-", "n1"],
        ["hot", "n2", "voter", "replicate", "1,000", "200", "12", "ms", "n1"],
        ["hot", "n3", "learner", "snapshot", "0", "1,200", "30", "ms", "n1"],
        ["hot", "n4", "voter", "not", "trusted", "-", "-", "9000", "ms", "n1"],
    ]


def test_groups_show_who_leads_only_where_somebody_else_may():
    alone = GroupRow("local-1", 0, 4, False, "leader", "", "fsync", 0, 0, 0, 0, 0, 0, 0, 0.0)
    shared = GroupRow("hot", 0, 4, False, "follower", "", "fsync", 0, 0, 0, 9, 0, 0, 0, 0.0, "n1")
    assert "LEADER" not in group_lines(GroupListing((alone,)), colour=False)[0]
    lines = group_lines(GroupListing((alone, shared)), colour=False)
    assert lines[1].split()[-2:] == ["-", "0"]
    assert lines[2].split()[-2:] == ["n1", "9"]
    assert "leader" not in alone.to_body()
    assert GroupRow.from_body(shared.to_body()) == shared
    assert GroupRow.from_body(alone.to_body()) == alone


SOUND = AuditRow("n1", "voter", 1200, "00000000000000aa", EQUAL)
AUDITED = AuditListing(
    "hot",
    (
        SOUND,
        AuditRow("n2", "voter", 1200, "00000000000000bb", DIFFERS),
        AuditRow("n3", "learner", 1200, "", NOT_COMPARED, "it is not connected"),
    ),
)


def test_copies_side_by_side():
    lines = audit_lines(AUDITED, colour=False)
    assert [line.split() for line in lines[1:4]] == [
        ["hot", "n1", "voter", "1,200", "00000000000000aa", "equal"],
        ["hot", "n2", "voter", "1,200", "00000000000000bb", "differs"],
        ["hot", "n3", "learner", "1,200", "-", "not", "compared"],
    ]
    assert lines[-1] == "n3 was not compared: it is not connected"


@pytest.mark.parametrize("json", [False, True])
def test_an_audit_that_finds_a_difference_fails(capsys, json):
    class Caller(ControlCaller):
        def __init__(self, listing):
            """Connect to nobody: the answer is known."""
            self.listing = listing

        def call(self, kind, body):
            assert (kind, body) == ("audit", {"group": "hot"})
            return self.listing.to_body()

    options = argparse.Namespace(group="hot", json=json)
    sound = AuditListing("hot", (SOUND,))
    assert "equal" in "".join(audit(Caller(sound), options, False))
    with pytest.raises(SystemExit) as ended:
        audit(Caller(AUDITED), options, False)
    assert ended.value.code == 1
    assert "differs" in capsys.readouterr().out


def test_messages_come_back_as_they_were():
    for message in (
        RaftListing((ROW,), ("shard-1",)),
        RaftRequest("hot", everywhere=True),
        Transfer("hot", "n1"),
        MemberChange("hot", "n1", "add"),
        ForgetNode("n1", force=True),
        AuditRequest("hot"),
        HashRequest("hot", 7, passed=True),
        HashReply("0123456789abcdef"),
        AUDITED,
        GroupOutcomes((GroupOutcome("hot", "n1", "why"),)),
    ):
        assert type(message).from_body(message.to_body()) == message
    with pytest.raises(MessageError, match="not one of add, remove"):
        MemberChange.from_body({"group": "g", "node": "n", "change": "mix"})
    with pytest.raises(MessageError, match="members"):
        RaftRow.from_body({**ROW.to_body(), "members": 1})
