"""Messages sent to one session and not yet answered: packet identifiers, the receive window,
answers.

The half of a delivery that handles sent messages. In-flight ranges in ``unanswered_ranges`` carry
consecutive packet identifiers; answers in order (the usual case) advance one counter, others are
remembered in a set. QoS 2 messages pass from ``unanswered_ranges`` to ``released`` at PUBREC and
leave it at PUBCOMP, both by ranges.

A in-flight range's ``settle`` is given the ranges that were answered, in its own offsets, and those
that the client refused or will not get. Ranges may be reported twice where answers came out of
order. A QoS 2 message is reported at PUBCOMP.

Source: MQTT 3.1.1 and 5.0 sections 2.2.1 (packet identifiers), 4.3 (QoS), 4.6 (ordering), 4.9 (flow
control).
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import cython

from fluxmq.protocols.mqtt.identifiers import ReleasedIdentifiers, ReleasedRange
from fluxmq.protocols.mqtt.inflight_range import InflightRange
from fluxmq.protocols.mqtt.ports import AnswerSink
from fluxmq.protocols.mqtt.run import HIGH, LOW

if cython.compiled:
    from cython.cimports.fluxmq.protocols.mqtt.identifiers import ReleasedIdentifiers, ReleasedRange
    from cython.cimports.fluxmq.protocols.mqtt.inflight_range import InflightRange

PACKET_ID_MAX: Final = 65535
PUBACK: Final = 4
PUBREC: Final = 5
PUBCOMP: Final = 7


class InflightWindow:
    """In-flight messages of one session. ``window``: QoS 1 and 2 messages that may be unanswered at
    once; ``inflight``: those that are; ``unanswered_bytes``: approximate bytes that in-flight
    ranges in flight keep alive. ``unanswered_ranges`` and ``resend`` are deques of in-flight
    ranges, None until first used."""

    def __init__(self) -> None:
        self.window = PACKET_ID_MAX
        self.inflight = 0
        self.unanswered_bytes = 0
        self.next_pid = 1
        self.free_until = PACKET_ID_MAX + 1
        self.unanswered_ranges: deque[InflightRange] | None = None
        self.resend: deque[InflightRange] | None = None
        self.early: set[int] | None = None
        self.released: ReleasedIdentifiers | None = None

    def pump(self) -> cython.int:
        """Write waiting messages, as there is room."""
        return 0

    def free_identifiers(self) -> cython.Py_ssize_t:
        """Return how many consecutive identifiers are free from ``next_pid`` on.

        Identifiers below ``free_until`` were seen to be free on the last lap; only this method and
        the sending of messages use them up, so the search is repeated once per lap or obstacle.
        """
        used: set[int]
        inflight: InflightRange
        if self.next_pid < self.free_until:
            return self.free_until - self.next_pid
        if self.next_pid > PACKET_ID_MAX:
            self.next_pid = 1
        used = set()
        for first, count in self.released.in_order() if self.released is not None else ():
            used.update(range(first, first + count))
        for queue in (self.unanswered_ranges, self.resend):
            for item in queue or ():
                inflight = item
                used.update(
                    range(inflight.pid + inflight.acknowledged, inflight.pid + inflight.count)
                )
        while self.next_pid in used:
            self.next_pid += 1
            if self.next_pid > PACKET_ID_MAX:
                # Identifiers at the start of the circle are examined on the next call.
                self.next_pid = 1
                self.free_until = 0
                return 0 if len(used) >= PACKET_ID_MAX else self.free_identifiers()
        self.free_until = PACKET_ID_MAX + 1
        for pid in used:
            if self.next_pid < pid < self.free_until:
                self.free_until = pid
        return self.free_until - self.next_pid

    def acknowledge(self, pid: cython.int, qos: cython.int) -> cython.bint:
        """Apply PUBACK (``qos`` 1) or PUBREC (2) for a message; return True when it was awaited."""
        front: InflightRange
        if not self.unanswered_ranges:
            return False
        front = self.unanswered_ranges[0]
        if front.qos == qos and pid == front.pid + front.acknowledged:
            self.advance(1)
        elif not self.acknowledge_early(pid, qos):
            return False
        if qos == 1:
            self.inflight -= 1
        return True

    def advance(self, count: cython.Py_ssize_t) -> cython.int:
        """Mark the first ``count`` messages of the first in-flight range as answered."""
        unanswered_ranges: deque[InflightRange] | None = self.unanswered_ranges
        assert unanswered_ranges is not None
        front: InflightRange = unanswered_ranges[0]
        front.acknowledged += count
        while True:
            if front.acknowledged == front.count:
                unanswered_ranges.popleft()
                self.unanswered_bytes -= front.held
                if front.settle is not None:
                    self.report(front)
                if not unanswered_ranges:
                    return 0
                front = unanswered_ranges[0]
            if not self.early or (front.pid + front.acknowledged) not in self.early:
                return 0
            self.early.remove(front.pid + front.acknowledged)
            front.acknowledged += 1

    def acknowledge_early(self, pid: cython.int, qos: cython.int) -> cython.bint:
        """Remember an answer out of order until those before it have come."""
        inflight: InflightRange
        if self.early is None:
            self.early = set()
        if pid in self.early:
            return False
        for item in self.unanswered_ranges or ():
            inflight = item
            if inflight.pid + inflight.acknowledged <= pid < inflight.pid + inflight.count:
                if inflight.qos != qos:
                    return False
                self.early.add(pid)
                if inflight.settle is not None and qos == 1:
                    inflight.settle.acknowledged(inflight.base + pid - inflight.pid, 1)
                return True
        return False

    def report(self, inflight: InflightRange) -> cython.int:
        """Report the messages of an in-flight range answered since the last report to its
        ``settle``."""
        first: cython.Py_ssize_t = inflight.reported
        if inflight.acknowledged > first:
            inflight.reported = inflight.acknowledged
            if inflight.qos == 1:
                sink: AnswerSink = inflight.settle
                sink.acknowledged(inflight.base + first, inflight.acknowledged - first)
        return 0

    def report_front(self) -> cython.int:
        """Do the same for the in-flight range that is being answered."""
        inflight: InflightRange
        if self.unanswered_ranges:
            inflight = self.unanswered_ranges[0]
            if inflight.settle is not None:
                self.report(inflight)
        return 0

    def holder(self, pid: cython.int) -> InflightRange | None:
        """Return the in-flight range in flight with this identifier."""
        inflight: InflightRange
        for item in self.unanswered_ranges or ():
            inflight = item
            if inflight.pid <= pid < inflight.pid + inflight.count:
                return inflight
        return None

    def is_out_of_place(self, pid: cython.int, kind: cython.int) -> cython.bint:
        """Return whether an unexpected answer is of the wrong kind for its message: PUBREC for QoS
        1, PUBACK for QoS 2, PUBCOMP before PUBREC. The message would keep its place in the window
        permanently.

        Answers for unknown identifiers, or for messages already answered, are none of these.
        """
        inflight: InflightRange
        if self.released is not None and self.released.has(pid):
            return kind == PUBACK  # a repeated PUBREC is answered again
        if self.early is not None and pid in self.early:
            return False
        found = self.holder(pid)
        if found is None:
            return False
        inflight = found
        if pid < inflight.pid + inflight.acknowledged:
            return False
        return kind != (PUBACK if inflight.qos == 1 else PUBREC)

    def acknowledge_run(
        self, buffer: bytearray, start: cython.Py_ssize_t, count: cython.Py_ssize_t
    ) -> cython.int:
        """Apply a run of plain PUBACKs from ``buffer[start:]``; return 1 when one is for a message
        that awaits another answer."""
        index: cython.Py_ssize_t
        pid: cython.int
        wrong: cython.int = 0
        if not cython.compiled:
            done = self.acknowledge_in_order(buffer, start, count)
            start += 4 * done
            count -= done
        for index in range(count):
            pid = (buffer[start + 4 * index + 2] << 8) | buffer[start + 4 * index + 3]
            if not self.acknowledge(pid, 1) and self.is_out_of_place(pid, PUBACK):
                wrong = 1
                break
        self.report_front()
        if not wrong:
            self.pump()
        return wrong

    def acknowledge_in_order(
        self, buffer: bytearray, start: cython.Py_ssize_t, count: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Apply PUBACKs that come in the order of sending by comparing whole stretches
        (uncompiled)."""
        done: cython.Py_ssize_t = 0
        high = bytes(buffer[start + 2 : start + 4 * count : 4])
        low = bytes(buffer[start + 3 : start + 4 * count : 4])
        while done < count and self.unanswered_ranges:
            front = self.unanswered_ranges[0]
            pid = front.pid + front.acknowledged
            size = min(count - done, front.count - front.acknowledged)
            if front.qos != 1 or not (
                high.startswith(HIGH[pid : pid + size], done)
                and low.startswith(LOW[pid : pid + size], done)
            ):
                break
            self.advance(size)
            self.inflight -= size
            done += size
        return done

    def receive(self, pid: cython.int) -> cython.bint:
        """Apply PUBREC: the message is dropped, its identifier stays in use until PUBCOMP."""
        inflight: InflightRange
        settle: Any = None
        base: cython.Py_ssize_t = pid
        if self.released is not None and self.released.has(pid):
            return True
        found = self.holder(pid)
        if found is not None:
            inflight = found
            settle = inflight.settle
            base = inflight.base + pid - inflight.pid
        if not self.acknowledge(pid, 2):
            return False
        self.release(pid, 1, settle, base)
        return True

    def receive_front(self, pid: cython.int, count: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Apply PUBREC for ``count`` messages from ``pid`` on, as far as they are the oldest
        unanswered ones; return how many are."""
        front: InflightRange
        if not self.unanswered_ranges:
            return 0
        front = self.unanswered_ranges[0]
        if front.qos != 2 or front.pid + front.acknowledged != pid:
            return 0
        count = 1 if self.early else min(count, front.count - front.acknowledged)
        self.release(pid, count, front.settle, front.base + front.acknowledged)
        self.advance(count)
        return count

    def release(
        self,
        pid: cython.int,
        count: cython.Py_ssize_t,
        settle: Any,
        base: cython.Py_ssize_t,
    ) -> cython.int:
        """Have identifiers await PUBCOMP, of messages that ``settle`` numbers from ``base`` on."""
        if self.released is None:
            self.released = ReleasedIdentifiers()
        self.released.add(pid, count, settle, base)
        return 0

    def refuse(self, pid: cython.int, qos: cython.int) -> cython.bint:
        """Apply PUBACK or PUBREC with an error: the message is finished."""
        inflight: InflightRange
        found = self.holder(pid)
        if found is not None:
            inflight = found
            if inflight.settle is not None and inflight.qos == qos:
                inflight.settle.refused(inflight.base + pid - inflight.pid)
        if not self.acknowledge(pid, qos):
            return False
        self.report_front()
        if qos == 2:
            self.inflight -= 1
        self.pump()
        return True

    def complete(self, pid: cython.int, count: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Apply PUBCOMP for ``count`` messages from ``pid`` on; return how many were awaited. The
        caller pumps."""
        part: ReleasedRange
        sink: AnswerSink
        done: cython.Py_ssize_t = 0
        if self.released is None:
            return 0
        for item in self.released.take(pid, count):
            part = item
            done += part.count
            if part.settle is not None:
                sink = part.settle
                sink.acknowledged(part.base, part.count)
        self.inflight -= done
        return done
