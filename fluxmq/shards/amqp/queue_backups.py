"""A shard's part in the backup of one queue: what the queue contains at one moment, and appends to
one that is restored.

The leader of the queue's group answers for its position: it has applied everything that it has
confirmed. Any shard restores: it forwards appends to the leader, under the name that fluxmqctl gave
them, so that a batch whose fate is unknown can be sent again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.group_client import NUMBERS_APART
from fluxmq.engine.group_files import state_of
from fluxmq.engine.ports import QueueStats
from fluxmq.engine.wiring import Queues
from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import (
    ERROR_AWAY,
    ERROR_FAILED,
    ERROR_INVALID,
    ERROR_LIMIT,
    ERROR_NOT_FOUND,
    Body,
    Failure,
)
from fluxmq.ipc.queue_backups import (
    BATCH_BYTES_MAX,
    QUEUE_POSITION,
    RESTORE_BATCH,
    RESTORE_QUEUE,
    QueuePlace,
    QueuePosition,
    RestoreBatch,
    RestoreQueue,
)
from fluxmq.ipc.row_messages import AffectedCount
from fluxmq.model.batch_format import BatchError, parse, verify
from fluxmq.model.group_states import encode
from fluxmq.model.outcomes import Outcome, QueueOutcome
from fluxmq.queues.migration import is_arriving
from fluxmq.queues.origins import Identity
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.topology import Topology

GATHERED_MAX: Final = 4
"""Large batches of which some pieces have come, one for each restore under way: the oldest is
forgotten first."""

_REFUSALS: Final = {
    Outcome.OVER_LIMIT: (ERROR_LIMIT, "the queue is full, or refuses a message of this size"),
    Outcome.DENIED: (ERROR_FAILED, "the queue is exclusive to a connection"),
}


class QueueBackups:
    """Answers requests of control about backups of queues. ``clock``: µs since the epoch."""

    def __init__(
        self, queues: Queues, topology: Callable[[], Topology], clock: Callable[[], int]
    ) -> None:
        self._queues = queues
        self._topology = topology
        self._clock = clock
        self._pieces: dict[int, list[bytes]] = {}
        """Pieces of large batches, by origin."""

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """The handlers of control's messages."""
        return {
            QUEUE_POSITION: self._on_position,
            RESTORE_QUEUE: self._on_restore,
            RESTORE_BATCH: self._on_batch,
        }

    def _on_position(self, body: Body, answered: Answered) -> None:
        wanted = QueuePlace.from_body(body)
        queue = self._topology().queue(wanted.vhost, wanted.name)
        group = None if queue is None else self._leader(queue)
        if queue is None or group is None:
            answered(Failure(ERROR_NOT_FOUND, "another shard or node leads the queue"))
            return
        state = group.machine.queue(queue.internal_name)
        if state is None or is_arriving(state):
            answered(Failure(ERROR_NOT_FOUND, "another shard or node has the queue"))
            return
        if not group.write() or group.writes.waiting:
            text = (
                "its latest messages cannot be written to its files: see the node's alarms and log"
            )
            answered(Failure(ERROR_FAILED, text))
            return
        content = encode(state_of(state, self._clock()))
        answered(QueuePosition(group.name, state.name, content).to_body())

    def _leader(self, queue: QueueRecord) -> ReplicationGroup | None:
        """Return a queue's group if it is led here."""
        queues = self._queues
        group = queues.service.find(queues.names.group_of(queue.internal_name, queue.group))
        if group is None or group.failed or group is queues.service.ephemeral:
            return None
        return group if group.driver.leading else None

    def _on_restore(self, body: Body, answered: Answered) -> None:
        wanted = RestoreQueue.from_body(body)
        queue = self._topology().queue(wanted.vhost, wanted.name)
        if queue is None:
            answered(Failure(ERROR_AWAY, "the queue is not known here yet"))
            return

        def counted(stats: QueueStats) -> None:
            if stats.outcome == QueueOutcome.OK:
                answered(AffectedCount(stats.ready + stats.unsettled).to_body())
            else:
                answered(Failure(ERROR_AWAY, "the queue has no leader yet"))

        queues = self._queues
        group = queues.names.group_of(queue.internal_name, queue.group)
        queues.client(group).status(queue.internal_name, counted)

    def _on_batch(self, body: Body, answered: Answered) -> None:
        wanted = RestoreBatch.from_body(body)
        pieces = self._pieces.pop(wanted.origin, [])
        pieces.append(wanted.piece)
        if sum(map(len, pieces)) > BATCH_BYTES_MAX:
            answered(Failure(ERROR_INVALID, f"a batch of more than {BATCH_BYTES_MAX} bytes"))
            return
        if not wanted.last:
            self._pieces[wanted.origin] = pieces
            while len(self._pieces) > GATHERED_MAX:
                del self._pieces[next(iter(self._pieces))]
            answered({})
            return
        self._append(wanted, b"".join(pieces), answered)

    def _append(self, wanted: RestoreBatch, batch: bytes, answered: Answered) -> None:
        try:
            verify(parse(batch, 0))
        except BatchError as problem:
            # Also when pieces that came before have been forgotten.
            answered(Failure(ERROR_INVALID, f"not a batch: {problem}"))
            return
        queue = self._topology().queue(wanted.vhost, wanted.name)
        if queue is None:
            answered(Failure(ERROR_NOT_FOUND, "the queue was deleted meanwhile"))
            return

        def appended(reason: int) -> None:
            if not reason:
                answered({})
                return
            outcome = reason & 0xFF
            code, text = ERROR_AWAY, "the queue's leader did not answer in time"
            for refusal, found in _REFUSALS.items():
                if outcome == refusal:
                    code, text = found
            answered(Failure(code, text))

        queues, number = self._queues, wanted.number * NUMBERS_APART
        group = queues.names.group_of(queue.internal_name, queue.group)
        # Batches come one after the other: only this one may be sent again.
        identity = Identity(wanted.origin, number, number)
        queues.sender(group).append(queue.internal_name, batch, appended, identity)
        queues.service.wake()
