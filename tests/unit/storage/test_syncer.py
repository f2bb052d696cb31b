"""Answers come in order with the system's error, compiled and uncompiled alike."""

import errno
import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxmq.source_only import PURE
from fluxmq.storage.errors import WriteFailed
from fluxmq.storage.syncer import REQUESTS_MAX, Syncer, delay_from, native_thread
from fluxmq.storage.wal_options import MarkWrite

SECONDS_MAX = 10.0
FORMS = [pytest.param(True, id="native"), pytest.param(False, id="python")]


@pytest.fixture(params=FORMS)
def syncer(request: pytest.FixtureRequest) -> Iterator[Syncer]:
    if request.param and native_thread(0.0) is None:
        pytest.skip("not compiled")
    made = Syncer(native=request.param)
    assert made.compiled == request.param
    yield made
    made.close()


def answers(syncer: Syncer, count: int) -> list[tuple[int, int, float]]:
    """The next `count` answers."""
    found: list[tuple[int, int, float]] = []
    end = time.monotonic() + SECONDS_MAX
    while len(found) < count:
        assert time.monotonic() < end, found
        select.select([syncer], [], [], 1.0)
        found += syncer.completed()
    return found


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def test_what_was_asked_for_is_answered_in_order(syncer: Syncer, file: int) -> None:
    numbers = []
    for number in range(1, 101):
        os.pwrite(file, b"x" * 100, number * 100)
        syncer.submit(file, number)
        numbers += answers(syncer, 1)
    assert [number for number, _, _ in numbers] == list(range(1, 101))
    assert all(error == 0 and 0.0 <= seconds < SECONDS_MAX for _, error, seconds in numbers)


def test_nothing_is_readable_while_nothing_is_done(syncer: Syncer, file: int) -> None:
    assert select.select([syncer], [], [], 0)[0] == []
    assert syncer.completed() == []
    syncer.submit(file, 7)
    assert answers(syncer, 1)[0][:2] == (7, 0)
    assert select.select([syncer], [], [], 0)[0] == []


def test_the_systems_error_is_passed_on(syncer: Syncer, file: int) -> None:
    gone = os.dup(file)
    os.close(gone)
    syncer.submit(gone, 1)
    syncer.submit(file, 2)
    assert [answer[:2] for answer in answers(syncer, 2)] == [(1, errno.EBADF), (2, 0)]


def test_the_mark_is_written_when_the_sync_has_worked(syncer: Syncer, file: int) -> None:
    syncer.submit(file, 1, MarkWrite(file, 512, b"so far"))
    assert answers(syncer, 1)[0][:2] == (1, 0)
    assert os.pread(file, 100, 512) == b"so far"


def test_no_mark_is_written_when_the_sync_has_failed(syncer: Syncer, file: int) -> None:
    gone = os.dup(file)
    os.close(gone)
    syncer.submit(gone, 1, MarkWrite(file, 0, b"so far"))
    assert answers(syncer, 1)[0][:2] == (1, errno.EBADF)
    assert os.pread(file, 100, 0) == b""


def test_a_mark_that_cannot_be_written_is_an_error_of_its_own(
    syncer: Syncer, file: int, tmp_path: Path
) -> None:
    (tmp_path / "mark").touch()
    readable = os.open(tmp_path / "mark", os.O_RDONLY)
    syncer.submit(file, 1, MarkWrite(readable, 0, b"so far"))
    assert answers(syncer, 1)[0][:2] == (1, -errno.EBADF)
    os.close(readable)


def test_a_full_disk_leaves_the_older_mark(syncer: Syncer, file: int) -> None:
    full = os.open("/dev/full", os.O_RDWR)
    syncer.submit(file, 1, MarkWrite(full, 0, b"so far"))
    assert answers(syncer, 1)[0][:2] == (1, 0)
    os.close(full)


