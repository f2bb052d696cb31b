"""Topic names and filters (MQTT 5 sections 4.7 and 4.8.2)."""

import pytest

from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason
from fluxmq.protocols.mqtt.topics import ParsedFilter, validate_filter, validate_topic


@pytest.mark.parametrize(
    "topic",
    [b"a", b"/", b"//", b"a/b", b"/finance", b"$SYS/x", b" ", "é/漢".encode(), b"a" * 65535],
)
def test_topic_names(topic: bytes) -> None:
    validate_topic(topic)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        pytest.param(b"", Reason.TOPIC_NAME_INVALID, id="[MQTT-4.7.3-1]"),
        pytest.param(b"a/+", Reason.TOPIC_NAME_INVALID, id="[MQTT-3.3.2-2] +"),
        pytest.param(b"a+b", Reason.TOPIC_NAME_INVALID, id="[MQTT-3.3.2-2] + inside"),
        pytest.param(b"#", Reason.TOPIC_NAME_INVALID, id="[MQTT-3.3.2-2] #"),
        pytest.param(b"a\0", Reason.MALFORMED_PACKET, id="[MQTT-4.7.3-2]"),
        pytest.param(b"\xff", Reason.MALFORMED_PACKET, id="[MQTT-1.5.4-1]"),
    ],
)
def test_bad_topic_names(topic: bytes, reason: Reason) -> None:
    with pytest.raises(ProtocolError) as caught:
        validate_topic(topic)
    assert caught.value.reason == reason


def test_limits_of_topic_names() -> None:
    validate_topic(b"a/b/c", max_bytes=5, max_levels=3)
    for most, levels in ((4, 3), (5, 2)):
        with pytest.raises(ProtocolError) as caught:
            validate_topic(b"a/b/c", max_bytes=most, max_levels=levels)
        assert caught.value.reason == Reason.TOPIC_NAME_INVALID


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"a", ParsedFilter(None, b"a", False)),
        (b"#", ParsedFilter(None, b"#", True)),
        (b"+", ParsedFilter(None, b"+", True)),
        (b"a/#", ParsedFilter(None, b"a/#", True)),
        (b"+/b/+/#", ParsedFilter(None, b"+/b/+/#", True)),
        (b"/+", ParsedFilter(None, b"/+", True)),
        (b"/", ParsedFilter(None, b"/", False)),
        (b"$SYS/#", ParsedFilter(None, b"$SYS/#", True)),
        (b"$share", ParsedFilter(None, b"$share", False)),
        (b"$shared/a/b", ParsedFilter(None, b"$shared/a/b", False)),
        (b"$share/g/a/#", ParsedFilter(b"g", b"a/#", True)),
        (b"$share/g//", ParsedFilter(b"g", b"/", False)),
        ("$share/é/+".encode(), ParsedFilter("é".encode(), b"+", True)),
    ],
)
def test_filters(raw: bytes, expected: ParsedFilter) -> None:
    assert validate_filter(raw) == expected


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        pytest.param(b"", Reason.TOPIC_FILTER_INVALID, id="[MQTT-4.7.3-1]"),
        pytest.param(b"a/#/b", Reason.TOPIC_FILTER_INVALID, id="[MQTT-4.7.1-1] # not last"),
        pytest.param(b"a#", Reason.TOPIC_FILTER_INVALID, id="[MQTT-4.7.1-1] # not alone"),
        pytest.param(b"#a", Reason.TOPIC_FILTER_INVALID, id="[MQTT-4.7.1-1] # first"),
        pytest.param(b"##", Reason.TOPIC_FILTER_INVALID, id="[MQTT-4.7.1-1] twice"),
        pytest.param(b"a+/b", Reason.TOPIC_FILTER_INVALID, id="[MQTT-4.7.1-2] + not alone"),
        pytest.param(b"++", Reason.TOPIC_FILTER_INVALID, id="[MQTT-4.7.1-2] twice"),
        pytest.param(b"+#", Reason.TOPIC_FILTER_INVALID, id="mixed"),
        pytest.param(b"a\0b", Reason.MALFORMED_PACKET, id="[MQTT-4.7.3-2]"),
        pytest.param(b"\xc3", Reason.MALFORMED_PACKET, id="[MQTT-1.5.4-1]"),
        pytest.param(b"$share/", Reason.TOPIC_FILTER_INVALID, id="[MQTT-4.8.2-1] nothing"),
        pytest.param(b"$share//a", Reason.TOPIC_FILTER_INVALID, id="[MQTT-4.8.2-1] empty name"),
        pytest.param(b"$share/g", Reason.TOPIC_FILTER_INVALID, id="[MQTT-4.8.2-2] no filter"),
        pytest.param(b"$share/g/", Reason.TOPIC_FILTER_INVALID, id="[MQTT-4.8.2-2] empty filter"),
        pytest.param(b"$share/+/a", Reason.TOPIC_FILTER_INVALID, id="[MQTT-4.8.2-2] + in name"),
        pytest.param(b"$share/g#/a", Reason.TOPIC_FILTER_INVALID, id="[MQTT-4.8.2-2] # in name"),
        pytest.param(b"$share/g/a/#/b", Reason.TOPIC_FILTER_INVALID, id="[MQTT-4.7.1-1] shared"),
    ],
)
def test_bad_filters(raw: bytes, reason: Reason) -> None:
    with pytest.raises(ProtocolError) as caught:
        validate_filter(raw)
    assert caught.value.reason == reason


def test_limits_of_filters() -> None:
    validate_filter(b"$share/g/a/#", max_bytes=12, max_levels=4)
    for most, levels in ((11, 4), (12, 3)):
        with pytest.raises(ProtocolError) as caught:
            validate_filter(b"$share/g/a/#", max_bytes=most, max_levels=levels)
        assert caught.value.reason == Reason.TOPIC_FILTER_INVALID
