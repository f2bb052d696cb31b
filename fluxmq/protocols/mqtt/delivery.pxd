from fluxmq.protocols.connection cimport Connection, Tally
from fluxmq.protocols.mqtt.portion cimport Portion, Target
from fluxmq.protocols.mqtt.run cimport Run
from fluxmq.protocols.mqtt.window cimport Window

cdef class Delivery(Window):
    cdef public Tally tally
    cdef public Py_ssize_t pending_max, pending_max_connected, pending_bytes_max, pending_count, pending_bytes
    cdef public int policy
    cdef public Connection connection
    cdef public object session, pending, durable
    cdef public int other_pid
    cdef object __weakref__

    cpdef int offer(self, Run run, Target target) except -1
    cpdef int send_now(self, Run run, int retain, bytes subscription_ids) except -1
    cpdef bint blocked(self) except -1
    cpdef Py_ssize_t step(self, Run run, bytes subscription_ids) except -1
    cpdef int enqueue(self, Run run, int qos, int retain, bytes subscription_ids, object group) except -1
    cpdef int enqueue_portion(self, Portion portion) except -1
    cpdef Py_ssize_t weight(self, Portion portion) except -1
    cpdef int count(self, Portion portion, Py_ssize_t count) except -1
    cpdef Py_ssize_t bound(self) except -1
    cpdef int trim(self) except -1
    cpdef bint maybe_large(self, Portion portion) except -1
    cpdef bint unnumbered(self) except -1
    cpdef int write_unnumbered(self, Portion portion) except -1
    cpdef int pump(self) except -1
    cpdef int forget_pending(self, Portion portion) except -1
    cpdef int skip_large(self, Portion portion) except -1
    cpdef int sent(self, Portion portion) except -1
    cpdef Py_ssize_t free_for(self, Portion portion) except -1
    cpdef int drop(self, Portion portion) except -1
    cpdef int detach(self) except -1
    cpdef int attach(self, Connection connection, int window) except -1
