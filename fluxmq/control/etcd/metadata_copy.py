"""The node's copy of the cluster's topology and users, in ``meta.db``.

Runs on the database's thread. The table ``shared`` has the nodes' records and, under `ETCD`, up to
which revision of etcd the copy goes: written in the transaction that changes the content, so that
no change is made twice or skipped.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from fluxmq.auth.users import User
from fluxmq.control import beginnings
from fluxmq.control.decisions import Decision, NodeRecord
from fluxmq.control.etcd.metadata_keys import MetadataContent, MetadataRoot
from fluxmq.control.metadata import ETCD, OLDER_CLUSTER, OLDER_NODE, MetadataError, MetadataStore
from fluxmq.control.topology_rows import pack, unpack
from fluxmq.ipc.user_messages import Users
from fluxmq.model.errors import FluxmqError

NODE: Final = "node:"
"""Prefix of the keys of the nodes' records in the table ``shared``."""
NOTHING: Final = -1
"""Age of a copy that has no content."""


class ForeignTopologyError(FluxmqError):
    """The cluster has a topology already, and this node one of its own that would be lost."""


class MetadataStep(NamedTuple):
    """A decision, what the first key became, and at which revision of etcd."""

    revision: int
    root: MetadataRoot
    decision: Decision


class CopyState(NamedTuple):
    """State of the copy. ``revision``: that of etcd, 0 if the content is not etcd's; ``root``: the
    first key's value then; ``age``: grows with every change, or `NOTHING`; ``nodes``: the records by
    name of the node."""

    revision: int
    root: MetadataRoot
    age: int
    nodes: dict[str, NodeRecord]


class MetadataCopy:
    """The copy of one node, whose name is ``node``."""

    def __init__(self, store: MetadataStore, node: str) -> None:
        self._store = store
        self._node = node

    def open(self) -> CopyState:
        """Read the state. Raises MetadataError when the directory is another node's."""
        with self._store.transaction() as database:
            shared = dict(database.execute("SELECT key, value FROM shared").fetchall())
            users, seeded = database.execute("SELECT revision, seeded FROM state").fetchone()
            topology = self._store.topology.revision
            revision, cluster, node = 0, 0, self._node
            if ETCD in shared:
                revision, cluster, node = unpack(shared[ETCD])
            elif OLDER_NODE in shared:
                node = shared[OLDER_NODE].decode()
                cluster = int(unpack(shared[OLDER_CLUSTER])[0]) if OLDER_CLUSTER in shared else 0
            if node != self._node:
                raise MetadataError(f"this is the directory of node {node!r} of a cluster")
            has = cluster or self._has_content(database, users, seeded)
        nodes = {
            key.removeprefix(NODE): NodeRecord.unpack(value)
            for key, value in shared.items()
            if key.startswith(NODE)
        }
        age = topology + users if has else NOTHING
        return CopyState(revision, MetadataRoot(topology, users, cluster), age, nodes)

    @staticmethod
    def _has_content(database: sqlite3.Connection, users: int, seeded: int) -> bool:
        """Return whether there is more than the defaults."""
        rows = database.execute("SELECT kind, key FROM topology WHERE transient = 0").fetchall()
        return bool(users > seeded or (seeded and set(rows) != set(beginnings.default_keys())))

    def beginning(self, state: CopyState, first: Callable[[], User]) -> Decision:
        """Return what a cluster begins with if this node's copy is what there is. Raises ValueError
        for a damaged row."""
        brings = state.age != NOTHING
        return beginnings.beginning(self._store, self._node, first, brings=brings)

    def belong(self, cluster: int) -> None:
        """Note that this node begins a cluster, so that it knows it again."""
        with self._store.transaction() as database:
            self._reach(database, 0, MetadataRoot(0, 0, cluster))

    def write(self, steps: Sequence[MetadataStep]) -> Users | None:
        """Make changes, in order, in one transaction; return the users if they changed."""
        changed = False
        with self._store.transaction() as database:
            for revision, root, decision in steps:
                for taken in decision.deltas:
                    self._store.topology.put(taken.writes(), taken.delta.revision)
                if decision.users is not None:
                    changed = True
                    self._put_users(database, decision)
                self._put_nodes(database, decision)
                self._reach(database, revision, root)
            return self._store.users() if changed else None

    def replace(self, content: MetadataContent, revision: int) -> Users:
        """Replace everything. Raises ForeignTopologyError when there is content that the cluster did
        not begin with."""
        state = self.open()
        root, decision = content
        if state.age != NOTHING and state.root.cluster != root.cluster:
            raise ForeignTopologyError(
                "this node has users or a topology from before it was in this cluster, which has its own:"
                " start the cluster with this node first, or set meta.db in its data directory aside to"
                " do without"
            )
        with self._store.transaction() as database:
            for table in ("users", "permissions", "topic_permissions", "topology", "shared"):
                database.execute(f"DELETE FROM {table}")
            database.execute("UPDATE state SET seeded = 1")
            for taken in decision.deltas:
                self._store.topology.put(taken.writes(), root.topology)
            self._put_users(database, decision)
            self._put_nodes(database, decision)
            self._reach(database, revision, root)
            return self._store.users()

    def _put_users(self, database: sqlite3.Connection, decision: Decision) -> None:
        if decision.users is None:
            return
        revision, put, names = decision.users
        for name in names:
            self._store.drop_user(name)
        for user in put:
            self._store.put_user(user)
        database.execute("UPDATE state SET revision = ?", (revision,))

    @staticmethod
    def _put_nodes(database: sqlite3.Connection, decision: Decision) -> None:
        for node, record in decision.nodes:
            if record is None:
                database.execute("DELETE FROM shared WHERE key = ?", (NODE + node,))
            else:
                values = NODE + node, record.pack()
                database.execute("INSERT OR REPLACE INTO shared VALUES (?, ?)", values)

    def _reach(self, database: sqlite3.Connection, revision: int, root: MetadataRoot) -> None:
        values = ETCD, pack([revision, root.cluster, self._node])
        database.execute("INSERT OR REPLACE INTO shared VALUES (?, ?)", values)
