"""The control socket as a file: bound for this user alone, reachable by any path, with peer
identity.

An address of a Unix socket holds 107 bytes of path, and data directories may lie deeper. Such a
path is reached through the directory's descriptor (``/proc/self/fd/<n>/control.sock``), which is
short.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# sizeof(sockaddr_un.sun_path) is 108, one of them for the final NUL.
ADDRESS_BYTES_MAX: Final = 107

_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """Yield a spelling of `path` that fits an address; valid inside the block."""
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def connect(path: Path, timeout: float | None) -> socket.socket:
    """Return a connected stream socket with this timeout in seconds (0: not blocking).

    A Unix socket connects at once or fails at once, except that with a timeout it waits while the
    listener's queue is full. Raises OSError.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(timeout)
        with _address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def bind(path: Path) -> socket.socket:
    """Return a socket bound at `path` with mode 0600, not yet listening; a stale socket is
    replaced.

    The caller must hold the data directory's lock. Raises OSError, FileExistsError when something
    other than a socket lies there.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} exists and is not a socket")
        path.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # The mode is on the socket before the file appears: there is no moment when others could
        # connect.
        os.fchmod(listening.fileno(), 0o600)
        with _address(path) as address:
            listening.bind(address)
        path.chmod(0o600)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def peer_user(connection: socket.socket) -> int:
    """Return the user id of the process at the other end, as the kernel noted it at connect."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, user, _group = _CREDENTIALS.unpack(raw)
    return int(user)
