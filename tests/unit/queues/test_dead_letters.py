"""How messages die, and how the leader hands them out for their dead-letter append."""

from __future__ import annotations

import pytest

from fluxmq.model.batch_format import EXPIRY
from fluxmq.model.message_batch import build_message
from fluxmq.queues import commands
from fluxmq.queues.commands import DeadLetterReason, Verb
from fluxmq.queues.consumers import DeadLetter
from fluxmq.queues.limits import CLAIM_GRANULE
from fluxmq.queues.results import Code
from tests.unit.queues.support import NOW, SECOND, Host, group_of, offsets

LATE = 30 * SECOND + CLAIM_GRANULE


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("grouped", [True, False])
def test_expired_messages_die_without_a_consumer(enabled: bool, grouped: bool) -> None:
    host = Host()
    queue = host.declare(message_ttl=10 * SECOND, dead_letter=enabled)
    if grouped:
        host.do(commands.create_group(queue.id, "g"))
    host.publish(queue, 3)
    host.pass_time(5 * SECOND)
    host.publish(queue, 2)
    assert host.run() == []
    assert host.dispatch.next_due() == NOW + 10 * SECOND
    host.pass_time(5 * SECOND)
    host.run()
    assert queue.start == 3
    assert [(each.offset, each.reason) for each in host.dead] == (
        [(offset, DeadLetterReason.EXPIRED) for offset in range(3)] if enabled else []
    )
    host.pass_time(5 * SECOND)
    host.run()
    assert queue.start == 5


def test_a_messages_own_expiry_counts_if_it_is_sooner() -> None:
    host = Host()
    queue = host.declare(message_ttl=10 * SECOND)
    consumer = host.attach(queue, credit=0)
    own = [NOW + SECOND, 0, NOW + 99 * SECOND, NOW + SECOND]
    host.publish(queue, 4, flags=EXPIRY, eights=[own])
    host.run()
    host.pass_time(2 * SECOND)
    host.dispatch.consumers.credit(consumer, 10)
    assert offsets(host.run()) == [1, 2]
    host.settle(consumer, Verb.RELEASE, (1, 2))
    host.pass_time(8 * SECOND)
    assert host.run() == []
    assert queue.start == 4


def test_an_overdue_message_dies_at_its_delivery_limit() -> None:
    host = Host()
    queue = host.declare(delivery_limit=2, dead_letter=True)
    host.attach(queue)
    host.publish(queue, 1)
    assert host.run() == [("m", 0, 1)]
    host.pass_time(LATE)
    assert host.run() == [("m", 0, 2)]
    host.pass_time(LATE)
    assert host.run() == []
    assert [(each.offset, each.reason, each.attempts) for each in host.dead] == [
        (0, DeadLetterReason.DELIVERY_LIMIT, 2)
    ]


def test_the_dead_are_handed_out_once_and_again_to_a_new_leader() -> None:
    host = Host()
    queue = host.declare(dead_letter=True)
    consumer = host.attach(queue)
    host.publish(queue, 3)
    host.run()
    host.settle(consumer, Verb.REJECT, (0, 1), reason=b"broken")
    host.run()
    letters = host.dead
    assert [(each.offset, each.text, each.target) for each in letters] == [
        (0, b"broken", "$dlq/q"),
        (1, b"broken", "$dlq/q"),
    ]
    host.run()
    assert host.dead == []
    host.lead(2)
    host.run()
    again = host.dead
    assert [each.offset for each in again] == [0, 1]
    assert [each.producer for each in again] == [each.producer for each in letters]
    host.bury_dead()
    host.lead(3)
    host.run()
    assert host.dead == []


def test_a_repeated_dead_letter_append_is_recognised() -> None:
    host = Host()
    queue = host.declare(dead_letter=True)
    target = host.declare("$dlq/q")
    consumer = host.attach(queue)
    host.publish(queue, 1)
    host.run()
    host.settle(consumer, Verb.REJECT, (0, 0))
    codes = []
    for term in (2, 3):
        host.lead(term)
        host.run()
        letter = host.dead[0]
        codes.append(host.do(commands.append(target.id, as_batch(letter)))[0].code)
    assert codes == [Code.OK, Code.DUPLICATE]


def as_batch(letter: DeadLetter) -> bytes:
    """The dead-letter append as the host makes it."""
    return build_message(
        letter.batch.key(letter.index),
        b"",
        letter.batch.payload(letter.index),
        NOW,
        producer=letter.producer,
        sequence=letter.offset,
    )


def test_transfer_ids_differ_by_queue_and_group_and_after_making_a_queue_anew() -> None:
    host = Host()
    seen = set()
    for _ in range(2):
        queue = host.declare()
        for name in ("one", "two"):
            host.do(commands.create_group(queue.id, name))
            seen.add(queue.transfer_producer(group_of(queue, name)))
        host.do(commands.delete(queue.id))
    assert len(seen) == 4


def test_dead_letters_that_could_not_be_stored_come_again_later() -> None:
    host = Host()
    queue = host.declare(dead_letter=True, max_length=1)
    host.publish(queue, 3)
    host.run()
    assert len(host.dead) == 2
    host.dispatch.retry_dead(queue.id, host.now + SECOND)
    host.run()
    assert host.dead == []
    host.pass_time(SECOND)
    host.run()
    assert [each.offset for each in host.dead] == [0, 1]


def test_dead_letters_of_a_run_are_bounded() -> None:
    host = Host()
    queue = host.declare(dead_letter=True, max_length=1)
    host.publish(queue, 11)
    host.flush()
    step = host.dispatch.run(queue.id, host.now, 4)
    assert ([each.offset for each in step.dead], step.more) == ([0, 1, 2, 3], True)
    host.run(4)
    assert [each.offset for each in host.dead] == [4, 5, 6, 7, 8, 9]
