"""Session state: sections 3.1.2.4, 3.1.2.11.2 and 4.1."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import Client, payloads
from tests.conformance.conftest import Mqtt
from tests.conformance.test_mqtt_qos1 import KEEP, persistent
from tests.conformance.wire import V4, V5, Filter, Will

EXPIRY = wire.SESSION_EXPIRY_INTERVAL


def session_present(mqtt: Mqtt, version: int, client_id: str) -> bool:
    """Whether the server has a session, asked by connecting to it (and leaving it as it is)."""
    client = mqtt.open(version)
    connack = client.connect(client_id, clean=False, props=KEEP if version == V5 else [])
    client.disconnect()
    return connack.session_present


@pytest.mark.statement(
    "v5:3.1.2-5", "v5:3.1.2-6", "v5:3.1.2-23", "v4:3.1.2-4", "v4:4.1.0-1", "v5:4.5.0-1"
)
def test_session_is_resumed(mqtt: Mqtt, version: int) -> None:
    """The first connection makes the session, the next ones find it."""
    client_id = mqtt.client_id()
    for expected in (False, True, True):
        client = mqtt.open(version)
        props = KEEP if version == V5 else []
        assert client.connect(client_id, clean=False, props=props).session_present == expected
        client.drop()


@pytest.mark.statement("v5:3.1.2-5", "v4:3.1.2-4", "v4:3.1.2-5", "v5:3.1.2-23")
def test_subscriptions_and_messages_survive(mqtt: Mqtt, version: int) -> None:
    """QoS 1 and 2 messages wait; a fresh message shows that the subscription is there."""
    topic = mqtt.topic()
    client = persistent(mqtt, version)
    client.subscribe(Filter(f"{topic}/1", 1), Filter(f"{topic}/2", 2))
    client.disconnect()
    publisher = mqtt.connect(version)
    publisher.publish(f"{topic}/1", b"one", qos=1)
    publisher.publish(f"{topic}/2", b"two", qos=2)
    client = persistent(mqtt, version, client.client_id)
    got = [client.receive(), client.receive()]
    assert [(m.payload, m.qos) for m in got] == [(b"one", 1), (b"two", 2)]
    publisher.publish(f"{topic}/1", b"fresh", qos=1)
    assert client.receive().payload == b"fresh"


@pytest.mark.statement("v5:3.1.2-4", "v4:3.1.2-6")
def test_clean_start_discards_the_session(mqtt: Mqtt, version: int) -> None:
    """Nothing of the former session is left: no subscription, no message."""
    topic = mqtt.topic()
    client = persistent(mqtt, version)
    client.subscribe(topic, qos=1)
    client.disconnect()
    publisher = mqtt.connect(version)
    publisher.publish(topic, b"waiting", qos=1)
    client = mqtt.connect(version, client.client_id, clean=True)
    publisher.publish(topic, b"live", qos=1)
    assert client.ping() == []
    client.disconnect()
    assert not session_present(mqtt, version, client.client_id)


@pytest.mark.statement("v4:3.1.2-6")
def test_clean_session_is_not_reused(mqtt: Mqtt) -> None:
    """3.1.1: a clean session ends with its connection."""
    topic = mqtt.topic()
    client = mqtt.subscriber(V4, topic, qos=1)
    client.drop()
    mqtt.connect(V4).publish(topic, b"x", qos=1)
    again = mqtt.open(V4)
    assert not again.connect(client.client_id, clean=False).session_present
    assert again.ping() == []


@pytest.mark.statement("v5:3.1.2-23", "v5:3.2.2-3")
@pytest.mark.parametrize(("interval", "kept"), [(None, False), (0, False), (60, True)])
@pytest.mark.parametrize("clean", [True, False])
def test_expiry_interval_decides(mqtt: Mqtt, interval: int | None, kept: bool, clean: bool) -> None:
    """5.0: not Clean Start but Session Expiry Interval says whether a session stays."""
    client = mqtt.connect(V5, clean=clean, props=[] if interval is None else [(EXPIRY, interval)])
    client.drop()
    assert session_present(mqtt, V5, client.client_id) == kept


@pytest.mark.statement("v5:4.1.0-2", "v5:3.1.2-8")
def test_session_expires(mqtt: Mqtt) -> None:
    """5.0: after its interval the session is gone. Its will, due at its end at the latest, tells."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(V5, topic)
    will = Will(topic, b"session ended", properties=[(wire.WILL_DELAY_INTERVAL, 600)])
    client = mqtt.connect(V5, props=[(EXPIRY, 1)], will=will)
    client.subscribe(mqtt.topic())
    client.drop()
    assert watcher.receive().payload == b"session ended"
    assert not session_present(mqtt, V5, client.client_id)


