"""The scanner: which bytes make a run, which are an error, what is waited for."""

from __future__ import annotations

import pytest

from fluxmq.protocols.mqtt.properties import Properties
from fluxmq.protocols.mqtt.scan import (
    ACKNOWLEDGEMENTS,
    ERROR,
    INCOMPLETE,
    MALFORMED,
    PACKET,
    PACKET_TOO_LARGE,
    PROTOCOL_ERROR,
    PUBLISH,
    UNIFORM_RUN_MIN,
    Scanner,
)
from tests.unit.protocols.mqtt.wire import numbered, puback, publish

MAX = 100_000


def runs(data: bytes, version: int = 4) -> list[tuple[int, int]]:
    """Kinds and counts of all runs; an error or what is incomplete ends the list."""
    scanner = Scanner(MAX, version)
    buffer = bytearray(data)
    found = []
    at = 0
    while at < len(data):
        kind = scanner.next(buffer, at, len(data))
        if kind in (INCOMPLETE, ERROR):
            found.append((kind, scanner.reason if kind == ERROR else scanner.needed))
            break
        found.append((kind, scanner.count))
        at = scanner.end
    return found


def body(data: bytes, first: int = 0x30) -> bytes:
    """A packet with this body."""
    return bytes((first, len(data))) + data


@pytest.mark.parametrize(
    ("data", "version", "reason"),
    [
        (body(b"\x00\x01t", 0x36), 4, MALFORMED),  # QoS 3
        (body(b"\x00\x01t", 0x38), 4, MALFORMED),  # DUP with QoS 0
        (body(b"\x00\x01t", 0x39), 5, MALFORMED),
        (body(b""), 4, MALFORMED),
        (body(b"\x00"), 4, MALFORMED),
        (body(b"\x00\x02t"), 4, MALFORMED),  # the topic ends beyond the packet
        (body(b"\x00\x01t\x00", 0x32), 4, MALFORMED),  # so does the packet identifier
        (body(b"\x00\x01t\x00\x00", 0x32), 4, MALFORMED),  # packet identifier 0
        (body(b"\x00\x01t\x00\x00\x00", 0x34), 5, PROTOCOL_ERROR),
        (body(b"\x00\x01t"), 5, MALFORMED),  # no property length
        (body(b"\x00\x01t\x02\x01"), 5, MALFORMED),  # properties end beyond the packet
        (body(b"\x00\x01t\x80\x00"), 5, MALFORMED),  # length longer than needed
        (body(b"\x00\x01t\x80\x80\x80\x80\x00"), 5, MALFORMED),
        (b"\x30\x80\x80\x80\x80\x01", 4, MALFORMED),  # Remaining Length of five bytes
        (b"\xc0\x80\x00", 5, MALFORMED),  # Remaining Length longer than needed
        (b"\x30\xa1\x8d\x06", 4, PACKET_TOO_LARGE),
        (b"\x10\xff\xff\xff\x7f", 5, PACKET_TOO_LARGE),
    ],
)
def test_errors(data: bytes, version: int, reason: int) -> None:
    assert runs(data, version) == [(ERROR, reason)]
    good = publish(b"t", b"x", 1, 5, version)
    assert runs(good + data, version) == [(PUBLISH, 1), (ERROR, reason)]


@pytest.mark.parametrize(
    ("data", "needed"),
    [
        (b"\x30", 0),
        (b"\x30\x80", 0),
        (b"\x30\x05", 7),
        (b"\x30\x80\x01ab", 131),
        (b"\x40\x02\x00", 4),
    ],
)
def test_what_is_incomplete_says_how_much_it_needs(data: bytes, needed: int) -> None:
    assert runs(data) == [(INCOMPLETE, needed)]


def test_neighbours_of_one_kind_are_one_run() -> None:
    ten = [publish(b"t", b"%d" % number, 1, number + 1) for number in range(10)]
    assert runs(b"".join(ten)) == [(PUBLISH, 10)]
    assert runs(puback(*range(1, 21))) == [(ACKNOWLEDGEMENTS, 20)]
    assert runs(b"\xc0\x00" * 3) == [(PACKET, 1)] * 3


@pytest.mark.parametrize(
    "other",
    [
        publish(b"u", b"x", 1, 9),
        publish(b"t", b"x", 2, 9),
        publish(b"t", b"x", 1, 9, retain=True),
        publish(b"t", b"x", 1, 9, dup=True),
        publish(b"tt", b"", 1, 9),
        publish(b"", b"tx", 1, 9),
    ],
)
@pytest.mark.parametrize("count", [1, UNIFORM_RUN_MIN + 1])
def test_another_topic_or_flag_ends_a_run(other: bytes, count: int) -> None:
    one = publish(b"t", b"x", 1, 8)
    assert runs(one * count + other + one) == [(PUBLISH, count), (PUBLISH, 1), (PUBLISH, 1)]


