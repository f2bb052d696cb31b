"""Connection churn: how quickly, and at what cost, a broker takes new MQTT connections.

A fixed number of connections is always being set up. Each goes TCP connect, CONNECT, CONNACK, then reset
(linger 0), which leaves no port in TIME_WAIT, so that the number of ports does not bound the run. Every
client identifier is new. The duration recorded is from the call of connect to the arrival of CONNACK.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from dataclasses import dataclass

from perf import board as words
from perf import codec
from perf.board import Board
from perf.codec import Histogram
from perf.generator import SLEEP_MAX_S, BrokenRunError
from perf.percentiles import sparse
from perf.workload import Workload

CONNACK_BYTES_MAX = 1024
FAILURES_MAX = 100
"""Failed connections after which the run is given up."""

CONNECTION_TIMEOUT_NS = 5_000_000_000
"""A connection not answered for this long has failed."""

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(slots=True, eq=False)
class Attempt:
    """One connection being set up."""

    connection: socket.socket
    started: int
    greeted: bool = False


class Churn:
    """A worker's share of a churn workload. ``received`` of the board counts completed connections."""

    def __init__(
        self, workload: Workload, address: tuple[str, int], slots: int, board: Board, worker: int
    ) -> None:
        self.workload = workload
        self.address = address
        self.slots = slots
        self.board = board
        self.worker = worker
        self.epoll = select.epoll()
        self.attempts: dict[int, Attempt] = {}
        self.latency = Histogram()
        self.begun = self.completed = self.failed = 0

    def connect(self) -> None:
        """Nothing is open before the clock runs."""

    def run(self) -> None:
        """Set up connections until ``MEASURE_TO``. Raises ``BrokenRunError`` after too many failures."""
        board = self.board.words
        start, measure_from = board[words.START], board[words.MEASURE_FROM]
        measure_to = board[words.MEASURE_TO]
        while (now := time.monotonic_ns()) < measure_to:
            if now < start:
                time.sleep(0.001)
                continue
            while len(self.attempts) < self.slots:
                self._begin()
            for fd, mask in self.epoll.poll(SLEEP_MAX_S):
                self._advance(fd, mask, measure_from)
            self._expire(time.monotonic_ns())
            if self.failed > FAILURES_MAX:
                raise BrokenRunError(f"{self.failed} connections failed")
            row = self.board.place(self.worker, 0)
            board[row + words.SENT] = self.begun
            board[row + words.RECEIVED] = self.completed

    def _begin(self) -> None:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        attempt = Attempt(connection, time.monotonic_ns())
        error = connection.connect_ex(self.address)
        if error not in (0, errno.EINPROGRESS):
            connection.close()
            raise BrokenRunError(f"connect: {errno.errorcode.get(error, error)}")
        self.begun += 1
        self.attempts[connection.fileno()] = attempt
        self.epoll.register(connection.fileno(), select.EPOLLOUT)

    def _advance(self, fd: int, mask: int, measure_from: int) -> None:
        attempt = self.attempts[fd]
        try:
            if not attempt.greeted:
                client_id = f"{self.workload.client_prefix}-{self.worker}-{self.begun}-{fd}"
                attempt.connection.send(codec.connect(client_id, self.workload.version))
                attempt.greeted = True
                self.epoll.modify(fd, select.EPOLLIN)
                return
            answer = attempt.connection.recv(CONNACK_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            self._end(fd, False)
            return
        # CONNACK is short; a broker that sends it in pieces would be counted as failing.
        accepted = len(answer) >= 4 and answer[0] == 0x20 and answer[3] == 0
        if accepted:
            now = time.monotonic_ns()
            if now >= measure_from:
                self.latency.record(now - attempt.started, 1)
        self._end(fd, accepted)

    def _end(self, fd: int, accepted: bool) -> None:
        attempt = self.attempts.pop(fd)
        attempt.connection.close()
        self.completed += accepted
        self.failed += not accepted

    def _expire(self, now: int) -> None:
        late = [
            fd
            for fd, attempt in self.attempts.items()
            if now - attempt.started > CONNECTION_TIMEOUT_NS
        ]
        for fd in late:
            self._end(fd, False)

    def report(self) -> dict[str, object]:
        """The counts of this worker, ready for JSON."""
        return {
            "sent": self.begun,
            "received": self.completed,
            "refused": self.failed,
            "acknowledgement": sparse(self.latency.counts),
        }

    def close(self) -> None:
        """Reset what is still being set up."""
        for attempt in self.attempts.values():
            attempt.connection.close()
        self.epoll.close()
