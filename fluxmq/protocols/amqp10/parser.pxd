from fluxmq.protocols.amqp10.transfer_run cimport TransferRun
from fluxmq.protocols.connection cimport Connection

cdef Py_ssize_t _HEAD
cdef int _TRANSFER, _DISPOSITION, _ACCEPTED, _NULL, _TRUE, _FALSE

cdef class Amqp10Parser:
    cdef public Py_ssize_t capacity
    cdef TransferRun _run
    cdef Py_ssize_t _following
    cdef unsigned int _first, _last, _number

    cpdef int process(self, Connection connection, bytearray buffer, Py_ssize_t end) except -1
    cdef int _transfers(self, Connection connection, object handler, bytearray buffer) except -1
    cdef bint _accepts(self, bytearray buffer, Py_ssize_t at, Py_ssize_t end, Py_ssize_t frame_max) except -1
    cdef bint _accepted(self, bytearray buffer, Py_ssize_t at, Py_ssize_t end) except -1
    cdef Py_ssize_t _uint(self, bytearray buffer, Py_ssize_t at, Py_ssize_t end) except -2
