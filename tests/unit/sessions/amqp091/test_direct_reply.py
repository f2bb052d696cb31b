"""Direct reply-to."""

from __future__ import annotations

import pytest

from fluxmq.protocols.amqp091.content import BasicProperties
from fluxmq.protocols.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicPublish,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
)
from tests.unit.sessions.amqp091.memory import MemoryBroker, Message, Peer
from tests.unit.sessions.amqp091.scripts import (
    Publish,
    Script,
    check,
    closed,
    ended,
    named,
    play,
    returned,
)

PSEUDO = "amq.rabbitmq.reply-to"
CONSUME = BasicConsume(PSEUDO, "t", no_ack=True)
NO_QUEUE = f"no queue '{PSEUDO}' in vhost '/'"

SCRIPTS = [
    Script(
        "with acknowledgement",
        [BasicConsume(PSEUDO, "t")],
        [closed(406, "reply consumer cannot acknowledge", BasicConsume)],
    ),
    Script(
        "twice",
        [CONSUME, CONSUME._replace(consumer_tag="u")],
        [BasicConsumeOk("t"), closed(406, "reply consumer already set", BasicConsume)],
    ),
    Script(
        "a tag of the broker's",
        [BasicConsume(PSEUDO, "", no_ack=True)],
        [BasicConsumeOk("amq.ctag-0000000000000000000002")],
    ),
    Script(
        "a tag that a consumer has",
        [QueueDeclare("q"), BasicConsume("q", "t"), CONSUME],
        [
            QueueDeclareOk("q", 0, 0),
            BasicConsumeOk("t"),
            ended(530, "attempt to reuse consumer tag 't'", BasicConsume),
        ],
    ),
    Script(
        "cancelled and begun again",
        [CONSUME, BasicCancel("t"), CONSUME],
        [BasicConsumeOk("t"), BasicCancelOk("t"), BasicConsumeOk("t")],
    ),
    Script("without waiting", [CONSUME._replace(no_wait=True)], []),
    Script(
        "declared, which changes nothing",
        [
            QueueDeclare(PSEUDO),
            QueueDeclare(PSEUDO, passive=True),
            QueueDeclare(PSEUDO, no_wait=True),
        ],
        [QueueDeclareOk(PSEUDO, 0, 1), QueueDeclareOk(PSEUDO, 0, 1)],
    ),
    Script(
        "an address that nobody has",
        [QueueDeclare(PSEUDO + ".zz", passive=True)],
        [closed(404, f"no queue '{PSEUDO}.zz' in vhost '/'", QueueDeclare)],
    ),
    Script("not deleted", [QueueDelete(PSEUDO)], [QueueDeleteOk(0)]),
    Script("not purged", [QueuePurge(PSEUDO)], [closed(404, NO_QUEUE, QueuePurge)]),
    Script("not bound", [QueueBind(PSEUDO, "amq.direct")], [closed(404, NO_QUEUE, QueueBind)]),
    Script(
        "not got from",
        [CONSUME, BasicGet(PSEUDO)],
        [BasicConsumeOk("t"), closed(404, NO_QUEUE, BasicGet)],
    ),
    Script(
        "a reply to nobody",
        [ConfirmSelect(), Publish("", PSEUDO + ".zz"), Publish("", PSEUDO + ".zz", mandatory=True)],
        [ConfirmSelectOk(), BasicAck(1), returned("", PSEUDO + ".zz"), BasicAck(2)],
    ),
]


@pytest.mark.parametrize(**named(SCRIPTS))
def test_replies(script: Script) -> None:
    check(script)


def asked(broker: MemoryBroker, limit: int = 1 << 20) -> tuple[Peer, str]:
    """Somebody who has asked, and the address to answer to."""
    asker = Peer(broker, limit=limit)
    play(
        asker,
        [
            CONSUME,
            QueueDeclare("requests"),
            Publish("", "requests", b"?", properties={"reply_to": PSEUDO}),
        ],
    )
    asker.receive()
    asker.send(1, BasicGet("requests", True))
    request = asker.one()
    assert isinstance(request, Message)
    address = request.properties.reply_to
    assert address is not None
    assert address.startswith(PSEUDO + ".")
    return asker, address


def test_an_answer_goes_straight_to_who_asked() -> None:
    broker = MemoryBroker()
    asker, address = asked(broker)
    answerer = Peer(broker)
    answerer.send(1, QueueDeclare(address, passive=True), ConfirmSelect())
    assert answerer.got() == [QueueDeclareOk(address, 0, 1), ConfirmSelectOk()]
    answerer.publish("", address, b"!", correlation_id="7")
    assert asker.one() == Message(
        BasicDeliver("t", 2, False, "", address), BasicProperties(correlation_id="7"), b"!"
    )
    assert answerer.one() == BasicAck(1)


def test_a_mandatory_answer_is_returned_although_it_arrives() -> None:
    broker = MemoryBroker()
    asker, address = asked(broker)
    answerer = Peer(broker)
    answerer.publish("", address, b"!", mandatory=True)
    assert asker.bodies() == [b"!"]
    assert answerer.one() == returned("", address, b"!")


@pytest.mark.parametrize("end", ["cancel", "lost"])
def test_an_address_goes_with_its_consumer(end: str) -> None:
    broker = MemoryBroker()
    asker, address = asked(broker)
    if end == "cancel":
        asker.send(1, BasicCancel("t"))
        asker.receive()
    else:
        broker.handler.lost(asker.connection)
    assert broker.replies == {}
    answerer = Peer(broker)
    answerer.publish("", address, b"!")
    assert asker.receive() == []
    assert broker.drops == [("reply_gone", 1)]
    answerer.send(1, QueueDeclare(address, passive=True))
    assert answerer.one() == closed(404, f"no queue '{address}' in vhost '/'", QueueDeclare)


def test_what_was_found_out_ends_with_the_consumer() -> None:
    broker = MemoryBroker()
    asker, _ = asked(broker)
    asker.send(1, BasicCancel("t"))
    asker.publish("", "requests", b"?", reply_to=PSEUDO)
    assert asker.got()[1] == closed(406, "fast reply consumer does not exist", BasicPublish)


def test_replies_to_who_does_not_read_are_lost() -> None:
    broker = MemoryBroker()
    asker, address = asked(broker, limit=3000)
    answerer = Peer(broker)
    for _ in range(10):
        answerer.publish("", address, bytes(1000))
    assert 2 <= len(asker.bodies()) <= 4
    assert sum(count for reason, count in broker.drops if reason == "reply_slow") >= 6


def test_another_exchange_is_not_for_replies() -> None:
    broker = MemoryBroker()
    asker, address = asked(broker)
    asker.publish("amq.fanout", address, b"!")
    assert asker.receive() == []
