"""Hard state, log and state machine of ``_meta`` in ``meta.db``: each `Ready` is one transaction.

Runs on the database's thread. The tables of users and topology, and ``shared``, are the state
machine; the applied index is written in the same transaction, so that no entry is applied twice or
skipped.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from fluxmq.control.meta.decisions import Decision
from fluxmq.control.metadata import MetadataError, MetadataStore, drop_permissions
from fluxmq.control.topology_rows import Write, pack, unpack
from fluxmq.ipc.user_messages import Users
from fluxmq.model.errors import FluxmqError
from fluxmq.raft.memberships import decode_membership, encode_membership
from fluxmq.raft.types import COMMAND, MEMBERSHIP, Entry, HardState, Membership, Ready, SnapshotMark

CLUSTER: Final = "cluster"
"""Key in ``shared``: identity of the cluster, and the node whose content it started with."""
FORCED_MAX: Final = 1 << 16
"""Maximum number of times that a copy is forced; each adds one to the cluster's number. Cluster
numbers are random, of 62 bits: no two are so close by chance."""
NODE: Final = "node:"
"""Prefix of the keys in ``shared`` of the nodes' records."""
_CONTENT: Final = ("users", "permissions", "topic_permissions", "topology")


class ForeignTopologyError(FluxmqError):
    """The cluster has a topology already, and this node one of its own that would be lost."""


class MemberState(StrEnum):
    """A node's rights in the group."""

    NEW = "new"
    """The directory was never in the group, which may not exist yet: it is silent and does not
    count."""
    MEMBER = "member"
    RETURNING = "returning"
    """The directory was lost, is outdated, or joined later: it takes entries and promises nothing
    until the others have made it a voter again."""


@dataclass(slots=True)
class Kept:
    """State on disk when the process starts. `membership` is the one at `applied`.

    `brings`: whether the tables hold content from before the cluster whose loss would matter.
    """

    incarnation: int
    standing: MemberState
    brings: bool
    hard_state: HardState
    base_index: int
    base_term: int
    applied: int
    membership: Membership
    entries: list[Entry]


class NodeRecord(NamedTuple):
    """The cluster's record of a node. `incarnation` is a random number of its directory.

    `readmit`: that directory has not become a voter's yet. `life`: the supervisor that ran last.
    `index`: lower bound of its last log index. `queues`: names of the queues in its settings.
    """

    incarnation: int
    readmit: bool
    life: str = ""
    index: int = 0  # type: ignore[assignment] # the name hides a method of tuples, which nobody needs here
    queues: tuple[str, ...] = ()

    def pack(self) -> bytes:
        """Return the record as stored."""
        return pack([*self[:4], list(self.queues)])

    @staticmethod
    def unpack(value: bytes) -> NodeRecord:
        """Decode a record. Raises ValueError when it is malformed."""
        try:
            incarnation, readmit, life, index, queues = unpack(value)
        except TypeError as error:
            raise ValueError(f"not a record of a node: {error}") from error
        return NodeRecord(int(incarnation), bool(readmit), str(life), int(index), tuple(queues))


class SnapshotContent(NamedTuple):
    """A received snapshot: its position in the log, and its parts."""

    mark: SnapshotMark
    parts: tuple[dict[str, Any], ...]


@dataclass(slots=True)
class CommittedEntries:
    """Result of a transaction: applied entries and their decisions; `users` if they changed.

    `anew`: all earlier content is replaced. `shared`: the nodes' mutual knowledge, if it changed.
    """

    applied: list[tuple[Entry, Decision | None]] = field(default_factory=list)
    users: Users | None = None
    shared: dict[str, bytes] | None = None
    users_changed: bool = False
    anew: bool = False
    shared_changed: bool = False
    standing: MemberState = MemberState.MEMBER


