"""A leader of a mirrored group that reaches neither etcd nor its mirrors: when it goes on alone, what is known of that after a
crash, and what becomes of it when the record can be read again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.engine.appended_messages import appended_messages
from fluxmq.engine.group import ReplicationGroup
from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import ERROR_FAILED, ERROR_UNREACHABLE, Body, Failure
from fluxmq.ipc.mirrored_groups import (
    ALONE,
    LOST,
    MIRROR_LEAD,
    MIRRORS,
    GroupMirrors,
    MirrorChange,
    MirrorEpoch,
    MirrorLead,
    Mirrors,
)
from fluxmq.queues.config import QueueConfig
from fluxmq.raft.types import Message, MessageKind, Role
from fluxmq.replication.divergent_mirrors import (
    IGNORE,
    PAUSE_MINORITY,
    SILENT_SECONDS,
    DivergentMirrors,
)
from fluxmq.replication.incarnation import GREETING
from fluxmq.replication.member_record import (
    Divergence,
    MemberRecord,
    read_record,
    record_path,
    write_record,
)
from fluxmq.replication.mirror_leaders import APART_SECONDS
from fluxmq.replication.open_group import OpenGroup
from fluxmq.replication.replica import Replica
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.files import Files
from tests.unit.replication.member import LEADER, OWN, LoneMember
from tests.unit.replication.trio import message

GROUP = "mirrors-0123456789abcdef"
NODES = ("node1", "node2", "node3")
AUTOHEAL = "autoheal"
TERM = 2
STEP_SECONDS = 0.5
LOOKS_MAX = 100


class DividedLeader:
    """Node1 of three, as it leads a mirrored group of which it reaches no other member. Control answers with ``answer``;
    None: not yet."""

    def __init__(
        self,
        directory: Path,
        runner: asyncio.Runner,
        handling: str,
        nodes: tuple[str, ...] = NODES,
    ) -> None:
        self.nodes = nodes
        self.member = LoneMember(directory, runner)
        self.answer: Body | Failure | None = Failure(ERROR_UNREACHABLE, "etcd: no leader")
        self.asked: list[tuple[str, Body]] = []
        self.waiting: list[Answered] = []
        members = self.member.cluster.members
        assert members.mirrors is not None
        self.mirrors = members.mirrors
        divergent = DivergentMirrors(handling, "node1", lambda: self.member.now)
        divergent.appended = self.mirrors.copies.divergent.appended
        self.mirrors.copies = self.mirrors.copies._replace(divergent=divergent)
        self.mirrors.request = self._request
        self.member.within(self._open)

    def _open(self) -> None:
        cluster = self.member.cluster
        cluster._on_mirrors({GROUP: self.nodes})
        if GROUP not in self.member.queues.service.groups:
            cluster._hosting.open(GROUP)

    def _request(self, kind: str, body: Body, answered: Answered) -> bool:
        self.asked.append((kind, body))
        if self.answer is None:
            self.waiting.append(answered)
        else:
            answered(self.answer)
        return True

    @property
    def hosted(self) -> OpenGroup[ReplicationGroup]:
        """The group."""
        return self.member.queues.service.groups[GROUP]

    @property
    def replica(self) -> Replica:
        """The group as a member of it."""
        return self.member.cluster.replicas[GROUP]

    @property
    def record(self) -> MemberRecord:
        """The member record on the disk."""
        found = read_record(self.member.files, self.member.paths, GROUP)
        assert found is not None
        return found

    def mark(self) -> Divergence | None:
        """The mark of a divergent copy, on the disk."""
        return self.record.diverged

    def know(self, leader: str, epoch: int, forced: int = 0) -> None:
        """Hear of the record."""
        nodes = self.nodes
        record = GroupMirrors(epoch, leader, nodes, nodes, nodes, nodes, forced)
        self.mirrors.groups = {GROUP: record}

    def lead(self) -> None:
        """Lead in the record's term."""
        self.know("node1", TERM)
        self.member.within(lambda: self.hosted.driver.appoint(TERM))
        self.member.work()
        assert self.hosted.driver.node.status().role is Role.LEADER

    def publish(self, count: int) -> None:
        """Have messages proposed by the leader of a group whose entries are committed."""
        group = self.hosted.group
        for number in range(count):
            assert group.append("work", message(b"%d" % number), None)
        self.work()

    def work(self) -> None:
        """Two ends of a tick: what is proposed is on the disk and applied if it is committed."""
        for _ in range(3):
            self.member.within(self.member.work)

    def look(self, seconds: float = STEP_SECONDS) -> None:
        """Look at the group after some time."""
        self.member.now += seconds
        self.member.within(self.member.cluster.members.housekeeping)
        self.work()

    def wait(self, seconds: float) -> None:
        """Look at it for so long."""
        until = self.member.now + seconds
        while self.member.now < until:
            self.look()

    def diverge(self) -> None:
        """Go on alone, with a queue."""
        if self.hosted.driver.node.status().role is not Role.LEADER:
            self.lead()
        for _ in range(LOOKS_MAX):
            self.look()
            if self.hosted.driver.leading:
                break
        assert self.mark() is not None
        assert self.hosted.driver.leading
        self.member.within(lambda: self.hosted.group.declare(QueueConfig("work", max_depth=0)))
        self.work()

    @property
    def appended(self) -> int:
        """Messages that the group's queues were given."""
        return appended_messages(self.hosted.group, ())

    @property
    def last(self) -> tuple[str, Body]:
        """The latest request."""
        return self.asked[-1]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """The loop of all lives."""
    with asyncio.Runner() as found:
        yield found


