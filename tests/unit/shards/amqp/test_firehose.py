"""Copies of messages of traced virtual hosts."""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import Body, Failure
from fluxmq.ipc.trace_messages import TRACED, TracedVhosts
from fluxmq.protocols.amqp091.content import BasicProperties, encode_properties
from fluxmq.routing.topology.names import TRACE_EXCHANGE
from fluxmq.shards.amqp import broker_messages
from fluxmq.shards.amqp.broker_messages import BrokerMessages
from fluxmq.shards.amqp.firehose import properties_table
from tests.unit.shards.amqp.support import AmqpClient, AmqpNode, contents, user

MakeAmqp = Callable[..., AmqpNode]


def trace(node: AmqpNode, *vhosts: str) -> None:
    """Have control tell every shard."""
    answers: list[Body | Failure] = []
    answered: Answered = answers.append
    for shard in node:
        told = TracedVhosts(vhosts).to_body()
        node.amqp(shard.index).commands[TRACED](told, answered)
    assert not any(isinstance(each, Failure) for each in answers)


def test_copies_are_made_while_a_virtual_host_is_traced(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2, (user(),))
    queue, copies = node.queue("q"), node.queue("copies", shard=1)
    node.bind(TRACE_EXCHANGE, "copies", "#")
    client = AmqpClient(node)
    client.send(1, "channel.open")
    client.publish(1, "", "q", b"before")
    trace(node, "other")
    client.publish(1, "", "q", b"elsewhere")
    trace(node, "/")
    client.publish(1, "", "q", b"traced")
    client.send(1, "basic.consume", queue="q", consumer_tag="c", no_ack=True)
    node.settle()
    trace(node)
    client.publish(1, "", "q", b"after")
    assert contents(node, copies, 1) == [b"traced", b"before", b"elsewhere", b"traced"]
    assert node.amqp().messages.sent[TRACE_EXCHANGE] == 4
    assert contents(node, queue) == []


def test_copies_are_not_copied(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1, (user(),))
    node.queue("q")
    node.queue("copies")
    node.bind(TRACE_EXCHANGE, "copies", "publish.#")
    client = AmqpClient(node)
    client.send(1, "channel.open")
    trace(node, "/")
    client.publish(1, "", "q", b"one")
    client.send(1, "basic.consume", queue="copies", consumer_tag="c", no_ack=True)
    node.settle()
    assert "basic.deliver" in [each.name for each in client.read()]
    assert node.amqp().messages.sent[TRACE_EXCHANGE] == 1


def test_nothing_is_made_for_an_exchange_without_bindings(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1, (user(),))
    node.queue("q")
    client = AmqpClient(node)
    client.send(1, "channel.open")
    trace(node, "/")
    client.publish(1, "", "q", b"one")
    assert not node.amqp().messages.sent


def test_what_waits_is_bounded() -> None:
    messages = BrokerMessages()
    for _ in range(broker_messages.PENDING_MAX + 2):
        messages.later("/", TRACE_EXCHANGE, "k", b"\0\0", b"")
    assert messages.dropped[TRACE_EXCHANGE] == 2
    messages.flush()
    large = bytes(broker_messages.PENDING_BYTES_MAX - 2)
    messages.later("/", TRACE_EXCHANGE, "k", b"\0\0", large)
    messages.later("/", TRACE_EXCHANGE, "k", b"\0\0", b"")
    assert messages.dropped[TRACE_EXCHANGE] == 3


def test_properties_become_a_table() -> None:
    raw = encode_properties(BasicProperties("text/plain", headers={"a": [1, None]}, priority=3))
    assert properties_table(raw) == {
        "content_type": "text/plain",
        "headers": {"a": [1, None]},
        "priority": 3,
    }
    assert properties_table(b"\x80\0\x05a") == {}, "malformed"


def test_long_names_make_no_key_too_long() -> None:
    key = broker_messages.cut("publish." + "ü" * 200)
    assert (len(key.encode()), key) == (254, "publish." + "ü" * 123)


def test_copies_for_a_queue_without_room_are_dropped_and_stop_nobody(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2, (user(),))
    copies = node.queue("copies", shard=1, durable=False)
    node.bind(TRACE_EXCHANGE, "copies", "#")
    client = AmqpClient(node)
    client.send(1, "channel.open")
    trace(node, "/")
    node.settle()
    node.hold()
    node.pipes[0, 1].room = 1_000_000
    messages, reactor = node.amqp().messages, node[0].reactor
    for _ in range(40):
        client.publish(1, "amq.fanout", "", bytes(100_000))
    assert messages.dropped[TRACE_EXCHANGE] > 0
    assert reactor.tally.amqp_published == 40, "the client is read"
    sent = messages.sent[TRACE_EXCHANGE]
    node.pipes[0, 1].room = None
    node.release()
    node.advance(1.1)
    client.publish(1, "amq.fanout", "", b"again")
    assert len(contents(node, copies, 1)) == sent + 1