@pytest.mark.statement("v5:4.1.0-1", "v4:4.1.0-2", "v4:4.1.0-1")
def test_session_lasts_as_long_as_its_connection(mqtt: Mqtt, version: int) -> None:
    """No expiry while the connection is open, however short the interval."""
    topic = mqtt.topic()
    client = mqtt.connect(version, props=[(EXPIRY, 1)] if version == V5 else [])
    client.subscribe(topic, qos=1)
    client.quiet(1.5)
    mqtt.connect(version).publish(topic, b"still here", qos=1)
    assert client.receive().payload == b"still here"


@pytest.mark.statement("v5:4.1.0-1")
def test_expiry_starts_anew_with_each_connection(mqtt: Mqtt) -> None:
    """A reconnect in time keeps the session, with the new interval."""
    client = mqtt.connect(V5, props=[(EXPIRY, 1)])
    client.drop()
    client = mqtt.connect(V5, client.client_id, clean=False, props=[(EXPIRY, 60)])
    client.drop()
    client.drop()
    waiting = mqtt.connect(V5)
    waiting.quiet(1.5)
    assert session_present(mqtt, V5, client.client_id)


@pytest.mark.statement("v5:3.1.3-2", "v4:3.1.3-2")
def test_sessions_are_told_apart_by_client_identifier(mqtt: Mqtt, version: int) -> None:
    """Identifiers that differ in one character, case or script are different sessions."""
    base = mqtt.client_id()
    names = [base, base + "a", base + "A", base + "\u00e0", base + "a\u0300", " " + base]
    for number, name in enumerate(names):
        client = mqtt.open(version)
        props = KEEP if version == V5 else []
        assert not client.connect(name, clean=False, props=props).session_present
        client.subscribe(f"{base}/{number}", qos=1)
        client.drop()
    publisher = mqtt.connect(version)
    for number in range(len(names)):
        publisher.publish(f"{base}/{number}", b"%d" % number, qos=1)
    for number, name in enumerate(names):
        client = persistent(mqtt, version, name)
        assert client.receive().payload == b"%d" % number
        assert client.ping() == []
        client.disconnect()


@pytest.mark.statement("v4:3.1.2-7")
def test_retained_messages_are_no_part_of_a_session(mqtt: Mqtt, version: int) -> None:
    """They outlive the session that published them."""
    topic = mqtt.topic()
    client = mqtt.connect(version)
    client.publish(topic, b"kept", qos=1, retain=True)
    client.disconnect()
    mqtt.connect(version, client.client_id).disconnect()
    assert mqtt.subscriber(version, topic).receive().payload == b"kept"


@pytest.mark.statement("v5:3.1.4-3", "v4:3.1.4-2", "v5:4.4.0-1", "v4:4.4.0-1")
def test_take_over_keeps_what_is_in_flight(mqtt: Mqtt, version: int) -> None:
    """The new connection is sent what the old one had not acknowledged, and the rest after it."""
    topic = mqtt.topic()
    old = persistent(mqtt, version)
    old.subscribe(topic, qos=1)
    publisher = mqtt.connect(version)
    for number in range(5):
        publisher.publish(topic, b"%d" % number, qos=1)
    messages = [old.expect(wire.PUBLISH) for _ in range(5)]
    old.acknowledge(messages[0])
    old.ping()
    new = persistent(mqtt, version, old.client_id)
    old.expect_error(0x8E)
    publisher.publish(topic, b"5", qos=1)
    got = [new.receive() for _ in range(5)]
    assert payloads(got) == [b"1", b"2", b"3", b"4", b"5"]
    assert [m.dup for m in got] == [True] * 4 + [False]


