"""Splits received bytes into runs of MQTT packets.

One pass turns a buffer into *runs*: neighbouring PUBLISH packets with the same first byte, topic
and properties, neighbouring plain acknowledgements of one type, and single other packets. A run is
described by offsets into the buffer; no object is made per message. The scanner checks what framing
needs (remaining length, packet size, that topic, packet identifier and properties lie inside the
packet, QoS 3, packet identifier 0) and leaves meaning to its callers. It knows no connection and no
session.

Time is linear in the input: every byte of a header is read once, and a packet whose header equals
its predecessor's is recognised by one comparison.

Source: MQTT 3.1.1 section 2, MQTT 5.0 section 2 (fixed header, variable byte integer) and 3.3
(PUBLISH).
"""

from __future__ import annotations

from typing import Final

import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.fluxmq.model.octets import Octets
    from cython.cimports.libc.string import memcmp
else:
    from fluxmq.model.octets import Octets

COMPILED: Final[bool] = cython.compiled
"""True when this module, and with it the others for the compiler, runs compiled."""

INCOMPLETE: Final = 0
"""No whole packet is left; ``needed`` is the size of the incomplete one, 0 while unknown."""
PUBLISH: Final = 1
"""A run of PUBLISH packets."""
ACKNOWLEDGEMENTS: Final = 2
"""A run of PUBACK, PUBREC, PUBREL or PUBCOMP packets of four bytes (success, no properties)."""
PACKET: Final = 3
"""One packet of another type."""
ERROR: Final = 4
"""The bytes violate the protocol; ``reason`` is the MQTT 5 reason code."""

MALFORMED: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
PACKET_TOO_LARGE: Final = 0x95

UNIFORM_RUN_MIN: Final = 8
"""A run of equal sizes at least this long is closed when a packet of another size follows, so that
it keeps its ``stride``: equal sizes are copied and numbered without a walk."""


