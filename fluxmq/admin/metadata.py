"""The node's metadata on disk: ``meta.db``, an SQLite database.

One writer (the control process, or `fluxmqctl` while the broker is down; the data directory's lock
keeps them apart). Every change is one transaction, synced before it is reported, and raises the
revision by one; shards work by snapshots of a revision. The store blocks, so it lives on a thread of
its own (`StoreThread`); it knows nothing of sockets or shards.

Schema 1::

    state   one row: the revision
    users   name, argon2id hash, SCRAM-SHA-256 keys (all four or none), filters as JSON lists, enabled
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from fluxmq.auth.scram import StoredKeys
from fluxmq.auth.users import User, user_problem
from fluxmq.control.framing import FramingError, encode_frame
from fluxmq.control.messages import (
    ERROR_EXISTS,
    ERROR_INVALID,
    ERROR_LIMIT,
    ERROR_NOT_FOUND,
)
from fluxmq.control.user_messages import SNAPSHOT_BYTES_MAX, USERS_MAX, Users
from fluxmq.model.errors import FluxmqError

FILE_NAME: Final = "meta.db"
SCHEMA_VERSION: Final = 1
# Marks the file as ours ("FlMQ"); another program's database is refused, not overwritten.
APPLICATION_ID: Final = 0x466C4D51
BUSY_SECONDS: Final = 5.0

_SCHEMA: Final = """
CREATE TABLE state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    revision INTEGER NOT NULL CHECK (revision >= 0)
) STRICT;
INSERT INTO state (id, revision) VALUES (1, 0);
CREATE TABLE users (
    name TEXT PRIMARY KEY,
    hash TEXT NOT NULL,
    scram_iterations INTEGER,
    scram_salt BLOB,
    scram_stored_key BLOB,
    scram_server_key BLOB,
    publish TEXT NOT NULL,
    subscribe TEXT NOT NULL,
    enabled INTEGER NOT NULL CHECK (enabled IN (0, 1)),
    CHECK ((scram_iterations IS NULL) = (scram_salt IS NULL)),
    CHECK ((scram_iterations IS NULL) = (scram_stored_key IS NULL)),
    CHECK ((scram_iterations IS NULL) = (scram_server_key IS NULL))
) STRICT, WITHOUT ROWID;
"""
_COLUMNS: Final = (
    "name, hash, scram_iterations, scram_salt, scram_stored_key, scram_server_key,"
    " publish, subscribe, enabled"
)


class MetadataError(FluxmqError):
    """The database cannot be used: not ours, newer than this program, or damaged."""


class ChangeError(FluxmqError):
    """A change was refused and nothing was written; `code` is one of `control.messages.ERROR_*`."""

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
        self._path = path
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

    def close(self) -> None:
        """Close the database; the write-ahead log is merged into it."""
        self._database.close()

    def users(self) -> Users:
        """Return all users with their revision. Raises MetadataError for a record that is damaged."""
        (revision,) = self._database.execute("SELECT revision FROM state").fetchone()
        rows = self._database.execute(f"SELECT {_COLUMNS} FROM users ORDER BY name")
        return Users(revision, tuple(self._user(row) for row in rows))

    def add(self, user: User) -> Users:
        """Create a user. Refused when the name is taken or the table is full."""
        self._check(user)
        with self._change() as database:
            if self._find(user.name) is not None:
                raise ChangeError(ERROR_EXISTS, f"user {user.name!r} exists already")
            (count,) = database.execute("SELECT count(*) FROM users").fetchone()
            if count >= USERS_MAX:
                raise ChangeError(ERROR_LIMIT, f"there are {USERS_MAX} users, which is the limit")
            self._write(user)
            return self._checked_snapshot()

    def set_password(self, name: str, password_hash: str, scram: StoredKeys | None) -> Users:
        """Replace a user's hash and SCRAM keys."""
        return self._replace(
            name,
            lambda user: User(
                name, password_hash, scram, user.publish, user.subscribe, user.enabled
            ),
        )

    def permit(
        self, name: str, publish: tuple[str, ...] | None, subscribe: tuple[str, ...] | None
    ) -> Users:
        """Replace a user's permissions; None leaves that half as it is."""
        return self._replace(
            name,
            lambda user: User(
                name,
                user.hash,
                user.scram,
                user.publish if publish is None else publish,
                user.subscribe if subscribe is None else subscribe,
                user.enabled,
            ),
        )

    def enable(self, name: str, enabled: bool) -> Users:
        """Let a user log in, or not."""
        return self._replace(
            name,
            lambda user: User(name, user.hash, user.scram, user.publish, user.subscribe, enabled),
        )

    def delete(self, name: str) -> Users:
        """Remove a user."""
        with self._change() as database:
            if database.execute("DELETE FROM users WHERE name = ?", (name,)).rowcount == 0:
                raise _unknown(name)
            return self.users()

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
            self._create()
            return
        if application != APPLICATION_ID:
            raise MetadataError(f"{self._path} is not a database of this broker")
        if version != SCHEMA_VERSION:
            raise MetadataError(
                f"{self._path} has schema {version}, this version knows {SCHEMA_VERSION}"
            )
        (verdict,) = execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise MetadataError(f"{self._path} is damaged: {verdict}")

    def _create(self) -> None:
        self._database.executescript(
            f"BEGIN IMMEDIATE;{_SCHEMA}"
            f"PRAGMA application_id = {APPLICATION_ID};"
            f"PRAGMA user_version = {SCHEMA_VERSION};COMMIT;"
        )

    @contextlib.contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """One transaction with the next revision; rolled back when the block raises."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            self._database.execute("UPDATE state SET revision = revision + 1")
            yield self._database
            self._database.execute("COMMIT")
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
            self._write(user)
            return self._checked_snapshot()

    def _checked_snapshot(self) -> Users:
        """Return the snapshot, making sure that it still fits into one message."""
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
        return None if row is None else self._user(row)

    def _write(self, user: User) -> None:
        keys = user.scram
        self._database.execute(
            f"INSERT OR REPLACE INTO users ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
            ),
        )

    def _user(self, row: tuple[str, str, int | None, bytes, bytes, bytes, str, str, int]) -> User:
        name, password_hash, iterations, salt, stored, server, publish, subscribe, enabled = row
        try:
            keys = None if iterations is None else StoredKeys(iterations, salt, stored, server)
            user = User(
                name,
                password_hash,
                keys,
                _rules(publish),
                _rules(subscribe),
                bool(enabled),
            )
        except (ValueError, TypeError) as error:
            raise MetadataError(f"{self._path}: user {name!r} is damaged: {error}") from error
        problem = user_problem(user)
        if problem is not None:
            raise MetadataError(f"{self._path}: user {name!r} is damaged: {problem}")
        return user

    @staticmethod
    def _check(user: User) -> None:
        problem = user_problem(user)
        if problem is not None:
            raise ChangeError(ERROR_INVALID, problem)


def _rules(text: str) -> tuple[str, ...]:
    """Return the filters in a JSON list. Raises ValueError when it is anything else."""
    rules = json.loads(text)
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise ValueError("filters are not a list of texts")
    return tuple(rules)


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
        """Return what `call()` returns on that thread; raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def close(self) -> None:
        """Wait for calls in progress and end the thread."""
        self._executor.shutdown(wait=True)