class MetaTables:
    """The tables of one node, whose name is `node` and whose number in the group is `number`."""

    def __init__(self, store: MetadataStore, node: str, number: int) -> None:
        self._store = store
        self._node = node
        self._number = number

    def open(self, members: Membership, default: Iterable[tuple[str, bytes]]) -> Kept:
        """Read the state; the first time, initialise it with `members`. `default` are kind and key
        of the rows that every unused node has. Raises MetadataError when the directory is another
        node's."""
        with self._store.transaction() as database:
            row = database.execute("SELECT node FROM raft_state").fetchone()
            if row is None:
                self._begin(database, members, self._has_content(database, set(default)))
            elif row[0] != self._node:
                raise MetadataError(f"this is the directory of node {row[0]!r} of a cluster")
            return self._kept(database)

    def _begin(self, database: sqlite3.Connection, members: Membership, brings: bool) -> None:
        database.execute(
            "INSERT INTO raft_state VALUES (1, ?, ?, ?, ?, 0, 0, 0, 0, 0, 0, 0, ?)",
            (
                self._node,
                secrets.randbits(62) + 1,
                MemberState.NEW,
                int(brings),
                encode_membership(members),
            ),
        )

    @staticmethod
    def _has_content(database: sqlite3.Connection, default: set[tuple[str, bytes]]) -> bool:
        """Return whether there is more than the defaults. Rows that ended with the last node do not
        count."""
        revision, seeded = database.execute("SELECT revision, seeded FROM state").fetchone()
        rows = database.execute("SELECT kind, key FROM topology WHERE transient = 0").fetchall()
        return bool(revision > seeded or (seeded and set(rows) != default))

    @staticmethod
    def _kept(database: sqlite3.Connection) -> Kept:
        incarnation, standing, brings = database.execute(
            "SELECT incarnation, standing, brings FROM raft_state"
        ).fetchone()
        hard_state = HardState(
            *database.execute("SELECT term, vote, commit_index FROM raft_state").fetchone()
        )
        base_index, base_term, applied, membership = database.execute(
            "SELECT base_index, base_term, applied, membership FROM raft_state"
        ).fetchone()
        entries = database.execute(
            "SELECT term, place, kind, data FROM raft_log ORDER BY place"
        ).fetchall()
        return Kept(
            incarnation,
            MemberState(standing),
            bool(brings),
            hard_state,
            base_index,
            base_term,
            applied,
            decode_membership(membership),
            [Entry(*entry) for entry in entries],
        )

    def stand(self, standing: MemberState) -> None:
        """Record another member state."""
        with self._store.transaction() as database:
            database.execute("UPDATE raft_state SET standing = ?", (standing,))

    def restart(self, members: Membership) -> Kept:
        """Forget the unusable log, and take a new incarnation. Term and vote are kept: they
        bind."""
        with self._store.transaction() as database:
            database.execute("DELETE FROM raft_log")
            database.execute("DELETE FROM shared")
            database.execute(
                "UPDATE raft_state SET incarnation = ?, standing = ?, brings = 0, commit_index = 0,"
                " base_index = 0, base_term = 0, applied = 0, applied_term = 0, membership = ?",
                (secrets.randbits(62) + 1, MemberState.RETURNING, encode_membership(members)),
            )
            return self._kept(database)

    def force(self) -> tuple[int, int]:
        """Force this copy, whose majority is lost: its node is the only voter from its next start
        on.

        Return index and term of its last entry. Others that return see by the cluster's number that
        they were left behind. Raises MetadataError when this is no copy of a cluster's.
        """
        with self._store.transaction() as database:
            row = database.execute("SELECT node FROM raft_state").fetchone()
            cluster = _shared(database).get(CLUSTER)
            if row is None or row[0] != self._node or cluster is None:
                raise MetadataError(f"there is no copy of _meta of node {self._node!r} here")
            kept = self._kept(database)
            last, term = kept.base_index, kept.base_term
            if kept.entries:
                last, term = kept.entries[-1].index, kept.entries[-1].term
            higher = max(kept.hard_state.term, term) + 1
            alone = encode_membership(Membership((self._number,)))
            self._append(database, [Entry(higher, last + 1, MEMBERSHIP, alone)])
            database.execute(
                "UPDATE raft_state SET term = ?, vote = ?, standing = ?",
                (higher, self._number, MemberState.MEMBER),
            )
            number, incarnation = unpack(cluster)
            self._share(database, [(CLUSTER, pack([number + 1, incarnation]))])
            return last, term

    # Work of a Ready

    def write(
        self, work: Sequence[Ready], received: SnapshotContent | None, cut: tuple[int, int] | None
    ) -> CommittedEntries:
        """Carry out these changes, in order, in one transaction. `received` is the
        snapshot that one of them may refer to; `cut` is the index up to
        which the log is dropped, and its term.

        Raises sqlite3.Error, DecisionError, or ForeignTopologyError; then nothing happened.
        """
        written = CommittedEntries()
        with self._store.transaction() as database:
            for ready in work:
                if ready.snapshot is not None:
                    assert received is not None, "a snapshot is stepped with its content"
                    self._install(database, received)
                    written = CommittedEntries(users_changed=True, anew=True, shared_changed=True)
                if (state := ready.hard_state) is not None:
                    database.execute(
                        "UPDATE raft_state SET term = ?, vote = ?, commit_index = ?",
                        (state.term, state.vote, state.commit),
                    )
                self._append(database, ready.entries)
                self._apply_all(database, ready.committed, written)
            if cut is not None:
                database.execute("DELETE FROM raft_log WHERE place <= ?", (cut[0],))
                database.execute("UPDATE raft_state SET base_index = ?, base_term = ?", cut)
            written.standing = self._standing(database)
            if written.users_changed:
                written.users = self._store.users()
            if written.shared_changed:
                written.shared = _shared(database)
        return written

    @staticmethod
    def _append(database: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        if entries:
            database.execute("DELETE FROM raft_log WHERE place >= ?", (entries[0].index,))
            database.executemany(
                "INSERT INTO raft_log (term, place, kind, data) VALUES (?, ?, ?, ?)",
                ((each.term, each.index, each.kind, each.data) for each in entries),
            )

    def _apply_all(
        self, database: sqlite3.Connection, committed: Sequence[Entry], written: CommittedEntries
    ) -> None:
        for entry in committed:
            decision = None
            if entry.kind == COMMAND:
                decision = Decision.decode(entry.data)
                self._apply(database, decision, written)
            elif entry.kind == MEMBERSHIP:
                database.execute("UPDATE raft_state SET membership = ?", (entry.data,))
            written.applied.append((entry, decision))
        if committed:
            last = committed[-1]
            database.execute(
                "UPDATE raft_state SET applied = ?, applied_term = ?", (last.index, last.term)
            )

    def _apply(
        self, database: sqlite3.Connection, decision: Decision, written: CommittedEntries
    ) -> None:
        if decision.whole:
            shared = dict(decision.shared)
            self._replace_content(database, shared.get(CLUSTER))
            database.execute("UPDATE state SET seeded = 1")
            written.anew = written.users_changed = True
        for taken in decision.deltas:
            self._store.topology.put(taken.writes(), taken.delta.revision)
        dropped = decision.dropped_vhosts()
        if dropped:
            drop_permissions(database, dropped)
            database.execute("UPDATE state SET revision = revision + 1")
            written.users_changed = True
        if decision.users is not None:
            revision, put, names = decision.users
            for name in names:
                self._store.drop_user(name)
            for user in put:
                self._store.put_user(user)
            database.execute("UPDATE state SET revision = ?", (revision,))
            written.users_changed = True
        self._share(database, decision.shared)
        written.shared_changed |= bool(decision.shared)

    @staticmethod
    def _share(database: sqlite3.Connection, shared: Iterable[tuple[str, bytes | None]]) -> None:
        for key, value in shared:
            if value is None:
                database.execute("DELETE FROM shared WHERE key = ?", (key,))
            else:
                database.execute("INSERT OR REPLACE INTO shared VALUES (?, ?)", (key, value))

    def _replace_content(self, database: sqlite3.Connection, cluster: bytes | None) -> None:
        """Delete all content; refuse when it is the node's own and the cluster did not start with
        it. Raises ForeignTopologyError."""
        incarnation, brings = database.execute(
            "SELECT incarnation, brings FROM raft_state"
        ).fetchone()
        if brings and (cluster is None or unpack(cluster)[1] != incarnation):
            raise ForeignTopologyError(
                "this node has users or a topology from before it was in a cluster, and the cluster has its own: "
                "start the cluster with this node first, or set meta.db in its data directory aside to do without"
            )
        for table in _CONTENT:
            database.execute(f"DELETE FROM {table}")
        database.execute("UPDATE raft_state SET brings = 0")

    def _standing(self, database: sqlite3.Connection) -> MemberState:
        """Return the standing, MEMBER once a returning node is a voter with its present
        directory."""
        incarnation, kept, membership = database.execute(
            "SELECT incarnation, standing, membership FROM raft_state"
        ).fetchone()
        standing = MemberState(kept)
        if standing is not MemberState.RETURNING:
            return standing
        if self._number not in decode_membership(membership).voters:
            return standing
        record = self._record(database)
        if record is None or record.incarnation != incarnation or record.readmit:
            return standing
        database.execute("UPDATE raft_state SET standing = ?", (MemberState.MEMBER,))
        return MemberState.MEMBER

    def _record(self, database: sqlite3.Connection) -> NodeRecord | None:
        row = database.execute(
            "SELECT value FROM shared WHERE key = ?", (NODE + self._node,)
        ).fetchone()
        return None if row is None else NodeRecord.unpack(row[0])

    def _install(self, database: sqlite3.Connection, content: SnapshotContent) -> None:
        """Replace the content by a snapshot's."""
        head = content.parts[0]
        cluster = next((value for key, value in head["shared"] if key == CLUSTER), None)
        self._replace_content(database, cluster)
        for part in content.parts:
            self._store.topology.put(Write(*row) for row in part.get("rows", ()))
            for user in part.get("users", ()):
                self._store.put_user(user)
        database.execute("DELETE FROM shared")
        self._share(database, head["shared"])
        database.execute(
            "UPDATE state SET revision = ?, topology_revision = ?, seeded = 1",
            (head["users_revision"], head["revision"]),
        )
        mark = content.mark
        database.execute("DELETE FROM raft_log")
        database.execute(
            "UPDATE raft_state SET base_index = ?1, base_term = ?2, applied = ?1, applied_term = ?2,"
            " commit_index = max(commit_index, ?1), membership = ?3",
            (mark.index, mark.term, encode_membership(mark.membership)),
        )

    # Queries

    def shared(self) -> dict[str, bytes]:
        """Return the nodes' mutual knowledge."""
        with self._store.transaction() as database:
            return _shared(database)


def _shared(database: sqlite3.Connection) -> dict[str, bytes]:
    return dict(database.execute("SELECT key, value FROM shared").fetchall())
