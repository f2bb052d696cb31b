cimport cython
from fluxmq.protocols.connection cimport Connection, Tally
from fluxmq.protocols.mqtt.run cimport PublishRun

@cython.freelist(64)
cdef class InflightRange:
    cdef public PublishRun run
    cdef public Py_ssize_t offset, count, acknowledged, base, reported, held
    cdef public int qos, retain, pid
    cdef public bytes subscription_ids
    cdef public object group, settle
    cdef public bint queued

    cpdef InflightRange take(self, Py_ssize_t count)
    cpdef int forget_fit(self) except -1

cpdef list fitting(InflightRange inflight, Connection connection)

cpdef list unanswered(InflightRange inflight, object early)

cpdef int write_inflight(Connection connection, InflightRange inflight, int pid, bint redelivered) except -1
