"""A group's queues on disk, without a shard."""

from __future__ import annotations

import errno
from pathlib import Path

from fluxmq.replication.stores import DiskStores
from fluxmq.storage.batch_cache import BatchCache
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.log_reader import OpenSegments
from fluxmq.storage.open_files import OpenFiles
from fluxmq.storage.segments import SegmentOptions
from tests.faults import FailingFiles


def test_a_recovery_without_space_is_completed_by_the_next_write(tmp_path: Path) -> None:
    """Found by the simulator: the group failed, and stayed so until a restart."""
    files = FailingFiles()
    segments = OpenSegments(OpenFiles(files))
    paths = DataPaths(str(tmp_path))
    stores = DiskStores(files, paths, "group", SegmentOptions(), BatchCache(), segments)
    stores.restore({})
    log = stores.open(1, "work")
    files.fail_always("create", errno.ENOSPC)
    stores.recovered()
    assert log.incomplete
    files.work_again()
    log.flush()
    assert not log.incomplete
    assert files.exists(f"{log.directory}/head")
    stores.close()
