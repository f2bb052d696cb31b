"""Content headers, properties and the frames of a message."""

from __future__ import annotations

import struct

import pytest

from fluxmq.model.properties import Timestamp
from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.content import (
    NO_PROPERTIES,
    BasicProperties,
    decode_properties,
    encode_properties,
    frames_of_content,
    read_fields,
    split_header,
    write_fields,
)
from fluxmq.protocols.amqp091.errors import HardError

EVERYTHING = BasicProperties(
    content_type="text/plain",
    content_encoding="gzip",
    headers={"a": 1},
    delivery_mode=2,
    priority=9,
    correlation_id="c",
    reply_to="r",
    expiration="1000",
    message_id="m",
    timestamp=Timestamp(1_700_000_000),
    type="t",
    user_id="u",
    app_id="ap",
    cluster_id="cl",
)
EVERYTHING_RAW = bytes.fromhex(
    "fffc"
    "0a 746578742f706c61696e"
    "04 677a6970"
    "00000007 01 61 49 00000001"
    "02"
    "09"
    "01 63"
    "01 72"
    "04 31303030"
    "01 6d"
    "000000006553f100"
    "01 74"
    "01 75"
    "02 6170"
    "02 636c"
)


def test_every_property() -> None:
    assert encode_properties(EVERYTHING) == EVERYTHING_RAW
    assert decode_properties(EVERYTHING_RAW) == EVERYTHING
    assert write_fields(read_fields(EVERYTHING_RAW)) == EVERYTHING_RAW


@pytest.mark.parametrize("name", BasicProperties._fields)
def test_one_property(name: str) -> None:
    """Its flag is the one that the specification's order gives it; an empty value is not an absent one."""
    value = getattr(EVERYTHING, name)
    one = BasicProperties()._replace(**{name: value})
    raw = encode_properties(one)
    assert struct.unpack(">H", raw[:2]) == (0x8000 >> BasicProperties._fields.index(name),)
    assert decode_properties(raw) == one
    empty = BasicProperties()._replace(**{name: type(value)()})
    assert decode_properties(encode_properties(empty)) == empty
    assert empty != BasicProperties()


def test_none() -> None:
    assert encode_properties(BasicProperties()) == NO_PROPERTIES
    assert decode_properties(NO_PROPERTIES) == BasicProperties()


def test_text_that_is_not_utf_8() -> None:
    raw = b"\xa0\x00\x01\xff\x00\x00\x00\x09\x01\xffS\x00\x00\x00\x02ab"
    assert decode_properties(raw) == BasicProperties(
        content_type="\udcff", headers={"\udcff": "ab"}
    )
    assert encode_properties(decode_properties(raw)) == raw


def test_the_type_of_a_timestamp() -> None:
    assert type(decode_properties(EVERYTHING_RAW).timestamp) is Timestamp


@pytest.mark.parametrize("size", range(len(EVERYTHING_RAW)))
def test_cut_short(size: int) -> None:
    with pytest.raises(HardError) as caught:
        decode_properties(EVERYTHING_RAW[:size])
    assert caught.value.code is ReplyCode.SYNTAX_ERROR


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "no flags"),
        (b"\0", "no flags"),
        (b"\0\1", "stand for no property"),
        (b"\0\2", "stand for no property"),
        (b"\0\1\0\0", "stand for no property"),
        (b"\0\0\0", "bytes behind"),
        (b"\x80\0", "end inside"),
        (b"\x80\0\5a", "end inside"),
        (b"\x20\0\0\0\0", "end inside"),
        (b"\x20\0\xff\xff\xff\xff", "end inside"),
        (b"\x20\0\0\0\0\4\1AZ\0", "headers: a value of type 90"),
    ],
)
def test_what_are_no_properties(raw: bytes, text: str) -> None:
    with pytest.raises(HardError, match=text) as caught:
        decode_properties(raw)
    assert caught.value.code is ReplyCode.SYNTAX_ERROR
    assert (caught.value.class_id, caught.value.method_id) == (60, 40)


@pytest.mark.parametrize(
    "properties",
    [
        BasicProperties(content_type="c" * 256),
        BasicProperties(priority=256),
        BasicProperties(delivery_mode=-1),
        BasicProperties(timestamp=Timestamp(1 << 64)),
        BasicProperties(headers={"a": 1 << 64}),
    ],
)
def test_what_a_property_cannot_hold(properties: BasicProperties) -> None:
    with pytest.raises(ValueError, match=r"255 bytes|out of range|cannot hold"):
        encode_properties(properties)


def test_header() -> None:
    payload = bytes.fromhex("003c 0000 0000000100000000 1000 02")
    assert split_header(payload) == (1 << 32, b"\x10\x00\x02")
    assert split_header(payload[:12]) == (1 << 32, b"")


@pytest.mark.parametrize(
    ("raw", "code", "text"),
    [
        ("", 501, "type 2, all octets = <<>>: unknown_frame"),
        ("003c", 501, "type 2, all octets = <<0,60>>: unknown_frame"),
        (
            "0032 0000 0000000000000000 0000",
            505,
            "expected content header for class 60, got one for class 50 instead",
        ),
        (
            "003c 0001 0000000000000000 0000",
            505,
            "expected content header for class 60, got non content header frame instead",
        ),
    ],
)
def test_what_is_no_header(raw: str, code: int, text: str) -> None:
    with pytest.raises(HardError) as caught:
        split_header(bytes.fromhex(raw))
    assert (caught.value.code, caught.value.text) == (code, text)


HEADER = "02 0007 0000000e 003c 0000 {:016x} 0000 ce"


@pytest.mark.parametrize(
    ("body", "frame_max", "frames"),
    [
        (b"", 4096, []),
        (b"abc", 0, ["03 0007 00000003 616263 ce"]),
        (b"abc", 11, ["03 0007 00000003 616263 ce"]),
        (b"abc", 10, ["03 0007 00000002 6162 ce", "03 0007 00000001 63 ce"]),
        (b"abcd", 10, ["03 0007 00000002 6162 ce", "03 0007 00000002 6364 ce"]),
    ],
)
def test_frames(body: bytes, frame_max: int, frames: list[str]) -> None:
    expected = [bytes.fromhex(each) for each in (HEADER.format(len(body)), *frames)]
    assert frames_of_content(7, NO_PROPERTIES, body, frame_max) == expected
    assert frames_of_content(7, NO_PROPERTIES, memoryview(body), frame_max) == expected
    assert split_header(expected[0][7:-1]) == (len(body), NO_PROPERTIES)
    assert all(len(each) <= frame_max for each in expected[1:] if frame_max)
