"""Bindings: from an exchange to a queue or another exchange.

Source: AMQP 0-9-1 sections 1.7.2.3 and 1.7.2.5 (queue.bind, unbind), RabbitMQ's exchange to
exchange bindings, its checks and their order.
"""

from __future__ import annotations

from fluxmq.protocols.amqp091.methods import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueUnbind,
    QueueUnbindOk,
)
from fluxmq.routing.topology.changes import Bind, Unbind
from fluxmq.routing.topology.records import EXCHANGE, QUEUE, Binding
from fluxmq.routing.topology.refusals import default_exchange
from fluxmq.sessions.amqp091 import access
from fluxmq.sessions.amqp091.channel import Channel, error_from
from fluxmq.sessions.amqp091.declaring import asked, change
from fluxmq.sessions.amqp091.queue_names import clean, expanded


def on_queue_bind(channel: Channel, method: QueueBind) -> None:
    """Bind a queue to an exchange. Raises AmqpError."""
    binding = _queue_binding(channel, method)
    _bind(channel, method, binding, None if method.no_wait else QueueBindOk())


def on_queue_unbind(channel: Channel, method: QueueUnbind) -> None:
    """Unbind a queue from an exchange. Raises AmqpError."""
    _unbind(channel, method, _queue_binding(channel, method), QueueUnbindOk())


def on_exchange_bind(channel: Channel, method: ExchangeBind) -> None:
    """Bind an exchange to another. Raises AmqpError."""
    binding = _exchange_binding(channel, method)
    _bind(channel, method, binding, None if method.no_wait else ExchangeBindOk())


def on_exchange_unbind(channel: Channel, method: ExchangeUnbind) -> None:
    """Unbind an exchange from another. Raises AmqpError."""
    binding = _exchange_binding(channel, method)
    _unbind(channel, method, binding, None if method.no_wait else ExchangeUnbindOk())


def _queue_binding(channel: Channel, method: QueueBind | QueueUnbind) -> Binding:
    """Return the binding; with an empty queue name and an empty key, the key is the queue's name
    too."""
    name = expanded(channel, method.queue)
    key = method.routing_key
    if not key and not method.queue:
        key = name
    vhost = channel.client.vhost
    return Binding(vhost, clean(method.exchange), name, QUEUE, key, method.arguments)


def _exchange_binding(channel: Channel, method: ExchangeBind | ExchangeUnbind) -> Binding:
    return Binding(
        channel.client.vhost,
        clean(method.source),
        clean(method.destination),
        EXCHANGE,
        method.routing_key,
        method.arguments,
    )


def _check(channel: Channel, binding: Binding) -> None:
    """Check permissions: write on the destination, read on the source. Raises AmqpError."""
    access.need_write(channel, binding.destination_kind, binding.destination)
    if not binding.source or (binding.destination_kind == EXCHANGE and not binding.destination):
        raise error_from(default_exchange())
    access.need_read(channel, EXCHANGE, binding.source)
    exchange = channel.handler.broker.topology.exchange(binding.vhost, binding.source)
    if exchange is not None:
        access.need_topic_read(channel, exchange, binding.routing_key)


def _bind(channel: Channel, method: Method, binding: Binding, answer: Method | None) -> None:
    _check(channel, binding)
    owner = channel.client.owner
    topology = channel.handler.broker.topology
    if asked(lambda: topology.check_bind(binding, owner)):
        _answer(channel, answer)
    else:
        change(channel, method, [Bind(binding, owner)], answer)


def _unbind(channel: Channel, method: Method, binding: Binding, answer: Method | None) -> None:
    _check(channel, binding)
    owner = channel.client.owner
    topology = channel.handler.broker.topology
    if asked(lambda: topology.check_unbind(binding, owner)):
        change(channel, method, [Unbind(binding, owner)], answer)
    else:
        _answer(channel, answer)


def _answer(channel: Channel, answer: Method | None) -> None:
    if answer is not None:
        channel.send(answer)
