"""The ports of a test's shard that its sessions use, as plain as they can be.

No groups, no queues, no disk, no other shards; the clock stands still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from fluxmq.auth.logins import AuthResult, LoginOutcome
from fluxmq.auth.policy import TopicPolicy
from fluxmq.protocols.mqtt.packets import Connect
from fluxmq.protocols.mqtt.reasons import ProtocolError
from fluxmq.routing.subscriptions import SubscriptionTree
from fluxmq.sessions.mqtt.outcomes import Cause
from fluxmq.sessions.mqtt.ports import PeersPort
from fluxmq.sessions.mqtt.publishing import publish_will
from fluxmq.sessions.mqtt.queue_subscriptions import QueueSubscription
from fluxmq.sessions.mqtt.session import Grant, MqttClient, Session, Will
from fluxmq.sessions.mqtt.settlement import SettlementCommand
from fluxmq.shards.amqp.broker_messages import BrokerMessages
from fluxmq.shards.amqp.events import BrokerEvents
from fluxmq.shards.bans import CurrentBans
from fluxmq.shards.user_limits import UserLimitChecks
from fluxmq.shards.wills import LocalWills
from tests.unit.variants import Hot

if TYPE_CHECKING:
    from tests.unit.net.shard import Shard


class Logins:
    """Everybody may come in, without a name."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    def check(
        self, client: MqttClient, connect: Connect, done: Callable[[AuthResult], None]
    ) -> None:
        """Everybody may come in."""
        done(AuthResult(LoginOutcome.ACCEPTED))

    def verify(self, _username: str, _password: bytes, _peer: str, done: Any) -> None:
        """Everybody may come in."""
        done(AuthResult(LoginOutcome.ACCEPTED))

    def scram_exchange(self) -> Any:
        """There is none."""
        raise ProtocolError(0x8C, "no such method")

    def scram_keys(self, username: str, peer: str) -> None:
        """Nobody has any."""

    def login_refusal(self, username: str, peer: str) -> None:
        """Anybody may try."""

    def scram_result(self, username: str, peer: str, success: bool) -> None:
        """Not counted."""

    def record(self, name: str) -> None:
        """There are no users."""

    def policy(self, client_id: str, username: str) -> TopicPolicy:
        """The permissions of all clients."""
        return self.shard.access

    def will_policy(
        self, client_id: str, username: str, without_user: bool, backend: str
    ) -> TopicPolicy:
        """The permissions of all clients."""
        return self.shard.access


class Sessions:
    """The sessions, their subscriptions, and who takes one over. Nothing is kept on disk."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    def new_client_id(self) -> str:
        """The next one."""
        return f"auto-{len(self.shard.peers)}"

    def acquire(self, client: MqttClient, clean: bool) -> None:
        """Take the client id over from its present session."""
        assert client.connect is not None
        sessions, handler = self.shard.sessions, self.shard.handler
        session = sessions.get(client.connect.client_id)
        if session is not None and session.client is not None:
            handler.disconnect(session.client, Cause.TAKEN_OVER)
            session = sessions.get(client.connect.client_id)
        if session is not None and clean:
            handler.finish(session)
            session = None
        handler.claimed(client, session)

    def create(self, client_id: str) -> Session | None:
        """A new session."""
        if len(self.shard.sessions) >= self.shard.limits.max_sessions:
            return None
        session = Session(client_id, self.delivery())
        self.shard.sessions[client_id] = session
        return session

    def delivery(self) -> Any:
        """An empty delivery with room enough."""
        hot, tally = self.shard.hot, self.shard.reactor.tally
        return hot.delivery.SessionDelivery(tally, 10_000, 100_000, 1 << 26, 0)

    def refuses_to_keep(self, client_id: str) -> int:
        """Nothing is kept on disk."""
        return 0

    def adopt(self, session: Session) -> None:
        """Nothing to do without groups."""

    def schedule(self, session: Session) -> None:
        """A session's timers never run here."""
        self.shard.scheduled = True

    def ended(self, session: Session) -> None:
        """Forget it."""
        for written in list(session.subscriptions):
            self.unsubscribe(session, written)
        if self.shard.sessions.get(session.client_id) is session:
            del self.shard.sessions[session.client_id]
        session.subscriptions.clear()
        session.delivery.session = None

    def subscribe(
        self, session: Session, written: bytes, topic_filter: bytes, grant: Grant
    ) -> None:
        """Enter it; groups are not known here, a shared subscription is an ordinary one."""
        self.shard.tree.add(topic_filter, session, grant)
        self.shard.reactor.routes.clear()

    def unsubscribe(self, session: Session, written: bytes) -> None:
        """Remove it."""
        self.shard.tree.remove(session.filter_of(written), session)
        self.shard.reactor.routes.clear()

    def hand_over(self, session: Session, ended: bool) -> None:
        """There are no groups."""

    def persist(self, session: Session, written: Any, done: Any) -> None:
        """Nothing is kept on disk here."""
        done(0)

    def when_known(self, done: Callable[[], None]) -> None:
        """At once: there is one shard."""
        done()


