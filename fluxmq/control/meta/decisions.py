"""Content of a ``_meta`` entry: the rows that result from a decision, so that applying decides
nothing.

Encoded as one byte (1: plain, 2: zlib) and msgpack::

    {"deltas": [[revision, previous, [[kind, key, row, transient], ...]], ...],
     "users": [revision, [user, ...], [name, ...]],        users put and names removed; or null
     "shared": [[key, value], ...],                        nodes' mutual knowledge; null removes
     "whole": bool}                                        replaces everything before

Rows of the topology and users are the plain values of `fluxmq.routing.topology` and
`fluxmq.ipc.user_messages`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgpack  # type: ignore[import-untyped]

from fluxmq.auth.users import User
from fluxmq.control.topology_rows import Write, pack, unpack
from fluxmq.ipc.messages import MessageError
from fluxmq.ipc.user_messages import Users, user_from_body, user_to_body
from fluxmq.model.errors import FluxmqError
from fluxmq.routing.topology.records import VHOST
from fluxmq.routing.topology.topology import Delta

ENTRY_BYTES_MAX: Final = 32 << 20
"""Maximum size of a stored entry: hundreds of thousands of rows, and one message between nodes."""
PLAIN_BYTES_MAX: Final = 512 << 20
"""Maximum size of an entry's content: bounds the decompression of `ENTRY_BYTES_MAX`."""
COMPRESSED_FROM: Final = 4096
"""Bytes from which compression pays."""
_PLAIN: Final = b"\x01"
_ZLIB: Final = b"\x02"


class DecisionError(FluxmqError):
    """An entry is not a decision of this version, or a decision is too large for an entry."""


class AcceptedDelta(NamedTuple):
    """A change of the topology; `transient` tells for each row whether it ends with a node."""

    delta: Delta
    transient: tuple[bool, ...]

    def writes(self) -> list[Write]:
        """Return the rows as stored."""
        return [
            Write(row.kind, pack(row.key), None if row.row is None else pack(row.row), transient)
            for row, transient in zip(self.delta.rows, self.transient, strict=True)
        ]


class UsersChange(NamedTuple):
    """Users at a revision: new or changed records, and the names of removed users."""

    revision: int
    put: tuple[User, ...]
    dropped: tuple[str, ...]

    @staticmethod
    def between(before: Users, after: Users) -> UsersChange:
        """Return the difference between two snapshots."""
        had = {user.name: user for user in before.users}
        put = tuple(user for user in after.users if had.pop(user.name, None) != user)
        return UsersChange(after.revision, put, tuple(had))


@dataclass(frozen=True, slots=True)
class Decision:
    """Decoded content of an entry. `shared` are keys and packed values, None to remove one."""

    deltas: tuple[AcceptedDelta, ...] = ()
    users: UsersChange | None = None
    shared: tuple[tuple[str, bytes | None], ...] = ()
    whole: bool = False

    def dropped_vhosts(self) -> list[str]:
        """Return the virtual hosts to drop, whose permissions go with them."""
        rows = (row for taken in self.deltas for row in taken.delta.rows)
        return [str(row.key[0]) for row in rows if row.kind == VHOST and row.row is None]

    def encode(self) -> bytes:
        """Encode as an entry. Raises DecisionError when it is too large for one."""
        users = self.users
        content: bytes = msgpack.packb(
            {
                "deltas": [_packed(taken) for taken in self.deltas],
                "users": None
                if users is None
                else [users.revision, [user_to_body(user) for user in users.put], users.dropped],
                "shared": self.shared,
                "whole": self.whole,
            }
        )
        data = (
            _PLAIN + content
            if len(content) < COMPRESSED_FROM
            else _ZLIB + zlib.compress(content, 1)
        )
        if len(data) > ENTRY_BYTES_MAX or len(content) > PLAIN_BYTES_MAX:
            raise DecisionError(f"a change takes {len(data)} bytes, more than {ENTRY_BYTES_MAX}")
        return data

    @classmethod
    def decode(cls, data: bytes) -> Decision:
        """Decode an entry. Raises DecisionError when it is malformed."""
        try:
            content = unpack(_plain(data))
            users = content["users"]
            return cls(
                tuple(_unpacked(each) for each in content["deltas"]),
                None if users is None else _users(users),
                tuple((str(key), value) for key, value in content["shared"]),
                bool(content["whole"]),
            )
        except (ValueError, TypeError, KeyError, MessageError) as error:
            raise DecisionError(f"not a decision: {error}") from error


def _plain(data: bytes) -> bytes:
    kind, content = data[:1], data[1:]
    if kind == _PLAIN:
        return content
    if kind == _ZLIB:
        return decompressed(content, PLAIN_BYTES_MAX)
    raise ValueError("unknown encoding")


def decompressed(data: bytes, limit: int) -> bytes:
    """Decompress zlib data, up to a limit. Raises ValueError when it is damaged or larger."""
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(data, limit)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacker.eof:
        raise ValueError("cut short, or too large")
    return content


def _packed(taken: AcceptedDelta) -> list[Any]:
    revision, previous, rows = taken.delta.pack()
    flagged = [[*row, flag] for row, flag in zip(rows, taken.transient, strict=True)]
    return [revision, previous, flagged]


def _unpacked(packed: Any) -> AcceptedDelta:
    revision, previous, flagged = packed
    delta = Delta.unpack([revision, previous, [row[:3] for row in flagged]])
    return AcceptedDelta(delta, tuple(bool(row[3]) for row in flagged))


def _users(packed: Any) -> UsersChange:
    revision, put, dropped = packed
    users = tuple(user_from_body(body, patterns=False) for body in put)
    return UsersChange(int(revision), users, tuple(str(name) for name in dropped))
