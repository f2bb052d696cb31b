"""Foundation of a shard's storage: the file system and the threads that work on it.

Tests substitute disks that fail, and run everything in one thread, in an order given by a seed.
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
"""One checkpoint at a time: parallel ones would only wait for the same disk."""


def checkpoint_threads(cores: Sequence[int] = ()) -> Executor:
    """Return the executor of checkpoints; its threads run on these processors, by default the
    creator's."""
    return ThreadPoolExecutor(CHECKPOINT_THREADS, "checkpoint", spread, (cores,))


def log_syncer(directory: str, cores: Sequence[int] = ()) -> Syncer:
    """Return the syncer of a directory's log ("": only syncs), with a thread on these
    processors."""
    syncer = Syncer(cores=cores, directory=directory)
    how = (
        "past the page cache" if syncer.writes else "through the page cache, and synced by a thread"
    )
    _log.info("the write-ahead log is written %s", how)
    return syncer


class ClosableSyncQueue(SyncQueue, Protocol):
    """A queue of syncs that ends with the shard."""

    def close(self) -> None:
        """Close the queue after finishing requested syncs."""


@dataclass(frozen=True, slots=True)
class Disk:
    """``executor``: makes the executor of checkpoints. ``background``: create log files in a
    thread, not inline."""

    files: Files = field(default_factory=Files)
    syncer: Callable[[str], ClosableSyncQueue] = log_syncer
    """Makes the syncer of a directory's log; "" if it only syncs."""
    executor: Callable[[], Executor] = checkpoint_threads
    background: bool = True
    cores: tuple[int, ...] = ()
    """Processors for threads that sync; none: those of the shard."""
    spare: tuple[int, ...] = ()
    """Processors for threads that create log files; none: those of the shard."""
    places: int = PLACES
    """Maximum number of open files of queues' logs."""

    @property
    def beside(self) -> bool:
        """True if threads that sync have processors besides the shard's own."""
        return bool(self.cores)


def disk_beside(
    node: Sequence[int], own: Sequence[int], spare: Sequence[int], places: int = PLACES
) -> Disk:
    """Return the disk of a shard bound to its own of the node's processors; no shard is bound to
    spare ones.

    A thread that syncs does little, but on the shard's own core it would alternate with the shard,
    so it gets the other cores. Checkpoints and new log files take tens of milliseconds of work at a
    time: they run on the spare processors or the shard's own, so that no shard is delayed by what
    another one stores.
    """
    cores = tuple(core for core in node if core not in own and len(node) > 1)
    return Disk(
        syncer=lambda directory: log_syncer(directory, cores),
        executor=lambda: checkpoint_threads(spare),
        cores=cores,
        spare=tuple(spare),
        places=places,
    )