@pytest.fixture
def leader(tmp_path: Path, runner: asyncio.Runner) -> Iterator[DividedLeader]:
    made = DividedLeader(tmp_path / "node1", runner, AUTOHEAL)
    yield made
    made.member.kill()


def discarded(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int, int]]:
    """The lines about copies that are closed or discarded, with entries and messages."""
    return [
        (each.message.split(" is ")[1].split(",")[0].split(":")[0], each.entries, each.messages)  # type: ignore[attr-defined]
        for each in caplog.records
        if each.message.startswith("a divergent copy is ")
    ]


def test_a_leader_goes_on_once_etcd_was_silent_for_as_long_as_a_lease(
    leader: DividedLeader,
) -> None:
    leader.lead()
    committed = leader.hosted.driver.node.status().commit
    leader.wait(APART_SECONDS + SILENT_SECONDS - 2 * STEP_SECONDS)
    assert leader.mark() is None
    assert leader.hosted.driver.node.status().commit == committed
    leader.wait(4 * STEP_SECONDS)
    assert leader.mark() == Divergence(TERM, committed, 0, 0)
    assert leader.hosted.driver.node.status().commit > committed
    assert leader.hosted.driver.leading
    assert {MirrorChange.from_body(body).state for _, body in leader.asked} == {LOST, ALONE}


def test_nothing_is_committed_alone_before_the_copy_is_marked(
    tmp_path: Path, runner: asyncio.Runner
) -> None:
    """With one mirror, the change that makes it a learner would commit everything."""
    leader = DividedLeader(tmp_path / "node1", runner, AUTOHEAL, NODES[:2])
    leader.lead()
    committed = leader.hosted.driver.node.status().commit
    leader.wait(APART_SECONDS + SILENT_SECONDS - 2 * STEP_SECONDS)
    # No record can be written any more: a directory is in its way.
    Path(f"{record_path(leader.member.paths, GROUP)}.tmp").mkdir()
    leader.wait(10 * STEP_SECONDS)
    assert leader.hosted.group.failed
    assert leader.mark() is None
    assert leader.hosted.driver.node.status().commit == committed
    leader.member.kill()


def test_with_pause_minority_no_leader_goes_on(tmp_path: Path, runner: asyncio.Runner) -> None:
    """S3-08: nothing is committed without the others, however long they are away."""
    leader = DividedLeader(tmp_path / "node1", runner, PAUSE_MINORITY)
    leader.lead()
    committed = leader.hosted.driver.node.status().commit
    leader.wait(20 * SILENT_SECONDS)
    assert leader.mark() is None
    assert leader.hosted.driver.node.status().commit == committed
    assert not leader.hosted.driver.leading
    leader.member.kill()


def test_a_leader_that_reaches_etcd_does_not_go_on(leader: DividedLeader) -> None:
    """A refusal says that another one leads, or will."""
    leader.lead()
    for _ in range(5):
        leader.answer = Failure(ERROR_UNREACHABLE, "etcd: no leader")
        leader.wait(SILENT_SECONDS / 2)
        leader.answer = MirrorEpoch(0).to_body()
        leader.wait(4 * STEP_SECONDS)
    assert leader.mark() is None


@pytest.mark.parametrize("answer", [Failure(ERROR_FAILED, "control ended"), None])
def test_silence_of_control_is_none_of_etcd(leader: DividedLeader, answer: Failure | None) -> None:
    leader.lead()
    leader.answer = answer
    leader.wait(5 * SILENT_SECONDS)
    assert leader.mark() is None


def test_failures_that_are_far_apart_are_not_one() -> None:
    now = 0.0
    divergent = DivergentMirrors(AUTOHEAL, "node1", lambda: now)
    for moment in (0.0, SILENT_SECONDS, 3 * SILENT_SECONDS):
        now = moment
        divergent.unanswered(GROUP)
        assert not divergent.may_begin(GROUP)
    now += SILENT_SECONDS - 1
    divergent.unanswered(GROUP)
    assert not divergent.may_begin(GROUP)
    now += 1
    assert divergent.may_begin(GROUP)
    now += SILENT_SECONDS
    assert not divergent.may_begin(GROUP), "the last failure is too long ago"


