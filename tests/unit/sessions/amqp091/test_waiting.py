"""What waits: methods behind one that is not answered yet, and connections that are not read or do not read."""

from __future__ import annotations

from fluxmq.net.reactor import PAUSED_OUTPUT
from fluxmq.protocols.amqp091.method_codec import frame
from fluxmq.protocols.amqp091.methods import (
    BasicGet,
    BasicQos,
    BasicQosOk,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionTune,
    ConnectionTuneOk,
    QueueDeclare,
    QueueDeclareOk,
)
from fluxmq.routing.topology.refusals import Refusal
from tests.unit.sessions.amqp091.by_hand import PUBLISH, body, greeted, header, start_ok
from tests.unit.sessions.amqp091.memory import MemoryBroker, Peer
from tests.unit.sessions.amqp091.scripts import closed

# --- order ---


def test_methods_of_a_channel_keep_their_order_while_one_waits() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(2, ChannelOpen())
    broker.slow = True
    peer.send(1, QueueDeclare("a"), BasicQos(0, 1))
    peer.publish("", "a", b"one")
    peer.raw(frame(1, PUBLISH._replace(routing_key="a")) + header(60, 3))
    peer.send(2, BasicQos(0, 1))
    peer.raw(body(b"two"))
    assert peer.receive() == [(2, ChannelOpenOk()), (2, BasicQosOk())]
    broker.slow = False
    broker.release()
    assert peer.receive() == [(1, QueueDeclareOk("a", 0, 0)), (1, BasicQosOk())]
    queue = broker.queues["/", "a"]
    assert [batch.payload(index) for batch, index in queue.messages.values()] == [b"one", b"two"]


def test_a_channel_that_waits_too_long_stops_its_connection() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    broker.slow = True
    peer.send(1, QueueDeclare("a"))
    peer.raw(frame(1, BasicQos(0, 1)) * 1023)
    assert broker.paused == []
    peer.raw(frame(1, BasicQos(0, 1)))
    assert broker.paused == [peer.connection]
    broker.slow = False
    broker.release()
    assert broker.paused == []
    assert peer.got() == [QueueDeclareOk("a", 0, 0), *[BasicQosOk()] * 1024]


def test_a_channel_that_waits_with_much_stops_its_connection() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    broker.slow = True
    peer.send(1, QueueDeclare("a"))
    peer.publish("", "a", bytes(1 << 20), frame_max=1 << 17)
    assert broker.paused == [peer.connection]
    broker.handler.lost(peer.connection)
    assert broker.paused == []


def test_an_answer_for_a_channel_that_has_gone() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    broker.slow = True
    peer.send(1, QueueDeclare("a"))
    broker.handler.lost(peer.connection)
    broker.release()
    assert peer.receive() == []


# --- blocked publishers ---


def test_publishers_are_told_that_they_are_blocked_and_when_no_longer() -> None:
    broker = MemoryBroker()
    knows = Peer(broker, capabilities=["connection.blocked"])
    idle = Peer(broker, capabilities=["connection.blocked"])
    simple = Peer(broker)
    for peer in (knows, simple):
        peer.publish("", "nowhere")
    broker.handler.block("low on disk")
    assert knows.one(0) == ConnectionBlocked("low on disk")
    assert (simple.receive(), idle.receive()) == ([], [])
    idle.publish("", "nowhere")
    idle.publish("", "nowhere")
    assert idle.one(0) == ConnectionBlocked("low on disk")
    broker.handler.unblock()
    for peer in (knows, idle):
        answer = peer.one(0)
        assert type(answer).__name__ == "ConnectionUnblocked"
    assert simple.receive() == []


def test_a_client_that_does_not_take_its_output_is_taken_for_gone() -> None:
    broker = MemoryBroker()
    peer = Peer(broker, heartbeat=10)
    peer.connection.paused |= PAUSED_OUTPUT
    broker.pass_time(30)
    assert broker.closed == [(peer.client.info.peer, "heartbeat")]


def test_exclusive_queues_go_as_soon_as_something_can_be_changed() -> None:
    broker = MemoryBroker()
    change = broker.change
    one, two = Peer(broker), Peer(broker)
    one.send(1, QueueDeclare("a", exclusive=True))
    two.send(1, QueueDeclare("b", exclusive=True))
    broker.change = lambda changes, done: done(Refusal(404, "control is away"))  # type: ignore[method-assign]
    broker.handler.lost(one.connection)
    assert len(broker.queues) == 2
    broker.change = change  # type: ignore[method-assign]
    broker.handler.lost(two.connection)
    assert (broker.queues, broker.handler.orphans) == ({}, set())


def test_what_came_behind_a_pause_is_handled_in_order() -> None:
    broker = MemoryBroker()
    peer = greeted(broker)
    broker.slow = True
    peer.send(0, start_ok(), ConnectionTuneOk(2047, 131_072, 0), ConnectionOpen("/"))
    peer.send(1, ChannelOpen(), BasicQos(0, 1))
    assert peer.receive() == []
    broker.slow = False
    broker.release()
    assert [item for _, item in peer.receive()] == [
        ConnectionTune(2047, 131_072, 60),
        ConnectionOpenOk(),
        ChannelOpenOk(),
        BasicQosOk(),
    ]


def test_a_channel_closed_while_its_connection_is_not_read() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    broker.slow = True
    peer.send(1, QueueDeclare("a"), BasicGet("nope"))
    peer.raw(frame(1, BasicQos(0, 1)) * 1023)
    assert broker.paused == [peer.connection]
    peer.send(1, ChannelCloseOk(), ChannelOpen(), BasicQos(0, 1))
    broker.slow = False
    broker.release()
    assert broker.paused == []
    assert peer.got() == [
        QueueDeclareOk("a", 0, 0),
        closed(404, "no queue 'nope' in vhost '/'", BasicGet),
        ChannelOpenOk(),
        BasicQosOk(),
    ]
