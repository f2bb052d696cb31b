"""The durable part of a live session: which messages are on disk, and the work that waits for that.

Every message owed to the session has a number, and its packet identifier follows from the number:
so identifiers need not be stored, and a message resent after a restart has its former one. QoS 1
messages go to the client at once, and their publisher waits for the client's answer, or for the
disk if none comes (``CommitWaiter.sweep``); those for an absent client wait for the disk. QoS 2
messages go out when they are on disk, and PUBREL when PUBREC is: exactly once holds over a restart.

Source: MQTT 3.1.1 and 5.0 sections 4.1, 4.3, 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fluxmq.model.outcomes import Outcome
from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.identifiers import IdentifierRanges, IdRange
from fluxmq.protocols.mqtt.inflight_range import InflightRange
from fluxmq.protocols.mqtt.pending_acks import PendingAck
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.protocols.mqtt.window import PACKET_ID_MAX
from fluxmq.sessions.mqtt.session import Session
from fluxmq.shards.durable.range_rows import RangeRows
from fluxmq.shards.durable.receipts import Receipts
from fluxmq.shards.durable.row_router import RowHome
from fluxmq.shards.durable.rows import grant_values, message_values, pack, session_values
from fluxmq.shards.durable.seen_messages import SeenMessages
from fluxmq.storage.state_store import (
    ANSWERED,
    HEARD,
    LIFE,
    MESSAGES,
    RECEIVED,
    RELEASED,
    SEEN_ELSEWHERE,
    SESSIONS,
    SUBSCRIPTIONS,
)

if TYPE_CHECKING:
    from fluxmq.shards.durable.commit_waiter import CommitWaiter
from fluxmq.shards.run_numbers import RunOrigin


class Undelivered:
    """Neighbouring messages owed to a session, one row when written; settled by the delivery.

    ``number``: of the first; ``front``: of the first unanswered; ``written``: a row may be on disk.
    ``pending_ack``: the publisher's, held until the messages are safe or answered. ``settled``:
    rows of messages that are never sent again, None while there were none.
    """

    __slots__ = (
        "_early",
        "count",
        "finished",
        "front",
        "group",
        "journal",
        "number",
        "pending_ack",
        "qos",
        "retain",
        "run",
        "settled",
        "since",
        "subscription_ids",
        "written",
    )

    def __init__(
        self,
        journal: SessionJournal,
        number: int,
        count: int,
        run: PublishRun | None,
        qos: int,
        retain: int,
        subscription_ids: bytes,
        group: Any,
    ) -> None:
        self.journal = journal
        self.number = number
        self.count = count
        self.run = run
        self.qos = qos
        self.retain = retain
        self.subscription_ids = subscription_ids
        self.group = group
        self.front = number
        self.since = 0.0
        self.pending_ack: PendingAck | None = None
        self.written = False
        self.finished = False
        self._early: set[int] | None = None
        self.settled: RangeRows | None = None

    def acknowledged(self, first: int, count: int) -> None:
        """Note messages that were answered or dropped; a message may be noted twice."""
        if self.qos == 2:
            self.released(first, count)
            self.journal.completed_release(first, count)
            return
        if self.finished:
            return
        if first <= self.front:
            self.front = max(self.front, first + count)
        else:
            if self._early is None:
                self._early = set()
            self._early.update(range(first, first + count))
        if self._early:
            while self.front in self._early:
                self._early.remove(self.front)
                self.front += 1
        if self.front >= self.number + self.count:
            self.finish()
        elif self.written:
            self.settled_rows().add(self.number, self.front - self.number)
            self.journal.commit_waiter.lazily()

    def settled_rows(self) -> RangeRows:
        """Return ``settled``, which exists from now on."""
        if self.settled is None:
            self.settled = RangeRows(self.journal.home, ANSWERED, self.journal.client_id)
        return self.settled

    def released(self, first: int, count: int) -> None:
        """Note messages of QoS 2 that are not to be sent again, whether they await PUBCOMP or
        not."""
        if self.finished or self.journal.ended:
            return
        if count < self.count:
            settled = self.settled_rows()
            settled.add(first, count)
            count = settled.ranges.count
            self.journal.commit_waiter.lazily()
        if count == self.count:
            self.finish()

    def refused(self, number: int) -> None:
        """Finish a message that the client has refused or cannot take."""
        self.acknowledged(number, 1)

    def write(self) -> None:
        """Write the messages; the publisher's pending ack ends when they are safe."""
        if self.written or self.finished or self.run is None:
            return
        journal, run = self.journal, self.run
        self.written = True
        offset = run.start
        if self.front > self.number:
            offset = run.skip(offset, self.front - self.number)
            self.count -= self.front - self.number
            self.number = self.front
        data = message_values(
            run,
            offset,
            self.count,
            self.qos,
            self.retain,
            self.subscription_ids,
            self.group,
            journal.commit_waiter.clock,
        )
        journal.home.put(MESSAGES, (journal.client_id, self.number, data))
        journal.home.when_safe(self.safe)
        journal.commit_waiter.wake()

    def safe(self, reason: int) -> None:
        """End the publisher's wait: the messages are on disk, or, with a ``reason``, are not."""
        self.run = None
        pending_ack, self.pending_ack = self.pending_ack, None
        if pending_ack is not None:
            pending_ack.done(reason)

    def finish(self) -> None:
        """Finish the messages: all are answered."""
        self.finished = True
        journal = self.journal
        if self.written and not journal.ended:
            journal.home.remove(MESSAGES, (journal.client_id, self.number))
            if self.settled is not None:
                self.settled.clear()
            journal.commit_waiter.lazily()
        self.safe(0)


