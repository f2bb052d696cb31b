cdef Py_ssize_t _RUN_MAX, _BYTES_MIN, _DATA, _HEAD, _FRAME
cdef int _NULL, _TRUE, _FALSE, _ZERO, _FIELDS_MAX, _MODE, _STATE, _BATCHABLE, _ID, _CORRELATION, _CREATION

cdef class TransferRun:
    cdef int[::1] places
    cdef public object buffer
    cdef public Py_ssize_t start, count, largest
    cdef public int channel
    cdef public unsigned int handle, first
    cdef public bint settled
    cdef unsigned int _number, _handle, _delivery
    cdef bint _settled

    cpdef Py_ssize_t read(self, object buffer, Py_ssize_t at, Py_ssize_t end, Py_ssize_t frame_max) except -1
    cpdef Py_ssize_t begin(self, Py_ssize_t index) except -1
    cpdef Py_ssize_t end(self, Py_ssize_t index) except -1
    cdef Py_ssize_t _envelope(self, object buffer, Py_ssize_t at, Py_ssize_t end) except -2
    cdef Py_ssize_t _uint(self, object buffer, Py_ssize_t at, Py_ssize_t stop) except -2

cdef class MessageShape:
    cdef public bytes front, head, lead
    cdef public Py_ssize_t properties_at, payload_bytes, largest, stride
    cdef public bint varied, wide
    cdef Py_ssize_t _fields, _fields_behind
    cdef bytes _before, _middle, _behind, _rest

    cpdef Py_ssize_t extent(self, TransferRun run, Py_ssize_t index, Py_ssize_t end) except -1
    cdef Py_ssize_t _payload_at(self, object buffer, Py_ssize_t at, Py_ssize_t end) except -2
    cdef Py_ssize_t _walk(self, object buffer, Py_ssize_t at, Py_ssize_t end) except -2
    cpdef bytes framed(self, TransferRun run, Py_ssize_t index, Py_ssize_t count)
    cpdef tuple blocks(self, TransferRun run, Py_ssize_t index, Py_ssize_t count)
