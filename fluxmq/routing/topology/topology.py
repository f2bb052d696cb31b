"""The topology: the authority applies changes, every copy takes the resulting deltas in order.

A change is made whole or not at all. Its result is a `Delta`, as large as the difference; a copy
that took the same deltas has the same records, and refuses and routes alike. Deltas are plain
values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fluxmq.model.errors import FluxmqError
from fluxmq.routing.topology import rules
from fluxmq.routing.topology.changes import Change
from fluxmq.routing.topology.names import public_name
from fluxmq.routing.topology.records import (
    EXCHANGE,
    KINDS,
    QUEUE,
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
    record_of,
    row_of,
)
from fluxmq.routing.topology.refusals import Refusal, default_exchange
from fluxmq.routing.topology.store import Space, TopologyStore

__all__ = ["Delta", "OutOfStepError", "Refusal", "Topology", "TopologyRow", "global_parameters"]


class OutOfStepError(FluxmqError):
    """A delta does not fit its copy: a snapshot is needed."""


class TopologyRow(NamedTuple):
    """One record's current state; ``row`` is None when it is gone."""

    kind: str
    key: Key
    row: dict[str, Any] | None


class Delta(NamedTuple):
    """Difference between ``previous`` and ``revision``; ``previous`` None: from nothing, which
    makes it a snapshot.

    Rows are in an order in which they can be taken. Without a row nothing happened, and both
    revisions are equal.
    """

    revision: int
    previous: int | None
    rows: tuple[TopologyRow, ...]

    @staticmethod
    def of(revision: int, previous: int | None, rows: Iterable[TopologyRow]) -> Delta:
        """Return a delta with these rows, which may be in any order."""
        return Delta(revision, previous, tuple(sorted(rows, key=_turn)))

    def pack(self) -> list[Any]:
        """Return the delta as plain values for msgpack."""
        return [
            self.revision,
            self.previous,
            [[row.kind, list(row.key), row.row] for row in self.rows],
        ]

    @staticmethod
    def unpack(packed: Any) -> Delta:
        """Decode a packed delta; rows are checked when they are taken. Raises `ValueError` for
        anything else."""
        try:
            revision, previous, rows = packed
            unpacked = tuple(TopologyRow(kind, tuple(key), row) for kind, key, row in rows)
        except (TypeError, ValueError):
            raise ValueError("not a delta of the topology") from None
        if not _is_revision(revision) or not (previous is None or _is_revision(previous)):
            raise ValueError("not a delta of the topology")
        for row in unpacked:
            if row.kind not in KINDS or not all(isinstance(part, str | bytes) for part in row.key):
                raise ValueError("not a row of the topology")
        return Delta(revision, previous, unpacked)


def _is_revision(value: Any) -> bool:
    return type(value) is int and value >= 0


