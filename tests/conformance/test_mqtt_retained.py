"""Retained messages: sections 3.3.1.3 and 3.8.3.1."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import payloads
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V5, Filter


@pytest.mark.statement(
    "v5:3.3.1-5", "v5:3.3.1-9", "v4:3.3.1-5", "v4:3.3.1-6", "v4:3.3.1-8", "v5:3.8.4-8"
)
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_retained_message_is_sent_to_new_subscriptions(
    mqtt: Mqtt, version: int, published: int, granted: int
) -> None:
    """With RETAIN 1, at the lesser QoS, once for each new subscription."""
    topic = mqtt.topic()
    mqtt.connect(version).publish(topic, b"kept", qos=published, retain=True)
    for _ in range(2):
        message = mqtt.subscriber(version, topic, qos=granted).receive()
        assert (message.topic, message.payload, message.retain) == (topic, b"kept", True)
        assert message.qos == min(published, granted)


@pytest.mark.statement("v5:3.3.1-5", "v4:3.3.1-5", "v4:3.3.1-7")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_last_one_counts(mqtt: Mqtt, version: int, qos: int) -> None:
    """A later retained message replaces the earlier one, also a QoS 0 one."""
    topic = mqtt.topic()
    publisher = mqtt.connect(version)
    publisher.publish(topic, b"old", qos=2, retain=True)
    publisher.publish(topic, b"new", qos=qos, retain=True)
    publisher.ping()
    assert payloads(mqtt.retained(version, topic, qos=2)) == [b"new"]


@pytest.mark.statement("v5:3.3.1-6", "v5:3.3.1-7", "v4:3.3.1-10", "v4:3.3.1-11")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_empty_payload_clears(mqtt: Mqtt, version: int, qos: int) -> None:
    """Delivered like any message, and then nothing is retained."""
    topic = mqtt.topic()
    publisher = mqtt.connect(version)
    publisher.publish(topic, b"kept", qos=1, retain=True)
    present = mqtt.subscriber(version, topic, qos=2)
    assert present.receive().payload == b"kept"
    publisher.publish(topic, b"", qos=qos, retain=True)
    message = present.receive()
    assert (message.payload, message.retain) == (b"", False)
    assert mqtt.retained(version, topic) == []


@pytest.mark.statement("v5:3.3.1-8", "v4:3.3.1-12")
@pytest.mark.parametrize("payload", [b"other", b""])
def test_message_without_retain_changes_nothing(mqtt: Mqtt, version: int, payload: bytes) -> None:
    """RETAIN 0 neither stores nor replaces nor removes."""
    topic, fresh = mqtt.topic(), mqtt.topic()
    publisher = mqtt.connect(version)
    publisher.publish(topic, b"kept", qos=1, retain=True)
    publisher.publish(topic, payload, qos=1)
    publisher.publish(fresh, payload, qos=1)
    assert payloads(mqtt.retained(version, topic)) == [b"kept"]
    assert mqtt.retained(version, fresh) == []


@pytest.mark.statement("v4:3.3.1-9", "v5:3.3.1-12")
def test_established_subscriptions_see_no_retain(mqtt: Mqtt, version: int) -> None:
    """To those already subscribed it is a message like others: RETAIN 0."""
    topic = mqtt.topic()
    client = mqtt.subscriber(version, topic, qos=1)
    mqtt.connect(version).publish(topic, b"x", qos=1, retain=True)
    assert not client.receive().retain


@pytest.mark.statement("v5:3.3.1-13", "v5:3.3.1-12")
@pytest.mark.parametrize("asked", [False, True])
def test_retain_as_published(mqtt: Mqtt, asked: bool) -> None:
    """5.0: on request RETAIN is passed on as it was published."""
    topic = mqtt.topic()
    client = mqtt.connect(V5)
    client.subscribe(Filter(topic, 1, retain_as_published=asked))
    publisher = mqtt.connect(V5)
    publisher.publish(topic, b"1", qos=1, retain=True)
    publisher.publish(topic, b"2", qos=1)
    got = [client.receive(), client.receive()]
    assert [message.retain for message in got] == [asked, False]


@pytest.mark.statement("v5:3.3.1-12", "v5:3.3.1-13")
def test_retain_as_published_and_new_subscriptions(mqtt: Mqtt) -> None:
    """5.0: a message sent because it is retained has RETAIN 1 whatever the option says."""
    topic = mqtt.topic()
    mqtt.connect(V5).publish(topic, b"kept", qos=1, retain=True)
    for asked in (False, True):
        client = mqtt.connect(V5)
        client.subscribe(Filter(topic, 1, retain_as_published=asked))
        assert client.receive().retain


@pytest.mark.statement("v5:3.3.1-9", "v5:3.3.1-10", "v5:3.3.1-11", "v5:3.8.4-4")
@pytest.mark.parametrize(("handling", "sent"), [(0, [1, 1]), (1, [1, 0]), (2, [0, 0])])
def test_retain_handling(mqtt: Mqtt, handling: int, sent: list[int]) -> None:
    """5.0: always, only to a new subscription, never."""
    topic = mqtt.topic()
    mqtt.connect(V5).publish(topic, b"kept", qos=1, retain=True)
    client = mqtt.connect(V5)
    for count in sent:
        found = mqtt.retained(V5, Filter(topic, 0, retain_handling=handling), client=client)
        assert payloads(found) == [b"kept"] * count
    client.unsubscribe(topic)
    found = mqtt.retained(V5, Filter(topic, 0, retain_handling=handling), client=client)
    assert payloads(found) == [b"kept"] * sent[0]


@pytest.mark.statement("v4:3.8.4-3", "v4:3.3.1-6")
def test_retained_message_again_on_each_subscribe(mqtt: Mqtt, version: int) -> None:
    """Subscribing again with the same filter sends it again (5.0: Retain Handling 0)."""
    topic = mqtt.topic()
    mqtt.connect(version).publish(topic, b"kept", qos=1, retain=True)
    client = mqtt.connect(version)
    for _ in range(3):
        client.subscribe(topic, qos=1)
        assert client.receive().payload == b"kept"


@pytest.mark.statement("v4:3.3.1-6", "v5:3.3.1-9")
def test_wildcards_find_retained_messages(mqtt: Mqtt, version: int) -> None:
    """The last message of each topic that matches, and no other."""
    root = mqtt.topic()
    publisher = mqtt.connect(version)
    for tail in ("a", "a/b", "a/b/c", "b", "", "/a"):
        publisher.publish(f"{root}/{tail}", b"x", qos=1, retain=True)
    publisher.publish(root, b"x", qos=1, retain=True)
    expected = {
        f"{root}/#": ["", "/", "/a", "/a/b", "/a/b/c", "/b", "//a"],
        f"{root}/+": ["/", "/a", "/b"],
        f"{root}/+/b": ["/a/b"],
        f"{root}/a/#": ["/a", "/a/b", "/a/b/c"],
        f"{root}/+/+/+": ["/a/b/c"],
        f"{root}/+/a": ["//a"],
        root: [""],
    }
    for entry, tails in expected.items():
        found = sorted(message.topic for message in mqtt.retained(version, entry))
        assert found == sorted(root + tail for tail in tails), entry


def test_each_filter_of_a_subscribe_finds_its_own(mqtt: Mqtt, version: int) -> None:
    """A SUBSCRIBE of several filters is several subscriptions, each with its retained messages."""
    root = mqtt.topic()
    publisher = mqtt.connect(version)
    for name in "abc":
        publisher.publish(f"{root}/{name}", name.encode(), qos=1, retain=True)
    found = mqtt.retained(version, Filter(f"{root}/a", 0), Filter(f"{root}/c", 1))
    assert sorted(payloads(found)) == [b"a", b"c"]


@pytest.mark.statement("v5:3.3.1-9", "v4:3.3.1-6")
@pytest.mark.parametrize("qos", [0, 1])
def test_many_retained_messages_all_arrive(mqtt: Mqtt, version: int, qos: int) -> None:
    """Delivery of a wildcard's retained messages is paced, never cut off: 3000 of 1 KiB."""
    root = mqtt.topic()
    publisher = mqtt.connect(version)
    body = bytes(1024)
    for start in range(0, 3000, 100):
        publisher.send(
            *(
                wire.publish(version, f"{root}/{n}", body, qos=1, packet_id=n + 1, retain=True)
                for n in range(start, start + 100)
            )
        )
        for _ in range(100):
            publisher.expect(wire.PUBACK)
    client = mqtt.subscriber(version, f"{root}/#", qos=qos)
    seen: set[str] = set()
    while len(seen) < 3000:
        message = client.receive()
        assert message.retain
        seen.add(message.topic)
    assert client.ping() == []
    publisher.send(*(wire.publish(version, topic, b"", retain=True) for topic in sorted(seen)))
    publisher.ping()


