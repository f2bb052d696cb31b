"""Keys of topology and users in etcd, and their values. Pure.

::

    /fluxmq/metadata/revision                     both revisions, and the identity of the cluster
    /fluxmq/metadata/topology/<kind>/<key>        a record: its row, and whether it is transient
    /fluxmq/metadata/users/<name>                 a user with its permissions
    /fluxmq/metadata/nodes/<name>                 a node's last life, and the queues of its settings

Every change is one transaction, which also puts the first key, on the condition that nobody else
has put it meanwhile. So the changes of a revision of etcd are those of one decision. The parts of a
record's key are separated by slashes; the last part of a binding's is hexadecimal. All values are
msgpack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from fluxmq.auth.users import User
from fluxmq.control.decisions import AcceptedDelta, Decision, NodeRecord, UsersChange
from fluxmq.control.etcd.messages import (
    Change,
    Delete,
    EtcdTransaction,
    KeyValue,
    Operation,
    Put,
    key_part,
    name_of,
)
from fluxmq.control.topology_rows import pack, unpack
from fluxmq.ipc.messages import MessageError
from fluxmq.ipc.user_messages import user_from_body, user_to_body
from fluxmq.routing.topology.records import BINDING, KINDS, QUEUE, Key
from fluxmq.routing.topology.topology import Delta, TopologyRow
from fluxmq.settings.group_names import is_mirrored

PREFIX: Final = b"/fluxmq/metadata/"
ROOT: Final = PREFIX + b"revision"
TOPOLOGY: Final = PREFIX + b"topology/"
USERS: Final = PREFIX + b"users/"
NODES: Final = PREFIX + b"nodes/"

FLAT_MAX: Final = 60
"""Operations that a transaction has side by side: fewer than the 128 that etcd accepts by itself."""
NESTED_MAX: Final = 500
"""Operations of each transaction within one that has more: with as many of them, half of the
operations that a member accepts."""
OPERATIONS_MAX: Final = NESTED_MAX * NESTED_MAX
"""Operations of a decision: an import of 100,000 queues with their bindings."""


class MetadataRoot(NamedTuple):
    """Value of the first key. ``topology``, ``users``: revisions of each; ``cluster``: the cluster's
    identity, a random number."""

    topology: int
    users: int
    cluster: int

    def pack(self) -> bytes:
        """Return the value as stored."""
        return pack(list(self))

    @staticmethod
    def unpack(value: bytes) -> MetadataRoot:
        """Decode a value. Raises ValueError."""
        try:
            topology, users, cluster = unpack(value)
            return MetadataRoot(int(topology), int(users), int(cluster))
        except TypeError as error:
            raise ValueError(f"not the revisions of a cluster: {error}") from error


class MetadataContent(NamedTuple):
    """Everything, as of one revision of etcd: the decision that leads to it from nothing."""

    root: MetadataRoot
    decision: Decision


def row_key(kind: str, key: Key) -> bytes:
    """Return the key of a record."""
    parts = [key_part(each) if isinstance(each, str) else each.hex().encode() for each in key]
    return TOPOLOGY + b"/".join((kind.encode(), *parts))


def row_key_of(key: bytes) -> tuple[str, Key]:
    """Return the kind and key of a record. Raises ValueError."""
    kind, *parts = key.removeprefix(TOPOLOGY).split(b"/")
    if kind.decode() not in KINDS or not parts:
        raise ValueError(f"not the key of a record: {key!r}")
    if kind.decode() != BINDING:
        return kind.decode(), tuple(map(name_of, parts))
    return BINDING, (*map(name_of, parts[:-1]), bytes.fromhex(parts[-1].decode()))


def operations_of(decision: Decision, root: MetadataRoot) -> tuple[Operation, ...]:
    """Return the operations that store a decision; ``root``: the first key's value after it."""
    found: dict[bytes, Put | Delete] = {}
    for taken in decision.deltas:
        for row, transient in zip(taken.delta.rows, taken.transient, strict=True):
            key = row_key(row.kind, row.key)
            found[key] = Delete(key) if row.row is None else Put(key, pack([row.row, transient]))
    if decision.users is not None:
        for name in decision.users.dropped:
            key = USERS + key_part(name)
            found[key] = Delete(key)
        for user in decision.users.put:
            key = USERS + key_part(user.name)
            found[key] = Put(key, pack(user_to_body(user)))
    for node, record in decision.nodes:
        key = NODES + key_part(node)
        found[key] = Delete(key) if record is None else Put(key, record.pack())
    operations: Sequence[Operation] = tuple(found.values())
    if len(operations) > FLAT_MAX:
        size = FLAT_MAX if len(operations) <= FLAT_MAX * FLAT_MAX else NESTED_MAX
        operations = [
            EtcdTransaction((), tuple(operations[at : at + size]))
            for at in range(0, len(operations), size)
        ]
    return (Put(ROOT, root.pack()), *operations)


