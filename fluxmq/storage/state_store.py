"""A shard's tables: sessions, their pending messages, retained messages. One SQLite file, one
writer thread.

Responsible for group commit: changes are collected on the event loop, coalesced by key, and written
by the thread, all that arrived meanwhile in one transaction; waiting callers are answered on the
loop once their changes are synced. Knows tables and keys; their user defines the values.

A full disk refuses waiting callers, and the changes are retried, so that the disk never falls
behind permanently. Any other failure ends the store: after a failed sync the disk's state is
unknown, so nothing that depends on it is acknowledged any more. SQLite opens and syncs its files
itself (``journal_mode=WAL``, ``synchronous=FULL``: the log is synced at every commit), so they
bypass ``files``.

Sources: sqlite.org/wal.html, sqlite.org/pragma.html#pragma_synchronous.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fluxmq.model.outcomes import Outcome
from fluxmq.storage.errors import Corruption, StorageError, WriteFailed
from fluxmq.storage.files import Files

FORMAT: Final = 3
"""The tables' version, stored in the file; older ones are upgraded, newer ones refused."""
ROWS_PER_STATEMENT: Final = 2000
"""Rows written by one statement: few statements, since the thread takes the interpreter's lock
after each; SQLite takes 32 766 values in one."""
BUFFER_BYTES_MAX: Final = 64 << 20
"""Bytes of changes that may wait for the disk; beyond it new messages are refused."""
RETRY_SECONDS: Final = 1.0
"""Interval between attempts on a full disk."""
BUSY_MS: Final = 10_000
"""Longest wait for the file's lock: another shard may be reading filters from it."""
ROW_BYTES: Final = 64
"""Approximate cost of a change beyond its values, in bytes."""

Key = tuple[Any, ...]
Row = tuple[Any, ...]


class StateTable(NamedTuple):
    """A table: ``columns`` with their types, the first ``keys`` of which are the key."""

    name: str
    columns: tuple[str, ...]
    keys: int

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [column.split()[0] for column in self.columns]


SESSIONS: Final = StateTable("sessions", ("client TEXT", "state BLOB"), 1)
SUBSCRIPTIONS: Final = StateTable(
    "subscriptions", ("client TEXT", "filter BLOB", "topic BLOB", "options BLOB"), 2
)
"""``topic``: the inner filter for routing messages; null for shared subscriptions and queues."""
MESSAGES: Final = StateTable("messages", ("client TEXT", "number INTEGER", "data BLOB"), 2)
ANSWERED: Final = StateTable("answered", ("client TEXT", "number INTEGER", "count INTEGER"), 2)
"""Settled messages of a row of ``messages``, by the first one's number."""
RECEIVED: Final = StateTable(
    "received", ("client TEXT", "packet INTEGER", "count INTEGER NOT NULL DEFAULT 1"), 2
)
"""Ranges of packet identifiers; each was one identifier up to format 2."""
RELEASED: Final = StateTable(
    "released", ("client TEXT", "packet INTEGER", "count INTEGER NOT NULL DEFAULT 1"), 2
)
"""The same."""
HEARD: Final = StateTable(
    "heard",
    ("client TEXT", "link INTEGER", "epoch INTEGER", "refused INTEGER", "number INTEGER"),
    2,
)
"""The last numbered run that a shard (in its life ``epoch``) sent over a link for a session, by the
shard that had the session (`RunOrigin.receipt`); runs up to ``refused`` may be missing in
``messages``. With `SEEN_ELSEWHERE` for ``refused``: the number after the last message that the
session has received at another node, of the origin ``link``."""
SEEN_ELSEWHERE: Final = -1
LIFE: Final = StateTable("life", ("shard INTEGER", "alive REAL"), 1)
"""The last moment (wall clock) at which the shard is known to have been running; with the number
`DEPARTED` less the shard's, at which a session has left it for another node."""
DEPARTED: Final = -1
RETAINED: Final = StateTable("retained", ("topic BLOB", "deadline REAL", "data BLOB"), 1)
OF_CLIENTS: Final = (SESSIONS, SUBSCRIPTIONS, MESSAGES, ANSWERED, RECEIVED, RELEASED, HEARD)
TABLES: Final = (*OF_CLIENTS, LIFE, RETAINED)
_BY_NAME: Final = {table.name: table for table in TABLES}