def test_new_message_while_retained_ones_are_delivered(mqtt: Mqtt, version: int) -> None:
    """A topic's newer message is never followed by its older retained one."""
    root = mqtt.topic()
    publisher = mqtt.connect(version)
    for number in range(300):
        publisher.publish(f"{root}/{number}", b"old", qos=1, retain=True)
    client = mqtt.subscriber(version, f"{root}/#", qos=1)
    for number in range(0, 300, 10):
        publisher.publish(f"{root}/{number}", b"new", qos=1, retain=True)
    last: dict[str, bytes] = {}
    while sum(value == b"new" for value in last.values()) < 30 or len(last) < 300:
        message = client.receive()
        assert last.get(message.topic) != b"new", f"{message} after the newer one"
        last[message.topic] = message.payload


def test_shared_subscriptions_get_no_retained_messages(mqtt: Mqtt) -> None:
    """5.0: none is sent when a shared subscription is made (4.8.2)."""
    topic = mqtt.topic()
    mqtt.connect(V5).publish(topic, b"kept", qos=1, retain=True)
    assert mqtt.retained(V5, f"$share/g/{topic}", qos=1) == []


@pytest.mark.statement("v5:3.3.2-5", "v5:3.3.2-6")
def test_retained_message_expires(mqtt: Mqtt) -> None:
    """5.0: its expiry counts down while it is kept, and then it is gone."""
    topic = mqtt.topic()
    publisher = mqtt.connect(V5)
    for name, seconds in (("short", 2), ("long", 60)):
        props = [(wire.MESSAGE_EXPIRY_INTERVAL, seconds)]
        publisher.publish(f"{topic}/{name}", b"x", qos=1, retain=True, props=props)
    publisher.quiet(2.2)
    found = mqtt.retained(V5, f"{topic}/#")
    assert [message.topic for message in found] == [f"{topic}/long"]
    assert 55 <= found[0].property(wire.MESSAGE_EXPIRY_INTERVAL) <= 58


