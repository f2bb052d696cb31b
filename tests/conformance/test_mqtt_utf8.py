"""UTF-8 Encoded Strings: section 1.5.4, and 1.5.3 of 3.1.1."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V5, Filter, Will

ILL_FORMED = {
    "lone continuation": b"a\x80",
    "cut short": b"a\xe2\x82",
    "overlong /": b"a\xc0\xaf",
    "overlong null": b"a\xc0\x80",
    "overlong in three": b"a\xe0\x80\xaf",
    "high surrogate": b"a\xed\xa0\x80",
    "low surrogate": b"a\xed\xbf\xbf",
    "surrogate pair": b"a\xed\xa0\xbd\xed\xb8\x80",
    "above U+10FFFF": b"a\xf4\x90\x80\x80",
    "five bytes": b"a\xf8\x88\x80\x80\x80",
    "byte FE": b"a\xfe",
    "byte FF": b"\xff",
    "latin 1": b"caf\xe9",
}


@pytest.mark.statement(
    "v5:1.5.4-1", "v4:1.5.3-1", "v5:3.1.3-4", "v4:3.1.3-4", "v5:3.1.3-11", "v4:3.1.3-10",
    "v5:3.1.3-12", "v4:3.1.3-11",
)  # fmt: skip
@pytest.mark.parametrize("text", ILL_FORMED.values(), ids=ILL_FORMED)
@pytest.mark.parametrize("field", ["client identifier", "will topic", "user name"])
def test_ill_formed_strings_in_connect(mqtt: Mqtt, version: int, field: str, text: bytes) -> None:
    """In each string of CONNECT: the connection is closed."""
    client = mqtt.open(version)
    good = mqtt.client_id()
    if field == "client identifier":
        client.send(wire.connect(version, text))
    elif field == "will topic":
        client.send(wire.connect(version, good, will=Will(text, b"x")))
    else:
        client.send(wire.connect(version, good, username=text, password=b"x"))
    try:
        connack = client.next()
    except AssertionError:
        assert client.closed
        return
    assert connack.reason in ((0x81, 0x82, 0x85, 0x86, 0x90) if version == V5 else (2, 4))
    client.expect_closed()


@pytest.mark.statement(
    "v5:1.5.4-1", "v4:1.5.3-1", "v5:3.3.2-1", "v4:3.3.2-1", "v5:3.8.3-1", "v4:3.8.3-1",
    "v5:3.10.3-1", "v4:3.10.3-1",
)  # fmt: skip
@pytest.mark.parametrize("text", ILL_FORMED.values(), ids=ILL_FORMED)
@pytest.mark.parametrize("where", ["PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE"])
def test_ill_formed_topics(mqtt: Mqtt, version: int, where: str, text: bytes) -> None:
    """In topic names and filters: the connection is closed."""
    client = mqtt.connect(version)
    packet = {
        "PUBLISH": wire.publish(version, text, b"x"),
        "SUBSCRIBE": wire.subscribe(version, 1, [Filter("fine"), Filter(text)]),
        "UNSUBSCRIBE": wire.unsubscribe(version, 1, ["fine", text]),
    }
    client.send(packet[where])
    client.expect_error(0x81, 0x82, 0x90, 0x8F)


@pytest.mark.statement("v5:1.5.4-2", "v4:1.5.3-2")
@pytest.mark.parametrize("field", ["client identifier", "will topic", "user name"])
def test_null_in_connect(mqtt: Mqtt, version: int, field: str) -> None:
    """U+0000 in a string of CONNECT closes the connection."""
    client = mqtt.open(version)
    if field == "client identifier":
        client.send(wire.connect(version, "a\0b"))
    elif field == "will topic":
        client.send(wire.connect(version, mqtt.client_id(), will=Will("a\0b", b"x")))
    else:
        client.send(wire.connect(version, mqtt.client_id(), username="a\0b", password=b"x"))
    try:
        connack = client.next()
    except AssertionError:
        assert client.closed
        return
    assert connack.reason >= 0x80 if version == V5 else connack.reason in (2, 4)
    client.expect_closed()


@pytest.mark.statement("v5:1.5.4-3", "v4:1.5.3-3")
@pytest.mark.parametrize("text", ["\ufeff", "\ufeffa", "a\ufeffb", "a\ufeff"])
def test_byte_order_mark_is_a_character(mqtt: Mqtt, version: int, text: str) -> None:
    """U+FEFF is neither skipped nor stripped, wherever it stands."""
    root, marker = mqtt.topic(), mqtt.topic()
    with_mark, without = f"{root}/{text}", f"{root}/{text.replace(chr(0xFEFF), '')}"
    subscriber = mqtt.subscriber(version, with_mark, marker)
    publisher = mqtt.connect(version)
    publisher.publish(without, b"wrong")
    publisher.publish(with_mark, b"right")
    publisher.publish(marker, b"marker")
    got = [(m.topic, m.payload) for m in subscriber.receive_until(b"marker")]
    assert got == [(with_mark, b"right")]


@pytest.mark.statement("v5:1.5.4-3", "v4:1.5.3-3")
def test_topic_beginning_with_a_byte_order_mark(mqtt: Mqtt, version: int) -> None:
    """At the very beginning of a string, too."""
    topic = "\ufeff" + mqtt.topic()
    subscriber = mqtt.subscriber(version, topic)
    mqtt.connect(version).publish(topic, b"x")
    assert subscriber.receive().topic == topic


@pytest.mark.statement("v5:1.5.4-1", "v4:1.5.3-1")
@pytest.mark.parametrize(
    "text",
    [
        "\u007e",
        "\u00a0",
        "\u07ff",
        "\u0800",
        "\ud7ff",
        "\ue000",
        "\ufffd",
        "\U00010000",
        "\U0010fffd",
    ],
    ids=lambda text: f"U+{ord(text):04X}",
)
def test_well_formed_text_of_every_length(mqtt: Mqtt, version: int, text: str) -> None:
    """Characters at each border of UTF-8's lengths pass unchanged; those below U+00A0 are control characters."""
    topic = f"{mqtt.topic()}/{text}"
    subscriber = mqtt.subscriber(version, topic)
    mqtt.connect(version).publish(topic, text.encode())
    message = subscriber.receive()
    assert (message.topic, message.payload) == (topic, text.encode())
