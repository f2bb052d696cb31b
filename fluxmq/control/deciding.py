"""Deciding together with other nodes: what the topology's and users' keepers need of it, and how it may fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fluxmq.control.meta.decisions import TakenDelta
from fluxmq.routing.topology.changes import Change
from fluxmq.routing.topology.refusals import Refusal

Set = tuple[Change, ...] | Refusal
"""Changes to be made whole or not at all; or why they were not understood."""
Shared = tuple[tuple[str, bytes | None], ...]
"""What nodes know of each other: keys and packed values, None to remove one."""


class NotLeadingError(Exception):
    """This node does not lead; nothing was done."""


class LostError(Exception):
    """Leadership was lost before it was known whether a decision stands: it may yet, or never."""


class Decider(Protocol):
    """The cluster, from the side of one node."""

    @property
    def known(self) -> bool:
        """Whether what is on disk here is the cluster's."""

    async def change(self, sets: Sequence[Set]) -> tuple[int, tuple[Refusal | None, ...]]:
        """Have whoever leads decide about sets of changes: the revision they are in, which this node has reached, and
        per set None or why it was refused. Raises RequestError when nobody leads for too long."""

    def check(self) -> None:
        """Raise NotLeadingError unless this node leads."""

    async def commit(self, deltas: Sequence[TakenDelta], shared: Shared = ()) -> None:
        """Make changes that were decided here those of all nodes. Raises NotLeadingError, LostError, or DecisionError."""

    async def barrier(self) -> None:
        """Return when it is certain that this node leads, or did since the call. Raises NotLeadingError or LostError."""
