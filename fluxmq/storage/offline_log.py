"""A write-ahead log written while no broker runs on it: by a backup, or by ``force-quorum``."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterator
from typing import Final

from fluxmq.storage.files import Files
from fluxmq.storage.syncer import Syncer
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import WalOptions

SYNC_MS_MAX: Final = 1000
"""Longest wait of one poll for the end of a sync."""


@contextlib.contextmanager
def offline_log(files: Files, directory: str, file_bytes: int) -> Iterator[WriteAheadLog]:
    """Open the log in `directory`; everything written to it is durable at the end. Raises
    StorageError."""
    options = WalOptions(file_bytes=file_bytes, background=False)
    with (
        contextlib.closing(Syncer()) as syncer,
        contextlib.closing(WriteAheadLog.open(files, directory, syncer, options)) as wal,
    ):
        yield wal
        poll = select.poll()
        poll.register(syncer, select.POLLIN)
        while wal.buffered_bytes or wal.in_flight:
            wal.flush()
            poll.poll(SYNC_MS_MAX)
            wal.completed()
