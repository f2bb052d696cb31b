"""Checks of ``queues`` against each other and against ``cluster.raft``: problems and notes. Pure.

Called by ``checks``; separate because queues need as many checks as all other sections together.
"""

from __future__ import annotations

from collections.abc import Iterator

from fluxmq.settings.clustering import DEFAULT_GROUP, OWN_GROUP_PREFIXES, RaftGroup
from fluxmq.settings.problems import SettingsProblem
from fluxmq.settings.queues import DEAD_LETTER_PREFIX, QUEUE_PREFIX, QueueSettings
from fluxmq.settings.schema import Settings
from fluxmq.settings.values import format_duration

_NOT_CAPTURED = (QUEUE_PREFIX, DEAD_LETTER_PREFIX, "$share/", "$SYS/")
"""Prefixes of topics that ``topics`` may not capture, except the queue's own address."""
OWN_GROUP_NAME = "is a name that only this node's own groups have: they begin with " + ", ".join(
    OWN_GROUP_PREFIXES
)


def queue_problems(settings: Settings) -> Iterator[SettingsProblem]:
    """Yield every problem between the values of the queues, queue by queue."""
    names: dict[str, int] = {}
    for index, queue in enumerate(settings.queues):
        path = f"queues[{index}]"
        if queue.name in names:
            yield SettingsProblem(
                f"{path}.name", f"{queue.name} is also queues[{names[queue.name]}]"
            )
        names.setdefault(queue.name, index)
    for index, queue in enumerate(settings.queues):
        path = f"queues[{index}]"
        yield from _topics(path, queue)
        yield from _values(path, queue)
        yield from _replication(path, queue, settings)
        yield from _dead_letters(path, queue, names)
    yield from _dead_letter_circles(settings.queues)


def queue_notes(settings: Settings) -> Iterator[str]:
    """Yield notes for the operator on valid queues."""
    buffered = [
        queue.name for queue in settings.queues if settings.ack_durability(queue) == "buffered"
    ]
    if buffered:
        interval = format_duration(settings.storage.queue_sync_interval)
        yield (
            f"queues {', '.join(buffered)}: ack_durability is buffered, so a power cut may lose"
            f" messages acknowledged in the last {interval}."
        )
    single = [queue.name for queue in settings.queues if queue.type == "quorum"]
    if single and not settings.cluster.raft.enabled:
        yield (
            f"queues {', '.join(single)}: type quorum with one copy, since cluster.raft.enabled is false."
        )


def replicas(path: str, factor: int, in_sync: int) -> Iterator[SettingsProblem]:
    """Check that no more in-sync replicas are required than there are replicas."""
    if in_sync > factor:
        yield SettingsProblem(
            f"{path}.min_in_sync_replicas",
            f"may not be above replication_factor, which is {factor}",
        )


def _topics(path: str, queue: QueueSettings) -> Iterator[SettingsProblem]:
    own = (f"{QUEUE_PREFIX}{queue.name}", f"{QUEUE_PREFIX}{queue.name}/#")
    for index, topic_filter in enumerate(queue.topics):
        if topic_filter.startswith(_NOT_CAPTURED) and topic_filter not in own:
            yield SettingsProblem(
                f"{path}.topics[{index}]",
                f"{topic_filter} is not captured: topics of this kind are delivered only where they are addressed",
            )


def _values(path: str, queue: QueueSettings) -> Iterator[SettingsProblem]:
    if queue.primary_group and queue.type != "stream":
        yield SettingsProblem(f"{path}.primary_group", "applies to type stream only")
    if queue.retry.initial_backoff > queue.retry.max_backoff:
        yield SettingsProblem(f"{path}.retry.initial_backoff", "may not be above max_backoff")
    limits = queue.limits
    if limits.overflow == "drop-head" and 0 < limits.max_depth <= limits.max_length:
        yield SettingsProblem(
            f"{path}.limits.max_depth",
            f"must be above max_length, which is {limits.max_length}:"
            " publishes are refused before overflow could drop anything",
        )


