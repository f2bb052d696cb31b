"""Messages of a sender: their address, the checks of the broker, and what is stored of them.

What was found out about a message is kept for the next ones of the link: mostly the sections before
the payload are equal, byte for byte, but for ids and creation time, and then nothing is decoded
again.

Source: OASIS AMQP 1.0 part 3, section 3.2 (message format), RabbitMQ's addresses, validated user-id,
x-cc, and topic permissions.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fluxmq.auth.permissions import Permissions
from fluxmq.model.amqp10_sections import PROPERTIES, scan
from fluxmq.model.amqp10_values import AmqpValueError
from fluxmq.model.batch_format import PROTOCOL_AMQP_1_0
from fluxmq.model.deduplication import identity_of
from fluxmq.model.properties import Item, PropertyError, PropertyKind, encode
from fluxmq.protocols.amqp091.content import BasicProperties, encode_properties
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.addresses import (
    AddressError,
    AddressTarget,
    Missing,
    target_of_message,
)
from fluxmq.protocols.amqp10.conditions import LinkConditionError
from fluxmq.protocols.amqp10.message import (
    AmqpMessage,
    MessageColumns,
    from_sections,
    hashed_properties,
    routing_headers,
)
from fluxmq.protocols.amqp10.transfer_run import DATA_BYTES, MessageShape, TransferRun
from fluxmq.protocols.amqp10.types import Symbol
from fluxmq.routing.topology.records import EXCHANGE
from fluxmq.routing.topology.refusals import not_found
from fluxmq.routing.topology.routing import goes_by_key
from fluxmq.routing.topology.topology import Topology
from fluxmq.sessions.amqp091.access import TOPIC
from fluxmq.sessions.amqp091.ports import Routing
from fluxmq.sessions.amqp10.client import Amqp10Client
from fluxmq.sessions.amqp10.refused import link_error

FRONT_BYTES_MAX: Final = 4096
"""Longest sections before a payload for which the result of the checks is kept."""
_DATA: Final = b"\x00\x53\x75"
_PROPERTIES: Final = b"\x00\x53\x73"
_SHORT: Final = 0xA0
_LONG: Final = 0xB0
_NO_PROPERTIES: Final = encode_properties(BasicProperties())
_HEAD: Final = bytes(11)
_FRAME: Final = bytes(7)


class CheckedMessage(NamedTuple):
    """Result of checking a message, for equal ones.

    ``front``: its bytes before the length of the payload; ``repeats``: whether they decide
    everything. ``singly``: a queue may refuse some messages of a run. ``shape``: of messages in a run
    that need no check of their own; None for none.
    """

    front: bytes
    repeats: bool
    revision: int
    permissions: Permissions
    routing: Routing
    singly: bool
    shape: MessageShape | None


def checked(
    client: Amqp10Client, data: bytes, target: AddressTarget | None, *, varied: bool = False
) -> tuple[CheckedMessage, bytes]:
    """Make the checks of a message; return their result and the payload. ``target``: of the link;
    None: the message's ``to``. ``varied``: the shape is to be also that of messages with other ids.

    Raises LinkConditionError for a message that is malformed, not permitted or not supported.
    """
    try:
        message = from_sections(data)
        headers = routing_headers(message.content) or None
        hashed = hashed_properties(message.content) or None
    except (AmqpValueError, PropertyError) as error:
        raise LinkConditionError(conditions.DECODE_ERROR, str(error)) from None
    columns = message.columns
    if target is None:
        try:
            target = target_of_message(columns.to)
        except AddressError as error:
            raise LinkConditionError(Symbol(error.condition), str(error)) from None
    permissions = client.access.permissions()
    keys = _keys(target, columns)
    broker, info = client.broker, client.info
    name = target.exchange
    if permissions is None or not permissions.write(name):
        raise link_error(client.access.refused(EXCHANGE, name))
    exchange = broker.topology.exchange(info.vhost, name)
    if exchange is None:
        raise link_error(not_found(EXCHANGE, name, info.vhost))
    if exchange.internal:
        text = f"cannot publish to internal exchange '{name}' in vhost '{info.vhost}'"
        raise LinkConditionError(conditions.UNAUTHORIZED_ACCESS, text)
    if exchange.type == TOPIC:
        for key in keys:
            if not permissions.topic_write(name, key):
                raise link_error(client.access.topic_refused(name, key))
    if columns.user_id is not None and columns.user_id != info.user.encode():
        text = f"user-id is not the authenticated user '{info.user}'"
        raise LinkConditionError(conditions.UNAUTHORIZED_ACCESS, text)
    now = broker.now_us()
    block = message.block(name, info.user)
    routing = Routing(
        exchange,
        block,
        keys,
        headers,
        hashed,
        _expiry_ms(columns, now),
        _identity(columns),
        columns.delay_us(now),
        PROTOCOL_AMQP_1_0,
    )
    front, repeats = _front(data, message)
    singly = broker.may_refuse(routing)
    topology = broker.topology if varied else None
    shape = _shape(topology, front, message, routing) if repeats else None
    revision = broker.topology.revision
    found = CheckedMessage(front, repeats, revision, permissions, routing, singly, shape)
    return found, message.payload


def is_current(client: Amqp10Client, known: CheckedMessage) -> bool:
    """Return whether topology and permissions are those with which a message was checked."""
    return (
        known.revision == client.broker.topology.revision
        and client.access.permissions() is known.permissions
    )


def repeated(client: Amqp10Client, known: CheckedMessage, data: bytes) -> bytes | None:
    """Return the payload of a message that differs from a known one in nothing else; None for
    another."""
    front = known.front
    if not known.repeats or not data.startswith(front):
        return None
    at = len(front)
    if front[-1] == _SHORT:
        start = at + 1
        size = data[at] if at < len(data) else -1
    else:
        start = at + 4
        size = int.from_bytes(data[at:start], "big")
        if size <= 0xFF:
            return None
    if start + size != len(data) or not is_current(client, known):
        return None
    return data[start:]


def run_of(payloads: list[bytes], channel: int, routing: Routing) -> AmqpPublishRun:
    """Return messages that are equal in everything but their payloads as a run.

    Each is framed as a run of AMQP 0.9.1 has it: zeros, the size where a content header has it, and
    a body frame.
    """
    exchange, key = routing.exchange.name.encode(), routing.keys[0].encode()
    if len(payloads) == 1:
        return AmqpPublishRun.of(
            *(channel, exchange, key, False, False, _NO_PROPERTIES, payloads[0])
        )
    parts: list[bytes] = []
    sizes: set[int] = set()
    total = 0
    for payload in payloads:
        size = len(payload)
        sizes.add(size)
        total += size
        parts += (_HEAD, size.to_bytes(8, "big"))
        if size:
            parts += (_FRAME, payload, b"\0")
    buffer = b"".join(parts)
    run = _run(buffer, len(payloads), channel, exchange, key)
    run.stride = len(buffer) // len(payloads) if len(sizes) == 1 else 0
    run.payload_bytes = total
    run.largest = max(sizes)
    return run


def publish_run(
    shape: MessageShape, run: TransferRun, index: int, count: int, routing: Routing
) -> AmqpPublishRun:
    """Return transfers that a shape has matched as a run to publish, with copies of their bytes."""
    exchange, key = routing.exchange.name.encode(), routing.keys[0].encode()
    buffer = shape.framed(run, index, count)
    made = _run(buffer, count, run.channel, exchange, key)
    made.stride = shape.stride
    made.payload_bytes = shape.payload_bytes
    made.largest = shape.largest
    made.blocks = shape.blocks(run, index, count) if shape.varied else None
    return made


def _run(buffer: bytes, count: int, channel: int, exchange: bytes, key: bytes) -> AmqpPublishRun:
    """Return a run of framed messages without what is told of their sizes."""
    made = AmqpPublishRun(buffer, 0, len(buffer), channel, exchange, key, 0, _NO_PROPERTIES)
    made.count = count
    made.header_size = len(_HEAD) + 8
    made.kept = True
    return made


def _shape(
    topology: Topology | None, front: bytes, message: AmqpMessage, routing: Routing
) -> MessageShape:
    """Return the shape of a message that decides everything for equal ones. It is that of those with
    other ids only if no exchange of ``topology`` on their way looks at these; None: only of equal
    ones."""
    vhost, exchange = routing.exchange.vhost, routing.exchange.name
    if topology is None or not all(
        goes_by_key(topology, vhost, exchange, key) for key in routing.keys
    ):
        return MessageShape(front)
    empty = front + bytes(1 if front[-1] == _SHORT else 4)
    places = [each.start for each in scan(empty, 0, len(empty)) if each.code == PROPERTIES]
    at = places[0] if places else -1
    content, tail = message.content, front[at:-DATA_BYTES]
    if at < 0 or not front.startswith(_PROPERTIES, at) or not content.endswith(tail):
        return MessageShape(front)
    lead = content[: len(content) - len(tail)]
    item = encode([Item(PropertyKind.AMQP10, content)])
    if not routing.block.endswith(item):
        return MessageShape(front)
    head = routing.block[: len(routing.block) - len(item) + 1]
    return MessageShape(front, head, lead, at)


def _keys(target: AddressTarget, columns: MessageColumns) -> tuple[str, ...]:
    """Return the routing keys. Raises LinkConditionError for those that are not UTF-8."""
    key = target.routing_key
    try:
        if target.missing is Missing.SUBJECT:
            key = (columns.subject or b"").decode()
        copies = [each.decode() for each in columns.copies]
    except UnicodeDecodeError:
        raise LinkConditionError(conditions.DECODE_ERROR, "a string that is not UTF-8") from None
    return (key, *dict.fromkeys(each for each in copies if each != key))


def _expiry_ms(columns: MessageColumns, now_us: int) -> int | None:
    if columns.ttl_ms is None and columns.expires_at_ms is None:
        return None
    return max((columns.expiry_us(now_us) - now_us) // 1000, 0)


def _identity(columns: MessageColumns) -> tuple[int, int] | None:
    """Return producer and sequence, by which a queue keeps a message once. Raises LinkConditionError
    for an annotation that says none."""
    if columns.identity is None:
        return None
    try:
        return identity_of(columns.identity)
    except ValueError as error:
        text = f"x-deduplication-id: {error}"
        raise LinkConditionError(conditions.PRECONDITION_FAILED, text) from None


def _front(data: bytes, message: AmqpMessage) -> tuple[bytes, bool]:
    """Return the bytes before the length of the payload, and whether equal ones mean equal
    messages: not for several sections of body, and not for times relative to now."""
    columns = message.columns
    timed = columns.deliver_at_ms, columns.delay_ms, columns.expires_at_ms
    size = len(message.payload)
    width = 1 if size <= 0xFF else 4
    at = len(data) - size - width
    front = data[:at]
    code = _SHORT if width == 1 else _LONG
    plain = not message.content[0]  # one data section, with descriptor and length in short forms
    plain = plain and at > 0 and front[-1] == code and front[:-1].endswith(_DATA)
    plain = plain and int.from_bytes(data[at : at + width], "big") == size
    return front, plain and timed == (None, None, None) and at <= FRONT_BYTES_MAX
