"""What a queue's log has of its own: the size of its segments, and how much of it is kept in memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.model.segments import SEGMENT_BYTES_MIN
from fluxmq.storage.batch_cache import BatchCache
from fluxmq.storage.files import Files
from fluxmq.storage.log_state import LogState
from fluxmq.storage.queue_log import BatchTooLarge, QueueLog
from tests.unit.storage.logs import (
    SMALL,
    assert_holds,
    batch,
    batches,
    checkpoint,
    contents,
    fill,
    opened,
    payload,
)

OWN = 12 << 10


def sizes(directory: Path) -> list[int]:
    """Bytes of the segments' files, in order."""
    return [len(data) for name, data in contents(directory).items() if name.endswith(".seg")]


def kept(state: LogState) -> LogState:
    """The state as a snapshot brings it back."""
    return LogState.unpack(msgpack.unpackb(msgpack.packb(state.pack())))


# --- segments --------------------------------------------------------------------------------------------------------


def test_segments_are_full_at_the_queues_own_size(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    log.bound(OWN, 0, 0)
    fill(log, batches(60))
    found = sizes(tmp_path / "orders")
    assert len(found) > 5
    assert all(OWN - 1000 < size <= OWN for size in found[:-1])
    assert_holds(log, 0, 60)


def test_a_queues_own_size_may_be_larger_than_the_options(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    log.bound(2 * SMALL.segment_bytes, 0, 0)
    fill(log, batches(120))
    first = sizes(tmp_path / "orders")[0]
    assert SMALL.segment_bytes < first <= 2 * SMALL.segment_bytes


def test_no_size_is_below_what_the_format_allows(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    log.bound(1, 0, 0)
    fill(log, batches(30))
    found = sizes(tmp_path / "orders")
    assert all(SEGMENT_BYTES_MIN - 1000 < size <= SEGMENT_BYTES_MIN for size in found[:-1])
    assert_holds(log, 0, 30)


def test_another_size_is_for_segments_that_begin_later(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    log.bound(OWN, 0, 0)
    fill(log, batches(2))
    log.bound(2 * OWN, 0, 0)
    fill(log, batches(50, first=2))
    log.bound(0, 0, 0)
    fill(log, batches(100, first=52))
    found = sizes(tmp_path / "orders")
    assert OWN - 1000 < found[0] <= OWN
    assert 2 * OWN - 1000 < found[1] <= 2 * OWN
    assert SMALL.segment_bytes - 1000 < found[-2] <= SMALL.segment_bytes


def test_a_batch_larger_than_the_queues_own_size_has_a_segment_for_itself(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    log.bound(OWN, 0, 0)
    large = batch(1, payload(1, 2 * OWN))
    fill(log, [*batches(1), large, *batches(1, first=2)])
    assert [segment.base_offset for segment in log.state().segments] == [0, 1, 2]
    assert log.read(1).payload(0) == payload(1, 2 * OWN)
    with pytest.raises(BatchTooLarge, match="segment_bytes"):
        log.append(batch(3, bytes(SMALL.segment_bytes)))


def test_replicas_are_equal_though_one_was_restarted_after_a_change(tmp_path: Path) -> None:
    """The size that a segment began with is in the checkpoint; the log's own is set again from the configuration."""
    made = batches(150)
    changes = {0: OWN, 20: 2 * OWN, 25: 10 << 10, 100: 0}
    one, two = opened(tmp_path / "one"), opened(tmp_path / "two")
    now = 0
    for number, each in enumerate(made):
        if number in changes:
            now = changes[number]
            one.bound(now, 0, 0)
            two.bound(now, 0, 0)
        one.append(each)
        one.flush()
        two.append(each)
        if number % 27 == 0:
            state = kept(checkpoint(two))
            two.close()
            two = opened(tmp_path / "two", state)
            two.bound(now, 0, 0)
    two.flush()
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert one.state() == two.state()


def test_replay_behind_a_checkpoint_writes_the_same_segments(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    log.bound(OWN, 0, 0)
    fill(log, batches(5))
    state = kept(checkpoint(log))
    log.bound(2 * OWN, 0, 0)
    fill(log, batches(60, first=5))
    before = contents(tmp_path / "orders")
    log.close()
    again = opened(tmp_path / "orders", state, recovering=True)
    again.bound(OWN, 0, 0)
    again.bound(2 * OWN, 0, 0)
    fill(again, batches(60, first=5))
    again.cut()
    assert contents(tmp_path / "orders") == before


def test_a_state_without_a_size_is_as_it_was_before_there_was_one(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    fill(log, batches(60))
    state = checkpoint(log)
    _, _, segments = state.pack()
    assert isinstance(segments, list)
    assert {len(each) for each in segments} == {10}
    assert kept(state) == state
    log.bound(OWN, 0, 0)
    fill(log, batches(60, first=60))
    state = checkpoint(log)
    assert state.segments[-1].bytes_max == OWN
    assert {segment.bytes_max for segment in state.segments[:-1]} == {0}
    assert kept(state) == state


def test_a_consumed_segment_goes_at_a_quarter_of_its_own_size(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    log.bound(8 * SMALL.segment_bytes, 0, 0)
    fill(log, batches(20))
    log.trim(20)
    assert log.segments == 1
    fill(log, batches(80, first=20))
    log.trim(100)
    assert log.segments == 0


# --- memory ----------------------------------------------------------------------------------------------------------


class Reads(Files):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.reads += 1
        return super().pread(fd, size, position)


def in_memory(log: QueueLog, files: Reads, offsets: Iterable[int]) -> list[int]:
    """Which of these can be read without a file."""
    found = []
    for offset in offsets:
        before = files.reads
        log.read(offset)
        log._reader.forget_windows()
        if files.reads == before:
            found.append(offset)
    return found


@pytest.mark.parametrize(
    ("messages", "size", "remain"), [(5, 0, 5), (0, 4 * 700, 4), (3, 4 * 700, 3), (0, 1, 0)]
)
def test_a_queue_keeps_no_more_in_memory_than_it_may(
    tmp_path: Path, messages: int, size: int, remain: int
) -> None:
    files = Reads()
    log = opened(tmp_path / "orders", files=files, cached=True)
    log.bound(0, messages, size)
    fill(log, batches(20), per_flush=1)
    assert in_memory(log, files, range(20)) == list(range(20 - remain, 20))
    assert_holds(log, 0, 20)


def test_a_limit_of_memory_may_come_and_go(tmp_path: Path) -> None:
    files = Reads()
    log = opened(tmp_path / "orders", files=files, cached=True)
    fill(log, batches(20))
    assert in_memory(log, files, range(20)) == list(range(20))
    log.bound(0, 2, 0)
    assert in_memory(log, files, range(20)) == [18, 19]
    log.bound(0, 0, 0)
    fill(log, batches(10, first=20))
    assert in_memory(log, files, range(30)) == list(range(18, 30))


def test_a_queue_with_a_limit_takes_nothing_from_others(tmp_path: Path) -> None:
    cache = BatchCache()
    one, two = (
        QueueLog.open(Files(), str(tmp_path / name), name, SMALL, cache=cache) for name in "ab"
    )
    one.bound(0, 1, 0)
    fill(two, batches(10))
    own = cache.recent_bytes
    fill(one, batches(10))
    assert cache.recent_bytes - own == own // 10
    one.trim(10)
    assert cache.recent_bytes == own
    for offset in range(10):
        assert two.read(offset).payload(0) == payload(offset)


@pytest.mark.parametrize(("messages", "size", "stretches"), [(0, 0, 4), (0, 1, 1), (9, 0, 1)])
def test_stretches_read_from_files_count_as_well(
    tmp_path: Path, messages: int, size: int, stretches: int
) -> None:
    cache = BatchCache(recent_bytes=0)
    log = QueueLog.open(Files(), str(tmp_path / "orders"), "orders", SMALL, cache=cache)
    fill(log, batches(300))
    log.bound(0, messages, size)
    for segment in log.state().segments:
        log.read(segment.base_offset)
    assert len(log._reader._windows) == stretches
    assert_holds(log, 0, 300)
