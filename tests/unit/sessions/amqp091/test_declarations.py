"""Queues: what is answered, in RabbitMQ 3.10's words."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.protocols.amqp091.methods import (
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicQos,
    BasicQosOk,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from fluxmq.routing.topology.changes import AddVhost, DeleteQueue, SetVhostLimits
from fluxmq.routing.topology.records import Vhost
from tests.unit.sessions.amqp091.memory import MemoryBroker, Peer
from tests.unit.sessions.amqp091.scripts import (
    Publish,
    Script,
    check,
    closed,
    ended,
    locked,
    named,
    play,
)

QUORUM: dict[str, object] = {"x-queue-type": "quorum"}
STREAM: dict[str, object] = {"x-queue-type": "stream"}

QUEUES = [
    Script(
        "server-named of a type that has no such",
        [QueueDeclare("", durable=True, arguments=QUORUM)],
        [
            closed(
                406,
                "Cannot declare a server-named queue for type rabbit_quorum_queue",
                QueueDeclare,
            )
        ],
    ),
    Script(
        "a text that is too long",
        [QueueDeclare("q" * 100, exclusive=True), QueueDeclare("q" * 100)],
        [QueueDeclareOk("q" * 100, 0, 0), locked("q" * 100, QueueDeclare)],
    ),
    Script(
        "server-named",
        [QueueDeclare(""), QueueBind("", "amq.direct", "")],
        [QueueDeclareOk("amq.gen-0000000000000000000002", 0, 0), QueueBindOk()],
    ),
    Script(
        "reserved",
        [QueueDeclare("amq.foo")],
        [closed(403, "queue name 'amq.foo' contains reserved prefix 'amq.*'", QueueDeclare)],
    ),
    Script(
        "reserved, passive",
        [QueueDeclare("amq.foo", passive=True)],
        [closed(404, "no queue 'amq.foo' in vhost '/'", QueueDeclare)],
    ),
    Script(
        "passive, unnamed",
        [QueueDeclare("", passive=True)],
        [closed(404, "no queue '' in vhost '/'", QueueDeclare)],
    ),
    Script(
        "passive, missing",
        [QueueDeclare("nope", passive=True)],
        [closed(404, "no queue 'nope' in vhost '/'", QueueDeclare)],
    ),
    Script(
        "declared again as another",
        [QueueDeclare("q", durable=True), QueueDeclare("q")],
        [
            QueueDeclareOk("q", 0, 0),
            closed(
                406,
                "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'",
                QueueDeclare,
            ),
        ],
    ),
    Script(
        "exclusive, declared again as shared",
        [QueueDeclare("q", exclusive=True), QueueDeclare("q")],
        [QueueDeclareOk("q", 0, 0), locked("q", QueueDeclare)],
    ),
    Script(
        "argument of another type",
        [QueueDeclare("q", arguments={"x-max-length": "a"})],
        [
            closed(
                406,
                "invalid arg 'x-max-length' for queue 'q' in vhost '/': \"expected integer, got longstr\"",
                QueueDeclare,
            )
        ],
    ),
    Script("a name with line ends", [QueueDeclare("a\rb\nc")], [QueueDeclareOk("abc", 0, 0)]),
    Script("delete, missing", [QueueDelete("nope")], [QueueDeleteOk(0)]),
    Script(
        "delete, unnamed",
        [QueueDelete("")],
        [closed(404, "no previously declared queue", QueueDelete)],
    ),
    Script(
        "delete with messages",
        [QueueDeclare("q"), Publish("", "q"), QueueDelete("q")],
        [QueueDeclareOk("q", 0, 0), QueueDeleteOk(1)],
    ),
    Script(
        "delete if-empty",
        [QueueDeclare("q"), Publish("", "q"), QueueDelete("q", if_empty=True)],
        [QueueDeclareOk("q", 0, 0), closed(406, "queue 'q' in vhost '/' not empty", QueueDelete)],
    ),
    Script(
        "delete if-unused",
        [QueueDeclare("q"), BasicConsume("q", "t"), QueueDelete("q", if_unused=True)],
        [
            QueueDeclareOk("q", 0, 0),
            BasicConsumeOk("t"),
            closed(406, "queue 'q' in vhost '/' in use", QueueDelete),
        ],
    ),
    Script(
        "delete a quorum queue if-unused",
        [QueueDeclare("q", durable=True, arguments=QUORUM), QueueDelete("q", if_unused=True)],
        [
            QueueDeclareOk("q", 0, 0),
            ended(
                540,
                "cannot delete queue 'q' in vhost '/'. queue.delete operations with if-unused flag set are not supported "
                "by quorum queues",
                QueueDelete,
            ),
        ],
    ),
    Script(
        "delete a quorum queue if-empty",
        [QueueDeclare("q", durable=True, arguments=QUORUM), QueueDelete("q", if_empty=True)],
        [
            QueueDeclareOk("q", 0, 0),
            ended(
                540,
                "cannot delete queue 'q' in vhost '/'. queue.delete operations with if-empty flag set are not supported "
                "by quorum queues",
                QueueDelete,
            ),
        ],
    ),
    Script(
        "delete a stream if-unused, which it ignores",
        [
            QueueDeclare("q", durable=True, arguments=STREAM),
            BasicQos(0, 1),
            BasicConsume("q", "t"),
            QueueDelete("q", if_unused=True, if_empty=True),
        ],
        [QueueDeclareOk("q", 0, 0), BasicQosOk(), BasicConsumeOk("t"), QueueDeleteOk(0)],
    ),
    Script(
        "purge",
        [QueueDeclare("q"), Publish("", "q"), Publish("", "q"), QueuePurge(""), BasicGet("q")],
        [QueueDeclareOk("q", 0, 0), QueuePurgeOk(2), BasicGetEmpty()],
    ),
    Script(
        "purge, missing",
        [QueuePurge("nope")],
        [closed(404, "no queue 'nope' in vhost '/'", QueuePurge)],
    ),
    Script(
        "purge, unnamed",
        [QueuePurge("")],
        [closed(404, "no previously declared queue", QueuePurge)],
    ),
    Script(
        "purge a stream",
        [QueueDeclare("q", durable=True, arguments=STREAM), QueuePurge("q")],
        [
            QueueDeclareOk("q", 0, 0),
            ended(
                540, "queue.purge not supported by stream queues queue 'q' in vhost '/'", QueuePurge
            ),
        ],
    ),
    Script(
        "the last declared stays so when it is gone",
        [QueueDeclare("q"), QueueDelete("q"), QueueDelete("")],
        [QueueDeclareOk("q", 0, 0), QueueDeleteOk(0), QueueDeleteOk(0)],
    ),
    Script(
        "the last declared is the last asked for as well",
        [
            QueueDeclare("a"),
            QueueDeclare("b"),
            QueueDeclare("a", passive=True),
            Publish("", "a"),
            QueuePurge(),
        ],
        [
            QueueDeclareOk("a", 0, 0),
            QueueDeclareOk("b", 0, 0),
            QueueDeclareOk("a", 0, 0),
            QueuePurgeOk(1),
        ],
    ),
    Script(
        "without waiting",
        [
            QueueDeclare("q", no_wait=True),
            QueueDeclare("q", no_wait=True),
            QueueBind("", "amq.direct", "k", no_wait=True),
            QueuePurge("q", no_wait=True),
            QueueDelete("q", no_wait=True),
            QueueDelete("q", no_wait=True),
        ],
        [],
    ),
]


@pytest.mark.parametrize(**named(QUEUES))
def test_queues(script: Script) -> None:
    check(script)


def test_declare_ok_counts_what_is_ready_and_who_consumes() -> None:
    peer = Peer(MemoryBroker())
    play(
        peer,
        [
            QueueDeclare("q"),
            BasicQos(0, 1),
            BasicConsume("q", "t"),
            Publish("", "q"),
            Publish("", "q"),
            Publish("", "q"),
        ],
    )
    peer.receive()
    peer.send(1, QueueDeclare("q"), QueueDeclare("q", passive=True))
    assert peer.got() == [QueueDeclareOk("q", 2, 1)] * 2


@pytest.mark.parametrize(
    "method",
    [
        QueueDeclare("q"),
        QueueDeclare("q", passive=True),
        BasicConsume("q"),
        BasicGet("q"),
        QueueBind("q", "amq.direct"),
        QueueDelete("q"),
        QueuePurge("q"),
    ],
)
def test_an_exclusive_queue_is_locked_for_other_connections(method: QueueDeclare) -> None:
    broker = MemoryBroker()
    owner, other = Peer(broker), Peer(broker)
    owner.send(1, QueueDeclare("q", exclusive=True))
    assert owner.one() == QueueDeclareOk("q", 0, 0)
    other.send(1, method)
    assert other.one() == locked("q", type(method))


def test_exclusive_queues_go_with_their_connection() -> None:
    broker = MemoryBroker()
    owner, other = Peer(broker), Peer(broker)
    owner.send(1, QueueDeclare("q", exclusive=True), QueueDeclare("shared"))
    owner.receive()
    broker.handler.lost(owner.connection)
    assert [queue.name for queue in broker.topology.queues()] == ["shared"]
    other.send(1, QueueDeclare("q", passive=True))
    assert other.one() == closed(404, "no queue 'q' in vhost '/'", QueueDeclare)


def test_the_last_declared_queue_is_the_channels_own() -> None:
    peer = Peer(MemoryBroker())
    play(peer, [QueueDeclare("q"), BasicGet("nope")])
    peer.receive()
    peer.send(1, ChannelCloseOk(), ChannelOpen(), BasicGet(""))
    assert peer.got() == [ChannelOpenOk(), closed(404, "no previously declared queue", BasicGet)]


def test_a_vhosts_limit_of_queues() -> None:
    broker = MemoryBroker()
    broker.topology.apply(SetVhostLimits("/", {"max-queues": 1}))
    peer = Peer(broker)
    peer.send(1, QueueDeclare("one"), QueueDeclare("two"))
    assert peer.got() == [
        QueueDeclareOk("one", 0, 0),
        closed(
            406,
            "cannot declare queue 'two': queue limit in vhost '/' (1) is reached",
            QueueDeclare,
        ),
    ]


@pytest.mark.parametrize("default", ["quorum", "stream", "classic"])
def test_a_vhosts_default_type_is_for_queues_that_may_have_it(default: str) -> None:
    """RabbitMQ 3.10: queues that only a classic one can be are classic; who names a type gets that."""
    broker = MemoryBroker()
    broker.topology.apply(AddVhost(Vhost("/", default_queue_type=default)))
    peer = Peer(broker)
    flags: dict[str, dict[str, Any]] = {
        "plain": {"durable": True},
        "transient": {},
        "exclusive": {"durable": True, "exclusive": True},
        "auto": {"durable": True, "auto_delete": True},
        "named": {"durable": True, "arguments": {"x-queue-type": "classic"}},
    }
    peer.send(1, *(QueueDeclare(name, **values) for name, values in flags.items()))
    assert peer.got() == [QueueDeclareOk(name, 0, 0) for name in flags]
    types = {queue.name: queue.type for queue in broker.topology.queues()}
    assert types == {**dict.fromkeys(flags, "classic"), "plain": default}
    peer.send(1, QueueDeclare("plain", durable=True))
    assert peer.one() == QueueDeclareOk("plain", 0, 0)


def test_a_queue_that_cannot_be_asked_is_said_to_be_down() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(1, QueueDeclare("q", durable=True))
    peer.receive()
    del broker.queues["/", "q"]
    peer.send(1, QueueDeclare("q", passive=True))
    assert peer.one() == closed(
        404,
        "home node 'fluxmq@localhost' of durable queue 'q' in vhost '/' is down or inaccessible",
        QueueDeclare,
    )


def test_a_change_refused_by_who_decides_is_answered_as_one_refused_here() -> None:
    broker = MemoryBroker()
    one, two = Peer(broker), Peer(broker)
    broker.slow = True
    one.send(1, QueueDeclare("q", durable=True))
    two.send(1, QueueDeclare("q"))
    broker.slow = False
    broker.release()
    assert one.one() == QueueDeclareOk("q", 0, 0)
    assert two.one() == closed(
        406,
        "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'",
        QueueDeclare,
    )


def test_a_queue_that_another_connection_declared_first_is_told_with_its_messages() -> None:
    """F1: both declare at once; the one that comes second finds what the first has done since."""
    broker = MemoryBroker()
    one, two = Peer(broker), Peer(broker)
    broker.slow = True
    two.send(1, QueueDeclare("q"))
    broker.slow = False
    one.send(1, QueueDeclare("q"))
    one.publish("", "q", b"first")
    assert one.one() == QueueDeclareOk("q", 0, 0)
    broker.release()
    assert two.one() == QueueDeclareOk("q", 1, 0)


def test_a_queue_that_ends_while_it_is_asked_for_is_declared_again() -> None:
    """F1: a declaration finds a queue that expires at that moment; the client gets one all the same."""
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(1, QueueDeclare("q", arguments={"x-expires": 1000}))
    peer.receive()
    broker.slow = True
    peer.send(1, QueueDeclare("q", arguments={"x-expires": 1000}))
    broker.apply([DeleteQueue("/", "q", by_broker=True)])
    broker.slow = False
    broker.release()
    assert peer.one() == QueueDeclareOk("q", 0, 0)
    assert ("/", "q") in broker.queues


def test_a_queue_that_ends_right_behind_its_declaration_was_declared() -> None:
    """F1: the answer to a declaration that was made is no error, whatever became of the queue."""
    broker = MemoryBroker()
    peer = Peer(broker)
    broker.slow = True
    peer.send(1, QueueDeclare("q", auto_delete=True))
    broker.release()
    broker.apply([DeleteQueue("/", "q", by_broker=True)])
    broker.slow = False
    broker.release()
    assert peer.one() == QueueDeclareOk("q", 0, 0)
    assert ("/", "q") not in broker.queues


def test_a_queue_that_ends_while_it_is_looked_for_is_not_found() -> None:
    """F1: a passive declaration makes nothing."""
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(1, QueueDeclare("q"))
    peer.receive()
    broker.slow = True
    peer.send(1, QueueDeclare("q", passive=True))
    broker.apply([DeleteQueue("/", "q", by_broker=True)])
    broker.release()
    assert peer.one() == closed(404, "no queue 'q' in vhost '/'", QueueDeclare)
