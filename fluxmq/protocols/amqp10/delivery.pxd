from fluxmq.model.batch_format cimport Batch

cdef Py_ssize_t _FIRST
cdef unsigned int _REDELIVERED
cdef int _KEYS, _PROPERTIES

cdef class TransferForm:
    cdef public int channel
    cdef public unsigned int handle
    cdef public bint settled
    cdef public Py_ssize_t frame_max

cdef class DeliveryTemplate:
    cdef public bytes block, key, front, tail, head, lead, section, after
    cdef public bint wide, redelivered
    cdef public long long expiry
    cdef public Py_ssize_t offset_at, count
    cdef Py_ssize_t _tail_at, _tail_bytes

    cpdef bytes encode(self, Batch batch, Py_ssize_t first, Py_ssize_t most, TransferForm form, unsigned int delivery, Py_ssize_t room)
    cpdef bint matches(self, Batch batch, Py_ssize_t index) except -1
    cpdef bytes tail_of(self, Batch batch, Py_ssize_t index)
    cdef Py_ssize_t _size(self, Batch batch, Py_ssize_t index) except -2
    cdef bint _tail(self, Batch batch, Py_ssize_t index) except -1
