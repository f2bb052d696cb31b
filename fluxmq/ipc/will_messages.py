"""Messages about wills, which a cluster keeps in etcd in case that their node ends.

::

    shard -> control             will_change, will_claim
    control -> shard             will_publish

A shard tells which wills its clients have, and claims one before it publishes it; control has a
shard publish those of nodes that have ended. Pure, like `messages`.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from fluxmq.ipc.messages import MessageBody, MessageError, Natural
from fluxmq.ipc.retained_messages import CHANGES_MAX

WILL_CHANGE: Final = "will_change"
WILL_CLAIM: Final = "will_claim"
WILL_PUBLISH: Final = "will_publish"

Client = Annotated[str, Meta(min_length=1, max_length=65_535)]


class WillValue(Struct, frozen=True, array_like=True):
    """Value of a key in etcd: a client's will, in the form in which it will be published.

    ``node`` and ``life`` say which life of which node the client is connected to; control sets
    them. ``delay``: seconds from the end of the connection, at most those that the session outlives
    it. ``principal``, ``without_user`` and ``backend`` say whose permissions hold. ``properties`` are encoded as
    in MQTT 5, without their length; ``expiry``: seconds, None for none.
    """

    topic: bytes
    payload: bytes
    qos: Annotated[int, Meta(ge=0, le=2)]
    retain: bool
    properties: bytes
    delay: Natural
    expiry: Natural | None
    principal: str
    without_user: bool
    node: str = ""
    life: str = ""
    backend: Annotated[str, Meta(max_length=16)] = ""


class WillChange(Struct, frozen=True, array_like=True):
    """A client's will, or None for a client that has none any more."""

    client: Client
    will: WillValue | None = None


class WillChanges(MessageBody, frozen=True):
    """Request to note changes, each of a different client."""

    changes: Annotated[tuple[WillChange, ...], Meta(max_length=CHANGES_MAX)]


class WillClaims(MessageBody, frozen=True):
    """Request to publish the wills of these clients of this node."""

    clients: Annotated[tuple[Client, ...], Meta(max_length=CHANGES_MAX)]


class ClaimedWills(MessageBody, frozen=True):
    """Answer: for each whether this node publishes it; else another one has."""

    granted: Annotated[tuple[bool, ...], Meta(max_length=CHANGES_MAX)]


class WillToPublish(MessageBody, frozen=True):
    """Command to publish the will of a client whose node has ended."""

    client: Client
    will: WillValue


encode_will = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WillValue).decode


def decode_will(data: bytes) -> WillValue:
    """Decode a value. Raises MessageError."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as problem:
        raise MessageError(f"value of a will: {problem}") from problem
