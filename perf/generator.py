"""The generator's loop: sockets on one epoll, messages out as the bounds allow, deliveries counted in.

Lives in a worker process and does nothing else; no asyncio, no object per message. One pass of the loop reads
every readable connection once, answers what needs an answer, and lets every publisher that may send do so
once. It is bounded by the board's times: publishing ends at ``MEASURE_TO``, everything ends at ``STOP_AT``.

Two bounds hold publishers back. Above QoS 0 each has a window of unacknowledged messages. At every QoS the
whole run has a bound on deliveries under way, counted where they arrive, so that a fast publisher measures
the broker and not how quickly the broker drops. A gap in a publisher's sequence counts as no longer under
way, and when deliveries stop arriving for ``GIVE_UP_NS`` all of them are written off, so that a lossy broker
is measured (and its loss reported) instead of waited for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import time
from collections import deque
from dataclasses import dataclass, field

from perf import board as words
from perf import dialects
from perf.board import Board
from perf.codec import Histogram, Receiver, Sender
from perf.percentiles import sparse
from perf.workload import Workload

INBOUND_BYTES = 1 << 18
"""Most bytes taken by one receive, as a broker with large batches would."""

PENDING_MAX = 4 << 20
"""Most reply bytes kept for a broker that does not read; beyond, the run fails."""

GIVE_UP_NS = 250_000_000
"""Deliveries under way are given up when none arrived for this long."""

DRAIN_QUIET_NS = 1_000_000_000
"""After publishing ended, the run is over when nothing arrived for this long."""

GIVE_UP_DURABLE_NS = 5_000_000_000
DRAIN_QUIET_DURABLE_NS = 2_000_000_000
"""The same with a durable queue between: a pause for a sync or a checkpoint is no loss."""

SLEEP_MAX_S = 0.02
"""Longest sleep of the loop: how late it may notice the board's times."""

EVENTS_MAX = 512
"""Most readable connections taken in one pass."""

READ, WRITE = select.EPOLLIN | select.EPOLLRDHUP, select.EPOLLOUT
PR_SET_TIMERSLACK = 29


class BrokenRunError(RuntimeError):
    """The broker closed a connection or stopped reading; the run has no result."""


@dataclass(slots=True, eq=False)
class Link:
    """One connection: what was received, the sender of a publisher, bytes the kernel did not take yet."""

    connection: socket.socket
    receiver: Receiver
    sender: Sender | None = None
    view: memoryview = field(default_factory=lambda: memoryview(b""))
    tail: bytes = b""
    pending: bytearray = field(default_factory=bytearray)
    runnable: bool = False


