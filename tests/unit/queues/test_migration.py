"""A queue moves from one group's machine to another's: what it is arrives whole, once, and nobody has it twice."""

from __future__ import annotations

from dataclasses import replace

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.engine.batch_slices import cut
from fluxmq.queues import commands, migration
from fluxmq.queues.commands import CommandKind, Verb
from fluxmq.queues.config import QueueConfig, QueueType
from fluxmq.queues.machine import Machine
from fluxmq.queues.origins import Identity
from fluxmq.queues.results import Code, Result
from fluxmq.queues.states import QueueState
from tests.unit.queues.support import SECOND, Host, batch_of, singles

MOVE = 0xABCDEF
NOBODY = 0


class Moving:
    """A group that a queue is in, another, and what is done to move it."""

    def __init__(self, **config: object) -> None:
        self.here, self.there = Host(), Host()
        self.queue = self.here.declare("q", **config)
        self.there.declare("other")  # ids differ

    def carry(self, kind: CommandKind, body: bytes) -> Result:
        """A command about the queue, there."""
        found = self.there.machine.queue("q")
        queue_id = 0 if found is None or kind == CommandKind.ADOPT else found.id
        return self.there.do(b"".join(migration.command(kind, queue_id, body)))[0]

    def adopt(self, base: int | None = None, move: int = MOVE) -> Result:
        """Begin there."""
        kept = self.queue.kept
        holding = [each for each in self.here.log[self.queue.id] if each.last_offset >= kept]
        first = base if base is not None else holding[0].base_offset if holding else kept
        return self.carry(CommandKind.ADOPT, migration.adopt_body(self.queue.config, first, move))

    def batches(self) -> list[bytes]:
        """Batches as they are stored here."""
        return [cut(each, 0, each.count) for each in self.here.log[self.queue.id]]

    def copy(self, first: int = 0, move: int = MOVE) -> list[Result]:
        """Send the batches from one on."""
        return [
            self.carry(CommandKind.IMPORT, migration.import_body(move, batch))
            for batch in self.batches()[first:]
        ]

    def fence(self) -> int:
        """Close it here."""
        (result,) = self.here.do(commands.fence(self.queue.id))
        assert result.code == Code.OK
        return result.value

    def install(self, fence: int, move: int = MOVE) -> Result:
        """Send everything else."""
        origins = self.here.machine.origins()
        return self.carry(
            CommandKind.INSTALL, migration.install_body(move, fence, self.queue, origins)
        )

    def declare(self) -> Result:
        """It is there from now on."""
        return self.there.do(commands.declare(self.queue.config))[0]

    def move(self) -> QueueState:
        """All of it; the queue there."""
        self.adopt()
        self.copy()
        assert self.install(self.fence()).code == Code.OK
        assert self.declare().code == Code.EXISTS
        found = self.there.machine.queue("q")
        assert found is not None
        return found


def known(queue: QueueState) -> object:
    """Everything that a queue is, but its id and its moves."""
    return queue.pack()[1:11]


def test_everything_that_a_queue_is_arrives() -> None:
    case = Moving(dead_letter=True, max_retries=0)
    here = case.here
    here.publish(case.queue, 10)
    consumer = here.attach(case.queue, limit=6)
    assert len(here.run()) == 6
    here.settle(consumer, Verb.ACK, (0, 1), (3, 3))
    here.settle(consumer, Verb.NACK, (4, 4))  # dead
    moved = case.move()
    assert known(moved) == known(case.queue)
    assert (moved.start, moved.next_offset) == (2, 10)
    there = case.there
    there.attach(moved, "n")
    # What was held comes again, counted as such; what was settled does not.
    expected = [("n", offset, 2) for offset in (2, 5)]
    expected += [("n", offset, 1) for offset in (6, 7, 8, 9)]
    given = there.run()
    assert sorted(given) == sorted(expected)
    assert [dead.offset for dead in there.dead] == [4]


