"""Encoding of an entry: one time and the commands of one tick, back to back.

::

    entry    0 u8 version   8 i64 time, µs   16 commands back to back
    command  0 u8 kind   1 u8 version   2 u16 verb   4 u32 length, whole, multiple of 8
             8 u32 queue id  12 u32 group id (append: messages that consumers wait for)  16 body

Commands of every tick are packed by struct, the others are a u32 length and msgpack. Every command
is padded to 8 bytes, so that a batch inside an entry is 8-aligned if the entry is. An unknown
command stops the machine (`CommandError`): a committed entry that cannot be decoded means that
files are damaged or that this program is too old.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from fluxmq.model.batch_format import parse
from fluxmq.model.errors import FluxmqError
from fluxmq.queues.config import QueueConfig
from fluxmq.queues.limits import RANGES_PER_COMMAND_MAX, REASON_BYTES_MAX
from fluxmq.queues.origins import IDENTITY, Identity

ENTRY_VERSION: Final = 1
COMMAND_VERSION: Final = 1
COMMAND_VERSION_MAX: Final = 2
"""Version 2 marks commands that an older program would misread: a claim that settles, a consumer
with its own timeout, an append with its requester's identity before the batch."""
ENTRY: Final = struct.Struct("<B7xq")
COMMAND: Final = struct.Struct("<BBHIII")
CLAIM: Final = struct.Struct("<QQQII")
SETTLE: Final = struct.Struct("<QqII")
_CLAIM_ONE: Final = struct.Struct("<BBHIIIQQQIIQQ")
"""A whole claim command of one range, and below a settlement: the shape of nearly all."""
_SETTLE_ONE: Final = struct.Struct("<BBHIIIQqIIQQ")
_LENGTH: Final = struct.Struct("<I")

Range = tuple[int, int]
"""First and last offset, inclusive."""


class CommandError(FluxmqError):
    """A committed entry holds something unknown: damage, or a newer program's data."""


class CommandKind(IntEnum):
    """Kinds of command. Numbers are on disk: never reused."""

    APPEND = 1
    CLAIM = 2
    SETTLE = 3
    DECLARE = 16
    DELETE = 17
    PURGE = 18
    CREATE_GROUP = 19
    DELETE_GROUP = 20
    JOIN = 21
    LEAVE = 22
    SEEK = 23
    COMMIT = 24
    DEAD_LETTER = 25
    DEAD_LETTERED = 26
    SWEEP = 27
    TRIM = 28
    RAISE_VERSION = 29
    TOUCH = 30
    FENCE = 31
    UNFENCE = 32
    ADOPT = 33
    IMPORT = 34
    INSTALL = 35


_CLAIM: Final = int(CommandKind.CLAIM)
_SETTLE: Final = int(CommandKind.SETTLE)
_APPEND: Final = int(CommandKind.APPEND)


class Verb(IntEnum):
    """Ways in which a consumer settles its messages."""

    ACK = 1
    NACK = 2
    REJECT = 3
    RELEASE = 4


class Mode(IntEnum):
    """Consumption mode: each message to one consumer until settled, or reading along a shared
    cursor."""

    WORK = 0
    STREAM = 1


class DeadLetterReason(IntEnum):
    """Reasons for which a message is dead-lettered."""

    NONE = 0
    REJECTED = 1
    EXPIRED = 2
    DELIVERY_LIMIT = 3
    MAX_RETRIES = 4
    MAX_LENGTH = 5

    @property
    def text(self) -> str:
        """The reason's name as dead letters carry it."""
        return self.name.lower()


class StartPosition(IntEnum):
    """Start or seek position of a group. The host resolves times to offsets beforehand."""

    FIRST = 0
    LAST = 1
    NEXT = 2
    OFFSET = 3


Start = tuple[int, int]
"""`StartPosition` and, with OFFSET, the offset."""

FIRST: Final[Start] = (StartPosition.FIRST, 0)
LAST: Final[Start] = (StartPosition.LAST, 0)
NEXT: Final[Start] = (StartPosition.NEXT, 0)


def encode_entry(time_us: int, commands: Iterable[bytes | bytearray | memoryview]) -> bytes:
    """Encode the entry to propose: `commands` in order, at `time_us`. A command may come in
    pieces."""
    return b"".join([ENTRY.pack(ENTRY_VERSION, time_us), *commands])


def append_header(queue_id: int, batch_bytes: int, spare: int = 0) -> bytes:
    """Encode the header of an append; the batch follows as the next piece, without another copy.

    `spare`: messages that the queue may take beyond its limit, since consumers wait for them.
    """
    return COMMAND.pack(_APPEND, COMMAND_VERSION, 0, COMMAND.size + batch_bytes, queue_id, spare)


def append_header_once(queue_id: int, batch_bytes: int, spare: int, identity: Identity) -> bytes:
    """Encode the header of an append that may be retried and takes effect once."""
    length = COMMAND.size + IDENTITY.size + batch_bytes
    header = COMMAND.pack(_APPEND, COMMAND_VERSION_MAX, 0, length, queue_id, spare)
    return header + IDENTITY.pack(identity.origin, identity.number, identity.floor)


