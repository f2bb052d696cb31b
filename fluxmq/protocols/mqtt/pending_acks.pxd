from fluxmq.protocols.connection cimport Connection
from fluxmq.protocols.mqtt.run cimport PublishRun

cdef class PendingAck:
    cdef public object reactor
    cdef public Connection connection
    cdef public bytes answers
    cdef public int waiting, reason
    cdef public object notify

    cpdef PendingAck hold(self)
    cpdef int done(self, int reason=*) except -1
    cpdef int answer(self, Connection connection, bytes answers) except -1

cpdef int respond(Connection connection, PublishRun run, PendingAck pending_ack, object reactor) except -1

cpdef int release(Connection connection, object reactor) except -1
cpdef int abandon(Connection connection) except -1
