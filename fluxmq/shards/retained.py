"""Retained messages: one copy per shard, where the last writer wins.

A retained publish is stamped on arrival, stored there and sent to every other shard over the links,
in order with the publisher's other messages. Each shard keeps the greatest stamp, so all converge
on the same message whatever the interleaving. A stamp is (revision, nanoseconds, shard), greater
than all that this shard has seen, so that new messages do not look old after a clock was set back.
The revision is 0 on a node that keeps its retained messages for itself.

In a cluster that keeps them in etcd, it is the store's revision that the shard knows. What has been
committed is stamped (revision of the commit, 0, 1), a deletion (revision, 0, 0): it replaces all
that was stamped before, so that nodes agree on the order of commits. While a change of this shard's
clients is not committed, they go on to see that change instead of others. A message that was
published on another node can reach subscribers here before its commit is told: then it is announced,
and takes the place of what is retained, so that no subscriber gets the older one after it.

A restarted shard reads its copy from disk (``rows``) and requests the whole store from one peer.
Recent publishes of others may have reached neither the restarted shard nor that peer: so each peer
sends its changes of the last seconds, and those not confirmed to be on disk there. A publish of QoS
1 or 2 is acknowledged when it is.

Source: MQTT 5.0 section 3.3.1.3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from fluxmq.net import frames
from fluxmq.net.frames import RetainedStamp
from fluxmq.net.links import Link
from fluxmq.protocols.mqtt.pending_acks import PendingAck
from fluxmq.protocols.mqtt.run import PublishRun, message_run
from fluxmq.routing.retained import RetainedStore, RetainOutcome
from fluxmq.shards.durable.retained_rows import RetainedRows

TOMBSTONES_MAX = 100_000
"""Maximum number of deleted topics remembered, so that an older message in transit does not revive
them."""
TOMBSTONE_SECONDS = 60.0
"""Time for which they are remembered: far longer than a frame can wait on a link."""
RECENT_SECONDS = 5.0
"""Time for which a shard remembers its changes: longer than a frame waits on a moving link."""
RECENT_MAX = 100_000
"""Maximum number of changes remembered: as many as it may publish in that time."""
SYSTEM_PREFIX = b"$SYS/"
SYSTEM_TOPICS_MAX = 1000
SYSTEM_BYTES_MAX = 1 << 20
"""Limits of the broker's own topics, of which there are a few dozen, all short."""
EXPIRE_STEP = 1000
"""Maximum number of expired messages dropped per housekeeping turn."""
ANNOUNCED_SECONDS = 10.0
"""Time for which an announced message is waited for: as long as its publisher waits."""
ANNOUNCED_MAX = 10_000
"""Maximum number of announced messages; beyond it the oldest is forgotten."""
ANNOUNCED: RetainedStamp = (0, 0, 2)
"""Stamp of an announced message on its way to another shard."""
CHANGED = frozenset((RetainOutcome.STORED, RetainOutcome.DELETED, RetainOutcome.ABSENT))
"""Results after which disk and memory must match: a deletion may find its message on disk only."""


