"""A disk in memory for shards in one process: `MemoryStore` is to a shard what `StateStore` is, without thread and file.

What a `Disk` holds is what was committed: it survives the shard. Commits happen at once, or when a test says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fluxmq.storage.state_store import OF_CLIENTS, TABLES, Changes, Key, Row, StateTable, no_changes


class Disk:
    """What a shard has on disk, by table and key. `held`: commits wait for `MemoryStore.commit`."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[Key, Row]] = {table.name: {} for table in TABLES}
        self.held = False
        self.reason = 0
        """Why commits are refused, 0 for not."""
        self.commits = 0

    def apply(self, changes: Changes) -> None:
        """Write what was gathered."""
        self.commits += 1
        for table in OF_CLIENTS:
            rows = self.rows[table.name]
            for key in [key for key in rows if key[0] in changes.wiped]:
                del rows[key]
        for name, changed in changes.rows.items():
            for key, row in changed.items():
                if row is None:
                    self.rows[name].pop(key, None)
                else:
                    self.rows[name][key] = row

    def rows_of(self, client: str) -> list[Row]:
        """Everything that it holds of a client."""
        return [
            row
            for table in OF_CLIENTS
            for key, row in self.rows[table.name].items()
            if key[0] == client
        ]

    def keys(self, table: StateTable) -> list[Key]:
        """What a table holds."""
        return sorted(self.rows[table.name])


class MemoryStore:
    """A shard's tables on a `Disk`."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._changes = no_changes()
        self._waiting: list[Callable[[int], object]] = []

    @property
    def refusing(self) -> int:
        """Why nothing new is kept."""
        return self.disk.reason

    @property
    def idle(self) -> bool:
        """Whether everything is on disk."""
        return not self._changes

    def put(self, table: StateTable, row: Row) -> None:
        """Insert or replace a row."""
        self._changes.rows.setdefault(table.name, {})[row[: table.keys]] = row

    def remove(self, table: StateTable, key: Key) -> None:
        """Remove a row."""
        self._changes.rows.setdefault(table.name, {})[key] = None

    def wipe(self, client: str) -> None:
        """Remove everything of a client."""
        for table in OF_CLIENTS:
            rows = self._changes.rows.get(table.name, {})
            for key in [key for key in rows if key[0] == client]:
                del rows[key]
        self._changes.wiped[client] = None

    def when_safe(self, done: Callable[[int], object]) -> None:
        """Call `done` when all changes so far are on the disk."""
        if not self._changes:
            done(0)
        else:
            self._waiting.append(done)

    def flush(self) -> None:
        """Commit, unless the test does."""
        if not self.disk.held:
            self.commit()

    def commit(self) -> None:
        """Write what was gathered and answer those who wait."""
        while self._changes or self._waiting:
            changes, self._changes = self._changes, no_changes()
            waiting, self._waiting = self._waiting, []
            if not self.disk.reason:
                self.disk.apply(changes)
            for done in waiting:
                done(self.disk.reason)

    def rows(self, table: StateTable, client: str | None = None) -> Iterator[Row]:
        """Rows in the order of keys."""
        for key, row in sorted(self.disk.rows[table.name].items()):
            if client is None or key[0] == client:
                yield row

    def others(self) -> list[tuple[bytes, bytes]]:
        """Filters and options of their other subscriptions."""
        rows = self.disk.rows["subscriptions"].values()
        return [(row[1], row[3]) for row in rows if row[2] is None]

    def filters(self) -> list[bytes]:
        """Filters of topics of the sessions that are kept."""
        return sorted({row[2] for row in self.disk.rows["subscriptions"].values() if row[2]})
