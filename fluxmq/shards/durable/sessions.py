"""The persistent sessions of one shard: when their rows are written, and how they come back at
start.

A session whose expiry is not 0 is kept from its first CONNECT to its end. Its home's file is read
when the shard starts, after every peer has told which sessions it has, and for the sessions of a
peer that has died.

Source: MQTT 3.1.1 section 3.1.2.4, MQTT 5.0 section 4.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from fluxmq.logs import get_logger
from fluxmq.protocols.mqtt.delivery import SessionDelivery
from fluxmq.protocols.mqtt.identifiers import IdentifierRanges
from fluxmq.protocols.mqtt.inflight_range import InflightRange
from fluxmq.protocols.mqtt.window import PACKET_ID_MAX
from fluxmq.sessions.mqtt.handover import restore
from fluxmq.sessions.mqtt.session import Session
from fluxmq.shards.durable.commit_waiter import CommitWaiter
from fluxmq.shards.durable.receipts import Receipt
from fluxmq.shards.durable.row_router import CommitCallback, RowHome
from fluxmq.shards.durable.rows import Clock, grant_of, messages_of, restore_session, unpack
from fluxmq.shards.durable.session_journal import (
    ReleasedMessages,
    SessionJournal,
    Undelivered,
    identifier_of,
)
from fluxmq.shards.groups import GroupTable
from fluxmq.shards.session_ownership import SessionOwnership
from fluxmq.storage.state_store import (
    ANSWERED,
    DEPARTED,
    HEARD,
    LIFE,
    MESSAGES,
    OF_CLIENTS,
    RECEIVED,
    RELEASED,
    SEEN_ELSEWHERE,
    SESSIONS,
    SUBSCRIPTIONS,
    Row,
)

LIFE_SECONDS = 5.0
"""Interval of signs of life; sessions connected at the shard's death may live longer by that."""

_log = get_logger("fluxmq.durable")


class RestoredSessions(Protocol):
    """The sessions of the shard, to which restored ones are added."""

    def new_delivery(self) -> SessionDelivery:
        """Return an empty delivery."""

    def enter(self, session: Session) -> None:
        """Add a session with its subscriptions."""

    def schedule(self, session: Session) -> None:
        """Schedule a session whose times were set."""


