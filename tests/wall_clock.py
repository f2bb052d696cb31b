"""A wall clock that a test sets, for real processes: a library put before the C library shifts what they read.

The clocks that count from boot are left alone, as they are when somebody sets the time of a machine. The shift stands in
a file that every process maps, so that it changes while they run.
"""

from __future__ import annotations

import math
import os
import struct
import subprocess
import time
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;
static int (*real_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FLUXMQ_TEST_WALL_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    if (fd >= 0) {
        void *page = mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
        shift = page == MAP_FAILED ? 0 : page;
        close(fd);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real_gettime) real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real_gettime(clock, now);
    if (!result && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *shift;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return result;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""
_SHIFT = struct.Struct("=q")


class WallClock:
    """The wall clock of whatever is started with `environment`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "wall-clock"
        self._library = folder / "wall-clock.so"
        self._settings: list[tuple[float, int]] = []
        self.set(0)
        command = [
            "cc",
            "-shared",
            "-fPIC",
            "-O1",
            "-o",
            str(self._library),
            "-x",
            "c",
            "-",
            "-ldl",
        ]
        subprocess.run(command, input=SOURCE.encode(), check=True, timeout=60)

    @property
    def environment(self) -> dict[str, str]:
        """What to add to a process's environment."""
        before = os.environ.get("LD_PRELOAD", "")
        preload = f"{self._library}:{before}" if before else str(self._library)
        return {"LD_PRELOAD": preload, "FLUXMQ_TEST_WALL_CLOCK": str(self._file)}

    def set(self, seconds: int) -> None:
        """From now on it is ahead of the machine's by so much."""
        fd = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.pwrite(fd, _SHIFT.pack(seconds), 0)
        finally:
            os.close(fd)
        self._settings.append((time.time(), seconds))

    def right(self, shown: float) -> float:
        """The machine's time at which it showed `shown`, both in seconds since 1970; of several the first."""
        ends = [since for since, _ in self._settings[1:]] + [math.inf]
        for (since, seconds), end in zip(self._settings, ends, strict=True):
            if since <= shown - seconds < end:
                return shown - seconds
        return shown
