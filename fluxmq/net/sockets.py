"""Reads and writes of a client's socket, which never wait.

Knows descriptors and bytes only. The declarations beside it also have what ``accept`` and
``accept_batch`` need of the C library.
"""

from __future__ import annotations

import os

import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.fluxmq.model.octets import pointer
    from cython.cimports.libc.errno import EAGAIN, EINTR, errno
    from cython.cimports.posix.unistd import read as posix_read
    from cython.cimports.posix.unistd import write as posix_write


def receive(
    fd: cython.int, target: bytearray, start: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Read into ``target[start:end]``; return bytes read, 0 at the end, -1 when nothing is there,
    -2 on failure."""
    count: cython.Py_ssize_t
    if cython.compiled:
        while True:
            count = posix_read(fd, PyByteArray_AS_STRING(target) + start, end - start)
            if count >= 0:
                return count
            if errno != EINTR:
                return -1 if errno == EAGAIN else -2
    try:
        return os.readv(fd, [memoryview(target)[start:end]])
    except BlockingIOError:
        return -1
    except OSError:
        return -2


def send(
    fd: cython.int, data: bytes | bytearray, start: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Write ``data[start:end]``; return bytes taken, 0 when the socket is full, -1 when the
    connection is lost."""
    done: cython.Py_ssize_t
    if cython.compiled:
        while True:
            done = posix_write(fd, pointer(data) + start, end - start)
            if done >= 0:
                return done
            if errno != EINTR:
                return 0 if errno == EAGAIN else -1
    try:
        return os.write(fd, memoryview(data)[start:end])
    except BlockingIOError:
        return 0
    except OSError:
        return -1
