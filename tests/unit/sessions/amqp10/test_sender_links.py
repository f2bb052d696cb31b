"""Links on which a client publishes: credit, outcomes, large messages, errors."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.model.deduplication import producer_number
from fluxmq.protocols.amqp10.codec import encode
from fluxmq.protocols.amqp10.frames import frame
from fluxmq.protocols.amqp10.performatives import (
    RECEIVER,
    AcceptedState,
    AttachFrame,
    CloseFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    FlowFrame,
    RejectedState,
    ReleasedState,
    SourceTerminus,
    TargetTerminus,
    TransactionalState,
    TransferFrame,
)
from fluxmq.protocols.amqp10.types import Described, Symbol, ULong
from fluxmq.queues.commands import Verb
from fluxmq.routing.topology.changes import Bind, DeclareExchange, DeclareQueue
from fluxmq.routing.topology.records import Binding, Exchange, QueueRecord
from fluxmq.sessions.amqp091.ports import AmqpLimits
from fluxmq.sessions.amqp10.publisher import RUN_BYTES_MAX
from fluxmq.sessions.amqp10.sender_links import CREDIT
from fluxmq.sessions.amqp10.session import UNANSWERED_MAX
from tests.unit.sessions.amqp091.memory import MemoryBroker
from tests.unit.sessions.amqp10.peer_10 import Peer10, data


@pytest.fixture
def broker() -> MemoryBroker:
    made = MemoryBroker(AmqpLimits(max_message=100_000, max_incomplete_bytes=150_000))
    made.apply([DeclareQueue(QueueRecord("/", "q")), DeclareQueue(QueueRecord("/", "bq"))])
    return made


@pytest.fixture
def peer(broker: MemoryBroker) -> Peer10:
    return Peer10(broker)


def payloads(broker: MemoryBroker, queue: str = "q") -> list[bytes]:
    found = broker.queues["/", queue]
    return [batch.payload(index) for batch, index in found.messages.values()]


def section(code: int, value: object) -> bytes:
    """A section of a message."""
    return encode(Described(ULong(code), value))


def outcomes(peer: Peer10) -> list[Any]:
    """Outcomes that the client got, by delivery id."""
    found: dict[int, Any] = {}
    for body in peer.bodies(DispositionFrame):
        last = body.first if body.last is None else body.last
        found |= dict.fromkeys(range(body.first, last + 1), body.state)
    return [found[number] for number in sorted(found)]


def conditions(peer: Peer10) -> list[tuple[type, str]]:
    """Errors that the client got, with what they ended."""
    return [
        (type(body), body.error.condition)
        for body in peer.bodies()
        if isinstance(body, (DetachFrame, EndFrame, CloseFrame)) and body.error is not None
    ]


def test_an_attached_publisher_gets_credit(peer: Peer10) -> None:
    attach, flow = (each.body for each in peer.sender("/queues/q"))
    assert (attach.role, attach.handle, attach.max_message_size) == (RECEIVER, 0, 100_000)
    assert attach.target == TargetTerminus("/queues/q", expiry_policy=Symbol("session-end"))
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (0, 0, CREDIT)


def test_messages_are_stored_in_order_and_accepted_as_one_range(
    broker: MemoryBroker, peer: Peer10
) -> None:
    peer.sender("/queues/q")
    peer.raw(
        b"".join(
            frame(0, TransferFrame(0, number, b"%d" % number, 0), data(b"m%d" % number))
            for number in range(5)
        )
    )
    assert peer.bodies(DispositionFrame) == [
        DispositionFrame(RECEIVER, 0, 4, True, AcceptedState())
    ]
    assert payloads(broker) == [b"m0", b"m1", b"m2", b"m3", b"m4"]
    assert len({id(batch) for batch, _ in broker.queues["/", "q"].messages.values()}) == 1


def test_messages_with_other_properties_are_runs_of_their_own(
    broker: MemoryBroker, peer: Peer10
) -> None:
    peer.sender("/queues/q")
    first = section(0x73, [None, None, None, "one"])
    second = section(0x73, [None, None, None, "two"])
    sent = [first + data(b"a"), first + data(b"bb"), second + data(b"c"), data(b""), data(b"d")]
    sent.append(first + section(0x77, "text"))
    sent.append(data(b"x" * 255) + section(0x78, {}))
    peer.raw(
        b"".join(
            frame(0, TransferFrame(0, number, b"%d" % number, 0), message)
            for number, message in enumerate(sent)
        )
    )
    peer.receive()
    assert payloads(broker) == [b"a", b"bb", b"c", b"", b"d", b"text", b"x" * 255]
    blocks = [batch.properties(index) for batch, index in broker.queues["/", "q"].messages.values()]
    assert blocks[0] == blocks[1]
    assert len(set(blocks)) == 5


def test_what_no_queue_takes_is_released(broker: MemoryBroker, peer: Peer10) -> None:
    peer.sender("/exchanges/amq.direct/none")
    peer.publish(data(b"x"))
    assert peer.bodies(DispositionFrame)[0].state == ReleasedState()
    peer.publish(data(b"x"), settled=True)
    assert not peer.bodies()
    assert broker.drops == [("unroutable", 1)]


def test_a_full_queue_rejects_and_is_named(broker: MemoryBroker, peer: Peer10) -> None:
    arguments = {"x-overflow": "reject-publish", "x-max-length": 1}
    broker.apply([DeclareQueue(QueueRecord("/", "full", arguments=arguments))])
    peer.sender("/queues/full")
    peer.raw(
        b"".join(frame(0, TransferFrame(0, number, b"t", 0), data(b"x")) for number in range(3))
    )
    first, second = peer.bodies(DispositionFrame)
    assert (first.first, first.last, first.state) == (0, 0, AcceptedState())
    assert (second.first, second.last) == (1, 2)
    error = second.state.error
    assert error.condition == "amqp:resource-limit-exceeded"
    assert error.info == {Symbol("queue"): "full"}


def test_a_message_published_twice_has_the_same_identity(
    broker: MemoryBroker, peer: Peer10
) -> None:
    peer.sender("/queues/q")
    for said in ("producer:7", "producer:7", "no number"):
        annotations = section(0x72, {Symbol("x-deduplication-id"): said})
        peer.publish(annotations + data(b"x"))
    states = outcomes(peer)
    assert states[:2] == [AcceptedState()] * 2
    assert states[2].error.condition == "amqp:precondition-failed"
    stored = [
        (batch.producer(index), batch.sequence(index))
        for batch, index in broker.queues["/", "q"].messages.values()
    ]
    assert stored == [(producer_number(b"producer"), 7)] * 2


def test_the_subject_is_the_routing_key_of_an_exchange_without_one(
    broker: MemoryBroker, peer: Peer10
) -> None:
    broker.apply([Bind(Binding("/", "amq.direct", "q", routing_key="k"))])
    peer.sender("/exchange/amq.direct")
    peer.publish(section(0x73, [None, None, None, "k"]) + data(b"by subject"))
    peer.receive()
    assert payloads(broker) == [b"by subject"]


def test_headers_and_copies_route(broker: MemoryBroker, peer: Peer10) -> None:
    broker.apply(
        [
            Bind(Binding("/", "amq.headers", "q", arguments={"x-match": "all", "kind": "a"})),
            Bind(Binding("/", "amq.direct", "bq", routing_key="two")),
        ]
    )
    peer.sender("/exchanges/amq.headers")
    peer.publish(section(0x74, {"kind": "a"}) + data(b"h"))
    peer.sender("/exchanges/amq.direct/one", handle=5)
    peer.publish(section(0x72, {Symbol("x-cc"): ["two"]}) + data(b"cc"), handle=5)
    peer.receive()
    assert payloads(broker) == [b"h"]
    assert payloads(broker, "bq") == [b"cc"]


def test_a_link_without_address_takes_that_of_each_message(
    broker: MemoryBroker, peer: Peer10
) -> None:
    peer.sender(None)
    peer.publish(section(0x73, [None, None, "/queues/q"]) + data(b"one"))
    peer.publish(section(0x73, [None, None, "/queues/bq"]) + data(b"two"))
    peer.publish(section(0x73, [None, None, "nowhere"]) + data(b"three"))
    peer.publish(data(b"four"))
    states = outcomes(peer)
    assert states[:2] == [AcceptedState()] * 2
    assert [state.error.condition for state in states[2:]] == ["amqp:precondition-failed"] * 2
    assert (payloads(broker), payloads(broker, "bq")) == ([b"one"], [b"two"])


def test_a_message_in_several_frames_is_one(broker: MemoryBroker, peer: Peer10) -> None:
    peer.sender("/queues/q")
    message = b"\0\x53\x75\xb0\0\0\x20\0" + bytes(0x2000)
    peer.raw(frame(0, TransferFrame(0, 0, b"t", 0, more=True), message[:4000]))
    assert not peer.bodies()
    peer.raw(frame(0, TransferFrame(0, more=True), message[4000:8000]))
    peer.raw(frame(0, TransferFrame(0, 0), message[8000:]))
    assert len(peer.bodies(DispositionFrame)) == 1
    assert payloads(broker) == [bytes(0x2000)]
    assert peer.client.budget.used == 0


def test_an_aborted_message_leaves_nothing(broker: MemoryBroker, peer: Peer10) -> None:
    peer.sender("/queues/q")
    peer.raw(frame(0, TransferFrame(0, 0, b"t", 0, more=True), data(b"x")))
    peer.raw(frame(0, TransferFrame(0, aborted=True)))
    peer.sent = 1
    peer.publish(data(b"y"))
    assert [body.first for body in peer.bodies(DispositionFrame)] == [1]
    assert payloads(broker) == [b"y"]
    assert peer.client.budget.used == 0


def test_messages_beyond_the_limits_end_the_link(broker: MemoryBroker, peer: Peer10) -> None:
    part = bytes(60_000)
    peer.sender("/queues/q")
    for _ in range(2):
        peer.raw(frame(0, TransferFrame(0, 0, b"t", 0, more=True), part))
    assert conditions(peer) == [(DetachFrame, "amqp:link:message-size-exceeded")]
    for handle in (3, 4, 5):
        peer.sender("/queues/q", handle)
        peer.raw(frame(0, TransferFrame(handle, handle, b"t", 0, more=True), part))
    assert conditions(peer) == [(DetachFrame, "amqp:resource-limit-exceeded")]
    assert broker.refused == ["budget"]
    assert peer.client.budget.used == 120_000


def test_credit_is_renewed_and_a_transfer_without_it_ends_the_link(
    broker: MemoryBroker, peer: Peer10
) -> None:
    peer.sender("/queues/q")
    for _ in range(CREDIT // 2):
        peer.publish(data(b"x"))
    (flow,) = peer.bodies(FlowFrame)
    assert (flow.delivery_count, flow.link_credit) == (CREDIT // 2, CREDIT)
    link = peer.session.sessions[0].links[0]
    link.credit = 0  # type: ignore[union-attr]
    peer.publish(data(b"x"))
    assert conditions(peer) == [(DetachFrame, "amqp:link:transfer-limit-exceeded")]


def test_a_message_that_is_none_is_rejected(broker: MemoryBroker, peer: Peer10) -> None:
    peer.sender("/queues/q")
    peer.publish(b"\0\x53\x75\xa0\x05x")
    assert peer.bodies(DispositionFrame)[0].state.error.condition == "amqp:decode-error"
    peer.publish(b"", settled=True)
    assert conditions(peer) == [(DetachFrame, "amqp:decode-error")]
    assert not payloads(broker)


def test_permissions_are_checked_at_attach_and_for_each_message(broker: MemoryBroker) -> None:
    peer = Peer10(broker, user="bob")
    broker.apply(
        [
            DeclareExchange(Exchange("/", "bt", "topic")),
            Bind(Binding("/", "bt", "q", routing_key="#")),
        ]
    )
    peer.sender("/exchanges/amq.direct/k")
    attach = peer.sender("/exchanges/bt/ok", handle=2)[0].body
    assert attach.target is not None
    peer.sender("/exchanges/bt/other", handle=3)
    peer.publish(data(b"allowed"), handle=2)
    peer.publish(data(b"refused"), handle=3)
    user = section(0x73, [None, b"guest"])
    peer.publish(user + data(b"another's"), handle=2)
    states = outcomes(peer)
    assert [type(state) for state in states] == [AcceptedState, RejectedState, RejectedState]
    assert states[1].error.condition == "amqp:unauthorized-access"
    assert states[2].error.condition == "amqp:unauthorized-access"
    assert payloads(broker) == [b"allowed"]


@pytest.mark.parametrize(
    ("target", "condition"),
    [
        (TargetTerminus("/exchanges/none/k"), "amqp:not-found"),
        (TargetTerminus("/exchanges"), "amqp:invalid-field"),
        (TargetTerminus(7), "amqp:invalid-field"),
        (None, "amqp:invalid-field"),
    ],
)
def test_a_target_that_is_not_served_is_refused(
    peer: Peer10, target: object, condition: str
) -> None:
    peer.send(AttachFrame("s", 0, False, target=target, initial_delivery_count=0))
    attach, detach = peer.bodies()
    assert attach.target is None
    assert (detach.error.condition, detach.closed) == (condition, True)
    peer.send(DetachFrame(0, True))
    assert not peer.bodies()
    assert len(peer.sender("/queues/q")) == 2


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ({"message_format": 1}, "amqp:not-implemented"),
        ({"state": AcceptedState()}, "amqp:not-implemented"),
        ({"state": TransactionalState(b"t")}, "amqp:transaction:unknown-id"),
        ({"resume": True}, "amqp:not-implemented"),
    ],
)
def test_transfers_that_are_not_served_end_the_link(
    broker: MemoryBroker, peer: Peer10, fields: dict[str, Any], condition: str
) -> None:
    peer.sender("/queues/q")
    transfer = TransferFrame(0, 0, b"t", 0)
    for name, value in fields.items():
        setattr(transfer, name, value)
    peer.raw(frame(0, transfer, data(b"x")))
    assert conditions(peer) == [(DetachFrame, condition)]
    assert not payloads(broker)


def test_a_dynamic_target_is_a_queue_of_the_connection(broker: MemoryBroker, peer: Peer10) -> None:
    peer.send(
        AttachFrame(*("s", 0, False), target=TargetTerminus(dynamic=True), initial_delivery_count=0)
    )
    attach, _ = peer.bodies()
    name = attach.target.address.removeprefix("/queues/")
    assert broker.topology.queue("/", name) is not None
    peer.publish(data(b"x"))
    assert peer.bodies(DispositionFrame)[0].state == AcceptedState()
    peer.send(CloseFrame())
    assert broker.topology.queue("/", name) is None


def test_a_bare_name_declares_its_queue(broker: MemoryBroker, peer: Peer10) -> None:
    peer.sender("fresh")
    queue = broker.topology.queue("/", "fresh")
    assert queue is not None
    assert queue.durable
    peer.publish(data(b"x"))
    assert payloads(broker, "fresh") == [b"x"]


def test_the_window_is_renewed_and_a_transfer_on_no_link_ends_the_session(
    peer: Peer10,
) -> None:
    peer.sender("/queues/q")
    session = peer.session.sessions[0]
    session.incoming_window = 1025
    peer.publish(data(b"x"))
    flows = peer.bodies(FlowFrame)
    assert flows[0].handle is None
    assert (flows[0].next_incoming_id, flows[0].incoming_window) == (1, 2048)
    peer.publish(data(b"x"), handle=9)
    assert conditions(peer) == [(EndFrame, "amqp:session:unattached-handle")]
    peer.publish(data(b"x"))
    assert not peer.bodies()
    peer.send(EndFrame())
    assert not peer.session.sessions


def test_a_publisher_is_not_read_during_an_alarm(broker: MemoryBroker, peer: Peer10) -> None:
    peer.sender("/queues/q")
    broker.handler.alarm.reason = "memory"
    broker.amqp10.block()
    assert not broker.stopped
    peer.publish(data(b"x"))
    assert broker.stopped == [peer.connection]
    assert peer.client.state == "blocked"
    broker.amqp10.unblock()
    assert not peer.client.blocked


def test_too_many_publishes_without_outcome_stop_the_reading(
    broker: MemoryBroker, peer: Peer10
) -> None:
    peer.sender("/queues/q")
    peer.session.sessions[0].outcomes.expect(UNANSWERED_MAX)
    peer.publish(data(b"x"))
    assert broker.paused == [peer.connection]
    peer.session.sessions[0].outcomes.answer(-UNANSWERED_MAX, UNANSWERED_MAX, AcceptedState())
    peer.receive()
    assert broker.paused == []


def test_a_run_ends_when_it_is_large(broker: MemoryBroker, peer: Peer10) -> None:
    peer.sender("/queues/q")
    size = 60_000
    message = b"\0\x53\x75\xb0" + size.to_bytes(4, "big") + bytes(size)
    count = RUN_BYTES_MAX // size + 3
    peer.raw(
        b"".join(frame(0, TransferFrame(0, number, b"t", 0), message) for number in range(count))
    )
    peer.receive()
    batches = [batch for batch, _ in broker.queues["/", "q"].messages.values()]
    assert len(batches) == count
    assert 1 < len({id(batch) for batch in batches}) < count


def test_nothing_is_sent_on_a_session_that_has_ended(broker: MemoryBroker, peer: Peer10) -> None:
    peer.sender("/queues/q")
    peer.raw(frame(0, TransferFrame(0, 0, b"t", 0), data(b"x")) + frame(0, EndFrame()))
    assert peer.bodies() == [EndFrame()]
    assert payloads(broker) == [b"x"]


def test_what_came_before_the_end_of_a_link_is_published(
    broker: MemoryBroker, peer: Peer10
) -> None:
    peer.sender("/queues/q")
    peer.raw(frame(0, TransferFrame(0, 0, b"t", 0), data(b"last")) + frame(0, DetachFrame(0, True)))
    bodies = peer.bodies()
    assert DispositionFrame(RECEIVER, 0, 0, True, AcceptedState()) in bodies
    assert DetachFrame(0, True) in bodies
    assert payloads(broker) == [b"last"]
    assert Verb.ACK not in [verb for verb, _ in broker.queues["/", "q"].settled]


def test_a_topic_of_jms_takes_what_nobody_has_subscribed_to(peer: Peer10) -> None:
    topic = TargetTerminus("news", capabilities=Symbol("topic"))
    peer.send(AttachFrame("s", 0, False, target=topic, initial_delivery_count=0))
    peer.receive()
    peer.publish(data(b"x"))
    (outcome,) = peer.bodies(DispositionFrame)
    assert outcome.state == AcceptedState()
    source = SourceTerminus("news", capabilities=Symbol("topic"))
    peer.receiver("", credit=5, source=source)
    peer.publish(data(b"y"))
    assert [frame.payload for frame in peer.receive() if frame.payload]


def test_a_temporary_topic_has_an_address_and_no_queue(broker: MemoryBroker, peer: Peer10) -> None:
    target = TargetTerminus(dynamic=True, capabilities=Symbol("temporary-topic"))
    peer.send(AttachFrame("s", 0, False, target=target, initial_delivery_count=0))
    answer = peer.bodies(AttachFrame)[0]
    assert answer.target.address.startswith("topic://amq.gen-")
    assert not [name for _, name in broker.queues if name.startswith("amq.gen-")]
    listeners = [Peer10(broker), Peer10(broker)]
    for listener in listeners:
        listener.receiver(answer.target.address, credit=5)
    peer.publish(data(b"x"))
    peer.receive()
    for listener in listeners:
        assert [frame for frame in listener.receive() if frame.payload], "each gets it"
