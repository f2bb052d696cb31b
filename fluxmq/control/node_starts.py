"""Changes when a node starts or has ended: queues in its memory are dropped, configured ones
declared.

Pure. A configured queue stays as long as some node's settings have it; of two that differ the one
declared last counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fluxmq.control.decisions import NodeRecord
from fluxmq.routing.topology.changes import Change, DeclareQueue, DeleteQueue
from fluxmq.routing.topology.names import DEFAULT_VHOST
from fluxmq.routing.topology.records import ORIGIN_SETTINGS, QueueRecord
from fluxmq.routing.topology.topology import Topology

EPHEMERAL_PREFIX: Final = "ephemeral-"
"""Name prefix of groups that live in a node's memory."""


class NodeStart(NamedTuple):
    """A node that runs: its name, its supervisor's identity, and the queues of its settings."""

    node: str
    life: str
    queues: tuple[QueueRecord, ...]

    def record(self) -> NodeRecord:
        """Return the record of the node."""
        return NodeRecord(self.life, tuple(queue.name for queue in self.queues))


def changes(
    started: NodeStart, topology: Topology, records: Mapping[str, NodeRecord]
) -> list[Change]:
    """Return the changes to make, each by itself; `records` by name of the node."""
    before = records.get(started.node)
    found: list[Change] = []
    if before is None or before.life != started.life:
        found += dropped_with(started.node, topology)
    names = {queue.name for queue in started.queues}
    others = {
        name for node, record in records.items() if node != started.node for name in record.queues
    }
    for name in () if before is None else before.queues:
        queue = topology.queue(DEFAULT_VHOST, name)
        if name not in names and name not in others and queue is not None:
            found += _dropped([queue]) if queue.origin == ORIGIN_SETTINGS else []
    for queue in started.queues:
        if topology.queue(queue.vhost, queue.name) != queue:
            found.append(DeclareQueue(queue))
    return found


def dropped_with(node: str, topology: Topology) -> list[Change]:
    """Return the changes that delete the queues that were in a node's memory."""
    return _dropped(
        [
            queue
            for queue in topology.queues()
            if queue.group.startswith(EPHEMERAL_PREFIX) and queue.group.endswith(f"@{node}")
        ]
    )


def _dropped(queues: Sequence[QueueRecord]) -> list[Change]:
    return [DeleteQueue(queue.vhost, queue.name, by_broker=True) for queue in queues]
