"""Frames of the control socket: any split, any value, and what is refused."""

import struct

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.ipc.control_frames import (
    ELEMENTS_MAX,
    FRAME_BYTES_MAX,
    FrameDecoder,
    FramingError,
    encode_frame,
)

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.lists(values, max_size=5), st.data())
def test_what_is_framed_comes_back_whatever_the_splits(sent, data):
    stream = b"".join(map(encode_frame, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder()
    received = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += decoder.feed(stream[begin:end])
    assert received == sent
    assert decoder.buffered == 0


def test_an_incomplete_frame_waits():
    frame = encode_frame(["x"])
    decoder = FrameDecoder()
    assert decoder.feed(frame[:-1]) == []
    assert decoder.buffered == len(frame) - 1
    assert decoder.feed(memoryview(frame)[-1:]) == [["x"]]


def test_a_frame_too_long_is_refused_as_soon_as_its_length_is_known():
    decoder = FrameDecoder()
    with pytest.raises(FramingError, match="exceeds"):
        decoder.feed(struct.pack(">I", FRAME_BYTES_MAX + 1))
    assert decoder.buffered == 0
    with pytest.raises(FramingError, match="exceeds"):
        decoder.feed(encode_frame("fine"))


def test_a_value_too_large_is_not_sent():
    with pytest.raises(FramingError, match="exceeds"):
        encode_frame(b"x" * FRAME_BYTES_MAX)
    assert FrameDecoder().feed(encode_frame(b"x" * 100_000)) == [b"x" * 100_000]


@pytest.mark.parametrize("value", [object(), {1, 2}, 2**70, "\ud800"])
def test_values_without_an_encoding_are_refused(value):
    with pytest.raises(FramingError, match="encoded"):
        encode_frame(value)


def framed(body):
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",  # never used in msgpack
        msgpack.packb([1]) + b"\x00",  # something behind the value
        msgpack.packb([1, 2, 3])[:-1],  # cut short
        msgpack.packb(msgpack.ExtType(5, b"x")),
        b"\xa1\xff",  # text that is not UTF-8
        msgpack.packb({1: 2}),  # a map with a key that is not text
        b"\xdd\xff\xff\xff\xff",  # a list said to have 2**32 - 1 elements
        b"\x91" * 100_000,  # lists in lists without end
    ],
)
def test_bodies_that_are_not_ours_are_refused(body):
    decoder = FrameDecoder()
    with pytest.raises(FramingError, match="not msgpack"):
        decoder.feed(framed(body))
    with pytest.raises(FramingError, match="not msgpack"):
        decoder.feed(b"")


def test_lists_longer_than_the_limit_are_refused():
    with pytest.raises(FramingError, match="not msgpack"):
        FrameDecoder().feed(framed(msgpack.packb([0] * (ELEMENTS_MAX + 1))))


@given(st.binary(max_size=200))
def test_any_bytes_end_in_values_or_in_a_framing_error(data):
    decoder = FrameDecoder()
    try:
        decoder.feed(data)
    except FramingError:
        assert decoder.buffered == 0
    else:
        assert decoder.buffered <= len(data)
