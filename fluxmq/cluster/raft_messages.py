"""Encoding of the Raft core's messages, for the streams between members.

::

    0  u8  version       12 u64 term        36 u64 commit       68 u32 number of entries
    1  u8  kind          20 u64 index       44 u64 hint         72 entries: u64 term, u64 index,
    2  u16 flags         28 u64 log_term    52 u64 hint_term       u8 kind, u32 length, data
    4  u64 sender                           60 u64 context

All little endian. Flags: 1 reject, 2 a snapshot follows the entries: u64 index, u64 term, u16
voters, u16 learners, their numbers, data to the end. The receiver is implied: the stream is the
group's own. A message that does not parse, or whose sender is not the stream's, is refused with
`MalformedMessage` and changes nothing.
"""

from __future__ import annotations

import struct
from typing import Final

from fluxmq.raft.errors import MalformedMessage
from fluxmq.raft.types import (
    COMMAND,
    MEMBERSHIP,
    Entry,
    Membership,
    Message,
    MessageKind,
    Snapshot,
    SnapshotMark,
)

VERSION: Final = 1
_HEAD: Final = struct.Struct("<BBHQQQQQQQQI")
_ENTRY: Final = struct.Struct("<QQBI")
_SNAPSHOT: Final = struct.Struct("<QQHH")
_REJECT: Final = 1
_WITH_SNAPSHOT: Final = 2
_KINDS: Final = {int(kind): kind for kind in MessageKind}


def encode(message: Message) -> bytes:
    """Encode a message as one frame."""
    snapshot = message.snapshot
    flags = (_REJECT if message.reject else 0) | (_WITH_SNAPSHOT if snapshot is not None else 0)
    pieces = [
        _HEAD.pack(
            VERSION,
            message.kind,
            flags,
            message.source,
            message.term,
            message.index,
            message.log_term,
            message.commit,
            message.hint,
            message.hint_term,
            message.context,
            len(message.entries),
        )
    ]
    for entry in message.entries:
        pieces.append(_ENTRY.pack(entry.term, entry.index, entry.kind, len(entry.data)))
        pieces.append(entry.data)
    if snapshot is not None:
        mark = snapshot.mark
        voters, learners = mark.membership
        pieces.append(_SNAPSHOT.pack(mark.index, mark.term, len(voters), len(learners)))
        pieces.append(struct.pack(f"<{len(voters) + len(learners)}Q", *voters, *learners))
        pieces.append(snapshot.data)
    return b"".join(pieces)


def decode(frame: bytes, source: int, target: int) -> Message:
    """Decode a frame that member `source` sent to `target`. Raises MalformedMessage."""
    try:
        message, flags, count = _head(frame, target)
        if message.source != source:
            raise MalformedMessage(f"it names {message.source} as its sender, not {source}")
        message.entries, at = _entries(frame, _HEAD.size, count)
        if flags & _WITH_SNAPSHOT:
            message.snapshot = _snapshot(frame, at)
        elif at != len(frame):
            raise MalformedMessage(f"{len(frame) - at} bytes too many")
    except struct.error as error:
        raise MalformedMessage(f"it ends early: {error}") from error
    return message


def _head(frame: bytes, target: int) -> tuple[Message, int, int]:
    version, kind, flags, source, term, index, log_term, commit, hint, hint_term, context, count = (
        _HEAD.unpack_from(frame)
    )
    if version != VERSION:
        raise MalformedMessage(f"version {version} is not known")
    known = _KINDS.get(kind)
    if known is None:
        raise MalformedMessage(f"kind {kind} is not known")
    if flags & ~(_REJECT | _WITH_SNAPSHOT):
        raise MalformedMessage(f"flags {flags} are not known")
    message = Message(known, source, target, term, index, log_term, (), commit)
    message.reject = bool(flags & _REJECT)
    message.hint, message.hint_term, message.context = hint, hint_term, context
    return message, flags, count


def _entries(frame: bytes, at: int, count: int) -> tuple[list[Entry], int]:
    if count * _ENTRY.size > len(frame):
        raise MalformedMessage(f"{count} entries do not fit into {len(frame)} bytes")
    entries: list[Entry] = []
    for _ in range(count):
        term, index, kind, length = _ENTRY.unpack_from(frame, at)
        at += _ENTRY.size
        if not COMMAND <= kind <= MEMBERSHIP:
            raise MalformedMessage(f"entry {index} is of an unknown kind, {kind}")
        if at + length > len(frame):
            raise MalformedMessage(f"entry {index} ends behind the message")
        entries.append(Entry(term, index, kind, frame[at : at + length]))
        at += length
    return entries, at


def _snapshot(frame: bytes, at: int) -> Snapshot:
    index, term, voters, learners = _SNAPSHOT.unpack_from(frame, at)
    at += _SNAPSHOT.size
    numbers = struct.unpack_from(f"<{voters + learners}Q", frame, at)
    at += 8 * (voters + learners)
    membership = Membership(numbers[:voters], numbers[voters:])
    return Snapshot(SnapshotMark(index, term, membership), frame[at:])
