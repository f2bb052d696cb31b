"""A connection that has ended leaves no cycle for the garbage collector, which does not run during
traffic."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from fluxmq.protocols.amqp10.frames import frame
from fluxmq.protocols.amqp10.performatives import (
    RECEIVER,
    AcceptedState,
    AttachFrame,
    CloseFrame,
    CoordinatorTerminus,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    FlowFrame,
    TransferFrame,
)
from fluxmq.routing.topology.changes import DeclareQueue
from fluxmq.routing.topology.records import QueueRecord
from tests.unit.sessions.amqp091.memory import MemoryBroker
from tests.unit.sessions.amqp10.peer_10 import Peer10, data

ROUNDS = 20
ALLOWED = 10
"""Objects in cycles after all rounds: less than one per round."""


def use(broker: MemoryBroker) -> Peer10:
    """A connection that has done a bit of everything."""
    peer = Peer10(broker)
    peer.sender("/queues/q")
    peer.send(AttachFrame("tx", 2, False, target=CoordinatorTerminus()))
    peer.receiver("/queues/q", credit=5)
    for _ in range(3):
        peer.publish(data(b"x"))
    peer.raw(frame(0, TransferFrame(0, 3, b"t", 0, more=True), data(b"part")))
    peer.receive()
    peer.send(DispositionFrame(RECEIVER, 1, 2, True, AcceptedState()))
    peer.send(FlowFrame(0, 100, 4, 100, 1, 3, 5, drain=True))
    peer.receive()
    return peer


def closed(peer: Peer10) -> None:
    peer.send(CloseFrame())


def lost(peer: Peer10) -> None:
    peer.connection.handler.lost(peer.connection)


def left_step_by_step(peer: Peer10) -> None:
    peer.send(DetachFrame(0, True), DetachFrame(1, True), DetachFrame(2, True), EndFrame())
    peer.receive()
    peer.send(CloseFrame())


def broken(peer: Peer10) -> None:
    peer.raw(b"\0\0\0\0\0\0\0\0")


def forced(peer: Peer10) -> None:
    peer.client.disconnect("test")
    peer.send(CloseFrame())


@pytest.mark.parametrize("leave", [closed, lost, left_step_by_step, broken, forced])
def test_nothing_is_left_for_the_collector(leave: Callable[[Peer10], None]) -> None:
    broker = MemoryBroker()
    broker.apply([DeclareQueue(QueueRecord("/", "q"))])

    def once() -> None:
        peer = use(broker)
        leave(peer)
        broker.tick()
        peer.connection.forget()
        peer.connection.dirty_list.clear()
        broker.schedules.clear()

    once()
    gc.collect()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            once()
        assert gc.collect() <= ALLOWED
    finally:
        gc.enable()
    assert not broker.amqp10.clients
