"""Child processes: executed with exactly the descriptors they need, bound to cores, signalled,
reaped.

Children are executed, never merely forked: the supervisor has no threads and no event loop, but its
children have both. Each gets a process group of its own, so that Ctrl-C reaches only the
supervisor, which then takes the tree down in order.

One standby shard is kept: a process that has done its imports and waits to learn which shard it is.
Most of a start is imports, half a second on an idle machine and several on a busy one; with the
standby a killed shard serves again within a tenth of that, for the memory of one idle interpreter.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import fluxmq
from fluxmq import logs
from fluxmq.ipc.launch import ENVIRONMENT_KEY, STANDBY_KEY, Launch, send_launch

PROGRAMS: Mapping[str, Sequence[str]] = {
    "shard": ("-m", "fluxmq.shards"),
    "acceptor": ("-m", "fluxmq.supervisor.acceptor"),
    "control": ("-m", "fluxmq.control"),
}
"""Interpreter arguments for each role."""

STANDBY_ROLE = "shard"
"""Role that has a standby: shards hold the clients, and there are many."""

_INSTALLED = frozenset({"site-packages", "dist-packages"})

_log = logs.get_logger(__name__)


class Children:
    """The running processes, by slot, and the standby."""

    def __init__(self, programs: Mapping[str, Sequence[str]] = PROGRAMS) -> None:
        self._programs = programs
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._standby: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    def start(self, launch: Launch) -> int:
        """Start the child that ``launch`` describes and return its process id. Raises OSError."""
        assert launch.slot not in self._running
        process = self._employ_standby(launch) if launch.role == STANDBY_ROLE else None
        if process is None:
            environment = {ENVIRONMENT_KEY: launch.to_json()}
            usable = os.sched_getaffinity(0)
            # Bound here and inherited, so that the child's first page is already on its core.
            _bind(0, launch.cores)
            try:
                process = self._execute(launch.role, environment, launch.descriptors())
            finally:
                _bind(0, usable)
        self._running[launch.slot] = process
        return process.pid

    def keep_standby(self) -> None:
        """Start a standby unless there is one. Raises OSError."""
        if self._standby is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                environment = {STANDBY_KEY: str(theirs.fileno())}
                process = self._execute(STANDBY_ROLE, environment, [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        self._standby = (process, ours)

    def dismiss_standby(self) -> None:
        """End the standby and wait for it to exit."""
        if self._standby is not None:
            process, sock = self._standby
            self._standby = None
            sock.close()
            process.kill()
            process.wait()

    def signal(self, slot: int, number: int) -> None:
        """Send a signal; do nothing when the process has ended."""
        process = self._running.get(slot)
        if process is not None:
            process.send_signal(number)

    def waited_ns(self, slot: int) -> int:
        """Return how long the first thread of a slot's process has waited for a processor, ns; 0 if
        unknown.

        Source: proc_pid_schedstat, the second number (Documentation/scheduler/sched-stats of
        Linux).
        """
        process = self._running.get(slot)
        if process is None:
            return 0
        try:
            path = f"/proc/{process.pid}/task/{process.pid}/schedstat"
            with open(path, encoding="ascii") as stat:
                return int(stat.read().split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    def reap(self) -> list[tuple[int, int]]:
        """Return slot and exit code (negative: signal) of each process that ended since the last
        call."""
        if self._standby is not None and self._standby[0].poll() is not None:
            self.dismiss_standby()
        ended = []
        for slot, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[slot]
                ended.append((slot, code))
        return ended

    def _employ_standby(self, launch: Launch) -> subprocess.Popen[bytes] | None:
        """Turn the standby into the child that ``launch`` describes; None when no standby is
        alive."""
        if self._standby is None:
            return None
        process, sock = self._standby
        self._standby = None
        _bind(process.pid, launch.cores)
        try:
            with sock:
                send_launch(sock, launch)
        except OSError:
            process.kill()
            process.wait()
            return None
        return process

    def _execute(
        self, role: str, more: Mapping[str, str], fds: Sequence[int]
    ) -> subprocess.Popen[bytes]:
        """Execute a role's program. -P keeps the working directory off the import path."""
        return subprocess.Popen(
            [sys.executable, "-P", *self._programs[role]],
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            env=environment(more),
            process_group=0,
        )


def _bind(pid: int, cores: Sequence[int] | set[int]) -> None:
    """Bind a process (0: this one) to ``cores``; ignore a failure, as for a core that was taken
    away."""
    if not cores:
        return
    try:
        os.sched_setaffinity(pid, cores)
    except OSError as exc:
        _log.warning("cannot bind to cores %s: %s", sorted(cores), exc.strerror)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return our environment and ``more``, plus this package's location unless it is installed."""
    environment = {**os.environ, **more}
    root = Path(fluxmq.__file__).parent.parent
    if root.name not in _INSTALLED:
        known = environment.get("PYTHONPATH", "")
        if str(root) not in known.split(os.pathsep):
            environment["PYTHONPATH"] = f"{root}{os.pathsep}{known}" if known else str(root)
    return environment
