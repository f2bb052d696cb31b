"""CONNECT: from the first packet to an attached session.

Steps, each of which may end the connection: decode, check the packet by itself, authenticate (name
and password or a token off the loop, or SCRAM by AUTH packets), claim the client id from its present owner,
attach the session and answer. The connection is not read while an answer is awaited.

Longer than 500 lines because the steps follow each other, and share what refuses a client.

Source: MQTT 3.1.1 section 3.1, 3.2; MQTT 5.0 sections 3.1, 3.2, 3.15, 4.12.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fluxmq.auth.login_steps import looks_like_token
from fluxmq.auth.logins import AuthResult, LoginOutcome
from fluxmq.auth.policy import TopicPolicy
from fluxmq.auth.remote_rights import UndecidedError
from fluxmq.auth.scram import ScramError
from fluxmq.model.outcomes import Outcome
from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.codec import encode
from fluxmq.protocols.mqtt.connect import NO_PROPERTIES, decode_connect, refusal
from fluxmq.protocols.mqtt.packet_types import PacketType
from fluxmq.protocols.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Puback,
    Pubrec,
    WillPacket,
)
from fluxmq.protocols.mqtt.properties import Properties, encode_properties
from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason
from fluxmq.protocols.mqtt.topics import holds_control_characters
from fluxmq.routing.queue_addresses import PREFIXES, MalformedAddressError, parse_publish
from fluxmq.sessions.mqtt.outcomes import LOGINS, RENEWALS, reason_of
from fluxmq.sessions.mqtt.ports import MqttBrokerPort, SessionLimits
from fluxmq.sessions.mqtt.queue_properties import queue_options
from fluxmq.sessions.mqtt.session import (
    AUTHENTICATING,
    CLAIMING,
    CLOSED,
    CONNECTED,
    EXPIRY_NEVER,
    MqttClient,
    Session,
    Will,
)

SCRAM_METHOD = "SCRAM-SHA-256"
TOKEN_METHODS = frozenset({"JWT", "OAUTH2", "OAUTH2-JWT"})
"""Names of one method: a signed token as Authentication Data, and no challenge. No standard names it;
clients that are written for several brokers use these."""
RESERVED_PREFIXES = ("amqp:", "amqp091-")
"""Client id namespaces of the other protocols: the cluster tells protocols apart by them."""
RECEIVE_MAXIMUM_DEFAULT = 65535
KEEP_ALIVE_FACTOR = 1.5
_CONNACK = b"\x20\x02\x00\x00"
_CONNACK_PRESENT = b"\x20\x02\x01\x00"

NO_ROOM = "the answer would be larger than the client's Maximum Packet Size"

Explained = Connack | Disconnect | Puback | Pubrec
"""Packets that may carry a Reason String."""


def refuse(
    broker: MqttBrokerPort, client: MqttClient, reason: int, text: str, version: int
) -> None:
    """Answer CONNECT with an error and close."""
    connection = client.connection
    answered = True
    if version == 5 and reason != Reason.UNSUPPORTED_PROTOCOL_VERSION:
        send_explained(connection, Connack(False, reason), text)
    else:
        code = refusal(reason, version)
        answered = bool(code)
        connection.append(code)
    client.stage = CLOSED
    broker.user_limits.leave(client)
    broker.counts.client_error(client, reason, text)
    broker.counts.connection_closed("refused")
    broker.connections.close(connection, linger=answered)


def send_explained(connection: Connection, packet: Explained, text: str) -> None:
    """Send an MQTT 5 packet with a Reason String, omitted if the client would not accept the packet
    then ([MQTT-3.2.2-19], [MQTT-3.4.2-2], [MQTT-3.14.2-3])."""
    if text:
        plain = packet.properties
        packet.properties = Properties(reason_string=text)
        encoded = encode(packet, 5)
        if len(encoded) <= connection.max_packet_out:
            connection.append(encoded)
            return
        packet.properties = plain
    encoded = encode(packet, 5)
    if len(encoded) <= connection.max_packet_out:  # else close without it [MQTT-3.1.2-24]
        connection.append(encoded)


def on_connect(broker: MqttBrokerPort, client: MqttClient, body: bytes) -> None:
    """Handle the first packet of a connection."""
    limits = broker.limits
    try:
        connect = decode_connect(
            body,
            limits.packets.max_user_properties,
            limits.max_topic_bytes,
            limits.max_topic_levels,
            limits.packets.control_characters,
        )
        client.connection.max_packet_out = (
            connect.properties.maximum_packet_size or client.connection.max_packet_out
        )
        check(broker, connect)
    except ProtocolError as error:
        refuse(broker, client, error.reason, error.text, error.version)
        return
    client.connect = connect
    client.connection.version = connect.version
    client.problem_information = connect.properties.request_problem_information != 0
    method = connect.properties.authentication_method
    client.stage = AUTHENTICATING
    if broker.bans.refuse("connect", client.peer, connect.username or "", connect.client_id):
        refuse(broker, client, Reason.BANNED, "banned", connect.version)
        return
    if method is not None:
        client.method = method
        data = connect.properties.authentication_data
        if method in TOKEN_METHODS and broker.limits.tokens:
            check_token(broker, client, data or b"", partial(on_authenticated, broker, client))
        else:
            begin_scram(broker, client, method, data)
        return
    if connect.username or connect.password:
        broker.connections.pause(client.connection)  # while the password is verified
    broker.authentication.check(client, connect, partial(on_authenticated, broker, client))


def check(broker: MqttBrokerPort, connect: Connect) -> None:
    """Check the packet against the settings. Raises ProtocolError."""
    limits = broker.limits
    version = connect.version
    name = connect.client_id
    if broker.alarms.critical:
        broker.alarms.refuse("connection")
        busy = Reason.SERVER_BUSY if version == 5 else Reason.SERVER_UNAVAILABLE
        raise ProtocolError(busy, "the node is low on memory", version)
    if name.startswith(RESERVED_PREFIXES) or (
        4 * len(name) > limits.max_client_id and len(name.encode()) > limits.max_client_id
    ):
        raise ProtocolError(
            Reason.CLIENT_IDENTIFIER_NOT_VALID, "client id is reserved or too long", version
        )
    if not limits.packets.control_characters and holds_control_characters(name.encode()):
        raise ProtocolError(
            Reason.MALFORMED_PACKET, "client id contains a control character", version
        )
    if not name and version == 4 and not connect.clean_start:
        raise ProtocolError(
            Reason.CLIENT_IDENTIFIER_NOT_VALID, "no client id for a persistent session", version
        )
    will = connect.will
    if will is None:
        return
    if will.qos > limits.max_qos:
        raise ProtocolError(
            Reason.QOS_NOT_SUPPORTED if version == 5 else Reason.SERVER_UNAVAILABLE,
            "the will's QoS is not supported",
            version,
        )
    if len(will.payload) > limits.max_will:
        raise ProtocolError(
            Reason.PACKET_TOO_LARGE if version == 5 else Reason.SERVER_UNAVAILABLE,
            "the will is too large",
            version,
        )
    if will.topic.startswith(PREFIXES):
        check_queue_will(will, version)


def check_queue_will(will: WillPacket, version: int) -> None:
    """Check that a will to a queue is a message, not a command. Raises ProtocolError."""
    text = "the will's topic is a queue command"
    reason: int = Reason.TOPIC_NAME_INVALID
    try:
        address = parse_publish(will.topic)
        prepared = prepare_will(will)
        assert address is not None, "asked of wills to queues only"
        assert prepared is not None, "a will was given"
        queue_options(prepared.properties)
        if not address.verb:
            return
    except MalformedAddressError as error:
        text = str(error)
    except ProtocolError as error:
        reason, text = error.reason, error.text
    raise ProtocolError(reason if version == 5 else Reason.SERVER_UNAVAILABLE, text, version)


def on_auth(
    broker: MqttBrokerPort,
    client: MqttClient,
    packet: Auth,
    fail: Callable[[MqttClient, int, str], None],
) -> None:
    """Handle AUTH: a step of the exchange begun by CONNECT, or a new one (MQTT 5.0 section
    4.12). ``fail`` closes the connection for a token that is refused later."""
    data = packet.properties.authentication_data or b""
    method = packet.properties.authentication_method
    if not client.method or method != client.method:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "AUTH without the method of CONNECT")
    if client.stage is CONNECTED and packet.reason == Reason.RE_AUTHENTICATE:
        if client.scram is not None:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "re-authentication is going on")
        if method in TOKEN_METHODS:
            check_token(broker, client, data, partial(on_renewed, broker, client, fail))
            return
        begin_scram(broker, client, method, data)
        return
    if packet.reason != Reason.CONTINUE_AUTHENTICATION or client.scram is None:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "no authentication is going on")
    scram_step(broker, client, data)


def check_token(
    broker: MqttBrokerPort, client: MqttClient, token: bytes, done: Callable[[AuthResult], None]
) -> None:
    """Have a token verified; the connection is not read meanwhile. What does not look like one is
    not sent to any backend, and neither is one when they have been removed from the settings."""
    if not broker.limits.tokens or not looks_like_token(token):
        done(AuthResult(LoginOutcome.WRONG))
        return
    broker.connections.pause(client.connection)
    broker.authentication.verify("", token, client.peer, done)


def on_renewed(
    broker: MqttBrokerPort,
    client: MqttClient,
    fail: Callable[[MqttClient, int, str], None],
    result: AuthResult,
) -> None:
    """Have a new token take the place of the former one: its rights, and its end. A connection whose
    token is refused, is another user's, or does not permit a subscription or the will is closed
    [MQTT-4.12.1-2]."""
    session = client.session
    if client.stage is not CONNECTED or session is None:
        return  # the connection was lost meanwhile
    broker.events.mqtt_login(client, result.username or client.username, result)
    if result.outcome is not LoginOutcome.ACCEPTED or result.login is None:
        fail(client, RENEWALS[result.outcome], "the new token is not accepted")
        return
    if result.username != client.username:
        fail(client, Reason.NOT_AUTHORIZED, "re-authentication as another user")
        return
    client.policy = result.login.policy(session.client_id)
    will = session.will
    if will is not None and not may_publish(client, will.topic):
        session.will = None
        broker.wills.changed(session, will)
        broker.counts.will_refused(session.client_id, session.principal, will)
        fail(client, Reason.NOT_AUTHORIZED, "the new token does not permit the will")
        return
    if end_denied(broker, client, session):
        fail(client, Reason.NOT_AUTHORIZED, "the new token does not permit a subscription")
        return
    apply_policy(client)
    broker.connections.end_at(client, client.policy.ends_at)
    # Smaller than the CONNACK that the client has taken, which names the method too.
    send_auth(broker, client, Reason.SUCCESS, None)
    broker.connections.resume(client.connection)


def begin_scram(
    broker: MqttBrokerPort, client: MqttClient, method: str, data: bytes | None
) -> None:
    """Start the authentication method named by CONNECT (or AUTH 0x19)."""
    if method != SCRAM_METHOD:
        fail_authentication(
            broker, client, Reason.BAD_AUTHENTICATION_METHOD, "unknown authentication method"
        )
        return
    client.scram = broker.authentication.scram_exchange()
    if data:
        scram_step(broker, client, data)
    else:
        # The client wants to be asked for its first message.
        send_auth(broker, client, Reason.CONTINUE_AUTHENTICATION, b"")


def send_auth(broker: MqttBrokerPort, client: MqttClient, reason: int, data: bytes | None) -> None:
    """Answer with AUTH, or close if the client would not accept its size [MQTT-3.1.2-24]."""
    properties = Properties(authentication_method=client.method, authentication_data=data)
    encoded = encode(Auth(reason, properties), 5)
    if len(encoded) > client.connection.max_packet_out:
        fail_authentication(broker, client, Reason.PACKET_TOO_LARGE, NO_ROOM)
    else:
        client.connection.append(encoded)


def scram_step(broker: MqttBrokerPort, client: MqttClient, data: bytes) -> None:
    """Handle one client message of a SCRAM exchange."""
    exchange = client.scram
    if exchange is None:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "no authentication is going on")
    try:
        if not exchange.username:
            username = exchange.receive_client_first(data)
            if login_refused(broker, client, username):
                return
            keys = broker.authentication.scram_keys(username, client.peer)
            send_auth(broker, client, Reason.CONTINUE_AUTHENTICATION, exchange.server_first(keys))
            return
        # Checked again: many connections may have been asked for their proofs at once.
        if login_refused(broker, client, exchange.username):
            return
        final = exchange.receive_client_final(data)
    except ScramError as error:
        broker.authentication.scram_result(exchange.username, client.peer, False)
        broker.events.mqtt_login(client, exchange.username, AuthResult(LoginOutcome.WRONG))
        fail_authentication(broker, client, Reason.NOT_AUTHORIZED, str(error))
        return
    again = client.stage is CONNECTED
    if again and exchange.username != client.username:
        broker.authentication.scram_result(exchange.username, client.peer, False)
        raise ProtocolError(Reason.NOT_AUTHORIZED, "re-authentication as another user")
    broker.authentication.scram_result(exchange.username, client.peer, True)
    client.scram = None
    if again:
        send_auth(broker, client, Reason.SUCCESS, final)
        return
    assert client.connect is not None
    client.proof = final
    on_authenticated(broker, client, AuthResult(LoginOutcome.ACCEPTED, exchange.username))


def login_refused(broker: MqttBrokerPort, client: MqttClient, username: str) -> bool:
    """Return whether a SCRAM login is refused untried; if so, tell the client."""
    refusal = broker.authentication.login_refusal(username, client.peer)
    if refusal is not None:
        reason = (RENEWALS if client.stage is CONNECTED else LOGINS)[refusal]
        text = "too many failed logins, or users not loaded yet"
        banned = refusal is LoginOutcome.BANNED
        fail_authentication(broker, client, reason, "banned" if banned else text)
    return refusal is not None


def fail_authentication(broker: MqttBrokerPort, client: MqttClient, reason: int, text: str) -> None:
    """Fail SCRAM: CONNACK with the reason before the session exists, DISCONNECT afterwards."""
    client.scram = None
    if client.stage is CONNECTED:
        raise ProtocolError(reason, text)
    assert client.connect is not None
    refuse(broker, client, reason, text, client.connect.version)


def on_authenticated(broker: MqttBrokerPort, client: MqttClient, result: AuthResult) -> None:
    """Continue with verified credentials: claim the client id."""
    connect = client.connect
    if client.stage is not AUTHENTICATING or connect is None:
        return  # the connection was lost meanwhile
    broker.events.mqtt_login(client, result.username or connect.username or "", result)
    if result.outcome is not LoginOutcome.ACCEPTED:
        reason = LOGINS[result.outcome]
        if client.method and result.outcome is LoginOutcome.WRONG:
            reason = Reason.NOT_AUTHORIZED  # it has given no password
        refuse(broker, client, reason, "not authorised", connect.version)
        return
    client.username = result.username
    limit = broker.user_limits.enter(client, client.username)
    if limit is not None:
        text = f"the user's connection limit ({limit}) is reached"
        refuse(broker, client, Reason.QUOTA_EXCEEDED, text, connect.version)
        return
    if not connect.client_id:
        connect.client_id = broker.takeover.new_client_id()
        client.assigned = True
    if result.login is not None:
        client.policy = result.login.policy(connect.client_id)
    else:
        client.policy = broker.authentication.policy(connect.client_id, client.username)
    try:
        permitted = connect.will is None or may_publish(client, connect.will.topic)
    except UndecidedError as undecided:
        undecided.ask(partial(on_authenticated, broker, client, result))
        return
    if not permitted:
        refuse(
            broker,
            client,
            Reason.NOT_AUTHORIZED,
            "the will's topic is not permitted",
            connect.version,
        )
        return
    if (
        connect.properties.maximum_packet_size
        and len(answer(broker.limits, client, connect, False)) > client.connection.max_packet_out
    ):
        # Detected before the session is touched.
        refuse(broker, client, Reason.PACKET_TOO_LARGE, NO_ROOM, connect.version)
        return
    client.stage = CLAIMING
    broker.takeover.acquire(client, connect.clean_start)


def may_publish(client: MqttClient, topic: bytes) -> bool:
    """Return whether the client's permissions allow a topic."""
    assert client.policy is not None
    return allows_publish(client.policy, topic)


