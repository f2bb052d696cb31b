"""Moves rows of sessions and retained messages to their new home shards when the number of shards
changes.

Runs before shards start, alone on the files. Rows are copied and synced before they are removed at
the source, so that a crash duplicates some and loses none; the next run finishes. When all rows are
in place it changes nothing.
"""

from __future__ import annotations

import sqlite3

from fluxmq.protocols.sniff import shard_of
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.state_store import (
    LIFE,
    OF_CLIENTS,
    RETAINED,
    SESSIONS,
    Row,
    StateTable,
    apply,
    no_changes,
    open_tables,
)

KEYS_PER_STEP = 500
"""Clients or topics moved in one transaction: bounds memory, as a session may have megabytes of
messages."""


def redistribute(files: Files, paths: DataPaths, workers: int) -> int:
    """Move every row to its home among ``workers`` shards; return how many clients and topics
    moved. Raises StorageError."""
    if not files.exists(paths.shards):
        return 0
    moved = 0
    for name in files.listdir(paths.shards):
        if name.isdecimal() and files.exists(paths.state(int(name))):
            moved += _empty(files, paths, int(name), workers)
    return moved


def _empty(files: Files, paths: DataPaths, shard: int, workers: int) -> int:
    """Move the rows that do not belong to a shard."""
    source = open_tables(paths.state(shard))
    moved = 0
    try:
        for table, tables in ((SESSIONS, OF_CLIENTS), (RETAINED, (RETAINED,))):
            strangers: dict[int, list[str | bytes]] = {}
            for (key,) in source.execute(f"SELECT {table.names[0]} FROM {table.name}"):
                home = shard_of(key.encode() if isinstance(key, str) else key, workers) or 0
                if home != shard:
                    strangers.setdefault(home, []).append(key)
            for home, keys in strangers.items():
                for at in range(0, len(keys), KEYS_PER_STEP):
                    _move(files, source, paths.state(home), tables, keys[at : at + KEYS_PER_STEP])
                moved += len(keys)
    except sqlite3.DatabaseError as error:
        raise StorageError(f"{paths.state(shard)}: {error}") from error
    finally:
        source.close()
    return moved


def _move(
    files: Files,
    source: sqlite3.Connection,
    path: str,
    tables: tuple[StateTable, ...],
    keys: list[str | bytes],
) -> None:
    """Copy all rows of some keys to another file, then remove them here."""
    there = no_changes()
    here = no_changes()
    # Copied too: the shard's last sign of life dates its sessions' disconnection.
    there.rows[LIFE.name] = {row[:1]: row for row in _rows(source, LIFE, [])}
    for table in tables:
        rows = _rows(source, table, keys)
        there.rows[table.name] = {row[: table.keys]: row for row in rows}
        here.rows[table.name] = dict.fromkeys(there.rows[table.name])
    target = open_tables(path)
    try:
        apply(target, there)
    finally:
        target.close()
    files.reach("state.move")
    apply(source, here)


def _rows(source: sqlite3.Connection, table: StateTable, keys: list[str | bytes]) -> list[Row]:
    where = f" WHERE {table.names[0]} IN ({', '.join('?' * len(keys))})" if keys else ""
    return source.execute(
        f"SELECT {', '.join(table.names)} FROM {table.name}{where}", keys
    ).fetchall()
