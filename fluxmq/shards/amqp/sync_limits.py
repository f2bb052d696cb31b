"""Limits on what is copied to a queue's new mirrors: messages in a batch, and bytes per second. Pure.

RabbitMQ's settings, in its sense: a batch is what is sent before an answer is awaited, of at most
``ha-sync-batch-size`` messages by the queue's policy, else ``mirroring_sync_batch_size``; bytes are
bounded besides. ``mirroring_sync_max_throughput`` is a node's: each of its shards has its share.
"""

from __future__ import annotations

from typing import Final

from fluxmq.routing.topology.mirroring import mirror_policy
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.topology import Topology
from fluxmq.settings.group_names import is_mirrored
from fluxmq.settings.schema import Settings

WINDOW_BYTES: Final = 256 << 10
"""Batches in flight to the target. Clients' messages wait behind them in the log and on the loop; a
larger window copies no faster. Behind the fence no more than this and what comes until it closes
has to be copied, a few milliseconds' worth.
"""
UNLIMITED: Final = 1 << 62
"""Messages in flight where only bytes count."""
SAVED_SECONDS: Final = 0.01
"""Time whose bytes may be sent at once after a pause: timers are as late as that on a busy node."""


class CopyRate:
    """Spreads the bytes that are copied over time. ``bytes_per_second``: 0 for no limit."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._spent = 0.0
        """Moment until which time is used up by what was sent."""

    def wait(self, now: float) -> float:
        """Return how long to wait at this moment (seconds) before more may be sent; 0: no longer."""
        return max(self._spent - now, 0.0) if self._rate else 0.0

    def note(self, size: int, now: float) -> None:
        """Record that bytes are sent at this moment."""
        if self._rate:
            self._spent = max(self._spent, now - SAVED_SECONDS) + size / self._rate


class SyncLimits:
    """Limits of one shard."""

    def __init__(self, batch_messages: int, bytes_per_second: float) -> None:
        self.rate = CopyRate(bytes_per_second)
        self._batch_messages = batch_messages

    @classmethod
    def of(cls, settings: Settings, shards: int) -> SyncLimits:
        """Return the limits of one of a node's shards."""
        cluster = settings.cluster
        share = cluster.mirroring_sync_max_throughput / max(shards, 1)
        return cls(cluster.mirroring_sync_batch_size, share)

    def batch_messages(self, topology: Topology, queue: QueueRecord) -> int:
        """Return how many messages a batch to a moving queue's mirrors holds at most; 0 for a queue
        that moves otherwise."""
        if not is_mirrored(queue.moving_to):
            return 0
        policy = mirror_policy(topology, queue)
        own = 0 if policy is None else policy.sync_batch_size
        return own or self._batch_messages


class CopyWindow:
    """Batches of one move that are in flight."""

    def __init__(self, rate: CopyRate) -> None:
        self.batches = 0
        """Number of unanswered batches."""
        self.limit = 0
        """Messages that may be in flight; 0 for a move without limits but that of bytes."""
        self._rate = rate
        self._bytes = 0
        self._messages = 0

    def wait(self, now: float) -> float:
        """Return how long to wait at this moment until the rate, if the move is limited, has more sent."""
        return self._rate.wait(now) if self.limit else 0.0

    def room(self, now: float, *, paced: bool) -> int:
        """Return how many messages may be sent at this moment; 0: none. ``paced``: not faster than
        the rate, if the move is limited."""
        if self._bytes >= WINDOW_BYTES:
            return 0
        if not self.limit:
            return UNLIMITED
        if paced and self._rate.wait(now):
            return 0
        return max(self.limit - self._messages, 0)

    def sent(self, size: int, count: int, now: float) -> None:
        """Record that a batch is sent."""
        self.batches += 1
        self._bytes += size
        self._messages += count
        if self.limit:
            self._rate.note(size, now)

    def answered(self, size: int, count: int) -> None:
        """Record that a batch is answered."""
        self.batches -= 1
        self._bytes -= size
        self._messages -= count