@pytest.mark.statement("v5:3.3.2-17", "v5:3.3.2-18", "v5:3.3.2-4", "v5:3.3.2-20")
def test_retained_message_keeps_its_properties(mqtt: Mqtt) -> None:
    """5.0: what was published with it comes with it."""
    topic = mqtt.topic()
    props = [
        (wire.PAYLOAD_FORMAT_INDICATOR, 1),
        (wire.CONTENT_TYPE, "application/json"),
        (wire.RESPONSE_TOPIC, "back"),
        (wire.CORRELATION_DATA, b"id"),
        (wire.USER_PROPERTY, ("b", "1")),
        (wire.USER_PROPERTY, ("a", "2")),
        (wire.USER_PROPERTY, ("b", "1")),
    ]
    mqtt.connect(V5).publish(topic, b"{}", qos=1, retain=True, props=props)
    message = mqtt.subscriber(V5, topic).receive()
    assert sorted(message.properties, key=str) == sorted(props, key=str)
    assert message.all(wire.USER_PROPERTY) == [("b", "1"), ("a", "2"), ("b", "1")]


@pytest.mark.statement("v5:4.7.2-1", "v4:4.7.2-1")
def test_wildcards_do_not_find_retained_dollar_topics(mqtt: Mqtt, version: int) -> None:
    """Topics that begin with $ are found by filters that begin with $ only."""
    publisher = mqtt.connect(version)
    topic = f"{mqtt.topic()}/broker"
    publisher.publish(topic, b"x", qos=1, retain=True)
    found = mqtt.retained(version, f"{topic.split('/')[0]}/#", "+/broker/#", "+/broker/+", "+/+/+")
    assert not [message for message in found if message.topic.startswith("$")]
