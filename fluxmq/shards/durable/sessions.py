"""The persistent sessions of one shard: when their rows are written, and how they come back at
start.

A session whose expiry is not 0 is kept from its first CONNECT to its end. Its home's file is read
when the shard starts, after every peer has told which sessions it has, and for the sessions of a
peer that has died.

Source: MQTT 3.1.1 section 3.1.2.4, MQTT 5.0 section 4.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Protocol

from fluxmq.logs import get_logger
from fluxmq.protocols.mqtt.delivery import Delivery
from fluxmq.protocols.mqtt.portion import Portion
from fluxmq.sessions.mqtt.handover import restore
from fluxmq.sessions.mqtt.session import Session
from fluxmq.shards.claims import Claims
from fluxmq.shards.durable.homes import Done, Home
from fluxmq.shards.durable.keeper import Owed, Released, SessionKeeper, identifier_of
from fluxmq.shards.durable.rows import Clock, grant_of, messages_of, restore_session, unpack
from fluxmq.shards.durable.safety import Safety
from fluxmq.shards.groups import GroupTable
from fluxmq.storage.state_store import (
    ANSWERED,
    HEARD,
    LIFE,
    MESSAGES,
    OF_CLIENTS,
    RECEIVED,
    RELEASED,
    SESSIONS,
    SUBSCRIPTIONS,
    Row,
)

LIFE_SECONDS = 5.0
"""Interval of signs of life; sessions connected at the shard's death may live longer by that."""

_log = get_logger("fluxmq.durable")


class Owner(Protocol):
    """The shard's table of sessions."""

    def holds(self, client_id: str) -> bool:
        """Return whether a session of this id is here."""

    def new_delivery(self) -> Delivery:
        """Return an empty delivery."""

    def enter(self, session: Session) -> None:
        """Add a session with its subscriptions."""

    def schedule(self, session: Session) -> None:
        """Schedule a session whose times were set."""


