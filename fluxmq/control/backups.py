"""`fluxmqctl backup`: builds a data directory that a broker can start from, while the node runs.

Shards copy their groups one after another; then the shards' tables (sessions, retained messages),
this process's (users, exchanges, queues, policies) and the placement follow. Each part is
consistent in itself, the parts are seconds apart: a start reconciles missing or surplus queues with
the tables, as after a crash. VERSION is written last, and the directory gets its name only then, so
that no broker starts on half a backup.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fluxmq.control.metadata import FILE_NAME, StoreThread
from fluxmq.control.peers import Peer, PeerError, RequestError
from fluxmq.control.placements import Placements
from fluxmq.ipc.backups import BACKUP, BackedUp, Backup
from fluxmq.ipc.messages import ERROR_EXISTS, ERROR_FAILED, ERROR_INVALID, Body, ControlMessage
from fluxmq.logs import get_logger
from fluxmq.settings.membership import FILE_NAME as NODES_FILE
from fluxmq.storage.backup import copy_tables
from fluxmq.storage.directory import DataPaths, write_placement, write_version
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files

KINDS: Final = frozenset({BACKUP})
SHARD_SECONDS_MAX: Final = 86_400.0
"""Time for a shard to copy its groups: within a day even the slowest sensible rate copies
terabytes."""
MAKING: Final = ".incomplete"
"""Suffix of the directory's name until the backup is complete."""

_log = get_logger(__name__)


class NodeBackups:
    """Makes backups of this node, one at a time. `shards` returns the connected shards."""

    def __init__(
        self,
        paths: DataPaths,
        thread: StoreThread,
        placing: Placements,
        shards: Callable[[], list[Peer]],
    ) -> None:
        self._paths = paths
        self._files = Files()
        self._thread = thread
        self._placing = placing
        self._shards = shards

    async def answer(self, message: ControlMessage) -> Body:
        """Make a backup. Raises RequestError or MessageError; a failed backup keeps its incomplete
        name."""
        wanted = Backup.from_body(message.body)
        target = Path(wanted.directory)
        if not target.is_absolute():
            raise RequestError(ERROR_INVALID, f"{target} is not an absolute path")
        making = target.with_name(target.name + MAKING)
        for path in (target, making):
            if path.exists():
                raise RequestError(ERROR_EXISTS, f"{path} exists already; name another directory")
        begun = time.monotonic()
        try:
            # No group moves to another shard meanwhile: it would be copied twice, or not at all.
            async with self._placing.still():
                done = await self._make(DataPaths(str(making)), wanted.rate)
            await self._thread.run(lambda: self._finish(making, target))
        except (StorageError, OSError, PeerError, TimeoutError) as problem:
            reason = str(problem) or "a shard did not answer in time"
            raise RequestError(
                ERROR_FAILED, f"no backup was made: {reason}; remove {making} and try again"
            ) from problem
        seconds = round(time.monotonic() - begun, 3)
        _log.info("backup written", extra={"directory": str(target), "seconds": seconds})
        return done.to_body()

    async def _make(self, target: DataPaths, rate: int) -> BackedUp:
        await self._thread.run(lambda: self._files.make_directory(target.root))
        done = BackedUp(0, 0, 0)
        placement = self._placing.placement
        shards = self._shards()
        if len(shards) != placement.workers:
            raise StorageError(f"{len(shards)} of {placement.workers} shards are connected")
        for shard in shards:
            body = await shard.ask(BACKUP, Backup(target.root, rate).to_body(), SHARD_SECONDS_MAX)
            done += BackedUp.from_body(body)
        await asyncio.to_thread(self._copy_tables, target, placement.workers)
        await self._thread.run(lambda: write_placement(self._files, target, placement))
        return done

    def _copy_tables(self, target: DataPaths, workers: int) -> None:
        for shard in range(workers):
            if self._files.exists(self._paths.state(shard)):
                self._files.make_directory(str(Path(target.state(shard)).parent))
                copy_tables(self._files, self._paths.state(shard), target.state(shard))
        copy_tables(self._files, f"{self._paths.root}/{FILE_NAME}", f"{target.root}/{FILE_NAME}")
        nodes = f"{self._paths.root}/{NODES_FILE}"
        if self._files.exists(nodes):  # without it, a node that has joined would not start
            self._files.write_whole(f"{target.root}/{NODES_FILE}", self._files.read_file(nodes))

    def _finish(self, making: Path, target: Path) -> None:
        write_version(self._files, DataPaths(str(making)))
        self._files.fsync_directory(str(making))
        self._files.rename(str(making), str(target))
        self._files.fsync_directory(str(target.parent))
