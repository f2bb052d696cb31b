"""Runs of transfers and ranges of outcomes, as the sessions take them."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.model.batch_format import Batch
from fluxmq.protocols.amqp10.codec import encode
from fluxmq.protocols.amqp10.frames import frame
from fluxmq.protocols.amqp10.message import from_sections
from fluxmq.protocols.amqp10.performatives import (
    RECEIVER,
    AcceptedState,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    FlowFrame,
    RejectedState,
    TransferFrame,
)
from fluxmq.protocols.amqp10.types import Described, Milliseconds, ULong
from fluxmq.routing.topology.changes import Bind, DeclareExchange, DeclareQueue
from fluxmq.routing.topology.records import Binding, Exchange, QueueRecord
from fluxmq.sessions.amqp091.ports import AmqpLimits
from fluxmq.sessions.amqp10.publisher import RETRY_EVERY, TRIES_MAX
from fluxmq.sessions.amqp10.sender_links import CREDIT
from tests.unit.sessions.amqp091.memory import MemoryBroker
from tests.unit.sessions.amqp10.peer_10 import Peer10, data

ACCEPT = DispositionFrame(RECEIVER, 0, None, True, AcceptedState())


@pytest.fixture
def broker() -> MemoryBroker:
    made = MemoryBroker(AmqpLimits(max_message=100_000))
    made.apply([DeclareQueue(QueueRecord("/", "q"))])
    return made


@pytest.fixture
def peer(broker: MemoryBroker) -> Peer10:
    return Peer10(broker)


def stored(broker: MemoryBroker, queue: str = "q") -> list[tuple[Batch, int]]:
    """The messages of a queue."""
    return list(broker.queues["/", queue].messages.values())


def message(payload: bytes, *fields: Any) -> bytes:
    """A message with these properties."""
    return encode(Described(ULong(0x73), list(fields))) + data(payload)


def transfers(*messages: bytes, first: int = 0, **fields: Any) -> bytes:
    """Frames with these messages on handle 0."""
    return b"".join(
        frame(0, TransferFrame(0, first + index, b"t", 0, **fields), each)
        for index, each in enumerate(messages)
    )


def stamped(index: int, name: str = "id-%d") -> bytes:
    """A message with an id and a creation time of its own."""
    created = Milliseconds(1000 + index)
    return message(b"p%d" % index, name % index, *(None,) * 8, created)


def test_messages_with_their_own_ids_are_one_batch(broker: MemoryBroker, peer: Peer10) -> None:
    peer.sender("/queues/q")
    sent = [stamped(index) for index in range(20)]
    peer.raw(transfers(*sent))
    assert peer.bodies(DispositionFrame) == [
        DispositionFrame(RECEIVER, 0, 19, True, AcceptedState())
    ]
    found = stored(broker)
    assert len({id(batch) for batch, _ in found}) == 1
    assert [batch.properties(index) for batch, index in found] == [
        from_sections(each).block("", "guest") for each in sent
    ]
    assert [batch.payload(index) for batch, index in found] == [b"p%d" % n for n in range(20)]
    assert broker.tally.amqp_published == 20


def test_each_is_delivered_with_its_own_sections(broker: MemoryBroker, peer: Peer10) -> None:
    peer.sender("/queues/q")
    peer.receiver("/queues/q", credit=50)
    sent = [stamped(index) for index in range(20)] + [message(b"other", None, None, None, "s")]
    peer.raw(transfers(*sent))
    frames = [each for each in peer.receive() if isinstance(each.body, TransferFrame)]
    assert [each.body.delivery_id for each in frames] == list(range(1, 22))
    assert [each.payload[each.payload.index(b"\0\x53\x73") :] for each in frames] == sent


def test_an_id_that_is_no_text_is_refused_within_a_run(broker: MemoryBroker, peer: Peer10) -> None:
    peer.sender("/queues/q")
    bad = stamped(1).replace(b"id-1", b"id-\xff")
    peer.raw(transfers(stamped(0), bad, stamped(2)))
    found = peer.bodies(DispositionFrame)
    assert sorted((each.first, each.last, type(each.state)) for each in found) == [
        (0, 0, AcceptedState),
        (1, 1, RejectedState),
        (2, 2, AcceptedState),
    ]
    assert [batch.payload(index) for batch, index in stored(broker)] == [b"p0", b"p2"]


def test_an_exchange_that_hashes_ids_gets_each(broker: MemoryBroker, peer: Peer10) -> None:
    arguments = {"hash-property": "message_id"}
    exchange = Exchange("/", "hash", "x-consistent-hash", arguments=arguments)
    queues = [DeclareQueue(QueueRecord("/", f"q{index}")) for index in range(4)]
    binds = [Bind(Binding("/", "hash", f"q{index}", routing_key="1")) for index in range(4)]
    broker.apply([DeclareExchange(exchange), *queues, *binds])
    peer.sender("/exchanges/hash/any")
    peer.raw(transfers(*[stamped(index) for index in range(64)]))
    found = {index: len(stored(broker, f"q{index}")) for index in range(4)}
    assert sum(found.values()) == 64
    assert sum(count > 0 for count in found.values()) > 1


def test_shapes_are_made_again_after_messages_that_had_none_in_common(
    broker: MemoryBroker, peer: Peer10
) -> None:
    peer.sender("/queues/q")
    unlike = [
        encode(Described(ULong(0x73), [f"id-{index}"]))
        + encode(Described(ULong(0x74), {"number": str(index)}))
        + data(b"x")
        for index in range(TRIES_MAX + RETRY_EVERY // 2)
    ]
    peer.raw(transfers(*unlike))
    assert len({id(batch) for batch, _ in stored(broker)}) == len(unlike)
    peer.raw(transfers(*[stamped(index) for index in range(100)], first=len(unlike)))
    batches = [id(batch) for batch, _ in stored(broker)][len(unlike) :]
    assert len(batches) == 100
    assert len(set(batches)) <= RETRY_EVERY, "most of them are one run"


def test_no_more_than_the_credit_is_taken(broker: MemoryBroker, peer: Peer10) -> None:
    peer.sender("/queues/q")
    peer.raw(transfers(*[data(b"x")] * (CREDIT + 1)))
    found = peer.bodies(DetachFrame)
    assert [each.error.condition for each in found] == ["amqp:link:transfer-limit-exceeded"]
    assert len(stored(broker)) == CREDIT


def test_credit_and_window_are_renewed_behind_runs(peer: Peer10) -> None:
    peer.sender("/queues/q")
    flows = []
    for turn in range(4):
        peer.raw(transfers(*[data(b"x")] * 300, first=300 * turn))
        flows += peer.bodies(FlowFrame)
    assert [each.delivery_count for each in flows if each.handle == 0] == [300, 600, 900, 1200]
    assert all(each.link_credit == CREDIT for each in flows if each.handle == 0)
    assert [each.next_incoming_id for each in flows if each.handle is None] == [1200]


def test_settled_runs_have_no_outcome(broker: MemoryBroker, peer: Peer10) -> None:
    peer.sender("/queues/q")
    peer.raw(transfers(*[stamped(index) for index in range(5)], settled=True))
    assert peer.bodies(DispositionFrame) == []
    assert len(stored(broker)) == 5


def test_a_run_for_a_handle_without_link_ends_the_session(peer: Peer10) -> None:
    peer.raw(transfers(data(b"x"), data(b"y")))
    found = peer.bodies(EndFrame)
    assert [each.error.condition for each in found] == ["amqp:session:unattached-handle"]


def test_a_link_that_ends_within_a_read(broker: MemoryBroker, peer: Peer10) -> None:
    peer.sender("/queues/q")
    detach = frame(0, DetachFrame(0, True))
    peer.raw(transfers(stamped(0), stamped(1)) + detach + transfers(stamped(2), first=2))
    assert len(stored(broker)) == 2


# --- outcomes ---


def deliver(broker: MemoryBroker, peer: Peer10, count: int) -> None:
    """Have so many messages delivered, from id 1 on."""
    peer.sender("/queues/q")
    peer.receiver("/queues/q", credit=100)
    peer.raw(transfers(*[data(b"m%d" % index) for index in range(count)]))
    assert len(peer.bodies(TransferFrame)) == count


def test_dispositions_one_after_the_other_settle_all(broker: MemoryBroker, peer: Peer10) -> None:
    deliver(broker, peer, 10)
    peer.send(*[DispositionFrame(RECEIVER, n, None, True, AcceptedState()) for n in range(1, 9)])
    assert len(stored(broker)) == 2
    peer.send(DispositionFrame(RECEIVER, 9, 10, True, AcceptedState()))
    assert len(stored(broker)) == 0
    assert broker.tally.amqp_acknowledged == 10
    assert peer.bodies() == []


def test_dispositions_in_any_order_settle_each_once(broker: MemoryBroker, peer: Peer10) -> None:
    deliver(broker, peer, 6)
    ranges = (6, 6), (2, 2), (4, 4), (2, 4), (40, 50)
    peer.send(*[DispositionFrame(RECEIVER, *each, True, AcceptedState()) for each in ranges])
    assert [batch.payload(index) for batch, index in stored(broker)] == [b"m0", b"m4"]
    peer.send(DispositionFrame(RECEIVER, 1, 6, True, AcceptedState()))
    assert len(stored(broker)) == 0
    assert broker.tally.amqp_acknowledged == 6
    assert peer.client.running


def test_accepting_in_other_forms(broker: MemoryBroker, peer: Peer10) -> None:
    deliver(broker, peer, 4)
    short = frame(0, DispositionFrame(RECEIVER, 1, 1, True, AcceptedState()))
    long = short[:-2] + b"\xc0\x01\x00" + short[-1:]
    long = (len(long)).to_bytes(4, "big") + long[4:12] + bytes((long[12] + 2,)) + long[13:]
    peer.raw(long)
    assert len(stored(broker)) == 3
    peer.send(DispositionFrame(RECEIVER, 2, 2, False, AcceptedState()))
    (answer,) = peer.bodies(DispositionFrame)
    assert (answer.first, answer.settled) == (2, True)
    peer.send(DispositionFrame(RECEIVER, 4, 3, True, AcceptedState()))
    assert [each.error.condition for each in peer.bodies(EndFrame)] == ["amqp:invalid-field"]


def test_an_outcome_on_a_channel_without_session_ends_the_connection(peer: Peer10) -> None:
    peer.send(ACCEPT, channel=5)
    assert not peer.client.running
