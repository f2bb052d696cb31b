"""Accepts connections and puts those that need no decision straight into a batch for their shard.

The per-connection costs are here: accept, the first read, finding the client identifier of a whole
MQTT CONNECT (``batch`` writes the message that carries descriptors to a shard). Everything that
needs a decision (an address whose rate is limited, bytes that have not arrived, another protocol,
an odd or incomplete packet, a shard without room) is returned to the caller as an outcome, with the
connection; this module refuses no connection and knows no settings but numbers.

A connection costs four system calls and no Python object beyond its peer's name.

Source: MQTT 3.1.1 section 3.1, MQTT 5.0 section 3.1 (CONNECT).
"""

from __future__ import annotations

import os
import socket
import zlib
from typing import Final

import cython

from fluxmq.net.accept_batch import ConnectionBatch

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.fluxmq.model.octets import Octets, pointer
    from cython.cimports.fluxmq.net.accept_batch import ConnectionBatch
    from cython.cimports.fluxmq.net.sockets import (
        AF_INET,
        NI_NUMERICHOST,
        NI_NUMERICSERV,
        PEER_CHARACTERS_MAX,
        SERVICE_CHARACTERS_MAX,
        SOCK_CLOEXEC,
        SOCK_NONBLOCK,
        accept4,
        getnameinfo,
        ntohs,
        sockaddr,
        sockaddr_in,
        sockaddr_storage,
        socklen_t,
    )
    from cython.cimports.libc.errno import EAGAIN, EINTR, errno
    from cython.cimports.posix.unistd import read as posix_read
else:
    from fluxmq.model.octets import Octets, pointer

NONE: Final = 0
"""No connection waits."""
HANDED: Final = 1
"""The connection is in the batch of its shard."""
AWAIT: Final = 2
"""The client has not sent anything yet."""
READ: Final = 3
"""The client's first bytes are in ``data``; the caller decides."""
ENDED: Final = 4
"""The client has disconnected."""
ASK: Final = 5
"""The caller must check this address's rate limit; to continue, call ``enter``."""
FAILED: Final = 6
"""``accept`` failed; ``error`` is its errno."""

NO_SHARD: Final = -1
"""The bytes are not a whole CONNECT with a client identifier."""

EARLY_TURNS: Final = 3
"""Turns in which a silent connection is read before the caller has to await it."""

_CONNECT = 0x10
_LEVEL_5 = 5

if cython.compiled:
    REMAINDERS = cython.declare(cython.uint[256])
    """CRC-32 (polynomial 0xEDB88320, as zlib) of each byte."""


Awaited = tuple[int, int, bytes, bool, int]
"""A connection without bytes: descriptor, listener, peer, loopback, turns left."""


