"""The supervisor's loop: waits, observes the processes, and carries out the actions of ``tree``.

No event loop, no threads. It sleeps in one poll until a signal arrives (through a pipe) or
something is due, reaps ended processes, reads the process table, and carries out the tree's
decisions. Nothing it does blocks for long, so a dead shard is restarted within milliseconds.
"""

from __future__ import annotations

import collections
import select
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType

from fluxmq import logs
from fluxmq.ipc.launch import EXIT_BOOT_FAILURE, EXIT_OK
from fluxmq.ipc.table import ProcessState
from fluxmq.supervisor.children import Children
from fluxmq.supervisor.fabric import Fabric
from fluxmq.supervisor.service_manager import ServiceManager
from fluxmq.supervisor.tree import Child, Kill, Phase, Start, Terminate, Tree

LOOK_STARTING_SECONDS = 0.005
"""Interval between readiness checks while something starts."""

EXIT_KILLED = 1
"""Exit code when a child had to be killed to stop."""

_STATES = {
    Phase.STOPPED: ProcessState.STOPPED,
    Phase.STARTING: ProcessState.STARTING,
    Phase.READY: ProcessState.READY,
    Phase.STOPPING: ProcessState.STOPPING,
    Phase.BACKING_OFF: ProcessState.BACKING_OFF,
}

_log = logs.get_logger("fluxmq.supervisor")


