"""AMQP 1.0 on the shards of a node: recognised by its header, served by any shard's queues, listed and
ended like AMQP 0.9.1."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fluxmq.control.columns import LISTS
from fluxmq.ipc import handoff
from fluxmq.ipc.row_messages import (
    CHANNELS,
    CONNECTIONS,
    CONSUMERS,
    AffectedCount,
    CloseConnections,
    RowsPage,
    RowsRequest,
)
from fluxmq.protocols.amqp10.codec import encode
from fluxmq.protocols.amqp10.frames import AMQP_HEADER, FRAME_SASL, SASL_HEADER, TLS_HEADER, frame
from fluxmq.protocols.amqp10.message import from_sections
from fluxmq.protocols.amqp10.performatives import (
    RECEIVER,
    AcceptedState,
    AttachFrame,
    BeginFrame,
    CloseFrame,
    DetachFrame,
    DispositionFrame,
    FlowFrame,
    OpenFrame,
    ReleasedState,
    SaslInitFrame,
    SourceTerminus,
    TargetTerminus,
    TransferFrame,
    read,
)
from fluxmq.protocols.amqp10.types import Described, Symbol, ULong
from fluxmq.routing.topology.changes import DeclareQueue, DeleteQueue
from fluxmq.routing.topology.names import TRACE_EXCHANGE
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.shards.intake import AMQP
from tests.unit.shards.amqp.support import PASSWORD, PEER, AmqpClient, AmqpNode, contents, user
from tests.unit.shards.amqp.test_firehose import trace

MakeAmqp = Callable[..., AmqpNode]
MESSAGE = b"\0\x53\x75\xa0"


class Client10:
    """A connection of AMQP 1.0 to one shard, with a session. ``headers``: those that came."""

    def __init__(self, node: AmqpNode, shard: int = 0, first: bytes = SASL_HEADER) -> None:
        self.node = node
        self.closed = False
        self.headers: list[bytes] = []
        self.sent = 0
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._sock = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
        node._sockets.append(self._sock)
        for each in (self._sock, theirs):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with theirs:
            handed = handoff.Handoff(theirs.fileno(), AMQP, PEER, first)
            assert handoff.send(node[shard].acceptor, [handed]) == 1
        node.run()
        if first != SASL_HEADER:
            return
        init = SaslInitFrame(Symbol("PLAIN"), f"\0anna\0{PASSWORD}".encode())
        self.raw(frame(0, init, kind=FRAME_SASL))
        pool = node[shard].authentication._verifications.pool
        assert pool is not None
        pool.submit(int).result()
        for _ in range(2):
            node.loop.run_until_complete(asyncio.sleep(0))
        self.raw(AMQP_HEADER)
        self.send(OpenFrame("c", properties={Symbol("product"): "test"}))
        self.send(BeginFrame(None, 0, 1 << 20, 1 << 20))
        assert [type(body) for body in self.read()][-2:] == [OpenFrame, BeginFrame]

    def raw(self, data: bytes) -> None:
        """Send bytes."""
        self._sock.sendall(data)
        self.node.run()

    def send(self, *bodies: object) -> None:
        """Send performatives."""
        self.raw(b"".join(frame(0, body) for body in bodies))

    def publish(self, *payloads: bytes, **fields: Any) -> None:
        """Send messages on handle 0."""
        parts = []
        for payload in payloads:
            transfer = TransferFrame(0, self.sent, b"%d" % self.sent, 0, **fields)
            parts.append(frame(0, transfer, MESSAGE + bytes((len(payload),)) + payload))
            self.sent += 1
        self.raw(b"".join(parts))

    def frames(self) -> list[tuple[Any, bytes]]:
        """The performatives that have come, with what follows each."""
        self.node.settle()
        data = b""
        try:
            while chunk := self._sock.recv(65_536):
                data += chunk
            self.closed = True
        except BlockingIOError:
            pass
        found = []
        while data:
            if data.startswith(b"AMQP"):
                self.headers.append(data[:8])
                data = data[8:]
                continue
            (size,) = struct.unpack_from(">I", data)
            body, end = read(data[:size], 8)
            found.append((body, data[end:size]))
            data = data[size:]
        return found

    def read(self) -> list[Any]:
        """The performatives that have come."""
        return [body for body, _ in self.frames()]

    def payloads(self) -> list[bytes]:
        """The messages that have come."""
        return [
            from_sections(rest).payload
            for body, rest in self.frames()
            if isinstance(body, TransferFrame)
        ]

    def attach(self, sender: str = "", receiver: str = "") -> list[Any]:
        """Attach a link to publish on (handle 0) or to consume on (handle 1)."""
        if sender:
            self.send(AttachFrame("s", 0, False, target=TargetTerminus(sender)))
        else:
            self.send(AttachFrame("r", 1, True, source=SourceTerminus(receiver)))
        return self.read()

    def flow(self, credit: int, count: int, **fields: Any) -> None:
        """Give the link for consuming credit."""
        self.send(FlowFrame(0, 1 << 20, self.sent, 1 << 20, 1, count, credit, **fields))


@pytest.fixture
def node(make_amqp: MakeAmqp) -> AmqpNode:
    """Two shards, and queues whose groups are on either."""
    made = make_amqp(2, (user(),))
    for shard in (0, 1):
        queue = QueueRecord("/", f"q{shard}")
        group = made.amqp(shard).broker.group_for(queue)
        made.control.change(DeclareQueue(replace(queue, group=group)))
    made.settle()
    return made


@pytest.mark.parametrize("queue", ["/queues/q0", "/queues/q1"])
def test_a_queue_of_any_shard_keeps_to_the_credit(node: AmqpNode, queue: str) -> None:
    publisher, consumer = Client10(node), Client10(node)
    publisher.attach(sender=queue)
    publisher.publish(*(b"%d" % number for number in range(10)))
    accepted = [body for body in publisher.read() if isinstance(body, DispositionFrame)]
    assert accepted == [DispositionFrame(RECEIVER, 0, 9, True, AcceptedState())]
    consumer.attach(receiver=queue)
    assert consumer.payloads() == []
    consumer.flow(3, 0)
    assert consumer.payloads() == [b"0", b"1", b"2"]
    consumer.send(DispositionFrame(RECEIVER, 1, 2, True, AcceptedState()))
    assert consumer.payloads() == []
    consumer.send(DispositionFrame(RECEIVER, 3, 3, True, ReleasedState()))
    assert consumer.payloads() == []
    consumer.flow(2, 3)
    assert consumer.payloads() == [b"2", b"3"]
    consumer.flow(100, 5, drain=True)
    frames = consumer.frames()
    assert len([body for body, _ in frames if isinstance(body, TransferFrame)]) == 6
    flow = next(body for body, _ in frames if isinstance(body, FlowFrame))
    assert (flow.delivery_count, flow.link_credit) == (105, 0)
    publisher.publish(b"later")
    assert consumer.payloads() == []


def test_other_first_headers_get_the_one_that_is_required(node: AmqpNode) -> None:
    for header in (AMQP_HEADER, TLS_HEADER):
        client = Client10(node, first=header)
        client.read()
        assert client.headers == [SASL_HEADER]
        assert client.closed


def test_connections_sessions_and_consumers_are_listed_and_closed(node: AmqpNode) -> None:
    client, old = Client10(node), AmqpClient(node)
    client.attach(receiver="/queues/q0")

    def rows(what: str) -> list[Any]:
        answers: list[Any] = []
        wanted = RowsRequest(what, LISTS[what].columns)
        node.amqp(0).queries.rows(wanted, answers.append)
        assert isinstance(answers[0], RowsPage)
        return list(answers[0].rows)

    protocols = {row["protocol"]: row for row in rows(CONNECTIONS)}
    assert set(protocols) == {"AMQP 0-9-1", "AMQP 1-0"}
    row = protocols["AMQP 1-0"]
    assert (row["user"], row["state"], row["channels"]) == ("anna", "running", 1)
    assert row["client_properties"] == {"product": "test", "container_id": "c"}
    (channel,) = rows(CHANNELS)
    assert (channel["number"], channel["consumer_count"]) == (0, 1)
    (consumer,) = rows(CONSUMERS)
    assert (consumer["queue_name"], consumer["consumer_tag"]) == ("q0", "r")
    assert consumer["active"] is True
    answers: list[Any] = []
    order = CloseConnections(row["pid"], None, "because")
    node.amqp(0).queries.close_connections(order, answers.append)
    assert answers == [AffectedCount(1)]
    close: Any
    (close,) = [body for body in client.read() if isinstance(body, CloseFrame)]
    assert (close.error.condition, close.error.description) == (
        "amqp:connection:forced",
        "because",
    )
    assert old.read() == []


def test_a_deleted_queue_and_a_lost_connection_leave_nothing(node: AmqpNode) -> None:
    client = Client10(node)
    client.attach(receiver="/queues/q1")
    node.control.change(DeleteQueue("/", "q1"))
    assert [type(body).__name__ for body in client.read()] == ["DetachFrame"]
    client._sock.close()
    node.settle()
    assert not node.amqp(0).handler.amqp10.clients


def test_publishes_are_traced_with_their_properties(node: AmqpNode) -> None:
    node.queue("copies")
    node.bind(TRACE_EXCHANGE, "copies", "publish.#")
    client = Client10(node)
    client.attach(sender="/queues/q0")
    trace(node, "/")
    properties = encode(Described(ULong(0x74), {"kind": "traced"}))
    client.raw(frame(0, TransferFrame(0, 0, b"t", 0), properties + MESSAGE + b"\x01x"))
    node.settle()
    old = AmqpClient(node)
    old.send(1, "channel.open")
    old.send(1, "basic.get", queue="copies", no_ack=True)
    node.settle()
    got = old._sock.recv(65_536)
    assert b"kind" in got
    assert b"traced" in got


def test_deliveries_are_traced_and_copies_are_not(node: AmqpNode) -> None:
    copies = node.queue("copies")
    node.bind(TRACE_EXCHANGE, "copies", "deliver.#")
    trace(node, "/")
    client, other = Client10(node), Client10(node)
    client.attach(sender="/queues/q1")
    client.publish(b"one", b"two")
    client.attach(receiver="/queues/q1")
    client.flow(1, 0)
    assert client.payloads() == [b"one"]
    other.attach(receiver="/queues/copies")
    other.flow(10, 0)
    copied = [body for body, _ in other.frames() if isinstance(body, TransferFrame)]
    assert len(copied) == 1
    sent = node.amqp(0).messages.sent
    assert sent[TRACE_EXCHANGE] == 3, "two publishes and a delivery, and not that of the copy"
    client.flow(1, 1)
    assert client.payloads() == [b"two"]
    assert other.payloads() == [b"two"]
    assert contents(node, copies) == []


@pytest.mark.parametrize("queue", ["/queues/q0", "/queues/q1"])
def test_a_queue_of_any_shard_is_browsed_to_its_end(node: AmqpNode, queue: str) -> None:
    client, browser = Client10(node), Client10(node)
    client.attach(sender=queue)
    client.publish(*(b"%d" % number for number in range(5)))
    client.read()
    source = SourceTerminus(queue, distribution_mode=Symbol("copy"))
    browser.send(AttachFrame("r", 1, True, source=source))
    browser.flow(20, 0, drain=True)
    frames = browser.frames()
    shown = [
        from_sections(rest).payload for body, rest in frames if isinstance(body, TransferFrame)
    ]
    assert shown == [b"0", b"1", b"2", b"3", b"4"]
    (flow,) = [body for body, _ in frames if isinstance(body, FlowFrame)]
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (20, 0, True)
    browser.send(DispositionFrame(RECEIVER, 1, 5, True, AcceptedState()))
    client.attach(receiver=queue)
    client.flow(10, 0)
    assert client.payloads() == shown


@pytest.mark.parametrize("shard", [0, 1])
def test_single_active_consumers_know_which_one_they_are(node: AmqpNode, shard: int) -> None:
    node.queue("single", shard=shard, arguments={"x-single-active-consumer": True})
    clients = [Client10(node), Client10(node, 1), Client10(node)]
    told: list[list[bool]] = [[], [], []]

    def listen() -> list[list[bool]]:
        for client, list_ in zip(clients, told, strict=True):
            list_ += [
                bool(body.properties["rabbitmq:active"])
                for body in client.read()
                if isinstance(body, FlowFrame) and body.properties
            ]
        return told

    for client in clients:
        client.attach(receiver="/queues/single")
    assert listen() == [[], [], []], "not before they give credit"
    for client in clients:
        client.flow(1, 0)
    assert listen() == [[True], [False], [False]]
    clients[0].send(DetachFrame(1, True))
    assert listen() == [[True], [False, True], [False]]
    clients[2].flow(5, 0)
    assert listen() == [[True], [False, True], [False]], "only what has changed"


def test_consumers_of_quorum_queues_are_active(node: AmqpNode) -> None:
    node.queue("quorum", type="quorum")
    client = Client10(node)
    client.attach(receiver="/queues/quorum")
    client.flow(1, 0)
    (flow,) = [body for body in client.read() if isinstance(body, FlowFrame)]
    assert (flow.properties, flow.link_credit) == ({"rabbitmq:active": True}, 1)


def test_messages_of_0_9_1_and_1_0_share_a_queue(node: AmqpNode) -> None:
    new, old = Client10(node), AmqpClient(node)
    new.attach(sender="/queues/q0")
    new.publish(b"from 1.0")
    old.send(1, "channel.open")
    old.publish(1, "", "q0", b"from 0.9.1")
    node.settle()
    new.attach(receiver="/queues/q0")
    new.flow(10, 0)
    assert sorted(new.payloads()) == [b"from 0.9.1", b"from 1.0"]
