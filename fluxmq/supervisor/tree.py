"""Decisions about the process tree: current and desired state in; what to start, stop and kill out.

Pure. Time is an argument (seconds, monotonic); ``supervisor`` carries the decisions out. The
rules:

* First start: the member of etcd, if any, control, then the shards, and the acceptor when all of these are ready, so that the
  ports open when something serves them. A child that *cannot boot* (exit code 3) now ends the whole
  start.
* Afterwards the tree never gives up. A child that ends is restarted: at once the first time, then
  after 100 ms, doubling to 10 s; one that stayed up for 10 s starts over with the count.
* A child whose loop hangs, or that does not become ready, is killed and restarted.
* Stop: acceptor, then shards, control and etcd, each sent SIGTERM, and SIGKILL when its time is over.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from fluxmq.ipc.launch import EXIT_BOOT_FAILURE, process_name

HEARTBEAT_SECONDS_MAX = 5.0
"""Age of a heartbeat at which a process counts as hung. Loops beat at least once a second; the
longest legitimate pause, a garbage collection of a full shard, stays below one second."""

LOOK_SHARE = 0.4
"""Share of that age at which a heartbeat is looked at again; loops with nothing to do beat once a
second."""

SUSPECT_SHARE = 0.05
"""Interval between looks, as a share of that age, once a heartbeat is older than `LOOK_SHARE`."""

STARVED_SECONDS_MAX = 60.0
"""The same for a runnable process that gets no processor: on an overloaded machine, killing it and
having its successor read everything again makes matters worse. Beyond this it is useless either
way."""

STALE_CONFIRM_SECONDS = 0.5
"""Time a stale heartbeat must stay unchanged while we watch: after a pause of the whole machine
every heartbeat is old, and each live process renews its own within milliseconds."""

START_SECONDS_MAX = 60.0
"""Time for a child to become ready, from its last heartbeat or from its fork. A second is much; one
that recovers much data beats from time to time, and may take as long as it needs."""

BACK_OFF_FIRST = 0.1
BACK_OFF_MAX = 10.0
STABLE_SECONDS = 10.0
"""Uptime after which a failure counts as new: the back-off starts over."""

STOP_SECONDS = 5.0
"""Time for acceptor and control to end, and for shards beyond their own shutdown_timeout."""

HAND_OVER_SECONDS = 15.0
"""More time for the member of etcd: if it leads, it first waits for another to take over, for seven
seconds if the others have gone."""

START_ORDER = ("etcd", "control", "shard", "acceptor")
"""The control process first: it imports for itself, meanwhile the supervisor imports for the
others."""
STOP_ORDER = ("acceptor", "shard", "control", "etcd")


class Phase(enum.Enum):
    """State of a child."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    BACKING_OFF = "backing_off"


@dataclass(slots=True, eq=False)
class Child:
    """One place in the tree. ``starts`` counts processes started for it; times in seconds,
    monotonic."""

    role: str
    index: int
    slot: int
    phase: Phase = Phase.STOPPED
    starts: int = 0
    failures: int = 0
    started_at: float = 0.0
    alive_at: float = 0.0
    start_at: float = 0.0
    kill_at: float | None = None
    killed: bool = False
    was_ready: bool = False
    _ready_ns: int = field(default=0, repr=False)
    _beat: int = field(default=0, repr=False)
    _waited_ns: int = field(default=0, repr=False)
    _stale_since: float | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Name in logs: ``shard-0``."""
        return process_name(self.role, self.index)

    @property
    def alive(self) -> bool:
        """True while a process exists."""
        return self.phase in (Phase.STARTING, Phase.READY, Phase.STOPPING)


@dataclass(slots=True, frozen=True)
class Start:
    """Start a process for this child."""

    child: Child


@dataclass(slots=True, frozen=True)
class Terminate:
    """Ask the child's process to end, with SIGTERM."""

    child: Child


@dataclass(slots=True, frozen=True)
class Kill:
    """Kill the child's process with SIGKILL, because of ``reason``."""

    child: Child
    reason: str


Action = Start | Terminate | Kill


def back_off(failures: int) -> float:
    """Return the seconds to wait before the next start after that many failures in a row; 0 after
    the first."""
    if failures <= 1:
        return 0.0
    return min(BACK_OFF_MAX, BACK_OFF_FIRST * 2.0 ** min(failures - 2, 30))


