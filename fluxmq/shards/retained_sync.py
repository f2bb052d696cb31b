"""A shard's retained messages as copies of the cluster's, which are in etcd.

The control process tells every shard all there is, as of one revision, and then each change. A
message that is there by its metadata alone is taken from this node, or fetched by its home. After
everything has been told, committed messages of which there was nothing are removed, and a home has
changes committed that it finds uncommitted: those of a node that ended too early, or was alone
before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import Body
from fluxmq.ipc.retained_messages import (
    DELETED,
    INDEX,
    RETAINED,
    CommittedChange,
    RetainedPart,
    RetainedValue,
    decode_value,
)
from fluxmq.ipc.topology_client import RequestSender
from fluxmq.metrics.registry import Sample
from fluxmq.protocols.mqtt.run import PublishRun, message_run
from fluxmq.routing.retained import Retained
from fluxmq.shards.durable.retained_rows import RetainedRows
from fluxmq.shards.durable.rows import Clock
from fluxmq.shards.retained import RetainedMessages, deletion, is_committed, stamp_of
from fluxmq.shards.retained_commits import RetainedCommits
from fluxmq.shards.retained_fetch import RetainedFetch

COMPARED_PER_TURN = 5000
"""Messages compared with what was told in a tenth of a second: some milliseconds."""


class RetainedSync:
    """Follows the cluster's retained messages, and has this shard's changes committed."""

    def __init__(
        self,
        node: str,
        clock: Clock,
        retained: RetainedMessages,
        rows: RetainedRows,
        commits: RetainedCommits,
        fetch: RetainedFetch,
    ) -> None:
        self._node = node
        self._clock = clock
        self._retained = retained
        self._rows = rows
        self._commits = commits
        self._fetch = fetch
        self._told: set[bytes] | None = None
        """Topics told since the first part of everything, until they have been compared."""
        self._as_of = 0
        """The revision of what has been told."""
        self._comparing: Iterator[tuple[bytes, Retained[PublishRun]]] | None = None
        self._revision = retained.revision
        """The highest revision that this shard has been told of, or had on disk."""
        self.synchronised = False
        """True once this shard has been told everything, and has compared it."""
        rows.changes = commits
        retained.shared = True
        commits.committed = self._committed

    # The control process

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """Handlers of control's messages."""
        return {RETAINED: self._take}

    def connect(self, control: RequestSender) -> None:
        """Send requests through this client from now on."""
        self._commits.connect(control)

    def established(self) -> None:
        """Send what waits: control is connected (again)."""
        self._commits.established()

    @property
    def next_due(self) -> float:
        """Moment at which something becomes due, in monotonic seconds; 0.0 while there is work
        for every turn of the timer."""
        return 0.0 if self._comparing is not None or self._commits.uncommitted else math.inf

    def housekeeping(self) -> None:
        """Continue to compare; called by the shard's timer."""
        if self._comparing is not None:
            for _ in range(COMPARED_PER_TURN):
                found = next(self._comparing, None)
                if found is None:
                    self._told = self._comparing = None
                    self.synchronised = True
                    return
                self._compare(*found)

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        yield "fluxmq_retained_missing", {}, self._fetch.missing
        yield "fluxmq_retained_fetched_total", {}, self._fetch.fetched
        yield "fluxmq_retained_uncommitted", {}, self._commits.uncommitted

    # What is committed

    def _take(self, body: Body, answered: Answered) -> None:
        """Apply what control tells. Raises MessageError."""
        part = RetainedPart.from_body(body)
        if part.first:
            if part.revision < self._revision:
                self._retained.uncommit()
            self._revision = part.revision
            self._told, self._comparing = set(), None
        for change in part.entries:
            if self._told is not None:
                self._told.add(change.topic)
                self._forget_unheard(change.topic)
            self._apply(change)
        if part.last and self._told is not None:
            self._as_of = part.revision
            self._fetch.retain_only(self._told)
            self._comparing = self._retained.store.snapshot()
        self._commits.wake()
        answered({})

    def _apply(self, change: CommittedChange) -> None:
        topic, revision = change.topic, change.revision
        self._revision = max(self._revision, revision)
        self._fetch.forget(topic, revision)
        if change.kind == DELETED:
            self._retained.commit(deletion(topic), (revision, 0, 0))
            return
        value = decode_value(change.value)
        if self._is_older(topic, value, revision):
            return
        if change.kind != INDEX:
            deadline = self._clock.here(value.deadline)
            message = message_run(topic, value.payload, value.qos, 1, value.properties, deadline)
            message.publisher = value.publisher or None
            self._retained.commit(message, (revision, 0, 1))
            return
        stamp = self._retained.store.stamp(topic)
        if stamp is not None and stamp >= (revision, 0, 1):
            return  # it is here, or a later one
        found = self._here(topic, value)
        if found is None:
            self._retained.commit(deletion(topic), (revision, 0, 0))
            if self._rows.is_home(topic):
                self._fetch.want(topic, revision, value.node)
        elif self._rows.is_home(topic):
            self._retained.tell_committed(found, (revision, 0, 1))
        else:
            self._retained.commit(found, (revision, 0, 1))

    def _is_older(self, topic: bytes, value: RetainedValue, revision: int) -> bool:
        """Return whether a committed change of this node is older than one that this home has and
        that is not committed: the node ended between the two."""
        found = self._retained.store.get(topic)
        if (
            value.node != self._node
            or found is None
            or is_committed(found.stamp)
            or found.stamp[1:] <= (value.number, value.origin)
            or not self._rows.is_home(topic)
        ):
            return False
        self._retained.commit(found.message, (revision, *stamp_of(found.stamp)[1:]))
        return True

    def _here(self, topic: bytes, value: RetainedValue) -> PublishRun | None:
        """Return a message of this node that is committed by its metadata alone."""
        if value.node != self._node:
            return None
        identity = value.number, value.origin
        found = self._retained.store.get(topic)
        if found is not None and found.stamp[1:] == identity:
            return found.message
        return self._commits.message(topic, *identity)

    def _compare(self, topic: bytes, kept: Retained[PublishRun]) -> None:
        """Bring a message in line with what was told."""
        if not is_committed(kept.stamp):
            if not self._rows.is_home(topic):
                if self._told is not None and topic not in self._told:
                    self._forget_unheard(topic)
            elif not self._commits.has(topic):
                self._commits.keep(kept.message, stamp_of(kept.stamp), None, waits=False)
        elif self._told is not None and topic not in self._told and kept.stamp[0] <= self._as_of:
            self._retained.commit(deletion(topic), (self._as_of, 0, 0))

    def _forget_unheard(self, topic: bytes) -> None:
        """Forget another shard's uncommitted change of a topic with another home: it may have been
        committed, and changed again, while this shard was not told. If it is still on its way, its
        commit will be told."""
        stamp = self._retained.store.stamp(topic)
        if stamp is None or is_committed(stamp) or self._rows.is_home(topic):
            return
        if not self._rows.is_unsettled(topic):
            self._retained.store.forget(topic)

    def _committed(self, message: PublishRun, revision: int, tell: bool) -> None:
        """Note that a change of this home is committed; ``tell``: control does not tell the other
        shards enough."""
        stamp = (revision, 0, int(message.count > 0))
        if tell:
            self._retained.tell_committed(message, stamp)
        else:
            self._retained.commit(message, stamp)
        self._rows.settled(message.topic)
