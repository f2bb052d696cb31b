"""Consuming: limits, priorities, and output that is not taken."""

from __future__ import annotations

from fluxmq.protocols.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicQos,
    ChannelOpen,
    QueueDeclare,
)
from fluxmq.queues.commands import Verb
from fluxmq.sessions.amqp091.ports import AmqpLimits
from tests.unit.sessions.amqp091.consumers import bodies, consuming
from tests.unit.sessions.amqp091.memory import MemoryBroker, Peer
from tests.unit.sessions.amqp091.scripts import closed, ended

# --- limits ---


def test_prefetch_holds_for_consumers_to_come() -> None:
    broker = MemoryBroker()
    peer = consuming(broker, 5, BasicQos(0, 2), BasicConsume("q", "t"), BasicQos(0, 0))
    assert bodies(peer.got()) == [b"0", b"1"]
    peer.send(1, BasicAck(1))
    assert peer.bodies() == [b"2"]
    peer.send(1, BasicAck(3, True))
    assert peer.bodies() == [b"3", b"4"]


def test_prefetch_0_is_no_limit() -> None:
    peer = consuming(MemoryBroker(), 3000, BasicConsume("q", "t"))
    assert len(bodies(peer.got())) == 3000


def test_automatic_acknowledgement_knows_no_prefetch_and_settles() -> None:
    broker = MemoryBroker()
    peer = consuming(
        broker, 5, BasicQos(0, 2), BasicQos(0, 1, True), BasicConsume("q", "t", no_ack=True)
    )
    assert len(bodies(peer.got())) == 5
    assert broker.queues["/", "q"].settled == [(Verb.ACK, offset) for offset in range(5)]
    peer.send(1, BasicAck(1))
    assert peer.one() == closed(406, "unknown delivery tag 1", BasicAck)


def test_a_shared_limit_holds_for_all_consumers_of_the_channel() -> None:
    broker = MemoryBroker()
    peer = consuming(
        broker, 6, BasicQos(0, 3, True), BasicConsume("q", "a"), BasicConsume("q", "b")
    )
    peer.send(2, ChannelOpen())
    first = [item for _, item in peer.receive()]
    assert len(bodies(first)) == 3
    peer.send(1, BasicAck(1))
    assert len(peer.bodies()) == 1
    peer.send(1, BasicNack(2, requeue=False))
    assert len(peer.bodies()) == 1
    peer.send(1, BasicQos(0, 0, True))
    assert len(bodies(peer.got())) == 1


def test_a_shared_limit_does_not_count_basic_get() -> None:
    peer = consuming(MemoryBroker(), 4, BasicGet("q"), BasicQos(0, 2, True), BasicConsume("q", "a"))
    assert bodies(peer.got()) == [b"0", b"1", b"2"]


def test_a_shared_limit_lowers_a_consumers_own() -> None:
    peer = consuming(
        MemoryBroker(), 5, BasicQos(0, 4), BasicQos(0, 2, True), BasicConsume("q", "a")
    )
    assert len(bodies(peer.got())) == 2
    peer.send(1, BasicQos(0, 3, True))
    assert bodies(peer.got()) == [b"2"]
    peer.send(1, BasicQos(0, 9, True))
    assert bodies(peer.got()) == [b"3"]


def test_the_limit_of_consumers() -> None:
    peer = Peer(MemoryBroker(AmqpLimits(max_consumers=2)))
    peer.send(1, QueueDeclare("q"), *[BasicConsume("q", f"t{number}") for number in range(3)])
    answers = peer.receive()
    text = "reached maximum (2) of consumers per channel"
    assert answers[-1] == (0, ended(530, text, BasicConsume))


def test_higher_priority_first() -> None:
    broker = MemoryBroker()
    peer = consuming(
        broker,
        3,
        BasicQos(0, 2),
        BasicConsume("q", "low", arguments={"x-priority": -(1 << 40)}, no_wait=True),
    )
    peer.send(1, BasicConsume("q", "high", arguments={"x-priority": 7}, no_wait=True))
    wanted = [handle.wanted.priority for handle in broker.queues["/", "q"].consumers]
    assert sorted(wanted) == [-(2**31 - 1), 7]


# --- output that is not taken ---


def test_deliveries_wait_for_a_connection_that_does_not_take_them() -> None:
    broker = MemoryBroker()
    peer = consuming(broker, 40, BasicConsume("q", "t"), body=bytes(1000), limit=10_000)
    handle = broker.queues["/", "q"].consumers[0]
    assert peer.connection.feeding
    assert peer.connection.size < 10_000 + 2000
    assert handle.limit == 1, "the queue was told to wait"
    peer.publish("", "q", b"late")
    broker.tick()
    assert len(broker.queues["/", "q"].ready) > 25
    got: list[bytes] = []
    while len(got) < 40:
        more = bodies(peer.got())
        assert more
        assert len(more) < 15
        got += more
    assert handle.limit == 0
    assert (got + bodies(peer.got()))[-1] == b"late"


def test_automatic_deliveries_wait_as_well_and_are_settled_when_written() -> None:
    broker = MemoryBroker()
    peer = consuming(
        broker, 40, BasicConsume("q", "t", no_ack=True), body=bytes(1000), limit=10_000
    )
    queue = broker.queues["/", "q"]
    broker.tick()
    assert 0 < len(queue.settled) < 15
    broker.handler.lost(peer.connection)
    assert len(queue.settled) + len(queue.ready) == 40, "what was not written is not lost"


def test_a_consumer_of_few_is_not_throttled() -> None:
    broker = MemoryBroker()
    consuming(broker, 40, BasicQos(0, 100), BasicConsume("q", "t"), body=bytes(1000), limit=10_000)
    assert broker.queues["/", "q"].consumers[0].limit == 100
