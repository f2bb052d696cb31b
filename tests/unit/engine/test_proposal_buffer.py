"""In which order, and when, what is asked of a group is proposed."""

from fluxmq.engine.proposal_buffer import ALONE_US, LINGER_US, ProposalBuffer
from fluxmq.queues import commands
from fluxmq.queues.commands import DeadLetterReason, Verb
from fluxmq.queues.results import Result

ENTRY_MAX = 1 << 20
APPEND = b"\1" + bytes(15) + b"batch..."


class Bench:
    """A clock, and what has been joined."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.joined: list[tuple[int, int, int]] = []
        self.asked = ProposalBuffer(lambda: self.now, lambda *claim: self.joined.append(claim))

    def entry(self, *, at_once: bool = False) -> list[bytes]:
        """The commands of the next entry, which is proposed; none while it is not time."""
        if not self.asked.due(at_once=at_once):
            return []
        pieces, answers = self.asked.entry(ENTRY_MAX)
        self.asked.proposed(len(answers))
        return pieces


def done(_result: Result) -> None:
    """Somebody who waits."""


def new(first: int, last: int, holder: int = 7, group: int = 2) -> bytes:
    return commands.claim(1, group, holder, first, last + 1, [(first, last)])


def ack(first: int, last: int, holder: int = 7, group: int = 2) -> bytes:
    return commands.settle(1, group, Verb.ACK, holder, [(first, last)])


def test_an_append_does_not_take_along_what_nobody_waits_for() -> None:
    bench = Bench()
    bench.asked.add_quietly(new(0, 3))
    bench.asked.add((APPEND,), None, len(APPEND))
    assert not bench.asked.lingering
    assert bench.entry() == [APPEND]
    assert bench.asked.lingering
    assert bench.entry() == []
    bench.now += ALONE_US
    assert bench.entry() == [new(0, 3)]
    assert not bench.asked


def test_what_has_let_appends_pass_for_long_enough_goes_with_the_next() -> None:
    bench = Bench()
    bench.asked.add_quietly(new(0, 3))
    bench.now += LINGER_US - 1
    bench.asked.add((APPEND,), None, len(APPEND))
    assert bench.entry() == [APPEND]
    bench.now += 1
    assert bench.entry() == []  # alone it waits for company
    bench.asked.add((APPEND,), None, len(APPEND))
    assert bench.entry() == [APPEND, new(0, 3)]


def test_patience_counts_from_the_first_command() -> None:
    bench = Bench()
    bench.asked.add_quietly(ack(0, 0))
    bench.now += ALONE_US - 1
    bench.asked.add_quietly(ack(5, 5))
    assert bench.entry() == []
    bench.now += 1
    assert bench.entry() == [ack(0, 0), ack(5, 5)]


def test_a_clock_that_was_set_back_ends_patience() -> None:
    bench = Bench()
    bench.asked.add_quietly(ack(0, 0))
    bench.now -= 1
    assert bench.entry() == [ack(0, 0)]


def test_a_group_that_leaves_waits_for_nothing() -> None:
    bench = Bench()
    bench.asked.add_quietly(ack(0, 0))
    assert bench.entry(at_once=True) == [ack(0, 0)]


def test_a_command_with_an_answer_stands_behind_everything_asked_before() -> None:
    bench = Bench()
    bench.asked.add_quietly(new(0, 3))
    bench.asked.add_quietly(ack(0, 1))
    bench.asked.add((APPEND,), done, len(APPEND))
    purge = commands.purge(1)
    bench.asked.add((purge,), done, 0)
    assert bench.entry() == [APPEND, new(0, 3), ack(0, 1), purge]


def test_what_continues_the_last_is_one_command() -> None:
    bench = Bench()
    for first in range(0, 40, 4):
        bench.asked.add_quietly(new(first, first + 3))
        bench.asked.add_quietly(ack(first, first + 1))
        bench.asked.add_quietly(ack(first + 2, first + 3))
    bench.now += ALONE_US
    assert bench.entry() == [new(0, 39), ack(0, 39)]
    assert bench.joined == [(1, 2, first + 4) for first in range(4, 40, 4)]


def test_a_settlement_never_precedes_its_claim() -> None:
    bench = Bench()
    for command in (new(0, 3), ack(0, 3), new(4, 5, holder=8), ack(4, 5, holder=8), new(6, 7)):
        bench.asked.add_quietly(command)
    bench.asked.add_quietly(ack(6, 7))
    bench.now += ALONE_US
    entry = bench.entry()
    assert entry.index(new(4, 5, holder=8)) < entry.index(ack(4, 5, holder=8))
    assert entry[:3] == [new(0, 3), new(4, 5, holder=8), new(6, 7)]
    assert sorted(entry[3:]) == sorted([ack(0, 3), ack(4, 5, holder=8), ack(6, 7)])
    assert bench.joined == []


def test_groups_are_apart() -> None:
    bench = Bench()
    for group in (2, 3):
        bench.asked.add_quietly(new(0, 3, group=group))
        bench.asked.add_quietly(ack(0, 3, group=group))
    bench.asked.add_quietly(new(4, 5, group=2))
    bench.now += ALONE_US
    assert bench.entry() == [
        *(new(0, 5, group=2), new(0, 3, group=3)),
        *(ack(0, 3, group=2), ack(0, 3, group=3)),
    ]


def test_other_commands_keep_their_place() -> None:
    """What is given again, died or left looks at what was settled before it."""
    again = commands.claim(1, 2, 7, 8, 8, [(0, 1)])
    for other in (
        again,
        commands.dead_letter(1, 2, DeadLetterReason.EXPIRED, [(0, 1)]),
        commands.leave(1, "g", 9),
    ):
        bench = Bench()
        for command in (new(0, 3), ack(2, 2), other, new(4, 7), ack(3, 3)):
            bench.asked.add_quietly(command)
        bench.now += ALONE_US
        assert bench.entry() == [new(0, 3), ack(2, 2), other, new(4, 7), ack(3, 3)]
        assert bench.joined == []


def test_what_is_proposed_is_not_joined_any_more() -> None:
    bench = Bench()
    bench.asked.add_quietly(new(0, 3))
    bench.asked.close()
    bench.asked.add_quietly(new(4, 5))
    assert bench.entry() == [new(0, 3)]
    bench.now += ALONE_US
    assert bench.entry() == [new(4, 5)]
    assert bench.joined == []


def test_an_entry_has_a_size() -> None:
    asked = ProposalBuffer(lambda: 0, lambda *_: None)
    for _ in range(3):
        asked.add((APPEND, APPEND), done, 2 * len(APPEND))
    pieces, answers = asked.entry(4 * len(APPEND))
    assert (len(pieces), answers) == (4, [(done, 2 * len(APPEND))] * 2)
    asked.proposed(2)
    pieces, answers = asked.entry(1)  # a single one may be larger
    assert (len(pieces), len(answers)) == (2, 1)
    asked.proposed(1)
    assert not asked.due(at_once=True)


def test_what_is_forgotten_is_told() -> None:
    bench = Bench()
    bench.asked.add((APPEND,), done, len(APPEND))
    bench.asked.add_quietly(ack(0, 0))
    assert bench.asked.clear() == [(done, len(APPEND))]
    assert not bench.asked
