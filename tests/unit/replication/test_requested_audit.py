"""An audit that somebody asks for: all copies at one index, and what becomes of one that differs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from fluxmq.ipc.clusters import DIFFERS, EQUAL, NOT_COMPARED, AuditListing
from fluxmq.raft.types import Membership, Message
from fluxmq.replication.audit import Audit
from fluxmq.replication.audits import Audits
from fluxmq.replication.group_commands import GroupCommands
from fluxmq.replication.leaders import OWN, Leaders
from fluxmq.replication.member_record import MemberRecord
from fluxmq.replication.placement import Places
from fluxmq.replication.ports import UNOBSERVED
from fluxmq.replication.requested_audit import (
    AUDIT_SECONDS_MAX,
    MEMBER_SECONDS_MAX,
    deviating,
)
from fluxmq.replication.shard_links import ShardLinks
from fluxmq.storage.directory import Placement
from tests.unit.replication.trio import NUMBERS, Trio, message

pytestmark = pytest.mark.uncompiled
"""The audit is given stand-ins of replicas, which compiled code does not accept."""

STEP = 0.1


class Way:
    """A link to a shard of another node: what is sent is taken when `Shards.carry` says so."""

    def __init__(self, shards: Shards, source: int, target: int) -> None:
        self.shards, self.source, self.peer = shards, source, target
        self.backlog_bytes = 0
        self.node = f"n{target}"

    @property
    def up(self) -> bool:
        return not {self.source, self.peer} & self.shards.away

    def send_control(self, name: str, *arguments: Any) -> None:
        self.shards.under_way.append((self.source, self.peer, name, arguments))


class Plan:
    name = "g"

    def __init__(self, own: int) -> None:
        self.own = own
        self.nodes = [_Node(number) for number in NUMBERS]


class _Node:
    def __init__(self, number: int) -> None:
        self.node, self.number = f"n{number}", number


class Hosted:
    def __init__(self, replica: Any) -> None:
        self.group, self.driver = replica.group, replica.driver


class Replica:
    def __init__(self, replica: Any) -> None:
        self.hosted = Hosted(replica)
        self.plan = Plan(replica.number)
        self.acquaintances = SimpleNamespace(record=MemberRecord(1, 1, 1, True, NUMBERS))
        self.sending = replica.driver.send
        self.audit: Audit

    def send(self, messages: Sequence[Message]) -> None:
        self.sending(messages)

    def __getattr__(self, name: str) -> Any:
        return getattr(UNOBSERVED, name)

    def applied(self) -> None:
        self.audit.applied()

    def give_up(self, why: str) -> None:
        self.hosted.driver.log_failed(f"quarantined: {why}")


class Shard:
    """What audits know of one shard of a cluster."""

    def __init__(self, shards: Shards, number: int) -> None:
        def now() -> float:
            return shards.now

        self.leaders = Leaders()
        self.replicas: dict[str, Any] = {"g": Replica(shards.trio[number])}
        self.links = ShardLinks(f"n{number}", 0, Places(Placement(1, 1)))
        self.ways = {each: Way(shards, number, each) for each in NUMBERS if each != number}
        self.links.abroad = self.ways  # type: ignore[assignment]
        self.commands = GroupCommands(self.replicas, self.leaders, self.links, now)
        self.refetched: list[str] = []
        self.audits = Audits(
            *(self.replicas, self.leaders, self.links, self.commands, self.refetched.append, now)
        )
        replica = self.replicas["g"]
        replica.audit = self.audits.add(replica.hosted, number)
        shards.trio[number].driver.join(replica)


class Shards:
    """One shard on each of three nodes, of which the first leads."""

    def __init__(self, trio: Trio) -> None:
        self.trio = trio
        self.now = 0.0
        self.away: set[int] = set()
        self.held: set[int] = set()
        self.under_way: list[tuple[int, int, str, tuple[Any, ...]]] = []
        self.shards = {number: Shard(self, number) for number in NUMBERS}
        trio.elect(1)
        for number, shard in self.shards.items():
            shard.leaders.leads("g", 1, OWN if number == 1 else 1)

    def carry(self) -> None:
        while self.under_way:
            source, target, name, arguments = self.under_way.pop(0)
            if {source, target} & self.held:
                continue
            shard = self.shards[target]
            handlers = {**shard.commands.handlers(), **shard.audits.handlers()}
            handlers[name](shard.ways[source], *arguments)

    def audit(self, asked: int) -> dict[str, tuple[str, str]]:
        """Ask a node; each copy's verdict, and why there is none."""
        answers: list[Any] = []
        self.shards[asked].commands.commands()["audit"]({"group": "g"}, answers.append)
        for _ in range(30):
            self.carry()
            if answers:
                break
            self.now += STEP
            for shard in self.shards.values():
                shard.commands.housekeeping()
        listing = AuditListing.from_body(answers[0])
        assert len({row.index for row in listing.rows}) == 1
        return {row.node: (row.verdict, row.problem) for row in listing.rows}

    def publish(self) -> None:
        self.trio[1].group.append("work", message(b"one"), None)
        self.trio.settle()


