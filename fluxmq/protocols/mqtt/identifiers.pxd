cdef class IdentifierRanges:
    cdef public Py_ssize_t count
    cdef public list firsts, lasts

    cpdef bint has(self, Py_ssize_t number) except -1
    cpdef bint overlaps(self, Py_ssize_t first, Py_ssize_t count) except -1
    cpdef list near(self, Py_ssize_t first, Py_ssize_t count)
    cpdef list ranges(self)
    cpdef list _between(self, Py_ssize_t low, Py_ssize_t high)
    cpdef int add(self, Py_ssize_t first, Py_ssize_t count) except -1
    cpdef list remove(self, Py_ssize_t first, Py_ssize_t count)

cdef class ReleasedRange:
    cdef public Py_ssize_t pid, count, base, turn
    cdef public object settle

    cpdef ReleasedRange part(self, Py_ssize_t pid, Py_ssize_t end)

cdef class ReleasedIdentifiers:
    cdef public Py_ssize_t count, turns
    cdef public list firsts, ranges
    cdef public ReleasedRange newest

    cpdef bint has(self, Py_ssize_t pid) except -1
    cpdef int add(self, Py_ssize_t pid, Py_ssize_t count, object settle, Py_ssize_t base) except -1
    cpdef list parts(self, Py_ssize_t pid, Py_ssize_t count)
    cpdef list take(self, Py_ssize_t pid, Py_ssize_t count)
    cpdef Py_ssize_t _first_at(self, Py_ssize_t pid) except -1

cpdef list identifier_ranges(bytearray buffer, Py_ssize_t start, Py_ssize_t count)
cpdef int append_range(bytearray out, int kind, Py_ssize_t first, Py_ssize_t count) except -1
