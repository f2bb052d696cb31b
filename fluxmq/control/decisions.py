"""Decisions about a cluster's topology and users: the rows that result, so that following decides
nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fluxmq.auth.users import User
from fluxmq.control.topology_rows import Write, pack, unpack
from fluxmq.ipc.user_messages import Users
from fluxmq.routing.topology.records import VHOST
from fluxmq.routing.topology.topology import Delta


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


class NodeRecord(NamedTuple):
    """The cluster's record of a node. ``life``: identity of the supervisor that ran last; ``queues``:
    names of the queues in its settings."""

    life: str
    queues: tuple[str, ...] = ()

    def pack(self) -> bytes:
        """Return the record as stored."""
        return pack([self.life, list(self.queues)])

    @staticmethod
    def unpack(value: bytes) -> NodeRecord:
        """Decode a record. Raises ValueError when it is malformed."""
        try:
            life, queues = unpack(value)
            return NodeRecord(str(life), tuple(map(str, queues)))
        except TypeError as error:
            raise ValueError(f"not a record of a node: {error}") from error


@dataclass(frozen=True, slots=True)
class Decision:
    """Changes that are committed together. ``nodes``: names and records, None for one that is
    forgotten."""

    deltas: tuple[AcceptedDelta, ...] = ()
    users: UsersChange | None = None
    nodes: tuple[tuple[str, NodeRecord | None], ...] = ()

    def dropped_vhosts(self) -> list[str]:
        """Return the virtual hosts to drop, whose permissions go with them."""
        rows = (row for taken in self.deltas for row in taken.delta.rows)
        return [str(row.key[0]) for row in rows if row.kind == VHOST and row.row is None]
