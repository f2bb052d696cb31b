"""The first message not before a time, against looking at every message."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fluxmq.model.batches import BatchMessage
from fluxmq.model.segments import FOOTER_BYTES
from fluxmq_spark.catalog import Log, QueueFiles, read_log
from fluxmq_spark.errors import Damage
from fluxmq_spark.storage import LocalStorage, OpenFile, Storage, storage_of
from fluxmq_spark.times import TimeSearch
from tests.spark_queues import EPOCH_US, QueueOnDisk

STEP_US = 1000


def log_of(queue: QueueOnDisk, storage: Storage | None = None) -> Log:
    """A queue's log, which has to be there."""
    files = QueueFiles("orders", "default", str(queue.directory))
    log = read_log(storage or LocalStorage(), files)
    assert log is not None
    return log


def search(queue: QueueOnDisk, time: int, *, skip: bool = False) -> int:
    """What the search finds."""
    return TimeSearch(LocalStorage(), log_of(queue), skip_damage=skip).first_not_before(time)


def expected(queue: QueueOnDisk, time: int) -> int:
    """What looking at every kept message finds."""
    start = queue.log.start_offset
    messages = enumerate(queue.messages[start:], start)
    return next((offset for offset, each in messages if each.time_us >= time), len(queue.messages))


def test_every_boundary(tmp_path: Path) -> None:
    """Before, at and after first and last messages of queue, segments and batches, and within batches."""
    queue = QueueOnDisk(tmp_path / "data")
    queue.fill(3000, per_batch=7)
    bases = [segment.base_offset for segment in log_of(queue).segments]
    assert len(bases) > 3
    offsets = {0, 1, 6, 7, 8, 1500, 2999, 3000, *bases, *(base - 1 for base in bases[1:])}
    for offset in sorted(offsets):
        for nudge in (-1, 0, 1):
            time = EPOCH_US + offset * STEP_US + nudge
            assert search(queue, time) == expected(queue, time), (offset, nudge)
    assert search(queue, -1) == 0
    assert search(queue, 1 << 62) == 3000


def test_what_retention_removed_is_not_found(tmp_path: Path) -> None:
    """Also where its segment is still there."""
    queue = QueueOnDisk(tmp_path / "data")
    queue.fill(2000)
    queue.trim(1005)
    for offset in (0, 1000, 1004, 1005, 1006, 1010):
        time = EPOCH_US + offset * STEP_US
        assert search(queue, time) == max(offset, 1005)


@pytest.mark.parametrize("seed", range(6))
def test_clocks_that_go_back(tmp_path: Path, seed: int) -> None:
    """Times in any order, within batches ascending: segments before the right one may be later than it."""
    chance = random.Random(seed)
    queue = QueueOnDisk(tmp_path / "data")
    now = EPOCH_US
    while len(queue.messages) < 1500:
        now += chance.choice((1, 1, 1, -3)) * chance.randrange(50) * STEP_US
        count = chance.randrange(1, 20)
        times = sorted(now + chance.randrange(100 * STEP_US) for _ in range(count))
        queue.append(
            [BatchMessage(b"k", b"", bytes(chance.randrange(400)), time) for time in times]
        )
        if chance.random() < 0.01:
            queue.trim(chance.randrange(queue.log.start_offset, len(queue.messages)))
    kept = [each.time_us for each in queue.messages[queue.log.start_offset :]]
    for time in [*chance.sample(kept, 60), max(kept), max(kept) + 1, min(kept)]:
        assert search(queue, time) == expected(queue, time)


def test_an_index_that_is_missing_or_wrong_costs_time_only(tmp_path: Path) -> None:
    """Its check tells."""
    queue = QueueOnDisk(tmp_path / "data")
    queue.fill(3000)
    first, second, *_ = [Path(segment.index_path) for segment in log_of(queue).segments]
    first.unlink()
    data = bytearray(second.read_bytes())
    # The latest time before its second entry.
    data[24:32] = (1 << 60).to_bytes(8, "little")
    second.write_bytes(data)
    for offset in range(0, 3000, 61):
        assert search(queue, EPOCH_US + offset * STEP_US) == offset


