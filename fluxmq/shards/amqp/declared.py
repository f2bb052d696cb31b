"""The topology's queues in the queue engine: whoever hosts a queue's group sees to it that the queue is there.

A queue is a row of the topology first; the shard that hosts its group declares it there as the row and the policies
say, when it learns of the row and again when it begins to lead the group. What ends in the engine by itself (expiry,
the last consumer's leave) is taken out of the topology from here.

A replicated group may come to be led here before this shard has heard what its leader before did. So nothing is declared or
deleted in it until the topology is known to be at least as new as when the group came to be led here: what another node
declared, or deleted and declared again, would be lost with its messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from fluxmq.logs import get_logger
from fluxmq.queues.config import QueueConfig, QueueType
from fluxmq.queues.limits import PRODUCERS_MAX
from fluxmq.queues.migration import arrives_by, is_arriving
from fluxmq.queues.states import Queue as State
from fluxmq.routing.topology.changes import Change, DeleteQueue, DropOwner, QueueUnused
from fluxmq.routing.topology.effective import effective
from fluxmq.routing.topology.migrations import VERB
from fluxmq.routing.topology.names import DEFAULT_VHOST, public_name
from fluxmq.routing.topology.queue_config import COUNT_MAX, TYPES, queue_settings
from fluxmq.routing.topology.records import ORIGIN_SETTINGS, POLICY, QUEUE, VHOST, Queue
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import Row, Topology
from fluxmq.shards.queues.group import Group
from fluxmq.shards.queues.names import EPHEMERAL, QueueInfo, microseconds
from fluxmq.shards.queues.wiring import Queues
from fluxmq.storage.errors import StorageError

LEFT_SECONDS = 15.0
"""How long who had a queue deleted may take to have it taken out of the topology, before it is done from here: longer than
a change of the topology waits for control."""
AGAIN_SECONDS = 1.0
"""Time until control, which did not answer, is asked again."""
COMPARED_MAX = 2_000
"""Queues of groups after which no other group is compared with the topology at once: it takes some ten microseconds for each."""

_log = get_logger("fluxmq.amqp")


class DeclaredQueues:
    """Keeps the engine of one shard as the topology says. ``known``: whether control has told the topology yet."""

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
        self._reconciled: dict[str, Group] = {}
        """Groups here that have been compared with the topology since they came."""
        self._current: dict[str, tuple[Group, int]] = {}
        """Replicated groups led here, by which election, for which the topology is as new as it has to be."""
        self._asking: dict[str, tuple[Group, int]] = {}
        """Those for which that is being found out."""
        self._ending: set[str] = set()
        """Queues with deletions under way that were asked for here."""
        self._said: set[str] = set()
        """Queues of which it was said that the settings file has them in another group."""
        self._left: dict[str, float] = {}
        """Queues that the engine has no longer and the topology still has, and when that is looked at."""
        self._idle: dict[str, float] = {}
        """Queues that nobody uses any more and control could not be told of, and when it is tried again."""
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
                if row.row is None:
                    # Also where it is declared again in the same breath: that is another queue.
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
        self._reconcile()
        self._routes_changed()

    def housekeeping(self) -> None:
        """A tenth of a second has passed."""
        self._reconcile()
        now = self._now()
        for internal in [name for name, at in self._left.items() if at <= now]:
            del self._left[internal]
            self._leave(internal)
        for internal in [name for name, at in self._idle.items() if at <= now]:
            del self._idle[internal]
            if self._is_idle(internal):
                self._unused(internal)

    # What the topology says

    def declare(self, queue: Queue) -> None:
        """Know a queue, and make it where its group is here."""
        config = self.config_of(queue)
        names = self._queues.names
        internal = config.name
        name = names.group_of(internal, queue.group)
        before = names.find(internal)
        known = names.owner_of(internal)
        if known and known != queue.owner:
            self._forget(queue.vhost, queue.name)  # another owner's of this name is another queue
        if queue.owner:
            names.set_owner(internal, queue.owner)
        self._name(name, config)
        self._follow_moves(queue, name, before)
        group = self._group_here(name)
        if group is None or not group.keeper.leading or self._is_leaving(group):
            return  # it is declared where its group lives, or as soon as that is led
        state = group.machine.queue(internal)
        arrived = state is not None and is_meant_to_arrive(queue, state)
        if not arrived and not self.is_current(group):
            return  # and as soon as it is certain that it is to be
        if state is not None and state.config.type != config.type:
            self._end(group, internal)  # one of its name that went while this shard was away
        elif state is not None and queue.owner and not known:
            # Clients of MQTT made one in memory by using its address: what is in it, and who consumes it, is not the owner's.
            self._delete(group, internal, if_empty=False)
        if internal in self._ending:
            return  # it is made as soon as the one before it has gone
        if state is not None and is_arriving(state) and not is_meant_to_arrive(queue, state):
            return  # what is left of another of its name, which goes first
        if state is None or state.config != config or is_arriving(state):
            group.declare(config, lambda _result: self._declared(group, internal))

    def _follow_moves(self, queue: Queue, name: str, before: QueueInfo | None) -> None:
        """A queue is in a group, and perhaps on its way to another; ``before``: what was known of it."""
        if queue.origin == ORIGIN_SETTINGS and not queue.moving_to:
            self._compare_with_file(queue.internal_name, name)
        if queue.moving_to:
            self._group_here(self._queues.names.own_name(queue.moving_to))
        if before is not None and before.group != name:
            self._end_in(before.group, queue.internal_name)
            self._queues.moved(queue.internal_name, before.group, name)

    def _name(self, group: str, config: QueueConfig) -> None:
        topics = tuple(topic.encode() for topic in config.topics)
        self._queues.names.declare(QueueInfo(config.name, group, config.type, topics), config)

    def _declared(self, group: Group, internal: str) -> None:
        """A queue was made, which may be wanted no longer by now."""
        state = group.machine.queue(internal)
        if self._topology().queue(*public_name(internal)) is None:
            self._end(group, internal)
        elif state is not None and group is self._queues.service.ephemeral:
            # Others may have heard of the end of one before it only now; of those on disk the service tells.
            self._queues.service.told(internal, state.config)

    def _compare_with_file(self, internal: str, group: str) -> None:
        """Say that the settings file has a queue in another group than the one it is in; each node says so once."""
        wanted = self._queues.names.group_of_settings(internal)
        if self._queues.shard or wanted == group or internal in self._said:
            return
        self._said.add(internal)
        _log.error(
            "a queue stays in the group it is in: `%s` moves it with its messages",
            VERB,
            extra={"queue": internal, "group": group, "settings": wanted},
        )

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
        # A header's value is a producer of its own, and a bulk publisher is one for every few thousand messages.
        values["deduplication_producers"] = PRODUCERS_MAX
        return QueueConfig(queue.internal_name, **values)

    def _group_here(self, name: str) -> Group | None:
        """A group that this shard hosts, opened when it is first needed."""
        queues = self._queues
        found = queues.service.find(name)
        places = queues.places
        # Of other nodes' own groups this node has no place.
        here = queues.is_member(name) and places.shard_of(name) == queues.shard
        here = here and not places.is_moving(name)
        # One that has left is here by the placement until it is decided where it goes.
        here = here and name not in queues.handovers.departed
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
        """There is no such queue any more."""
        internal = Queue(vhost, name).internal_name
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

    def _end(self, group: Group, internal: str) -> None:
        """Delete a queue from a group here, unless that is under way; then make the one that is declared by now."""
        state = group.machine.queue(internal)
        if state is None or internal in self._ending or is_arriving(state):
            return
        if group.absent:
            return  # whoever leads it does that
        of_settings = not of_clients(state.config) and not state.closed
        if of_settings and not self._is_in_another(group, internal):
            return
        if self._is_leaving(group) or not self.is_current(group):
            return
        # Of one of the settings that is elsewhere an empty one may have been made here by a file that says so.
        self._delete(group, internal, if_empty=of_settings)

    def _delete(self, group: Group, internal: str, if_empty: bool) -> None:
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

    def _is_in_another(self, group: Group, internal: str) -> bool:
        """Whether the topology has a queue in another replicated group."""
        row = self._topology().queue(*public_name(internal))
        wanted = "" if row is None else self._queues.names.own_name(row.group)
        return group.replicated and wanted not in ("", group.name)

    def led(self) -> Iterator[tuple[Group, int]]:
        """Replicated groups led here of which the topology here decides, and by which election they are."""
        for hosted in list(self._queues.service.groups.values()):
            group = hosted.group
            here = group.replicated and not group.closed and not group.leaving
            if here and self._known() and self.is_current(group):
                yield group, hosted.keeper.elections

    def _is_leaving(self, group: Group) -> bool:
        """Whether a group is about to move: nothing may be asked of it, and it is compared again where it comes to rest."""
        if group.leaving:
            self._reconciled.pop(group.name, None)
        return group.leaving

    def is_current(self, group: Group) -> bool:
        """Whether what this shard knows of the topology may decide about a group that is led here; asks if need be."""
        if not group.replicated:
            return True
        hosted = self._queues.service.groups.get(group.name)
        if hosted is None or hosted.group is not group:
            return False
        name, led = group.name, (group, hosted.keeper.elections)
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
                    self._current[name] = led  # else it is asked again, with the next look

        # Nobody is called so, so this changes nothing: it is answered when the copy here has what there was at the time.
        self._change([DropOwner("")], answered)
        return self._current.get(name) == led

    def _reconcile(self) -> None:
        """Groups that came here hold what the topology says, and nothing else of clients' queues."""
        if not self._known():
            return
        compared = 0
        groups = self._queues.service.groups
        for known in (self._reconciled, self._current, self._asking):
            for name in [name for name in known if name not in groups]:
                del known[name]
        for name, hosted in list(groups.items()):
            group = hosted.group
            if not group.keeper.leading or group.leaving:
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

    def _compare(self, name: str, group: Group) -> None:
        for config in list(self._queues.names.configured(name)):
            queue = self._topology().queue(*public_name(config.name))
            if queue is not None:
                self.declare(queue)
        for state in list(group.machine.queues.values()):
            if not state.closed and not self._is_meant(
                self._topology().queue(*public_name(state.name)), name, state
            ):
                self._end(group, state.name)

    def _declare_arrived(self, group: Group) -> None:
        """Queues that have moved to a group are there: by the name of the move that is certain, however old the row is."""
        for queue_id in list(group.machine.closed):
            state = group.machine.queues[queue_id]
            row = self._topology().queue_called(state.name)
            if row is None or not is_meant_to_arrive(row, state):
                continue
            if self._queues.names.own_name(row.group) == group.name:
                self.declare(row)

    def _is_meant(self, queue: Queue | None, group: str, state: State) -> bool:
        """Whether a queue of the engine is the one that the topology has under its name. An outbox is none of its business: it
        goes when its queue is known to have gone, not where that is not known yet."""
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

    # What the engine ends by itself

    def _deleted(self, internal: str) -> None:
        """A queue has gone from a group here."""
        found = self._topology().queue(*public_name(internal))
        if found is None or found.origin == ORIGIN_SETTINGS:
            return
        if internal in self._ending:
            return  # gone is the one before it
        if self.config_of(found).expires:
            self._leave(internal)
        else:
            # Somebody asked for that, who has it taken out of the topology: doing it here as well might hit
            # one that is declared behind that.
            self._left[internal] = self._now() + LEFT_SECONDS

    def _leave(self, internal: str) -> None:
        """Take a queue out of the topology that the engine has no longer; looked at again, since that may fail."""
        vhost, name = public_name(internal)
        found = self._topology().queue(vhost, name)
        if found is None:
            return
        group = self._queues.service.find(self._queues.names.own_name(found.group))
        if group is None or group.machine.queue(internal) is not None:
            return  # it is not here to say, or there again
        if not self._is_decided_here(group):
            return  # whoever leads the group says so
        self._left[internal] = self._now() + LEFT_SECONDS
        self._change([DeleteQueue(vhost, name, by_broker=True)], _ignore)

    def _is_decided_here(self, group: Group) -> bool:
        """Whether what a group here has, or has no longer, is what all its members have."""
        return not group.replicated or (group.keeper.leading and self.is_current(group))

    def _unused(self, internal: str) -> None:
        """The last consumer of a queue has gone."""
        vhost, name = public_name(internal)
        found = self._topology().queue(vhost, name)
        if found is None or not found.auto_delete:
            return

        def answered(refusal: Refusal | None) -> None:
            if refusal is not None:
                self._idle[internal] = self._now() + AGAIN_SECONDS

        self._change([QueueUnused(vhost, name)], answered)

    def _is_idle(self, internal: str) -> bool:
        """Whether a queue is here, and still without consumers."""
        info = self._queues.names.find(internal)
        group = self._queues.service.find(info.group) if info is not None else None
        state = group.machine.queue(internal) if group is not None else None
        return state is not None and not state.consumers()


def of_clients(config: QueueConfig) -> bool:
    """Whether a client declared a queue, so that it ends when the topology has it no longer.

    One of the settings file, and a dead-letter queue of one, stays until it is deleted; no settings say so many retries.
    """
    return config.max_retries == COUNT_MAX or public_name(config.name)[0] != DEFAULT_VHOST


def is_meant_to_arrive(queue: Queue, state: State) -> bool:
    """Whether what arrives in a group is what the topology has under its name, by the same move."""
    return bool(queue.migration) and arrives_by(state, int(queue.migration, 16))


def _ignore(_answer: object) -> None:
    """Nobody waits for this."""
