"""What the write-ahead log promises while nothing fails."""

import errno
import select
import time
from pathlib import Path

import pytest

from fluxmq.storage.errors import Corruption, DiskFull, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.syncer import Syncer, native_thread
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_cache import CachedEntry
from fluxmq.storage.wal_options import WalOptions
from fluxmq.storage.wal_records import BODY_BYTES_MAX, HEADER_BYTES
from tests.unit.storage.wal_harness import FILE_BYTES, Bench, bench, body, fill

pytestmark = pytest.mark.usefixtures("direct")


def test_nothing_is_durable_before_it_is_synced(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        log = made.log
        group = log.number("default")
        log.append_entry(group, 1, 1, 0, b"first")
        assert (log.buffered_bytes > 0, log.in_flight) == (True, False)
        assert log.flush() == 1
        assert (log.buffered_bytes, log.in_flight, log.completed()) == (0, True, 0)
        made.syncer.sync()
        assert log.completed() == 1
        assert not log.in_flight
        assert log.flush() == 0
        assert made.seconds == [0.001]


def test_what_comes_during_a_write_goes_with_the_next(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        log = made.log
        group = log.number("default")
        log.append_entry(group, 1, 1, 0, b"first")
        assert log.flush() == 1
        for index in (2, 3):
            log.append_entry(group, 1, index, 0, b"more")
        assert log.flush() == 0
        made.syncer.sync()
        assert log.flush() == 2
        made.syncer.sync()
        assert log.completed() == 2


def test_one_write_and_one_sync_serve_64_groups(tmp_path: Path) -> None:
    with bench(tmp_path, file_bytes=1 << 20) as made:
        log = made.log
        groups = [log.number(f"group-{number}") for number in range(64)]
        made.commit()
        writes = made.files.calls["pwritev"]
        for group in groups:
            log.append_entry(group, 3, 1, 0, b"%d" % group * 30)
            log.append_hard_state(group, 3, 7, 0)
        assert log.flush()
        assert made.syncer.waiting == 1
        made.syncer.sync()
        assert made.files.calls["pwritev"] == writes + 1
        assert log.completed() == 2
        made.again()
        assert len(made.contents()) == 64
        for number, name in enumerate(made.log.groups()):
            assert name == f"group-{number}"
            found = made.log.recovered(name)
            assert found.hard_state == (3, 7, 0)
            assert found.entries == [(3, 1, 0, b"%d" % groups[number] * 30)]


def test_everything_is_recovered(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        log = made.log
        one, two = log.number("one"), log.number("zwei ä")
        log.append_entry(one, 1, 1, 2, b"")
        log.append_entry(one, 5, 2, 1, b"x" * 8)
        log.append_entry(two, (1 << 64) - 1, 1, 255, b"y" * 9)
        log.append_hard_state(one, 5, 3, 1)
        log.append_hard_state(one, 6, 0, 2)
        assert made.commit() == 1
        made.again()
        log = made.log
        assert log.groups() == ["one", "zwei ä"]
        assert (log.number("one"), log.number("zwei ä")) == (one, two)
        assert log.recovered("one") == (
            (6, 0, 2),
            1,
            [(1, 1, 2, b""), (5, 2, 1, b"x" * 8)],
            0,
            0,
        )
        assert log.recovered("zwei ä") == (
            (0, 0, 0),
            1,
            [((1 << 64) - 1, 1, 255, b"y" * 9)],
            0,
            0,
        )
        assert log.number("third") == 3


def test_a_log_goes_on_where_it_ended(tmp_path: Path) -> None:
    made = Bench(tmp_path)
    group = made.log.number("default")
    for start in range(1, 60, 6):
        fill(made, group, start, start + 5)
        made.again()
        assert made.contents() == {
            "default": [(index, 1, body(index)) for index in range(1, start + 6)]
        }
    made.kill()


def test_closing_in_order_writes_what_is_buffered(tmp_path: Path) -> None:
    made = Bench(tmp_path)
    group = made.log.number("default")
    for start in (1, 11, 21):
        fill(made, group, start, start + 8)
        made.log.append_entry(group, 1, start + 9, 0, body(start + 9))
        made.close()
        made.start()
    assert made.contents() == {"default": [(index, 1, body(index)) for index in range(1, 31)]}
    made.close()


# Files


def test_a_group_and_its_hard_state_are_in_every_file(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        log = made.log
        quiet, busy = log.number("quiet"), log.number("busy")
        log.append_hard_state(quiet, 7, 3, 0)
        log.append_checkpoint(quiet, 41, 6)
        for index in range(1, 200):
            log.append_entry(busy, 1, index, 0, body(index))
            assert made.commit()
            log.release(busy, index - 2)
        made.commit()
        assert int(made.names[0]) > 3
        assert log.stats.files_recycled > 3
        made.again()
        found = made.log.recovered("quiet")
        assert (found.hard_state, found.first_index, found.entries) == ((7, 3, 0), 42, [])
        assert (found.checkpoint_index, found.checkpoint_term) == (41, 6)
        assert made.log.term(made.log.number("quiet"), 41) == 6
        assert [entry.index for entry in made.log.recovered("busy").entries] == [198, 199]


def test_a_write_goes_on_in_the_next_file_and_counts_when_all_is_synced(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        log = made.log
        group = log.number("default")
        fill(made, group, 1, 20)
        for index in range(21, 41):
            log.append_entry(group, 1, index, 0, body(index))
        number = log.flush()
        assert number == 21
        assert made.syncer.waiting == 1
        made.syncer.sync()
        assert (log.completed(), log.flush()) == (20, 0)
        assert made.syncer.waiting == 1
        made.syncer.sync()
        assert log.completed() == number
        assert len(made.names) == 3
        assert [len(log.recovered("default").entries), log.stats.files_begun] == [40, 2]


def test_a_file_is_ready_before_it_is_needed(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        assert made.names == ["1"]
        group = made.log.number("default")
        fill(made, group, 1, 1)
        assert made.names == ["1", "2"]
        assert all(path.stat().st_size == FILE_BYTES for path in (tmp_path / "wal").glob("*.wal"))


def test_a_file_is_recycled_when_the_mark_is_durable_and_no_group_needs_it(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        log = made.log
        one, two = log.number("one"), log.number("two")
        log.append_entry(two, 1, 1, 0, b"holds the first file")
        fill(made, one, 1, 60)
        assert made.names == ["1", "2", "3", "4"]
        log.release(one, 60)
        made.commit()
        assert made.names == ["1", "2", "3", "4"]
        assert log.lagging(1) == [two]
        assert log.lagging(3) == []
        log.release(two, 1)
        assert made.names[0] == "1"
        assert log.flush()
        assert made.names[0] == "1"
        made.syncer.sync()
        log.completed()
        assert made.names == ["3", "4", "5", "6"]
        assert log.lagging(0) == []


def test_spare_files_are_bounded(tmp_path: Path) -> None:
    with bench(tmp_path, spare_files=2) as made:
        log = made.log
        group = log.number("default")
        fill(made, group, 1, 200)
        assert len(made.names) > 8
        log.release(group, 200)
        made.commit()
        assert len(made.names) == 3
        assert log.stats.files_recycled == 1


def test_recycled_files_do_not_show_their_former_life(tmp_path: Path) -> None:
    made = Bench(tmp_path)
    group = made.log.number("default")
    for index in range(1, 300):
        made.log.append_entry(group, 1, index, 0, body(index))
        made.commit()
        made.log.release(group, index - 3)
        if index % 7 == 0:
            made.again()
            indexes = [entry.index for entry in made.log.recovered("default").entries]
            assert indexes == list(range(max(1, index - 3), index + 1))
    made.kill()


def test_writing_goes_through_a_thread_and_the_real_syncer(tmp_path: Path) -> None:
    for number, native in enumerate([True, False]):
        syncer = Syncer(native=native and native_thread(0.0) is not None)
        folder = str(tmp_path / str(number))
        options = WalOptions(file_bytes=16384, spare_files=1)
        log = WriteAheadLog.open(Files(), folder, syncer, options)
        group = log.number("default")
        end = time.monotonic() + 30
        for index in range(1, 401):
            log.append_entry(group, 1, index, 0, body(index, 200))
            written = 0
            while log.completed() < written or not written:
                assert time.monotonic() < end
                written = written or log.flush()
                select.select([syncer], [], [], 0.1)
            log.release(group, index - 10)
        log.close()
        syncer.close()
        syncer = Syncer(native=native and native_thread(0.0) is not None)
        log = WriteAheadLog.open(Files(), folder, syncer, options)
        found = log.recovered("default")
        assert [(entry.index, entry.body) for entry in found.entries] == [
            (index, body(index, 200)) for index in range(391, 401)
        ]
        log.close()
        syncer.close()


# Limits


def test_an_entry_that_is_too_long_is_refused(tmp_path: Path) -> None:
    assert WalOptions().file_bytes // 2 == BODY_BYTES_MAX
    with bench(tmp_path) as made:
        log = made.log
        group = log.number("default")
        log.append_entry(group, 1, 1, 0, bytes(FILE_BYTES // 2))
        with pytest.raises(StorageError, match=f"an entry of {FILE_BYTES // 2 + 1} bytes"):
            log.append_entry(group, 1, 2, 0, bytes(FILE_BYTES // 2 + 1))
        log.append_entry(group, 1, 2, 0, b"goes on")
        made.commit()
        made.again()
        assert [len(entry.body) for entry in made.log.recovered("default").entries] == [2048, 7]


def test_what_waits_is_bounded(tmp_path: Path) -> None:
    with bench(tmp_path, buffered_bytes_max=1000) as made:
        log = made.log
        group = log.number("default")
        for index in range(1, 7):
            log.append_entry(group, 1, index, 0, body(index))
        with pytest.raises(DiskFull, match="wait to be written"):
            log.append_entry(group, 1, 7, 0, body(7))
        last = log.last_index(group)
        assert last == 6
        assert log.buffered_bytes <= 1000
        made.commit()
        fill(made, group, last + 1, last + 1)
        assert len(made.contents()["default"]) == last + 1


def test_room_is_surely_there(tmp_path: Path) -> None:
    for size in (0, 8, 100, 1000, FILE_BYTES // 2):
        with bench(tmp_path / str(size), spare_files=3) as made:
            log = made.log
            group = log.number("default")
            fill(made, group, 1, 100)
            log.release(group, 100)
            made.commit()
            made.files.fail_always("create", errno.ENOSPC)
            index = 100
            while log.room >= HEADER_BYTES + size + 8:
                index += 1
                log.append_entry(group, 1, index, 0, bytes(size))
            assert index > 100
            assert made.commit()
            assert made.log.last_index(group) == index
            made.again()
            assert made.log.last_index(group) == index


# Reading


def test_entries_are_read_from_memory_and_from_files(tmp_path: Path) -> None:
    with bench(tmp_path, cache_bytes=1000, file_bytes=64 << 10) as made:
        log = made.log
        group = log.number("default")
        sizes = [0, 1, 4055, 4056, 4057, 5000, 20000, *[100] * 30]
        for index, size in enumerate(sizes, 1):
            log.append_entry(group, index, index, 3, body(index, size))
            assert log.entry(group, index) == CachedEntry(index, 3, body(index, size))
        made.commit()
        reads = made.files.calls["pread"]
        for index, size in enumerate(sizes, 1):
            assert log.entry(group, index) == CachedEntry(index, 3, body(index, size))
        from_files = made.files.calls["pread"] - reads
        assert len(sizes) - 5 <= from_files <= len(sizes) + 5
        assert log.entry(group, len(sizes)).term == log.term(group, len(sizes)) == len(sizes)
        assert made.files.calls["pread"] == reads + from_files
        log.release(group, 3)
        assert log.first_index(group) == 4
        for index in (3, 0, len(sizes) + 1):
            with pytest.raises(LookupError):
                log.entry(group, index)


def test_entries_not_written_yet_stay_in_memory(tmp_path: Path) -> None:
    with bench(tmp_path, cache_bytes=0) as made:
        log = made.log
        group = log.number("default")
        log.append_entry(group, 1, 1, 0, b"one")
        assert log.flush()
        for index in range(2, 60):
            log.append_entry(group, 1, index, 0, body(index))
        made.syncer.sync()
        assert log.flush()
        assert log.entry(group, 59).body == body(59)
        made.syncer.sync()
        log.completed()
        assert [log.entry(group, index).body for index in range(2, 60)] == [
            body(index) for index in range(2, 60)
        ]
        made.commit()


def test_a_damaged_entry_is_never_returned(tmp_path: Path) -> None:
    with bench(tmp_path, cache_bytes=0) as made:
        log = made.log
        group = log.number("default")
        fill(made, group, 1, 3)
        path = tmp_path / "wal" / f"{1:020}.wal"
        good = path.read_bytes()
        position = good.index(body(2))
        for at in (position, position + 99, position - 1, position - HEADER_BYTES, position - 32):
            bad = bytearray(good)
            bad[at] ^= 0x10
            path.write_bytes(bad)
            with pytest.raises(Corruption, match="entry 2 of group 1 is damaged") as caught:
                log.entry(group, 2)
            assert caught.value.path == str(path)
            assert caught.value.position == position - HEADER_BYTES
        # Another entry of the same log at its place is as wrong as noise.
        at = position - HEADER_BYTES
        other = good.index(body(3)) - HEADER_BYTES
        path.write_bytes(good[:at] + good[other : other + 144] + good[at + 144 :])
        with pytest.raises(Corruption):
            log.entry(group, 2)


def test_figures(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        group = made.log.number("default")
        fill(made, group, 1, 50)
        stats = made.log.stats
        assert (stats.writes, stats.syncs) == (50, 50)
        assert stats.records == 50 + 1 + 1 + (stats.files_begun - 1) * 4
        assert stats.bytes > 50 * 140
        assert stats.last_sync_seconds == 0.001
        assert len(made.seconds) == 50