class RetainedMessages:
    """This shard's copy of the node's retained messages."""

    def __init__(
        self,
        shard: int,
        max_messages: int,
        max_bytes: int,
        clock: Callable[[], float],
        stamp_clock: Callable[[], int],
        links: dict[int, Link],
        rows: RetainedRows,
        hold: Callable[[], PendingAck],
    ) -> None:
        self._shard = shard
        self._rows = rows
        self._hold = hold
        self._clock = clock
        self._stamp_clock = stamp_clock
        self._last_number = 0
        self.revision = 0
        """The highest revision that was seen."""
        self._recent: deque[tuple[float, bytes, RetainedStamp]] = deque(maxlen=RECENT_MAX)
        self._held: dict[bytes, tuple[PublishRun, RetainedStamp]] = {}
        """Committed changes of topics of which this shard has a change that is not committed."""
        self._announced: dict[bytes, tuple[PublishRun, float]] = {}
        """Messages whose commit has not been told, and until when that is waited for."""
        self.shared = False
        """True if all nodes have the same retained messages."""
        rows.settled = self._settled
        self._links = links
        self._limits = max_messages, max_bytes
        self.store = self._empty()
        """Messages retained by clients, within the limits of the settings."""
        self._system: RetainedStore[PublishRun] = RetainedStore(
            SYSTEM_TOPICS_MAX, SYSTEM_BYTES_MAX, 0, TOMBSTONE_SECONDS
        )
        """The broker's own numbers, which take no room from clients."""

    def _empty(self) -> RetainedStore[PublishRun]:
        return RetainedStore(*self._limits, TOMBSTONES_MAX, TOMBSTONE_SECONDS)

    def _store(self, topic: bytes) -> RetainedStore[PublishRun]:
        """Return the store of a topic or filter: a leading wildcard does not match ``$SYS``."""
        return self._system if topic.startswith(SYSTEM_PREFIX) else self.store

    def retain(self, run: PublishRun) -> bool:
        """Retain the last message of a client's run; an empty one deletes. Return False over a
        limit."""
        message = last_message(run)
        if run.publisher is not None and run.publisher.session is not None:
            # For No Local; the session itself may have ended when the message is sent.
            message.publisher = run.publisher.session.client_id.encode()
        reason = self._rows.refusing(message.topic) if kept_on_disk(message.topic) else 0
        if reason:
            if run.qos:
                self._hold().done(reason)
            return False
        self._announced.pop(message.topic, None)
        stamp = self._next_stamp()
        outcome = self.apply(message, stamp, limited=True)
        if outcome in (RetainOutcome.TOO_MANY_MESSAGES, RetainOutcome.TOO_MANY_BYTES):
            return False
        if kept_on_disk(message.topic):
            self._rows.published(message, stamp, self._hold().done if run.qos else None)
        if self._links:
            self._recent.append((self._clock(), message.topic, stamp))
        for link in self._links.values():
            link.send_retained(stamp, message)
        return True

    def _next_stamp(self) -> RetainedStamp:
        return self.revision, max(self._stamp_clock(), self._last_number + 1), self._shard

    def apply(self, message: PublishRun, stamp: RetainedStamp, *, limited: bool) -> RetainOutcome:
        """Store a message or a deletion in memory and on disk."""
        outcome = self._enter(message, stamp, limited=limited)
        if outcome in CHANGED and kept_on_disk(message.topic):
            self._rows.applied(message, stamp)
        return outcome

    def told(self, link: Link, message: PublishRun, stamp: RetainedStamp) -> None:
        """Apply another shard's message or deletion."""
        if stamp == ANNOUNCED:
            self._announce(message)
            return
        if is_committed(stamp):
            self.commit(message, stamp)
            return
        if self._rows.is_home(message.topic):
            # It will be committed after all that is known here.
            stamp = (max(stamp[0], self.revision), *stamp[1:])
        self.apply(message, stamp, limited=False)
        if kept_on_disk(message.topic):
            self._rows.told(link, message, stamp)

    def commit(self, message: PublishRun, stamp: RetainedStamp) -> None:
        """Apply a change that the cluster has committed, once no other of this shard's waits for
        that."""
        topic = message.topic
        self._announced.pop(topic, None)
        if self._rows.is_unsettled(topic):
            held = self._held.get(topic)
            if held is None or held[1] < stamp:
                self._held[topic] = message, stamp
        else:
            self.apply(message, stamp, limited=False)

    def announce(self, run: PublishRun) -> None:
        """Note on all shards that a run of another node, delivered next, ends with a message that
        will be retained."""
        message = last_message(run)
        self._announce(message)
        for link in self._links.values():
            link.send_retained(ANNOUNCED, message)

    def _announce(self, message: PublishRun) -> None:
        self._announced.pop(message.topic, None)
        self._announced[message.topic] = message, self._clock() + ANNOUNCED_SECONDS
        if len(self._announced) > ANNOUNCED_MAX:
            del self._announced[next(iter(self._announced))]

    def tell_committed(self, message: PublishRun, stamp: RetainedStamp) -> None:
        """Commit a change on the other shards as well."""
        self.commit(message, stamp)
        for link in self._links.values():
            link.send_retained(stamp, message)

    def _settled(self, topic: bytes) -> None:
        """Apply what was committed while a change of this shard's was not."""
        held = self._held.pop(topic, None)
        if held is not None:
            self.commit(*held)

    def uncommit(self) -> None:
        """Stamp everything as not committed, and forget deletions: the cluster's store is another
        one, whose revisions say nothing about what is here."""
        former, self.store = self.store, self._empty()
        self.revision = 0
        self._held.clear()
        for _, kept in former.snapshot():
            self.apply(kept.message, self._next_stamp(), limited=False)

    def load(self) -> None:
        """Read the store from disk, at start. Raises StorageError."""
        for message, stamp in self._rows.load():
            self._enter(message, stamp, limited=False)

    def _enter(self, message: PublishRun, stamp: RetainedStamp, *, limited: bool) -> RetainOutcome:
        self.revision = max(self.revision, stamp[0])
        self._last_number = max(self._last_number, stamp[1])
        if is_deletion(message):
            return self._store(message.topic).delete(message.topic, stamp, self._clock())
        size = len(message.topic) + len(message.properties) + message.end - message.start
        return self._store(message.topic).set(
            message.topic,
            message,
            size,
            stamp,
            message.deadline or None,
            limited=limited,
        )

    def message(self, topic: bytes) -> PublishRun | None:
        """Return the retained message of a topic, unless it has expired."""
        announced = self._announced.get(topic)
        if announced is not None:
            return None if is_deletion(announced[0]) else announced[0]
        found = self._store(topic).get(topic)
        if found is None:
            return None
        if found.expires_at is not None and found.expires_at <= self._clock():
            return None
        return found.message

    def topics(self, topic_filter: bytes) -> Iterator[bytes]:
        """Return an iterator over matching topics, found step by step."""
        return iter(self._store(topic_filter).match(topic_filter))

    def housekeeping(self) -> None:
        """Drop expired messages and old deletions."""
        now = self._clock()
        while self._recent and self._recent[0][0] < now - RECENT_SECONDS:
            self._recent.popleft()
        while self._announced and next(iter(self._announced.values()))[1] <= now:
            del self._announced[next(iter(self._announced))]
        self._rows.expired(self.store.expire(now, EXPIRE_STEP))
        self._rows.housekeeping()
        self.store.purge_tombstones(now)

    def frames(self) -> Iterator[bytes]:
        """Yield the whole store as frames, for a shard that has just started."""
        for _, kept in self.store.snapshot():
            yield frame_of(kept.message, stamp_of(kept.stamp))
        for topic, stamp in list(self.store.tombstones()):
            yield frames.encode_retained(stamp_of(stamp), deletion(topic))

    def recent(self, peer: int) -> Iterator[bytes]:
        """Yield this shard's changes of the last seconds, and those that ``peer`` has not
        confirmed."""
        for run, stamp in self._rows.unconfirmed(peer):
            yield frame_of(run, stamp)
        for _, topic, stamp in list(self._recent):
            kept = self._store(topic).get(topic)
            if kept is None:
                yield frames.encode_retained(stamp, deletion(topic))
            elif kept.stamp == stamp:
                yield frame_of(kept.message, stamp)


