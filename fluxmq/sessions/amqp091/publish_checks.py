"""Checks of publishes, once per run: all messages of a run have the same exchange, routing key,
flags and properties.

Source: AMQP 0-9-1 section 1.8.3.7 (publish), RabbitMQ's validated user-id, per-message TTL, and
sender-selected distribution (CC, BCC).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fluxmq.auth.permissions import Permissions
from fluxmq.model.properties import Timestamp
from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.content import (
    HEADERS,
    TIMESTAMP,
    BasicProperties,
    read_fields,
    write_fields,
)
from fluxmq.protocols.amqp091.errors import HardError, SoftError
from fluxmq.protocols.amqp091.message_properties import to_block
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.routing.topology.records import EXCHANGE, Exchange
from fluxmq.routing.topology.refusals import not_found
from fluxmq.sessions.amqp091 import direct_reply
from fluxmq.sessions.amqp091.access import TOPIC
from fluxmq.sessions.amqp091.client import AmqpClient
from fluxmq.sessions.amqp091.headers import (
    BCC,
    CC,
    DEDUPLICATION_ID,
    Headers,
    all_keys,
    expiry_of,
    identity_in,
)
from fluxmq.sessions.amqp091.ports import AmqpBrokerPort, Routing
from fluxmq.sessions.amqp091.refusals import error_from, precondition

_CORRELATION_ID: Final = BasicProperties._fields.index("correlation_id")
_DELIVERY_MODE: Final = BasicProperties._fields.index("delivery_mode")
_DELIVERY_MODES: Final = (b"\x01", b"\x02")
"""Transient and persistent."""
_REPLY_TO: Final = BasicProperties._fields.index("reply_to")
_EXPIRATION: Final = BasicProperties._fields.index("expiration")
_MESSAGE_ID: Final = BasicProperties._fields.index("message_id")
_USER_ID: Final = BasicProperties._fields.index("user_id")
_PSEUDO_QUEUE: Final = direct_reply.PSEUDO_QUEUE.encode()


class Prepared(NamedTuple):
    """Result of checking a run, and the run it belongs to.

    ``reply``: address of direct replies that the messages are for, None for routed messages.
    ``returned``: properties of returned messages, without BCC. ``singly``: some messages of a run
    may be refused, so that each is confirmed by itself.
    """

    exchange_name: bytes
    routing_key: bytes
    given: bytes
    revision: int
    permissions: Permissions
    routing: Routing
    returned: bytes
    reply: str | None
    singly: bool


def check_publish(
    client: AmqpClient, run: AmqpPublishRun, permissions: Permissions | None, reply_to: str
) -> Prepared:
    """Make all of RabbitMQ's checks, in its order. Raises AmqpError.

    ``reply_to``: the address that replaces the pseudo-queue in the property of that name; empty
    when the channel consumes no replies.
    """
    broker, info = client.broker, client.info
    name, key = _text(run.exchange), _text(run.routing_key)
    if permissions is None or not permissions.write(name):
        raise client.access.refused(EXCHANGE, name)
    exchange = _existing(broker, info.vhost, name)
    fields = read_fields(run.properties)
    given = run.properties
    if fields[_REPLY_TO] == _PSEUDO_QUEUE:
        if not reply_to:
            raise precondition("fast reply consumer does not exist")
        fields[_REPLY_TO] = reply_to.encode()
        given = write_fields(fields)
    _check_user(fields[_USER_ID], info.user)
    expiration = fields[_EXPIRATION]
    expiry_ms = None if expiration is None else expiry_of(_shown(expiration))
    keys: tuple[str, ...] = (key,)
    drop: tuple[str, ...] = ()
    returned = given
    raw_headers = fields[HEADERS]
    headers = Headers(raw_headers) if raw_headers else None
    if headers is not None and (headers.may_have(CC) or headers.may_have(BCC)):
        keys = all_keys(key, headers)
        if BCC in headers:
            drop = (BCC,)
            fields[HEADERS] = headers.without(BCC)
            returned = write_fields(fields)
    if exchange.type == TOPIC:
        for each in keys:
            if not permissions.topic_write(name, each):
                raise client.access.topic_refused(name, each)
    identity = None
    if headers is not None and headers.may_have(DEDUPLICATION_ID):
        identity = identity_in(headers)
        if identity is not None:
            drop += (DEDUPLICATION_ID,)
    mode = fields[_DELIVERY_MODE]
    if mode is not None and mode not in _DELIVERY_MODES:
        raise precondition(f"invalid message: {{delivery_mode_unknown,{mode[0]}}}")
    reply = direct_reply.address_in(name, key)
    block = to_block(given, name, info.user, drop=drop)
    routing = Routing(exchange, block, keys, headers, _hashed(fields), expiry_ms, identity)
    return Prepared(
        run.exchange,
        run.routing_key,
        run.properties,
        broker.topology.revision,
        permissions,
        routing,
        returned,
        reply,
        reply is None and broker.may_refuse(routing),
    )


def _existing(broker: AmqpBrokerPort, vhost: str, name: str) -> Exchange:
    """Return the exchange to publish to. Raises SoftError 404, or 403 for an internal one."""
    exchange = broker.topology.exchange(vhost, name)
    if exchange is None:
        raise error_from(not_found(EXCHANGE, name, vhost))
    if exchange.internal:
        text = f"cannot publish to internal exchange '{name}' in vhost '{vhost}'"
        raise SoftError(ReplyCode.ACCESS_REFUSED, text)
    return exchange


def _check_user(user_id: bytes | None, user: str) -> None:
    """Raise SoftError 406 for a user-id other than the sender's."""
    if user_id is not None and user_id != user.encode():
        text = f"user_id property set to '{_shown(user_id)}' but authenticated user was '{user}'"
        raise precondition(text)


def _text(raw: bytes) -> str:
    """Decode a name or routing key. Raises HardError 501 unless it is UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise HardError(ReplyCode.FRAME_ERROR, "Malformed UTF-8 in shortstr") from None


def _shown(raw: bytes) -> str:
    """Return a property's text, with invalid UTF-8 replaced."""
    return raw.decode("utf-8", "replace")


def _hashed(fields: Sequence[bytes | None]) -> Mapping[str, object] | None:
    """Return the properties that an exchange may hash."""
    hashed: dict[str, object] = {}
    for index in (_CORRELATION_ID, _MESSAGE_ID):
        raw = fields[index]
        if raw is not None:
            hashed[BasicProperties._fields[index]] = raw.decode("utf-8", "surrogateescape")
    moment = fields[TIMESTAMP]
    if moment is not None:
        hashed["timestamp"] = Timestamp.from_bytes(moment, "big")
    return hashed or None
