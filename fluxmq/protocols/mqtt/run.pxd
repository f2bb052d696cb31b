cdef class PublishRun:
    cdef public object buffer
    cdef public Py_ssize_t start, end, count, stride, variable, pid_at, largest, body_length
    cdef public int version, qos, retain
    cdef public bint verbatim, kept, fixed, control
    cdef public double deadline
    cdef public bytes topic, properties
    cdef public object publisher, options
    cdef public tuple identity
    cdef dict _plain

    cpdef int detach(self) except -1
    cpdef PublishRun part(self, Py_ssize_t offset, Py_ssize_t end, Py_ssize_t count)
    cpdef Py_ssize_t skip(self, Py_ssize_t offset, Py_ssize_t count) except -1
    cpdef Py_ssize_t body_at(self, Py_ssize_t offset) except -1
    cpdef bytes plain(self, int version)
    cpdef list packet_id_ranges(self)

cpdef bytes properties_field(int version, bytes forward, long expiry, int alias, bytes subscription_ids)
cpdef bytes encode_length(Py_ssize_t length)
cpdef Py_ssize_t append_publishes(bytearray out, PublishRun run, Py_ssize_t offset, Py_ssize_t count, int first, bytes topic, bytes properties, int pid) except -1
cpdef Py_ssize_t append_numbered(bytearray out, PublishRun run, Py_ssize_t offset, Py_ssize_t count, int first, int pid) except -1
cpdef int append_acknowledgements(bytearray out, PublishRun run, int first) except -1
