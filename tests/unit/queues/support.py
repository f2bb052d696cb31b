"""What tests of queues share: batches, and a host that keeps its log in memory and applies what it proposes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from fluxmq._hot.batch_format import HEADER_BYTES, KEYS, encode_header

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND


def batch_of(
    payloads: Sequence[bytes],
    keys: bytes | Sequence[bytes] = b"",
    flags: int = 0,
    eights: Sequence[Sequence[int]] = (),
) -> bytes:
    """A batch of several messages; `eights` are the eight-byte columns that `flags` name."""
    count = len(payloads)
    columns = b"".join(struct.pack(f"<{count}q", *column) for column in eights)
    if isinstance(keys, bytes):
        area = keys
    else:
        flags |= KEYS
        area = b"".join(keys)
        columns += _ends(keys)
    columns += _ends(payloads)
    body = columns + area + b"".join(payloads)
    body += bytes(-len(body) % 8)
    return (
        encode_header(
            HEADER_BYTES + len(body),
            flags,
            0,
            NOW,
            xxh3_64_intdigest(body),
            count,
            len(area),
            0,
            sum(map(len, payloads)),
            0,
            0,
        )
        + body
    )


def _ends(pieces: Sequence[bytes]) -> bytes:
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    return struct.pack(f"<{len(ends)}i", *ends)