def append(queue_id: int, batch: bytes) -> bytes:
    """Store a batch (its length is a multiple of 8)."""
    return append_header(queue_id, len(batch)) + batch


def claim(
    queue_id: int,
    group_id: int,
    holder: int,
    cursor: int,
    target: int,
    ranges: Sequence[Range],
    others: Sequence[tuple[int, int, int]] = (),
    automatic: bool = False,
) -> bytes:
    """Give `ranges` to consumer `holder`, and move the group's cursor from `cursor` to `target`.

    A range lies at or above `cursor` (new messages), or below it (released, due or overdue ones).
    Of the messages the cursor passes, `others` (first, last, time in µs) wait until that time, or
    with time -1 have expired; all remaining ones are skipped and so settled for this group. An
    `automatic` claim settles what it gives.
    """
    version = COMMAND_VERSION_MAX if automatic else COMMAND_VERSION
    if len(ranges) == 1 and not others:
        first, last = ranges[0]
        length = _CLAIM_ONE.size
        return _CLAIM_ONE.pack(
            *(_CLAIM, version, automatic, length, queue_id, group_id),
            *(holder, cursor, target, 1, 0, first, last),
        )
    numbers = [number for item in ranges for number in item]
    numbers += [number for item in others for number in item]
    count = 3 * len(others)
    body = struct.pack(
        f"<QQQII{2 * len(ranges)}Q{count}q",
        *(holder, cursor, target, len(ranges), len(others)),
        *numbers,
    )
    length = COMMAND.size + len(body)
    return COMMAND.pack(_CLAIM, version, automatic, length, queue_id, group_id) + body


def settle(
    queue_id: int,
    group_id: int,
    verb: int,
    holder: int,
    ranges: Sequence[Range],
    delay: int = -1,
    reason: bytes = b"",
) -> bytes:
    """Settle `holder`'s messages in `ranges`. `delay`: µs before a nacked message is redelivered,
    -1 for the back-off.

    `reason` accompanies a rejected message, truncated to `REASON_BYTES_MAX`.
    """
    if len(ranges) == 1 and not reason:
        first, last = ranges[0]
        length = _SETTLE_ONE.size
        return _SETTLE_ONE.pack(
            *(_SETTLE, COMMAND_VERSION, verb, length, queue_id, group_id),
            *(holder, delay, 1, 0, first, last),
        )
    reason = reason[:REASON_BYTES_MAX]
    numbers = [number for item in ranges for number in item]
    body = struct.pack(f"<QqII{len(numbers)}Q", holder, delay, len(ranges), len(reason), *numbers)
    if reason:
        body += reason + bytes(-len(reason) % 8)
    length = COMMAND.size + len(body)
    return COMMAND.pack(_SETTLE, COMMAND_VERSION, verb, length, queue_id, group_id) + body


def declare(config: QueueConfig) -> bytes:
    """Create a queue, or reconfigure an existing one of this name and type."""
    return _packed(CommandKind.DECLARE, 0, 0, config.pack())


def delete(queue_id: int, if_unused: bool = False, if_empty: bool = False) -> bytes:
    """Delete a queue with all its content; with a condition, only without consumers, or ready
    messages."""
    return _packed(CommandKind.DELETE, queue_id, 0, [if_unused, if_empty])


def touch(queue_id: int) -> bytes:
    """Mark the queue as used although it has no consumer, which postpones its expiry."""
    return _packed(CommandKind.TOUCH, queue_id, 0, None)


def purge(queue_id: int) -> bytes:
    """Drop the ready messages of every group; unacked ones stay with their consumers."""
    return _packed(CommandKind.PURGE, queue_id, 0, None)


def create_group(
    queue_id: int, group: str, mode: int = Mode.WORK, filter_: bytes = b"", start: Start = FIRST
) -> bytes:
    """Create a consumer group. `group` is its whole name, `<name>@<filter>` when it has a
    filter."""
    return _packed(CommandKind.CREATE_GROUP, queue_id, 0, [group, int(mode), filter_, *start])


def delete_group(queue_id: int, group_id: int) -> bytes:
    """Delete a group; messages that only it needed go."""
    return _packed(CommandKind.DELETE_GROUP, queue_id, group_id, None)


def join(
    queue_id: int, group: str, holder: int, member: str, visiting: bool = False, timeout: int = 0
) -> bytes:
    """Add a consumer named `member` to the group of that whole name; it claims as number `holder`.

    A `visiting` one may claim and settle, but does not keep the queue in use. `timeout`: µs after
    which its unsettled messages may be claimed again; 0 is the queue's, or for a known consumer its
    earlier value.
    """
    body: list[Any] = [group, holder, member]
    if timeout:
        body += [visiting, timeout]
        return _packed(CommandKind.JOIN, queue_id, 0, body, COMMAND_VERSION_MAX)
    if visiting:
        body.append(True)
    return _packed(CommandKind.JOIN, queue_id, 0, body)


def leave(queue_id: int, group: str, holder: int) -> bytes:
    """Remove a consumer: everything it holds is released."""
    return _packed(CommandKind.LEAVE, queue_id, 0, [group, holder])


