from fluxmq.protocols.connection cimport Connection, Tally
from fluxmq.protocols.mqtt.inflight_range cimport InflightRange
from fluxmq.protocols.mqtt.run cimport PublishRun
from fluxmq.protocols.mqtt.window cimport InflightWindow

cdef class Target:
    cdef public object delivery
    cdef public int qos
    cdef public bint no_local, keep_retain
    cdef public Target own
    cdef public bytes subscription_ids

cdef class SessionDelivery(InflightWindow):
    cdef public Tally tally
    cdef public Py_ssize_t pending_max, pending_max_connected, pending_bytes_max, pending_count, pending_bytes
    cdef public int policy
    cdef public Connection connection
    cdef public object session, pending, durable
    cdef public int other_pid
    cdef object __weakref__

    cpdef int offer(self, PublishRun run, Target target) except -1
    cpdef int send_now(self, PublishRun run, int retain, bytes subscription_ids) except -1
    cpdef bint blocked(self) except -1
    cpdef Py_ssize_t step(self, PublishRun run, bytes subscription_ids) except -1
    cpdef int enqueue(self, PublishRun run, int qos, int retain, bytes subscription_ids, object group) except -1
    cpdef int enqueue_inflight(self, InflightRange inflight) except -1
    cpdef Py_ssize_t weight(self, InflightRange inflight) except -1
    cpdef int count(self, InflightRange inflight, Py_ssize_t count) except -1
    cpdef Py_ssize_t bound(self) except -1
    cpdef int trim(self) except -1
    cpdef bint maybe_large(self, InflightRange inflight) except -1
    cpdef bint unnumbered(self) except -1
    cpdef int write_unnumbered(self, InflightRange inflight) except -1
    cpdef int pump(self) except -1
    cpdef int forget_pending(self, InflightRange inflight) except -1
    cpdef int skip_large(self, InflightRange inflight) except -1
    cpdef int sent(self, InflightRange inflight) except -1
    cpdef Py_ssize_t free_for(self, InflightRange inflight) except -1
    cpdef int drop(self, InflightRange inflight) except -1
    cpdef int detach(self) except -1
    cpdef int attach(self, Connection connection, int window) except -1
