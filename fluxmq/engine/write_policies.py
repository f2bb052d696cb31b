"""Treatment of appends to a group that another node leads, other than forwarding them
(`write_policy`)."""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.engine.outbox import Outboxes
from fluxmq.engine.ports import AppendCallback
from fluxmq.routing.topology.names import is_reserved


class RejectPolicy:
    """Refuses appends. ``refusal`` returns the outcome to refuse one with, 0 to send it."""

    def __init__(self, refusal: Callable[[], int]) -> None:
        self._refusal = refusal

    def intercept(
        self, queue: str, batch: bytes, done: AppendCallback | None, by_address: bool
    ) -> bool | None:
        """Refuse an append unless the group is led here."""
        refused = self._refusal()
        if not refused:
            return None
        if done is not None:
            done(refused)
        return True


class LocalPolicy:
    """Keeps appends in outboxes unless ``is_here`` returns True: the group is led on this node."""

    def __init__(self, outboxes: Outboxes, is_here: Callable[[], bool]) -> None:
        self._outboxes = outboxes
        self._is_here = is_here

    def intercept(
        self, queue: str, batch: bytes, done: AppendCallback | None, by_address: bool
    ) -> bool | None:
        """Keep an append unless the group is led here and no earlier append is kept."""
        if self._is_here() and self._outboxes.is_empty(queue):
            return None
        if by_address and is_reserved(queue):
            return None  # The leader refuses it: once kept here, its origin would be lost.
        return self._outboxes.append(queue, batch, done)