def seek(queue_id: int, group_id: int, start: Start) -> bytes:
    """Set a group's cursor; pending messages are forgotten, and redelivered if above the cursor."""
    return _packed(CommandKind.SEEK, queue_id, group_id, [*start])


def commit(queue_id: int, group_id: int, offset: int) -> bytes:
    """Commit a stream group's offset: it needs nothing below, and resumes there after a restart."""
    return _packed(CommandKind.COMMIT, queue_id, group_id, offset)


def dead_letter(queue_id: int, group_id: int, reason: int, ranges: Sequence[Range]) -> bytes:
    """Dead-letter waiting or overdue messages for `reason`; without a dead-letter queue, drop
    them."""
    return _packed(CommandKind.DEAD_LETTER, queue_id, group_id, [int(reason), *map(list, ranges)])


def dead_lettered(queue_id: int, group_id: int, ranges: Sequence[Range]) -> bytes:
    """Release messages from the source: their dead-letter append is committed."""
    return _packed(CommandKind.DEAD_LETTERED, queue_id, group_id, [*map(list, ranges)])


def sweep(queue_id: int) -> bytes:
    """Apply effects of time alone: retention by age, expiry of unused groups and of the queue."""
    return _packed(CommandKind.SWEEP, queue_id, 0, None)


def trim(queue_id: int, offset: int) -> bytes:
    """Drop everything below `offset`, even if still needed (an operator's command)."""
    return _packed(CommandKind.TRIM, queue_id, 0, offset)


def raise_version(version: int) -> bytes:
    """Make every replica behave as machine version `version` from this entry on."""
    return _packed(CommandKind.RAISE_VERSION, 0, 0, version)


def fence(queue_id: int) -> bytes:
    """Close the queue before it moves to another group: it takes and gives nothing any more."""
    return _packed(CommandKind.FENCE, queue_id, 0, None)


def unfence(queue_id: int) -> bytes:
    """Abort the move: open the fenced queue again."""
    return _packed(CommandKind.UNFENCE, queue_id, 0, None)


def appended(data: bytes) -> int:
    """Return the number of messages that an entry appends, or repeats. Raises BatchError."""
    position, end, count = ENTRY.size, len(data), 0
    while position + COMMAND.size <= end:
        kind, version, _, length, _, _ = COMMAND.unpack_from(data, position)
        if length < COMMAND.size:
            break
        if kind == _APPEND:
            identity = 0 if version == COMMAND_VERSION else IDENTITY.size
            count += parse(data, position + COMMAND.size + identity).count
        position += length
    return count


def unpack_body(data: bytes, position: int, end: int) -> Any:
    """Return the msgpack body of a command at `position`. Raises `CommandError` when it is
    invalid."""
    (length,) = _LENGTH.unpack_from(data, position)
    if length > end - position - _LENGTH.size:
        raise CommandError("a command's body is longer than the command")
    start = position + _LENGTH.size
    try:
        return msgpack.unpackb(data[start : start + length], use_list=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise CommandError("a command's body is not msgpack") from error


def unpack_ranges(data: bytes, position: int, end: int, count: int) -> list[Range]:
    """Return `count` ranges at `position`. Raises `CommandError` when they do not fit or are
    reversed."""
    if count > RANGES_PER_COMMAND_MAX or position + 16 * count > end:
        raise CommandError("a command's ranges are longer than the command")
    if count == 1:
        first, last = _ONE.unpack_from(data, position)
        ranges = [(first, last)]
    else:
        numbers = struct.unpack_from(f"<{2 * count}Q", data, position)
        ranges = list(zip(numbers[::2], numbers[1::2], strict=True))
    for first, last in ranges:
        if first > last:
            raise CommandError("a range ends before it starts")
    return ranges


def unpack_others(data: bytes, position: int, end: int, count: int) -> list[tuple[int, int, int]]:
    """Return `count` triples of first, last and time at `position`. Raises as `unpack_ranges`
    does."""
    if count > RANGES_PER_COMMAND_MAX or position + 24 * count > end:
        raise CommandError("a command's ranges are longer than the command")
    numbers = struct.unpack_from(f"<{3 * count}q", data, position)
    others = list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))
    for first, last, _ in others:
        if not 0 <= first <= last:
            raise CommandError("a range ends before it starts")
    return others


_ONE: Final = struct.Struct("<QQ")


def checked(ranges: list[list[int]]) -> list[Range]:
    """Return the ranges of a msgpack body. Raises `CommandError` for a reversed one."""
    for first, last in ranges:
        if not 0 <= first <= last:
            raise CommandError("a range ends before it starts")
    return [(first, last) for first, last in ranges]


def _packed(
    kind: int, queue_id: int, group_id: int, body: Any, version: int = COMMAND_VERSION
) -> bytes:
    """Encode a command whose body is msgpack."""
    packed: bytes = msgpack.packb(body)
    padded = _LENGTH.pack(len(packed)) + packed
    padded += bytes(-len(padded) % 8)
    length = COMMAND.size + len(padded)
    return COMMAND.pack(kind, version, 0, length, queue_id, group_id) + padded
