from fluxmq.net.sockets cimport sockaddr_storage, socklen_t

cdef class Entrance:
    cdef public Py_ssize_t limit, length, room
    cdef public list batches, early, due
    cdef public int plain, left, accepted, fd, listener, error
    cdef public bint ask_loopback, ask_others, loopback
    cdef public bytearray buffer
    cdef public bytes peer

    cpdef int take(self, object sock, int listener) except -1
    cdef int accept(self, object sock) except -1
    cpdef int again(self) except -1
    cpdef int enter(self) except -1
    cpdef int read(self, int fd, Py_ssize_t most) except -1
    cpdef int hear(self, int fd, int listener, str peer) except -1

cdef Py_ssize_t decimal(char* text, Py_ssize_t at, unsigned int number) noexcept
cdef int fill_remainders() noexcept
cdef Py_ssize_t variable_integer(unsigned char* data, Py_ssize_t at, Py_ssize_t end) noexcept
cpdef int shard_of_connect(bytearray buffer, Py_ssize_t length, Py_ssize_t limit, int workers) except -2
