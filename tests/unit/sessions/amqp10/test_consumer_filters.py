"""Filters of consumers, and browsers: streams and subscriptions get what they want, and go on behind the rest."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.protocols.amqp10.codec import encode
from fluxmq.protocols.amqp10.performatives import (
    AcceptedState,
    DispositionFrame,
    FlowFrame,
    RejectedState,
    SourceTerminus,
)
from fluxmq.protocols.amqp10.types import Described, Symbol, ULong
from fluxmq.queues.commands import Verb
from fluxmq.sessions.amqp10.receiver_links import ANSWERS_MAX, NO_LIMIT_LEFT
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


COPY = Symbol("copy")


def browser(**fields: Any) -> SourceTerminus:
    """A source that leaves messages where they are."""
    return SourceTerminus("/queues/q", distribution_mode=COPY, **fields)


def test_a_queue_is_browsed_and_keeps_what_it_has(broker: MemoryBroker, peer: Peer10) -> None:
    other = Peer10(broker)
    other.sender("/queues/q")
    publish(other, "one", "two", "three")
    frames = peer.receiver("", credit=2, source=browser())
    assert frames[0].body.source.distribution_mode == COPY
    assert messages(frames) == [b"one", b"two"]
    peer.send(DispositionFrame(True, 0, 0, True, RejectedState()))
    peer.send(DispositionFrame(True, 1, 1, True, AcceptedState()))
    peer.flow(1, 2, 2)
    assert messages(peer.receive()) == [b"three"]
    publish(other, "four")
    assert messages(peer.receive()) == [b"four"], "it follows"
    assert settled(broker) == []
    assert broker.queues["/", "q"].ready == [0, 1, 2, 3]
    assert broker.queues["/", "q"].consumers == []


def test_a_browser_is_drained_when_it_has_seen_everything(
    broker: MemoryBroker, peer: Peer10
) -> None:
    other = Peer10(broker)
    other.sender("/queues/q")
    publish(other, *["no"] * 30, "wanted", "no")
    peer.receiver("", source=browser(filter={Symbol("jms-selector"): SELECTOR}))
    peer.flow(1, 3, drain=True)
    frames = [frame for _ in range(100) for frame in peer.receive()]
    assert messages(frames) == [b"wanted"]
    (flow,) = [each.body for each in frames if isinstance(each.body, FlowFrame)]
    assert (flow.drain, flow.delivery_count, flow.link_credit) == (True, 3, 0)


def test_a_browser_is_shown_no_more_than_it_has_credit_for(
    broker: MemoryBroker, peer: Peer10
) -> None:
    other = Peer10(broker)
    other.sender("/queues/q")
    publish(other, *["no"] * 5, "wanted", "wanted")
    frames = peer.receiver("", credit=1, source=browser(filter={Symbol("jms-selector"): SELECTOR}))
    frames += [frame for _ in range(20) for frame in peer.receive()]
    assert messages(frames) == [b"wanted"]
    (handle,) = broker.queues["/", "q"].attached
    assert handle.seen == 6


def test_a_drain_ends_when_a_browser_is_shown_nothing_any_more(
    broker: MemoryBroker, peer: Peer10
) -> None:
    """It may have unsettled all that a consumer may: to ask again and again would keep a shard busy."""
    other = Peer10(broker)
    other.sender("/queues/q")
    publish(other, "one", "two")
    peer.receiver("", source=browser())
    peer.flow(1, 3, drain=True)
    (handle,) = broker.queues["/", "q"].attached
    handle.limit = NO_LIMIT_LEFT
    frames = [frame for _ in range(4 * ANSWERS_MAX) for frame in peer.receive()]
    (flow,) = [each.body for each in frames if isinstance(each.body, FlowFrame)]
    assert (flow.drain, flow.delivery_count, flow.link_credit) == (True, 3, 0)
    assert messages(frames) == []
