"""The node's metadata on disk: ``meta.db``, an SQLite database.

One writer (the control process, or `fluxmqctl` while the broker is down; the data directory's lock
keeps them apart). Every change is one transaction, synced before it is reported, and raises the
revision by one; shards receive snapshots of a revision. The store blocks, so it lives on a thread
of its own (`StoreThread`); it knows nothing of sockets or shards.

`schema` describes the tables; `topology_rows` handles rows of the topology.

Longer than 500 lines because it has every change of users, and what each of them checks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from fluxmq.auth.hash_upgrades import HashUpgrade
from fluxmq.auth.scram import StoredKeys
from fluxmq.auth.users import (
    PERMISSIONS_MAX,
    TopicPermission,
    User,
    VhostPermission,
    permission_problem,
    user_problem,
)
from fluxmq.control import schema
from fluxmq.control.topology_rows import TopologyRows, Write
from fluxmq.ipc.control_frames import FramingError, encode_frame
from fluxmq.ipc.messages import (
    ERROR_EXISTS,
    ERROR_FAILED,
    ERROR_INVALID,
    ERROR_LIMIT,
    ERROR_NOT_FOUND,
)
from fluxmq.ipc.user_messages import SNAPSHOT_BYTES_MAX, USERS_MAX, Users
from fluxmq.model.errors import FluxmqError
from fluxmq.routing.topology.names import DEFAULT_VHOST
from fluxmq.routing.topology.records import VHOST

FILE_NAME: Final = "meta.db"
# Marks the file as ours ("FlMQ"); another program's database is refused, not overwritten.
APPLICATION_ID: Final = 0x466C4D51
BUSY_SECONDS: Final = 5.0

_PERMISSION_TABLES: Final = ("permissions", "topic_permissions")
ETCD: Final = "etcd"
"""Key in the table ``shared`` of a copy of what a cluster has in etcd: up to which revision."""
OLDER_NODE: Final = "meta_node"
OLDER_CLUSTER: Final = "cluster"
"""Keys of a copy from version 0.1.0, which kept it by a group of its own: the node's name, and the
cluster's identity."""
SHARED: Final = "change a cluster's users on a running node: this node's copy would diverge"

_COLUMNS: Final = (
    "name, hash, scram_iterations, scram_salt, scram_stored_key, scram_server_key,"
    " publish, subscribe, enabled, tags"
)


class MetadataError(FluxmqError):
    """The database cannot be used: foreign, newer than this program, or damaged."""


