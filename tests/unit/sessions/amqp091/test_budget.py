"""What one connection may make the broker hold, all its channels together."""

from __future__ import annotations

import pytest

from fluxmq.protocols.amqp091.method_codec import frame
from fluxmq.protocols.amqp091.methods import (
    BasicAck,
    BasicGet,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionOpen,
    ConnectionTuneOk,
    QueueDeclare,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxSelect,
    TxSelectOk,
)
from fluxmq.sessions.amqp091.content import PIECE_BYTES
from fluxmq.sessions.amqp091.ports import AmqpLimits
from fluxmq.sessions.amqp091.publishing import PREPARED_BYTES_MAX
from tests.unit.sessions.amqp091.by_hand import PUBLISH, body, greeted, header, start_ok
from tests.unit.sessions.amqp091.memory import MemoryBroker, Peer
from tests.unit.sessions.amqp091.scripts import Publish, closed, play

MOST = 100_000
TEXT = (
    f"connection holds more than {MOST} bytes of incomplete messages and uncommitted transactions"
)
SHORT = "memory is low: incomplete messages and uncommitted transactions are discarded"
LIMITS = AmqpLimits(max_incomplete_bytes=MOST, max_transaction_bytes=MOST, max_message=MOST)


def connect(channels: int = 3) -> tuple[MemoryBroker, Peer]:
    """A client with some channels."""
    broker = MemoryBroker(LIMITS)
    peer = Peer(broker)
    for number in range(2, channels + 1):
        peer.send(number, ChannelOpen())
    peer.send(1, QueueDeclare("q"))
    peer.receive()
    return broker, peer


def begin(peer: Peer, channel: int, size: int, have: int) -> None:
    """A message of which only a part comes."""
    announced = b"\x02" + header(60, size)[1:]
    peer.raw(frame(channel, PUBLISH) + announced[:1] + channel.to_bytes(2, "big") + announced[3:])
    if have:
        peer.raw(body(bytes(have), channel=channel))


def test_transactions_of_all_channels_count_together() -> None:
    """Review finding 14: one connection with 16 channels of 60 MiB each took 1 GiB."""
    broker, peer = connect()
    for channel in (1, 2, 3):
        peer.send(channel, TxSelect())
        peer.publish("", "q", bytes(30_000), channel)
    assert [method for _, method in peer.receive()] == [TxSelectOk()] * 3
    peer.publish("", "q", bytes(30_000), 3)
    assert peer.one(3) == closed(406, TEXT, BasicPublish)
    assert broker.refused == ["budget"]
    # What the channel held is there for the others.
    peer.publish("", "q", bytes(30_000), 2)
    peer.send(1, TxCommit())
    peer.send(2, TxCommit())
    assert [method for _, method in peer.receive()] == [TxCommitOk()] * 2
    assert len(broker.queues["/", "q"].messages) == 3
    assert peer.client.budget.used == 0


def test_incomplete_messages_of_all_channels_count_together() -> None:
    """Review finding 14: a part of a message on each of two thousand channels."""
    broker, peer = connect()
    for channel in (1, 2):
        begin(peer, channel, 50_000, 45_000)
    begin(peer, 3, 50_000, 45_000)
    assert peer.one(3) == closed(406, TEXT, BasicPublish)
    # The rest of what was refused is no error.
    peer.raw(body(bytes(5_000), channel=3))
    for channel in (1, 2):
        peer.raw(body(bytes(5_000), channel=channel))
    assert peer.got() == []
    assert len(broker.queues["/", "q"].messages) == 2
    assert peer.client.budget.used == 0


def test_announcing_takes_nothing_and_small_frames_count_as_what_they_are() -> None:
    """Review finding 14: a body in frames of one byte takes many times its size."""
    _, peer = connect()
    for channel in (1, 2, 3):
        begin(peer, channel, 90_000, 0)
    assert peer.client.budget.used < 100
    frames = MOST // (PIECE_BYTES + 1)
    peer.raw(body(b"x") * frames)
    assert peer.got() == []
    peer.raw(body(b"x"))
    assert peer.one() == closed(406, TEXT, BasicPublish)
    assert peer.client.budget.used < 100


@pytest.mark.parametrize("end", [TxRollback(), ChannelClose(200, "", 0, 0)])
def test_what_is_given_up_is_no_longer_held(end: TxRollback | ChannelClose) -> None:
    """Review finding 14."""
    _, peer = connect()
    play(peer, [TxSelect(), Publish("", "q", bytes(50_000))])
    assert peer.client.budget.used > 50_000
    peer.send(1, end)
    assert peer.client.budget.used == 0