def mirrored_groups_of(decision: Decision) -> list[str]:
    """Return the mirrored groups that the queues of a decision are in, or move to."""
    found = {
        str(row.row.get(key, ""))
        for taken in decision.deltas
        for row in taken.delta.rows
        if row.kind == QUEUE and row.row is not None
        for key in ("group", "moving_to")
    }
    return sorted(filter(is_mirrored, found))


def decision_of(
    changes: Iterable[Change], before: MetadataRoot
) -> tuple[MetadataRoot, Decision] | None:
    """Return what the changes of one revision of etcd lead to, from ``before``; None if they are not
    a decision, which puts the first key. Raises ValueError for values that are malformed."""
    changes = list(changes)
    roots = [entry.value for deleted, entry in changes if entry.key == ROOT and not deleted]
    if not roots:
        return None
    root = MetadataRoot.unpack(roots[0])
    rows: dict[tuple[str, Key], tuple[TopologyRow, bool]] = {}
    put: list[User] = []
    dropped: list[str] = []
    nodes: list[tuple[str, NodeRecord | None]] = []
    for deleted, entry in changes:
        key = entry.key
        if key.startswith(TOPOLOGY):
            row, transient = _row(entry, deleted=deleted)
            rows[row.kind, row.key] = row, transient
        elif key.startswith(USERS) and deleted:
            dropped.append(name_of(key.removeprefix(USERS)))
        elif key.startswith(USERS):
            put.append(_user(entry))
        elif key.startswith(NODES):
            record = None if deleted else NodeRecord.unpack(entry.value)
            nodes.append((name_of(key.removeprefix(NODES)), record))
    deltas = []
    if root.topology != before.topology:
        delta = Delta.of(root.topology, before.topology, [row for row, _ in rows.values()])
        flags = tuple(rows[row.kind, row.key][1] for row in delta.rows)
        deltas.append(AcceptedDelta(delta, flags))
    users = None
    if root.users != before.users:
        users = UsersChange(root.users, tuple(put), tuple(dropped))
    return root, Decision(tuple(deltas), users, tuple(nodes))


def content_of(entries: Iterable[KeyValue]) -> MetadataContent:
    """Return what all keys contain. Raises ValueError."""
    changes = [Change(False, entry) for entry in entries]
    found = decision_of(changes, MetadataRoot(-1, -1, 0))
    if found is None:
        raise ValueError("there is no key with the revisions")
    return MetadataContent(*found)


def _row(entry: KeyValue, *, deleted: bool) -> tuple[TopologyRow, bool]:
    kind, key = row_key_of(entry.key)
    if deleted:
        return TopologyRow(kind, key, None), False
    try:
        row, transient = unpack(entry.value)
    except TypeError as error:
        raise ValueError(f"not a record: {error}") from error
    if not isinstance(row, dict):
        raise ValueError("not a record")  # noqa: TRY004 - callers expect ValueError
    return TopologyRow(kind, key, row), bool(transient)


def _user(entry: KeyValue) -> User:
    try:
        return user_from_body(unpack(entry.value), patterns=False)
    except MessageError as error:
        raise ValueError(f"{entry.key!r}: {error}") from error
