"""Decisions shared with other nodes: the interface for topology and users, and its failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fluxmq.control.decisions import AcceptedDelta, NodeRecord
from fluxmq.routing.topology.changes import Change
from fluxmq.routing.topology.refusals import Refusal

Set = tuple[Change, ...] | Refusal
"""Changes to be made whole or not at all; or why they could not be read."""


class ConflictError(Exception):
    """Another node has committed a change meanwhile, or this one does not follow yet; nothing was
    done."""


class LostError(Exception):
    """There was no answer: the decision may be committed, now or later, or never."""


class Decider(Protocol):
    """One node's view of the cluster's decisions."""

    @property
    def known(self) -> bool:
        """True when this node's disk holds the cluster's metadata."""

    async def change(self, sets: Sequence[Set]) -> tuple[int, tuple[Refusal | None, ...]]:
        """Have sets of changes decided about. Return their revision, which this node has reached,
        and per set None or its refusal. Raises RequestError when that takes too long."""

    def check(self) -> None:
        """Raise ConflictError unless this node follows what is decided."""

    async def commit(
        self,
        deltas: Sequence[AcceptedDelta],
        nodes: Sequence[tuple[str, NodeRecord | None]] = (),
    ) -> None:
        """Commit changes that were decided here; ``nodes`` are names and records, None for one that
        is forgotten. Raises ConflictError or LostError, or RequestError for a change that cannot
        be committed at all."""

    async def barrier(self) -> None:
        """Return if no other node had committed anything at the time of the call that this one does
        not have. Raises ConflictError or LostError."""