def frame_of(run: PublishRun, stamp: RetainedStamp) -> bytes:
    """Return a whole RETAINED frame."""
    data = bytes(memoryview(run.buffer)[run.start : run.end])
    return frames.encode_retained(stamp, run) + data


def kept_on_disk(topic: bytes) -> bool:
    """Return whether a topic is kept on disk: not the broker's own, which is republished all the time."""
    return not topic.startswith(SYSTEM_PREFIX)


def stamp_of(stamp: tuple[int, ...]) -> RetainedStamp:
    """Return a stamp of the store, all of which are of this form here."""
    revision, number, origin = stamp
    return revision, number, origin


def is_committed(stamp: tuple[int, ...]) -> bool:
    """Return whether a stamp is that of a commit."""
    return stamp[1] == 0


def last_message(run: PublishRun) -> PublishRun:
    """Return the last message of a run, as the broker keeps it."""
    offset = run.skip(run.start, run.count - 1)
    place = run.body_at(offset)
    payload = bytes(memoryview(run.buffer)[place : place + run.body_length])
    if not payload:
        return deletion(run.topic)
    return message_run(run.topic, payload, run.qos, 1, run.properties, run.deadline)


def deletion(topic: bytes) -> PublishRun:
    """Return a run without messages, which deletes the topic's retained message."""
    run = message_run(topic, b"", 0, 1)
    run.end = run.start
    run.count = 0
    return run


def is_deletion(run: PublishRun) -> bool:
    """Return whether a run stands for a deletion."""
    return run.count == 0
