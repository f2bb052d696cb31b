"""SUBSCRIBE and SUBACK: sections 3.8 and 3.9, and overlapping subscriptions: 3.3.4."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import payloads
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V4, V5, Filter

ID = wire.SUBSCRIPTION_IDENTIFIER


@pytest.mark.statement(
    "v5:3.8.4-1", "v5:3.8.4-2", "v5:2.2.1-6", "v5:3.8.4-6", "v5:3.8.4-7", "v5:3.9.3-2",
    "v4:3.8.4-1", "v4:3.8.4-2", "v4:2.3.1-7", "v4:3.8.4-5", "v4:3.9.3-2",
)  # fmt: skip
@pytest.mark.parametrize("packet_id", [1, 256, 0xFFFF])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_suback(mqtt: Mqtt, version: int, packet_id: int, qos: int) -> None:
    """The identifier of the SUBSCRIBE and the QoS granted."""
    client = mqtt.connect(version)
    client.send(wire.subscribe(version, packet_id, [Filter(mqtt.topic(), qos)]))
    suback = client.expect(wire.SUBACK)
    assert (suback.packet_id, suback.reasons) == (packet_id, [qos])


@pytest.mark.statement("v5:3.9.3-1", "v5:3.8.4-5", "v4:3.9.3-1", "v4:3.8.4-4", "v4:3.8.4-5")
def test_several_filters_in_one_subscribe(mqtt: Mqtt, version: int) -> None:
    """One SUBACK, its codes in the order of the filters, each subscription on its own."""
    topics = [mqtt.topic() for _ in range(6)]
    client = mqtt.connect(version)
    suback = client.subscribe(*(Filter(topic, n % 3) for n, topic in enumerate(topics)))
    assert suback.reasons == [0, 1, 2, 0, 1, 2]
    publisher = mqtt.connect(version)
    for topic in topics:
        publisher.publish(topic, topic.encode(), qos=2)
    got = [client.receive() for _ in topics]
    assert {m.topic: m.qos for m in got} == {topic: n % 3 for n, topic in enumerate(topics)}


@pytest.mark.statement("v5:3.8.1-1", "v4:3.8.1-1")
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10, 15])
def test_subscribe_flags(mqtt: Mqtt, version: int, flags: int) -> None:
    """SUBSCRIBE's flag bits are 0010 and nothing else."""
    client = mqtt.connect(version)
    good = wire.subscribe(version, 1, [Filter(mqtt.topic())])
    client.send(bytes([wire.SUBSCRIBE << 4 | flags]) + good[1:])
    client.expect_error(0x81)


@pytest.mark.statement("v5:3.8.3-2", "v4:3.8.3-3")
def test_subscribe_without_a_filter(mqtt: Mqtt, version: int) -> None:
    """A payload without a filter is an error."""
    client = mqtt.connect(version)
    client.send(wire.subscribe(version, 1, []))
    client.expect_error(0x81, 0x82)


@pytest.mark.statement("v5:2.2.1-3", "v4:2.3.1-1")
def test_subscribe_with_identifier_zero(mqtt: Mqtt, version: int) -> None:
    """Packet identifiers are never 0."""
    client = mqtt.connect(version)
    client.send(wire.subscribe(version, 0, [Filter(mqtt.topic())]))
    client.expect_error(0x81, 0x82)


@pytest.mark.statement("v5:3.8.3-5", "v4:3.8.3-4")
@pytest.mark.parametrize("options", [0x03, 0x40, 0x80, 0xC1, 0xFF])
def test_reserved_subscription_options(mqtt: Mqtt, version: int, options: int) -> None:
    """Reserved bits and QoS 3 make a SUBSCRIBE malformed."""
    client = mqtt.connect(version)
    body = b"\0\1" + (b"\0" if version == V5 else b"")
    client.send(wire.frame(0x82, body + wire.string(mqtt.topic()) + bytes([options])))
    client.expect_error(0x81, 0x82)


@pytest.mark.statement("v4:3.8.3-4")
@pytest.mark.parametrize("options", [0x04, 0x08, 0x10, 0x20])
def test_options_of_version_5_in_version_4(mqtt: Mqtt, options: int) -> None:
    """What 5.0 made of them, in 3.1.1 the bits above QoS are reserved."""
    client = mqtt.connect(V4)
    client.send(wire.frame(0x82, b"\0\1" + wire.string(mqtt.topic()) + bytes([options])))
    client.expect_closed()


def test_retain_handling_3(mqtt: Mqtt) -> None:
    """Retain Handling has no value 3 (3.8.3.1)."""
    client = mqtt.connect(V5)
    client.send(wire.subscribe(V5, 1, [Filter(mqtt.topic(), retain_handling=3)]))
    client.expect_error(0x81, 0x82)


