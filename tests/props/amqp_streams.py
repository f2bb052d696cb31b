"""Strategies for AMQP 0.9.1 on the hot path: streams of frames as clients may write them, and what they mean."""

from __future__ import annotations

import struct
from typing import Any, Literal

from hypothesis import strategies as st

from tests.unit.protocols.amqp091.line import (
    FRAME_MAX,
    HEARTBEAT,
    ack,
    content_header,
    frame,
    method,
    publish,
    publish_method,
)

CHANNELS = st.integers(1, 3)
"""Channels 1 and 2 have ledgers, 3 has none."""
SIZES = st.sampled_from([0, 1, 2, 40, 300, FRAME_MAX - 8, FRAME_MAX]) | st.integers(0, 60)
NAMES = st.sampled_from([b"", b"q", b"amq.topic", b"k" * 255])
PROPERTIES = st.sampled_from([b"\x00\x00", b"\x10\x00\x02", b"\x80\x00\x04text"])
TAGS = st.integers(0, 40)


@st.composite
def bursts(draw: st.DrawFn) -> bytes:
    """Neighbouring publishes that are equal but for their payloads."""
    count = draw(st.integers(1, 14))
    size = draw(SIZES)
    sizes = [size] * count if draw(st.booleans()) else [draw(SIZES) for _ in range(count)]
    arguments: dict[str, Any] = {
        "channel": draw(CHANNELS),
        "exchange": draw(NAMES),
        "key": draw(NAMES),
        "bits": draw(st.integers(0, 3)),
        "properties": draw(PROPERTIES),
        "piece": draw(st.sampled_from([FRAME_MAX, FRAME_MAX, FRAME_MAX, 25])),
    }
    return b"".join(
        publish((index.to_bytes(4, "big") + bytes(each))[:each], **arguments)
        for index, each in enumerate(sizes)
    )


@st.composite
def interleaved(draw: st.DrawFn) -> bytes:
    """The frames of one publish on each of two channels, in any order that keeps each channel's."""
    channels: list[list[bytes]] = []
    for number in (1, 2):
        payload = bytes((number,)) * draw(st.integers(0, 30))
        piece = draw(st.integers(1, 30))
        bodies = [payload[at : at + piece] for at in range(0, len(payload), piece)]
        channels.append(
            [
                publish_method(number, b"", b"q"),
                content_header(number, len(payload)),
                *(frame(3, number, body) for body in bodies),
            ]
        )
    found = []
    while any(channels):
        which = draw(st.sampled_from([each for each in channels if each]))
        found.append(which.pop(0))
    return b"".join(found)


def others() -> st.SearchStrategy[bytes]:
    """Single frames: methods, heartbeats, parts of contents where none is due."""
    return st.one_of(
        st.just(HEARTBEAT),
        st.builds(ack, TAGS, st.booleans(), CHANNELS),
        st.builds(
            method,
            CHANNELS,
            st.just(60),
            st.sampled_from([40, 70, 80, 120]),
            st.binary(max_size=14),
        ),
        st.builds(publish_method, CHANNELS, NAMES, NAMES),
        st.builds(content_header, CHANNELS, st.sampled_from([0, 1, 5, 1 << 63])),
        st.builds(frame, st.sampled_from([2, 3]), CHANNELS, st.binary(max_size=30)),
    )


@st.composite
def streams(draw: st.DrawFn, *, broken: bool = True) -> bytes:
    """What a client might send, now and then with a byte changed or the end missing."""
    data = b"".join(draw(st.lists(st.one_of(bursts(), interleaved(), others()), max_size=6)))
    if broken and data and draw(st.integers(0, 3)) == 0:
        place = draw(st.integers(0, len(data) - 1))
        data = data[:place] + bytes((draw(st.integers(0, 255)),)) + data[place + 1 :]
    if data and draw(st.integers(0, 3)) == 0:
        data = data[: draw(st.integers(0, len(data)))]
    return data


