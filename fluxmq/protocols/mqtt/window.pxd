from fluxmq.protocols.mqtt.identifiers cimport ReleasedIdentifiers
from fluxmq.protocols.mqtt.inflight_range cimport InflightRange

cdef class InflightWindow:
    cdef public int window, inflight, next_pid, free_until
    cdef public Py_ssize_t unanswered_bytes
    cdef public object unanswered_ranges, resend
    cdef public set early
    cdef public ReleasedIdentifiers released

    cpdef int pump(self) except -1
    cpdef Py_ssize_t free_identifiers(self) except -1
    cpdef bint acknowledge(self, int pid, int qos) except -1
    cpdef int advance(self, Py_ssize_t count) except -1
    cpdef bint acknowledge_early(self, int pid, int qos) except -1
    cpdef int report(self, InflightRange inflight) except -1
    cpdef int report_front(self) except -1
    cpdef InflightRange holder(self, int pid)
    cpdef bint is_out_of_place(self, int pid, int kind) except -1
    cpdef int acknowledge_run(self, bytearray buffer, Py_ssize_t start, Py_ssize_t count) except -1
    cpdef bint receive(self, int pid) except -1
    cpdef Py_ssize_t receive_front(self, int pid, Py_ssize_t count) except -1
    cpdef int release(self, int pid, Py_ssize_t count, object settle, Py_ssize_t base) except -1
    cpdef bint refuse(self, int pid, int qos) except -1
    cpdef Py_ssize_t complete(self, int pid, Py_ssize_t count) except -1
