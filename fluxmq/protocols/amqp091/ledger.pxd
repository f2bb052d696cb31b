cdef class Unacked:
    cdef object consumer
    cdef Py_ssize_t count
    cdef bint gone

cdef class Given:
    cdef unsigned long long first, low, offset
    cdef Py_ssize_t count, left
    cdef Unacked unacked
    cdef bytearray settled

cdef class ChannelLedger:
    cdef public int channel
    cdef public object mark
    cdef public bint direct, publishing
    cdef public Py_ssize_t unsettled
    cdef public unsigned long long next_tag
    cdef list _ranges, _taken
    cdef Py_ssize_t _head, _empty, _sweep_at
    cdef dict _consumers
    cdef object _last
    cdef unsigned long long _last_first, _last_end

    cdef Unacked _unacked(self, object consumer)
    cpdef unsigned long long given(self, object consumer, Py_ssize_t count, unsigned long long first_offset) except 0
    cpdef bint acknowledge(self, unsigned long long tag, bint multiple) except -1
    cdef int _settle_front(self, Given found, unsigned long long stop) except -1
    cdef Py_ssize_t _find(self, unsigned long long tag) except -2
    cdef int _settle_one(self, Given found, unsigned long long tag) except -1
    cdef int _emptied(self) except -1
    cdef int _settle_through(self, unsigned long long tag, list ranges) except -1
    cdef int _give(self, Given found, Py_ssize_t index, Py_ssize_t count, list ranges) except -1
    cdef int _note(self, object consumer, unsigned long long first, Py_ssize_t count) except -1
