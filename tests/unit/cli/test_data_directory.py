"""The data directory's lock: seen without touching it, taken for as long as a change lasts."""

import fcntl
import os

import pytest

from fluxmq.cli.data_directory import LockedError, control_socket, is_locked, opened_store


def hold(path):
    lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def test_a_held_lock_is_seen_and_not_disturbed(tmp_path):
    assert not is_locked(tmp_path)
    lock = hold(tmp_path)
    assert is_locked(tmp_path)
    with pytest.raises(LockedError, match="in use"), opened_store(tmp_path):
        raise AssertionError("opened in spite of the lock")
    assert is_locked(tmp_path)
    os.close(lock)
    assert not is_locked(tmp_path)
    with opened_store(tmp_path) as store:
        assert is_locked(tmp_path)
        assert store.users().users == ()
    assert not is_locked(tmp_path)


def test_another_files_lock_is_not_taken_for_ours(tmp_path):
    (tmp_path / "other").mkdir()
    lock = hold(tmp_path / "other")
    (tmp_path / "LOCK").write_text(f"{os.getpid()}\n")
    assert not is_locked(tmp_path)
    os.close(lock)


def test_the_lock_is_given_back_when_the_change_fails(tmp_path):
    with pytest.raises(RuntimeError), opened_store(tmp_path):
        raise RuntimeError
    assert not is_locked(tmp_path)
    os.close(hold(tmp_path))


def test_where_the_control_process_listens(tmp_path):
    assert control_socket(tmp_path) == tmp_path / "run" / "control.sock"
