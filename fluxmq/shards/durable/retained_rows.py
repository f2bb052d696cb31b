"""Retained messages on disk: each topic's with its home, the shard that a hash of the topic names.

The home stores each change that it applies, whichever shard published it; a shard that publishes to
a topic with another home waits for the home to confirm that it is on disk or, in a cluster that has
them in etcd, committed. Unconfirmed changes,
deletions included, are resent to a home that is back, so that nothing older on its disk comes to
life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from fluxmq.model.outcomes import Outcome
from fluxmq.net import frames
from fluxmq.net.frames import RetainedStamp
from fluxmq.net.links import Link
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.protocols.sniff import shard_of
from fluxmq.shards.durable.row_router import AWAY_SECONDS, CommitCallback, LocalRows
from fluxmq.storage.state_store import RETAINED

UNCONFIRMED_MAX = 100_000
"""Maximum number of topics with an unconfirmed change at one home; beyond it more are refused."""
NAMES_PER_FRAME = 500
"""Confirmations sent in one frame."""


class ChangeStore(Protocol):
    """Keeps the changes of topics at their home."""

    @property
    def refusing(self) -> int:
        """The reason why nothing new can be kept now; 0 if it can."""

    def keep(
        self, message: PublishRun, stamp: RetainedStamp, done: CommitCallback | None, waits: bool
    ) -> None:
        """Call ``done`` once a change, already applied, is kept, with 0, or the reason for
        failure. ``waits``: a publisher here waits for it, but not for ever."""

    def has(self, topic: bytes) -> bool:
        """Return whether a change of a topic waits to be committed."""

    def flush(self) -> None:
        """Pass on the changes of this tick."""

    def housekeeping(self) -> None:
        """Refuse what has waited too long."""


class OnDisk:
    """Keeps changes on this node's disk alone."""

    def __init__(self, store: LocalRows) -> None:
        self._store = store

    @property
    def refusing(self) -> int:
        """The disk's reason to keep nothing new."""
        return self._store.refusing

    def keep(
        self, _message: PublishRun, _: RetainedStamp, done: CommitCallback | None, waits: bool
    ) -> None:
        """Call ``done`` once all changes so far are on disk."""
        if done is not None:
            self._store.when_safe(done)

    def has(self, _topic: bytes) -> bool:
        """Return False: nothing is committed beyond this node."""
        return False

    def flush(self) -> None:
        """Do nothing: the disk has its own way to gather changes."""

    def housekeeping(self) -> None:
        """Do nothing: the disk refuses what it cannot keep."""


class _Unconfirmed:
    """A change that waits for its home. ``dones``: callbacks, which wait until ``until``."""

    __slots__ = ("dones", "run", "stamp", "until")

    def __init__(self, run: PublishRun, stamp: RetainedStamp, until: float) -> None:
        self.run = run
        self.stamp = stamp
        self.until = until
        self.dones: list[CommitCallback] = []


