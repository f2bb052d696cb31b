"""This shard's part in the cluster's record of subscriptions and consumers.

A change is only marked; when control is told, a moment later, the record gets what is true then.
Clients do not wait for it. Without etcd for so long that more than `MARKS_MAX` changes wait, all of
them are forgotten, and everything that is here is told anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from fluxmq.engine.ports import Attaching, AttachRequest, ConsumerPort, GroupTarget
from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import Body, Failure, MessageError
from fluxmq.ipc.record_messages import (
    RECORD_AGAIN,
    RECORD_CHANGE,
    RECORDS_MAX,
    ConsumerChange,
    ConsumerValue,
    RecordChanges,
    RefusedRecords,
    SubscriptionChange,
    SubscriptionValue,
)
from fluxmq.ipc.retained_messages import PART_BYTES
from fluxmq.ipc.topology_client import RequestSender
from fluxmq.metrics.registry import Sample
from fluxmq.sessions.mqtt.session import Session
from fluxmq.shards.recorded_consumers import ConsumerKey, RecordedConsumer

MARKS_MAX = 100_000
"""Changes that wait for control."""
RETRY_SECONDS = 0.5
"""Pause after a request that failed."""
REFUSED_SECONDS = 2.0
"""Pause before a session is told again whose id this node did not own yet."""


class Records:
    """Marks changes of subscriptions and consumers, and tells control of them."""

    def __init__(
        self, node: str, shard: int, sessions: Mapping[str, Session], now: Callable[[], float]
    ) -> None:
        self._node = node
        self._own = ConsumerValue(node, shard)
        self._sessions = sessions
        self._now = now
        self._control: RequestSender | None = None
        self._changed: dict[str, dict[bytes, None]] = {}
        """Filters whose subscriptions have changed, by client."""
        self._marks = 0
        self._anew = False
        self._again: Iterator[str] = iter(())
        """Clients of whom all subscriptions are still to be marked."""
        self._refused: dict[str, float] = {}
        """Refused clients, and the times at which control is told of them again."""
        self._consumers: set[ConsumerKey] = set()
        self._came_or_went: dict[ConsumerKey, None] = {}
        self._asking = False
        self._retry_at = 0.0
        self.dropped = 0
        """Changes that were forgotten."""

    # Subscriptions

    def changed(self, session: Session, written: bytes) -> None:
        """Note that a subscription of a session here has come, changed or gone."""
        if self._sessions.get(session.client_id) is session:
            self._mark(session.client_id, (written,))
            if self._marks > MARKS_MAX:
                self.dropped += self._marks
                self._tell_everything()

    def _mark(self, client_id: str, filters: Iterable[bytes]) -> None:
        marked = self._changed.setdefault(client_id, {})
        before = len(marked)
        marked.update(dict.fromkeys(filters))
        self._marks += len(marked) - before

    # Consumers

    def attach(
        self, target: GroupTarget, wanted: AttachRequest, port: ConsumerPort, done: Attaching
    ) -> None:
        """Attach a consumer, and note when it has come and when it goes."""
        if wanted.taking:
            target.attach(wanted, port, done)
            return
        between = RecordedConsumer(wanted, port, done, self._came, self._went)
        target.attach(wanted, between, between.attached)

    def _came(self, key: ConsumerKey) -> None:
        self._consumers.add(key)
        self._came_or_went[key] = None

    def _went(self, key: ConsumerKey) -> None:
        self._consumers.discard(key)
        self._came_or_went[key] = None
        if len(self._came_or_went) > MARKS_MAX:
            self.dropped += len(self._came_or_went)
            self._tell_everything()

    # Control

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """Handlers of control's messages."""
        return {RECORD_AGAIN: self._on_again}

    def connect(self, control: RequestSender) -> None:
        """Send requests through this client from now on."""
        self._control = control

    def established(self) -> None:
        """Tell everything: control is connected (again)."""
        self._retry_at = 0.0
        self._tell_everything()

    @property
    def next_due(self) -> float:
        """Moment at which something becomes due, in monotonic seconds; 0.0 while there is work
        for every turn of the timer."""
        return 0.0 if self._changed or self._came_or_went or self._refused else math.inf

    def housekeeping(self) -> None:
        """Tell control of what has changed; called by the shard's timer."""
        now = self._now()
        while self._refused:
            client_id, due = next(iter(self._refused.items()))
            if due > now:
                break
            del self._refused[client_id]
            session = self._sessions.get(client_id)
            if session is not None:
                self._mark(client_id, session.subscriptions)
        self._ask()

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        yield "fluxmq_cluster_records_dropped_total", {}, float(self.dropped)

    def _on_again(self, _body: Body, answered: Answered) -> None:
        self._tell_everything()
        answered({})

    def _tell_everything(self) -> None:
        self._changed.clear()
        self._anew = True
        self._marks = 0
        self._again = iter(list(self._sessions))
        self._came_or_went = dict.fromkeys(self._consumers)

    def _ask(self) -> None:
        """Tell control; one request at a time."""
        if self._asking or self._control is None or self._now() < self._retry_at:
            return
        while self._marks < RECORDS_MAX and (client_id := next(self._again, None)) is not None:
            session = self._sessions.get(client_id)
            if session is not None and session.subscriptions:
                self._mark(client_id, session.subscriptions)
        changes = self._take()
        if changes is None:
            return
        self._asking = True
        body = changes.to_body()
        if not self._control.request(
            RECORD_CHANGE, body, lambda answer: self._answered(changes, answer)
        ):
            self._answered(changes, Failure("away", "the control process cannot be reached"))

    def _take(self) -> RecordChanges | None:
        """Take what goes into one request; None if nothing has changed."""
        room, size = RECORDS_MAX, 0
        subscriptions: list[SubscriptionChange] = []
        while self._changed and room and size < PART_BYTES:
            client_id, marked = next(iter(self._changed.items()))
            session = self._sessions.get(client_id)
            while marked and room and size < PART_BYTES:
                written = next(iter(marked))
                del marked[written]
                self._marks -= 1
                room -= 1
                size += len(client_id) + len(written)
                subscriptions.append(self._subscription(client_id, session, written))
            if not marked:
                del self._changed[client_id]
        consumers: list[ConsumerChange] = []
        while self._came_or_went and room and size < PART_BYTES:
            key = next(iter(self._came_or_went))
            del self._came_or_went[key]
            room -= 1
            size += sum(map(len, key))
            value = self._own if key in self._consumers else None
            consumers.append(ConsumerChange(*key, value))
        if not (subscriptions or consumers or self._anew):
            return None
        anew, self._anew = self._anew, False
        return RecordChanges(self._own.shard, anew, tuple(subscriptions), tuple(consumers))

    def _subscription(
        self, client_id: str, session: Session | None, written: bytes
    ) -> SubscriptionChange:
        grant = None if session is None else session.subscriptions.get(written)
        value = None
        if grant is not None:
            value = SubscriptionValue(
                self._node,
                grant.qos if grant.queue is None else grant.queue.qos,
                grant.no_local,
                grant.retain_as_published,
                grant.subscription_id if grant.queue is None else grant.queue.identifier,
            )
        return SubscriptionChange(client_id, written.decode("utf-8", "replace"), value)

    def _answered(self, changes: RecordChanges, answer: Body | Failure) -> None:
        self._asking = False
        if isinstance(answer, Failure):
            self._retry_at = self._now() + RETRY_SECONDS
            self._mark_again(changes)
            return
        try:
            refused = RefusedRecords.from_body(answer).clients
        except MessageError:
            refused = ()
        due = self._now() + REFUSED_SECONDS
        for client_id in refused:
            if client_id in self._sessions:
                self._refused.setdefault(client_id, due)
        self._ask()

    def _mark_again(self, changes: RecordChanges) -> None:
        """Mark what may not have been noted, behind what has changed since."""
        for change in changes.subscriptions:
            self._mark(change.client, (change.filter.encode(),))
        self._anew = self._anew or changes.anew
        for consumer in changes.consumers:
            self._came_or_went[consumer.queue, consumer.group, consumer.consumer] = None
