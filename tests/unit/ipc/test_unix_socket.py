"""The control socket as a file: for one user, at any depth, stale or fresh."""

import os
import stat

import pytest

from fluxmq.ipc import unix_socket


def test_it_is_private_and_says_who_calls(tmp_path):
    path = tmp_path / "control.sock"
    with unix_socket.bind(path) as listening:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        listening.listen()
        with unix_socket.connect(path, 1.0) as caller:
            accepted, _ = listening.accept()
            with accepted:
                assert unix_socket.peer_user(accepted) == os.geteuid()
                assert unix_socket.peer_user(caller) == os.geteuid()


def test_paths_longer_than_an_address_work(tmp_path):
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    path = deep / "control.sock"
    with unix_socket.bind(path) as listening:
        listening.listen()
        assert stat.S_ISSOCK(path.stat().st_mode)
        with unix_socket.connect(path, 0.0) as caller:
            assert caller.gettimeout() == 0.0


def test_a_stale_socket_is_replaced(tmp_path):
    path = tmp_path / "control.sock"
    unix_socket.bind(path).close()
    with unix_socket.bind(path) as listening:
        listening.listen()
        unix_socket.connect(path, 1.0).close()


@pytest.mark.parametrize("make", [lambda p: p.write_text("mine"), lambda p: p.symlink_to("/etc")])
def test_what_is_not_a_socket_is_left_alone(tmp_path, make):
    path = tmp_path / "control.sock"
    make(path)
    with pytest.raises(FileExistsError):
        unix_socket.bind(path)
    assert os.path.lexists(path)


def test_nobody_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        unix_socket.connect(tmp_path / "none", 1.0)
    unix_socket.bind(tmp_path / "stale").close()
    with pytest.raises(ConnectionRefusedError):
        unix_socket.connect(tmp_path / "stale", 1.0)
