"""Filters of consumers: streams and subscriptions get what they want, and go on behind the rest."""

from __future__ import annotations

import pytest

from fluxmq.protocols.amqp10.codec import encode
from fluxmq.protocols.amqp10.performatives import SourceTerminus
from fluxmq.protocols.amqp10.types import Described, Symbol, ULong
from fluxmq.queues.commands import Verb
from tests.unit.sessions.amqp091.memory import MemoryBroker
from tests.unit.sessions.amqp10.peer_10 import Peer10, data
from tests.unit.sessions.amqp10.test_receiver_links import broker, messages, peer, settled

__all__ = ["broker", "peer"]

SELECTOR = Described(Symbol("apache.org:selector-filter:string"), "JMSType = 'wanted'")


def publish(peer: Peer10, *subjects: str) -> None:
    """Publish messages with these subjects, which are their payloads too."""
    for subject in subjects:
        section = Described(ULong(0x73), [None, None, None, subject])
        peer.publish(encode(section) + data(subject.encode()))
    peer.receive()


def test_a_stream_is_filtered_and_goes_on_behind_what_is_not_wanted(
    broker: MemoryBroker, peer: Peer10
) -> None:
    other = Peer10(broker)
    other.sender("/queues/s")
    publish(other, "no", "wanted", "no", "no", "wanted", "wanted")
    filters: dict[object, object] = {
        Symbol("jms-selector"): SELECTOR,
        Symbol("rabbitmq:stream-offset-spec"): "first",
        Symbol("unknown"): Described(Symbol("unknown"), 1),
    }
    source = SourceTerminus("/queues/s", filter=filters)
    frames = peer.receiver("", credit=2, source=source)
    assert list(frames[0].body.source.filter) == ["jms-selector", "rabbitmq:stream-offset-spec"]
    assert messages(frames) == [b"wanted"] * 2
    assert {(Verb.ACK, 0), (Verb.ACK, 2), (Verb.ACK, 3)} == set(settled(broker, "s"))
    peer.flow(1, 2, 2)
    assert messages(peer.receive()) == [b"wanted"]


def test_a_subscription_is_filtered(broker: MemoryBroker, peer: Peer10) -> None:
    source = SourceTerminus("/topic/a", filter={Symbol("jms-selector"): SELECTOR})
    peer.receiver("", credit=5, source=source)
    other = Peer10(broker)
    other.sender("/exchanges/amq.topic/a")
    publish(other, "no", "wanted", "no")
    assert messages(peer.receive()) == [b"wanted"]
    (queue,) = [each for each in broker.queues.values() if each.record.name.startswith("amq.gen")]
    assert queue.settled == [(Verb.ACK, 0), (Verb.ACK, 2)]


def test_messages_that_are_sent_settled_are_filtered(broker: MemoryBroker, peer: Peer10) -> None:
    source = SourceTerminus("/topic/a", filter={Symbol("jms-selector"): SELECTOR})
    peer.receiver("", credit=5, source=source, snd_settle_mode=1)
    other = Peer10(broker)
    other.sender("/exchanges/amq.topic/a")
    publish(other, "no", "wanted")
    assert messages(peer.receive()) == [b"wanted"]
    (queue,) = [each for each in broker.queues.values() if each.record.name.startswith("amq.gen")]
    assert sorted(queue.settled) == [(Verb.ACK, 0), (Verb.ACK, 1)]


@pytest.mark.parametrize(
    ("source", "condition"),
    [
        (
            SourceTerminus("/queues/s", filter={Symbol("f"): Described(SELECTOR.descriptor, "=")}),
            "amqp:invalid-field",
        ),
        (
            SourceTerminus("", dynamic=True, filter={Symbol("f"): SELECTOR}),
            "amqp:not-implemented",
        ),
        (
            SourceTerminus("/queues/q", filter={Symbol("rabbitmq:stream-offset-spec"): "first"}),
            "amqp:not-implemented",
        ),
    ],
)
def test_filters_that_are_invalid_or_would_take_messages_from_others(
    peer: Peer10, source: SourceTerminus, condition: str
) -> None:
    detach = peer.receiver("", source=source)[-1].body
    assert (detach.error.condition, detach.closed) == (condition, True)