def test_a_queue_of_another_type_counts_deliveries_anew() -> None:
    """It has a limit that its messages were not subject to: none may be dead at once."""
    case = Moving()
    here = case.here
    here.publish(case.queue, 3)
    consumer = here.attach(case.queue, limit=2)
    for _ in range(4):
        assert len(here.run()) == 2
        here.settle(consumer, Verb.RELEASE, (0, 1))
    quorum = replace(case.queue.config, type=QueueType.QUORUM, delivery_limit=3)
    case.carry(CommandKind.ADOPT, migration.adopt_body(quorum, 0, MOVE))
    case.copy()
    fence, origins = case.fence(), here.machine.origins()
    body = migration.install_body(MOVE, fence, case.queue, origins, QueueType.QUORUM)
    assert case.carry(CommandKind.INSTALL, body).code == Code.OK
    assert case.there.do(commands.declare(case.queue.config))[0].code == Code.CONFLICT
    assert case.there.do(commands.declare(quorum))[0].code == Code.EXISTS
    moved = case.there.machine.queue("q")
    assert moved is not None
    assert moved.config == quorum
    case.there.attach(moved, "n")
    # Known to have been delivered, but not how often.
    assert sorted(case.there.run()) == [("n", 0, 2), ("n", 1, 2), ("n", 2, 1)]


def test_a_stream_is_read_on_where_it_was() -> None:
    case = Moving(type=2)
    case.here.publish(case.queue, 5)
    case.here.do(
        commands.create_group(case.queue.id, "readers", 1, b"", commands.FIRST),
        commands.commit(case.queue.id, 1, 3),
    )
    moved = case.move()
    group = moved.group("readers")
    assert group is not None
    assert group.cursor == 3
    assert moved.start == 0


def test_a_fenced_queue_takes_and_gives_nothing_until_it_is_opened() -> None:
    case = Moving()
    here, queue = case.here, case.queue
    here.publish(queue, 3)
    consumer = here.attach(queue, limit=2)
    assert len(here.run()) == 2
    before = case.fence()
    assert case.fence() == before
    assert [each.member for each in here.dispatch.consumers.cancelled()] == ["m"]
    refused = here.do(
        commands.append(queue.id, batch_of([b"no"])),
        commands.settle(queue.id, 1, Verb.ACK, consumer.holder, [(0, 1)]),
        commands.claim(queue.id, 1, consumer.holder, 2, 3, [(2, 2)]),
        commands.join(queue.id, "g", 9, "late"),
        commands.purge(queue.id),
        commands.sweep(queue.id),
    )
    assert {result.code for result in refused} == {Code.CLOSED}
    assert (queue.next_offset, queue.ready(), queue.consumers()) == (3, 3, 0)
    assert here.run() == []
    here.do(commands.unfence(queue.id))
    here.attach(queue, "again")
    assert here.run() == [("again", 0, 2), ("again", 1, 2), ("again", 2, 1)]


def test_an_append_that_had_taken_effect_before_the_fence_is_not_stored_again_there() -> None:
    case = Moving()
    batch = batch_of([b"1"])
    once = commands.append_header_once(case.queue.id, len(batch), 0, Identity(7, 5, 1)) + batch
    case.here.do(once)
    moved = case.move()

    def ask(number: int, floor: int) -> Result:
        header = commands.append_header_once(moved.id, len(batch), 0, Identity(7, number, floor))
        return case.there.do(header + batch)[0]

    assert (
        ask(9, 9).code == Code.OK
    )  # a later one, which says that nothing below comes again to this group
    assert ask(5, 5).code == Code.DUPLICATE
    assert ask(6, 6).code == Code.OK
    assert moved.next_offset == 3


def test_a_batch_is_imported_once_and_in_its_place() -> None:
    case = Moving()
    for batch in singles([b"0", b"1", b"2"]):
        case.here.do(commands.append(case.queue.id, batch))
    assert case.adopt() == Result(Code.OK, 0)
    assert case.copy(first=1)[0] == Result(Code.OUT_OF_RANGE, 0)
    assert [result.code for result in case.copy()] == [Code.OK] * 3
    assert all(result == Result(Code.DUPLICATE, 3) for result in case.copy())
    assert case.copy(move=MOVE + 1)[0].code == Code.CONFLICT
    assert case.adopt() == Result(Code.EXISTS, 3)  # whoever leads next goes on there
    assert case.adopt(base=3) == Result(Code.EXISTS, 3)
    assert case.adopt(base=4) == Result(Code.OK, 4)  # what lies between is not needed any more
    assert case.adopt(base=0, move=MOVE + 1) == Result(Code.OK, 0)


