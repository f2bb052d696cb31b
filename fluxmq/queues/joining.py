"""Two commands that nobody waits for as one: claims and settlements that go on where the last ones ended.

What nearly all of them are has a fixed shape (one range), so that looking at bytes is enough. The one command does what
the two do one after the other; what is not of that shape, or does not follow, stays as it is.
"""

from __future__ import annotations

import struct
from typing import Final

from fluxmq.queues.commands import Kind

CLAIM: Final = int(Kind.CLAIM)
SETTLE: Final = int(Kind.SETTLE)
"""Kinds that may be joined; a command begins with its kind."""
_IDS: Final = struct.Struct("<II")
_CLAIM: Final = struct.Struct("<24sQQIIQQ")
"""A claim of one range: up to the consumer, cursor, target, number of ranges and of others, first, last."""
_SETTLE: Final = struct.Struct("<40sQQ")
"""A settlement of one range and no reason: all but its messages, first, last."""
_ONE_RANGE: Final = struct.pack("<II", 1, 0)
"""How both say that one range follows, and nothing else."""


def owner_of(command: bytes) -> bytes:
    """Queue and group of a claim or settlement, as they stand in it."""
    return command[8:16]


def consumer_of(command: bytes) -> bytes:
    """Queue, group and consumer of a claim or settlement, as they stand in it."""
    return command[8:24]


def target_of(claim: bytes) -> tuple[int, int, int]:
    """Queue and group id of a claim of one range, and where it moves the group's cursor."""
    queue_id, group_id = _IDS.unpack_from(claim, 8)
    return queue_id, group_id, _CLAIM.unpack(claim)[2]


def takes_new_only(claim: bytes) -> bool:
    """Whether a claim is of messages that follow each other from the cursor on, as nearly all are."""
    if len(claim) != _CLAIM.size:
        return False
    _, cursor, _, ranges, others, first, _ = _CLAIM.unpack(claim)
    return ranges == 1 and not others and bool(cursor <= first)


def joined_claim(claim: bytes, following: bytes) -> bytes | None:
    """One claim in place of two of one group, both of new messages; None when the second is another consumer's or does
    not go on where the first ends."""
    size = _CLAIM.size
    if len(claim) != size or len(following) != size:
        return None
    head, cursor, target, ranges, others, first, last = _CLAIM.unpack(claim)
    head2, cursor2, target2, ranges2, others2, first2, last2 = _CLAIM.unpack(following)
    follows = head2 == head and cursor2 == target and first2 == last + 1 and first2 >= cursor2
    if not follows or others or others2 or ranges != 1 or ranges2 != 1 or first < cursor:
        return None
    return _CLAIM.pack(head, cursor, target2, 1, 0, first, last2)


def joined_settlement(settlement: bytes, following: bytes) -> bytes | None:
    """One settlement in place of two; None when they are of different consumers or say different things, or when the
    messages of the second do not follow those of the first."""
    size = _SETTLE.size
    if len(settlement) != size or len(following) != size:
        return None
    head, first, last = _SETTLE.unpack(settlement)
    head2, first2, last2 = _SETTLE.unpack(following)
    if head2 != head or first2 != last + 1 or head[32:] != _ONE_RANGE:
        return None
    return _SETTLE.pack(head, first, last2)
