"""Batches of any messages come back, both readings of the layout agree, and so do both forms of the hot path."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, event, example, given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from fluxmq.model import batch_format, message_batch
from fluxmq.model.batch_format import Batch, BatchError, parse, verify
from fluxmq.model.batches import BatchMessage, columns, encode
from fluxmq.protocols.mqtt import batch_delivery, batches, run
from fluxmq.protocols.mqtt.packets import Publish
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.protocols.mqtt.scan import COMPILED
from tests.unit.protocols.mqtt.lines import scanned
from tests.unit.protocols.mqtt.wire import publish, read_all
from tests.unit.variants import from_source

BYTES = st.binary(max_size=6)
TIME = st.integers(-(2**30), 2**30)
I64 = st.just(0) | st.integers(-(2**63), 2**63 - 1)
MESSAGES = st.lists(
    st.builds(
        BatchMessage,
        BYTES | st.just(b"same"),
        BYTES | st.just(b"same"),
        BYTES,
        TIME | st.just(7),
        I64,
        I64,
        st.just(0) | st.integers(0, 2**64 - 1),
        I64,
        st.just(0) | st.integers(0, 2**32 - 1),
    ),
    min_size=1,
    max_size=6,
)
OFFSETS = st.integers(0, 2**64 - 10) | st.sampled_from([0, 8, 98, 999, 10**19 - 2])


def messages_of(batch: Batch) -> list[BatchMessage]:
    return [
        BatchMessage(
            batch.key(index),
            batch.properties(index),
            batch.payload(index),
            batch.time(index),
            batch.expiry(index),
            batch.delay(index),
            batch.producer(index),
            batch.sequence(index),
            batch.attributes(index),
        )
        for index in range(batch.count)
    ]


@given(MESSAGES, OFFSETS, st.integers(0, 2**32 - 1), st.binary(max_size=9), BYTES)
def test_what_is_written_is_read_back(
    messages: list[BatchMessage], base_offset: int, term: int, before: bytes, behind: bytes
) -> None:
    data = before + encode(messages, base_offset, term) + behind
    batch = parse(data, len(before))
    verify(batch)
    found = columns(data, len(before))
    assert messages_of(batch) == messages
    assert list(found.messages()) == messages
    assert batch.last_offset == found.header.last_offset == base_offset + len(messages) - 1
    assert batch.last_time == found.header.last_time == messages[-1].time_us
    assert batch.term == found.header.term == term
    assert encode(messages, base_offset, term) == batch.header() + bytes(batch.body())


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=8) | st.just([b"x" * 200] * 5),
    st.sampled_from([0, 1, 2]),
    BYTES,
    BYTES,
    st.tuples(TIME, I64, I64, st.integers(0, 2**32 - 1)),
)
def test_a_run_is_written_as_its_messages_are(
    payloads: list[bytes],
    qos: int,
    key: bytes,
    properties: bytes,
    numbers: tuple[int, int, int, int],
) -> None:
    time_us, expiry_us, delay_us, attributes = numbers
    (data,) = batches.build_batches(run_of(payloads, qos), key, properties, *numbers)
    messages = [
        BatchMessage(key, properties, payload, time_us, expiry_us, delay_us, 0, 0, attributes)
        for payload in payloads
    ]
    assert data == encode(messages)


def run_of(payloads: list[bytes], qos: int) -> PublishRun:
    packets = [publish(b"a/b", each, qos, 1 if qos else 0) for each in payloads]
    return scanned(b"".join(packets))


FIELDS = {
    "length": (8, "I"),
    "flags": (14, "H"),
    "base offset": (16, "Q"),
    "base time": (24, "q"),
    "count": (40, "I"),
    "key bytes": (44, "I"),
    "property bytes": (48, "I"),
    "payload bytes": (52, "I"),
    "last delta": (60, "i"),
}


@given(
    MESSAGES,
    st.lists(st.tuples(st.sampled_from(sorted(FIELDS)), st.integers(-8, 8)), max_size=2),
    st.lists(st.tuples(st.integers(64, 400), st.integers(0, 255)), max_size=3),
)
def test_both_readings_agree_on_damage(
    messages: list[BatchMessage], fields: list[tuple[str, int]], changes: list[tuple[int, int]]
) -> None:
    """Damage with right checks: what one reading accepts the other accepts, with the same messages."""
    data = bytearray(encode(messages))
    for name, change in fields:
        at, code = FIELDS[name]
        size = struct.calcsize(code)
        number = int.from_bytes(data[at : at + size], "little") + change
        data[at : at + size] = (number % (1 << (8 * size))).to_bytes(size, "little")
    for at, byte in changes:
        if at < len(data):
            data[at] = byte
    struct.pack_into("<Q", data, 32, xxh3_64_intdigest(bytes(data[64:])))
    struct.pack_into("<I", data, 4, 0)
    struct.pack_into("<I", data, 4, xxh3_64_intdigest(bytes(data[:64])) & 0xFFFFFFFF)
    raw = bytes(data)
    here: str | list[BatchMessage]
    there: str | list[BatchMessage]
    try:
        batch = parse(raw)
        verify(batch)
        here = messages_of(batch)
    except BatchError as error:
        here = str(error)
    try:
        there = list(columns(raw).messages())
    except BatchError as error:
        there = str(error)
    assert here == there or (isinstance(here, str) and isinstance(there, str))
    event("refused" if isinstance(here, str) else "read")


@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=12) | st.just([b"y" * 50] * 30),
    OFFSETS,
    st.sampled_from([4, 5]),
    st.sampled_from([0, 1]),
    st.none() | st.binary(max_size=5).map(lambda name: name.hex().encode()),
    st.integers(0, 2**32 - 1),
    st.data(),
)
@example([b""] * 3, 9, 5, 1, b"q", 0, None)
def test_packets_say_what_the_batch_holds(
    payloads: list[bytes],
    base: int,
    version: int,
    qos: int,
    queue: bytes | None,
    expiry: int,
    data: st.DataObject | None,
) -> None:
    assume(base + len(payloads) < 2**64)
    batch = parse(encode([BatchMessage(b"k", b"", each, 1) for each in payloads]))
    batch.stamp(base, 1, 1)
    first = data.draw(st.integers(0, len(payloads) - 1)) if data else 0
    count = data.draw(st.integers(1, len(payloads) - first)) if data else len(payloads)
    offsets = batch_delivery.OffsetProperties(queue) if queue is not None else None
    runs = batch_delivery.delivery_runs(
        batch, first, count, version, b"t/u", b"\x01\x01", offsets, qos, expiry
    )
    found = [packet for run in runs for packet in read_all(bytearray(run.buffer), version)]
    assert [each for run in runs for each in run.payloads()] == payloads[first : first + count]
    for index, packet in enumerate(found, base + first):
        assert isinstance(packet, Publish)
        assert (packet.topic, packet.qos) == (b"t/u", qos)
        assert packet.payload == payloads[index - base]
        properties = packet.properties
        if version == 4:
            continue
        assert properties.message_expiry_interval == (expiry or None)
        assert properties.user_properties == (
            []
            if queue is None
            else [("message-id", f"{queue.decode()}:{index}"), ("offset", str(index))]
        )


# Compiled and uncompiled


class Form(NamedTuple):
    """One set of the modules."""

    run: Any
    format: Any
    single: Any
    batches: Any
    deliveries: Any


INSTALLED = Form(run, batch_format, message_batch, batches, batch_delivery)


@cache
def uncompiled() -> Form:
    """The same from the sources."""
    names = ("protocols.mqtt.run", "model.batch_format", "model.message_batch")
    more = ("protocols.mqtt.batches", "protocols.mqtt.batch_delivery")
    return Form(*map(from_source, (*names, *more)))


RUN_FIELDS = (
    *("buffer", "start", "end", "count", "stride", "version", "qos", "retain", "variable"),
    *("pid_at", "largest", "topic", "properties", "verbatim", "kept", "fixed", "deadline"),
)


@pytest.mark.skipif(not COMPILED, reason="the hot path runs uncompiled")
@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=12) | st.just([b"y" * 50] * 30),
    OFFSETS,
    st.sampled_from([4, 5]),
    st.sampled_from([0, 1]),
    st.none() | BYTES,
    st.tuples(TIME, I64, I64, st.integers(0, 2**32 - 1)),
)
def test_both_forms_give_the_same(
    payloads: list[bytes],
    base: int,
    version: int,
    qos: int,
    queue: bytes | None,
    numbers: tuple[int, int, int, int],
) -> None:
    assume(base + len(payloads) < 2**64)
    made = []
    for form in (INSTALLED, uncompiled()):
        run = run_of(payloads, 1)
        if form is not INSTALLED:
            other = form.run.PublishRun
            fields = ("buffer", "start", "end", "count", "stride", "version")
            first = 0x30 | (run.qos << 1)
            arguments = [getattr(run, field) for field in fields]
            run = other(*arguments, first, run.variable, run.pid_at, run.largest, run.topic)
        (data,) = form.batches.build_batches(run, b"key", b"properties", *numbers)
        batch = form.format.parse(data)
        batch.stamp(base, numbers[0], 3)
        offsets = form.deliveries.OffsetProperties(queue) if queue is not None else None
        runs = form.deliveries.delivery_runs(
            batch, 0, batch.count, version, b"t", b"\1\0", offsets, qos, 9
        )
        single = form.single.build_message(b"key", b"p", payloads[0], *numbers, 7, -8)
        made.append(
            (
                data,
                single,
                batch.header(),
                messages_of(batch),
                [[getattr(run, field) for field in RUN_FIELDS] for run in runs],
            )
        )
    assert made[0] == made[1]
