"""A queue with one group and two members, for tests that write their commands themselves."""

from __future__ import annotations

from typing import Any

from fluxmq.model.batch_format import PRODUCER
from fluxmq.queues import commands
from fluxmq.queues.commands import Verb
from fluxmq.queues.results import Result
from fluxmq.queues.states import QueueState
from tests.unit.queues.support import Host, batch_of, group_of

HOLDER = 7
OTHER = 8


def started(count: int = 10, **values: Any) -> tuple[Host, QueueState]:
    """A queue of ten messages with group 1 and two members; nothing claimed."""
    host = Host()
    queue = host.declare(**values)
    host.do(commands.create_group(queue.id, "g"))
    host.do(commands.join(queue.id, "g", HOLDER, "a"), commands.join(queue.id, "g", OTHER, "b"))
    if count:
        host.publish(queue, count)
    return host, queue


def claim(
    host: Host, queue: QueueState, first: int, last: int, holder: int = HOLDER, cursor: int = -1
) -> Result:
    """Claim new messages, from the cursor on unless it is given."""
    at = group_of(queue).cursor if cursor < 0 else cursor
    command = commands.claim(queue.id, 1, holder, at, max(at, last + 1), [(first, last)])
    return host.do(command)[0]


def settle(
    host: Host, queue: QueueState, verb: Verb, *ranges: tuple[int, int], **values: Any
) -> Result:
    """Settle as `HOLDER`."""
    holder = values.pop("holder", HOLDER)
    return host.do(commands.settle(queue.id, 1, verb, holder, ranges, **values))[0]


def from_producer(producer: int, *sequences: int) -> bytes:
    """A batch of one producer's messages."""
    count = len(sequences)
    return batch_of(
        [b"%d" % each for each in sequences],
        flags=PRODUCER,
        eights=[[producer] * count, list(sequences)],
    )
