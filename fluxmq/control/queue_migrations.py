"""Moves of queues between replication groups: checked here, decided with the topology, carried out
by shards."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from fluxmq.control.current_plans import CurrentPlans
from fluxmq.control.listings import Listings
from fluxmq.control.management.declared_groups import DeclaringNode
from fluxmq.control.peers import RequestError
from fluxmq.control.ports import Set
from fluxmq.control.type_changes import TypeChanges
from fluxmq.ipc.clusters import RaftListing
from fluxmq.ipc.messages import (
    ERROR_INVALID,
    ERROR_NOT_FOUND,
    Body,
    ControlMessage,
)
from fluxmq.ipc.migrations import MIGRATE_QUEUE, MIGRATION, Migrate, Migrating
from fluxmq.ipc.row_messages import LIST, Listed, ListRequest
from fluxmq.ipc.topology_messages import TopologyChanged
from fluxmq.routing.topology.changes import AbortMigration, Change, MigrateQueue
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.topology import Topology
from fluxmq.settings.plans import UnknownGroup
from fluxmq.settings.schema import Settings

KINDS: Final = frozenset({MIGRATE_QUEUE, MIGRATION})
MIGRATION_BYTES: Final = 8
"""Random bytes that identify a move, as many as the tag on the parts of an arriving queue."""


class MigrationRequests:
    """Serves move requests on control's loop. `change` changes the topology; ``replicas`` lists the groups
    of the cluster; ``able`` returns whether all of its nodes know queues that change their type."""

    def __init__(
        self,
        current: Callable[[], Settings],
        topology: Callable[[], Topology],
        change: Callable[[Sequence[Set]], Awaitable[TopologyChanged]],
        listings: Listings,
        replicas: Callable[[], Awaitable[RaftListing]],
        able: Callable[[], bool],
    ) -> None:
        self._current = current
        self._plans = CurrentPlans(current)
        self._topology = topology
        self._change = change
        self._listings = listings
        self._types = TypeChanges(DeclaringNode(current, replicas), topology, able)

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a request. Raises RequestError or MessageError."""
        wanted = Migrate.from_body(message.body)
        if message.kind == MIGRATE_QUEUE:
            changed = await self._change([(await self._change_of(wanted),)])
            refusal = changed.results[0]
            if refusal is not None:
                raise RequestError(ERROR_INVALID, refusal.text)
        return (await self._where(wanted)).to_body()

    async def _change_of(self, wanted: Migrate) -> Change:
        queue = self._queue(wanted)
        number = secrets.token_hex(MIGRATION_BYTES)
        if wanted.abort:
            return AbortMigration(wanted.vhost, wanted.name)
        if wanted.type:
            group = await self._types.group(queue, wanted.type, wanted.group)
            return MigrateQueue(wanted.vhost, wanted.name, queue.group, group, number, wanted.type)
        source = self._group_of(queue)
        for group, what in ((source, "is in"), (wanted.group, "cannot be moved to")):
            if not group or not self._plans().replicated(group):
                why = f"the group {group!r}, which is not replicated" if group else "no group"
                raise RequestError(
                    ERROR_INVALID, f"queue '{queue.name}' {what} {why}: there is nothing to move"
                )
        try:
            self._plans().for_queue(wanted.group)
        except UnknownGroup as problem:
            text = f"replication group {problem.group!r} {problem.why}"
            raise RequestError(ERROR_NOT_FOUND, text) from problem
        return MigrateQueue(wanted.vhost, wanted.name, source, wanted.group, number)

    def _queue(self, wanted: Migrate) -> QueueRecord:
        queue = self._topology().queue(wanted.vhost, wanted.name)
        if queue is None:
            text = f"no queue '{wanted.name}' in vhost '{wanted.vhost}'"
            raise RequestError(ERROR_NOT_FOUND, text)
        return queue

    def _group_of(self, queue: QueueRecord) -> str:
        """Return a queue's group; for a queue of the settings file, the file's until it has been
        moved."""
        if queue.group:
            return queue.group
        for each in self._current().queues:
            if each.name == queue.name:
                return each.replication_group(self._current().cluster.raft) or ""
        return ""

    async def _where(self, wanted: Migrate) -> Migrating:
        queue = self._queue(wanted)
        progress = ""
        if queue.moving_to:
            progress = await self._progress(wanted)
        group = self._group_of(queue)
        return Migrating(group, queue.moving_to, progress, queue.type, queue.becomes)

    async def _progress(self, wanted: Migrate) -> str:
        """Return the progress reported by the shard of this node that leads the queue's group, if
        any."""
        asked = ListRequest("queues", ("name", "migration"), wanted.vhost, (), "")
        message = ControlMessage(LIST, 0, asked.to_body())
        rows = Listed.from_body(await self._listings.answer(message)).rows
        found = [row["migration"] for row in rows if row["name"] == wanted.name]
        return str(found[0] or "") if found else ""
