"""Frames come back as they were, in messages of bounded length; what is not of this protocol is refused."""

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.cluster import wire
from fluxmq.cluster.errors import MalformedStream
from tests.protobuf.cluster_pb2 import Message

PIECE = wire.PIECE_BYTES


def carried(frames: list[bytes]) -> list[bytes]:
    """What arrives of frames; asserts what holds for the messages on the way."""
    assembler = wire.Assembler()
    found: list[bytes] = []
    total = 0
    for message, size in wire.messages(frames):
        assert len(message) <= PIECE + wire.JOINED_BYTES + 64 < wire.MESSAGE_BYTES_MAX
        total += size
        found += assembler.take(message)
    assert total == sum(map(len, frames))
    return found


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=20))
def test_short_frames_of_a_turn_are_one_message(frames: list[bytes]) -> None:
    assert len(list(wire.messages(frames))) == 1
    assert carried(frames) == frames


SIZES = [0, 1, 1000, wire.JOINED_BYTES - 1, wire.JOINED_BYTES, PIECE - 1, PIECE, PIECE + 1]


@pytest.mark.parametrize("size", [*SIZES, 2 * PIECE, 2 * PIECE + 1])
def test_frames_of_every_length_keep_their_order(size: int) -> None:
    frames = [b"first", bytes(size), b"", b"x" * size, b"last"]
    assert carried(frames) == frames


def test_a_turn_with_much_to_say_becomes_several_messages() -> None:
    frames = [b"%d" % number + bytes(100_000) for number in range(40)]
    assert len(list(wire.messages(frames))) == 4
    assert carried(frames) == frames


def test_empty_frames_are_bounded_in_number() -> None:
    frames = [b""] * 300_000
    assert max(len(message) for message, _ in wire.messages(frames)) <= 2 * wire.JOINED_BYTES // 8
    assert carried(frames) == frames


def message(**fields: Any) -> bytes:
    return bytes(Message(**fields).SerializeToString())


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        ([b"\xff\xff\xff"], "malformed"),
        ([b""], "either"),
        ([message(last=True)], "either"),
        ([message(frames=[b"a"], piece=b"b")], "either"),
        ([message(piece=b"a"), message(frames=[b"b"])], "is incomplete"),
    ],
)
def test_what_is_not_of_the_protocol_is_refused(sent: list[bytes], problem: str) -> None:
    assembler = wire.Assembler()
    assert [assembler.take(each) for each in sent[:-1]] == [[]] * (len(sent) - 1)
    with pytest.raises(MalformedStream, match=problem):
        assembler.take(sent[-1])


def test_a_frame_that_does_not_end_is_refused_at_the_limit() -> None:
    assembler = wire.Assembler(1000)
    assert assembler.take(message(piece=bytes(600))) == []
    assert assembler.take(message(piece=bytes(400), last=True)) == [bytes(1000)]
    assert assembler.take(message(piece=bytes(600))) == []
    with pytest.raises(MalformedStream, match="longer than 1000"):
        assembler.take(message(piece=bytes(401)))


@given(st.binary(max_size=100))
def test_any_bytes_are_frames_or_refused(data: bytes) -> None:
    try:
        frames = wire.Assembler().take(data)
    except MalformedStream:
        return
    assert all(isinstance(frame, bytes) for frame in frames)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 300, 16_383, 16_384, 70_000])
def test_a_single_frame_is_the_message_that_protobuf_makes(length: int) -> None:
    frame = bytes(range(256)) * (length // 256) + bytes(length % 256)
    made = wire.single(frame)
    assert made == message(frames=[frame])
    assert wire.Assembler().take(made) == [frame]


@given(st.binary(max_size=300))
def test_what_is_read_by_hand_is_what_protobuf_reads(frame: bytes) -> None:
    for data in (message(frames=[frame]), message(frames=[frame, b"x"]), b"\x0a" + frame):
        try:
            expected = list(Message.FromString(data).frames)
        except DecodeError:
            expected = []
        if expected:
            assert wire.Assembler().take(data) == expected