@pytest.mark.statement("v5:3.8.4-3", "v4:3.8.4-3")
def test_same_filter_replaces_the_subscription(mqtt: Mqtt, version: int) -> None:
    """The second subscription counts, alone: one copy, at its QoS."""
    topic = mqtt.topic()
    client = mqtt.subscriber(version, topic, qos=0)
    publisher = mqtt.connect(version)
    publisher.publish(topic, b"1", qos=2)
    client.subscribe(topic, qos=2)
    publisher.publish(topic, b"2", qos=2)
    client.subscribe(topic, qos=1)
    publisher.publish(topic, b"3", qos=2)
    got = [client.receive() for _ in range(3)]
    assert [(m.payload, m.qos) for m in got] == [(b"1", 0), (b"2", 2), (b"3", 1)]
    assert client.ping() == []


@pytest.mark.statement("v5:3.8.4-4", "v4:3.8.4-3")
def test_replacing_a_subscription_loses_nothing(mqtt: Mqtt, version: int) -> None:
    """Messages that come while the same filter is subscribed again and again all arrive once."""
    topic = mqtt.topic()
    client = mqtt.subscriber(version, topic, qos=1)
    publisher = mqtt.connect(version)
    for number in range(0, 100, 10):
        publisher.send(
            *(
                wire.publish(version, topic, b"%d" % n, qos=1, packet_id=n + 1)
                for n in range(number, number + 10)
            )
        )
        client.subscribe(topic, qos=1)
    got = [client.receive() for _ in range(100)]
    assert payloads(got) == [b"%d" % n for n in range(100)]


@pytest.mark.statement("v5:3.3.4-2", "v4:3.3.5-1")
def test_overlapping_subscriptions_deliver_at_the_highest_qos(mqtt: Mqtt, version: int) -> None:
    """A client whose filters overlap is delivered to by the highest QoS among those that match."""
    root = mqtt.topic()
    client = mqtt.subscriber(version, Filter(f"{root}/#", 0), Filter(f"{root}/+", 2))
    client.subscribe(Filter(f"{root}/a", 1))
    mqtt.connect(version).publish(f"{root}/a", b"x", qos=2)
    assert client.receive().qos == 2


def test_overlapping_subscriptions_deliver_once(fluxmq: Mqtt, version: int) -> None:
    """FluxMQ sends one copy, whatever number of the client's filters match."""
    root = fluxmq.topic()
    run = root.partition("/")[0]
    client = fluxmq.subscriber(version, f"{root}/#", f"{root}/+", f"{root}/a", qos=1)
    client.subscribe(f"{run}/+/a", f"{run}/#", qos=1)
    publisher = fluxmq.connect(version)
    for number in range(10):
        publisher.publish(f"{root}/a", b"%d" % number, qos=1)
    assert payloads(client.receive() for _ in range(10)) == [b"%d" % n for n in range(10)]
    assert client.ping() == []


@pytest.mark.statement("v5:3.3.4-3", "v5:3.3.4-4")
def test_overlapping_subscriptions_tell_all_identifiers(fluxmq: Mqtt) -> None:
    """The one copy carries the identifier of every matching subscription that has one."""
    root = fluxmq.topic()
    run = root.partition("/")[0]
    client = fluxmq.connect(V5)
    client.subscribe(f"{root}/#", qos=1, props=[(ID, 5)])
    client.subscribe(f"{root}/a", qos=2, props=[(ID, 268_435_455)])
    client.subscribe(f"{run}/+/a", qos=0)
    client.subscribe(f"{root}/b", qos=0, props=[(ID, 9)])
    publisher = fluxmq.connect(V5)
    publisher.publish(f"{root}/a", b"x", qos=2)
    message = client.receive()
    assert sorted(message.all(ID)) == [5, 268_435_455]
    assert message.qos == 2
    assert client.ping() == []


@pytest.mark.statement("v5:3.3.4-3")
@pytest.mark.parametrize("identifier", [1, 127, 128, 16_384, 268_435_455])
def test_subscription_identifier_comes_back(mqtt: Mqtt, identifier: int) -> None:
    """A message says which subscription it is for; retained ones too."""
    topic = mqtt.topic()
    publisher = mqtt.connect(V5)
    publisher.publish(topic, b"kept", retain=True, qos=1)
    client = mqtt.connect(V5)
    client.subscribe(topic, props=[(ID, identifier)])
    publisher.publish(topic, b"live")
    for payload in (b"kept", b"live"):
        message = client.receive()
        assert (message.payload, message.all(ID)) == (payload, [identifier])


@pytest.mark.statement("v5:3.8.4-3")
def test_subscription_identifier_is_replaced_with_the_subscription(mqtt: Mqtt) -> None:
    """Subscribing again changes the identifier, or removes it."""
    topic = mqtt.topic()
    client = mqtt.connect(V5)
    publisher = mqtt.connect(V5)
    for identifier in (3, 4, None, 5):
        client.subscribe(topic, props=[] if identifier is None else [(ID, identifier)])
        publisher.publish(topic, b"x")
        assert client.receive().all(ID) == ([] if identifier is None else [identifier])