def allows_publish(policy: TopicPolicy, topic: bytes) -> bool:
    """Return whether permissions allow a topic; nobody may publish below ``$SYS/``."""
    return not topic.startswith(b"$SYS/") and policy.may_publish(topic.decode())


def on_claimed(broker: MqttBrokerPort, client: MqttClient, session: Session | None) -> None:
    """Continue as owner of the client id; ``session`` is the one to resume."""
    connect = client.connect
    if client.stage is not CLAIMING or connect is None:
        if session is not None and session.client is None:
            broker.sessions.schedule(session)
        return
    present = session is not None
    if session is None:
        try:
            session = new_session(broker, connect)
        except ProtocolError as error:
            refuse(broker, client, error.reason, error.text, connect.version)
            return
        session.principal = client.username
    elif of_backend(client):
        end_denied(broker, client, session)
    attach(broker, client, connect, session, present)


def of_backend(client: MqttClient) -> bool:
    """Return whether another login backend than the internal one has let the client in."""
    return client.policy is not None and client.policy.backend != ""


def end_denied(broker: MqttBrokerPort, client: MqttClient, session: Session) -> bool:
    """End the subscriptions of a session that the client's present login does not permit: an earlier
    one may have granted more. Return whether there were any."""
    assert client.policy is not None
    before = len(session.subscriptions)
    for written in list(session.subscriptions):
        try:
            permitted = client.policy.may_subscribe(written.decode())
        except UndecidedError:
            permitted = True  # decided when it was added
        if not permitted:
            broker.subscriptions.unsubscribe(session, written)
            del session.subscriptions[written]
    return len(session.subscriptions) < before


