"""What a queue is told to be: the values every replica must agree on, in whole numbers.

Durations are microseconds, the multiplier of the back-off is in thousandths: no float decides
anything. The settings section and AMQP arguments are turned into this by the host.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final

from fluxmq.queues.limits import DEPTH_MAX, NAME_BYTES_MAX, PRIORITY_MAX

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND


class QueueType(IntEnum):
    """Kinds of queue. Classic, quorum and ephemeral ones work alike; they differ in where the host keeps them."""

    CLASSIC = 0
    QUORUM = 1
    STREAM = 2
    EPHEMERAL = 3


class Overflow(IntEnum):
    """What happens at max_length: the oldest ready message goes, or the new one is refused."""

    DROP_HEAD = 0
    REJECT_PUBLISH = 1
    REJECT_PUBLISH_DLX = 2
    """The new one is refused, and goes to the dead-letter exchange."""


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """One queue. 0 means "no limit" or "never" for every limit and duration except ``max_retries``
    and the two of deduplication.

    Raises `ValueError` for values outside their ranges.
    """

    name: str
    type: int = QueueType.CLASSIC
    topics: tuple[str, ...] = ()
    """Topic filters the host captures for this queue."""
    reserved: bool = False
    primary_group: str = ""

    max_message_size: int = 10 << 20
    """Bytes of a payload."""
    max_depth: int = 100_000
    """Messages not settled by the group that lags most; beyond it a publish is refused. Not for streams."""
    message_ttl: int = 7 * DAY
    max_length: int = 0
    """Messages ready for delivery (AMQP x-max-length); what ``overflow`` says happens beyond it."""
    max_length_bytes: int = 0
    overflow: int = Overflow.DROP_HEAD

    retention_age: int = 0
    """What is older, larger or more than this is forgotten, whoever still needs it, without dead-lettering."""
    retention_bytes: int = 0
    retention_messages: int = 0

    max_retries: int = 10
    """Times a message is offered again after a nack; with 0 the first nack is the last."""
    initial_backoff: int = 5 * SECOND
    max_backoff: int = 300 * SECOND
    multiplier_thousandths: int = 2_000

    dead_letter: bool = False
    dead_letter_queue: str = ""
    """Name of the dead-letter queue; empty is ``$dlq/<name>``."""

    visibility_timeout: int = 30 * SECOND
    """Time after which a delivered and unsettled message may be claimed again, by anybody."""
    delivery_limit: int = 0
    """Deliveries after which a message is dead-lettered instead of offered again."""
    claim_batch: int = 100
    """Messages a consumer is given before the next one's turn."""

    expires: int = 0
    """The queue is deleted when it had no consumer for so long."""
    group_expires: int = 0
    """A group is deleted when it had no consumer for so long."""

    deduplication_window: int = 10_000
    """Newest sequence numbers remembered per producer; with 0 nothing is recognised."""
    deduplication_producers: int = 1_000
    """Producers remembered; the one unused for longest is forgotten first."""

    single_active_consumer: bool = False
    """Of a group's consumers only the one that has been there for longest is given messages."""
    max_priority: int = 0
    """Messages of higher priority are given first; those above this count as of this. At most 255."""

    dead_letter_exchange: str | None = None
    """Exchange of the queue's vhost to which dead messages are published, empty for the default one; None for none.
    With one, ``dead_letter_queue`` means nothing. Takes effect with ``dead_letter``."""
    dead_letter_routing_key: str | None = None
    """Routing key of dead messages; None is the one they came with."""
    dead_letter_at_least_once: bool = False
    """Whether a dead message that no queue takes is kept and published again until one does; else it is dropped."""

    max_in_memory_length: int = 0
    """Messages of the queue that its host keeps in memory beside the disk."""
    max_in_memory_bytes: int = 0
    max_segment_bytes: int = 0
    """Size at which a segment that begins from now on is full, as near as the format allows; 0 is the host's own."""

    keeps_none: bool = False
    """Whether the length is limited to 0 (AMQP x-max-length: 0): only what consumers wait for is taken. ``overflow`` says
    what happens to the rest; the other two limits of length mean nothing then."""

    def __post_init__(self) -> None:
        if not self.name or len(self.name.encode()) > NAME_BYTES_MAX:
            raise ValueError("a queue's name has 1 to 1024 bytes")
        if self.type not in tuple(QueueType) or self.overflow not in tuple(Overflow):
            raise ValueError("unknown type or overflow of a queue")
        for field in _FIELDS:
            value = getattr(self, field)
            if isinstance(value, int) and not 0 <= value <= DEPTH_MAX << 4:
                raise ValueError(f"{field} of a queue is out of range")
        if self.max_priority > PRIORITY_MAX:
            raise ValueError("a queue has at most 255 priorities above 0")
        if self.claim_batch < 1 or self.visibility_timeout < 1 or self.max_message_size < 1:
            raise ValueError("claim_batch, visibility_timeout and max_message_size are at least 1")
        if self.multiplier_thousandths < 1_000 or self.initial_backoff < 1 or self.max_backoff < 1:
            raise ValueError("a back-off is at least 1 µs and does not shrink")

    @property
    def target(self) -> str:
        """Name of the dead-letter queue."""
        return self.dead_letter_queue or f"$dlq/{self.name}"

    def backoff(self, attempts: int) -> int:
        """Microseconds before the next offer of a message that was delivered `attempts` times and refused."""
        wait = min(self.initial_backoff, self.max_backoff)
        if self.multiplier_thousandths == 1_000:
            return wait
        for _ in range(attempts - 1):
            longer = wait * self.multiplier_thousandths // 1_000
            if longer >= self.max_backoff or longer == wait:
                return min(longer, self.max_backoff)
            wait = longer
        return wait

    def pack(self) -> dict[str, Any]:
        """As plain values for msgpack; keys in the order of the fields."""
        packed: dict[str, Any] = {field: getattr(self, field) for field in _FIELDS}
        packed["topics"] = list(self.topics)
        packed["type"] = int(self.type)
        packed["overflow"] = int(self.overflow)
        if not self.keeps_none:
            del packed["keeps_none"]  # as it was before there was such a field
        return packed

    @staticmethod
    def unpack(packed: dict[str, Any]) -> QueueConfig:
        """The inverse of `pack`. Raises `ValueError` or `TypeError` for anything else."""
        values = dict(packed)
        values["topics"] = tuple(values.get("topics", ()))
        return QueueConfig(**values)


_FIELDS: Final = tuple(field.name for field in fields(QueueConfig))
"""Looked at for every queue in every snapshot."""


def quorum(name: str, **values: Any) -> QueueConfig:
    """A quorum queue: deliveries are limited to 20 unless said otherwise (RabbitMQ 4.0's default)."""
    return QueueConfig(name, QueueType.QUORUM, **{"delivery_limit": 20, **values})


def ephemeral(name: str, **values: Any) -> QueueConfig:
    """An ephemeral queue: made by its first use, gone five minutes after its last consumer left."""
    return QueueConfig(name, QueueType.EPHEMERAL, **{"expires": 300 * SECOND, **values})
