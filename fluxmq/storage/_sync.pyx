# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A thread that syncs files: beyond what pure Python can express.

It takes requests (descriptor, number) in order, calls fdatasync without ever holding the
interpreter's lock, and puts (number, errno, seconds) into a ring with a slot for every request
allowed in flight; an eventfd signals results. One call answers requests that wait together for one
descriptor. A request may carry a mark: a few bytes that are written elsewhere after a successful
sync, and before its report.

Both sides share only counters, each written by one of them: with a lock they would preempt each
other where they share a core. A submitter makes a system call when the thread sleeps; a reader of
results only when signalled.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <sched.h>
    #include <semaphore.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/eventfd.h>
    #include <time.h>
    #include <unistd.h>

    #define SYNC_REQUESTS_MAX 64
    #define SYNC_MARK_BYTES 64
    #define SYNC_LINE 64

    typedef struct {
        uint64_t number, mark_position;
        int fd, error, mark_fd, mark_bytes;
        double seconds;
        char mark[SYNC_MARK_BYTES];
    } sync_request;

    /* Requests taken <= synced <= asked; slots are these counts modulo the ring's size. `signals` counts writes to
       the eventfd, and is incremented before them; `drained` what was read of it. */
    typedef struct {
        sync_request ring[SYNC_REQUESTS_MAX];
        uint64_t asked;
        int stop;
        char between[SYNC_LINE];
        uint64_t synced, signals;
        char beyond[SYNC_LINE];
        uint64_t taken, drained;
        sem_t wanted;
        pthread_t thread;
        int event, spread;
        cpu_set_t cores;
        double delay;
    } sync_thread;

    static double sync_clock(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    }

    static void sync_pause(double seconds) {
        struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
        while (nanosleep(&pause, &pause) && errno == EINTR) {}
    }

    /* Return 0 or the error. A full disk is no error: the older mark is still true. */
    static int sync_mark(const sync_request *request) {
        ssize_t done;
        if (request->mark_fd < 0) return 0;
        do done = pwrite(request->mark_fd, request->mark, request->mark_bytes, (off_t)request->mark_position);
        while (done < 0 && errno == EINTR);
        if (done == request->mark_bytes) return 0;
        if (done >= 0) return EIO;
        return errno == ENOSPC || errno == EDQUOT ? 0 : errno;
    }

    static void sync_expect(sync_thread *t) { __atomic_add_fetch(&t->signals, 1, __ATOMIC_SEQ_CST); }

    static void sync_signal(sync_thread *t) {
        const uint64_t one = 1;
        sync_expect(t);
        if (write(t->event, &one, sizeof one) < 0) { /* the counter is far from its end */ }
    }

    static void *sync_main(void *argument) {
        sync_thread *t = argument;
        /* A shard is bound to its core; a thread waiting for a disk there would compete with it. */
        if (t->spread && sched_setaffinity(0, sizeof t->cores, &t->cores)) { /* then they do compete */ }
        for (;;) {
            while (sem_wait(&t->wanted) && errno == EINTR) {}
            uint64_t first = t->synced, last = first + 1;
            uint64_t asked = __atomic_load_n(&t->asked, __ATOMIC_ACQUIRE);
            if (asked == first) {
                if (__atomic_load_n(&t->stop, __ATOMIC_ACQUIRE)) break;
                continue;
            }
            int fd = t->ring[first % SYNC_REQUESTS_MAX].fd;
            while (last < asked && t->ring[last % SYNC_REQUESTS_MAX].fd == fd) last++;
            double begin = sync_clock();
            if (t->delay > 0) sync_pause(t->delay);
            int error;
            do error = fdatasync(fd) ? errno : 0; while (error == EINTR);
            double seconds = sync_clock() - begin;
            if (!error) error = -sync_mark(&t->ring[(last - 1) % SYNC_REQUESTS_MAX]);
            for (uint64_t i = first; i < last; i++) {
                t->ring[i % SYNC_REQUESTS_MAX].error = error;
                t->ring[i % SYNC_REQUESTS_MAX].seconds = seconds;
            }
            __atomic_store_n(&t->synced, last, __ATOMIC_RELEASE);
            sync_signal(t);
        }
        return NULL;
    }

    static sync_thread *sync_new(double delay) {
        sync_thread *t = calloc(1, sizeof *t);
        if (!t) return NULL;
        t->delay = delay;
        CPU_ZERO(&t->cores);
        t->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (t->event < 0) {
            free(t);
            return NULL;
        }
        sem_init(&t->wanted, 0, 0);
        return t;
    }

    static void sync_spread(sync_thread *t, int core) {
        if (core < 0 || core >= CPU_SETSIZE) return;
        CPU_SET(core, &t->cores);
        t->spread = 1;
    }

    static int sync_start(sync_thread *t) { return pthread_create(&t->thread, NULL, sync_main, t); }

    static void sync_free(sync_thread *t) {
        close(t->event);
        sem_destroy(&t->wanted);
        free(t);
    }

    static int sync_submit(sync_thread *t, int fd, uint64_t number, int mark_fd, uint64_t position, const char *mark,
                           int bytes) {
        if (t->asked - t->taken >= SYNC_REQUESTS_MAX) return 0;
        sync_request *request = &t->ring[t->asked % SYNC_REQUESTS_MAX];
        request->fd = fd;
        request->number = number;
        request->mark_fd = mark_fd;
        request->mark_position = position;
        request->mark_bytes = bytes;
        if (bytes) memcpy(request->mark, mark, bytes);
        __atomic_store_n(&t->asked, t->asked + 1, __ATOMIC_RELEASE);
        sem_post(&t->wanted);
        return 1;
    }

    static int sync_take(sync_thread *t, sync_request *request) {
        if (t->taken == __atomic_load_n(&t->synced, __ATOMIC_ACQUIRE)) return 0;
        *request = t->ring[t->taken++ % SYNC_REQUESTS_MAX];
        return 1;
    }

    static void sync_stop(sync_thread *t) {
        __atomic_store_n(&t->stop, 1, __ATOMIC_RELEASE);
        sem_post(&t->wanted);
        pthread_join(t->thread, NULL);
        sync_free(t);
    }

    /* Make the eventfd unreadable again. A signal counted but not yet written is read the next time. */
    static void sync_drain(sync_thread *t) {
        uint64_t count;
        if (t->drained == __atomic_load_n(&t->signals, __ATOMIC_ACQUIRE)) return;
        if (read(t->event, &count, sizeof count) == sizeof count) t->drained += count;
    }
    """
    enum:
        SYNC_MARK_BYTES
    ctypedef struct sync_request:
        uint64_t number
        int error
        double seconds
    ctypedef struct sync_thread:
        int event
    sync_thread* sync_new(double delay)
    void sync_spread(sync_thread* thread, int core)
    int sync_start(sync_thread* thread)
    void sync_free(sync_thread* thread)
    int sync_submit(
        sync_thread* thread, int fd, uint64_t number, int mark_fd, uint64_t position, const char* mark, int size
    ) nogil
    int sync_take(sync_thread* thread, sync_request* request) nogil
    void sync_stop(sync_thread* thread) nogil
    void sync_drain(sync_thread* thread) nogil
    void sync_signal(sync_thread* thread) nogil
    void sync_expect(sync_thread* thread) nogil


cdef class SyncThread:
    """Syncs files in a thread of its own. ``delay`` seconds are added to each call, for benchmarks.

    ``cores``: processors the thread may run on; with none, the creator's.
    """

    cdef sync_thread* thread

    def __cinit__(self, double delay=0.0, cores=()):
        cdef sync_thread* thread = sync_new(delay)
        if thread is NULL:
            raise OSError("the sync thread could not be made")
        for core in cores:
            sync_spread(thread, core)
        if sync_start(thread):
            sync_free(thread)
            raise OSError("the sync thread could not be started")
        self.thread = thread

    cdef int check(self) except -1:
        if self.thread is NULL:
            raise ValueError("the sync thread was stopped")
        return 0

    def fileno(self):
        """Return an eventfd, readable when something completed since the last ``completed``."""
        self.check()
        return self.thread.event

    def submit(self, int fd, uint64_t number, int mark_fd=-1, uint64_t position=0, bytes mark not None=b""):
        """Request fdatasync of ``fd``, which stays open until answered. Return False when too many
        are in flight.

        On success ``mark`` is written to ``mark_fd`` at ``position``.
        """
        self.check()
        if len(mark) > SYNC_MARK_BYTES:
            raise ValueError("a mark is a few bytes")
        return bool(sync_submit(self.thread, fd, number, mark_fd, position, PyBytes_AS_STRING(mark), <int>len(mark)))

    def completed(self):
        """Return number, errno and seconds of requests completed since the last call, in the order
        requested.

        Errno is 0 on success, below 0 when the mark could not be written.
        """
        cdef sync_request request
        self.check()
        sync_drain(self.thread)
        found = []
        while sync_take(self.thread, &request):
            found.append((request.number, request.error, request.seconds))
        return found

    def expect(self):
        """Announce that something else makes ``fileno`` readable once, or has: ``completed`` clears
        that as well."""
        self.check()
        sync_expect(self.thread)

    def wake(self):
        """Make ``fileno`` readable although nothing completed; from any thread."""
        self.check()
        sync_signal(self.thread)

    def close(self):
        """Finish pending requests and end the thread."""
        cdef sync_thread* thread = self.thread
        self.thread = NULL
        if thread is not NULL:
            with nogil:
                sync_stop(thread)

    def __dealloc__(self):
        self.close()
