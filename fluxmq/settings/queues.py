"""The ``queue_manager`` and ``queues`` sections: queues that exist from the start, and common
settings.

Data, like the rest of the schema. Two values that depend on several keys are computed here, so that
all callers agree: the replication group that holds a queue, and its delivery limit.

Source: the keys of the founding documents; ``limits.overflow``, ``expires`` and the delivery limit
have RabbitMQ's meaning.
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
"""Default delivery limit of a classic queue."""
QUORUM_DELIVERY_LIMIT: Final = 20
"""Default delivery limit of a quorum queue: RabbitMQ's since 4.0."""


QUEUE_PREFIX: Final = "$queue/"
DEAD_LETTER_PREFIX: Final = "$dlq/"


def queue_at(address: str) -> str:
    """Return the name of the queue that ``$queue/<name>`` or ``$dlq/<name>`` addresses; empty for
    any other text.

    The name of a dead-letter queue is its whole address.
    """
    prefix = next((p for p in (QUEUE_PREFIX, DEAD_LETTER_PREFIX) if address.startswith(p)), "")
    name = address.removeprefix(prefix)
    try:
        check_name(name)
    except ValueError:
        return ""
    return {QUEUE_PREFIX: name, DEAD_LETTER_PREFIX: address}.get(prefix, "")


def _delivery_limit(limit: int) -> int:
    """Check that the limit is -1 or at least 1: 0 deliveries would make a message useless."""
    if limit == 0:
        raise ValueError("must be at least 1, or -1 for no limit")
    return limit


def _group(text: str) -> str:
    """Check a replication group's name; empty means the default group."""
    return check_name(text) if text else text


class QueueManager(Section):
    """Settings common to all queues."""

    auto_commit_interval: Annotated[Duration, Field(ge=0, le=3600)] = 5.0
    """Longest time between a stream consumer's acknowledgement and the storing of its offset; 0
    stores it at once."""
    capture_workers: Annotated[int, Field(ge=1, le=64)] = 4
    """Multiplied by capture_queue_depth: the number of QoS 0 publishes that may wait to be copied
    into a queue."""
    capture_queue_depth: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """QoS 0 publishes waiting for a queue, per capture worker; beyond it their copies are dropped
    and counted."""
    capture_drain_timeout: Timeout = 5.0
    """Time for pending appends to reach the disk when the node stops."""
    queue_leader_locator: Literal["client-local", "balanced", "random", "least-leaders"] = (
        "client-local"
    )
    """Node that leads a new quorum queue or stream of a cluster, unless an argument or a policy says:
    the one that its client is connected to (client-local), the one that leads the fewest (balanced,
    least-leaders), or any."""
    queue_master_locator: Literal["client-local", "min-masters", "random"] = "client-local"
    """Home of a new classic queue of a cluster, likewise: the client's node, the one that has the fewest
    (min-masters), or any."""
    deliver_before_sync: bool = False
    """Deliver messages before they are synced, which a crash may then take back, and confirm them
    afterwards: for durable classic queues that are not replicated and do not say otherwise."""
    local_groups: Annotated[int, Field(ge=1, le=256)] = 8
    """Replication groups over which queues that are not replicated are spread; fixed when the data
    directory is created."""
    ephemeral_expiry: Annotated[Duration, Field(ge=0.001, le=TEN_YEARS)] = 300.0
    """Time without a consumer after which an ephemeral queue is removed."""
    max_ephemeral_queues: Annotated[int, Field(ge=0, le=1_000_000)] = 10_000
    """Maximum number of ephemeral queues on the node; 0 allows none, and unknown queue names are
    refused."""
    ephemeral_max_bytes: Annotated[Size, Field(ge=1 << 16, le=1 << 40)] = 64 << 20
    """Memory of one ephemeral queue; beyond it the oldest messages are dropped."""
    uncommitted_bytes: Annotated[Size, Field(ge=1 << 16, le=1 << 30)] = 8 << 20
    """Bytes of appends per replication group that are not yet on disk; above it publishers are
    paused."""
    cache_bytes: Annotated[Size, Field(ge=0, le=1 << 40)] = 64 << 20
    """Memory per shard for the newest batches of its queues, so that consumers that keep up need no
    disk reads."""


