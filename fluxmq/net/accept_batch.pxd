cdef class ConnectionBatch:
    cdef public Py_ssize_t connections_max, bytes_max, used
    cdef public bytearray body, counts
    cdef public list fds
    cdef public bint paused

    cpdef bint add(self, int fd, int listener, bytes peer, object data, Py_ssize_t length) except -1
    cpdef bint send(self, object sock) except -1
