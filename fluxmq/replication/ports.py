"""Interfaces of the driver: the state machine that a group replicates, and the observer of a group.

The driver knows no queue: it has a `StateMachine` apply committed entries and captures its state
for checkpoints. The state machine gets its `Driver` to propose entries. A `ReplicaObserver` follows
the group on behalf of its other members; a group of one has none (`UNOBSERVED`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from fluxmq.raft.types import Message


class Driver(Protocol):
    """Makes entries durable and commits them."""

    def propose(self, data: bytes) -> tuple[int, int] | None:
        """Propose an entry; return its index and term, or None if it cannot be accepted now."""

    def pump(self) -> None:
        """Continue with proposed entries."""

    def catch_up(self) -> None:
        """Apply entries that waited for the log write, on a follower."""

    def in_sync(self, members: int) -> int:
        """Return the last index that this many members have on disk."""

    def damaged(self, why: str) -> None:
        """Report that a file of this member proved corrupt; the group may already have failed."""

    @property
    def writable(self) -> bool:
        """True if an entry proposed now would be written in this tick."""

    @property
    def leading(self) -> bool:
        """True while this group accepts commands on this node."""


class Ahead(Protocol):
    """Entries that a group of one member applies before they are synced."""

    @property
    def wanted(self) -> bool:
        """True if there may be such entries."""

    def lets_through(self, index: int, data: bytes) -> bool:
        """Return whether an entry in the log, the next to be applied, is to be applied before its
        sync."""

    def synced(self, index: int) -> None:
        """Note that this node's disk has the log up to ``index``: what waited for that is due."""


class Answers(Protocol):
    """Answers to proposals that wait for less or more than the commit."""

    @property
    def ahead(self) -> Ahead:
        """Entries whose answers wait because they are applied before the commit is durable."""

    @property
    def early(self) -> bool:
        """True if some are due as soon as this node has their entry on disk."""

    @property
    def held(self) -> bool:
        """True if some wait for more members than the commit needs."""

    def advance(self) -> None:
        """Give the answers that are due after other members have written more."""


class StateMachine(Protocol):
    """State that the members of a group replicate. All members apply the same entries in order."""

    @property
    def name(self) -> str:
        """The group's name."""

    @property
    def failed(self) -> str:
        """Reason for which the group accepts nothing any more; empty while it works."""

    @property
    def leaving(self) -> bool:
        """True while the group prepares to move to another shard."""

    @property
    def answers(self) -> Answers:
        """Answers that do not come with the commit."""

    @property
    def applied_index(self) -> int:
        """The last entry applied."""

    @property
    def applied_term(self) -> int:
        """The term of that entry."""

    @property
    def applied_bytes(self) -> int:
        """Bytes of entries applied since the last snapshot."""

    # State

    def restore(self, index: int, term: int, snapshot: bytes, origin: str) -> None:
        """Begin with the state after an entry, and open the stores that it names.

        ``origin``: where the snapshot was, for errors. Raises StorageError.
        """

    def recovered(self) -> None:
        """Note that all entries in the log of an earlier start are applied and the stores cut to
        them; a store without disk space is left incomplete, and its next write completes it."""

    def snapshot(self) -> bytes:
        """Return the state after the last entry applied."""

    def flush(self) -> bool:
        """Write buffered data to files, unsynced; return False if some has to wait."""

    def digest(self) -> int:
        """Return a hash of everything applied so far, which is equal on all members."""

    # Entries

    def apply(self, index: int, term: int, data: bytes | None) -> None:
        """Apply a committed entry; None: one of the driver's own, which changes nothing."""

    def answer_written(self, index: int) -> None:
        """Give early answers: this node's disk has the log up to ``index``."""

    def when_applied(self, done: Callable[[], None]) -> None:
        """Call ``done`` when everything proposed so far is applied, or never will be."""

    # Roles

    def join(self, driver: Driver, replicated: bool) -> None:
        """Use this driver. ``replicated``: other nodes have replicas too."""

    def lead(self) -> None:
        """Start to propose commands as the leader."""

    def follow(self) -> None:
        """Step down; what was proposed may or may not take effect."""

    def fail(self, why: str) -> None:
        """Stop for good, as far as this process is concerned."""

    def wake(self) -> None:
        """Schedule this group's work for the end of the tick."""


Machine = TypeVar("Machine", bound=StateMachine, covariant=True)
Made = TypeVar("Made", bound=StateMachine)


class ReplicaObserver(Protocol):
    """Follows one group on behalf of its other members. Methods are called at once; their own
    bodies are those of a group without other members."""

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages to the other members."""
        return

    def applied(self) -> None:
        """Note that an entry was applied."""
        return

    def leads(self) -> None:
        """Note that this member leads and accepts commands."""
        return

    def follows(self) -> None:
        """Note that this member leads no longer."""
        return

    def damaged(self, why: str) -> None:
        """Note that a file of this member proved corrupt."""
        return

    def snapshot_wanted(self, member: int) -> None:
        """Note that a member needs entries which only a snapshot still has."""
        return

    def unannounced(self) -> None:
        """Note that other members do not know the whole commit index."""
        return

    def hand_lead(self) -> bool:
        """Ask another member to lead; return whether one was asked."""
        return False


class Unobserved(ReplicaObserver):
    """Stands in for the other members of a group that has none."""


UNOBSERVED = Unobserved()
