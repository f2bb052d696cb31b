"""The topology's queues in the queue engine: whoever hosts a queue's group sees to it that the queue is there.

A queue is a row of the topology first; the shard that hosts its group declares it there as the row and the policies
say, when it learns of the row and again when it begins to lead the group. What ends in the engine by itself (expiry,
the last consumer's leave) is taken out of the topology from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from fluxmq.logs import get_logger
from fluxmq.queues.config import QueueConfig, QueueType
from fluxmq.routing.topology.changes import Change, DeleteQueue, QueueUnused
from fluxmq.routing.topology.effective import effective
from fluxmq.routing.topology.names import public_name
from fluxmq.routing.topology.queue_config import queue_settings
from fluxmq.routing.topology.records import ORIGIN_SETTINGS, POLICY, QUEUE, VHOST, Queue
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import Row, Topology
from fluxmq.shards.queues.group import Group
from fluxmq.shards.queues.names import EPHEMERAL, QueueInfo, microseconds
from fluxmq.shards.queues.wiring import Queues
from fluxmq.storage.errors import StorageError

_log = get_logger("fluxmq.amqp")


class DeclaredQueues:
    """Keeps the engine of one shard as the topology says."""

    def __init__(
        self,
        queues: Queues,
        topology: Callable[[], Topology],
        change: Callable[[list[Change], Callable[[Refusal | None], None]], None],
        routes_changed: Callable[[], None],
        consumer_timeout: float,
    ) -> None:
        self._consumer_timeout_us = microseconds(consumer_timeout)
        self._queues = queues
        self._topology = topology
        self._change = change
        self._routes_changed = routes_changed
        queues.service.deleted = self._deleted
        queues.service.unused = self._unused

    def changed(self, rows: Iterable[Row]) -> None:
        """The topology has these rows now (None: no longer); the copy has taken them already."""
        topology = self._topology()
        affected: dict[tuple[str, str], None] = {}
        vhosts: set[str] = set()
        for row in rows:
            vhost = str(row.key[0])
            if row.kind == QUEUE:
                affected[vhost, str(row.key[1])] = None
            elif row.kind in (POLICY, VHOST):
                vhosts.add(vhost)
        if vhosts:
            for queue in topology.queues():
                if queue.vhost in vhosts:
                    affected[queue.vhost, queue.name] = None
        for vhost, name in affected:
            found = topology.queue(vhost, name)
            if found is not None:
                self._declare(found)
            else:
                self._forget(vhost, name)
        self._routes_changed()

    def _declare(self, queue: Queue) -> None:
        """Know a queue, and make it where its group is here."""
        config = self.config_of(queue)
        names = self._queues.names
        topics = tuple(topic.encode() for topic in config.topics)
        name = names.group_of(config.name, queue.group)
        names.declare(QueueInfo(config.name, name, config.type, topics), config)
        group = self._group_here(name)
        if group is None or not group.keeper.leading:
            return  # it is declared where its group lives, or as soon as that is led
        state = group.machine.queue(config.name)
        if state is None or state.config != config:
            group.declare(config)

    def config_of(self, queue: Queue) -> QueueConfig:
        """What the engine is told of a queue: of one of the settings file only what policies say besides."""
        values = queue_settings(
            queue, effective(self._topology(), queue), self._consumer_timeout_us
        )
        base = self._queues.names.of_settings(queue.internal_name)
        if queue.origin == ORIGIN_SETTINGS and base is not None:
            return replace(base, **values)
        if queue.group.startswith(EPHEMERAL):
            values["type"] = QueueType.EPHEMERAL
        return QueueConfig(queue.internal_name, **values)

    def _group_here(self, name: str) -> Group | None:
        """A group that this shard hosts, opened when it is first needed."""
        queues = self._queues
        found = queues.service.find(name)
        places = queues.places
        here = places.shard_of(name) == queues.shard and not places.is_moving(name)
        if found is not None or not here or name.startswith(EPHEMERAL):
            return found
        try:
            queues.service.open(name)
        except StorageError as problem:
            _log.error(
                "a group could not be opened", extra={"group": name, "problem": str(problem)}
            )
            return None
        return queues.service.find(name)

    def _forget(self, vhost: str, name: str) -> None:
        internal = Queue(vhost, name).internal_name
        names = self._queues.names
        info = names.find(internal)
        names.undeclare(internal)
        if info is None:
            return
        group = self._queues.service.find(info.group)
        if group is not None and group.machine.queue(internal) is not None:
            group.delete(internal, False, False, _ignore)

    # What the engine ends by itself

    def _deleted(self, internal: str) -> None:
        """A queue has gone from a group here."""
        vhost, name = public_name(internal)
        found = self._topology().queue(vhost, name)
        if found is not None and found.origin != ORIGIN_SETTINGS:
            self._change([DeleteQueue(vhost, name, by_broker=True)], _ignore)

    def _unused(self, internal: str) -> None:
        """The last consumer of a queue has gone."""
        vhost, name = public_name(internal)
        found = self._topology().queue(vhost, name)
        if found is not None and found.auto_delete:
            self._change([QueueUnused(vhost, name)], _ignore)


def _ignore(_answer: object) -> None:
    """Nobody waits for this."""
