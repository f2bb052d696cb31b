"""The generator's loop for AMQP 1.0 against sessions on a broker in memory."""

from __future__ import annotations

import time

import pytest

from fluxmq.protocols.amqp10.performatives import AttachFrame, SourceTerminus, TargetTerminus
from fluxmq.routing.topology.changes import DeclareQueue
from fluxmq.routing.topology.records import QueueRecord
from perf import amqp10
from perf.codec import Histogram, TransferReceiver, TransferSender
from tests.unit.sessions.amqp091.memory import MemoryBroker
from tests.unit.sessions.amqp10.peer_10 import Peer10

CREDIT = 200
ROUNDS = 30
"""Of a hundred messages each: more than a session's window has, which is renewed by a flow without a link."""
BUFFER = 1 << 20


def exchange(peer: Peer10, receiver: TransferReceiver) -> None:
    """Feed what a client gets to the loop, and answer."""
    peer.broker.tick()
    connection = peer.connection
    chunks = [*(connection.chunks or ()), *([connection.out] if connection.out else ())]
    connection.chunks = connection.out = None
    connection.size = 0
    data = b"".join(bytes(chunk) for chunk in chunks)
    receiver.inbound[: len(data)] = data
    assert receiver.feed(len(data), time.monotonic_ns(), True) == len(data)
    if receiver.out_length:
        peer.raw(bytes(receiver.outbound[: receiver.out_length]))


@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("every", [0, 1])
def test_messages_are_confirmed_and_accepted(stamped: bool, every: int) -> None:
    broker = MemoryBroker()
    broker.apply([DeclareQueue(QueueRecord("/", "q"))])
    publisher, consumer = Peer10(broker), Peer10(broker)
    attach = AttachFrame("to", 0, False, target=TargetTerminus("/queues/q"))
    attach.initial_delivery_count = 0
    publisher.send(attach)
    consumer.send(AttachFrame("from", 0, True, source=SourceTerminus("/queues/q")))
    consumer.receive()
    consumer.raw(amqp10.flow(0, 0, CREDIT))
    template = amqp10.publish_template(256, stamped)
    stamps = amqp10.stamps_in(template[0])
    sender = TransferSender(*template, 100, 500, 0, Histogram(), *stamps)
    buffers = bytearray(BUFFER), bytearray(BUFFER)
    confirms = TransferReceiver(*buffers, 0, sender, Histogram(), 0, CREDIT)
    deliveries = TransferReceiver(*buffers, every, None, Histogram(), 1, CREDIT)
    exchange(publisher, confirms)
    for _ in range(ROUNDS):
        length = sender.prepare(min(sender.room(), 100), time.monotonic_ns(), 0)
        publisher.raw(bytes(sender.chunk[:length]))
        exchange(publisher, confirms)
        exchange(consumer, deliveries)
        exchange(consumer, deliveries)
    sent = 100 * ROUNDS
    assert (sender.acknowledged, sender.refused) == (sent, 0)
    assert (deliveries.publishes, deliveries.payload_bytes) == (sent, 256 * sent)
    assert (deliveries.lost, deliveries.reordered, deliveries.malformed) == (0, 0, 0)
    # The answer to attach.
    assert (deliveries.unexpected, confirms.malformed, confirms.unexpected) == (0, 0, 1)
    consumer.receive()
    assert not broker.queues["/", "q"].messages, "all are accepted"
