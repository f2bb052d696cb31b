"""Dispatch of an open channel's methods.

Source: AMQP 0-9-1 sections 1.5 to 1.9 (classes channel, exchange, queue, basic, tx), RabbitMQ's
confirm.select.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fluxmq.protocols.amqp091.confirms import ConfirmWindow
from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.methods import (
    AccessRequest,
    AccessRequestOk,
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
    TxCommit,
    TxRollback,
    TxSelect,
)
from fluxmq.sessions.amqp091 import binding, consuming, declaring, getting, settling, transactions
from fluxmq.sessions.amqp091.channel import Channel, precondition


def on_method(channel: Channel, method: Method) -> None:
    """Execute a method other than basic.publish, which comes with content. Raises AmqpError."""
    do = _METHODS.get(type(method))
    if do is None:
        raise HardError(ReplyCode.COMMAND_INVALID, "unimplemented method")
    do(channel, method)


def on_open(_channel: Channel, _method: ChannelOpen) -> None:
    """Reject channel.open on an open channel."""
    raise HardError(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")


def on_close(channel: Channel, _method: ChannelClose) -> None:
    """Close the channel at the client's request."""
    channel.handler.release_channel(channel)
    channel.send(ChannelCloseOk())
    channel.handler.let_go(channel)


def on_flow(channel: Channel, method: ChannelFlow) -> None:
    """Answer channel.flow; clients may not stop the flow but limit it with prefetch (as in
    RabbitMQ)."""
    if not method.active:
        raise HardError(ReplyCode.NOT_IMPLEMENTED, "active=false")
    channel.send(ChannelFlowOk(True))


def on_access_request(channel: Channel, _method: AccessRequest) -> None:
    """Answer AMQP 0-8's request with a ticket, which nothing checks."""
    channel.send(AccessRequestOk(1))


def on_confirm_select(channel: Channel, method: ConfirmSelect) -> None:
    """Number and confirm publishes from now on. Raises SoftError 406 in tx mode."""
    if channel.transaction is not None:
        raise precondition("cannot switch from tx to confirm mode")
    if channel.window is None:
        channel.window = ConfirmWindow()
    if not method.no_wait:
        channel.send(ConfirmSelectOk())


_METHODS: Final[dict[type, Callable[[Channel, Any], None]]] = {
    ChannelOpen: on_open,
    ChannelClose: on_close,
    ChannelFlow: on_flow,
    AccessRequest: on_access_request,
    ConfirmSelect: on_confirm_select,
    TxSelect: transactions.on_select,
    TxCommit: transactions.on_commit,
    TxRollback: transactions.on_rollback,
    ExchangeDeclare: declaring.on_exchange_declare,
    ExchangeDelete: declaring.on_exchange_delete,
    ExchangeBind: binding.on_exchange_bind,
    ExchangeUnbind: binding.on_exchange_unbind,
    QueueDeclare: declaring.on_queue_declare,
    QueueDelete: declaring.on_queue_delete,
    QueuePurge: declaring.on_queue_purge,
    QueueBind: binding.on_queue_bind,
    QueueUnbind: binding.on_queue_unbind,
    BasicQos: consuming.on_qos,
    BasicConsume: consuming.on_consume,
    BasicCancel: consuming.on_cancel,
    BasicGet: getting.on_get,
    BasicAck: settling.on_ack,
    BasicNack: settling.on_nack,
    BasicReject: settling.on_reject,
    BasicRecover: settling.on_recover,
    BasicRecoverAsync: settling.on_recover,
}