class Topology:
    """Vhosts, exchanges, queues, bindings and policies, at a revision that grows with every
    change."""

    def __init__(self, records_max: int = rules.RECORDS_MAX) -> None:
        self.revision = 0
        self._store = TopologyStore()
        self._records_max = records_max
        self.replaced: list[tuple[str, Key, Record | None]] | None = None
        """Records that changes have replaced since this was set to a list, by which they can be
        undone: see ``reversal``."""

    # Changing

    def apply(self, change: Change) -> Delta:
        """Make a change. Raises `Refusal`; then nothing has happened."""
        return self.apply_all((change,))

    def apply_all(self, changes: Sequence[Change]) -> Delta:
        """Make all of these changes, in order, or none. Raises the first change's `Refusal`."""
        store = self._store
        store.journal = []
        try:
            for change in changes:
                rules.carry_out(store, change, self._records_max)
        except BaseException:
            store.undo()
            raise
        journal, store.journal = store.journal, None
        if self.replaced is not None:
            self.replaced += journal
        return self._delta(journal)

    def _delta(self, journal: list[tuple[str, Key, Record | None]]) -> Delta:
        """Return the result of a journal; the revision advances if there is any."""
        before: dict[tuple[str, Key], Record | None] = {}
        for kind, key, old in journal:
            before.setdefault((kind, key), old)
        rows: list[TopologyRow] = []
        for (kind, key), old in before.items():
            record = self._store.get(kind, key)
            if record is not None and record is not old:
                rows.append(TopologyRow(kind, key, row_of(record)))
            elif record is None and old is not None:
                rows.append(TopologyRow(kind, key, None))
        previous = self.revision
        self.revision += bool(rows)
        return Delta.of(self.revision, previous, rows)

    def take(self, delta: Delta) -> None:
        """Apply a delta: a snapshot replaces everything, any other delta must follow this revision.

        Raises `OutOfStepError` when it does not follow, or its rows do not fit; then nothing has
        happened.
        """
        if delta.previous is not None and delta.previous != self.revision:
            raise OutOfStepError(f"changes from {delta.previous} for a copy at {self.revision}")
        whole = delta.previous is None
        store = TopologyStore() if whole else self._store
        store.journal = None if whole else []
        try:
            for kind, key, row in delta.rows:
                if row is None:
                    store.drop(kind, key)
                    continue
                store.put(record_of(kind, key, row))
        except (ValueError, LookupError) as error:
            if not whole:
                store.undo()
            raise OutOfStepError(f"changes that do not fit: {error}") from None
        store.journal = None
        self._store = store
        self.revision = delta.revision

    def snapshot(self) -> Delta:
        """Return everything, for an empty copy."""
        records = itertools.chain(
            self._store.global_parameters.values(),
            self._store.user_limits.values(),
            *(space.records() for space in self._store.spaces.values()),
        )
        rows = [TopologyRow(kind_of(record), record.key, row_of(record)) for record in records]
        return Delta.of(self.revision, None, rows)

    def restore(self, rows: Iterable[TopologyRow], revision: int) -> list[TopologyRow]:
        """Restore these rows, as far as they are consistent; return the unusable rows.

        For rows from disk, where those of transient records are missing: bindings to them lead
        nowhere.
        """
        self._store = TopologyStore()
        self.revision = revision
        unusable: list[TopologyRow] = []
        for row in sorted(rows, key=_turn):
            try:
                self._store.put(record_of(*row))
            except (ValueError, LookupError):
                unusable.append(row)
        return unusable

    def is_durable(self, kind: str, key: Key) -> bool:
        """Return whether this record survives the node's restart; a binding does when both its ends
        do."""
        record = self._store.get(kind, key)
        if isinstance(record, Exchange | QueueRecord):
            return record.durable
        if isinstance(record, Binding):
            ends = (EXCHANGE, record.source), (record.destination_kind, record.destination)
            return all(self.is_durable(end, (record.vhost, name)) for end, name in ends)
        return record is not None

    # Checks of a change in advance; usable on a copy

    def check_exchange(self, wanted: Exchange) -> bool:
        """Return whether there is an equal exchange; False when it may be declared. Raises
        `Refusal`."""
        return rules.check_exchange(self._store, wanted)

    def check_queue(self, wanted: QueueRecord) -> bool:
        """Return whether there is an equal queue; False when it may be declared. Raises `Refusal`.

        ``group`` and ``origin`` do not count.
        """
        return rules.check_queue(self._store, wanted)

    def check_bind(self, binding: Binding, asker: str | None = None) -> bool:
        """Return whether the binding exists; False when it may be created. Raises `Refusal`."""
        return rules.check_bind(self._store, binding, asker)

    def check_unbind(self, binding: Binding, asker: str | None = None) -> bool:
        """Return whether the binding exists and may go; False when it is missing. Raises
        `Refusal`."""
        return rules.check_unbind(self._store, binding, asker)

    def check_delete_exchange(self, vhost: str, name: str, if_unused: bool = False) -> bool:
        """Return whether the exchange exists and may go; False when it is missing. Raises
        `Refusal`."""
        return rules.check_delete_exchange(self._store, vhost, name, if_unused)

    def check_delete_queue(self, vhost: str, name: str, asker: str | None = None) -> bool:
        """Return whether the queue exists and may go; False when it is missing. Raises
        `Refusal`."""
        return rules.check_delete_queue(self._store, vhost, name, asker)

    def require_exchange(self, vhost: str, name: str) -> Exchange:
        """Return the exchange of a passive declaration. Raises `Refusal` 404, 403 for the default
        exchange."""
        if not name:
            raise default_exchange()
        return rules.exchange_of(rules.space_of(self._store, vhost), name)

    def require_queue(self, vhost: str, name: str, asker: str | None = None) -> QueueRecord:
        """Return a queue for a connection. Raises `Refusal` 404, 405 when it is exclusive to
        another."""
        return rules.queue_of(rules.space_of(self._store, vhost), name, asker)

    # Queries

    def space(self, vhost: str) -> Space | None:
        """Return a vhost's records, for routing; read-only."""
        return self._store.spaces.get(vhost)

    def vhost(self, name: str) -> Vhost | None:
        """Return the vhost of this name."""
        space = self._store.spaces.get(name)
        return space.vhost if space is not None else None

    def limits_of_user(self, name: str) -> Mapping[str, Any]:
        """Return a user's limits by name; empty without any."""
        found = self._store.user_limits.get(name)
        return {} if found is None else found.limits

    def user_limits(self) -> list[UserLimits]:
        """Return the limits of all users that have some."""
        return list(self._store.user_limits.values())

    def exchange(self, vhost: str, name: str) -> Exchange | None:
        """Return the exchange of this name, the default exchange included."""
        space = self._store.spaces.get(vhost)
        return space.exchanges.get(name) if space is not None else None

    def queue(self, vhost: str, name: str) -> QueueRecord | None:
        """Return the queue of this name."""
        space = self._store.spaces.get(vhost)
        return space.queues.get(name) if space is not None else None

    def queue_called(self, internal: str) -> QueueRecord | None:
        """Return the queue with this name in the queue engine."""
        return self.queue(*public_name(internal))

    def vhosts(self) -> list[Vhost]:
        """Return all vhosts."""
        return [space.vhost for space in self._store.spaces.values()]

    def exchanges(self, vhost: str) -> list[Exchange]:
        """Return all exchanges of a vhost."""
        space = self._store.spaces.get(vhost)
        return list(space.exchanges.values()) if space is not None else []

    def queues(self, vhost: str | None = None) -> Iterator[QueueRecord]:
        """Yield all queues, of one vhost or of all. Nothing may change during the iteration."""
        if vhost is None:
            for space in self._store.spaces.values():
                yield from space.queues.values()
        elif (found := self._store.spaces.get(vhost)) is not None:
            yield from found.queues.values()

    def bindings(self, vhost: str) -> list[Binding]:
        """Return all bindings of a vhost except those of the default exchange."""
        space = self._store.spaces.get(vhost)
        return list(space.bindings.values()) if space is not None else []

    def implied_bindings(self, vhost: str) -> Iterator[Binding]:
        """Yield the bindings of the default exchange: every queue's, by its name (AMQP 0.9.1
        section 3.1.3)."""
        for queue in self.queues(vhost):
            yield Binding(vhost, "", queue.name, QUEUE, queue.name)

    def bindings_from(self, vhost: str, source: str) -> list[Binding]:
        """Return the bindings from an exchange."""
        space = self._store.spaces.get(vhost)
        return list(space.from_source.get(source, {}).values()) if space is not None else []

    def bindings_to(self, vhost: str, kind: str, name: str) -> list[Binding]:
        """Return the bindings to a queue or exchange."""
        space = self._store.spaces.get(vhost)
        found = space.to_destination.get((kind, name), {}) if space is not None else {}
        return list(found.values())

    def policies(self, vhost: str) -> list[Policy]:
        """Return all policies of a vhost, including operator policies."""
        space = self._store.spaces.get(vhost)
        return list(space.policies.values()) if space is not None else []

    def __len__(self) -> int:
        """Return the number of records of all kinds."""
        return self._store.count


def global_parameters(topology: Topology) -> Mapping[str, GlobalParameter]:
    """Return all global parameters by name."""
    return topology._store.global_parameters


def reversal(topology: Topology, revision: int) -> Delta:
    """Return the delta that undoes the changes since ``replaced`` was set, at ``revision``."""
    before: dict[tuple[str, Key], Record | None] = {}
    for kind, key, old in topology.replaced or ():
        before.setdefault((kind, key), old)
    rows = [
        TopologyRow(kind, key, None if old is None else row_of(old))
        for (kind, key), old in before.items()
    ]
    return Delta.of(revision, topology.revision, rows)


def _turn(row: TopologyRow) -> int:
    """Return a row's turn: removals first, dependents before what they need; then additions, in
    reverse."""
    place = KINDS.index(row.kind)
    return place if row.row is not None else -1 - place
