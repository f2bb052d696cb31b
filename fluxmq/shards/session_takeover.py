"""Session takeover: gives a client its session from wherever it is, and exports sessions to other
shards.

Carries out what ``SessionOwnership`` decides: connections with the same id are closed, sessions
move as values, and a client whose former session is discarded is let in once that session's end is
on disk. A session belongs to the principal that created it (a user, a certificate's name, or
anonymous): others are refused and can neither read nor end it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

from fluxmq.sessions.mqtt.handler import MqttConnectionHandler
from fluxmq.sessions.mqtt.outcomes import Cause
from fluxmq.sessions.mqtt.session import MqttClient, Session
from fluxmq.shards.authentication import Authentication
from fluxmq.shards.connections import ClientConnections
from fluxmq.shards.durable.sessions import DurableSessions
from fluxmq.shards.peers import Peers
from fluxmq.shards.session_ownership import FOREIGN, UNAVAILABLE, SessionOwnership
from fluxmq.shards.session_table import SessionTable
from fluxmq.shards.transfer import GrantValues, subscriptions_of


class SessionTakeover:
    """A shard's handling of claimed client ids."""

    def __init__(
        self,
        ownership: SessionOwnership,
        sessions: SessionTable,
        durable: DurableSessions,
        peers: Peers,
        handler: MqttConnectionHandler,
        connections: ClientConnections,
        authentication: Authentication,
        schedule: Callable[[], None],
    ) -> None:
        """``handler`` continues clients' CONNECT, and ends connections and sessions; ``schedule``
        schedules a tick."""
        self._ownership = ownership
        self._sessions = sessions
        self._durable = durable
        self._peers = peers
        self._handler = handler
        self._connections = connections
        self._authentication = authentication
        self._schedule = schedule
        self._arriving: dict[str, MqttClient] = {}
        """Clients that are let in once the end of their former session is on disk."""
        self._frozen: dict[str, Session] = {}
        """Sessions that are about to move to other shards."""
        self.count = 0
        """Number of connections that were closed for a new one of the same client id."""
        ownership.serve(self)

    def new_client_id(self) -> str:
        """Return a new client id with this shard as home, so that a plain reconnect comes here."""
        ownership = self._ownership
        while True:
            name = "auto-" + secrets.token_hex(10)
            if ownership.home(name) == ownership.shard:
                return name

    def acquire(self, client: MqttClient, clean: bool) -> None:
        """Claim the client's id for this shard."""
        assert client.connect is not None
        client_id = client.connect.client_id
        ownership = self._ownership
        if ownership.undisputed(client_id):
            self._let_in(client, clean, self.take(client_id, clean, client.username))
            return
        self._connections.pause(client.connection)

        def granted(found: Any, imported: bool) -> None:
            if not imported:
                self._sessions.expected.drop(client_id)
            session = self._sessions.move_in(found) if imported else found
            if imported and not self._discarded(client, clean, session):
                # Its subscriptions are here now: continue once every shard knows them.
                self._peers.when_known(partial(arrived, session))
            else:
                self._let_in(client, clean, session)
            self._schedule()

        def arrived(session: Session) -> None:
            if self._sessions.by_id.get(client_id) is session and session.client is None:
                self._handler.claimed(client, session)
            else:  # a later claim of the same id was faster
                self._handler.end(client, with_will=False, reason="taken_over")
            self._schedule()

        ownership.acquire(client_id, clean, client.username, granted)

    def _discarded(self, client: MqttClient, clean: bool, session: Session) -> bool:
        """Return whether a session is discarded: by a clean start, or because its user was
        deleted."""
        return clean or session.principal != client.username

    def _foreign(self, owner: str, principal: str | None) -> bool:
        """Return whether ``owner``'s session must not be touched for ``principal``; None may touch
        any."""
        return principal not in (None, owner) and self._authentication.may_return(owner)

    def _let_in(self, client: MqttClient, clean: bool, session: Session | str | None) -> None:
        """Continue CONNECT; if that ends a durable session, only after its end is on disk."""
        if isinstance(session, str):
            self._handler.acquire_refused(client, unavailable=session == UNAVAILABLE)
            return
        if session is None or not self._discarded(client, clean, session):
            self._handler.claimed(client, session)
            return
        kept = session.delivery.durable is not None
        self._handler.finish(session)
        if not kept:
            self._handler.claimed(client, None)
            return

        client_id = session.client_id
        self._arriving[client_id] = client
        self._connections.pause(client.connection)

        def gone() -> None:
            if self._arriving.get(client_id) is client:
                del self._arriving[client_id]
                self._handler.claimed(client, None)
                if client_id not in self._sessions.by_id:
                    self._ownership.release(client_id)
            else:  # a later claim of the same id was faster
                self._handler.end(client, with_will=False, reason="taken_over")

        self._durable.when_gone(client_id, gone)

    def take(self, client_id: str, _clean: bool, principal: str | None) -> Session | str | None:
        """Close this shard's connection of a client id; return its session unless that ended too.
        Return ``FOREIGN``, and close nothing, if it belongs to another principal (None: any)."""
        arriving = self._arriving.get(client_id)
        session = self._sessions.by_id.get(client_id)
        owner = arriving.username if arriving is not None else None
        if session is not None:
            owner = session.principal
        if owner is not None and self._foreign(owner, principal):
            return FOREIGN
        self._arriving.pop(client_id, None)
        self._frozen.pop(client_id, None)
        if session is None:
            return None
        if session.client is not None:
            self.count += 1
            self._handler.disconnect(session.client, Cause.TAKEN_OVER)
        return self._sessions.by_id.get(client_id)

    def freeze(
        self, client_id: str, clean: bool, principal: str | None
    ) -> GrantValues | str | None:
        """Close this shard's connection of a client id for another shard. Return the subscriptions of
        its session, which is frozen, or what `take` returns if there is nothing to move."""
        session = self.take(client_id, clean, principal)
        if session is None or isinstance(session, str):
            return session
        if clean:
            kept = session.delivery.durable is not None
            self._handler.finish(session)
            if kept:
                self._durable.flush(client_id)
            return None
        self._sessions.freeze(session)
        self._frozen[client_id] = session
        return subscriptions_of(session)

    def thaw(self, client_id: str) -> None:
        """Go on with a frozen session."""
        session = self._frozen.pop(client_id, None)
        if session is not None:
            self._sessions.thaw(session)

    def home_lost(self, home: int) -> None:
        """Go on with the frozen sessions of a home that has died."""
        for client_id in [each for each in self._frozen if self._ownership.home(each) == home]:
            self.thaw(client_id)

    def expect(self, client_id: str, subscriptions: GrantValues, known: Callable[[], None]) -> None:
        """Have the messages of a session that is about to come wait here; call ``known`` when all
        shards send them here."""

        def ready(_passed: bool) -> None:
            known()  # a shard that has died sends nothing any more

        flush = self._peers.flush_shards
        self._sessions.expected.expect(client_id, subscriptions, flush, ready)

    def when_all_came(self, done: Callable[[], None]) -> None:
        """Call ``done`` when all messages have come that other shards have sent here."""
        self._peers.flush_shards(lambda _passed: done())

    def export(self, client_id: str, done: Callable[[Any], None]) -> None:
        """Remove a frozen session from this shard once all messages for it have come that its next
        shard does not get; ``done`` gets its state, or None if it has ended."""
        session = self._frozen.get(client_id)
        if session is None:
            done(None)
            return
        frozen = session
        self._sessions.leave_groups(frozen)

        def exported(_passed: bool) -> None:
            if self._frozen.get(client_id) is not frozen:
                return  # its home has died, which has waited for it
            del self._frozen[client_id]
            present = self._sessions.by_id.get(client_id) is frozen
            done(self._sessions.move_out(frozen) if present else None)

        self._peers.flush_shards(exported)

    def close_session(self, client_id: str, done: Callable[[int], None]) -> None:
        """End a session on an administrator's request; ``done`` gets the number ended here, once on
        disk."""
        session = self._sessions.by_id.get(client_id)
        if session is None:
            done(0)
            return
        if session.client is not None:
            self._handler.disconnect(session.client, Cause.ADMINISTRATOR)
        if self._sessions.by_id.get(client_id) is session:
            self._handler.finish(session)
        self._durable.when_gone(client_id, lambda: done(1))
        self._schedule()

    def keep(self, state: list[Any]) -> None:
        """Import a session that left another shard for a client that is gone by now."""
        self._sessions.schedule(self._sessions.move_in(state))

    def holds(self, client_id: str) -> bool:
        """Return whether a session of this id is here."""
        return client_id in self._sessions.by_id or client_id in self._arriving

    def of_home(self) -> list[str]:
        """Return the ids of the sessions here whose home is this shard."""
        return self._sessions.of_home(self._ownership.shard)

    def delete(self, client_id: str) -> None:
        """Delete a session of which another node has a newer state."""
        session = self._sessions.by_id.get(client_id)
        if session is not None and session.client is not None:
            self.count += 1
            self._handler.disconnect(session.client, Cause.TAKEN_OVER)
        session = self._sessions.by_id.get(client_id)
        if session is not None:
            self._sessions.discard(session)
        self._schedule()

    def bring_back(self) -> bool:
        """Restore the sessions kept on this shard's disk that no shard has; False: call again."""
        return self._durable.load(self._sessions)

    def revive(self, client_ids: list[str], done: Callable[[], None]) -> None:
        """Restore the sessions of a shard that has died."""
        self._durable.revive(client_ids, self._sessions, done)
