"""What control processes say to each other, the log they keep, and who may vote: each by itself."""

import asyncio
import gc
from dataclasses import replace

import pytest

from fluxmq.control.meta import log, transfers
from fluxmq.control.meta.admission import (
    NoteNode,
    is_old_copy,
    is_welcome,
    next_step,
    state_of_new_member,
)
from fluxmq.control.meta.cluster_view import Work
from fluxmq.control.meta.decisions import (
    ENTRY_BYTES_MAX,
    AcceptedDelta,
    Decision,
    DecisionError,
    UsersChange,
)
from fluxmq.control.meta.frames import (
    DIGEST_BYTES,
    Digest,
    Introduction,
    Part,
    PartReceived,
    Request,
    RequestReply,
    RevisionProgress,
    SnapshotSent,
    decode,
    encode,
)
from fluxmq.control.meta.leader_term import LeaderTerm
from fluxmq.control.meta.log import MetaLog
from fluxmq.control.meta.tables import MemberState, NodeRecord
from fluxmq.ipc.messages import MessageError
from fluxmq.raft.errors import Compacted
from fluxmq.raft.types import (
    ChangeVerb,
    Entry,
    Membership,
    MembershipChange,
    PeerStatus,
    RaftStatus,
    ReplicationMode,
    Role,
)
from fluxmq.routing.topology.topology import Delta, TopologyRow
from tests.unit.control.topology_node import GUEST

TOLD = Introduction(7, MemberState.MEMBER, 5, 5, False, 1, 0, 0)
FRAMES = [
    TOLD,
    Request(1, "begin", {"a": [1]}),
    RequestReply(1, {"revision": 3}),
    RequestReply(2, None, "failed", "no"),
    Part(1, 0, b"part"),
    PartReceived(1, 0),
    SnapshotSent(1, 2, b"message"),
    RevisionProgress("users", 4),
    Digest(7, b"\x01" * DIGEST_BYTES),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_frames_come_back_and_half_ones_are_refused(frame):
    data = encode(frame)
    assert decode(data) == frame
    for end in range(len(data)):
        with pytest.raises(MessageError):
            decode(data[:end])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x0c\x80",
        b"\x01\x80",
        b"\x03\x92\x01\x02",
        b"\x04\xc1",
        encode(RevisionProgress("else", 1)),
    ],
)
def test_what_is_no_frame_is_refused(data):
    with pytest.raises(MessageError):
        decode(data)


def rows(count):
    return tuple(
        TopologyRow("queue", ("/", f"q{n}"), {"name": f"q{n}"} if n else None) for n in range(count)
    )


@pytest.mark.parametrize("count", [2, 500])
def test_a_decision_comes_back_and_a_damaged_one_is_refused(count):
    delta = AcceptedDelta(Delta(4, 3, rows(count)), (True,) + (False,) * (count - 1))
    users = UsersChange(5, (GUEST,), ("gone",))
    decision = Decision((delta,), users, (("cluster", b"\x01"), ("node:a", None)), whole=True)
    data = decision.encode()
    assert Decision.decode(data) == decision
    assert [write.value is None for write in delta.writes()][:2] == [True, False]
    for damaged in (b"", b"\x03" + data[1:], data[:-1], data[:1] + b"\x00" + data[2:]):
        with pytest.raises(DecisionError):
            Decision.decode(damaged)


def test_a_decision_too_large_for_an_entry_is_refused(monkeypatch):
    monkeypatch.setattr("fluxmq.control.meta.decisions.ENTRY_BYTES_MAX", 100)
    delta = AcceptedDelta(Delta(4, 3, rows(50)), (False,) * 50)
    with pytest.raises(DecisionError, match="more than 100"):
        Decision((delta,)).encode()
    assert ENTRY_BYTES_MAX == 32 << 20


def entries(low, high, term=1, size=1):
    return [Entry(term, index, 0, b"x" * size) for index in range(low, high)]


def test_the_log_is_cut_behind_what_is_applied(monkeypatch):
    monkeypatch.setattr(log, "ENTRIES_MAX", 100)
    monkeypatch.setattr(log, "BYTES_MAX", 1000)
    kept = MetaLog(0, 0, entries(1, 101))
    assert kept.surplus(100) is None
    kept.append(entries(101, 103))
    assert kept.surplus(102) == 27
    assert kept.surplus(10) == 10
    kept.compact(27)
    assert (kept.first_index(), kept.last_index(), kept.term(27)) == (28, 102, 1)
    with pytest.raises(Compacted):
        kept.entries(27, 30, 100)
    with pytest.raises(Compacted):
        kept.term(26)
    # Others' entries take the place of those that conflict.
    kept.append(entries(90, 92, term=2, size=990))
    assert (kept.last_index(), kept.term(89), kept.term(91)) == (91, 1, 2)
    assert [entry.index for entry in kept.entries(88, 92, 2)] == [88, 89]
    assert [entry.index for entry in kept.entries(91, 92, 2)] == [91]
    # Bytes count as well as entries; the last may be more than the limit by itself.
    assert kept.surplus(91) == 91
    kept.restart(200, 3)
    assert (kept.first_index(), kept.last_index(), kept.term(200)) == (201, 200, 3)
    assert kept.surplus(200) is None


NEW = replace(TOLD, standing=MemberState.NEW, last_index=0)