class Tree:
    """All children of the node. Receives events; ``actions`` returns what to do now."""

    def __init__(self, workers: int, shutdown_timeout: float, *, etcd: bool = False) -> None:
        """``etcd``: this node runs a member of etcd."""
        self.children = [Child("shard", index, index) for index in range(workers)]
        self.children.append(Child("acceptor", 0, workers))
        self.children.append(Child("control", 0, workers + 1))
        if etcd:
            self.children.append(Child("etcd", 0, workers + 2))
        self._in_start_order = sorted(
            self.children, key=lambda child: START_ORDER.index(child.role)
        )
        self._shutdown_timeout = shutdown_timeout
        self._stopping = False
        self._kill_all = False
        self.complete = False
        self.failure: str | None = None
        self.killed_in_stop = False

    @property
    def stopping(self) -> bool:
        """True while the tree is being taken down."""
        return self._stopping

    @property
    def finished(self) -> bool:
        """True when the tree is down."""
        return self._stopping and not any(child.alive for child in self.children)

    # Events.

    def started(self, child: Child, now: float) -> None:
        """Note that a process was started for ``child``."""
        child.phase = Phase.STARTING
        child.starts += 1
        child.started_at = child.alive_at = now
        child.kill_at = None
        child.killed = False
        child._beat = 0
        child._stale_since = None

    def observed(
        self,
        child: Child,
        ready: bool,
        heartbeat_ns: int,
        clock_ns: int,
        now: float,
        waited_ns: int = 0,
    ) -> bool:
        """Take note of a child's row. ``clock_ns`` is the heartbeats' clock, ``waited_ns`` the
        total time its loop has waited for a processor. Return True when it just became ready."""
        became_ready = child.phase is Phase.STARTING and ready
        if became_ready:
            child.phase = Phase.READY
            child.was_ready = True
            child._ready_ns = clock_ns
            if all(each.was_ready for each in self.children):
                self.complete = True
        if child.phase is Phase.STARTING and heartbeat_ns != child._beat:
            child._beat = heartbeat_ns
            child.alive_at = now
        if child.phase is Phase.READY:
            age_ns = clock_ns - max(heartbeat_ns, child._ready_ns)
            if heartbeat_ns != child._beat or became_ready:
                child._waited_ns = waited_ns
            ran_ns = age_ns - (waited_ns - child._waited_ns)
            if ran_ns <= HEARTBEAT_SECONDS_MAX * 1e9 and age_ns <= STARVED_SECONDS_MAX * 1e9:
                child._stale_since = None
            elif child._stale_since is None or heartbeat_ns != child._beat:
                child._stale_since = now
            child._beat = heartbeat_ns
        return became_ready

    def exited(self, child: Child, code: int, reason: str, now: float) -> None:
        """Note that the child's process ended with ``code``; ``reason`` is the text it left in its
        row."""
        if self._stopping:
            child.phase = Phase.STOPPED
            return
        if code == EXIT_BOOT_FAILURE and not self.complete and not child.was_ready:
            child.phase = Phase.STOPPED
            self.failure = f"{child.name} could not start: {reason or 'it gave no reason'}"
            self.stop()
            return
        if now - child.started_at >= STABLE_SECONDS:
            child.failures = 0
        child.failures += 1
        wait = back_off(child.failures)
        if code == EXIT_BOOT_FAILURE:
            wait = max(wait, BACK_OFF_FIRST)
        child.phase = Phase.BACKING_OFF
        child.start_at = now + wait

    def stop(self) -> None:
        """Take the tree down in order."""
        self._stopping = True
        for child in self.children:
            if not child.alive:
                child.phase = Phase.STOPPED

    def kill(self) -> None:
        """Take the tree down at once."""
        self.stop()
        self._kill_all = True

    # Decisions.

    def actions(self, now: float) -> list[Action]:
        """Return what to do now. Answer Start with ``started``, Terminate and Kill with
        ``exited``."""
        if not self._stopping:
            return self._run(now)
        if self._kill_all:
            return self._kill(
                [child for child in self.children if child.alive], "second stop signal"
            )
        return self._stop(now)

    def wake_at(self, now: float) -> float | None:
        """Return when ``actions`` has news, or a heartbeat is to be looked at, without a new event;
        None when never. ``now`` is in seconds of the heartbeats' clock."""
        times: list[float] = []
        for child in self.children:
            if child.phase is Phase.BACKING_OFF and not self._must_wait(child):
                times.append(child.start_at)
            elif child.phase is Phase.READY:
                times.append(_look_at(child, now))
            elif child.phase is Phase.STOPPING and child.kill_at is not None:
                times.append(child.kill_at)
        return min(times, default=None)

    def _run(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for child in self._in_start_order:
            if child.phase in (Phase.STOPPED, Phase.BACKING_OFF):
                if now >= child.start_at and not self._must_wait(child):
                    actions.append(Start(child))
            elif child.phase is Phase.STARTING and now - child.alive_at >= START_SECONDS_MAX:
                silent = f"not ready, and no sign of life for {START_SECONDS_MAX:.0f} s"
                actions += self._kill([child], silent)
            elif (
                child.phase is Phase.READY
                and child._stale_since is not None
                and now - child._stale_since >= STALE_CONFIRM_SECONDS
            ):
                actions += self._kill([child], f"no heartbeat for {HEARTBEAT_SECONDS_MAX:.0f} s")
        return actions

    def _must_wait(self, child: Child) -> bool:
        """Return whether the acceptor has to wait: at the first start it comes last."""
        if self.complete or child.role != "acceptor":
            return False
        return any(each.phase is not Phase.READY for each in self.children if each is not child)

    def _stop(self, now: float) -> list[Action]:
        for role in STOP_ORDER:
            stage = [child for child in self.children if child.role == role and child.alive]
            if not stage:
                continue
            actions: list[Action] = []
            more = {"shard": self._shutdown_timeout, "etcd": HAND_OVER_SECONDS}
            allowed = STOP_SECONDS + more.get(role, 0.0)
            for child in stage:
                if child.phase is not Phase.STOPPING:
                    child.phase = Phase.STOPPING
                    child.kill_at = now + allowed
                    actions.append(Terminate(child))
                elif child.kill_at is not None and now >= child.kill_at:
                    actions += self._kill([child], f"still running after {allowed:.0f} s")
            return actions
        return []

    def _kill(self, children: Sequence[Child], reason: str) -> list[Action]:
        """Kill each child once: the kernel needs no reminder."""
        actions: list[Action] = []
        for child in children:
            if not child.killed:
                child.killed = True
                child.kill_at = None
                self.killed_in_stop = self.killed_in_stop or self._stopping
                actions.append(Kill(child, reason))
        return actions


def _look_at(child: Child, now: float) -> float:
    """Return when the heartbeat of a child that serves is to be looked at."""
    at = max(child._beat, child._ready_ns) / 1e9 + LOOK_SHARE * HEARTBEAT_SECONDS_MAX
    if child._stale_since is None and at > now:
        return at
    return now + SUSPECT_SHARE * HEARTBEAT_SECONDS_MAX
