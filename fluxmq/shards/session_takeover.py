"""Session takeover: gives a client its session from wherever it is, and exports sessions to other
shards.

Carries out what ``SessionOwnership`` decides: connections with the same id are closed, sessions move as
values, and a client whose former session is discarded is let in once that session's end is on disk.
A session belongs to the principal that created it (a user, a certificate's name, or anonymous):
others are refused and can neither read nor end it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.delivery import SessionDelivery
from fluxmq.sessions.mqtt.handler import MqttConnectionHandler
from fluxmq.sessions.mqtt.handover import abandon
from fluxmq.sessions.mqtt.outcomes import Cause
from fluxmq.sessions.mqtt.session import Grant, MqttClient, Session
from fluxmq.shards.authentication import Authentication
from fluxmq.shards.groups import GroupTable
from fluxmq.shards.session_ownership import FOREIGN
from fluxmq.shards.transfer import export_session, import_session

if TYPE_CHECKING:
    from fluxmq.shards.durable.sessions import DurableSessions
    from fluxmq.shards.peers import Peers


class SessionTakeover:
    """A shard's handling of claimed client ids."""

    sessions: dict[str, Session]
    handler: MqttConnectionHandler
    authentication: Authentication
    groups: GroupTable
    peers: Peers
    durable: DurableSessions
    takeovers: int
    _arriving: dict[str, MqttClient]
    pause: Callable[[Connection], None]
    schedule: Callable[..., None]
    forget: Callable[[Session], None]
    new_delivery: Callable[[], SessionDelivery]
    enter_subscription: Callable[[Session, bytes, bytes, Grant], None]

    def acquire(self, client: MqttClient, clean: bool) -> None:
        """Claim the client's id for this shard."""
        assert client.connect is not None
        client_id = client.connect.client_id
        ownership = self.peers.ownership
        if ownership.undisputed(client_id):
            self._let_in(client, clean, self.take(client_id, clean, client.username))
            return
        self.pause(client.connection)

        def granted(found: Any, imported: bool) -> None:
            session = self._import(found) if imported else found
            if imported and not self._discarded(client, clean, session):
                # Its subscriptions are here now: continue once every shard knows them.
                self.peers.when_known(partial(arrived, session))
            else:
                self._let_in(client, clean, session)
            self.schedule()

        def arrived(session: Session) -> None:
            if self.sessions.get(client_id) is session and session.client is None:
                self.handler.claimed(client, session)
            else:  # a later claim of the same id was faster
                self.handler.end(client, with_will=False, reason="taken_over")
            self.schedule()

        ownership.acquire(client_id, clean, client.username, granted)

    def _discarded(self, client: MqttClient, clean: bool, session: Session) -> bool:
        """Return whether a session is discarded: by a clean start, or because its user was
        deleted."""
        return clean or session.principal != client.username

    def _foreign(self, owner: str, principal: str | None) -> bool:
        """Return whether ``owner``'s session must not be touched for ``principal``; None may touch
        any."""
        return principal not in (None, owner) and self.authentication.may_return(owner)

    def _let_in(self, client: MqttClient, clean: bool, session: Session | str | None) -> None:
        """Continue CONNECT; if that ends a durable session, only after its end is on disk."""
        if isinstance(session, str):
            self.handler.acquire_refused(client)
            return
        if session is None or not self._discarded(client, clean, session):
            self.handler.claimed(client, session)
            return
        kept = session.delivery.durable is not None
        self.handler.finish(session)
        if not kept:
            self.handler.claimed(client, None)
            return

        client_id = session.client_id
        self._arriving[client_id] = client
        self.pause(client.connection)

        def gone() -> None:
            if self._arriving.get(client_id) is client:
                del self._arriving[client_id]
                self.handler.claimed(client, None)
                if client_id not in self.sessions:
                    self.peers.ownership.release(client_id)
            else:  # a later claim of the same id was faster
                self.handler.end(client, with_will=False, reason="taken_over")

        self.durable.when_gone(client_id, gone)

    def take(self, client_id: str, _clean: bool, principal: str | None) -> Session | str | None:
        """Close this shard's connection of a client id; return its session unless that ended too.
        Return ``FOREIGN``, and close nothing, if it belongs to another principal (None: any)."""
        arriving = self._arriving.get(client_id)
        session = self.sessions.get(client_id)
        owner = arriving.username if arriving is not None else None
        if session is not None:
            owner = session.principal
        if owner is not None and self._foreign(owner, principal):
            return FOREIGN
        self._arriving.pop(client_id, None)
        if session is None:
            return None
        if session.client is not None:
            self.takeovers += 1
            self.handler.disconnect(session.client, Cause.TAKEN_OVER)
        return self.sessions.get(client_id)

    def export(self, client_id: str, clean: bool, principal: str | None) -> list[Any] | str | None:
        """Take a session for another shard, and remove it from this one."""
        session = self.take(client_id, clean, principal)
        if session is None or isinstance(session, str):
            return session
        if clean:
            self.handler.finish(session)
            return None
        self.durable.leaving(session)
        self.forget(session)
        state = export_session(session)
        self.durable.moved(session)
        # The remains must neither wake up (its will!) nor form a cycle.
        session.expires_at = session.will_at = 0.0
        session.will = None
        session.subscriptions.clear()
        abandon(session.delivery)
        return state

    def close_session(self, client_id: str, done: Callable[[int], None]) -> None:
        """End a session on an administrator's request; ``done`` gets the number ended here, once on
        disk."""
        session = self.sessions.get(client_id)
        if session is None:
            done(0)
            return
        if session.client is not None:
            self.handler.disconnect(session.client, Cause.ADMINISTRATOR)
        if self.sessions.get(client_id) is session:
            self.handler.finish(session)
        self.durable.when_gone(client_id, lambda: done(1))
        self.schedule()

    def keep(self, state: list[Any]) -> None:
        """Import a session that left another shard for a client that is gone by now."""
        self.schedule(self._import(state))

    def holds(self, client_id: str) -> bool:
        """Return whether a session of this id is here."""
        return client_id in self.sessions or client_id in self._arriving

    def _import(self, state: list[Any]) -> Session:
        session = import_session(state, self.new_delivery(), self.groups, self.durable.keep)
        self.enter(session)
        self.durable.arrived(session)
        return session

    def enter(self, session: Session) -> None:
        """Add a session that was elsewhere or was restored."""
        self.sessions[session.client_id] = session
        for written, grant in session.subscriptions.items():
            self.enter_subscription(session, written, session.filter_of(written), grant)
