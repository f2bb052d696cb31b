"""What a shard's storage stands on: the file system, and who works on it besides the shard.

Tests put disks here that fail, and have everything happen in one thread, in an order that a seed gives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from fluxmq.storage.files import Files
from fluxmq.storage.open_files import PLACES
from fluxmq.storage.syncer import Syncer, spread
from fluxmq.storage.wal_options import SyncQueue

_log = logging.getLogger(__name__)

CHECKPOINT_THREADS = 1
"""Checkpoints are taken one after another: side by side they would only wait for the same disk."""


def checkpoint_threads(cores: Sequence[int] = ()) -> Executor:
    """Where checkpoints are written: threads that may run on these processors, or where who makes them does."""
    return ThreadPoolExecutor(CHECKPOINT_THREADS, "checkpoint", spread, (cores,))


def log_syncer(directory: str, cores: Sequence[int] = ()) -> Syncer:
    """What makes the log of a directory durable ("": by syncing only), with a thread on these processors."""
    syncer = Syncer(cores=cores, directory=directory)
    how = (
        "past the page cache" if syncer.writes else "through the page cache, and synced by a thread"
    )
    _log.info("the write-ahead log is written %s", how)
    return syncer


class ClosableSyncQueue(SyncQueue, Protocol):
    """A queue of syncs that ends with the shard."""

    def close(self) -> None:
        """End it; what was asked is done first."""


@dataclass(frozen=True, slots=True)
class Disk:
    """``executor``: where checkpoints are written. ``background``: files of logs are made in a thread, not at once."""

    files: Files = field(default_factory=Files)
    syncer: Callable[[str], ClosableSyncQueue] = log_syncer
    """Made for the log of a directory; "" when it is to sync only."""
    executor: Callable[[], Executor] = checkpoint_threads
    background: bool = True
    cores: tuple[int, ...] = ()
    """Processors that threads which sync may run on; none: those of the shard."""
    spare: tuple[int, ...] = ()
    """Processors that threads which make files of logs may run on; none: those of the shard."""
    places: int = PLACES
    """Files of queues' logs that are open at once."""

    @property
    def beside(self) -> bool:
        """Whether threads that sync have processors besides the shard's own."""
        return bool(self.cores)


def disk_beside(
    node: Sequence[int], own: Sequence[int], spare: Sequence[int], places: int = PLACES
) -> Disk:
    """The disk of a shard that is bound to its own of the node's processors, of which no shard is bound to the spare ones.

    A thread that syncs does little, but on the shard's own core it takes turns with the shard: it has the others. Checkpoints and
    new files of the log are work, tens of milliseconds at a time: for these it is the spare ones, or its own, so that no
    shard is held up by what another one stores.
    """
    cores = tuple(core for core in node if core not in own and len(node) > 1)
    return Disk(
        syncer=lambda directory: log_syncer(directory, cores),
        executor=lambda: checkpoint_threads(spare),
        cores=cores,
        spare=tuple(spare),
        places=places,
    )