class Entrance:
    """Accepts connections. Its fields describe the last one handled.

    ``limit``: bytes read at first. ``batches``: one for each shard. ``plain``: the listener of MQTT
    over plain TCP, the only one whose connections are put into batches here, ``room`` more of them.
    ``ask_loopback``, ``ask_others``: the addresses whose rate limit the caller checks. ``left``:
    connections that may still be accepted in this turn; ``accepted``: those that were. ``early``:
    connections without bytes so far. The caller awaits them, or leaves them here: then they are
    ``due`` in the next turn (``begin``, ``again``), EARLY_TURNS times. ``fd``, ``listener``,
    ``peer`` (``address:port``), ``loopback`` (certainly from this machine): the connection.
    ``length``: bytes read from it.
    """

    def __init__(self, limit: int, batches: list[ConnectionBatch], plain: int) -> None:
        self.limit = limit
        self.batches = batches
        self.plain = plain
        self.room = 0
        self.ask_loopback = True
        self.ask_others = True
        self.left = 0
        self.accepted = 0
        self.early: list[Awaited] = []
        self.due: list[Awaited] = []
        self.buffer = bytearray(limit)
        self.length = 0
        self.fd = -1
        self.listener = 0
        self.peer = b""
        self.loopback = False
        self.error = 0

    def take(self, sock: socket.socket, listener: cython.int) -> cython.int:
        """Accept connections until one needs the caller, none waits or none is ``left``; return the
        outcome."""
        outcome: cython.int
        self.listener = listener
        while self.left > 0:
            self.left -= 1
            outcome = self.accept(sock)
            if outcome != HANDED:
                return outcome
            self.accepted += 1
            if self.ask_loopback if self.loopback else self.ask_others:
                return ASK
            outcome = self.enter()
            if outcome == AWAIT:
                self.early.append((self.fd, self.listener, self.peer, self.loopback, EARLY_TURNS))
            elif outcome != HANDED:
                return outcome
        return NONE

    def begin(self) -> None:
        """Begin a turn: the ``early`` connections become ``due``."""
        self.due = self.early
        self.due.reverse()
        self.early = []

    def again(self) -> cython.int:
        """Read from ``due`` connections until one needs the caller; return the outcome, NONE when
        all are done."""
        outcome: cython.int
        turns: cython.int
        while self.due:
            self.fd, self.listener, self.peer, self.loopback, turns = self.due.pop()
            outcome = self.enter()
            if outcome == AWAIT and turns > 1:
                self.early.append((self.fd, self.listener, self.peer, self.loopback, turns - 1))
            elif outcome != HANDED:
                return outcome
        return NONE

    def accept(self, sock: socket.socket) -> cython.int:
        """Accept one connection, non-blocking and close-on-exec. Return HANDED (to us), NONE or
        FAILED."""
        if cython.compiled:
            address = cython.declare(sockaddr_storage)
            size = cython.declare(socklen_t)
            while True:
                size = cython.sizeof(address)
                self.fd = accept4(
                    sock.fileno(),
                    cython.cast(cython.pointer(sockaddr), cython.address(address)),
                    cython.address(size),
                    SOCK_NONBLOCK | SOCK_CLOEXEC,
                )
                if self.fd >= 0:
                    name_peer(self, cython.address(address), size)
                    return HANDED
                if errno == EAGAIN:
                    return NONE
                if errno != EINTR:
                    self.error = errno
                    return FAILED
        try:
            # As socket.accept does, without the socket object, which would only be taken apart again.
            self.fd, where = sock._accept()  # type: ignore[attr-defined] # not for everyone, says its name
        except BlockingIOError:
            return NONE
        except OSError as exc:
            self.error = exc.errno or 0
            return FAILED
        os.set_blocking(self.fd, False)
        host, port = where[0], where[1]
        self.loopback = host.startswith("127.") or host == "::1"
        self.peer = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()
        return HANDED

    def enter(self) -> cython.int:
        """Read the client's first bytes and batch the connection if possible. Return HANDED, AWAIT,
        READ or ENDED."""
        shard: cython.int
        batch: ConnectionBatch
        outcome: cython.int = self.read(self.fd, self.limit)
        if outcome != READ or self.listener != self.plain or self.room <= 0:
            return outcome
        shard = shard_of_connect(self.buffer, self.length, self.limit, len(self.batches))
        if shard < 0:
            return READ
        batch = self.batches[shard]
        if batch.paused or not batch.add(
            self.fd, self.listener, self.peer, self.buffer, self.length
        ):
            return READ
        self.room -= 1
        return HANDED

    def read(self, fd: cython.int, most: cython.Py_ssize_t) -> cython.int:
        """Read up to ``most`` bytes, at most ``limit``, for ``data``. Return READ, AWAIT or
        ENDED."""
        if cython.compiled:
            while True:
                self.length = posix_read(fd, PyByteArray_AS_STRING(self.buffer), most)
                if self.length > 0:
                    return READ
                if self.length == 0:
                    return ENDED
                if errno == EAGAIN:
                    return AWAIT
                if errno != EINTR:
                    return ENDED
        try:
            data = os.read(fd, most)
        except BlockingIOError:
            return AWAIT
        except OSError:
            return ENDED
        self.length = len(data)
        self.buffer[: self.length] = data
        return READ if data else ENDED

    def hear(self, fd: cython.int, listener: cython.int, peer: str) -> cython.int:
        """Do the same for a connection that was awaited and has sent nothing before."""
        self.fd = fd
        self.listener = listener
        self.peer = peer.encode()
        return self.enter()

    def data(self) -> bytes:
        """Return the bytes read from the connection."""
        return bytes(self.buffer[: self.length])