def new_session(broker: MqttBrokerPort, connect: Connect) -> Session:
    """Return a new session. Raises ProtocolError if the shard is full or cannot persist it."""
    kept = expiry_of(broker.limits, connect) != 0
    refusal = broker.sessions.refuses_to_keep(connect.client_id) if kept else 0
    if refusal:
        full = refusal == Outcome.OVER_LIMIT
        text = "no disk space for a session" if full else "sessions are no longer persisted"
        raise ProtocolError(reason_of(refusal, PacketType.CONNACK), text, connect.version)
    session = broker.sessions.create(connect.client_id)
    if session is None:
        raise ProtocolError(Reason.QUOTA_EXCEEDED, "too many sessions", connect.version)
    return session


def expiry_of(limits: SessionLimits, connect: Connect) -> int:
    """Return how many seconds the session outlives its connection."""
    if connect.version == 4:
        return 0 if connect.clean_start else limits.default_expiry
    asked = connect.properties.session_expiry_interval or 0
    return min(asked, limits.max_expiry) if asked != EXPIRY_NEVER else limits.max_expiry


def attach(
    broker: MqttBrokerPort, client: MqttClient, connect: Connect, session: Session, present: bool
) -> None:
    """Connect client and session and answer CONNECT."""
    connection = client.connection
    limits = broker.limits
    properties = connect.properties
    client.stage = CONNECTED
    client.session = session
    session.client = client
    session.expiry = expiry_of(limits, connect)
    session.expires_at = 0.0
    session.will_at = 0.0
    former, session.will = session.will, prepare_will(connect.will)
    if session.will is not None:
        known = of_backend(client) or broker.authentication.record(client.username)
        session.will.without_user = not known
        session.will.backend = "" if client.policy is None else client.policy.backend
    broker.wills.changed(session, former)
    connection.open = True
    connection.delivery = session.delivery
    connection.alias_maximum = min(
        properties.topic_alias_maximum or 0, limits.topic_alias_maximum_out
    )
    apply_policy(client)
    window = min(properties.receive_maximum or RECEIVE_MAXIMUM_DEFAULT, limits.max_inflight)
    session.delivery.window = window
    broker.sessions.adopt(session)
    connection.append(answer(limits, client, connect, present))
    assert client.policy is not None
    if client.policy.ends_at:
        broker.connections.end_at(client, client.policy.ends_at)
    keep_alive(broker, client, connect)
    session.delivery.attach(connection, window)
    # Needed for the answer only: an idle connection should cost little.
    client.connect = None
    broker.events.mqtt_connected(client)
    broker.connections.resume(connection)


