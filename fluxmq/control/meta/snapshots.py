"""Snapshots of ``_meta``: all rows, for a member that needs compacted entries; and bootstrap
content.

A snapshot is a list of parts, each msgpack compressed by zlib and about a megabyte before that: the
first has the revisions and the nodes' records, all have rows of the topology or users. It is taken
at the applied index, in one transaction, and held in memory on both sides during the transfer.
"""

from __future__ import annotations

import secrets
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from fluxmq.auth.users import User
from fluxmq.control.meta.decisions import AcceptedDelta, Decision, UsersChange, decompressed
from fluxmq.control.meta.tables import CLUSTER
from fluxmq.control.metadata import MetadataStore
from fluxmq.control.topology_rows import pack, unpack
from fluxmq.ipc.messages import MessageError
from fluxmq.ipc.user_messages import user_from_body, user_to_body
from fluxmq.raft.memberships import decode_membership
from fluxmq.raft.types import SnapshotMark
from fluxmq.routing.topology.changes import AddVhost
from fluxmq.routing.topology.names import DEFAULT_VHOST
from fluxmq.routing.topology.records import QUEUE, Vhost
from fluxmq.routing.topology.topology import Delta, Topology, TopologyRow
from fluxmq.settings.clustering import OWN_GROUP_PREFIXES

PART_BYTES: Final = 1 << 20
"""Bytes of rows in a part: small enough for a heartbeat to pass between two."""
PART_BYTES_MAX: Final = 64 << 20
"""Maximum size of a decompressed part: a row beyond `PART_BYTES`, and all users, who travel
together."""
SNAPSHOT_BYTES_MAX: Final = 512 << 20
"""Compressed bytes of one snapshot: two million records, the maximum, with long arguments."""


def take(store: MetadataStore) -> tuple[SnapshotMark, list[bytes]]:
    """Return the applied position in the log, and all content. Runs on the database's thread."""
    with store.transaction() as database:
        applied, term, membership = database.execute(
            "SELECT applied, applied_term, membership FROM raft_state"
        ).fetchone()
        mark = SnapshotMark(applied, term, decode_membership(membership))
        return mark, [zlib.compress(msgpack.packb(part), 1) for part in _parts(store, database)]


def _parts(store: MetadataStore, database: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    users = store.users()
    yield {
        "revision": store.topology.revision,
        "users_revision": users.revision,
        "shared": database.execute("SELECT key, value FROM shared").fetchall(),
        "users": [user_to_body(user) for user in users.users],
    }
    rows: list[Any] = []
    size = 0
    for row in database.execute("SELECT kind, key, value, transient FROM topology"):
        rows.append(row)
        size += len(row[1]) + len(row[2])
        if size >= PART_BYTES:
            yield {"rows": rows}
            rows, size = [], 0
    yield {"rows": rows}


def read_part(data: bytes) -> dict[str, Any]:
    """Return a part, decompressed and decoded. Raises ValueError when it is malformed."""
    part = unpack(decompressed(data, PART_BYTES_MAX))
    try:
        read = dict(part)
        if "users" in read:
            read["users"] = [user_from_body(body, patterns=False) for body in read["users"]]
            if not all(isinstance(read[key], int) for key in ("revision", "users_revision")):
                raise ValueError("a revision is no number")
            read["shared"] = [(str(key), bytes(value)) for key, value in read["shared"]]
        read["rows"] = [
            (str(kind), bytes(key), bytes(value), bool(transient))
            for kind, key, value, transient in read.get("rows", ())
        ]
    except (TypeError, KeyError, MessageError) as error:
        raise ValueError(f"not a part of a snapshot: {error}") from error
    return read


# Initial content of a cluster


def default_rows() -> tuple[TopologyRow, ...]:
    """Return the rows of every new node: the first virtual host."""
    return Topology().apply(AddVhost(Vhost(DEFAULT_VHOST))).rows


def default_keys() -> list[tuple[str, bytes]]:
    """Return kind and key of those rows, as stored."""
    return [(row.kind, pack(row.key)) for row in default_rows()]


def beginning(
    store: MetadataStore, node: str, incarnation: int, brings: bool, first: Callable[[], User]
) -> Decision:
    """Return the initial content that the first leader proposes: what it brings, or the defaults.

    Of what it brings, rows that end with a node are left out. Raises ValueError for a damaged row.
    """
    cluster = ((CLUSTER, pack([secrets.randbits(62) + 1, incarnation])),)
    if not brings:
        rows = default_rows()
        users = UsersChange(1, (first(),), ())
    else:
        kept = list(_durable_rows(store, node))
        have = {(row.kind, row.key) for row in kept}
        missing = [row for row in default_rows() if (row.kind, row.key) not in have]
        # A database that has users and never had a node has no topology yet.
        rows = (*([] if have else missing), *kept)
        found = store.users()
        users = UsersChange(found.revision, found.users or (first(),), ())
    delta = Delta(max(store.topology.revision, 1), None, rows)
    return Decision((AcceptedDelta(delta, (False,) * len(rows)),), users, cluster, whole=True)


def _durable_rows(store: MetadataStore, node: str) -> Iterator[TopologyRow]:
    with store.transaction() as database:
        found = database.execute(
            "SELECT kind, key, value FROM topology WHERE transient = 0"
        ).fetchall()
    for kind, key, value in found:
        row = unpack(value)
        if kind == QUEUE:
            row["group"] = of_node(str(row["group"]), node)
        yield TopologyRow(kind, tuple(unpack(key)), row)


def of_node(group: str, node: str) -> str:
    """Return a group's name unique among all nodes: a node-local one is qualified by the node."""
    return f"{group}@{node}" if group.startswith(OWN_GROUP_PREFIXES) and "@" not in group else group
