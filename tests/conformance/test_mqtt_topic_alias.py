"""Topic aliases: section 3.3.2.3.4."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V5

ALIAS = wire.TOPIC_ALIAS


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_alias_stands_for_its_topic(mqtt: Mqtt, qos: int) -> None:
    """Set with a topic, used without, set anew with another topic."""
    one, two = mqtt.topic(), mqtt.topic()
    subscriber = mqtt.subscriber(V5, one, two, qos=qos)
    client = mqtt.connect(V5)
    for topic, payload in ((one, b"1"), ("", b"2"), (two, b"3"), ("", b"4"), (one, b"5")):
        client.publish(topic, payload, qos=qos, props=[(ALIAS, 1)])
    got = {m.payload: m.topic for m in (subscriber.receive() for _ in range(5))}
    assert got == {b"1": one, b"2": one, b"3": two, b"4": two, b"5": one}


@pytest.mark.statement("v5:3.3.2-12", "v5:3.2.2-17")
def test_every_alias_up_to_the_maximum(mqtt: Mqtt) -> None:
    """All from 1 to the Topic Alias Maximum of CONNACK, each for a topic of its own."""
    root = mqtt.topic()
    subscriber = mqtt.subscriber(V5, f"{root}/+")
    client = mqtt.open(V5)
    maximum = client.connect(mqtt.client_id()).property(wire.TOPIC_ALIAS_MAXIMUM, 0)
    assert maximum
    for alias in range(1, maximum + 1):
        client.publish(f"{root}/{alias}", b"set", props=[(ALIAS, alias)])
    for alias in range(maximum, 0, -1):
        client.publish("", b"%d" % alias, props=[(ALIAS, alias)])
    for alias in range(1, maximum + 1):
        assert subscriber.receive().topic == f"{root}/{alias}"
    for alias in range(maximum, 0, -1):
        message = subscriber.receive()
        assert (message.topic, message.payload) == (f"{root}/{alias}", b"%d" % alias)


@pytest.mark.statement("v5:3.3.2-8", "v5:3.3.2-9", "v5:3.2.2-17")
@pytest.mark.parametrize("alias", [0, 4, 0xFFFF])
def test_alias_out_of_range(limited: Mqtt, alias: int) -> None:
    """0, or above the maximum (here 3): 0x94."""
    client = limited.connect(V5)
    client.send(wire.publish(V5, limited.topic(), b"x", props=[(ALIAS, alias)]))
    client.expect_error(0x94)


@pytest.mark.statement("v5:3.3.2-8")
def test_alias_zero(mqtt: Mqtt) -> None:
    """0 is no alias."""
    client = mqtt.connect(V5)
    client.send(wire.publish(V5, mqtt.topic(), b"x", props=[(ALIAS, 0)]))
    client.expect_error(0x94)


def test_unknown_alias(mqtt: Mqtt) -> None:
    """An alias without a topic that was never set is a protocol error (3.3.2.3.4)."""
    client = mqtt.connect(V5)
    client.publish(mqtt.topic(), b"x", props=[(ALIAS, 1)])
    client.send(wire.publish(V5, "", b"x", props=[(ALIAS, 2)]))
    client.expect_error(0x82, 0x94)


@pytest.mark.statement("v5:3.3.2-7")
def test_aliases_end_with_the_connection(mqtt: Mqtt) -> None:
    """They are the connection's, not the session's."""
    expiry = [(wire.SESSION_EXPIRY_INTERVAL, 60)]
    client = mqtt.connect(V5, props=expiry)
    client.publish(mqtt.topic(), b"x", props=[(ALIAS, 1)])
    client.drop()
    client = mqtt.connect(V5, client.client_id, clean=False, props=expiry)
    client.send(wire.publish(V5, "", b"x", props=[(ALIAS, 1)]))
    client.expect_error(0x82, 0x94)


def test_aliases_of_two_connections_are_apart(mqtt: Mqtt) -> None:
    """Each client has its own numbers."""
    topics = [mqtt.topic(), mqtt.topic()]
    subscriber = mqtt.subscriber(V5, *topics)
    clients = [mqtt.connect(V5), mqtt.connect(V5)]
    for client, topic in zip(clients, topics, strict=True):
        client.publish(topic, b"set", qos=1, props=[(ALIAS, 1)])
    for client in clients:
        client.publish("", b"use", qos=1, props=[(ALIAS, 1)])
    got = [subscriber.receive() for _ in range(4)]
    assert sorted(m.topic for m in got if m.payload == b"use") == sorted(topics)


@pytest.mark.statement("v5:3.1.2-27", "v5:3.3.2-11", "v5:3.1.2-26")
@pytest.mark.parametrize("maximum", [None, 0, 1, 2, 10, 65_535])
def test_server_keeps_to_the_clients_maximum(mqtt: Mqtt, maximum: int | None) -> None:
    """No alias unless the client allows them, never above its maximum, and always the right topic."""
    root = mqtt.topic()
    props = [] if maximum is None else [(wire.TOPIC_ALIAS_MAXIMUM, maximum)]
    client = mqtt.connect(V5, props=props)
    client.subscribe(f"{root}/#", qos=1)
    publisher = mqtt.connect(V5)
    for turn in range(3):
        for number in range(20):
            publisher.publish(f"{root}/{number}", b"%d:%d" % (number, turn), qos=1)
    # The client resolves aliases and fails on any that it did not allow.
    for turn in range(3):
        for number in range(20):
            message = client.receive()
            assert message.payload == b"%d:%d" % (number, turn)
            assert message.topic == f"{root}/{number}"


@pytest.mark.statement("v5:3.3.2-7", "v5:3.1.2-26")
def test_servers_aliases_end_with_the_connection(mqtt: Mqtt) -> None:
    """After a reconnect every topic comes in full before its alias; a smaller maximum is kept."""
    root = mqtt.topic()
    expiry = (wire.SESSION_EXPIRY_INTERVAL, 60)
    publisher = mqtt.connect(V5)
    client = mqtt.connect(V5, props=[expiry, (wire.TOPIC_ALIAS_MAXIMUM, 10)])
    client.subscribe(f"{root}/#", qos=1)
    for maximum in (10, 2, 0):
        client.drop()
        props = [expiry, (wire.TOPIC_ALIAS_MAXIMUM, maximum)]
        client = mqtt.connect(V5, client.client_id, clean=False, props=props)
        for number in range(5):
            publisher.publish(f"{root}/{number}", b"x", qos=1)
        assert [client.receive().topic for _ in range(5)] == [f"{root}/{n}" for n in range(5)]


def test_alias_is_not_passed_on(mqtt: Mqtt) -> None:
    """A publisher's alias says nothing to subscribers: the topic arrives in full."""
    topic = mqtt.topic()
    client = mqtt.subscriber(V5, topic, qos=1)
    publisher = mqtt.connect(V5)
    publisher.publish(topic, b"1", qos=1, props=[(ALIAS, 7)])
    publisher.publish("", b"2", qos=1, props=[(ALIAS, 7)])
    for _ in range(2):
        message = client.receive()
        assert message.topic == topic
        assert message.property(ALIAS) is None


def test_alias_with_a_retained_message(mqtt: Mqtt) -> None:
    """What is stored under an alias is stored under its topic."""
    topic = mqtt.topic()
    publisher = mqtt.connect(V5)
    publisher.publish(topic, b"old", qos=1, retain=True, props=[(ALIAS, 1)])
    publisher.publish("", b"new", qos=1, retain=True, props=[(ALIAS, 1)])
    found = mqtt.retained(V5, topic)
    assert [(m.topic, m.payload) for m in found] == [(topic, b"new")]
