"""The file `groups` beside a queue's segments: its consumer groups at one moment. Pure: bytes in,
values out.

The broker writes it about once a second while something changes; readers outside the broker (Spark)
learn from it which messages are settled. It is for reading only: no broker start relies on it.

::

    0 8s  magic "FLUXGRPS"       16 u64 content's length
    8 u16 version, 6 zeros       24 u64 xxh3-64 over the first 24 bytes and the content
    32 content, msgpack: [time, start, next offset, groups]
    a group: [name, mode, filter, cursor, members, pending, dead, floor, pending messages,
              dead messages, whole]
    pending and dead: numbers, three for each range: its first offset less the offset after the
    range before it, messages, and deliveries so far (pending) or the reason (dead)

A message with offset o is settled if o is below the group's cursor and in no range. Ranges are in
order and disjoint; neighbours with the same third number are one. A file holds at most RANGES_MAX
ranges, counted before merging. A group with too many has none, and `whole` is false; its message
counts are still correct.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgpack  # type: ignore[import-untyped]
from xxhash import xxh3_64_intdigest

from fluxmq.model.segments import SegmentError

GROUPS_NAME: Final = "groups"
"""The file's name, in the directory of a queue's log."""

FORMAT_VERSION: Final = 1

RANGES_MAX: Final = 65_536
"""Ranges, pending and dead, of all groups in a file: some 300 KB, for which the broker is busy 20
ms."""

OFFSET_MAX: Final = (1 << 63) - 1
"""Largest offset: a signed number of eight bytes, as in Spark."""

WORK: Final = "work"
STREAM: Final = "stream"
MODES: Final = (WORK, STREAM)
"""Consumption mode: each message settled by itself, or by a cursor; the file has its index in this
tuple."""

REASONS: Final = (
    *("none", "rejected", "expired"),
    *("delivery_limit", "max_retries", "max_length"),
)
"""Reasons for dead letters, by their number in dead ranges."""

_HEADER: Final = struct.Struct("<8sH6xQ")
_CHECK: Final = struct.Struct("<Q")
_MAGIC: Final = b"FLUXGRPS"
HEADER_BYTES: Final = _HEADER.size + _CHECK.size

Range = tuple[int, int, int]
"""First and last offset, and deliveries so far (pending) or the number of the reason (dead)."""

assert HEADER_BYTES == 32


class ConsumerGroupState(NamedTuple):
    """A consumer group at one moment.

    `cursor`: work: the first message that was never given; stream: the committed offset. `whole`:
    whether the ranges are included. `pending_messages` and `dead_messages` are always counted.
    `floor`: everything below is settled.
    """

    name: str
    mode: str
    filter: str
    cursor: int
    members: int
    pending: tuple[Range, ...]
    dead: tuple[Range, ...]
    floor: int
    pending_messages: int
    dead_messages: int
    whole: bool = True


class QueueGroups(NamedTuple):
    """All groups of a queue at one moment: `time`, µs since the epoch; the queue's first offset,
    and that after its last."""

    time: int
    start: int
    next_offset: int
    groups: tuple[ConsumerGroupState, ...]

    def group(self, name: str) -> ConsumerGroupState | None:
        """Return the group of that name, None if there is none."""
        return next((group for group in self.groups if group.name == name), None)


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Merge neighbouring ranges, in order and disjoint, that have the same third number."""
    found: list[Range] = []
    low, high, number = 0, -1, 0
    for first, last, third in ranges:
        if first == high + 1 and third == number and high >= low:
            high = last
            continue
        if high >= low:
            found.append((low, high, number))
        low, high, number = first, last, third
    if high >= low:
        found.append((low, high, number))
    return tuple(found)


# --- writing -------------------------------------------------------------------------------------------------------


