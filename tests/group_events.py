"""Followers of replication groups for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fluxmq.engine.group import ReplicationGroup
    from fluxmq.queues.config import QueueConfig


class LeadObserver:
    """Calls `leads` when a group leads here, and ignores everything else."""

    def __init__(self, leads: Callable[[ReplicationGroup], None]) -> None:
        self._leads = leads

    def leads(self, group: ReplicationGroup, /) -> None:
        """Pass it on."""
        self._leads(group)

    def declared(self, group: ReplicationGroup, config: QueueConfig, /) -> None:
        """Ignore."""

    def deleted(self, group: ReplicationGroup, queue: str, /) -> None:
        """Ignore."""

    def refused(self, config: QueueConfig, batch: bytes, /) -> None:
        """Ignore."""

    def unused(self, queue: str, /) -> None:
        """Ignore."""
