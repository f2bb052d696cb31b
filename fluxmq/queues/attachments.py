"""Consumers of a replication group's queues on its leader: they attach, settle, stop and detach.

``Dispatch`` hands out messages to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fluxmq.model.errors import FluxmqError
from fluxmq.queues import commands
from fluxmq.queues.browse_dispatcher import BrowseDispatcher
from fluxmq.queues.commands import FIRST, Mode, Range
from fluxmq.queues.consumers import ConsumerTerms, GroupConsumer, SettlementResult
from fluxmq.queues.group_dispatcher import GroupDispatcher, Read
from fluxmq.queues.groups import TEMPORARY
from fluxmq.queues.limits import NAME_BYTES_MAX, RANGES_PER_COMMAND_MAX, UNSETTLED_MAX
from fluxmq.queues.machine import Machine
from fluxmq.queues.priorities import PriorityDispatcher
from fluxmq.queues.states import QueueState
from fluxmq.queues.stream_dispatcher import StreamDispatcher
from fluxmq.queues.work_dispatcher import FifoDispatcher, WorkDispatcher


class AttachError(FluxmqError):
    """A consumer cannot be attached: no such queue, or a group of another mode."""


class ExclusiveError(AttachError):
    """The queue has an exclusive consumer, or an exclusive one came while it has others."""


class CommitError(FluxmqError):
    """The offset cannot be committed."""


class Attachments:
    """Consumers of a group's queues, and the dispatchers that serve them. ``woken``: ids of the
    queues to run."""

    def __init__(self, machine: Machine, read: Read, auto_commit_interval: int) -> None:
        self.woken: dict[int, None] = {}
        self._machine = machine
        self._read = read
        self._interval = auto_commit_interval
        self._term = 0
        self._number = 0
        self._dispatchers: dict[int, dict[int, GroupDispatcher]] = {}
        self._known: dict[
            int, int
        ] = {}  # by queue id: its group_changes when the dispatchers were made
        self._joining: dict[int, list[GroupConsumer]] = {}
        self._cancelled: list[GroupConsumer] = []
        self._exclusive: dict[int, GroupConsumer] = {}
        """The last exclusive consumer of each queue, by queue id; it may be gone by now."""

    def reset(self, term: int) -> None:
        """Forget every consumer. ``term``: the one in which this node leads, 0 for none."""
        for dispatchers in self._dispatchers.values():
            for dispatcher in dispatchers.values():
                for consumer in list(dispatcher.consumers.values()):
                    dispatcher.remove(consumer)
        self._term = term
        self._number = 0
        self._dispatchers.clear()
        self._known.clear()
        self._joining.clear()
        self._exclusive.clear()
        self._cancelled.clear()
        self.woken.clear()

    def attach(self, queue_id: int, terms: ConsumerTerms) -> tuple[GroupConsumer, list[bytes]]:
        """Attach a consumer; return it and the commands to propose. It gets messages once they are
        applied.

        Raises `AttachError` for an unknown queue or a group of another mode or filter, and
        `ExclusiveError` when this consumer or an attached one is `exclusive`.
        """
        queue = self._machine.queues.get(queue_id)
        if queue is None:
            raise AttachError(f"no queue of id {queue_id}")
        group, filter_, mode = terms.group, terms.filter, terms.mode
        if terms.temporary:
            group = f"{TEMPORARY}{self._term}-{self._number + 1}-{group}"[: NAME_BYTES_MAX // 4]
        name = f"{group}@{filter_.decode('utf-8', 'replace')}" if filter_ else group
        existing = queue.group(name)
        if existing is not None and (existing.mode != mode or existing.filter != filter_):
            raise AttachError(f"consumer group {name} of {queue.name} uses another mode")
        in_use = self._is_exclusive(queue_id) or (terms.exclusive and self.in_use(queue_id))
        if in_use and not terms.taking:
            raise ExclusiveError(f"queue {queue.name} is in exclusive use")
        self._number += 1
        consumer = GroupConsumer(queue_id, name, (self._term << 32) | self._number, terms)
        if terms.exclusive:
            self._exclusive[queue_id] = consumer
        start = terms.start
        proposals = []
        if existing is None:
            proposals.append(commands.create_group(queue_id, name, mode, filter_, start or FIRST))
        elif start is not None and mode == Mode.STREAM:
            proposals.append(commands.seek(queue_id, existing.id, start))
        joined = (queue_id, name, consumer.holder, terms.member, terms.taking, terms.timeout)
        proposals.append(commands.join(*joined))
        self._joining.setdefault(queue_id, []).append(consumer)
        return consumer, proposals

    def browse(self, queue_id: int, terms: ConsumerTerms, cursor: int) -> GroupConsumer:
        """Attach a browser, which reads from offset `cursor` on; it begins at once. Raises
        `AttachError` for an unknown queue."""
        queue = self._machine.queues.get(queue_id)
        if queue is None:
            raise AttachError(f"no queue of id {queue_id}")
        self._number += 1
        consumer = GroupConsumer(queue_id, "", (self._term << 32) | self._number, terms)
        consumer.group_id = -self._number  # of no group: its dispatcher is its own
        consumer.active = True
        dispatcher = BrowseDispatcher(queue, self._read, cursor)
        dispatcher.consumers[consumer.holder] = consumer
        self.served(queue)
        self._dispatchers[queue_id][consumer.group_id] = dispatcher
        dispatcher.feed(consumer)
        self.woken[queue_id] = None
        return consumer

    def unseen(self, consumer: GroupConsumer) -> int:
        """Return how many messages a browser has yet to look at; 0 if it is gone."""
        dispatcher = self.dispatcher(consumer.queue_id, consumer.group_id)
        return dispatcher.unseen() if isinstance(dispatcher, BrowseDispatcher) else 0

    def credit(self, consumer: GroupConsumer, count: int) -> None:
        """Add `count` to the consumer's credit; a negative count takes credit back."""
        consumer.credit = max(0, consumer.credit + count)
        dispatcher = self.dispatcher(consumer.queue_id, consumer.group_id)
        if dispatcher is not None and dispatcher.feed(consumer):
            self.woken[consumer.queue_id] = None

    def set_limit(self, consumer: GroupConsumer, limit: int) -> None:
        """Limit the consumer's unsettled messages from now on; 0 is `UNSETTLED_MAX`."""
        consumer.limit = limit or UNSETTLED_MAX
        self.credit(consumer, 0)

    def stop(self, consumer: GroupConsumer) -> list[bytes]:
        """Give the consumer no more messages; it still settles its own. Return the commands to
        propose."""
        if consumer.stopped or consumer.queue_id not in self._machine.queues:
            return []
        consumer.stopped = True
        if consumer.terms.browsing:
            return []
        dispatcher = self.dispatcher(consumer.queue_id, consumer.group_id)
        if isinstance(dispatcher, WorkDispatcher):
            dispatcher.pass_on()
            self.woken[consumer.queue_id] = None
        elif (
            isinstance(dispatcher, StreamDispatcher)
            and dispatcher.automatic
            and consumer.auto_commit
        ):
            self.woken[consumer.queue_id] = None
        name, holder, member = consumer.group_name, consumer.holder, consumer.member
        return [commands.join(consumer.queue_id, name, holder, member, visiting=True)]

    def consumers_of(self, queue_id: int) -> Iterator[GroupConsumer]:
        """Yield the consumers of a queue, those still joining included."""
        for dispatcher in self._dispatchers.get(queue_id, {}).values():
            yield from dispatcher.consumers.values()
        yield from self._joining.get(queue_id, [])

    def in_use(self, queue_id: int) -> bool:
        """Return whether a queue has consumers that keep it in use."""
        return any(each.counts for each in self.consumers_of(queue_id))

    def _is_exclusive(self, queue_id: int) -> bool:
        consumer = self._exclusive.get(queue_id)
        if consumer is None or not consumer.counts:
            return False
        return consumer.active or consumer in self._joining.get(queue_id, [])

    def may_give(self, consumer: GroupConsumer) -> bool:
        """Return whether a taking consumer may yet get a message, now or once more entries are
        applied."""
        dispatcher = self.dispatcher(consumer.queue_id, consumer.group_id)
        if dispatcher is None:
            return consumer in self._joining.get(consumer.queue_id, [])
        return isinstance(dispatcher, WorkDispatcher) and dispatcher.may_give()

    def spare(self, queue: QueueState) -> int:
        """Return how many messages the consumers of every group are waiting for."""
        if queue.owns_itself() or queue.is_stream:
            return 0
        dispatchers = self.served(queue)
        return min(dispatchers[group.id].spare() for group in queue.work_groups())

    def counts(self, queue_id: int) -> tuple[int, int, int]:
        """Return a queue's ready messages, its unacked messages, and its consumers."""
        queue = self._machine.queues[queue_id]
        if queue.closed:
            return queue.ready(), 0, 0
        consumers = list(self.consumers_of(queue_id))
        counting = sum(each.counts for each in consumers)
        if queue.owns_itself() or queue.is_stream:
            return queue.next_offset - queue.start, 0, counting
        dispatchers = self.served(queue)
        ready = 0
        for group in queue.work_groups():
            dispatcher = dispatchers[group.id]
            if isinstance(dispatcher, WorkDispatcher):
                ready = max(ready, dispatcher.ready())
        return ready, sum(each.unsettled for each in consumers), counting

    def detach(self, consumer: GroupConsumer) -> list[bytes]:
        """Detach a consumer. Return the commands that release its unsettled messages."""
        dispatcher = self.dispatcher(consumer.queue_id, consumer.group_id)
        proposals: list[bytes] = []
        if dispatcher is not None:
            dispatcher.remove(consumer)
            if consumer.terms.browsing:
                del self._dispatchers[consumer.queue_id][consumer.group_id]
                return proposals
            if (
                isinstance(dispatcher, StreamDispatcher)
                and dispatcher.automatic
                and consumer.auto_commit
            ):
                dispatcher.commit(proposals)
        joining = self._joining.get(consumer.queue_id, [])
        if consumer in joining:
            joining.remove(consumer)
        if consumer.queue_id in self._machine.queues:
            self.woken[consumer.queue_id] = None
            proposals.append(
                commands.leave(consumer.queue_id, consumer.group_name, consumer.holder)
            )
            if consumer.terms.temporary and consumer.group_id:
                proposals.append(commands.delete_group(consumer.queue_id, consumer.group_id))
        return proposals

    def settle(
        self,
        consumer: GroupConsumer,
        verb: int,
        ranges: Sequence[Range],
        now: int,
        delay: int = -1,
        reason: bytes = b"",
    ) -> SettlementResult:
        """Settle messages that the consumer was given, by `verb` (`Verb`).

        `delay`: µs before a nacked message is redelivered, -1 for the queue's back-off. Messages
        that the consumer does not hold are only counted in `missing`. The peer is answered when the
        commands are applied.
        """
        now = max(now, self._machine.time)
        unacked = consumer.unacked
        pieces: list[Range] = []
        wanted = 0
        for first, last in ranges:
            wanted += last - first + 1
            pieces += unacked.remove(first, last)
        settled = 0
        for first, last in pieces:
            settled += last - first + 1
            if consumer.overdue:
                consumer.overdue.remove(first, last)
        if not settled:
            return SettlementResult([], 0, wanted)
        dispatcher = self.dispatcher(consumer.queue_id, consumer.group_id)
        if isinstance(dispatcher, StreamDispatcher):
            dispatcher.feed(consumer)
            self.woken[consumer.queue_id] = None
        elif dispatcher is not None and dispatcher.feed(consumer) and dispatcher.can_give():
            self.woken[consumer.queue_id] = None
        if isinstance(dispatcher, StreamDispatcher):
            dispatcher.settle(verb, pieces, now, delay)
            return SettlementResult([], settled, wanted - settled)
        if consumer.automatic:
            return SettlementResult([], settled, wanted - settled)
        queue_id, group_id, holder = consumer.queue_id, consumer.group_id, consumer.holder
        proposals = [
            commands.settle(
                queue_id,
                group_id,
                verb,
                holder,
                pieces[at : at + RANGES_PER_COMMAND_MAX],
                delay,
                reason,
            )
            for at in range(0, len(pieces), RANGES_PER_COMMAND_MAX)
        ]
        return SettlementResult(proposals, settled, wanted - settled)

    def commit(self, consumer: GroupConsumer, offset: int) -> list[bytes]:
        """Commit explicitly: the consumer's stream group needs nothing below `offset` any more.
        Messages below it no longer count against this consumer's limit; other members settle their
        own.

        Raises `CommitError` for a work group, and for an offset that was not read yet.
        """
        dispatcher = self.dispatcher(consumer.queue_id, consumer.group_id)
        if not isinstance(dispatcher, StreamDispatcher):
            raise CommitError("only a stream's consumer groups commit")
        if not dispatcher.queue.start <= offset <= dispatcher.cursor:
            raise CommitError(
                f"offset {offset} is outside of {dispatcher.queue.start} to {dispatcher.cursor}"
            )
        if offset:
            consumer.unacked.remove(0, offset - 1)
        if dispatcher.feed(consumer):
            self.woken[consumer.queue_id] = None
        return [commands.commit(consumer.queue_id, consumer.group_id, offset)]

    def cancelled(self) -> list[GroupConsumer]:
        """Return consumers detached since the last call because their queue or group is gone."""
        gone, self._cancelled = self._cancelled, []
        return gone

    # --- dispatchers -------------------------------------------------------------------------------------------------

    def dispatcher(self, queue_id: int, group_id: int) -> GroupDispatcher | None:
        """Return the dispatcher of a group, None if nothing needed one yet."""
        return self._dispatchers.get(queue_id, {}).get(group_id)

    def forget(self, queue_id: int) -> None:
        """Cancel the consumers of a queue that is gone."""
        for dispatcher in self._dispatchers.pop(queue_id, {}).values():
            self._cancel(dispatcher)
        self._cancelled += self._joining.pop(queue_id, [])
        for table in (self._known, self.woken, self._exclusive):
            table.pop(queue_id, None)

    def served(self, queue: QueueState) -> dict[int, GroupDispatcher]:
        """Return the dispatchers of a queue's groups, by id in order, creating missing ones.
        Dispatcher 0 is the ownerless group's."""
        dispatchers = self._dispatchers.get(queue.id)
        if dispatchers is None or self._known[queue.id] != queue.group_changes:
            dispatchers = self._dispatchers.setdefault(queue.id, {})
            self._known[queue.id] = queue.group_changes
            for id_ in [id_ for id_ in dispatchers if id_ > 0 and id_ not in queue.groups]:
                self._cancel(dispatchers.pop(id_))
            if 0 not in dispatchers:
                dispatchers[0] = FifoDispatcher(queue, queue.nobodys, self._read)
            for id_, group in queue.groups.items():
                if id_ not in dispatchers:
                    if group.mode == Mode.STREAM:
                        dispatchers[id_] = StreamDispatcher(
                            queue, group, self._read, self._interval
                        )
                    elif queue.config.max_priority:
                        dispatchers[id_] = PriorityDispatcher(queue, group, self._read)
                    else:
                        dispatchers[id_] = FifoDispatcher(queue, group, self._read)
        return dispatchers

    def activate(self, queue: QueueState) -> None:
        """Activate consumers whose join was applied."""
        joining = self._joining.pop(queue.id, None)
        if not joining:
            return
        self.served(queue)
        later = []
        for consumer in joining:
            group = queue.group(consumer.group_name)
            if group is None or consumer.holder not in group.members:
                later.append(consumer)
                continue
            if group.mode != consumer.terms.mode or group.filter != consumer.terms.filter:
                self._cancelled.append(consumer)
                continue
            dispatcher = self._dispatchers[queue.id][group.id]
            consumer.group_id = group.id
            consumer.active = True
            dispatcher.consumers[consumer.holder] = consumer
            dispatcher.feed(consumer)
        if later:
            self._joining[queue.id] = later

    def _cancel(self, dispatcher: GroupDispatcher) -> None:
        for consumer in list(dispatcher.consumers.values()):
            dispatcher.remove(consumer)
            self._cancelled.append(consumer)
