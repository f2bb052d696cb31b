"""Hand-over of accepted connections from the acceptor to a shard.

One AF_UNIX SOCK_SEQPACKET pair per shard. A message carries up to 60 connections: their descriptors
as SCM_RIGHTS and, in the same order, a description of each::

    u16 count | count x ( u8 listener | u8 length of peer | u16 length of data | peer | data )

``net.accept.ConnectionBatch`` writes it, this module reads it. ``data`` is what the acceptor has
already read; the shard treats it as the first bytes received. Nothing here blocks: a full socket is
an outcome, not an error, and the acceptor keeps what did not fit.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from fluxmq.model.errors import FluxmqError
from fluxmq.net.accept_batch import DATA_MAX, LISTENERS_MAX, PEER_MAX, ConnectionBatch

LISTENERS = ("mqtt.tcp", "mqtt.tls", "mqtt.websocket", "amqp.tcp", "amqp.tls", "mqtt.websocket_tls")
"""Client listeners; a connection's listener is an index into this tuple."""

BATCH_CONNECTIONS_MAX = 60
"""Connections per message: far below the kernel's 253 descriptors, enough to amortise the call."""

DATA_BYTES_MAX = DATA_MAX
"""First bytes per connection: the u16 length's maximum; the acceptor's own limit is lower."""

MESSAGE_BYTES_MAX = 96 * 1024
"""Size of one message. The kernel wants it below half of SO_SNDBUF's default (208 KiB) with its own
overhead, so that a message always fits an empty socket; large first bytes make smaller batches."""

PEER_BYTES_MAX = PEER_MAX
"""Bytes of a peer's name: the u8 length's maximum."""

_COUNT = struct.Struct("<H")
_RECORD = struct.Struct("<BBH")
# A plain number: combining the module's enumerations costs 2 us a call.
_RECEIVE_FLAGS = int(socket.MSG_DONTWAIT) | int(socket.MSG_CMSG_CLOEXEC)
_RIGHTS_SPACE = socket.CMSG_SPACE(BATCH_CONNECTIONS_MAX * 4)

assert BATCH_CONNECTIONS_MAX <= 253
assert len(LISTENERS) <= LISTENERS_MAX
assert _COUNT.size + _RECORD.size + PEER_BYTES_MAX + DATA_BYTES_MAX <= MESSAGE_BYTES_MAX

# The socket is full, or the user has too many descriptors in flight: retry later in both cases.
_TRY_LATER = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS})


class HandoffClosedError(FluxmqError):
    """The other end of the pair is gone; only when the supervisor itself is."""


class HandoffDamagedError(FluxmqError):
    """A message does not follow the layout: the two processes are of different versions."""


@dataclass(slots=True)
class Handoff:
    """One accepted connection.

    ``fd`` is a non-blocking TCP socket that the holder must close or pass on; ``listener`` an index
    into LISTENERS; ``peer`` is ``address:port``; ``data`` the bytes already read from the socket.
    """

    fd: int
    listener: int
    peer: str
    data: bytes


def pair() -> tuple[socket.socket, socket.socket]:
    """Create the two ends, the acceptor's, then the shard's. Both non-blocking and
    close-on-exec."""
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sender.setblocking(False)
    receiver.setblocking(False)
    return sender, receiver


def adopt(fd: int) -> socket.socket:
    """Wrap an inherited end in a socket object, which owns the descriptor from now on."""
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    return sock


def new_batch() -> ConnectionBatch:
    """Return an empty message: ``add`` connections to it, then ``dispatch`` it."""
    return ConnectionBatch(BATCH_CONNECTIONS_MAX, MESSAGE_BYTES_MAX)


def put(batch: ConnectionBatch, connection: Handoff) -> bool:
    """Add a connection; False when the message has no room for it."""
    peer = connection.peer.encode("utf-8", "replace")[:PEER_BYTES_MAX]
    data = connection.data
    return batch.add(connection.fd, connection.listener, peer, data, len(data))


def taken_back(batch: ConnectionBatch) -> list[Handoff]:
    """Return the connections of a message that could not be sent."""
    return _decode(batch.message(), array.array("i", batch.fds))


def dispatch(sock: socket.socket, batch: ConnectionBatch) -> bool:
    """Send all connections of ``batch`` in one message.

    False means that the socket is full: try again when it is writable. The descriptors stay open
    here; the caller closes what was sent. Raises HandoffClosedError when the receiving end is gone,
    and OSError.
    """
    try:
        return batch.send(sock)
    except OSError as exc:
        if exc.errno in _TRY_LATER:
            return False
        if exc.errno in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
            raise HandoffClosedError(os.strerror(exc.errno)) from exc
        raise


def send(sock: socket.socket, batch: Sequence[Handoff]) -> int:
    """Send the first connections of ``batch`` in one message and return their number.

    0 means that the socket is full. Otherwise like ``dispatch``.
    """
    message = new_batch()
    for connection in batch:
        if not put(message, connection):
            break
    assert message.fds or not batch, "one connection always fits into a message"
    return len(message.fds) if dispatch(sock, message) else 0


def receive(sock: socket.socket) -> list[Handoff]:
    """Receive one message; an empty list when there is none. Call again until it is empty.

    The descriptors are close-on-exec and belong to the caller. When this process has too few free
    descriptors, the kernel drops the rest of a message: those connections end, the others are
    returned. Raises HandoffClosedError when the acceptor's end is gone, HandoffDamagedError, and
    OSError.
    """
    try:
        body, ancillary, _, _ = sock.recvmsg(MESSAGE_BYTES_MAX, _RIGHTS_SPACE, _RECEIVE_FLAGS)
    except BlockingIOError:
        return []
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if not body and not fds:
        raise HandoffClosedError("the sending end is closed")
    try:
        return _decode(body, fds)
    except (struct.error, IndexError) as exc:
        for fd in fds:
            os.close(fd)
        raise HandoffDamagedError(
            f"a message of {len(body)} bytes does not follow the layout"
        ) from exc


def _decode(body: bytes, fds: array.array[int]) -> list[Handoff]:
    """Split a message into connections, as many as there are descriptors."""
    (count,) = _COUNT.unpack_from(body)
    offset = _COUNT.size
    connections = []
    for fd in fds[:count]:
        listener, peer_length, data_length = _RECORD.unpack_from(body, offset)
        offset += _RECORD.size
        end = offset + peer_length + data_length
        if end > len(body):
            raise IndexError(end)
        peer = body[offset : offset + peer_length].decode("utf-8", "replace")
        connections.append(Handoff(fd, listener, peer, body[offset + peer_length : end]))
        offset = end
    return connections