def test_damage_is_named_or_skipped(tmp_path: Path) -> None:
    """A batch's header in the interval that is walked over: what is behind it is found where that is asked for."""
    queue = QueueOnDisk(tmp_path / "data")
    queue.fill(1500, per_batch=10)
    segment = queue.segments()[0]
    data = bytearray(segment.read_bytes())
    damaged_at = 4096
    for _ in range(2):
        damaged_at = data.index(b"FLXB", damaged_at + 1)
    data[damaged_at] ^= 1
    segment.write_bytes(data)
    assert search(queue, EPOCH_US + 5 * STEP_US) == 5
    with pytest.raises(Damage, match=rf"0\.seg, byte {damaged_at}: there is no batch"):
        search(queue, EPOCH_US + 30 * STEP_US)
    found = search(queue, EPOCH_US + 30 * STEP_US, skip=True)
    assert 30 < found < 100
    assert search(queue, EPOCH_US + 1000 * STEP_US) == 1000


def test_a_footer_that_is_damaged(tmp_path: Path) -> None:
    """The segment is walked over where damage is not fatal."""
    queue = QueueOnDisk(tmp_path / "data")
    queue.fill(1500)
    segment = queue.segments()[0]
    size = segment.stat().st_size
    with open(segment, "r+b") as file:
        file.seek(size - FOOTER_BYTES + 20)
        file.write(b"\xff\xff")
    with pytest.raises(
        Damage, match=rf"byte {size - FOOTER_BYTES}: the footer does not match its checksum"
    ):
        search(queue, EPOCH_US)
    for offset in (0, 33, 1400):
        assert search(queue, EPOCH_US + offset * STEP_US, skip=True) == offset


def test_files_that_are_gone(tmp_path: Path) -> None:
    """Said to whoever looks at the head again, or left out."""
    queue = QueueOnDisk(tmp_path / "data")
    queue.fill(1500)
    log = log_of(queue)
    Path(log.segments[0].path).unlink()
    with pytest.raises(FileNotFoundError):
        TimeSearch(LocalStorage(), log, skip_damage=False).first_not_before(EPOCH_US)
    found = TimeSearch(LocalStorage(), log, skip_damage=True).first_not_before(EPOCH_US)
    assert found == log.segments[1].base_offset


class Counting(LocalStorage):
    """Notes which files are opened, and how much is read of each."""

    def __init__(self) -> None:
        self.read_bytes: dict[str, int] = {}

    def open(self, path: str) -> OpenFile:
        """Open, and count from now on."""
        file = super().open(path)
        plain = file.read_into

        def counted(target: memoryview, position: int) -> int:
            read = plain(target, position)
            name = Path(path).name
            self.read_bytes[name] = self.read_bytes.get(name, 0) + read
            return read

        file.read_into = counted  # type: ignore[method-assign]
        return file


def test_little_is_read(tmp_path: Path) -> None:
    """Footers, one index, and from the segment no more than lies behind the interval that it tells."""
    queue = QueueOnDisk(tmp_path / "data")
    queue.fill(6000)
    storage = Counting()
    log = log_of(queue)
    target = log.segments[4]
    time = EPOCH_US + (target.next_offset - 1) * STEP_US
    found = TimeSearch(storage, log, skip_damage=False).first_not_before(time)
    assert found == target.next_offset - 1
    opened = {name for name in storage.read_bytes if name.endswith(".seg")}
    assert opened == {Path(segment.path).name for segment in log.segments[:5]}
    indexes = [name for name in storage.read_bytes if name.endswith(".idx")]
    assert indexes == [Path(target.index_path).name]
    assert storage.read_bytes[Path(target.path).name] < 3 * 4096
    assert all(storage.read_bytes[Path(each.path).name] == 64 for each in log.segments[:4])


def test_behind_fsspec_the_same_is_found(tmp_path: Path) -> None:
    """Footers are asked for at once there."""
    queue = QueueOnDisk(tmp_path / "data")
    queue.fill(3000)
    storage, _ = storage_of(f"local://{tmp_path}")
    for offset in (0, 700, 1600, 2999, 3000):
        time = EPOCH_US + offset * STEP_US
        found = TimeSearch(storage, log_of(queue, storage), skip_damage=False)
        assert found.first_not_before(time) == offset
