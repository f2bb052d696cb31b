"""Links on which a client consumes: credit, drain, outcomes, windows, ends."""

from __future__ import annotations

import pytest

from fluxmq.model.message_batch import build_message
from fluxmq.protocols.amqp10.frames import frame
from fluxmq.protocols.amqp10.message import from_sections
from fluxmq.protocols.amqp10.performatives import (
    RECEIVER,
    SENDER,
    AcceptedState,
    AttachFrame,
    BeginFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    ErrorCondition,
    FlowFrame,
    ModifiedState,
    OpenFrame,
    ReceivedState,
    RejectedState,
    ReleasedState,
    SourceTerminus,
    TargetTerminus,
    TransactionalState,
    TransferFrame,
)
from fluxmq.protocols.amqp10.types import Described, Int, Symbol
from fluxmq.queues.commands import Verb
from fluxmq.routing.topology.changes import DeclareQueue, DeleteQueue
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.sessions.amqp10.receiver_links import AHEAD_MAX
from tests.unit.sessions.amqp091.memory import MemoryBroker
from tests.unit.sessions.amqp10.peer_10 import Frame, Peer10, data

ACK = AcceptedState()


@pytest.fixture
def broker() -> MemoryBroker:
    made = MemoryBroker()
    stream = QueueRecord("/", "s", "stream", durable=True)
    made.apply([DeclareQueue(QueueRecord("/", "q")), DeclareQueue(stream)])
    return made


@pytest.fixture
def peer(broker: MemoryBroker) -> Peer10:
    return Peer10(broker)


def fill(broker: MemoryBroker, *payloads: bytes, queue: str = "q") -> None:
    """Put messages into a queue."""
    peer = Peer10(broker)
    peer.sender(f"/queues/{queue}")
    for payload in payloads:
        peer.publish(data(payload))
    peer.receive()


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def messages(frames: list[Frame]) -> list[bytes]:
    """Payloads of the single transfers among frames."""
    return [
        from_sections(each.payload).payload
        for each in frames
        if isinstance(each.body, TransferFrame)
    ]


def settled(broker: MemoryBroker, queue: str = "q") -> list[tuple[Verb, int]]:
    return broker.queues["/", queue].settled


def test_a_consumer_gets_no_more_than_its_credit(broker: MemoryBroker, peer: Peer10) -> None:
    fill(broker, *numbered(10))
    attach = peer.receiver("/queues/q")[0].body
    assert (attach.role, attach.initial_delivery_count) == (SENDER, 0)
    assert attach.source.address == "/queues/q"
    assert not messages(peer.receive())
    peer.flow(1, 3)
    assert messages(peer.receive()) == numbered(3)
    assert len(broker.queues["/", "q"].ready) == 7
    peer.send(DispositionFrame(RECEIVER, 1, 3, True, ACK))
    assert not peer.receive()
    assert settled(broker) == [(Verb.ACK, 0), (Verb.ACK, 1), (Verb.ACK, 2)]
    peer.flow(1, 4, 3)
    assert messages(peer.receive()) == [b"3", b"4", b"5", b"6"]
    peer.flow(1, 1, 3)
    assert not peer.receive()


def test_a_delivery_has_the_fields_of_its_message(broker: MemoryBroker, peer: Peer10) -> None:
    fill(broker, b"x")
    frames = peer.receiver("/queues/q", credit=5)
    transfer = frames[-1].body
    assert (transfer.handle, transfer.delivery_id, transfer.message_format) == (1, 1, 0)
    assert (transfer.settled, transfer.more, len(transfer.delivery_tag)) == (False, False, 4)


