"""Hand-over from the acceptor to the shards: target shard, batches, and backlog of an absent shard.

Each shard has a bounded backlog of connections that its socket did not take. A shard that is down
for a moment finds its clients waiting there; when the backlog is full the newest connection is
closed, because the others have waited longer and are nearer to being served. A connection stays in
the backlog no longer than a client waits.

While a shard takes what it is sent nothing waits here: connections lie in its batch until the end
of the turn, written there by ``put`` or, the easy ones, by ``net.accept``.
"""

from __future__ import annotations

import array
import collections
import fcntl
import itertools
import os
import socket
import termios
from collections.abc import Iterable, Sequence

from fluxmq.ipc import handoff
from fluxmq.ipc.handoff import LISTENERS, Handoff
from fluxmq.ipc.table import ProcessTable
from fluxmq.net.accept_batch import ConnectionBatch

BACKLOG_MAX = 2_000
"""Connections waiting for one shard beyond those in its socket: a second of a busy acceptor."""

BACKLOG_SECONDS = 10.0
"""Time a connection waits for an absent shard: clients commonly give up by then."""

_QUEUED = termios.TIOCOUTQ  # SIOCOUTQ for sockets: bytes sent but not yet received by the peer


class ShardHandoff:
    """The acceptor's ends of the sockets to all shards."""

    def __init__(self, fds: Sequence[int], table: ProcessTable, connections_max: int) -> None:
        """``connections_max``: connections one shard has descriptors for."""
        self._sockets: list[socket.socket] = [handoff.adopt(fd) for fd in fds]
        self._table = table
        self._slots = _shard_slots(table, len(fds))
        self._waiting: list[collections.deque[tuple[float, Handoff]]] = [
            collections.deque() for _ in fds
        ]
        # Invariant: a batch is paused while its shard is blocked or has connections waiting.
        self.batches: list[ConnectionBatch] = [handoff.new_batch() for _ in fds]
        # Connections per shard and listener: all that were ever handed over, and those of them that
        # the shard's row possibly does not count yet.
        self._given = [self._received(slot) for slot in self._slots]
        self._uncounted = [[0] * len(LISTENERS) for _ in fds]
        self._estimate = [0] * len(LISTENERS)
        self._connections_max = connections_max
        self._held = [0] * len(fds)
        """Connections of each shard, as ``_estimate`` has them of each listener."""
        self._fresh = False
        self._next = 0
        self.blocked: set[int] = set()  # shards whose socket was full
        self.handed = [0] * len(LISTENERS)

    @property
    def workers(self) -> int:
        """Number of shards."""
        return len(self._sockets)

    def fileno(self, shard: int) -> int:
        """Return the descriptor to watch for writing while ``shard`` is in ``blocked``."""
        return self._sockets[shard].fileno()

    def backlog(self) -> int:
        """Return the number of connections waiting in this process."""
        waiting = sum(len(waiting) for waiting in self._waiting)
        return waiting + sum(len(batch.fds) for batch in self.batches)

    def any_shard(self) -> int:
        """Return the next serving shard in turn with room; the next in turn when none has."""
        for step in range(len(self._sockets)):
            shard = (self._next + step) % len(self._sockets)
            if self._table.ready(self._slots[shard]) and self.has_place(shard):
                break
        else:
            shard = self._next
        self._next = (shard + 1) % len(self._sockets)
        return shard

    def lightest_shard(self, listeners: Iterable[int]) -> int:
        """Return the serving shard with the fewest connections of some listeners; in turn among
        equals."""
        best = self.any_shard()
        wanted = tuple(listeners)
        if self._table.ready(self._slots[best]):
            fewest = self._load(best, wanted)
            for shard, slot in enumerate(self._slots):
                load = self._load(shard, wanted)
                if load < fewest and self._table.ready(slot) and self.has_place(shard):
                    best, fewest = shard, load
        return best

    def _load(self, shard: int, listeners: tuple[int, ...]) -> int:
        """Return the connections that a shard has or is about to get."""
        held = self._table.row(self._slots[shard]).connections
        batch = self.batches[shard]
        load = 0
        for listener in listeners:
            load += held[listener] + self._uncounted[shard][listener]
            if batch.fds:
                load += batch.counts[listener]
        return load

    def room(self, listener: int, maximum: int) -> int:
        """Return how many more connections of ``listener`` stay within ``maximum``, as far as is
        known."""
        room = maximum - self._estimate[listener]
        for batch in self.batches:
            if batch.fds:
                room -= batch.counts[listener]
        return room

    def has_room(self, listener: int, maximum: int) -> bool:
        """Return whether one more connection of ``listener`` stays within ``maximum``.

        Counts those in the shards' rows and those on their way, and recounts at most once per turn.
        A connection that a shard has received counts as on its way until the shard's row has it.
        """
        if self.room(listener, maximum) <= 0 and not self._fresh:
            self.recount()
        return self.room(listener, maximum) > 0

    @property
    def places(self) -> int:
        """Number of further connections every shard has descriptors for, as far as is known."""
        held = max(
            held + len(batch.fds) for held, batch in zip(self._held, self.batches, strict=True)
        )
        return self._connections_max - held

    def has_place(self, shard: int) -> bool:
        """Return whether a shard has a descriptor for one more connection; recounts at most once
        per turn."""
        batch = self.batches[shard]
        if self._held[shard] + len(batch.fds) >= self._connections_max and not self._fresh:
            self.recount()
        return self._held[shard] + len(batch.fds) < self._connections_max

    def recount(self) -> None:
        """Read the connection counts from the table and the sockets. Costs a call per shard."""
        self._fresh = True
        queued = array.array("i", [0])
        for shard, sock in enumerate(self._sockets):
            given, slot = self._given[shard], self._slots[shard]
            if not self._waiting[shard]:
                fcntl.ioctl(sock, _QUEUED, queued)
                # In this order: a shard that has emptied its socket is taking until its row is true.
                if queued[0] == 0 and not self._table.taking(slot):
                    # Nothing is on its way; a shard that has died may have lost some.
                    given[:] = self._received(slot)
            # Before the numbers of connections: what is received in between counts twice for once.
            received = self._received(slot)
            self._uncounted[shard] = [
                max(0, each - counted) for each, counted in zip(given, received, strict=True)
            ]
        for listener in range(len(LISTENERS)):
            on_their_way = sum(counts[listener] for counts in self._uncounted)
            self._estimate[listener] = self._table.connections(listener) + on_their_way
        for shard, slot in enumerate(self._slots):
            held = self._table.row(slot).connections
            self._held[shard] = sum(held) + sum(self._uncounted[shard])

    def _received(self, slot: int) -> list[int]:
        return [*self._table.row(slot).received[: len(LISTENERS)]]

    def put(self, shard: int, connection: Handoff, now: float) -> bool:
        """Queue a connection for ``shard``; False when its backlog is full (the caller closes
        it)."""
        waiting = self._waiting[shard]
        idle = not waiting and shard not in self.blocked
        if idle and handoff.put(self.batches[shard], connection):
            return True
        if len(waiting) >= BACKLOG_MAX:
            return False
        self.batches[shard].paused = True
        waiting.append((now, connection))
        self._count(shard, connection.listener, 1)
        return True

    def flush(self, now: float) -> None:
        """Send waiting connections, as far as the sockets accept them.

        Called once per turn of the loop."""
        self._fresh = False
        for shard, batch in enumerate(self.batches):
            if batch.fds:
                self._send(shard, batch, now)
            if batch.paused:
                waiting = self._waiting[shard]
                if waiting and shard not in self.blocked:
                    self._send_waiting(shard, waiting)
                batch.paused = bool(waiting) or shard in self.blocked

    def writable(self, shard: int) -> None:
        """Resume sending to ``shard``, whose socket takes messages again."""
        self.blocked.discard(shard)

    def expire(self, now: float) -> list[Handoff]:
        """Remove connections that have waited too long and return them; the caller closes them."""
        expired = []
        for shard, waiting in enumerate(self._waiting):
            while waiting and waiting[0][0] <= now - BACKLOG_SECONDS:
                _, connection = waiting.popleft()
                self._count(shard, connection.listener, -1)
                expired.append(connection)
        return expired

    def close(self) -> list[Handoff]:
        """Try to deliver one last time; return the rest, which the caller closes."""
        self.blocked.clear()
        self.flush(0.0)
        rest = [connection for waiting in self._waiting for _, connection in waiting]
        for waiting in self._waiting:
            waiting.clear()
        for sock in self._sockets:
            sock.close()
        return rest

    def _send(self, shard: int, batch: ConnectionBatch, now: float) -> None:
        """Send this turn's batch; what the socket does not take joins the backlog."""
        counts = batch.counts[: len(LISTENERS)]
        sent = handoff.dispatch(self._sockets[shard], batch)
        for listener, count in enumerate(counts):
            if count:
                self._count(shard, listener, count)
                if sent:
                    self.handed[listener] += count
        if sent:
            batch.close()  # the shard has its own descriptors now
            return
        self.blocked.add(shard)
        batch.paused = True
        # Older than what may have started to wait in this turn, when the batch was full.
        for connection in reversed(handoff.taken_back(batch)):
            self._waiting[shard].appendleft((now, connection))
        batch.clear()

    def _send_waiting(self, shard: int, waiting: collections.deque[tuple[float, Handoff]]) -> None:
        while waiting:
            first = [
                connection
                for _, connection in itertools.islice(waiting, handoff.BATCH_CONNECTIONS_MAX)
            ]
            sent = handoff.send(self._sockets[shard], first)
            if not sent:
                self.blocked.add(shard)
                return
            for _ in range(sent):
                _, connection = waiting.popleft()
                os.close(connection.fd)
                self.handed[connection.listener] += 1

    def _count(self, shard: int, listener: int, count: int) -> None:
        self._estimate[listener] += count
        self._held[shard] += count
        self._given[shard][listener] += count
        self._uncounted[shard][listener] += count


def _shard_slots(table: ProcessTable, workers: int) -> list[int]:
    """Return the table's slot of each shard."""
    slots = {row.index: row.slot for row in table.rows() if row.role == "shard"}
    assert set(range(workers)) <= set(slots), "every shard has a row"
    return [slots[index] for index in range(workers)]