class ChangeError(FluxmqError):
    """A change was refused and nothing written; `code` is one of `ipc.messages.ERROR_*`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class MetadataStore:
    """The open database. Every method blocks for a disk access; changes return the new snapshot.

    Changes raise ChangeError when they are refused and sqlite3.Error when the disk fails; then
    nothing was written.
    """

    def __init__(self, path: Path) -> None:
        """Open or create. Raises MetadataError when the file is not usable, OSError or
        sqlite3.Error when it cannot be opened."""
        # Created by us, so that it is never readable by others and never reached through a link.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        self.path = path
        self._trying = False
        self._database = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            self._database.close()
            raise MetadataError(f"{path}: {error}") from error
        except BaseException:
            self._database.close()
            raise
        self.topology = TopologyRows(self._database)

    def close(self) -> None:
        """Close the database; the write-ahead log is merged into it."""
        self._database.close()

    def users(self) -> Users:
        """Return all users with their revision. Raises MetadataError for a damaged record."""
        (revision,) = self._database.execute("SELECT revision FROM state").fetchone()
        rows = self._database.execute(f"SELECT {_COLUMNS} FROM users ORDER BY name").fetchall()
        permissions, topics = self._permissions()
        found = (self._user(row, permissions[row[0]], topics[row[0]]) for row in rows)
        return Users(revision, tuple(found))

    def add(self, user: User) -> Users:
        """Create a user. Refused when the name is taken or the table is full."""
        self._check(user)
        with self._change() as database:
            if self._find(user.name) is not None:
                raise ChangeError(ERROR_EXISTS, f"user {user.name!r} exists already")
            (count,) = database.execute("SELECT count(*) FROM users").fetchone()
            if count >= USERS_MAX:
                raise ChangeError(ERROR_LIMIT, f"there are {USERS_MAX} users, which is the limit")
            self.put_user(user)
            return self._checked_snapshot()

    def set_password(self, name: str, password_hash: str, scram: StoredKeys | None) -> Users:
        """Replace a user's hash and SCRAM keys."""
        return self._replace(name, lambda user: replace(user, hash=password_hash, scram=scram))

    def upgrade_hashes(self, upgrades: Sequence[HashUpgrade]) -> Users:
        """Replace imported hashes that are still those that were verified: a password that has been
        set meanwhile stays. Refused when none is."""
        with self._change():
            upgraded = 0
            for each in upgrades:
                user = self._find(each.name)
                if user is None or user.hash != each.verified:
                    continue
                user = replace(user, hash=each.hash, scram=each.scram or user.scram)
                self._check(user)
                self.put_user(user)
                upgraded += 1
            if not upgraded:
                raise ChangeError(ERROR_NOT_FOUND, "no user has a hash that was verified")
            return self._checked_snapshot()

    def permit(
        self, name: str, publish: tuple[str, ...] | None, subscribe: tuple[str, ...] | None
    ) -> Users:
        """Replace a user's filters; None leaves that half as it is."""
        return self._replace(
            name,
            lambda user: replace(
                user,
                publish=user.publish if publish is None else publish,
                subscribe=user.subscribe if subscribe is None else subscribe,
            ),
        )

    def alter(
        self, name: str, *, enabled: bool | None = None, tags: tuple[str, ...] | None = None
    ) -> Users:
        """Allow a user to log in, or not, and replace its tags; None leaves that as it is."""
        return self._replace(
            name,
            lambda user: replace(
                user,
                enabled=user.enabled if enabled is None else enabled,
                tags=user.tags if tags is None else tags,
            ),
        )

    def set_permission(self, name: str, permission: VhostPermission) -> Users:
        """Grant a user access to a virtual host, or replace its permissions there."""
        return self._set_permission(name, permission, "permissions")

    def clear_permission(self, name: str, vhost: str) -> Users:
        """Revoke a user's access to a virtual host. Idempotent."""
        return self._clear(name, "DELETE FROM permissions WHERE user = ? AND vhost = ?", vhost)

    def set_topic_permission(self, name: str, permission: TopicPermission) -> Users:
        """Restrict a user's routing keys on a topic exchange, or replace the restriction."""
        return self._set_permission(name, permission, "topic_permissions")

    def clear_topic_permission(self, name: str, vhost: str, exchange: str | None) -> Users:
        """Lift a user's restriction on one exchange, None: on all of the virtual host."""
        return self._clear(
            name,
            "DELETE FROM topic_permissions WHERE user = ? AND vhost = ?"
            " AND (?3 IS NULL OR exchange = ?3)",
            vhost,
            exchange,
        )

    def delete(self, name: str) -> Users:
        """Remove a user and its permissions."""
        with self._change():
            if not self.drop_user(name):
                raise _unknown(name)
            return self.users()

    def drop_user(self, name: str) -> bool:
        """Remove a user within the open transaction; return whether it existed."""
        for table in _PERMISSION_TABLES:
            self._database.execute(f"DELETE FROM {table} WHERE user = ?", (name,))
        return self._database.execute("DELETE FROM users WHERE name = ?", (name,)).rowcount > 0

    @property
    def of_cluster(self) -> bool:
        """True when this database is a copy of what a cluster has, which decides about changes."""
        found = self._database.execute(
            "SELECT 1 FROM shared WHERE key IN (?, ?)", (ETCD, OLDER_NODE)
        )
        return found.fetchone() is not None

    @property
    def seeded(self) -> bool:
        """True when a node has run on this database before."""
        (seeded,) = self._database.execute("SELECT seeded FROM state").fetchone()
        return bool(seeded)

    def begin(self, node: str) -> bool:
        """Note which node runs here; if it is a new one, drop transient rows and return True."""
        (last,) = self._database.execute("SELECT node FROM state").fetchone()
        if last == node:
            return False
        with self.transaction() as database:
            database.execute("UPDATE state SET node = ?", (node,))
            self.topology.drop_transient()
        return True

    def seed(self, first: Callable[[], User], writes: Sequence[Write]) -> None:
        """Note that a node ran here; the first time, make `writes` and a user if there is none."""
        if self.seeded:
            return
        with self._change() as database:
            database.execute("UPDATE state SET seeded = 1")
            # From here on revision 0 means a copy that has nothing.
            self.topology.put(writes, 1)
            if database.execute("SELECT 1 FROM users LIMIT 1").fetchone() is None:
                self.put_user(first())

    def write_topology(
        self, writes: Sequence[Write], revision: int, dropped_vhosts: Sequence[str] = ()
    ) -> Users | None:
        """Write rows of the topology, all or none; return the users if they changed.

        Removes permissions for dropped virtual hosts. Synced unless every row is transient.
        """
        if dropped_vhosts:
            with self._change() as database:
                self.topology.put(writes, revision)
                drop_permissions(database, dropped_vhosts)
                return self.users()
        synced = self.topology.durable(writes)
        if not synced:
            # Without FULL a commit is not synced, and still survives this process.
            self._database.execute("PRAGMA synchronous = NORMAL")
        try:
            with self.transaction():
                self.topology.put(writes, revision)
        finally:
            if not synced:
                self._database.execute("PRAGMA synchronous = FULL")
        return None

    def _open(self) -> None:
        execute = self._database.execute
        execute("PRAGMA journal_mode = WAL")
        # Without FULL a power cut may undo a change that was already reported.
        execute("PRAGMA synchronous = FULL")
        execute("PRAGMA trusted_schema = OFF")
        (application,) = execute("PRAGMA application_id").fetchone()
        (version,) = execute("PRAGMA user_version").fetchone()
        (tables,) = execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application == 0 and version == 0 and tables == 0:
            self._upgrade(0)
            return
        if application != APPLICATION_ID:
            raise MetadataError(f"{self.path} is not a database of this broker")
        if not 1 <= version <= schema.VERSION:
            raise MetadataError(
                f"{self.path} has schema {version}, this version knows {schema.VERSION}"
            )
        (verdict,) = execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise MetadataError(f"{self.path} is damaged: {verdict}")
        if version < schema.VERSION:
            self._upgrade(version)

    def _upgrade(self, version: int) -> None:
        self._database.executescript(
            f"BEGIN IMMEDIATE;{schema.upgrade(version)}"
            f"PRAGMA application_id = {APPLICATION_ID};"
            f"PRAGMA user_version = {schema.VERSION};COMMIT;"
        )

    def tried(self, change: Callable[[MetadataStore], Users]) -> Users:
        """Return the users that a change would lead to, without making it. Raises ChangeError."""
        self._trying = True
        try:
            return change(self)
        finally:
            self._trying = False

    @contextlib.contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction with the users' next revision; roll back when the block raises."""
        if self.of_cluster and not self._trying:
            raise ChangeError(ERROR_FAILED, SHARED)
        with self.transaction() as database:
            database.execute("UPDATE state SET revision = revision + 1")
            yield database

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction; roll back when the block raises, or for a trial."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield self._database
            self._database.execute("ROLLBACK" if self._trying else "COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def _replace(self, name: str, changed: Callable[[User], User]) -> Users:
        with self._change():
            user = self._find(name)
            if user is None:
                raise _unknown(name)
            user = changed(user)
            self._check(user)
            self.put_user(user)
            return self._checked_snapshot()

    def _set_permission(
        self,
        name: str,
        permission: VhostPermission | TopicPermission,
        table: str,
    ) -> Users:
        problem = permission_problem(permission)
        if problem is not None:
            raise ChangeError(ERROR_INVALID, problem)
        columns = permission.__slots__
        with self._change() as database:
            user = self._find(name)
            if user is None:
                raise _unknown(name)
            if not self._has_vhost(permission.vhost):
                text = f"virtual host {permission.vhost!r} does not exist"
                raise ChangeError(ERROR_NOT_FOUND, text)
            database.execute(
                f"INSERT OR REPLACE INTO {table} (user, {', '.join(columns)})"
                f" VALUES (?{', ?' * len(columns)})",
                (name, *(getattr(permission, column) for column in columns)),
            )
            counted = database.execute(f"SELECT count(*) FROM {table} WHERE user = ?", (name,))
            if counted.fetchone()[0] > PERMISSIONS_MAX:
                raise ChangeError(
                    ERROR_LIMIT,
                    f"{name!r} has {PERMISSIONS_MAX} permissions, which is the limit",
                )
            return self._checked_snapshot()

    def _has_vhost(self, name: str) -> bool:
        """Return whether a virtual host exists, or will be created by the node's first run."""
        if self.topology.has(VHOST, (name,)):
            return True
        return name == DEFAULT_VHOST and not self.seeded

    def _clear(self, name: str, statement: str, *values: str | None) -> Users:
        with self._change() as database:
            if self._find(name) is None:
                raise _unknown(name)
            database.execute(statement, (name, *values))
            return self.users()

    def _checked_snapshot(self) -> Users:
        """Return the snapshot after checking that it still fits into one message."""
        users = self.users()
        try:
            size = len(encode_frame(users.to_body()))
        except FramingError:
            size = SNAPSHOT_BYTES_MAX + 1
        if size > SNAPSHOT_BYTES_MAX:
            raise ChangeError(
                ERROR_LIMIT, f"all users together would take more than {SNAPSHOT_BYTES_MAX} bytes"
            )
        return users

    def _find(self, name: str) -> User | None:
        row = self._database.execute(
            f"SELECT {_COLUMNS} FROM users WHERE name = ?",
            (name,),
        ).fetchone()
        if row is None:
            return None
        permissions, topics = self._permissions(name)
        return self._user(row, permissions[name], topics[name])

    def _permissions(
        self, name: str | None = None
    ) -> tuple[dict[str, list[VhostPermission]], dict[str, list[TopicPermission]]]:
        """Return the permissions of one user, None: of all, by user."""
        permissions: dict[str, list[VhostPermission]] = defaultdict(list)
        topics: dict[str, list[TopicPermission]] = defaultdict(list)
        chosen = "WHERE ?1 IS NULL OR user = ?1 ORDER BY user, vhost"
        execute = self._database.execute
        for user, *row in execute(
            f"SELECT user, vhost, configure, write, read FROM permissions {chosen}", (name,)
        ):
            permissions[user].append(VhostPermission(*row))
        for user, *row in execute(
            f"SELECT user, vhost, exchange, write, read FROM topic_permissions {chosen}, exchange",
            (name,),
        ):
            topics[user].append(TopicPermission(*row))
        return permissions, topics

    def put_user(self, user: User) -> None:
        """Write a user within the open transaction, replacing one of the same name."""
        keys = user.scram
        self._database.execute(
            f"INSERT OR REPLACE INTO users ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                user.name,
                user.hash,
                None if keys is None else keys.iterations,
                None if keys is None else keys.salt,
                None if keys is None else keys.stored_key,
                None if keys is None else keys.server_key,
                json.dumps(user.publish),
                json.dumps(user.subscribe),
                int(user.enabled),
                json.dumps(user.tags),
            ),
        )
        for table, permissions in (
            ("permissions", user.permissions),
            ("topic_permissions", user.topic_permissions),
        ):
            self._database.execute(f"DELETE FROM {table} WHERE user = ?", (user.name,))
            for each in permissions:
                values = [getattr(each, column) for column in each.__slots__]
                self._database.execute(
                    f"INSERT INTO {table} (user, {', '.join(each.__slots__)})"
                    f" VALUES (?{', ?' * len(values)})",
                    (user.name, *values),
                )

    def _user(
        self,
        row: tuple[str, str, int | None, bytes, bytes, bytes, str, str, int, str],
        permissions: list[VhostPermission],
        topics: list[TopicPermission],
    ) -> User:
        name, password_hash, iterations, salt, stored, server = row[:6]
        publish, subscribe, enabled, tags = row[6:]
        try:
            keys = None if iterations is None else StoredKeys(iterations, salt, stored, server)
            user = User(
                name,
                password_hash,
                keys,
                _texts(publish),
                _texts(subscribe),
                bool(enabled),
                _texts(tags),
                tuple(permissions),
                tuple(topics),
            )
        except (ValueError, TypeError) as error:
            raise MetadataError(f"{self.path}: user {name!r} is damaged: {error}") from error
        problem = user_problem(user)
        if problem is not None:
            raise MetadataError(f"{self.path}: user {name!r} is damaged: {problem}")
        return user

    @staticmethod
    def _check(user: User) -> None:
        problem = user_problem(user)
        if problem is not None:
            raise ChangeError(ERROR_INVALID, problem)


def drop_permissions(database: sqlite3.Connection, vhosts: Iterable[str]) -> None:
    """Remove users' permissions in dropped virtual hosts."""
    for vhost in vhosts:
        for table in _PERMISSION_TABLES:
            database.execute(f"DELETE FROM {table} WHERE vhost = ?", (vhost,))


def _texts(text: str) -> tuple[str, ...]:
    """Return the texts in a JSON list. Raises ValueError when it is anything else."""
    texts = json.loads(text)
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise ValueError("not a list of texts")
    return tuple(texts)


def _unknown(name: str) -> ChangeError:
    return ChangeError(ERROR_NOT_FOUND, f"there is no user {name!r}")


Result = TypeVar("Result")


class StoreThread:
    """The one thread that touches the database, so that a slow disk never stalls the event loop.

    Calls run in the order they were made. Lives in the control process.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata")

    async def run(self, call: Callable[[], Result]) -> Result:
        """Run `call()` on that thread; return its result or raise its exception."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def close(self) -> None:
        """Wait for calls in progress and end the thread."""
        self._executor.shutdown(wait=True)
