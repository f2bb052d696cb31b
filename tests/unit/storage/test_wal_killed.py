"""A real process, killed at each failpoint by itself: what it said was durable is there, and nothing it did not write."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.storage.wal_harness import Bench, body

PROGRAM = """
import select, sys
from fluxmq.storage.files import Files
from fluxmq.storage.syncer import Syncer
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import WalOptions
from tests.unit.storage.wal_harness import body

syncer = Syncer()
log = WriteAheadLog.open(Files(), sys.argv[1], syncer, WalOptions(file_bytes=4096, spare_files=2))
group = log.number("default")
for index in range(log.last_index(group) + 1, log.last_index(group) + 300):
    log.append_entry(group, 1, index, 0, body(index))
    number = 0
    while not number or log.completed() < number:
        number = number or log.flush()
        select.select([syncer], [], [], 0.01)
    print(index, flush=True)
    if index % 90 == 0:
        log.release(group, index - 3)
"""

POINTS = [
    "wal.write:40",
    "wal.written:41",
    "wal.synced:42",
    "wal.rotate:2",
    "wal.create:2",
    "wal.recycle:1",
    "wal.recycled:1",
    "wal.remove:1",
    "file.write:1",
    "file.rename:1",
]


@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_at_a_failpoint_loses_nothing(tmp_path: Path, point: str) -> None:
    environ = {**os.environ, "FLUXMQ_FAILPOINT": point, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "wal")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    said = [int(line) for line in done.stdout.split()]
    made = Bench(tmp_path)
    if not said:
        assert made.log.groups() in ([], ["default"])
    else:
        found = made.log.recovered("default")
        last = found.entries[-1].index
        assert said[-1] <= last <= said[-1] + 1
        assert [entry.body for entry in found.entries] == [
            body(index) for index in range(found.checkpoint_index + 1, last + 1)
        ]
    made.kill()


def test_a_process_killed_while_it_cuts_a_torn_tail_is_followed_by_one_that_does(
    tmp_path: Path,
) -> None:
    made = Bench(tmp_path)
    group = made.log.number("default")
    for index in (1, 2, 3):
        made.log.append_entry(group, 1, index, 0, body(index))
    made.commit()
    made.kill()
    path = tmp_path / "wal" / f"{1:020}.wal"
    path.write_bytes(path.read_bytes().replace(body(2), bytes(100)))
    environ = {**os.environ, "FLUXMQ_FAILPOINT": "wal.cut", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "wal")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    made.start()
    assert made.contents() == {"default": [(1, 1, body(1))]}
    made.kill()
