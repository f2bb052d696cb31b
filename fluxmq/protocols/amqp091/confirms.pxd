cdef class ConfirmWindow:
    cdef public unsigned long long next
    cdef public Py_ssize_t unanswered
    cdef unsigned long long _low
    cdef dict _tiles
    cdef list _fresh

    cpdef unsigned long long publish(self, Py_ssize_t count) except 0
    cpdef int done(self, unsigned long long first, Py_ssize_t count, bint ok) except -1
    cpdef bytes answers(self, int channel)

cdef class Confirmation:
    cdef public ConfirmWindow window
    cdef public unsigned long long first
    cdef public Py_ssize_t count
    cdef public object mark
    cdef public int waiting, reason

    cpdef Confirmation hold(self)
    cpdef int done(self, int reason=*) except -1
