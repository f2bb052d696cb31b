from fluxmq.model.batch_format cimport Batch
from fluxmq.protocols.mqtt.run cimport PublishRun

cdef class OffsetProperties:
    cdef readonly bytes queue

    cpdef bytes encode(self, unsigned long long offset)

cpdef list delivery_runs(Batch batch, Py_ssize_t first, Py_ssize_t count, int version, bytes topic, bytes properties, OffsetProperties offsets=*, int qos=*, unsigned int expiry_seconds=*)
