"""Two commands as one do to the machine what the two did; what does not follow stays two."""

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.queues import claim_merge, commands
from fluxmq.queues.commands import Mode, Verb, encode_entry
from fluxmq.queues.config import QueueConfig, QueueType
from fluxmq.queues.machine import Machine
from tests.unit.queues.support import batch_of

CLAIM = commands.claim(1, 2, 7, 10, 13, [(10, 12)])


def test_claims_of_new_messages_that_follow_each_other_are_one() -> None:
    both = claim_merge.joined_claim(CLAIM, commands.claim(1, 2, 7, 13, 20, [(13, 19)]))
    assert both == commands.claim(1, 2, 7, 10, 20, [(10, 19)])
    assert claim_merge.target_of(both) == (1, 2, 20)
    assert claim_merge.takes_new_only(both)


def test_claims_that_do_not_follow_stay_two() -> None:
    for following in (
        commands.claim(1, 2, 8, 13, 20, [(13, 19)]),  # another consumer's
        commands.claim(1, 3, 7, 13, 20, [(13, 19)]),  # another group's
        commands.claim(2, 2, 7, 13, 20, [(13, 19)]),  # another queue's
        commands.claim(1, 2, 7, 13, 20, [(14, 19)]),  # one was passed over
        commands.claim(1, 2, 7, 14, 20, [(14, 19)]),  # the cursor was elsewhere
        commands.claim(1, 2, 7, 13, 13, [(3, 4)]),  # given again
        commands.claim(1, 2, 7, 13, 20, [(13, 14), (16, 19)]),
        commands.claim(1, 2, 7, 13, 20, [(13, 18)], [(19, 19, 5)]),
        commands.claim(1, 2, 0, 13, 20, [], [(13, 19, 5)]),
        commands.settle(1, 2, Verb.ACK, 7, [(13, 19)]),
    ):
        assert claim_merge.joined_claim(CLAIM, following) is None
    again = commands.claim(1, 2, 7, 10, 10, [(3, 9)])
    assert claim_merge.joined_claim(again, commands.claim(1, 2, 7, 10, 12, [(10, 11)])) is None
    assert not claim_merge.takes_new_only(again)
    assert not claim_merge.takes_new_only(commands.claim(1, 2, 7, 13, 20, [(13, 14), (16, 19)]))


def test_settlements_that_follow_each_other_are_one() -> None:
    first = commands.settle(1, 2, Verb.ACK, 7, [(3, 5)])
    both = claim_merge.joined_settlement(first, commands.settle(1, 2, Verb.ACK, 7, [(6, 9)]))
    assert both == commands.settle(1, 2, Verb.ACK, 7, [(3, 9)])


def test_settlements_that_differ_stay_two() -> None:
    first = commands.settle(1, 2, Verb.NACK, 7, [(3, 5)], 50)
    for following in (
        commands.settle(1, 2, Verb.ACK, 7, [(6, 9)], 50),
        commands.settle(1, 2, Verb.NACK, 8, [(6, 9)], 50),
        commands.settle(1, 2, Verb.NACK, 7, [(6, 9)], 51),
        commands.settle(1, 2, Verb.NACK, 7, [(7, 9)], 50),
        commands.settle(1, 3, Verb.NACK, 7, [(6, 9)], 50),
        commands.settle(1, 2, Verb.NACK, 7, [(6, 9)], 50, b"why"),
        commands.settle(1, 2, Verb.NACK, 7, [(6, 9), (11, 12)], 50),
    ):
        assert claim_merge.joined_settlement(first, following) is None


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), st.data())
def test_the_machine_cannot_tell(sizes: list[int], data: st.DataObject) -> None:
    total = sum(sizes)
    apart, together = Machine(), Machine()
    setup = [
        commands.declare(QueueConfig("work", QueueType.CLASSIC)),
        commands.create_group(1, "g", Mode.WORK),
        commands.join(1, "g", 7, "member"),
        commands.append(1, batch_of([b"x"] * total)),
    ]
    claims, settlements, cursor = [], [], 0
    for size in sizes:
        claims.append(commands.claim(1, 1, 7, cursor, cursor + size, [(cursor, cursor + size - 1)]))
        settlements.append(commands.settle(1, 1, Verb.ACK, 7, [(cursor, cursor + size - 1)]))
        cursor += size
    settled = data.draw(st.integers(1, len(sizes)))
    claim, settlement = claims[0], settlements[0]
    for following in claims[1:]:
        claim = claim_merge.joined_claim(claim, following) or b""
    for following in settlements[1:settled]:
        settlement = claim_merge.joined_settlement(settlement, following) or b""
    for machine, asked in (
        (apart, [*claims, *settlements[:settled]]),
        (together, [claim, settlement]),
    ):
        machine.apply(1, 1, encode_entry(1_000, setup))
        machine.apply(2, 1, encode_entry(2_000, asked))
    one, other = apart.queues[1], together.queues[1]
    assert (one.start, one.groups[1].cursor) == (other.start, other.groups[1].cursor)
    assert one.groups[1].pending.pack() == other.groups[1].pending.pack()
