"""The file of a queue's consumer groups: what is written is read, and nothing else is believed."""

from __future__ import annotations

import struct

import msgpack  # type: ignore[import-untyped]
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.model.group_states import (
    HEADER_BYTES,
    MODES,
    OFFSET_MAX,
    RANGES_MAX,
    REASONS,
    ConsumerGroupState,
    QueueGroups,
    Range,
    decode,
    encode,
    joined,
)
from fluxmq.model.segments import SegmentError
from fluxmq.queues.commands import DeadLetterReason, Mode

NUMBERS = st.integers(0, OFFSET_MAX)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[Range, ...]:
    """Ranges in order and disjoint, far apart or touching."""
    found: list[Range] = []
    after = 0
    for distance, size, third in draw(
        st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 1 << 40), st.integers(0, 9)))
    ):
        first = after + distance
        after = first + size
        found.append((first, after - 1, third))
    return tuple(found)


STATES = st.builds(
    ConsumerGroupState,
    st.text(),
    st.sampled_from(MODES),
    st.text(),
    NUMBERS,
    NUMBERS,
    ranges(),
    ranges(),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.booleans(),
)


def written(content: object) -> bytes:
    """A file that is right in all but its content."""
    data: bytes = msgpack.packb(content)
    header = struct.pack("<8sH6xQ", b"FLUXGRPS", 1, len(data))
    return header + struct.pack("<Q", xxhash.xxh3_64_intdigest(header + data)) + data


GROUP = ["g", 0, "", 10, 1, [2, 3, 1], [], 2, 3, 0, True]
TIME = 1_790_000_000_000_000
STATE = [TIME, 0, 20, [GROUP]]


def with_group(place: int, value: object) -> list[object]:
    """The state with one field of its group another."""
    return [*STATE[:3], [[*GROUP[:place], value, *GROUP[place + 1 :]]]]


@given(st.integers(-OFFSET_MAX, OFFSET_MAX), NUMBERS, NUMBERS, st.lists(STATES, max_size=3))
def test_what_is_written_is_read(
    time: int, one: int, other: int, groups: list[ConsumerGroupState]
) -> None:
    state = QueueGroups(time, min(one, other), max(one, other), tuple(groups))
    assert decode(encode(state)) == state


def test_the_layout_is_as_the_text_says() -> None:
    group = ConsumerGroupState("g", "work", "", 10, 1, ((2, 4, 1),), (), 2, 3, 0)
    state = QueueGroups(TIME, 0, 20, (group,))
    assert encode(state) == written(STATE)
    assert decode(written(STATE)) == state
    assert state.group("g") is group
    assert state.group("h") is None


def test_modes_and_reasons_are_the_queues() -> None:
    assert [mode.name.lower() for mode in Mode] == list(MODES)
    assert [reason.text for reason in DeadLetterReason] == list(REASONS)


def test_every_bit_counts() -> None:
    data = written(STATE)
    for bit in range(8 * len(data)):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SegmentError):
            decode(bytes(spoilt))


def test_a_part_of_a_file_is_none() -> None:
    data = written(STATE)
    for length in range(len(data)):
        with pytest.raises(SegmentError):
            decode(data[:length])
    with pytest.raises(SegmentError, match="bytes of content instead of"):
        decode(data + b"\0")


def test_a_newer_version_is_named() -> None:
    header = struct.pack("<8sH6xQ", b"FLUXGRPS", 2, 0)
    data = header + struct.pack("<Q", xxhash.xxh3_64_intdigest(header))
    with pytest.raises(SegmentError, match="version 2; this program reads 1"):
        decode(data)


@given(st.binary(max_size=200))
def test_any_content_is_read_or_refused(content: bytes) -> None:
    header = struct.pack("<8sH6xQ", b"FLUXGRPS", 1, len(content))
    data = header + struct.pack("<Q", xxhash.xxh3_64_intdigest(header + content)) + content
    try:
        state = decode(data)
    except SegmentError:
        return
    assert isinstance(state, QueueGroups)


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        [1, 2, 1, []],
        [1, -1, 1, []],
        [1.5, 0, 1, []],
        [True, 0, 1, []],
        [1, 0, OFFSET_MAX + 1, []],
        [1, 0, 1, [[]]],
        with_group(0, b"g"),
        with_group(1, 2),
        with_group(1, True),
        with_group(2, None),
        with_group(3, -1),
        with_group(4, "1"),
        with_group(5, [2, 3]),
        with_group(5, [2, 0, 1]),
        with_group(5, [-1, 1, 1]),
        with_group(5, [OFFSET_MAX, 1, 1]),
        with_group(5, [0, 1, "1"]),
        with_group(6, [0, 1, -1]),
        with_group(7, OFFSET_MAX + 1),
        with_group(10, 1),
    ],
)
def test_content_of_another_form_is_refused(content: object) -> None:
    with pytest.raises(SegmentError):
        decode(written(content))


def test_ranges_beyond_the_limit_are_refused() -> None:
    assert len(decode(written(with_group(5, [1, 1, 1] * RANGES_MAX))).groups[0].pending) == (
        RANGES_MAX
    )
    with pytest.raises(SegmentError, match="numbers for its ranges"):
        decode(written(with_group(5, [1, 1, 1] * (RANGES_MAX + 1))))


def test_lists_without_end_are_refused() -> None:
    data = b"\x91" * 100_000
    header = struct.pack("<8sH6xQ", b"FLUXGRPS", 1, len(data))
    with pytest.raises(SegmentError):
        decode(header + struct.pack("<Q", xxhash.xxh3_64_intdigest(header + data)) + data)
    assert len(header) + 8 == HEADER_BYTES


def test_neighbours_of_a_kind_are_joined() -> None:
    apart = [(0, 1, 1), (2, 2, 1), (3, 5, 2), (7, 8, 2), (9, 9, 2)]
    assert joined(apart) == ((0, 2, 1), (3, 5, 2), (7, 9, 2))
    assert joined([]) == ()
    assert joined([(0, 0, 0)]) == ((0, 0, 0),)
