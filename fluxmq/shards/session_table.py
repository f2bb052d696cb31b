"""The sessions of one shard by client id, with their timers; they come, move and end here."""

from __future__ import annotations

from typing import Any

from fluxmq.net.reactor import Reactor
from fluxmq.protocols.mqtt.delivery import EVICT, REJECT, SessionDelivery
from fluxmq.sessions.mqtt.handler import MqttConnectionHandler
from fluxmq.sessions.mqtt.handover import abandon
from fluxmq.sessions.mqtt.session import Session
from fluxmq.settings.schema import SessionSettings
from fluxmq.shards.durable.sessions import DurableSessions
from fluxmq.shards.expected_sessions import ExpectedSessions
from fluxmq.shards.limits import PENDING_CONNECTED_MAX
from fluxmq.shards.session_ownership import SessionOwnership
from fluxmq.shards.subscriptions import Subscriptions
from fluxmq.shards.timers import DueTimes
from fluxmq.shards.transfer import export_session, import_session


class SessionTable:
    """All sessions here, connected or not."""

    _settings: SessionSettings
    _sessions_max: int
    expected: ExpectedSessions

    def __init__(
        self,
        reactor: Reactor,
        handler: MqttConnectionHandler,
        subscriptions: Subscriptions,
        durable: DurableSessions,
        ownership: SessionOwnership,
    ) -> None:
        """``handler`` is told of expiries and wills; ``ownership`` of sessions that have ended."""
        self._tally = reactor.tally
        self._handler = handler
        self.subscriptions = subscriptions
        self.durable = durable
        self._ownership = ownership
        self.by_id: dict[str, Session] = {}
        self.timers: DueTimes[Session] = DueTimes()
        self.expired = 0
        """Number of sessions that have expired."""

    def configure(self, settings: SessionSettings, sessions_max: int) -> None:
        """Apply settings, at start and on change; ``sessions_max``: this shard's share of them."""
        self._settings = settings
        self._sessions_max = sessions_max

    def of_home(self, shard: int) -> list[str]:
        """Return the client ids here whose home is a given shard."""
        return [client_id for client_id in self.by_id if self._ownership.home(client_id) == shard]

    # Beginning

    def create(self, client_id: str) -> Session | None:
        """Create a session; return None if the shard holds the maximum."""
        if len(self.by_id) >= self._sessions_max:
            return None
        session = Session(client_id, self.new_delivery())
        self.by_id[client_id] = session
        return session

    def new_delivery(self) -> SessionDelivery:
        """Return a new session's delivery, which is empty."""
        settings = self._settings
        return SessionDelivery(
            self._tally,
            settings.max_offline_queue_size,
            max(settings.max_offline_queue_size, PENDING_CONNECTED_MAX),
            settings.max_offline_queue_bytes,
            EVICT if settings.offline_queue_policy == "evict" else REJECT,
        )

    def refuses_to_keep(self, client_id: str) -> int:
        """Return the reason why no session of a client can be kept on disk now; 0 if it can."""
        return self.durable.refusing(client_id)

    def enter(self, session: Session) -> None:
        """Add a session that was elsewhere or was restored."""
        self.by_id[session.client_id] = session
        for written, grant in session.subscriptions.items():
            self.subscriptions.subscribe(session, written, session.filter_of(written), grant)

    # While the client comes and goes

    def adopt(self, session: Session) -> None:
        """Stop the timers of a session whose client has connected."""
        self.timers.cancel(session)
        self.durable.attached(session)
        self.subscriptions.connected(session)

    def schedule(self, session: Session) -> None:
        """Set the timers of a session whose client is away."""
        self.timers.set_earliest(session, session.will_at, session.expires_at)
        self.durable.left(session)

    def run_timers(self) -> None:
        """Handle expiries and wills that are due."""
        self.timers.due(self._tally.now, self._due)

    def _due(self, session: Session) -> None:
        before = len(self.by_id)
        self._handler.due(session)
        self.expired += before - len(self.by_id)

    # The end

    def ended(self, session: Session) -> None:
        """Clean up after a session has ended."""
        if self.by_id.get(session.client_id) is session:
            self._remove(session)
            self._ownership.release(session.client_id)
        self.durable.ended(session)
        session.subscriptions.clear()
        abandon(session.delivery)

    # Leaving

    def freeze(self, session: Session) -> None:
        """Let a session, whose client is away, neither expire nor publish its will for now."""
        self.timers.cancel(session)

    def leave_groups(self, session: Session) -> None:
        """Give a frozen session no further messages of shared groups."""
        for written, grant in session.subscriptions.items():
            if grant.shared and grant.queue is None:
                topic_filter = session.filter_of(written)
                self.subscriptions.groups.leave(grant.shared, topic_filter, session)

    def thaw(self, session: Session) -> None:
        """Go on with a frozen session."""
        if self.by_id.get(session.client_id) is not session:
            return
        for written, grant in session.subscriptions.items():
            if grant.shared and grant.queue is None:
                topic_filter = session.filter_of(written)
                self.subscriptions.subscribe(session, written, topic_filter, grant)
        if session.client is None:
            self.schedule(session)

    def _remove(self, session: Session) -> None:
        for written in list(session.subscriptions):
            self.subscriptions.unsubscribe(session, written)
        del self.by_id[session.client_id]
        self.timers.cancel(session)

    def discard(self, session: Session) -> None:
        """Delete a session that another node has; its will is not published here."""
        if self.by_id.get(session.client_id) is session:
            self._remove(session)
        self.durable.ended(session)
        self._forget(session)

    def _forget(self, session: Session) -> None:
        """Make sure that what remains of a session neither wakes up (its will!) nor forms a
        cycle."""
        session.expires_at = session.will_at = 0.0
        session.will = None
        session.subscriptions.clear()
        abandon(session.delivery)

    # Moving

    def move_out(self, session: Session) -> list[Any]:
        """Remove a session and return its state, for another shard."""
        self.durable.leaving(session)
        self._remove(session)
        state = export_session(session)
        self.durable.moved(session)
        self._forget(session)
        return state

    def move_in(self, state: list[Any]) -> Session:
        """Add a session that another shard has exported."""
        groups = self.subscriptions.groups
        session = import_session(state, self.new_delivery(), groups, self.durable.keep)
        self.enter(session)
        self.durable.arrived(session)
        self.expected.came(session, state[12])
        return session