class Generator:
    """A worker's share of a workload: its publishers, its subscribers, one loop."""

    def __init__(
        self,
        workload: Workload,
        address: tuple[str, int],
        publishers: list[int],
        subscribers: list[int],
        board: Board,
        worker: int,
        subscriber_port: int = 0,
    ) -> None:
        self.workload = workload
        self.address = address
        self.subscriber_port = subscriber_port or address[1]
        self.pair_ports: list[tuple[int, int]] = []
        self.publishing = dialects.DIALECTS[workload.protocol]
        self.consuming = dialects.DIALECTS[workload.consumes()]
        self.give_up_ns = GIVE_UP_DURABLE_NS if workload.durable else GIVE_UP_NS
        self.drain_quiet_ns = DRAIN_QUIET_DURABLE_NS if workload.durable else DRAIN_QUIET_NS
        self.board = board
        self.worker = worker
        self.epoll = select.epoll()
        self.links: dict[int, Link] = {}
        self.runnable: deque[Link] = deque()
        self.inbound = bytearray(INBOUND_BYTES)
        self.outbound = bytearray(INBOUND_BYTES)
        self.in_view = memoryview(self.inbound)
        self.out_view = memoryview(self.outbound)
        self.delivery = Histogram()
        self.acknowledgement = Histogram()
        self.sent = self.received = self.acknowledged = self.missed = 0
        self.fan_out = workload.fan_out
        self.deliveries_max = workload.deliveries_max()
        self.chunk = 1
        self.share = len(publishers) / workload.publishers
        self.scheduled = 0
        self.last_total, self.last_arrival = -1, 0
        self.publisher_indexes = publishers
        self.subscriber_indexes = subscribers

    # --- before the clock runs ---------------------------------------------------------------------------------

    def connect(self) -> None:
        """Open everything, subscribers first, because they declare queues. Raises ``OSError``."""
        host = self.address[0]
        work, buffers = self.workload, (self.inbound, self.outbound)
        for index in self.subscriber_indexes:
            consuming = self.consuming
            connection = consuming.open_subscriber(host, self._ports(index)[1], work, index)
            receiver = consuming.receiver(work, buffers, None, self.delivery)
            self._add(connection, Link(connection, receiver))
        for index in self.publisher_indexes:
            port = self._ports(index)[0]
            connection, limit = self.publishing.open_publisher(host, port, work, index)
            sender = self._sender(index, limit)
            receiver = self.publishing.receiver(work, buffers, sender, self.delivery)
            link = Link(connection, receiver, sender, memoryview(sender.chunk))
            self._add(connection, link)
            self._make_runnable(link)
        self.epoll.register(self.board.wake_fds[self.worker], select.EPOLLIN)

    def _ports(self, index: int) -> tuple[int, int]:
        """Return the ports to which publisher and subscriber ``index`` connect."""
        return (
            self.pair_ports[index] if self.pair_ports else (self.address[1], self.subscriber_port)
        )

    def _sender(self, index: int, window: int) -> Sender:
        work = self.workload
        template = self.publishing.template(work, index)
        self.chunk = work.chunk_messages(len(template.message))
        window = min(work.window, window)
        capacity = min(self.chunk, window) if work.qos else self.chunk
        return self.publishing.sender(template, capacity, window, index, self.acknowledgement)

    def _add(self, connection: socket.socket, link: Link) -> None:
        connection.setblocking(False)
        self.links[connection.fileno()] = link
        self.epoll.register(connection.fileno(), READ)

    # --- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Publish until ``MEASURE_TO``, then take what is still under way. Raises ``BrokenRunError``."""
        board = self.board.words
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
        start, measure_from = board[words.START], board[words.MEASURE_FROM]
        measure_to, stop_at = board[words.MEASURE_TO], board[words.STOP_AT]
        self.last_arrival = start
        state = self.board.place(self.worker, words.STATE)
        while True:
            now = time.monotonic_ns()
            wait_s = SLEEP_MAX_S
            if now >= measure_to:
                board[state] = words.PUBLISHED
                if now >= stop_at or self._drained(now):
                    return
            elif now >= start:
                wait_s = self._publish(now, start)
            self._turn(wait_s, measure_from, measure_to)

    def _turn(self, wait_s: float, measure_from: int, measure_to: int) -> None:
        """Sleep until something is readable, at most ``wait_s``; read it all once; publish the counts."""
        events = self.epoll.poll(0, EVENTS_MAX)
        if not events and wait_s > 0:
            # epoll's own timeout is in milliseconds; select on the epoll descriptor sleeps in microseconds.
            select.select([self.epoll], [], [], wait_s)
            events = self.epoll.poll(0, EVENTS_MAX)
        for fd, mask in events:
            link = self.links.get(fd)
            if link is None:
                self._awake()
                continue
            if mask & WRITE:
                self._send_pending(fd, link)
            if mask & ~WRITE:
                now = time.monotonic_ns()
                self._read(fd, link, now, measure_from <= now < measure_to)
        board, worker = self.board, self.worker
        row = board.place(worker, 0)
        arrived = self.received != board.words[row + words.RECEIVED]
        board.words[row + words.SENT] = self.sent
        board.words[row + words.RECEIVED] = self.received
        board.words[row + words.ACKNOWLEDGED] = self.acknowledged
        board.words[row + words.MISSED] = self.missed
        if arrived and board.workers > 1:
            board.wake_others(worker)

    def _awake(self) -> None:
        self.board.words[self.board.place(self.worker, words.WAITING)] = 0
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.board.wake_fds[self.worker])

    def _read(self, fd: int, link: Link, now: int, measuring: bool) -> None:
        """Take what one receive gives, account for it and send the replies it asks for."""
        receiver, tail = link.receiver, link.tail
        kept = len(tail)
        if kept:
            self.in_view[:kept] = tail
        try:
            count = link.connection.recv_into(self.in_view[kept:])
        except BlockingIOError:
            return
        if not count:
            raise BrokenRunError("the broker closed a connection")
        before, missed = receiver.publishes, receiver.lost
        sender = link.sender
        acknowledged = sender.acknowledged if sender is not None else 0
        room = sender.room() if sender is not None else 0
        end = kept + count
        done = receiver.feed(end, now, measuring)
        link.tail = bytes(self.in_view[done:end]) if done < end else b""
        self.received += receiver.publishes - before
        self.missed += receiver.lost - missed
        if receiver.out_length:
            self._reply(fd, link, receiver.out_length)
        if sender is not None and sender.acknowledged != acknowledged:
            self.acknowledged += sender.acknowledged - acknowledged
            self._make_runnable(link)
        elif sender is not None and sender.room() > room:  # credit of a link
            self._make_runnable(link)

    def _reply(self, fd: int, link: Link, length: int) -> None:
        taken = 0
        if not link.pending:
            with contextlib.suppress(BlockingIOError):
                taken = link.connection.send(self.out_view[:length])
        if taken < length:
            self._keep(fd, link, self.out_view[taken:length])

    def _keep(self, fd: int, link: Link, rest: memoryview) -> None:
        """Remember what the kernel did not take; replies and publishes of a connection stay in order."""
        if not link.pending:
            self.epoll.modify(fd, READ | WRITE)
        link.pending += rest
        if len(link.pending) > PENDING_MAX:
            raise BrokenRunError("the broker does not read")

    def _send_pending(self, fd: int, link: Link) -> None:
        try:
            taken = link.connection.send(link.pending)
        except BlockingIOError:
            return
        del link.pending[:taken]
        if not link.pending:
            self.epoll.modify(fd, READ)
            self._make_runnable(link)

    # --- publishing --------------------------------------------------------------------------------------------

    def _make_runnable(self, link: Link) -> None:
        if not link.runnable and link.sender is not None:
            link.runnable = True
            self.runnable.append(link)

    def _room(self) -> int:
        """Return the number of messages that may be published before the bound on deliveries in flight is
        reached."""
        board = self.board
        sent, settled = self.sent, self.received + self.missed
        if board.workers > 1:
            row = board.place(self.worker, 0)
            sent += board.total(words.SENT) - board.words[row + words.SENT]
            settled += self._settled_deliveries() - (
                board.words[row + words.RECEIVED] + board.words[row + words.MISSED]
            )
        under_way = sent * self.fan_out - settled - board.words[words.WRITTEN_OFF]
        return (self.deliveries_max - max(0, under_way)) // self.fan_out

    def _settled_deliveries(self) -> int:
        """Deliveries of the whole run that came, or that cannot come any more."""
        return self.board.total(words.RECEIVED) + self.board.total(words.MISSED)

    def _publish(self, now: int, start: int) -> float:
        """Send what may be sent; the longest sleep that follows, in seconds."""
        if not self.publisher_indexes:
            return SLEEP_MAX_S
        room = self._room()
        if self.workload.rate:
            return self._publish_due(now, start, room)
        least = self.chunk
        for _ in range(len(self.runnable)):
            if room < least:
                return self._no_room(now)
            link = self.runnable.popleft()
            sender = link.sender
            assert sender is not None
            count = sender.room()
            if count <= 0 or link.pending:
                link.runnable = False
                continue
            room -= count
            self._send(link, sender, count, time.monotonic_ns(), 0)
            self.runnable.append(link)
        return 0.0 if self.runnable else SLEEP_MAX_S

    def _send(self, link: Link, sender: Sender, count: int, stamp: int, step: int) -> None:
        length = sender.prepare(count, stamp, step)
        self.sent += count
        if link.pending:
            link.pending += link.view[:length]
            return
        try:
            taken = link.connection.send(link.view[:length])
        except BlockingIOError:
            taken = 0
        if taken < length:
            self._keep(link.connection.fileno(), link, link.view[taken:length])

    def _no_room(self, now: int) -> float:
        """Sleep until deliveries arrive; give up those under way when none has for long."""
        board = self.board
        total = self._settled_deliveries()
        if total != self.last_total:
            self.last_total, self.last_arrival = total, now
        elif now - self.last_arrival > self.give_up_ns and self.worker == 0:
            sent = board.total(words.SENT)
            board.words[words.WRITTEN_OFF] = sent * self.fan_out - total
            self.last_arrival = now
            return 0.0
        if board.workers > 1:
            waiting = board.place(self.worker, words.WAITING)
            board.words[waiting] = 1
            if self._room() >= self.chunk:
                board.words[waiting] = 0
                return 0.0
        return SLEEP_MAX_S

    def _publish_due(self, now: int, start: int, room: int) -> float:
        """Open loop: send what the schedule says is due, stamped with the time it was due at."""
        interval = 1e9 / (self.workload.rate * self.share)
        while room > 0 and self.runnable:
            due = int((now - start) / interval) + 1 - self.scheduled
            if due <= 0:
                break
            link = self.runnable.popleft()
            sender = link.sender
            assert sender is not None
            count = min(due, room, sender.room())
            if count <= 0 or link.pending:
                link.runnable = False
                continue
            stamp = start + int(self.scheduled * interval)
            self._send(link, sender, count, stamp, int(interval))
            self.scheduled += count
            room -= count
            self.runnable.append(link)
        if room <= 0:
            return self._no_room(now)
        if not self.runnable:
            return SLEEP_MAX_S
        ahead = start + int(self.scheduled * interval) - time.monotonic_ns()
        return min(SLEEP_MAX_S, max(0.0, ahead / 1e9))

    # --- after publishing --------------------------------------------------------------------------------------

    def _drained(self, now: int) -> bool:
        """Return whether everything arrived, or nothing did for ``DRAIN_QUIET_NS``."""
        board = self.board
        expected = board.total(words.SENT) * self.fan_out
        total = self._settled_deliveries()
        settled = (
            self.workload.qos == 0 or board.total(words.ACKNOWLEDGED) == expected // self.fan_out
        )
        if total != self.last_total or not board.reached(words.PUBLISHED):
            self.last_total, self.last_arrival = total, now
            return False
        return (total >= expected and settled) or now - self.last_arrival > self.drain_quiet_ns

    def report(self) -> dict[str, object]:
        """The counts of this worker, ready for JSON."""
        receivers = [link.receiver for link in self.links.values()]
        senders = [link.sender for link in self.links.values() if link.sender is not None]
        return {
            "sent": self.sent,
            "received": self.received,
            "acknowledged": self.acknowledged,
            "gaps": sum(receiver.lost for receiver in receivers),
            "reordered": sum(receiver.reordered for receiver in receivers),
            "unexpected": sum(receiver.unexpected for receiver in receivers),
            "malformed": sum(receiver.malformed for receiver in receivers),
            "refused": sum(sender.refused for sender in senders),
            "spurious": sum(sender.spurious for sender in senders),
            "delivery": sparse(self.delivery.counts),
            "acknowledgement": sparse(self.acknowledgement.counts),
        }

    def close(self) -> None:
        """Say goodbye and close; what a broker still sends is of no interest."""
        for link in self.links.values():
            try:
                if not link.pending:
                    link.connection.send(
                        (self.consuming if link.sender is None else self.publishing).goodbye
                    )
            except OSError:
                pass
            link.connection.close()
        self.epoll.close()
