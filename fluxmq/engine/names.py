"""The durable queues and the group of each; every shard gives the same answer.

Configured queues come from the settings. The shard that serves a group announces its other queues
(dead-letter queues, queues removed from the file). Any other name is an ephemeral queue, kept in
memory by the shard that a hash of its name selects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from fluxmq.ipc.placements import number_of
from fluxmq.queues.config import Overflow, QueueConfig, QueueType
from fluxmq.settings.clustering import BUFFERED, EPHEMERAL, LOCAL
from fluxmq.settings.queues import QueueSettings
from fluxmq.settings.schema import Settings
from fluxmq.settings.values import microseconds

OUTBOX_PREFIX = "$outbox/"
"""Prefix of queues that hold a node's messages for queues it does not lead. Clients cannot name
them; only their group knows them."""
UNBOUNDED = 0
TRANSFERS_MAX = 1_000_000
"""Deduplication window for dead letters from one queue and group: exceeds what can be in flight."""
MESSAGE_BYTES_MAX = 1 << 30
"""Exceeds any queue's maximum message size: a dead-letter queue accepts whatever its source did."""


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as publishers and subscribers see it. ``topics``: filters that it captures."""

    name: str
    group: str
    type: int
    topics: tuple[bytes, ...] = ()
    attributes: tuple[str, ...] = ()

    @property
    def stream(self) -> bool:
        """True if consumers read without removing messages."""
        return self.type == QueueType.STREAM


def group_of(queue: QueueSettings, settings: Settings, local_groups: int) -> str:
    """Return the replication group of a configured queue."""
    replicated = queue.replication_group(settings.cluster.raft)
    if replicated is not None:
        return replicated
    durability = queue.ack_durability or settings.storage.queue_ack_durability
    prefix = BUFFERED if durability == "buffered" else LOCAL
    return f"{prefix}-{number_of(queue.name, local_groups)}"


def config_of(queue: QueueSettings) -> QueueConfig:
    """Return a configured queue as its group's state machine stores it."""
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
    """Return the configuration of an implicit dead-letter queue: it keeps messages until
    consumed."""
    return QueueConfig(
        name=name,
        type=QueueType.CLASSIC,
        message_ttl=UNBOUNDED,
        max_depth=UNBOUNDED,
        max_message_size=MESSAGE_BYTES_MAX,
        deduplication_window=TRANSFERS_MAX,
    )


