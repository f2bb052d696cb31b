"""Many MQTT sessions that come back by themselves: the clients of ``python -m perf node-loss``.

Several processes, since a process may have few open files on some machines, each of them one loop over raw sockets and
epoll. A session is *there* when its last answer has come: CONNACK, or SUBACK where the broker has not kept its
subscription. A client that has lost its connection, or was refused, chooses one of the addresses by chance and a
moment within the next seconds, as client libraries do so that a crowd does not come back in one instant.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import math
import multiprocessing
import os
import random
import resource
import select
import signal
import socket
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import Any, Final

from perf import codec
from perf.roaming import connect_packet
from perf.worker import PR_SET_PDEATHSIG, raise_descriptor_limit

PORTS_OF_SOURCE: Final = 12_000
"""Clients of one address of origin: each of their connections takes a port of it."""
DESCRIPTORS_SPARE: Final = 200
"""Open files of a process beside its sockets."""
AT_ONCE: Final = 100
"""Connections that one process sets up at once before they are lost; later ones are limited by chance alone."""
REFUSED_S: Final = (1.0, 3.0)
"""Pause after a refusal or a connection that was closed before its answer."""
TURN_S: Final = 0.05
"""Longest wait of a loop."""
JOIN_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """Clients of one run. ``clean``: share of sessions that end with their connection; ``subscribe``: each has a
    subscription of its own; ``spread_s``: seconds within which a client that has lost its connection comes back."""

    count: int
    host: str
    clean: float = 0.0
    subscribe: bool = True
    spread_s: float = 5.0


class Shared:
    """Figures that the processes share: numbers of sessions there, and orders."""

    def __init__(self, processes: int) -> None:
        self.there = multiprocessing.RawArray("l", processes)
        self.again = multiprocessing.RawArray("l", processes)
        self.refused = multiprocessing.RawArray("l", processes)
        self.ports = multiprocessing.RawArray("i", 8)
        """Ports to connect to; 0 ends the list."""
        self.stop: Synchronized[int] = multiprocessing.Value("i", 0)


@dataclass(slots=True)
class Session:
    """A client, and its present connection."""

    name: str
    clean: bool
    source: str
    connection: socket.socket | None = None
    asked: bytes = b""
    """Bytes to send once the connection is open."""
    there: bool = False


@dataclass(slots=True)
class Outcome:
    """Observations of one process since the last of its sessions was there for the first time: the monotonic moments
    at which they were there again, CONNACKs with ``session present``, and refusals by reason."""

    moments: array[float] = field(default_factory=lambda: array("d"))
    present: int = 0
    refusals: Counter[str] = field(default_factory=Counter)


class SessionLoop:
    """The sessions of one process."""

    def __init__(self, crowd: Crowd, numbers: range, shared: Shared, place: int) -> None:
        self._crowd = crowd
        self._shared = shared
        self._place = place
        self._chance = random.Random(numbers.start + 1)
        self._epoll = select.epoll()
        self._by_descriptor: dict[int, Session] = {}
        self._due: list[tuple[float, int]] = []
        self._sessions = [
            Session(
                f"session-{number}",
                self._chance.random() < crowd.clean,
                f"127.0.{1 + number // PORTS_OF_SOURCE}.1",
            )
            for number in numbers
        ]
        self._unopened = len(self._sessions)
        self._opening = 0
        self.first = True
        self.outcome = Outcome()

    def run(self) -> None:
        """Connect all, and again whenever they lose their connections, until the order to stop."""
        shared = self._shared
        while not shared.stop.value:
            now = time.monotonic()
            if self.first:
                while self._unopened and self._opening < AT_ONCE:
                    self._unopened -= 1
                    self._open(self._unopened)
            while self._due and self._due[0][0] <= now:
                self._open(heapq.heappop(self._due)[1])
            wait = min(TURN_S, self._due[0][0] - now) if self._due else TURN_S
            for descriptor, events in self._epoll.poll(max(0.0, wait)):
                session = self._by_descriptor.get(descriptor)
                if session is not None:
                    self._on_events(session, events)

    def close(self) -> None:
        """Close all connections."""
        for session in self._by_descriptor.values():
            if session.connection is not None:
                session.connection.close()
        self._epoll.close()

    def _open(self, place: int) -> None:
        session = self._sessions[place]
        connection = socket.socket()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
        ports = [port for port in self._shared.ports if port]
        session.connection = connection
        session.asked = connect_packet(session.name, clean=session.clean)
        self._by_descriptor[connection.fileno()] = session
        self._opening += 1
        connection.bind((session.source, 0))
        try:
            with contextlib.suppress(BlockingIOError):
                connection.connect((self._crowd.host, self._chance.choice(ports)))
        except OSError as problem:
            self._epoll.register(connection.fileno(), select.EPOLLIN)
            self._lost(session, f"connect: {os.strerror(problem.errno or 0)}")
            return
        self._epoll.register(connection.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _on_events(self, session: Session, events: int) -> None:
        connection = session.connection
        assert connection is not None
        try:
            if session.asked and events & select.EPOLLOUT:
                connection.send(session.asked)
                session.asked = b""
                self._epoll.modify(connection.fileno(), select.EPOLLIN)
            if events & ~select.EPOLLOUT:
                self._read(session, connection)
        except BlockingIOError:
            return
        except OSError as problem:
            self._lost(session, f"connection: {os.strerror(problem.errno or 0)}")

    def _read(self, session: Session, connection: socket.socket) -> None:
        found = connection.recv(512)
        if not found:
            self._lost(session, "connection: closed")
        elif found[0] == 0x20 and found[3]:
            self._lost(session, f"CONNACK {found[3]:#04x}")
        elif found[0] == 0x20:
            self.outcome.present += found[2] & 1
            if found[2] & 1 or not self._crowd.subscribe:
                self._there(session)
            else:
                connection.send(codec.subscribe(f"of/{session.name}", 1, 5))
        elif found[0] == 0x90 and found[-1] < 0x80:
            self._there(session)
        else:
            self._lost(session, f"answer {found[0]:#04x} {found[-1]:#04x}")

    def _there(self, session: Session) -> None:
        session.there = True
        self._opening -= 1
        self._shared.there[self._place] += 1
        if not self.first:
            self.outcome.moments.append(time.monotonic())
            self._shared.again[self._place] += 1
        elif self._shared.there[self._place] == len(self._sessions):
            self.first = False
            self.outcome = Outcome()

    def _lost(self, session: Session, reason: str) -> None:
        """Drop a session's connection, and have it come back."""
        assert session.connection is not None
        del self._by_descriptor[session.connection.fileno()]
        session.connection.close()
        if session.there:
            session.there = False
            self._shared.there[self._place] -= 1
            pause = self._chance.uniform(0.0, self._crowd.spread_s)
        else:
            self._opening -= 1
            self.outcome.refusals[reason] += 1
            self._shared.refused[self._place] += 1
            pause = self._chance.uniform(*REFUSED_S)
        place = int(session.name.rpartition("-")[2]) - self._first_number()
        heapq.heappush(self._due, (time.monotonic() + pause, place))

    def _first_number(self) -> int:
        return int(self._sessions[0].name.rpartition("-")[2])