def test_publishing_while_sessions_are_taken_over(mqtt: Mqtt, version: int) -> None:
    """A session that wanders from connection to connection misses nothing."""
    topic = mqtt.topic()
    client = persistent(mqtt, version)
    client.subscribe(topic, qos=1)
    publisher = mqtt.connect(version)
    seen: set[bytes] = set()

    def drain(each: Client) -> None:
        for packet in each.ping():
            if packet.kind == wire.PUBLISH:
                each.acknowledge(packet)
                seen.add(packet.payload)

    for number in range(40):
        publisher.publish(topic, b"%d" % number, qos=1)
        if number % 4 == 0:
            client = persistent(mqtt, version, client.client_id)
        drain(client)
    publisher.publish(topic, b"end", qos=1)
    while b"end" not in seen:
        message = client.receive()
        seen.add(message.payload)
    assert seen == {b"%d" % number for number in range(40)} | {b"end"}


def test_queue_of_an_absent_session_is_bounded(own_broker: object) -> None:
    """When it is full, evict keeps the newest messages and reject the oldest."""
    from contextlib import ExitStack

    for policy, kept in (("evict", range(15, 25)), ("reject", range(10))):
        settings = {"session": {"max_offline_queue_size": 10, "offline_queue_policy": policy}}
        broker = own_broker(settings=settings)  # type: ignore[operator]
        with ExitStack() as stack:
            mqtt = Mqtt(broker, stack)
            topic = mqtt.topic()
            client = persistent(mqtt, V5)
            client.subscribe(topic, qos=1)
            client.disconnect()
            publisher = mqtt.connect(V5)
            for number in range(25):
                assert publisher.publish(topic, b"%d" % number, qos=1) in (0x00, 0x10)
            client = persistent(mqtt, V5, client.client_id)
            got = [client.receive() for _ in kept]
            assert payloads(got) == [b"%d" % number for number in kept]
            assert client.ping() == []


def test_session_moves_between_versions(mqtt: Mqtt) -> None:
    """A session begun in one version is resumed in the other."""
    topic = mqtt.topic()
    client = persistent(mqtt, V4)
    client.subscribe(topic, qos=1)
    client.disconnect()
    mqtt.connect(V5).publish(topic, b"x", qos=1, props=[(wire.CONTENT_TYPE, "text/plain")])
    client = persistent(mqtt, V5, client.client_id)
    message = client.receive()
    assert message.payload == b"x"
    client.disconnect()
    assert session_present(mqtt, V4, client.client_id)


def test_session_belongs_to_its_user(restricted: Mqtt) -> None:
    """Somebody else's client identifier does not open their session, and does not end it."""
    password = b"correct horse battery staple"
    topic = restricted.topic()
    ada = persistent(restricted, V5, username="ada", password=password)
    ada.subscribe(topic, qos=1)
    ada.disconnect()
    publisher = restricted.connect(V5, username="ada", password=password)
    publisher.publish(topic, b"private", qos=1)
    assert restricted.refused(V5, ada.client_id, clean=False, props=KEEP) == 0x85
    assert restricted.refused(V4, ada.client_id) == 2
    publisher.publish(topic, b"private as well", qos=1)
    back = restricted.open(V5)
    login = {"username": "ada", "password": password}
    assert back.connect(ada.client_id, clean=False, props=KEEP, **login).session_present
    assert [back.receive().payload for _ in range(2)] == [b"private", b"private as well"]