@pytest.mark.parametrize(
    ("state", "verb"),
    [
        (ACK, Verb.ACK),
        (RejectedState(ErrorCondition(Symbol("any"))), Verb.REJECT),
        (ReleasedState(), Verb.RELEASE),
        (ModifiedState(), Verb.RELEASE),
        (ModifiedState(delivery_failed=True), Verb.NACK),
        (ModifiedState(undeliverable_here=True), Verb.REJECT),
        (None, Verb.RELEASE),
    ],
)
def test_outcomes_settle_with_the_queue(
    broker: MemoryBroker, peer: Peer10, state: object, verb: Verb
) -> None:
    fill(broker, b"x")
    peer.receiver("/queues/q", credit=1)
    peer.send(DispositionFrame(RECEIVER, 1, None, True, state))
    peer.receive()
    assert settled(broker) == [(verb, 0)]
    requeued = verb in (Verb.RELEASE, Verb.NACK)
    peer.flow(1, 1, 1)
    again = [each.payload for each in peer.receive() if each.payload]
    assert bool(again) == requeued
    if verb is Verb.NACK:
        assert again[0].startswith(b"\0\x53\x70\xc0\x07\x05\x42\x40\x40\x42\x52\x01")


def test_modified_with_a_delivery_time_comes_back_then(broker: MemoryBroker, peer: Peer10) -> None:
    fill(broker, b"x")
    peer.receiver("/queues/q", credit=1)
    later = int(broker.time * 1000) + 5000
    annotations: dict[object, object] = {Symbol("x-opt-delivery-time"): later}
    peer.send(DispositionFrame(RECEIVER, 1, None, True, ModifiedState(True, False, annotations)))
    peer.receive()
    assert settled(broker) == [(Verb.NACK, 0)]
    assert broker.queues["/", "q"].delays == [5_000_000]


def test_an_outcome_that_is_not_settled_is_settled_by_the_broker(
    broker: MemoryBroker, peer: Peer10
) -> None:
    fill(broker, *numbered(3))
    peer.receiver("/queues/q", credit=3, rcv_settle_mode=1)
    peer.send(DispositionFrame(RECEIVER, 1, 3, False, ACK))
    assert peer.bodies() == [DispositionFrame(SENDER, 1, 3, True, ACK)]
    assert settled(broker) == [(Verb.ACK, 0), (Verb.ACK, 1), (Verb.ACK, 2)]
    peer.send(DispositionFrame(RECEIVER, 1, 3, True, ACK))
    assert not peer.bodies()


def test_received_is_no_outcome_and_an_unknown_transaction_ends_the_session(
    broker: MemoryBroker, peer: Peer10
) -> None:
    fill(broker, b"x")
    peer.receiver("/queues/q", credit=1)
    peer.send(DispositionFrame(RECEIVER, 1, None, False, ReceivedState(0, 0)))
    assert not peer.receive()
    peer.send(DispositionFrame(RECEIVER, 1, None, True, TransactionalState(b"t", ACK)))
    (end,) = peer.bodies(EndFrame)
    assert end.error.condition == "amqp:transaction:unknown-id"
    assert broker.queues["/", "q"].ready == [0]


def test_settling_out_of_order_and_across_links_settles_each_once(
    broker: MemoryBroker, peer: Peer10
) -> None:
    broker.apply([DeclareQueue(QueueRecord("/", "other"))])
    fill(broker, *numbered(4))
    fill(broker, *numbered(4), queue="other")
    peer.receiver("/queues/q", 1, credit=4)
    peer.receiver("/queues/other", 2, credit=4)
    for first, last in ((2, 2), (7, 8), (1, 6), (0, 1 << 30)):
        peer.send(DispositionFrame(RECEIVER, first, last, True, ACK))
    peer.receive()
    assert sorted(offset for _, offset in settled(broker)) == [0, 1, 2, 3]
    assert sorted(offset for _, offset in settled(broker, "other")) == [0, 1, 2, 3]


def test_a_disposition_backwards_ends_the_session(broker: MemoryBroker, peer: Peer10) -> None:
    peer.send(DispositionFrame(RECEIVER, 5, 1, True, ACK))
    assert peer.bodies(EndFrame)[0].error.condition == "amqp:invalid-field"


def test_a_sender_that_settles_is_settled_as_it_sends(broker: MemoryBroker, peer: Peer10) -> None:
    fill(broker, *numbered(3))
    frames = peer.receiver("/queues/q", credit=2, snd_settle_mode=1)
    assert frames[0].body.snd_settle_mode == 1
    assert [each.body.settled for each in frames if each.payload] == [True, True]
    peer.receive()
    assert settled(broker) == [(Verb.ACK, 0), (Verb.ACK, 1)]
    assert len(broker.queues["/", "q"].ready) == 1


