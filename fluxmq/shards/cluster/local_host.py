"""A replicated group whose appends are kept on this node while another one leads it (`write_policy: local`)."""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.queues.origins import Identity
from fluxmq.routing.topology.names import is_reserved
from fluxmq.shards.cluster.following import Attaching
from fluxmq.shards.cluster.leader_host import LeaderHost
from fluxmq.shards.cluster.outbox import Outboxes
from fluxmq.shards.queues.ports import Answer, ConsumerPort, Told, Wanted


class LocalHost:
    """Implements ``QueueHost``: as the ``leader``'s host, but for appends. ``is_here``: whether this node leads the group."""

    def __init__(self, leader: LeaderHost, outboxes: Outboxes, is_here: Callable[[], bool]) -> None:
        self._leader = leader
        self._outboxes = outboxes
        self._is_here = is_here

    def append(
        self,
        queue: str,
        batch: bytes,
        done: Answer | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Store a batch where it belongs if that is here, and nothing is kept that came before it; else keep it."""
        if self._is_here() and self._outboxes.is_empty(queue):
            return self._leader.append(queue, batch, done, identity, by_address)
        if by_address and is_reserved(queue):
            # Refused by whoever leads: once it were kept here, nobody would know how it came.
            return self._leader.append(queue, batch, done, identity, by_address)
        kept = self._outboxes.append(queue, batch, done)
        if kept is not None:
            return kept
        return self._leader.append(queue, batch, done, identity, by_address)

    def attach(self, wanted: Wanted, port: ConsumerPort, done: Attaching) -> None:
        """Attach a consumer, to whoever leads."""
        self._leader.attach(wanted, port, done)

    def status(self, queue: str, done: Told) -> None:
        """Count what the leader has."""
        self._leader.status(queue, done)

    def purge(self, queue: str, done: Told) -> None:
        """Drop what is ready at the leader."""
        self._leader.purge(queue, done)

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: Told) -> None:
        """Delete a queue; what is kept for it goes when that is known."""
        self._leader.delete(queue, if_unused, if_empty, done)