class Supervisor:
    """The process tree of one node. ``run`` returns the exit code."""

    def __init__(
        self,
        tree: Tree,
        fabric: Fabric,
        children: Children,
        reload: Callable[[], bytes | None],
        ready: Callable[[], None],
        service_manager: ServiceManager,
    ) -> None:
        """``reload`` reads the settings again and returns what to hand out, None to keep the old
        ones; ``ready`` is called once, when every child serves for the first time."""
        self._tree = tree
        self._fabric = fabric
        self._children = children
        self._reload = reload
        self._ready = ready
        self._service_manager = service_manager
        self._by_slot = {child.slot: child for child in tree.children}
        self._signals: collections.deque[int] = collections.deque()
        self._wakeup, self._signalled = socket.socketpair()
        self._announced = False
        self._outdated: set[int] = set()  # slots of children that were starting during a reload

    def watch_signals(self) -> None:
        """Install signal handlers, which only queue; the loop acts."""
        self._wakeup.setblocking(False)
        self._signalled.setblocking(False)
        signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._queue)
        signal.signal(signal.SIGCHLD, _nothing)

    def run(self) -> int:
        """Supervise until the tree is down; return 0, 3 when it could not start, or 1 when a child
        was killed."""
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        while True:
            self._obey_signals()
            self._reap()
            now = time.monotonic()
            self._look(now)
            self._service_manager.alive(now)
            for action in self._tree.actions(now):
                if isinstance(action, Start):
                    self._start(action.child)
                elif isinstance(action, Terminate):
                    self._children.signal(action.child.slot, signal.SIGTERM)
                    self._show(action.child)
                else:
                    self._kill(action)
            if self._tree.finished:
                break
            self._sleep(poll)
        self._wakeup.close()
        self._signalled.close()
        return self._exit_code()

    def _exit_code(self) -> int:
        if self._tree.failure is not None:
            return EXIT_BOOT_FAILURE
        return EXIT_KILLED if self._tree.killed_in_stop else EXIT_OK

    def _sleep(self, poll: select.poll) -> None:
        """Sleep until a signal, the next look, or the next deadline."""
        seconds = self.rest_seconds(time.monotonic())
        if poll.poll(None if seconds is None else max(1, int(seconds * 1000))):
            self._wakeup.recv(4096)

    def rest_seconds(self, now: float) -> float | None:
        """Return how long there is nothing to do unless a signal arrives; None: for ever. Exits are
        signalled by SIGCHLD."""
        if any(child.phase is Phase.STARTING for child in self._tree.children):
            return LOOK_STARTING_SECONDS
        dues = (self._tree.wake_at(now), self._service_manager.due)
        return min((due - now for due in dues if due is not None), default=None)

    def _queue(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _obey_signals(self) -> None:
        while self._signals:
            number = self._signals.popleft()
            name = signal.Signals(number).name
            if number == signal.SIGHUP:
                self._hand_out_settings()
            elif self._tree.stopping:
                _log.warning("%s again: killing the remaining processes", name)
                self._tree.kill()
            else:
                _log.info("%s: stopping", name)
                self._service_manager.stopping()
                self._tree.stop()

    def _hand_out_settings(self) -> None:
        """Reload and notify the children. A child that is not ready may lack a handler: it is
        notified later."""
        self._service_manager.reloading(time.monotonic_ns())
        settings = self._reload()
        if self._announced:
            self._service_manager.serving()
        if settings is None:
            return
        self._fabric.write_settings(settings)
        for child in self._tree.children:
            if child.phase is Phase.READY:
                self._children.signal(child.slot, signal.SIGHUP)
            elif child.phase is Phase.STARTING:
                self._outdated.add(child.slot)

    def _start(self, child: Child) -> None:
        table = self._fabric.table
        table.clear_readings(child.slot)
        self._outdated.discard(child.slot)
        try:
            pid = self._children.start(self._fabric.launch(child))
        except (
            OSError
        ) as exc:  # no memory, no processes left: the same as a child that ended at once
            _log.error("%s not started: %s", child.name, exc.strerror)
            self._tree.started(child, time.monotonic())
            self._tree.exited(child, -1, str(exc.strerror), time.monotonic())
            self._show(child)
            return
        self._tree.started(child, time.monotonic())
        table.set_started(child.slot, pid, time.time_ns(), child.starts - 1)
        self._show(child)
        _log.debug("%s started", child.name, extra={"pid": pid})

    def _kill(self, action: Kill) -> None:
        _log.error("%s killed: %s", action.child.name, action.reason)
        self._children.signal(action.child.slot, signal.SIGKILL)

    def _reap(self) -> None:
        """Reap ended children and report each exit to the tree."""
        table = self._fabric.table
        for slot, code in self._children.reap():
            child = self._by_slot[slot]
            reason = table.row(slot).reason
            expected = self._tree.stopping
            self._tree.exited(child, code, reason, time.monotonic())
            table.set_exited(slot, code)
            table.clear_readings(slot)
            table.set_reason(slot, reason)
            self._show(child)
            fields = {"exit": spell_exit(code), "reason": reason or None}
            if self._tree.failure is not None and not expected:
                _log.error("%s", self._tree.failure)
            elif expected:
                _log.info("%s ended", child.name, extra=fields)
            else:
                _log.error("%s ended, restarting it", child.name, extra=fields)

    def _look(self, now: float) -> None:
        """Check readiness and heartbeats."""
        table = self._fabric.table
        clock_ns = time.monotonic_ns()
        for child in self._tree.children:
            if child.phase not in (Phase.STARTING, Phase.READY):
                continue
            slot = child.slot
            if child.role == "etcd":  # which does not know the table
                table.beat(slot, clock_ns)
                table.set_ready(slot)
            row = table.row(slot)
            waited_ns = self._children.waited_ns(slot) if row.ready else 0
            if self._tree.observed(child, row.ready, row.heartbeat, clock_ns, now, waited_ns):
                self._show(child)
                if child.starts > 1:
                    _log.info("%s is ready again", child.name, extra={"restarts": child.starts - 1})
                if slot in self._outdated:
                    self._outdated.discard(slot)
                    self._children.signal(slot, signal.SIGHUP)
        if self._tree.complete and not self._announced:
            self._announced = True
            self._ready()
            self._service_manager.serving()

    def _show(self, child: Child) -> None:
        self._fabric.table.set_state(child.slot, _STATES[child.phase])


def spell_exit(code: int) -> str:
    """Return an exit code for people: ``code 3``, ``SIGKILL``."""
    if code >= 0:
        return f"code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing: SIGCHLD needs a handler to write to the wake-up pipe."""
