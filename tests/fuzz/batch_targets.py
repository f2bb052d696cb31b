"""Batches and property blocks for fuzzing: bytes of a damaged disk or a hostile peer in, the kind of outcome out.

The checks of a batch would refuse nearly everything, so that what is behind them is reached only when they are made
right first, which is what `fuzz_sealed_batch` does with every input.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable
from typing import Final

from xxhash import xxh3_64_intdigest

from fluxmq.model.batch_format import MAGIC, Batch, BatchError, parse, verify
from fluxmq.model.batches import BatchMessage, columns, encode
from fluxmq.model.message_batch import build_message
from fluxmq.model.properties import Item, PropertyError, PropertyKind, Value, decode, text
from fluxmq.model.properties import encode as encode_block
from fluxmq.protocols.mqtt.batch_delivery import OffsetProperties, delivery_runs
from fluxmq.protocols.mqtt.message_properties import from_block, to_block
from fluxmq.protocols.mqtt.properties import parse_publish_properties
from fluxmq.protocols.mqtt.reasons import ProtocolError
from tests.unit.protocols.mqtt.wire import read_all

CHECKED: Final = 64
"""Bytes of a header."""


def fuzz_batch(data: bytes) -> Hashable:
    """Bytes as they are."""
    try:
        batch = parse(data)
        verify(batch)
    except BatchError as error:
        refused(data)
        return str(error)
    return used(batch)


def fuzz_sealed_batch(data: bytes) -> Hashable:
    """The same with magic, version and both checks made right."""
    raw = bytearray(data)
    if len(raw) < CHECKED:
        return "short"
    struct.pack_into("<IIIBB", raw, 0, MAGIC, 0, *struct.unpack_from("<I", raw, 8), 1, 0)
    length = struct.unpack_from("<I", raw, 8)[0]
    struct.pack_into("<Q", raw, 32, xxh3_64_intdigest(bytes(raw[CHECKED:length])))
    struct.pack_into("<I", raw, 4, xxh3_64_intdigest(bytes(raw[:CHECKED])) & 0xFFFFFFFF)
    return fuzz_batch(bytes(raw))


def refused(data: bytes) -> None:
    """The other reading refuses the same bytes."""
    try:
        columns(data)
    except BatchError:
        return
    raise AssertionError("one reading accepts what the other refuses")


def used(batch: Batch) -> Hashable:
    """Everything that is done with a batch that was accepted."""
    messages = list(columns(batch.data, batch.start).messages())
    assert len(messages) == batch.count
    for index, message in enumerate(messages):
        assert message.key == batch.key(index)
        assert message.properties == batch.properties(index)
        assert message.payload == batch.payload(index)
        assert message.expiry_us == batch.expiry(index)
        assert message.producer == batch.producer(index)
        assert message.time_us == batch.time(index)
    again = parse(batch.header() + bytes(batch.body()))
    assert again.payload(again.count - 1) == messages[-1].payload
    for version in (4, 5):
        runs = delivery_runs(batch, 0, batch.count, version, b"t", b"", OffsetProperties(b"q"))
        assert [each for run in runs for each in run.payloads()] == [
            message.payload for message in messages
        ]
        assert sum(len(read_all(bytearray(run.buffer), version)) for run in runs) == batch.count
    return batch.flags, batch.count


def fuzz_block(data: bytes) -> Hashable:
    """A property block, and what MQTT makes of it."""
    try:
        items = decode(data)
    except PropertyError as error:
        return str(error)
    forward = from_block(data)
    assert parse_publish_properties(forward, 1 << 20).forward == forward
    assert from_block(to_block(forward)) == forward
    # Equal but for the bits of a NaN.
    assert len(encode_block(items)) == len(data)
    return tuple(sorted({item.kind for item in items}))


def fuzz_forward(data: bytes) -> Hashable:
    """Properties of a client's PUBLISH, as they go into a queue and come out."""
    try:
        forward = parse_publish_properties(data, 16).forward
    except ProtocolError as error:
        return error.text
    assert from_block(to_block(forward)) == forward
    return tuple(item.kind for item in decode(to_block(forward)))


SMALL: Final = [
    BatchMessage(b"a/b", b"", b"x", 1),
    BatchMessage(b"a/c", b"\x09\x01\x05", b"", 2, 3, 4, 5, 6, 7),
]
BATCHES: Final = [
    build_message(b"k", b"", b"payload", 1),
    build_message(b"k", b"p", b"", 1, 2, 3, 4, 5, 6),
    encode(SMALL),
    encode([each._replace(key=b"k") for each in SMALL]),
    encode([each._replace(properties=b"") for each in SMALL]),
    encode(SMALL[:1] * 3, base_offset=98),
    encode(SMALL, base_offset=2**64 - 4),
]
BLOCKS: Final = [
    encode_block(
        [
            Item(PropertyKind.CONTENT_TYPE, b"c"),
            Item(PropertyKind.PRIORITY, 1),
            Item(PropertyKind.CORRELATION, b""),
        ]
    ),
    encode_block(
        [Item(PropertyKind.HEADER, text(b"v"), b"n"), Item(PropertyKind.EMPTY_HEADERS, None)]
    ),
    encode_block(
        [Item(PropertyKind.HEADER, Value("F", ((b"k", Value("A", (Value("V", None),))),)), b"n")]
    ),
    encode_block(
        [
            Item(PropertyKind.DEAD_QUEUE, b"q"),
            Item(PropertyKind.DEAD_OFFSET, 1),
            Item(PropertyKind.DEAD_TIME, 1),
        ]
    ),
    encode_block(
        [Item(PropertyKind.HEADER, Value(tag, 1), b"n") for tag in "bBsuIilT"]
        + [
            Item(PropertyKind.HEADER, Value("D", (1, 2)), b""),
            Item(PropertyKind.HEADER, Value("d", 1.5), b""),
        ]
    ),
]
FORWARDS: Final = [
    b"\x01\x01\x03\x00\x01c\x08\x00\x01t\x09\x00\x01\xff\x26\x00\x01a\x00\x01b",
    b"\x02\x00\x00\x00\x01\x23\x00\x01\x26\x00\x00\x00\x00",
]

TARGETS: Final[dict[str, tuple[Callable[[bytes], Hashable], list[bytes]]]] = {
    "batch": (fuzz_batch, BATCHES),
    "sealed_batch": (fuzz_sealed_batch, BATCHES),
    "block": (fuzz_block, BLOCKS),
    "forward": (fuzz_forward, FORWARDS),
}