def test_drain_gives_up_the_credit_that_nothing_used(broker: MemoryBroker, peer: Peer10) -> None:
    fill(broker, *numbered(2))
    peer.receiver("/queues/q")
    peer.flow(1, 10, drain=True)
    frames = peer.receive()
    assert messages(frames) == numbered(2)
    flow = next(each.body for each in frames if isinstance(each.body, FlowFrame))
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (10, 0, True)
    fill(broker, b"later")
    assert not messages(peer.receive())
    peer.flow(1, 1, 10)
    assert messages(peer.receive()) == [b"later"]


def test_echo_tells_what_is_available(broker: MemoryBroker, peer: Peer10) -> None:
    fill(broker, *numbered(5))
    peer.receiver("/queues/q")
    peer.flow(1, 0, echo=True)
    (flow,) = peer.bodies(FlowFrame)
    assert (flow.available, flow.link_credit) == (5, 0)
    peer.send(FlowFrame(0, 100, 0, 100, echo=True))
    assert peer.bodies(FlowFrame)[0].handle is None


def test_transfers_wait_for_the_window_of_the_session(broker: MemoryBroker) -> None:
    peer = Peer10(broker, opened=False)
    peer.greet()
    peer.send(OpenFrame("small", max_frame_size=512))
    peer.send(BeginFrame(None, 0, 2, 100))
    peer.receive()
    fill(broker, b"a" * 250, b"b", b"c" * 255)
    peer.receiver("/queues/q")
    peer.send(FlowFrame(0, 2, 0, 100, 1, 0, 10))
    assert len(messages(peer.receive())) == 2
    peer.send(FlowFrame(2, 1, 0, 100))
    assert messages(peer.receive()) == [b"c" * 255]


def test_a_large_message_is_cut_into_frames_that_wait_one_by_one(broker: MemoryBroker) -> None:
    publisher = Peer10(broker)
    publisher.sender("/queues/q")
    publisher.publish(b"\0\x53\x75\xb0\0\0\x08\0" + bytes(range(256)) * 8)
    peer = Peer10(broker, opened=False)
    peer.greet()
    peer.send(OpenFrame("small", max_frame_size=512))
    peer.send(BeginFrame(None, 0, 1, 100))
    peer.receive()
    peer.receiver("/queues/q")
    peer.send(FlowFrame(0, 1, 0, 100, 1, 0, 10))
    parts: list[Frame] = []
    for count in range(1, 8):
        (part,) = [each for each in peer.receive() if isinstance(each.body, TransferFrame)]
        parts.append(part)
        if not part.body.more:
            break
        peer.send(FlowFrame(count, 1, 0, 100))
    assert len(parts) == 5
    whole = b"".join(each.payload for each in parts)
    assert from_sections(whole).payload == bytes(range(256)) * 8
    assert [each.body.delivery_id for each in parts] == [1, None, None, None, None]


def test_what_is_unsettled_is_requeued_at_detach_end_and_loss(
    broker: MemoryBroker, peer: Peer10
) -> None:
    fill(broker, *numbered(3))
    queue = broker.queues["/", "q"]
    for leave in ("detach", "end", "lost"):
        peer = Peer10(broker)
        peer.receiver("/queues/q", credit=2)
        assert len(queue.ready) == 1
        if leave == "detach":
            peer.send(DetachFrame(1, True))
            assert peer.bodies() == [DetachFrame(1, True)]
        elif leave == "end":
            peer.send(EndFrame())
            assert peer.bodies() == [EndFrame()]
        else:
            peer.connection.handler.lost(peer.connection)
        broker.tick()
        assert queue.ready == [0, 1, 2]
        assert not queue.consumers


def test_a_link_may_be_detached_without_closing_it_and_attached_again(
    broker: MemoryBroker, peer: Peer10
) -> None:
    fill(broker, b"x")
    source = SourceTerminus("/queues/q", 2, Symbol("never"))
    peer.receiver("/queues/q", credit=1, source=source)
    peer.send(DetachFrame(1, False))
    assert peer.bodies() == [DetachFrame(1, False)]
    frames = peer.receiver("/queues/q", credit=1, source=source, unsettled={b"t": None})
    assert (frames[0].body.unsettled, frames[0].body.source.durable) == ({}, 2)
    assert messages(frames) == [b"x"]