def meaning(data: bytes, outstanding: dict[int, set[int]]) -> list[tuple[Any, ...]]:
    """What the handler gets, read frame by frame; tags that an ack settles are taken out of `outstanding`.

    What the last bytes begin, and a publish of which all that is there may still become part of a run, is missing.
    """
    events: list[tuple[Any, ...]] = []
    at = 0
    while True:
        found = whole_frame(data, at)
        if isinstance(found, int):
            if found:
                events.append(("broken", found))
            return events
        kind, channel, payload, following = found
        if kind == 8 and not channel and not payload:
            at = following
            continue
        if kind not in (1, 2, 3):
            return [*events, ("broken", 505 if kind == 8 and not payload else 501)]
        if channel in outstanding and kind == 1:
            if is_settled(payload, outstanding[channel]):
                at = following
                continue
            event = whole_publish(data, at)
            if event == "later":
                return events
            if event is not None:
                at, message = event
                events.append(message)
                continue
        events.append(("frame", kind, channel, payload))
        at = following


def whole_frame(data: bytes, at: int) -> tuple[int, int, bytes, int] | int:
    """A frame and where it ends; an error's code, or 0 for bytes that are missing."""
    if len(data) - at < 7:
        return 0
    kind, channel, size = struct.unpack_from(">BHI", data, at)
    if size > FRAME_MAX:
        return 501
    stop = at + 8 + size
    if stop > len(data):
        return 0
    if data[stop - 1] != 0xCE:
        return 501
    return kind, channel, data[at + 7 : stop - 1], stop


def is_settled(payload: bytes, outstanding: set[int]) -> bool:
    """Whether a method acknowledges what is outstanding, which is taken out then."""
    if payload[:4] != b"\x00\x3c\x00\x50" or len(payload) != 13:
        return False
    tag, bits = struct.unpack_from(">QB", payload, 4)
    if not bits & 1:
        known = tag in outstanding
        outstanding.discard(tag)
        return known
    if tag and tag not in outstanding:
        return False
    outstanding.difference_update([each for each in outstanding if not tag or each <= tag])
    return True


def whole_publish(data: bytes, at: int) -> tuple[int, tuple[Any, ...]] | Literal["later"] | None:
    """A publish whose frames follow each other, with one body frame at most; "later" where that may still come."""
    found = whole_frame(data, at)
    assert not isinstance(found, int)
    _, channel, payload, at = found
    names = publish_arguments(payload)
    if names is None:
        return None
    header = next_frame(data, at, 2, channel)
    if header is None or header == "later":
        return header
    content, at = header
    if len(content) < 14 or content[:4] != b"\x00\x3c\x00\x00":
        return None
    size = int.from_bytes(content[4:12], "big")
    body = b""
    if size:
        if size > FRAME_MAX:
            return None
        if len(data) - at >= 7 and int.from_bytes(data[at + 3 : at + 7], "big") != size:
            return None
        piece = next_frame(data, at, 3, channel)
        if piece is None or piece == "later":
            return piece
        body, at = piece
    exchange, key, bits = names
    return at, ("publish", channel, exchange, key, bits & 3, content[12:], body)


def publish_arguments(payload: bytes) -> tuple[bytes, bytes, int] | None:
    """Exchange, routing key and bits of a basic.publish."""
    if payload[:4] != b"\x00\x3c\x00\x28" or len(payload) < 9:
        return None
    exchange = payload[7 : 7 + payload[6]]
    rest = payload[7 + payload[6] :]
    if len(rest) < 2 or len(rest) != rest[0] + 2:
        return None
    return exchange, rest[1:-1], rest[-1]


def next_frame(
    data: bytes, at: int, kind: int, channel: int
) -> tuple[bytes, int] | Literal["later"] | None:
    """The payload of the frame at `at` where it is of this kind and channel, and where it ends."""
    expected = struct.pack(">BH", kind, channel)
    there = data[at : at + 3]
    if there != expected[: len(there)]:
        return None
    found = whole_frame(data, at)
    if found == 0:
        return "later"
    if isinstance(found, int):
        return None
    return found[2], found[3]
