# mypy: ignore-errors
# The annotations of this file are C types.
"""The generator's inner loop for brokers whose confirms name a running number: AMQP 0.9.1 and JetStream.

By the rules of ``perf._hot_client``, whose classes these extend: compiled where a compiler was found, no
socket, no clock, nothing allocated per message.

* ``TagSender`` numbers its messages from 1. For AMQP the number is the delivery tag, which travels implicitly;
  for JetStream it is ten digits at the end of the reply subject.
* ``AmqpReceiver`` walks frames: deliveries are counted and acknowledged (each, every so many, or all of a read
  by one ``basic.ack`` with ``multiple``), confirms settle what was sent.
* ``JetStreamReceiver`` does so for ``MSG`` with a reply subject: deliveries are acknowledged one by one, which
  is what the explicit policy asks for; publish acknowledgements settle what was sent.

Sources: AMQP 0.9.1 sections 2.3.5 and 1.8 of its reference, RabbitMQ's publisher confirms; NATS client
protocol and JetStream's wire API.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.libc.string import memcpy
    from cython.cimports.perf._hot_client import NatsReceiver, Receiver, Sender
else:
    from perf._hot_client import HEAD, NatsReceiver, Receiver, Sender

DIGITS = 10
"""Decimal digits of a running number in a reply subject."""


class TagSender(Sender):
    """A publisher whose messages are numbered 1, 2, 3 ...; confirms may come out of order.

    ``digits_at`` is where the number stands in the template, 0 where it does not travel. ``low`` is the
    least number not confirmed yet; numbers in flight span at most twice the window, so that the place of one
    is never taken by another.
    """

    def __init__(
        self, template, payload_at, digits_at, capacity, window, publisher, latency
    ) -> None:
        Sender.__init__(self, template, payload_at, 0, capacity, window, publisher, latency)
        self.digits_at = digits_at
        self.next_tag = 1
        self.low = 1

    def room(self) -> cython.Py_ssize_t:
        """Return the number of messages that may be prepared now."""
        count: cython.Py_ssize_t = self.capacity
        if count > self.window - self.in_flight:
            count = self.window - self.in_flight
        if count > self.low + self.ring - self.next_tag:
            count = self.low + self.ring - self.next_tag
        return count

    def prepare(
        self, count: cython.Py_ssize_t, stamp: cython.longlong, step: cython.longlong
    ) -> cython.Py_ssize_t:
        """As ``Sender.prepare``; the caller keeps ``count`` within ``room()``."""
        data: cython.p_uchar
        place: cython.Py_ssize_t = 0
        _index: cython.Py_ssize_t
        digit: cython.Py_ssize_t
        rest: cython.longlong
        sequence: cython.uint = self.sequence
        time: cython.longlong = stamp
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.chunk))
        else:
            data = self.chunk
        for _index in range(count):
            if cython.compiled:
                memcpy(data + place + self.payload_at, cython.address(time), 8)
                memcpy(data + place + self.payload_at + 8, cython.address(self.publisher), 4)
                memcpy(data + place + self.payload_at + 12, cython.address(sequence), 4)
            else:
                HEAD.pack_into(data, place + self.payload_at, time, self.publisher, sequence)
            if self.digits_at:
                rest = self.next_tag
                digit = place + self.digits_at + 9
                while digit >= place + self.digits_at:
                    data[digit] = 48 + rest % 10
                    rest //= 10
                    digit -= 1
            self.sent_at[self.next_tag % self.ring] = time
            self.next_tag += 1
            sequence = (sequence + 1) & 0x7FFFFFFF
            time += step
            place += self.stride
        self.sequence = sequence
        self.in_flight += count
        return place

    def settle_tag(
        self, tag: cython.longlong, now: cython.longlong, measuring: cython.bint
    ) -> None:
        """One message is confirmed."""
        slot: cython.longlong = tag % self.ring
        if tag < self.low or tag >= self.next_tag or not self.sent_at[slot]:
            self.spurious += 1
            return
        if measuring:
            self.latency.record(now - self.sent_at[slot], 1)
        self.sent_at[slot] = 0
        self.in_flight -= 1
        self.acknowledged += 1
        while self.low < self.next_tag and not self.sent_at[self.low % self.ring]:
            self.low += 1

    def settle_through(
        self, tag: cython.longlong, now: cython.longlong, measuring: cython.bint
    ) -> None:
        """All messages up to and including this one are confirmed."""
        each: cython.longlong = self.low
        if tag < self.low or tag >= self.next_tag:
            self.spurious += 1
            return
        while each <= tag:
            if self.sent_at[each % self.ring]:
                self.settle_tag(each, now, measuring)
            each += 1


class AmqpReceiver(Receiver):
    """Messages and confirms received on one AMQP 0.9.1 connection with a single channel.

    ``every``: so many deliveries get one ``basic.ack``, with ``multiple`` where they are several; 0: one with
    ``multiple`` ends every read.
    """

    def __init__(self, inbound, outbound, every, sender, latency, publishers) -> None:
        Receiver.__init__(self, inbound, outbound, 4, sender, latency, publishers)
        self.every = every
        self.unanswered = 0
        self.tag = 0
        self.whole_tag = 0
        self.body_left = 0
        self.body_size = 0

    def number(self, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.longlong:
        """An integer of ``size`` octets, most significant first."""
        data: cython.p_uchar
        value: cython.longlong = 0
        index: cython.Py_ssize_t
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.inbound))
        else:
            data = self.inbound
        for index in range(at, at + size):
            value = (value << 8) | data[index]
        return value

    def feed(
        self, end: cython.Py_ssize_t, now: cython.longlong, measuring: cython.bint
    ) -> cython.Py_ssize_t:
        """As ``Receiver.feed``, over frames."""
        data: cython.p_uchar
        at: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t
        kind: cython.int
        before: cython.longlong = self.publishes
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.inbound))
        else:
            data = self.inbound
        self.out_length = 0
        while at + 8 <= end:
            size = self.number(at + 3, 4)
            if at + size + 8 > end:
                break
            kind = data[at]
            if data[at + size + 7] != 0xCE:
                self.malformed += 1
                at = end
                break
            if kind == 3:
                self.body(at + 7, size, now, measuring)
            elif kind == 1 and size >= 4:
                self.method(at + 7, size, now, measuring)
            elif kind == 2 and size >= 12:
                self.body_left = self.body_size = self.number(at + 11, 8)
            elif kind != 8:
                self.malformed += 1
            at += size + 8
        if not self.every and self.publishes != before:
            self.acknowledge(True)
        self.flush_run(now)
        return at

    def method(
        self,
        at: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
        now: cython.longlong,
        measuring: cython.bint,
    ) -> None:
        """Account for one method frame's payload."""
        data: cython.p_uchar
        name: cython.longlong = self.number(at, 4)
        sender: TagSender = self.sender
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.inbound))
        else:
            data = self.inbound
        if name == 0x3C003C:  # basic.deliver: consumer tag, delivery tag, redelivered ...
            self.tag = self.number(at + 5 + data[at + 4], 8)
        elif name == 0x3C0050 and length >= 13 and sender is not None:  # basic.ack
            if data[at + 12] & 1:
                sender.settle_through(self.number(at + 4, 8), now, measuring)
            else:
                sender.settle_tag(self.number(at + 4, 8), now, measuring)
        elif name == 0x3C0078 and length >= 13 and sender is not None:  # basic.nack
            sender.refused += 1
            sender.settle_tag(self.number(at + 4, 8), now, False)
        else:
            self.unexpected += 1

    def body(
        self,
        at: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
        now: cython.longlong,
        measuring: cython.bint,
    ) -> None:
        """Account for one body frame; the message counts when its last one is here."""
        if self.body_left == self.body_size and length >= 16:
            if measuring:
                self.payload(at, length, now)
            else:
                self.payload(at, length, 0)
        self.body_left -= length
        if self.body_left <= 0:
            self.publishes += 1
            self.payload_bytes += self.body_size
            self.whole_tag = self.tag
            self.unanswered += 1
            if self.every and self.unanswered >= self.every:
                self.acknowledge(self.every > 1)

    def acknowledge(self, multiple: cython.bint) -> None:
        """Append ``basic.ack`` of the newest whole delivery: 21 octets, fewer than any delivery has."""
        data: cython.p_uchar
        at: cython.Py_ssize_t = self.out_length
        index: cython.Py_ssize_t
        rest: cython.longlong = self.whole_tag
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.outbound))
        else:
            data = self.outbound
        data[at] = 1
        data[at + 1] = 0
        data[at + 2] = 1
        data[at + 3] = 0
        data[at + 4] = 0
        data[at + 5] = 0
        data[at + 6] = 13
        data[at + 7] = 0
        data[at + 8] = 60
        data[at + 9] = 0
        data[at + 10] = 80
        for index in range(8):
            data[at + 18 - index] = rest & 0xFF
            rest >>= 8
        data[at + 19] = 1 if multiple else 0
        data[at + 20] = 0xCE
        self.out_length = at + 21
        self.unanswered = 0


