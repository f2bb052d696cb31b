"""Fail-fast access to a host on another shard, for callers with an alternative to waiting for
it."""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.engine.answers import Done
from fluxmq.engine.ports import Answer, Attached, ConsumerPort, Held, Told, Wanted
from fluxmq.engine.remote import RemoteHost
from fluxmq.queues.origins import Identity


class Once:
    """A host that does not retry: a request whose fate is unknown is answered with `MOVED`."""

    def __init__(self, host: RemoteHost) -> None:
        self._host = host

    def append(
        self,
        queue: str,
        batch: bytes,
        done: Answer | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Append a batch there."""
        return self._host.append(queue, batch, done, identity, by_address, once=True)

    def attach(
        self, wanted: Wanted, port: ConsumerPort, done: Callable[[Attached, Held | None], None]
    ) -> None:
        """Attach a consumer there."""
        self._host.attach(wanted, port, done, once=True)

    def carry(self, group: str, queue: str, kind: int, body: bytes, done: Done) -> None:
        """Carry out a command there about a queue that is moving to a group."""
        self._host.carry(group, queue, kind, body, done)

    def status(self, queue: str, done: Told) -> None:
        """Count a queue's messages and consumers there."""
        self._host.status(queue, done)

    def purge(self, queue: str, done: Told) -> None:
        """Drop ready messages there."""
        self._host.purge(queue, done)

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: Told) -> None:
        """Delete a queue there."""
        self._host.delete(queue, if_unused, if_empty, done)
