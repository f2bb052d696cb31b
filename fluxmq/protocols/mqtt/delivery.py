"""Delivery of messages to one session: in-flight, waiting and resent messages.

Messages of QoS 1 and 2 are held as *portions*: stretches of a run with consecutive packet
identifiers. A portion waits in ``pending`` until the client's receive window, its connection's
output and the identifier space have room, is then written and moves to ``flight`` until
acknowledged. Acknowledgements in order (the usual case) advance one counter; others are remembered
in a set. So a session costs one object per run and subscriber, never one per message. After a lost
connection in-flight messages move to ``resend`` and are written again, with DUP and their old
identifiers, before anything new. ``window`` is the half that handles sent messages.

Messages of a durable queue (``Portion.queued``) wait here only as far as their consumer has claimed
them: they count against none of the session's bounds, and are never dropped to satisfy them.

A session that is kept on disk has a ``durable``, a `RunKeeper`: it takes each run first, and decides when to
enqueue it. Its portions are numbered (``Portion.base``), and their packet identifiers follow from
the numbers, so that a message keeps its identifier across a restart.

Source: MQTT 3.1.1 and 5.0 sections 4.3 (QoS), 4.4 (redelivery), 4.6 (ordering), 4.9 (flow control).
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import cython

from fluxmq.protocols.connection import Connection, Tally
from fluxmq.protocols.mqtt.portion import (
    GROWTH_MAX,
    Portion,
    Target,
    fitting,
    unanswered,
    write_portion,
)
from fluxmq.protocols.mqtt.ports import RunKeeper
from fluxmq.protocols.mqtt.run import Run
from fluxmq.protocols.mqtt.window import PACKET_ID_MAX, Window

if cython.compiled:
    from cython.cimports.fluxmq.protocols.connection import Connection, Tally
    from cython.cimports.fluxmq.protocols.mqtt.portion import (
        Portion,
        Target,
        fitting,
        unanswered,
        write_portion,
    )
    from cython.cimports.fluxmq.protocols.mqtt.run import Run
    from cython.cimports.fluxmq.protocols.mqtt.window import Window

EARLY_MAX: Final = 1024
"""Answers remembered out of order before sending stops: clients answer in order, except between QoS
1 and 2, and each answer out of order costs a scan of everything in flight."""
STEP_BYTES: Final = 1024 * 1024
"""Bytes written between checks of the connection's limit for a topic sent as an alias, properties
and subscription identifiers, which are written with every message."""
EVICT: Final = 0
"""A full offline queue drops its oldest messages."""
REJECT: Final = 1
"""A full offline queue drops the message that arrives."""


class Delivery(Window):
    """Messages for one session. ``connection`` is None while the client is away.

    ``pending_max`` (while away), ``pending_max_connected`` and ``pending_bytes_max`` bound waiting
    messages, the last one in-flight ones as well; ``policy`` decides what is dropped when full.
    """

    def __init__(
        self,
        tally: Tally,
        pending_max: cython.Py_ssize_t,
        pending_max_connected: cython.Py_ssize_t,
        pending_bytes_max: cython.Py_ssize_t,
        policy: cython.int,
    ) -> None:
        Window.__init__(self)
        self.tally = tally
        self.pending_max = pending_max
        self.pending_max_connected = pending_max_connected
        self.pending_bytes_max = pending_bytes_max
        self.policy = policy
        self.connection: Connection | None = None
        self.session: Any = None
        self.durable: Any = None
        self.other_pid = PACKET_ID_MAX // 2
        self.pending_count = 0
        self.pending_bytes = 0
        self.pending: deque[Portion] | None = None

    def offer(self, run: Run, target: Target) -> cython.int:
        """Deliver a run that a subscription matched."""
        qos: cython.int = min(run.qos, target.qos)
        retain: cython.int = 1 if (run.retain and target.keep_retain) else 0
        if qos == 0:
            if self.connection is not None:
                self.send_now(run, retain, target.subscription_ids)
            return 0
        return self.enqueue(run, qos, retain, target.subscription_ids, None)

    def send_now(self, run: Run, retain: cython.int, subscription_ids: bytes) -> cython.int:
        """Write a run at QoS 0, or drop it when the client is too slow or accepts no packets that
        large."""
        connection: Connection | None = self.connection
        assert connection is not None
        data: bytes
        portion: Portion
        front: Portion
        step: cython.Py_ssize_t
        if self.blocked():
            self.tally.dropped_slow += run.count
            return 0
        if run.deadline != 0.0 and run.deadline <= self.tally.now:
            self.tally.dropped_expired += run.count
            return 0
        step = self.step(run, subscription_ids)
        if (
            retain == 0
            and not subscription_ids
            and connection.alias_maximum == 0
            and run.deadline == 0.0
            and run.largest + GROWTH_MAX <= connection.max_packet_out
        ):
            if run.qos == 0 and run.verbatim and run.version == connection.version:
                self.tally.sent(0, run.count, run.end - run.start)
                connection.append_slice(run.buffer, run.start, run.end, run.kept)
                return 0
            if run.count <= step:
                data = run.plain(connection.version)
                self.tally.sent(0, run.count, len(data))
                connection.append(data)
                return 0
        portion = Portion(run, run.start, run.count, 0, retain, subscription_ids, None)
        while not self.blocked():
            front = portion if portion.count <= step else portion.take(step)
            if self.maybe_large(front):
                for piece in fitting(front, connection):
                    write_portion(connection, piece, 0, False)
            else:
                write_portion(connection, front, 0, False)
            if front is portion:
                return 0
        self.tally.dropped_slow += portion.count
        return 0

    def blocked(self) -> cython.bint:
        """Return whether the client is too slow to be given more."""
        connection: Connection | None = self.connection
        assert connection is not None
        if connection.size < connection.limit:
            return False
        # The tick may just be long: due output is written before anything is dropped.
        if not connection.waiting and connection.flush() == 1:
            return False
        connection.buffer()
        return True

    def step(self, run: Run, subscription_ids: bytes) -> cython.Py_ssize_t:
        """Return how many messages to write at once, so that their growth barely exceeds a
        limit."""
        growth: cython.Py_ssize_t = len(run.topic) + len(run.properties) + len(subscription_ids)
        return STEP_BYTES // (growth + GROWTH_MAX) + 1

    def enqueue(
        self, run: Run, qos: cython.int, retain: cython.int, subscription_ids: bytes, group: Any
    ) -> cython.int:
        """Deliver a run at QoS 1 or 2: at once as far as the window allows, the rest in order."""
        run.detach()
        if self.durable is not None:
            keeper: RunKeeper = self.durable
            keeper.keep(run, qos, retain, subscription_ids, group)
            return 0
        self.enqueue_portion(
            Portion(run, run.start, run.count, qos, retain, subscription_ids, group)
        )
        return 0

    def enqueue_portion(self, portion: Portion) -> cython.int:
        """Take over a portion, new or from another session."""
        if self.pending is None:
            self.pending = deque()
            self.flight = deque()
        self.pending.append(portion)
        self.count(portion, portion.count)
        if self.connection is not None:
            self.pump()
        if self.pending_count > self.bound() or self.pending_bytes > self.pending_bytes_max:
            self.trim()
        return 0

    def count(self, portion: Portion, count: cython.Py_ssize_t) -> cython.int:
        """Count ``count`` messages of a whole portion as waiting (negative: no longer)."""
        if not portion.queued:
            self.pending_count += count
            self.pending_bytes += self.weight(portion) if count > 0 else -self.weight(portion)
        return 0

    def bound(self) -> cython.Py_ssize_t:
        """Return how many messages may wait: more for a connected, slow client than for an absent
        one."""
        return self.pending_max if self.connection is None else self.pending_max_connected

    def weight(self, portion: Portion) -> cython.Py_ssize_t:
        """Return the approximate number of bytes a portion keeps alive."""
        run: Run = portion.run
        if run.count == 0:
            return 0
        return (run.end - run.start) * portion.count // run.count

    def trim(self) -> cython.int:
        """Bring waiting messages back within their bounds."""
        portion: Portion
        excess: cython.Py_ssize_t
        place: cython.Py_ssize_t
        bound: cython.Py_ssize_t = self.bound()
        pending: deque[Portion] | None = self.pending
        if pending is None:
            return 0
        while self.pending_count > bound or self.pending_bytes > self.pending_bytes_max:
            place = 0 if self.policy == EVICT else len(pending) - 1
            while 0 <= place < len(pending) and pending[place].queued:
                place += 1 if self.policy == EVICT else -1
            if not 0 <= place < len(pending):
                return 0
            portion = pending[place]
            excess = min(max(self.pending_count - bound, 1), portion.count)
            self.pending_bytes -= self.weight(portion)
            if self.policy == EVICT:
                self.drop(portion.take(excess))
            else:
                portion.count -= excess
                if portion.settle is not None:
                    portion.settle.acknowledged(portion.base + portion.count, excess)
            if portion.count:
                self.pending_bytes += self.weight(portion)
            else:
                del pending[place]
            self.pending_count -= excess
            self.tally.dropped_full += excess
        return 0

    def unnumbered(self) -> cython.bint:
        """Return whether the next message is of QoS 0, which the client's window does not limit."""
        portion: Portion
        if self.resend or not self.pending:
            return False
        portion = self.pending[0]
        return portion.qos == 0

    def write_unnumbered(self, portion: Portion) -> cython.int:
        """Write as much as is written at once of the first waiting portion, which is of QoS 0.

        Written messages count as answered; a queue's messages wait for room like others, and are
        not dropped.
        """
        front: Portion = portion
        count: cython.Py_ssize_t = self.step(portion.run, portion.subscription_ids)
        if self.maybe_large(portion):
            self.skip_large(portion)
            return 0
        assert self.connection is not None
        assert self.pending is not None
        self.count(portion, -portion.count)
        if count >= portion.count:
            self.pending.popleft()
        else:
            front = portion.take(count)
            self.count(portion, portion.count)
        write_portion(self.connection, front, 0, False)
        if front.settle is not None:
            front.settle.acknowledged(front.base, front.count)
        return 0

    def pump(self) -> cython.int:  # noqa: C901 - one C function
        """Write waiting messages, as far as window, output and identifiers allow."""
        connection: Connection | None
        if not self.pending and not self.resend:
            return 0
        connection = self.connection
        portion: Portion
        front: Portion
        count: cython.Py_ssize_t
        if connection is None:
            return 0
        while connection.size < connection.limit and (
            (self.inflight < self.window and self.flight_bytes < self.pending_bytes_max)
            or self.unnumbered()
        ):
            if self.early is not None and len(self.early) >= EARLY_MAX:
                return 0
            if self.resend:
                portion = self.resend[0]
                if self.maybe_large(portion):
                    self.resend.popleft()
                    self.resend.extendleft(reversed(fitting(portion, connection)))
                    continue
                count = min(
                    self.window - self.inflight, self.step(portion.run, portion.subscription_ids)
                )
                front = self.resend.popleft() if count >= portion.count else portion.take(count)
                write_portion(connection, front, front.pid, True)
                self.sent(front)
                continue
            if not self.pending:
                return 0
            portion = self.pending[0]
            if portion.qos == 0:
                self.write_unnumbered(portion)
                continue
            if portion.run.deadline != 0.0 and portion.run.deadline <= self.tally.now:
                self.forget_pending(portion)
                self.tally.dropped_expired += portion.count
                self.drop(portion)
                continue
            if self.maybe_large(portion):
                self.skip_large(portion)
                continue
            count = self.free_identifiers() if self.durable is None else self.free_for(portion)
            if count == 0:
                return 0
            count = min(
                count,
                self.window - self.inflight,
                self.step(portion.run, portion.subscription_ids),
            )
            self.count(portion, -portion.count)
            if count >= portion.count:
                front = self.pending.popleft()
            else:
                front = portion.take(count)
                self.count(portion, portion.count)
            front.pid = self.next_pid
            write_portion(connection, front, front.pid, False)
            self.sent(front)
            self.next_pid += front.count
            if front.queued:
                self.other_pid = self.next_pid
        return 0

    def sent(self, portion: Portion) -> cython.int:
        """Record that a portion is written and awaits its answers.

        ``pump`` bounds their bytes: a client that answers nothing would otherwise hold a whole
        window of messages, however large they are.
        """
        assert self.flight is not None
        self.flight.append(portion)
        self.inflight += portion.count
        portion.held = self.weight(portion)
        self.flight_bytes += portion.held
        return 0

    def free_for(self, portion: Portion) -> cython.Py_ssize_t:
        """Return how many identifiers are free for a portion of a session that is kept on disk.

        If the identifier that follows from its number is in use, the portion waits for it. Messages
        of queues, which have no such number, begin at the other side of the circle, so that the two
        seldom meet.
        """
        numbered: cython.bint = portion.settle is not None and not portion.queued
        pid: cython.int = self.other_pid
        count: cython.Py_ssize_t
        if numbered:
            pid = portion.base % PACKET_ID_MAX + 1
        if pid != self.next_pid:
            self.next_pid = pid
            self.free_until = 0
        count = self.free_identifiers()
        if numbered and self.next_pid != pid:
            self.free_until = 0
            return 0
        return count

    def drop(self, portion: Portion) -> cython.int:
        """Tell ``settle`` of waiting messages that will not be delivered."""
        if portion.settle is not None and not portion.queued:
            portion.settle.acknowledged(portion.base, portion.count)
        return 0

    def maybe_large(self, portion: Portion) -> cython.bint:
        """Return whether some message might exceed the client's Maximum Packet Size once written
        for it."""
        size: cython.Py_ssize_t = portion.run.largest
        if size == 0:
            return False
        size += len(portion.subscription_ids) + GROWTH_MAX
        assert self.connection is not None
        return size > self.connection.max_packet_out

    def forget_pending(self, portion: Portion) -> cython.int:
        """Remove the first waiting portion."""
        assert self.pending is not None
        self.pending.popleft()
        self.count(portion, -portion.count)
        return 0

    def skip_large(self, portion: Portion) -> cython.int:
        """Split the first waiting portion to leave out messages too large for the client."""
        assert self.connection is not None
        assert self.pending is not None
        kept: list[Portion] = fitting(portion, self.connection)
        self.forget_pending(portion)
        for item in reversed(kept):
            self.pending.appendleft(item)
            self.count(item, 1)
        return 0

    def detach(self) -> cython.int:
        """Handle a lost connection: in-flight messages will be written again."""
        again: list[Portion] = []
        self.connection = None
        self.report_front()
        if self.flight:
            while self.flight:
                again += unanswered(self.flight.popleft(), self.early)
            if self.resend is None:
                self.resend = deque()
            self.resend.extendleft(reversed(again))
        self.early = None
        self.flight_bytes = 0
        self.inflight = len(self.released) if self.released else 0
        return 0

    def attach(self, connection: Connection, window: cython.int) -> cython.int:
        """Serve a returning or new client: PUBRELs again, then unanswered messages, then waiting
        ones."""
        out: bytearray
        before: cython.Py_ssize_t
        portion: Portion
        self.connection = connection
        self.window = window
        if self.flight is None:
            self.flight = deque()
        # Measured for the previous connection: this one may take smaller packets.
        for queue in (self.resend, self.pending):
            for item in queue or ():
                portion = item
                portion.forget_fit()
        if self.released:
            out = connection.buffer()
            before = len(out)
            for pid in self.released:
                out += b"\x62\x02"
                out += pid.to_bytes(2, "big")
            connection.size += len(out) - before
        self.pump()
        return 0
