"""The settings file as a type: every key, its default, unit and bounds, and one sentence each.

This is data. ``load`` reads the file, ``checks`` compares values. Durations are float seconds and
sizes int bytes once decoded. Child processes get all of it as JSON.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fluxmq.model.limits import (
    MQTT_EXPIRY_SECONDS_MAX,
    MQTT_KEEP_ALIVE_SECONDS_MAX,
    MQTT_PACKET_BYTES_MAX,
    MQTT_PACKET_ID_MAX,
    MQTT_STRING_BYTES_MAX,
    MQTT_TOPIC_ALIAS_MAX,
)
from fluxmq.settings.clustering import ClusterSettings
from fluxmq.settings.listeners import (
    ClientTlsListener,
    HttpEndpoint,
    ListenSettings,
    Server,
    TcpListener,
)
from fluxmq.settings.login_backends import BackendName, HttpBackend, Ldap, LoginCache, OAuth2
from fluxmq.settings.queues import QueueManager, QueueSettings
from fluxmq.settings.section import Section
from fluxmq.settings.traces import Tracing
from fluxmq.settings.values import Announced, Duration, Size, TopicFilter, Version

Expiry = Annotated[Duration, Field(ge=0, le=MQTT_EXPIRY_SECONDS_MAX)]


class BrokerSettings(Section):
    """Limits and options for MQTT clients."""

    max_packet_size: Annotated[Size, Field(ge=256, le=MQTT_PACKET_BYTES_MAX)] = 16 << 20
    """Largest whole packet accepted after CONNECT; announced to MQTT 5 clients. A larger one ends
    the connection."""
    max_connect_size: Annotated[Size, Field(ge=64, le=1 << 20)] = 128 << 10
    """Largest CONNECT packet, will included: all that a client may send before it is authenticated;
    max_packet_size bounds it as well. A larger one is refused with 0x95."""
    max_will_size: Annotated[Size, Field(ge=0, le=1 << 20)] = 256 << 10
    """Largest will payload; max_connect_size bounds it as well, since the will is part of
    CONNECT."""
    max_qos: Annotated[int, Field(ge=0, le=2)] = 2
    """Highest quality of service that clients may publish with and subscriptions are granted."""
    max_topic_bytes: Annotated[int, Field(ge=16, le=MQTT_STRING_BYTES_MAX)] = 4096
    """Longest topic name or filter, in bytes of UTF-8."""
    max_topic_levels: Annotated[int, Field(ge=1, le=4096)] = 201
    """Maximum number of levels in a topic name or filter."""
    allow_control_characters: bool = False
    """Allow control characters (U+0001 to U+001F, U+007F to U+009F) in topics and client ids;
    otherwise they are malformed."""
    refused_publish: Literal["acknowledge", "disconnect"] = "acknowledge"
    """Response to a publish that an MQTT 3.1.1 client may not make: `acknowledge` and drop it, or
    `disconnect` the client, which sends it again when it reconnects. MQTT 5 clients get a reason
    code."""
    max_subscriptions_per_session: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Subscriptions that one session may hold."""
    max_retained_messages: Annotated[int, Field(ge=0, le=100_000_000)] = 100_000
    """Maximum number of retained messages; 0 keeps none."""
    max_retained_bytes: Annotated[Size, Field(ge=0, le=1 << 40)] = 256 << 20
    """Memory of all retained messages together, topics and properties included."""
    topic_alias_maximum: Annotated[int, Field(ge=0, le=MQTT_TOPIC_ALIAS_MAX)] = 128
    """Topic aliases that an MQTT 5 client may use when it publishes."""
    topic_alias_maximum_out: Annotated[int, Field(ge=0, le=MQTT_TOPIC_ALIAS_MAX)] = 128
    """Topic aliases that the broker uses towards a client, however many the client allows."""
    keep_alive_maximum: Annotated[Duration, Field(ge=0, le=MQTT_KEEP_ALIVE_SECONDS_MAX)] = 0.0
    """Longest keep alive, in whole seconds, imposed on MQTT 5 clients; 0 imposes none."""
    max_user_properties: Annotated[int, Field(ge=0, le=65_535)] = 128
    """Maximum number of user properties in one MQTT 5 packet."""
    sys_interval: Annotated[Duration, Field(ge=0.05, le=3600)] = 10.0
    """Time between two publications of the $SYS/broker/... topics."""
    route_cache_size: Annotated[int, Field(ge=1, le=10_000_000)] = 65_536
    """Topics per shard whose subscribers are cached, so that a publish need not search for them."""
    ring_bytes: Annotated[Size, Field(ge=0, le=1 << 30, multiple_of=4096)] = 0
    """Shared memory per ordered pair of shards, for messages in flight between them; larger
    messages are split. All of it becomes resident over time: 16 shards have 240 pairs. 0: 4 MiB, and
    from 12 shards on so much less that all pairs together take 512 MiB, but at least 128 KiB."""


