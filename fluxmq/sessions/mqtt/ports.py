"""The ports of MQTT sessions to the broker, one for each idea; the shard's parts implement them.

Defined here, because the consumer of an interface knows its needs. Every method returns at once;
what takes time takes a callback, which is called on the shard's loop, possibly before the method
returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from fluxmq.auth.logins import AuthResult, LoginOutcome
from fluxmq.auth.policy import TopicPolicy
from fluxmq.auth.scram import ServerExchange, StoredKeys
from fluxmq.auth.users import User
from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.codec import Limits
from fluxmq.protocols.mqtt.packets import Connect
from fluxmq.protocols.mqtt.pending_acks import PendingAck
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.sessions.mqtt.queue_subscriptions import QueueSubscription
from fluxmq.sessions.mqtt.session import Grant, MqttClient, Session, Will
from fluxmq.sessions.mqtt.settlement import SettlementCommand


@dataclass(slots=True)
class SessionLimits:
    """Settings of sessions; sizes in bytes, times in seconds."""

    max_packet: int
    max_qos: int
    max_topic_bytes: int
    max_topic_levels: int
    max_subscriptions: int
    max_will: int
    max_sessions: int
    max_client_id: int
    topic_alias_maximum: int
    topic_alias_maximum_out: int
    keep_alive_maximum: int
    default_expiry: int
    max_expiry: int
    max_inflight: int
    packets: Limits
    acknowledge_refused: bool = True
    """True when a 3.1.1 client's permanently refused publish is acknowledged instead of
    disconnecting."""
    tokens: bool = False
    """True when a login backend accepts tokens, so that they are an authentication method."""
    connacks: dict[tuple[bool, bool], bytes] = field(default_factory=dict)
    """Encoded CONNACKs of MQTT 5 clients without special requests, by session present and server
    keep-alive: they depend on these settings alone."""


class BansPort(Protocol):
    """Bans of addresses, users and client ids."""

    def refuse(self, method: str, peer: str, user: str, client_id: str, /) -> bool:
        """Return whether a login is banned for any of these, and count it. The user of a SCRAM login
        is not known at CONNECT."""


class LoginPort(Protocol):
    """Authentication and permissions of clients."""

    def check(
        self, client: MqttClient, connect: Connect, done: Callable[[AuthResult], None], /
    ) -> None:
        """Check name and password (or the certificate, or that none are needed).

        ``done`` is called at once for a client without a name, otherwise at once or later.
        """

    def verify(
        self, username: str, password: bytes, peer: str, done: Callable[[AuthResult], None], /
    ) -> None:
        """Check a password, or a token, which needs no name; ``done`` is called at once or later."""

    def scram_exchange(self) -> ServerExchange:
        """Return a new SCRAM-SHA-256 exchange."""

    def scram_keys(self, username: str, peer: str, /) -> StoredKeys | None:
        """Return the keys of an enabled user who may log in from ``peer`` (address:port)."""

    def scram_result(self, username: str, peer: str, success: bool, /) -> None:
        """Count a login that ran inside the session."""

    def login_refusal(self, username: str, peer: str, /) -> LoginOutcome | None:
        """Return why a SCRAM login cannot be tried, or not now; None when it can."""

    def record(self, name: str, /) -> User | None:
        """Return the user of this name, enabled or not; None if there is none."""

    def policy(self, client_id: str, username: str, /) -> TopicPolicy:
        """Return a client's permissions."""

    def will_policy(
        self, client_id: str, username: str, without_user: bool, backend: str, /
    ) -> TopicPolicy | None:
        """Return the current permissions of a client, connected or not; None if it may not log in.

        ``without_user``: it was no known user when it connected. ``backend``: the login backend
        that has permitted its will, empty for the internal one.
        """


