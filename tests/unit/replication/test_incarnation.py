"""Members that come back without what they promised are not believed, until nothing that they promised counts any more."""

from dataclasses import replace
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.raft.errors import MalformedMessage
from fluxmq.raft.memberships import MEMBERS_MAX
from fluxmq.replication.incarnation import (
    GREETING,
    GREETING_BYTES_MAX,
    Acquaintances,
    GroupView,
    is_control,
)
from fluxmq.replication.member_record import (
    Known,
    MemberRecord,
    read_record,
    record_path,
    write_record,
)
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import Corruption, WriteFailed
from fluxmq.storage.files import Files

A, B, C = 1, 2, 3
VOTERS = (A, B, C)


class Party:
    """One member, its disk, and what it has to say."""

    def __init__(self, number, disk):
        self.number = number
        self.disk = disk
        self.held = 0
        self.acknowledged = {}
        self.group_view = GroupView(0, VOTERS, VOTERS)
        self.term = 0
        """Of which it is known to be the leader, 0 for none."""
        self.asked = []
        self.begun_anew = []
        self.floors = []
        self.marks = 0
        self.start()

    def start(self):
        """Another life with what the disk has; without a record, another incarnation."""
        record = self.disk.get("record") or MemberRecord(self.disk["next"](), 0, 0, True, VOTERS)
        self.marks += 1
        record = replace(record, life=record.life + 1, mark=100 * self.number + self.marks)
        self.disk["record"] = record
        self.out: list[tuple[int, bytes]] = []
        self.met = Acquaintances(
            record,
            lambda changed: self.disk.update(record=changed),
            lambda: self.held,
            lambda: self.group_view,
            lambda number: self.acknowledged.get(number, 0),
            lambda number, frame: self.out.append((number, frame)),
            self._asked,
            self.begun_anew.append,
            lambda term, index: self.floors.append((term, index)),
        )

    def _asked(self, number):
        self.asked.append(number)
        if self.term:
            self.met.take_back(number, self.term)


class Group:
    """Three members; a stream is there when it is made."""

    def __init__(self):
        self.drawn = 0
        self.parties = {}
        for number in VOTERS:
            self.parties[number] = Party(number, {"next": self._draw})

    def _draw(self):
        self.drawn += 1
        return self.drawn

    def join(self, one, other):
        """A stream: both greet, and say what they think."""
        ends = (self.parties[one], self.parties[other])
        greetings = [end.met.greeting() for end in ends]
        ends[0].met.take(other, greetings[1])
        ends[1].met.take(one, greetings[0])
        self.deliver()

    def part(self, one, other):
        self.parties[one].met.gone(other)
        self.parties[other].met.gone(one)

    def deliver(self):
        for party in self.parties.values():
            for number, frame in party.out:
                self.parties[number].met.take(party.number, frame)
            party.out.clear()

    def restart(self, number, *, lost=False, record=None):
        party = self.parties[number]
        for other in VOTERS:
            if other != number:
                self.parties[other].met.gone(number)
        if lost:
            party.disk.pop("record")
            party.held = 0
        if record is not None:
            party.disk["record"] = record
        party.start()

    def believe(self, one, other):
        """Whether messages between two are messages: both say so."""
        return self.parties[one].met.believed(other) and self.parties[other].met.believed(one)


@pytest.fixture
def group():
    made = Group()
    for one, other in ((A, B), (A, C), (B, C)):
        made.join(one, other)
    return made


def test_nobody_is_believed_before_it_has_greeted_and_all_are_after(group):
    assert all(group.believe(*pair) for pair in ((A, B), (A, C), (B, C)))
    assert not Party(A, {"next": lambda: 9}).met.believed(B)
    group.part(A, B)
    assert not group.parties[A].met.believed(B)
    group.restart(B)
    group.join(A, B)
    assert group.believe(A, B)
    assert group.parties[A].disk["record"].known[B].life == 2


def test_who_has_lost_its_directory_is_believed_by_nobody_and_votes_for_nobody(group):
    group.restart(C, lost=True)
    assert not group.parties[C].met.abstains
    group.join(A, C)
    assert not group.parties[A].met.believed(C)
    assert not group.parties[C].met.believed(A)
    assert group.parties[A].met.doubted == [C]
    assert group.parties[A].met.doubt(C) == "has lost its data directory"
    assert "says that this node has lost" in group.parties[C].met.doubt(A)
    assert group.parties[C].met.abstains
    # Nobody forgets by being restarted.
    group.restart(A)
    group.join(A, C)
    assert group.parties[A].met.doubted == [C]