def apply_policy(client: MqttClient) -> None:
    """Set the topics the hot path may route unchecked: all, or those found permitted."""
    assert client.policy is not None
    client.connection.allowed = None if client.policy.allows_everything else set()


def keep_alive(broker: MqttBrokerPort, client: MqttClient, connect: Connect) -> None:
    """Start watching for silence (MQTT 5.0 section 3.1.2.10)."""
    client.keep_alive = granted_keep_alive(broker.limits, connect)
    if client.keep_alive:
        broker.connections.watch(client, client.keep_alive * KEEP_ALIVE_FACTOR)


def granted_keep_alive(limits: SessionLimits, connect: Connect) -> int:
    """Return the requested keep-alive, capped for MQTT 5, where CONNACK can say so."""
    maximum = limits.keep_alive_maximum
    if connect.version == 5 and maximum and not 0 < connect.keep_alive <= maximum:
        return maximum
    return connect.keep_alive


def answer(limits: SessionLimits, client: MqttClient, connect: Connect, present: bool) -> bytes:
    """Return the encoded CONNACK of a successful CONNECT."""
    if connect.version == 4:
        return _CONNACK_PRESENT if present else _CONNACK
    if connect.properties is not NO_PROPERTIES or client.assigned:
        return encode(Connack(present, 0, announced(limits, client, connect)), 5)
    # Without special requests the properties depend on the settings alone, but for keep-alive.
    key = present, granted_keep_alive(limits, connect) != connect.keep_alive
    known = limits.connacks.get(key)
    if known is None:
        known = encode(Connack(present, 0, announced(limits, client, connect)), 5)
        limits.connacks[key] = known
    return known


