"""What sessions count: messages and what became of them, once each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from fluxmq.protocols.amqp091.confirms import ConfirmWindow
from fluxmq.protocols.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicReject,
    ConfirmSelect,
    QueueDeclare,
    TxCommit,
    TxRollback,
    TxSelect,
)
from fluxmq.sessions.amqp091.publishing import count_nacked
from tests.unit.sessions.amqp091.memory import MemoryBroker, Peer
from tests.unit.sessions.amqp091.scripts import Publish, Step, play

NAMES = (
    *("published", "published_bytes", "returned", "delivered", "redelivered", "got", "got_empty"),
    *("replies", "acknowledged", "requeued", "rejected", "confirmed", "nacked"),
    *("committed", "rolled_back"),
)
QUEUE = QueueDeclare("q")
FULL = QueueDeclare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
REPLIES = "amq.rabbitmq.reply-to"


class Counted(NamedTuple):
    """What is counted after these steps; all other counts are 0."""

    name: str
    steps: Sequence[Step]
    counts: dict[str, int]


def three(**more: Any) -> list[Step]:
    """Three messages in a queue."""
    return [QUEUE, *(Publish("", "q", b"abc", **more) for _ in range(3))]


TAKEN = {"published": 3, "published_bytes": 9, "delivered": 3}
CASES = [
    Counted("published", three(), {"published": 3, "published_bytes": 9}),
    Counted("to nowhere", [Publish("", "q")], {"published": 1, "published_bytes": 1}),
    Counted(
        "returned",
        [Publish("", "q", mandatory=True)],
        {"published": 1, "published_bytes": 1, "returned": 1},
    ),
    Counted("refused", [Publish("nope", "q")], {}),
    Counted("delivered", [*three(), BasicConsume("q", "t", no_ack=True)], TAKEN),
    Counted(
        "acknowledged",
        [*three(), BasicConsume("q", "t"), BasicAck(1), BasicAck(3, True)],
        {**TAKEN, "acknowledged": 3},
    ),
    Counted("unknown tag", [*three(), BasicConsume("q", "t"), BasicAck(9)], TAKEN),
    Counted(
        "rejected",
        [*three(), BasicConsume("q", "t"), BasicReject(2, False), BasicNack(3, True, False)],
        {**TAKEN, "rejected": 3},
    ),
    Counted(
        "given back",
        [QUEUE, Publish("", "q"), BasicConsume("q", "t"), BasicReject(1, True), BasicAck(2)],
        {
            "published": 1,
            "published_bytes": 1,
            "delivered": 2,
            "redelivered": 1,
            "requeued": 1,
            "acknowledged": 1,
        },
    ),
    Counted(
        "recovered",
        [
            *three(),
            BasicQos(0, 1),
            BasicConsume("q", "t"),
            BasicRecover(True),
        ],
        {
            "published": 3,
            "published_bytes": 9,
            "delivered": 2,
            "redelivered": 1,
            "requeued": 1,
        },
    ),
    Counted(
        "got",
        [QUEUE, Publish("", "q", b""), BasicGet("q"), BasicAck(1), BasicGet("q")],
        {"published": 1, "delivered": 1, "got": 1, "got_empty": 1, "acknowledged": 1},
    ),
    Counted(
        "confirmed",
        [ConfirmSelect(), *three()],
        {"published": 3, "published_bytes": 9, "confirmed": 3},
    ),
    Counted(
        "not confirmed",
        [FULL, ConfirmSelect(), Publish("", "q"), Publish("", "q"), Publish("", "q")],
        {"published": 3, "published_bytes": 3, "confirmed": 1, "nacked": 2},
    ),
    Counted(
        "committed",
        [*three(), TxSelect(), BasicConsume("q", "t"), BasicAck(2, True), TxCommit()],
        {**TAKEN, "acknowledged": 2, "committed": 1},
    ),
    Counted(
        "rolled back",
        [*three(), TxSelect(), BasicConsume("q", "t"), BasicAck(2, True), TxRollback()],
        {**TAKEN, "rolled_back": 1},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_messages_are_counted_once(case: Counted) -> None:
    peer = Peer(MemoryBroker())
    play(peer, case.steps)
    tally = peer.broker.tally
    counts = {name: getattr(tally, f"amqp_{name}") for name in NAMES}
    assert {name: count for name, count in counts.items() if count} == case.counts


def test_replies_are_counted() -> None:
    peer = Peer(MemoryBroker())
    play(peer, [BasicConsume(REPLIES, "r", no_ack=True), QUEUE])
    play(peer, [Publish("", "q", properties={"reply_to": REPLIES}), BasicGet("q", True)])
    (address,) = peer.broker.replies
    play(peer, [Publish("", f"{REPLIES}.{address}"), Publish("", f"{REPLIES}.gone")])
    tally = peer.broker.tally
    assert (tally.amqp_replies, tally.amqp_delivered, tally.amqp_published) == (1, 2, 3)
    assert peer.broker.drops == [("reply_gone", 1)]


def test_bytes_are_those_of_the_frames_that_were_written() -> None:
    peer = Peer(MemoryBroker())
    play(peer, [QUEUE, Publish("", "q", b"x" * 300)])
    peer.receive()
    peer.send(1, BasicGet("q", True))
    peer.tick()
    assert len(peer.connection.out or b"") == peer.broker.tally.amqp_delivered_bytes > 300


@pytest.mark.parametrize(
    ("outcomes", "nacked"),
    [
        ([(1, 3, True)], 0),
        ([(1, 3, False)], 3),
        ([(1, 3, True), (4, 2, False)], 2),
        ([(1, 2, False), (3, 1, True), (4, 5, False)], 7),
        ([(1, 1, True), (2, 4, False), (6, 1, True)], 4),
        ([(2, 2, False), (5, 1, True)], 2),
    ],
)
def test_nacks_are_told_from_acks(outcomes: list[tuple[int, int, bool]], nacked: int) -> None:
    window = ConfirmWindow()
    window.publish(10)
    for first, count, ok in outcomes:
        window.done(first, count, ok)
    answers = window.answers(7)
    answered = 10 - window.unanswered
    assert answered == sum(count for _, count, _ in outcomes)
    assert count_nacked(answers, answered) == nacked
