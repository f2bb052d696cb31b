"""Changes of retained messages on their way to etcd, at the home of their topics.

A home has its topics' changes committed by the control process, those of a topic one after another:
while one is under way, only the latest of those that come is kept. A request that fails is made
again, as long as it takes; publishers who wait are refused after `AWAY_SECONDS`. A message that is
committed by its metadata alone is on this shard's disk first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import ERROR_AWAY, Body, Failure, MessageError
from fluxmq.ipc.retained_messages import (
    CHANGES_MAX,
    DELETED,
    INDEX,
    PART_BYTES,
    RETAINED_CHANGE,
    WHOLE,
    CommittedChanges,
    RetainedChange,
    RetainedChanges,
    RetainedValue,
    encode_value,
)
from fluxmq.ipc.topology_client import RequestSender
from fluxmq.model.outcomes import Outcome
from fluxmq.net.frames import RetainedStamp
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.shards.durable.retained_rows import UNCONFIRMED_MAX
from fluxmq.shards.durable.row_router import AWAY_SECONDS, CommitCallback, LocalRows
from fluxmq.shards.durable.rows import Clock
from fluxmq.shards.retained import is_deletion

REQUESTS_MAX = 2
"""Requests under way: while etcd writes one, the next is on its way."""
RETRY_SECONDS = 0.5
"""Pause after a request that failed."""
PROPERTIES_MAX = 16 << 10
"""Bytes of a message's properties above which etcd gets its metadata only, however small its
payload is: a value and its key stay below etcd's limit for a request, 1.5 MiB."""
TOPIC_COPIES = 2
"""Number of times that a topic is in its transaction."""


class _Pending:
    """A change that is not committed. ``publishers`` wait until ``until``: those of a topic no
    longer than the first of its changes that have not been committed."""

    __slots__ = ("dones", "kind", "message", "publishers", "ready", "stamp", "until")

    def __init__(self, message: PublishRun, stamp: RetainedStamp, kind: int, until: float) -> None:
        self.message = message
        self.stamp = stamp
        self.kind = kind
        self.until = until
        self.ready = kind != INDEX
        self.dones: list[CommitCallback] = []
        self.publishers: list[CommitCallback] = []

    def refuse(self, reason: int) -> None:
        """Answer the publishers who wait; the change will be committed all the same."""
        publishers, self.publishers = self.publishers, []
        for done in publishers:
            done(reason)


