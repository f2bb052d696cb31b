"""Messages about retained messages that the cluster keeps in etcd.

::

    shard -> control             retained_change
    control -> shard             retained

The shard at which a node keeps a topic has its changes committed; every shard is told those of all
nodes. Control does not read the values, but for the moment at which a message expires. Pure, like
`messages`.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from fluxmq.ipc.messages import MessageBody, MessageError, Natural

RETAINED_CHANGE: Final = "retained_change"
RETAINED: Final = "retained"

DELETED: Final = 0
WHOLE: Final = 1
"""The value has the message."""
INDEX: Final = 2
"""The value has everything but the message: its node keeps that."""

CHANGES_MAX: Final = 60
"""Changes in one request, and hence in one transaction: etcd allows 128 operations in one unless it
is told otherwise, and a change takes two."""
ENTRIES_MAX: Final = 1024
PART_BYTES: Final = 1 << 20
"""Bytes of values above which a request, or a part, takes no further one."""

Kind = Annotated[int, Meta(ge=DELETED, le=INDEX)]
Topic = Annotated[bytes, Meta(min_length=1, max_length=65_535)]


class RetainedChange(Struct, frozen=True, array_like=True):
    """Change of a topic."""

    topic: Topic
    kind: Kind
    value: bytes = b""


class RetainedChanges(MessageBody, frozen=True):
    """Request to commit changes of topics, each of which is there once. After a failure any of them
    may be committed."""

    changes: Annotated[tuple[RetainedChange, ...], Meta(max_length=CHANGES_MAX)]


class CommittedChanges(MessageBody, frozen=True):
    """Answer to a request: the revision of its changes."""

    revision: Natural


class CommittedChange(Struct, frozen=True, array_like=True):
    """Change of a topic that was committed at a revision."""

    topic: Topic
    revision: Natural
    kind: Kind
    value: bytes = b""


class RetainedPart(MessageBody, frozen=True):
    """Some of what is committed, in order of revisions: the latest changes, or a part of everything
    there was at ``revision``, the ``first`` or the ``last`` of its parts."""

    entries: Annotated[tuple[CommittedChange, ...], Meta(max_length=ENTRIES_MAX)]
    revision: Natural = 0
    first: bool = False
    last: bool = False


class RetainedValue(Struct, frozen=True, array_like=True):
    """Value of a key in etcd.

    ``deadline``: moment at which the message expires, in seconds since 1970, 0 for never;
    ``number`` and ``origin``: identity of the change on its ``node``; ``size``: bytes of the
    payload. Only a value that is `WHOLE` has the rest: ``publisher`` is a client id, or empty;
    ``properties`` are encoded as in MQTT 5, without their length.
    """

    deadline: float
    node: str
    number: int
    origin: int
    size: int
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    publisher: bytes = b""
    properties: bytes = b""
    payload: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RetainedValue).decode


def encode_value(value: RetainedValue) -> bytes:
    """Encode a value."""
    return _encode(value)


def decode_value(data: bytes) -> RetainedValue:
    """Decode a value. Raises MessageError."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as problem:
        raise MessageError(f"value of a retained message: {problem}") from problem
