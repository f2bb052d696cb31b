"""Requests to synchronise the mirrors of a queue, checked here and carried out by a cluster's part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from fluxmq.control.mirrors import MirrorStates, not_mirrored
from fluxmq.control.peers import RequestError
from fluxmq.ipc import mirror_messages
from fluxmq.ipc.messages import ERROR_INVALID, ERROR_NOT_FOUND, Body, ControlMessage
from fluxmq.ipc.mirror_messages import SYNC_QUEUE, MirroredQueue, SyncState
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.topology import Topology

KINDS: Final = mirror_messages.KINDS


class MirrorSync(Protocol):
    """Synchronisation of the mirrors of queues. Methods raise RequestError."""

    async def synchronise(self, queue: QueueRecord, *, begin: bool) -> SyncState:
        """Have a mirrored queue's mirrors synchronised unless they are, or only tell how far that is."""

    async def cancel(self, queue: QueueRecord) -> SyncState:
        """Stop it; return whether it was going on."""


class NothingToSync:
    """Synchronisation on a node without a cluster."""

    async def synchronise(self, queue: QueueRecord, *, begin: bool) -> SyncState:
        """Return that nothing is going on."""
        return SyncState(False)

    async def cancel(self, queue: QueueRecord) -> SyncState:
        """Return that nothing was going on."""
        return SyncState(False)


class MirrorRequests:
    """Serves the requests on control's loop. ``states``: the state of mirrored queues."""

    def __init__(
        self,
        topology: Callable[[], Topology],
        states: MirrorStates = not_mirrored,
        sync: MirrorSync | None = None,
    ) -> None:
        self._topology = topology
        self._states = states
        self._sync = sync or NothingToSync()

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a request. Raises RequestError or MessageError."""
        wanted = MirroredQueue.from_body(message.body)
        queue = self._topology().queue(wanted.vhost, wanted.name)
        where = f"queue '{wanted.name}' in vhost '{wanted.vhost}'"
        if queue is None:
            raise RequestError(ERROR_NOT_FOUND, f"no {where}")
        mirrored = self._states(queue) is not None
        if message.kind == SYNC_QUEUE:
            if not mirrored:
                raise RequestError(ERROR_INVALID, f"{where} is not mirrored")
            return (await self._sync.synchronise(queue, begin=wanted.begin)).to_body()
        return (await self._sync.cancel(queue) if mirrored else SyncState(False)).to_body()
