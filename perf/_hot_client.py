# mypy: ignore-errors
# The annotations of this file are C types.
"""The generator's inner loop: what runs once per message.

Cython in pure-Python mode, as the broker's hot path is: compiled where a compiler was found (types
come from the ``.pxd`` beside this file), else run as it is, with equal results. It shares no code with the
broker's own codec on purpose: a generator that parses with the broker's scanner would agree with the
broker's mistakes.

* ``Histogram`` counts nanoseconds in buckets of under 1 % width.
* ``Sender`` stamps prebuilt messages: send time, publisher, sequence number and packet identifier are
  written into a buffer of equal packets; nothing is encoded while the clock runs.
* ``Receiver`` walks received MQTT packets: counts publishes, checks each publisher's sequence, records
  delivery and acknowledgement times, and builds acknowledgements. ``NatsReceiver`` does so for the text
  protocol of NATS core.

Every payload begins with the 16 bytes that are drawn here (little-endian)::

    0        8           12         16
    | stamp  | publisher | sequence | filler ...
    | ns i64 | u32       | 31 bits  |

Nothing here opens a socket or reads a clock: time comes in as an argument.
"""

from __future__ import annotations

from array import array
from struct import Struct

import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.libc.string import memchr, memcpy

HEAD_BYTES = 16
"""Bytes at the front of every payload: stamp, publisher, sequence."""

HEAD = Struct("<qII")
"""The same, for the uncompiled form."""

HISTOGRAM_CELLS = 4480
"""Cells of a histogram: 256 of one nanosecond, then 128 for each power of two up to 2**41 ns (36 minutes)."""


class Histogram:
    """Counts of durations in nanoseconds, in buckets no wider than 1/128 of their value.

    ``counts`` is an ``array('q')`` of ``HISTOGRAM_CELLS`` cells; ``perf.percentiles`` reads it.
    """

    def __init__(self) -> None:
        self.counts = array("q", bytes(8 * HISTOGRAM_CELLS))
        self.cells = self.counts
        self.total = 0
        self.sum = 0
        self.largest = 0

    def record(self, value: cython.longlong, times: cython.longlong) -> None:
        """Count a duration ``times`` times. Values below 0 count as 0, beyond 36 minutes as the last cell."""
        shift: cython.int = 0
        reduced: cython.longlong
        cell: cython.longlong
        if value < 0:
            value = 0
        reduced = value
        while reduced >= 256:
            reduced >>= 1
            shift += 1
        cell = reduced + 128 * shift
        if cell >= 4480:
            cell = 4479
        self.cells[cell] += times
        self.total += times
        self.sum += value * times
        if value > self.largest:
            self.largest = value


