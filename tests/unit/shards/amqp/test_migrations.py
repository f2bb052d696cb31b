"""Moves of queues between two groups of one shard: to the end, aborted, and gone on with by whoever leads next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import pytest

from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.memory import MemoryDriver, MemoryStores
from fluxmq.model.outcomes import Outcome
from fluxmq.queues import migration
from fluxmq.queues.commands import CommandKind, Verb
from fluxmq.queues.config import QueueConfig, QueueType
from fluxmq.queues.consumers import ConsumerTerms
from fluxmq.queues.results import Code, Result
from fluxmq.queues.states import QueueState as State
from fluxmq.routing.topology.changes import (
    AbortMigration,
    AddVhost,
    Change,
    DeclareQueue,
    DropOwner,
    FinishMigration,
    MigrateQueue,
)
from fluxmq.routing.topology.queue_config import TYPES
from fluxmq.routing.topology.records import QueueRecord, Vhost
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import Topology
from fluxmq.shards.amqp import migrations, sync_limits
from fluxmq.shards.amqp.migrations import FENCED_SECONDS_MAX, LATER_SECONDS, QueueMigrations
from fluxmq.shards.amqp.sync_limits import SyncLimits
from tests.unit.queues.support import NOW, singles

MESSAGES = 50
Done = Callable[[Refusal | None], None]


class Link:
    """The way to another group: commands wait in it until the test lets them pass."""

    def __init__(self, groups: dict[str, ReplicationGroup]) -> None:
        self.waiting: deque[tuple[str, str, int, bytes, Callable[[Result], None]]] = deque()
        self._groups = groups

    def carry(
        self, group: str, queue: str, kind: int, body: bytes, done: Callable[[Result], None]
    ) -> None:
        """Wait."""
        self.waiting.append((group, queue, kind, body, done))

    @property
    def kinds(self) -> list[int]:
        """What waits."""
        return [kind for _, _, kind, _, _ in self.waiting]

    def pass_on(self, count: int = 1) -> None:
        """Let commands pass."""
        for _ in range(count):
            group, queue, kind, body, done = self.waiting.popleft()
            self._groups[group].carry(queue, kind, body, done)


class Shard:
    """A shard that leads the groups `hot` and `cold`, or what the test has instead of that; changes are decided when the test
    says so."""

    def __init__(
        self, kind: str = "quorum", cold: str = "cold", limits: SyncLimits | None = None
    ) -> None:
        self.now = 100.0
        self.limits = limits or SyncLimits(4096, 0)
        self.cold = cold
        self.topology = Topology()
        self.topology.apply(AddVhost(Vhost("/")))
        row = QueueRecord("/", "q", kind, durable=True, group="hot")
        self.topology.apply(DeclareQueue(row))
        self.groups = {name: self._group(name) for name in ("hot", cold)}
        self.reachable = True
        self.link: Link | None = None
        self.waiting: list[tuple[list[Change], Done]] = []
        self.elections = 1
        self.lead()
        self._declare(row)
        self.tick()

    def _group(self, name: str) -> ReplicationGroup:
        group = ReplicationGroup(
            name,
            MemoryStores(),
            lambda _group: None,
            lambda _group, _dead: None,
            lambda: NOW,
            1,
            1 << 20,
        )
        group.driver = MemoryDriver(group)
        group.asked.linger_us = group.asked.alone_us = 0
        group.lead()
        return group

    def lead(self) -> None:
        """Begin to lead both: what was known of moves is gone."""
        self.elections += 1
        self.migrations = QueueMigrations(
            lambda: self.topology,
            lambda changes, done: self.waiting.append((changes, done)),
            self._led,
            self._carrier,
            self._declare,
            lambda group: group.removesuffix("@here"),
            lambda: self.now,
            self.limits,
        )
        self.migrations.changed(self.topology.snapshot().rows)

    def _led(self, _attended: bool) -> Iterator[tuple[ReplicationGroup, int]]:
        return iter([(group, self.elections) for group in self.groups.values()])

    def _carrier(self, group: str) -> Link | ReplicationGroup | None:
        if not self.reachable:
            return None
        return self.link or self.groups[group]

    def _declare(self, row: QueueRecord) -> None:
        self.groups[row.group].declare(QueueConfig(row.name, TYPES[row.type]))

    def tick(self, seconds: float = 0.0) -> None:
        """What groups were asked is done, and moves go on."""
        self.now += seconds
        self._work()
        self.migrations.step()
        self._work()

    def _work(self) -> None:
        for _ in range(5):
            for group in self.groups.values():
                group.propose()
                group.work()

    def change(self, *changes: Change) -> None:
        """Change the topology."""
        self.migrations.changed(self.topology.apply_all(changes).rows)

    def decide(self, kind: type[Change] | None = None) -> list[Change]:
        """Make the changes that were asked for, or only those of a kind; what they were."""
        waiting, self.waiting = self.waiting, []
        made: list[Change] = []
        for changes, done in waiting:
            if kind is not None and not isinstance(changes[0], kind):
                self.waiting.append((changes, done))
                continue
            made += changes
            try:
                self.change(*changes)
            except Refusal as refusal:
                done(refusal)
            else:
                done(None)
        return made

    def publish(self, *bodies: bytes) -> list[int]:
        """Append where the queue is; the answers."""
        answers: list[int] = []
        group = self.groups[self.where]
        for batch in singles(bodies):
            group.append("q", batch, answers.append)
        self.tick()
        return answers

    @property
    def where(self) -> str:
        """The group that the row names."""
        row = self.topology.queue("/", "q")
        assert row is not None
        return row.group

    def state(self, group: str) -> State | None:
        """The queue in a group."""
        return self.groups[group].machine.queue("q")

    def move(self, becomes: str = "") -> None:
        """Have it moved."""
        self.change(MigrateQueue("/", "q", "hot", self.cold, "beef", becomes))

    def run(self) -> None:
        """Go on until nothing happens any more."""
        for _ in range(20):
            self.tick(1.0)
            self.decide()

    def check(self, group: str) -> None:
        """The queue is in this group, whole, and nothing of it in the other."""
        (other,) = {"hot", self.cold} - {group}
        assert self.where == group
        assert self.state(other) is None
        state = self.state(group)
        assert state is not None
        assert not state.closed
        store = self.groups[group].logs[state.id]
        batches = [store.read(offset) for offset in range(MESSAGES)]
        bodies = [each.payload(offset - each.base_offset) for offset, each in enumerate(batches)]
        assert bodies == [b"%d" % number for number in range(MESSAGES)]
        assert self.publish(b"more") == [0]


@pytest.fixture
def shard() -> Shard:
    """A shard with messages."""
    made = Shard()
    assert made.publish(*(b"%d" % number for number in range(MESSAGES))) == [0] * MESSAGES
    return made


def until(shard: Shard, phase: str) -> None:
    """Go on until the move says that it is in this phase, with nothing decided."""
    for _ in range(20):
        if shard.migrations.progress("q").startswith(phase):
            return
        shard.tick(0.01)
    raise AssertionError(f"{phase} was never reached: {shard.migrations.progress('q')}")


def test_a_queue_is_moved(shard: Shard) -> None:
    shard.move()
    until(shard, "deciding")
    # Whole in both places, and taken in neither, until it is decided.
    assert shard.publish(b"now") == [Outcome.FENCED]
    assert shard.where == "hot"
    assert shard.decide(FinishMigration) == [FinishMigration("/", "q", "beef")]
    shard.run()
    shard.check("cold")
    assert shard.migrations.progress("q") == ""


def test_what_is_published_while_it_is_copied_comes_along(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_limits, "WINDOW_BYTES", 1)  # one batch at a time
    link = shard.link = Link(shard.groups)
    shard.move()
    link.pass_on()
    shard.tick()
    assert link.kinds == [CommandKind.IMPORT]
    assert shard.publish(b"meanwhile") == [0]
    for _ in range(MESSAGES + 2):
        link.pass_on()
        shard.tick()
    assert shard.migrations.progress("q") == "deciding, 0 messages left"
    shard.run()
    state = shard.state("cold")
    assert state is not None
    assert shard.groups["cold"].logs[state.id].read(MESSAGES).payload(0) == b"meanwhile"
    shard.check("cold")


@pytest.mark.parametrize("phase", ["copying", "deciding"])
def test_an_abort_leaves_the_queue_as_it_was(shard: Shard, phase: str) -> None:
    if phase == "copying":
        shard.reachable = False
    shard.move()
    until(shard, phase)
    shard.change(AbortMigration("/", "q"))
    shard.run()  # the decision that was asked for comes too late
    shard.check("hot")


@pytest.mark.parametrize("ticks", range(8))
def test_a_classic_queue_becomes_a_quorum_queue_whoever_leads_it_meanwhile(ticks: int) -> None:
    shard = Shard("classic")
    shard.publish(*(b"%d" % number for number in range(MESSAGES)))
    shard.move("quorum")
    for _ in range(ticks):
        shard.tick(0.01)
    there = shard.state("hot")
    assert there is not None
    assert there.config.type == QueueType.CLASSIC
    shard.lead()
    shard.run()
    shard.check("cold")
    row, state = shard.topology.queue("/", "q"), shard.state("cold")
    assert row is not None
    assert state is not None
    assert (row.type, state.config.type) == ("quorum", QueueType.QUORUM)


@pytest.mark.parametrize("phase", ["copying", "deciding"])
def test_a_change_of_type_that_is_aborted_leaves_a_classic_queue(phase: str) -> None:
    shard = Shard("classic")
    shard.publish(*(b"%d" % number for number in range(MESSAGES)))
    if phase == "copying":
        shard.reachable = False
    shard.move("quorum")
    until(shard, phase)
    shard.change(AbortMigration("/", "q"))
    shard.run()
    shard.check("hot")
    shard.reachable = True
    # What is left of it at the target is no part of another move.
    shard.change(MigrateQueue("/", "q", "hot", "cold", "cafe"))
    shard.run()
    assert shard.where == "cold"
    state = shard.state("cold")
    assert state is not None
    assert state.config.type == QueueType.CLASSIC


@pytest.mark.parametrize("ticks", range(8))
def test_whoever_leads_next_goes_on(shard: Shard, ticks: int) -> None:
    shard.move()
    for _ in range(ticks):
        shard.tick(0.01)
    shard.lead()
    shard.run()
    shard.check("cold")


def test_a_move_whose_decision_is_lost_is_gone_on_with(shard: Shard) -> None:
    shard.move()
    until(shard, "deciding")
    ((_, done),) = shard.waiting
    shard.waiting.clear()
    done(Refusal(541, "control is away"))
    shard.tick(FENCED_SECONDS_MAX * 2)
    state = shard.state("hot")
    assert state is not None
    assert state.closed  # it may have been decided: nobody opens it
    shard.run()
    shard.check("cold")


def test_a_queue_that_waits_for_too_long_is_opened_and_moved_later(shard: Shard) -> None:
    link = shard.link = Link(shard.groups)
    shard.move()
    while link.kinds != [CommandKind.INSTALL]:
        link.pass_on()
        shard.tick()
    assert shard.publish(b"held up") == [Outcome.FENCED]
    shard.tick(FENCED_SECONDS_MAX + 0.01)
    shard.tick()
    assert shard.publish(b"more") == [0]
    link.pass_on()  # what was asked for is no reason to decide any more
    shard.tick()
    assert shard.waiting == []
    shard.link = None
    link.pass_on(len(link.waiting))
    shard.run()
    assert shard.now < 100 + LATER_SECONDS + 21
    shard.check("cold")


def test_what_arrived_is_given_up_only_when_it_is_certain_that_it_may(shard: Shard) -> None:
    cold = shard.groups["cold"]
    config = QueueConfig("q")
    results: list[Result] = []
    cold.carry("q", CommandKind.ADOPT, migration.adopt_body(config, 0, 0xBEEF), results.append)
    shard.tick()
    shard.tick()
    assert results == [Result(Code.OK, 0)]
    # This shard has not heard of the move yet: that it asks shows.
    assert [changes for changes, _ in shard.waiting] == [[DropOwner("")]]
    ((_, done),) = shard.waiting
    shard.waiting.clear()
    shard.move()
    done(None)
    shard.tick()
    assert shard.state("cold") is not None
    shard.run()
    shard.check("cold")


def test_what_arrived_of_no_move_goes(shard: Shard) -> None:
    body = migration.adopt_body(QueueConfig("q"), 0, 0xDEAD)
    shard.groups["cold"].carry("q", CommandKind.ADOPT, body, lambda _result: None)
    shard.run()
    assert shard.state("cold") is None
    shard.check("hot")


def test_too_much_to_take_along_ends_the_move(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "STATE_BYTES_MAX", 10)
    shard.move()
    shard.run()
    shard.check("hot")


def test_what_is_consumed_while_it_is_copied_need_not_be_copied(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_limits, "WINDOW_BYTES", 1)
    hot, state = shard.groups["hot"], shard.state("hot")
    assert state is not None
    consumer, needed = hot.dispatch.consumers.attach(state.id, ConsumerTerms("g", "m"))
    for command in needed:
        hot.submit((command,))
    shard.tick()
    link = shard.link = Link(shard.groups)
    shard.move()
    link.pass_on()
    shard.tick()
    hot.settle(consumer, Verb.ACK, [(0, MESSAGES - 1)], -1, b"", None)
    shard.tick()
    assert state.start == MESSAGES
    carried = []
    for _ in range(5):
        if link.waiting:
            carried += link.kinds
            link.pass_on()
        shard.tick()
    assert carried == [CommandKind.IMPORT, CommandKind.ADOPT, CommandKind.INSTALL]
    shard.run()
    moved = shard.state("cold")
    assert shard.where == "cold"
    assert moved is not None
    assert (moved.start, moved.next_offset, moved.ready()) == (MESSAGES, MESSAGES, 0)
    assert shard.publish(b"next") == [0]