class Retention(Section):
    """Limits beyond which a queue discards messages, settled or not, without dead-lettering; 0: no
    limit."""

    max_age: Annotated[Duration, Field(ge=0, le=TEN_YEARS)] = 0.0
    """Age beyond which messages are dropped."""
    max_length_bytes: Annotated[Size, Field(ge=0, le=COUNT_MAX)] = 0
    """Size beyond which the oldest messages are dropped."""
    max_length_messages: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 0
    """Count beyond which the oldest messages are dropped."""


class QueueLimits(Section):
    """Limits on what a queue accepts. Above a limit a publish is refused, or the oldest messages
    make room."""

    max_message_size: Annotated[Size, Field(ge=1, le=1 << 30)] = 10 << 20
    """Largest payload; a larger one is refused."""
    max_depth: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 0
    """Messages that the slowest group has not settled, above which publishes are refused; not for
    streams; 0: no limit."""
    message_ttl: Annotated[Duration, Field(ge=0, le=TEN_YEARS)] = 604_800.0
    """Time after which a message expires, unless its publisher asks for a shorter one; 0: never."""
    max_length: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 0
    """Ready messages above which overflow applies; a stream drops its oldest; 0: no limit."""
    max_length_bytes: Annotated[Size, Field(ge=0, le=COUNT_MAX)] = 0
    """Payload bytes of ready messages above which overflow applies; a stream drops its oldest; 0:
    no limit."""
    overflow: Literal["drop-head", "reject-publish"] = "drop-head"
    """Above max_length or max_length_bytes: dead-letter or drop the oldest message, or refuse the
    new one."""


class Retry(Section):
    """Redelivery of messages that a consumer returned with nack. Work queues only."""

    max_retries: Annotated[int, Field(ge=0, le=1_000_000)] = 10
    """Redeliveries after nack before the message is dead-lettered; consumer.delivery_limit may be
    reached first."""
    initial_backoff: Timeout = 5.0
    """Wait before the first redelivery, unless the consumer names one."""
    max_backoff: Annotated[Duration, Field(ge=0.001, le=86_400)] = 300.0
    """Longest wait."""
    multiplier: Annotated[float, Field(ge=1, le=100)] = 2.0
    """Factor by which the wait grows from one nack to the next."""


class DeadLetterSettings(Section):
    """Destination of messages that were rejected, expired, delivered too often or displaced by
    overflow."""

    enabled: bool = False
    """Keep such messages; otherwise they are dropped and counted."""
    topic: Annotated[str, Field(min_length=1)] | None = None
    """Address of the dead-letter queue, $dlq/<name> or $queue/<name>; by default, $dlq/ and this
    queue's name."""


class ConsumerSettings(Section):
    """Delivery of messages to the members of a consumer group. Work queues only, except for
    claim_batch."""

    visibility_timeout: Annotated[Duration, Field(ge=0.1, le=7 * 86_400)] = 30.0
    """Time a consumer has to settle a message before it may be redelivered to another."""
    delivery_limit: (
        Annotated[int, Field(ge=-1, le=1_000_000), AfterValidator(_delivery_limit)] | None
    ) = None
    """Deliveries of one message before it is dead-lettered, -1 for any number; by default 5, for
    type quorum 20."""
    claim_batch: Annotated[int, Field(ge=1, le=4096)] = 100
    """Messages given to one consumer before the next has its turn."""
    max_unsettled: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Maximum number of unsettled messages per consumer; caps the prefetch it asks for."""


class Deduplication(Section):
    """Detection of messages published twice, by producer-id and sequence."""

    window: Annotated[int, Field(ge=0, le=1_000_000)] = 10_000
    """Newest sequence numbers remembered per producer; 0 detects none."""
    max_producers: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Producers remembered per queue; the longest silent are forgotten first."""


