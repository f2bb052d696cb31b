"""Declaring, inspecting, purging and deleting queues and exchanges.

The shard's copy of the topology is consulted first: errors are answered at once, and redeclaring an
existing entity needs no change at all. The control process makes changes; they are answered when
every shard knows them.

Source: AMQP 0-9-1 sections 1.6 (exchange) and 1.7 (queue), RabbitMQ's checks and their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.methods import (
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    Method,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from fluxmq.routing.topology.arguments import (
    ALTERNATE_KEY,
    CLASSIC,
    QUORUM,
    STREAM,
    check_exchange_type,
    queue_type,
)
from fluxmq.routing.topology.changes import (
    Change,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
)
from fluxmq.routing.topology.names import is_reserved
from fluxmq.routing.topology.records import EXCHANGE, QUEUE, Exchange, Queue
from fluxmq.routing.topology.refusals import Refusal, named, not_found, reserved
from fluxmq.sessions.amqp091 import access, refusals, replying
from fluxmq.sessions.amqp091.channel import Channel, error_from, precondition
from fluxmq.sessions.amqp091.ports import Broker, QueueStatus
from fluxmq.sessions.amqp091.queue_names import clean, existing_queue, expanded

DEAD_LETTER_KEY = "x-dead-letter-exchange"


def change(
    channel: Channel, method: Method, changes: Sequence[Change], answer: Method | None
) -> None:
    """Change the topology, then answer; None: the client does not wait."""
    channel.handler.broker.change(changes, channel.later(method, partial(changed, channel, answer)))


def changed(channel: Channel, answer: Method | None, refusal: Refusal | None) -> None:
    """Complete a change with its outcome. Raises AmqpError."""
    if refusal is not None:
        raise error_from(refusal)
    if answer is not None:
        channel.send(answer)


def asked(question: Callable[[], bool]) -> bool:
    """Return the topology's answer. Raises AmqpError for its refusals."""
    try:
        return question()
    except Refusal as refusal:
        raise error_from(refusal) from None


def _group_for(broker: Broker, method: QueueDeclare, name: str, kind: str) -> str:
    """Return the replication group of a new queue. Raises AmqpError."""
    try:
        return broker.group_for(name, method.durable, method.exclusive, kind, method.arguments)
    except Refusal as refusal:
        raise error_from(refusal) from None


# --- exchanges ---


def on_exchange_declare(channel: Channel, method: ExchangeDeclare) -> None:
    """Declare an exchange, or with ``passive`` check that it exists. Raises AmqpError."""
    vhost = channel.client.vhost
    topology = channel.handler.broker.topology
    name = clean(method.exchange)
    answer = None if method.no_wait else ExchangeDeclareOk()
    if method.passive:
        asked(lambda: bool(topology.require_exchange(vhost, name)))
        _answer(channel, answer)
        return
    wanted = Exchange(
        vhost,
        name,
        method.type,
        method.durable,
        method.auto_delete,
        method.internal,
        method.arguments,
    )
    if name:
        try:
            check_exchange_type(wanted)
        except Refusal as refusal:
            raise error_from(refusal) from None
        access.need_configure(channel, EXCHANGE, name)
    if asked(lambda: topology.check_exchange(wanted)):
        _answer(channel, answer)
        return
    alternate = method.arguments.get(ALTERNATE_KEY)
    if isinstance(alternate, str):
        access.need_read(channel, EXCHANGE, name)
        access.need_write(channel, EXCHANGE, alternate)
    change(channel, method, [DeclareExchange(wanted)], answer)


def on_exchange_delete(channel: Channel, method: ExchangeDelete) -> None:
    """Delete an exchange. Raises AmqpError."""
    vhost = channel.client.vhost
    topology = channel.handler.broker.topology
    name = clean(method.exchange)
    answer = None if method.no_wait else ExchangeDeleteOk()
    if name and not is_reserved(name):
        access.need_configure(channel, EXCHANGE, name)
    if asked(lambda: topology.check_delete_exchange(vhost, name, method.if_unused)):
        change(channel, method, [DeleteExchange(vhost, name, method.if_unused)], answer)
    else:
        _answer(channel, answer)


def _answer(channel: Channel, answer: Method | None) -> None:
    if answer is not None:
        channel.send(answer)


# --- queues ---


def on_queue_declare(channel: Channel, method: QueueDeclare) -> None:
    """Declare a queue, or with ``passive`` report its contents if it exists. Raises AmqpError."""
    name = clean(method.queue)
    if replying.is_reply_queue(name):
        declare_reply_queue(channel, method, name)
    elif method.passive:
        describe(channel, method, existing_queue(channel, name))
    else:
        declare_queue(channel, method, name)


def declare_queue(channel: Channel, method: QueueDeclare, name: str) -> None:
    """Create a queue unless there is an equal one. Raises AmqpError."""
    client, broker = channel.client, channel.handler.broker
    topology = broker.topology
    if not name:
        asked_for = queue_type(method.arguments, CLASSIC)
        if asked_for in (QUORUM, STREAM):
            text = f"Cannot declare a server-named queue for type rabbit_{asked_for}_queue"
            raise precondition(text)
        name = f"amq.gen-{broker.unique()}"
    elif is_reserved(name):
        raise error_from(reserved(QUEUE, name))
    access.need_configure(channel, QUEUE, name)
    vhost = topology.vhost(client.vhost)
    default = CLASSIC
    if vhost is not None and method.durable and not (method.exclusive or method.auto_delete):
        default = vhost.default_queue_type  # others are always classic
    kind = queue_type(method.arguments, default)
    wanted = Queue(
        client.vhost,
        name,
        kind,
        method.durable,
        method.exclusive,
        method.auto_delete,
        method.arguments,
        client.owner if method.exclusive else "",
        _group_for(broker, method, name, kind),
    )
    known = asked(lambda: topology.check_queue(wanted))
    if known and not method.auto_delete:
        describe(channel, method, existing_queue(channel, name))
        return
    # An auto-delete queue is declared even if it is known: its last consumer may just have gone,
    # with its deletion on the way. The declaration follows the deletion, and outlives it.
    exchange = method.arguments.get(DEAD_LETTER_KEY)
    if isinstance(exchange, str) and not known:
        access.need_read(channel, QUEUE, name)
        access.need_write(channel, EXCHANGE, exchange)
    if method.exclusive:
        client.exclusive = True
    answer = partial(declared, channel, method, name)
    broker.change([DeclareQueue(wanted)], channel.later(method, answer))


