"""Which queues there are and which group each belongs to: the same answer on every shard.

Configured queues are known from the settings. Queues that groups hold besides (dead-letter queues, queues taken
out of the file) are told by the group's host. Any other name is an ephemeral queue, kept in memory by the shard
that a hash of its name gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from fluxmq.ipc.placements import number_of
from fluxmq.queues.config import SECOND, Overflow, QueueConfig, QueueType
from fluxmq.settings.queues import Queue
from fluxmq.settings.schema import Settings

EPHEMERAL = "ephemeral"
"""Prefix of the groups in memory; the shard's number follows."""
BUFFERED = "buffered"
"""Prefix of the local groups whose publishers are answered before the disk has been."""
LOCAL = "local"
"""Prefix of the local groups, for queues that are not replicated; numbers follow."""
OUTBOX_PREFIX = "$outbox/"
"""Of queues in which a node keeps what it does not lead. No client can name them, and only their group knows them."""
UNBOUNDED = 0
TRANSFERS_MAX = 1_000_000
"""Dead letters of one queue and group that are recognised when they come again: more than can be under way."""
MESSAGE_BYTES_MAX = 1 << 30
"""Larger than any queue may be told to take: what one queue took its dead-letter queue takes too."""


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as publishers and subscribers need to know it. ``topics``: filters it captures."""

    name: str
    group: str
    type: int
    topics: tuple[bytes, ...] = ()
    attributes: tuple[str, ...] = ()

    @property
    def stream(self) -> bool:
        """Whether consumers read along rather than take."""
        return self.type == QueueType.STREAM


def microseconds(seconds: float) -> int:
    """A duration of the settings as the state machine counts."""
    return round(seconds * SECOND)


def group_of(queue: Queue, settings: Settings, local_groups: int) -> str:
    """The replication group of a configured queue."""
    replicated = queue.replication_group(settings.cluster.raft)
    if replicated is not None:
        return replicated
    durability = queue.ack_durability or settings.storage.queue_ack_durability
    prefix = BUFFERED if durability == "buffered" else LOCAL
    return f"{prefix}-{number_of(queue.name, local_groups)}"


def config_of(queue: Queue) -> QueueConfig:
    """A configured queue as its group's state machine keeps it."""
    limits, retention, consumer = queue.limits, queue.retention, queue.consumer
    address = queue.dead_letter_address
    kind = {"classic": QueueType.CLASSIC, "quorum": QueueType.QUORUM, "stream": QueueType.STREAM}
    return QueueConfig(
        name=queue.name,
        type=kind[queue.type],
        topics=queue.topics,
        reserved=queue.reserved,
        primary_group=queue.primary_group,
        max_message_size=limits.max_message_size,
        max_depth=limits.max_depth,
        message_ttl=microseconds(limits.message_ttl),
        max_length=limits.max_length,
        max_length_bytes=limits.max_length_bytes,
        overflow=Overflow.DROP_HEAD if limits.overflow == "drop-head" else Overflow.REJECT_PUBLISH,
        retention_age=microseconds(retention.max_age),
        retention_bytes=retention.max_length_bytes,
        retention_messages=retention.max_length_messages,
        max_retries=queue.retry.max_retries,
        initial_backoff=microseconds(queue.retry.initial_backoff),
        max_backoff=microseconds(queue.retry.max_backoff),
        multiplier_thousandths=round(queue.retry.multiplier * 1000),
        dead_letter=bool(address),
        dead_letter_queue=queue_name(address),
        visibility_timeout=microseconds(consumer.visibility_timeout),
        delivery_limit=max(queue.deliveries_max, 0),
        claim_batch=consumer.claim_batch,
        expires=microseconds(queue.expires),
        deduplication_window=queue.deduplication.window,
        deduplication_producers=queue.deduplication.max_producers,
    )


def dead_letter_config(name: str) -> QueueConfig:
    """A dead-letter queue made because another queue needs it: it keeps everything until somebody takes it."""
    return QueueConfig(
        name=name,
        type=QueueType.CLASSIC,
        message_ttl=UNBOUNDED,
        max_depth=UNBOUNDED,
        max_message_size=MESSAGE_BYTES_MAX,
        deduplication_window=TRANSFERS_MAX,
    )