class DurableSessions:
    """The durable side of the broker's sessions."""

    def __init__(
        self,
        commit_waiter: CommitWaiter,
        groups: GroupTable,
        ownership: SessionOwnership,
        window: int,
        connected: Callable[[], int],
    ) -> None:
        self.commit_waiter = commit_waiter
        self.loaded = False
        """True once the sessions of this home are here: no client may connect before."""
        self._ownership = ownership
        self._groups = groups
        self._window = window
        self._connected = connected
        self._next_life = 0.0
        self.last_departure = float("-inf")
        """Monotonic time at which a session has left for another node."""

    @property
    def clock(self) -> Clock:
        """Monotonic and wall clock."""
        return self.commit_waiter.clock

    def home(self, client_id: str) -> RowHome:
        """Return the home of a client's rows."""
        shard = self._ownership.home(client_id)
        return (
            self.commit_waiter.store
            if shard == self._ownership.shard
            else self.commit_waiter.remote[shard]
        )

    # Called by the broker

    def refusing(self, client_id: str) -> int:
        """Return the reason why a client's session cannot be kept now; 0 if it can."""
        return self.home(client_id).refusing

    def attached(self, session: Session) -> None:
        """Keep a persistent session from now on, which a client has connected with."""
        journal: SessionJournal | None = session.delivery.durable
        if journal is None:
            if not session.expiry:
                return
            journal = self.keep(session)
            # Remnants of an earlier session that ended unnoticed are not this one's.
            journal.home.wipe(session.client_id)
        journal.write_session()

    def keep(self, session: Session) -> SessionJournal:
        """Begin to keep a session."""
        journal = SessionJournal(self.commit_waiter, self.home(session.client_id), session)
        session.delivery.durable = journal
        return journal

    def subscribed(self, session: Session, written: Iterable[bytes], done: CommitCallback) -> None:
        """Write subscriptions that have come or gone; call ``done`` when they are on disk."""
        journal: SessionJournal | None = session.delivery.durable
        if journal is None:
            done(0)
            return
        for each in written:
            journal.write_subscription(each)
        journal.home.when_safe(done)
        self.commit_waiter.wake()

    def settle(self, session: Session | None) -> None:
        """Answer the publishers of a session that was in doubt."""
        journal: SessionJournal | None = None if session is None else session.delivery.durable
        if journal is not None:
            journal.settle(0)

    def note_departure(self) -> None:
        """Note, on disk as well, that a session has left for another node."""
        waiter = self.commit_waiter
        self.last_departure = self.clock.now()
        waiter.store.put(LIFE, (DEPARTED - waiter.shard, self.clock.wall()))
        waiter.lazily()

    def left(self, session: Session) -> None:
        """Write a session whose client has gone, or whose times have changed."""
        journal: SessionJournal | None = session.delivery.durable
        if journal is not None and session.client is None:
            journal.left()

    def ended(self, session: Session) -> None:
        """End a session."""
        journal: SessionJournal | None = session.delivery.durable
        if journal is not None:
            session.delivery.durable = None
            journal.end()

    def flush(self, client_id: str) -> None:
        """Send the end of a client's session on its way, ahead of the next shard's rows."""
        self.home(client_id).flush()
        self.commit_waiter.wake()

    def when_gone(self, client_id: str, done: Callable[[], None]) -> None:
        """Call ``done`` when the end of a client's former session is on disk, or cannot be."""
        self.home(client_id).when_safe(lambda _reason: done())
        self.commit_waiter.wake()

    def leaving(self, session: Session) -> None:
        """Write a session's unacknowledged messages before it moves to another shard."""
        journal: SessionJournal | None = session.delivery.durable
        if journal is not None:
            journal.release_held()
            journal.left()
            journal.home.flush()  # the rows go ahead of the state, and of the next shard's rows
            self.commit_waiter.wake()

    def moved(self, session: Session) -> None:
        """Detach a session that has left; later answers here change nothing any more."""
        journal: SessionJournal | None = session.delivery.durable
        if journal is not None:
            journal.ended = True
            session.delivery.durable = None

    def arrived(self, session: Session) -> None:
        """Write a session that has come from another shard; its messages were written there."""
        journal: SessionJournal | None = session.delivery.durable
        if journal is not None:
            journal.write_everything()

    def housekeeping(self) -> None:
        """Note that the shard lives, when due; called by the shard's timer."""
        now = self.clock.now()
        if now >= self._next_life:
            self._next_life = now + LIFE_SECONDS
            if self.loaded and self._connected():
                self.commit_waiter.store.put(LIFE, (self.commit_waiter.shard, self.clock.wall()))
                self.commit_waiter.lazily()
        self.commit_waiter.housekeeping()

    # Coming back

    def load(self, sessions: RestoredSessions) -> bool:
        """Restore this home's sessions that no other shard has; return False if to be retried.

        Raises StorageError.
        """
        if self.loaded:
            return True
        if not self.commit_waiter.store.idle:
            self.commit_waiter.store.flush()
        if not self.commit_waiter.store.idle:
            return False
        self.loaded = True
        count = self._bring(None, sessions)
        if count:
            _log.info("sessions restored", extra={"sessions": count})
        return True

    def revive(
        self, client_ids: list[str], sessions: RestoredSessions, done: Callable[[], None]
    ) -> None:
        """Restore the sessions of a shard that has died, once its last changes are on disk."""

        def bring(_reason: int) -> None:
            for client_id in client_ids if self.loaded else ():
                self._bring(client_id, sessions)
            done()

        self.commit_waiter.store.when_safe(bring)
        self.commit_waiter.wake()

    def _bring(self, only: str | None, sessions: RestoredSessions) -> int:
        store = self.commit_waiter.store
        alive = max((at for _, at in store.rows(LIFE)), default=0.0)
        departed = [at for number, at in store.rows(LIFE) if number <= DEPARTED]
        if departed and only is None:
            self.last_departure = self.clock.now() + max(departed) - self.clock.wall()
        parts: dict[str, dict[str, list[Row]]] = {}
        for table in OF_CLIENTS:
            found: dict[str, list[Row]] = defaultdict(list)
            for row in store.rows(table, only):
                found[row[0]].append(row)
            parts[table.name] = found
        count = 0
        for client_id in parts[SESSIONS.name]:
            if self._ownership.is_owned(client_id):
                continue
            own = {name: found.get(client_id, []) for name, found in parts.items()}
            session = self._restore(client_id, sessions.new_delivery(), own, alive)
            sessions.enter(session)
            sessions.schedule(session)
            count += 1
        return count

    def _restore(
        self,
        client_id: str,
        delivery: SessionDelivery,
        rows: dict[str, list[Row]],
        alive: float,
    ) -> Session:
        """Return a session with its state from its rows by table."""
        session = Session(client_id, delivery)
        journal = self.keep(session)
        if not self._ownership.ids.has(client_id):
            journal.doubt()
        ((_, state),) = rows[SESSIONS.name]
        journal.number, sent = restore_session(session, state, self.clock, alive)
        for _, written, _, options in rows[SUBSCRIPTIONS.name]:
            session.subscriptions[written] = grant_of(unpack(options))
        journal.received_rows.restore((first, count) for _, first, count in rows[RECEIVED.name])
        for first, count in journal.received_rows.ranges.ranges():
            if session.received is None:
                session.received = IdentifierRanges()
            session.received.add(first, count)
        receipts: dict[int, Receipt] = {}
        for _, link, epoch, refused, number in rows[HEARD.name]:
            if refused == SEEN_ELSEWHERE:
                journal.seen.elsewhere[link] = number
            else:
                receipts[link] = epoch, refused, number
        journal.receipts.restore(receipts)
        answered = {number: count for _, number, count in rows[ANSWERED.name]}
        inflight_ranges: list[InflightRange] = []
        room = self._window
        for _, number, data in rows[MESSAGES.name]:
            for inflight in self._restored(journal, number, data, answered):
                for piece in _resent_first(inflight, sent, room):
                    room -= piece.count if piece.pid else 0
                    inflight_ranges.append(piece)
        journal.released_rows.restore((first, count) for _, first, count in rows[RELEASED.name])
        packet_ids = journal.released_rows.ranges.numbers()
        restore(session.delivery, inflight_ranges, packet_ids, 1, ReleasedMessages(journal))
        session.delivery.trim()
        return session

    def _restored(
        self, journal: SessionJournal, number: int, data: bytes, answered: dict[int, int]
    ) -> Iterator[InflightRange]:
        """Yield what is left of a row of messages. ``answered``: numbers of settled messages and of
        how many from there on."""
        run, qos, retain, subscription_ids, group = messages_of(data, self.clock)
        found = self._groups.obtain(*group) if group is not None else None
        undelivered = Undelivered(
            journal, number, run.count, None, qos, retain, subscription_ids, found
        )
        journal.number = max(journal.number, number + run.count)
        undelivered.written = True
        undelivered.front = number + answered.get(number, 0)
        settled = [
            (first, answered[first])
            for first in range(number, number + run.count)
            if first in answered
        ]
        if settled:
            undelivered.settled_rows().restore(settled)
        rest = InflightRange(run, run.start, run.count, qos, retain, subscription_ids, found)
        rest.settle = undelivered
        rest.base = number
        for first, count in undelivered.settled.ranges.ranges() if undelivered.settled else ():
            if first > rest.base:
                yield rest.take(first - rest.base)
            if count >= rest.count:
                return
            rest.take(count)
        yield rest


def _resent_first(inflight: InflightRange, sent: int, room: int) -> Iterator[InflightRange]:
    """Yield a restored in-flight range: messages before the number ``sent``, at most ``room``, to be
    resent with their former identifiers, and the rest. Identifiers of a piece are consecutive."""
    while room > 0 and inflight.base < sent:
        pid = identifier_of(inflight.base)
        count = min(inflight.count, room, sent - inflight.base, PACKET_ID_MAX + 1 - pid)
        piece = inflight if count == inflight.count else inflight.take(count)
        piece.pid = pid
        yield piece
        if piece is inflight:
            return
        room -= count
    yield inflight
