"""How a session's messages are written: sizes, topic aliases, retain, quality of service, versions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluxmq.protocols.mqtt.codec import encode
from fluxmq.protocols.mqtt.run import message_run
from tests.unit.protocols.mqtt.lines import Line, messages, numbers, scanned
from tests.unit.protocols.mqtt.wire import publish

Lines = Callable[..., Line]


# Maximum Packet Size


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_packets_that_the_client_does_not_take_are_left_out(
    line: Lines, qos: int, version: int
) -> None:
    one = line()
    mixed = b"".join(
        publish(b"t", index.to_bytes(4, "big").ljust(size, b"."), qos, index + 1 if qos else 0)
        for index, size in enumerate([10, 90, 20, 91, 92, 10])
    )
    exact = len(publish(b"t", bytes(91), qos, 1 if qos else 0, version))
    one.attach(version=version, largest=exact)
    one.offer(scanned(mixed))
    assert one.numbers() == [0, 1, 2, 3, 5]
    assert one.tally.dropped_large == 1
    assert one.delivery.pending_bytes == 0


def test_properties_added_by_the_broker_count(line: Lines) -> None:
    """A retained message or a will is kept without its properties on the wire."""
    one = line()
    one.attach(version=5, largest=60)
    forward = b"\x03\x00\x32" + b"t" * 50
    one.offer(message_run(b"t", b"....", 1, 0, forward))
    one.offer(message_run(b"t", b"....", 0, 0, forward))
    assert one.tally.dropped_large == 2
    assert one.publishes() == []
    one.offer(message_run(b"t", b"....", 1, 0, forward[:1] + b"\x00\x1e" + b"t" * 30))
    assert len(one.publishes()) == 1


def test_an_alias_does_not_push_a_message_over_the_limit(line: Lines) -> None:
    one = line()
    exact = len(publish(b"topic", bytes(50), 1, 1, 5))
    one.attach(version=5, largest=exact, aliases=5)
    one.offer(messages(2, 1, topic=b"topic", size=50, version=5))
    one.offer(messages(1, 0, topic=b"topic", size=52, version=5))
    sizes = [len(encode(packet, 5)) for packet in one.publishes()]
    assert sizes == [exact] * 3
    one.offer(messages(1, 1, topic=b"topic", size=20, version=5))
    (found,) = one.publishes()
    assert found.properties.topic_alias == 1


def test_a_new_connection_that_takes_less_gets_less(line: Lines) -> None:
    one = line()
    one.attach(window=2, version=5, largest=140)
    one.offer(messages(4, size=110, version=5))
    one.offer(messages(2, start=4, size=20, version=5))
    assert one.numbers() == [0, 1]
    one.detach()
    one.attach(window=10, version=5, largest=100)
    found = one.publishes()
    assert numbers(found) == [4, 5]
    assert one.tally.dropped_large == 4
    assert (one.delivery.inflight, one.delivery.pending_count) == (2, 0)


def test_repeated_messages_keep_their_identifiers_when_some_are_too_large(line: Lines) -> None:
    one = line()
    one.attach(version=5)
    mixed = b"".join(
        publish(b"t", index.to_bytes(4, "big").ljust(size, b"."), 1, index + 1, 5)
        for index, size in enumerate([10, 90, 20, 90, 10])
    )
    one.offer(scanned(mixed, 5))
    one.packets()
    one.detach()
    one.attach(version=5, largest=60)
    found = one.publishes()
    assert [(packet.packet_id, packet.dup) for packet in found] == [(1, True), (3, True), (5, True)]
    assert one.delivery.inflight == 3


# Topic aliases, retain, identifiers


def test_the_first_message_names_topic_and_alias_and_the_next_the_alias(line: Lines) -> None:
    one = line()
    one.attach(version=5, aliases=2)
    one.offer(messages(3, 0, version=5, topic=b"one"))
    one.offer(messages(2, 1, version=5, topic=b"two"))
    one.offer(messages(2, 1, version=5, topic=b"one"))
    one.offer(messages(1, 0, version=5, topic=b"three"))
    found = one.publishes()
    assert [(packet.topic, packet.properties.topic_alias) for packet in found] == [
        (b"one", 1),
        (b"", 1),
        (b"", 1),
        (b"two", 2),
        (b"", 2),
        (b"", 1),
        (b"", 1),
        (b"three", None),
    ]


def test_aliases_end_with_the_connection_and_are_not_used_in_repetitions(line: Lines) -> None:
    one = line()
    one.attach(version=5, aliases=2)
    one.offer(messages(2, 1, version=5, topic=b"one"))
    one.packets()
    one.detach()
    one.attach(version=5, aliases=2)
    one.offer(messages(1, 1, version=5, topic=b"one"))
    assert [(packet.topic, packet.properties.topic_alias) for packet in one.publishes()] == [
        (b"one", None),
        (b"one", None),
        (b"one", 1),
    ]


def test_retain_is_passed_on_where_asked(line: Lines) -> None:
    one = line()
    one.attach()
    for keep in (False, True):
        one.offer(messages(1, 0, retain=True), retain=keep)
        one.offer(messages(1, 1, retain=True), retain=keep)
        one.offer(messages(1, 0), retain=keep)
    assert [packet.retain for packet in one.publishes()] == [False] * 3 + [True, True, False]


def test_the_lower_quality_of_service_holds(line: Lines) -> None:
    one = line()
    one.attach()
    for sent in (0, 1, 2):
        for granted in (0, 1, 2):
            one.offer(messages(1, sent), granted)
    assert sorted(packet.qos for packet in one.publishes()) == [0, 0, 0, 0, 0, 1, 1, 1, 2]
    assert (one.tally.sent0, one.tally.sent1, one.tally.sent2) == (5, 3, 1)


def test_a_repetition_of_the_publisher_is_none_of_ours(line: Lines) -> None:
    """DUP is set by whoever repeats, hop by hop [MQTT-3.3.1-3]."""
    one = line()
    one.attach()
    one.offer(scanned(publish(b"t", b"0000", 1, 7, dup=True)))
    (found,) = one.publishes()
    assert (found.dup, found.packet_id) == (False, 1)


@pytest.mark.parametrize("version", [4, 5])
def test_messages_cross_between_versions(line: Lines, version: int) -> None:
    one = line()
    one.attach(version=version)
    other = 9 - version
    one.offer(messages(20, 0, version=other))
    one.offer(messages(20, 1, start=20, version=other))
    assert one.numbers() == list(range(40))
