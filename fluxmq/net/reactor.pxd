from fluxmq.protocols.amqp091.parser cimport AmqpParser
from fluxmq.protocols.connection cimport Connection, Tally
from fluxmq.protocols.mqtt.delivery cimport SessionDelivery
from fluxmq.protocols.mqtt.delivery cimport Target
from fluxmq.net.route cimport Route
from fluxmq.protocols.mqtt.run cimport PublishRun
from fluxmq.protocols.mqtt.scan cimport Scanner
from fluxmq.protocols.mqtt.pending_acks cimport PendingAck

cdef class Reactor:
    cdef public object host, poller, inbox
    cdef public Tally tally
    cdef public dict connections, others, routes
    cdef public list dirty
    cdef public Py_ssize_t routes_max, max_packet, max_first_packet
    cdef public int max_qos, watching
    cdef public bint link_full, ticking, unfinished
    cdef public double awaited
    cdef public bytearray buffer
    cdef public Scanner scanner
    cdef public AmqpParser amqp
    cdef public PendingAck pending_ack

    cpdef int tick(self) except -1
    cpdef int flush(self) except -1
    cpdef int drained(self, Connection connection) except -1
    cpdef int lost(self, Connection connection) except -1
    cpdef int writable(self, Connection connection) except -1
    cpdef int readable(self, Connection connection) except -1
    cpdef int filtered(self, Connection connection, bytes data) except -1
    cpdef int process(self, Connection connection, bytearray buffer, Py_ssize_t end) except -1
    cpdef int publish(self, Connection connection, bytearray buffer) except -1
    cpdef PendingAck hold(self)
    cpdef int accept(self, Connection connection, PublishRun run) except -1
    cpdef int publish_run(self, PublishRun run) except -2
    cpdef int forward(self, PublishRun run, Route route) except -1
    cpdef int deliver(self, PublishRun run, Route route) except -1
