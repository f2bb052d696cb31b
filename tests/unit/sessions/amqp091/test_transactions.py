"""Transactions: held, committed when everything is durable, rolled back, bounded."""

from __future__ import annotations

import pytest

from fluxmq.protocols.amqp091.content import BasicProperties
from fluxmq.protocols.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverOk,
    ConfirmSelect,
    ConfirmSelectOk,
    Method,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from fluxmq.queues.commands import Verb
from fluxmq.sessions.amqp091.ports import AmqpLimits
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

DECLARED = QueueDeclareOk("q", 0, 0)
LIMITED = {"x-max-length": 1, "x-overflow": "reject-publish"}
BEGIN: list[Method] = [TxSelect(), QueueDeclare("q")]
BEGAN: list[Method] = [TxSelectOk(), DECLARED]


def got(tag: int, body: bytes = b"x", again: bool = False, left: int = 0) -> Message:
    return Message(BasicGetOk(tag, again, "", "q", left), BasicProperties(), body)


SCRIPTS = [
    Script(
        "commit without",
        [TxCommit()],
        [closed(406, "channel is not transactional", TxCommit)],
    ),
    Script(
        "rollback without",
        [TxRollback()],
        [closed(406, "channel is not transactional", TxRollback)],
    ),
    Script(
        "not with confirms",
        [ConfirmSelect(), TxSelect()],
        [ConfirmSelectOk(), closed(406, "cannot switch from confirm to tx mode", TxSelect)],
    ),
    Script(
        "selected twice, and empty",
        [TxSelect(), TxSelect(), TxCommit(), TxRollback()],
        [TxSelectOk(), TxSelectOk(), TxCommitOk(), TxRollbackOk()],
    ),
    Script(
        "publishes wait for the commit, and so do returns",
        [
            *BEGIN,
            Publish("", "nowhere", mandatory=True),
            Publish("", "q", mandatory=True),
            BasicGet("q"),
            TxCommit(),
            BasicGet("q"),
        ],
        [*BEGAN, BasicGetEmpty(), returned("", "nowhere"), TxCommitOk(), got(1)],
    ),
    Script(
        "publishes are rolled back",
        [*BEGIN, Publish("", "q"), TxRollback(), TxCommit(), BasicGet("q")],
        [*BEGAN, TxRollbackOk(), TxCommitOk(), BasicGetEmpty()],
    ),
    Script(
        "a part that is refused",
        [
            TxSelect(),
            QueueDeclare("q", arguments=LIMITED),
            Publish("", "q"),
            Publish("", "q"),
            TxCommit(),
        ],
        [*BEGAN, closed(406, "partial tx completion", TxCommit)],
    ),
    Script(
        "an acknowledgement rolled back is made again",
        [
            *BEGIN,
            Publish("", "q"),
            TxCommit(),
            BasicGet("q"),
            BasicAck(1),
            TxRollback(),
            BasicAck(1),
            TxCommit(),
            BasicAck(1),
        ],
        [
            *BEGAN,
            TxCommitOk(),
            got(1),
            TxRollbackOk(),
            TxCommitOk(),
            closed(406, "unknown delivery tag 1", BasicAck),
        ],
    ),
    Script(
        "acknowledged twice",
        [*BEGIN, Publish("", "q"), TxCommit(), BasicGet("q"), BasicAck(1), BasicAck(1)],
        [*BEGAN, TxCommitOk(), got(1), closed(406, "unknown delivery tag 1", BasicAck)],
    ),
    Script(
        "acknowledged but not",
        [TxSelect(), BasicAck(1, True)],
        [TxSelectOk(), closed(406, "unknown delivery tag 1", BasicAck)],
    ),
    Script(
        "rolled back and recovered",
        [
            *BEGIN,
            Publish("", "q", b"1"),
            Publish("", "q", b"2"),
            TxCommit(),
            BasicGet("q"),
            BasicGet("q"),
            BasicAck(2, True),
            TxRollback(),
            BasicAck(1),
            TxCommit(),
            BasicRecover(True),
            BasicGet("q"),
        ],
        [
            *BEGAN,
            TxCommitOk(),
            got(1, b"1", left=1),
            got(2, b"2"),
            TxRollbackOk(),
            TxCommitOk(),
            BasicRecoverOk(),
            got(3, b"2", again=True),
        ],
    ),
    Script(
        "given back when it is committed",
        [
            *BEGIN,
            Publish("", "q"),
            TxCommit(),
            BasicConsume("q", "t"),
            BasicNack(1, requeue=True),
            BasicQos(0, 0),
            TxCommit(),
        ],
        [
            *BEGAN,
            TxCommitOk(),
            BasicConsumeOk("t"),
            Message(BasicDeliver("t", 1, False, "", "q"), BasicProperties(), b"x"),
            BasicQosOk(),
            TxCommitOk(),
            Message(BasicDeliver("t", 2, True, "", "q"), BasicProperties(), b"x"),
        ],
    ),
]


