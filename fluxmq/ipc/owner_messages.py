"""Messages about the owners of client ids, which a cluster keeps in etcd.

::

    shard -> control             owner_claim
    control -> shard             owner_term

A shard claims a client id for its node before a client connects with it. Control tells until when
the node's keys hold for certain. Pure, like `messages`.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from fluxmq.ipc.messages import MessageBody, MessageError
from fluxmq.ipc.will_messages import Client

OWNER_CLAIM: Final = "owner_claim"
OWNER_TERM: Final = "owner_term"

CLAIMS_MAX: Final = 250
"""Claims in a request, and releases: a shard takes some 20 ms to let in as many clients."""
REQUEST_BYTES: Final = 256 << 10
"""Size of the client ids in a request, unless it has a single one of either kind."""

Moment = Annotated[float, Meta(ge=0)]
Revision = Annotated[int, Meta(ge=0)]


class OwnerKey(Struct, frozen=True, array_like=True):
    """A client id, and the revision of the key that names its owner: 0 if there is none. ``look``:
    there probably is one, so that reading the key first saves a commit that fails."""

    client: Client
    revision: Revision
    look: bool = False


class OwnerKeys(MessageBody, frozen=True):
    """Request to become the owner of client ids whose keys are of these revisions, and the owner of
    others no longer; each id is another one."""

    claims: Annotated[tuple[OwnerKey, ...], Meta(max_length=CLAIMS_MAX)] = ()
    releases: Annotated[tuple[OwnerKey, ...], Meta(max_length=CLAIMS_MAX)] = ()


class FoundOwner(Struct, frozen=True, array_like=True):
    """The owner of a client id: a node, its life, and the revision of the key. ``ours``: it has become
    the owner by this claim. If it was the owner before, a shard of it may have died, or an answer was
    lost, since: it claims the id again, so that a claim that another node is about to make fails.
    All are empty if there is no owner."""

    node: str = ""
    life: str = ""
    revision: Revision = 0
    ours: bool = False


class FoundOwners(MessageBody, frozen=True):
    """Answer: the owner of each id that was claimed; ``until`` as in `OwnerTerm`."""

    owners: Annotated[tuple[FoundOwner, ...], Meta(max_length=CLAIMS_MAX)]
    until: Moment


class OwnerTerm(MessageBody, frozen=True):
    """Command: the node owns its client ids until that moment, in monotonic seconds, for certain, and
    after it only if a later command says so."""

    until: Moment


class OwnerValue(Struct, frozen=True):
    """Value of a key in etcd, as JSON."""

    node: str
    life: str


encode_owner = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(OwnerValue).decode


def decode_owner(data: bytes) -> OwnerValue:
    """Decode a value. Raises MessageError."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as problem:
        raise MessageError(f"value of an owner: {problem}") from problem
