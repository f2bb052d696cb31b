"""basic.get: what is answered, and getters that are kept."""

from __future__ import annotations

import pytest

from fluxmq.protocols.amqp091.content import BasicProperties
from fluxmq.protocols.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicQosOk,
    QueueDeclare,
    QueueDelete,
)
from fluxmq.queues.commands import Verb
from tests.unit.sessions.amqp091.consumers import (
    DECLARED,
    QUORUM,
    SINGLE,
    STREAM,
    bodies,
    consuming,
    delivered,
)
from tests.unit.sessions.amqp091.memory import MemoryBroker, Message, Peer
from tests.unit.sessions.amqp091.scripts import Publish, Script, check, closed, ended, named, play

GET = [
    Script(
        "a quorum queue tells basic.get at once how often",
        [QUORUM, Publish("", "q"), BasicGet("q"), BasicNack(1, requeue=True), BasicGet("q")],
        [
            DECLARED,
            Message(
                BasicGetOk(1, False, "", "q", 0),
                BasicProperties(headers={"x-delivery-count": 0}),
                b"x",
            ),
            Message(
                BasicGetOk(2, True, "", "q", 0),
                BasicProperties(headers={"x-delivery-count": 1}),
                b"x",
            ),
        ],
    ),
    Script("no queue", [BasicGet("nope")], [closed(404, "no queue 'nope' in vhost '/'", BasicGet)]),
    Script("no name", [BasicGet()], [closed(404, "no previously declared queue", BasicGet)]),
    Script(
        "counts what is left",
        [
            QueueDeclare("q"),
            Publish("", "q", b"1"),
            Publish("", "q", b"2"),
            BasicGet("q"),
            BasicGet("q", True),
            BasicGet("q"),
        ],
        [
            DECLARED,
            Message(BasicGetOk(1, False, "", "q", 1), BasicProperties(), b"1"),
            Message(BasicGetOk(2, False, "", "q", 0), BasicProperties(), b"2"),
            BasicGetEmpty(),
        ],
    ),
    Script(
        "again what was given back",
        [
            QueueDeclare("q"),
            Publish("", "q", b""),
            BasicGet("q"),
            BasicNack(1, requeue=True),
            BasicGet("q"),
            BasicNack(1, requeue=True),
        ],
        [
            DECLARED,
            Message(BasicGetOk(1, False, "", "q", 0), BasicProperties(), b""),
            Message(BasicGetOk(2, True, "", "q", 0), BasicProperties(), b""),
            closed(406, "unknown delivery tag 1", BasicNack),
        ],
    ),
    Script(
        "beside a prefetch",
        [
            QueueDeclare("q"),
            Publish("", "q", b"1"),
            Publish("", "q", b"2"),
            BasicQos(0, 1),
            BasicConsume("q", "t"),
            BasicGet("q"),
        ],
        [
            DECLARED,
            BasicQosOk(),
            BasicConsumeOk("t"),
            delivered("t", 1, b"1"),
            Message(BasicGetOk(2, False, "", "q", 0), BasicProperties(), b"2"),
        ],
    ),
    Script(
        "not of a stream",
        [STREAM, BasicGet("q")],
        [
            DECLARED,
            ended(540, "basic.get not supported by stream queues queue 'q' in vhost '/'", BasicGet),
        ],
    ),
    Script(
        "not of a quorum queue with one active consumer",
        [QUORUM._replace(arguments={**QUORUM.arguments, **SINGLE}), BasicGet("q")],
        [
            DECLARED,
            closed(
                405,
                "cannot obtain access to locked queue 'q' in vhost '/'. basic.get operations are not supported by quorum "
                "queues with single active consumer",
                BasicGet,
            ),
        ],
    ),
]


@pytest.mark.parametrize(**named(GET))
def test_get(script: Script) -> None:
    check(script)


@pytest.mark.uncompiled
def test_getters_are_kept_but_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluxmq.sessions.amqp091.basic_get.GETTERS_MAX", 3)
    broker = MemoryBroker()
    peer = Peer(broker)
    names = [f"q{number}" for number in range(6)]
    peer.send(1, *[QueueDeclare(name) for name in names])
    peer.publish("", "q0")
    peer.receive()
    for name in names:
        peer.send(1, BasicGet(name))
    peer.receive()
    getters = peer.session.channels[1].getters.by_queue
    assert [name for name, _ in getters] == ["q0", "q4", "q5"], "what is owed something stays"
    peer.send(1, BasicAck(1))
    peer.receive()
    assert broker.queues["/", "q0"].settled == [(Verb.ACK, 0)]


def test_a_getter_whose_queue_has_gone_and_come_again() -> None:
    peer = consuming(MemoryBroker(), 1, BasicGet("q", True), QueueDelete("q"), QueueDeclare("q"))
    play(peer, [Publish("", "q", b"new"), BasicGet("q", True)])
    assert bodies(peer.got()) == [b"0", b"new"]