class Scanner:
    """Finds the next run in a buffer. Its fields describe the run found last.

    ``start``, ``end``: byte range. ``count``: packets in it. ``stride``: their size where all are
    equal, else 0. ``first``: the first byte. ``header``: length of the first packet's fixed header.
    ``variable``: length of topic, packet identifier and properties. ``topic_at``/``topic_length``,
    ``properties_at``/``properties_length``: their place in the first packet (without length
    prefix). ``pid_at``: offset of the packet identifier from the start of the first packet, 0 where
    QoS is 0. ``largest``: size of the largest packet.
    """

    def __init__(self, max_packet: int, version: int = 4) -> None:
        self.max_packet = max_packet
        self.version = version
        self.start = 0
        self.end = 0
        self.count = 0
        self.stride = 0
        self.first = 0
        self.header = 0
        self.variable = 0
        self.topic_at = 0
        self.topic_length = 0
        self.properties_at = 0
        self.properties_length = 0
        self.pid_at = 0
        self.largest = 0
        self.needed = 0
        self.reason = 0
        self.frame_header = 0

    def fail(self, reason: cython.int) -> cython.int:
        self.reason = reason
        return ERROR

    def next(self, buffer: bytearray, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:  # noqa: C901, PLR0915 - one C function
        """Describe the run that begins at ``at`` and return its kind."""
        data: Octets
        first: cython.int
        length: cython.Py_ssize_t
        header: cython.Py_ssize_t
        shift: cython.int
        byte: cython.Py_ssize_t
        total: cython.Py_ssize_t
        position: cython.Py_ssize_t
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(buffer))
        else:
            data = buffer
        self.start = at
        self.needed = 0
        if end - at < 2:
            return INCOMPLETE
        first = data[at]
        length = data[at + 1]
        header = 2
        if length & 0x80:
            length &= 0x7F
            shift = 7
            while True:
                if header == 5:
                    return self.fail(MALFORMED)
                if at + header >= end:
                    return INCOMPLETE
                byte = data[at + header]
                header += 1
                length |= (byte & 0x7F) << shift
                if not byte & 0x80:
                    break
                shift += 7
            if byte == 0 and self.version == 5:
                return self.fail(MALFORMED)  # longer than needed [MQTT-1.5.5-1]
        total = header + length
        if total > self.max_packet:
            return self.fail(PACKET_TOO_LARGE)
        if at + total > end:
            self.needed = total
            return INCOMPLETE
        self.first = first
        self.header = header
        self.count = 1
        self.stride = total
        self.largest = total
        self.end = at + total
        if first >> 4 == 3:
            return self.publish(buffer, at, end, header, length)
        if total == 4 and (first == 0x40 or first == 0x50 or first == 0x62 or first == 0x70):
            position = at
            while position + 4 <= end and data[position] == first and data[position + 1] == 2:
                if not data[position + 2] and not data[position + 3]:
                    break  # packet identifier 0: refused as a packet of its own
                position += 4
            if position > at:
                self.end = position
                self.count = (position - at) // 4
                return ACKNOWLEDGEMENTS
        return PACKET

    def publish(  # noqa: PLR0915 - one C function
        self,
        buffer: bytearray,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        header: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
    ) -> cython.int:
        """Check one PUBLISH packet and extend it to a run."""
        data: Octets
        qos: cython.int
        position: cython.Py_ssize_t
        topic_length: cython.Py_ssize_t
        variable: cython.Py_ssize_t
        prefix: cython.Py_ssize_t
        properties_length: cython.Py_ssize_t
        shift: cython.int
        byte: cython.Py_ssize_t
        front: cython.Py_ssize_t
        back: cython.Py_ssize_t
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(buffer))
        else:
            data = buffer
        qos = (data[at] >> 1) & 3
        if qos == 3 or length < 2 or (qos == 0 and data[at] & 8):
            return self.fail(MALFORMED)  # [MQTT-3.3.1-4], [MQTT-3.3.1-2]
        position = at + header
        topic_length = (data[position] << 8) | data[position + 1]
        variable = 2 + topic_length
        self.pid_at = 0
        if qos:
            self.pid_at = header + variable
            variable += 2
        if variable > length:
            return self.fail(MALFORMED)
        if qos and not data[at + self.pid_at] and not data[at + self.pid_at + 1]:
            return self.fail(PROTOCOL_ERROR if self.version == 5 else MALFORMED)
        self.topic_at = position + 2
        self.topic_length = topic_length
        prefix = 0
        self.properties_length = 0
        self.properties_at = position + variable
        if self.version == 5:
            properties_length = 0
            shift = 0
            while True:
                if prefix == 4 or variable + prefix >= length:
                    return self.fail(MALFORMED)
                byte = data[position + variable + prefix]
                prefix += 1
                properties_length |= (byte & 0x7F) << shift
                if not byte & 0x80:
                    break
                shift += 7
            if byte == 0 and prefix > 1:
                return self.fail(MALFORMED)
            self.properties_at = position + variable + prefix
            self.properties_length = properties_length
            variable += prefix + properties_length
            if variable > length:
                return self.fail(MALFORMED)
        self.variable = variable
        # Later packets must repeat everything up to the packet identifier, and what follows it.
        front = header + 2 + topic_length
        back = prefix + self.properties_length
        self.extend(buffer, at, end, front, back)
        return PUBLISH

    def extend(
        self,
        buffer: bytearray,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        front: cython.Py_ssize_t,
        back: cython.Py_ssize_t,
    ) -> cython.int:
        """Extend the run over neighbours of the same size, then of any size if those were few."""
        data: Octets
        total: cython.Py_ssize_t
        pid_at: cython.Py_ssize_t
        position: cython.Py_ssize_t
        count: cython.Py_ssize_t
        back_at: cython.Py_ssize_t
        total = self.stride
        pid_at = self.pid_at
        position = at + total
        count = 1
        back_at = front + 2 if pid_at else front
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(buffer))
            while position + total <= end:
                if memcmp(data + position, data + at, front):
                    break
                if back and memcmp(data + position + back_at, data + at + back_at, back):
                    break
                if pid_at and not data[position + pid_at] and not data[position + pid_at + 1]:
                    break
                position += total
                count += 1
        else:
            data = buffer
            head = bytes(memoryview(buffer)[at : at + front])
            tail = bytes(memoryview(buffer)[at + back_at : at + back_at + back])
            last = end - total
            if back and back_at > front:
                while (
                    position <= last
                    and buffer.startswith(head, position)
                    and buffer.startswith(tail, position + back_at)
                ):
                    position += total
                    count += 1
            else:
                head += tail
                while position <= last and buffer.startswith(head, position):
                    position += total
                    count += 1
            if pid_at and count > 1:
                valid = self.whole_identifiers(buffer, at, count)
                if valid < count:
                    count = valid
                    position = at + count * total
        self.count = count
        self.end = position
        if count < UNIFORM_RUN_MIN:
            self.extend_any_size(buffer, at, end, front, back)
        return 0

    def whole_identifiers(
        self, buffer: bytearray, at: cython.Py_ssize_t, count: cython.Py_ssize_t
    ) -> cython.int:
        """Return how many packets from the first on have a packet identifier other than 0."""
        low = buffer[at + self.pid_at + 1 : at + count * self.stride : self.stride]
        if 0 not in low:
            return count
        for index in range(count):
            place = at + index * self.stride + self.pid_at
            if not buffer[place] and not buffer[place + 1]:
                return index
        return count

    def frame(
        self, buffer: bytearray, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Return the size of the packet at ``at``, its fixed header's in ``frame_header``; 0 if it
        is incomplete or unacceptable and must start a run of its own."""
        data: Octets
        length: cython.Py_ssize_t
        header: cython.Py_ssize_t = 2
        shift: cython.int = 7
        byte: cython.Py_ssize_t = 0x80
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(buffer))
        else:
            data = buffer
        length = data[at + 1]
        if length & 0x80:
            length &= 0x7F
            while byte & 0x80:
                if header == 5 or at + header >= end:
                    return 0
                byte = data[at + header]
                header += 1
                length |= (byte & 0x7F) << shift
                shift += 7
            if byte == 0 and self.version == 5:
                return 0
        self.frame_header = header
        if header + length > self.max_packet or at + header + length > end:
            return 0
        return header + length

    def extend_any_size(  # noqa: C901 - one C function
        self,
        buffer: bytearray,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        front: cython.Py_ssize_t,
        back: cython.Py_ssize_t,
    ) -> cython.int:
        """Extend the run over neighbours of other sizes; the run has no stride then."""
        data: Octets
        topic_size: cython.Py_ssize_t
        qos_size: cython.Py_ssize_t
        position: cython.Py_ssize_t
        first: cython.int
        origin: cython.Py_ssize_t
        total: cython.Py_ssize_t
        place: cython.Py_ssize_t
        if cython.compiled:
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(buffer))
        else:
            data = buffer
        topic_size = 2 + self.topic_length
        qos_size = 2 if self.pid_at else 0
        position = self.end
        first = self.first
        origin = at + self.header
        if not cython.compiled:
            topic = bytes(memoryview(buffer)[origin : origin + topic_size])
            tail_at = origin + topic_size + qos_size
            tail = bytes(memoryview(buffer)[tail_at : tail_at + back])
        while position + 2 <= end and data[position] == first:
            total = self.frame(buffer, position, end)
            if total == 0 or total - self.frame_header < self.variable:
                break
            place = position + self.frame_header
            if cython.compiled:
                if memcmp(data + place, data + origin, topic_size):
                    break
                if back and memcmp(
                    data + place + topic_size + qos_size,
                    data + origin + topic_size + qos_size,
                    back,
                ):
                    break
            else:
                if not buffer.startswith(topic, place):
                    break
                if back and not buffer.startswith(tail, place + topic_size + qos_size):
                    break
            if qos_size and not data[place + topic_size] and not data[place + topic_size + 1]:
                break
            if total != self.stride:
                self.stride = 0
            if total > self.largest:
                self.largest = total
            position += total
            self.count += 1
        self.end = position
        return 0
