"""Dead letters: messages on their way from a queue to the one that keeps what nobody took.

The source holds a dead message until its copy is durable in the dead-letter queue. The copy carries a producer and
sequence made of the source, so that one sent twice (after a crash between the two) is recognised and kept once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from fluxmq._hot.batches import build_message
from fluxmq.model.properties import Item, Kind, decode, encode
from fluxmq.protocols.mqtt.reasons import Reason
from fluxmq.queues import commands
from fluxmq.queues.commands import Reason as DeathReason
from fluxmq.queues.consumers import DeadLetter
from fluxmq.shards.queues.counts import QueueCounts
from fluxmq.shards.queues.group import Group
from fluxmq.shards.queues.names import QueueNames
from fluxmq.shards.queues.ports import QueueHost

RETRY_US = 1_000_000
"""Time before a dead letter that its queue did not take is offered to it again."""


def letter(dead: DeadLetter, queue: str, now_us: int) -> bytes:
    """The batch to append for a dead message of ``queue``."""
    batch, index = dead.batch, dead.index
    key = batch.key(index)
    items = [item for item in decode(batch.properties(index)) if not _is_ours(item)]
    items += [
        Item(Kind.DEAD_REASON, dead.text or DeathReason(dead.reason).text.encode()),
        Item(Kind.DEAD_QUEUE, queue.encode()),
        Item(Kind.DEAD_OFFSET, dead.offset),
        Item(Kind.DEAD_KEY, key),
        Item(Kind.DEAD_GROUP, dead.group.encode()),
        Item(Kind.DEAD_ATTEMPTS, dead.attempts),
        *((Item(Kind.DEAD_FIRST_TIME, dead.first_time),) if dead.first_time else ()),
        Item(Kind.DEAD_TIME, dead.died or now_us),
        Item(Kind.DEAD_TRANSFER, struct.pack(">QQ", dead.producer, dead.offset)),
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
    return item.kind >= Kind.DEAD_REASON


class DeadLetters:
    """The dead letters of the groups of one shard."""

    def __init__(
        self,
        names: QueueNames,
        host: Callable[[str], QueueHost],
        clock: Callable[[], int],
    ) -> None:
        self._names = names
        self._host = host
        self._clock = clock
        self.counts = QueueCounts()
        self.moved = 0
        self.failed = 0

    def bury(self, group: Group, dead: DeadLetter) -> None:
        """Append a dead message to its dead-letter queue, as often as it takes."""
        state = group.machine.queues.get(dead.queue_id)
        if state is None or group.failed:
            return  # the queue is gone, or will hand its dead out again when it is led anew
        data = letter(dead, state.config.name, self._clock())

        def answered(reason: int) -> None:
            if reason:
                self.failed += 1
            else:
                self.moved += 1
                self.counts.dead[state.config.name] += 1
            if group.failed:
                return  # who leads it next hands its dead out again
            if reason:
                group.dispatch.retry_dead(dead.queue_id, self._clock() + RETRY_US)
                return
            span = [(dead.offset, dead.offset)]
            group.submit((commands.dead_lettered(dead.queue_id, dead.group_id, span),))

        target = self._names.find(dead.target)
        if target is None:
            # Not known (yet): a queue in memory of this name is no place for what must not be lost.
            answered(Reason.IMPLEMENTATION_SPECIFIC_ERROR)
            return
        self._host(target.group).append(dead.target, data, answered)