class RetainedRows:
    """This shard's retained messages on disk, and its unconfirmed changes to those of others."""

    def __init__(
        self,
        shard: int,
        workers: int,
        store: LocalRows,
        links: dict[int, Link],
        now: Callable[[], float],
        wall: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._shard = shard
        self._workers = workers
        self._store = store
        self._links = links
        self._now = now
        self._wall = wall
        self._wake = wake
        self._unconfirmed: dict[int, dict[bytes, _Unconfirmed]] = {peer: {} for peer in links}
        self._confirmations: dict[int, list[list[object]]] = {}
        self.changes: ChangeStore = OnDisk(store)
        self.settled: Callable[[bytes], None] = _ignore
        """Called when a change that this shard waited for is confirmed by another one."""

    def is_home(self, topic: bytes) -> bool:
        """Return whether this shard keeps a topic."""
        return self.home(topic) == self._shard

    def is_unsettled(self, topic: bytes) -> bool:
        """Return whether a change of a topic waits here to be kept."""
        home = self.home(topic)
        if home == self._shard:
            return self.changes.has(topic)
        return topic in self._unconfirmed[home]

    def home(self, topic: bytes) -> int:
        """Return the shard that keeps a topic."""
        return shard_of(topic, self._workers) or 0

    def refusing(self, topic: bytes) -> int:
        """Return the reason why a change of a topic cannot be kept now; 0 if it can."""
        home = self.home(topic)
        if home == self._shard:
            return self.changes.refusing
        full = len(self._unconfirmed[home]) >= UNCONFIRMED_MAX
        return Outcome.OVER_LIMIT if full and topic not in self._unconfirmed[home] else 0

    def applied(self, message: PublishRun, stamp: RetainedStamp) -> None:
        """Store a message, or a deletion (count 0), that this shard has applied as the newest."""
        topic = message.topic
        if self.home(topic) != self._shard:
            return
        if message.count == 0:
            self._store.remove(RETAINED, (topic,))
        else:
            deadline = message.deadline and message.deadline - self._now() + self._wall()
            data = bytes(memoryview(message.buffer)[message.start : message.end])
            self._store.put(
                RETAINED, (topic, deadline, frames.encode_retained(stamp, message) + data)
            )
        self._wake()

    def expired(self, topics: list[bytes]) -> None:
        """Remove the expired messages of these topics."""
        for topic in topics:
            if self.home(topic) == self._shard:
                self._store.remove(RETAINED, (topic,))

    def published(
        self, message: PublishRun, stamp: RetainedStamp, done: CommitCallback | None
    ) -> None:
        """Track a client's change of a retained message; call ``done`` when it is kept."""
        home = self.home(message.topic)
        if home == self._shard:
            self.changes.keep(message, stamp, done, waits=True)
            return
        waiting = self._unconfirmed[home]
        entry = _Unconfirmed(message, stamp, self._now() + AWAY_SECONDS)
        before = waiting.pop(message.topic, None)
        if before is not None:
            entry.dones = before.dones  # the newer change supersedes the older one
        if done is not None:
            entry.dones.append(done)
        waiting[message.topic] = entry

    # Between shards

    def told(self, link: Link, message: PublishRun, stamp: RetainedStamp) -> None:
        """Confirm a peer's change, already applied, once it is kept, if this is its home."""
        topic = message.topic
        if stamp[2] != link.peer or self.home(topic) != self._shard:
            return

        def safe(reason: int) -> None:
            if link.up:
                self._confirmations.setdefault(link.peer, []).append([topic, stamp[1], reason])
                self._wake()

        self.changes.keep(message, stamp, safe, waits=False)
        self._wake()

    def flush(self) -> None:
        """Pass on the changes of this tick, and send its confirmations."""
        self.changes.flush()
        if not self._confirmations:
            return
        found, self._confirmations = self._confirmations, {}
        for peer, names in found.items():
            if self._links[peer].up:
                for at in range(0, len(names), NAMES_PER_FRAME):
                    self._links[peer].send_control(
                        "retained kept", names[at : at + NAMES_PER_FRAME]
                    )

    def on_kept(self, link: Link, names: list[list[object]]) -> None:
        """Handle a home's confirmations, or, with a reason, refusals for now."""
        waiting = self._unconfirmed[link.peer]
        for topic, number, reason in names:
            assert isinstance(topic, bytes)
            assert isinstance(reason, int)
            entry = waiting.get(topic)
            if entry is not None and entry.stamp[1] == number:
                if not reason:
                    del waiting[topic]
                    self.settled(topic)
                dones, entry.dones = entry.dones, []
                for done in dones:
                    done(reason)

    def lost(self, peer: int) -> None:
        """Drop confirmations to a dead shard; unconfirmed changes are resent to its next life."""
        self._confirmations.pop(peer, None)

    def unconfirmed(self, peer: int) -> Iterator[tuple[PublishRun, RetainedStamp]]:
        """Yield the changes to resend to a shard that has come back."""
        for entry in list(self._unconfirmed[peer].values()):
            yield entry.run, entry.stamp

    def housekeeping(self) -> None:
        """Refuse publishers that have waited too long; their changes are still resent."""
        self.changes.housekeeping()
        now = self._now()
        for waiting in self._unconfirmed.values():
            for entry in waiting.values():
                if entry.until > now:
                    break
                dones, entry.dones = entry.dones, []
                for done in dones:
                    done(Outcome.OVER_LIMIT)

    # The start

    def load(self) -> Iterator[tuple[PublishRun, RetainedStamp]]:
        """Yield the contents of this shard's file; delete expired messages. Raises StorageError."""
        now, wall = self._now(), self._wall()
        for topic, deadline, data in self._store.rows(RETAINED):
            if deadline and deadline <= wall:
                self._store.remove(RETAINED, (topic,))
                continue
            stamp, run = frames.decode_retained(data)
            run.deadline = deadline - wall + now if deadline else 0.0
            yield run, stamp


def _ignore(_topic: bytes) -> None:
    pass