def test_a_divergent_leader_believes_nobody(leader: DividedLeader) -> None:
    """Two leaders never write one log. Nor does it remember that others hold what it committed alone: another
    leader may have had them drop that."""
    greeting = {**dict.fromkeys(("incarnation", "life", "mark", "persisted"), 1), "known": {}}
    met = leader.replica.acquaintances
    leader.member.within(lambda: met.take(LEADER, bytes((GREETING,)) + msgpack.packb(greeting)))
    assert met.believed(LEADER)
    leader.lead()
    driver = leader.hosted.driver
    held = Message(MessageKind.APPEND_ANSWER, LEADER, OWN, TERM, driver.node.status().last_index)
    leader.member.within(lambda: driver.step([held]))
    assert driver.node.status().progress[LEADER].match == held.index
    leader.diverge()
    assert driver.node.status().commit >= held.index
    assert not met.believed(LEADER)
    status = leader.hosted.driver.node.status()
    assert status.membership.voters == (OWN,)
    assert len(status.membership.learners) == len(NODES) - 1
    met.gone(LEADER)
    assert leader.record.known[LEADER].held == 0


def test_a_copy_is_discarded_once_the_record_names_another_leader(
    leader: DividedLeader, caplog: pytest.LogCaptureFixture
) -> None:
    """S3-09: what it confirmed alone is counted and logged before."""
    leader.diverge()
    leader.publish(7)
    mark = leader.mark()
    assert mark is not None
    entries = leader.hosted.driver.node.status().commit - mark.commit
    with caplog.at_level(logging.WARNING):
        leader.know("node2", TERM + 1)
        leader.look()
    assert GROUP not in leader.member.queues.service.groups
    assert not leader.record.hosted
    assert leader.mark() is None
    assert discarded(caplog) == [("discarded", entries, 7)]
    samples = {name: value for name, _, value in leader.mirrors.copies.divergent.samples([])}
    assert samples["fluxmq_mirror_divergent_messages_total"] == 7


def test_a_copy_of_a_group_that_has_ended_meanwhile_is_counted(
    leader: DividedLeader, caplog: pytest.LogCaptureFixture
) -> None:
    """Its queues have moved elsewhere, without what was confirmed here."""
    leader.diverge()
    leader.publish(7)
    ended = Mirrors({}, (GROUP,)).to_body()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            leader.mirrors.commands[MIRRORS](ended, lambda _answer: None)
    ((how, _, messages),) = discarded(caplog)
    assert (how, messages) == ("discarded", 7)


@pytest.mark.parametrize("named", [("node1", TERM), ("node2", TERM), ("node2", TERM - 1)])
def test_a_copy_is_not_discarded_before(leader: DividedLeader, named: tuple[str, int]) -> None:
    """Nor because another member says that it was declared the truth: the record decides."""
    leader.diverge()
    leader.publish(3)
    leader.know(*named)
    leader.replica.acquaintances.superseded = (1, 1001)
    leader.wait(3 * STEP_SECONDS)
    leader.mirrors.groups = {}
    leader.wait(3 * STEP_SECONDS)
    assert leader.appended == 3
    assert leader.mark() is not None


def test_an_agreed_epoch_of_its_own_discards_nothing(leader: DividedLeader) -> None:
    """Its request to lead was carried out, and the answer was lost."""
    leader.diverge()
    leader.publish(3)
    leader.know("node1", TERM + 1)
    leader.answer = None
    leader.wait(3.0)
    assert leader.appended == 3
    kind, body = leader.last
    assert kind == MIRROR_LEAD
    assert MirrorLead.from_body(body).alone
    leader.member.within(lambda: leader.waiting[-1](MirrorEpoch(TERM + 2).to_body()))
    leader.wait(1.0)
    assert leader.mark() is None
    assert leader.hosted.driver.node.term == TERM + 2
    assert leader.appended == 3


def test_the_record_is_asked_to_do_without_all_others(leader: DividedLeader) -> None:
    """Until it has agreed, the copy stays marked."""
    leader.diverge()
    leader.publish(3)
    leader.wait(3.0)
    assert MirrorChange.from_body(leader.last[1]) == MirrorChange(GROUP, TERM, "node1", ALONE)
    assert leader.mark() is not None
    leader.answer = MirrorEpoch(0).to_body()
    leader.wait(3.0)
    assert leader.mark() is not None, "it was refused"
    leader.answer = MirrorEpoch(TERM).to_body()
    leader.wait(3.0)
    assert leader.mark() is None
    assert leader.hosted.driver.leading
    assert leader.hosted.driver.node.term == TERM
    assert leader.appended == 3