def test_a_connection_that_ends_holds_nothing() -> None:
    """Review finding 14."""
    broker, peer = connect()
    play(peer, [TxSelect(), Publish("", "q", bytes(50_000))])
    begin(peer, 2, 50_000, 10_000)
    broker.handler.lost(peer.connection)
    assert peer.client.budget.used == 0


def test_settlements_take_their_share() -> None:
    """Review finding 14: a hundred thousand of them on each channel."""
    _, peer = connect()
    play(peer, [*[Publish("", "q")] * 2, TxSelect(), BasicGet("q"), BasicGet("q")])
    peer.receive()
    peer.send(1, BasicAck(2, True))
    handle = peer.client.budget.used
    assert handle > 0
    peer.send(1, TxRollback())
    assert peer.client.budget.used == handle, "what was rolled back is remembered"
    peer.send(1, BasicAck(2, True), TxCommit())
    assert peer.got()[-1] == TxCommitOk()
    assert peer.client.budget.used == 0


def test_what_waits_on_all_channels_stops_the_connection() -> None:
    """Review finding 14: a megabyte on each of two thousand channels."""
    broker, peer = connect(20)
    broker.slow = True
    for channel in range(1, 21):
        peer.send(channel, QueueDeclare(f"q{channel}"))
    for channel in range(1, 20):
        peer.publish("", "q", bytes(53_000), channel)
        assert broker.paused == []
    peer.publish("", "q", bytes(53_000), 20)
    assert broker.paused == [peer.connection]
    broker.slow = False
    broker.release()
    assert broker.paused == []
    assert peer.client.backlog_bytes == 0
    assert len(broker.queues["/", "q"].messages) == 20


def test_long_properties_are_not_remembered_by_each_channel() -> None:
    """Review finding 14: a frame's length of them, several times over, on each of two thousand channels."""
    _, peer = connect()
    peer.publish("", "q", correlation_id="x")
    assert peer.session.channels[1].publisher.prepared is not None
    peer.publish("", "q", headers={"x": bytes(PREPARED_BYTES_MAX)})
    assert peer.session.channels[1].publisher.prepared is None


def test_a_message_that_begins_makes_a_publisher() -> None:
    """Review finding 14: one that never ends would not be stopped otherwise."""
    broker, peer = connect()
    broker.handler.block("low on memory")
    assert broker.stopped == []
    begin(peer, 1, 50_000, 10_000)
    assert broker.stopped == [peer.connection]


def test_what_a_stopped_publisher_cannot_complete_is_given_up() -> None:
    """Review finding 14: nobody else can end it, and it may be just what is short."""
    broker = MemoryBroker(LIMITS)
    peer = Peer(broker, capabilities=["connection.blocked"])
    peer.send(2, ChannelOpen(), TxSelect())
    peer.send(3, ChannelOpen())
    peer.receive()
    peer.publish("", "q", bytes(10_000), 2)
    begin(peer, 1, 50_000, 10_000)
    broker.handler.give_up()
    assert peer.client.budget.used > 20_000, "not while it is read"
    broker.handler.block("low on memory")
    broker.handler.give_up()
    assert peer.receive() == [
        (0, ConnectionBlocked("low on memory")),
        (1, closed(406, SHORT, BasicPublish)),
        (2, closed(406, SHORT, BasicPublish)),
    ]
    assert peer.client.budget.used == 0
    peer.send(3, BasicQos(0, 1))
    assert peer.one(3) == BasicQosOk()
    peer.send(1, ChannelCloseOk(), ChannelOpen())
    assert peer.one() == ChannelOpenOk()


def test_nothing_new_begins_beyond_the_critical_mark() -> None:
    """Review finding 14: connections are closed with 506, transactions with 406."""
    broker, peer = connect()
    play(peer, [TxSelect(), Publish("", "q")])
    peer.receive()
    broker.short_of_memory = True
    peer.publish("", "q")
    text = "the node is low on memory: a transaction cannot grow"
    assert peer.one() == closed(406, text, BasicPublish)
    peer.publish("", "q", channel=2)
    assert len(broker.queues["/", "q"].messages) == 1, "what a queue takes at once passes on"
    late = greeted(broker)
    late.send(0, start_ok(), ConnectionTuneOk(2047, 131_072, 0), ConnectionOpen("/"))
    close = late.receive()[-1][1]
    assert isinstance(close, ConnectionClose)
    assert (close.reply_code, close.reply_text) == (
        506,
        "RESOURCE_ERROR - the node is low on memory",
    )
    assert broker.refused == ["transaction", "connection"]


def test_a_stopped_publisher_that_is_closed_is_read_again() -> None:
    """Review finding 14: its answer is waited for, nothing else is done with what it says."""
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.publish("", "nowhere")
    broker.handler.block("low on memory")
    assert broker.stopped == [peer.connection]
    peer.client.disconnect("by an operator")
    assert broker.stopped == []
