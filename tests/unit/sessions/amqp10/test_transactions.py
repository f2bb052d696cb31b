"""Local transactions: publishes and settlements take effect at their discharge, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.protocols.amqp10.codec import encode
from fluxmq.protocols.amqp10.frames import frame
from fluxmq.protocols.amqp10.performatives import (
    RECEIVER,
    AcceptedState,
    AttachFrame,
    CoordinatorTerminus,
    DeclareBody,
    DetachFrame,
    DischargeBody,
    DispositionFrame,
    EndFrame,
    RejectedState,
    TransactionalState,
    TransferFrame,
    described,
    names,
)
from fluxmq.protocols.amqp10.types import Described, ULong
from fluxmq.queues.commands import Verb
from fluxmq.routing.topology.changes import DeclareQueue
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.sessions.amqp091.ports import AmqpLimits
from fluxmq.sessions.amqp10.transactions import TRANSACTIONS_MAX
from tests.unit.sessions.amqp091.memory import MemoryBroker
from tests.unit.sessions.amqp10.peer_10 import Peer10, data

COORDINATOR = 9


@pytest.fixture
def broker() -> MemoryBroker:
    made = MemoryBroker(AmqpLimits(max_incomplete_bytes=20_000))
    made.apply([DeclareQueue(QueueRecord("/", "q"))])
    return made


@pytest.fixture
def peer(broker: MemoryBroker) -> Peer10:
    made = Peer10(broker)
    made.send(
        AttachFrame(
            *("tx", COORDINATOR, False), target=CoordinatorTerminus(), initial_delivery_count=0
        )
    )
    attach = made.bodies()[0]
    assert names(attach.target.capabilities) == ("amqp:local-transactions",)
    made.sender("/queues/q")
    return made


def command(body: object) -> bytes:
    """A message to the coordinator."""
    return encode(Described(ULong(0x77), described(body)))


def asked(peer: Peer10, body: object) -> Any:
    """The coordinator's answer."""
    number = peer.publish(command(body), COORDINATOR)
    (answer,) = [each for each in peer.bodies(DispositionFrame) if each.first == number]
    return answer.state


def declared(peer: Peer10) -> bytes:
    name = asked(peer, DeclareBody()).txn_id
    assert isinstance(name, bytes)
    return name


def stored(broker: MemoryBroker) -> list[bytes]:
    found = broker.queues["/", "q"].messages.values()
    return [batch.payload(index) for batch, index in found]


@pytest.mark.parametrize("fail", [False, True])
def test_messages_are_stored_by_the_commit_and_dropped_by_the_rollback(
    broker: MemoryBroker, peer: Peer10, fail: bool
) -> None:
    name = declared(peer)
    state = TransactionalState(name)
    for number in range(3):
        peer.publish(data(b"%d" % number), state=state)
    peer.publish(data(b"outside"))
    answers = {each.first: each.state for each in peer.bodies(DispositionFrame)}
    assert answers[1] == TransactionalState(name, AcceptedState())
    assert answers[4] == AcceptedState()
    assert stored(broker) == [b"outside"]
    assert asked(peer, DischargeBody(name, fail)) == AcceptedState()
    assert stored(broker) == [b"outside"] + ([] if fail else [b"0", b"1", b"2"])
    assert peer.client.budget.used == 0
    assert isinstance(asked(peer, DischargeBody(name)), RejectedState)
    tally = peer.connection.tally
    assert (tally.amqp_committed, tally.amqp_rolled_back) == (int(not fail), int(fail))


@pytest.mark.parametrize(("fail", "verb"), [(False, Verb.ACK), (True, Verb.NACK)])
def test_settlements_take_effect_with_the_discharge(
    broker: MemoryBroker, peer: Peer10, fail: bool, verb: Verb
) -> None:
    for number in range(3):
        peer.publish(data(b"%d" % number))
    peer.receiver("/queues/q", credit=3)
    name = declared(peer)
    state = TransactionalState(name, AcceptedState())
    peer.send(DispositionFrame(RECEIVER, 1, 2, True, state))
    peer.receive()
    queue = broker.queues["/", "q"]
    assert queue.settled == []
    assert asked(peer, DischargeBody(name, fail)) == AcceptedState()
    assert queue.settled == [(verb, 0), (verb, 1)]


def test_a_refused_part_rejects_the_discharge(broker: MemoryBroker, peer: Peer10) -> None:
    peer.sender("/exchanges/amq.direct/none", handle=2)
    name = declared(peer)
    state = TransactionalState(name)
    peer.publish(data(b"routed"), state=state)
    peer.publish(data(b"nowhere"), handle=2, state=state)
    peer.receive()
    assert asked(peer, DischargeBody(name)).error.condition == "amqp:transaction:rollback"
    assert stored(broker) == [b"routed"]


@pytest.mark.parametrize("end", [DetachFrame(COORDINATOR, True), EndFrame()])
def test_what_is_not_discharged_is_rolled_back(
    broker: MemoryBroker, peer: Peer10, end: object
) -> None:
    name = declared(peer)
    peer.publish(data(b"x"), state=TransactionalState(name))
    peer.receive()
    peer.send(end)
    peer.receive()
    assert stored(broker) == []
    assert peer.client.budget.used == 0


def test_what_a_transaction_holds_and_how_many_there_are_is_bounded(
    broker: MemoryBroker, peer: Peer10
) -> None:
    state = TransactionalState(declared(peer))
    for _ in range(30):
        peer.publish(data(b"x" * 200), state=state)
    assert [each.error.condition for each in peer.bodies(DetachFrame)] == [
        "amqp:resource-limit-exceeded"
    ]
    assert broker.refused == ["budget"]
    for _ in range(TRANSACTIONS_MAX - 1):
        declared(peer)
    answer = asked(peer, DeclareBody())
    assert answer.error.condition == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize("held", ["message", "transaction"])
def test_during_an_alarm_what_only_the_client_could_end_is_given_up(
    broker: MemoryBroker, peer: Peer10, held: str
) -> None:
    if held == "message":
        peer.publish(data(b"x"))
        peer.raw(frame(0, TransferFrame(0, peer.sent, b"t", 0, more=True), data(b"part")))
    else:
        peer.publish(data(b"x"), state=TransactionalState(declared(peer)))
    peer.receive()
    broker.amqp10.give_up()
    assert not peer.bodies()
    broker.handler.alarm.reason = "memory"
    broker.amqp10.block()
    broker.amqp10.give_up()
    assert peer.bodies(EndFrame)[0].error.condition == "amqp:resource-limit-exceeded"
    assert broker.refused == ["incomplete"]
    assert peer.client.budget.used == 0


def test_a_transaction_does_not_grow_while_memory_is_short(
    broker: MemoryBroker, peer: Peer10
) -> None:
    state = TransactionalState(declared(peer))
    broker.short_of_memory = True
    peer.publish(data(b"x"), state=state)
    assert peer.bodies(DetachFrame)[0].error.condition == "amqp:resource-limit-exceeded"
    assert broker.refused == ["transaction"]


def test_other_messages_to_the_coordinator_end_its_link(peer: Peer10) -> None:
    assert asked(peer, DeclareBody(b"global")).error.condition == "amqp:not-implemented"
    peer.publish(data(b"x"), COORDINATOR)
    assert peer.bodies(DetachFrame)[0].error.condition == "amqp:not-allowed"
