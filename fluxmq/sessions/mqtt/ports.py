"""What MQTT sessions need of the broker around them; the shard implements it.

Owned here, because the consumer of an interface knows what it must say. Every method answers at once; what
takes time takes a callback, which is called on the shard's loop, possibly before the method returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from fluxmq._hot.connection import Connection
from fluxmq._hot.run import Run
from fluxmq._hot.tickets import Ticket
from fluxmq.auth.policy import Policy
from fluxmq.auth.scram import ServerExchange, StoredKeys
from fluxmq.protocols.mqtt.codec import Limits
from fluxmq.protocols.mqtt.packets import Connect
from fluxmq.protocols.mqtt.topics import ParsedFilter
from fluxmq.sessions.mqtt.queue_subscriptions import QueueSubscription
from fluxmq.sessions.mqtt.session import Client, Grant, Session, Will
from fluxmq.sessions.mqtt.settlement import Settlement


@dataclass(slots=True)
class SessionLimits:
    """The settings that sessions obey; sizes in bytes, times in seconds."""

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
    """Whether a publish of a 3.1.1 client that is refused for good is acknowledged, or ends the connection."""


@dataclass(slots=True, frozen=True)
class Authenticated:
    """The outcome of checking credentials: ``reason`` 0 when they hold, and whose they are."""

    reason: int
    username: str = ""


class Broker(Protocol):
    """The shard, as sessions see it."""

    limits: SessionLimits
    connacks: dict[tuple[bool, bool], bytes]
    """CONNACKs of MQTT 5 clients that ask for nothing, by session present and server keep-alive."""

    def now(self) -> float:
        """Monotonic seconds at the start of this tick."""

    # Connecting

    def authenticate(self, client: Client, connect: Connect) -> None:
        """Check name and password (or the certificate, or that none are needed).

        The handler's ``authenticated`` is called, at once or, the connection being paused, later.
        """

    def scram_exchange(self) -> ServerExchange:
        """A new SCRAM-SHA-256 exchange."""

    def scram_keys(self, username: str, peer: str) -> StoredKeys | None:
        """The keys of an enabled user who is let in from ``peer`` (address:port)."""

    def login_refusal(self, username: str, peer: str) -> int:
        """The reason for which a login by SCRAM cannot be tried now; 0 when it can."""

    def scram_result(self, username: str, peer: str, success: bool) -> None:
        """Count a login that ran inside the session."""

    def policy(self, client_id: str, username: str) -> Policy:
        """What a client may do."""

    def is_user(self, name: str) -> bool:
        """Whether there is a user of this name, enabled or not."""

    def will_policy(self, session: Session, will: Will) -> Policy | None:
        """What the client of a session, which may be away, may do now; None when it may not be here any more."""

    def new_client_id(self) -> str:
        """A client id for a client that brings none."""

    def claim(self, client: Client, clean: bool) -> None:
        """Make this shard the owner of the client's id.

        The handler's ``claimed`` is called, at once or, the connection being paused, later: with the
        session to continue, wherever it was, or None when there is none (``clean``: it has been ended).
        Any other connection of the same id is closed before. Where the id belongs to another principal,
        ``claim_refused`` is called instead, and nothing is ended or closed.
        """

    def create(self, client_id: str) -> Session | None:
        """A new, empty session; None when there are too many."""

    def refuses_to_keep(self, client_id: str) -> int:
        """The reason for which no session of a client can be kept on disk now: 0x97 (no room), 0x83; 0 when it can."""

    def adopt(self, client: Client, session: Session) -> None:
        """The client is connected with this session."""

    def ended(self, session: Session) -> None:
        """The session is gone: forget its subscriptions, owner record and timers."""

    def schedule(self, session: Session) -> None:
        """The session's ``expires_at`` or ``will_at`` was set."""

    def hand_over(self, session: Session, ended: bool) -> None:
        """Give unacknowledged messages of shared subscriptions to other members."""

    # Messages

    def publish(self, run: Run) -> bool:
        """Route a run; False when its topic is not valid."""

    def retain(self, run: Run) -> bool:
        """Keep the run's last message as its topic's retained message; False when that is over a limit."""

    def retained_topics(self, topic_filter: bytes) -> Iterator[bytes]:
        """Topics with a retained message that match; stays valid while the store changes."""

    def retained_message(self, topic: bytes) -> Run | None:
        """The retained message of a topic, None when it has gone or expired; ``publisher`` is a client id."""

    # Subscriptions

    def subscribe(
        self, session: Session, written: bytes, parsed: ParsedFilter, grant: Grant
    ) -> None:
        """Add or replace a subscription."""

    def unsubscribe(self, session: Session, written: bytes) -> None:
        """Remove a subscription, to topics or to a queue."""

    def keep_subscriptions(
        self, session: Session, written: Iterable[bytes], done: Callable[[int], None]
    ) -> None:
        """Subscriptions of a session have come, changed or gone.

        ``done`` gets 0 when that survives a restart, which it need not where the session ends with its connection, or
        the reason for which it does not.
        """

    # Queues

    def queue_subscribe(
        self,
        session: Session,
        written: bytes,
        wanted: QueueSubscription,
        done: Callable[[int], None],
    ) -> None:
        """Make the session a consumer of a queue; one of the same filter ends before.

        ``done`` gets the granted QoS, or a reason code that SUBACK may carry: implementation specific error for
        QoS 0 from a work queue, and for a group that exists with another pattern or mode. A queue that nobody
        has declared is made, in memory. The grant is in the session's subscriptions before the call, and is taken
        out again when ``done`` gets a reason; it stays there while the client is away.
        """

    def queue_unsubscribe(self, session: Session, written: bytes) -> None:
        """The session is no longer a consumer; what it has not settled goes to others of the group."""

    def queue_settle(
        self, client: Client, settlement: Settlement, done: Callable[[int], object]
    ) -> None:
        """Settle messages that were delivered to the client's session.

        ``done`` gets 0 when that is safe, no matching subscribers (0x10) when not all of the messages are with
        this session (those that are, are settled), or a reason of 0x80 or above that PUBACK may carry.
        """

    def hold(self) -> Ticket:
        """Let the answer to the run being published wait until the ticket's ``done``."""

    def feed_later(self, client: Client) -> None:
        """Call the handler's ``drained`` for this client soon."""

    def when_known(self, done: Callable[[], None]) -> None:
        """Call when every shard knows the subscriptions made so far."""

    # Connections

    def pause(self, connection: Connection) -> None:
        """Stop reading while an answer is awaited."""

    def resume(self, connection: Connection) -> None:
        """Go on reading."""

    @property
    def short_of_memory(self) -> bool:
        """Whether nothing new may be begun for clients."""

    def refused_for_memory(self, what: str) -> None:
        """Count what was refused for want of memory."""

    def close(self, connection: Connection, linger: bool) -> None:
        """Close once output is written; ``linger``: let the client read it before the socket goes."""

    def watch(self, client: Client, seconds: float) -> None:
        """Ask ``expired`` of the handler when nothing was received for so long."""

    def count_closed(self, client: Client, reason: str) -> None:
        """Count the end of a connection."""

    def count_error(self, client: Client, reason: int, text: str) -> None:
        """Count a protocol error and log it at a bounded rate."""

    def count_drop(self, reason: str, count: int) -> None:
        """Count messages not delivered."""

    def count_packet(self, kind: int) -> None:
        """Count a control packet received off the hot path by its type number."""

    def will_published(self) -> None:
        """Count a published will."""

    def will_refused(self, session: Session, will: Will) -> None:
        """Count a will that is not published because its client may not, and log it at a bounded rate."""
