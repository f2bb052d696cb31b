"""Frames between shards: what goes in comes out."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.net import frames
from fluxmq.protocols.mqtt.run import PublishRun, message_run
from fluxmq.protocols.mqtt.scan import Scanner
from tests.conformance import wire

TOPICS = st.text(st.characters(exclude_characters="+#\0", codec="utf-8"), min_size=1, max_size=40)
PAYLOADS = st.lists(st.binary(max_size=300), min_size=1, max_size=20)


def scanned(
    version: int, qos: int, topic: str, payloads: list[bytes], properties: Any = ()
) -> PublishRun:
    """A run as the reactor makes it of a client's bytes."""
    data = bytearray(
        b"".join(
            wire.publish(version, topic, payload, qos=qos, packet_id=number, props=properties)
            for number, payload in enumerate(payloads, 1)
        )
    )
    scanner = Scanner(1 << 20)
    scanner.version = version
    assert scanner.next(data, 0, len(data)) == 1
    return PublishRun(
        data,
        scanner.start,
        scanner.end,
        scanner.count,
        scanner.stride,
        version,
        scanner.first,
        scanner.variable,
        scanner.pid_at,
        scanner.largest,
        topic.encode(),
    )


RUNS = st.builds(scanned, st.sampled_from((4, 5)), st.integers(0, 2), TOPICS, PAYLOADS)
FIELDS = [
    "version",
    "qos",
    "retain",
    "count",
    "stride",
    "variable",
    "pid_at",
    "largest",
    "topic",
    "properties",
    "verbatim",
    "deadline",
]


def bytes_of(run: PublishRun) -> bytes:
    """The run's messages as they are on the wire."""
    return bytes(memoryview(run.buffer)[run.start : run.end])


def same(one: PublishRun, other: PublishRun) -> None:
    """Everything that a shard tells another of a run."""
    for name in FIELDS:
        assert getattr(one, name) == getattr(other, name), name
    assert bytes_of(one) == bytes_of(other)
    assert one.payloads() == other.payloads()


@given(RUNS, st.binary(max_size=50), st.floats(0, 1e9), st.booleans())
def test_runs(run: PublishRun, properties: bytes, deadline: float, verbatim: bool) -> None:
    run.properties, run.deadline, run.verbatim = properties, deadline, verbatim
    frame = frames.encode_run(run) + bytes_of(run)
    assert frame[0] == frames.RUN
    found = frames.decode_run(frame)
    same(run, found)
    assert found.kept, "a frame is nobody else's buffer"


@given(RUNS, st.binary(min_size=1, max_size=100), st.binary(min_size=1, max_size=100))
def test_shared_runs(run: PublishRun, group: bytes, topic_filter: bytes) -> None:
    frame = frames.encode_shared(group, topic_filter, run) + bytes_of(run)
    assert frame[0] == frames.SHARED
    assert frames.decode_shared(frame)[:2] == (group, topic_filter)
    same(run, frames.decode_shared(frame)[2])
    frame = frames.encode_dealt(1 << 60, group, topic_filter, run) + bytes_of(run)
    assert frame[0] == frames.DEALT
    assert frames.decode_dealt(frame)[:3] == (1 << 60, group, topic_filter)
    same(run, frames.decode_dealt(frame)[3])


@given(
    TOPICS,
    st.binary(max_size=200),
    st.integers(0, 2),
    st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1)),
    st.none() | st.binary(min_size=1, max_size=1024),
)
def test_retained_messages(
    topic: str, payload: bytes, qos: int, stamp: tuple[int, int, int], publisher: bytes | None
) -> None:
    run = message_run(topic.encode(), payload, qos, 1, b"\x01\x01", 12.5)
    run.publisher = publisher
    found_stamp, found = frames.decode_retained(frames.encode_retained(stamp, run) + bytes_of(run))
    assert found_stamp == stamp
    assert found.publisher == publisher
    same(run, found)
    assert found.payloads() == [payload]


def test_a_retained_message_on_disk_from_before_stamps_had_revisions() -> None:
    run = message_run(b"t", b"x", 1, 1)
    frame = struct.pack("<BqIH", frames.RETAINED_0, 5, 2, 3) + b"cid" + frames.run_head(run)
    stamp, found = frames.decode_retained(frame + bytes_of(run))
    assert stamp == (0, 5, 2)
    assert found.publisher == b"cid"
    same(run, found)


@given(
    st.text(max_size=20),
    st.lists(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.binary()
        | st.text()
        | st.lists(st.binary())
    ),
)
def test_control(name: str, arguments: list[Any]) -> None:
    frame = frames.encode_control(name, *arguments)
    assert frame[0] == frames.CONTROL
    assert frames.decode_control(frame) == [name, *arguments]


def test_a_long_topic() -> None:
    """The longest topic that MQTT can say fits the length field."""
    run = scanned(4, 0, "t" * 65535, [b"x"])
    same(run, frames.decode_run(frames.encode_run(run) + bytes_of(run)))
