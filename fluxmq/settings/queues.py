"""The ``queue_manager`` and ``queues`` sections: the queues that exist from the start, and what all queues share.

Data, like the rest of the schema. Two answers depend on more than one key and are given here, so that everybody
gives the same: which replication group holds a queue, and how often one of its messages may be delivered.

Source: the keys of the founding documents; ``limits.overflow``, ``expires`` and the delivery limit mean what they mean
in RabbitMQ.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from fluxmq.settings.clustering import Name, Raft, Replicas, Timeout, check_name
from fluxmq.settings.section import Section
from fluxmq.settings.values import Duration, Size, TopicFilter

TEN_YEARS: Final = 10 * 366 * 86_400
COUNT_MAX: Final = 1 << 50
DELIVERY_LIMIT: Final = 5
"""Default delivery limit of a classic queue: the origin's."""
QUORUM_DELIVERY_LIMIT: Final = 20
"""Default delivery limit of a quorum queue: RabbitMQ's since 4.0."""


QUEUE_PREFIX: Final = "$queue/"
DEAD_LETTER_PREFIX: Final = "$dlq/"


def queue_at(address: str) -> str:
    """Name of the queue that ``$queue/<name>`` or ``$dlq/<name>`` means; empty for any other text.

    A dead-letter queue has the address as its name.
    """
    prefix = next((p for p in (QUEUE_PREFIX, DEAD_LETTER_PREFIX) if address.startswith(p)), "")
    name = address.removeprefix(prefix)
    try:
        check_name(name)
    except ValueError:
        return ""
    return {QUEUE_PREFIX: name, DEAD_LETTER_PREFIX: address}.get(prefix, "")


def _delivery_limit(limit: int) -> int:
    """-1 or at least 1: a message that may be delivered 0 times would be of no use to anybody."""
    if limit == 0:
        raise ValueError("must be at least 1, or -1 for no limit")
    return limit


def _group(text: str) -> str:
    """A replication group's name, or nothing for the default group."""
    return check_name(text) if text else text


class QueueManager(Section):
    """Settings common to all queues."""

    auto_commit_interval: Annotated[Duration, Field(ge=0, le=3600)] = 5.0
    """Longest time between a stream consumer's acknowledgement and its offset being kept; 0 keeps it at once."""
    capture_workers: Annotated[int, Field(ge=1, le=64)] = 4
    """With capture_queue_depth, how many QoS 0 publishes may wait to be copied into a queue: their product."""
    capture_queue_depth: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """QoS 0 publishes that wait for a queue, per capture worker; beyond it their copies are dropped and counted."""
    capture_drain_timeout: Timeout = 5.0
    """Time that appends under way get to reach the disk when the node stops."""
    local_groups: Annotated[int, Field(ge=1, le=256)] = 8
    """Replication groups over which queues that are not replicated are spread; fixed when the data directory is made."""
    ephemeral_expiry: Annotated[Duration, Field(ge=0.001, le=TEN_YEARS)] = 300.0
    """Time without a consumer after which an ephemeral queue is removed."""
    max_ephemeral_queues: Annotated[int, Field(ge=0, le=1_000_000)] = 10_000
    """Ephemeral queues of the whole node; 0 allows none, so that an unknown queue's name is refused."""
    ephemeral_max_bytes: Annotated[Size, Field(ge=1 << 16, le=1 << 40)] = 64 << 20
    """Memory of one ephemeral queue; beyond it the oldest messages are dropped."""
    uncommitted_bytes: Annotated[Size, Field(ge=1 << 16, le=1 << 30)] = 8 << 20
    """Appends per replication group that are not yet on disk; above it publishers are paused."""
    cache_bytes: Annotated[Size, Field(ge=0, le=1 << 40)] = 64 << 20
    """Memory per shard for the newest batches of its queues, so that consumers who keep up need not read the disk."""


class Retention(Section):
    """What a queue forgets, whether it was settled or not; 0 means no limit. Nothing forgotten is dead-lettered."""

    max_age: Annotated[Duration, Field(ge=0, le=TEN_YEARS)] = 0.0
    """Age beyond which messages are dropped."""
    max_length_bytes: Annotated[Size, Field(ge=0, le=COUNT_MAX)] = 0
    """Size beyond which the oldest messages are dropped."""
    max_length_messages: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 0
    """Count beyond which the oldest messages are dropped."""


class QueueLimits(Section):
    """What a queue accepts. Above a limit a publish is refused, or its oldest messages make room."""

    max_message_size: Annotated[Size, Field(ge=1, le=1 << 30)] = 10 << 20
    """Largest payload; a larger one is refused."""
    max_depth: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 0
    """Messages that the slowest group has not settled, above which publishes are refused; not for streams; 0 is no limit."""
    message_ttl: Annotated[Duration, Field(ge=0, le=TEN_YEARS)] = 604_800.0
    """Time after which a message expires, if its publisher asks for no shorter one; 0 is never."""
    max_length: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 0
    """Messages ready for delivery above which overflow decides; a stream drops its oldest; 0 is no limit."""
    max_length_bytes: Annotated[Size, Field(ge=0, le=COUNT_MAX)] = 0
    """Payload bytes of ready messages above which overflow decides; a stream drops its oldest; 0 is no limit."""
    overflow: Literal["drop-head", "reject-publish"] = "drop-head"
    """Above max_length or max_length_bytes: dead-letter or drop the oldest message, or refuse the new one."""


