"""Answers the control process for a shard: one column of all its queues, by which a list is sorted.

A list of very many queues is sorted by the values of one column, and only the rows of its page are
asked for (`AdminQueries`). What takes a few milliseconds is told at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.names import OUTBOX_PREFIX
from fluxmq.engine.wiring import Queues
from fluxmq.ipc.column_messages import (
    COLUMN_QUEUES_MAX,
    QUEUE_COLUMN,
    QueueColumn,
    QueueColumnPage,
)
from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import Body
from fluxmq.ipc.row_messages import TableRow
from fluxmq.queues.migration import is_arriving
from fluxmq.queues.states import QueueState

ValueOf = Callable[[ReplicationGroup, QueueState], Any]


COUNTS: Final[dict[str, Callable[[int, int, int], int]]] = {
    "messages": lambda ready, unacknowledged, _: ready + unacknowledged,
    "messages_ready": lambda ready, _unacknowledged, _consumers: ready,
    "messages_unacknowledged": lambda _ready, unacknowledged, _: unacknowledged,
    "consumers": lambda _ready, _unacknowledged, consumers: consumers,
}
"""Columns that lists are sorted by most, read without a row."""
OF_MESSAGES: Final = frozenset(COUNTS) - {"consumers"}
"""Columns that are 0 where the log has no message."""


class QueueColumnReader:
    """Reads columns of one shard's queues, ``at_once`` so many; ``figures_of`` returns those of a
    queue, by column."""

    def __init__(
        self,
        queues: Queues,
        figures_of: Callable[[ReplicationGroup, QueueState], TableRow],
        at_once: int = COLUMN_QUEUES_MAX,
    ) -> None:
        self._queues = queues
        self._at_once = at_once
        self._figures_of = figures_of

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """The handler of the control process's question."""
        return {QUEUE_COLUMN: self._on_column}

    def _on_column(self, body: Body, answered: Answered) -> None:
        answered(self.page(QueueColumn.from_body(body)).to_body())

    def page(self, wanted: QueueColumn) -> QueueColumnPage:
        """Return the values of the next queues."""
        value_of = self._reader_of(wanted.column)
        of_messages = wanted.column in OF_MESSAGES
        names: list[str] = []
        values: list[Any] = []
        looked = 0
        for group, queue in islice(self._from(wanted.after), self._at_once):
            looked += 1
            if of_messages and queue.next_offset == queue.start:
                continue  # most of very many queues are empty, and this costs next to nothing
            if is_arriving(queue) or queue.name.startswith(OUTBOX_PREFIX):
                continue
            value = value_of(group, queue)
            if value or value is False:
                names.append(queue.name)
                values.append(value)
        following = wanted.after + looked if looked == self._at_once else -1
        return QueueColumnPage(tuple(names), tuple(values), following)

    def _reader_of(self, column: str) -> ValueOf:
        count = COUNTS.get(column)
        if count is not None:
            return lambda group, queue: count(*group.dispatch.consumers.counts(queue.id))
        return lambda group, queue: self._figures_of(group, queue).get(column)

    def _from(self, after: int) -> Iterator[tuple[ReplicationGroup, QueueState]]:
        """Yield the queues of all groups, from the one of this number on."""
        for group in self._queues.service.all_groups():
            queues = group.machine.queues
            if after >= len(queues):
                after -= len(queues)
                continue
            yield from ((group, queue) for queue in islice(queues.values(), after, None))
            after = 0