@pytest.fixture
def shards(trio: Trio) -> Shards:
    made = Shards(trio)
    for _ in range(3):
        made.publish()
    return made


ALL_EQUAL = {"n1": (EQUAL, ""), "n2": (EQUAL, ""), "n3": (EQUAL, "")}


def test_equal_copies_are_equal_whoever_is_asked(shards: Shards) -> None:
    for asked in NUMBERS:
        assert shards.audit(asked) == ALL_EQUAL
    assert shards.now == pytest.approx(3 * STEP)


def test_a_copy_that_differs_is_named_and_quarantined(shards: Shards) -> None:
    machine = shards.trio[3].group.machine
    machine._hash ^= 1
    assert shards.audit(2) == {**ALL_EQUAL, "n3": (DIFFERS, "")}
    shards.carry()
    assert shards.shards[3].refetched == ["g"]
    assert shards.shards[1].audits.of["g"].mismatches == 1
    found = shards.audit(2)
    assert found["n3"][0] == NOT_COMPARED
    assert "quarantined" in found["n3"][1]


def test_a_leader_that_differs_is_named_and_quarantined(shards: Shards) -> None:
    shards.trio[1].group.machine._hash ^= 1
    assert shards.audit(3) == {**ALL_EQUAL, "n1": (DIFFERS, "")}
    assert shards.shards[1].refetched == ["g"]


def test_a_member_that_lags_comes_as_far_as_the_leader_or_says_that_it_is_behind(
    shards: Shards,
) -> None:
    shards.trio.cut = {3}
    shards.publish()
    begun = shards.now
    found = shards.audit(1)
    assert found["n3"] == (NOT_COMPARED, "it is 1 entries behind")
    assert (found["n1"], found["n2"]) == ((EQUAL, ""), (EQUAL, ""))
    assert MEMBER_SECONDS_MAX <= shards.now - begun <= AUDIT_SECONDS_MAX
    answers: list[Any] = []
    shards.shards[1].commands.commands()["audit"]({"group": "g"}, answers.append)
    shards.carry()
    shards.trio.cut = set()
    shards.trio.tick()
    for shard in reversed(shards.shards.values()):
        shard.commands.housekeeping()
        shards.carry()
    shards.shards[1].commands.housekeeping()
    assert {row.verdict for row in AuditListing.from_body(answers[0]).rows} == {EQUAL}


def test_a_member_that_is_away_or_does_not_answer_holds_nobody_up(shards: Shards) -> None:
    shards.away = {2}
    assert shards.audit(1)["n2"] == (NOT_COMPARED, "it is not connected")
    shards.away, shards.held = set(), {2}
    assert shards.audit(1)["n2"] == (NOT_COMPARED, "it did not answer in time")


def test_without_a_majority_nobody_but_the_leader_is_believed() -> None:
    members = Membership((1, 2, 3), (4,))
    assert deviating(1, members, {1: 7, 2: 7, 3: 7, 4: 7}) == []
    assert deviating(1, members, {1: 7, 2: 8, 3: 9, 4: 7}) == [2, 3]
    assert deviating(1, members, {1: 7, 2: 8, 3: "it is away", 4: 8}) == [
        2,
        4,
    ]  # a learner has no say
    assert deviating(1, members, {1: 7, 2: 8, 3: 8, 4: 8}) == [1]
