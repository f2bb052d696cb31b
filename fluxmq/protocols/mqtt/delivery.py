"""Delivery of messages to one session: in-flight, waiting and resent messages.

Messages of QoS 1 and 2 are held as *in-flight ranges*: stretches of a run with consecutive packet
identifiers. A in-flight range waits in ``pending`` until the client's receive window, its
connection's output and the identifier space have room, is then written and moves to
``unanswered_ranges`` until acknowledged. Acknowledgements in order (the usual case) advance one
counter; others are remembered in a set. So a session costs one object per run and subscriber, never
one per message. After a lost connection in-flight messages move to ``resend`` and are written
again, with DUP and their old identifiers, before anything new. ``window`` is the half that handles
sent messages.

Messages of a durable queue (``InflightRange.queued``) wait here only as far as their consumer has
claimed them: they count against none of the session's bounds, and are never dropped to satisfy
them.

A session that is kept on disk has a ``durable``, a `RunJournal`: it takes each run first, and
decides when to enqueue it. Its in-flight ranges are numbered (``InflightRange.base``), and their
packet identifiers follow from the numbers, so that a message keeps its identifier across a restart.

Source: MQTT 3.1.1 and 5.0 sections 4.3 (QoS), 4.4 (redelivery), 4.6 (ordering), 4.9 (flow control).
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import cython

from fluxmq.protocols.connection import Connection, Tally
from fluxmq.protocols.mqtt.identifiers import append_range
from fluxmq.protocols.mqtt.inflight_range import (
    GROWTH_MAX,
    InflightRange,
    fitting,
    unanswered,
    write_inflight,
)
from fluxmq.protocols.mqtt.ports import RunJournal
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.protocols.mqtt.window import PACKET_ID_MAX, InflightWindow

if cython.compiled:
    from cython.cimports.fluxmq.protocols.connection import Connection, Tally
    from cython.cimports.fluxmq.protocols.mqtt.identifiers import append_range
    from cython.cimports.fluxmq.protocols.mqtt.inflight_range import (
        InflightRange,
        fitting,
        unanswered,
        write_inflight,
    )
    from cython.cimports.fluxmq.protocols.mqtt.run import PublishRun
    from cython.cimports.fluxmq.protocols.mqtt.window import InflightWindow

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


class Target:
    """A session's interest in a topic: all its matching subscriptions together.

    ``qos``: the highest granted. ``no_local``: some of them exclude the session's own publishes;
    those get ``own``, made of the others, or nothing without others. ``keep_retain``: retain as
    published. ``subscription_ids``: Subscription Identifier properties, encoded.
    """

    def __init__(
        self,
        delivery: SessionDelivery,
        qos: cython.int,
        no_local: bool = False,
        keep_retain: bool = False,
        subscription_ids: bytes = b"",
    ) -> None:
        self.delivery = delivery
        self.qos = qos
        self.no_local = no_local
        self.own: Target | None = None
        self.keep_retain = keep_retain
        self.subscription_ids = subscription_ids


class SessionDelivery(InflightWindow):
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
        InflightWindow.__init__(self)
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
        self.pending: deque[InflightRange] | None = None

    def offer(self, run: PublishRun, target: Target) -> cython.int:
        """Deliver a run that a subscription matched."""
        qos: cython.int = min(run.qos, target.qos)
        retain: cython.int = 1 if (run.retain and target.keep_retain) else 0
        if qos == 0:
            if self.connection is not None:
                self.send_now(run, retain, target.subscription_ids)
            return 0
        return self.enqueue(run, qos, retain, target.subscription_ids, None)

    def send_now(self, run: PublishRun, retain: cython.int, subscription_ids: bytes) -> cython.int:
        """Write a run at QoS 0, or drop it when the client is too slow or accepts no packets that
        large."""
        connection: Connection | None = self.connection
        assert connection is not None
        data: bytes
        inflight: InflightRange
        front: InflightRange
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
        inflight = InflightRange(run, run.start, run.count, 0, retain, subscription_ids, None)
        while not self.blocked():
            front = inflight if inflight.count <= step else inflight.take(step)
            if self.maybe_large(front):
                for piece in fitting(front, connection):
                    write_inflight(connection, piece, 0, False)
            else:
                write_inflight(connection, front, 0, False)
            if front is inflight:
                return 0
        self.tally.dropped_slow += inflight.count
        return 0

    def blocked(self) -> cython.bint:
        """Return whether the client is too slow for further messages."""
        connection: Connection | None = self.connection
        assert connection is not None
        if connection.size < connection.limit:
            return False
        # The tick may just be long: due output is written before anything is dropped.
        if not connection.waiting and connection.flush() == 1:
            return False
        connection.buffer()
        return True

    def step(self, run: PublishRun, subscription_ids: bytes) -> cython.Py_ssize_t:
        """Return how many messages to write at once, so that their growth barely exceeds a
        limit."""
        growth: cython.Py_ssize_t = len(run.topic) + len(run.properties) + len(subscription_ids)
        return STEP_BYTES // (growth + GROWTH_MAX) + 1

    def enqueue(
        self,
        run: PublishRun,
        qos: cython.int,
        retain: cython.int,
        subscription_ids: bytes,
        group: Any,
    ) -> cython.int:
        """Deliver a run at QoS 1 or 2: at once as far as the window allows, the rest in order."""
        run.detach()
        if self.durable is not None:
            journal: RunJournal = self.durable
            journal.keep(run, qos, retain, subscription_ids, group)
            return 0
        self.enqueue_inflight(
            InflightRange(run, run.start, run.count, qos, retain, subscription_ids, group)
        )
        return 0

    def enqueue_inflight(self, inflight: InflightRange) -> cython.int:
        """Take over an in-flight range, new or from another session."""
        if self.pending is None:
            self.pending = deque()
            self.unanswered_ranges = deque()
        self.pending.append(inflight)
        self.count(inflight, inflight.count)
        if self.connection is not None:
            self.pump()
        if self.pending_count > self.bound() or self.pending_bytes > self.pending_bytes_max:
            self.trim()
        return 0

    def count(self, inflight: InflightRange, count: cython.Py_ssize_t) -> cython.int:
        """Count ``count`` messages of a whole in-flight range as waiting (negative: no longer)."""
        if not inflight.queued:
            self.pending_count += count
            self.pending_bytes += self.weight(inflight) if count > 0 else -self.weight(inflight)
        return 0

    def bound(self) -> cython.Py_ssize_t:
        """Return how many messages may wait: more for a connected, slow client than for an absent
        one."""
        return self.pending_max if self.connection is None else self.pending_max_connected

    def weight(self, inflight: InflightRange) -> cython.Py_ssize_t:
        """Return the approximate number of bytes an in-flight range keeps alive."""
        run: PublishRun = inflight.run
        if run.count == 0:
            return 0
        return (run.end - run.start) * inflight.count // run.count

    def trim(self) -> cython.int:
        """Bring waiting messages back within their bounds."""
        inflight: InflightRange
        excess: cython.Py_ssize_t
        place: cython.Py_ssize_t
        bound: cython.Py_ssize_t = self.bound()
        pending: deque[InflightRange] | None = self.pending
        if pending is None:
            return 0
        while self.pending_count > bound or self.pending_bytes > self.pending_bytes_max:
            place = 0 if self.policy == EVICT else len(pending) - 1
            while 0 <= place < len(pending) and pending[place].queued:
                place += 1 if self.policy == EVICT else -1
            if not 0 <= place < len(pending):
                return 0
            inflight = pending[place]
            excess = min(max(self.pending_count - bound, 1), inflight.count)
            self.pending_bytes -= self.weight(inflight)
            if self.policy == EVICT:
                self.drop(inflight.take(excess))
            else:
                inflight.count -= excess
                if inflight.settle is not None:
                    inflight.settle.acknowledged(inflight.base + inflight.count, excess)
            if inflight.count:
                self.pending_bytes += self.weight(inflight)
            else:
                del pending[place]
            self.pending_count -= excess
            self.tally.dropped_full += excess
        return 0

    def unnumbered(self) -> cython.bint:
        """Return whether the next message is of QoS 0, which the client's window does not limit."""
        inflight: InflightRange
        if self.resend or not self.pending:
            return False
        inflight = self.pending[0]
        return inflight.qos == 0

    def write_unnumbered(self, inflight: InflightRange) -> cython.int:
        """Write as much as is written at once of the first waiting in-flight range, which is of QoS
        0.

        Written messages count as answered; a queue's messages wait for room like others, and are
        not dropped.
        """
        front: InflightRange = inflight
        count: cython.Py_ssize_t = self.step(inflight.run, inflight.subscription_ids)
        if self.maybe_large(inflight):
            self.skip_large(inflight)
            return 0
        assert self.connection is not None
        assert self.pending is not None
        self.count(inflight, -inflight.count)
        if count >= inflight.count:
            self.pending.popleft()
        else:
            front = inflight.take(count)
            self.count(inflight, inflight.count)
        write_inflight(self.connection, front, 0, False)
        if front.settle is not None:
            front.settle.acknowledged(front.base, front.count)
        return 0

    def pump(self) -> cython.int:  # noqa: C901 - one C function
        """Write waiting messages, as far as window, output and identifiers allow."""
        connection: Connection | None
        if not self.pending and not self.resend:
            return 0
        connection = self.connection
        inflight: InflightRange
        front: InflightRange
        count: cython.Py_ssize_t
        if connection is None:
            return 0
        while connection.size < connection.limit and (
            (self.inflight < self.window and self.unanswered_bytes < self.pending_bytes_max)
            or self.unnumbered()
        ):
            if self.early is not None and len(self.early) >= EARLY_MAX:
                return 0
            if self.resend:
                inflight = self.resend[0]
                if self.maybe_large(inflight):
                    self.resend.popleft()
                    self.resend.extendleft(reversed(fitting(inflight, connection)))
                    continue
                count = min(
                    self.window - self.inflight, self.step(inflight.run, inflight.subscription_ids)
                )
                front = self.resend.popleft() if count >= inflight.count else inflight.take(count)
                write_inflight(connection, front, front.pid, True)
                self.sent(front)
                continue
            if not self.pending:
                return 0
            inflight = self.pending[0]
            if inflight.qos == 0:
                self.write_unnumbered(inflight)
                continue
            if inflight.run.deadline != 0.0 and inflight.run.deadline <= self.tally.now:
                self.forget_pending(inflight)
                self.tally.dropped_expired += inflight.count
                self.drop(inflight)
                continue
            if self.maybe_large(inflight):
                self.skip_large(inflight)
                continue
            count = self.free_identifiers() if self.durable is None else self.free_for(inflight)
            if count == 0:
                return 0
            count = min(
                count,
                self.window - self.inflight,
                self.step(inflight.run, inflight.subscription_ids),
            )
            self.count(inflight, -inflight.count)
            if count >= inflight.count:
                front = self.pending.popleft()
            else:
                front = inflight.take(count)
                self.count(inflight, inflight.count)
            front.pid = self.next_pid
            write_inflight(connection, front, front.pid, False)
            self.sent(front)
            self.next_pid += front.count
            if front.queued:
                self.other_pid = self.next_pid
        return 0

    def sent(self, inflight: InflightRange) -> cython.int:
        """Record that an in-flight range is written and awaits its answers.

        ``pump`` bounds their bytes: a client that answers nothing would otherwise hold a whole
        window of messages, however large they are.
        """
        assert self.unanswered_ranges is not None
        self.unanswered_ranges.append(inflight)
        self.inflight += inflight.count
        inflight.held = self.weight(inflight)
        self.unanswered_bytes += inflight.held
        return 0

    def free_for(self, inflight: InflightRange) -> cython.Py_ssize_t:
        """Return how many identifiers are free for an in-flight range of a session that is kept on
        disk.

        If the identifier that follows from its number is in use, the in-flight range waits for it.
        Messages of queues, which have no such number, begin at the other side of the circle, so
        that the two seldom meet.
        """
        numbered: cython.bint = inflight.settle is not None and not inflight.queued
        pid: cython.int = self.other_pid
        count: cython.Py_ssize_t
        if numbered:
            pid = inflight.base % PACKET_ID_MAX + 1
        if pid != self.next_pid:
            self.next_pid = pid
            self.free_until = 0
        count = self.free_identifiers()
        if numbered and self.next_pid != pid:
            self.free_until = 0
            return 0
        return count

    def drop(self, inflight: InflightRange) -> cython.int:
        """Tell ``settle`` of waiting messages that will not be delivered."""
        if inflight.settle is not None and not inflight.queued:
            inflight.settle.acknowledged(inflight.base, inflight.count)
        return 0

    def maybe_large(self, inflight: InflightRange) -> cython.bint:
        """Return whether some message might exceed the client's Maximum Packet Size once written
        for it."""
        size: cython.Py_ssize_t = inflight.run.largest
        if size == 0:
            return False
        size += len(inflight.subscription_ids) + GROWTH_MAX
        assert self.connection is not None
        return size > self.connection.max_packet_out

    def forget_pending(self, inflight: InflightRange) -> cython.int:
        """Remove the first waiting in-flight range."""
        assert self.pending is not None
        self.pending.popleft()
        self.count(inflight, -inflight.count)
        return 0

    def skip_large(self, inflight: InflightRange) -> cython.int:
        """Split the first waiting in-flight range to leave out messages too large for the
        client."""
        assert self.connection is not None
        assert self.pending is not None
        kept: list[InflightRange] = fitting(inflight, self.connection)
        self.forget_pending(inflight)
        for item in reversed(kept):
            self.pending.appendleft(item)
            self.count(item, 1)
        return 0

    def detach(self) -> cython.int:
        """Handle a lost connection: in-flight messages will be written again."""
        again: list[InflightRange] = []
        self.connection = None
        self.report_front()
        if self.unanswered_ranges:
            while self.unanswered_ranges:
                again += unanswered(self.unanswered_ranges.popleft(), self.early)
            if self.resend is None:
                self.resend = deque()
            self.resend.extendleft(reversed(again))
        self.early = None
        self.unanswered_bytes = 0
        self.inflight = self.released.count if self.released is not None else 0
        return 0

    def attach(self, connection: Connection, window: cython.int) -> cython.int:
        """Serve a returning or new client: PUBRELs again, then unanswered messages, then waiting
        ones."""
        out: bytearray
        inflight: InflightRange
        self.connection = connection
        self.window = window
        if self.unanswered_ranges is None:
            self.unanswered_ranges = deque()
        # Measured for the previous connection: this one may take smaller packets.
        for queue in (self.resend, self.pending):
            for item in queue or ():
                inflight = item
                inflight.forget_fit()
        if self.released is not None and self.released.count:
            out = bytearray()
            for first, count in self.released.in_order():
                append_range(out, 0x62, first, count)
            if self.durable is None:
                connection.append(bytes(out))
            else:
                journal: RunJournal = self.durable
                journal.released_again(connection, bytes(out))
        self.pump()
        return 0
