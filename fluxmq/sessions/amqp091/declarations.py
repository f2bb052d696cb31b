"""Queues, exchanges and bindings: declaring, inspecting, purging, deleting, binding.

The shard's copy of the topology is consulted first: errors are answered at once, and redeclaring an
existing entity needs no change at all. The control process makes changes; they are answered when
every shard knows them.

Source: AMQP 0-9-1 sections 1.6 (exchange) and 1.7 (queue), RabbitMQ's checks and their order, its
exchange to exchange bindings, and dropping line ends from names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import SoftError
from fluxmq.protocols.amqp091.methods import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
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
    Bind,
    Change,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    Unbind,
)
from fluxmq.routing.topology.names import is_reserved
from fluxmq.routing.topology.records import EXCHANGE, QUEUE, Binding, Exchange, QueueRecord
from fluxmq.routing.topology.refusals import Refusal, default_exchange, named, not_found, reserved
from fluxmq.sessions.amqp091 import direct_reply, refusals
from fluxmq.sessions.amqp091.access import Access
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.amqp091.ports import AmqpBrokerPort, QueueStatus
from fluxmq.sessions.amqp091.refusals import error_from, not_implemented, precondition

DEAD_LETTER_KEY = "x-dead-letter-exchange"

T = TypeVar("T")


class EntityClient(Protocol):
    """A connection, as its entities need it. ``exclusive``: it has declared exclusive queues."""

    access: Access
    exclusive: bool

    @property
    def info(self) -> ConnectionInfo:
        """Identity, user and vhost."""


class EntityChannel(Protocol):
    """What methods come from, and answers go to: a channel, or the management of AMQP 1.0."""

    @property
    def client(self) -> EntityClient:
        """The connection."""

    @property
    def broker(self) -> AmqpBrokerPort:
        """The shard."""

    def later(
        self, method: Method | type[Method], then: Callable[..., None]
    ) -> Callable[..., None]:
        """Return a callback for the answer to ``method``, which calls ``then``; that may raise an
        AmqpError."""

    def answer(self, method: Method | None) -> None:
        """Send an answer; None: the client does not wait for one."""

    def send(self, method: Method) -> None:
        """Send a method."""


class Entities:
    """Exchanges, queues and bindings as one channel declares and deletes them. Methods raise
    AmqpError.

    ``last_queue``: meaning of an empty queue name. ``deleting``: name of the queue that the pending
    method deletes, and ``cancels``: notifications to its consumers here, sent after the answer.
    """

    def __init__(self, channel: EntityChannel) -> None:
        self.channel = channel
        self.client: EntityClient = channel.client
        self.info: ConnectionInfo = channel.client.info
        self.broker: AmqpBrokerPort = channel.broker
        self.last_queue = ""
        self.deleting = ""
        self.cancels: list[Method] = []
        self._generated = ""

    # --- names, checks and changes ---

    def expanded(self, name: str) -> str:
        """Resolve an empty queue name. Raises SoftError 404 when the channel has declared no
        queue."""
        if name:
            return _clean(name)
        if not self.last_queue:
            raise SoftError(ReplyCode.NOT_FOUND, "no previously declared queue")
        return self.last_queue

    def existing(self, name: str) -> QueueRecord:
        """Return the queue. Raises SoftError 404, or 405 when it is exclusive to another
        connection."""
        info, topology = self.info, self.broker.topology
        return _asked(lambda: topology.require_queue(info.vhost, name, info.owner))

    def _change(self, method: Method, changes: Sequence[Change], answer: Method | None) -> None:
        """Change the topology, then answer."""
        self.broker.change(changes, self.channel.later(method, partial(self._changed, answer)))

    def _changed(self, answer: Method | None, refusal: Refusal | None) -> None:
        if refusal is not None:
            raise error_from(refusal)
        self.channel.answer(answer)

    # --- exchanges ---

    def on_exchange_declare(self, method: ExchangeDeclare) -> None:
        """Declare an exchange, or with ``passive`` check that it exists."""
        vhost, access, topology = self.info.vhost, self.client.access, self.broker.topology
        name = _clean(method.exchange)
        answer = None if method.no_wait else ExchangeDeclareOk()
        if method.passive:
            _asked(lambda: topology.require_exchange(vhost, name))
            self.channel.answer(answer)
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
            _asked(lambda: check_exchange_type(wanted))
            access.configure(EXCHANGE, name)
        if _asked(lambda: topology.check_exchange(wanted)):
            self.channel.answer(answer)
            return
        alternate = method.arguments.get(ALTERNATE_KEY)
        if isinstance(alternate, str):
            access.read(EXCHANGE, name)
            access.write(EXCHANGE, alternate)
        self._change(method, [DeclareExchange(wanted)], answer)

    def on_exchange_delete(self, method: ExchangeDelete) -> None:
        """Delete an exchange."""
        vhost, topology = self.info.vhost, self.broker.topology
        name, unused = _clean(method.exchange), method.if_unused
        answer = None if method.no_wait else ExchangeDeleteOk()
        if name and not is_reserved(name):
            self.client.access.configure(EXCHANGE, name)
        if _asked(lambda: topology.check_delete_exchange(vhost, name, unused)):
            self._change(method, [DeleteExchange(vhost, name, unused)], answer)
        else:
            self.channel.answer(answer)

    # --- declaring queues ---

    def on_queue_declare(self, method: QueueDeclare) -> None:
        """Declare a queue, or with ``passive`` report its contents if it exists."""
        name = _clean(method.queue)
        if direct_reply.is_reply_queue(name):
            self._declare_reply_queue(method, name)
        elif method.passive:
            self._describe(method, self.existing(name))
        else:
            self._declare_queue(method, name)

    def _declare_queue(self, method: QueueDeclare, name: str) -> None:
        """Create a queue unless there is an equal one."""
        info, broker, access = self.info, self.broker, self.client.access
        topology = broker.topology
        if not name:
            asked_for = queue_type(method.arguments, CLASSIC)
            if asked_for in (QUORUM, STREAM):
                text = f"Cannot declare a server-named queue for type rabbit_{asked_for}_queue"
                raise precondition(text)
            # The same name again, if it has to be decided whether the user may declare it.
            name = self._generated = self._generated or f"amq.gen-{broker.unique()}"
        elif is_reserved(name):
            raise error_from(reserved(QUEUE, name))
        access.configure(QUEUE, name)
        vhost = topology.vhost(info.vhost)
        default = CLASSIC
        if vhost is not None and method.durable and not (method.exclusive or method.auto_delete):
            default = vhost.default_queue_type  # others are always classic
        kind = queue_type(method.arguments, default)
        wanted = QueueRecord(
            info.vhost,
            name,
            kind,
            method.durable,
            method.exclusive,
            method.auto_delete,
            method.arguments,
            info.owner if method.exclusive else "",
        )
        known = _asked(lambda: topology.check_queue(wanted))
        if known and not method.auto_delete:
            self._describe(method, self.existing(name))
            return
        # An auto-delete queue is declared even if it is known: its last consumer may just have
        # gone, with its deletion on the way. The declaration follows the deletion, and outlives it.
        group = _asked(lambda: broker.group_for(wanted))
        exchange = method.arguments.get(DEAD_LETTER_KEY)
        if isinstance(exchange, str) and not known:
            access.read(QUEUE, name)
            access.write(EXCHANGE, exchange)
        self._generated = ""
        if method.exclusive:
            self.client.exclusive = True
        answer = partial(self._declared, method, name)
        changed = [DeclareQueue(replace(wanted, group=group))]
        broker.change(changed, self.channel.later(method, answer))

    def _declared(self, method: QueueDeclare, name: str, refusal: Refusal | None) -> None:
        """Answer once the queue was created, or an equal one found, or neither."""
        if refusal is not None:
            raise error_from(refusal)
        queue = self.broker.topology.queue(self.info.vhost, name)
        if queue is None:
            self._described(method, name, True, None)
        else:
            self._describe(method, queue, made=True)

    def _describe(self, method: QueueDeclare, queue: QueueRecord, made: bool = False) -> None:
        """Answer with an existing queue's contents. ``made``: this method has declared it."""
        if method.no_wait:
            self.last_queue = queue.name
            return
        answer = partial(self._described, method, queue.name, made)
        self.broker.queue_status(queue, self.channel.later(method, answer))

    def _described(
        self, method: QueueDeclare, name: str, made: bool, status: QueueStatus | Refusal | None
    ) -> None:
        """Answer with the queue's status; None when it is gone, or its group does not answer."""
        if isinstance(status, Refusal):
            raise error_from(status)
        if status is None:
            queue = self.broker.topology.queue(self.info.vhost, name)
            if queue is not None:
                raise error_from(refusals.unavailable(queue, self.broker.limits.node_name))
            if method.passive:
                raise error_from(not_found(QUEUE, name, self.info.vhost))
            if not made:
                self._declare_queue(method, name)
                return
            status = QueueStatus(0, 0)  # it was created, and ended right afterwards
        self.last_queue = name
        if not method.no_wait:
            ready, consumers = _count(status.ready), _count(status.consumers)
            self.channel.send(QueueDeclareOk(name, ready, consumers))

    def _declare_reply_queue(self, method: QueueDeclare, name: str) -> None:
        """Declare the pseudo-queue, which always exists, or a reply address, which exists while its
        consumer does."""

        def answered(exists: bool) -> None:
            if not exists:
                raise error_from(not_found(QUEUE, name, self.info.vhost))
            self.last_queue = name
            if not method.no_wait:
                self.channel.send(QueueDeclareOk(name, 0, 1))

        address = direct_reply.address_in("", name)
        if address is None:
            answered(True)
        else:
            self.broker.reply_exists(address, self.channel.later(method, answered))

    # --- purging and deleting queues ---

    def on_queue_purge(self, method: QueuePurge) -> None:
        """Drop the ready messages."""
        name = self.expanded(method.queue)
        self.client.access.read(QUEUE, name)
        queue = self.existing(name)
        if queue.type == STREAM:
            what = named(QUEUE, name, queue.vhost)
            raise not_implemented(f"queue.purge not supported by stream queues {what}")
        answer = partial(self._counted, method.no_wait, QueuePurgeOk)
        self.broker.purge(queue, self.channel.later(method, answer))

    def on_queue_delete(self, method: QueueDelete) -> None:
        """Delete a queue."""
        info = self.info
        name = self.expanded(method.queue)
        self.client.access.configure(QUEUE, name)
        topology = self.broker.topology
        if not _asked(lambda: topology.check_delete_queue(info.vhost, name, info.owner)):
            self.channel.answer(None if method.no_wait else QueueDeleteOk(0))
            return
        queue = self.existing(name)
        if_unused, if_empty = method.if_unused, method.if_empty
        if queue.type == QUORUM and (if_unused or if_empty):
            flag = "if-unused" if if_unused else "if-empty"
            raise not_implemented(
                f"cannot delete {named(QUEUE, name, queue.vhost)}. queue.delete operations with {flag} flag set are "
                "not supported by quorum queues"
            )
        if queue.type == STREAM:
            if_unused = if_empty = False
        self.deleting = queue.name
        answer = self.channel.later(method, partial(self._deleted, method.no_wait))
        self.broker.delete(queue, if_unused, if_empty, answer)

    def _deleted(self, no_wait: bool, result: int | Refusal) -> None:
        """Answer a deletion, then notify the queue's consumers on this channel."""
        self.deleting = ""
        cancels, self.cancels = self.cancels, []
        self._counted(no_wait, QueueDeleteOk, result)
        for cancel in cancels:
            self.channel.send(cancel)

    def _counted(
        self, no_wait: bool, answer: type[QueuePurgeOk | QueueDeleteOk], result: int | Refusal
    ) -> None:
        """Answer with the number of messages, or fail."""
        if isinstance(result, Refusal):
            raise error_from(result)
        if not no_wait:
            self.channel.send(answer(_count(result)))

    # --- bindings ---

    def on_queue_bind(self, method: QueueBind) -> None:
        """Bind a queue to an exchange."""
        answer = None if method.no_wait else QueueBindOk()
        self._bind(method, self._queue_binding(method), answer)

    def on_queue_unbind(self, method: QueueUnbind) -> None:
        """Unbind a queue from an exchange."""
        self._unbind(method, self._queue_binding(method), QueueUnbindOk())

    def on_exchange_bind(self, method: ExchangeBind) -> None:
        """Bind an exchange to another."""
        answer = None if method.no_wait else ExchangeBindOk()
        self._bind(method, self._exchange_binding(method), answer)

    def on_exchange_unbind(self, method: ExchangeUnbind) -> None:
        """Unbind an exchange from another."""
        answer = None if method.no_wait else ExchangeUnbindOk()
        self._unbind(method, self._exchange_binding(method), answer)

    def _queue_binding(self, method: QueueBind | QueueUnbind) -> Binding:
        """Return the binding; with an empty queue name and an empty key, the key is the queue's
        name too."""
        name, key = self.expanded(method.queue), method.routing_key
        if not key and not method.queue:
            key = name
        exchange = _clean(method.exchange)
        return Binding(self.info.vhost, exchange, name, QUEUE, key, method.arguments)

    def _exchange_binding(self, method: ExchangeBind | ExchangeUnbind) -> Binding:
        source, destination = _clean(method.source), _clean(method.destination)
        key, vhost = method.routing_key, self.info.vhost
        return Binding(vhost, source, destination, EXCHANGE, key, method.arguments)

    def check_binding(self, binding: Binding) -> None:
        """Check permissions: write on the destination, read on the source."""
        access = self.client.access
        access.write(binding.destination_kind, binding.destination)
        if not binding.source or (binding.destination_kind == EXCHANGE and not binding.destination):
            raise error_from(default_exchange())
        access.read(EXCHANGE, binding.source)
        exchange = self.broker.topology.exchange(binding.vhost, binding.source)
        if exchange is not None:
            access.read_topic(exchange, binding.routing_key)

    def _bind(self, method: Method, binding: Binding, answer: Method | None) -> None:
        self.check_binding(binding)
        owner, topology = self.info.owner, self.broker.topology
        if _asked(lambda: topology.check_bind(binding, owner)):
            self.channel.answer(answer)
        else:
            self._change(method, [Bind(binding, owner)], answer)

    def _unbind(self, method: Method, binding: Binding, answer: Method | None) -> None:
        self.check_binding(binding)
        owner, topology = self.info.owner, self.broker.topology
        if _asked(lambda: topology.check_unbind(binding, owner)):
            self._change(method, [Unbind(binding, owner)], answer)
        else:
            self.channel.answer(answer)


def _clean(name: str) -> str:
    """Return a name without carriage returns and line feeds."""
    return name.replace("\r", "").replace("\n", "") if "\r" in name or "\n" in name else name


def _asked(question: Callable[[], T]) -> T:
    """Return an answer of the topology or the broker. Raises AmqpError for its refusals."""
    try:
        return question()
    except Refusal as refusal:
        raise error_from(refusal) from None


def _count(number: int) -> int:
    """Return the number, clamped to the field's maximum."""
    return min(number, 0xFFFF_FFFF)