def _replication(path: str, queue: QueueSettings, settings: Settings) -> Iterator[SettingsProblem]:
    raft, replication = settings.cluster.raft, queue.replication
    if replication.replication_factor or replication.min_in_sync_replicas:
        of_group = raft.groups.get(replication.group or DEFAULT_GROUP, RaftGroup())
        factor = of_group.replication_factor or raft.replication_factor
        in_sync = of_group.min_in_sync_replicas or raft.min_in_sync_replicas
        yield from replicas(
            f"{path}.replication",
            replication.replication_factor or factor,
            replication.min_in_sync_replicas or in_sync,
        )
    group = queue.replication_group(raft)
    heartbeat, election = replication.heartbeat_timeout, replication.election_timeout
    if heartbeat is not None and election is not None and heartbeat >= election:
        yield SettingsProblem(
            f"{path}.replication.election_timeout",
            f"must be above heartbeat_timeout, which is {format_duration(heartbeat)}",
        )
    if replication.enabled and not raft.enabled:
        yield SettingsProblem(
            f"{path}.replication.enabled", "needs cluster.raft.enabled, which is false"
        )
    if replication.group.startswith(OWN_GROUP_PREFIXES):
        yield SettingsProblem(f"{path}.replication.group", OWN_GROUP_NAME)
    elif group is not None and group != "default":
        if group in raft.groups:
            elsewhere = settings.cluster.enabled and raft.groups[group].peers
            if not raft.groups[group].enabled and not elsewhere:
                yield SettingsProblem(
                    f"{path}.replication.group",
                    f"{group} is not enabled: cluster.raft.groups.{group}.enabled is false",
                )
        elif not raft.auto_provision_groups:
            yield SettingsProblem(
                f"{path}.replication.group",
                f"{group} is not in cluster.raft.groups, and"
                " cluster.raft.auto_provision_groups is false",
            )
    if (group is not None or queue.type == "quorum") and settings.ack_durability(
        queue
    ) == "buffered":
        kind = "a quorum queue" if queue.type == "quorum" else "a replicated queue"
        yield SettingsProblem(f"{path}.ack_durability", f"must be fsync for {kind}")
    if queue.deliver_before_sync and (group is not None or queue.type != "classic"):
        kind = f"type {queue.type}" if group is None else "a replicated queue"
        yield SettingsProblem(f"{path}.deliver_before_sync", f"must be false for {kind}")


def _dead_letters(
    path: str, queue: QueueSettings, names: dict[str, int]
) -> Iterator[SettingsProblem]:
    if not queue.dlq.enabled or queue.dlq.topic is None:
        return
    place, topic = f"{path}.dlq.topic", queue.dlq.topic
    name = queue.dead_letter_queue
    if not name:
        yield SettingsProblem(
            place,
            f"{topic!r} is not the address of a queue, $dlq/<name> or $queue/<name>:"
            " a dead letter leaves its queue once another queue has stored it",
        )
    elif name == queue.name:
        yield SettingsProblem(place, "is the queue itself: its dead letters would never end")
    elif not name.startswith(DEAD_LETTER_PREFIX) and name not in names:
        yield SettingsProblem(
            place, f"{name} is not in queues, and a queue made on demand is kept in memory only"
        )


def _dead_letter_circles(queues: tuple[QueueSettings, ...]) -> Iterator[SettingsProblem]:
    """Yield queues whose dead letters return to them; each cycle is reported once, at its first
    queue."""
    onward = {}
    for queue in queues:
        if queue.dead_letter_queue not in ("", queue.name):
            onward[queue.name] = queue.dead_letter_queue
    told: set[str] = set()
    for index, queue in enumerate(queues):
        way = [queue.name]
        while way[-1] in onward and onward[way[-1]] not in way:
            way.append(onward[way[-1]])
        if onward.get(way[-1]) == queue.name and len(way) > 1 and not told.intersection(way):
            told.update(way)
            circle = " to ".join([*way, queue.name])
            yield SettingsProblem(
                f"queues[{index}].dlq.topic", f"makes a dead-letter cycle: {circle}"
            )
