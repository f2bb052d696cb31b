"""Merging of two claims or settlements of which the second continues the first.

Nearly all of them have a fixed shape (one range), so comparing bytes is enough. The merged command
does what the two do in sequence; commands of another shape, or that do not continue, stay as they
are.
"""

from __future__ import annotations

import struct
from typing import Final

from fluxmq.queues.commands import CommandKind

CLAIM: Final = int(CommandKind.CLAIM)
SETTLE: Final = int(CommandKind.SETTLE)
"""Kinds that may be merged; a command begins with its kind."""
_IDS: Final = struct.Struct("<II")
_CLAIM: Final = struct.Struct("<24sQQIIQQ")
"""A claim of one range: up to the consumer, cursor, target, number of ranges and of others, first,
last."""
_SETTLE: Final = struct.Struct("<40sQQ")
"""A settlement of one range and no reason: all but its messages, first, last."""
_ONE_RANGE: Final = struct.pack("<II", 1, 0)
"""Bytes by which both say that one range follows, and nothing else."""


def owner_of(command: bytes) -> bytes:
    """Return the encoded queue and group of a claim or settlement."""
    return command[8:16]


def consumer_of(command: bytes) -> bytes:
    """Return the encoded queue, group and consumer of a claim or settlement."""
    return command[8:24]


def target_of(claim: bytes) -> tuple[int, int, int]:
    """Return queue id, group id and target cursor of a claim of one range."""
    queue_id, group_id = _IDS.unpack_from(claim, 8)
    return queue_id, group_id, _CLAIM.unpack(claim)[2]


def takes_new_only(claim: bytes) -> bool:
    """Return whether a claim is of consecutive messages from the cursor on, as nearly all are."""
    if len(claim) != _CLAIM.size:
        return False
    _, cursor, _, ranges, others, first, _ = _CLAIM.unpack(claim)
    return ranges == 1 and not others and bool(cursor <= first)


def joined_claim(claim: bytes, following: bytes) -> bytes | None:
    """Merge two claims of new messages; return None unless they are one consumer's and the second
    continues the first."""
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
    """Merge two settlements; return None unless they are the same consumer's, verb included, and
    the second's messages follow the first's."""
    size = _SETTLE.size
    if len(settlement) != size or len(following) != size:
        return None
    head, first, last = _SETTLE.unpack(settlement)
    head2, first2, last2 = _SETTLE.unpack(following)
    if head2 != head or first2 != last + 1 or head[32:] != _ONE_RANGE:
        return None
    return _SETTLE.pack(head, first, last2)