class Sender:
    """A publisher's buffer of equal packets, its window and the send times of what is in flight.

    ``template`` is one whole packet. ``payload_at`` and ``pid_at`` are offsets in it; ``pid_at`` is 0 at
    QoS 0. ``window`` bounds unacknowledged messages; packet identifiers go round 1 to ``2 * window``, so
    one is not used again before the acknowledgement of its last use is long due.
    """

    def __init__(
        self,
        template: bytes,
        payload_at: int,
        pid_at: int,
        capacity: int,
        window: int,
        publisher: int,
        latency: Histogram,
    ) -> None:
        if len(template) < payload_at + HEAD_BYTES:
            raise ValueError(f"a payload is at least {HEAD_BYTES} bytes")
        if not 0 < window <= 32767:
            raise ValueError("a window is 1 to 32767 messages")
        self.chunk = bytearray(template * capacity)
        self.stride = len(template)
        self.payload_at = payload_at
        self.pid_at = pid_at
        self.capacity = capacity
        self.window = window
        self.ring = 2 * window
        self.in_flight = 0
        self.next_pid = 1
        self.publisher = publisher
        self.sequence = 0
        self.acknowledged = 0
        self.spurious = 0
        self.refused = 0
        self.latency = latency
        self.sent_at = array("q", bytes(8 * (self.ring + 1)))

    def prepare(
        self, count: cython.Py_ssize_t, stamp: cython.longlong, step: cython.longlong
    ) -> cython.Py_ssize_t:
        """Write the changing fields of the next ``count`` messages and return the bytes to send.

        ``stamp`` is the send time of the first in nanoseconds, each further one is ``step`` later. The
        caller keeps ``count`` within ``capacity`` and, above QoS 0, within ``window - in_flight``.
        """
        data: cython.p_uchar
        place: cython.Py_ssize_t
        _index: cython.Py_ssize_t
        pid: cython.int = self.next_pid
        sequence: cython.uint = self.sequence
        time: cython.longlong = stamp
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.chunk))
        else:
            data = self.chunk
        place = 0
        for _index in range(count):
            if cython.compiled:
                memcpy(data + place + self.payload_at, cython.address(time), 8)
                memcpy(data + place + self.payload_at + 8, cython.address(self.publisher), 4)
                memcpy(data + place + self.payload_at + 12, cython.address(sequence), 4)
            else:
                HEAD.pack_into(data, place + self.payload_at, time, self.publisher, sequence)
            sequence = (sequence + 1) & 0x7FFFFFFF
            if self.pid_at:
                data[place + self.pid_at] = pid >> 8
                data[place + self.pid_at + 1] = pid & 0xFF
                self.sent_at[pid] = time
                pid = pid + 1 if pid < self.ring else 1
            time += step
            place += self.stride
        self.sequence = sequence
        if self.pid_at:
            self.next_pid = pid
            self.in_flight += count
        return place

    def room(self) -> cython.Py_ssize_t:
        """Return the number of messages that may be prepared now."""
        if self.pid_at and self.capacity > self.window - self.in_flight:
            return self.window - self.in_flight
        return self.capacity

    def settle(self, pid: cython.int, now: cython.longlong, measuring: cython.bint) -> cython.bint:
        """Count one final acknowledgement; False when nothing was waiting for it."""
        sent: cython.longlong
        if pid < 1 or pid > self.ring or not self.sent_at[pid]:
            self.spurious += 1
            return False
        sent = self.sent_at[pid]
        self.sent_at[pid] = 0
        self.in_flight -= 1
        self.acknowledged += 1
        if measuring:
            self.latency.record(now - sent, 1)
        return True


