"""Messages about the backup of one queue. Pure, like `messages`.

::

    fluxmqctl -> control -> shard   queue_position: what the queue contains at one moment
    fluxmqctl -> control -> shard   restore_queue: declare the queue, and see whether it is empty
    fluxmqctl -> control -> shard   restore_batch: append messages to it, once

fluxmqctl copies the files and reads the copy; the broker only says what they mean, and appends.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from fluxmq.ipc.messages import MessageBody, Name, Natural, Text

QUEUE_POSITION: Final = "queue_position"
RESTORE_QUEUE: Final = "restore_queue"
RESTORE_BATCH: Final = "restore_batch"

STATE_BYTES_MAX: Final = 4 << 20
"""Bytes of a queue's consumer groups: at most 65,536 ranges, of some tens of bytes each."""
DEFINITION_BYTES_MAX: Final = 8 << 20
"""Bytes of a queue's definition with its bindings."""
PIECE_BYTES_MAX: Final = 8 << 20
"""Bytes of a batch in one message; a larger batch, of one large message, comes in pieces."""
BATCH_BYTES_MAX: Final = 1 << 30
"""Bytes of a batch: the largest message that a queue accepts, see `max_message_size`."""


class QueuePlace(MessageBody, frozen=True):
    """Request for a queue's position."""

    vhost: Name
    name: Name


class QueuePosition(MessageBody, frozen=True):
    """Contents of a queue at one moment, with its messages up to then in its files.

    ``group``, ``internal``: names of the queue's directory. ``state``: its consumer groups, as in
    the file `groups`. ``definition``: of the queue and its bindings as RabbitMQ's JSON; control
    adds it.
    """

    group: Name
    internal: Text
    state: Annotated[bytes, Meta(max_length=STATE_BYTES_MAX)]
    definition: Annotated[bytes, Meta(max_length=DEFINITION_BYTES_MAX)] = b""


class RestoreQueue(MessageBody, frozen=True):
    """Request to declare a queue, unless it exists as it was, and to count its messages; answered
    with `row_messages.AffectedCount`.

    ``definition``: of the queue, as RabbitMQ's JSON; control does not pass it on.
    """

    vhost: Name
    name: Name
    definition: Annotated[bytes, Meta(max_length=DEFINITION_BYTES_MAX)] = b""


class RestoreBatch(MessageBody, frozen=True):
    """Request to append a batch, or to keep a piece of one until the ``last`` has come.

    Answered with an empty body, for the last piece once the messages are as durable as the queue is.
    ``origin`` and ``number`` name the batch: it takes effect once, however often it is sent.
    """

    vhost: Name
    name: Name
    origin: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    number: Natural
    piece: Annotated[bytes, Meta(max_length=PIECE_BYTES_MAX)]
    last: bool = True