class QueueNames:
    """Queues by name."""

    def __init__(self, settings: Settings, workers: int, local_groups: int) -> None:
        cluster = settings.cluster
        self._at_own_node = (
            f"@{cluster.node_id}" if cluster.enabled and cluster.raft.enabled else ""
        )
        """Ends the names that other nodes know this node's own groups by."""
        self._workers = workers
        self.local_groups = local_groups
        self._queues: dict[str, QueueInfo] = {}
        self._configs: dict[str, dict[str, QueueConfig]] = {}
        self._owners: dict[str, str] = {}
        self.capturing: dict[str, tuple[bytes, ...]] = {}
        """Topic filters of the queues that have some."""
        self.changed = True
        self.undeclared: Callable[[str], None] = lambda _name: None
        """Called when it is decided that a queue is no more, or was replaced by another of its name."""
        self._of_settings = {queue.name: config_of(queue) for queue in settings.queues}
        self._groups_of_settings: dict[str, str] = {}
        for queue in settings.queues:
            group = group_of(queue, settings, local_groups)
            config = self._of_settings[queue.name]
            self._groups_of_settings[queue.name] = group
            self.add(QueueInfo(queue.name, group, config.type, _encoded(queue.topics)))
            self._configs.setdefault(group, {})[queue.name] = config
        for queue in settings.queues:
            group = group_of(queue, settings, local_groups)
            target = queue_name(queue.dead_letter_address)
            if target and target not in self._queues:
                self.add(QueueInfo(target, group, QueueType.CLASSIC))
                self._configs[group][target] = dead_letter_config(target)
        self._in_file = {name for configs in self._configs.values() for name in configs}
        """Queues of the settings, and where their dead letters go."""

    def add(self, info: QueueInfo) -> None:
        """Know a queue, unless it is decided that it is in another group."""
        before = self._queues.get(info.name)
        decided = before is not None and info.name in self._configs.get(before.group, {})
        if decided and before is not None and before.group != info.group:
            return  # who says so has not heard yet that it has moved
        self._know(info)

    def _know(self, info: QueueInfo) -> None:
        if self._queues.get(info.name) != info:
            self._queues[info.name] = info
            self.capturing.pop(info.name, None)
            if info.topics:
                self.capturing[info.name] = info.topics
            self.changed = True

    def declare(self, info: QueueInfo, config: QueueConfig) -> None:
        """Know a queue that its group has to hold."""
        info = replace(info, group=self.own_name(info.group))
        before = self._queues.get(info.name)
        if before is not None and before.group != info.group:
            self._configs.get(before.group, {}).pop(info.name, None)
        self._know(info)
        self._configs.setdefault(info.group, {})[info.name] = config

    def set_owner(self, name: str, owner: str) -> None:
        """Know that a queue is for one connection only, until it is undeclared."""
        self._owners[name] = owner

    def owner_of(self, name: str) -> str:
        """Id of the only connection that may use a queue; empty for a queue of everybody's."""
        return self._owners.get(name, "")

    @staticmethod
    def is_hidden(name: str) -> bool:
        """Whether a queue is a node's own business: neither clients nor other shards know it."""
        return name.startswith(OUTBOX_PREFIX)

    def of_settings(self, name: str) -> QueueConfig | None:
        """What the settings file says of a queue that it names."""
        return self._of_settings.get(name)

    def group_of_settings(self, name: str) -> str:
        """The group in which the settings file wants a queue that it names; empty for another."""
        return self._groups_of_settings.get(name, "")

    def group_of(self, name: str, given: str) -> str:
        """The group of a queue whose declaration gives one; those of the settings file do not."""
        return self.own_name(given) or self.info(name).group

    def own_name(self, group: str) -> str:
        """A group's name on this node: that of one of its own without the node."""
        return group.removesuffix(self._at_own_node) if self._at_own_node else group

    def shared_name(self, group: str) -> str:
        """The name that all nodes know one of this node's own groups by."""
        return group + self._at_own_node

    def undeclare(self, name: str) -> None:
        """A queue is no longer to be there."""
        self.undeclared(name)
        self._owners.pop(name, None)
        for configs in self._configs.values():
            configs.pop(name, None)
        self.remove(name)

    def remove(self, name: str) -> None:
        """A queue has gone from its group.

        One that clients declared stays known until it is undeclared. A member that applies a deletion late hears of it
        when the queue is declared again already: what is published to it until it is there again would go to a queue in
        memory of its name.
        """
        info = self._queues.get(name)
        if info is None or self._is_declared(info):
            return
        del self._queues[name]
        self.capturing.pop(name, None)
        self.changed = True

    def _is_declared(self, info: QueueInfo) -> bool:
        """Whether it is decided that a queue, which is none of the settings, has to be in its group."""
        wanted = info.name in self._configs.get(info.group, {})
        return wanted and info.name not in self._in_file

    def find(self, name: str) -> QueueInfo | None:
        """A durable queue."""
        return self._queues.get(name)

    def is_in_another(self, name: str, group: str) -> bool:
        """Whether a durable queue is in another group than this one."""
        info = self._queues.get(name)
        return info is not None and info.group != group

    def info(self, name: str) -> QueueInfo:
        """Any queue: a name that is not known is an ephemeral one."""
        found = self._queues.get(name)
        if found is not None:
            return found
        shard = number_of(name, self._workers)
        return QueueInfo(name, f"{EPHEMERAL}-{shard}", QueueType.EPHEMERAL)

    def configured(self, group: str) -> Iterable[QueueConfig]:
        """The queues that a group has to hold: those of the settings, and where their dead letters go."""
        return self._configs.get(group, {}).values()

    def configured_groups(self) -> Iterable[str]:
        """Groups with configured queues."""
        return self._configs

    def all(self) -> Iterable[QueueInfo]:
        """Every durable queue."""
        return self._queues.values()


def queue_name(address: str) -> str:
    """The queue that an address of the settings names; empty for none."""
    return (
        address.removeprefix("$queue/").partition("/")[0]
        if address.startswith("$queue/")
        else address
    )


def _encoded(topics: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(topic.encode() for topic in topics)
