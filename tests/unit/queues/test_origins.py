"""An append that is asked for again after leadership has moved takes effect once, and nothing that was lost counts as done."""

from fluxmq.queues import commands
from fluxmq.queues.config import Overflow, QueueConfig, QueueType
from fluxmq.queues.machine import VERSION, Machine
from fluxmq.queues.origins import ORIGINS_MAX, TRAVELLING_MAX, Identity, Origins
from fluxmq.queues.results import Code
from tests.unit.queues.support import batch_of


def made() -> Machine:
    machine = Machine()
    config = QueueConfig(name="work", type=QueueType.CLASSIC)
    machine.apply(1, 1, commands.encode_entry(1, [commands.declare(config)]))
    return machine


def ask(machine: Machine, index: int, *identities: Identity) -> list[int]:
    """Append one message for each identity, in one entry; what each came to."""
    asked = []
    for identity in identities:
        batch = batch_of([b"%d" % identity.number])
        asked += [commands.append_header_once(1, len(batch), 0, identity), batch]
    applied = machine.apply(index, 1, commands.encode_entry(index, asked))
    return [Code(result.code) for result in applied.results]


def test_what_took_effect_takes_effect_once() -> None:
    machine = made()
    assert ask(machine, 2, Identity(7, 1, 1), Identity(7, 2, 1)) == [Code.OK, Code.OK]
    again = [Identity(7, 1, 1), Identity(7, 2, 1), Identity(7, 3, 1)]
    assert ask(machine, 3, *again) == [Code.DUPLICATE, Code.DUPLICATE, Code.OK]
    queue = machine.queue("work")
    assert queue is not None
    assert queue.next_offset == 3


def test_a_lost_one_is_stored_although_a_later_one_was() -> None:
    machine = made()
    assert ask(machine, 2, Identity(7, 2, 1)) == [Code.OK]
    assert ask(machine, 3, Identity(7, 1, 1), Identity(7, 2, 1)) == [Code.OK, Code.DUPLICATE]


def test_a_refused_one_may_be_tried_again() -> None:
    machine = made()
    full = QueueConfig(
        name="work", type=QueueType.CLASSIC, max_length=1, overflow=Overflow.REJECT_PUBLISH
    )
    free = QueueConfig(name="work", type=QueueType.CLASSIC)
    machine.apply(2, 1, commands.encode_entry(2, [commands.declare(full)]))
    assert ask(machine, 3, Identity(7, 1, 1), Identity(7, 2, 1)) == [Code.OK, Code.FULL]
    machine.apply(4, 1, commands.encode_entry(4, [commands.declare(free)]))
    assert ask(machine, 5, Identity(7, 2, 2)) == [Code.OK]


def test_a_snapshot_has_what_may_come_again() -> None:
    machine = made()
    ask(machine, 2, Identity(7, 1, 1), Identity(9, 1, 1))
    other = Machine()
    other.restore(machine.snapshot())
    assert other.snapshot() == machine.snapshot()
    assert ask(other, 3, Identity(9, 1, 1), Identity(9, 2, 1)) == [Code.DUPLICATE, Code.OK]


def test_only_what_may_come_again_is_remembered() -> None:
    origins = Origins()
    for number in range(1, 1000):
        origins.note(Identity(7, number, max(1, number - 3)))
    assert origins.pack() == [[7, [996, 997, 998, 999]]]


def test_the_origin_unused_for_longest_is_forgotten_first() -> None:
    origins = Origins()
    origins.wide = True
    for origin in range(1, ORIGINS_MAX + 1):
        origins.note(Identity(origin, 1, 1))
    origins.note(Identity(1, 2, 1))
    assert origins.seen(Identity(2, 1, 1))
    assert not origins.seen(Identity(3, 2, 1))
    origins.note(Identity(ORIGINS_MAX + 1, 1, 1))
    assert len(origins) == ORIGINS_MAX
    assert origins.known(Identity(1, 1, 1))
    assert origins.known(Identity(2, 1, 1))
    assert not origins.known(Identity(3, 1, 1))


def test_more_outboxes_than_an_older_version_remembers_are_recognised_after_a_change_of_leader() -> (
    None
):
    """Review, more than 4,096 origins: what so many ask for again is stored once."""
    machine = made()
    machine.apply(2, 1, commands.encode_entry(2, [commands.raise_version(VERSION)]))
    asked = [Identity(origin, 1, 1) for origin in range(1, TRAVELLING_MAX + 2)]
    assert set(ask(machine, 3, *asked)) == {Code.OK}
    other = Machine()
    other.restore(machine.snapshot())
    assert set(ask(other, 4, *asked)) == {Code.DUPLICATE}
    queue = other.queue("work")
    assert queue is not None
    assert queue.next_offset == len(asked)


def test_a_group_that_works_as_an_older_version_forgets_as_its_other_members_do() -> None:
    machine = made()
    machine.apply(2, 1, commands.encode_entry(2, [commands.raise_version(VERSION - 1)]))
    asked = [Identity(origin, 1, 1) for origin in range(1, TRAVELLING_MAX + 2)]
    ask(machine, 3, *asked)
    assert ask(machine, 4, asked[1]) == [Code.DUPLICATE]
    assert machine.origins()[0][0] == 2  # a repetition was no use of it
    assert ask(machine, 5, asked[0]) == [Code.OK]
    assert ask(machine, 6, asked[1]) == [Code.OK]


def test_the_origins_used_last_go_along_with_a_queue() -> None:
    machine = made()
    machine.apply(2, 1, commands.encode_entry(2, [commands.raise_version(VERSION)]))
    ask(machine, 3, *[Identity(origin, 1, 1) for origin in range(1, TRAVELLING_MAX + 4)])
    travelling = machine.origins()
    assert len(travelling) == TRAVELLING_MAX
    assert travelling[-1] == [TRAVELLING_MAX + 3, [1]]
