"""From the acceptor to the shards: which shard, in which batches, and what happens when one is away.

Each shard has a bounded backlog of connections that its socket did not take.  A shard that is dead for a
moment finds its clients waiting there; when the backlog is full the newest is closed, because the others
have waited longer and are nearer to being served.  A backlog entry lives no longer than a client waits.
"""

from __future__ import annotations

import array
import collections
import fcntl
import os
import socket
import termios
from collections.abc import Sequence

from fluxmq.control.handoff import BATCH_CONNECTIONS_MAX, LISTENERS, Handoff, adopt, send
from fluxmq.control.table import ProcessTable

BACKLOG_MAX = 2_000
"""Connections that wait for one shard, beyond those its socket holds: a second of a busy acceptor."""

BACKLOG_SECONDS = 10.0
"""How long a connection waits for an absent shard: clients commonly give up by then."""

_QUEUED = termios.TIOCOUTQ  # SIOCOUTQ for sockets: bytes sent that the other end has not received


class Delivery:
    """The acceptor's ends towards all shards."""

    def __init__(self, fds: Sequence[int], table: ProcessTable) -> None:
        self._sockets: list[socket.socket] = [adopt(fd) for fd in fds]
        self._table = table
        self._slots = _shard_slots(table, len(fds))
        self._waiting: list[collections.deque[tuple[float, Handoff]]] = [
            collections.deque() for _ in fds
        ]
        # Handed over per shard and listener, and perhaps not yet counted in the shard's row.
        self._uncounted = [[0] * len(LISTENERS) for _ in fds]
        self._estimate = [0] * len(LISTENERS)
        self._fresh = False
        self._next = 0
        self.blocked: set[int] = set()  # shards whose socket was full
        self.handed = [0] * len(LISTENERS)

    @property
    def workers(self) -> int:
        """How many shards there are."""
        return len(self._sockets)

    def fileno(self, shard: int) -> int:
        """The descriptor to watch for writing while ``shard`` is in ``blocked``."""
        return self._sockets[shard].fileno()

    def backlog(self) -> int:
        """Connections waiting in this process."""
        return sum(len(waiting) for waiting in self._waiting)

    def any_shard(self) -> int:
        """The next shard in turn that serves; the next in turn when none does."""
        for step in range(len(self._sockets)):
            shard = (self._next + step) % len(self._sockets)
            if self._table.ready(self._slots[shard]):
                break
        else:
            shard = self._next
        self._next = (shard + 1) % len(self._sockets)
        return shard

    def has_room(self, listener: int, maximum: int) -> bool:
        """Whether one more connection of ``listener`` stays within ``maximum``.

        Counted are those in the shards' rows and those on their way, asked for at most once per turn.  A
        shard counts a connection in the turn in which it receives it; the figure can be behind by one batch.
        """
        if self._estimate[listener] >= maximum and not self._fresh:
            self.recount()
        return self._estimate[listener] < maximum

    def recount(self) -> None:
        """Ask the table and the sockets how many connections there are.  Costs a call per shard."""
        self._fresh = True
        queued = array.array("i", [0])
        for shard, sock in enumerate(self._sockets):
            if not self._waiting[shard]:
                fcntl.ioctl(sock, _QUEUED, queued)
                if queued[0] == 0:
                    self._uncounted[shard] = [0] * len(LISTENERS)
        for listener in range(len(LISTENERS)):
            on_their_way = sum(counts[listener] for counts in self._uncounted)
            self._estimate[listener] = self._table.connections(listener) + on_their_way

    def put(self, shard: int, connection: Handoff, now: float) -> bool:
        """Queue a connection for ``shard``; False when its backlog is full (the caller closes it)."""
        waiting = self._waiting[shard]
        if len(waiting) >= BACKLOG_MAX:
            return False
        waiting.append((now, connection))
        self._estimate[connection.listener] += 1
        self._uncounted[shard][connection.listener] += 1
        return True

    def flush(self) -> None:
        """Send what waits, as far as the sockets take it.  Once per turn of the loop."""
        self._fresh = False
        for shard, waiting in enumerate(self._waiting):
            if waiting and shard not in self.blocked:
                self._flush(shard, waiting)

    def writable(self, shard: int) -> None:
        """The socket of ``shard`` takes messages again."""
        self.blocked.discard(shard)

    def expire(self, now: float) -> list[Handoff]:
        """Take out what has waited too long; the caller closes it."""
        expired = []
        for shard, waiting in enumerate(self._waiting):
            while waiting and waiting[0][0] <= now - BACKLOG_SECONDS:
                _, connection = waiting.popleft()
                self._uncounted[shard][connection.listener] -= 1
                expired.append(connection)
        return expired

    def close(self) -> list[Handoff]:
        """End: one last attempt to deliver; returns what is left, which the caller closes."""
        self.blocked.clear()
        self.flush()
        rest = [connection for waiting in self._waiting for _, connection in waiting]
        for waiting in self._waiting:
            waiting.clear()
        for sock in self._sockets:
            sock.close()
        return rest

    def _flush(self, shard: int, waiting: collections.deque[tuple[float, Handoff]]) -> None:
        sock = self._sockets[shard]
        while waiting:
            batch = [waiting[at][1] for at in range(min(len(waiting), BATCH_CONNECTIONS_MAX))]
            sent = send(sock, batch)
            if not sent:
                self.blocked.add(shard)
                return
            for _ in range(sent):
                _, connection = waiting.popleft()
                os.close(connection.fd)  # the shard has its own descriptor now
                self.handed[connection.listener] += 1


def _shard_slots(table: ProcessTable, workers: int) -> list[int]:
    """The table's slot of each shard."""
    slots = {row.index: row.slot for row in table.rows() if row.role == "shard"}
    assert set(range(workers)) <= set(slots), "every shard has a row"
    return [slots[index] for index in range(workers)]
