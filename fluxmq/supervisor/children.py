"""Child processes: forked, signalled, reaped."""

from __future__ import annotations

import os
from collections.abc import Mapping

from fluxmq.ipc.launch import Launch
from fluxmq.supervisor.fork import fork
from fluxmq.supervisor.programs import PROGRAMS, Program

SCHEDSTAT_BYTES_MAX = 128
"""Longer than the kernel's line of three numbers."""


class Children:
    """The running processes, by slot."""

    def __init__(self, programs: Mapping[str, Program] = PROGRAMS, clustered: bool = False) -> None:
        self._programs = programs
        self._clustered = clustered
        self._running: dict[int, int] = {}

    def start(self, launch: Launch) -> int:
        """Start the child that ``launch`` describes and return its process id. Raises OSError."""
        assert launch.slot not in self._running
        program = self._programs[launch.role]
        program.load(self._clustered)
        pid = fork(launch, program.run)
        self._running[launch.slot] = pid
        return pid

    def signal(self, slot: int, number: int) -> None:
        """Send a signal; do nothing when the process has ended."""
        pid = self._running.get(slot)
        if pid is not None:
            os.kill(pid, number)  # not reaped yet, so that the number is still its own

    def waited_ns(self, slot: int) -> int:
        """Return how long the first thread of a slot's process has waited for a processor, ns; 0 if
        unknown.

        Source: proc_pid_schedstat, the second number (Documentation/scheduler/sched-stats of
        Linux).
        """
        pid = self._running.get(slot)
        if pid is None:
            return 0
        try:
            fd = os.open(f"/proc/{pid}/task/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return int(os.read(fd, SCHEDSTAT_BYTES_MAX).split()[1])
            finally:
                os.close(fd)
        except (OSError, ValueError, IndexError):
            return 0

    def reap(self) -> list[tuple[int, int]]:
        """Return slot and exit code (negative: signal) of each process that ended since the last
        call."""
        ended = []
        for slot, pid in list(self._running.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self._running[slot]
                ended.append((slot, os.waitstatus_to_exitcode(status)))
        return ended