class SessionSettings(Section):
    """State kept for a client, connected or not."""

    max_sessions: Annotated[int, Field(ge=1, le=100_000_000)] = 100_000
    """Maximum number of sessions on the node, connected or not; beyond it new client ids are
    refused."""
    default_expiry_interval: Expiry = 7200.0
    """Time that a persistent MQTT 3.1.1 session outlives its connection; MQTT 5 clients choose it
    themselves."""
    max_expiry_interval: Expiry = 604_800.0
    """Longest session expiry that an MQTT 5 client gets; announced to a client that asks for
    more."""
    max_offline_queue_size: Annotated[int, Field(ge=1, le=100_000_000)] = 1000
    """Maximum number of messages queued for one absent or slow session."""
    max_offline_queue_bytes: Annotated[Size, Field(ge=1024, le=1 << 40)] = 64 << 20
    """Memory of the messages queued for one absent or slow session, and of those sent to it and
    unacknowledged."""
    offline_queue_policy: Literal["evict", "reject"] = "evict"
    """Policy when that queue is full: evict drops its oldest message, reject the new one; both are
    counted."""
    max_inflight_messages: Annotated[int, Field(ge=1, le=MQTT_PACKET_ID_MAX)] = 1024
    """Unacknowledged QoS 1 and 2 messages per session and direction (MQTT 5: Receive Maximum)."""
    max_output_bytes: Annotated[Size, Field(ge=1024, le=1 << 30)] = 1 << 20
    """Bytes encoded but not yet read by a slow client; above it QoS 0 is dropped, QoS 1 and 2
    wait."""


