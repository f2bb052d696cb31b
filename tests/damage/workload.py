"""What clients do to the queues of a shard, by a seed; and a record of what they were told.

Queues of every type in several groups, dead letters, duplicates, consumers that hold ranges, streams that are
trimmed, queues that come and go; small files, so that everything rolls and is recycled all the time. The record says
for each queue which payload is at which offset (once its publisher was told that it is stored), and which offsets
are settled for which consumer group (once the consumer was told).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.ports import Attached, AttachRequest, ConsumerHandle
from fluxmq.model.message_batch import build_message
from fluxmq.queues import commands
from fluxmq.queues.commands import Verb
from fluxmq.queues.config import QueueConfig, QueueType
from fluxmq.queues.results import Code, Result
from fluxmq.settings.queues import QueueSettings
from fluxmq.settings.schema import Settings
from tests.damage.shard import Port, Shard, ranges_of

WAL_FILE_BYTES = 64 << 10
SEGMENT_BYTES = 32 << 10
SECOND = 1_000_000

QUEUES = (
    {"name": "work", "type": "classic"},
    {
        "name": "fragile",
        "type": "classic",
        "retry": {"max_retries": 1, "initial_backoff": 1},
        "dlq": {"enabled": True},
    },
    {"name": "quorum", "type": "quorum", "consumer": {"visibility_timeout": 20}},
    {"name": "stream", "type": "stream", "retention": {"max_length_messages": 150}},
    {"name": "endless", "type": "stream"},
    {"name": "short", "type": "classic", "limits": {"max_length": 40}},
    {"name": "fleeting", "type": "classic", "limits": {"message_ttl": 30}},
)
TEMPORARY = ("passing/one", "passing two")
DURABLE = tuple(str(queue["name"]) for queue in QUEUES)


def settings_of(data_dir: str, **storage: object) -> Settings:
    """Settings with the workload's queues, and files so small that no settings file could ask for them."""
    settings = Settings(queues=tuple(QueueSettings.model_validate(queue) for queue in QUEUES))
    small = {
        "data_dir": data_dir,
        "wal_file_bytes": WAL_FILE_BYTES,
        "segment_bytes": SEGMENT_BYTES,
        "index_bytes": 4096,
        "checkpoint_bytes": 3 * WAL_FILE_BYTES,
        "min_free_bytes": 0,
        **storage,
    }
    manager = {"local_groups": 3, "cache_bytes": 64 << 10}
    return settings.model_copy(
        update={
            "storage": settings.storage.model_copy(update=small),
            "queue_manager": settings.queue_manager.model_copy(update=manager),
        }
    )


Place = tuple[str, int]
"""Replication group and queue id: a queue that was deleted and made again is another one."""


@dataclass
class Record:
    """What was promised, and what was tried."""

    stored: dict[Place, dict[int, bytes]] = field(default_factory=dict)
    settled: dict[tuple[Place, int], set[int]] = field(default_factory=dict)
    """By queue and consumer group: offsets whose acknowledgement was acknowledged."""
    tried: dict[str, set[bytes]] = field(default_factory=dict)
    """By queue: every payload that was ever sent to it."""
    applied: dict[str, int] = field(default_factory=dict)
    """By replication group: the last entry whose effects were told to anybody."""
    deleted: set[Place] = field(default_factory=set)
    """Queues whose deletion was acknowledged."""
    problems: list[str] = field(default_factory=list)
    """What a consumer was given that is not what was stored."""


@dataclass
class Consumer:
    """A consumer and where it is attached."""

    place: Place
    group_id: int
    port: Port
    held: ConsumerHandle
    stream: bool