def announced(limits: SessionLimits, client: MqttClient, connect: Connect) -> Properties:
    """Return the server's limits and assigned values for an MQTT 5 client."""
    asked = connect.properties
    told = Properties(
        receive_maximum=limits.max_inflight,
        maximum_packet_size=limits.max_packet,
        topic_alias_maximum=limits.topic_alias_maximum or None,
        assigned_client_identifier=connect.client_id if client.assigned else None,
    )
    if limits.max_qos < 2:
        told.maximum_qos = limits.max_qos
    granted = expiry_of(limits, connect)
    if granted != (asked.session_expiry_interval or 0):
        told.session_expiry_interval = granted
    alive = granted_keep_alive(limits, connect)
    if alive != connect.keep_alive:
        told.server_keep_alive = alive
    if asked.authentication_method is not None:
        told.authentication_method = asked.authentication_method
        told.authentication_data = client.proof
    return told


def prepare_will(packet: WillPacket | None) -> Will | None:
    """Return a will in the form in which it will be published."""
    if packet is None:
        return None
    properties = packet.properties
    delay = properties.will_delay_interval or 0
    expiry = properties.message_expiry_interval
    forward = Properties(
        payload_format_indicator=properties.payload_format_indicator,
        content_type=properties.content_type,
        response_topic=properties.response_topic,
        correlation_data=properties.correlation_data,
        user_properties=properties.user_properties,
    )
    encoded = encode_properties(forward, PacketType.PUBLISH)
    # Skip the length, which is 1 to 4 bytes with the top bit set on all but the last.
    start = next(index for index, byte in enumerate(encoded) if byte < 0x80) + 1
    return Will(
        packet.topic,
        packet.payload,
        packet.qos,
        packet.retain,
        encoded[start:],
        delay,
        expiry,
    )