class QueueNames:
    """Durable queues by name."""

    def __init__(self, settings: Settings, workers: int, local_groups: int) -> None:
        cluster = settings.cluster
        self._at_own_node = (
            f"@{cluster.node_id}" if cluster.enabled and cluster.raft.enabled else ""
        )
        """Suffix by which other nodes know this node's own groups."""
        self._workers = workers
        self.local_groups = local_groups
        self._queues: dict[str, QueueInfo] = {}
        self._configs: dict[str, dict[str, QueueConfig]] = {}
        self._owners: dict[str, str] = {}
        self.capturing: dict[str, tuple[bytes, ...]] = {}
        """Topic filters of the queues that capture topics."""
        self.changed = True
        self.before_sync: set[str] = set()
        """Queues that deliver messages before they are synced, where they are not replicated."""
        self._before_sync_in_file = {
            queue.name: settings.delivers_before_sync(queue) for queue in settings.queues
        }
        self._before_sync_otherwise = settings.queue_manager.deliver_before_sync
        self.undeclared: Callable[[str], None] = lambda _name: None
        """Called when a queue's deletion, or its replacement by another of the same name, is
        decided."""
        self._of_settings = {queue.name: config_of(queue) for queue in settings.queues}
        self._groups_of_settings: dict[str, str] = {}
        for queue in settings.queues:
            self.deliver_before_sync(queue.name, None)
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
        """Queues of the settings and their dead-letter queues."""

    def add(self, info: QueueInfo) -> None:
        """Add a queue, unless it is known to belong to another group."""
        before = self._queues.get(info.name)
        decided = before is not None and info.name in self._configs.get(before.group, {})
        if decided and before is not None and before.group != info.group:
            return  # the announcing shard has not heard yet that it moved
        self._know(info)

    def _know(self, info: QueueInfo) -> None:
        if self._queues.get(info.name) != info:
            self._queues[info.name] = info
            self.capturing.pop(info.name, None)
            if info.topics:
                self.capturing[info.name] = info.topics
            self.changed = True

    def declare(self, info: QueueInfo, config: QueueConfig) -> None:
        """Add a queue that its group must hold."""
        info = replace(info, group=self.own_name(info.group))
        before = self._queues.get(info.name)
        if before is not None and before.group != info.group:
            self._configs.get(before.group, {}).pop(info.name, None)
        self._know(info)
        self._configs.setdefault(info.group, {})[info.name] = config

    def set_owner(self, name: str, owner: str) -> None:
        """Record that only one connection may use a queue, until it is undeclared."""
        self._owners[name] = owner

    def deliver_before_sync(self, name: str, wanted: bool | None) -> None:
        """Set whether a queue delivers messages before they are synced; None: as the settings
        say."""
        if wanted is None:
            wanted = self._before_sync_in_file.get(name, self._before_sync_otherwise)
        if wanted:
            self.before_sync.add(name)
        else:
            self.before_sync.discard(name)

    def is_quorum(self, name: str) -> bool:
        """Return whether a queue is known to be a quorum queue."""
        info = self._queues.get(name)
        return info is not None and info.type == QueueType.QUORUM

    def owner_of(self, name: str) -> str:
        """Return the id of the only connection that may use a queue; empty if all may."""
        return self._owners.get(name, "")

    @staticmethod
    def is_hidden(name: str) -> bool:
        """Return whether a queue is internal to a node, unknown to clients and other shards."""
        return name.startswith(OUTBOX_PREFIX)

    def of_settings(self, name: str) -> QueueConfig | None:
        """Return the settings file's configuration of a queue, or None."""
        return self._of_settings.get(name)

    def group_of_settings(self, name: str) -> str:
        """Return the group that the settings file assigns to a queue; empty if it names none."""
        return self._groups_of_settings.get(name, "")

    def group_of(self, name: str, given: str) -> str:
        """Return the group given by a queue's declaration, or else the known one (settings give
        none)."""
        return self.own_name(given) or self.info(name).group

    def own_name(self, group: str) -> str:
        """Return a group's name on this node: without the node suffix if the group is this node's
        own."""
        return group.removesuffix(self._at_own_node) if self._at_own_node else group

    def shared_name(self, group: str) -> str:
        """Return the cluster-wide name of one of this node's own groups."""
        return group + self._at_own_node

    def undeclare(self, name: str) -> None:
        """Remove a queue that is no longer wanted."""
        self.undeclared(name)
        self._owners.pop(name, None)
        self.before_sync.discard(name)
        for configs in self._configs.values():
            configs.pop(name, None)
        self.remove(name)

    def remove(self, name: str) -> None:
        """Remove a queue that was deleted from its group.

        A queue that clients declared stays until it is undeclared: a member that applies a deletion
        late may report it after the queue was declared again, and publishes in between would go to
        an ephemeral queue of the same name.
        """
        info = self._queues.get(name)
        if info is None or self._is_declared(info):
            return
        del self._queues[name]
        self.capturing.pop(name, None)
        self.changed = True

    def _is_declared(self, info: QueueInfo) -> bool:
        """Return whether a queue that is not in the settings is declared in its group."""
        wanted = info.name in self._configs.get(info.group, {})
        return wanted and info.name not in self._in_file

    def find(self, name: str) -> QueueInfo | None:
        """Return a durable queue, or None."""
        return self._queues.get(name)

    def is_in_another(self, name: str, group: str) -> bool:
        """Return whether a durable queue belongs to another group."""
        info = self._queues.get(name)
        return info is not None and info.group != group

    def info(self, name: str) -> QueueInfo:
        """Return any queue; an unknown name is an ephemeral queue."""
        found = self._queues.get(name)
        if found is not None:
            return found
        shard = number_of(name, self._workers)
        return QueueInfo(name, f"{EPHEMERAL}-{shard}", QueueType.EPHEMERAL)

    def configured(self, group: str) -> Iterable[QueueConfig]:
        """Return the queues that a group must hold: configured ones and their dead-letter
        queues."""
        return self._configs.get(group, {}).values()

    def configured_groups(self) -> Iterable[str]:
        """Return the groups with configured queues."""
        return self._configs

    def all(self) -> Iterable[QueueInfo]:
        """Return every durable queue."""
        return self._queues.values()


def queue_name(address: str) -> str:
    """Return the queue that an address of the settings names; empty for none."""
    return (
        address.removeprefix("$queue/").partition("/")[0]
        if address.startswith("$queue/")
        else address
    )


def _encoded(topics: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(topic.encode() for topic in topics)