def declared(channel: Channel, method: QueueDeclare, name: str, refusal: Refusal | None) -> None:
    """Answer once the queue was created, or an equal one found, or neither. Raises AmqpError."""
    if refusal is not None:
        raise error_from(refusal)
    queue = channel.handler.broker.topology.queue(channel.client.vhost, name)
    if queue is None:
        described(channel, method, name, True, None)
    else:
        describe(channel, method, queue, made=True)


def describe(channel: Channel, method: QueueDeclare, queue: Queue, made: bool = False) -> None:
    """Answer with an existing queue's contents. ``made``: this method has declared it."""
    if method.no_wait:
        channel.last_queue = queue.name
        return
    answer = partial(described, channel, method, queue.name, made)
    channel.handler.broker.queue_status(queue, channel.later(method, answer))


def described(
    channel: Channel, method: QueueDeclare, name: str, made: bool, status: QueueStatus | None
) -> None:
    """Answer with the queue's status, None when it is gone or unreachable. Raises AmqpError."""
    if status is None:
        broker, vhost = channel.handler.broker, channel.client.vhost
        queue = broker.topology.queue(vhost, name)
        if queue is not None:
            raise error_from(refusals.unavailable(queue, broker.limits.node_name))
        if method.passive:
            raise error_from(not_found(QUEUE, name, vhost))
        if not made:
            declare_queue(channel, method, name)
            return
        status = QueueStatus(0, 0)  # it was created, and ended right afterwards
    channel.last_queue = name
    if not method.no_wait:
        channel.send(QueueDeclareOk(name, _count(status.ready), _count(status.consumers)))


def _count(number: int) -> int:
    """Return the number, clamped to the field's maximum."""
    return min(number, 0xFFFF_FFFF)


def declare_reply_queue(channel: Channel, method: QueueDeclare, name: str) -> None:
    """Declare the pseudo-queue, which always exists, or a reply address, which exists while its
    consumer does."""

    def answered(exists: bool) -> None:
        if not exists:
            raise error_from(not_found(QUEUE, name, channel.client.vhost))
        channel.last_queue = name
        if not method.no_wait:
            channel.send(QueueDeclareOk(name, 0, 1))

    address = replying.address_in("", name)
    if address is None:
        answered(True)
    else:
        channel.handler.broker.reply_exists(address, channel.later(method, answered))


def on_queue_purge(channel: Channel, method: QueuePurge) -> None:
    """Drop the ready messages. Raises AmqpError."""
    name = expanded(channel, method.queue)
    access.need_read(channel, QUEUE, name)
    queue = existing_queue(channel, name)
    if queue.type == STREAM:
        text = f"queue.purge not supported by stream queues {named(QUEUE, name, queue.vhost)}"
        raise HardError(ReplyCode.NOT_IMPLEMENTED, text)
    answer = channel.later(method, partial(counted, channel, method.no_wait, QueuePurgeOk))
    channel.handler.broker.purge(queue, answer)


def on_queue_delete(channel: Channel, method: QueueDelete) -> None:
    """Delete a queue. Raises AmqpError."""
    client = channel.client
    name = expanded(channel, method.queue)
    access.need_configure(channel, QUEUE, name)
    topology = channel.handler.broker.topology
    if not asked(lambda: topology.check_delete_queue(client.vhost, name, client.owner)):
        _answer(channel, None if method.no_wait else QueueDeleteOk(0))
        return
    queue = existing_queue(channel, name)
    if_unused, if_empty = method.if_unused, method.if_empty
    if queue.type == QUORUM and (if_unused or if_empty):
        flag = "if-unused" if if_unused else "if-empty"
        text = (
            f"cannot delete {named(QUEUE, name, queue.vhost)}. queue.delete operations with {flag} flag set are not "
            "supported by quorum queues"
        )
        raise HardError(ReplyCode.NOT_IMPLEMENTED, text)
    if queue.type == STREAM:
        if_unused = if_empty = False
    channel.deleting = queue.name
    answer = channel.later(method, partial(deleted, channel, method.no_wait))
    channel.handler.broker.delete(queue, if_unused, if_empty, answer)


def deleted(channel: Channel, no_wait: bool, result: int | Refusal) -> None:
    """Answer a deletion, then notify the queue's consumers on this channel. Raises AmqpError."""
    channel.deleting = ""
    cancels, channel.cancels = channel.cancels, []
    counted(channel, no_wait, QueueDeleteOk, result)
    for cancel in cancels:
        channel.send(cancel)


def counted(
    channel: Channel,
    no_wait: bool,
    answer: type[QueuePurgeOk | QueueDeleteOk],
    result: int | Refusal,
) -> None:
    """Answer with the number of messages, or fail. Raises AmqpError."""
    if isinstance(result, Refusal):
        raise error_from(result)
    if not no_wait:
        channel.send(answer(_count(result)))