@pytest.mark.parametrize(
    ("known", "nodes", "standing"),
    [
        ([], 1, MemberState.MEMBER),
        ([], 3, MemberState.NEW),
        ([NEW], 3, MemberState.MEMBER),
        ([NEW], 5, MemberState.NEW),
        ([replace(NEW, standing=MemberState.MEMBER)], 3, MemberState.MEMBER),
        ([NEW, TOLD], 3, MemberState.RETURNING),
        ([replace(NEW, standing=MemberState.RETURNING)], 3, MemberState.RETURNING),
    ],
)
def test_what_a_new_directory_is(known, nodes, standing):
    assert state_of_new_member(known, nodes) is standing


@pytest.mark.parametrize(
    ("told", "old"),
    [
        ({}, False),
        ({"known_incarnation": 3, "known_index": 10}, False),
        ({"known_incarnation": 3, "known_index": 11}, True),
        ({"known_incarnation": 4, "applied": 9}, False),
        ({"known_incarnation": 4, "applied": 10}, True),
    ],
)
def test_a_copy_that_was_put_back_is_told_by_what_others_know(told, old):
    introduction = replace(TOLD, **told)
    assert is_old_copy(introduction, 3, MemberState.MEMBER, 10, 10) is old
    assert not is_old_copy(introduction, 3, MemberState.RETURNING, 10, 10)


def status(voters, learners=(), match=0):
    progress = {2: PeerStatus(match, match + 1, ReplicationMode.REPLICATE, 0, False, True)}
    membership = Membership(voters, learners)
    return RaftStatus(1, Role.LEADER, 3, 1, 1, 500, 500, 500, 500, membership, progress)


BACK = replace(TOLD, standing=MemberState.RETURNING, incarnation=9)


def test_a_node_that_returns_is_taken_out_in_and_made_a_voter():
    noted = NodeRecord(9, readmit=True, queues=("q",))
    before = {2: NodeRecord(7, readmit=False, life="l", index=3, queues=("q",))}

    def step(at, record, told=BACK):
        return next_step(at, {2: told}, record)

    assert step(status((1, 2, 3)), before) == NoteNode(2, noted)
    assert step(status((1, 2, 3)), {2: noted}) == MembershipChange(ChangeVerb.REMOVE, 2)
    assert step(status((1, 3)), {2: noted}) == MembershipChange(ChangeVerb.ADD_LEARNER, 2)
    assert step(status((1, 3), (2,), 399), {2: noted}) is None
    done = noted._replace(readmit=False)
    assert step(status((1, 3), (2,), 400), {2: noted}) == NoteNode(2, done)
    added = MembershipChange(ChangeVerb.ADD_VOTER, 2)
    assert step(status((1, 3), (2,), 400), {2: done}) == added
    assert step(status((1, 2, 3)), {2: done}) is None
    # Another directory in the midst of it: from the start.
    again = replace(BACK, incarnation=10)
    assert step(status((1, 3)), {2: done}, again).record.incarnation == 10
    # What a learner acknowledged with the directory before counts no more.
    removed = MembershipChange(ChangeVerb.REMOVE, 2)
    assert step(status((1, 3), (2,), 400), {2: done}, again) == removed
    assert step(status((1, 2, 3)), before, TOLD) is None


def test_who_returns_is_not_sent_to_as_long_as_the_leader_counts_on_its_lost_log():
    noted = NodeRecord(9, readmit=True)
    assert not is_welcome(2, status((1, 2, 3)), BACK, noted)
    assert is_welcome(2, status((1, 3), (2,)), BACK, noted)
    assert is_welcome(2, status((1, 2, 3)), BACK, noted._replace(readmit=False))
    assert not is_welcome(2, status((1, 3), (2,)), replace(BACK, incarnation=8), noted)
    assert not is_welcome(2, status((1, 3), (2,)), TOLD, noted)


def test_parts_of_a_snapshot_come_in_order_and_all():
    wire = []

    def send(frame):
        wire.append(frame)
        return True

    sending = transfers.OutgoingSnapshot(5, [b"%d" % n for n in range(6)], b"end", send)
    receiving = transfers.Receiving(send)
    assert sending.begin()
    assert len(wire) == transfers.WINDOW
    while wire:
        frame = decode(wire.pop(0))
        if isinstance(frame, Part):
            receiving.part(frame)
        elif isinstance(frame, PartReceived):
            assert sending.taken(frame)
        else:
            assert isinstance(frame, SnapshotSent)
            assert receiving.complete(frame) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert sending.ended
    receiving.part(Part(6, 0, b"a"))
    with pytest.raises(MessageError, match="part 2 of a snapshot after 1"):
        receiving.part(Part(6, 2, b"c"))
    with pytest.raises(MessageError, match="without some of its parts"):
        receiving.complete(SnapshotSent(6, 2, b""))


def test_work_that_ends_before_it_began_is_not_forgotten(recwarn):
    async def scenario():
        work = Work()
        begun = []

        async def never():
            begun.append(True)

        work.begin(never())
        await work.stop()
        assert not begun

    asyncio.run(scenario())
    gc.collect()
    assert not recwarn.list


def test_a_node_has_ended_when_it_was_silent_for_long():
    term = LeaderTerm(100.0)
    heard = {1: 99.0, 2: 105.0}
    assert term.newly_ended((1, 2, 3), heard, 110.0) == []
    assert term.newly_ended((1, 2, 3), heard, 110.1) == [1, 3]
    assert term.newly_ended((1, 2, 3), heard, 115.1) == [2]
    heard[1] = 115.2
    assert term.newly_ended((1, 2, 3), heard, 116.0) == []
    assert term.newly_ended((1, 2, 3), heard, 126.0) == [1], "once each time"