def encode(state: QueueGroups) -> bytes:
    """Encode the file."""
    groups = [
        (
            *(group.name, MODES.index(group.mode), group.filter, group.cursor, group.members),
            *(_flat(group.pending), _flat(group.dead)),
            *(group.floor, group.pending_messages, group.dead_messages, group.whole),
        )
        for group in state.groups
    ]
    content: bytes = msgpack.packb([state.time, state.start, state.next_offset, groups])
    header = _HEADER.pack(_MAGIC, FORMAT_VERSION, len(content))
    return b"".join((header, _CHECK.pack(xxh3_64_intdigest(header + content)), content))


def _flat(ranges: Sequence[Range]) -> list[int]:
    flat: list[int] = []
    after = 0
    for first, last, third in ranges:
        flat += (first - after, last - first + 1, third)
        after = last + 1
    return flat


# --- reading -------------------------------------------------------------------------------------------------------


def decode(data: bytes) -> QueueGroups:
    """Decode a file's bytes. Raises SegmentError."""
    if len(data) < HEADER_BYTES:
        raise SegmentError("the group file ends within its header")
    magic, version, length = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise SegmentError("the file is not a group file")
    if len(data) != HEADER_BYTES + length:
        what = f"{len(data) - HEADER_BYTES} bytes of content instead of {length}"
        raise SegmentError(f"the group file has {what}")
    content = data[HEADER_BYTES:]
    check = xxh3_64_intdigest(data[: _HEADER.size] + content)
    if _CHECK.unpack_from(data, _HEADER.size) != (check,):
        raise SegmentError("the group file does not match its checksum")
    if version != FORMAT_VERSION:
        raise SegmentError(f"groups of version {version}; this program reads {FORMAT_VERSION}")
    try:
        unpacked = msgpack.unpackb(
            content,
            use_list=False,
            strict_map_key=True,
            max_str_len=length,
            max_bin_len=0,
            max_array_len=length,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise SegmentError(f"the content of the group file cannot be decoded: {error}") from None
    match unpacked:
        case (int(time), int(start), int(next_offset), tuple(groups)) if (
            type(time) is type(start) is type(next_offset) is int
            and 0 <= start <= next_offset <= OFFSET_MAX
            and abs(time) <= OFFSET_MAX
        ):
            return QueueGroups(time, start, next_offset, tuple(map(_group, groups)))
    raise SegmentError("the content of the group file is malformed")


def _group(packed: object) -> ConsumerGroupState:
    match packed:
        case (
            str(name),
            mode,
            str(filter_),
            cursor,
            members,
            tuple(pending),
            tuple(dead),
            floor,
            pending_messages,
            dead_messages,
            bool(whole),
        ):
            place = _number(name, mode)
            if place >= len(MODES):
                raise SegmentError(f"group {name!r} has the unknown mode {mode}")
            return ConsumerGroupState(
                name,
                MODES[place],
                filter_,
                _number(name, cursor),
                _number(name, members),
                _ranges(name, pending),
                _ranges(name, dead),
                _number(name, floor),
                _number(name, pending_messages),
                _number(name, dead_messages),
                whole,
            )
    raise SegmentError("a group in the group file is malformed")


def _number(name: str, number: object) -> int:
    if not isinstance(number, int) or type(number) is bool or not 0 <= number <= OFFSET_MAX:
        raise SegmentError(f"group {name!r} has {number!r} where a number belongs")
    return number


def _ranges(name: str, flat: tuple[object, ...]) -> tuple[Range, ...]:
    if len(flat) % 3 or len(flat) > 3 * RANGES_MAX:
        raise SegmentError(f"group {name!r} has {len(flat)} numbers for its ranges")
    ranges: list[Range] = []
    after = 0
    for at in range(0, len(flat), 3):
        match flat[at : at + 3]:
            case (int(distance), int(messages), int(third)) if (
                type(distance) is type(messages) is type(third) is int
                and distance >= 0
                and messages > 0
                and 0 <= third <= OFFSET_MAX
                and after + distance + messages <= OFFSET_MAX
            ):
                first = after + distance
                after = first + messages
                ranges.append((first, after - 1, third))
            case _:
                raise SegmentError(f"group {name!r} has a range that cannot be")
    return tuple(ranges)