def test_an_agreement_that_comes_after_another_leader_does_not_count(
    leader: DividedLeader, caplog: pytest.LogCaptureFixture
) -> None:
    leader.diverge()
    leader.publish(3)
    leader.answer = None
    leader.wait(3.0)
    leader.know("node2", TERM + 1, forced=1)
    leader.member.within(lambda: leader.waiting[-1](MirrorEpoch(TERM).to_body()))
    assert leader.mark() is not None
    with caplog.at_level(logging.WARNING):
        leader.look()
    assert [each[2] for each in discarded(caplog)] == [3]


def restarted(leader: DividedLeader, runner: asyncio.Runner, handling: str) -> DividedLeader:
    """The next life, after a crash."""
    leader.member.kill()
    return DividedLeader(Path(leader.member.paths.root), runner, handling)


def test_a_crash_does_not_make_a_copy_forget_that_it_is_divergent(
    tmp_path: Path, runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
) -> None:
    """S3-09: what it has counts as confirmed, also what is not known to be committed."""
    leader = DividedLeader(tmp_path / "node1", runner, AUTOHEAL)
    leader.diverge()
    leader.publish(5)
    leader.publish(4)
    again = restarted(leader, runner, PAUSE_MINORITY)
    assert again.mark() == leader.mark()
    assert not again.replica.acquaintances.believed(LEADER)
    again.wait(3.0)
    assert again.asked == [], "the record is not known"
    with caplog.at_level(logging.WARNING):
        again.know("node2", TERM + 1)
        again.look()
    assert [each[2] for each in discarded(caplog)] == [9]
    assert not again.record.hosted
    again.member.kill()


def test_after_a_crash_a_copy_leads_again_if_nobody_else_has_led(
    tmp_path: Path, runner: asyncio.Runner
) -> None:
    leader = DividedLeader(tmp_path / "node1", runner, AUTOHEAL)
    leader.diverge()
    leader.publish(5)
    again = restarted(leader, runner, AUTOHEAL)
    again.know("node1", TERM)
    again.answer = MirrorEpoch(TERM + 1).to_body()
    again.wait(3.0)
    kind, body = again.asked[0]
    assert kind == MIRROR_LEAD
    assert MirrorLead.from_body(body) == MirrorLead(GROUP, TERM, False, True, 0)
    assert again.mark() is None
    assert again.hosted.driver.leading
    assert again.appended == 5
    again.member.kill()


def test_with_ignore_a_copy_is_closed_and_discarded_in_the_next_life(
    tmp_path: Path, runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
) -> None:
    """S3-07: nothing is thrown away before somebody restarts the node."""
    leader = DividedLeader(tmp_path / "node1", runner, IGNORE)
    leader.diverge()
    leader.publish(6)
    leader.know("node2", TERM + 1)
    with caplog.at_level(logging.WARNING):
        leader.wait(5.0)
    assert [(verb, messages) for verb, _, messages in discarded(caplog)] == [("closed", 6)]
    assert not leader.hosted.driver.leading
    assert leader.mark() is not None
    assert leader.mirrors.copies.divergent.messages == 0
    caplog.clear()
    again = restarted(leader, runner, IGNORE)
    again.know("node2", TERM + 1)
    with caplog.at_level(logging.WARNING):
        again.look()
    assert [(verb, messages) for verb, _, messages in discarded(caplog)] == [("discarded", 6)]
    again.member.kill()


def test_a_copy_that_was_declared_the_truth_is_divergent_no_longer(leader: DividedLeader) -> None:
    """The leader that was chosen meanwhile has failed, and the policy has an unsynchronised mirror lead."""
    leader.diverge()
    leader.publish(3)
    leader.know("node1", TERM + 2, forced=1)
    leader.wait(5.0)
    assert leader.mark() is None
    assert leader.record.forced[0] == 1


def test_an_audit_does_not_replace_a_divergent_copy(leader: DividedLeader) -> None:
    """It would not be counted."""
    leader.diverge()
    leader.member.within(lambda: leader.member.cluster.audits.quarantine(GROUP, "it differs"))
    assert not leader.hosted.group.failed


def test_the_mark_is_kept_in_the_member_record(tmp_path: Path) -> None:
    """And is absent from those of copies that are not divergent, which earlier versions have written too."""
    files, paths = Files(), DataPaths(str(tmp_path))
    record = MemberRecord(1, 2, 3, True, (OWN, LEADER))
    write_record(files, paths, GROUP, record)
    assert read_record(files, paths, GROUP) == record
    assert b"diverged" not in files.read_file(f"{paths.group(GROUP)}/member")
    marked = MemberRecord(1, 2, 3, True, (OWN, LEADER), diverged=Divergence(4, 5, 6, 7))
    write_record(files, paths, GROUP, marked)
    assert read_record(files, paths, GROUP) == marked
