"""The bodies of the campaign: each says who sent it as what, and proves that it is whole.

    magic 4 | campaign u32 | publisher u32 | sequence u32 | filler of any length | BLAKE2b-64 of all before

The filler follows from the three numbers, so equal numbers mean equal bodies. Big-endian.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

MAGIC = b"cut1"
HEAD = struct.Struct(">4sIII")
DIGEST_BYTES = 8
LENGTHS = (0, 20, 220, 220, 220, 900, 5000)
"""Of the filler: mostly small, now and then several kilobytes."""


class Identity(NamedTuple):
    """What a body says of itself."""

    campaign: int
    publisher: int
    sequence: int


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def build(identity: Identity) -> bytes:
    """The one body with this identity."""
    head = HEAD.pack(MAGIC, *identity)
    mixed = (identity.sequence * 2654435761 + identity.publisher) & 0xFFFFFFFF
    length = LENGTHS[(mixed >> 16) % len(LENGTHS)]
    content = head + _digest(head) * (length // DIGEST_BYTES)
    return content + _digest(content)


def parse(body: bytes) -> Identity | None:
    """The identity of a body; None when it is not whole or not of this kind."""
    if (
        len(body) < HEAD.size + DIGEST_BYTES
        or _digest(body[:-DIGEST_BYTES]) != body[-DIGEST_BYTES:]
    ):
        return None
    magic, *numbers = HEAD.unpack_from(body)
    return Identity(*numbers) if magic == MAGIC else None
