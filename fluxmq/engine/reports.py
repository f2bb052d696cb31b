"""A shard's metrics of queues and groups, and its numbers for ``fluxmqctl status``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fluxmq.engine.counts import REFUSED_REASONS
from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.listing import MEMORY, bytes_of, durability_of, promised_by
from fluxmq.engine.wiring import Queues
from fluxmq.metrics.instruments import Histogram, Instruments
from fluxmq.metrics.registry import OTHER_QUEUES, QUEUE_SERIES_MAX, Sample
from fluxmq.queues.commands import Verb
from fluxmq.queues.states import QueueState
from fluxmq.settings.group_names import is_mirrored

_STATES = {"follower": "following", "candidate": "leaderless"}
"""State in metrics, by this node's role, of groups led on another node or by none."""


class QueueReports:
    """Reads one shard's queues on request."""

    def __init__(self, queues: Queues, instruments: Instruments) -> None:
        self._queues = queues
        self._instruments = instruments
        self._sync_seconds: dict[str, Histogram] = {}
        queues.service.logs.observe_sync = self._synced

    def _synced(self, log: str, seconds: float) -> None:
        histogram = self._sync_seconds.get(log)
        if histogram is None:
            histogram = self._instruments.histogram("fluxmq_log_sync_seconds", log=log)
            self._sync_seconds[log] = histogram
        histogram.observe(seconds)

    def groups(self) -> list[ReplicationGroup]:
        """Return all groups of the shard, including the in-memory one."""
        return self._queues.service.all_groups()

    def numbers(self) -> dict[str, int]:
        """Return the numbers of ``fluxmqctl status`` by name."""
        service = self._queues.service
        states = self._states()
        names = [hosted.group.name for hosted in service.groups.values() for _ in hosted.group.logs]
        return {
            "groups": states.total(),
            "groups_failed": states["failed"],
            "groups_starting": states["starting"],
            "groups_leaderless": states["leaderless"],
            "queues": len(names) + len(service.ephemeral.machine.queues),
            "queues_buffered": sum(durability_of(name) == "buffered" for name in names),
            "outbox_batches": self._queues.elsewhere.waiting.batches,
            "clocks_apart": self._queues.nodes.clocks_apart,
        }

    def _states(self) -> Counter[str]:
        service = self._queues.service
        states = Counter(dict.fromkeys(("leading", "starting", *self._queues.nodes.states), 0))
        states["failed"] = len(service.durable.broken)
        for hosted in service.groups.values():
            if hosted.group.failed:
                states["failed"] += 1
            elif hosted.driver.leading:
                states["leading"] += 1
            elif is_mirrored(hosted.group.name) and hosted.role == "candidate":
                # It may wait for its leader's node, which may be waited for by others to be ready.
                states["following"] += 1
            else:
                states[_STATES.get(hosted.role, "starting")] += 1
        return states

    def samples(self) -> Iterator[Sample]:
        """Yield every metric of queues."""
        service = self._queues.service
        counts = service.counts
        yield from self._each_queue()
        yield "fluxmq_queue_messages_stored_total", {}, counts.appended
        yield "fluxmq_queue_messages_delivered_total", {}, counts.delivered
        for verb in Verb:
            labels = {"verb": verb.name.lower()}
            yield "fluxmq_queue_messages_settled_total", labels, counts.settled[verb]
        for reason in REFUSED_REASONS:
            labels = {"reason": reason}
            yield "fluxmq_queue_batches_refused_total", labels, counts.refused[reason]
        yield "fluxmq_dead_letters_total", {}, service.dead_letters.moved
        yield "fluxmq_dead_letters_failed_total", {}, service.dead_letters.failed
        yield "fluxmq_dead_letters_dropped_total", {}, service.dead_letters.dropped
        for state, count in self._states().items():
            yield "fluxmq_groups", {"state": state}, count
        yield "fluxmq_groups_released_total", {}, self._queues.handovers.moved
        yield from self._queues.nodes.samples()
        yield from self._queues.elsewhere.samples()
        full = any(hosted.group.full for hosted in service.groups.values())
        yield "fluxmq_group_disk_full", {}, int(full)
        table = service.durable.open_files
        yield "fluxmq_queue_files_open", {"state": "unsynced"}, table.unsynced
        yield "fluxmq_queue_files_open", {"state": "synced"}, len(table) - table.unsynced
        yield "fluxmq_checkpoints_total", {}, service.durable.checkpoints.taken
        yield "fluxmq_checkpoints_failed_total", {}, service.durable.checkpoints.failed
        yield "fluxmq_group_files_failed_total", {}, service.group_files.failures
        for kind, log in service.logs.opened.items():
            stats, labels = log.wal.stats, {"log": kind}
            yield "fluxmq_log_written_bytes_total", labels, stats.bytes
            yield "fluxmq_log_writes_total", labels, stats.writes
            yield "fluxmq_log_files_begun_total", labels, stats.files_begun
            yield "fluxmq_log_failed", labels, int(bool(log.failed))

    def _each_queue(self) -> Iterator[Sample]:
        service = self._queues.service
        durabilities = Counter({"fsync": 0, "buffered": 0, MEMORY: 0})
        others = [0, 0, 0, 0]
        shown = left = 0
        for group in (*(hosted.group for hosted in service.groups.values()), service.ephemeral):
            memory = group is service.ephemeral
            durability = MEMORY if memory else promised_by(self._queues, group.name)
            durabilities[durability] += len(group.machine.queues)
            for queue in group.machine.queues.values():
                numbers = _numbers(group, queue)
                # Clients name ephemeral queues and must not be able to create series.
                if memory or shown >= QUEUE_SERIES_MAX:
                    others = [a + b for a, b in zip(others, numbers, strict=True)]
                    left += 1
                else:
                    shown += 1
                    yield from _series(queue.name, numbers)
        if left:
            yield from _series(OTHER_QUEUES, others)
        for durability, count in durabilities.items():
            yield "fluxmq_queues", {"durability": durability}, count


def _numbers(group: ReplicationGroup, queue: QueueState) -> list[int]:
    ready, unsettled, _ = group.dispatch.consumers.counts(queue.id)
    return [ready + unsettled, bytes_of(group, queue), unsettled, queue.consumers()]


def _series(name: str, numbers: list[int]) -> Iterator[Sample]:
    labels = {"queue": name}
    messages, size, unsettled, consumers = numbers
    yield "fluxmq_queue_messages", labels, messages
    yield "fluxmq_queue_bytes", labels, size
    yield "fluxmq_queue_unsettled", labels, unsettled
    yield "fluxmq_queue_consumers", labels, consumers
