"""Dead letters: messages on their way from a queue to its dead-letter queue or exchange.

The source keeps a dead message until its copies are durable. A copy carries a producer and sequence
derived from the source, so that a duplicate (after a crash between the two steps) is recognised and
dropped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

from fluxmq.engine import x_death
from fluxmq.engine.counts import QueueCounts
from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.names import QueueInfo, QueueNames
from fluxmq.engine.ports import GroupTarget
from fluxmq.model.batch_format import Batch, parse
from fluxmq.model.message_batch import build_message
from fluxmq.model.outcomes import Outcome
from fluxmq.model.properties import Item, PropertyKind, decode, encode
from fluxmq.protocols.amqp091.message_properties import block_headers
from fluxmq.queues import commands
from fluxmq.queues.commands import DeadLetterReason as DeathReason
from fluxmq.queues.config import QueueConfig
from fluxmq.queues.consumers import DeadLetter
from fluxmq.routing.topology.names import public_name

RETRY_US = 1_000_000
"""Delay before a dead letter that its target refused is retried."""
UNROUTABLE_RETRY_US = 10_000_000
"""Delay before an unroutable dead letter that must be kept is published again."""

Route = Callable[[str, str, str, Mapping[str, object]], Sequence[str] | None]
"""Internal names of the queues to which an exchange (vhost, name) routes a routing key and headers;
None if the exchange does not exist."""


def _nowhere(
    _vhost: str, _exchange: str, _routing_key: str, _headers: Mapping[str, object]
) -> Sequence[str] | None:
    """Route for a shard without exchanges."""
    return None


def letter(dead: DeadLetter, queue: str, now_us: int) -> bytes:
    """Return the batch to append for a dead message of ``queue``."""
    batch, index = dead.batch, dead.index
    key = batch.key(index)
    items = [item for item in decode(batch.properties(index)) if not _is_ours(item)]
    items += [
        Item(PropertyKind.DEAD_REASON, dead.text or DeathReason(dead.reason).text.encode()),
        Item(PropertyKind.DEAD_QUEUE, queue.encode()),
        Item(PropertyKind.DEAD_OFFSET, dead.offset),
        Item(PropertyKind.DEAD_KEY, key),
        Item(PropertyKind.DEAD_GROUP, dead.group.encode()),
        Item(PropertyKind.DEAD_ATTEMPTS, dead.attempts),
        *((Item(PropertyKind.DEAD_FIRST_TIME, dead.first_time),) if dead.first_time else ()),
        Item(PropertyKind.DEAD_TIME, dead.died or now_us),
        Item(PropertyKind.DEAD_TRANSFER, struct.pack(">QQ", dead.producer, dead.offset)),
    ]
    return build_message(
        key,
        encode(items),
        batch.payload(index),
        now_us,
        producer=dead.producer,
        sequence=dead.offset,
    )


def _is_ours(item: Item) -> bool:
    return item.kind >= PropertyKind.DEAD_REASON


class DeadLetters:
    """The dead letters of one shard's groups. ``route``: routing of exchanges."""

    def __init__(
        self,
        names: QueueNames,
        client_of: Callable[[str], GroupTarget],
        clock: Callable[[], int],
    ) -> None:
        self._names = names
        self._client_of = client_of
        self._clock = clock
        self.route: Route = _nowhere
        self.counts = QueueCounts()
        self.moved = 0
        self.failed = 0
        self.dropped = 0
        """Dead messages that their exchange routed to no queue, or to a full one, and that need not
        be kept."""

    def dead_letter(self, group: ReplicationGroup, dead: DeadLetter) -> None:
        """Append a dead message to its dead-letter queue, with retries, or publish it to its
        exchange."""
        state = group.machine.queues.get(dead.queue_id)
        if state is None or group.failed:
            return  # the queue is gone, or its next leader dead-letters the message again
        if state.config.dead_letter_exchange is not None:
            self._publish(group, state.config, dead)
            return
        data = letter(dead, state.config.name, self._clock())

        def answered(reason: int) -> None:
            self._ended(group, state.config, dead, RETRY_US if reason else 0)

        target = self._names.find(dead.target)
        if target is None:
            # Unknown (yet): an ephemeral queue of this name is no place for messages that must not
            # be lost.
            answered(Outcome.FAILED)
            return
        self._client_of(target.group).append(dead.target, data, answered)

    def _ended(
        self, group: ReplicationGroup, config: QueueConfig, dead: DeadLetter, again_us: int
    ) -> None:
        """Finish moving a dead message (``again_us`` 0), or schedule a retry."""
        if again_us:
            self.failed += 1
        else:
            self.moved += 1
            if dead.queue_id in group.machine.queues:
                self.counts.dead[config.name] += 1
        if not group.failed:  # otherwise the next leader dead-letters it again
            self._let_go(group, dead, again_us)

    def _let_go(self, group: ReplicationGroup, dead: DeadLetter, again_us: int) -> None:
        if again_us:
            group.dispatch.retry_dead(dead.queue_id, group.clock() + again_us)
            return
        span = [(dead.offset, dead.offset)]
        group.submit_quietly([commands.dead_lettered(dead.queue_id, dead.group_id, span)])

    # Exchanges

    def _publish(self, group: ReplicationGroup, config: QueueConfig, dead: DeadLetter) -> None:
        """Publish a dead message to its queue's exchange; release it once every target queue has
        it."""
        copies = self._copies(
            config,
            (dead.batch, dead.index),
            dead.reason,
            dead.died or self._clock(),
            (dead.producer, dead.offset),
        )
        keeps = config.dead_letter_at_least_once
        if copies is None:
            self._ended(group, config, dead, RETRY_US)
            return
        if not copies:
            if keeps:
                self._ended(group, config, dead, UNROUTABLE_RETRY_US)
            else:
                self.dropped += 1
                self._let_go(group, dead, 0)
            return
        waiting = len(copies)
        worst = 0

        def answered(reason: int) -> None:
            nonlocal waiting, worst
            waiting -= 1
            if reason == Outcome.OVER_LIMIT and not keeps:
                self.dropped += 1  # a full queue refuses for good
            elif reason:
                worst = reason
            if not waiting:
                self._ended(group, config, dead, RETRY_US if worst else 0)

        for target, data in copies:
            self._client_of(target.group).append(target.name, data, answered)

    def refused(self, config: QueueConfig, data: bytes) -> None:
        """Publish to the exchange what a full queue rejected; nothing keeps it meanwhile."""
        if config.dead_letter_exchange is None:
            return
        batch = parse(data)
        for index in range(batch.count):
            copies = self._copies(
                config, (batch, index), DeathReason.MAX_LENGTH, self._clock(), (0, 0)
            )
            self.dropped += not copies
            for target, copy in copies or ():
                self._client_of(target.group).append(target.name, copy, None)

    def _copies(
        self,
        config: QueueConfig,
        message: tuple[Batch, int],
        reason: int,
        time: int,
        identity: tuple[int, int],
    ) -> list[tuple[QueueInfo, bytes]] | None:
        """Return a dead message's batch for each target queue, without queues that would form a
        cycle.

        None while a target queue is not known here (yet), since the message must not be lost for
        that.
        """
        batch, index = message
        vhost, name = public_name(config.name)
        exchange = config.dead_letter_exchange or ""
        routing_key = config.dead_letter_routing_key
        dead = x_death.letter(
            batch.properties(index),
            batch.key(index),
            queue=name.encode(),
            reason=reason,
            time=time,
            exchange=exchange.encode(),
            routing_key=None if routing_key is None else routing_key.encode(),
        )
        headers = block_headers(dead.block)
        found: dict[str, None] = {}
        for key in dead.keys:
            routed = self.route(vhost, exchange, key.decode("utf-8", "surrogateescape"), headers)
            found.update(dict.fromkeys(routed or ()))
        targets = [self._names.find(target) for target in found]
        if None in targets:
            return None
        data = build_message(
            dead.keys[0],
            dead.block,
            batch.payload(index),
            time,
            attributes=batch.attributes(index),
            producer=identity[0],
            sequence=identity[1],
        )
        rejected = reason == DeathReason.REJECTED
        return [
            (target, data)
            for target in targets
            if target is not None
            and (rejected or not dead.goes_round(public_name(target.name)[1].encode()))
        ]