def test_a_deleted_queue_ends_its_links(broker: MemoryBroker, peer: Peer10) -> None:
    fill(broker, b"x")
    peer.receiver("/queues/q", credit=1)
    broker.apply([DeleteQueue("/", "q")])
    (detach,) = peer.bodies(DetachFrame)
    assert (detach.closed, detach.error.condition) == (True, "amqp:resource-deleted")
    peer.send(DispositionFrame(RECEIVER, 1, None, True, ACK), DetachFrame(1, True))
    assert not peer.bodies()


@pytest.mark.parametrize(
    ("source", "condition"),
    [
        (SourceTerminus("/queues/none"), "amqp:not-found"),
        (SourceTerminus("/queues/"), "amqp:invalid-field"),
        (SourceTerminus(), "amqp:invalid-field"),
        (
            SourceTerminus(
                "/queues/q",
                filter={Symbol("f"): Described(Symbol("apache.org:selector-filter:string"), "a")},
            ),
            "amqp:not-implemented",
        ),
        (
            SourceTerminus("/queues/s", filter={Symbol("rabbitmq:stream-offset-spec"): "nonsense"}),
            "amqp:precondition-failed",
        ),
        (SourceTerminus("/exchange/none/k"), "amqp:not-found"),
    ],
)
def test_a_source_that_is_not_served_is_refused(
    peer: Peer10, source: SourceTerminus, condition: str
) -> None:
    attach, detach = (each.body for each in peer.receiver("", source=source))
    assert attach.source is None
    assert (detach.error.condition, detach.closed) == (condition, True)


def test_reading_needs_permission(broker: MemoryBroker) -> None:
    peer = Peer10(broker, user="bob")
    _, detach = (each.body for each in peer.receiver("/queues/q"))
    assert detach.error.condition == "amqp:unauthorized-access"


def test_an_exclusive_queue_of_another_connection_is_locked(
    broker: MemoryBroker, peer: Peer10
) -> None:
    broker.apply([DeclareQueue(QueueRecord("/", "mine", exclusive=True, owner="somebody"))])
    _, detach = (each.body for each in peer.receiver("/queues/mine"))
    assert detach.error.condition == "amqp:resource-locked"


def test_a_dynamic_source_ends_with_its_link(broker: MemoryBroker, peer: Peer10) -> None:
    attach = peer.receiver("", credit=1, source=SourceTerminus(dynamic=True))[0].body
    name = attach.source.address.removeprefix("/queues/")
    assert broker.topology.queue("/", name) is not None
    other = Peer10(broker)
    other.sender(attach.source.address)
    other.publish(data(b"reply"))
    other.receive()
    assert messages(peer.receive()) == [b"reply"]
    peer.send(DetachFrame(1, True))
    peer.receive()
    assert broker.topology.queue("/", name) is None


def test_an_exchange_of_version_1_is_consumed_by_a_queue_of_the_links_own(
    broker: MemoryBroker, peer: Peer10
) -> None:
    peer.receiver("/topic/a.*", credit=5)
    other = Peer10(broker)
    other.sender("/exchanges/amq.topic/a.b")
    other.publish(data(b"x"))
    other.receive()
    assert messages(peer.receive()) == [b"x"]


def test_a_stream_begins_where_the_filter_says(broker: MemoryBroker, peer: Peer10) -> None:
    value = Described(Symbol("rabbitmq:stream-offset-spec"), "first")
    source = SourceTerminus("/queues/s", filter={Symbol("rabbitmq:stream-offset-spec"): value})
    fill(broker, b"x", queue="s")
    frames = peer.receiver("", credit=1, source=source)
    assert frames[0].body.source.distribution_mode == "copy"
    assert broker.queues["/", "s"].consumers[0].wanted.start == ("first", 0)
    assert b"x-stream-offset" in frames[-1].payload


