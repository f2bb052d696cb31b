"""Child processes: forked from one image, signalled, reaped.

The supervisor imports what its children run before it forks them: they share these pages, and a
killed shard serves again after the time of a fork and of its recovery. The image grows in two
steps. The first has what all roles use; the control process starts from it, and itself imports the
web server and the decisions about users and topology, which no other process needs. Meanwhile the
supervisor imports the rest of what shards and the acceptor run.
"""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Mapping, Sequence

from fluxmq.ipc.launch import Launch
from fluxmq.supervisor.forking import fork

PROGRAMS: Mapping[str, str] = {
    "shard": "fluxmq.shards.worker",
    "acceptor": "fluxmq.supervisor.acceptor",
    "control": "fluxmq.control.process",
}
"""Module whose ``main`` each role runs."""

COMMON_MODULES = (
    "uvloop",
    "fluxmq.ipc.backups",
    "fluxmq.ipc.memory",
    "fluxmq.ipc.row_messages",
    "fluxmq.ipc.topology_messages",
    "fluxmq.ipc.user_messages",
    "fluxmq.storage.backup",
    "fluxmq.storage.inspect",
)
"""Modules that, with what they import, all roles use."""

CLUSTER_MODULES = ("fluxmq.shards.cluster.wiring",)
"""Modules that a shard imports only in a cluster."""

IMAGE_ROLES = ("shard", "acceptor")
"""Roles whose modules are in the image."""


class Children:
    """The running processes, by slot."""

    def __init__(
        self, programs: Mapping[str, str] = PROGRAMS, more_modules: Sequence[str] = ()
    ) -> None:
        """``more_modules`` belong to the image as well."""
        self._programs = programs
        self._common = list(COMMON_MODULES)
        self._missing = [*(programs[role] for role in IMAGE_ROLES), *more_modules]
        self._running: dict[int, int] = {}

    def start(self, launch: Launch) -> int:
        """Start the child that ``launch`` describes and return its process id. Raises OSError."""
        assert launch.slot not in self._running
        load_image(self._common)
        if launch.role in IMAGE_ROLES:
            load_image(self._missing)
        pid = fork(launch, self._programs[launch.role])
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
            with open(f"/proc/{pid}/task/{pid}/schedstat", encoding="ascii") as stat:
                return int(stat.read().split()[1])
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


def load_image(modules: list[str]) -> None:
    """Import and remove ``modules``, and exempt what is there from garbage collection, whose marks
    would take shared pages apart."""
    if not modules:
        return
    # Its threads would be left behind by a fork, and nothing here multiplies matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    while modules:
        importlib.import_module(modules.pop())
    gc.freeze()
    gc.enable()
