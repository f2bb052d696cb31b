"""The message that carries accepted connections to a shard: their descriptors, and the bytes read
from them.

Writes the layout that ``ipc/handoff`` describes and sends it; knows neither shards nor the
bytes' meaning. A message is built in one reused buffer, so that a connection costs two copies and
no object.
"""

from __future__ import annotations

import array
import os
import socket
from typing import Final

import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Check
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.fluxmq.net.sockets import (
        CMSG_DATA,
        CMSG_FIRSTHDR,
        CMSG_LEN,
        CMSG_SPACE,
        SCM_RIGHTS,
        SOL_SOCKET,
        cmsghdr,
        iovec,
        msghdr,
        sendmsg,
    )
    from cython.cimports.libc.errno import EAGAIN, errno
    from cython.cimports.libc.string import memcpy, memset
    from cython.cimports.posix.unistd import close as posix_close

LISTENERS_MAX: Final = 8
"""Listeners that are counted separately."""
PEER_MAX: Final = 255
"""Bytes of a peer's name: the maximum of a u8."""
DATA_MAX: Final = 65535
"""First bytes of a connection: the maximum of a u16."""

_COUNT_BYTES = 2
_RECORD_BYTES = 4
_SEND_FLAGS = int(socket.MSG_DONTWAIT) | int(socket.MSG_NOSIGNAL)


class ConnectionBatch:
    """The connections that go to one shard with the next message.

    Bounded by ``connections_max`` and ``bytes_max``. ``fds``: their descriptors, in order.
    ``counts``: connections per listener. ``body``: the message, of which ``used`` bytes are
    written. ``paused``: the shard accepts nothing now, so nothing may be added without asking.
    """

    def __init__(self, connections_max: int, bytes_max: int) -> None:
        self.connections_max = connections_max
        self.bytes_max = bytes_max
        self.body = bytearray(bytes_max)
        self.paused = False
        self.clear()

    def clear(self) -> None:
        """Forget the connections without closing their descriptors."""
        self.fds: list[int] = []
        self.counts = bytearray(LISTENERS_MAX)
        self.used = _COUNT_BYTES

    def add(
        self,
        fd: cython.int,
        listener: cython.int,
        peer: bytes,
        data: bytes | bytearray,
        length: cython.Py_ssize_t,
    ) -> cython.bint:
        """Append a connection with the first ``length`` bytes of ``data``; return False when there
        is no room.

        Raises ValueError for a name, bytes or a listener that the layout cannot express.
        """
        body: cython.p_uchar
        source: cython.p_uchar
        at: cython.Py_ssize_t = self.used
        name: cython.Py_ssize_t = len(peer)
        if name > PEER_MAX or length > DATA_MAX or not 0 <= listener < LISTENERS_MAX:
            raise ValueError("a connection that the message's layout cannot express")
        if len(self.fds) >= self.connections_max:
            return False
        if at + _RECORD_BYTES + name + length > self.bytes_max:
            return False
        if cython.compiled:
            body = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.body)) + at
            body[0] = listener
            body[1] = name
            body[2] = length & 0xFF
            body[3] = length >> 8
            memcpy(body + 4, PyBytes_AS_STRING(peer), name)
            if PyByteArray_Check(data):
                source = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(data))
            else:
                source = cython.cast(cython.p_uchar, PyBytes_AS_STRING(data))
            memcpy(body + 4 + name, source, length)
        else:
            record = bytes((listener, name, length & 0xFF, length >> 8))
            self.body[at : at + _RECORD_BYTES + name + length] = record + peer + data[:length]
        self.used = at + _RECORD_BYTES + name + length
        self.fds.append(fd)
        self.counts[listener] += 1
        return True

    def message(self) -> bytes:
        """Return the message as it is sent."""
        count: cython.Py_ssize_t = len(self.fds)
        self.body[0] = count & 0xFF
        self.body[1] = count >> 8
        return bytes(self.body[: self.used])

    def send(self, sock: socket.socket) -> cython.bint:
        """Send all in one message to a SEQPACKET socket; return False when it cannot take any now.

        The descriptors stay open here. Raises OSError, also for retriable errors other than EAGAIN.
        """
        control: cython.p_uchar
        numbers: cython.p_int
        index: cython.Py_ssize_t
        count: cython.Py_ssize_t = len(self.fds)
        self.body[0] = count & 0xFF
        self.body[1] = count >> 8
        if cython.compiled:
            message = cython.declare(msghdr)
            piece = cython.declare(iovec)
            memset(cython.address(message), 0, cython.sizeof(message))
            room: bytes = PyBytes_FromStringAndSize(cython.NULL, CMSG_SPACE(4 * count))
            control = cython.cast(cython.p_uchar, PyBytes_AS_STRING(room))
            piece.iov_base = PyByteArray_AS_STRING(self.body)
            piece.iov_len = self.used
            message.msg_iov = cython.address(piece)
            message.msg_iovlen = 1
            message.msg_control = control
            message.msg_controllen = CMSG_SPACE(4 * count)
            header: cython.pointer(cmsghdr) = CMSG_FIRSTHDR(cython.address(message))
            header.cmsg_level = SOL_SOCKET
            header.cmsg_type = SCM_RIGHTS
            header.cmsg_len = CMSG_LEN(4 * count)
            numbers = cython.cast(cython.p_int, CMSG_DATA(header))
            for index in range(count):
                numbers[index] = self.fds[index]
            if sendmsg(sock.fileno(), cython.address(message), _SEND_FLAGS) >= 0:
                return True
            if errno == EAGAIN:
                return False
            reason: cython.int = errno
            raise OSError(reason, os.strerror(reason))
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", self.fds))
        try:
            sock.sendmsg([memoryview(self.body)[: self.used]], [rights], _SEND_FLAGS)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close the descriptors, of which the shard now has its own, and forget the connections."""
        fd: cython.int
        for fd in self.fds:
            if cython.compiled:
                posix_close(fd)
            else:
                os.close(fd)
        self.clear()
