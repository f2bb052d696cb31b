"""Counters of messages for each queue of a group, for rates: a few additions for each batch.

They count from the start of this process and are no part of the replicated state.
"""

from __future__ import annotations


class QueueTraffic:
    """Messages of one queue. Those that were delivered or got are counted by whether the consumer
    acknowledges them; ``redelivered`` ones are among them."""

    __slots__ = (
        "acked",
        "delivered",
        "delivered_no_ack",
        "got",
        "got_no_ack",
        "published",
        "redelivered",
    )

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0
        self.delivered_no_ack = 0
        self.got = 0
        self.got_no_ack = 0
        self.redelivered = 0
        self.acked = 0


class GroupTraffic:
    """Counters of a group's queues.

    ``moved``: ids of queues in which something has changed since the id was last taken out;
    ``reported``: the names and numbers of queues that were last reported, also by id.
    """

    def __init__(self) -> None:
        self.moved: set[int] = set()
        self.reported: dict[int, tuple[str, tuple[int, ...]]] = {}
        self.queues: dict[int, QueueTraffic] = {}

    def of(self, queue_id: int) -> QueueTraffic:
        """Return a queue's counters."""
        found = self.queues.get(queue_id)
        if found is None:
            found = self.queues[queue_id] = QueueTraffic()
        return found

    def delivered(
        self, queue_id: int, count: int, redelivered: bool, taking: bool, automatic: bool
    ) -> None:
        """Count messages given to a consumer: ``redelivered``, not for the first time; to one
        ``taking`` single messages, or one that acknowledges nothing (``automatic``)."""
        found = self.of(queue_id)
        if taking:
            if automatic:
                found.got_no_ack += count
            else:
                found.got += count
        elif automatic:
            found.delivered_no_ack += count
        else:
            found.delivered += count
        if redelivered:
            found.redelivered += count
        self.moved.add(queue_id)

    def forget(self, queue_id: int) -> None:
        """Forget a deleted queue's counters; its end is to be reported only if the queue was."""
        self.queues.pop(queue_id, None)
        if queue_id in self.reported:
            self.moved.add(queue_id)
        else:
            self.moved.discard(queue_id)