def test_two_that_have_lost_theirs_do_not_agree_while_the_third_is_there(group):
    group.restart(B, lost=True)
    group.restart(C, lost=True)
    group.join(B, C)
    assert group.believe(B, C)  # they know of nothing
    group.join(A, B)
    group.join(A, C)
    assert group.parties[B].met.abstains
    assert group.parties[C].met.abstains


def test_an_earlier_directory_is_recognised(group):
    earlier = group.parties[C].disk["record"]
    for _ in range(2):  # the copy has then had as many lives as were seen, or fewer
        group.restart(C)
        group.join(A, C)
        assert group.believe(A, C)
        now = group.parties[C].disk["record"]
        group.restart(C, record=earlier)
        group.join(A, C)
        assert group.parties[A].met.doubt(C) == "has an older data directory"
        group.restart(C, record=now)
        group.join(A, C)
        assert group.believe(A, C)


def test_a_log_that_ends_before_what_it_acknowledged_is_recognised(group):
    leader = group.parties[A]
    leader.acknowledged[C] = 50
    group.parties[C].held = 50
    group.restart(C)
    group.join(A, C)
    assert group.believe(A, C)
    group.parties[C].held = 40
    group.restart(C)
    group.join(A, C)
    why = "has acknowledged entry 50, and its log ends at 40"
    assert leader.met.doubt(C) == why
    # What it held when its stream ended is remembered by another leadership, and told to others.
    leader.acknowledged.clear()
    group.restart(A)
    group.join(A, C)
    assert group.parties[A].met.doubt(C) == why
    group.join(A, B)
    assert group.parties[B].disk["record"].known[C].held == 50


def test_it_is_believed_again_once_it_is_committed_that_it_is_no_voter(group):
    leader = group.parties[A]
    group.restart(C, lost=True)
    group.join(A, C)
    leader.group_view = GroupView(70, VOTERS, (A, B))  # appended
    leader.met.look_again()
    assert leader.met.doubted == [C]
    leader.group_view = GroupView(71, (A, B), VOTERS)  # a voter again, before that is committed
    leader.met.look_again()
    assert leader.met.doubted == [C]
    leader.group_view = GroupView(71, (A, B), (A, B))
    assert leader.asked == []
    leader.met.look_again()
    assert (leader.asked, leader.met.doubted) == ([C], [C])
    leader.term = 6
    leader.met.look_again()
    assert leader.begun_anew == [C]
    group.deliver()
    assert group.believe(A, C)
    assert not group.parties[C].met.abstains
    assert leader.disk["record"].known[C] == Known(4, 1, 302, 0, 71)


def test_who_does_not_lead_for_certain_takes_nobody_back(group):
    """What it knows to be committed may be from before the member was a voter for the last time."""
    group.restart(C, lost=True)
    follower = group.parties[B]
    follower.group_view = GroupView(71, (A, B), (A, B))
    group.join(B, C)
    follower.met.look_again()
    assert follower.asked == [C, C]
    assert follower.met.doubted == [C]
    assert group.parties[C].met.abstains
    # Since it was asked whether it leads, it has become a voter, or another, or has gone.
    follower.group_view = GroupView(72, (A, B), VOTERS)
    follower.met.take_back(C, 6)
    assert follower.met.doubted == [C]
    follower.group_view = GroupView(71, (A, B), (A, B))
    group.part(B, C)
    follower.met.take_back(C, 6)
    assert follower.begun_anew == []


def test_who_is_taken_back_votes_as_if_it_held_what_is_committed(group):
    group.restart(C, lost=True)
    leader, member = group.parties[A], group.parties[C]
    leader.group_view, leader.term = GroupView(71, (A, B), (A, B)), 6
    group.join(A, C)
    assert member.floors == [(6, 71)]
    assert member.disk["record"].floor == (6, 71)
    # It is never lowered, also not by its next life, and one that is meant for another life does not count.
    late = {"floor": [7, 90], "incarnation": 4, "life": 1}
    earlier = {**late, "floor": [5, 90], "life": 2}
    group.restart(C)
    group.join(A, C)
    for content in (late, earlier):
        member.met.take(A, bytes((GREETING,)) + msgpack.packb(content))
    assert member.disk["record"].floor == (6, 71)
    assert member.floors == [(6, 71), (6, 71)]


