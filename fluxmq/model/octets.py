"""Bytes as a loop reads them, and little-endian numbers, uncompiled: compiled modules take both
from ``octets.pxd``."""

from __future__ import annotations

import struct

Octets = bytes | bytearray | memoryview
Writable = bytearray | memoryview

_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_U64 = struct.Struct("<Q")


def pointer(buffer: Octets) -> Octets:
    """Return a pointer to a buffer's bytes, compiled; uncompiled, the buffer itself."""
    return buffer


def load_i32(data: bytes, at: int) -> int:
    """Return the signed number of four bytes at ``data[at]``."""
    found: int = _I32.unpack_from(data, at)[0]
    return found


def load_u32(data: bytes, at: int) -> int:
    """Return the number of four bytes at ``data[at]``."""
    found: int = _U32.unpack_from(data, at)[0]
    return found


def load_i64(data: bytes, at: int) -> int:
    """Return the signed number of eight bytes at ``data[at]``."""
    found: int = _I64.unpack_from(data, at)[0]
    return found


def load_u64(data: bytes, at: int) -> int:
    """Return the number of eight bytes at ``data[at]``."""
    found: int = _U64.unpack_from(data, at)[0]
    return found
