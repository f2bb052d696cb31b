cdef class Batch:
    cdef readonly bytes data
    cdef readonly Py_ssize_t start, length, count, key_bytes, property_bytes, payload_bytes
    cdef readonly int flags, last_delta
    cdef readonly unsigned long long base_offset, payload_check
    cdef readonly long long base_time
    cdef readonly unsigned int term
    cdef readonly Py_ssize_t expiry_at, delay_at, producer_at, attributes_at, times_at
    cdef readonly Py_ssize_t key_ends_at, property_ends_at, payload_ends_at
    cdef readonly Py_ssize_t keys_at, properties_at, payloads_at

    cdef int check(self) except -1
    cdef Py_ssize_t locate(self)
    cdef int inside(self, Py_ssize_t index) except -1
    cdef bytes piece(self, Py_ssize_t ends, Py_ssize_t area)
    cpdef int stamp(self, unsigned long long base_offset, long long base_time, unsigned int term) except -1
    cpdef bytes header(self)
    cpdef object body(self)
    cpdef bytes key(self, Py_ssize_t index)
    cpdef bytes properties(self, Py_ssize_t index)
    cpdef bytes payload(self, Py_ssize_t index)
    cpdef Py_ssize_t payload_length(self, Py_ssize_t index) except -1
    cpdef long long expiry(self, Py_ssize_t index) except? -1
    cpdef long long delay(self, Py_ssize_t index) except? -1
    cpdef unsigned long long producer(self, Py_ssize_t index) except? 1
    cpdef long long sequence(self, Py_ssize_t index) except? -1
    cpdef unsigned int attributes(self, Py_ssize_t index) except? 1
    cpdef long long time(self, Py_ssize_t index) except? -1

cpdef Batch parse(bytes data, Py_ssize_t start=*)
cpdef int verify(Batch batch) except -1
cpdef bytes encode_header(Py_ssize_t length, int flags, unsigned long long base_offset, long long base_time, unsigned long long payload_check, Py_ssize_t count, Py_ssize_t key_bytes, Py_ssize_t property_bytes, Py_ssize_t payload_bytes, unsigned int term, int last_delta)