def test_the_others_hear_at_once_who_is_taken_back_and_begin_anew_with_it(group):
    group.restart(C, lost=True)
    leader, other = group.parties[A], group.parties[B]
    group.join(B, C)
    assert other.met.doubted == [C]
    leader.group_view, leader.term = GroupView(71, (A, B), (A, B)), 6
    group.join(A, C)
    group.deliver()
    assert other.begun_anew == [C]
    assert group.believe(B, C)
    assert not group.parties[C].met.abstains


def test_who_was_away_meanwhile_hears_of_it_from_who_was_there(group):
    leader = group.parties[A]
    group.restart(C, lost=True)
    leader.group_view, leader.term = GroupView(71, (A, B), (A, B)), 6
    group.part(A, B)
    group.join(A, C)
    assert group.believe(A, C)
    group.restart(B)
    group.join(B, C)
    assert group.parties[B].met.doubted == [C]
    group.join(A, B)
    group.deliver()
    assert group.believe(B, C)
    # The other way round nothing is unlearnt: B's earlier word is the older one.
    assert leader.disk["record"].known[C].incarnation == 4


def test_who_is_not_believed_teaches_nothing(group):
    group.restart(C, lost=True)
    liar = group.parties[C]
    liar.disk["record"] = replace(liar.disk["record"], known={B: Known(99, 1, 1, 0, 1000)})
    liar.start()
    group.join(A, C)
    assert group.parties[A].disk["record"].known[B].incarnation == 2


def test_what_cannot_be_remembered_is_not_believed(group):
    def full(_record):
        raise WriteFailed("member", "no space")

    group.restart(C)
    leader = group.parties[A]
    leader.met._save = full
    with pytest.raises(WriteFailed):
        leader.met.take(C, group.parties[C].met.greeting())
    assert leader.met.record.known[C].life == 1


def test_after_the_group_has_moved_away_nothing_is_written(group):
    party = group.parties[A]
    party.acknowledged[C] = 9
    before = party.disk["record"]
    party.met.closed = True
    party.met.gone(C)
    assert party.disk["record"] is before


@pytest.mark.parametrize(
    "content",
    [
        b"\xc1",
        msgpack.packb([1]),
        msgpack.packb({}),
        msgpack.packb({"incarnation": 1, "life": 1, "mark": 1, "persisted": -1, "known": {}}),
        msgpack.packb({"incarnation": 1, "life": True, "mark": 1, "persisted": 0, "known": {}}),
        msgpack.packb({"incarnation": 1, "life": 1, "mark": 1, "persisted": 0, "known": [1]}),
        msgpack.packb(
            {"incarnation": 1, "life": 1, "mark": 1, "persisted": 0, "known": {5: [1, 2, 3]}}
        ),
        msgpack.packb({"incarnation": 1, "life": 1, "mark": 1, "persisted": 0, "known": {5: 3}}),
        msgpack.packb({"doubt": 7}),
        msgpack.packb({"news": 7}),
        msgpack.packb({"floor": [1], "incarnation": 1, "life": 1}),
        msgpack.packb({"floor": [1, -1], "incarnation": 1, "life": 1}),
        msgpack.packb({"floor": [1, 1], "life": 1}),
        msgpack.packb(
            {
                "incarnation": 1,
                "life": 1,
                "persisted": 0,
                "known": {number: [1, 1, 1, 0, 0] for number in range(2 * MEMBERS_MAX + 1)},
            }
        ),
        b"\xc6" + bytes(GREETING_BYTES_MAX),
    ],
)
def test_what_is_no_greeting_changes_nothing(group, content):
    party = group.parties[A]
    before = party.met.record
    frame = bytes((GREETING,)) + content
    assert is_control(frame)
    with pytest.raises(MalformedMessage):
        party.met.take(C, frame)
    assert party.met.record is before
    assert party.met.believed(C)


def test_a_verdict_before_a_greeting_is_refused():
    party = Party(A, {"next": lambda: 1})
    with pytest.raises(MalformedMessage, match="before the greeting"):
        party.met.take(B, bytes((GREETING,)) + msgpack.packb({"doubt": "x"}))


