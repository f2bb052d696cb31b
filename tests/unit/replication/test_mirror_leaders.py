"""The leader that the record of a mirrored group names: what it asks the control process for, and when it is none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import Body
from fluxmq.ipc.mirrored_groups import (
    LOST,
    MIRROR_CHANGE,
    MIRROR_ENDED,
    MIRROR_LEAD,
    GroupMirrors,
    MirrorChange,
    MirrorEnded,
    MirrorEpoch,
    MirrorLead,
)
from fluxmq.raft.types import (
    ChangeVerb,
    Membership,
    MembershipChange,
    PeerStatus,
    RaftStatus,
    ReplicationMode,
    Role,
)
from fluxmq.replication.ended_leaders import ENDED_SECONDS, PROBE_SECONDS
from fluxmq.replication.forced_mirrors import ForcedMirrors
from fluxmq.replication.incarnation import GREETING
from fluxmq.replication.mirror_leaders import APART_SECONDS
from tests.unit.replication.member import GROUP, LEADER, OWN, LoneMember

NODES = ("node1", "node2")
TERM = 7
BOTH = Membership(tuple(sorted((OWN, LEADER))))


class AskedControl:
    """Takes the requests of a shard; a test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Body]] = []
        self.answers: list[Answered] = []

    def request(self, kind: str, body: Body, answered: Answered) -> bool:
        self.asked.append((kind, body))
        self.answers.append(answered)
        return True


class NamedLeader:
    """Node1, which has a copy of a group whose record names it, with so many entries; node2 cannot be reached."""

    def __init__(self, directory: Path, runner: asyncio.Runner, entries: int = 3) -> None:
        self.member = LoneMember(directory / "node1", runner)
        if entries:
            self.member.append(entries)
        self.control = AskedControl()
        mirrors = self.member.cluster.members.mirrors
        assert mirrors is not None
        self.mirrors = mirrors
        self.mirrors.request = self.control.request
        self.know(TERM, NODES)

    def know(self, epoch: int, synchronised: tuple[str, ...], leader: str = "node1") -> None:
        """Hear of the record."""
        record = GroupMirrors(epoch, leader, NODES, NODES, synchronised, synchronised)
        self.mirrors.groups = {GROUP: record}

    def look(self) -> MirrorLead:
        """Look at the group; return what that asks for."""
        self.mirrors.look(self.member.replica)
        (kind, body) = self.control.asked[-1]
        assert kind == MIRROR_LEAD
        return MirrorLead.from_body(body)

    def wait(self) -> None:
        """Look for as long as a leader that nobody reaches is waited for, and a little longer; its machine
        refuses connections."""

        async def look() -> None:
            self.mirrors.look(self.member.replica)
            for probed in self.mirrors._ended_leaders._probed.values():
                assert probed.task is not None
                await probed.task

        for _ in range(int(ENDED_SECONDS / PROBE_SECONDS) + 2):
            self.member.runner.run(look())
            self.member.now += PROBE_SECONDS

    def change(self) -> MembershipChange | None:
        """The next change as the leader of the term."""
        peer = PeerStatus(3, 4, ReplicationMode.REPLICATE, 0, False, True)
        status = RaftStatus(OWN, Role.LEADER, TERM, OWN, OWN, 3, 3, 3, 4, BOTH, {LEADER: peer})
        return self.mirrors.next_change(self.member.replica, status, BOTH, ())

    def doubt(self) -> None:
        """Hear from node2 that it does not believe this copy."""
        met = self.member.replica.acquaintances
        numbers = dict.fromkeys(("incarnation", "life", "mark", "persisted"), 1)
        for content in ({**numbers, "known": {}}, {"doubt": "has an older data directory"}):
            met.take(LEADER, bytes((GREETING,)) + msgpack.packb(content))


@pytest.fixture
def named(tmp_path: Path) -> Iterator[NamedLeader]:
    with asyncio.Runner() as runner:
        leader = NamedLeader(tmp_path, runner)
        yield leader
        leader.member.kill()


def test_a_copy_that_is_fit_asks_to_lead(named: NamedLeader) -> None:
    assert named.look() == MirrorLead(GROUP, 3, False)


