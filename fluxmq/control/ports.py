"""Decisions shared with other nodes: the interface for topology and users, and its failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from fluxmq.control.meta.decisions import AcceptedDelta
from fluxmq.routing.topology.changes import Change
from fluxmq.routing.topology.refusals import Refusal

if TYPE_CHECKING:
    from fluxmq.control.directory import Directory
    from fluxmq.control.topology_service import TopologyService

Set = tuple[Change, ...] | Refusal
"""Changes to be made whole or not at all; or why they could not be read."""
Shared = tuple[tuple[str, bytes | None], ...]
"""Facts that nodes share about each other: keys and packed values, None to remove one."""


class NotLeadingError(Exception):
    """This node does not lead; nothing was done."""


class LostError(Exception):
    """Leadership was lost before the outcome was known: the decision may still commit, or never."""


class Decider(Protocol):
    """One node's view of the cluster's decisions."""

    @property
    def known(self) -> bool:
        """True when this node's disk holds the cluster's metadata."""

    @property
    def problem(self) -> str | None:
        """Reason why this node does not serve, None when it does."""

    def join(self, topology_service: TopologyService, directory: Directory) -> None:
        """Connect the services of topology and users, which request and learn decisions."""

    async def forget(self, node: str) -> None:
        """Forget a node that is gone for good. Raises RequestError."""

    async def change(self, sets: Sequence[Set]) -> tuple[int, tuple[Refusal | None, ...]]:
        """Have the leader decide about sets of changes. Return their revision, which this node has
        reached, and per set None or its refusal. Raises RequestError when there is no leader for
        too long."""

    def check(self) -> None:
        """Raise NotLeadingError unless this node leads."""

    async def commit(self, deltas: Sequence[AcceptedDelta], shared: Shared = ()) -> None:
        """Commit changes that were decided here. Raises NotLeadingError, LostError, or
        DecisionError."""

    async def barrier(self) -> None:
        """Return once this node is known to have led since the call. Raises NotLeadingError or
        LostError."""