class AmqpSettings(Section):
    """Limits and options for AMQP clients, of both versions."""

    product: Announced = "RabbitMQ"
    """Product in connection.start: some clients use RabbitMQ's extensions only when they find its
    name."""
    product_version: Version = "3.10.8"
    """Version in connection.start: that of the product whose behaviour is served; FluxMQ's own is
    ``fluxmq_version`` there."""
    product_version_1_0: Version = "4.2.0"
    """The same in open of AMQP 1.0: RabbitMQ's clients for it demand 4.0 or later."""
    version_1_addresses: bool = True
    """Whether AMQP 1.0 clients may use addresses of RabbitMQ 3 and JMS: a bare name, /queue/..., topic://..."""
    frame_max: Annotated[int, Field(ge=4096, le=16 << 20)] = 131_072
    """Largest frame in bytes, proposed to clients, which may lower it."""
    channel_max: Annotated[int, Field(ge=1, le=65_535)] = 2047
    """Channels per connection, proposed to clients, which may lower it."""
    heartbeat: Annotated[Duration, Field(ge=0, le=65_535)] = 60.0
    """Heartbeat interval proposed to clients, in whole seconds; 0 proposes none. A client silent
    for two intervals is disconnected."""
    max_message_size: Annotated[Size, Field(ge=1, le=256 << 20)] = 32 << 20
    """Largest message body accepted; a larger one closes its channel. RabbitMQ 4's default is
    16MiB."""
    consumer_timeout: Annotated[Duration, Field(ge=1, le=366 * 86_400)] = 1800.0
    """Time after which messages that a consumer has not settled are redelivered to others;
    x-consumer-timeout overrides it."""
    event_exchange: bool = False
    """Publish events (queues, connections, users and more) to amq.rabbitmq.event of the default vhost."""
    max_consumers_per_channel: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Maximum number of consumers on one channel."""
    max_transaction_bytes: Annotated[Size, Field(ge=1024, le=4 << 30)] = 64 << 20
    """Bytes of publishes and acknowledgements that one channel may accumulate in a transaction."""
    max_incomplete_bytes: Annotated[Size, Field(ge=1024, le=64 << 30)] = 128 << 20
    """Bytes of incomplete messages and uncommitted transactions on all channels of one connection:
    two full transactions."""


class AnonymousAccess(Section):
    """Clients that name no user."""

    allow: Literal["loopback", "always", "never"] = "loopback"
    """Permitted origin: this machine only, anywhere, or nowhere."""
    publish: tuple[TopicFilter, ...] = ("#", "$queue/#")
    """Topic filters that they may publish to; a leading wildcard does not match $queue/ and
    $dlq/."""
    subscribe: tuple[TopicFilter, ...] = ("#", "$SYS/#", "$queue/#", "$dlq/#")
    """Topic filters that must cover their subscriptions."""
    amqp_user: Annotated[str, Field(max_length=255)] = ""
    """User whose permissions AMQP 1.0 clients without credentials have; empty refuses them."""


class Argon2(Section):
    """Cost of hashing a password (argon2id); applies to passwords set from now on."""

    time_cost: Annotated[int, Field(ge=1, le=64)] = 3
    """Passes over the memory."""
    memory_cost: Annotated[Size, Field(ge=8 << 10, le=4 << 30, multiple_of=1024)] = 64 << 20
    """Memory per verification."""
    parallelism: Annotated[int, Field(ge=1, le=16)] = 1
    """Lanes computed in parallel."""


class FailedLogins(Section):
    """Limits on password guessing: a login that comes too soon after failed ones is refused as
    busy. Counted per shard."""

    per_user: Annotated[int, Field(ge=1, le=1_000_000)] = 5
    """Failed logins as one user from one address (IPv6: one /64) before delays begin."""
    per_address: Annotated[int, Field(ge=1, le=1_000_000)] = 50
    """Failed logins from one address, over all user names, before delays begin; users who logged in
    from there recently are not delayed."""
    first_delay: Annotated[Duration, Field(ge=0, le=3600)] = 1.0
    """The first delay, which doubles with each further failure; 0 disables delays."""
    max_delay: Annotated[Duration, Field(ge=0, le=86_400)] = 60.0
    """The longest delay."""
    forget_after: Annotated[Duration, Field(ge=1, le=366 * 86_400)] = 600.0
    """Time after the last failure, or after its delay, at which failures are forgotten; a
    successful login makes a user known at an address for as long."""


class AuthSettings(Section):
    """Access of clients, and verification of passwords. ``fluxmqctl user`` manages users."""

    anonymous: AnonymousAccess = AnonymousAccess()
    """Clients that name no user."""
    backends: Annotated[tuple[BackendName, ...], Field(min_length=1)] = ("internal",)
    """Backends that check logins, in this order: internal, oauth2, http, ldap; each but internal has
    a section below."""
    oauth2: OAuth2 | None = None
    """Logins with a signed token."""
    http: HttpBackend | None = None
    """Logins that an HTTP server decides."""
    ldap: Ldap | None = None
    """Logins by an LDAP directory."""
    cache: LoginCache = LoginCache()
    """Answers of backends that are remembered."""
    loopback_users: tuple[str, ...] = ("guest",)
    """Users that may connect from this machine only, over any protocol."""
    argon2: Argon2 = Argon2()
    """Cost of hashing a password."""
    verify_threads: Annotated[int, Field(ge=1, le=64)] = 2
    """Threads per shard that verify passwords, so that the event loop never waits for one."""
    max_pending_verifications: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Password verifications queued per shard; beyond it, an address with many queued makes room
    for one with fewer, or new connections are refused as busy. A password that was verified before
    does not queue."""
    max_pending_per_address: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Password verifications queued per shard for one client address (IPv6: one /64); beyond it,
    the address is refused as busy."""
    failed_logins: FailedLogins = FailedLogins()
    """Limits on password guessing."""


class ConnectionRate(Section):
    """New connections per client address: a token bucket that holds burst and refills at rate."""

    enabled: bool = True
    """Apply the limit."""
    rate: Annotated[float, Field(gt=0, le=1_000_000)] = 500.0
    """Connections per second and address, on average."""
    burst: Annotated[int, Field(ge=1, le=10_000_000)] = 1000
    """Connections that an address may open at once."""
    max_addresses: Annotated[int, Field(ge=1, le=10_000_000)] = 65_536
    """Addresses remembered; the longest idle are forgotten first."""
    exempt_loopback: bool = True
    """Exempt connections from this machine."""


class PublishRate(Section):
    """Limits on each client's publishes; a client above one is read more slowly."""

    messages: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """Messages per second of one connection, of MQTT or AMQP; 0 for no limit."""
    bytes: Annotated[Size, Field(ge=0, le=1 << 40)] = 0
    """Bytes per second of one connection: of MQTT packets, or of AMQP bodies; 0 for no limit."""


