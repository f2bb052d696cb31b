"""One client connection's bytes: incomplete input, and pending output.

A connection is written once per tick: everything appended during the tick is in ``out`` (small
pieces, copied together) and ``chunks`` (large pieces, shared by all receivers), and ``flush`` hands
it to the kernel. An idle connection holds no buffers. The appending code bounds the output:
``room`` says how much may still be appended; beyond it QoS 0 is dropped and QoS 1 and 2 stay in
their session.

``stream`` is the filter of TLS and WebSocket connections (``net``); plain TCP has none and bypasses
it. This module knows bytes only, and touches no socket itself: ``send`` does, ``handler`` knows
what bytes mean, and ``delivery`` delivers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_Resize
    from cython.cimports.fluxmq.model.octets import pointer

CHUNK_MIN: Final = 4096
"""A slice this long is shared rather than copied into the output buffer."""
DIRECT_MIN: Final = 32768
"""A slice this long is written straight from the receive buffer when nothing else is waiting."""
WIRE_MQTT: Final = 0
WIRE_AMQP_0_9_1: Final = 1
WIRE_AMQP_1_0: Final = 2
"""Protocol of a connection, which selects its parser."""
FRAME_MIN: Final = 4096
"""Largest AMQP frame before the two sides have negotiated another size. Source: AMQP 0-9-1,
frame-min-size."""


class StreamFilter(Protocol):
    """A layer between a socket and a parser: TLS, WebSocket."""

    @property
    def closed(self) -> bool:
        """True once the other side has ended the stream."""

    def feed(self, data: bytes, /) -> bytes:
        """Take received bytes; return those for the parser."""

    def encode(self, chunks: Sequence[bytes | bytearray], /) -> bytes:
        """Return the bytes to send for these."""

    def pending(self) -> bytes:
        """Return output of the filter's own, once."""

    def shutdown(self) -> bytes:
        """Return the bytes that end the stream."""

    def release(self) -> None:
        """Drop references to the connection."""