class JetStreamReceiver(NatsReceiver):
    """Traffic received by one JetStream client: a publisher's acknowledgements or a consumer's
    deliveries."""

    def message(
        self,
        line: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        measuring: cython.bint,
        now: cython.longlong,
    ) -> cython.Py_ssize_t:
        """Account for one MSG and, for a consumer, append its acknowledgement; -1 where it is incomplete."""
        following: cython.Py_ssize_t
        if self.sender is None:
            following = NatsReceiver.message(self, line, stop, end, measuring, now)
            if following >= 0:
                self.acknowledge(line, stop)
            return following
        following = self.size(line, stop)
        if stop + 1 + following + 2 > end:
            return -1
        self.confirm(line, stop, following, now, measuring)
        return stop + 1 + following + 2

    def confirm(
        self,
        line: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        now: cython.longlong,
        measuring: cython.bint,
    ) -> None:
        """One publish acknowledgement; its subject ends with the message's number."""
        data: cython.p_uchar
        at: cython.Py_ssize_t = line + 4
        tag: cython.longlong = 0
        index: cython.Py_ssize_t
        sender: TagSender = self.sender
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.inbound))
        else:
            data = self.inbound
        while at < stop and data[at] != 32:
            at += 1
        if at - 10 < line + 4:
            self.unexpected += 1
            return
        for index in range(at - 10, at):
            tag = tag * 10 + data[index] - 48
        # {"error":... or {"stream":...
        if size < 3 or data[stop + 3] != 0x73:
            sender.refused += 1
            sender.settle_tag(tag, now, False)
        else:
            sender.settle_tag(tag, now, measuring)

    def acknowledge(self, line: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> None:
        """Append ``PUB <reply> 0``; an empty acknowledgement counts as +ACK and is shorter than any delivery."""
        data: cython.p_uchar
        out: cython.p_uchar
        first: cython.Py_ssize_t
        last: cython.Py_ssize_t = stop - 2
        length: cython.Py_ssize_t
        at: cython.Py_ssize_t = self.out_length
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.inbound))
            out = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.outbound))
        else:
            data = self.inbound
            out = self.outbound
        while last > line and data[last] != 32:  # over the size
            last -= 1
        first = last
        while first > line and data[first - 1] != 32:
            first -= 1
        length = last - first
        # A delivery without reply subject has the subscription's short number there.
        if length < 8:
            self.unexpected += 1
            return
        if cython.compiled:
            memcpy(out + at, cython.cast(cython.p_char, b"PUB "), 4)
            memcpy(out + at + 4, data + first, length)
            memcpy(out + at + 4 + length, cython.cast(cython.p_char, b" 0\r\n\r\n"), 6)
        else:
            out[at : at + 4] = b"PUB "
            out[at + 4 : at + 4 + length] = data[first:last]
            out[at + 4 + length : at + 10 + length] = b" 0\r\n\r\n"
        self.out_length = at + 10 + length
