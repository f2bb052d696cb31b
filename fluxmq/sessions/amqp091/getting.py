"""basic.get: one message now, or get-empty.

A getter stays attached to its queue for the next time, unless the channel gets from many queues.

Source: AMQP 0-9-1 section 1.8.3.10 (get).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.methods import BasicGet, BasicGetEmpty
from fluxmq.routing.topology.arguments import QUORUM, STREAM
from fluxmq.routing.topology.records import QUEUE, Queue
from fluxmq.routing.topology.refusals import Refusal, named
from fluxmq.sessions.amqp091 import access, deliveries, refusals, settling
from fluxmq.sessions.amqp091.channel import Channel, error_from
from fluxmq.sessions.amqp091.consumers import Getter
from fluxmq.sessions.amqp091.consuming import SINGLE_ACTIVE
from fluxmq.sessions.amqp091.ports import ConsumerWanted, Held
from fluxmq.sessions.amqp091.queue_names import existing_queue, expanded

GETTERS_MAX: Final = 64
"""Maximum getters without unacked messages that a channel keeps."""


def on_get(channel: Channel, method: BasicGet) -> None:
    """Take one message. Raises AmqpError."""
    name = expanded(channel, method.queue)
    access.need_read(channel, QUEUE, name)
    queue = existing_queue(channel, name)
    if queue.type == STREAM:
        text = f"basic.get not supported by stream queues {named(QUEUE, name, queue.vhost)}"
        raise HardError(ReplyCode.NOT_IMPLEMENTED, text)
    if queue.type == QUORUM and queue.arguments.get(SINGLE_ACTIVE) is True:
        raise error_from(refusals.single_active(queue))
    getter = channel.getters.get((name, method.no_ack))
    if getter is not None and getter.held is not None:
        channel.getters.move_to_end((name, method.no_ack))
        take(channel, method, getter, getter.held)
        return
    attach(channel, method, queue)


def attach(channel: Channel, method: BasicGet, queue: Queue) -> None:
    """Attach a getter, then take."""
    trim(channel)
    getter = Getter(channel, queue, method.no_ack)
    channel.getters[queue.name, method.no_ack] = getter
    answer = channel.later(method, partial(attached, channel, method, getter))

    def done(held: Held | Refusal) -> None:
        if not channel.is_open or getter.channel is None:
            if not isinstance(held, Refusal):
                held.detach()
            if channel.is_open:
                answer(refusals.queue_gone(queue))
            return
        answer(held)

    member = f"{channel.client.owner}:{channel.number}"
    wanted = ConsumerWanted(
        queue,
        "",
        member,
        limit=0,
        taking=True,
        automatic=method.no_ack,
        asker=channel.client.owner,
    )
    channel.handler.broker.consume(wanted, getter, done)


def attached(channel: Channel, method: BasicGet, getter: Getter, held: Held | Refusal) -> None:
    """Complete the attachment with the queue's answer. Raises AmqpError."""
    if isinstance(held, Refusal):
        channel.getters.pop((getter.queue.name, getter.automatic), None)
        getter.channel = None
        raise error_from(held)
    getter.held = held
    take(channel, method, getter, held)


def take(channel: Channel, method: BasicGet, getter: Getter, held: Held) -> None:
    """Request one message, after passing on acknowledgements, so that the queue's limits count
    them."""
    settling.pass_on(channel)
    answer = channel.later(method, partial(taken, channel, getter))
    held.take(answer)


def taken(channel: Channel, getter: Getter, found: bool, ready: int) -> None:
    """Answer the client with the message, or with get-empty."""
    message, getter.taken = getter.taken, None
    if not found or message is None:
        channel.client.connection.tally.amqp_got_empty += 1
        channel.send(BasicGetEmpty())
        return
    batch, index, attempts = message
    deliveries.write_get_ok(channel, getter, batch, index, attempts, ready)


def trim(channel: Channel) -> None:
    """Detach the least recently used getters without unacked messages."""
    if len(channel.getters) < GETTERS_MAX:
        return
    for key, getter in list(channel.getters.items()):
        if not settling.owes(channel, getter):
            del channel.getters[key]
            getter.leave()
            if len(channel.getters) < GETTERS_MAX:
                return
