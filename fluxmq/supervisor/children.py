"""Child processes: executed with exactly the descriptors they need, bound to a core, signalled, reaped.

Children are executed afresh and never forked on: the supervisor has no threads and no event loop, but what a
child becomes has both.  Each gets a process group of its own, so that Ctrl-C reaches only the supervisor,
which then takes the tree down in order.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import fluxmq
from fluxmq import logs
from fluxmq.control.launch import ENVIRONMENT_KEY, Launch

PROGRAMS: Mapping[str, Sequence[str]] = {
    "shard": ("-m", "fluxmq.shards"),
    "acceptor": ("-m", "fluxmq.supervisor.acceptor"),
    "control": ("-m", "fluxmq.admin"),
}
"""Arguments of the interpreter for each role."""

_INSTALLED = frozenset({"site-packages", "dist-packages"})

_log = logs.get_logger(__name__)


class Children:
    """The running processes, by slot."""

    def __init__(self, programs: Mapping[str, Sequence[str]] = PROGRAMS) -> None:
        self._programs = programs
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, launch: Launch) -> int:
        """Execute the child that ``launch`` describes and return its process id.  Raises OSError."""
        assert launch.slot not in self._running
        # -P: the working directory is the operator's, not a place to import from.
        command = [sys.executable, "-P", *self._programs[launch.role]]
        usable = os.sched_getaffinity(0)
        _bind(launch.cores)  # inherited, so that the child's first page is already on its core
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=launch.descriptors(),
                env=_environment(launch),
                process_group=0,
            )
        finally:
            _bind(usable)
        self._running[launch.slot] = process
        return process.pid

    def signal(self, slot: int, number: int) -> None:
        """Send a signal; nothing when the process has ended."""
        process = self._running.get(slot)
        if process is not None:
            process.send_signal(number)

    def reap(self) -> list[tuple[int, int]]:
        """Slot and exit code (negative: signal) of each process that has ended since the last call."""
        ended = []
        for slot, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[slot]
                ended.append((slot, code))
        return ended


def _bind(cores: Sequence[int] | set[int]) -> None:
    """Bind this process to ``cores``; a core taken away meanwhile is not worth failing for."""
    if not cores:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as exc:
        _log.warning("cannot bind to cores %s: %s", sorted(cores), exc.strerror)


def _environment(launch: Launch) -> dict[str, str]:
    """Ours, plus the launch description, plus where this package lies unless it is installed."""
    environment = {**os.environ, ENVIRONMENT_KEY: launch.to_json()}
    root = Path(fluxmq.__file__).parent.parent
    if root.name not in _INSTALLED:
        known = environment.get("PYTHONPATH", "")
        if str(root) not in known.split(os.pathsep):
            environment["PYTHONPATH"] = f"{root}{os.pathsep}{known}" if known else str(root)
    return environment
