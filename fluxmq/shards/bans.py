"""Bans as a shard enforces them: at each login, and on the connections that are open when one comes.

The control process sends all bans at once, after hello and at each change. Whoever the acceptor let
in before it knew of a ban is refused here. A banned client's session stays, and waits for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from fluxmq.auth.bans import BanTable
from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.door_messages import BANS, BanList, BansApplied
from fluxmq.ipc.messages import Body
from fluxmq.net.reactor import Reactor
from fluxmq.sessions.amqp091.handler import AmqpSession
from fluxmq.sessions.amqp10.handler import Amqp10Connection
from fluxmq.sessions.mqtt.handler import MqttConnectionHandler
from fluxmq.sessions.mqtt.outcomes import Cause
from fluxmq.sessions.mqtt.session import CLOSED, MqttClient

REASON = "banned"
ENDING = frozenset(("CLOSING", "CLOSED"))
"""Stages of an AMQP connection that ends already."""
"""Text that clients are given."""


class CurrentBans:
    """The bans in force now. ``now``: the wall clock, as Unix time."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.table = BanTable()
        self.refused: Counter[str] = Counter()
        """Logins refused, by method; ``connect`` before any."""
        self._now = now

    def refuse(self, method: str, peer: str, user: str = "", client_id: str = "") -> bool:
        """Return whether a login is banned, and count it."""
        banned = self.login(peer, user, client_id)
        if banned:
            self.refused[method] += 1
        return banned

    def login(self, peer: str, user: str = "", client_id: str = "") -> bool:
        """Return whether a login is banned, for any of these."""
        table, now = self.table, self._now()
        return (
            table.address(peer, now)
            or bool(user and table.user(user, now))
            or bool(client_id and table.client_id(client_id, now))
        )


class BanUpdates:
    """Takes new bans, and closes the connections that they concern."""

    def __init__(self, reactor: Reactor, handler: MqttConnectionHandler, bans: CurrentBans) -> None:
        self._reactor = reactor
        self._handler = handler
        self._bans = bans

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """Handlers of control's messages by kind."""
        return {BANS: self._take}

    def _take(self, body: Body, answered: Answered) -> None:
        self._bans.table = BanTable(BanList.from_body(body).bans)
        closed = 0
        for connection in list(self._reactor.connections.values()):
            client = connection.identity
            if isinstance(client, (AmqpSession, Amqp10Connection)):
                closed += self._close_amqp(client)
            elif isinstance(client, MqttClient):
                closed += self._close_mqtt(client)
        self._reactor.host.schedule()
        answered(BansApplied(closed).to_body())

    def _close_mqtt(self, client: MqttClient) -> bool:
        """Close an MQTT connection if it is banned."""
        connect = client.connect
        user, client_id = client.username or client.certificate_name, ""
        if client.session is not None:
            client_id = client.session.client_id
        elif connect is not None:
            user, client_id = user or connect.username or "", connect.client_id
        if client.scram is not None:
            user = user or client.scram.username
        if client.stage is CLOSED or not self._bans.login(client.peer, user, client_id):
            return False
        self._handler.disconnect(client, Cause.BANNED)
        return True

    def _close_amqp(self, session: AmqpSession | Amqp10Connection) -> bool:
        """Close an AMQP connection if it is banned."""
        client = session.client
        ending = client.stage.name in ENDING
        if ending or not self._bans.login(client.info.peer, client.info.user):
            return False
        client.disconnect(REASON)
        return True
