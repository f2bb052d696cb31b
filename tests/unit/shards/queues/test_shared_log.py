"""The log that a shard's groups share, and the one whose writes are answered before they are durable."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from fluxmq.shards.queues.shared_log import BufferedSyncer


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
