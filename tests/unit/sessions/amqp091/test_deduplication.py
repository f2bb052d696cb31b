"""Messages that say by which name queues recognise them: ``x-deduplication-id``."""

from __future__ import annotations

import pytest

from fluxmq.model.batch_format import PRODUCER
from fluxmq.model.deduplication import producer_number
from fluxmq.protocols.amqp091.methods import (
    BasicGet,
    BasicPublish,
    QueueDeclare,
    TxCommit,
    TxSelect,
)
from fluxmq.queues.producers import identities
from tests.unit.sessions.amqp091.memory import MemoryBroker, Message, Peer
from tests.unit.sessions.amqp091.scripts import (
    Publish,
    Script,
    check,
    closed,
    named,
    play,
    returned,
)


def unnamed(value: object, why: str) -> Script:
    """A value of ``x-deduplication-id`` that names no message."""
    return Script(
        f"x-deduplication-id {value!r}",
        [Publish("", "q", properties={"headers": {"x-deduplication-id": value}})],
        [closed(406, f"invalid message: {why}", BasicPublish)],
    )


NO_NUMBER = "x-deduplication-id: sequence is not a whole number from 0 to 9223372036854775807"
NO_NAME = "x-deduplication-id: the producer's name is empty or too long"
UNNAMED = [
    unnamed("", NO_NAME),
    unnamed("42", NO_NAME),
    unnamed(":42", NO_NAME),
    unnamed("p" * 1025 + ":1", NO_NAME),
    unnamed("p:", NO_NUMBER),
    unnamed("p:-1", NO_NUMBER),
    unnamed("p:٣", NO_NUMBER),
    unnamed(f"p:{1 << 63}", NO_NUMBER),
    unnamed("p:" + "0" * 20, NO_NUMBER),
    unnamed(7, '{unacceptable_type_in_header,"x-deduplication-id",signedint}'),
    unnamed(None, '{unacceptable_type_in_header,"x-deduplication-id",void}'),
]


@pytest.mark.parametrize(**named(UNNAMED))
def test_a_name_that_says_nothing_is_refused(script: Script) -> None:
    check(script)


def test_a_name_by_which_queues_recognise_a_message_is_kept_as_a_number() -> None:
    """And not among the headers, so that messages that differ in it only have the same properties."""
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(1, QueueDeclare("q"))
    peer.receive()
    names = ["job:1/0:41", "job:1/0:42", "", "\ud7ff:0"]
    for name in names:
        headers = {"x-deduplication-id": name} if name else {}
        peer.publish("", "q", headers={"a": 1, **headers, "b": 2})
    peer.publish("", "q", headers={"not-x-deduplication-id": 1})
    batches = [batch for batch, _ in broker.queues["/", "q"].messages.values()]
    blocks = [batch.properties(0) for batch in batches]
    assert blocks[:-1] == [blocks[2]] * len(names)
    job, other = producer_number(b"job:1/0"), producer_number("\ud7ff".encode())
    found = [identities(each)[0] if each.flags & PRODUCER else None for each in batches]
    assert found == [(job, 41), (job, 42), None, (other, 0), None]
    for name in names:
        peer.send(1, BasicGet("q", True))
        (got,) = peer.got()
        assert isinstance(got, Message)
        assert got.properties.headers == {"a": 1, "b": 2}, name


def test_what_is_returned_says_its_name() -> None:
    headers = {"x-deduplication-id": "p:1", "a": 1}
    publish = Publish("", "q", mandatory=True, properties={"headers": headers})
    check(Script("returned", [publish], [returned("", "q", headers=headers)]))


def test_in_a_transaction_names_count_too() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    publish = Publish("", "q", properties={"headers": {"x-deduplication-id": "p:1"}})
    play(peer, [QueueDeclare("q"), TxSelect(), publish, TxCommit()])
    (batch,) = [batch for batch, _ in broker.queues["/", "q"].messages.values()]
    assert identities(batch) == [(producer_number(b"p"), 1)]