class ReleasedMessages:
    """QoS 2 messages that lack only PUBCOMP, by their identifiers: restored after a restart of the
    shard, or from another one."""

    __slots__ = ("_journal",)

    def __init__(self, journal: SessionJournal) -> None:
        self._journal = journal

    def acknowledged(self, first: int, count: int) -> None:
        """Handle PUBCOMP."""
        journal = self._journal
        if not journal.ended:
            journal.released_rows.remove(first, count)
            journal.commit_waiter.lazily()

    def refused(self, number: int) -> None:
        """Finish a message."""
        self.acknowledged(number, 1)


def identifier_of(number: int) -> int:
    """Return the packet identifier of a message; the hot path computes the same."""
    return number % PACKET_ID_MAX + 1


def identifiers_of(first: int, count: int) -> Iterator[IdRange]:
    """Yield the packet identifiers of messages, as ranges."""
    while count:
        packet_id = identifier_of(first)
        size = min(count, PACKET_ID_MAX + 1 - packet_id)
        yield packet_id, size
        first += size
        count -= size


class SessionJournal:
    """The ``durable`` of a session's delivery. ``number``: of the next message owed."""

    def __init__(self, commit_waiter: CommitWaiter, home: RowHome, session: Session) -> None:
        self.commit_waiter = commit_waiter
        self.home = home
        self.session = session
        self.client_id = session.client_id
        self.number = 0
        self.ended = False
        self.received_rows = RangeRows(home, RECEIVED, self.client_id)
        self.released_rows = RangeRows(home, RELEASED, self.client_id)
        self.receipts = Receipts(home, self.client_id, commit_waiter.numbers, commit_waiter.shard)
        self.seen = SeenMessages()
        self.held: dict[InflightRange, None] = {}
        """QoS 2 messages that go to the client when they are on disk."""
        self._doubtful: list[PendingAck] | None = None
        """Pending acks of publishers while the session may be another node's."""

    def doubt(self) -> None:
        """Have publishers wait until ``settle``: another node may have the session by now, without
        what comes here."""
        if self._doubtful is None:
            self._doubtful = []

    def settle(self, reason: int) -> None:
        """Answer the publishers that wait: the session is here, or with a reason is not."""
        waiting, self._doubtful = self._doubtful, None
        for pending_ack in waiting or ():
            pending_ack.done(reason)

    # Messages owed

    def keep(
        self, run: PublishRun, qos: int, retain: int, subscription_ids: bytes, group: object
    ) -> None:
        """Deliver a run, and answer its publisher once it is safe. Takes ownership of the run."""
        delivery = self.session.delivery
        self.commit_waiter.numbers.identify(run)
        if self._doubtful is not None:
            self._doubtful.append(self.commit_waiter.hold())
        if qos == 2:
            self._keep_exactly_once(run, retain, subscription_ids, group)
            return
        away = delivery.connection is None
        pending_ack = self.commit_waiter.hold()
        if away and self.home.refusing:
            self.commit_waiter.count_drop("not_stored", run.count)
            pending_ack.done(self.home.refusing)
            return
        undelivered = Undelivered(
            self, self.number, run.count, run, qos, retain, subscription_ids, group
        )
        undelivered.pending_ack = pending_ack
        inflight = InflightRange(run, run.start, run.count, qos, retain, subscription_ids, group)
        inflight.settle = undelivered
        inflight.base = self.number
        self.number += run.count
        if away:
            undelivered.write()
            self.commit_waiter.fresh(pending_ack, self.home)
        else:
            self.commit_waiter.watch(undelivered)
        delivery.enqueue_inflight(inflight)

    def _keep_exactly_once(
        self, run: PublishRun, retain: int, subscription_ids: bytes, group: object
    ) -> None:
        """Keep a QoS 2 run, and deliver it when it is on disk."""
        pending_ack = self.commit_waiter.hold()
        source = self.commit_waiter.numbers.source
        unseen = None
        if source is None or not self.receipts.has(source):
            unseen = self.seen.rest_of(run) if group is None else run
        if unseen is None:
            self.home.when_safe(pending_ack.done)
            self.commit_waiter.wake()
            return
        run = unseen
        refusing = self.home.refusing
        if source is not None:
            self._note(source, bool(refusing))
        if refusing:
            self.commit_waiter.count_drop("not_stored", run.count)
            pending_ack.done(refusing)
            return
        undelivered = Undelivered(
            self, self.number, run.count, run, 2, retain, subscription_ids, group
        )
        inflight = InflightRange(run, run.start, run.count, 2, retain, subscription_ids, group)
        inflight.settle = undelivered
        inflight.base = self.number
        self.number += run.count
        self.held[inflight] = None
        undelivered.write()

        def safe(reason: int) -> None:
            if reason and source is not None and not self.ended:
                self._note(source, True)
            pending_ack.done(reason)
            self._deliver(inflight, reason)

        self.commit_waiter.fresh(pending_ack, self.home)
        self.home.when_safe(safe)

    def seen_elsewhere(self, numbers: Iterable[Sequence[int]]) -> None:
        """Note, on disk too, which messages the session has received at other nodes."""
        for origin, number in numbers:
            self.seen.elsewhere[origin] = number
            self.home.put(HEARD, (self.client_id, origin, 0, SEEN_ELSEWHERE, number))

    def _note(self, source: RunOrigin, refused: bool) -> None:
        """Write a run's receipt with its rows."""
        self.receipts.note(source, refused)
        self.commit_waiter.lazily()

    def _deliver(self, inflight: InflightRange, reason: int) -> None:
        """Deliver QoS 2 messages that are on disk; drop those that are not (``reason``)."""
        if inflight in self.held:
            del self.held[inflight]
            if reason:
                inflight.settle.finish()
            else:
                self._pass_on(inflight)

    def release_held(self) -> None:
        """Pass on messages that wait for the disk, since the session leaves this shard."""
        held, self.held = self.held, {}
        for inflight in held:
            self._pass_on(inflight)

    def _pass_on(self, inflight: InflightRange) -> None:
        # Not before: what is held when the session moves to another node does not move with it.
        if inflight.group is None:
            self.seen.note(inflight.run)
        self.session.delivery.enqueue_inflight(inflight)

    def undelivered(self) -> list[Undelivered]:
        """Return the messages of this journal that the detached delivery has."""
        delivery = self.session.delivery
        found: dict[Undelivered, None] = {}
        for queue in (delivery.unanswered_ranges, delivery.resend, delivery.pending):
            for inflight in queue or ():
                if isinstance(inflight.settle, Undelivered):
                    found[inflight.settle] = None
        return list(found)

    # The session's state

    def write_session(self) -> None:
        """Write the session's own row: expiry, will, whether it is connected."""
        if self.ended:
            return
        session = self.session
        sent = self.number
        for inflight in session.delivery.pending or ():
            if isinstance(inflight.settle, Undelivered):
                sent = inflight.base
                break
        data = session_values(session, self.commit_waiter.clock, self.number, sent)
        self.home.put(SESSIONS, (self.client_id, data))
        self.home.put(LIFE, (self.commit_waiter.shard, self.commit_waiter.clock.wall()))
        self.commit_waiter.lazily()

    def write_subscription(self, written: bytes) -> None:
        """Write one subscription in its present state, or its removal."""
        grant = self.session.subscriptions.get(written)
        if grant is None:
            self.home.remove(SUBSCRIPTIONS, (self.client_id, written))
            return
        topics = grant.queue is None and not grant.shared
        topic = self.session.filter_of(written) if topics else None
        row = (self.client_id, written, topic, pack(grant_values(grant)))
        self.home.put(SUBSCRIPTIONS, row)

    def write_everything(self) -> None:
        """Write the session without its messages."""
        self.write_session()
        for written in self.session.subscriptions:
            self.write_subscription(written)

    def left(self) -> None:
        """Write the unacknowledged messages of a client that has gone."""
        for undelivered in self.undelivered():
            undelivered.write()
        self.write_session()

    def end(self) -> None:
        """End the session and delete everything kept of it."""
        self.ended = True
        self.settle(Outcome.OVER_LIMIT)
        for undelivered in self.undelivered():
            undelivered.finish()
        self.held.clear()
        self.home.wipe(self.client_id)
        self.commit_waiter.lazily()

    # QoS 2, of publishers and of subscribers

    def unwritten(self) -> set[int]:
        """Return received identifiers whose messages are not known to be safe."""
        return self.commit_waiter.unwritten(self)

    def received(self, packet_ids: IdentifierRanges) -> None:
        """Delay PUBREC for new QoS 2 messages of the client until their receipt is on disk."""
        self.commit_waiter.gate(self, packet_ids, self.commit_waiter.hold())

    def repeated(self, packet_ids: IdentifierRanges) -> None:
        """Delay PUBREC for repeated QoS 2 messages if that of the first is delayed."""
        self.commit_waiter.repeated(self, packet_ids)

    def completed(self, packet_id: int, count: int, answer: Callable[[int, int], None]) -> None:
        """Handle PUBRELs: their identifiers, ``count`` from ``packet_id`` on, are free when that is
        on disk, and ``answer`` reports them."""
        self.received_rows.remove(packet_id, count)
        self._then(partial(answer, packet_id, count))

    def released(self, packet_id: int, count: int, answer: Callable[[int, int], None]) -> None:
        """Handle PUBRECs: their messages are never resent once that is on disk; ``answer`` sends
        PUBREL."""
        released = self.session.delivery.released
        assert released is not None
        for part in released.parts(packet_id, count):
            if isinstance(part.settle, Undelivered):
                part.settle.released(part.base, part.count)
                self.released_rows.add(part.pid, part.count)
                self._then(partial(answer, part.pid, part.count))
            else:
                answer(part.pid, part.count)

    def completed_release(self, first: int, count: int) -> None:
        """Handle PUBCOMP for messages by their numbers, or their drop before PUBREC."""
        if self.ended:
            return
        for packet_id, size in identifiers_of(first, count):
            self.released_rows.remove(packet_id, size)
        self.commit_waiter.lazily()

    def released_again(self, connection: Connection, pubrels: bytes) -> None:
        """Send PUBRELs again to a client that has returned, once every PUBREC so far is on disk: after
        PUBREL the client takes the same identifier for another message."""
        self._then(partial(connection.append, pubrels))

    def _then(self, answer: Callable[[], object]) -> None:
        client = self.session.client

        def safe(reason: int) -> None:
            # With a full disk the change waits for room, ahead of everything that could contradict
            # it.
            if (
                reason in (Outcome.OK, Outcome.OVER_LIMIT)
                and client is self.session.client is not None
            ):
                answer()

        self.home.when_safe(safe)
        self.commit_waiter.wake()
