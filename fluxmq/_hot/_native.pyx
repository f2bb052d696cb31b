# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Shared-memory ring with atomics, and a thread that syncs files: what pure Python cannot express.

Ring. Layout of the shared file (little endian): ``head`` (u64, bytes ever written) at 0, ``tail`` (u64, bytes ever
read) at 64, ``sleeping`` (u32, the reader waits for a wake-up) at 128, data from 4096 on. A record is a u32
length and its bytes, padded to 8; the length 0xFFFFFFFF sends the reader back to the start. One writer, one
reader, different processes: the writer publishes with a release store of ``head``, the reader frees with a
release store of ``tail``. A writer that dies between copy and publication leaves nothing visible.

Sync thread. It takes requests (descriptor, number) in order, calls fdatasync without ever holding the interpreter's
lock, and puts (number, errno, seconds) into a ring of as many places as requests may be under way; an eventfd tells
that something is there. Requests that wait together for one descriptor are answered by one call.
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
        """The longest record that always fits once the ring is empty."""
        return self.capacity // 2 - 16

    def push(self, bytes head not None, object body=None, Py_ssize_t start=0, Py_ssize_t end=0):
        """Write one record: ``head`` then ``body[start:end]``. False when there is no room."""
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
        """Read one record as bytes; None when there is none."""
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
        """Forget everything not yet read: a restarted reader starts afresh."""
        ring_store(self.tail, ring_load(self.head))

    def sleep(self):
        """Announce that the reader waits. True when it may; False when records came meanwhile."""
        ring_store32(self.sleeping, 1)
        ring_fence()
        if ring_load(self.head) != self.tail[0]:
            ring_store32(self.sleeping, 0)
            return False
        return True

    def take_sleeper(self):
        """After a push: True, once, when the reader sleeps and must be woken."""
        ring_fence()
        if ring_load32(self.sleeping):
            ring_store32(self.sleeping, 0)
            return True
        return False

    def awake(self):
        """The reader runs: no wake-ups are needed."""
        ring_store32(self.sleeping, 0)


