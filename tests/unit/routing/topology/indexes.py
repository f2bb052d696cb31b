"""Indexes of a topology's queues, which its rules use."""

from __future__ import annotations

from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.topology import Topology


def owned_by(topology: Topology, owner: str) -> list[QueueRecord]:
    """A connection's exclusive queues."""
    return list(topology._store.owned.get(owner, {}).values())


def in_group(topology: Topology, group: str) -> list[QueueRecord]:
    """The queues that a replication group holds."""
    return list(topology._store.grouped.get(group, {}).values())