class Receiver:
    """Traffic received on one MQTT connection: counters, sequence checks, replies due.

    ``inbound`` and ``outbound`` may be shared by all receivers of a process, because each call of ``feed``
    ends with its replies taken. ``outbound`` is at least as large as ``inbound``: a reply is never longer
    than the packet that asks for it. ``sender`` is the publisher on the same connection, or None.
    ``publishers`` is the number of sequences to follow.
    """

    def __init__(
        self,
        inbound: bytearray,
        outbound: bytearray,
        version: int,
        sender: Sender | None,
        latency: Histogram,
        publishers: int,
    ) -> None:
        if len(outbound) < len(inbound):
            raise ValueError("replies may need as many bytes as were received")
        self.inbound = inbound
        self.outbound = outbound
        self.out_length = 0
        self.version = version
        self.sender = sender
        self.latency = latency
        self.publishers = publishers
        self.expected = array("I", bytes(4 * max(1, publishers)))
        self.next_expected = self.expected
        self.publishes = 0
        self.payload_bytes = 0
        self.lost = 0
        self.reordered = 0
        self.unexpected = 0
        self.malformed = 0
        self.run_stamp = 0
        self.run_length = 0
        self.late = 0
        self.marked = 0
        self.marks = bytearray(1)

    def mark(self, marks, each: int) -> None:
        """Count every message from now on in its own byte, at ``publisher * each + sequence``; 255 is the most.

        What comes for the first time although a later one of its publisher has come already counts as ``late``.
        """
        if len(marks) < each * max(1, self.publishers):
            raise ValueError("there is a byte for each message")
        self.marks = marks
        self.marked = each

    def feed(
        self, end: cython.Py_ssize_t, now: cython.longlong, measuring: cython.bint
    ) -> cython.Py_ssize_t:
        """Account for the whole packets in ``inbound[:end]``; return where the incomplete tail begins.

        Replies are in ``outbound[:out_length]``. ``now`` is the time of receipt in nanoseconds;
        durations are recorded only while ``measuring``.
        """
        data: cython.p_uchar
        at: cython.Py_ssize_t = 0
        header: cython.Py_ssize_t
        length: cython.Py_ssize_t
        byte: cython.Py_ssize_t
        shift: cython.int
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.inbound))
        else:
            data = self.inbound
        self.out_length = 0
        while at + 2 <= end:
            length = data[at + 1] & 0x7F
            header = 2
            shift = 7
            while data[at + header - 1] & 0x80:
                if header > 4 or at + header >= end:
                    break
                byte = data[at + header]
                length |= (byte & 0x7F) << shift
                header += 1
                shift += 7
            if data[at + header - 1] & 0x80:
                if header > 4:
                    self.malformed += 1
                    at = end
                break
            if at + header + length > end:
                break
            self.packet(data[at], at + header, length, now, measuring)
            at += header + length
        self.flush_run(now)
        return at

    def packet(
        self,
        first: cython.int,
        body: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
        now: cython.longlong,
        measuring: cython.bint,
    ) -> None:
        """Account for one packet whose body is ``inbound[body:body + length]``."""
        data: cython.p_uchar
        kind: cython.int = first >> 4
        high: cython.int
        low: cython.int
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.inbound))
        else:
            data = self.inbound
        if kind == 3:
            self.publish(first, body, length, measuring, now)
            return
        if kind < 4 or kind > 7 or length < 2:
            self.unexpected += 1
            return
        high = data[body]
        low = data[body + 1]
        if kind == 6:
            self.reply(0x70, high, low)
        elif self.sender is None:
            self.unexpected += 1
        elif length > 2 and data[body + 2] >= 0x80:
            self.sender.refused += 1
            self.sender.settle((high << 8) | low, now, False)
        elif kind == 5:
            self.reply(0x62, high, low)
        else:
            self.sender.settle((high << 8) | low, now, measuring)

    def publish(
        self,
        first: cython.int,
        body: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
        measuring: cython.bint,
        now: cython.longlong,
    ) -> None:
        """Account for one PUBLISH and, above QoS 0, append its acknowledgement."""
        data: cython.p_uchar
        qos: cython.int = (first >> 1) & 3
        at: cython.Py_ssize_t
        end: cython.Py_ssize_t = body + length
        size: cython.Py_ssize_t = 0
        byte: cython.Py_ssize_t
        shift: cython.int = 0
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.inbound))
        else:
            data = self.inbound
        if length < 2:
            self.malformed += 1
            return
        byte = data[body]
        at = body + 2 + ((byte << 8) | data[body + 1])
        if at + (2 if qos else 0) > end:
            self.malformed += 1
            return
        if qos:
            self.reply(0x40 if qos == 1 else 0x50, data[at], data[at + 1])
            at += 2
        if self.version == 5:
            while at < end and shift < 28:
                byte = data[at]
                size |= (byte & 0x7F) << shift
                shift += 7
                at += 1
                if not byte & 0x80:
                    break
            at += size
        if at > end:
            self.malformed += 1
            return
        self.publishes += 1
        self.payload_bytes += end - at
        if end - at >= 16:
            if measuring:
                self.payload(at, end - at, now)
            else:
                self.payload(at, end - at, 0)

    def payload(
        self, at: cython.Py_ssize_t, length: cython.Py_ssize_t, now: cython.longlong
    ) -> None:
        """Check the sequence of one payload; with ``now`` not 0, note its delivery time."""
        data: cython.p_uchar
        stamp: cython.longlong = 0
        publisher: cython.uint = 0
        sequence: cython.uint = 0
        index: cython.Py_ssize_t
        place: cython.Py_ssize_t
        ahead: cython.uint
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.inbound))
            memcpy(cython.address(stamp), data + at, 8)
            memcpy(cython.address(publisher), data + at + 8, 4)
            memcpy(cython.address(sequence), data + at + 12, 4)
        else:
            stamp, publisher, sequence = HEAD.unpack_from(self.inbound, at)
        index = publisher
        if index < self.publishers:
            ahead = (sequence - self.next_expected[index]) & 0x7FFFFFFF
            place = sequence
            if place < self.marked:
                place += index * self.marked
                if ahead >= 0x40000000 and not self.marks[place]:
                    self.late += 1
                if self.marks[place] < 255:
                    self.marks[place] += 1
            if ahead < 0x40000000:
                self.lost += ahead
                self.next_expected[index] = (sequence + 1) & 0x7FFFFFFF
            else:
                self.reordered += 1
        if now == 0:
            return
        if stamp != self.run_stamp:
            self.flush_run(now)
            self.run_stamp = stamp
        self.run_length += 1

    def flush_run(self, now: cython.longlong) -> None:
        """Record the durations of the neighbouring messages that carry one stamp."""
        if self.run_length:
            self.latency.record(now - self.run_stamp, self.run_length)
            self.run_length = 0

    def reply(self, first: cython.int, high: cython.int, low: cython.int) -> None:
        """Append one four-byte acknowledgement to ``outbound``."""
        data: cython.p_uchar
        at: cython.Py_ssize_t = self.out_length
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.outbound))
        else:
            data = self.outbound
        data[at] = first
        data[at + 1] = 2
        data[at + 2] = high
        data[at + 3] = low
        self.out_length = at + 4