cdef extern from *:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <stdlib.h>
    #include <sys/eventfd.h>
    #include <time.h>
    #include <unistd.h>

    #define SYNC_REQUESTS_MAX 64

    typedef struct { uint64_t number; int fd; int error; double seconds; } sync_request;

    /* Requests taken <= synced <= asked; places are these counts modulo the ring's size. */
    typedef struct {
        pthread_mutex_t mutex;
        pthread_cond_t wanted;
        pthread_t thread;
        sync_request ring[SYNC_REQUESTS_MAX];
        uint64_t asked, synced, taken;
        int stop, event;
        double delay;
    } sync_thread;

    static double sync_clock(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    }

    static void *sync_main(void *argument) {
        sync_thread *t = argument;
        const uint64_t one = 1;
        pthread_mutex_lock(&t->mutex);
        for (;;) {
            while (t->asked == t->synced && !t->stop) pthread_cond_wait(&t->wanted, &t->mutex);
            if (t->asked == t->synced) break;
            uint64_t first = t->synced, last = first + 1;
            int fd = t->ring[first % SYNC_REQUESTS_MAX].fd;
            while (last < t->asked && t->ring[last % SYNC_REQUESTS_MAX].fd == fd) last++;
            pthread_mutex_unlock(&t->mutex);
            double begin = sync_clock();
            if (t->delay > 0) {
                struct timespec pause = {(time_t)t->delay, (long)((t->delay - (double)(time_t)t->delay) * 1e9)};
                while (nanosleep(&pause, &pause) && errno == EINTR) {}
            }
            int error;
            do error = fdatasync(fd) ? errno : 0; while (error == EINTR);
            double seconds = sync_clock() - begin;
            pthread_mutex_lock(&t->mutex);
            for (uint64_t i = first; i < last; i++) {
                t->ring[i % SYNC_REQUESTS_MAX].error = error;
                t->ring[i % SYNC_REQUESTS_MAX].seconds = seconds;
            }
            t->synced = last;
            if (write(t->event, &one, sizeof one) < 0) { /* the counter is far from its end */ }
        }
        pthread_mutex_unlock(&t->mutex);
        return NULL;
    }

    static sync_thread *sync_start(double delay) {
        sync_thread *t = calloc(1, sizeof *t);
        if (!t) return NULL;
        t->delay = delay;
        t->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        pthread_mutex_init(&t->mutex, NULL);
        pthread_cond_init(&t->wanted, NULL);
        if (t->event < 0 || pthread_create(&t->thread, NULL, sync_main, t)) {
            if (t->event >= 0) close(t->event);
            free(t);
            return NULL;
        }
        return t;
    }

    static int sync_submit(sync_thread *t, int fd, uint64_t number) {
        pthread_mutex_lock(&t->mutex);
        int room = t->asked - t->taken < SYNC_REQUESTS_MAX;
        if (room) {
            sync_request *request = &t->ring[t->asked % SYNC_REQUESTS_MAX];
            request->fd = fd;
            request->number = number;
            t->asked++;
            pthread_cond_signal(&t->wanted);
        }
        pthread_mutex_unlock(&t->mutex);
        return room;
    }

    static int sync_take(sync_thread *t, sync_request *request) {
        pthread_mutex_lock(&t->mutex);
        int found = t->taken < t->synced;
        if (found) *request = t->ring[t->taken++ % SYNC_REQUESTS_MAX];
        pthread_mutex_unlock(&t->mutex);
        return found;
    }

    static void sync_stop(sync_thread *t) {
        pthread_mutex_lock(&t->mutex);
        t->stop = 1;
        pthread_cond_signal(&t->wanted);
        pthread_mutex_unlock(&t->mutex);
        pthread_join(t->thread, NULL);
        close(t->event);
        free(t);
    }

    static void sync_drain(sync_thread *t) {
        uint64_t count;
        if (read(t->event, &count, sizeof count) < 0) { /* nothing was there */ }
    }
    """
    ctypedef struct sync_request:
        uint64_t number
        int error
        double seconds
    ctypedef struct sync_thread:
        int event
    sync_thread* sync_start(double delay)
    int sync_submit(sync_thread* thread, int fd, uint64_t number) nogil
    int sync_take(sync_thread* thread, sync_request* request) nogil
    void sync_stop(sync_thread* thread) nogil
    void sync_drain(sync_thread* thread) nogil


cdef class SyncThread:
    """Syncs files in a thread of its own. ``delay`` seconds are added to each call, for benchmarks."""

    cdef sync_thread* thread

    def __cinit__(self, double delay=0.0):
        self.thread = sync_start(delay)
        if self.thread is NULL:
            raise OSError("the sync thread could not be started")

    cdef int check(self) except -1:
        if self.thread is NULL:
            raise ValueError("the sync thread was stopped")
        return 0

    def fileno(self):
        """An eventfd, readable when something completed since the last ``completed``."""
        self.check()
        return self.thread.event

    def submit(self, int fd, uint64_t number):
        """Ask for fdatasync of ``fd``, which stays open until it is answered. False when too many are under way."""
        self.check()
        return bool(sync_submit(self.thread, fd, number))

    def completed(self):
        """What was synced since the last call: number, errno (0: it worked) and seconds, in the order asked."""
        cdef sync_request request
        self.check()
        sync_drain(self.thread)
        found = []
        while sync_take(self.thread, &request):
            found.append((request.number, request.error, request.seconds))
        return found

    def close(self):
        """Finish what was asked for and end the thread."""
        cdef sync_thread* thread = self.thread
        self.thread = NULL
        if thread is not NULL:
            with nogil:
                sync_stop(thread)

    def __dealloc__(self):
        self.close()
