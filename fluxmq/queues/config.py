"""Configuration of a queue: the values that every replica must agree on, in whole numbers.

Durations are microseconds, the back-off multiplier is in thousandths: no float decides anything.
The host converts settings and AMQP arguments into this.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final

from fluxmq.queues.limits import DEPTH_MAX, NAME_BYTES_MAX, PRIORITY_MAX

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND


class QueueType(IntEnum):
    """Kinds of queue. Classic, quorum and ephemeral ones behave alike; the host stores them
    differently."""

    CLASSIC = 0
    QUORUM = 1
    STREAM = 2
    EPHEMERAL = 3


class Overflow(IntEnum):
    """Policy at max_length: drop the oldest ready message, or refuse the new one."""

    DROP_HEAD = 0
    REJECT_PUBLISH = 1
    REJECT_PUBLISH_DLX = 2
    """Refuse the new message and send it to the dead-letter exchange."""


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """One queue. 0 means "no limit" or "never" for every limit and duration except ``max_retries``
    and the two of deduplication.

    Raises `ValueError` for values outside their ranges.
    """

    name: str
    type: int = QueueType.CLASSIC
    topics: tuple[str, ...] = ()
    """Topic filters that the host captures for this queue."""
    reserved: bool = False
    primary_group: str = ""

    max_message_size: int = 10 << 20
    """Bytes of a payload."""
    max_depth: int = 100_000
    """Messages not settled by the slowest group; beyond it a publish is refused. Not for
    streams."""
    message_ttl: int = 7 * DAY
    max_length: int = 0
    """Messages ready for delivery (AMQP x-max-length); beyond it ``overflow`` applies."""
    max_length_bytes: int = 0
    overflow: int = Overflow.DROP_HEAD

    retention_age: int = 0
    """Retention by age, bytes and count: older messages are dropped even if needed, without
    dead-lettering."""
    retention_bytes: int = 0
    retention_messages: int = 0

    max_retries: int = 10
    """Redeliveries after a nack; with 0 the first nack is final."""
    initial_backoff: int = 5 * SECOND
    max_backoff: int = 300 * SECOND
    multiplier_thousandths: int = 2_000

    dead_letter: bool = False
    dead_letter_queue: str = ""
    """Name of the dead-letter queue; empty is ``$dlq/<name>``."""

    visibility_timeout: int = 30 * SECOND
    """Time after which a delivered and unsettled message may be claimed again, by any consumer."""
    delivery_limit: int = 0
    """Deliveries after which a message is dead-lettered instead of redelivered."""
    claim_batch: int = 100
    """Messages given to one consumer before the next has its turn."""

    expires: int = 0
    """Time without a consumer after which the queue is deleted."""
    group_expires: int = 0
    """Time without a consumer after which a group is deleted."""

    deduplication_window: int = 10_000
    """Newest sequence numbers remembered per producer; with 0 no duplicate is detected."""
    deduplication_producers: int = 1_000
    """Producers remembered; the least recently used is forgotten first."""

    single_active_consumer: bool = False
    """Give messages only to the consumer of a group that joined first."""
    max_priority: int = 0
    """Higher priorities are delivered first; those above this count as this. At most 255."""

    dead_letter_exchange: str | None = None
    """Exchange of the queue's vhost for dead letters, empty for the default one; None for none. It
    replaces ``dead_letter_queue``. Takes effect with ``dead_letter``."""
    dead_letter_routing_key: str | None = None
    """Routing key of dead letters; None keeps their original one."""
    dead_letter_at_least_once: bool = False
    """Keep and republish an unroutable dead letter until a queue takes it; otherwise drop it."""

    max_in_memory_length: int = 0
    """Messages of the queue that its host keeps in memory besides on disk."""
    max_in_memory_bytes: int = 0
    max_segment_bytes: int = 0
    """Size at which a new segment is sealed, as near as the format allows; 0 is the host's own."""

    keeps_none: bool = False
    """True when the length is limited to 0 (AMQP x-max-length: 0): the queue takes only what
    consumers wait for. ``overflow`` applies to the rest, and the other two length limits are
    ignored."""

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
        """Return µs before the redelivery of a message that was delivered `attempts` times and
        refused."""
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
        """Return plain values for msgpack; keys in the order of the fields."""
        packed: dict[str, Any] = {field: getattr(self, field) for field in _FIELDS}
        packed["topics"] = list(self.topics)
        packed["type"] = int(self.type)
        packed["overflow"] = int(self.overflow)
        if not self.keeps_none:
            del packed["keeps_none"]  # keeps the encoding from before the field existed
        return packed

    @staticmethod
    def unpack(packed: dict[str, Any]) -> QueueConfig:
        """Decode the result of `pack`. Raises `ValueError` or `TypeError` for anything else."""
        values = dict(packed)
        values["topics"] = tuple(values.get("topics", ()))
        return QueueConfig(**values)


_FIELDS: Final = tuple(field.name for field in fields(QueueConfig))
"""Cached, because every snapshot needs it for every queue."""


def quorum(name: str, **values: Any) -> QueueConfig:
    """Return a quorum queue's configuration: 20 deliveries by default (as RabbitMQ 4.0)."""
    return QueueConfig(name, QueueType.QUORUM, **{"delivery_limit": 20, **values})


def ephemeral(name: str, **values: Any) -> QueueConfig:
    """Return an ephemeral queue's configuration: it expires five minutes after its last consumer
    left."""
    return QueueConfig(name, QueueType.EPHEMERAL, **{"expires": 300 * SECOND, **values})
