"""Clients of this node's own groups, each of which one of its shards serves.

Groups of this shard are used directly. Requests for groups of other shards, and for groups that
move, go through a `GroupClient`, which keeps them while the shard restarts or the move is
undecided.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from fluxmq.engine.group_client import NUMBERS_APART, GroupClient
from fluxmq.engine.ports import (
    AppendCallback,
    Attached,
    AttachRequest,
    ConsumerHandle,
    ConsumerPort,
    GroupTarget,
    QueueStats,
    StatusCallback,
)
from fluxmq.engine.remote_shards import RemoteShards
from fluxmq.model.outcomes import Outcome, QueueOutcome
from fluxmq.queues.origins import Identity
from fluxmq.replication.placement import Places

if TYPE_CHECKING:
    from fluxmq.engine.service import QueueService


class NoGroup:
    """Stands in for a group that is not where it was looked for: it refuses every request."""

    def append(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Refuse; MOVED tells callers whose appends have an identity to retry."""
        if done is not None:
            done(Outcome.FAILED if identity is None else Outcome.MOVED)
        return True

    def attach(
        self,
        wanted: AttachRequest,
        port: ConsumerPort,
        done: Callable[[Attached, ConsumerHandle | None], None],
    ) -> None:
        """Refuse."""
        done(Attached(Outcome.FAILED, outcome=QueueOutcome.UNAVAILABLE), None)

    def status(self, queue: str, done: StatusCallback) -> None:
        """Refuse."""
        done(QueueStats(QueueOutcome.UNAVAILABLE))

    def purge(self, queue: str, done: StatusCallback) -> None:
        """Refuse."""
        done(QueueStats(QueueOutcome.UNAVAILABLE))

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: StatusCallback) -> None:
        """Refuse."""
        done(QueueStats(QueueOutcome.UNAVAILABLE))


NO_GROUP = NoGroup()


class PlaceRoute:
    """Implements ``GroupRoute``: finds the shard of this node where a group is placed."""

    term = 0
    of_node = True

    def __init__(self, groups: NodeGroups, name: str) -> None:
        self._groups = groups
        self._name = name

    @property
    def given_up(self) -> bool:
        """Whether the group's shard has been away for so long that requests are refused."""
        return self._groups.is_given_up(self._name)

    def target(self) -> GroupTarget | None:
        """Return the shard that serves the group; None while it is unknown or away."""
        return self._groups.target(self._name)

    def reader(self, queue: str) -> GroupTarget | None:
        """Return the same for consumers."""
        return self._groups.target(self._name)

    def ack_timeout(self, queue: str) -> float:
        """Return infinity: requests wait until the shard answers, or is given up."""
        return math.inf


class NodeGroups:
    """The groups of this node, for clients on this shard. ``now`` returns seconds."""

    def __init__(
        self, shard: int, places: Places, service: QueueService, now: Callable[[], float]
    ) -> None:
        self.leaving: dict[str, bool] = {
            name: True for name in places.placement.moving if places.shard_of(name) == shard
        }
        """Groups that are leaving this shard, and whether they are closed here."""
        self.moving: dict[str, set[str]] = {}
        """Groups from which queues move away, and these queues."""
        self._shard = shard
        self._places = places
        self._service = service
        self._now = now
        self._clients: dict[str, GroupClient] = {}
        self.numbers = itertools.count(NUMBERS_APART, NUMBERS_APART)
        self._changed = False
        self._origin: int
        self._remote: RemoteShards

    def join(self, remote: RemoteShards, origin: int) -> None:
        """Use other shards; ``origin``: a number of this shard's life."""
        self._remote = remote
        self._origin = origin

    # Places

    def is_moving(self, group: str) -> bool:
        """Return whether a group is on its way from one shard to another."""
        return group in self.leaving or self._places.is_moving(group)

    def is_given_up(self, group: str) -> bool:
        """Return whether a group's shard has been away for too long."""
        if self.is_moving(group) or self._service.find(group) is not None:
            return False
        shard = self._remote.shards.get(self._places.shard_of(group))
        return shard is None or shard.given_up

    def target(self, group: str) -> GroupTarget | None:
        """Return a group, or the shard that serves it; None while neither can be sent requests."""
        if group in self.leaving:
            return None
        found = self._service.find(group)
        if found is not None:
            return found
        if self._places.is_moving(group):
            return None
        return self._remote.serving(self._places.shard_of(group))

    # Clients

    def client(self, group: str) -> GroupTarget:
        """Return the client of a group, or the group itself if nothing waits for it."""
        client = self._clients.get(group)
        if client is None or client.idle:
            found = self._service.find(group)
            if found is not None and group not in self.leaving:
                return found
        if client is None:
            if "@" in group:
                return NO_GROUP  # another node's own group
            client = self._clients[group] = GroupClient(
                PlaceRoute(self, group), self._origin, self._now, self.numbers
            )
        return client

    def arrived(self, group: str) -> GroupTarget:
        """Return the target of forwarded requests: the group if it is here, else the client
        that keeps or forwards them."""
        found = self._service.find(group)
        if found is not None and group not in self.leaving:
            client = self._clients.get(group)
            if client is not None and client.waits:
                client.retry()  # requests that it kept while the group was away go first
            return found
        if self.is_moving(group) or self._places.shard_of(group) != self._shard:
            return self.client(group)
        return NO_GROUP

    def moved(self, queue: str, before: str, other: GroupTarget) -> None:
        """Hand a queue's requests and consumers to the client of the group that it is in now."""
        self.moves(queue, before, False)
        client = self._clients.get(before)
        if client is not None and isinstance(other, GroupClient):
            client.hand_over(queue, other, self._service.names.is_quorum(queue))

    def moves(self, queue: str, group: str, moving: bool) -> None:
        """Note whether a queue is about to move away from a group."""
        if moving:
            self.moving.setdefault(group, set()).add(queue)
        elif group in self.moving:
            self.moving[group].discard(queue)

    @property
    def above_high_watermark(self) -> bool:
        """True while unanswered appends of a group exceed the high watermark."""
        return any(client.above_high_watermark for client in self._clients.values())

    # Changes

    def answered(self) -> None:
        """Note that another shard has answered appends: others may have waited for that."""
        if any(client.waits for client in self._clients.values()):
            self.changed()

    def serves(self) -> None:
        """Note that another shard has become ready for requests."""
        self.changed()

    def changed(self) -> None:
        """Send what waits at the end of this tick."""
        self._changed = True
        self._service.wake()

    def step(self) -> None:
        """Send what waits, if that may have become possible."""
        if self._changed:
            self._changed = False
            for client in self._clients.values():
                client.retry()

    @property
    def idle(self) -> bool:
        """True if no request waits for a group."""
        return all(each.idle and not each.waits for each in self._clients.values())

    def housekeeping(self) -> None:
        """Run periodic work; called by the shard's timer."""
        for client in self._clients.values():
            client.housekeeping()
