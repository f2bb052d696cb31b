"""The topology's queues in the queue engine: the shard that hosts a queue's group makes sure that
the queue exists.

A queue is a row of the topology first; the shard that hosts its group declares it according to the
row and the policies, when it learns of the row and again when it begins to lead the group. Queues
that end in the engine (expiry, the last consumer's leave) are removed from the topology from here.

A replicated group may come to be led here before this shard has heard what the former leader did.
So nothing is declared or deleted in it until the topology is known to be at least as new as the
leadership: a queue that another node declared, or deleted and declared again, would be lost with
its messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.names import QueueInfo
from fluxmq.engine.wiring import Queues
from fluxmq.logs import get_logger
from fluxmq.queues.config import QueueConfig, QueueType
from fluxmq.queues.limits import PRODUCERS_MAX
from fluxmq.queues.migration import arrives_by, is_arriving
from fluxmq.queues.states import QueueState as State
from fluxmq.replication.open_group import OpenGroup
from fluxmq.routing.topology.arguments import BEFORE_SYNC_KEY, CLASSIC
from fluxmq.routing.topology.changes import Change, DeleteQueue, DropOwner, QueueUnused
from fluxmq.routing.topology.effective import effective
from fluxmq.routing.topology.migrations import VERB
from fluxmq.routing.topology.names import DEFAULT_VHOST, public_name
from fluxmq.routing.topology.queue_config import COUNT_MAX, TYPES, queue_settings
from fluxmq.routing.topology.records import ORIGIN_SETTINGS, POLICY, QUEUE, VHOST, QueueRecord
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import Topology, TopologyRow
from fluxmq.settings.clustering import EPHEMERAL
from fluxmq.settings.values import microseconds
from fluxmq.storage.errors import StorageError

LEFT_SECONDS = 15.0
"""Time for the deleter of a queue to remove it from the topology before it is removed from here:
longer than a change of the topology waits for control.
"""
AGAIN_SECONDS = 1.0
"""Time before control, which did not answer, is asked again."""
COMPARED_MAX = 2_000
"""Queues compared with the topology in one pass before the rest waits: some ten µs each."""

_log = get_logger("fluxmq.amqp")


class DeclaredQueues:
    """Keeps one shard's engine in line with the topology. ``known``: whether that has arrived."""

    def __init__(
        self,
        queues: Queues,
        topology: Callable[[], Topology],
        change: Callable[[list[Change], Callable[[Refusal | None], None]], None],
        routes_changed: Callable[[], None],
        consumer_timeout: float,
        known: Callable[[], bool],
        now: Callable[[], float],
    ) -> None:
        self._consumer_timeout_us = microseconds(consumer_timeout)
        self._queues = queues
        self._topology = topology
        self._change = change
        self._routes_changed = routes_changed
        self._known = known
        self._now = now
        self._reconciled: dict[str, ReplicationGroup] = {}
        """Groups here that have been compared with the topology since they came."""
        self._current: dict[str, tuple[ReplicationGroup, int]] = {}
        """Replicated groups led here, with the election, for which the topology is new enough."""
        self._asking: dict[str, tuple[ReplicationGroup, int]] = {}
        """Groups for which a topology that new has been requested."""
        self._ending: set[str] = set()
        """Queues with pending deletions that were requested here."""
        self._said: set[str] = set()
        """Queues already logged as being in another group than the settings file says."""
        self._left: dict[str, float] = {}
        """Queues that only the topology still has, and when to check them again."""
        self._idle: dict[str, float] = {}
        """Unused queues that control could not be told of, and when to retry."""
        queues.service.observers.append(self)

    def changed(self, rows: Iterable[TopologyRow]) -> None:
        """Follow rows of the topology that changed (None: removed); the copy is up to date."""
        topology = self._topology()
        affected: dict[tuple[str, str], None] = {}
        vhosts: set[str] = set()
        for row in rows:
            vhost = str(row.key[0])
            if row.kind == QUEUE:
                affected[vhost, str(row.key[1])] = None
                if row.row is None:
                    # Also if it is declared again at once: that is another queue.
                    self._forget(vhost, str(row.key[1]))
            elif row.kind in (POLICY, VHOST):
                vhosts.add(vhost)
        if vhosts:
            for queue in topology.queues():
                if queue.vhost in vhosts:
                    affected[queue.vhost, queue.name] = None
        for vhost, name in affected:
            found = topology.queue(vhost, name)
            if found is not None:
                self.declare(found)
        self._reconcile(self._queues.service.groups)
        self._routes_changed()

    @property
    def next_due(self) -> float:
        """Moment at which a queue has to be looked at again, in monotonic seconds."""
        return min([*self._left.values(), *self._idle.values()], default=math.inf)

    def housekeeping(self) -> None:
        """Compare and retry what is due."""
        self._reconcile(self._queues.durable.attended.groups)
        now = self._now()
        for internal in [name for name, at in self._left.items() if at <= now]:
            del self._left[internal]
            self._leave(internal)
        for internal in [name for name, at in self._idle.items() if at <= now]:
            del self._idle[internal]
            if self._is_idle(internal):
                self.queue_unused(internal)

    # From topology to engine

    def declare(self, queue: QueueRecord) -> None:
        """Register a queue, and make it if its group is here."""
        settings = effective(self._topology(), queue)
        config = self._config(queue, settings)
        names = self._queues.names
        internal = config.name
        name = names.group_of(internal, queue.group)
        before = names.find(internal)
        known = names.owner_of(internal)
        if known and known != queue.owner:
            self._forget(
                queue.vhost, queue.name
            )  # another owner's queue of this name is another queue
        if queue.owner:
            names.set_owner(internal, queue.owner)
        self._name(name, config)
        if queue.type == CLASSIC:
            names.deliver_before_sync(internal, settings.get(BEFORE_SYNC_KEY.removeprefix("x-")))
        self._follow_moves(queue, name, before)
        group = self._group_here(name)
        if group is None or not group.driver.leading or self._is_leaving(group):
            return  # it is declared where its group lives, or as soon as that is led
        state = group.machine.queue(internal)
        arrived = state is not None and is_meant_to_arrive(queue, state)
        if not arrived and not self.is_current(group):
            return  # and as soon as it is certain that it should exist
        if state is not None and state.config.type != config.type:
            self._end(
                group, internal
            )  # an earlier queue of its name that ended while this shard was away
        elif state is not None and queue.owner and not known:
            # MQTT clients made one in memory by its address: its messages and consumers are not the
            # owner's.
            self._delete(group, internal, if_empty=False)
        if internal in self._ending:
            return  # it is made as soon as the one before it has gone
        if state is not None and is_arriving(state) and not is_meant_to_arrive(queue, state):
            return  # a remnant of another queue of its name, which goes first
        if state is None or state.config != config or is_arriving(state):
            group.declare(config, lambda _result: self._declared(group, internal))

    def _follow_moves(self, queue: QueueRecord, name: str, before: QueueInfo | None) -> None:
        """Follow a queue's group and its moves; ``before`` is what was known of it."""
        if queue.origin == ORIGIN_SETTINGS and not queue.moving_to:
            self._compare_with_file(queue.internal_name, name)
        if queue.moving_to:
            self._group_here(self._queues.names.own_name(queue.moving_to))
        if before is not None and before.group != name:
            self._end_in(before.group, queue.internal_name)
            self._queues.moved(queue.internal_name, before.group, name)
        self._queues.node_groups.moves(queue.internal_name, name, bool(queue.moving_to))

    def _name(self, group: str, config: QueueConfig) -> None:
        topics = tuple(topic.encode() for topic in config.topics)
        self._queues.names.declare(QueueInfo(config.name, group, config.type, topics), config)

    def _declared(self, group: ReplicationGroup, internal: str) -> None:
        """Handle a queue that was made, but may have been deleted meanwhile."""
        state = group.machine.queue(internal)
        if self._topology().queue(*public_name(internal)) is None:
            self._end(group, internal)
        elif state is not None and group is self._queues.service.ephemeral:
            # Others may hear of the end of an earlier one only now; the service announces those on
            # disk.
            self._queues.service.announce(state.config)

    def _compare_with_file(self, internal: str, group: str) -> None:
        """Log, once per node, a queue that is in another group than the settings file says."""
        wanted = self._queues.names.group_of_settings(internal)
        if self._queues.service.shard or wanted == group or internal in self._said:
            return
        self._said.add(internal)
        _log.error(
            "a queue stays in the group it is in: `%s` moves it with its messages",
            VERB,
            extra={"queue": internal, "group": group, "settings": wanted},
        )

    def config_of(self, queue: QueueRecord) -> QueueConfig:
        """Return a queue's configuration; for one of the settings file only policies add to it."""
        return self._config(queue, effective(self._topology(), queue))

    def _config(self, queue: QueueRecord, settings: Mapping[str, Any]) -> QueueConfig:
        values = queue_settings(queue, settings, self._consumer_timeout_us)
        base = self._queues.names.of_settings(queue.internal_name)
        if queue.origin == ORIGIN_SETTINGS and base is not None:
            return replace(base, **values)
        if queue.group.startswith(EPHEMERAL):
            values["type"] = QueueType.EPHEMERAL
        # Each value of a header is a producer, and a bulk publisher one per few thousand messages.
        values["deduplication_producers"] = PRODUCERS_MAX
        return QueueConfig(queue.internal_name, **values)

    def _group_here(self, name: str) -> ReplicationGroup | None:
        """Return a group that this shard hosts, opening it on first use."""
        queues = self._queues
        found = queues.service.find(name)
        places = queues.places
        # This node has no place for other nodes' own groups.
        here = queues.is_member(name) and places.shard_of(name) == queues.service.shard
        here = here and not places.is_moving(name)
        # By the placement, a group that has left is here until its new place is decided.
        here = here and name not in queues.node_groups.leaving
        if found is not None or not here or name.startswith(EPHEMERAL):
            return found
        try:
            queues.durable.open(name)
        except StorageError as problem:
            _log.error(
                "a group could not be opened", extra={"group": name, "problem": str(problem)}
            )
            return None
        return queues.service.find(name)

    def _forget(self, vhost: str, name: str) -> None:
        """Forget a queue that no longer exists."""
        internal = QueueRecord(vhost, name).internal_name
        self._left.pop(internal, None)
        names = self._queues.names
        info = names.find(internal)
        names.undeclare(internal)
        if info is not None:
            self._end_in(info.group, internal)

    def _end_in(self, name: str, internal: str) -> None:
        group = self._queues.service.find(name)
        if group is not None:
            self._end(group, internal)

    def _end(self, group: ReplicationGroup, internal: str) -> None:
        """Delete a queue from a group here, unless pending; then make the one declared by now."""
        state = group.machine.queue(internal)
        if state is None or internal in self._ending or is_arriving(state):
            return
        if group.absent:
            return  # its leader does that
        of_settings = not of_clients(state.config) and not state.closed
        if of_settings and not self._is_in_another(group, internal):
            return
        if self._is_leaving(group) or not self.is_current(group):
            return
        # If one of the settings is elsewhere, an outdated file may have made an empty one here.
        self._delete(group, internal, if_empty=of_settings)

    def _delete(self, group: ReplicationGroup, internal: str, if_empty: bool) -> None:
        """Delete a queue from a group here, then make the one that is declared by now."""
        if internal in self._ending:
            return
        self._ending.add(internal)

        def ended(_answer: object) -> None:
            self._ending.discard(internal)
            found = self._topology().queue(*public_name(internal))
            if found is not None:
                self.declare(found)
                self._routes_changed()

        group.delete(internal, False, if_empty, ended)

    def _is_in_another(self, group: ReplicationGroup, internal: str) -> bool:
        """Return whether the topology has a queue in another replicated group."""
        row = self._topology().queue(*public_name(internal))
        wanted = "" if row is None else self._queues.names.own_name(row.group)
        return group.replicated and wanted not in ("", group.name)

    def led(self, attended: bool) -> Iterator[tuple[ReplicationGroup, int]]:
        """Yield groups led here for which the topology is new enough, with elections.
        ``attended``: without those that rest."""
        queues = self._queues
        groups = queues.durable.attended.groups if attended else queues.service.groups
        for hosted in list(groups.values()):
            group = hosted.group
            here = group.driver.leading and not group.closed and not group.leaving
            if here and self._known() and self.is_current(group):
                yield group, hosted.driver.elections

    def _is_leaving(self, group: ReplicationGroup) -> bool:
        """Return whether a group is about to move: it is compared again where it comes to rest."""
        if group.leaving:
            self._reconciled.pop(group.name, None)
        return group.leaving

    def is_current(self, group: ReplicationGroup) -> bool:
        """Return whether this topology may decide about a group led here; ask control if not."""
        if not group.replicated:
            return True
        hosted = self._queues.service.groups.get(group.name)
        if hosted is None or hosted.group is not group:
            return False
        name, led = group.name, (group, hosted.driver.elections)
        if self._current.get(name) == led:
            return True
        if self._asking.get(name) == led:
            return False
        self._asking[name] = led
        self._reconciled.pop(name, None)

        def answered(refusal: Refusal | None) -> None:
            if self._asking.get(name) == led:
                del self._asking[name]
                if refusal is None:
                    self._current[name] = led  # otherwise the next pass asks again

        # No owner has this name: nothing changes, and the answer means that the copy here is
        # current.
        self._change([DropOwner("")], answered)
        return self._current.get(name) == led

    def _reconcile(self, looked_at: Mapping[str, OpenGroup[ReplicationGroup]]) -> None:
        """Make groups that came here match the topology, without any other queues of clients."""
        if not self._known():
            return
        compared = 0
        groups = self._queues.service.groups
        for known in (self._reconciled, self._current, self._asking):
            for name in known.keys() - groups.keys():
                del known[name]
        for name, hosted in list(looked_at.items()):
            group = hosted.group
            if not group.driver.leading or group.leaving:
                continue
            self._declare_arrived(group)
            if not self.is_current(group):
                continue
            if self._reconciled.get(name) is group:
                continue
            if compared >= COMPARED_MAX:
                return  # the rest has its turn in a tenth of a second
            compared += len(group.machine.queues)
            self._reconciled[name] = group
            self._compare(name, group)

    def _compare(self, name: str, group: ReplicationGroup) -> None:
        for config in list(self._queues.names.configured(name)):
            queue = self._topology().queue(*public_name(config.name))
            if queue is not None:
                self.declare(queue)
        for state in list(group.machine.queues.values()):
            if not state.closed and not self._is_meant(
                self._topology().queue(*public_name(state.name)), name, state
            ):
                self._end(group, state.name)

    def _declare_arrived(self, group: ReplicationGroup) -> None:
        """Declare queues that have moved to a group: the move's name proves it, however old the
        row.
        """
        for queue_id in list(group.machine.closed):
            state = group.machine.queues[queue_id]
            row = self._topology().queue_called(state.name)
            if row is None or not is_meant_to_arrive(row, state):
                continue
            if self._queues.names.own_name(row.group) == group.name:
                self.declare(row)

    def _is_meant(self, queue: QueueRecord | None, group: str, state: State) -> bool:
        """Return whether a queue of the engine is the topology's of that name. Outboxes always are:
        they end when their queue is known to have ended, not while that is unknown.
        """
        if self._queues.names.is_hidden(state.name):
            return True
        if queue is None:
            return False
        if queue.origin == ORIGIN_SETTINGS:
            return not queue.group or self._queues.names.own_name(queue.group) == group
        return (
            self._queues.names.own_name(queue.group) == group
            and TYPES[queue.type] == state.config.type
        )

    # From engine to topology

    def queue_declared(self, config: QueueConfig) -> None:
        """Ignore: the topology asked for it, or is compared when the group has come."""

    def queue_deleted(self, internal: str, by_leader: bool) -> None:
        """Handle a queue that has ended in a group here."""
        if not by_leader:
            return
        found = self._topology().queue(*public_name(internal))
        if found is None or found.origin == ORIGIN_SETTINGS:
            return
        if internal in self._ending:
            return  # that was the one before it
        if self.config_of(found).expires:
            self._leave(internal)
        else:
            # The requester removes it from the topology: doing so here might hit its successor.
            self._left[internal] = self._now() + LEFT_SECONDS

    def _leave(self, internal: str) -> None:
        """Remove a queue that has ended from the topology; checked again, since that may fail."""
        vhost, name = public_name(internal)
        found = self._topology().queue(vhost, name)
        if found is None:
            return
        group = self._queues.service.find(self._queues.names.own_name(found.group))
        if group is None or group.machine.queue(internal) is not None:
            return  # it is not here to say, or there again
        if not self._is_decided_here(group):
            return  # the group's leader does that
        self._left[internal] = self._now() + LEFT_SECONDS
        self._change([DeleteQueue(vhost, name, by_broker=True)], _ignore)

    def _is_decided_here(self, group: ReplicationGroup) -> bool:
        """Return whether the queues of a group here are those of all its members."""
        return not group.replicated or (group.driver.leading and self.is_current(group))

    def queue_unused(self, internal: str) -> None:
        """Report that the last consumer of a queue has left."""
        vhost, name = public_name(internal)
        found = self._topology().queue(vhost, name)
        if found is None or not found.auto_delete:
            return

        def answered(refusal: Refusal | None) -> None:
            if refusal is not None:
                self._idle[internal] = self._now() + AGAIN_SECONDS

        self._change([QueueUnused(vhost, name)], answered)

    def _is_idle(self, internal: str) -> bool:
        """Return whether a queue is here, and still without consumers."""
        info = self._queues.names.find(internal)
        group = self._queues.service.find(info.group) if info is not None else None
        state = group.machine.queue(internal) if group is not None else None
        return state is not None and not state.consumers()


def of_clients(config: QueueConfig) -> bool:
    """Return whether a client declared a queue, so that it ends when the topology no longer has it.

    A queue of the settings file, and a dead-letter queue of one, stays until it is deleted; no
    settings allow that many retries.
    """
    return config.max_retries == COUNT_MAX or public_name(config.name)[0] != DEFAULT_VHOST


def is_meant_to_arrive(queue: QueueRecord, state: State) -> bool:
    """Return whether a queue arriving in a group is the topology's of its name, by its move."""
    return bool(queue.migration) and arrives_by(state, int(queue.migration, 16))


def _ignore(_answer: object) -> None:
    """Ignore an answer."""
