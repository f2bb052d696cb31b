"""Messages between control processes besides Raft's, as frames of the stream: a kind, and msgpack.

All content is validated here: an invalid frame ends its stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fluxmq.control.meta.fields import Fields
from fluxmq.control.meta.tables import MemberState
from fluxmq.control.topology_rows import pack, unpack
from fluxmq.ipc.messages import ID_MAX, Body, MessageError

RAFT: Final = 0
"""Message of the Raft core, see `fluxmq.cluster.raft_messages`."""
INTRODUCTION: Final = 1
WELCOME: Final = 2
"""From the leader: your directory is known, later messages are meant for it. No content."""
REQUEST: Final = 3
ANSWER: Final = 4
PART: Final = 5
PART_TAKEN: Final = 6
SNAPSHOT: Final = 7
PROGRESS: Final = 8
DIGEST_WANTED: Final = 9
"""Request for the digest of a copy. No content."""
DIGEST: Final = 10
DIFFERS: Final = 11
"""From the leader: your copy differs from a majority's. No content."""
KIND_BYTES_MAX: Final = 64
TEXT_MAX: Final = 4096
PARTS_MAX: Final = 1 << 20
DIGEST_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Introduction:
    """First frame of each stream, repeated on changes: identity, log progress, knowledge of the
    receiver.

    `known_incarnation` and `known_index` are 0 when nothing is known of the receiver; `applied` is
    the index up to which the sender knows it. `brings` as in `tables.Kept`. `cluster` is the
    sender's cluster, 0 while it has none.
    """

    incarnation: int
    standing: MemberState
    last_index: int
    applied: int
    brings: bool
    cluster: int
    known_incarnation: int
    known_index: int


@dataclass(frozen=True, slots=True)
class Request:
    """A change for the leader to decide about."""

    number: int
    kind: str
    body: Body


@dataclass(frozen=True, slots=True)
class RequestReply:
    """Reply to a request: `body`, or an error as `code` and `text`. An empty code: not leading,
    nothing was done."""

    number: int
    body: Mapping[str, Any] | None
    code: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of the snapshot with this number, counted from 0."""

    snapshot: int
    place: int
    data: bytes


@dataclass(frozen=True, slots=True)
class PartReceived:
    """Acknowledgement of a snapshot's parts up to this one."""

    snapshot: int
    place: int


@dataclass(frozen=True, slots=True)
class SnapshotSent:
    """End of a snapshot; `message` is the Raft core's message that it belongs to."""

    snapshot: int
    parts: int
    message: bytes


TOPOLOGY: Final = "topology"
USERS: Final = "users"
PROGRESSES: Final = frozenset({TOPOLOGY, USERS})


@dataclass(frozen=True, slots=True)
class RevisionProgress:
    """Revision of something that all live shards of the sender have applied."""

    what: str
    revision: int


@dataclass(frozen=True, slots=True)
class Digest:
    """All rows of the sender's copy at an index, as one number."""

    applied: int
    content: bytes


Frame = (
    Introduction
    | Request
    | RequestReply
    | Part
    | PartReceived
    | SnapshotSent
    | RevisionProgress
    | Digest
)
_KINDS: Final[dict[type[Any], int]] = {
    Introduction: INTRODUCTION,
    Request: REQUEST,
    RequestReply: ANSWER,
    Part: PART,
    PartReceived: PART_TAKEN,
    SnapshotSent: SNAPSHOT,
    RevisionProgress: PROGRESS,
    Digest: DIGEST,
}
BODY_BYTES_MAX: Final = 96 << 20
"""Maximum size of a frame, a part or a request with headroom; larger ones are invalid."""


def encode(frame: Frame) -> bytes:
    """Encode a frame."""
    fields = {name: getattr(frame, name) for name in frame.__slots__}
    return bytes((_KINDS[type(frame)],)) + pack(fields)


def decode(data: bytes) -> Frame:
    """Decode a frame. Raises MessageError when it is malformed."""
    kind = data[0] if data else -1
    try:
        fields = Fields(unpack(data[1:]), "frame")
    except ValueError as error:
        raise MessageError(str(error)) from error
    reader = _READERS.get(kind)
    if reader is None:
        raise MessageError(f"a frame of unknown kind {kind}")
    return reader(fields)


def _introduction(fields: Fields) -> Introduction:
    try:
        standing = MemberState(fields.text("standing", KIND_BYTES_MAX))
    except ValueError as error:
        raise MessageError(str(error)) from error
    return Introduction(
        fields.integer("incarnation"),
        standing,
        fields.integer("last_index"),
        fields.integer("applied"),
        fields.boolean("brings"),
        fields.integer("cluster"),
        fields.integer("known_incarnation"),
        fields.integer("known_index"),
    )


def _request(fields: Fields) -> Request:
    body = Fields(fields.optional("body"), "request").body
    return Request(fields.integer("number", 1, ID_MAX), fields.text("kind", KIND_BYTES_MAX), body)


def _answer(fields: Fields) -> RequestReply:
    body = fields.optional("body")
    return RequestReply(
        fields.integer("number", 1, ID_MAX),
        None if body is None else Fields(body, "answer").body,
        fields.text("code", KIND_BYTES_MAX),
        fields.text("text", TEXT_MAX),
    )


def _part(fields: Fields) -> Part:
    place = fields.integer("place", 0, PARTS_MAX)
    return Part(fields.integer("snapshot"), place, fields.data("data", BODY_BYTES_MAX))


def _part_taken(fields: Fields) -> PartReceived:
    return PartReceived(fields.integer("snapshot"), fields.integer("place", 0, PARTS_MAX))


def _snapshot(fields: Fields) -> SnapshotSent:
    parts = fields.integer("parts", 1, PARTS_MAX)
    return SnapshotSent(fields.integer("snapshot"), parts, fields.data("message", BODY_BYTES_MAX))


def _progress(fields: Fields) -> RevisionProgress:
    what = fields.text("what", KIND_BYTES_MAX)
    if what not in PROGRESSES:
        raise MessageError(f"progress of {what!r}")
    return RevisionProgress(what, fields.integer("revision"))


def _digest(fields: Fields) -> Digest:
    return Digest(fields.integer("applied"), fields.data("content", DIGEST_BYTES))


_READERS: Final[dict[int, Callable[[Fields], Frame]]] = {
    INTRODUCTION: _introduction,
    REQUEST: _request,
    ANSWER: _answer,
    PART: _part,
    PART_TAKEN: _part_taken,
    SNAPSHOT: _snapshot,
    PROGRESS: _progress,
    DIGEST: _digest,
}
