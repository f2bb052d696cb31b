"""Publishes: checked once per run, routed by the broker, returned, confirmed, or held by a
transaction.

All messages of a run have the same exchange, routing key, flags and properties, so one check covers
all; and the result for a channel's last run is reused for the next while those, the topology and
the permissions are the same. In confirm mode every message has a number, routed or not.

Source: AMQP 0-9-1 sections 1.8.3.7 (publish) and 1.8.3.8 (return), RabbitMQ's publisher confirms,
validated user-id, per-message TTL, and sender-selected distribution (CC, BCC).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from fluxmq.auth.permissions import Permissions
from fluxmq.model.deduplication import identity_of
from fluxmq.model.properties import Timestamp
from fluxmq.protocols.amqp091.confirms import NACK, Confirmation
from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.content import (
    HEADERS,
    TIMESTAMP,
    Properties,
    read_fields,
    write_fields,
)
from fluxmq.protocols.amqp091.delivery import encode_return
from fluxmq.protocols.amqp091.errors import HardError, SoftError
from fluxmq.protocols.amqp091.message_properties import to_block
from fluxmq.protocols.amqp091.run import PublishRun
from fluxmq.routing.topology.records import EXCHANGE, Exchange
from fluxmq.routing.topology.refusals import not_found
from fluxmq.routing.topology.values import type_name
from fluxmq.sessions.amqp091 import access, blocking, replying
from fluxmq.sessions.amqp091.channel import Channel, error_from, precondition
from fluxmq.sessions.amqp091.content import check_size
from fluxmq.sessions.amqp091.expiration import expiry_of
from fluxmq.sessions.amqp091.headers import BCC, CC, Headers, all_keys
from fluxmq.sessions.amqp091.ports import Confirming

if TYPE_CHECKING:
    from fluxmq.sessions.amqp091.transactions import Transaction

UNANSWERED_MAX: Final = 65_536
"""Maximum unconfirmed publishes of a channel in confirm mode: beyond it the connection is not
read."""

PREPARED_BYTES_MAX: Final = 4096
"""Longest properties for which a channel caches the result of its checks: the result holds several
copies of them, and a connection may have two thousand channels."""

_ANSWER_BYTES: Final = 21
_KIND_AT: Final = 10
_NUMBER_AT: Final = 11
_MULTIPLE_AT: Final = 19
"""Size of a basic.ack or basic.nack frame, and offsets in it: low byte of the method, number,
``multiple``."""

_CORRELATION_ID: Final = Properties._fields.index("correlation_id")
_DELIVERY_MODE: Final = Properties._fields.index("delivery_mode")
_DELIVERY_MODES: Final = (b"\x01", b"\x02")
"""Transient and persistent."""
_REPLY_TO: Final = Properties._fields.index("reply_to")
_EXPIRATION: Final = Properties._fields.index("expiration")
_MESSAGE_ID: Final = Properties._fields.index("message_id")
_USER_ID: Final = Properties._fields.index("user_id")
DEDUPLICATION_ID: Final = "x-deduplication-id"
"""Header that identifies a message, so that duplicates are stored once."""
_PSEUDO_QUEUE: Final = replying.PSEUDO_QUEUE.encode()


class Prepared(NamedTuple):
    """Result of checking a run, and the run it belongs to.

    ``reply``: address of direct replies that the messages are for, None for routed messages.
    ``returned``: properties of returned messages, without BCC. ``singly``: some messages of a run
    may be refused, so that each is confirmed by itself. ``identity``: producer and sequence by
    which a queue recognises duplicates.
    """

    exchange_name: bytes
    routing_key: bytes
    given: bytes
    revision: int
    permissions: Permissions
    exchange: Exchange
    block: bytes
    keys: tuple[str, ...]
    headers: Mapping[str, object] | None
    properties: Mapping[str, object] | None
    expiry_ms: int | None
    returned: bytes
    reply: str | None
    singly: bool
    identity: tuple[int, int] | None


def publish(channel: Channel, run: PublishRun) -> None:
    """Publish a run. Raises AmqpError; then nothing of the run was published."""
    if run.immediate:
        raise HardError(ReplyCode.NOT_IMPLEMENTED, "immediate=true")
    client = channel.client
    check_size(run.largest, channel.handler.broker.limits.max_message)
    prepared = prepare(channel, run)
    client.connection.tally.published(run.count, run.payload_bytes)
    if not client.connection.publishing:
        blocking.began(channel.handler, client)
    if channel.transaction is not None:
        hold(channel, channel.transaction, prepared, run)
        return
    window = channel.window
    if window is None:
        send(channel, prepared, run, None)
        return
    first = window.publish(run.count)
    runs = each_of(run) if prepared.singly and run.count > 1 else (run,)
    for number, each in enumerate(runs, first):
        confirmation = Confirmation(window, number, each.count, channel.mark)
        # Held until a possible return, so that the return precedes the confirm.
        confirmation.hold()
        send(channel, prepared, each, confirmation)
        confirmation.done()
    if window.unanswered > UNANSWERED_MAX and not channel.paced:
        channel.paced = True
        channel.handler.pause(client)


def each_of(run: PublishRun) -> Iterator[PublishRun]:
    """Yield the messages of a run as runs of one."""
    for payload in run.payloads():
        yield PublishRun.of(
            run.channel,
            run.exchange,
            run.routing_key,
            run.mandatory,
            run.immediate,
            run.properties,
            payload,
        )


def send(
    channel: Channel, prepared: Prepared, run: PublishRun, confirmation: Confirming | None
) -> None:
    """Route a run, and return it when it is mandatory and unroutable."""
    broker = channel.handler.broker
    if prepared.reply is not None:
        # Sent to the requester, yet not routed to a queue, which is what mandatory demands.
        if broker.reply(prepared.reply, run, prepared.block):
            channel.client.connection.tally.amqp_replies += run.count
        else:
            broker.count_drop("reply_gone", run.count)
        if run.mandatory:
            give_back(channel, prepared, run)
        return
    routed = broker.publish(
        channel,
        run,
        prepared.exchange,
        prepared.block,
        prepared.keys,
        prepared.headers,
        confirmation,
        prepared.expiry_ms,
        prepared.properties,
        prepared.identity,
    )
    if not routed:
        if run.mandatory:
            give_back(channel, prepared, run)
        else:
            broker.count_drop("unroutable", run.count)


def give_back(channel: Channel, prepared: Prepared, run: PublishRun) -> None:
    """Send basic.return for every message of the run."""
    client = channel.client
    client.connection.tally.amqp_returned += run.count
    code = ReplyCode.NO_ROUTE
    for payload in run.payloads():
        client.connection.append(
            encode_return(
                channel.number,
                code,
                code.name.encode(),
                run.exchange,
                run.routing_key,
                prepared.returned,
                payload,
                client.frame_max,
            )
        )


def hold(channel: Channel, transaction: Transaction, prepared: Prepared, run: PublishRun) -> None:
    """Keep the run until the transaction commits. Raises SoftError 406 when it is too large, or
    memory is short."""
    broker = channel.handler.broker
    if broker.short_of_memory:
        broker.refused_for_memory("transaction")
        raise precondition("the node is low on memory: a transaction cannot grow")
    run.detach()
    transaction.publish(prepared, run)


def flush(channel: Channel) -> None:
    """Write the confirms that are due."""
    window = channel.window
    if window is None:
        return
    waiting = window.unanswered
    answers = window.answers(channel.number)
    if answers:
        connection = channel.client.connection
        connection.append(answers)
        answered = waiting - window.unanswered
        if len(answers) == _ANSWER_BYTES and answers[_KIND_AT] != NACK:
            connection.tally.amqp_confirmed += answered
        else:
            nacked = count_nacked(answers, answered)
            connection.tally.amqp_confirmed += answered - nacked
            connection.tally.amqp_nacked += nacked
    if channel.paced and 2 * window.unanswered <= UNANSWERED_MAX:
        channel.paced = False
        channel.handler.resume(channel.client)


def count_nacked(answers: bytes, answered: int) -> int:
    """Return how many of the publishes answered by these frames get a basic.nack.

    Where several frames answer many of both kinds, numbers between them that were answered one by
    one earlier count for the frame that passes over them, and less for the first.
    """
    kinds = answers[_KIND_AT::_ANSWER_BYTES]
    nacks = kinds.count(NACK)
    if not nacks or nacks == len(kinds):
        return answered if nacks else 0
    counts = []
    before = 0
    for at in range(0, len(answers), _ANSWER_BYTES):
        number = int.from_bytes(answers[at + _NUMBER_AT : at + _NUMBER_AT + 8], "big")
        many = answers[at + _MULTIPLE_AT]
        counts.append(number - before if many and before else 1)
        before = number
    # The first frame does not tell how far back it reaches: it gets what the others leave.
    counts[0] = max(answered - sum(counts[1:]), 1)
    return min(
        sum(count for count, kind in zip(counts, kinds, strict=True) if kind == NACK), answered
    )


# --- checks ---


def prepare(channel: Channel, run: PublishRun) -> Prepared:
    """Check a run, or reuse the result of a similar one. Raises AmqpError."""
    broker = channel.handler.broker
    permissions = access.permissions_of(channel)
    prepared = channel.prepared
    if (
        prepared is not None
        and prepared.permissions is permissions
        and prepared.revision == broker.topology.revision
        and prepared.routing_key == run.routing_key
        and prepared.exchange_name == run.exchange
        and prepared.given == run.properties
    ):
        return prepared
    prepared = check(channel, run, permissions)
    channel.prepared = prepared if len(run.properties) <= PREPARED_BYTES_MAX else None
    return prepared


def check(channel: Channel, run: PublishRun, permissions: Permissions | None) -> Prepared:
    """Make all of RabbitMQ's checks, in its order. Raises AmqpError."""
    client, broker = channel.client, channel.handler.broker
    name, key = _text(run.exchange), _text(run.routing_key)
    if permissions is None or not permissions.write(name):
        raise access.refused(channel, EXCHANGE, name)
    topology = broker.topology
    exchange = topology.exchange(client.vhost, name)
    if exchange is None:
        raise error_from(not_found("exchange", name, client.vhost))
    if exchange.internal:
        text = f"cannot publish to internal exchange '{name}' in vhost '{client.vhost}'"
        raise SoftError(ReplyCode.ACCESS_REFUSED, text)
    fields = read_fields(run.properties)
    given = run.properties
    if fields[_REPLY_TO] == _PSEUDO_QUEUE:
        fields[_REPLY_TO] = replying.own_address(channel).encode()
        given = write_fields(fields)
    check_user(fields[_USER_ID], client.user)
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
    if exchange.type == access.TOPIC:
        check_topics(channel, permissions, name, keys)
    identity = None
    if headers is not None and headers.may_have(DEDUPLICATION_ID):
        identity = identity_in(headers)
        if identity is not None:
            drop += (DEDUPLICATION_ID,)
    mode = fields[_DELIVERY_MODE]
    if mode is not None and mode not in _DELIVERY_MODES:
        raise precondition(f"invalid message: {{delivery_mode_unknown,{mode[0]}}}")
    reply = replying.address_in(name, key)
    hashed = _hashed(fields)
    return Prepared(
        run.exchange,
        run.routing_key,
        run.properties,
        topology.revision,
        permissions,
        exchange,
        to_block(given, name, client.user, drop=drop),
        keys,
        headers,
        hashed,
        expiry_ms,
        returned,
        reply,
        reply is None and broker.may_refuse(exchange, keys, headers, hashed),
        identity,
    )


