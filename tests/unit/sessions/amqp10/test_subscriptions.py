"""Subscriptions that are durable or shared: what stays, who gets what, and how they end."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.protocols.amqp10.message import from_sections
from fluxmq.protocols.amqp10.performatives import (
    RECEIVER,
    AcceptedState,
    DetachFrame,
    DispositionFrame,
    SourceTerminus,
    TransferFrame,
)
from fluxmq.protocols.amqp10.types import Described, Symbol, symbols
from fluxmq.queues.commands import Verb
from tests.unit.sessions.amqp091.memory import MemoryBroker
from tests.unit.sessions.amqp10.peer_10 import Frame, Peer10, data

NEWS = "subscription:test:news"
NEVER = Symbol("never")


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


def source(*capabilities: str, durable: bool = True, topic: str = "k") -> SourceTerminus:
    """A subscription to a topic."""
    expiry = NEVER if durable else Symbol("session-end")
    wanted = symbols(*capabilities) if capabilities else None
    return SourceTerminus(f"/topic/{topic}", 2 if durable else 0, expiry, capabilities=wanted)


def subscribe(
    peer: Peer10, wanted: SourceTerminus | None, name: str = "news", **more: Any
) -> list[Frame]:
    return peer.receiver("", source=wanted, name=name, credit=10, **more)


def publish(broker: MemoryBroker, *payloads: bytes, topic: str = "k") -> None:
    peer = Peer10(broker)
    peer.sender(f"/exchanges/amq.topic/{topic}")
    for payload in payloads:
        peer.publish(data(payload))
    peer.receive()


def messages(frames: list[Frame]) -> list[bytes]:
    return [
        from_sections(each.payload).payload
        for each in frames
        if isinstance(each.body, TransferFrame)
    ]


def queues(broker: MemoryBroker) -> list[str]:
    return [queue.name for queue in broker.topology.queues()]


def refusal(frames: list[Frame]) -> str:
    """The condition with which an attach was refused."""
    attach, detach = (each.body for each in frames)
    assert attach.source is None
    return str(detach.error.condition)


def test_a_durable_subscription_gathers_messages_while_nobody_is_attached(
    broker: MemoryBroker,
) -> None:
    peer = Peer10(broker)
    attach = subscribe(peer, source())[0].body
    assert (attach.source.durable, attach.source.expiry_policy) == (2, NEVER)
    peer.send(DetachFrame(1, False))
    publish(broker, b"a", b"b")
    again = Peer10(broker)
    assert messages(subscribe(again, source())) == [b"a", b"b"]
    (queue,) = broker.topology.queues()
    assert (queue.name, queue.durable, queue.exclusive, queue.auto_delete) == (
        NEWS,
        True,
        False,
        False,
    )


def test_it_stays_when_its_connection_ends_and_goes_when_it_is_closed(broker: MemoryBroker) -> None:
    first = Peer10(broker)
    subscribe(first, source())
    first.lose()
    publish(broker, b"a")
    second = Peer10(broker)
    assert messages(subscribe(second, source())) == [b"a"]
    second.send(DetachFrame(1, True))
    assert second.bodies() == [DetachFrame(1, True)]
    assert queues(broker) == []


def test_what_was_accepted_does_not_come_again(broker: MemoryBroker) -> None:
    peer = Peer10(broker)
    subscribe(peer, source())
    publish(broker, b"a")
    assert messages(peer.receive()) == [b"a"]
    peer.send(DispositionFrame(RECEIVER, 1, None, True, AcceptedState()), DetachFrame(1, False))
    publish(broker, b"b")
    assert messages(subscribe(Peer10(broker), source())) == [b"b"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_copy_of_what_an_exchange_routes_is_taken_and_not_browsed(
    broker: MemoryBroker, durable: bool
) -> None:
    peer = Peer10(broker)
    wanted = source(durable=durable)
    wanted.distribution_mode = Symbol("copy")
    subscribe(peer, wanted)
    publish(broker, b"a")
    assert messages(peer.receive()) == [b"a"]
    peer.send(DispositionFrame(RECEIVER, 1, None, True, AcceptedState()))
    peer.receive()
    ((_, queue),) = broker.queues.items()
    assert queue.settled == [(Verb.ACK, 0)]


def test_it_is_consumed_by_one_link_at_a_time(broker: MemoryBroker) -> None:
    subscribe(Peer10(broker), source())
    assert refusal(subscribe(Peer10(broker), source())) == "amqp:unauthorized-access"
    assert queues(broker) == [NEWS]


def test_containers_have_their_own(broker: MemoryBroker) -> None:
    subscribe(Peer10(broker), source())
    subscribe(Peer10(broker, container="other:one"), source())
    assert sorted(queues(broker)) == ["subscription:other%3Aone:news", NEWS]


def test_another_topic_begins_it_anew(broker: MemoryBroker) -> None:
    peer = Peer10(broker)
    subscribe(peer, source())
    peer.send(DetachFrame(1, False))
    publish(broker, b"a")
    again = Peer10(broker)
    assert messages(subscribe(again, source(topic="other"))) == []
    publish(broker, b"b")
    publish(broker, b"c", topic="other")
    assert messages(again.receive()) == [b"c"]


def test_one_that_expires_has_a_queue_that_does(broker: MemoryBroker) -> None:
    wanted = SourceTerminus("/topic/k", 2, Symbol("link-detach"), 30)
    subscribe(Peer10(broker), wanted)
    (queue,) = broker.topology.queues()
    assert queue.arguments == {"x-expires": 30_000}


def test_one_that_ends_with_its_session_is_no_durable_one(broker: MemoryBroker) -> None:
    peer = Peer10(broker)
    subscribe(peer, SourceTerminus("/topic/k", 2))
    (queue,) = broker.topology.queues()
    assert queue.exclusive
    peer.send(DetachFrame(1, False))
    peer.receive()
    assert queues(broker) == []


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("everyone", [True, False])
def test_links_share_a_subscription(broker: MemoryBroker, durable: bool, everyone: bool) -> None:
    wanted = ("shared", "global") if everyone else ("shared",)
    one, other = Peer10(broker), Peer10(broker, container="other" if everyone else "test")
    subscribe(one, source(*wanted, durable=durable), "news|1")
    subscribe(other, source(*wanted, durable=durable), "news|2")
    publish(broker, b"a", b"b", b"c", b"d")
    got = messages(one.receive()), messages(other.receive())
    assert sorted(got[0] + got[1]) == [b"a", b"b", b"c", b"d"]
    name = ("subscription::news" if everyone else NEWS) + ("" if durable else ":volatile")
    assert queues(broker) == [name]
    one.send(DetachFrame(1, True))
    one.receive()
    assert queues(broker) == [name], "another link has it"
    other.send(DetachFrame(1, True))
    other.receive()
    assert queues(broker) == ([name] if durable else [])


def test_a_shared_one_keeps_its_topic_and_takes_no_filter(broker: MemoryBroker) -> None:
    subscribe(Peer10(broker), source("shared"))
    assert refusal(subscribe(Peer10(broker), source("shared", topic="x"))) == "amqp:not-allowed"
    wanted = source("shared")
    wanted.filter = {Symbol("f"): Described(Symbol("apache.org:selector-filter:string"), "a = 1")}
    assert refusal(subscribe(Peer10(broker), wanted)) == "amqp:not-implemented"


@pytest.mark.parametrize("everyone", [True, False])
def test_a_link_without_source_finds_one_and_ends_it(broker: MemoryBroker, everyone: bool) -> None:
    wanted = ("shared", "global") if everyone else ()
    name = "news|global" if everyone else "news"
    first = Peer10(broker)
    subscribe(first, source(*wanted, topic="a.b"), name)
    first.lose()
    peer = Peer10(broker)
    found = subscribe(peer, None, name)[0].body.source
    assert found == SourceTerminus("/exchanges/amq.topic/a.b", 2, NEVER)
    peer.send(DetachFrame(1, False))
    peer.receive()
    assert len(queues(broker)) == 1
    subscribe(peer, None, name)
    peer.send(DetachFrame(1, True))
    assert peer.bodies() == [DetachFrame(1, True)]
    assert queues(broker) == []
    assert refusal(subscribe(peer, None, name)) == "amqp:not-found"


def test_declaring_and_deleting_one_needs_permission(broker: MemoryBroker) -> None:
    subscribe(Peer10(broker), source())
    bob = Peer10(broker, user="bob")
    assert refusal(subscribe(bob, None)) == "amqp:unauthorized-access"
    assert queues(broker) == [NEWS]


def test_a_name_that_is_too_long_is_refused(broker: MemoryBroker) -> None:
    assert refusal(subscribe(Peer10(broker), source(), "n" * 250)) == "amqp:invalid-field"
