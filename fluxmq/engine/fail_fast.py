"""Fail-fast access to a host on another shard, for callers with an alternative to waiting for
it."""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.engine.answers import ResultCallback
from fluxmq.engine.ports import (
    AppendCallback,
    Attached,
    AttachRequest,
    ConsumerHandle,
    ConsumerPort,
    StatusCallback,
)
from fluxmq.engine.remote_client import RemoteClient
from fluxmq.queues.origins import Identity


class FailFastClient:
    """A host that does not retry: a request whose fate is unknown is answered with `MOVED`."""

    def __init__(self, host: RemoteClient) -> None:
        self._host = host

    def append(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Append a batch there."""
        return self._host.append(queue, batch, done, identity, by_address, once=True)

    def attach(
        self,
        wanted: AttachRequest,
        port: ConsumerPort,
        done: Callable[[Attached, ConsumerHandle | None], None],
    ) -> None:
        """Attach a consumer there."""
        self._host.attach(wanted, port, done, once=True)

    def carry(self, group: str, queue: str, kind: int, body: bytes, done: ResultCallback) -> None:
        """Carry out a command there about a queue that is moving to a group."""
        self._host.carry(group, queue, kind, body, done)

    def status(self, queue: str, done: StatusCallback) -> None:
        """Count a queue's messages and consumers there."""
        self._host.status(queue, done)

    def purge(self, queue: str, done: StatusCallback) -> None:
        """Drop ready messages there."""
        self._host.purge(queue, done)

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: StatusCallback) -> None:
        """Delete a queue there."""
        self._host.delete(queue, if_unused, if_empty, done)
