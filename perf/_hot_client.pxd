cdef class Histogram:
    cdef public object counts
    cdef long long[::1] cells
    cdef public long long total, sum, largest

    cpdef record(self, long long value, long long times)


cdef class Sender:
    cdef public bytearray chunk
    cdef public Py_ssize_t stride, payload_at, pid_at, capacity
    cdef public int window, ring, in_flight, next_pid
    cdef public unsigned int publisher, sequence
    cdef public long long acknowledged, spurious, refused
    cdef public Histogram latency
    cdef long long[::1] sent_at

    cpdef Py_ssize_t prepare(self, Py_ssize_t count, long long stamp, long long step)
    cpdef Py_ssize_t room(self)
    cdef bint settle(self, int pid, long long now, bint measuring)


cdef class Receiver:
    cdef public bytearray inbound, outbound
    cdef public Py_ssize_t out_length
    cdef public int version
    cdef public Sender sender
    cdef public Histogram latency
    cdef public long long publishes, payload_bytes, lost, reordered, unexpected, malformed
    cdef public object expected
    cdef unsigned int[::1] next_expected
    cdef Py_ssize_t publishers
    cdef long long run_stamp, run_length
    cdef public long long late
    cdef unsigned char[::1] marks
    cdef Py_ssize_t marked

    cpdef Py_ssize_t feed(self, Py_ssize_t end, long long now, bint measuring)
    cdef packet(self, int first, Py_ssize_t body, Py_ssize_t length, long long now, bint measuring)
    cdef publish(self, int first, Py_ssize_t body, Py_ssize_t length, bint measuring, long long now)
    cdef payload(self, Py_ssize_t at, Py_ssize_t length, long long now)
    cdef reply(self, int first, int high, int low)
    cdef flush_run(self, long long now)


cdef class NatsReceiver(Receiver):
    cpdef Py_ssize_t feed(self, Py_ssize_t end, long long now, bint measuring)
    cdef Py_ssize_t size(self, Py_ssize_t line, Py_ssize_t stop)
    cdef Py_ssize_t message(self, Py_ssize_t line, Py_ssize_t stop, Py_ssize_t end, bint measuring, long long now)
