"""Topic names and filters: section 4.7."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import Client, eventually
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V5, Filter

# Below a root of the test's own: filter, then topics that match, then topics that do not.
MATCHES: list[tuple[str, list[str], list[str]]] = [
    ("sport/tennis/player1/#",
     ["sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/score/wimbledon"],
     ["sport/tennis/player2", "sport/tennis"]),
    ("sport/#", ["sport", "sport/", "sport/a", "sport/a/b"], ["sports", "Sport", "/sport"]),
    ("sport/tennis/+",
     ["sport/tennis/player1", "sport/tennis/player2", "sport/tennis/"],
     ["sport/tennis/player1/ranking", "sport/tennis"]),
    ("sport/+", ["sport/", "sport/a"], ["sport", "sport/a/b", "sport//"]),
    ("+/tennis/#", ["a/tennis", "b/tennis/c/d", "/tennis"], ["tennis", "a/b/tennis"]),
    ("sport/+/player1", ["sport/tennis/player1", "sport//player1"], ["sport/player1", "sport/a/b/player1"]),
    ("+/+", ["/finance", "a/b", "/"], ["finance", "a/b/c", "//"]),
    ("/+", ["/finance", "/"], ["finance", "/a/b"]),
    ("+", ["finance", ""], ["/finance", "a/"]),
    ("#", ["a", "/", "a/b", "//", ""], []),
    ("a//b", ["a//b"], ["a/b", "a///b", "a/ /b"]),
    ("a/", ["a/"], ["a", "a//"]),
    ("/", ["/"], ["", "//"]),
    ("A/b", ["A/b"], ["a/b", "A/B"]),
    (" a /b ", [" a /b "], ["a/b", " a/b "]),
    ("$data/+", ["$data/x"], ["data/x"]),
]  # fmt: skip


@pytest.mark.statement(
    "v5:4.7.1-1", "v5:4.7.1-2", "v4:4.7.1-2", "v4:4.7.1-3", "v5:4.7.3-4", "v4:4.7.3-4"
)
@pytest.mark.parametrize(("entry", "good", "bad"), MATCHES, ids=[entry for entry, *_ in MATCHES])
def test_matching(mqtt: Mqtt, version: int, entry: str, good: list[str], bad: list[str]) -> None:
    """The standard's own examples and the corners around them."""
    root = mqtt.topic()
    marker = mqtt.topic()
    subscriber = mqtt.subscriber(version, f"{root}/{entry}", marker)
    publisher = mqtt.connect(version)
    for topic in good + bad:
        publisher.publish(f"{root}/{topic}", b"x")
    publisher.publish(marker, b"marker")
    got = [message.topic for message in subscriber.receive_until(b"marker")]
    assert got == [f"{root}/{topic}" for topic in good]


@pytest.mark.statement(
    "v5:4.7.1-1", "v5:4.7.1-2", "v4:4.7.1-2", "v4:4.7.1-3", "v5:4.7.3-1", "v4:4.7.3-1"
)
@pytest.mark.parametrize(
    "entry",
    ["", "a/#/b", "#/a", "a#", "a/b#", "#a", "##", "a/##", "a+", "+a", "a/b+/c", "a/+b", "++"],
)
def test_invalid_filters(mqtt: Mqtt, version: int, entry: str) -> None:
    """# is last and alone in its level, + is alone in its level, nothing is empty."""
    client = mqtt.connect(version)
    client.send(wire.subscribe(version, 1, [Filter(entry, 1)]))
    try:
        answer = client.next()
    except AssertionError:
        assert client.closed
        return
    if answer.kind == wire.SUBACK:
        assert answer.reasons == [0x8F if version == V5 else 0x80]
        assert client.ping() == []
    else:
        assert answer.kind == wire.DISCONNECT
        assert answer.reason in (0x81, 0x82, 0x8F)
        client.expect_closed()


@pytest.mark.statement("v5:4.7.2-1", "v4:4.7.2-1")
def test_leading_wildcards_do_not_match_dollar_topics(fluxmq: Mqtt, version: int) -> None:
    """Filters that begin with a wildcard see nothing of $SYS; those that name it do."""
    client = fluxmq.subscriber(version, "#", "+/broker/#")
    named = fluxmq.subscriber(version, "$SYS/#")
    assert named.receive().topic.startswith("$SYS/broker/")
    marker = fluxmq.topic()
    fluxmq.connect(version).publish(marker, b"marker")
    assert not [m for m in client.receive_until(b"marker") if m.topic.startswith("$")]


def test_sys_topics(fluxmq: Mqtt, version: int) -> None:
    """The broker tells of itself below $SYS/broker/, retained."""
    client = fluxmq.subscriber(version, "$SYS/broker/#")
    message = client.receive()
    assert message.topic.startswith("$SYS/broker/")
    assert message.payload


