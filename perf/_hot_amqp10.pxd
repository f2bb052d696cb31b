from perf._hot_client cimport Receiver
from perf._hot_queue cimport TagSender


cdef class TransferSender(TagSender):
    cdef public Py_ssize_t mark_at, id_at, time_at
    cdef public long long credit_end

    cpdef Py_ssize_t prepare(self, Py_ssize_t count, long long stamp, long long step)
    cpdef Py_ssize_t room(self)
    cdef settle_range(self, long long first, long long last, long long now, bint measuring)


cdef class TransferReceiver(Receiver):
    cdef public Py_ssize_t every
    cdef public long long credit, given, first_id, last_id, value

    cpdef Py_ssize_t feed(self, Py_ssize_t end, long long now, bint measuring)
    cdef long long number(self, Py_ssize_t at, Py_ssize_t size)
    cdef Py_ssize_t field(self, Py_ssize_t at)
    cdef Py_ssize_t fields(self, Py_ssize_t body)
    cdef transfer(self, Py_ssize_t body, Py_ssize_t end, long long now, bint measuring)
    cdef disposition(self, Py_ssize_t body, long long now, bint measuring)
    cdef flow(self, Py_ssize_t body)
    cdef Py_ssize_t put(self, Py_ssize_t at, long long value)
    cdef Py_ssize_t begin(self, int size, int kind, int count)
    cdef accept(self)
    cdef renew(self)
