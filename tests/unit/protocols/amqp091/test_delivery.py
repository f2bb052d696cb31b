"""Deliveries, answers to basic.get and returned messages: what the frames say, and how contents are cut."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from fluxmq.model.batch_format import Batch, parse
from fluxmq.model.message_batch import build_message
from fluxmq.protocols.amqp091.delivery import (
    encode_deliveries,
    encode_delivery,
    encode_get_ok,
    encode_return,
)
from fluxmq.protocols.amqp091.run import AmqpPublishRun, build_amqp_batches
from tests.unit.protocols.amqp091.line import NO_PROPERTIES, cut
from tests.unit.protocols.amqp091.test_run import runs_of

PROPERTIES = b"\x20\x00\x00\x00\x00\x13\x0fx-stream-offsetl" + bytes(8)
"""Headers with an offset of eight bytes at the end."""


def batch_of(payloads: list[bytes], base: int = 1000) -> Batch:
    """A batch of these payloads, stamped."""
    (run,) = runs_of(payloads) if len(payloads) > 1 else [bare(payloads[0])]
    batch = parse(build_amqp_batches(run, b"k", b"", 1)[0])
    batch.stamp(base, 1, 1)
    return batch


def bare(payload: bytes) -> AmqpPublishRun:
    """A run of one."""
    return AmqpPublishRun.of(1, b"", b"", False, False, NO_PROPERTIES, payload)


def contents(data: bytes, channel: int, frame_max: int) -> list[tuple[bytes, bytes, bytes]]:
    """Method payload, properties and body of each content; checks the frames."""
    found: list[tuple[bytes, bytes, bytes]] = []
    frames = list(cut(data))
    while frames:
        kind, number, method = frames.pop(0)
        assert (kind, number) == (1, channel)
        kind, number, header = frames.pop(0)
        assert (kind, number) == (2, channel)
        class_id, weight, size = struct.unpack_from(">HHQ", header)
        assert (class_id, weight) == (60, 0)
        body = b""
        while len(body) < size:
            kind, number, piece = frames.pop(0)
            assert (kind, number) == (3, channel)
            assert piece
            assert len(piece) == min(size - len(body), frame_max - 8)
            body += piece
        assert len(body) == size
        found.append((method, header[12:], body))
    return found


def short(data: bytes, at: int) -> tuple[bytes, int]:
    """A short string and where it ends."""
    return data[at + 1 : at + 1 + data[at]], at + 1 + data[at]


def delivered(method: bytes) -> tuple[Any, ...]:
    """The arguments of basic.deliver."""
    assert method[:4] == struct.pack(">HH", 60, 60)
    consumer_tag, at = short(method, 4)
    tag, redelivered = struct.unpack_from(">QB", method, at)
    exchange, at = short(method, at + 9)
    key, at = short(method, at)
    assert at == len(method)
    return consumer_tag, tag, redelivered, exchange, key


@pytest.mark.parametrize("frame_max", [9, 12, 4096])
@pytest.mark.parametrize("payloads", [[b"x"], [b""], [b"ab", b"", b"abcdefghijkl", b"abcd", b"e"]])
@pytest.mark.parametrize("redelivered", [False, True])
def test_deliveries(payloads: list[bytes], frame_max: int, redelivered: bool) -> None:
    batch = batch_of(payloads)
    for first in range(len(payloads)):
        for count in range(1, len(payloads) - first + 1):
            data = encode_deliveries(
                batch,
                first,
                count,
                258,
                b"tag",
                77,
                redelivered,
                b"ex",
                b"a.b",
                b"\x80\x00\x01t",
                frame_max,
            )
            assert [
                (delivered(method), properties, body)
                for method, properties, body in contents(data, 258, frame_max)
            ] == [
                ((b"tag", 77 + index, redelivered, b"ex", b"a.b"), b"\x80\x00\x01t", payload)
                for index, payload in enumerate(payloads[first : first + count])
            ]


def test_tags_and_offsets_of_eight_bytes() -> None:
    base = (1 << 62) - 1
    batch = batch_of([b"a", b"b", b"c"], base)
    tag = (1 << 40) - 1
    data = encode_deliveries(
        batch, 1, 2, 1, b"", tag, False, b"", b"", PROPERTIES, 4096, len(PROPERTIES) - 8
    )
    assert [
        (delivered(method)[1], properties, body)
        for method, properties, body in contents(data, 1, 4096)
    ] == [
        (tag + index, PROPERTIES[:-8] + (base + 1 + index).to_bytes(8, "big"), body)
        for index, body in enumerate([b"b", b"c"])
    ]


def test_an_offset_within_the_properties() -> None:
    batch = batch_of([b"a", b"b"])
    data = encode_deliveries(
        batch, 0, 2, 1, b"c", 1, False, b"", b"", b"<" + bytes(8) + b">", 4096, 1
    )
    assert [properties for _, properties, _ in contents(data, 1, 4096)] == [
        b"<" + (1000).to_bytes(8, "big") + b">",
        b"<" + (1001).to_bytes(8, "big") + b">",
    ]


def test_a_large_message_is_cut_into_frames() -> None:
    payload = bytes(range(256)) * 5000
    batch = parse(build_message(b"k", b"", payload, 1))
    data = encode_deliveries(batch, 0, 1, 1, b"c", 1, False, b"", b"q", NO_PROPERTIES, 131_072)
    assert [body for _, _, body in contents(data, 1, 131_072)] == [payload]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"first": -1}, IndexError),
        ({"first": 3}, IndexError),
        ({"count": 0}, IndexError),
        ({"first": 2, "count": 2}, IndexError),
        ({"count": 1 << 40}, IndexError),
        ({"consumer_tag": bytes(256)}, ValueError),
        ({"exchange": bytes(256)}, ValueError),
        ({"routing_key": bytes(256)}, ValueError),
        ({"frame_max": 8}, ValueError),
        ({"offset_at": 3}, ValueError),
        ({"offset_at": -2}, ValueError),
    ],
)
def test_what_cannot_be_written(changes: dict[str, Any], error: type[Exception]) -> None:
    good: dict[str, Any] = {
        "batch": batch_of([b"a", b"b", b"c"]),
        "first": 0,
        "count": 1,
        "channel": 1,
        "consumer_tag": bytes(255),
        "first_tag": 1,
        "redelivered": False,
        "exchange": bytes(255),
        "routing_key": bytes(255),
        "properties": bytes(10),
        "frame_max": 9,
        "offset_at": 2,
    }
    assert encode_deliveries(**good)
    with pytest.raises(error):
        encode_deliveries(**{**good, **changes})


@pytest.mark.parametrize("body", [b"", b"123", b"12345678"])
def test_the_answer_to_get(body: bytes) -> None:
    batch = batch_of([b"other", body])
    data = encode_get_ok(
        batch, 1, 5, 9, True, b"ex", b"key", 1 << 40, PROPERTIES, 12, len(PROPERTIES) - 8
    )
    ((method, properties, found),) = contents(data, 5, 12)
    assert method == (
        struct.pack(">HHQB", 60, 71, 9, 1) + b"\x02ex\x03key" + struct.pack(">I", 0xFFFF_FFFF)
    )
    assert (properties, found) == (PROPERTIES[:-8] + (1001).to_bytes(8, "big"), body)
    with pytest.raises(IndexError):
        encode_get_ok(batch, 2, 5, 9, True, b"", b"", 0, NO_PROPERTIES, 12)
    with pytest.raises(ValueError, match="outside"):
        encode_get_ok(batch, 1, 5, 9, True, b"", b"", 0, NO_PROPERTIES, 12, 0)


@pytest.mark.parametrize("body", [b"", b"123", b"12345678"])
def test_returned_and_lone_messages(body: bytes) -> None:
    data = encode_return(5, 312, b"NO_ROUTE", b"ex", b"key", b"\x80\x00\x01t", body, 12)
    assert contents(data, 5, 12) == [
        (struct.pack(">HHH", 60, 50, 312) + b"\x08NO_ROUTE\x02ex\x03key", b"\x80\x00\x01t", body)
    ]
    data = encode_delivery(5, b"tag", 8, True, b"ex", b"key", b"\x80\x00\x01t", body, 12)
    ((method, properties, found),) = contents(data, 5, 12)
    assert delivered(method) == (b"tag", 8, True, b"ex", b"key")
    assert (properties, found) == (b"\x80\x00\x01t", body)
    with pytest.raises(ValueError, match="room"):
        encode_return(5, 312, b"", b"", b"", b"", b"", 8)
    with pytest.raises(ValueError, match="name"):
        encode_delivery(5, b"", 8, True, b"", bytes(256), b"", b"", 12)
