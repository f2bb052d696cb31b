"""Applies changes of users or of anonymous access to existing connections and sessions.

New connections follow the new rules anyway. A connected client gets its new permissions at once; it
is disconnected if its identity is no longer allowed or one of its subscriptions is not. A session
whose client is away ends if its user was deleted or it has a subscription that is no longer
allowed: it must not accumulate messages. A disabled user's session waits.
"""

from __future__ import annotations

from fluxmq.auth.hash_upgrades import same_password
from fluxmq.auth.logins import INTERNAL
from fluxmq.auth.users import User
from fluxmq.net.reactor import Reactor
from fluxmq.sessions.mqtt.connect_flow import apply_policy, of_backend
from fluxmq.sessions.mqtt.outcomes import Cause
from fluxmq.sessions.mqtt.session import CONNECTED, MqttClient, Session
from fluxmq.settings.schema import AuthSettings
from fluxmq.shards.authentication import Authentication
from fluxmq.shards.bans import BanUpdates
from fluxmq.shards.broker import ShardBroker


class PermissionUpdates:
    """Applies changes to the connections and sessions of one shard."""

    def __init__(
        self, reactor: Reactor, broker: ShardBroker, authentication: Authentication
    ) -> None:
        self._reactor = reactor
        self._broker = broker
        self._authentication = authentication
        self.bans = BanUpdates(reactor, broker.handler, authentication.bans)

    def set_users(self, revision: int, users: tuple[User, ...]) -> None:
        """Apply a new snapshot of users."""
        authentication = self._authentication
        before = {user.name: user for user in authentication.users()}
        known = authentication.revision >= 0
        changed = authentication.set_users(revision, users)
        if not changed:
            return
        if known:
            self._broker.events.users_changed(before.values(), users)
        for client in self._clients():
            if name_of(client) in changed and client.stage is not CONNECTED:
                # Still connecting, under rules that no longer hold: it may try again.
                self._broker.handler.disconnect(client, Cause.PERMISSIONS)
        for session in list(self._broker.sessions.by_id.values()):
            if session.principal in changed:
                self._apply(session, before.get(session.principal))
        self._broker.schedule()

    def configure(self, settings: AuthSettings) -> None:
        """Apply new authentication settings."""
        authentication = self._authentication
        anonymous = authentication.settings.anonymous
        former = authentication.settings.backends
        authentication.configure(settings)
        if settings.backends != former:
            self._end_logins(settings.backends)
        if settings.anonymous == anonymous:
            return
        users = {user.name for user in authentication.users()}
        for session in list(self._broker.sessions.by_id.values()):
            if session.principal not in users:
                self._apply(session, None)
        self._broker.schedule()

    def _end_logins(self, backends: tuple[str, ...]) -> None:
        """Disconnect users of backends that are no longer asked."""
        for client in self._clients():
            backend = "" if client.policy is None else client.policy.backend
            if backend and backend not in backends:
                self._broker.handler.disconnect(client, Cause.PERMISSIONS)
        self._broker.schedule()

    def _clients(self) -> list[MqttClient]:
        connections = self._reactor.connections.values()
        return [each.identity for each in connections if isinstance(each.identity, MqttClient)]

    def _apply(self, session: Session, before: User | None) -> None:
        """Apply the current rules to a session; ``before``: its user's former record. Users of
        other backends keep the rights of their login."""
        authentication = self._authentication
        client = session.client
        if client is not None and of_backend(client):
            return
        elsewhere = bool(session.principal) and authentication.settings.backends != (INTERNAL,)
        if before is None and elsewhere and authentication.record(session.principal) is None:
            return
        user = authentication.record(session.principal)
        policy = authentication.policy(session.client_id, session.principal)
        gone = user is None and before is not None
        wanted = all(policy.may_subscribe(written.decode()) for written in session.subscriptions)
        if client is not None:
            if gone or not wanted or not self._may_stay(client, user, before):
                self._broker.handler.disconnect(client, Cause.PERMISSIONS)
            else:
                client.policy = policy
                apply_policy(client)
        if (gone or not wanted) and self._broker.sessions.by_id.get(session.client_id) is session:
            self._broker.handler.finish(session)

    def _may_stay(self, client: MqttClient, user: User | None, before: User | None) -> bool:
        """Return whether a connected client may keep its identity."""
        if user is not None:
            return user.enabled and (before is None or same_password(before.hash, user.hash))
        return bool(client.certificate_name) or self._authentication.anonymous_allowed(client)


def name_of(client: MqttClient) -> str:
    """Return the user that a client is or claims to be."""
    if client.username:
        return client.username
    return client.scram.username if client.scram is not None else ""