class Retry(Section):
    """When a message that a consumer gave back with nack is offered again. Work queues only."""

    max_retries: Annotated[int, Field(ge=0, le=1_000_000)] = 10
    """Times it is offered again after nack, then it is a dead letter; consumer.delivery_limit may end it before."""
    initial_backoff: Timeout = 5.0
    """Wait before the first, unless the consumer names one."""
    max_backoff: Annotated[Duration, Field(ge=0.001, le=86_400)] = 300.0
    """Longest wait."""
    multiplier: Annotated[float, Field(ge=1, le=100)] = 2.0
    """Growth of the wait from one nack to the next."""


class DeadLetter(Section):
    """Where a message goes that was rejected, expired, delivered too often or displaced by overflow."""

    enabled: bool = False
    """Whether such messages are kept; without it they are dropped and counted."""
    topic: Annotated[str, Field(min_length=1)] | None = None
    """Address of the queue that gets them, $dlq/<name> or $queue/<name>; without it, $dlq/ and this queue's name."""


class Consumer(Section):
    """How messages are handed to the members of a consumer group. Work queues only, but for claim_batch."""

    visibility_timeout: Annotated[Duration, Field(ge=0.1, le=7 * 86_400)] = 30.0
    """Time a consumer has to settle a message before another may be given it."""
    delivery_limit: (
        Annotated[int, Field(ge=-1, le=1_000_000), AfterValidator(_delivery_limit)] | None
    ) = None
    """Deliveries of one message before it is a dead letter, -1 for any number; without it, 5, for type quorum 20."""
    claim_batch: Annotated[int, Field(ge=1, le=4096)] = 100
    """Messages given to one consumer before the next has its turn."""
    max_unsettled: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Messages that one consumer may hold unsettled; what it asks for as prefetch is bounded by this."""


class Deduplication(Section):
    """Recognition of messages published twice, by producer-id and sequence."""

    window: Annotated[int, Field(ge=0, le=1_000_000)] = 10_000
    """Newest sequence numbers remembered per producer; 0 recognises none."""
    max_producers: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Producers remembered per queue; the longest silent are forgotten first."""


class Replication(Section):
    """Which replication group holds the queue. What is left out is as in the group; timings given here are the group's
    then, and of several queues' the smallest."""

    enabled: bool = False
    """Whether the queue is replicated; needs cluster.raft.enabled."""
    group: Annotated[str, AfterValidator(_group)] = ""
    """Id of the replication group; empty for the default group. Fixed once the queue holds messages."""
    replication_factor: Replicas | None = None
    """Copies that the queue needs; its group, which decides how many there are, may not have fewer."""
    mode: Literal["sync", "async"] | None = None
    """sync answers a publisher after commit, async after the leader's own write."""
    distribution_mode: Literal["forward", "replicate"] | None = None
    """Delivery on other nodes, as in cluster.raft."""
    min_in_sync_replicas: Replicas | None = None
    """Copies that must hold a write before it is answered, if above the majority."""
    ack_timeout: Timeout | None = None
    """Longest wait for that."""
    heartbeat_timeout: Timeout | None = None
    """As in cluster.raft.groups."""
    election_timeout: Timeout | None = None
    """As in cluster.raft.groups."""
    snapshot_interval: Annotated[Duration, Field(ge=1, le=604_800)] | None = None
    """As in cluster.raft.groups."""
    snapshot_threshold: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """As in cluster.raft.groups."""


class Queue(Section):
    """A durable queue, made at the start if it is not there. One that is taken out of the file stays."""

    name: Name
    """Name, unique; clients address it as $queue/<name>."""
    topics: tuple[TopicFilter, ...] = ()
    """Topic filters whose publishes the queue keeps a copy of, besides what is addressed to it."""
    reserved: bool = False
    """Whether clients may not delete or redefine it."""
    type: Literal["classic", "quorum", "stream"] = "classic"
    """classic: a work queue; quorum: the same, replicated where replication is on; stream: a log that consumers read."""
    primary_group: str = ""
    """Consumer group whose progress a stream's consumers are told."""
    ack_durability: Literal["fsync", "buffered"] | None = None
    """What a publisher's acknowledgement means: synced to disk, or only written; without it, storage.queue_ack_durability."""
    expires: Annotated[Duration, Field(ge=0, le=TEN_YEARS)] = 0.0
    """Time without a consumer after which the queue is deleted with all its messages; 0 is never."""
    retention: Retention = Retention()
    """What the queue forgets."""
    limits: QueueLimits = QueueLimits()
    """What the queue accepts."""
    retry: Retry = Retry()
    """When a message that was given back is offered again."""
    dlq: DeadLetter = DeadLetter()
    """Where a message goes that no consumer took."""
    consumer: Consumer = Consumer()
    """How messages are handed to consumers."""
    deduplication: Deduplication = Deduplication()
    """Recognition of messages published twice."""
    replication: Replication = Replication()
    """Which replication group holds the queue."""

    @property
    def deliveries_max(self) -> int:
        """How often one message may be delivered; -1 for any number."""
        limit = self.consumer.delivery_limit
        if limit is not None:
            return limit
        return QUORUM_DELIVERY_LIMIT if self.type == "quorum" else DELIVERY_LIMIT

    @property
    def dead_letter_address(self) -> str:
        """Address of the queue that gets the dead letters; empty when they are dropped."""
        if not self.dlq.enabled:
            return ""
        return self.dlq.topic or DEAD_LETTER_PREFIX + self.name

    @property
    def dead_letter_queue(self) -> str:
        """Name of that queue, ``$dlq/<name>`` or ``<name>``; empty when dead letters are dropped."""
        return queue_at(self.dead_letter_address)

    def replication_group(self, raft: Raft) -> str | None:
        """Name of the replication group that holds the queue; None for one of this node's local groups."""
        wanted = self.replication.enabled or (self.type == "quorum" and raft.enabled)
        return (self.replication.group or "default") if wanted else None