def test_a_copy_that_has_failed_has_another_one_lead(named: NamedLeader) -> None:
    named.member.hosted.group.fail("a file is damaged")
    assert named.look().empty


def test_a_copy_that_is_doubted_has_another_one_lead(named: NamedLeader) -> None:
    named.doubt()
    assert named.look().empty
    named.control.answers[-1](MirrorEpoch(TERM + 1).to_body())
    assert named.member.hosted.driver.node.term < TERM


def test_a_leader_that_is_doubted_does_not_do_without_who_doubts_it(named: NamedLeader) -> None:
    named.doubt()
    named.member.now += APART_SECONDS
    assert named.change() is None
    assert named.control.asked == []


def test_a_voter_out_of_contact_leaves_the_record_and_is_demoted(named: NamedLeader) -> None:
    """S3-03, S4-48: until then, what waits for it is not committed."""
    assert named.change() is None
    assert named.control.asked == []
    named.member.now += APART_SECONDS
    assert named.change() is None
    assert MirrorChange.from_body(named.control.asked[0][1]) == MirrorChange(
        GROUP, TERM, "node2", LOST
    )
    named.control.answers[0](MirrorEpoch(TERM).to_body())
    assert named.change() == MembershipChange(ChangeVerb.ADD_LEARNER, LEADER)


def test_a_voter_that_the_record_does_not_name_leaves_it_at_once(named: NamedLeader) -> None:
    named.know(TERM, ("node1",))
    assert named.change() is None
    assert len(named.control.asked) == 1
    named.control.answers[0](MirrorEpoch(0).to_body())
    assert named.change() is None, "the record was not changed"


def test_a_mirror_has_another_node_lead_once_the_leaders_process_has_ended(
    named: NamedLeader,
) -> None:
    """S4-06: it names those that it reaches, which may lead; here that is this node."""
    named.know(TERM, NODES, "node2")
    named.wait()
    ((kind, body),) = named.control.asked
    assert kind == MIRROR_ENDED
    assert MirrorEnded.from_body(body) == MirrorEnded(GROUP, TERM, "node2", ("node1",))


def test_what_is_asked_about_a_leader_does_not_hold_up_what_is_asked_about_a_mirror(
    named: NamedLeader,
) -> None:
    named.know(TERM, NODES, "node2")
    named.wait()
    named.control.answers[-1](MirrorEpoch(TERM + 1).to_body())
    named.know(TERM, ("node1",))
    named.change()
    assert [kind for kind, _ in named.control.asked] == [MIRROR_ENDED, MIRROR_CHANGE]


def test_a_mirror_that_is_not_synchronised_leaves_that_to_others(named: NamedLeader) -> None:
    named.know(TERM, ("node2",), "node2")
    named.wait()
    assert named.control.asked == []


def test_a_copy_that_could_not_lead_leaves_it_to_others(named: NamedLeader) -> None:
    """And the leader is waited for, which may be back before its lease ends."""
    named.know(TERM, NODES, "node2")
    named.doubt()
    named.wait()
    assert named.control.asked == []


def test_an_empty_copy_leaves_it_to_others(tmp_path: Path) -> None:
    """It may have been lost."""
    with asyncio.Runner() as runner:
        empty = NamedLeader(tmp_path, runner, entries=0)
        empty.know(TERM, NODES, "node2")
        empty.wait()
        assert empty.control.asked == []
        empty.member.kill()


def test_a_copy_that_has_failed_leaves_it_to_others(named: NamedLeader) -> None:
    named.know(TERM, NODES, "node2")
    named.member.hosted.group.fail("a file is damaged")
    named.wait()
    assert named.control.asked == []


@pytest.mark.parametrize(("term", "due"), [(TERM + 2, False), (TERM, False), (TERM - 1, True)])
def test_a_record_that_is_out_of_date_makes_no_copy_the_truth(
    named: NamedLeader, term: int, due: bool
) -> None:
    """After a partition, a node hears of the next leader, whose learner it is, before it can read the record."""
    membership = Membership((LEADER,), (OWN,))
    status = RaftStatus(OWN, Role.FOLLOWER, term, 0, LEADER, 3, 3, 3, 4, membership, {})
    record = named.mirrors.groups[GROUP]
    assert ForcedMirrors.is_due(named.member.replica, record, status) is due
