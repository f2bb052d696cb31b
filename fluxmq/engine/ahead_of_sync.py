"""Entries of a group that are applied before they are synced, for queues that deliver before the
sync.

Such an entry changes the state in memory, and messages are handed out by that. Everything that
outlives the process waits for the sync of the log: answers to those who requested the commands, the
head of the queue's files, which readers outside the broker go by, and the removal of segments.
Checkpoints do not wait, because they sync what they hold.

Only the leader of a group of one member runs ahead: a crash is then the end of every consumer that
was given something. A consumer on another node would survive it, and settle by an offset that
another message has got since; so a queue does not run ahead while it has one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from fluxmq.engine.answers import ResultCallback
from fluxmq.engine.state_ports import QueueStore
from fluxmq.engine.store_writes import StoreWrites
from fluxmq.queues.attachments import Attachments
from fluxmq.queues.before_sync import only_queue_of, only_queues_of
from fluxmq.queues.machine import Machine
from fluxmq.queues.results import Applied, Result

BEHIND_US_MAX: Final = 1_000_000
"""Time after which files that are behind are given an opportunity to catch up, with entries that
wait for two syncs at most: under load there is always a sync in flight, and entries behind it."""

Requested = Sequence[tuple[ResultCallback | None, int]]
"""Callback and weight of each command of an entry."""
AnswerEntry = Callable[[int, Requested, Sequence[Result]], None]
"""Answers an entry's commands: index, callbacks, results."""


class AheadOfSync:
    """The entries of one group that are applied and not synced. ``names``: the queues that deliver
    before the sync; ``answer`` and ``write`` are the group's."""

    def __init__(
        self,
        machine: Machine,
        consumers: Attachments,
        stores: dict[int, QueueStore],
        writes: StoreWrites,
        answer: AnswerEntry,
        write: Callable[[], object],
    ) -> None:
        self.names: AbstractSet[str] = frozenset()
        self.alone = False
        """True if the group has one member; others never run ahead."""
        self.settling = False
        """True while entries wait for the log, so that the files catch up."""
        self._machine = machine
        self._consumers = consumers
        self._stores = stores
        self._writes = writes
        self._answer = answer
        self._write = write
        self._index = 0
        """The last entry that was let through before its sync."""
        self._waiting: deque[tuple[int, Requested, Sequence[Result]]] = deque()
        """Applied entries whose answers wait for the sync."""
        self._behind: dict[int, None] = {}
        """Queues whose files are behind what is applied."""
        self._since = 0
        """Time of the entry since which some are."""

    @property
    def wanted(self) -> bool:
        """True if any queue delivers before the sync."""
        return self.alone and bool(self.names)

    @property
    def idle(self) -> bool:
        """True while no answer waits for a sync."""
        return not self._waiting

    # Entries

    def accepts(self, command: bytes) -> bool:
        """Return whether a command, given its beginning, may be applied before its sync."""
        return self._runs_ahead(only_queue_of(command))

    def lets_through(self, index: int, data: bytes) -> bool:
        """Return whether an entry in the log, the next to be applied, is to be applied before its
        sync.

        It is asked when everything before it has taken effect.
        """
        known: set[int] = set()
        for queue_id in only_queues_of(data):
            if queue_id not in known:
                if not self._runs_ahead(queue_id):
                    return False
                known.add(queue_id)
        self._index = index
        return True

    def _runs_ahead(self, queue_id: int) -> bool:
        """Return whether commands of a queue need not wait. One that may dead-letter what exceeds
        its length does: see `before_sync`."""
        queue = self._machine.queues.get(queue_id)
        if queue is None or queue.closed or queue.is_stream or queue.name not in self.names:
            return False
        if queue.bounded and queue.config.dead_letter:
            return False
        return not any(each.terms.abroad for each in self._consumers.consumers_of(queue_id))

    def is_ahead(self, index: int) -> bool:
        """Return whether an entry that is being applied was let through before its sync."""
        return index <= self._index

    def carries_out(self, applied: Applied) -> None:
        """Note the effects of an entry that is ahead, before they reach the stores."""
        if not self._behind:
            self._since = applied.time
        for queue_id, _ in applied.batches:
            self._fall_behind(queue_id)
        for queue_id, _ in applied.trims:
            self._fall_behind(queue_id)

    def _fall_behind(self, queue_id: int) -> None:
        self._stores[queue_id].ahead = True
        self._behind[queue_id] = None

    def hold(self, index: int, requested: Requested, results: Sequence[Result]) -> None:
        """Keep the answers to an applied entry until it is synced."""
        self._waiting.append((index, requested, results))

    # The disk

    def settle(self) -> None:
        """Have files that are long behind catch up: commands that arrive during a sync then wait
        for its end."""
        if self._behind and self._machine.time >= self._since + BEHIND_US_MAX:
            self.settling = True

    def synced(self, index: int) -> None:
        """Note that this node's disk has the log up to ``index``."""
        while self._waiting and self._waiting[0][0] <= index:
            number, requested, results = self._waiting.popleft()
            self._answer(number, requested, results)
        if index < self._index or not self._behind:
            return
        behind, self._behind = self._behind, {}
        for queue_id in behind:
            store = self._stores.get(queue_id)
            if store is not None:
                store.ahead = False
                self._writes.due(queue_id)
        if self.settling:
            self.settling = False
            self._write()

    def end(self) -> list[tuple[ResultCallback | None, int]]:
        """Return the callbacks and weights of all that waits: it may or may not become durable."""
        waiting, self._waiting = self._waiting, deque()
        return [each for _, requested, _ in waiting for each in requested]
