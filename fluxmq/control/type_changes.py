"""Groups of queues that are to become quorum queues: those that new quorum queues of their names and
arguments would get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fluxmq.control.management.declared_groups import DeclaringNode
from fluxmq.control.peers import RequestError
from fluxmq.ipc.messages import ERROR_INVALID
from fluxmq.routing.topology.arguments import GROUP_KEY, QUORUM
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.refusals import Refusal, named
from fluxmq.routing.topology.topology import Topology
from fluxmq.routing.topology.type_changes import as_quorum
from fluxmq.settings.group_names import is_mirrored

ONLY_QUORUM: Final = "classic queues can be made quorum queues, and no other change is possible"


class TypeChanges:
    """Changes that a node starts. ``able`` returns whether all nodes of the cluster know queues that
    change their type; others cannot read the rows of these."""

    def __init__(
        self, node: DeclaringNode, topology: Callable[[], Topology], able: Callable[[], bool]
    ) -> None:
        self._node = node
        self._topology = topology
        self._able = able

    async def group(self, queue: QueueRecord, kind: str, wanted: str) -> str:
        """Return the group to which a queue moves that is to become one of this type; ``wanted``: the one
        that was asked for, empty for any. Raises RequestError."""
        if kind != QUORUM:
            raise RequestError(ERROR_INVALID, ONLY_QUORUM)
        if queue.becomes == kind and wanted in ("", queue.moving_to):
            return queue.moving_to
        name = named("queue", queue.name, queue.vhost)
        choice = await self._node.choice()
        if choice.cluster is None:
            text = f"{name} stays as it is: this node is not part of a cluster, and nothing is replicated"
            raise RequestError(ERROR_INVALID, text)
        if not self._able():
            text = f"{name} can change its type once all nodes of the cluster run this version"
            raise RequestError(ERROR_INVALID, text)
        try:
            there = as_quorum(queue)
            if wanted:
                there = replace(there, arguments={**there.arguments, GROUP_KEY: wanted})
            group = choice.of(self._topology(), there)
        except Refusal as refusal:
            raise RequestError(ERROR_INVALID, refusal.text) from refusal
        if group == queue.group:
            text = f"{name} is in the group {group!r} already, and changes its type only by a move: another"
            raise RequestError(ERROR_INVALID, f"{text} group has to be named")
        if is_mirrored(group):
            text = f"group {group!r} is mirrored, and cannot have quorum queues"
            raise RequestError(ERROR_INVALID, text)
        return group