class TakeoverPort(Protocol):
    """Client ids: each belongs to one session, wherever that is."""

    def new_client_id(self) -> str:
        """Return a client id for a client without one."""

    def acquire(self, client: MqttClient, clean: bool) -> None:
        """Make this shard the owner of the client's id.

        The handler's ``claimed`` is called, at once or, the connection being paused, later: with
        the session to resume, wherever it was, or None when there is none (``clean``: it has been
        ended). Any other connection of the same id is closed before. If the id belongs to another
        principal, or cannot be owned now, ``acquire_refused`` is called instead, and nothing is
        ended or closed.
        """


class SessionPort(Protocol):
    """The sessions of this shard."""

    def create(self, client_id: str) -> Session | None:
        """Return a new, empty session; None when there are too many."""

    def refuses_to_keep(self, client_id: str) -> int:
        """Return why a client's session cannot be persisted now (an `Outcome`); 0 when it can."""

    def adopt(self, session: Session) -> None:
        """Note that a client is connected with this session."""

    def schedule(self, session: Session) -> None:
        """Set the timers for the session's ``expires_at`` and ``will_at``."""

    def ended(self, session: Session) -> None:
        """Forget an ended session's subscriptions, owner record and timers."""


class SubscriptionPort(Protocol):
    """Subscriptions to topics; those to queues are removed and persisted here, too."""

    def subscribe(
        self, session: Session, written: bytes, topic_filter: bytes, grant: Grant
    ) -> None:
        """Add or replace a subscription."""

    def unsubscribe(self, session: Session, written: bytes) -> None:
        """Remove a subscription, to topics or to a queue. A queue's unacked messages go to others
        of the group."""

    def hand_over(self, session: Session, ended: bool) -> None:
        """Give unacked messages of queues and shared subscriptions to other members."""

    def persist(
        self, session: Session, written: Iterable[bytes], done: Callable[[int], None]
    ) -> None:
        """Persist changed subscriptions of a session.

        ``done`` gets 0 when they survive a restart, or need not because the session ends with its
        connection; else the `Outcome`.
        """


class PeersPort(Protocol):
    """The node's other shards."""

    def when_known(self, done: Callable[[], None], /) -> None:
        """Call ``done`` when every shard knows the subscriptions made so far."""


class QueuePort(Protocol):
    """Consumers of queues."""

    def subscribe(
        self,
        session: Session,
        written: bytes,
        wanted: QueueSubscription,
        done: Callable[[int], None],
        /,
    ) -> None:
        """Make the session a consumer of a queue; one of the same filter ends before.

        ``done`` gets 0, or the `Outcome`: FAILED for QoS 0 from a work queue, and for a group that
        exists with another pattern or mode. An undeclared queue is created, in memory. The grant is
        in the session's subscriptions before the call, and is removed again when it is refused; it
        stays there while the client is away.
        """

    def settle(
        self, client: MqttClient, settlement: SettlementCommand, done: Callable[[int], object], /
    ) -> None:
        """Settle messages that were delivered to the client's session.

        ``done`` gets 0 when that is safe, else the `Outcome`: NOT_PENDING when some messages are
        not with this session (the others are settled).
        """


class PublishPort(Protocol):
    """Routing of messages."""

    def accept(self, connection: Connection, run: PublishRun, /) -> int:
        """Route and answer a run that a session has kept until it was permitted."""

    def publish_run(self, run: PublishRun, /) -> int:
        """Route a run; negative when its topic is not valid."""

    def hold(self) -> PendingAck:
        """Delay the answer to the run being published until the pending ack's ``done``."""


class RetainedPort(Protocol):
    """Retained messages."""

    def retain(self, run: PublishRun, /) -> bool:
        """Retain the run's last message for its topic; return False when that is over a limit."""

    def topics(self, topic_filter: bytes, /) -> Iterator[bytes]:
        """Yield matching topics with a retained message; stays valid while the store changes."""

    def message(self, topic: bytes, /) -> PublishRun | None:
        """Return a topic's retained message, None if missing or expired; ``publisher`` is a client
        id."""


