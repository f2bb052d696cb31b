"""Deliveries of a link that are not all of one template."""

from __future__ import annotations

import pytest

from fluxmq.model.batches import BatchMessage
from fluxmq.model.batches import encode as encode_batch
from fluxmq.model.properties import Item, PropertyKind
from fluxmq.model.properties import encode as encode_block
from fluxmq.protocols.amqp10.codec import encode as encode_value
from fluxmq.protocols.amqp10.message import from_sections
from fluxmq.protocols.amqp10.performatives import SourceTerminus
from fluxmq.protocols.amqp10.types import Described, Symbol
from fluxmq.routing.topology.changes import DeclareQueue
from fluxmq.routing.topology.records import QueueRecord
from tests.unit.sessions.amqp091.memory import MemoryBroker
from tests.unit.sessions.amqp10.peer_10 import Peer10, data


@pytest.fixture
def broker() -> MemoryBroker:
    made = MemoryBroker()
    stream = QueueRecord("/", "s", "stream", durable=True)
    made.apply([DeclareQueue(QueueRecord("/", "q")), DeclareQueue(stream)])
    return made


@pytest.fixture
def peer(broker: MemoryBroker) -> Peer10:
    return Peer10(broker)


def test_texts_of_mqtt_are_told_by_their_bytes(broker: MemoryBroker, peer: Peer10) -> None:
    block = encode_block([Item(PropertyKind.PROTOCOL, 1), Item(PropertyKind.PAYLOAD_FORMAT, 1)])
    payloads = [b"text", b"\xff", b"t" * 300]
    found = [BatchMessage(b"q", block, each, 1000) for each in payloads]
    broker.queues["/", "q"].append(encode_batch(found))
    frames = peer.receiver("/queues/q", credit=3)
    sent = [each.payload for each in frames if each.payload]
    assert [each.body.delivery_id for each in frames if each.payload] == [1, 2, 3]
    assert sent[0].endswith(b"\0\x53\x77\xa1\x04text")
    assert sent[1].endswith(b"\0\x53\x75\xa0\x01\xff")
    assert sent[2].endswith(b"\0\x53\x77\xb1\0\0\x01\x2c" + b"t" * 300)


def test_each_message_of_a_stream_has_its_offset(broker: MemoryBroker, peer: Peer10) -> None:
    block = from_sections(data(b"x")).block("", "guest")
    payloads = [b"a", b"b", b"c" * 200_000, b"d"]
    found = [BatchMessage(b"s", block, each, 1000) for each in payloads]
    broker.queues["/", "s"].append(encode_batch(found))
    value = Described(Symbol("rabbitmq:stream-offset-spec"), "first")
    source = SourceTerminus("/queues/s", filter={Symbol("rabbitmq:stream-offset-spec"): value})
    frames = peer.receiver("", credit=4, source=source)
    begun = [each for each in frames if each.payload and each.body.delivery_id is not None]
    assert [each.body.delivery_id for each in begun] == [1, 2, 3, 4]
    key = encode_value(Symbol("x-stream-offset")) + b"\x80"
    for offset, each in enumerate(begun):
        assert key + offset.to_bytes(8, "big") in each.payload, offset