class Workload:
    """Drives one shard."""

    def __init__(self, random: Random, record: Record | None = None, first: int = 0) -> None:
        self.random = random
        self.record = record or Record()
        self.number = first
        self._consumers: list[Consumer] = []
        self._members = 0

    # Steps

    def run(self, shard: Shard, steps: int, rest: float = 0.5) -> None:
        """Some steps, each followed by a tick; with `rest`, how often syncs are waited for."""
        for _ in range(steps):
            self.step(shard)
            shard.finish()
            if self.random.random() < rest:
                shard.sync()
                self.note(shard)

    def step(self, shard: Shard) -> None:
        """One thing that clients, time or the broker's housekeeping do."""
        random = self.random
        actions: list[tuple[Callable[[Shard], None], int]] = [
            (self._publish, 40),
            (self._consume, 12),
            (self._settle, 30),
            (self._leave, 2),
            (self._temporary, 2),
            (self._operator, 2),
            (self._time, 4),
            (self._begin_checkpoint, 3),
            (self._end_checkpoints, 4),
        ]
        action = random.choices([each for each, _ in actions], [weight for _, weight in actions])
        action[0](shard)

    def note(self, shard: Shard) -> None:
        """What has been applied by now has been told."""
        for name, hosted in shard.hosted.items():
            if not hosted.group.failed:
                self.record.applied[name] = hosted.group.applied_index

    def forget_consumers(self) -> None:
        """The shard they were attached to is gone."""
        self._consumers.clear()

    # Publishing

    def _group(self, shard: Shard, queue: str) -> ReplicationGroup | None:
        host = shard.queues.client(shard.queues.names.info(queue).group)
        return host if isinstance(host, ReplicationGroup) else None

    def _queue(self, shard: Shard) -> tuple[ReplicationGroup, str] | None:
        queue = self.random.choice(DURABLE * 3 + TEMPORARY)
        info = shard.queues.names.find(queue)
        if info is None:
            return None
        group = self._group(shard, queue)
        if group is None or group.failed or group.machine.queue(queue) is None:
            return None
        return group, queue

    def _publish(self, shard: Shard) -> None:
        found = self._queue(shard)
        if found is None:
            return
        group, queue = found
        state = group.machine.queue(queue)
        assert state is not None
        place = (group.name, state.id)
        for _ in range(self.random.randint(1, 4)):
            self._append(shard, group, queue, place)

    def _append(self, shard: Shard, group: ReplicationGroup, queue: str, place: Place) -> None:
        self.number += 1
        size = self.random.choice((0, 20, 200, 900, 2500))
        payload = f"{queue} {self.number} ".encode() + self.random.randbytes(size)
        producer, sequence = 0, 0
        if self.random.random() < 0.2:
            producer, sequence = 7, self.random.randint(1, 60)
            payload = f"{queue} sequence {sequence} {self.number}".encode()
        self.record.tried.setdefault(queue, set()).add(payload)
        data = build_message(
            b"key", b"", payload, shard.clock.now_us, producer=producer, sequence=sequence
        )

        def answered(result: Result) -> None:
            if result.code == Code.OK:
                self.record.stored.setdefault(place, {})[result.value] = payload

        if not group.refusal(group.machine.queue(queue), data):
            header = commands.append_header(place[1], len(data))
            group.submit((header, data), answered, len(data))

    # Consuming

    def _consume(self, shard: Shard) -> None:
        found = self._queue(shard)
        if found is None or len(self._consumers) > 8:
            return
        group, queue = found
        port = Port()
        state = group.machine.queue(queue)
        assert state is not None
        place = (group.name, state.id)
        self._members += 1
        name = self.random.choice(("readers", "writers"))
        wanted = AttachRequest(
            queue, name, f"m{self._members}", b"", None, self.random.randint(1, 12), 1
        )

        def attached(answer: Attached, held: ConsumerHandle | None) -> None:
            if held is None:
                return
            consumer = state.group(answer.group)
            if consumer is not None:
                self._consumers.append(Consumer(place, consumer.id, port, held, answer.stream))

        group.attach(wanted, port, attached)

    def _settle(self, shard: Shard) -> None:
        self._consumers = [each for each in self._consumers if not each.port.gone]
        if not self._consumers:
            return
        consumer = self.random.choice(self._consumers)
        taken = consumer.port.take(self.random.randint(1, 8))
        if not taken:
            return
        known = self.record.stored.get(consumer.place, {})
        for offset, payload in taken:
            if known.get(offset, payload) != payload:
                self.record.problems.append(f"offset {offset} of {consumer.place} was {payload!r}")
        offsets = [offset for offset, _ in taken]
        if consumer.stream:
            consumer.held.commit(offsets[-1] + 1, None)
            return
        verb = self.random.choice(
            (Verb.ACK, Verb.ACK, Verb.ACK, Verb.ACK, Verb.NACK, Verb.REJECT, Verb.RELEASE)
        )

        def answered(reason: int) -> None:
            if not reason and verb == Verb.ACK:
                key = (consumer.place, consumer.group_id)
                self.record.settled.setdefault(key, set()).update(offsets)

        consumer.held.settle(verb, ranges_of(offsets), -1, b"why", answered)

    def _leave(self, shard: Shard) -> None:
        if self._consumers:
            at = self.random.randrange(len(self._consumers))
            self._consumers.pop(at).held.detach()

    # Operators

    def _temporary(self, shard: Shard) -> None:
        """A queue that comes and goes, in the group that its name gives."""
        queue = self.random.choice(TEMPORARY)
        group = next(iter(shard.hosted.values())).group
        if group.failed:
            return
        state = group.machine.queue(queue)
        if state is None:
            kind = self.random.choice((QueueType.CLASSIC, QueueType.STREAM))
            group.declare(QueueConfig(queue, kind))
            return
        place = (group.name, state.id)

        def deleted(result: Result) -> None:
            if result.code == Code.OK:
                self.record.deleted.add(place)

        group.submit((commands.delete(state.id),), deleted)

    def _operator(self, shard: Shard) -> None:
        found = self._queue(shard)
        if found is None:
            return
        group, queue = found
        state = group.machine.queue(queue)
        assert state is not None
        span = state.next_offset - state.start
        command = self.random.choice(
            (
                commands.trim(state.id, state.start + self.random.randint(0, span) // 2),
                commands.sweep(state.id),
                commands.purge(state.id)
                if self.random.random() < 0.3
                else commands.sweep(state.id),
            )
        )
        group.submit((command,))

    def _time(self, shard: Shard) -> None:
        shard.pass_time(self.random.choice((1, 1000, SECOND, 3 * SECOND, 25 * SECOND, -SECOND)))
        for hosted in shard.hosted.values():
            if not hosted.group.failed:
                shard.queues.service.mark(hosted.group)

    def _begin_checkpoint(self, shard: Shard) -> None:
        if shard.hosted:
            shard.begin_checkpoint(self.random.choice(sorted(shard.hosted)))

    def _end_checkpoints(self, shard: Shard) -> None:
        shard.end_checkpoints()