class RetainedCommits:
    """The changes that this shard, as home of their topics, has committed. Implements
    `ChangeStore`.

    ``threshold``: size of a payload from which on only the metadata is committed; ``committed`` is
    called with a message or deletion, the revision, and whether the other shards need to be told.
    """

    def __init__(
        self, node: str, threshold: int, clock: Clock, store: LocalRows, wake: Callable[[], None]
    ) -> None:
        self._node = node
        self._threshold = threshold
        self._clock = clock
        self._store = store
        self.wake = wake
        self.committed: Callable[[PublishRun, int, bool], None] = _ignore
        self._pending: dict[bytes, _Pending] = {}
        """By topic, in the order of ``until``."""
        self._waiting: dict[bytes, None] = {}
        """Topics with a change that is not under way, in order."""
        self._under_way: set[bytes] = set()
        self._requests = 0
        self._control: RequestSender | None = None
        self._retry_at = 0.0

    # Changes

    @property
    def refusing(self) -> int:
        """The reason why no more changes are taken; 0 if they are."""
        if len(self._pending) >= UNCONFIRMED_MAX:
            return Outcome.OVER_LIMIT
        return self._store.refusing

    def keep(
        self, message: PublishRun, stamp: RetainedStamp, done: CommitCallback | None, waits: bool
    ) -> None:
        """Have a change committed, and then call ``done``."""
        topic = message.topic
        before = self._pending.get(topic)
        if before is None or before.stamp[1:] < stamp[1:]:
            entry = self._add(message, stamp)
            if before is not None:
                entry.until = before.until
                entry.dones, entry.publishers = before.dones, before.publishers
        else:
            entry = before  # which is newer, or the same
        if done is not None:
            (entry.publishers if waits else entry.dones).append(done)
        self.wake()

    def _add(self, message: PublishRun, stamp: RetainedStamp) -> _Pending:
        topic = message.topic
        until = self._clock.now() + AWAY_SECONDS
        entry = self._pending[topic] = _Pending(message, stamp, self._kind(message), until)
        if entry.ready:
            self._wait(topic)
        else:

            def safe(reason: int) -> None:
                entry.ready = True
                if reason:
                    entry.refuse(reason)
                if self._pending.get(topic) is entry:
                    self._wait(topic)
                    self.wake()

            self._store.when_safe(safe)
        return entry

    def _kind(self, message: PublishRun) -> int:
        if is_deletion(message):
            return DELETED
        small = _size_of(message) < self._threshold
        return WHOLE if small and len(message.properties) <= PROPERTIES_MAX else INDEX

    def _wait(self, topic: bytes) -> None:
        if topic not in self._under_way:
            self._waiting[topic] = None

    @property
    def uncommitted(self) -> int:
        """Number of topics with a change that is not committed."""
        return len(self._pending)

    def has(self, topic: bytes) -> bool:
        """Return whether a change of a topic waits to be committed."""
        return topic in self._pending

    def message(self, topic: bytes, number: int, origin: int) -> PublishRun | None:
        """Return the message of a change that is not known to be committed."""
        entry = self._pending.get(topic)
        same = entry is not None and entry.stamp[1:] == (number, origin)
        return entry.message if entry is not None and same else None

    def housekeeping(self) -> None:
        """Refuse publishers that have waited too long, and try again."""
        now = self._clock.now()
        for entry in self._pending.values():
            if entry.until > now:
                break
            entry.refuse(Outcome.OVER_LIMIT)
        self.flush()

    # Requests

    def connect(self, control: RequestSender) -> None:
        """Send requests through this client from now on."""
        self._control = control

    def established(self) -> None:
        """Send what waits: control is connected (again)."""
        self._retry_at = 0.0
        self.flush()

    def flush(self) -> None:
        """Send what waits, in as few requests as are free."""
        while (
            self._waiting
            and self._control is not None
            and self._requests < REQUESTS_MAX
            and self._clock.now() >= self._retry_at
        ):
            batch, changes = self._next_batch()
            if not changes:
                return
            # Noted first: the answer may come at once.
            self._requests += 1
            self._under_way.update(entry.message.topic for entry in batch)
            body = RetainedChanges(tuple(changes)).to_body()
            if not self._control.request(RETAINED_CHANGE, body, self._answered(batch)):
                self._again(batch)

    def _next_batch(self) -> tuple[list[_Pending], list[RetainedChange]]:
        batch: list[_Pending] = []
        changes: list[RetainedChange] = []
        size = 0
        for topic in list(self._waiting):
            entry = self._pending[topic]
            if not entry.ready:
                del self._waiting[topic]  # until it is on disk
                continue
            value = self._value(entry)
            size += len(value) + TOPIC_COPIES * len(topic)
            if len(changes) == CHANGES_MAX or (changes and size > PART_BYTES):
                break
            del self._waiting[topic]
            batch.append(entry)
            changes.append(RetainedChange(topic, entry.kind, value))
        return batch, changes

    def _value(self, entry: _Pending) -> bytes:
        if entry.kind == DELETED:
            return b""
        message = entry.message
        _, number, origin = entry.stamp
        deadline = self._clock.on_disk(message.deadline)
        identity = deadline, self._node, number, origin, _size_of(message)
        if entry.kind == INDEX:
            return encode_value(RetainedValue(*identity))
        return encode_value(
            RetainedValue(
                *identity,
                qos=message.qos,
                publisher=message.publisher or b"",
                properties=message.properties,
                payload=message.payloads()[0],
            )
        )

    def _answered(self, batch: Sequence[_Pending]) -> Answered:
        def answered(answer: Body | Failure) -> None:
            if isinstance(answer, Failure):
                wait = 0.0 if answer.code == ERROR_AWAY else RETRY_SECONDS
                self._again(batch, wait)
                return
            try:
                revision = CommittedChanges.from_body(answer).revision
            except MessageError:
                self._again(batch)
                return
            self._requests -= 1
            for entry in batch:
                self._settle(entry, revision)
            self.wake()

        return answered

    def _again(self, batch: Sequence[_Pending], wait: float = RETRY_SECONDS) -> None:
        """Have changes, or those that have come instead, requested again."""
        self._requests -= 1
        self._retry_at = self._clock.now() + wait
        for entry in batch:
            topic = entry.message.topic
            self._under_way.discard(topic)
            self._wait(topic)

    def _settle(self, entry: _Pending, revision: int) -> None:
        topic = entry.message.topic
        self._under_way.discard(topic)
        if self._pending[topic] is not entry:
            self._wait(topic)  # a newer one has come
            return
        del self._pending[topic]
        self.committed(entry.message, revision, entry.kind != WHOLE)
        entry.refuse(0)
        for done in entry.dones:
            done(0)


def _size_of(message: PublishRun) -> int:
    """Return the size of a message's payload."""
    message.body_at(message.start)
    return message.body_length


def _ignore(_message: PublishRun, _revision: int, _tell: bool) -> None:
    pass
