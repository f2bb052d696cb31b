"""Getting: basic.get takes one message from a queue.

A getter stays attached to its queue for the next basic.get, unless the channel gets from many
queues.

Source: AMQP 0-9-1 section 1.8.3.10 (get).
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Final

from fluxmq.model.batch_format import Batch
from fluxmq.protocols.amqp091.methods import BasicGet, BasicGetEmpty
from fluxmq.routing.topology.arguments import QUORUM, STREAM
from fluxmq.routing.topology.records import QUEUE, QueueRecord
from fluxmq.routing.topology.refusals import Refusal, named
from fluxmq.sessions.amqp091 import refusals
from fluxmq.sessions.amqp091.channel import Channel
from fluxmq.sessions.amqp091.client import AmqpClient
from fluxmq.sessions.amqp091.consume_request import SINGLE_ACTIVE
from fluxmq.sessions.amqp091.declarations import Entities
from fluxmq.sessions.amqp091.deliveries import DeliveryHeads
from fluxmq.sessions.amqp091.ports import AmqpConsumerHandle, ConsumeRequest
from fluxmq.sessions.amqp091.refusals import error_from, not_implemented
from fluxmq.sessions.amqp091.settlements import Settlements
from fluxmq.sessions.amqp091.takers import Taker, attach

GETTERS_MAX: Final = 64
"""Maximum getters without unacked messages that a channel keeps."""


class Getter(Taker):
    """Takes messages of one queue for basic.get; kept for the next one. ``taken``: the last message
    received."""

    __slots__ = ("getters", "taken")

    def __init__(self, getters: Getters, queue: QueueRecord, automatic: bool) -> None:
        super().__init__(queue, automatic)
        self.getters: Getters | None = getters
        self.counts_from = 1
        self.taken: tuple[Batch, int, int] | None = None

    def leave(self) -> None:
        """Detach; the queue requeues unacked messages."""
        super().leave()
        self.getters = None

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Take the requested message."""
        if self.attached:
            self.taken = (batch, first, attempts)
        else:
            self.release(batch, first, count)

    def cancelled(self) -> None:
        """Handle the end of the queue."""
        getters, self.handle, self.getters, self.attached = self.getters, None, None, False
        if getters is not None:
            getters.channel.ledger.forget(self)
            getters.by_queue.pop((self.queue.name, self.automatic), None)


class Getters:
    """A channel's getters, by queue name and mode; the least recently used first."""

    def __init__(
        self, channel: Channel, heads: DeliveryHeads, entities: Entities, settlements: Settlements
    ) -> None:
        self.channel = channel
        self.client: AmqpClient = channel.client
        self.heads = heads
        self.entities = entities
        self.settlements = settlements
        self.by_queue: OrderedDict[tuple[str, bool], Getter] = OrderedDict()

    def on_get(self, method: BasicGet) -> None:
        """Take one message, or answer get-empty."""
        channel = self.channel
        name = self.entities.expanded(method.queue)
        self.client.access.read(QUEUE, name)
        queue = self.entities.existing(name)
        if queue.type == STREAM:
            what = named(QUEUE, name, queue.vhost)
            raise not_implemented(f"basic.get not supported by stream queues {what}")
        if queue.type == QUORUM and queue.arguments.get(SINGLE_ACTIVE) is True:
            raise error_from(refusals.single_active(queue))
        key = (queue.name, method.no_ack)
        getter = self.by_queue.get(key)
        if getter is not None and getter.handle is not None:
            self.by_queue.move_to_end(key)
            self._take(method, getter, getter.handle)
            return
        self._trim()
        getter = self.by_queue[key] = Getter(self, queue, method.no_ack)
        wanted = ConsumeRequest(
            queue,
            "",
            f"{self.client.info.owner}:{channel.number}",
            limit=0,
            taking=True,
            automatic=method.no_ack,
            asker=self.client.info.owner,
        )
        attach(channel, method, wanted, getter, partial(self._attached, method, getter))

    def _attached(
        self, method: BasicGet, getter: Getter, handle: AmqpConsumerHandle | Refusal
    ) -> None:
        """Complete the attachment with the queue's answer."""
        if isinstance(handle, Refusal):
            self.by_queue.pop((getter.queue.name, getter.automatic), None)
            getter.leave()
            raise error_from(handle)
        getter.handle = handle
        self._take(method, getter, handle)

    def _take(self, method: BasicGet, getter: Getter, handle: AmqpConsumerHandle) -> None:
        """Request one message, after passing on acknowledgements, so that the queue's limits count
        them."""
        self.settlements.pass_on()
        handle.take(self.channel.later(method, partial(self._taken, getter)))

    def _taken(self, getter: Getter, found: bool, ready: int) -> None:
        """Answer the client with the message, or with get-empty."""
        message, getter.taken = getter.taken, None
        if not found or message is None:
            self.client.connection.tally.amqp_got_empty += 1
            self.channel.send(BasicGetEmpty())
            return
        batch, index, attempts = message
        self.heads.write_get_ok(self.channel, getter, batch, index, attempts, ready)

    def _trim(self) -> None:
        """Detach the least recently used getters without unacked messages."""
        for key, getter in list(self.by_queue.items()):
            if len(self.by_queue) < GETTERS_MAX:
                return
            if not self.settlements.has_unacked(getter):
                del self.by_queue[key]
                getter.leave()

    def unacked(self) -> int:
        """Return the unacked messages."""
        ledger = self.channel.ledger
        return sum(ledger.outstanding(getter) for getter in self.by_queue.values())

    def release(self) -> None:
        """Release the getters of a closing channel; unacked messages are requeued."""
        getters = list(self.by_queue.values())
        self.by_queue.clear()
        for getter in getters:
            getter.leave()
