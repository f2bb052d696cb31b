"""The state machine of one replication group: its queues, changed by committed entries only."""

from __future__ import annotations

from typing import Any

from fluxmq.queues.results import Applied


class Machine:
    """One group's queues. Signatures first; the body follows in the next commit."""

    applied: int
    """Index of the last entry applied."""
    time: int
    """The latest time seen in an entry, µs: never goes back."""
    version: int

    @property
    def queues(self) -> dict[int, Any]:
        """Queue states by id, in order of id."""
        raise NotImplementedError

    def queue(self, name: str) -> Any | None:
        """The queue of that name: .id .config .start .next_offset .groups (id -> GroupState) .group(name)."""
        raise NotImplementedError

    def apply(self, index: int, term: int, data: bytes) -> Applied:
        """Apply one entry. Raises `UnknownCommand` when it cannot be understood."""
        raise NotImplementedError

    def snapshot(self) -> bytes:
        """Everything that decides what later entries do, as versioned msgpack."""
        raise NotImplementedError

    def restore(self, content: bytes) -> None:
        """Become what `snapshot` was taken of. Raises `SnapshotError`."""
        raise NotImplementedError

    def state_hash(self) -> int:
        """Rolling hash over all results so far: equal on replicas that agree."""
        raise NotImplementedError
