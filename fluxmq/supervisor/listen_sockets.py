"""Listening sockets: opening all of them or reporting why not, and handling failures of accept.

Knows addresses and descriptors, not protocols. When the process or the machine runs out of
descriptors, ``accept`` fails while the connection stays in the kernel's queue, and a
level-triggered loop would spin. So a spare descriptor is kept: it is given up, one connection is
accepted and closed, and the listener rests for a moment. Accepting itself is in ``net.accept``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from dataclasses import dataclass, field

from fluxmq.ipc.handoff import LISTENERS
from fluxmq.model.errors import FluxmqError
from fluxmq.settings.listeners import TcpListener
from fluxmq.settings.schema import Settings

ACCEPT_BATCH = 64
"""Connections accepted per turn and socket, so that one listener's crowd cannot hold up the
loop."""

REST_SECONDS = 0.1
"""Time a listener rests when there are no descriptors."""

_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# The connection is already gone or the network failed: accept(2) says to treat both like EAGAIN.
_GONE = frozenset(
    {
        errno.ECONNABORTED,
        errno.EPROTO,
        errno.ENETDOWN,
        errno.ENOPROTOOPT,
        errno.EHOSTDOWN,
        errno.ENONET,
        errno.EHOSTUNREACH,
        errno.EOPNOTSUPP,
        errno.ENETUNREACH,
        errno.EPERM,
    }
)
_SENTENCES = {
    errno.EADDRINUSE: "is already in use",
    errno.EADDRNOTAVAIL: "is not an address of this machine",
    errno.EACCES: "may not be opened by this user",
}


class ListenError(FluxmqError):
    """A listener cannot be opened; the message begins with the setting's path."""


@dataclass(slots=True)
class ListenSocket:
    """One listener of the settings with its sockets (several when its host has several
    addresses)."""

    index: int
    path: str
    max_connections: int
    connect_timeout: float
    sockets: list[socket.socket] = field(default_factory=list)
    backlog: int = socket.SOMAXCONN
    suspended: bool = False
    """True while connections are refused."""


def open_listeners(settings: Settings) -> list[ListenSocket]:
    """Open every client listener of the settings; all or none. Raises ListenError."""
    opened: list[ListenSocket] = []
    try:
        for path, listener in settings.listeners():
            index = LISTENERS.index(path.removeprefix("server."))
            listening = ListenSocket(
                index, path, listener.max_connections, listener.connect_timeout
            )
            listening.backlog = listener.backlog
            opened.append(listening)
            listening.sockets += _open(path, listener)
    except ListenError:
        for listening in opened:
            close(listening)
        raise
    return opened


def close(listening: ListenSocket) -> None:
    """Stop listening."""
    for sock in listening.sockets:
        sock.close()
    listening.sockets.clear()


def suspend(listening: ListenSocket) -> None:
    """Refuse connections from now on. The sockets keep their ports."""
    listening.suspended = True
    for sock in listening.sockets:
        # Linux: a socket that listens is closed for connections, and may listen again.
        sock.shutdown(socket.SHUT_RD)


def resume(listening: ListenSocket) -> None:
    """Accept connections again. Raises OSError."""
    for sock in listening.sockets:
        sock.listen(listening.backlog)
    listening.suspended = False


def _open(path: str, listener: TcpListener) -> list[socket.socket]:
    """Open one listener on each address its host resolves to."""
    try:
        found = socket.getaddrinfo(
            listener.host or None,
            listener.port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
    except OSError as exc:
        raise ListenError(f"{path}.addr: {listener.host} is not known: {exc.strerror}") from exc
    sockets: list[socket.socket] = []
    refused: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            sockets.append(_bind(family, kind, protocol, address, listener.backlog))
        except OSError as exc:
            # A machine without IPv6 still resolves names and wildcards to IPv6 addresses.
            if family is socket.AF_INET6 and exc.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                refused = exc
                continue
            for sock in sockets:
                sock.close()
            raise ListenError(f"{path}.addr: {listener.addr} {_sentence(exc)}") from exc
    if not sockets:
        assert refused is not None
        raise ListenError(f"{path}.addr: {listener.addr} {_sentence(refused)}") from refused
    return sockets


def _bind(
    family: int, kind: int, protocol: int, address: tuple[object, ...], backlog: int
) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # IPv4 has its own socket
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # Accepted connections inherit it, which saves a system call for each.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def _sentence(exc: OSError) -> str:
    return _SENTENCES.get(exc.errno or 0, f"cannot be opened: {exc.strerror or exc}")


def is_passing(number: int) -> bool:
    """Return whether a failure of accept, by its errno, concerns one connection only, so that the
    next may be accepted."""
    return number in _GONE


class SpareDescriptor:
    """Descriptor held in reserve, so that a connection can be accepted and closed when there are no
    others."""

    def __init__(self) -> None:
        self._spare: int | None = None
        self._keep_spare()

    def shed(self, sock: socket.socket, number: int) -> None:
        """Handle a failure of accept with errno ``number``: accept and close the oldest waiting
        connection.

        Raises OSError when the failure had another cause than a lack of descriptors.
        """
        if number not in _OUT_OF_DESCRIPTORS:
            raise OSError(number, os.strerror(number))
        self.close()
        # Fails when the machine is out of descriptors or another process took ours; resting then
        # suffices.
        with contextlib.suppress(OSError):
            sock.accept()[0].close()
        self._keep_spare()

    def close(self) -> None:
        """Close the spare descriptor."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _keep_spare(self) -> None:
        try:
            self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._spare = None
