"""Messages for one column of very many queues: what a list is sorted by, without its rows.

::

    control -> shard      queue_column: the values of one column of the queues that this shard holds
    control -> control    rate_column, of another node: one figure of the queues whose traffic it samples

Pure, like `messages`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from fluxmq.ipc.messages import MessageBody, Name, Natural, NaturalOrUnknown

QUEUE_COLUMN: Final = "queue_column"
RATE_COLUMN: Final = "rate_column"

COLUMN_QUEUES_MAX: Final = 1000
"""Queues that a shard looks at for one answer, so that none takes it longer than a few milliseconds,
however many queues it has."""
RATE_QUEUES_MAX: Final = 20_000
"""Queues whose figures a node tells at once: all that it samples."""

InternalName = Annotated[str, Meta(max_length=1024)]
"""The queue engine's name: virtual host and name in one text."""


class QueueColumn(MessageBody, frozen=True):
    """A question for the `column` of a shard's queues, from the one of number `after` on."""

    column: Name
    after: Natural = 0


class QueueColumnPage(MessageBody, frozen=True):
    """The answer: the `values` of the queues of these `names`; queues whose value is 0 or None are left
    out. `following` is the number of the queue with which the next page begins, -1 after the last."""

    names: Annotated[tuple[InternalName, ...], Meta(max_length=COLUMN_QUEUES_MAX)]
    values: Annotated[tuple[Any, ...], Meta(max_length=COLUMN_QUEUES_MAX)]
    following: NaturalOrUnknown = -1

    def unusable(self) -> str | None:
        """Return why the answer means nothing."""
        return None if len(self.names) == len(self.values) else "not a value for each name"


class RateColumn(MessageBody, frozen=True):
    """A question for a `column` of message statistics, such as ``message_stats.publish_details.rate``."""

    column: Name


class RateColumnAnswer(MessageBody, frozen=True):
    """The answer: by virtual host and name, the figures that are not 0."""

    names: Annotated[tuple[tuple[Name, Name], ...], Meta(max_length=RATE_QUEUES_MAX)]
    values: Annotated[tuple[float, ...], Meta(max_length=RATE_QUEUES_MAX)]

    def unusable(self) -> str | None:
        """Return why the answer means nothing."""
        return None if len(self.names) == len(self.values) else "not a figure for each name"