def table_of(name: str) -> StateTable:
    """Return the table of a name."""
    return _BY_NAME[name]


@dataclass(slots=True)
class Changes:
    """Changes written together: rows by table and key (None: deleted), and clients to erase
    completely."""

    rows: dict[str, dict[Key, Row | None]]
    wiped: dict[str, None]
    size: int = 0
    clients: set[object] = field(default_factory=set)
    """First columns of the rows' keys: the clients, in tables of clients."""

    def __bool__(self) -> bool:
        return bool(self.rows or self.wiped)

    @property
    def count(self) -> int:
        """Number of rows changed and clients wiped."""
        return sum(map(len, self.rows.values())) + len(self.wiped)


def no_changes() -> Changes:
    """Return an empty set of changes."""
    return Changes({}, {})


class StateStore:
    """One shard's tables. ``failed``: why it is no longer usable, empty while it is."""

    def __init__(self, path: str, *, sync_delay: float = 0.0) -> None:
        """Open or create the file at ``path``. ``sync_delay``: seconds added to a commit, for tests
        and benchmarks.

        Raises StorageError when it cannot be opened, Corruption when it is not such a file.
        """
        self.path = path
        self.failed = ""
        self.full = False
        self.low = False
        """True when free space is below the minimum: new data is refused, existing data is still
        updated."""
        self.commits = 0
        self.written_rows = 0
        self.last_seconds = 0.0
        self._delay = sync_delay
        self._changes = no_changes()
        self._waiting: list[Callable[[int], object]] = []
        self._under_way: list[Callable[[int], object]] = []
        self._busy = False
        self._retry_at = 0.0
        self._again: Changes | None = None
        self._reader: sqlite3.Connection = open_tables(path)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._changed = threading.Condition()
        self._asked: Changes | None = None
        self._outcome: tuple[str, bool] | None = None
        self._stopping = False
        try:
            self._mark = os.open(f"{path}-mark", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise StorageError(f"{path}-mark: {error}") from error
        self._thread = threading.Thread(target=self._run, name="state", daemon=True)
        self._thread.start()

    # Changes

    def put(self, table: StateTable, row: Row) -> None:
        """Insert or replace a row."""
        key = row[: table.keys]
        self._changes.clients.add(key[0])
        self._changes.rows.setdefault(table.name, {})[key] = row
        self._changes.size += ROW_BYTES + sum(
            len(value) for value in row if isinstance(value, bytes | str)
        )

    def remove(self, table: StateTable, key: Key) -> None:
        """Remove a row; do nothing when it does not exist."""
        self._changes.clients.add(key[0])
        self._changes.rows.setdefault(table.name, {})[key] = None
        self._changes.size += ROW_BYTES

    def wipe(self, client: str) -> None:
        """Remove all rows of a client."""
        for table in OF_CLIENTS if client in self._changes.clients else ():
            rows = self._changes.rows.get(table.name)
            if rows:
                for key in [key for key in rows if key[0] == client]:
                    del rows[key]
        self._changes.wiped[client] = None
        self._changes.size += ROW_BYTES

    def when_safe(self, done: Callable[[int], object]) -> None:
        """Call ``done`` when all changes made so far are on disk: with 0, or the reason why not."""
        if self.failed:
            done(Outcome.FAILED)
        elif self.full:
            done(Outcome.OVER_LIMIT)
        elif not self._changes and not self._busy:
            done(0)
        else:
            self._waiting.append(done)

    @property
    def refusing(self) -> int:
        """Reason for refusing new data now; 0 when it is accepted."""
        if self.failed:
            return Outcome.FAILED
        if self.full or self.low or self._changes.size > BUFFER_BYTES_MAX:
            return Outcome.OVER_LIMIT
        return 0

    @property
    def waited_for(self) -> bool:
        """True while a caller waits for changes that are not yet being written."""
        return bool(self._waiting)

    @property
    def idle(self) -> bool:
        """True when everything is on disk."""
        return not self._changes and not self._busy and self._again is None

    @property
    def buffered_bytes(self) -> int:
        """Approximate number of bytes waiting to be written."""
        return self._changes.size

    @property
    def waiting_rows(self) -> int:
        """Rows changed and not yet on disk, including those of the current commit."""
        again = 0 if self._again is None else self._again.count
        return self._changes.count + again

    def flush(self) -> None:
        """Hand the collected changes to the thread; if it is busy, it gets them afterwards."""
        if self._busy or self.failed:
            return
        if self.full:
            if time.monotonic() < self._retry_at:
                return
            assert self._again is not None
            self._begin(self._again)
        elif self._changes or self._waiting:
            changes, self._changes = self._changes, no_changes()
            self._under_way, self._waiting = self._waiting, []
            self._begin(changes)

    def _begin(self, changes: Changes) -> None:
        self._busy = True
        self._again = changes
        with self._changed:
            self._asked = changes
            self._changed.notify()

    def fileno(self) -> int:
        """Return an eventfd, readable when ``completed`` has something to do."""
        return self._event

    def completed(self) -> None:
        """Answer the callers of a finished commit, and start the next one."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        with self._changed:
            outcome, self._outcome = self._outcome, None
        if outcome is None:
            return
        self._busy = False
        problem, is_full = outcome
        reason = 0
        if is_full:
            self.full = True
            self._retry_at = time.monotonic() + RETRY_SECONDS
            reason = Outcome.OVER_LIMIT
        elif problem:
            self.failed = problem
            self._changes = no_changes()
            self._again = None
            reason = Outcome.FAILED
        else:
            self.full = False
            self._again = None
            self.commits += 1
        waiting, self._under_way = self._under_way, []
        if reason:
            waiting += self._waiting
            self._waiting = []
        for done in waiting:
            done(reason)
        if self._waiting:
            self.flush()

    # The thread

    def _run(self) -> None:
        writer = connect(self.path)
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._asked is not None or self._stopping)
                    changes, self._asked = self._asked, None
                if changes is None:
                    return
                outcome = self._write(writer, changes)
                with self._changed:
                    self._outcome = outcome
                os.eventfd_write(self._event, 1)
        finally:
            os.close(self._mark)
            writer.close()

    def _write(self, writer: sqlite3.Connection, changes: Changes) -> tuple[str, bool]:
        begin = time.monotonic()
        try:
            apply(writer, changes)
            # A shut-down file system may report success for a sync of a growing file; a later write it refuses.
            os.pwrite(self._mark, self.commits.to_bytes(8, "little"), 0)
            if self._delay:
                time.sleep(self._delay)
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0)
            with contextlib.suppress(sqlite3.Error):
                writer.rollback()
            return f"{self.path}: {error}", code == sqlite3.SQLITE_FULL
        except OSError as error:
            return f"{self.path}: {error}", error.errno in (errno.ENOSPC, errno.EDQUOT)
        self.last_seconds = time.monotonic() - begin
        self.written_rows += sum(map(len, changes.rows.values()))
        return "", False

    # Reading

    def rows(self, table: StateTable, client: str | None = None) -> Iterator[Row]:
        """Yield the rows on disk, in key order; of one client, or all. Raises StorageError."""
        where = "" if client is None else " WHERE client = ?"
        order = ", ".join(table.names[: table.keys])
        text = f"SELECT {', '.join(table.names)} FROM {table.name}{where} ORDER BY {order}"
        try:
            yield from self._reader.execute(text, () if client is None else (client,))
        except sqlite3.Error as error:
            raise StorageError(f"{self.path}: {error}") from error

    def close(self) -> None:
        """Write remaining changes, end the thread, close the file. Raises WriteFailed if a change
        could not be written."""
        while not self.failed and not self.full and (self._busy or self._changes or self._waiting):
            self.flush()
            with self._changed:
                waiting = self._outcome is None
            if waiting:
                time.sleep(0.001)
            self.completed()
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()
        self._reader.close()
        os.close(self._event)
        if self.full:
            raise WriteFailed(f"{self.path}: the disk is full")


def connect(path: str, *, readonly: bool = False) -> sqlite3.Connection:
    """Open an existing file of tables. Raises StorageError."""
    try:
        connection = sqlite3.connect(
            f"file:{path}?mode=ro" if readonly else path,
            uri=readonly,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_MS / 1000,
        )
        if not readonly:
            connection.execute("PRAGMA journal_mode=WAL").fetchall()
            connection.execute("PRAGMA synchronous=FULL")
    except sqlite3.DatabaseError as error:
        raise _problem(path, error) from error
    return connection


def open_tables(path: str) -> sqlite3.Connection:
    """Open a file, creating it with its tables if missing; durable when it returns. Raises
    StorageError."""
    files = Files()
    directory = os.path.dirname(path)
    files.make_directory(directory)
    connection = connect(path)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        _check_version(path, version)
        if version < FORMAT:
            connection.execute("BEGIN IMMEDIATE")
            for table in TABLES:
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {table.name} ({', '.join(table.columns)},"
                    f" PRIMARY KEY ({', '.join(table.names[: table.keys])})) WITHOUT ROWID"
                )
            for table in (RECEIVED, RELEASED) if version else ():
                _add_column(connection, table, table.columns[2])
            connection.execute(f"PRAGMA user_version={FORMAT}")
            connection.execute("COMMIT")
            files.fsync_directory(directory)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise _problem(path, error) from error
    except StorageError:
        connection.close()
        raise
    return connection


def _add_column(connection: sqlite3.Connection, table: StateTable, column: str) -> None:
    """Add a column to a table of an older format, unless it was just created with it."""
    known = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table.name})")]
    if column.split()[0] not in known:
        connection.execute(f"ALTER TABLE {table.name} ADD COLUMN {column}")


def _check_version(path: str, version: int) -> None:
    if version > FORMAT:
        raise StorageError(f"{path} has format {version}; this FluxMQ reads {FORMAT}")


def _problem(path: str, error: sqlite3.Error) -> StorageError:
    code = getattr(error, "sqlite_errorcode", 0)
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return Corruption(path, 0, str(error))
    return StorageError(f"{path}: {error}")


def apply(connection: sqlite3.Connection, changes: Changes) -> None:
    """Write changes in one transaction, committed and synced when it returns. Raises
    sqlite3.Error."""
    connection.execute("BEGIN IMMEDIATE")
    wiped = list(changes.wiped)
    for at in range(0, len(wiped), ROWS_PER_STATEMENT):
        part = wiped[at : at + ROWS_PER_STATEMENT]
        marks = ", ".join("?" * len(part))
        for table in OF_CLIENTS:
            connection.execute(f"DELETE FROM {table.name} WHERE client IN ({marks})", part)
    for name, rows in changes.rows.items():
        table = _BY_NAME[name]
        _write_rows(connection, table, [row for row in rows.values() if row is not None])
        _remove_rows(connection, table, [key for key, row in rows.items() if row is None])
    connection.execute("COMMIT")


def _write_rows(connection: sqlite3.Connection, table: StateTable, rows: list[Row]) -> None:
    one = f"({', '.join('?' * len(table.columns))})"
    for at in range(0, len(rows), ROWS_PER_STATEMENT):
        part = rows[at : at + ROWS_PER_STATEMENT]
        connection.execute(
            f"REPLACE INTO {table.name} VALUES {', '.join([one] * len(part))}",
            [value for row in part for value in row],
        )


def _remove_rows(connection: sqlite3.Connection, table: StateTable, keys: list[Key]) -> None:
    names = ", ".join(table.names[: table.keys])
    one = f"({', '.join('?' * table.keys)})"
    for at in range(0, len(keys), ROWS_PER_STATEMENT):
        part = keys[at : at + ROWS_PER_STATEMENT]
        connection.execute(
            f"DELETE FROM {table.name} WHERE ({names}) IN (VALUES {', '.join([one] * len(part))})",
            [value for key in part for value in key],
        )


def durable_filters(path: str) -> list[bytes]:
    """Return the topic filters of sessions in a file; none when there is no file. Raises
    StorageError."""
    found = _select(path, "SELECT DISTINCT topic FROM subscriptions WHERE topic IS NOT NULL")
    return [topic for (topic,) in found]


def durable_others(path: str) -> list[Row]:
    """Return filter and options of their queue and shared subscriptions. Raises StorageError."""
    return _select(path, "SELECT filter, options FROM subscriptions WHERE topic IS NULL")


def _select(path: str, text: str) -> list[Row]:
    if not Files().exists(path):
        return []
    connection = connect(path, readonly=True)
    try:
        return connection.execute(text).fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return []  # it is being created
        raise _problem(path, error) from error
    except sqlite3.DatabaseError as error:
        raise _problem(path, error) from error
    finally:
        connection.close()