def check_topics(
    channel: Channel, permissions: Permissions, exchange: str, keys: Sequence[str]
) -> None:
    """Raise SoftError 403 for the first routing key forbidden to the user on a topic exchange."""
    for key in keys:
        if not permissions.topic_write(exchange, key):
            raise access.topic_refused(channel, exchange, key)


def check_user(user_id: bytes | None, user: str) -> None:
    """Raise SoftError 406 for a user-id other than the sender's."""
    if user_id is not None and user_id != user.encode():
        text = f"user_id property set to '{_shown(user_id)}' but authenticated user was '{user}'"
        raise precondition(text)


def identity_in(headers: Headers) -> tuple[int, int] | None:
    """Return producer and sequence from a header, None without it. Raises SoftError 406 if it is
    malformed."""
    if DEDUPLICATION_ID not in headers:
        return None
    value = headers[DEDUPLICATION_ID]
    if not isinstance(value, str | bytes):
        kind = type_name(value)
        text = f'invalid message: {{unacceptable_type_in_header,"{DEDUPLICATION_ID}",{kind}}}'
        raise precondition(text)
    try:
        return identity_of(value.encode() if isinstance(value, str) else value)
    except ValueError as error:
        raise precondition(f"invalid message: {DEDUPLICATION_ID}: {error}") from None


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
            hashed[Properties._fields[index]] = raw.decode("utf-8", "surrogateescape")
    moment = fields[TIMESTAMP]
    if moment is not None:
        hashed["timestamp"] = Timestamp.from_bytes(moment, "big")
    return hashed or None