class Tally:
    """The shard's clock reading and its counters, written by the hot path, read by the metrics.

    ``now``: monotonic seconds at the start of the tick. Counters are messages, bytes or events
    since start.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.received0 = self.received1 = self.received2 = 0
        self.received_bytes0 = self.received_bytes1 = self.received_bytes2 = 0
        self.sent0 = self.sent1 = self.sent2 = 0
        self.sent_bytes0 = self.sent_bytes1 = self.sent_bytes2 = 0
        self.dropped_slow = self.dropped_full = self.dropped_expired = self.dropped_large = 0
        self.route_hits = self.route_misses = 0
        self.ticks = self.runs = 0
        self.amqp_published = self.amqp_published_bytes = self.amqp_returned = 0
        self.amqp_delivered = self.amqp_delivered_bytes = self.amqp_redelivered = 0
        self.amqp_got = self.amqp_got_empty = self.amqp_replies = 0
        self.amqp_acknowledged = self.amqp_requeued = self.amqp_rejected = 0
        self.amqp_confirmed = self.amqp_nacked = 0
        self.amqp_committed = self.amqp_rolled_back = 0

    def received(
        self, qos: cython.int, count: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.int:
        """Count a run of ``count`` messages of ``qos``, together ``size`` bytes, that a client
        published."""
        self.runs += 1
        if qos == 0:
            self.received0 += count
            self.received_bytes0 += size
        elif qos == 1:
            self.received1 += count
            self.received_bytes1 += size
        else:
            self.received2 += count
            self.received_bytes2 += size
        return 0

    def sent(
        self, qos: cython.int, count: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.int:
        """Count ``count`` messages of ``qos``, together ``size`` bytes, given to a connection."""
        if qos == 0:
            self.sent0 += count
            self.sent_bytes0 += size
        elif qos == 1:
            self.sent1 += count
            self.sent_bytes1 += size
        else:
            self.sent2 += count
            self.sent_bytes2 += size
        return 0

    def published(self, count: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.int:
        """Count ``count`` messages that an AMQP client published, with bodies of ``size`` bytes in
        total."""
        self.amqp_published += count
        self.amqp_published_bytes += size
        return 0

    def delivered(
        self, count: cython.Py_ssize_t, size: cython.Py_ssize_t, redelivered: cython.bint
    ) -> cython.int:
        """Count ``count`` messages given to an AMQP client in frames of ``size`` bytes;
        ``redelivered``: marked redelivered."""
        self.amqp_delivered += count
        self.amqp_delivered_bytes += size
        if redelivered:
            self.amqp_redelivered += count
        return 0


class Connection:
    """A client connection. ``fd``: its socket, -1 once closed. ``limit``: bytes of output it may
    hold. ``send``: writes to a socket, as ``net.sockets`` does.

    ``version``: MQTT version, 4 or 5, 0 before CONNECT. ``open``: CONNECT was accepted. ``paused``:
    reasons for not reading, as bits; ``deaf``: the poller has been told. ``waiting``: the kernel's
    buffer was full and the poller reports when it is not. ``active``: when bytes last came,
    monotonic seconds. ``max_packet_out``: largest packet the client accepts. An incomplete packet
    is in ``tail`` or, of ``needed`` bytes of which ``gathered`` have come, in ``gathering``.
    ``wire``: the protocol; for AMQP 0.9.1 ``version`` is 0 until its header has come, ``frame_max``
    (never 0) bounds a frame's payload, and ``ledgers`` has the channels' by number. ``publishing``:
    the client has published. By the protocol, ``handler`` is a `MqttHandler` or an `AmqpHandler`;
    ``delivery``, ``pending_acks`` and ``ledgers`` are its modules', ``identity`` the session's.
    """

    def __init__(
        self,
        fd: cython.int,
        tally: Tally,
        dirty: list[Connection],
        limit: cython.Py_ssize_t,
        send: Callable[[int, bytes | bytearray, int, int], int],
    ) -> None:
        self.fd = fd
        self.send = send
        self.tally = tally
        self.dirty_list = dirty
        self.limit = limit
        self.version = 0
        self.wire = WIRE_MQTT
        self.frame_max = FRAME_MIN
        self.ledgers: dict[int, Any] | None = None
        self.open = False
        self.closing = False
        self.dirty = False
        self.waiting = False
        self.feeding = False
        self.publishing = False
        self.paused = 0
        self.deaf = False
        self.listener = 0
        self.active = 0.0
        self.max_packet_out = 1 << 30
        self.tail: bytes | None = None
        self.gathering: bytearray | None = None
        self.gathered = 0
        self.needed = 0
        self.out: bytearray | None = None
        self.chunks: list[bytes | bytearray] | None = None
        self.encoded = 0
        self.sent = 0
        self.size = 0
        self.alias_maximum = 0
        self.aliases: dict[bytes, int] | None = None
        self.allowed: set[bytes] | None = None
        self.stream: StreamFilter | None = None
        self.handler: Any = None
        self.delivery: Any = None
        self.identity: Any = None
        self.pending_acks: deque[Any] | None = None

    def forget(self) -> cython.int:
        """Drop all references: garbage is not collected under traffic, so no cycle may remain."""
        self.chunks = None
        self.out = None
        self.tail = None
        self.gathering = None
        self.size = 0
        self.ledgers = None
        self.identity = None
        self.delivery = None
        self.handler = None
        self.stream = None
        return 0

    def gather(
        self,
        buffer: bytearray,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        needed: cython.Py_ssize_t,
        capacity: cython.Py_ssize_t,
    ) -> cython.int:
        """Keep the incomplete packet at ``buffer[at:end]``, ``needed`` bytes long where that is
        known.

        One that is larger than the receive buffer (``capacity``), or that does not come in one or
        two reads, gets a buffer of its own: as a tail it would be copied again with every read.
        """
        if needed > capacity or (at == 0 and needed > CHUNK_MIN):
            self.gathering = bytearray(memoryview(buffer)[at:end])
            self.gathered = end - at
            self.needed = needed
            if self.stream is None:
                self.widen()
        else:
            self.tail = bytes(memoryview(buffer)[at:end])
        return 0

    def widen(self) -> cython.int:
        """Double the buffer as bytes arrive, so that announcing a large packet takes no memory."""
        size: cython.Py_ssize_t = min(self.needed, max(2 * self.gathered, CHUNK_MIN))
        assert self.gathering is not None
        if cython.compiled:
            PyByteArray_Resize(self.gathering, size)
        else:
            self.gathering += bytes(size - self.gathered)
        return 0

    def fill(self, data: bytes) -> bytes:
        """Add a stream filter's output to the packet being gathered; return the rest."""
        count: cython.Py_ssize_t = min(self.needed - self.gathered, len(data))
        assert self.gathering is not None
        self.gathering += data[:count]
        self.gathered += count
        return data[count:]

    def buffer(self) -> bytearray:
        """Return the output buffer, to append to; the connection is written at the end of the
        tick."""
        if not self.dirty:
            self.dirty = True
            self.dirty_list.append(self)
        if self.out is None:
            self.out = bytearray()
        return self.out

    def append(self, data: bytes) -> cython.int:
        """Send ``data`` with this tick."""
        length: cython.Py_ssize_t = len(data)
        if length >= CHUNK_MIN:
            self.append_chunk(data)
        else:
            out: bytearray = self.buffer()
            out += data
        self.size += length
        return 0

    def append_chunk(self, data: bytes | bytearray) -> cython.int:
        """Queue a large piece by reference; the caller counts its size."""
        if not self.dirty:
            self.dirty = True
            self.dirty_list.append(self)
        if self.chunks is None:
            self.chunks = []
        if self.out is not None:
            self.chunks.append(self.out)
            self.out = None
        self.chunks.append(data)
        return 0

    def append_slice(
        self,
        data: bytes | bytearray,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        kept: cython.bint,
    ) -> cython.int:
        """Send ``data[start:end]`` as it is: shared or straight to the socket when large, else
        copied. ``kept``: nobody changes the data."""
        length: cython.Py_ssize_t = end - start
        done: cython.Py_ssize_t = 0
        if length < CHUNK_MIN:
            out: bytearray = self.buffer()
            if cython.compiled:
                out += pointer(data)[start:end]
            else:
                out += memoryview(data)[start:end]
            self.size += length
            return 0
        direct: cython.bint = (
            length >= DIRECT_MIN and self.size == 0 and self.stream is None and not self.chunks
        )
        if direct:
            done = self.write(data, start, end)
            if done == length:
                return 0
            if done < 0:
                done = 0
        whole: cython.bint = kept and end == len(data)
        if whole and (start == 0 or direct):
            # Kept bytes are shared; those already written, or before the slice, are skipped.
            if direct:
                self.out = None
                self.sent = start + done
            self.append_chunk(data)
        elif cython.compiled:
            self.append_chunk(pointer(data)[start + done : end])
        else:
            self.append_chunk(bytes(memoryview(data)[start + done : end]))
        self.size += length - done
        return 0

    def write(
        self, data: bytes | bytearray, start: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Write to the socket; return bytes taken, 0 when it is full, -1 when the connection is
        lost."""
        done: cython.Py_ssize_t = self.send(self.fd, data, start, end)
        return done

    def flush(self) -> cython.int:  # noqa: C901 - one C function
        """Write pending output. Return 1: all written, 0: the socket is full, -1: the connection is
        lost."""
        length: cython.Py_ssize_t
        done: cython.Py_ssize_t
        item: bytes | bytearray
        self.dirty = False
        if self.fd < 0:
            return -1
        if self.stream is not None:
            self.encode()
        while True:
            if self.chunks:
                item = self.chunks[0]
            elif self.out is not None:
                item = self.out
            else:
                self.size = 0
                return 1
            length = len(item)
            if length > self.sent:
                done = self.write(item, self.sent, length)
                if done < 0:
                    return -1
                self.size -= done
                self.sent += done
                if self.sent < length:
                    # Freeze what is being written, so that its sent part can be released.
                    if not self.chunks:
                        self.chunks = [item]
                        self.out = None
                    return 0
            self.sent = 0
            if self.chunks:
                del self.chunks[0]
                if self.encoded:
                    self.encoded -= 1
                if not self.chunks:
                    self.chunks = None
            else:
                self.out = None

    def encode(self) -> cython.int:
        """Pass the output through the stream filter, whose output is then written."""
        stream: StreamFilter | None = self.stream
        assert stream is not None
        plain: list[bytes | bytearray] = self.chunks if self.chunks is not None else []
        if self.out is not None:
            plain.append(self.out)
            self.out = None
        # Pieces encoded by an earlier flush come first and must not be encoded again.
        done: list[bytes | bytearray] = plain[: self.encoded]
        fresh: list[bytes | bytearray] = plain[self.encoded :]
        own: bytes = stream.pending()
        if own:
            done.append(own)
        if fresh:
            done.append(stream.encode(fresh))
        self.encoded = len(done)
        self.chunks = done or None
        self.size = -self.sent
        for piece in done:
            self.size += len(piece)
        return 0

    def room(self) -> cython.Py_ssize_t:
        """Return the bytes that may still be appended; not positive when the client is too slow."""
        return self.limit - self.size

    def alias(self, topic: bytes) -> cython.int:
        """Return the topic alias for ``topic``: positive when the client knows it, negative when
        new, 0 for none.

        Source: MQTT 5.0 section 3.3.2.3.4.
        """
        if self.alias_maximum == 0:
            return 0
        if self.aliases is None:
            self.aliases = {}
        known: int | None = self.aliases.get(topic)
        if known is not None:
            return known
        if len(self.aliases) >= self.alias_maximum:
            return 0
        number: cython.int = len(self.aliases) + 1
        self.aliases[topic] = number
        return -number
