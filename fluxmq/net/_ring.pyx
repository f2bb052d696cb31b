# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Shared-memory ring with atomics: beyond what pure Python can express.

Layout of the shared file (little endian): ``head`` (u64, bytes ever written) at 0, ``tail`` (u64,
bytes ever read) at 64, ``sleeping`` (u32, the reader waits for a wake-up) at 128, data from 4096
on. A record is a u32 length and its bytes, padded to 8; the length 0xFFFFFFFF sends the reader back
to the start. One writer, one reader, different processes: the writer publishes with a release store
of ``head``, the reader frees with a release store of ``tail``. A writer that dies between copy and
publication leaves nothing visible.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Check
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #define ring_load(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
    #define ring_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
    #define ring_fence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
    """
    uint64_t ring_load(uint64_t *place) nogil
    uint32_t ring_load32 "ring_load"(uint32_t *place) nogil
    void ring_store(uint64_t *place, uint64_t value) nogil
    void ring_store32 "ring_store"(uint32_t *place, uint32_t value) nogil
    void ring_fence() nogil

HEADER_BYTES = 4096
cdef enum:
    DATA_AT = 4096
cdef uint32_t WRAP = 0xFFFFFFFF


cdef class Ring:
    """One direction between two shards over ``memory``, a writable map of the shared file."""

    cdef unsigned char[::1] view
    cdef unsigned char* base
    cdef uint64_t* head
    cdef uint64_t* tail
    cdef uint32_t* sleeping
    cdef uint64_t capacity

    def __init__(self, memory):
        self.view = memory
        if self.view.shape[0] <= DATA_AT or (self.view.shape[0] - DATA_AT) % 8:
            raise ValueError("a ring needs its header page and a multiple of 8 bytes")
        self.base = &self.view[0] + DATA_AT
        self.head = <uint64_t*>&self.view[0]
        self.tail = <uint64_t*>(&self.view[0] + 64)
        self.sleeping = <uint32_t*>(&self.view[0] + 128)
        self.capacity = self.view.shape[0] - DATA_AT

    @property
    def used(self):
        """Bytes written and not yet read."""
        return ring_load(self.head) - ring_load(self.tail)

    @property
    def record_max(self):
        """Length of the longest record that always fits an empty ring."""
        return self.capacity // 2 - 16

    def push(self, bytes head not None, object body=None, Py_ssize_t start=0, Py_ssize_t end=0):
        """Write one record: ``head`` then ``body[start:end]``. Return False when there is no
        room."""
        cdef uint64_t written = self.head[0]
        cdef uint64_t length = len(head) + (end - start)
        cdef uint64_t need = (length + 4 + 7) & ~<uint64_t>7
        cdef uint64_t place = written % self.capacity
        cdef uint64_t free = self.capacity - (written - ring_load(self.tail))
        cdef unsigned char* target
        if length > self.capacity // 2 - 16:
            raise ValueError("record longer than the ring takes")
        if place + need > self.capacity:
            if free < need + (self.capacity - place):
                return False
            (<uint32_t*>(self.base + place))[0] = WRAP
            written += self.capacity - place
            place = 0
        elif free < need:
            return False
        target = self.base + place
        (<uint32_t*>target)[0] = <uint32_t>length
        memcpy(target + 4, PyBytes_AS_STRING(head), len(head))
        if end > start:
            if PyByteArray_Check(body):
                memcpy(target + 4 + len(head), PyByteArray_AS_STRING(body) + start, end - start)
            else:
                memcpy(target + 4 + len(head), PyBytes_AS_STRING(<bytes?>body) + start, end - start)
        ring_store(self.head, written + need)
        return True

    def pop(self):
        """Read one record as bytes; return None when there is none."""
        cdef uint64_t read = self.tail[0]
        cdef uint64_t written = ring_load(self.head)
        cdef uint64_t place
        cdef uint32_t length
        if read == written:
            return None
        place = read % self.capacity
        length = (<uint32_t*>(self.base + place))[0]
        if length == WRAP:
            read += self.capacity - place
            place = 0
            length = (<uint32_t*>self.base)[0]
        if <uint64_t>length + 4 > self.capacity - place or read >= written:
            raise ValueError("ring is corrupt")
        record = PyBytes_FromStringAndSize(<char*>self.base + place + 4, length)
        ring_store(self.tail, read + ((<uint64_t>length + 4 + 7) & ~<uint64_t>7))
        return record

    def reset_reader(self):
        """Discard everything not yet read, for a restarted reader."""
        ring_store(self.tail, ring_load(self.head))

    def take_sleeper(self):
        """Return True, once, when the reader sleeps and must be woken; called after a push."""
        ring_fence()
        if ring_load32(self.sleeping):
            ring_store32(self.sleeping, 0)
            return True
        return False


cdef class RingInbox:
    """The rings that one shard reads, looked at together: a look at each costs two loads. Implements
    ``Inbox``; ``links`` read from ``rings``, in the same order."""

    cdef list rings
    cdef list links

    def __init__(self, list rings not None, list links not None):
        if len(rings) != len(links):
            raise ValueError("each ring has one link")
        for ring in rings:
            if not isinstance(ring, Ring):
                raise TypeError("an inbox is of rings")
        self.rings = rings
        self.links = links

    def ready(self):
        """Return the links whose rings have records."""
        cdef Py_ssize_t at
        cdef Ring ring
        cdef list found = None
        for at in range(len(self.rings)):
            ring = <Ring>self.rings[at]
            if ring_load(ring.head) != ring.tail[0]:
                if found is None:
                    found = []
                found.append(self.links[at])
        return () if found is None else found

    def sleep(self):
        """Announce for all rings that the reader waits. Return True when it may; False when records
        came meanwhile."""
        cdef Py_ssize_t at
        cdef Ring ring
        cdef bint quiet = True
        for at in range(len(self.rings)):
            ring = <Ring>self.rings[at]
            # Writers look at it after each record: it is not taken from their caches for nothing.
            if not ring_load32(ring.sleeping):
                ring_store32(ring.sleeping, 1)
        ring_fence()
        for at in range(len(self.rings)):
            ring = <Ring>self.rings[at]
            if ring_load(ring.head) != ring.tail[0]:
                ring_store32(ring.sleeping, 0)
                quiet = False
        return quiet
