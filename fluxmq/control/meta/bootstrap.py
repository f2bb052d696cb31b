"""Changes when a node starts or has ended: queues in its memory are dropped, configured ones
declared.

Pure. A configured queue stays as long as some node's settings have it; of two that differ the one
declared last counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from fluxmq.control.meta.fields import Fields
from fluxmq.control.meta.tables import NodeRecord
from fluxmq.ipc.messages import Body, MessageError
from fluxmq.routing.topology.changes import Change, DeclareQueue, DeleteQueue
from fluxmq.routing.topology.names import DEFAULT_VHOST
from fluxmq.routing.topology.records import ORIGIN_SETTINGS, QUEUE, QueueRecord, record_of, row_of
from fluxmq.routing.topology.topology import Topology

BEGIN: Final = "begin"
"""Kind of the request with which a node announces that it runs."""
EPHEMERAL_PREFIX: Final = "ephemeral-"
"""Name prefix of groups that live in a node's memory."""
QUEUES_MAX: Final = 65_536
"""More queues than a settings file may have."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Announcement of a running node: its name, its directory's incarnation, its supervisor's
    identity, the last index of its ``_meta`` log, and the queues of its settings."""

    node: str
    incarnation: int
    life: str
    index: int
    queues: tuple[QueueRecord, ...]

    def to_body(self) -> dict[str, Any]:
        """Return the body to send."""
        return {
            "node": self.node,
            "incarnation": self.incarnation,
            "life": self.life,
            "index": self.index,
            "queues": [[list(queue.key), row_of(queue)] for queue in self.queues],
        }

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, BEGIN)
        return cls(
            fields.text("node"),
            fields.integer("incarnation"),
            fields.text("life"),
            fields.integer("index"),
            tuple(_queue(item) for item in fields.items("queues", QUEUES_MAX)),
        )

    def record(self, before: NodeRecord | None) -> NodeRecord:
        """Return the new record of the node."""
        names = tuple(queue.name for queue in self.queues)
        readmit = before is not None and before.readmit
        return NodeRecord(self.incarnation, readmit, self.life, self.index, names)


def _queue(item: object) -> QueueRecord:
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise MessageError("begin.queues holds something that is not [key, row]")
    try:
        queue = record_of(QUEUE, item[0], item[1])
    except (ValueError, TypeError) as error:
        raise MessageError(f"begin.queues: {error}") from error
    if not isinstance(queue, QueueRecord) or queue.origin != ORIGIN_SETTINGS:
        raise MessageError("begin.queues holds a queue that is not of the settings")
    return queue


def changes(
    begun: Bootstrap, topology: Topology, records: Mapping[str, NodeRecord]
) -> list[Change]:
    """Return the changes to make, each by itself; `records` by name of the node."""
    before = records.get(begun.node)
    found: list[Change] = []
    if before is None or before.life != begun.life:
        found += dropped_with(begun.node, topology)
    names = {queue.name for queue in begun.queues}
    others = {
        name for node, record in records.items() if node != begun.node for name in record.queues
    }
    for name in () if before is None else before.queues:
        queue = topology.queue(DEFAULT_VHOST, name)
        if name not in names and name not in others and queue is not None:
            found += _dropped([queue]) if queue.origin == ORIGIN_SETTINGS else []
    for queue in begun.queues:
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
