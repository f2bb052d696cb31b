"""Append, read, roll, trim: the log of one queue."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.model.segments import (
    FOOTER_BYTES,
    PAGE_BYTES,
    TIME_NONE,
    Footer,
    HeaderPage,
    segment_name,
)
from fluxmq.storage.batch_cache import BatchCache
from fluxmq.storage.files import Buffer, Files
from fluxmq.storage.head import read_head
from fluxmq.storage.log_reader import OpenSegments
from fluxmq.storage.open_files import OpenFiles
from fluxmq.storage.queue_log import BatchTooLarge, OffsetOutOfRange, QueueLog, SegmentOptions
from tests.unit.storage.logs import (
    SECOND,
    SMALL,
    assert_holds,
    batch,
    batch_of,
    batches,
    checkpoint,
    contents,
    fill,
    opened,
    payload,
)

# --- append and read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [True, False])
def test_what_was_appended_is_read(tmp_path: Path, cached: bool) -> None:
    log = opened(tmp_path / "orders", cached=cached)
    fill(log, batches(200))
    assert log.segments > 3
    assert_holds(log, 0, 200)
    for offset in (199, 0, 100, 57):
        assert log.read(offset).payload(0) == payload(offset)
    log.close()


def test_it_is_read_before_it_is_written(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    for each in batches(100):
        log.append(each)
    assert log.pending_bytes == log.bytes
    assert_holds(log, 0, 100)
    log.flush()
    assert log.pending_bytes == 0
    assert_holds(log, 0, 100)


@pytest.mark.parametrize("cached", [True, False])
def test_a_batch_of_many_messages_is_found_by_each_of_its_offsets(
    tmp_path: Path, cached: bool
) -> None:
    log = opened(tmp_path / "orders", cached=cached)
    counts = [3, 1, 40, 2] * 10
    for count in counts:
        payloads = [payload(log.next_offset + index, 50) for index in range(count)]
        log.append(batch_of(log.next_offset, payloads))
        log.flush()
    assert log.next_offset == sum(counts)
    for offset in range(log.next_offset):
        found = log.read(offset)
        assert found.payload(offset - found.base_offset) == payload(offset, 50)
        assert log.offset_at(offset * SECOND) == offset


def test_offsets_that_are_not_there_are_refused(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    with pytest.raises(OffsetOutOfRange):
        log.read(0)
    fill(log, batches(3))
    with pytest.raises(OffsetOutOfRange, match="offsets 0 up to 3, not 3") as refused:
        log.read(3)
    assert (refused.value.start, refused.value.next_offset) == (0, 3)
    log.trim(2)
    with pytest.raises(OffsetOutOfRange):
        log.read(1)
    assert log.read(2).payload(0) == payload(2)


def test_a_batch_too_large_for_a_segment_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    fill(log, batches(2))
    room = SMALL.batch_bytes_max
    with pytest.raises(BatchTooLarge, match=r"storage\.segment_bytes"):
        log.append(batch(2, bytes(room)))
    assert log.next_offset == 2
    overhead = batch(2, b"").length
    log.append(batch(2, bytes(room - overhead - 8)))
    log.flush()
    assert log.segments == 2
    assert log.bytes <= 2 * SMALL.segment_bytes
    assert log.read(2).payload(0) == bytes(room - overhead - 8)


def test_gaps_are_our_own_fault(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    with pytest.raises(AssertionError):
        log.append(batch(1, b"x"))


@pytest.mark.parametrize(
    "options", [{"segment_bytes": 100}, {"segment_age": -1}, {"index_bytes": 0}]
)
def test_options_that_cannot_be(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"segment|index"):
        SegmentOptions(**options)


# --- segments --------------------------------------------------------------------------------------------------------


def test_a_segment_says_what_it_is_and_is_sealed(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    fill(log, batches(60))
    state = log.state()
    first = state.segments[0]
    data = (tmp_path / "orders" / segment_name(0)).read_bytes()
    assert HeaderPage.decode(data) == HeaderPage("orders", 0, 0)
    assert len(data) <= SMALL.segment_bytes
    assert Footer.decode(data[-FOOTER_BYTES:]) == Footer(
        first.next_offset, first.next_offset - 1, 0, first.last_time, first.hash, first.length
    )
    assert first.last_time == (first.next_offset - 1) * SECOND
    assert state.bytes == log.bytes == sum(map(len, contents_of_segments(tmp_path / "orders")))


def contents_of_segments(directory: Path) -> list[bytes]:
    return [data for name, data in contents(directory).items() if name.endswith(".seg")]


def test_segments_roll_by_the_times_of_batches(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders", options=SegmentOptions(SMALL.segment_bytes, 10 * SECOND))
    fill(log, [batch(offset, b"x", time=offset * 3 * SECOND) for offset in range(9)])
    assert [segment.base_offset for segment in log.state().segments] == [0, 4, 8]


def test_an_age_of_zero_is_none(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders", options=SegmentOptions(SMALL.segment_bytes, 0))
    fill(log, [batch(offset, b"x", time=offset * 10**12) for offset in range(9)])
    assert log.segments == 1


def test_replicas_are_equal_byte_for_byte(tmp_path: Path) -> None:
    """However the work is cut into flushes, checkpoints and restarts."""
    made = batches(150)
    one, two = opened(tmp_path / "one"), opened(tmp_path / "two")
    fill(one, made, per_flush=1)
    for number, each in enumerate(made, 1):
        two.append(each)
        if number % 40 == 0:
            state = checkpoint(two)
            two.close()
            two = opened(tmp_path / "two", state)
    two.flush()
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert one.state() == two.state()


# --- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flushed", [True, False])
def test_offsets_by_time(tmp_path: Path, flushed: bool) -> None:
    log = opened(tmp_path / "orders")
    assert log.offset_at(0) == 0
    for each in batches(150):
        log.append(each)
        if flushed:
            log.flush()
    for offset in range(150):
        assert log.offset_at(offset * SECOND) == offset
        assert log.offset_at(offset * SECOND + 1) == offset + 1
    assert log.offset_at(TIME_NONE) == 0
    assert log.offset_at(10**18) == 150
    log.trim(70)
    assert log.offset_at(5 * SECOND) == 70


def test_the_first_message_not_before_a_time_though_the_clock_went_back(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    times = [*range(60), *range(20, 100)]
    fill(log, [batch(n, payload(n), time=time * SECOND) for n, time in enumerate(times)])
    for time in range(101):
        expected = next((n for n, each in enumerate(times) if each >= time), len(times))
        assert log.offset_at(time * SECOND) == expected


# --- trim ------------------------------------------------------------------------------------------------------------


def test_trimming_removes_whole_segments_and_accounts_for_them(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    fill(log, batches(200))
    before, bases = log.bytes, [segment.base_offset for segment in log.state().segments]
    log.trim(bases[2] + 1)
    assert [segment.base_offset for segment in log.state().segments] == bases[2:]
    assert log.bytes + log.trimmed_bytes == before
    names = contents(tmp_path / "orders")
    assert segment_name(bases[1]) not in names
    assert segment_name(bases[2]) in names
    assert_holds(log, bases[2] + 1, 200)
    log.trim(3)
    assert log.start_offset == bases[2] + 1


def test_the_head_moves_before_files_go(tmp_path: Path) -> None:
    directory = tmp_path / "orders"
    seen: list[int] = []

    class Watching(Files):
        def unlink(self, path: str) -> None:
            head = read_head(self, str(directory))
            assert head is not None
            seen.append(head.start)
            super().unlink(path)

    log = opened(directory, files=Watching())
    fill(log, batches(200))
    log.trim(120)
    assert seen
    assert set(seen) == {120}


def test_a_consumed_log_keeps_little(tmp_path: Path) -> None:
    """Everything consumed: even the segment that grows goes once it is worth it, and the log goes on."""
    log = opened(tmp_path / "orders")
    fill(log, batches(5))
    log.trim(5)
    assert log.segments == 1
    fill(log, batches(20, first=5))
    log.trim(25)
    assert (log.segments, log.bytes) == (0, 0)
    assert not [name for name in contents(tmp_path / "orders") if name.endswith(".seg")]
    fill(log, batches(10, first=25))
    assert_holds(log, 25, 35)
    state = checkpoint(log)
    log.close()
    assert_holds(opened(tmp_path / "orders", state), 25, 35)


def test_a_purge_leaves_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    fill(log, batches(3))
    log.trim(2, purge=True)
    assert log.segments == 1
    log.trim(3, purge=True)
    assert contents(tmp_path / "orders") == {}
    fill(log, batches(2, first=3))
    assert_holds(log, 3, 5)


def test_what_is_trimmed_before_it_was_written_is_never_written(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    for each in batches(100):
        log.append(each)
    log.trim(100)
    log.flush()
    assert contents(tmp_path / "orders") == {}
    head = read_head(Files(), log.directory)
    assert head is not None
    assert (head.start, head.committed) == (100, 100)


# --- the head --------------------------------------------------------------------------------------------------------


def test_the_head_follows_every_flush(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    sequence = 0
    for each in batches(80):
        log.append(each)
        log.flush()
        head = read_head(Files(), log.directory)
        last = log.state().segments[-1]
        assert head is not None
        assert head.sequence > sequence
        assert head[1:] == (0, each.base_offset + 1, last.base_offset, last.length, last.last_time)
        sequence = head.sequence
    log.close()


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_logs_share_bounded_caches(tmp_path: Path) -> None:
    files = Files()
    cache = BatchCache(recent_bytes=20_000, window_bytes=600_000)
    segments = OpenSegments(OpenFiles(files), open_max=3)
    logs = [
        QueueLog.open(files, str(tmp_path / name), name, SMALL, cache=cache, segments=segments)
        for name in "abcd"
    ]
    for log in logs:
        fill(log, batches(200))
    for start in range(0, 200, 50):
        for log in logs:
            for offset in range(start, start + 50):
                assert log.read(offset).payload(0) == payload(offset)
                assert cache.window_bytes <= 600_000
                assert len(segments) <= 3
    assert cache.recent_bytes <= 20_000
    for log in logs:
        log.close()
    assert (cache.recent_bytes, cache.window_bytes, len(segments)) == (0, 0, 0)


def test_reading_a_backlog_takes_one_call_for_many_batches(tmp_path: Path) -> None:
    calls = 0

    class Counting(Files):
        def pread(self, fd: int, size: int, position: int) -> bytes:
            nonlocal calls
            calls += 1
            return super().pread(fd, size, position)

    log = QueueLog.open(
        Counting(), str(tmp_path / "orders"), "orders", SegmentOptions(), cache=BatchCache(0)
    )
    fill(log, batches(2000, size=100))
    calls = 0
    for offset in range(2000):
        assert log.read(offset).payload(0) == payload(offset, 100)
    assert calls < 10
    assert log.bytes > PAGE_BYTES


def test_what_is_copied_from_elsewhere_passes_the_page_cache(tmp_path: Path) -> None:
    passed: list[bool] = []

    class Passing(Files):
        def pwritev(
            self, fd: int, buffers: Sequence[Buffer], position: int, *, passing: bool = False
        ) -> int:
            if self.path_of(fd).endswith(".seg"):
                passed.append(passing)
            return super().pwritev(fd, buffers, position, passing=passing)

    log = QueueLog.open(Passing(), str(tmp_path / "orders"), "orders", SegmentOptions())
    log.arriving = True
    fill(log, batches(3))
    assert passed == [True]
    log.arriving = False
    fill(log, batches(3, first=3))
    assert passed == [True, False]
    assert log.read(0).payload(0) == payload(0)


def test_reading_a_backlog_takes_little_memory(tmp_path: Path) -> None:
    """However long it is: what is kept is what the caches may hold, and the stretch being read."""
    log = QueueLog.open(
        Files(),
        str(tmp_path / "orders"),
        "orders",
        SegmentOptions(segment_bytes=1 << 20),
        cache=BatchCache(recent_bytes=100_000, window_bytes=600_000),
    )
    for offset in range(1000):
        log.append(batch(offset, payload(offset, 10_000)))
        if offset % 10 == 0:
            log.flush()
    log.flush()
    tracemalloc.start()
    try:
        for offset in range(1000):
            assert log.read(offset).base_offset == offset
        for offset in range(0, 1000, 7):
            assert log.offset_at(offset * SECOND) == offset
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert log.bytes > 10_000_000
    assert peak < 2_500_000


def test_opening_reads_no_batches(tmp_path: Path) -> None:
    """A log is opened by what its state says; nothing is read but pages and footers."""
    log = opened(tmp_path / "orders")
    fill(log, batches(400), per_flush=50)
    state = checkpoint(log)
    log.close()
    read = 0

    class Counting(Files):
        def pread(self, fd: int, size: int, position: int) -> bytes:
            nonlocal read
            read += size
            return super().pread(fd, size, position)

    assert len(state.segments) > 8
    assert len(msgpack.packb(state.pack())) < 80 * len(state.segments)
    again = opened(tmp_path / "orders", state, files=Counting())
    assert read <= len(state.segments) * (PAGE_BYTES + FOOTER_BYTES) + 200
    assert again.next_offset == 400
