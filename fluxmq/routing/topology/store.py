"""The records with their indexes, and the journal by which a failed change is undone.

Knows no rules: every put succeeds. The rules, and the order of a delta's rows, ensure that records
are put after those they need and dropped before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fluxmq.routing.topology.records import (
    EXCHANGE,
    GLOBAL_PARAMETER,
    POLICY,
    QUEUE,
    USER_LIMITS,
    VHOST,
    Binding,
    Exchange,
    GlobalParameter,
    Key,
    Policy,
    QueueRecord,
    Record,
    UserLimits,
    Vhost,
    kind_of,
)
from fluxmq.routing.topology.tables import BindingTable, Destination, table_for


class Routed(NamedTuple):
    """Targets of a message: ``queues`` at once, ``delayed`` after ``delayed_ms``. No queue is in
    both.

    Both are sorted by name.
    """

    queues: tuple[QueueRecord, ...]
    delayed: tuple[QueueRecord, ...] = ()
    delayed_ms: int = 0


class Space:
    """Records of one vhost. Only `TopologyStore` may change it."""

    __slots__ = (
        "alternates",
        "bindings",
        "exchanges",
        "from_source",
        "policies",
        "queues",
        "routes",
        "tables",
        "to_destination",
        "vhost",
    )

    def __init__(self, vhost: Vhost) -> None:
        self.vhost = vhost
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, QueueRecord] = {}
        self.policies: dict[Key, Policy] = {}
        self.bindings: dict[Key, Binding] = {}
        self.from_source: dict[str, dict[Key, Binding]] = {}
        self.to_destination: dict[Destination, dict[Key, Binding]] = {}
        self.tables: dict[str, BindingTable] = {}
        self.routes: dict[tuple[str, str], Routed] = {}
        """Cached routes, by exchange and routing key; cleared by every change that could affect
        one."""
        self.alternates: dict[str, str] = {}
        """Alternate exchanges by arguments and policies; empty for none."""

    def forget(self) -> None:
        """Clear the caches."""
        self.routes.clear()
        self.alternates.clear()

    def records(self) -> Iterator[Record]:
        """Yield all records, each after those it needs."""
        yield self.vhost
        yield from self.exchanges.values()
        yield from self.queues.values()
        yield from self.policies.values()
        yield from self.bindings.values()


class TopologyStore:
    """All records. ``journal``, while one is set, collects what each change replaced."""

    def __init__(self) -> None:
        self.spaces: dict[str, Space] = {}
        self.global_parameters: dict[str, GlobalParameter] = {}
        self.user_limits: dict[str, UserLimits] = {}
        self.owned: dict[str, dict[Key, QueueRecord]] = {}
        """Exclusive queues by their connection."""
        self.grouped: dict[str, dict[Key, QueueRecord]] = {}
        """Queues by replication group."""
        self.journal: list[tuple[str, Key, Record | None]] | None = None
        self.count = 0

    def get(self, kind: str, key: Key) -> Record | None:
        """Return the record of this key; None when there is none."""
        if kind == GLOBAL_PARAMETER:
            return self.global_parameters.get(str(key[0]))
        if kind == USER_LIMITS:
            return self.user_limits.get(str(key[0]))
        space = self.spaces.get(str(key[0]))
        if space is None:
            return None
        if kind == VHOST:
            return space.vhost
        if kind == EXCHANGE:
            return space.exchanges.get(str(key[1]))
        if kind == QUEUE:
            return space.queues.get(str(key[1]))
        return space.policies.get(key) if kind == POLICY else space.bindings.get(key)

    def put(self, record: Record) -> None:
        """Put a record, replacing one with the same key.

        Raises `LookupError` when a record it needs is missing: its vhost, a binding's source and
        destination.
        """
        kind, key = kind_of(record), record.key
        old = self.get(kind, key)
        if isinstance(record, GlobalParameter):
            self.global_parameters[record.name] = record
        elif isinstance(record, UserLimits):
            self.user_limits[record.user] = record
        elif isinstance(record, Vhost):
            self._put_vhost(record)
        elif isinstance(record, Exchange):
            self._put_exchange(self.spaces[record.vhost], record)
        elif isinstance(record, QueueRecord):
            self._put_queue(self.spaces[record.vhost], record)
        elif isinstance(record, Policy):
            space = self.spaces[record.vhost]
            space.policies[key] = record
            space.forget()
        elif old is None:
            self._put_binding(self.spaces[record.vhost], key, record)
        self.count += old is None
        if self.journal is not None:
            self.journal.append((kind, key, old))

    def drop(self, kind: str, key: Key) -> None:
        """Drop a record; a no-op when there is none."""
        old = self.get(kind, key)
        if old is None:
            return
        if isinstance(old, GlobalParameter):
            del self.global_parameters[old.name]
        elif isinstance(old, UserLimits):
            del self.user_limits[old.user]
        elif isinstance(old, Vhost):
            del self.spaces[old.name]
        elif isinstance(old, Exchange):
            self._drop_exchange(self.spaces[old.vhost], old)
        elif isinstance(old, QueueRecord):
            self._drop_queue(self.spaces[old.vhost], old)
        elif isinstance(old, Policy):
            space = self.spaces[old.vhost]
            del space.policies[key]
            space.forget()
        else:
            self._drop_binding(self.spaces[old.vhost], key, old)
        self.count -= 1
        if self.journal is not None:
            self.journal.append((kind, key, old))

    def undo(self) -> None:
        """Undo everything in the journal."""
        assert self.journal is not None, "there is a journal while a change is made"
        journal, self.journal = self.journal, None
        for kind, key, old in reversed(journal):
            if old is None:
                self.drop(kind, key)
            else:
                self.put(old)

    def _put_vhost(self, vhost: Vhost) -> None:
        space = self.spaces.get(vhost.name)
        if space is None:
            self.spaces[vhost.name] = Space(vhost)
        else:
            space.vhost = vhost

    def _put_exchange(self, space: Space, exchange: Exchange) -> None:
        table = table_for(exchange)
        for binding in space.from_source.get(exchange.name, {}).values():
            table.add(binding)
        space.exchanges[exchange.name] = exchange
        space.tables[exchange.name] = table
        space.forget()

    def _drop_exchange(self, space: Space, exchange: Exchange) -> None:
        del space.exchanges[exchange.name]
        del space.tables[exchange.name]
        space.forget()

    def _put_queue(self, space: Space, queue: QueueRecord) -> None:
        old = space.queues.get(queue.name)
        if old is not None:
            self._drop_queue(space, old)
            space.forget()  # routes hold the queues themselves
        space.queues[queue.name] = queue
        for index, name in ((self.owned, queue.owner), (self.grouped, queue.group)):
            if name:
                index.setdefault(name, {})[queue.key] = queue

    def _drop_queue(self, space: Space, queue: QueueRecord) -> None:
        # Routes stay valid: no binding leads here any more, and those of the default exchange are
        # not cached.
        del space.queues[queue.name]
        for index, name in ((self.owned, queue.owner), (self.grouped, queue.group)):
            if name:
                del index[name][queue.key]
                if not index[name]:
                    del index[name]

    def _put_binding(self, space: Space, key: Key, binding: Binding) -> None:
        destination = (binding.destination_kind, binding.destination)
        there = space.queues if binding.destination_kind == QUEUE else space.exchanges
        if binding.destination not in there:
            raise LookupError("a binding to a destination that does not exist")
        space.tables[binding.source].add(binding)
        space.bindings[key] = binding
        space.from_source.setdefault(binding.source, {})[key] = binding
        space.to_destination.setdefault(destination, {})[key] = binding
        space.routes.clear()

    def _drop_binding(self, space: Space, key: Key, binding: Binding) -> None:
        destination = (binding.destination_kind, binding.destination)
        if binding.source in space.tables:
            space.tables[binding.source].remove(binding)
        del space.bindings[key]
        del space.from_source[binding.source][key]
        if not space.from_source[binding.source]:
            del space.from_source[binding.source]
        del space.to_destination[destination][key]
        if not space.to_destination[destination]:
            del space.to_destination[destination]
        space.routes.clear()