def test_other_properties_end_a_run() -> None:
    def of(value: str, payload: bytes = b"x") -> bytes:
        properties = Properties(user_properties=[("k", value)])
        return publish(b"t", payload, 1, 8, 5, properties=properties)

    plain = publish(b"t", b"x", 1, 8, 5)
    data = of("a") * 3 + of("b") * 2 + of("b", b"long") + plain + of("a")
    assert runs(data, 5) == [(PUBLISH, 3), (PUBLISH, 3), (PUBLISH, 1), (PUBLISH, 1)]


@pytest.mark.parametrize("first", [0x40, 0x50, 0x62, 0x70])
def test_plain_acknowledgements_of_one_type_are_one_run(first: int) -> None:
    some = b"".join(numbered(first, number) for number in (7, 8, 3))
    other = numbered(0x50 if first != 0x50 else 0x70, 9)
    reason = bytes((first, 3, 0, 4, 0x10))
    assert runs(some + other + some + reason + some[:6]) == [
        *((ACKNOWLEDGEMENTS, 3), (ACKNOWLEDGEMENTS, 1), (ACKNOWLEDGEMENTS, 3), (PACKET, 1)),
        *((ACKNOWLEDGEMENTS, 1), (INCOMPLETE, 4)),
    ]
    assert runs(some + numbered(first, 0)) == [(ACKNOWLEDGEMENTS, 3), (PACKET, 1)]


def test_pubrel_with_other_flags_is_no_run() -> None:
    assert runs(numbered(0x60, 7)) == [(PACKET, 1)]


def test_an_identifier_of_0_ends_a_run() -> None:
    good = publish(b"t", b"x", 1, 256)
    bad = good[:5] + b"\x00\x00" + good[7:]
    assert runs(good * 3 + bad) == [(PUBLISH, 3), (ERROR, MALFORMED)]
    longer = publish(b"t", b"xyz", 1, 7)
    assert runs(good + longer + bad) == [(PUBLISH, 2), (ERROR, MALFORMED)]
    assert runs(puback(1, 256) + numbered(0x40, 0)) == [(ACKNOWLEDGEMENTS, 2), (PACKET, 1)]


def test_sizes_may_differ_within_a_run() -> None:
    sizes = [0, 5, 122, 123, 124, 125, 126, 200, 3]
    data = b"".join(publish(b"t", bytes(size)) for size in sizes)
    assert runs(data) == [(PUBLISH, len(sizes))]
    scanner = Scanner(MAX, 4)
    scanner.next(bytearray(data), 0, len(data))
    assert scanner.stride == 0
    assert scanner.largest == 2 + 1 + 3 + 200


def test_many_of_one_size_keep_their_run_to_themselves() -> None:
    few, many = UNIFORM_RUN_MIN - 1, UNIFORM_RUN_MIN
    one, other = publish(b"t", b"x"), publish(b"t", b"xy")
    assert runs(one * few + other) == [(PUBLISH, few + 1)]
    assert runs(one * many + other) == [(PUBLISH, many), (PUBLISH, 1)]


def test_a_length_longer_than_needed_is_a_packet_of_its_own() -> None:
    good = publish(b"t", b"x", version=5)
    bad = good[:1] + bytes((good[1] | 0x80, 0)) + good[2:]
    assert runs(good + bad, 5) == [(PUBLISH, 1), (ERROR, MALFORMED)]
    # MQTT 3.1.1 says nothing of it.
    assert runs(b"\x40\x82\x00\x00\x01" + b"\xc0\x00") == [(PACKET, 1), (PACKET, 1)]


def test_a_packet_above_the_maximum_ends_a_run() -> None:
    one = publish(b"t", b"x")
    data = one + publish(b"t", bytes(200))
    scanner = Scanner(100, 4)
    assert scanner.next(bytearray(data), 0, len(data)) == PUBLISH
    assert scanner.count == 1
    assert scanner.next(bytearray(data), scanner.end, len(data)) == ERROR
    assert scanner.reason == PACKET_TOO_LARGE


def test_bytes_beyond_the_end_are_not_looked_at() -> None:
    data = publish(b"t", b"x") * 5
    scanner = Scanner(MAX, 4)
    for end in range(len(data)):
        kind = scanner.next(bytearray(data), 0, end)
        whole = end // (len(data) // 5)
        assert kind == (PUBLISH if whole else INCOMPLETE)
        if whole:
            assert scanner.count == whole
