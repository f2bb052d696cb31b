"""The broker's state for one MQTT client id, and for one of its connections.

A ``Session`` outlives connections; a ``MqttClient`` is one connection's side of it. Both live in
the shard that serves the client and are accessed only there. Undelivered and unacked messages are
in ``Session.delivery``.

Source: MQTT 3.1.1 section 3.1.2.4, MQTT 5.0 section 4.1 (session state).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from fluxmq.auth.origins import PageOrigin
from fluxmq.auth.policy import TopicPolicy
from fluxmq.auth.scram import ServerExchange
from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.delivery import SessionDelivery
from fluxmq.protocols.mqtt.identifiers import IdentifierRanges
from fluxmq.protocols.mqtt.packets import Connect
from fluxmq.sessions.mqtt.addressed import Addressed
from fluxmq.sessions.mqtt.queue_subscriptions import QueueSubscription

EXPIRY_NEVER = 0xFFFFFFFF
"""Session Expiry Interval of a session that does not expire (MQTT 5.0 section 3.1.2.11.2)."""


class Grant:
    """One subscription of a session, as granted.

    ``subscription_id`` is 0 for none. ``shared`` is the group name of a shared subscription, else
    empty.
    ``queue`` is the subscription to a queue; None for topics. A queue's is never ``shared``.
    """

    __slots__ = ("no_local", "qos", "queue", "retain_as_published", "shared", "subscription_id")

    def __init__(
        self,
        qos: int,
        no_local: bool = False,
        retain_as_published: bool = False,
        subscription_id: int = 0,
        shared: bytes = b"",
        queue: QueueSubscription | None = None,
    ) -> None:
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.subscription_id = subscription_id
        self.shared = shared
        self.queue = queue


def filter_inside(written: bytes, grant: Grant) -> bytes:
    """Return the topic filter of a subscription, without ``$share/group/``."""
    return written[len(grant.shared) + 8 :] if grant.shared else written


class Will:
    """A will message, ready to be published if its client still may. ``delay`` is in seconds.

    ``without_user``: its client was no known user when it connected (anonymous, or authenticated by
    certificate), so publishing needs no user record. ``backend``: the login backend that had let the
    client in, and permitted the will, if it is not the internal one.
    """

    __slots__ = (
        "backend",
        "delay",
        "expiry",
        "payload",
        "properties",
        "qos",
        "retain",
        "topic",
        "without_user",
    )

    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: bytes,
        delay: int,
        expiry: int | None,
        without_user: bool = False,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.delay = delay
        self.expiry = expiry
        self.without_user = without_user
        self.backend = ""


class RetainedFeed:
    """Retained messages for a new subscription, taken from ``topics`` as there is room.

    ``excluded`` is the client id whose messages are not wanted (No Local), None for none.
    """

    __slots__ = ("excluded", "qos", "subscription_ids", "topics")

    def __init__(
        self,
        topics: Iterator[bytes],
        qos: int,
        subscription_ids: bytes,
        excluded: bytes | None = None,
    ) -> None:
        self.topics = topics
        self.qos = qos
        self.subscription_ids = subscription_ids
        self.excluded = excluded


class Session:
    """One client id's state. ``expires_at``, ``will_at``: monotonic seconds, 0 while not running.

    ``subscriptions``: filter as the client wrote it (with ``$share/``) to grant. ``received``:
    packet identifiers of QoS 2 publishes between PUBLISH and PUBREL, None while there were none.
    """

    __slots__ = (
        "client",
        "client_id",
        "delivery",
        "expires_at",
        "expiry",
        "principal",
        "received",
        "subscriptions",
        "will",
        "will_at",
    )

    def __init__(self, client_id: str, delivery: SessionDelivery) -> None:
        self.client_id = client_id
        self.delivery = delivery
        self.principal = ""
        self.client: MqttClient | None = None
        self.subscriptions: dict[bytes, Grant] = {}
        self.received: IdentifierRanges | None = None
        self.expiry = 0
        self.expires_at = 0.0
        self.will: Will | None = None
        self.will_at = 0.0
        delivery.session = self

    def filter_of(self, written: bytes) -> bytes:
        """Return the topic filter inside a subscription, without ``$share/group/``."""
        return filter_inside(written, self.subscriptions[written])


class MqttStage(Enum):
    """Progress of a connection."""

    OPENED = 1
    AUTHENTICATING = 2
    CLAIMING = 3
    CONNECTED = 4
    CLOSED = 5


# Members as globals: looking one up in its class costs 0.2 µs in CPython 3.11, ten times per
# connection.
OPENED, AUTHENTICATING, CLAIMING, CONNECTED, CLOSED = MqttStage


class MqttClient:
    """One connection's side of a session.

    ``peer``: "address:port". ``username``: the authenticated user's name, empty for anonymous.
    ``addressed``: cache of queues it may publish to. ``aliases``: topic aliases the client has
    defined. ``assigned``: the broker generated its client id. ``page``: kind of web page, for
    clients in browsers. ``feeds``: retained messages being sent, by subscription. ``method``:
    the authentication method that CONNECT named, empty for none. ``connected_at``: milliseconds since
    the epoch. ``proof``: the server's last SCRAM message, for CONNACK.
    """

    __slots__ = (
        "addressed",
        "aliases",
        "assigned",
        "certificate_name",
        "connect",
        "connected_at",
        "connection",
        "feeds",
        "keep_alive",
        "listener",
        "method",
        "page",
        "peer",
        "policy",
        "problem_information",
        "proof",
        "scram",
        "session",
        "stage",
        "username",
    )

    def __init__(self, connection: Connection, peer: str, listener: int) -> None:
        self.connection = connection
        self.peer = peer
        self.listener = listener
        self.connected_at = 0
        self.stage = OPENED
        self.connect: Connect | None = None
        self.session: Session | None = None
        self.username = ""
        self.certificate_name = ""
        self.page = PageOrigin.NONE
        self.policy: TopicPolicy | None = None
        self.keep_alive = 0
        self.addressed: Addressed | None = None
        self.aliases: dict[int, bytes] | None = None
        self.feeds: dict[bytes, RetainedFeed] | None = None
        self.assigned = False
        self.method = ""
        self.scram: ServerExchange | None = None
        self.proof: bytes | None = None
        self.problem_information = True