@pytest.mark.parametrize("entries", [[(ID, 0)], [(ID, 1), (ID, 2)]], ids=["zero", "twice"])
def test_wrong_subscription_identifiers(mqtt: Mqtt, entries: list[tuple[int, int]]) -> None:
    """0, or two in one SUBSCRIBE, are protocol errors (3.8.2.1.2)."""
    client = mqtt.connect(V5)
    client.send(wire.subscribe(V5, 1, [Filter(mqtt.topic())], entries))
    client.expect_error(0x82)


@pytest.mark.statement("v5:3.8.3-3")
def test_no_local(mqtt: Mqtt) -> None:
    """With No Local a client does not receive what it published itself, all others do."""
    topic = mqtt.topic()
    client = mqtt.connect(V5)
    client.subscribe(Filter(topic, 1, no_local=True))
    other = mqtt.subscriber(V5, Filter(topic, 1, no_local=True))
    client.publish(topic, b"mine", qos=1)
    other.publish(topic, b"theirs", qos=1)
    assert client.receive_until(b"theirs") == []
    assert other.receive().payload == b"mine"
    assert other.ping() == []


@pytest.mark.statement("v5:3.8.3-3")
def test_no_local_leaves_other_subscriptions_alone(mqtt: Mqtt) -> None:
    """Of two overlapping subscriptions only the one with No Local is silent."""
    root = mqtt.topic()
    client = mqtt.connect(V5)
    client.subscribe(Filter(f"{root}/#", 0, no_local=True), props=[(ID, 1)])
    client.subscribe(Filter(f"{root}/a", 0), props=[(ID, 2)])
    client.publish(f"{root}/a", b"x")
    message = client.receive()
    assert message.all(ID) == [2]
    client.publish(f"{root}/b", b"y")
    assert client.ping() == []


@pytest.mark.statement("v5:3.8.3-4")
def test_no_local_with_a_shared_subscription(mqtt: Mqtt) -> None:
    """No Local on a shared subscription is a protocol error."""
    client = mqtt.connect(V5)
    shared = Filter(f"$share/g/{mqtt.topic()}", no_local=True)
    client.send(wire.subscribe(V5, 1, [shared]))
    client.expect_error(0x82)


@pytest.mark.statement("v5:3.2.2-10", "v5:3.8.4-7", "v5:3.8.4-8", "v4:3.8.4-6")
def test_granted_qos_is_limited(limited: Mqtt, version: int) -> None:
    """A server of Maximum QoS 1 accepts requests for 2 and grants 1."""
    topic = limited.topic()
    client = limited.connect(version)
    assert client.subscribe(Filter(topic, 2), granted=False).reasons == [1]
    limited.connect(version).publish(topic, b"x", qos=1)
    assert client.receive().qos == 1


def test_subscriptions_of_a_session_are_limited(limited: Mqtt, version: int) -> None:
    """One filter too many is refused with 0x97 (3.1.1: 0x80); replacing is no new one."""
    client = limited.connect(version)
    topics = [limited.topic() for _ in range(6)]
    client.subscribe(*topics[:5])
    refused = [0x97 if version == V5 else 0x80]
    assert client.subscribe(topics[5], granted=False).reasons == refused
    client.subscribe(topics[0], qos=1)
    client.unsubscribe(topics[1])
    client.subscribe(topics[5])


def test_filter_beyond_the_limits(limited: Mqtt, version: int) -> None:
    """A filter of too many levels or bytes is refused with 0x8F; in 3.1.1 the connection ends."""
    client = limited.connect(version)
    filters = [Filter("a" + "/+" * 8), Filter(limited.topic()), Filter("b" * 257)]
    client.send(wire.subscribe(version, 1, filters))
    if version == V5:
        assert client.expect(wire.SUBACK).reasons == [0x8F, 0, 0x8F]
    else:
        client.expect_closed()


@pytest.mark.statement("v5:3.9.3-2", "v4:3.9.3-2")
def test_unauthorised_subscribe(restricted: Mqtt, version: int) -> None:
    """0x87 (3.1.1: 0x80) for each filter that is not covered by a permission, and no message."""
    client = restricted.connect(version)
    filters = ["open/x", "secret/x", "open/+/y", "#", "+/x", "secret/a/read", "secret/+/read"]
    suback = client.subscribe(*filters, qos=1, granted=False)
    refused = 0x87 if version == V5 else 0x80
    assert suback.reasons == [1, refused, 1, refused, refused, 1, 1]
    password = b"correct horse battery staple"
    ada = restricted.connect(version, username="ada", password=password)
    ada.publish("secret/x", b"hidden", qos=1)
    ada.publish("open/x", b"marker", qos=1)
    assert client.receive_until(b"marker") == []


def test_unauthorised_shared_subscribe(restricted: Mqtt) -> None:
    """Permissions look at the filter inside a shared subscription."""
    client = restricted.connect(V5)
    suback = client.subscribe("$share/g/open/x", "$share/g/secret/x", granted=False)
    assert suback.reasons == [0, 0x87]
