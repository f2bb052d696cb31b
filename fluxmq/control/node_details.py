"""Answers fluxmqctl's questions about the node as a whole, and its command to refuse clients."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Final

import fluxmq
from fluxmq.control.overview import Readiness
from fluxmq.control.peers import Peer, RequestError, forwarded
from fluxmq.ipc.clusters import RaftListing
from fluxmq.ipc.messages import ERROR_AWAY, Body, ControlMessage
from fluxmq.ipc.node_messages import (
    DESCRIBE_NODE,
    LISTENING,
    SETTINGS,
    ListenerRow,
    Listening,
    NodeDescription,
    SettingsText,
)
from fluxmq.routing.topology.topology import Topology
from fluxmq.settings import Settings
from fluxmq.settings.show import effective

KINDS: Final = frozenset({DESCRIBE_NODE, SETTINGS, LISTENING})

ACCEPTOR_SECONDS: Final = 2.0
"""Time for the acceptor to open or close its listeners."""


class NodeDetails:
    """Answers on control's loop. `current` returns the settings in force, `processes` the connected
    processes, `replicas` those of a cluster's groups; None on a node without a cluster."""

    def __init__(
        self,
        current: Callable[[], Settings],
        topology: Callable[[], Topology],
        readiness: Callable[[], Awaitable[Readiness]],
        processes: Callable[[], list[Peer]],
        replicas: Callable[[], Awaitable[RaftListing]] | None,
    ) -> None:
        self._current = current
        self._topology = topology
        self._readiness = readiness
        self._processes = processes
        self._replicas = replicas

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a request. Raises RequestError or MessageError."""
        if message.kind == SETTINGS:
            return SettingsText(effective(self._current())).to_body()
        if message.kind == LISTENING:
            return await self._listen(Listening.from_body(message.body))
        return (await self._describe()).to_body()

    async def _listen(self, wanted: Listening) -> Body:
        for peer in self._processes():
            if peer.hello is not None and peer.hello.role == "acceptor":
                return await forwarded(peer, LISTENING, wanted.to_body(), ACCEPTOR_SECONDS)
        raise RequestError(ERROR_AWAY, "the acceptor is not connected; try again in a moment")

    async def _describe(self) -> NodeDescription:
        settings, topology = self._current(), self._topology()
        cluster, name = settings.cluster, settings.cluster.node_id
        running = {name}
        if self._replicas is not None:
            groups = (await self._replicas()).groups
            running |= {each.node for group in groups for each in group.members if each.connected}
        others = cluster.transport.peers if self._replicas is not None else ()
        free = _free_bytes(settings.storage.data_dir)
        readiness = await self._readiness()
        return NodeDescription(
            name=name,
            version=fluxmq.__version__,
            compatible_version=settings.amqp.product_version,
            pid=os.getppid(),
            data_dir=_absolute(settings.storage.data_dir),
            nodes=tuple(sorted({name, *others})),
            running=tuple(sorted(running)),
            listeners=tuple(
                ListenerRow(path, each.host, each.port) for path, each in settings.endpoints()
            ),
            problems=_problems(readiness),
            alarms=readiness.alarms,
            clustered=self._replicas is not None,
            vhosts=len(topology.vhosts()),
            queues=sum(1 for _ in topology.queues()),
            disk_free=free,
            disk_free_limit=settings.storage.min_free_bytes,
        )


def _free_bytes(path: str) -> int:
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def _absolute(path: str) -> str:
    return os.path.abspath(path)


def _problems(readiness: Readiness) -> tuple[str, ...]:
    """Return why the node is not ready."""
    found = [f"{each.process}: {each.problem}" for each in readiness.processes if each.problem]
    if readiness.control_problem is not None:
        found.append(f"control socket: {readiness.control_problem}")
    return tuple(found)