def threads() -> dict[int, set[int]]:
    """The threads of this process and the processors each may run on."""
    return {int(task): os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")}


@pytest.mark.parametrize("native", FORMS)
def test_the_thread_runs_on_the_processors_it_is_given(native: bool, file: int) -> None:
    if native and native_thread(0.0) is None:
        pytest.skip("not compiled")
    usable = os.sched_getaffinity(0)
    one = {min(usable)}
    before = threads()
    os.sched_setaffinity(0, one)
    try:
        syncer = Syncer(native=native, cores=usable)
        syncer.submit(file, 1)
        answers(syncer, 1)
        made = {task: cores for task, cores in threads().items() if task not in before}
        assert list(made.values()) == [usable]
        assert os.sched_getaffinity(0) == one
        syncer.close()
    finally:
        os.sched_setaffinity(0, usable)


def test_processors_that_are_not_there_change_nothing(syncer: Syncer, file: int) -> None:
    other = Syncer(native=syncer.compiled, cores=[1023])
    other.submit(file, 1)
    assert answers(other, 1)[0][:2] == (1, 0)
    other.close()


def test_a_wake_up_is_no_answer(syncer: Syncer) -> None:
    syncer.wake()
    assert select.select([syncer], [], [], SECONDS_MAX)[0] == [syncer]
    assert syncer.completed() == []
    assert select.select([syncer], [], [], 0)[0] == []


def test_closing_finishes_what_was_asked_for_and_ends_the_thread(file: int) -> None:
    for native in (True, False):
        before = threading.active_count()
        syncer = Syncer(native=native)
        syncer.submit(file, 1)
        syncer.close()
        syncer.close()
        assert threading.active_count() == before
        with pytest.raises(ValueError, match="stopped"):
            syncer.fileno()
        with pytest.raises(ValueError, match="stopped"):
            syncer.submit(file, 2)
        with pytest.raises(ValueError, match="stopped"):
            syncer.completed()


@pytest.mark.parametrize("native", FORMS)
def test_syncs_that_wait_for_one_file_are_one_call(native: bool, file: int, tmp_path: Path) -> None:
    if native and native_thread(0.0) is None:
        pytest.skip("not compiled")
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    syncer = Syncer(0.05, native=native)
    for number, fd in enumerate([file, other, other, other, file]):
        syncer.submit(fd, number)
    found = answers(syncer, 5)
    assert [number for number, _, _ in found] == [0, 1, 2, 3, 4]
    # The first may have been taken alone; the three for the other file share one call, to the digit.
    assert found[1][2] == found[2][2] == found[3][2]
    assert found[0][2] != found[1][2] != found[4][2]
    syncer.close()
    os.close(other)


@pytest.mark.parametrize("native", FORMS)
def test_requests_under_way_are_bounded(native: bool, file: int) -> None:
    if native and native_thread(0.0) is None:
        pytest.skip("not compiled")
    syncer = Syncer(0.05, native=native)
    for number in range(REQUESTS_MAX):
        syncer.submit(file, number)
    with pytest.raises(WriteFailed, match="under way"):
        syncer.submit(file, REQUESTS_MAX)
    assert [number for number, _, _ in answers(syncer, REQUESTS_MAX)] == list(range(REQUESTS_MAX))
    syncer.submit(file, 99)
    assert answers(syncer, 1)[0][0] == 99
    syncer.close()


@pytest.mark.parametrize("native", FORMS)
def test_a_delay_is_added_to_each_sync(native: bool, file: int) -> None:
    syncer = Syncer(0.02, native=native)
    syncer.submit(file, 1)
    assert answers(syncer, 1)[0][2] >= 0.02
    syncer.close()


def test_the_delay_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, file: int) -> None:
    assert delay_from({}) == 0.0
    assert delay_from({"FLUXMQ_SYNC_DELAY": "0.005"}) == 0.005
    assert delay_from({"FLUXMQ_SYNC_DELAY": "-1"}) == 0.0
    monkeypatch.setenv("FLUXMQ_SYNC_DELAY", "0.01")
    syncer = Syncer()
    syncer.submit(file, 1)
    assert answers(syncer, 1)[0][2] >= 0.01
    syncer.close()


def test_compiled_code_is_used_unless_the_uncompiled_is_asked_for() -> None:
    for native in (True, False):
        syncer = Syncer(native=native)
        assert syncer.compiled == (native and native_thread(0.0) is not None)
        syncer.close()
    if PURE:
        assert native_thread(0.0) is None


def test_the_event_loops_thread_goes_on_during_a_sync(syncer: Syncer, file: int) -> None:
    slow = Syncer(0.2, native=syncer.compiled)
    begin = time.monotonic()
    slow.submit(file, 1)
    turns = 0
    while not slow.completed():
        turns += 1
    assert time.monotonic() - begin >= 0.2
    assert turns > 100
    slow.close()