class ReplicationSettings(Section):
    """The replication group that holds the queue. Keys left out are inherited from the group.
    Timings given here apply to the whole group; if several queues give one, the smallest
    applies."""

    enabled: bool = False
    """Replicate the queue; needs cluster.raft.enabled."""
    group: Annotated[str, AfterValidator(_group)] = ""
    """Id of the replication group; empty for the default group. Fixed once the queue holds
    messages."""
    replication_factor: Replicas | None = None
    """Replicas that the queue needs; its group decides how many there are, and may not have
    fewer."""
    mode: Literal["sync", "async"] | None = None
    """sync confirms a publish after commit, async after the leader's own write."""
    distribution_mode: Literal["forward", "replicate"] | None = None
    """Delivery on other nodes, as in cluster.raft."""
    min_in_sync_replicas: Replicas | None = None
    """Replicas that must hold a write before it is confirmed, if more than a majority."""
    ack_timeout: Timeout | None = None
    """Longest wait for that confirmation."""
    heartbeat_timeout: Timeout | None = None
    """As in cluster.raft.groups."""
    election_timeout: Timeout | None = None
    """As in cluster.raft.groups."""
    snapshot_interval: Annotated[Duration, Field(ge=1, le=604_800)] | None = None
    """As in cluster.raft.groups."""
    snapshot_threshold: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """As in cluster.raft.groups."""


class QueueSettings(Section):
    """A durable queue, created at the start if it does not exist. Removing it from the file does
    not delete it."""

    name: Name
    """Unique name; clients address the queue as $queue/<name>."""
    topics: tuple[TopicFilter, ...] = ()
    """Topic filters whose publishes the queue copies, besides messages addressed to it."""
    reserved: bool = False
    """Prevent clients from deleting or redefining the queue."""
    type: Literal["classic", "quorum", "stream"] = "classic"
    """classic: a work queue; quorum: the same, replicated where replication is on; stream: a log
    that consumers read."""
    deliver_before_sync: bool | None = None
    """Deliver messages before they are synced, confirm them afterwards; only type classic, not replicated;
    by default, queue_manager.deliver_before_sync."""
    primary_group: str = ""
    """Consumer group whose progress is reported to a stream's consumers."""
    ack_durability: Literal["fsync", "buffered"] | None = None
    """Meaning of a publisher's acknowledgement: synced to disk, or only written; by default,
    storage.queue_ack_durability."""
    expires: Annotated[Duration, Field(ge=0, le=TEN_YEARS)] = 0.0
    """Time without a consumer after which the queue is deleted with all its messages; 0: never."""
    retention: Retention = Retention()
    """Limits beyond which the queue discards messages."""
    limits: QueueLimits = QueueLimits()
    """Limits on what the queue accepts."""
    retry: Retry = Retry()
    """Redelivery of returned messages."""
    dlq: DeadLetterSettings = DeadLetterSettings()
    """Destination of dead letters."""
    consumer: ConsumerSettings = ConsumerSettings()
    """Delivery of messages to consumers."""
    deduplication: Deduplication = Deduplication()
    """Detection of messages published twice."""
    replication: ReplicationSettings = ReplicationSettings()
    """The replication group that holds the queue."""

    @property
    def deliveries_max(self) -> int:
        """Maximum number of deliveries of one message; -1 for any number."""
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
        """Name of that queue, ``$dlq/<name>`` or ``<name>``; empty when dead letters are
        dropped."""
        return queue_at(self.dead_letter_address)

    def replication_group(self, raft: Raft) -> str | None:
        """Return the name of the replication group that holds the queue; None for one of this
        node's local groups."""
        wanted = self.replication.enabled or (self.type == "quorum" and raft.enabled)
        return (self.replication.group or "default") if wanted else None
