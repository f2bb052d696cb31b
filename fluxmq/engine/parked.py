"""Stand-ins for the host of a moving group: they buffer requests in order for the new host.

The shard that the group leaves buffers everything from anywhere (`ParkedGroup`). Other shards buffer
new requests of their clients until the old host has answered all earlier ones (`ParkedRequests`):
requests sent directly to the new host must not overtake those that go through the old one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from fluxmq.engine.ports import (
    AppendCallback,
    Attached,
    AttachRequest,
    ConsumerHandle,
    ConsumerPort,
    GroupClient,
    QueueStats,
    StatusCallback,
)
from fluxmq.engine.remote_client import WAITING_BYTES_MAX, RemoteClient
from fluxmq.model.outcomes import Outcome, QueueOutcome
from fluxmq.queues.origins import Identity

ATTACHES_MAX = 65_536
"""Maximum number of attaches buffered while a group moves, and of other requests; more are refused
and retry."""

AttachCallback = Callable[[Attached, ConsumerHandle | None], None]


class RequestBuffer:
    """Bounded buffer of appends, attaches and other requests, each in order, until a host accepts
    them."""

    def __init__(self) -> None:
        self._appends: deque[tuple[str, bytes, AppendCallback | None, Identity | None, bool]] = (
            deque()
        )
        self._attaches: deque[tuple[AttachRequest, ConsumerPort, AttachCallback]] = deque()
        self._requests: deque[tuple[Callable[[GroupClient], None], StatusCallback]] = deque()
        self._bytes = 0

    def append(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Buffer a batch. Return False above the high watermark: the publisher should pause."""
        if self._bytes > 4 * WAITING_BYTES_MAX:
            if done is not None:
                done(Outcome.FAILED)
            return True
        self._appends.append((queue, batch, done, identity, by_address))
        self._bytes += len(batch)
        return not self.above_high_watermark

    def attach(self, wanted: AttachRequest, port: ConsumerPort, done: AttachCallback) -> None:
        """Buffer an attach."""
        if len(self._attaches) >= ATTACHES_MAX:
            done(Attached(Outcome.FAILED), None)
        else:
            self._attaches.append((wanted, port, done))

    def status(self, queue: str, done: StatusCallback) -> None:
        """Buffer a status request."""
        self._keep(lambda host: host.status(queue, done), done)

    def purge(self, queue: str, done: StatusCallback) -> None:
        """Buffer a purge."""
        self._keep(lambda host: host.purge(queue, done), done)

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: StatusCallback) -> None:
        """Buffer a deletion."""
        self._keep(lambda host: host.delete(queue, if_unused, if_empty, done), done)

    def _keep(self, request: Callable[[GroupClient], None], done: StatusCallback) -> None:
        if len(self._requests) >= ATTACHES_MAX:
            done(QueueStats(QueueOutcome.UNAVAILABLE))
        else:
            self._requests.append((request, done))

    @property
    def above_high_watermark(self) -> bool:
        """True while the buffer exceeds the high watermark."""
        return self._bytes > WAITING_BYTES_MAX

    def hand_on(self, host: GroupClient) -> None:
        """Pass all requests to the group's host, in order."""
        while self._appends:
            queue, batch, done, identity, by_address = self._appends.popleft()
            self._bytes -= len(batch)
            host.append(queue, batch, done, identity, by_address)
        while self._attaches:
            host.attach(*self._attaches.popleft())
        while self._requests:
            self._requests.popleft()[0](host)


class ParkedGroup(RequestBuffer):
    """Stand-in on the shard that a group leaves. ``complete``: the group is closed here."""

    def __init__(self, complete: bool) -> None:
        super().__init__()
        self.complete = complete


class ParkedRequests(RequestBuffer):
    """Stand-in on another shard while old hosts owe answers, each up to a request number."""

    def __init__(self) -> None:
        super().__init__()
        self._owing: list[tuple[RemoteClient, int]] = []

    def wait_for(self, host: RemoteClient) -> None:
        """Wait for answers from a host that the group left, to everything sent to it so far."""
        self._owing.append((host, host.last_number))

    @property
    def clear(self) -> bool:
        """True once nothing can be overtaken any more."""
        self._owing = [(host, last) for host, last in self._owing if host.has_pending(last)]
        return not self._owing
