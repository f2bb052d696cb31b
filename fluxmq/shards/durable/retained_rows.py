"""Retained messages on disk: each topic's with the shard that a hash of the topic names, its home.

The home stores what it applies, whoever published it; a shard that published elsewhere's topic waits for the home to
say that it is on disk. What a home has not confirmed, deletions included, it is told again when it is back, so that
nothing older on its disk comes to life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fluxmq._hot.run import Run
from fluxmq.net import frames
from fluxmq.net.links import Link
from fluxmq.protocols.mqtt.reasons import Reason
from fluxmq.protocols.sniff import shard_of
from fluxmq.shards.durable.homes import PATIENCE_SECONDS, Done, Store
from fluxmq.storage.state_store import RETAINED

UNCONFIRMED_MAX = 100_000
"""Topics whose change a home has not confirmed; beyond it more are refused."""
NAMES_PER_FRAME = 500
"""Confirmations told in one frame."""

Stamp = tuple[int, int]


class _Unconfirmed:
    """A change that waits for its home. ``dones``: who waits with it; ``until``: how long they do."""

    __slots__ = ("dones", "run", "stamp", "until")

    def __init__(self, run: Run, stamp: Stamp, until: float) -> None:
        self.run = run
        self.stamp = stamp
        self.until = until
        self.dones: list[Done] = []


class RetainedRows:
    """This shard's part of the node's retained messages on disk, and its waiting for the others' parts."""

    def __init__(
        self,
        shard: int,
        workers: int,
        store: Store,
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

    def home(self, topic: bytes) -> int:
        """The shard that keeps a topic."""
        return shard_of(topic, self._workers) or 0

    def refusing(self, topic: bytes) -> int:
        """The reason for which a change of a topic cannot be kept now; 0 when it can."""
        home = self.home(topic)
        if home == self._shard:
            return self._store.refusing
        full = len(self._unconfirmed[home]) >= UNCONFIRMED_MAX
        return Reason.QUOTA_EXCEEDED if full and topic not in self._unconfirmed[home] else 0

    def applied(self, message: Run, stamp: Stamp) -> None:
        """This shard has taken a message or a deletion (no bytes) as a topic's newest."""
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
        """Messages of these topics have expired."""
        for topic in topics:
            if self.home(topic) == self._shard:
                self._store.remove(RETAINED, (topic,))

    def published(self, message: Run, stamp: Stamp, done: Done | None) -> None:
        """A client of this shard has set or deleted a retained message; ``done`` when that is on disk."""
        home = self.home(message.topic)
        if home == self._shard:
            if done is not None:
                self._store.when_safe(done)
            return
        waiting = self._unconfirmed[home]
        entry = _Unconfirmed(message, stamp, self._now() + PATIENCE_SECONDS)
        before = waiting.pop(message.topic, None)
        if before is not None:
            entry.dones = before.dones  # what is newer makes up for what was older
        if done is not None:
            entry.dones.append(done)
        waiting[message.topic] = entry

    # Between shards

    def told(self, link: Link, message: Run, stamp: Stamp) -> None:
        """A peer has told a change (it is applied already): say when it is on disk, if this is its home."""
        topic = message.topic
        if stamp[1] != link.peer or self.home(topic) != self._shard:
            return

        def safe(reason: int) -> None:
            if link.up:
                self._confirmations.setdefault(link.peer, []).append([topic, stamp[0], reason])
                self._wake()

        self._store.when_safe(safe)
        self._wake()

    def flush(self) -> None:
        """Send the confirmations of this tick."""
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
        """A home tells what it has on disk (or, with a reason, not yet)."""
        waiting = self._unconfirmed[link.peer]
        for topic, number, reason in names:
            assert isinstance(topic, bytes)
            assert isinstance(reason, int)
            entry = waiting.get(topic)
            if entry is not None and entry.stamp[0] == number:
                if not reason:
                    del waiting[topic]
                dones, entry.dones = entry.dones, []
                for done in dones:
                    done(reason)

    def lost(self, peer: int) -> None:
        """A shard has died: what it confirmed is not lost, what it has not is told to its next life."""
        self._confirmations.pop(peer, None)

    def unconfirmed(self, peer: int) -> Iterator[tuple[Run, Stamp]]:
        """What a shard that has come back has to be told again."""
        for entry in list(self._unconfirmed[peer].values()):
            yield entry.run, entry.stamp

    def housekeeping(self) -> None:
        """Refuse publishers that have waited long enough; what they published stays to be told."""
        now = self._now()
        for waiting in self._unconfirmed.values():
            for entry in waiting.values():
                if entry.until > now:
                    break
                dones, entry.dones = entry.dones, []
                for done in dones:
                    done(Reason.QUOTA_EXCEEDED)

    # The start

    def load(self) -> Iterator[tuple[Run, Stamp]]:
        """What this shard's file holds; what has expired is removed. Raises StorageError."""
        now, wall = self._now(), self._wall()
        for topic, deadline, data in self._store.rows(RETAINED):
            if deadline and deadline <= wall:
                self._store.remove(RETAINED, (topic,))
                continue
            stamp, run = frames.decode_retained(data)
            run.deadline = deadline - wall + now if deadline else 0.0
            yield run, stamp