def test_clients_cannot_publish_to_sys_topics(fluxmq: Mqtt) -> None:
    """What stands in $SYS comes from the broker (4.7.2: servers should prevent other use)."""
    client = fluxmq.connect(V5)
    client.subscribe(Filter("$SYS/broker/forged", 1))
    assert client.publish("$SYS/broker/forged", b"x", qos=1) in (0x87, 0x90)
    client.publish("$SYS/broker/forged", b"x", retain=True)
    assert client.ping() == []


@pytest.mark.statement("v5:4.7.3-4", "v4:4.7.3-4", "v5:1.5.4-3", "v4:1.5.3-3")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("\u00e9", "e\u0301"),
        ("\ufb01", "fi"),
        ("\u212b", "\u00c5"),
        ("\ufeffa", "a"),
        ("a\u200b", "a"),
        ("\u4e2d", "\uf900"),
        ("\U0001f600", "\U0001f601"),
        ("a/./b", "a/b"),
        ("a/../b", "b"),
        ("%41", "A"),
        ("stra\u00dfe", "strasse"),
    ],
)
def test_topics_are_not_normalised(mqtt: Mqtt, version: int, one: str, other: str) -> None:
    """Two spellings of what looks alike are two topics, compared byte by byte."""
    root, marker = mqtt.topic(), mqtt.topic()
    subscriber = mqtt.subscriber(version, f"{root}/{one}", marker)
    publisher = mqtt.connect(version)
    publisher.publish(f"{root}/{other}", b"wrong")
    publisher.publish(f"{root}/{one}", b"right")
    publisher.publish(marker, b"marker")
    got = [(m.topic, m.payload) for m in subscriber.receive_until(b"marker")]
    assert got == [(f"{root}/{one}", b"right")]


@pytest.mark.statement("v5:4.7.3-2", "v4:4.7.3-2", "v5:1.5.4-2", "v4:1.5.3-2")
@pytest.mark.parametrize("how", ["publish", "subscribe", "unsubscribe"])
def test_null_in_a_topic(mqtt: Mqtt, version: int, how: str) -> None:
    """U+0000 is in no topic name and no filter."""
    client = mqtt.connect(version)
    bad = "a\0b"
    if how == "publish":
        client.send(wire.publish(version, bad, b"x"))
    elif how == "subscribe":
        client.send(wire.subscribe(version, 1, [Filter(bad)]))
    else:
        client.send(wire.unsubscribe(version, 1, [bad]))
    client.expect_error(0x81, 0x82, 0x90, 0x8F)


def _accepts(client: Client, topic: str) -> bool:
    return client.publish(topic, b"x", qos=1) in (0x00, 0x10)


@pytest.mark.statement("v5:4.7.3-3", "v4:4.7.3-3")
def test_long_topics(fluxmq: Mqtt, version: int) -> None:
    """FluxMQ takes 4096 bytes and 201 levels; the standard's own limit is 65,535 bytes."""
    for topic in ("a" * 4096, "é" * 2048, "/" * 200):
        subscriber = fluxmq.subscriber(version, topic, qos=1)
        assert _accepts(fluxmq.connect(version), topic)
        assert subscriber.receive().topic == topic
    for topic in ("a" * 4097, "é" * 2049, "/" * 201, "a" * 65_535):
        client = fluxmq.connect(version)
        client.send(wire.publish(version, topic, b"x", qos=1, packet_id=1))
        client.expect_error(0x90)


def test_many_levels_and_wildcards(mqtt: Mqtt, version: int) -> None:
    """Filters with many wildcards over deep topics cost no more than they should."""
    root = mqtt.topic()
    topic = root + "/a" * 60
    client = mqtt.connect(version)
    for start in range(0, 60, 6):
        client.subscribe(root + "/+" * start + "/a" * (60 - start), qos=0)
    client.subscribe(f"{root}/#")
    publisher = mqtt.connect(version)
    publisher.publish(topic, b"x")
    publisher.publish(topic + "/b", b"end")
    got = client.receive_until(b"end")
    assert got
    assert {message.payload for message in got} == {b"x"}


def test_sys_topics_are_refreshed(own_broker: object) -> None:
    """The uptime topic is published again each interval."""
    from contextlib import ExitStack

    broker = own_broker(settings={"broker": {"sys_interval": "100ms"}})  # type: ignore[operator]
    with ExitStack() as stack:
        client = Mqtt(broker, stack).subscriber(V5, "$SYS/broker/uptime")
        seen: set[bytes] = set()

        def more_than_one() -> bool:
            seen.add(client.receive().payload)
            return len(seen) > 1

        eventually(more_than_one, "a second value of $SYS/broker/uptime")