def _work(crowd: Crowd, numbers: range, shared: Shared, place: int, results: Connection) -> None:
    """Run one process's sessions, and send what they have seen; outermost frame of the process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    raise_descriptor_limit()
    loop = SessionLoop(crowd, numbers, shared, place)
    try:
        loop.run()
    finally:
        loop.close()
    seen = loop.outcome
    results.send((seen.moments.tolist(), seen.present, dict(seen.refusals)))


class Clients:
    """The processes with all clients."""

    def __init__(self, crowd: Crowd, ports: Sequence[int]) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - DESCRIPTORS_SPARE
        processes = max(1, math.ceil(crowd.count / min(limit, PORTS_OF_SOURCE)))
        each = math.ceil(crowd.count / processes)
        self._crowd = crowd
        self._shared = Shared(processes)
        self.choose(ports)
        context = multiprocessing.get_context("fork")
        self._workers: list[tuple[Any, Connection]] = []
        for place in range(processes):
            numbers = range(place * each, min(crowd.count, (place + 1) * each))
            ours, theirs = context.Pipe(duplex=False)
            arguments = crowd, numbers, self._shared, place, theirs
            worker = context.Process(target=_work, args=arguments, daemon=True)
            worker.start()
            theirs.close()
            self._workers.append((worker, ours))

    @property
    def there(self) -> int:
        """Number of sessions that are there."""
        return sum(self._shared.there)

    @property
    def again(self) -> int:
        """Number of times that sessions have been there again."""
        return sum(self._shared.again)

    @property
    def refused(self) -> int:
        """Number of attempts that have failed."""
        return sum(self._shared.refused)

    def pids(self) -> list[int]:
        """The processes."""
        return [worker.pid for worker, _ in self._workers]

    def alive(self) -> bool:
        """Return whether all processes run."""
        return all(worker.is_alive() for worker, _ in self._workers)

    def choose(self, ports: Sequence[int]) -> None:
        """Have clients connect to these ports from now on."""
        for place in range(len(self._shared.ports)):
            self._shared.ports[place] = ports[place] if place < len(ports) else 0

    def kill(self) -> None:
        """End all processes that still run."""
        for worker, _ in self._workers:
            worker.kill()

    def finish(self) -> Outcome:
        """End all; return what they have seen together. Raises ``RuntimeError`` if one has failed."""
        self._shared.stop.value = 1
        found = Outcome()
        for worker, results in self._workers:
            try:
                moments, present, refusals = results.recv()
            except EOFError:
                raise RuntimeError("a process of clients has failed") from None
            found.moments.extend(moments)
            found.present += present
            found.refusals.update(refusals)
            worker.join(JOIN_S)
        return found