def test_what_is_remembered_is_bounded(group):
    party = group.parties[A]
    strangers = {number: Known(number, 1, 1) for number in range(10, 10 + MEMBERS_MAX)}
    party.met._learn(B, strangers)
    assert len(party.met.record.known) <= MEMBERS_MAX + len(VOTERS)
    party.met._learn(B, {number + 1000: known for number, known in strangers.items()})
    assert {B, C} <= set(party.met.record.known)
    assert len(party.met.record.known) <= MEMBERS_MAX + len(VOTERS)


def test_records_survive_and_damage_is_noticed(tmp_path):
    files, paths = Files(), DataPaths(str(tmp_path))
    assert read_record(files, paths, "g/1") is None
    record = MemberRecord(2**62 + 1, 3, 4, True, (5, 6), (7,), {5: Known(8, 2, 7, 9, 1)}, (3, 9))
    write_record(files, paths, "g/1", record)
    assert read_record(files, paths, "g/1") == record
    path = Path(record_path(paths, "g/1"))
    data = path.read_bytes()
    for damaged in (data.replace(b"3", b"4", 1), data[:-9], b"", b"[]", b"{}"):
        path.write_bytes(damaged)
        with pytest.raises(Corruption):
            read_record(files, paths, "g/1")


# --- a copy that was declared the truth -----------------------------------------------------------------------------


def force(group, number):
    """What the offline command writes: another incarnation that remembers nobody, in a group of its own."""
    party = group.parties[number]
    before = party.disk["record"]
    forced = (before.forced[0] + 1, 1000 + number)
    group.restart(
        number,
        record=replace(before, incarnation=group._draw(), known={}, floor=(0, 0), forced=forced),
    )
    party.group_view = GroupView(party.held, (number,), (number,))


def test_who_was_left_behind_is_superseded_by_the_copy_that_was_declared_the_truth(group):
    for party in group.parties.values():
        party.held = 7
    force(group, A)
    group.join(A, B)
    assert not group.believe(A, B)
    assert group.parties[A].met.doubt(B).startswith("was superseded")
    assert group.parties[B].met.superseded == (1, 1001)
    assert group.parties[B].met.abstains
    assert not group.parties[B].met.believed(C)  # two that were left behind are no majority
    assert not group.parties[A].met.abstains
    assert group.parties[A].asked == []  # it is not readmitted either


def test_an_empty_copy_becomes_a_member_of_the_group_that_was_forced(group):
    group.parties[A].held = 7
    force(group, A)
    group.restart(B, lost=True)
    group.join(A, B)
    group.deliver()  # it has greeted again
    assert group.believe(A, B)
    assert group.parties[B].disk["record"].forced == (1, 1001)
    assert group.parties[A].disk["record"].known[B].incarnation == (
        group.parties[B].disk["record"].incarnation
    )


def test_two_copies_that_were_both_declared_the_truth_do_not_believe_each_other(group):
    for party in group.parties.values():
        party.held = 7
    force(group, A)
    force(group, B)
    group.join(A, B)
    assert "was also declared authoritative" in group.parties[A].met.doubt(B)
    assert "was also declared authoritative" in group.parties[B].met.doubt(A)
    assert group.parties[A].met.superseded == group.parties[B].met.superseded == (0, 0)
    assert group.parties[A].asked == []


def test_a_copy_that_was_forced_again_supersedes_one_that_was_forced_before(group):
    for party in group.parties.values():
        party.held = 7
    force(group, B)
    force(group, A)
    force(group, A)
    group.join(A, B)
    assert group.parties[B].met.superseded == (2, 1001)


def test_the_number_is_on_disk_and_an_old_record_has_none(tmp_path):
    paths = DataPaths(str(tmp_path))
    plain = MemberRecord(5, 1, 2, True, VOTERS)
    write_record(Files(), paths, "g", plain)
    assert b"forced" not in Path(record_path(paths, "g")).read_bytes()
    assert read_record(Files(), paths, "g") == plain
    forced = replace(plain, forced=(3, 9))
    write_record(Files(), paths, "g", forced)
    assert read_record(Files(), paths, "g") == forced


def test_a_greeting_of_an_earlier_version_was_never_forced(group):
    group.restart(B)
    greeting = msgpack.unpackb(group.parties[B].met.greeting()[1:], strict_map_key=False)
    del greeting["forced"]
    group.parties[A].met.take(B, bytes((GREETING,)) + msgpack.packb(greeting))
    assert group.parties[A].met.believed(B)