class RateLimit(Section):
    """Limits on the rate of new connections, and of publishes."""

    connection: ConnectionRate = ConnectionRate()
    """New connections per client address."""
    publish: PublishRate = PublishRate()
    """Publishes per client."""


class LogSettings(Section):
    """Log level and format."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity that is logged."""
    format: Literal["auto", "json", "text"] = "auto"
    """json: one object per line; text: lines for people; auto: text on a terminal, json
    elsewhere."""


class Memory(Section):
    """Memory limit of all the node's processes together, and the marks at which work is refused."""

    high_watermark: Annotated[float, Field(ge=0.01, le=1)] = 0.6
    """Share of the machine's memory, or of the cgroup's limit if that is lower, at which publishers
    are blocked."""
    high_watermark_bytes: Annotated[Size, Field(ge=0, le=1 << 50)] = 0
    """The same mark as a size, which then takes precedence; 0 uses high_watermark."""
    resume: Annotated[float, Field(ge=0.1, le=1)] = 0.9
    """Share of the mark below which publishers are unblocked; the gap keeps the alarm from
    flapping."""
    critical: Annotated[float, Field(ge=1, le=10)] = 1.25
    """Multiple of the mark, at most halfway to all memory, at which new connections, AMQP
    declarations and transactions are refused."""


class Storage(Section):
    """Data on disk."""

    data_dir: Annotated[str, Field(min_length=1)] = "./data"
    """Directory of all the node's data; relative to the working directory, created with mode
    0700."""
    wal_file_bytes: Annotated[Size, Field(ge=1 << 20, le=1 << 30, multiple_of=4096)] = 64 << 20
    """Size of one file of a shard's write-ahead log; files are filled with zeros before use, then
    recycled."""
    wal_direct_io: bool = True
    """Write the log with direct I/O where the file system does that without blocking (ext4, XFS);
    otherwise a thread syncs."""
    segment_bytes: Annotated[Size, Field(ge=1 << 16, le=4 << 30, multiple_of=4096)] = 64 << 20
    """Size at which a queue's segment file is sealed and the next started; retention drops whole
    segments."""
    segment_age: Annotated[Duration, Field(ge=0, le=366 * 86_400)] = 3600.0
    """Age at which a segment that holds messages is sealed; 0 seals by segment_bytes only."""
    index_bytes: Annotated[Size, Field(ge=4096, le=16 << 20)] = 64 << 10
    """Bytes of a segment per index entry."""
    checkpoint_bytes: Annotated[Size, Field(ge=2 << 20, le=1 << 40)] = 256 << 20
    """Size of a shard's write-ahead log above which the groups that hold it back are checkpointed
    at once; bounds restart time."""
    checkpoint_interval: Annotated[Duration, Field(ge=0.1, le=86_400)] = 60.0
    """Time between two checkpoints of a group that was written to."""
    queue_ack_durability: Literal["fsync", "buffered"] = "fsync"
    """Meaning of a publisher's acknowledgement for queues that do not set it: synced to disk, or
    only written."""
    queue_sync_interval: Annotated[Duration, Field(ge=0.001, le=3600)] = 1.0
    """Longest time before messages that a buffered queue acknowledged are synced."""
    min_free_bytes: Annotated[Size, Field(ge=0, le=1 << 50)] = 256 << 20
    """Free space of the file system below which publishes to durable queues, new sessions, messages
    for absent clients and retained messages are refused; 0 disables the check."""