def test_priorities_are_passed_on_and_have_to_be_numbers(
    broker: MemoryBroker, peer: Peer10
) -> None:
    peer.receiver("/queues/q", properties={Symbol("rabbitmq:priority"): Int(7)})
    assert broker.queues["/", "q"].consumers[0].wanted.priority == 7
    _, detach = peer.receiver("/queues/q", 2, properties={Symbol("rabbitmq:priority"): "high"})
    assert detach.body.error.condition == "amqp:invalid-field"


def test_messages_larger_than_the_client_takes_are_rejected(
    broker: MemoryBroker, peer: Peer10
) -> None:
    fill(broker, b"x" * 200, b"y")
    frames = peer.receiver("/queues/q", credit=2, max_message_size=150)
    assert messages(frames) == [b"y"]
    assert settled(broker) == [(Verb.REJECT, 0)]
    assert broker.drops == [("too_large", 1)]


def test_a_handle_in_use_or_too_high_is_refused(peer: Peer10) -> None:
    peer.receiver("/queues/q")
    peer.receiver("/queues/q")
    assert not peer.session.sessions[0].links
    other = Peer10(peer.broker)
    other.receiver("/queues/q", handle=300)
    assert other.client.stage.name == "CLOSING"


def test_an_attach_that_waits_is_answered_before_its_detach(
    broker: MemoryBroker, peer: Peer10
) -> None:
    broker.slow = True
    for address in ("/queues/q", "fresh"):
        peer.send(
            AttachFrame("r", 1, True, source=SourceTerminus(address), target=TargetTerminus()),
            DetachFrame(1, True),
        )
        broker.release()
        broker.release()
        kinds = [type(body) for body in peer.bodies()]
        assert kinds == [AttachFrame, DetachFrame]
        assert not broker.queues["/", "q"].consumers


def test_a_slow_connection_gets_the_rest_once_it_has_read(broker: MemoryBroker) -> None:
    fill(broker, *(b"x" * 200 for _ in range(50)))
    peer = Peer10(broker, limit=2000)
    got = messages(peer.receiver("/queues/q", credit=40))
    assert 0 < len(got) < 20
    (held,) = broker.queues["/", "q"].consumers
    assert len(held.handle) < 20, "no more is taken while some wait"
    peer.flow(1, 50)
    while part := messages(peer.receive()):
        got += part
    assert len(got) == 50


def test_messages_of_one_batch_fill_the_output_and_no_more(broker: MemoryBroker) -> None:
    publisher = Peer10(broker)
    publisher.sender("/queues/q")
    transfers = [
        frame(0, TransferFrame(0, number, b"t", 0), data(b"x" * 200)) for number in range(50)
    ]
    publisher.raw(b"".join(transfers))
    publisher.receive()
    peer = Peer10(broker, limit=2000)
    got = messages(peer.receiver("/queues/q", credit=50))
    assert 0 < len(got) < 20
    while part := messages(peer.receive()):
        got += part
    assert len(got) == 50


def test_large_credit_is_given_to_the_queue_in_parts(broker: MemoryBroker, peer: Peer10) -> None:
    peer.receiver("/queues/q", credit=(1 << 32) - 1)
    (held,) = broker.queues["/", "q"].consumers
    assert held.limit == AHEAD_MAX
    fill(broker, *numbered(200))
    assert len(messages(peer.receive())) == 200
    assert held.limit == AHEAD_MAX + 200


def test_a_drain_ends_although_the_queue_keeps_messages_for_others(
    broker: MemoryBroker, peer: Peer10
) -> None:
    peer.receiver("/queues/q")
    (held,) = broker.queues["/", "q"].consumers
    held.stopped = True
    fill(broker, b"not for it")
    peer.flow(1, 5, drain=True)
    (flow,) = peer.bodies(FlowFrame)
    assert (flow.delivery_count, flow.link_credit) == (5, 0)


def test_a_message_with_a_malformed_block_still_arrives(broker: MemoryBroker, peer: Peer10) -> None:
    broker.queues["/", "q"].append(build_message(b"key", b"\xff\xff", b"payload", 0))
    assert messages(peer.receiver("/queues/q", credit=1)) == [b"payload"]
