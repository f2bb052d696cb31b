"""Numbers in network order, as both versions of AMQP have them, uncompiled: compiled modules take the
functions from ``network_order.pxd``.

Source: AMQP 0-9-1 section 4.2.5 (data fields), AMQP 1.0 part 1, section 1.6.
"""

from __future__ import annotations

import struct

from fluxmq.model.octets import Octets

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")


def load_u16(data: Octets, at: int) -> int:
    """Return the two-byte number at ``data[at]``."""
    found: int = _U16.unpack_from(data, at)[0]
    return found


def load_u32(data: Octets, at: int) -> int:
    """Return the four-byte number at ``data[at]``."""
    found: int = _U32.unpack_from(data, at)[0]
    return found


def load_u64(data: Octets, at: int) -> int:
    """Return the eight-byte number at ``data[at]``."""
    found: int = _U64.unpack_from(data, at)[0]
    return found
