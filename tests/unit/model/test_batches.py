"""Batches as columns: the second reading of the layout, and batches of messages that differ."""

from __future__ import annotations

import struct

import numpy
import pytest
from xxhash import xxh3_64_intdigest

from fluxmq.model.batch_format import (
    AREA_BYTES_MAX,
    HEADER_BYTES,
    MESSAGES_MAX,
    PAYLOAD_BYTES_MAX,
    BatchError,
    parse,
)
from fluxmq.model.batch_format import verify as verify_check
from fluxmq.model.batches import (
    LENGTH_MAX,
    BatchMessage,
    columns,
    encode,
    read_header,
)
from fluxmq.model.message_batch import build_message

KEY_ENDS_AT = HEADER_BYTES + 3 * (4 * 8 + 2 * 4)
"""Behind the four columns of eight bytes and the two of four that `DIFFERENT` has."""

DIFFERENT = [
    BatchMessage(b"a/b", b"\x01", b"one", 10, 0, 0, 7, 1, 1),
    BatchMessage(b"a/c", b"", b"", 9, 5, 0, 7, -2, 0),
    BatchMessage(b"", b"\x02\x03", b"three", 30, 0, 6, 0, 0, 0x101),
]


def test_messages_that_differ() -> None:
    data = encode(DIFFERENT, base_offset=4, term=3)
    found = columns(data)
    assert list(found.messages()) == DIFFERENT
    assert found.header == read_header(data)
    assert (found.header.base_offset, found.header.last_offset, found.header.term) == (4, 6, 3)
    assert (found.header.base_time, found.header.last_time, found.header.last_delta) == (10, 30, 20)
    assert found.times.tolist() == [10, 9, 30]
    assert found.key_ends is not None
    assert found.key_ends.tolist() == [0, 3, 6, 6]
    assert found.payload_ends.tolist() == [0, 3, 3, 8]
    assert bytes(found.keys) == b"a/ba/c"
    assert bytes(found.properties) == b"\x01\x02\x03"
    assert bytes(found.payloads) == b"onethree"


def test_the_broker_reads_the_same() -> None:
    batch = parse(encode(DIFFERENT))
    verify_check(batch)
    assert not batch.uniform_key
    assert not batch.uniform_properties
    assert [
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
    ] == DIFFERENT
    assert (batch.last_time, batch.last_offset) == (30, 2)


def test_columns_look_into_the_bytes() -> None:
    data = b"\0" * 8 + encode(DIFFERENT)
    found = columns(data, 8)
    assert found.keys.obj is data
    for array in (found.payload_ends, found.expiry, found.producer, found.attributes):
        assert array is not None
        assert not array.flags.owndata
        assert not array.flags.writeable


def test_columns_that_no_message_needs_are_not_there() -> None:
    found = columns(build_message(b"k", b"p", b"payload", 5))
    assert list(found.messages()) == [BatchMessage(b"k", b"p", b"payload", 5)]
    for array in (
        found.key_ends,
        found.property_ends,
        found.expiry,
        found.delay,
        found.producer,
        found.sequence,
        found.attributes,
    ):
        assert array is None
    assert found.times.dtype == numpy.int64


def test_one_message_is_what_the_broker_builds() -> None:
    built = build_message(b"k", b"p", b"payload", 5, 1, 2, 3, 4, 5)
    assert encode([BatchMessage(b"k", b"p", b"payload", 5, 1, 2, 4, 5, 3)]) == built


def test_what_no_batch_holds() -> None:
    one = BatchMessage(b"", b"", b"", 0)
    with pytest.raises(ValueError, match="holds 1 to"):
        encode([])
    with pytest.raises(ValueError, match="holds 1 to"):
        encode([one] * (MESSAGES_MAX + 1))
    assert columns(encode([one] * MESSAGES_MAX)).header.count == MESSAGES_MAX
    large = one._replace(payload=bytes(PAYLOAD_BYTES_MAX))
    with pytest.raises(ValueError, match="more bytes"):
        encode([large, one._replace(payload=b"x")])
    assert columns(encode([large, one])).header.count == 2
    alone = one._replace(payload=bytes(PAYLOAD_BYTES_MAX + 1))
    assert columns(encode([alone])).header.payload_bytes == PAYLOAD_BYTES_MAX + 1
    with pytest.raises(ValueError, match="cannot hold"):
        encode([one, one._replace(time_us=2**31)])
    with pytest.raises(ValueError, match="cannot hold"):
        encode([one._replace(attributes=-1)])
    with pytest.raises(ValueError, match="cannot hold"):
        encode([one], base_offset=-1)
    with pytest.raises(ValueError, match="length or time"):
        encode([one._replace(time_us=2**62 + 1)])


def test_areas_are_within_what_ends_can_say() -> None:
    assert AREA_BYTES_MAX == 2**31 - 1
    assert LENGTH_MAX < 2**32
    assert LENGTH_MAX % 8 == 0


def test_every_flipped_bit_is_noticed() -> None:
    data = encode(DIFFERENT)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(BatchError):
            columns(bytes(flipped))


def test_every_cut_is_noticed() -> None:
    data = encode(DIFFERENT)
    for size in range(len(data)):
        with pytest.raises(BatchError):
            columns(data[:size])
    with pytest.raises(BatchError):
        columns(data, -1)


def test_the_payload_check_can_be_left_out() -> None:
    data = bytearray(encode(DIFFERENT))
    data[-1] ^= 1
    assert columns(bytes(data), verify=False).header.count == 3
    with pytest.raises(BatchError, match="the messages do not match"):
        columns(bytes(data))


@pytest.mark.parametrize(
    ("at", "code", "number"),
    [
        (KEY_ENDS_AT, "i", 1),
        (KEY_ENDS_AT, "i", -1),
        (40, "I", MESSAGES_MAX + 1),
        (16, "Q", 2**64 - 1),
        (24, "q", 2**63 - 1),
        (60, "i", 21),
        (12, "B", 9),
        (14, "H", 0xFFFF),
    ],
)
def test_a_field_that_makes_no_sense(at: int, code: str, number: int) -> None:
    data = bytearray(encode(DIFFERENT))
    struct.pack_into("<" + code, data, at, number)
    struct.pack_into("<I", data, 4, 0)
    struct.pack_into("<I", data, 4, xxh3_64_intdigest(bytes(data[:64])) & 0xFFFFFFFF)
    with pytest.raises(BatchError) as here:
        columns(bytes(data), verify=False)
    with pytest.raises(BatchError) as there:
        parse(bytes(data))
    assert str(here.value) == str(there.value)
