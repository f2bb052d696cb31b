"""Stand-ins for the host of a group that moves: what is asked meanwhile is kept, in order, and asked of the new host.

On the shard the group leaves, everything that comes from anywhere is kept (`Departed`). On the others, what clients
there ask anew waits until the old host has answered all it was asked before (`Crossing`): what goes to the new host
directly may not overtake what goes there by way of the old one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from fluxmq.protocols.mqtt.reasons import Reason
from fluxmq.queues.origins import Identity
from fluxmq.shards.queues.ports import (
    Answer,
    Attached,
    ConsumerPort,
    Held,
    Outcome,
    QueueHost,
    Status,
    Told,
    Wanted,
)
from fluxmq.shards.queues.remote import WAITING_BYTES_MAX, RemoteHost

ATTACHES_MAX = 65_536
"""Consumers that may wait to be attached while a group moves, and as many who ask for something else; more are
refused, and ask again."""

AttachDone = Callable[[Attached, Held | None], None]


class Waiting:
    """Keeps appends, attaches and what else is asked of queues, each in order, bounded, until a host takes them."""

    def __init__(self) -> None:
        self._appends: deque[tuple[str, bytes, Answer | None, Identity | None, bool]] = deque()
        self._attaches: deque[tuple[Wanted, ConsumerPort, AttachDone]] = deque()
        self._requests: deque[tuple[Callable[[QueueHost], None], Told]] = deque()
        self._bytes = 0

    def append(
        self,
        queue: str,
        batch: bytes,
        done: Answer | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Keep a batch. False: there is more than is good, who feeds it should pause."""
        if self._bytes > 4 * WAITING_BYTES_MAX:
            if done is not None:
                done(Reason.IMPLEMENTATION_SPECIFIC_ERROR)
            return True
        self._appends.append((queue, batch, done, identity, by_address))
        self._bytes += len(batch)
        return not self.crowded

    def attach(self, wanted: Wanted, port: ConsumerPort, done: AttachDone) -> None:
        """Keep a consumer."""
        if len(self._attaches) >= ATTACHES_MAX:
            done(Attached(Reason.IMPLEMENTATION_SPECIFIC_ERROR), None)
        else:
            self._attaches.append((wanted, port, done))

    def status(self, queue: str, done: Told) -> None:
        """Keep a question."""
        self._keep(lambda host: host.status(queue, done), done)

    def purge(self, queue: str, done: Told) -> None:
        """Keep an order."""
        self._keep(lambda host: host.purge(queue, done), done)

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: Told) -> None:
        """Keep an order."""
        self._keep(lambda host: host.delete(queue, if_unused, if_empty, done), done)

    def _keep(self, request: Callable[[QueueHost], None], done: Told) -> None:
        if len(self._requests) >= ATTACHES_MAX:
            done(Status(Outcome.UNAVAILABLE))
        else:
            self._requests.append((request, done))

    @property
    def crowded(self) -> bool:
        """Whether more is kept than is good."""
        return self._bytes > WAITING_BYTES_MAX

    def hand_on(self, host: QueueHost) -> None:
        """Ask everything of the group's host, in the order it came."""
        while self._appends:
            queue, batch, done, identity, by_address = self._appends.popleft()
            self._bytes -= len(batch)
            host.append(queue, batch, done, identity, by_address)
        while self._attaches:
            host.attach(*self._attaches.popleft())
        while self._requests:
            self._requests.popleft()[0](host)


class Departed(Waiting):
    """On the shard that a group leaves. ``complete``: nothing of it is open here any more."""

    def __init__(self, complete: bool) -> None:
        super().__init__()
        self.complete = complete


class Crossing(Waiting):
    """On another shard, while old hosts owe it answers. Each of them has to answer up to a number."""

    def __init__(self) -> None:
        super().__init__()
        self._owing: list[tuple[RemoteHost, int]] = []

    def wait_for(self, host: RemoteHost) -> None:
        """A host that the group has left owes answers to everything it was sent until now."""
        self._owing.append((host, host.last_number))

    @property
    def clear(self) -> bool:
        """Whether nothing can be overtaken any more."""
        self._owing = [(host, last) for host, last in self._owing if host.owes(last)]
        return not self._owing
