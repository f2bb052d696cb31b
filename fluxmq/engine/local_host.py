"""A replicated group whose appends are kept on this node while another node leads it
(`write_policy: local`).
"""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.engine.following import Attaching
from fluxmq.engine.leader_host import LeaderHost
from fluxmq.engine.outbox import Outboxes
from fluxmq.engine.ports import Answer, ConsumerPort, Told, Wanted
from fluxmq.queues.origins import Identity
from fluxmq.routing.topology.names import is_reserved


class LocalHost:
    """Delegates to ``leader``, except that appends are kept unless ``is_here`` returns True."""

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
        """Append a batch if the group is led here and no earlier batch is kept; else keep it."""
        if self._is_here() and self._outboxes.is_empty(queue):
            return self._leader.append(queue, batch, done, identity, by_address)
        if by_address and is_reserved(queue):
            # The leader refuses it: once kept here, its origin would be lost.
            return self._leader.append(queue, batch, done, identity, by_address)
        kept = self._outboxes.append(queue, batch, done)
        if kept is not None:
            return kept
        return self._leader.append(queue, batch, done, identity, by_address)

    def attach(self, wanted: Wanted, port: ConsumerPort, done: Attaching) -> None:
        """Attach a consumer to the leader."""
        self._leader.attach(wanted, port, done)

    def status(self, queue: str, done: Told) -> None:
        """Count what the leader has."""
        self._leader.status(queue, done)

    def purge(self, queue: str, done: Told) -> None:
        """Drop the ready messages at the leader."""
        self._leader.purge(queue, done)

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: Told) -> None:
        """Delete a queue; what is kept for it goes when the deletion is known."""
        self._leader.delete(queue, if_unused, if_empty, done)
