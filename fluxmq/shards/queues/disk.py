"""What a shard's storage stands on: the file system, and who works on it besides the shard.

Tests put disks here that fail, and have everything happen in one thread, in an order that a seed gives.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from fluxmq.storage.files import Files
from fluxmq.storage.syncer import Syncer
from fluxmq.storage.wal_options import SyncQueue

CHECKPOINT_THREADS = 1
"""Checkpoints are taken one after another: side by side they would only wait for the same disk."""


def checkpoint_threads() -> Executor:
    """Where checkpoints are written."""
    return ThreadPoolExecutor(CHECKPOINT_THREADS, "checkpoint")


class ClosableSyncQueue(SyncQueue, Protocol):
    """A queue of syncs that ends with the shard."""

    def close(self) -> None:
        """End it; what was asked is done first."""


@dataclass(frozen=True, slots=True)
class Disk:
    """``executor``: where checkpoints are written. ``background``: files of logs are made in a thread, not at once."""

    files: Files = field(default_factory=Files)
    syncer: Callable[[], ClosableSyncQueue] = Syncer
    executor: Callable[[], Executor] = checkpoint_threads
    background: bool = True
