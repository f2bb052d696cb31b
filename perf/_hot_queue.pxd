from perf._hot_client cimport NatsReceiver, Receiver, Sender


cdef class TagSender(Sender):
    cdef public Py_ssize_t digits_at
    cdef public long long next_tag, low

    cpdef Py_ssize_t prepare(self, Py_ssize_t count, long long stamp, long long step)
    cpdef Py_ssize_t room(self)
    cdef settle_tag(self, long long tag, long long now, bint measuring)
    cdef settle_through(self, long long tag, long long now, bint measuring)


cdef class AmqpReceiver(Receiver):
    cdef public Py_ssize_t every, unanswered
    cdef public long long tag, whole_tag, body_left, body_size

    cpdef Py_ssize_t feed(self, Py_ssize_t end, long long now, bint measuring)
    cdef method(self, Py_ssize_t at, Py_ssize_t length, long long now, bint measuring)
    cdef body(self, Py_ssize_t at, Py_ssize_t length, long long now, bint measuring)
    cdef acknowledge(self, bint multiple)
    cdef long long number(self, Py_ssize_t at, Py_ssize_t size)


cdef class JetStreamReceiver(NatsReceiver):
    cdef Py_ssize_t message(self, Py_ssize_t line, Py_ssize_t stop, Py_ssize_t end, bint measuring, long long now)
    cdef confirm(self, Py_ssize_t line, Py_ssize_t stop, Py_ssize_t size, long long now, bint measuring)
    cdef acknowledge(self, Py_ssize_t line, Py_ssize_t stop)
