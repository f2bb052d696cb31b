# mypy: ignore-errors
# The annotations of this file are C types.
"""The generator's inner loop for AMQP 1.0, by the rules of ``perf._hot_client``.

* ``TransferSender`` numbers its deliveries from 1, and keeps to the credit of its link.
* ``TransferReceiver`` walks frames: deliveries are counted and accepted (each, every so many, or all of a read by
  one disposition), credit is renewed when half of it is used; dispositions settle what was sent.

A message that comes in several frames counts as malformed: no case has one.
Source: OASIS AMQP 1.0 part 2, section 2.7, part 3, section 3.2.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.libc.string import memcpy
    from cython.cimports.perf._hot_client import Receiver
    from cython.cimports.perf._hot_queue import TagSender
else:
    from perf._hot_client import HEAD, Receiver
    from perf._hot_queue import TagSender


class TransferSender(TagSender):
    """A publisher whose deliveries have the ids and tags 1, 2, 3 ...

    ``mark_at``: of the delivery-id in the template, six bytes before the tag. ``id_at``, ``time_at``: of ten digits of the message's id and of its
    creation time in milliseconds, 0 for none. ``credit_end``: the first number for which there is no credit.
    """

    def __init__(
        self, template, payload_at, mark_at, capacity, window, publisher, latency, id_at, time_at
    ) -> None:
        TagSender.__init__(self, template, payload_at, 0, capacity, window, publisher, latency)
        self.mark_at = mark_at
        self.id_at = id_at
        self.time_at = time_at
        self.credit_end = 0

    def room(self) -> cython.Py_ssize_t:
        """Return the number of messages that may be prepared now."""
        count: cython.Py_ssize_t = TagSender.room(self)
        if count > self.credit_end - self.next_tag:
            count = self.credit_end - self.next_tag
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
            rest = self.next_tag
            for digit in range(3, -1, -1):
                data[place + self.mark_at + digit] = rest & 0xFF
                data[place + self.mark_at + 6 + digit] = rest & 0xFF
                rest >>= 8
            if self.id_at:
                rest = self.next_tag
                for digit in range(9, -1, -1):
                    data[place + self.id_at + digit] = 48 + rest % 10
                    rest //= 10
                rest = time // 1000000
                for digit in range(7, -1, -1):
                    data[place + self.time_at + digit] = rest & 0xFF
                    rest >>= 8
            self.sent_at[self.next_tag % self.ring] = time
            self.next_tag += 1
            sequence = (sequence + 1) & 0x7FFFFFFF
            time += step
            place += self.stride
        self.sequence = sequence
        self.in_flight += count
        return place

    def settle_range(
        self,
        first: cython.longlong,
        last: cython.longlong,
        now: cython.longlong,
        measuring: cython.bint,
    ) -> None:
        """These deliveries are settled."""
        while first <= last:
            self.settle_tag(first, now, measuring)
            first += 1


class TransferReceiver(Receiver):
    """Deliveries and dispositions received on one session, whose one link has handle 0.

    ``every``: so many deliveries get one disposition; 0: one ends every read. ``credit``: of a consumer's link.
    """

    def __init__(self, inbound, outbound, every, sender, latency, publishers, credit) -> None:
        Receiver.__init__(self, inbound, outbound, 4, sender, latency, publishers)
        self.every = every
        self.credit = credit
        self.given = credit
        self.first_id = -1
        self.last_id = -1
        self.value = 0

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

    def field(self, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return where the value at ``at`` ends; ``value``: the number that it is, -1 for none."""
        data: cython.p_uchar
        code: cython.int
        width: cython.int
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.inbound))
        else:
            data = self.inbound
        code = data[at]
        self.value = -1
        if code == 0:  # described: the descriptor is the number
            at = self.field(at + 1)
            at, self.value = self.field(at), self.number(at - 1, 1)
            return at
        width = code >> 4
        if width == 4:
            if code >= 0x43 or code == 0x41:
                self.value = 1 if code == 0x41 else 0
            return at + 1
        if width < 0xA:
            width = (
                1
                if width == 5
                else 2
                if width == 6
                else 4
                if width == 7
                else 8
                if width == 8
                else 16
            )
            if width <= 8:
                self.value = self.number(at + 1, width)
            return at + 1 + width
        if width & 1:
            return at + 5 + self.number(at + 1, 4)
        return at + 2 + data[at + 1]

    def feed(
        self, end: cython.Py_ssize_t, now: cython.longlong, measuring: cython.bint
    ) -> cython.Py_ssize_t:
        """As ``Receiver.feed``, over frames."""
        data: cython.p_uchar
        at: cython.Py_ssize_t = 0
        body: cython.Py_ssize_t
        size: cython.Py_ssize_t
        kind: cython.int
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.inbound))
        else:
            data = self.inbound
        self.out_length = 0
        while at + 8 <= end:
            size = self.number(at, 4)
            if at + size > end:
                break
            body = at + 4 * data[at + 4]
            if size < 8 or data[at + 5] or body > at + size:
                self.malformed += 1
                at = end
                break
            if at + size - body >= 5:
                kind = data[body + 2]
                if kind == 0x14:
                    self.transfer(body, at + size, now, measuring)
                elif kind == 0x15 and self.sender is not None:
                    self.disposition(body, now, measuring)
                elif kind == 0x13:
                    self.flow(body)
                else:
                    self.unexpected += 1
            at += size
        if not self.every and self.first_id >= 0:
            self.accept()
        if self.sender is None and 2 * self.given <= self.credit:
            self.renew()
        self.flush_run(now)
        return at

    def fields(self, body: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return where the first field of a performative begins."""
        return body + (6 if self.inbound[body + 3] == 0xC0 else 12)

    def transfer(
        self,
        body: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        now: cython.longlong,
        measuring: cython.bint,
    ) -> None:
        """Account for one delivery."""
        data: cython.p_uchar
        at: cython.Py_ssize_t = self.field(self.fields(body))
        stop: cython.Py_ssize_t = self.field(body)
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.inbound))
        else:
            data = self.inbound
        at = self.field(at)
        self.last_id = self.value
        if self.first_id < 0:
            self.first_id = self.value
        at = stop
        while at + 5 <= end and data[at + 2] != 0x75:
            at = self.field(at)
        if at + 5 > end:
            self.malformed += 1
            return
        stop = self.field(at)
        at += 5 if data[at + 3] == 0xA0 else 8
        if stop != end:
            self.malformed += 1
        if end - at >= 16:
            if measuring:
                self.payload(at, end - at, now)
            else:
                self.payload(at, end - at, 0)
        self.publishes += 1
        self.payload_bytes += end - at
        self.given -= 1
        if self.every and self.last_id - self.first_id + 1 >= self.every:
            self.accept()

    def disposition(
        self, body: cython.Py_ssize_t, now: cython.longlong, measuring: cython.bint
    ) -> None:
        """Account for outcomes of what was sent."""
        at: cython.Py_ssize_t = self.field(self.fields(body))
        first: cython.longlong
        last: cython.longlong
        sender: TransferSender = self.sender
        at = self.field(at)
        first = self.value
        at = self.field(at)
        last = first if self.value < 0 else self.value
        at = self.field(at)
        self.field(at)
        if self.value != 0x24:  # accepted
            sender.refused += last - first + 1
            sender.settle_range(first, last, now, False)
        else:
            sender.settle_range(first, last, now, measuring)

    def flow(self, body: cython.Py_ssize_t) -> None:
        """Take the credit of a publisher's link."""
        at: cython.Py_ssize_t = self.fields(body)
        count: cython.longlong
        _index: cython.int
        sender: TransferSender = self.sender
        if sender is None:
            return
        if self.inbound[body + 5 if self.inbound[body + 3] == 0xC0 else body + 11] < 7:
            return  # the session's
        for _index in range(5):
            at = self.field(at)
        if self.value < 0:
            return  # the session's as well: without a handle
        at = self.field(at)
        count = self.value
        self.field(at)
        sender.credit_end = count + self.value + 1

    def put(self, at: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
        """Write a uint of five octets; return where it ends."""
        data: cython.p_uchar
        index: cython.Py_ssize_t
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.outbound))
        else:
            data = self.outbound
        data[at] = 0x70
        for index in range(4, 0, -1):
            data[at + index] = value & 0xFF
            value >>= 8
        return at + 5

    def begin(self, size: cython.int, kind: cython.int, count: cython.int) -> cython.Py_ssize_t:
        """Write a frame's header and the begin of its list; return where the first field goes."""
        data: cython.p_uchar
        at: cython.Py_ssize_t = self.out_length
        index: cython.Py_ssize_t
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.outbound))
        else:
            data = self.outbound
        for index in range(14):
            data[at + index] = 0
        data[at + 3] = size
        data[at + 4] = 2
        data[at + 9] = 0x53
        data[at + 10] = kind
        data[at + 11] = 0xC0
        data[at + 12] = size - 13
        data[at + 13] = count
        return at + 14

    def accept(self) -> None:
        """Append a disposition of the deliveries that have none: fewer octets than one of them has."""
        data: cython.p_uchar
        at: cython.Py_ssize_t = self.begin(30, 0x15, 5)
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.outbound))
        else:
            data = self.outbound
        data[at] = 0x41
        at = self.put(at + 1, self.first_id)
        at = self.put(at, self.last_id)
        data[at] = 0x41
        data[at + 1] = 0
        data[at + 2] = 0x53
        data[at + 3] = 0x24
        data[at + 4] = 0x45
        self.out_length = at + 5
        self.first_id = -1

    def renew(self) -> None:
        """Append a flow that gives the whole credit anew."""
        at: cython.Py_ssize_t = self.begin(49, 0x13, 7)
        count: cython.longlong = self.publishes
        at = self.put(at, count)
        at = self.put(at, 0x7FFFFFFF)
        at = self.put(at, 1)
        at = self.put(at, 0x7FFFFFFF)
        at = self.put(at, 0)
        at = self.put(at, count)
        self.out_length = self.put(at, self.credit)
        self.given = self.credit
