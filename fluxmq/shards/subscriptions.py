"""Subscriptions of one shard's sessions: where each leads, to topics, a shared group or a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fluxmq.engine.clients import QueueClients
from fluxmq.sessions.mqtt.session import Grant, Session
from fluxmq.shards.durable.sessions import DurableSessions
from fluxmq.shards.groups import GroupTable
from fluxmq.shards.routes import RouteTable


class Subscriptions:
    """Adds sessions to routes and shared groups, and removes them from these and from queues."""

    def __init__(
        self, routes: RouteTable, groups: GroupTable, queues: QueueClients, durable: DurableSessions
    ) -> None:
        self.routes = routes
        self.groups = groups
        self._queues = queues
        self._durable = durable
        self.changed: Callable[[Session, bytes], None] = lambda _session, _written: None
        """Called with a subscription that has come, changed or gone, before it is over."""

    @property
    def count(self) -> int:
        """Number of subscriptions of this shard's sessions, including shared ones."""
        return self.routes.subscription_count + self.groups.member_count

    def subscribe(
        self, session: Session, written: bytes, topic_filter: bytes, grant: Grant
    ) -> None:
        """Route messages of a subscription to a session, or change its options."""
        self.changed(session, written)
        if grant.queue is not None:
            return  # consumers attach when the client connects
        if grant.shared:
            self.groups.join(grant.shared, topic_filter, session, grant)
        else:
            self.routes.add(session, topic_filter, grant)

    def unsubscribe(self, session: Session, written: bytes) -> None:
        """Remove a subscription, of whatever kind."""
        grant = session.subscriptions[written]
        topic_filter = session.filter_of(written)
        self.changed(session, written)
        if grant.queue is not None:
            self._queues.unsubscribe(session, written)
        elif grant.shared:
            self.groups.leave(grant.shared, topic_filter, session)
        else:
            self.routes.remove(session, topic_filter)

    def persist(
        self, session: Session, written: Iterable[bytes], done: Callable[[int], None]
    ) -> None:
        """Write subscriptions that have come, changed or gone; ``done`` gets the outcome."""
        for each in written:
            self.changed(session, each)  # those of queues are not routed, and not above
        self._durable.subscribed(session, written, done)

    def connected(self, session: Session) -> None:
        """Attach the consumers of a session whose client has connected; its groups count it in."""
        if not session.subscriptions:
            return
        self._queues.connected(session)
        for written, grant in session.subscriptions.items():
            if grant.shared:
                self.groups.set_connected(grant.shared, session.filter_of(written), session, True)

    def hand_over(self, session: Session, ended: bool) -> None:
        """Give a leaving member's unacknowledged messages to others of its groups."""
        self._queues.left(session)
        if session.subscriptions:
            self.groups.hand_over(session, ended)
