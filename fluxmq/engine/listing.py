"""A shard's groups and queues for ``fluxmqctl groups`` and ``fluxmqctl queues``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fluxmq.engine.group import ReplicationGroup
from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import Body
from fluxmq.ipc.placements import (
    CONSUMER_GROUPS_LISTED_MAX,
    GROUPS,
    QUEUES,
    QUEUES_LISTED_MAX,
    ConsumerGroupRow,
    GroupListing,
    GroupRow,
    QueueListing,
    QueueRow,
)
from fluxmq.queues.commands import Mode
from fluxmq.queues.config import QueueType
from fluxmq.queues.states import QueueState
from fluxmq.replication.open_group import OpenGroup
from fluxmq.settings.clustering import BUFFERED
from fluxmq.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from fluxmq.engine.wiring import Queues

MEMORY = "memory"
"""Durability of an ephemeral queue: it ends with the shard."""
KEPT_HERE = "local"
"""Durability of replicated queues that other nodes lead, with ``write_policy: local``."""
TYPES = {kind: kind.name.lower() for kind in QueueType}


def durability_of(group: str) -> str:
    """Return the durability behind an acknowledgement of a durable group's queues."""
    return "buffered" if group.startswith(BUFFERED) else "fsync"


def promised_by(queues: Queues, group: str) -> str:
    """Return the durability that this node's clients get from a group's queues: ``local`` if
    possibly this node's disk alone."""
    return KEPT_HERE if queues.elsewhere.keeps_here(group) else durability_of(group)


def bytes_of(group: ReplicationGroup, queue: QueueState) -> int:
    """Return a queue's size in bytes: of its segments, or of its batches in memory."""
    log = group.logs.get(queue.id)
    return log.bytes if isinstance(log, QueueLog) else queue.size


class GroupListings:
    """Answers for one shard. ``core``: the one it is bound to, -1 for none."""

    def __init__(self, queues: Queues, core: int) -> None:
        self._queues = queues
        self._core = core

    def commands(self) -> dict[str, RequestHandler]:
        """Return the commands of the control process."""
        return {GROUPS: self._on_groups, QUEUES: self._on_queues}

    def _on_groups(self, _body: Body, answered: Answered) -> None:
        service = self._queues.service
        rows = [self._group(hosted) for hosted in service.groups.values()]
        rows += [self._broken(name, problem) for name, problem in service.durable.broken.items()]
        answered(GroupListing(tuple(rows)).to_body())

    def _group(self, hosted: OpenGroup[ReplicationGroup]) -> GroupRow:
        group, status = hosted.group, hosted.driver.node.status()
        return GroupRow(
            group=group.name,
            shard=self._queues.service.shard,
            core=self._core,
            pinned=group.name in self._queues.places.placement.pins,
            role=hosted.role,
            problem=group.failed,
            durability=promised_by(self._queues, group.name),
            queues=len(group.machine.queues),
            bytes=hosted.stores.bytes,
            messages=sum(
                queue.next_offset - queue.start for queue in group.machine.queues.values()
            ),
            term=status.term,
            applied=group.applied_index,
            snapshot=hosted.snapshot_index,
            uncommitted=group.uncommitted,
            fsync_p99=hosted.shared.times.p99,
            leader=self._queues.nodes.leader_of(group.name),
        )

    def _broken(self, name: str, problem: str) -> GroupRow:
        pinned = name in self._queues.places.placement.pins
        durability = durability_of(name)
        shard, core = self._queues.service.shard, self._core
        return GroupRow(
            name, shard, core, pinned, "failed", problem, durability, 0, 0, 0, 0, 0, 0, 0, 0.0
        )

    def _on_queues(self, _body: Body, answered: Answered) -> None:
        found = list(self._all())
        rows = tuple(self._queue(group, queue) for group, queue in found[:QUEUES_LISTED_MAX])
        answered(QueueListing(rows, max(0, len(found) - QUEUES_LISTED_MAX)).to_body())

    def _all(self) -> Iterator[tuple[ReplicationGroup, QueueState]]:
        service = self._queues.service
        for group in (*(hosted.group for hosted in service.groups.values()), service.ephemeral):
            for queue in group.machine.queues.values():
                yield group, queue

    def _queue(self, group: ReplicationGroup, queue: QueueState) -> QueueRow:
        service = self._queues.service
        memory = group is service.ephemeral
        groups = list(queue.groups.values())
        return QueueRow(
            queue=queue.name,
            type=TYPES[QueueType(queue.config.type)],
            group=group.name,
            shard=self._queues.service.shard,
            durability=MEMORY if memory else promised_by(self._queues, group.name),
            messages=queue.next_offset - queue.start,
            bytes=bytes_of(group, queue),
            first=queue.start,
            next=queue.next_offset,
            dead_lettered=service.counts.dead[queue.name],
            consumers=queue.consumers(),
            groups=tuple(
                ConsumerGroupRow(
                    name=each.name,
                    mode="stream" if each.mode == Mode.STREAM else "work",
                    members=each.consumers,
                    lag=max(0, queue.next_offset - max(each.cursor, queue.start)),
                    unsettled=each.pending.count,
                )
                for each in groups[:CONSUMER_GROUPS_LISTED_MAX]
            ),
        )