class Retained:
    """Retained messages in one dictionary."""

    def __init__(self, hot: Hot) -> None:
        self.hot = hot
        self.messages: dict[bytes, Any] = {}

    def retain(self, run: Any) -> bool:
        """Keep the last message."""
        payload = run.payloads()[-1]
        if payload:
            self.messages[run.topic] = self.hot.run.message_run(
                run.topic, payload, run.qos, 1, run.properties, run.deadline
            )
        else:
            self.messages.pop(run.topic, None)
        return True

    def topics(self, topic_filter: bytes) -> Iterator[bytes]:
        """Those that match, in order."""
        tree: SubscriptionTree[int, None] = SubscriptionTree()
        tree.add(topic_filter, 1, None)
        return iter([topic for topic in sorted(self.messages) if list(tree.match(topic))])

    def message(self, topic: bytes) -> Any:
        """The message."""
        return self.messages.get(topic)


class Connections:
    """Reading and closing; the clock stands still."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    def pause(self, connection: Any) -> None:
        """Stop reading."""
        self.shard.reactor.pause(connection, self.shard.hot.reactor.PAUSED_STEP)

    def resume(self, connection: Any) -> None:
        """Go on."""
        self.shard.reactor.resume(connection, self.shard.hot.reactor.PAUSED_STEP)

    def close(self, connection: Any, linger: bool) -> None:
        """Close once everything is written."""
        if connection.fd < 0 or connection.closing:
            return
        connection.delivery = None
        connection.open = False
        if not linger:
            connection.flush()
            self.shard.reactor.discard(connection)
            return
        connection.closing = True
        connection.buffer()
        self.pause(connection)

    def watch(self, client: MqttClient, seconds: float) -> None:
        """The clock stands still."""

    def end_at(self, client: MqttClient, at: float) -> None:
        """The clock stands still."""

    def feed_later(self, client: MqttClient) -> None:
        raise AssertionError(client.peer)


class Counts:
    """Errors and drops are counted."""

    def __init__(self, shard: Shard) -> None:
        self.errors = shard.errors
        self.drops = shard.drops

    def packet_received(self, kind: int, count: int = 1) -> None:
        """Not counted."""

    def connection_closed(self, reason: str) -> None:
        """Not counted."""

    def client_error(self, client: MqttClient, reason: int, text: str) -> None:
        """Count."""
        self.errors[reason] += 1

    def messages_dropped(self, reason: str, count: int) -> None:
        """Count."""
        self.drops[reason] += count

    def will_published(self) -> None:
        """Not counted."""

    def will_refused(self, client_id: str, principal: str, will: Will) -> None:
        """Count."""
        self.drops["no_permission"] += 1


class NoQueues:
    """Not asked: there are no queues."""

    def subscribe(
        self,
        session: Session,
        written: bytes,
        wanted: QueueSubscription,
        done: Callable[[int], None],
    ) -> None:
        raise AssertionError(written)

    def settle(
        self, client: MqttClient, settlement: SettlementCommand, done: Callable[[int], object]
    ) -> None:
        raise AssertionError(settlement)


class NoAlarms:
    """There is memory enough."""

    critical = False

    def refuse(self, what: str) -> None:
        raise AssertionError(what)


class Broker:
    """The shard, as its sessions use it."""

    def __init__(self, shard: Shard) -> None:
        self.limits = shard.limits
        self.reactor = shard.reactor
        self.authentication = Logins(shard)
        self.bans = CurrentBans()
        self.takeover = self.sessions = self.subscriptions = Sessions(shard)
        self.peers: PeersPort = self.sessions
        self.retained = Retained(shard.hot)
        self.connections = Connections(shard)
        self.counts = Counts(shard)
        self.queues = NoQueues()
        self.alarms = NoAlarms()
        self.user_limits = UserLimitChecks({})
        self.events = BrokerEvents(BrokerMessages(), 0, "n", lambda: 0)
        self.wills = LocalWills(partial(publish_will, self))

    def now(self) -> float:
        """Seconds."""
        return float(self.reactor.tally.now)
