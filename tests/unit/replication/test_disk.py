"""On which processors the threads of a shard's storage run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fluxmq.net.reactor import Reactor
from fluxmq.replication.disk import disk_beside
from fluxmq.replication.shard_logs import WAL, ShardLogs
from fluxmq.settings.load import load
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.files import Files

USABLE = sorted(os.sched_getaffinity(0))


def test_threads_that_sync_run_beside_the_shard_and_those_that_store_where_none_is_bound() -> None:
    disk = disk_beside((0, 1, 2), (0,), (2,))
    assert (disk.cores, disk.spare, disk.beside) == ((1, 2), (2,), True)
    every = disk_beside((0, 1), (0,), ())
    assert (every.cores, every.spare, every.beside) == ((1,), (), True)
    unbound = disk_beside((), (), ())
    assert (unbound.cores, unbound.spare, unbound.beside) == ((), (), False)


@pytest.mark.parametrize("spare", [(), (USABLE[-1],)])
def test_checkpoints_are_taken_on_spare_cores_or_on_the_shards_own(spare: tuple[int, ...]) -> None:
    executor = disk_beside(USABLE, USABLE[:1], spare).executor()
    try:
        assert executor.submit(os.sched_getaffinity, 0).result() == set(spare or USABLE)
    finally:
        executor.shutdown()


class Watching(Files):
    """Notes on which processors threads other than the first make files."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[set[int]] = []

    def call(
        self, operation: str, path: str, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        if operation == "allocate" and threading.current_thread() is not threading.main_thread():
            self.found.append(os.sched_getaffinity(0))
        return super().call(operation, path, function, *args, **kwargs)


class NoLoop:
    """Nothing of these logs is waited for."""

    def watch(self, descriptor: int, ready: Callable[[], None]) -> None:
        assert descriptor >= 0


@pytest.mark.parametrize("spare", [(), (USABLE[-1],)])
def test_files_of_the_log_are_made_on_spare_cores_or_on_the_shards_own(
    tmp_path: Path, spare: tuple[int, ...]
) -> None:
    path = tmp_path / "fluxmq.yaml"
    path.write_text(f"storage: {{data_dir: {tmp_path}}}\n")
    files = Watching()
    disk = replace(disk_beside(USABLE, USABLE[:1], spare), files=files)
    logs = ShardLogs(
        0,
        load(path, {}),
        DataPaths(str(tmp_path)),
        disk,
        cast(Reactor, NoLoop()),
        lambda: None,
        lambda: False,
    )
    wal = logs.open(WAL).wal
    wal.append_hard_state(wal.number("group"), 1, 1, 0)
    wal.flush()  # into the only file there is: the next one is made
    logs.close()  # waits for that
    assert files.found == [set(spare or USABLE)]
