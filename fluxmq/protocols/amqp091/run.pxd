cdef Py_ssize_t _FRAME_HEADER, _BODY_SIZE_AT, _MESSAGES_MAX, _PAYLOADS_MAX

cdef int _ATTRIBUTES

cdef class AmqpPublishRun:
    cdef public object buffer
    cdef public Py_ssize_t start, end, count, stride, method_size, header_size
    cdef public Py_ssize_t payload_bytes, largest, body_length
    cdef public int channel
    cdef public bint mandatory, immediate, kept
    cdef public bytes exchange, routing_key, properties
    cdef public tuple blocks
    cdef tuple _walked

    cpdef int detach(self) except -1
    cpdef Py_ssize_t body_at(self, Py_ssize_t offset) except -1
    cpdef Py_ssize_t following(self, Py_ssize_t offset) except -1
    cpdef bytes payload(self, Py_ssize_t index)

cpdef list build_amqp_batches(AmqpPublishRun run, bytes key, bytes block, long long now_us, long long expiry_us=*, long long delay_us=*, unsigned long long producer=*, long long sequence=*, unsigned int attributes=*)