def test_what_has_not_arrived_whole_is_not_the_queue() -> None:
    case = Moving()
    case.here.publish(case.queue, 2)
    case.here.publish(case.queue, 2)
    case.adopt()
    fence = case.fence()
    assert case.install(fence).code == Code.OUT_OF_RANGE
    assert case.declare().code == Code.CLOSED
    case.copy()
    assert case.declare().code == Code.CLOSED
    assert case.install(fence).code == Code.OK
    arriving = case.there.machine.queue("q")
    assert arriving is not None
    stored = case.there.do(commands.append(arriving.id, batch_of([b"early"])))
    assert stored[0].code == Code.CLOSED
    assert case.declare().code == Code.EXISTS
    assert case.there.publish(arriving, 1)[0].ok
    assert case.adopt().code == Code.CONFLICT  # a queue that lives is not written over


def test_what_was_installed_is_not_replaced_by_what_was_true_before() -> None:
    case = Moving()
    here, queue = case.here, case.queue
    here.publish(queue, 4)
    case.adopt()
    case.copy()
    early = case.fence()
    late = migration.install_body(MOVE, early, queue, here.machine.origins())
    here.do(commands.unfence(queue.id))
    consumer = here.attach(queue)
    here.run()
    here.settle(consumer, Verb.ACK, (0, 3))
    assert case.install(case.fence()).code == Code.OK
    assert case.carry(CommandKind.INSTALL, late).code == Code.STALE
    case.declare()
    moved = case.there.machine.queue("q")
    assert moved is not None
    assert moved.ready() == 0


def test_more_than_was_installed_makes_it_incomplete_again() -> None:
    case = Moving()
    case.here.publish(case.queue, 1)
    case.adopt()
    case.copy()
    case.install(case.fence())
    case.here.do(commands.unfence(case.queue.id))
    case.here.publish(case.queue, 1)
    case.copy()
    assert case.declare().code == Code.CLOSED


def test_a_snapshot_knows_every_phase() -> None:
    case = Moving()
    case.here.publish(case.queue, 3)
    for step in (case.adopt, case.copy, lambda: case.install(case.fence()), case.declare):
        step()
        for host in (case.here, case.there):
            again = Machine()
            again.restore(host.machine.snapshot())
            assert again.snapshot() == host.machine.snapshot()
            assert again.closed == host.machine.closed
            closed = {each.id for each in again.queues.values() if each.closed}
            assert closed == host.machine.closed
    # A queue that never moved is stored as it always was.
    other = case.there.machine.queue("other")
    assert other is not None
    assert len(other.pack()) == 12


def test_a_queue_that_moves_does_not_expire_and_loses_no_time() -> None:
    case = Moving(expires=SECOND)
    case.here.publish(case.queue, 1)
    case.fence()
    case.here.pass_time(60 * SECOND)
    assert case.here.do(commands.sweep(case.queue.id))[0].code == Code.CLOSED
    assert case.here.machine.queue("q") is case.queue


@pytest.mark.parametrize("body", [[MOVE], [MOVE, 1, [1, 2], []], [MOVE, 1, "text", []]])
def test_a_damaged_body_stops_the_machine(body: list[object]) -> None:
    case = Moving()
    case.adopt()
    packed = msgpack.packb(body)
    raw = len(packed).to_bytes(4, "little") + packed
    with pytest.raises(commands.CommandError):
        case.carry(CommandKind.INSTALL, raw + bytes(-len(raw) % 8))


def test_the_config_is_the_queues() -> None:
    case = Moving(max_length=7)
    moved = case.move()
    assert moved.config == QueueConfig("q", max_length=7)
    assert moved.bounded