class Management(Section):
    """Definitions to declare when the node starts."""

    load_definitions: str | None = None
    """File with definitions, as ``fluxmqctl export_definitions`` or RabbitMQ writes them: what it
    contains is declared at each start."""


class Settings(Section):
    """The whole file."""

    server: Server = Server()
    """Listeners, and the node's shutdown."""
    broker: BrokerSettings = BrokerSettings()
    """Limits and options for MQTT clients."""
    session: SessionSettings = SessionSettings()
    """State kept for a client, connected or not."""
    amqp: AmqpSettings = AmqpSettings()
    """Limits and options for AMQP clients, of both versions."""
    auth: AuthSettings = AuthSettings()
    """Authentication and access of clients."""
    ratelimit: RateLimit = RateLimit()
    """Limits on the rate of new connections, and of publishes."""
    log: LogSettings = LogSettings()
    """Log level and format."""
    memory: Memory = Memory()
    """Memory limit of the node."""
    storage: Storage = Storage()
    """Data on disk."""
    cluster: ClusterSettings = ClusterSettings()
    """Other nodes: metadata, transport, replication."""
    queue_manager: QueueManager = QueueManager()
    """Settings common to all queues."""
    queues: tuple[QueueSettings, ...] = ()
    """Durable queues that exist from the start."""
    management: Management = Management()
    """Definitions to declare when the node starts."""
    tracing: Tracing = Tracing()
    """Spans of messages, for OpenTelemetry."""

    def ack_durability(self, queue: QueueSettings) -> Literal["fsync", "buffered"]:
        """Return the durability of an acknowledgement by this queue: its own setting, or the
        storage section's."""
        return queue.ack_durability or self.storage.queue_ack_durability

    def delivers_before_sync(self, queue: QueueSettings) -> bool:
        """Return whether a queue of the file delivers messages before they are synced: its own
        setting, or for a classic queue the common one."""
        if queue.deliver_before_sync is not None:
            return queue.deliver_before_sync
        return queue.type == "classic" and self.queue_manager.deliver_before_sync

    def listeners(self) -> list[tuple[str, TcpListener]]:
        """Return the client listeners that the file names, each with its path, in the order of
        `handoff.LISTENERS`."""
        mqtt, amqp = self.server.mqtt, self.server.amqp
        named = [
            ("server.mqtt.tcp", mqtt.tcp),
            ("server.mqtt.tls", mqtt.tls),
            ("server.mqtt.websocket", mqtt.websocket),
            ("server.amqp.tcp", amqp.tcp),
            ("server.amqp.tls", amqp.tls),
            ("server.mqtt.websocket_tls", mqtt.websocket_tls),
        ]
        return [(path, listener) for path, listener in named if listener is not None]

    def tls_listeners(self) -> list[tuple[str, ClientTlsListener]]:
        """Return those client listeners that use TLS, each with its path."""
        return [
            (path, listener)
            for path, listener in self.listeners()
            if isinstance(listener, ClientTlsListener)
        ]

    def endpoints(self) -> list[tuple[str, ListenSettings]]:
        """Return everything that this node listens on for clients, each with its path, the HTTP
        listeners last."""
        return [*self.listeners(), *self.http_listeners()]

    def http_listeners(self) -> list[tuple[str, HttpEndpoint]]:
        """Return the HTTP listeners that the file names, each with its path."""
        server = self.server
        named: tuple[tuple[str, HttpEndpoint | None], ...] = (
            ("server.http", server.http),
            ("server.https", server.https),
            ("server.metrics", server.metrics),
        )
        return [(path, listener) for path, listener in named if listener is not None]
