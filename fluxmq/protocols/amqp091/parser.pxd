from fluxmq.protocols.amqp091.ledger cimport ChannelLedger
from fluxmq.protocols.amqp091.run cimport AmqpPublishRun
from fluxmq.protocols.connection cimport Connection

cdef int _METHOD, _BODY, _HEARTBEAT, _END, _HANDLED, _SINGLE, _HOLD, _RUN, _SETTLED
cdef Py_ssize_t _FRAME, _PUBLISH_BYTES_MIN, _ACK_BYTES, _HEADER_BYTES_MIN
cdef unsigned int _BASIC_PUBLISH, _BASIC_ACK

cdef class AmqpParser:
    cdef public Py_ssize_t capacity, needed, following
    cdef public AmqpPublishRun run

    cpdef int process(self, Connection connection, bytearray buffer, Py_ssize_t end) except -1
    cdef int direct(self, Connection connection, ChannelLedger ledger, bytearray buffer, Py_ssize_t at, Py_ssize_t end, unsigned int method) except -1
    cdef Py_ssize_t protocol_header(self, Connection connection, bytearray buffer, Py_ssize_t end) except -1
    cdef int refuse(self, Connection connection, bytearray buffer, Py_ssize_t at, Py_ssize_t end, str reason) except -1
    cdef int publishes(self, bytearray buffer, Py_ssize_t at, Py_ssize_t end, Py_ssize_t frame_max) except -1
    cdef bint may_be(self, bytearray buffer, Py_ssize_t at, Py_ssize_t place, Py_ssize_t end, int kind) except -1
    cdef AmqpPublishRun run_from(self, bytearray buffer, Py_ssize_t at, Py_ssize_t end, Py_ssize_t frame_max, Py_ssize_t header, Py_ssize_t body, Py_ssize_t length)
    cdef int extend(self, AmqpPublishRun run, bytearray buffer, Py_ssize_t end, Py_ssize_t length) except -1
    cdef int extend_any_size(self, AmqpPublishRun run, bytearray buffer, Py_ssize_t end, Py_ssize_t frame_max) except -1