class ConnectionPort(Protocol):
    """Reading from connections, and their end."""

    def pause(self, connection: Connection) -> None:
        """Stop reading while an answer is awaited."""

    def resume(self, connection: Connection) -> None:
        """Resume reading, and write what was appended, within a tick or outside."""

    def close(self, connection: Connection, linger: bool) -> None:
        """Close once output is written; ``linger``: let the client read it before the socket
        goes."""

    def watch(self, client: MqttClient, seconds: float) -> None:
        """Call the handler's ``expired`` after this long without input."""

    def end_at(self, client: MqttClient, at: float) -> None:
        """Disconnect the client at this monotonic time, when its login ends; 0: it does not, or no
        longer."""

    def feed_later(self, client: MqttClient) -> None:
        """Schedule a call of the handler's ``drained`` for this client."""


class AlarmPort(Protocol):
    """Shortage of memory."""

    critical: bool
    """True while no new work may begin for clients."""

    def refuse(self, what: str, /) -> None:
        """Count work refused for lack of memory."""


class UserLimitPort(Protocol):
    """Limits of users, whatever protocols they speak."""

    def enter(self, connection: object, user: str, /) -> int | None:
        """Count a connection of a user, or return the limit that is reached; without a user, None."""

    def leave(self, connection: object, /) -> None:
        """Count the end of a connection, if it was counted."""


class EventPort(Protocol):
    """Events of connections."""

    def mqtt_login(self, client: MqttClient, user: str, result: AuthResult, /) -> None:
        """Tell a login that was accepted or refused."""

    def mqtt_connected(self, client: MqttClient, /) -> None:
        """Tell a connection with a session."""

    def mqtt_disconnected(self, client: MqttClient, /) -> None:
        """Tell the end of a connection, if it had a session."""


class CountPort(Protocol):
    """Counts for metrics; errors and refusals are also logged, at a bounded rate."""

    def packet_received(self, kind: int, count: int = 1) -> None:
        """Count control packets received off the hot path by their type number."""

    def connection_closed(self, reason: str) -> None:
        """Count the end of a connection."""

    def client_error(self, client: MqttClient, reason: int, text: str) -> None:
        """Count a protocol error."""

    def messages_dropped(self, reason: str, count: int) -> None:
        """Count messages not delivered."""

    def will_published(self) -> None:
        """Count a published will."""

    def will_refused(self, client_id: str, principal: str, will: Will) -> None:
        """Count a will that is not published because its client may not."""


class WillPort(Protocol):
    """Wills of sessions."""

    def changed(self, session: Session, former: Will | None, /) -> None:
        """Note a session's will, which has replaced a former one; each may be None."""

    def due(self, session: Session, will: Will, /) -> None:
        """Publish a will, unless another node has."""


class MqttBrokerPort(Protocol):
    """The shard as sessions see it: one port for each idea."""

    limits: SessionLimits
    """Replaced when the settings change."""

    @property
    def authentication(self) -> LoginPort:
        """Authentication and permissions."""

    @property
    def bans(self) -> BansPort:
        """Bans of addresses, users and client ids."""

    @property
    def takeover(self) -> TakeoverPort:
        """Client ids."""

    @property
    def sessions(self) -> SessionPort:
        """Sessions."""

    @property
    def subscriptions(self) -> SubscriptionPort:
        """Subscriptions."""

    @property
    def peers(self) -> PeersPort:
        """Other shards."""

    @property
    def queues(self) -> QueuePort:
        """Consumers of queues."""

    @property
    def reactor(self) -> PublishPort:
        """Routing of messages."""

    @property
    def retained(self) -> RetainedPort:
        """Retained messages."""

    @property
    def wills(self) -> WillPort:
        """Wills."""

    @property
    def connections(self) -> ConnectionPort:
        """Connections."""

    @property
    def alarms(self) -> AlarmPort:
        """Shortage of memory."""

    @property
    def user_limits(self) -> UserLimitPort:
        """Limits of users."""

    @property
    def events(self) -> EventPort:
        """Events of connections."""

    @property
    def counts(self) -> CountPort:
        """Counts."""

    def now(self) -> float:
        """Return monotonic seconds at the start of this tick."""
