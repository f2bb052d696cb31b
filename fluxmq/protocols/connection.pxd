cdef class Tally:
    cdef public double now
    cdef public long long received0, received1, received2, received_bytes0, received_bytes1, received_bytes2
    cdef public long long sent0, sent1, sent2, sent_bytes0, sent_bytes1, sent_bytes2
    cdef public long long dropped_slow, dropped_full, dropped_expired, dropped_large
    cdef public long long route_hits, route_misses, ticks, runs
    cdef public long long amqp_published, amqp_published_bytes, amqp_returned
    cdef public long long amqp_delivered, amqp_delivered_bytes, amqp_redelivered
    cdef public long long amqp_got, amqp_got_empty, amqp_replies
    cdef public long long amqp_acknowledged, amqp_requeued, amqp_rejected
    cdef public long long amqp_confirmed, amqp_nacked, amqp_committed, amqp_rolled_back

    cpdef int received(self, int qos, Py_ssize_t count, Py_ssize_t size) except -1
    cpdef int sent(self, int qos, Py_ssize_t count, Py_ssize_t size) except -1
    cpdef int published(self, Py_ssize_t count, Py_ssize_t size) except -1
    cpdef int delivered(self, Py_ssize_t count, Py_ssize_t size, bint redelivered) except -1

cdef class Connection:
    cdef public int fd, version, wire, paused, listener, alias_maximum
    cdef public bint open, deaf, closing, dirty, waiting, feeding, publishing
    cdef public double active
    cdef public Py_ssize_t frame_max, limit, max_packet_out, sent, size, gathered, needed, encoded
    cdef public Tally tally
    cdef public list dirty_list, chunks
    cdef public bytes tail
    cdef public bytearray gathering, out
    cdef public dict aliases, ledgers
    cdef public object send, allowed, stream, handler, delivery, identity, pending_acks
    cdef object __weakref__

    cpdef int forget(self) except -1
    cpdef int gather(self, bytearray buffer, Py_ssize_t at, Py_ssize_t end, Py_ssize_t needed, Py_ssize_t capacity) except -1
    cpdef int widen(self) except -1
    cpdef bytes fill(self, bytes data)
    cpdef bytearray buffer(self)
    cpdef int append(self, bytes data) except -1
    cpdef int append_chunk(self, object data) except -1
    cpdef int append_slice(self, object data, Py_ssize_t start, Py_ssize_t end, bint kept) except -1
    cpdef Py_ssize_t write(self, object data, Py_ssize_t start, Py_ssize_t end) except -2
    cpdef int flush(self) except -2
    cpdef int encode(self) except -1
    cpdef Py_ssize_t room(self) except? -1
    cpdef int alias(self, bytes topic) except? -1