@pytest.mark.parametrize(**named(SCRIPTS))
def test_transactions(script: Script) -> None:
    check(script)


def test_a_commit_is_answered_when_every_part_is_durable() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    play(peer, [QueueDeclare("a"), QueueDeclare("b"), Publish("", "a"), BasicGet("a"), TxSelect()])
    play(peer, [Publish("", "a"), Publish("", "b"), Publish("", "b"), BasicAck(1)])
    peer.receive()
    peer.send(1, TxCommit(), BasicQos(0, 0))
    broker.handler.flush_marked()
    assert len(broker.later) == 4, "three publishes and a settlement"
    while broker.later:
        assert peer.receive(tick=False) == []
        broker.later.pop()()
    assert peer.got() == [TxCommitOk(), BasicQosOk()]
    assert broker.queues["/", "a"].settled == [(Verb.ACK, 0)]


def test_a_channel_that_ends_holds_nothing() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    play(peer, [*BEGIN, Publish("", "q"), TxCommit(), BasicGet("q"), Publish("", "q"), BasicAck(1)])
    broker.handler.lost(peer.connection)
    broker.tick()
    queue = broker.queues["/", "q"]
    assert (queue.ready, queue.settled) == ([0], [])


def test_a_connection_that_ends_while_it_commits() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    play(peer, [*BEGIN, Publish("", "q")])
    peer.receive()
    peer.send(1, TxCommit())
    broker.handler.lost(peer.connection)
    broker.tick()
    assert peer.receive() == []
    assert broker.queues["/", "q"].ready == [0]


def test_settlements_of_a_queue_that_has_gone_are_committed() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    play(
        peer, [*BEGIN, Publish("", "q"), Publish("", "q"), TxCommit(), BasicGet("q"), BasicGet("q")]
    )
    play(peer, [BasicAck(1)])
    Peer(broker).send(1, QueueDelete("q"))
    peer.receive()
    play(peer, [BasicAck(2), TxCommit()])
    assert peer.one() == TxCommitOk()


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (
            AmqpLimits(max_transaction_messages=2),
            "transaction of more than 2 publishes and acknowledgements",
        ),
        (AmqpLimits(max_transaction_bytes=30), "transaction of more than 30 bytes"),
    ],
)
def test_what_a_transaction_holds_is_bounded(limits: AmqpLimits, text: str) -> None:
    peer = Peer(MemoryBroker(limits))
    play(peer, BEGIN)
    for _ in range(3):
        play(peer, [Publish("", "q", bytes(8)), Publish("", "q", bytes(8)), TxCommit()])
    assert peer.got() == [*BEGAN, TxCommitOk(), TxCommitOk(), TxCommitOk()]
    play(peer, [Publish("", "q", bytes(8)), Publish("", "q", bytes(8)), Publish("", "q", bytes(8))])
    assert peer.one() == closed(406, text, BasicPublish)


def test_settlements_count_as_well() -> None:
    peer = Peer(MemoryBroker(AmqpLimits(max_transaction_messages=2)))
    play(peer, [QueueDeclare("q"), *[Publish("", "q")] * 3, TxSelect(), *[BasicGet("q")] * 3])
    peer.receive()
    peer.send(1, BasicAck(3, True))
    text = "transaction of more than 2 publishes and acknowledgements"
    assert peer.one() == closed(406, text, BasicAck)


def test_ranges_of_acknowledgements_follow_each_other() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    play(peer, [QueueDeclare("q"), *[Publish("", "q")] * 5, TxSelect(), *[BasicGet("q")] * 5])
    play(peer, [BasicAck(1, True), BasicAck(3, True), BasicAck(0, True), TxCommit()])
    assert peer.got()[-1] == TxCommitOk()
    assert broker.queues["/", "q"].settled == [(Verb.ACK, offset) for offset in range(5)]


@pytest.mark.parametrize("end", [BasicRecover(True), BasicAck(0, True)])
def test_a_cancelled_consumer_leaves_when_nothing_is_left_to_roll_back(
    end: BasicRecover | BasicAck,
) -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    play(peer, [*BEGIN, Publish("", "q"), TxCommit(), BasicConsume("q", "t"), BasicCancel("t")])
    play(peer, [BasicAck(1), TxRollback()])
    channel = peer.session.channels[1]
    assert [consumer.tag for consumer in channel.consumers.leaving] == ["t"]
    play(peer, [end])
    if isinstance(end, BasicAck):
        assert [consumer.tag for consumer in channel.consumers.leaving] == ["t"], (
            "it may be rolled back again"
        )
        play(peer, [TxCommit()])
    assert channel.consumers.leaving == []
    assert broker.queues["/", "q"].attached == []