class DurableSessions:
    """The durable side of the broker's sessions."""

    def __init__(
        self,
        safety: Safety,
        groups: GroupTable,
        owner: Owner,
        claims: Claims,
        window: int,
        connected: Callable[[], int],
    ) -> None:
        self.safety = safety
        self.loaded = False
        """True once the sessions of this home are here: no client may connect before."""
        self._claims = claims
        self._groups = groups
        self._owner = owner
        self._window = window
        self._connected = connected
        self._next_life = 0.0

    @property
    def clock(self) -> Clock:
        """Monotonic and wall clock."""
        return self.safety.clock

    def home(self, client_id: str) -> Home:
        """Return the home of a client's rows."""
        shard = self._claims.home(client_id)
        return self.safety.store if shard == self._claims.shard else self.safety.remote[shard]

    # Called by the broker

    def refusing(self, client_id: str) -> int:
        """Return the reason why a client's session cannot be kept now; 0 if it can."""
        return self.home(client_id).refusing

    def attached(self, session: Session) -> None:
        """Keep a persistent session from now on, which a client has connected with."""
        keeper: SessionKeeper | None = session.delivery.durable
        if keeper is None:
            if not session.expiry:
                return
            keeper = self.keep(session)
            # Remnants of an earlier session that ended unnoticed are not this one's.
            keeper.home.wipe(session.client_id)
        keeper.write_session()

    def keep(self, session: Session) -> SessionKeeper:
        """Begin to keep a session."""
        keeper = SessionKeeper(self.safety, self.home(session.client_id), session)
        session.delivery.durable = keeper
        return keeper

    def subscribed(self, session: Session, written: Iterable[bytes], done: Done) -> None:
        """Write subscriptions that have come or gone; call ``done`` when they are on disk."""
        keeper: SessionKeeper | None = session.delivery.durable
        if keeper is None:
            done(0)
            return
        for each in written:
            keeper.write_subscription(each)
        keeper.home.when_safe(done)
        self.safety.wake()

    def left(self, session: Session) -> None:
        """Write a session whose client has gone, or whose times have changed."""
        keeper: SessionKeeper | None = session.delivery.durable
        if keeper is not None and session.client is None:
            keeper.left()

    def ended(self, session: Session) -> None:
        """End a session."""
        keeper: SessionKeeper | None = session.delivery.durable
        if keeper is not None:
            session.delivery.durable = None
            keeper.end()

    def when_gone(self, client_id: str, done: Callable[[], None]) -> None:
        """Call ``done`` when the end of a client's former session is on disk, or cannot be."""
        self.home(client_id).when_safe(lambda _reason: done())
        self.safety.wake()

    def leaving(self, session: Session) -> None:
        """Write what a session has not answered before it goes to another shard."""
        keeper: SessionKeeper | None = session.delivery.durable
        if keeper is not None:
            keeper.release_held()
            keeper.left()
            self.safety.wake()

    def moved(self, session: Session) -> None:
        """Detach a session that has left; later answers here change nothing any more."""
        keeper: SessionKeeper | None = session.delivery.durable
        if keeper is not None:
            keeper.ended = True
            session.delivery.durable = None

    def arrived(self, session: Session) -> None:
        """Write a session that has come from another shard; its messages were written there."""
        keeper: SessionKeeper | None = session.delivery.durable
        if keeper is not None:
            keeper.write_everything()

    def housekeeping(self) -> None:
        """Note that the shard lives, when due; called every tenth of a second."""
        now = self.clock.now()
        if now >= self._next_life:
            self._next_life = now + LIFE_SECONDS
            if self.loaded and self._connected():
                self.safety.store.put(LIFE, (self.safety.shard, self.clock.wall()))
                self.safety.lazily()
        self.safety.housekeeping()

    # Coming back

    def load(self) -> bool:
        """Restore this home's sessions that no other shard has; return False if to be retried.

        Raises StorageError.
        """
        if self.loaded:
            return True
        if not self.safety.store.idle:
            self.safety.store.flush()
        if not self.safety.store.idle:
            return False
        self.loaded = True
        count = self._bring(None)
        if count:
            _log.info("sessions restored", extra={"sessions": count})
        return True

    def revive(self, client_ids: list[str], done: Callable[[], None]) -> None:
        """Restore the sessions of a shard that has died, once its last changes are on disk."""

        def bring(_reason: int) -> None:
            for client_id in client_ids if self.loaded else ():
                self._bring(client_id)
            done()

        self.safety.store.when_safe(bring)
        self.safety.wake()

    def _bring(self, only: str | None) -> int:
        store = self.safety.store
        alive = max((at for _, at in store.rows(LIFE)), default=0.0)
        parts: dict[str, dict[str, list[Row]]] = {}
        for table in OF_CLIENTS:
            found: dict[str, list[Row]] = defaultdict(list)
            for row in store.rows(table, only):
                found[row[0]].append(row)
            parts[table.name] = found
        count = 0
        for client_id in parts[SESSIONS.name]:
            if self._owner.holds(client_id) or self._claims.owned_elsewhere(client_id):
                continue
            own = {name: found.get(client_id, []) for name, found in parts.items()}
            self._restore(client_id, own, alive)
            count += 1
        return count

    def _restore(self, client_id: str, rows: dict[str, list[Row]], alive: float) -> None:
        """Restore a session from its rows by table."""
        session = Session(client_id, self._owner.new_delivery())
        keeper = self.keep(session)
        ((_, state),) = rows[SESSIONS.name]
        keeper.number, sent = restore_session(session, state, self.clock, alive)
        for _, written, _, options in rows[SUBSCRIPTIONS.name]:
            session.subscriptions[written] = grant_of(unpack(options))
        received = {packet_id for _, packet_id in rows[RECEIVED.name]}
        session.received = received or None
        keeper.heard = {link: (epoch, *rest) for _, link, epoch, *rest in rows[HEARD.name]}
        keeper.heard_before = dict(keeper.heard)
        answered = {number: count for _, number, count in rows[ANSWERED.name]}
        portions: list[Portion] = []
        room = self._window
        for _, number, data in rows[MESSAGES.name]:
            portion = self._restored(keeper, number, data, answered.get(number, 0))
            keeper.number = max(keeper.number, portion.base + portion.count)
            if portion.base < sent and room > 0:
                if portion.count > room:
                    portions.append(_sent(portion.take(room)))
                    room = 0
                else:
                    room -= portion.count
                    _sent(portion)
            portions.append(portion)
        packet_ids = [packet_id for _, packet_id in rows[RELEASED.name]]
        restore(session.delivery, portions, packet_ids, 1)
        if packet_ids:
            session.delivery.released = {
                packet_id: (Released(keeper, packet_id), 0) for packet_id in packet_ids
            }
        session.delivery.trim()
        self._owner.enter(session)
        self._owner.schedule(session)

    def _restored(self, keeper: SessionKeeper, number: int, data: bytes, answered: int) -> Portion:
        run, qos, retain, subscription_ids, group = messages_of(data, self.clock)
        found = self._groups.obtain(*group) if group is not None else None
        owed = Owed(keeper, number, run.count, None, qos, retain, subscription_ids, found)
        owed.written = True
        owed.front = number + answered
        portion = Portion(run, run.start, run.count, qos, retain, subscription_ids, found)
        portion.settle = owed
        portion.base = number
        if answered:
            portion.take(answered)
        return portion


def _sent(portion: Portion) -> Portion:
    """Return the portion, to be resent with its former identifiers."""
    portion.pid = identifier_of(portion.base)
    return portion
