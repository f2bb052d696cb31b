cdef class Scanner:
    cdef public Py_ssize_t max_packet
    cdef public int version
    cdef public Py_ssize_t start, end, count, stride
    cdef public int first
    cdef public Py_ssize_t header, variable, topic_at, topic_length
    cdef public Py_ssize_t properties_at, properties_length, pid_at, largest, needed, frame_header
    cdef public int reason

    cdef int fail(self, int reason) noexcept

    cpdef int next(self, bytearray buffer, Py_ssize_t at, Py_ssize_t end) except -1

    cdef int publish(self, bytearray buffer, Py_ssize_t at, Py_ssize_t end, Py_ssize_t header, Py_ssize_t length) except -1

    cdef int extend(self, bytearray buffer, Py_ssize_t at, Py_ssize_t end, Py_ssize_t front, Py_ssize_t back) except -1

    cdef Py_ssize_t frame(self, bytearray buffer, Py_ssize_t at, Py_ssize_t end) except -1

    cdef int extend_any_size(self, bytearray buffer, Py_ssize_t at, Py_ssize_t end, Py_ssize_t front, Py_ssize_t back) except -1
