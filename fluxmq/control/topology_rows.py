"""Rows of the topology in ``meta.db``: exchanges, queues, bindings, policies, virtual hosts, as
plain values.

`fluxmq.routing.topology` interprets rows; here each is a kind, a key and a value, both msgpack. A
*transient* row ends with the node (a queue that is not durable, say): it is written all the same,
so that it outlives this process, but without waiting for the disk, and the node's next start drops
it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped]


class Write(NamedTuple):
    """One row to write; `value` None removes it. Key and value are what `pack` returned."""

    kind: str
    key: bytes
    value: bytes | None
    transient: bool


def pack(value: object) -> bytes:
    """Return a plain value as stored. Raises ValueError or TypeError for anything else."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(data: bytes) -> Any:
    """Return a stored value; lists come back as lists. Raises ValueError when it is damaged."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise ValueError(f"not msgpack: {error}") from error


class TopologyRows:
    """The table. Lives with its `MetadataStore`, whose transactions it is written in."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    @property
    def revision(self) -> int:
        """Revision that was written last."""
        (revision,) = self._database.execute("SELECT topology_revision FROM state").fetchone()
        return int(revision)

    def rows(self) -> list[tuple[str, Any, Any]]:
        """Return all rows as kind, key, value. Raises ValueError when one is damaged."""
        found = self._database.execute("SELECT kind, key, value FROM topology ORDER BY kind, key")
        return [(kind, unpack(key), unpack(value)) for kind, key, value in found]

    def has(self, kind: str, key: Sequence[str | bytes]) -> bool:
        """Return whether there is a row."""
        found = self._database.execute(
            "SELECT 1 FROM topology WHERE kind = ? AND key = ?", (kind, pack(list(key)))
        )
        return found.fetchone() is not None

    def durable(self, writes: Iterable[Write]) -> bool:
        """Return whether some of these writes must survive a power cut: whether to sync them."""
        for write in writes:
            if write.value is not None:
                if not write.transient:
                    return True
                continue
            stored = self._database.execute(
                "SELECT transient FROM topology WHERE kind = ? AND key = ?", (write.kind, write.key)
            ).fetchone()
            if stored is not None and not stored[0]:
                return True
        return False

    def put(self, writes: Iterable[Write], revision: int | None = None) -> None:
        """Write rows within the open transaction."""
        for kind, key, value, transient in writes:
            if value is None:
                self._database.execute(
                    "DELETE FROM topology WHERE kind = ? AND key = ?", (kind, key)
                )
            else:
                self._database.execute(
                    "INSERT OR REPLACE INTO topology (kind, key, value, transient)"
                    " VALUES (?, ?, ?, ?)",
                    (kind, key, value, int(transient)),
                )
        if revision is not None:
            self._database.execute("UPDATE state SET topology_revision = ?", (revision,))

    def drop_transient(self) -> int:
        """Remove rows that ended with the last node; return their number."""
        return self._database.execute("DELETE FROM topology WHERE transient = 1").rowcount
