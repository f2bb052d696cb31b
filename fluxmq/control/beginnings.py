"""The first topology and users of a cluster: those that a node brings, or the defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fluxmq.auth.users import User
from fluxmq.control.decisions import AcceptedDelta, Decision, UsersChange
from fluxmq.control.metadata import MetadataStore
from fluxmq.control.topology_rows import pack, unpack
from fluxmq.routing.topology.changes import AddVhost
from fluxmq.routing.topology.names import DEFAULT_VHOST
from fluxmq.routing.topology.records import QUEUE, Vhost
from fluxmq.routing.topology.topology import Delta, Topology, TopologyRow
from fluxmq.settings.clustering import OWN_GROUP_PREFIXES


def default_rows() -> tuple[TopologyRow, ...]:
    """Return the rows of every new node: the first virtual host."""
    return Topology().apply(AddVhost(Vhost(DEFAULT_VHOST))).rows


def default_keys() -> list[tuple[str, bytes]]:
    """Return kind and key of those rows, as stored."""
    return [(row.kind, pack(row.key)) for row in default_rows()]


def beginning(
    store: MetadataStore, node: str, first: Callable[[], User], *, brings: bool
) -> Decision:
    """Return what the cluster begins with: the node's own content if it brings some.

    Rows of that which end with a node are left out. Raises ValueError for a damaged row.
    """
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
    return Decision((AcceptedDelta(delta, (False,) * len(rows)),), users)


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