if cython.compiled:

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def decimal(
        text: cython.p_char, at: cython.Py_ssize_t, number: cython.uint
    ) -> cython.Py_ssize_t:
        """Write a number of up to five digits and return the position after it."""
        unit: cython.uint = 10000
        while unit > 1 and number < unit:
            unit //= 10
        while unit > 0:
            text[at] = 48 + number // unit % 10
            at += 1
            unit //= 10
        return at

    @cython.cfunc
    @cython.exceptval(-1)
    def name_peer(
        entrance: Entrance, address: cython.pointer(sockaddr_storage), size: socklen_t
    ) -> cython.int:
        """Set ``peer`` and ``loopback`` from the kernel's address."""
        four: cython.p_uchar
        at: cython.Py_ssize_t = 0
        index: cython.Py_ssize_t
        text = cython.declare(cython.char[PEER_CHARACTERS_MAX])
        service = cython.declare(cython.char[SERVICE_CHARACTERS_MAX])
        if address.ss_family == AF_INET:
            internet = cython.cast(cython.pointer(sockaddr_in), address)
            four = cython.cast(cython.p_uchar, cython.address(internet.sin_addr))
            entrance.loopback = four[0] == 127
            for index in range(4):
                at = decimal(text, at, four[index])
                text[at] = 46 if index < 3 else 58  # "." and ":"
                at += 1
            at = decimal(text, at, ntohs(internet.sin_port))
            entrance.peer = PyBytes_FromStringAndSize(text, at)
            return 0
        if getnameinfo(
            cython.cast(cython.pointer(sockaddr), address),
            size,
            text,
            PEER_CHARACTERS_MAX,
            service,
            SERVICE_CHARACTERS_MAX,
            NI_NUMERICHOST | NI_NUMERICSERV,
        ):
            text[0] = 0
            service[0] = 0
        host: bytes = cython.cast(cython.p_char, text)
        port: bytes = cython.cast(cython.p_char, service)
        entrance.loopback = host == b"::1"
        entrance.peer = b"[" + host + b"]:" + port
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def fill_remainders() -> cython.int:
        """Fill the table."""
        index: cython.int
        remainder: cython.uint
        for index in range(256):
            remainder = index
            for _ in range(8):
                remainder = (remainder >> 1) ^ (0xEDB88320 if remainder & 1 else 0)
            REMAINDERS[index] = remainder
        return 0

    fill_remainders()


def variable_integer(
    data: Octets, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return a variable byte integer's value times 8, plus its length in bytes; -1 if incomplete or
    longer than 4."""
    value: cython.Py_ssize_t = 0
    taken: cython.Py_ssize_t = 0
    byte: cython.Py_ssize_t
    while taken < 4 and at + taken < end:
        byte = data[at + taken]
        value |= (byte & 0x7F) << 7 * taken
        taken += 1
        if byte < 0x80:
            return value << 3 | taken
    return -1


def shard_of_connect(  # noqa: C901 - one C function
    buffer: bytearray,
    length: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    workers: cython.int,
) -> cython.int:
    """Return the shard of the client whose CONNECT starts the first ``length`` bytes, NO_SHARD if
    unsure.

    Sure is only a whole CONNECT of 3.1.1 or 5.0, of at most ``limit`` bytes, with a client
    identifier that is not empty. The shard is CRC-32 (as zlib's) of the identifier modulo
    ``workers``.
    """
    data: Octets
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    value: cython.Py_ssize_t
    byte: cython.int
    crc: cython.uint
    if length < 2:
        return NO_SHARD
    data = pointer(buffer) if cython.compiled else buffer
    if data[0] != _CONNECT:
        return NO_SHARD
    value = variable_integer(data, 1, length)
    if value < 0:
        return NO_SHARD
    at = 1 + (value & 7)
    value >>= 3
    end = at + value
    if end > limit or end > length or at + 12 > end:
        return NO_SHARD
    if data[at] or data[at + 1] != 4:
        return NO_SHARD
    if (data[at + 2] << 24 | data[at + 3] << 16 | data[at + 4] << 8 | data[at + 5]) != 0x4D515454:
        return NO_SHARD  # not "MQTT"
    byte = data[at + 6]
    at += 10  # name, level, flags, keep alive
    if byte == _LEVEL_5:
        value = variable_integer(data, at, end)
        if value < 0:
            return NO_SHARD
        at += (value & 7) + (value >> 3)
    elif byte != 4:
        return NO_SHARD
    if at + 2 > end:
        return NO_SHARD
    value = data[at] << 8 | data[at + 1]
    at += 2
    if value == 0 or at + value > end:
        return NO_SHARD
    if cython.compiled:
        end = at + value
        crc = 0xFFFFFFFF
        while at < end:
            crc = REMAINDERS[(crc ^ data[at]) & 0xFF] ^ (crc >> 8)
            at += 1
        crc ^= 0xFFFFFFFF
    else:
        crc = zlib.crc32(data[at : at + value])
    return crc % workers
