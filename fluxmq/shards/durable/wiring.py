"""A shard's durable sessions and retained messages, as its broker and its process use them."""

from __future__ import annotations

from fluxmq.logs import get_logger
from fluxmq.shards.durable.links import DurableLinks
from fluxmq.shards.durable.rows import group_members
from fluxmq.shards.durable.sessions import DurableSessions
from fluxmq.shards.groups import GroupTable
from fluxmq.shards.routes import RouteTable
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.state_store import StateStore, durable_filters, durable_others

_log = get_logger("fluxmq.durable")


class Durable:
    """Everything that outlives a shard, except queues."""

    def __init__(self, sessions: DurableSessions, links: DurableLinks) -> None:
        self.sessions = sessions
        self.links = links

    @property
    def loaded(self) -> bool:
        """True once the sessions of this home are here: no client may connect before."""
        return self.sessions.loaded

    def housekeeping(self) -> None:
        """Run periodic work; called by the shard's timer."""
        self.sessions.housekeeping()
        self.links.housekeeping()


def open_store(data_dir: str, shard: int) -> StateStore:
    """Open this shard's tables. Raises StorageError."""
    return StateStore(DataPaths(data_dir).state(shard))


def expect_others(
    routes: RouteTable, groups: GroupTable, data_dir: str, shard: int, workers: int
) -> None:
    """Load the subscriptions of persistent sessions of shards that start later.

    Raises StorageError."""
    for other in range(workers):
        if other != shard:
            path = DataPaths(data_dir).state(other)
            routes.expect(other, durable_filters(path))
            groups.expect(other, group_members(durable_others(path)))


class StoreWatch:
    """Logs when a store fails, is full, or recovers."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._known = ("", False)

    def completed(self) -> None:
        """Handle the end of a commit."""
        self._store.completed()
        now = (self._store.failed, self._store.full)
        if now == self._known:
            return
        self._known = now
        if now[0]:
            _log.error(
                "sessions and retained messages are no longer persisted: %s",
                now[0],
            )
        elif now[1]:
            _log.error(
                "no disk space for sessions and retained messages: requests that need it are refused"
            )
        else:
            _log.warning("there is disk space again for sessions and retained messages")

    def close(self) -> None:
        """Write remaining changes."""
        try:
            self._store.close()
        except StorageError as error:
            _log.error("%s", error)
