from fluxmq.model.batch_format cimport Batch

cdef Py_ssize_t _FRAME, _SHORT_MAX

cpdef bytes encode_deliveries(Batch batch, Py_ssize_t first, Py_ssize_t count, int channel, bytes consumer_tag, unsigned long long first_tag, bint redelivered, bytes exchange, bytes routing_key, bytes properties, Py_ssize_t frame_max, Py_ssize_t offset_at=*)