class NatsReceiver(Receiver):
    """The same for NATS core: ``MSG subject sid [reply] size``, payload, CR LF; PING is answered."""

    def feed(
        self, end: cython.Py_ssize_t, now: cython.longlong, measuring: cython.bint
    ) -> cython.Py_ssize_t:
        """As ``Receiver.feed``, over the text protocol."""
        data: cython.p_uchar
        at: cython.Py_ssize_t = 0
        stop: cython.Py_ssize_t
        following: cython.Py_ssize_t
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.inbound))
        else:
            data = self.inbound
        self.out_length = 0
        while at < end:
            if cython.compiled:
                found = cython.cast(cython.p_uchar, memchr(data + at, 10, end - at))
                if not found:
                    break
                stop = found - data
            else:
                stop = self.inbound.find(b"\n", at, end)
                if stop < 0:
                    break
            if data[at] == 0x4D:  # MSG
                following = self.message(at, stop, end, measuring, now)
                if following < 0:
                    break
                at = following
                continue
            if data[at] == 0x50 and data[at + 1] == 0x49:  # PING, answered by PONG CR LF
                self.outbound[self.out_length : self.out_length + 6] = b"PONG\r\n"
                self.out_length += 6
            elif data[at] != 0x50 and data[at] != 0x2B:  # neither PONG nor +OK
                self.unexpected += 1
            at = stop + 1
        self.flush_run(now)
        return at

    def size(self, line: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The last number of a line: the payload's bytes."""
        data: cython.p_uchar
        size: cython.Py_ssize_t = 0
        scale: cython.Py_ssize_t = 1
        at: cython.Py_ssize_t = stop - 2  # before CR
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.inbound))
        else:
            data = self.inbound
        while at > line and 48 <= data[at] <= 57 and scale <= 1000000000:
            size += (data[at] - 48) * scale
            scale *= 10
            at -= 1
        return size

    def message(
        self,
        line: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        measuring: cython.bint,
        now: cython.longlong,
    ) -> cython.Py_ssize_t:
        """Account for one MSG whose first line is ``inbound[line:stop]``; -1 where it is incomplete."""
        size: cython.Py_ssize_t = self.size(line, stop)
        if stop + 1 + size + 2 > end:
            return -1
        self.publishes += 1
        self.payload_bytes += size
        if size >= 16:
            if measuring:
                self.payload(stop + 1, size, now)
            else:
                self.payload(stop + 1, size, 0)
        return stop + 1 + size + 2
