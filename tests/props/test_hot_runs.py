"""Scanner and runs: compiled and uncompiled agree in every field and byte, and with the reference codec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.protocols.mqtt.codec import encode
from fluxmq.protocols.mqtt.packet_types import Sender
from fluxmq.protocols.mqtt.packets import Publish
from fluxmq.protocols.mqtt.properties import parse_publish_properties
from fluxmq.protocols.mqtt.scan import COMPILED
from fluxmq.protocols.mqtt.wire import write_variable_integer
from tests.props.hot_bursts import PACKET_IDS, Burst, bursts
from tests.props.mqtt_packets import mutated, packets
from tests.unit.protocols.mqtt.wire import cut, puback, publish, read
from tests.unit.variants import INSTALLED, Hot, uncompiled

SCANNER_FIELDS = (
    *("start", "end", "count", "stride", "first", "header", "variable", "topic_at", "topic_length"),
    *("properties_at", "properties_length", "pid_at", "largest", "needed", "reason"),
)
RUN_FIELDS = (
    *(
        "start",
        "end",
        "count",
        "stride",
        "version",
        "qos",
        "retain",
        "variable",
        "pid_at",
        "largest",
    ),
    *("topic", "properties", "verbatim", "kept", "deadline"),
)
INCOMPLETE, PUBLISH, PUBACK, PACKET, ERROR = range(5)

differential = pytest.mark.skipif(
    not COMPILED, reason="the hot path runs uncompiled: nothing to compare with"
)


@st.composite
def streams(draw: st.DrawFn, version: int) -> bytes:
    """What a client might send: bursts, acknowledgements, other packets, now and then broken."""
    parts = draw(
        st.lists(
            bursts(version).map(lambda burst: b"".join(burst.packets()))
            | st.lists(PACKET_IDS, min_size=1, max_size=20).map(lambda ids: puback(*ids))
            | packets(version, Sender.CLIENT).map(lambda packet: encode(packet, version)),
            min_size=1,
            max_size=5,
        )
    )
    data = b"".join(parts)
    return draw(mutated(data)) if draw(st.integers(0, 2)) == 0 else data


def trace(hot: Hot, data: bytes, end: int, version: int, max_packet: int) -> list[tuple[int, ...]]:
    """Every run that the scanner finds in `data[:end]`, with all its fields, and how it ends."""
    scanner = hot.scan.Scanner(max_packet, version)
    buffer = bytearray(data)
    found = []
    at = 0
    while at < end:
        kind = scanner.next(buffer, at, end)
        fields = tuple(getattr(scanner, name) for name in SCANNER_FIELDS)
        found.append((kind, *(fields if kind not in (INCOMPLETE, ERROR) else fields[-2:])))
        if kind in (INCOMPLETE, ERROR):
            break
        assert at < scanner.end <= end
        at = scanner.end
    return found


@differential
@given(st.data(), st.sampled_from([4, 5]))
def test_scanners_agree(data: st.DataObject, version: int) -> None:
    stream = data.draw(streams(version))
    end = data.draw(st.just(len(stream)) | st.integers(0, len(stream)))
    max_packet = data.draw(st.sampled_from([1 << 20, 200]))
    assert trace(INSTALLED, stream, end, version, max_packet) == trace(
        uncompiled(), stream, end, version, max_packet
    )


@given(st.data(), st.sampled_from([4, 5]))
def test_runs_are_the_packets_that_were_sent(data: st.DataObject, version: int) -> None:
    """No packet is lost, added or read in part, and what the scanner accepts the codec can frame."""
    stream = data.draw(streams(version))
    scanner = INSTALLED.scan.Scanner(1 << 20, version)
    buffer = bytearray(stream)
    whole, rest = frames(stream)
    seen = 0
    at = 0
    while at < len(stream):
        kind = scanner.next(buffer, at, len(stream))
        if kind == INCOMPLETE:
            assert seen == len(whole)
            assert stream[at:] == rest
            return
        if kind == ERROR:
            break
        stop = seen + scanner.count
        assert stream[at : scanner.end] == b"".join(whole[seen:stop])
        if kind == PUBLISH:
            firsts = {packet[0] for packet in whole[seen:stop]}
            assert firsts == {scanner.first}
            assert scanner.largest == max(map(len, whole[seen:stop]))
            assert scanner.stride in (0, len(whole[seen]))
        seen = stop
        at = scanner.end
    if at == len(stream):
        assert seen == len(whole)


def frames(data: bytes) -> tuple[list[bytes], bytes]:
    """Packets by their lengths alone, however long these are written, and what is left over."""
    found: list[bytes] = []
    at = 0
    while True:
        length = shift = 0
        header = 1
        while True:
            if at + header >= len(data) or header == 5:
                return found, data[at:]
            byte = data[at + header]
            length |= (byte & 0x7F) << shift
            shift += 7
            header += 1
            if not byte & 0x80:
                break
        if at + header + length > len(data):
            return found, data[at:]
        found.append(data[at : at + header + length])
        at += header + length


def run_of(hot: Hot, burst: Burst) -> Any:
    """The one run that a burst is scanned to (the first, where it makes several)."""
    data = b"".join(burst.packets())
    scanner = hot.scan.Scanner(1 << 20, burst.version)
    buffer = bytearray(data)
    assert scanner.next(buffer, 0, len(buffer)) == PUBLISH
    run = hot.run.PublishRun(
        buffer,
        scanner.start,
        scanner.end,
        scanner.count,
        scanner.stride,
        burst.version,
        scanner.first,
        scanner.variable,
        scanner.pid_at,
        scanner.largest,
        burst.topic,
    )
    place = scanner.properties_at
    raw = bytes(buffer[place : place + scanner.properties_length])
    run.properties = parse_publish_properties(raw, 16).forward
    return run


def everything(hot: Hot, burst: Burst, offset: int, count: int, pid: int) -> list[Any]:
    """All that can be asked of a run, and all the ways it is written."""
    run = run_of(hot, burst)
    offset = min(offset, run.count - 1)
    count = min(count, run.count - offset)
    place = run.skip(run.start, offset)
    stop = run.skip(place, count)
    found: list[Any] = [tuple(getattr(run, name) for name in RUN_FIELDS), place, stop]
    found += [run.payloads(), run.body_at(place), run.body_length]
    if burst.qos:
        found += [run.packet_id_ranges(), run.packet_ids()]
        assert found[-1] == list(burst.packet_ids)
    found += [run.plain(4), run.plain(5)]
    for version, topic in ((4, burst.topic), (5, b""), (5, burst.topic)):
        properties = hot.run.properties_field(
            version, run.properties, 60, 3 if not topic else 0, b""
        )
        first = 0x30 | (burst.qos << 1)
        out = bytearray(b"before")
        end = hot.run.append_publishes(
            out, run, place, count, first, topic, properties, pid if burst.qos else 0
        )
        found += [bytes(out), end]
    if burst.qos:
        found.append(run.packet_ids())
        out = bytearray(b"before")
        end = hot.run.append_numbered(out, run, place, count, 0x3A, pid)
        found += [bytes(out), end]
        out = bytearray(b"before")
        hot.run.append_acknowledgements(out, run, 0x40)
        found.append(bytes(out))
    part = run.part(place, stop, count)
    found.append(tuple(getattr(part, name) for name in RUN_FIELDS))
    part.detach()
    found += [bytes(part.buffer), part.start, part.end, part.payloads()]
    return found


RUN_ARGUMENTS = (
    st.sampled_from([4, 5]).flatmap(bursts),
    st.integers(0, 30),
    st.integers(1, 30),
    st.integers(1, 65_000),
)


@differential
@given(*RUN_ARGUMENTS)
def test_runs_agree(burst: Burst, offset: int, count: int, pid: int) -> None:
    assert everything(INSTALLED, burst, offset, count, pid) == everything(
        uncompiled(), burst, offset, count, pid
    )


@given(*RUN_ARGUMENTS)
def test_runs_are_written_as_the_codec_reads_them(
    burst: Burst, offset: int, count: int, pid: int
) -> None:
    hot = INSTALLED
    run = run_of(hot, burst)
    payloads = list(burst.payloads[: run.count])
    assert run.payloads() == payloads
    for version in (4, 5):
        assert [message(packet, version) for packet in cut(run.plain(version))[0]] == [
            (burst.topic, payload, 0, 0, False) for payload in payloads
        ]
    offset = min(offset, run.count - 1)
    count = min(count, run.count - offset)
    place = run.skip(run.start, offset)
    some = payloads[offset : offset + count]
    out = bytearray()
    qos = burst.qos
    properties = hot.run.properties_field(5, run.properties, 61, 0, b"\x0b\x05")
    hot.run.append_publishes(
        out, run, place, count, 0x30 | qos << 1, burst.topic, properties, pid if qos else 0
    )
    written, rest = cut(out)
    assert rest == b""
    numbers = [pid + index if qos else 0 for index in range(count)]
    assert [message(packet, 5) for packet in written] == [
        (burst.topic, payload, qos, number, False)
        for payload, number in zip(some, numbers, strict=True)
    ]
    expected = replace(burst.properties, message_expiry_interval=60, subscription_identifiers=[5])
    for packet in written:
        found = read(packet, 5)
        assert isinstance(found, Publish)
        assert found.properties == expected
    if not qos:
        return
    assert run.packet_ids() == list(burst.packet_ids[: run.count])
    out = bytearray()
    hot.run.append_numbered(out, run, place, count, 0x38 | qos << 1, pid)
    assert [message(packet, burst.version, Sender.CLIENT) for packet in cut(out)[0]] == [
        (burst.topic, payload, qos, number, True)
        for payload, number in zip(some, numbers, strict=True)
    ]
    out = bytearray()
    hot.run.append_acknowledgements(out, run, 0x40)
    assert bytes(out) == puback(*burst.packet_ids[: run.count])


def message(
    packet: bytes, version: int, sender: Sender = Sender.SERVER
) -> tuple[bytes, bytes, int, int, bool]:
    """What of a PUBLISH is compared."""
    found = read(packet, version, sender)
    assert isinstance(found, Publish)
    return found.topic, found.payload, found.qos, found.packet_id, found.dup


@differential
@given(
    st.sampled_from([4, 5]),
    st.binary(max_size=300),
    st.sampled_from([0, 1, 61, 0xFFFF_FFFF]),
    st.sampled_from([0, 1, 65_535]),
    st.sampled_from([b"", b"\x0b\x01"]),
)
def test_property_blocks_agree(
    version: int, forward: bytes, expiry: int, alias: int, identifiers: bytes
) -> None:
    arguments = (version, forward, expiry, alias, identifiers)
    assert INSTALLED.run.properties_field(*arguments) == uncompiled().run.properties_field(
        *arguments
    )


@given(
    st.sampled_from([0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455])
    | st.integers(0, 268_435_455)
)
def test_lengths_are_the_codecs(length: int) -> None:
    expected = write_variable_integer(length)
    assert INSTALLED.run.encode_length(length) == expected
    assert uncompiled().run.encode_length(length) == expected


@given(
    st.sampled_from([b"a", b"a/b"]),
    st.binary(max_size=200),
    st.integers(0, 2),
    st.integers(0, 1),
    st.sampled_from([b"", b"\x01\x01", b"\x26\x00\x01a\x00\x01b"]),
)
def test_messages_of_the_broker(
    topic: bytes, payload: bytes, qos: int, retain: int, properties: bytes
) -> None:
    runs = [
        hot.run.message_run(topic, payload, qos, retain, properties, 5.0)
        for hot in (INSTALLED, uncompiled())
    ]
    assert runs[0].buffer == runs[1].buffer
    for run in runs:
        assert run.buffer == publish(topic, payload, qos, 1 if qos else 0, retain=bool(retain))
        assert run.payloads() == [payload]
        assert (run.qos, run.retain, run.count, run.kept) == (qos, retain, 1, True)
        assert run.largest == len(run.buffer) + len(properties)
        found = read(run.plain(5), 5)
        assert isinstance(found, Publish)
        assert (found.topic, found.payload) == (topic, payload)
        assert found.properties.user_properties == ([("a", "b")] if b"&" in properties else [])
