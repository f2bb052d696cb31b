"""The log that a shard's groups share, and the one whose writes are answered before they are durable."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from fluxmq.replication.shared_log import AWAIT_SECONDS, BufferedSyncer, SharedLog
from fluxmq.storage.files import Files
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import WalOptions
from tests.unit.engine.support import StepSyncer


class Member:
    """A group with entries in the log."""

    told = 0

    def persisted(self, index: int, term: int, number: int) -> None:
        """Entries are durable."""
        self.told = index

    def log_failed(self, why: str) -> None:
        """Not here."""
        raise AssertionError(why)


@pytest.mark.parametrize("polling", [True, False])
def test_the_end_of_a_sync_is_looked_for_only_beside_another_core_and_for_a_while(
    tmp_path: Path, polling: bool
) -> None:
    syncer = StepSyncer()
    syncer.held = True
    options = WalOptions(file_bytes=1 << 20, background=False)
    wal = WriteAheadLog.open(Files(), str(tmp_path), syncer, options)
    log = SharedLog(wal, lambda: None, polling=polling, clock=lambda: 10.0)
    member = Member()
    log.join(member)
    log.begin_tick()
    wal.append_entry(wal.number("group"), 1, 1, 0, b"entry")
    log.wrote(member, 1, 1)
    assert log.end_tick() == (10.0 + AWAIT_SECONDS if polling else 0.0)
    log.begin_tick()
    assert log.busy
    assert member.told == 0
    syncer.sync()
    log.begin_tick()
    assert member.told == 1
    assert log.end_tick() == 0.0
    wal.append_entry(wal.number("group"), 1, 2, 0, b"entry")
    log.wrote(member, 2, 1)
    log.flush()
    log.leave(member)  # it moves away while its write is synced: the log is free again all the same
    syncer.sync()
    log.completed()
    assert not log.busy
    syncer.held = False
    log.close()
    syncer.close()


@pytest.mark.parametrize("waits", ["nothing", "a proposal", "a write"])
def test_the_end_of_a_sync_is_told_at_once_and_ends_a_tick_only_for_what_waits(
    tmp_path: Path, waits: str
) -> None:
    syncer = StepSyncer()
    syncer.held = True
    options = WalOptions(file_bytes=1 << 20, background=False)
    wal = WriteAheadLog.open(Files(), str(tmp_path), syncer, options)
    woken: list[bool] = []
    log = SharedLog(wal, lambda: woken.append(True), is_awaited=lambda: waits == "a proposal")
    member = Member()
    log.join(member)
    for index in (1, 2) if waits == "a write" else (1,):
        log.begin_tick()
        wal.append_entry(wal.number("group"), 1, index, 0, b"entry")
        log.wrote(member, index, 1)
        log.end_tick()
    assert (member.told, woken) == (0, [])
    syncer.sync()
    log.ready()
    assert member.told == 1
    assert woken == [True] * (waits != "nothing")
    syncer.held = False
    log.close()
    syncer.close()


def test_a_buffered_file_may_be_closed_before_it_is_synced(tmp_path: Path) -> None:
    syncer = BufferedSyncer()
    for name in ("a", "b"):
        fd = os.open(tmp_path / name, os.O_CREAT | os.O_RDWR)
        syncer.submit(fd, 1)
        os.close(fd)  # the next one gets the same number
    syncer.sync()
    assert not syncer.dirty
    fd = os.open(tmp_path / "c", os.O_CREAT | os.O_RDWR)
    syncer.submit(fd, 2)
    assert [failure for _, failure, _ in syncer.completed()] == [0, 0, 0]
    os.close(fd)
    syncer.close()


def test_files_are_noted_while_others_are_synced(tmp_path: Path) -> None:
    syncer = BufferedSyncer()
    stop = threading.Event()
    problems: list[Exception] = []

    def sync() -> None:
        try:
            while not stop.is_set():
                syncer.sync()
        except (OSError, RuntimeError) as problem:
            problems.append(problem)

    thread = threading.Thread(target=sync)
    thread.start()
    fds = [os.open(tmp_path / str(number), os.O_CREAT | os.O_RDWR) for number in range(20)]
    for number in range(3000):
        syncer.submit(fds[number % 20], number)
    stop.set()
    thread.join()
    assert not problems
    done = syncer.completed()
    assert [number for number, _, _ in done] == list(range(3000))
    assert not any(failure for _, failure, _ in done)
    syncer.close()
    for fd in fds:
        os.close(fd)


def test_a_failed_sync_is_the_answer_to_all_that_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncer = BufferedSyncer()
    fd = os.open(tmp_path / "a", os.O_CREAT | os.O_RDWR)
    syncer.submit(fd, 1)

    def fail(_fd: int) -> None:
        raise OSError(5, "the disk has failed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        syncer.sync()
    syncer.submit(fd, 2)
    assert [(number, failure) for number, failure, _ in syncer.completed()] == [(1, 0), (2, 5)]
    os.close(fd)
    syncer.close()
