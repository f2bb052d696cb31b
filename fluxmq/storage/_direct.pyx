# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Direct I/O to a file, durable on completion, without a thread: beyond what pure Python can
express.

A write is submitted with io_submit to a descriptor opened with O_DIRECT, and with RWF_DSYNC, so
that the kernel flushes the disk's cache before it reports completion, through an eventfd. A thread
that waits for a disk also waits for a processor, twice each time, and that takes longer than the
disk where processors are busy.

Such writes are of whole blocks. The bytes before a write in its first block are kept in memory from
the previous write, or read; the rest of the last block is filled with zeroes. Sectors with earlier
data are rewritten unchanged, so that a block torn by a power cut loses nothing written before.

Completions are read from the ring that the kernel shares with the process, without a system call.

Source: Linux, include/uapi/linux/aio_abi.h and fs/aio.c (struct aio_ring); io_submit(2), open(2)
for O_DIRECT.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport errno
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <errno.h>
    #include <fcntl.h>
    #include <linux/aio_abi.h>
    #include <stdint.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>

    #ifndef O_DIRECT
    #define O_DIRECT 040000
    #endif
    #ifndef RWF_DSYNC
    #define RWF_DSYNC 2
    #endif
    #define DIRECT_BLOCK 4096ULL
    #define DIRECT_BYTES_MAX (1ULL << 20)
    #define DIRECT_MARK_BYTES 64
    #define DIRECT_RING_MAGIC 0xa10a10a1U
    #define DIRECT_UNKNOWN UINT64_MAX

    typedef struct {
        unsigned id, places, head, tail, magic, compatible, incompatible, header_bytes;
        struct io_event events[];
    } direct_ring;

    typedef struct {
        aio_context_t context;
        char *buffer;
        int event, fd, buffered, under_way;
        uint64_t size, first, next, bytes;
        double begun;
        uint64_t number, mark_position;
        int mark_fd, mark_bytes;
        char mark[DIRECT_MARK_BYTES];
    } direct_file;

    typedef struct {
        uint64_t number;
        int error;
        double seconds;
    } direct_answer;

    static double direct_clock(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    }

    static uint64_t direct_up(uint64_t position) { return (position + DIRECT_BLOCK - 1) & ~(DIRECT_BLOCK - 1); }

    /* Return 0 or the error. */
    static int direct_setup(direct_file *d) {
        void *buffer = NULL;
        if (syscall(SYS_io_setup, 1, &d->context)) return errno;
        const direct_ring *ring = (const direct_ring *)d->context;
        if (ring->magic != DIRECT_RING_MAGIC || ring->incompatible || ring->places < 1) return ENOSYS;
        if (posix_memalign(&buffer, DIRECT_BLOCK, DIRECT_BYTES_MAX)) return ENOMEM;
        d->buffer = buffer;
        return 0;
    }

    static void direct_leave(direct_file *d) {
        if (d->fd >= 0) close(d->fd);
        d->fd = -1;
    }

    /* Return 0 or the error. Opens the file again: users of the descriptor still read through the page cache. */
    static int direct_open(direct_file *d, int fd) {
        char name[48];
        struct stat found;
        direct_leave(d);
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        d->fd = open(name, O_WRONLY | O_DIRECT | O_CLOEXEC);
        if (d->fd < 0) return errno;
        if (fstat(d->fd, &found)) return errno;
        d->buffered = fd;
        d->size = (uint64_t)found.st_size;
        d->next = DIRECT_UNKNOWN;
        return 0;
    }

    /* Return where in the buffer a write at a position goes, with its surroundings ready; NULL: impossible here. */
    static char *direct_place(direct_file *d, uint64_t position, uint64_t bytes) {
        uint64_t first = position & ~(DIRECT_BLOCK - 1), before = position - first;
        uint64_t end = direct_up(position + bytes);
        if (d->fd < 0 || d->under_way || !bytes) return NULL;
        if (end - first > DIRECT_BYTES_MAX || end > d->size) return NULL;
        if (d->next == position) {
            memmove(d->buffer, d->buffer + (first - d->first), before);
        } else if (before && pread(d->buffered, d->buffer, before, (off_t)first) != (ssize_t)before) {
            d->next = DIRECT_UNKNOWN; /* the buffer is not what it was */
            return NULL;
        }
        memset(d->buffer + before + bytes, 0, end - position - bytes);
        d->first = first;
        d->next = position + bytes;
        d->bytes = end - first;
        return d->buffer + before;
    }

    /* Return whether the write was submitted. */
    static int direct_submit(direct_file *d) {
        struct iocb block = {0}, *blocks[1] = {&block};
        long done;
        block.aio_fildes = (uint32_t)d->fd;
        block.aio_lio_opcode = IOCB_CMD_PWRITE;
        block.aio_buf = (uint64_t)(uintptr_t)d->buffer;
        block.aio_nbytes = d->bytes;
        block.aio_offset = (int64_t)d->first;
        block.aio_rw_flags = RWF_DSYNC;
        block.aio_flags = IOCB_FLAG_RESFD;
        block.aio_resfd = (uint32_t)d->event;
        d->begun = direct_clock();
        do done = syscall(SYS_io_submit, d->context, 1, blocks); while (done < 0 && errno == EINTR);
        if (done != 1) d->next = DIRECT_UNKNOWN;
        d->under_way = done == 1;
        return d->under_way;
    }

    /* Return 0 or the error. A full disk is no error: the older mark is still true. */
    static int direct_mark(const direct_file *d) {
        ssize_t done;
        if (d->mark_fd < 0) return 0;
        do done = pwrite(d->mark_fd, d->mark, d->mark_bytes, (off_t)d->mark_position);
        while (done < 0 && errno == EINTR);
        if (done == d->mark_bytes) return 0;
        if (done >= 0) return EIO;
        return errno == ENOSPC || errno == EDQUOT ? 0 : errno;
    }

    /* Return whether the write in flight is done, with its result in `answer`. */
    static int direct_take(direct_file *d, direct_answer *answer) {
        direct_ring *ring = (direct_ring *)d->context;
        if (!d->under_way) return 0;
        unsigned head = ring->head;
        if (head == __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE)) return 0;
        int64_t result = ring->events[head % ring->places].res;
        __atomic_store_n(&ring->head, (head + 1) % ring->places, __ATOMIC_RELEASE);
        d->under_way = 0;
        answer->number = d->number;
        answer->seconds = direct_clock() - d->begun;
        if (result == (int64_t)d->bytes) answer->error = -direct_mark(d);
        else answer->error = result < 0 ? (int)-result : EIO;
        return 1;
    }

    /* Returns once a write in flight is done: the kernel waits for it. */
    static void direct_close(direct_file *d) {
        if (d->context) syscall(SYS_io_destroy, d->context);
        d->context = 0;
        direct_leave(d);
        free(d->buffer);
        d->buffer = NULL;
    }
    """
    enum:
        DIRECT_MARK_BYTES
    ctypedef struct direct_answer:
        uint64_t number
        int error
        double seconds
    ctypedef struct direct_file:
        char* buffer
        int event, fd, under_way
        uint64_t number, mark_position
        int mark_fd, mark_bytes
        char* mark
    int direct_setup(direct_file* d)
    void direct_leave(direct_file* d)
    int direct_open(direct_file* d, int fd)
    char* direct_place(direct_file* d, uint64_t position, uint64_t size)
    int direct_submit(direct_file* d)
    int direct_take(direct_file* d, direct_answer* answer)
    void direct_close(direct_file* d) nogil


cdef class DirectWriter:
    """Writes to one file at a time, one write at a time. ``event``: an eventfd that the kernel
    increments after each.

    Raises OSError where the kernel does not offer it (ENOSYS, EPERM), or no further instance
    (EAGAIN).
    """

    cdef direct_file file

    def __cinit__(self, int event):
        cdef int error
        self.file.event = event
        self.file.fd = -1
        error = direct_setup(&self.file)
        if error:
            raise OSError(error, "io_setup")

    cdef int check(self) except -1:
        if self.file.buffer is NULL:
            raise ValueError("the writer was closed")
        return 0

    @property
    def under_way(self):
        """True while a write is in flight."""
        return bool(self.file.under_way)

    def open(self, int fd):
        """Write to this file from now on; ``fd`` stays open until the next one. Raises OSError;
        nothing can be written then."""
        cdef int error
        self.check()
        if self.file.under_way:
            raise ValueError("a write is under way")
        error = direct_open(&self.file, fd)
        if error:
            direct_leave(&self.file)
            raise OSError(error, "open")

    def write(
        self, list parts not None, uint64_t position, uint64_t number, int mark_fd=-1, uint64_t mark_position=0,
        bytes mark not None=b"",
    ):
        """Start a write; on completion ``mark`` goes to ``mark_fd`` at ``mark_position``, before
        the report.

        Return False, with nothing written, if it is too long, would pass the end of the file, or is
        refused.
        """
        cdef uint64_t size = 0
        cdef char* place
        self.check()
        if len(mark) > DIRECT_MARK_BYTES:
            raise ValueError("a mark is a few bytes")
        for part in parts:
            size += PyBytes_GET_SIZE(part)
        place = direct_place(&self.file, position, size)
        if place is NULL:
            return False
        for part in parts:
            size = PyBytes_GET_SIZE(part)
            memcpy(place, PyBytes_AS_STRING(part), size)
            place += size
        self.file.number = number
        self.file.mark_fd = mark_fd
        self.file.mark_position = mark_position
        self.file.mark_bytes = <int>len(mark)
        memcpy(self.file.mark, PyBytes_AS_STRING(mark), len(mark))
        return bool(direct_submit(&self.file))

    def completed(self):
        """Return number, errno and seconds of a write that has become durable, once; None while
        there is none.

        Errno is 0 on success, below 0 when the mark could not be written.
        """
        cdef direct_answer answer
        self.check()
        if not direct_take(&self.file, &answer):
            return None
        return answer.number, answer.error, answer.seconds

    def close(self):
        """Wait for a write in flight, and close."""
        with nogil:
            direct_close(&self.file)

    def __dealloc__(self):
        self.close()
