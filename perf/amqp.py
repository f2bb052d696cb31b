"""The little of AMQP 0.9.1 that a load generator sends: greeting, one channel, one queue, one message.

Everything here runs before the clock does. Answers are awaited by class and method and not read further.
Source: AMQP 0.9.1 specification sections 2.2 to 2.3 and 4.2, RabbitMQ's ``confirm.select`` and quorum queues.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

from perf import codec
from perf.handshake import HandshakeError, read_exactly

FRAME_MAX = 131_072
"""Asked for in tune-ok; RabbitMQ's own default."""

CHANNELS = 8
"""Asked for in tune-ok; a generator's connection uses one, churn of channels another."""

PREFETCH = 2000
"""Unacknowledged deliveries of a consumer; RabbitMQ's advice for throughput is hundreds to thousands."""

METHOD, HEADER, BODY, FRAME_END = 1, 2, 3, b"\xce"
PERSISTENT = 2

CONNECTION_START, CONNECTION_START_OK = (10, 10), (10, 11)
CONNECTION_TUNE, CONNECTION_TUNE_OK = (10, 30), (10, 31)
CONNECTION_OPEN, CONNECTION_OPEN_OK, CONNECTION_CLOSE = (10, 40), (10, 41), (10, 50)
CHANNEL_OPEN, CHANNEL_OPEN_OK, CHANNEL_CLOSE = (20, 10), (20, 11), (20, 40)
QUEUE_DECLARE, QUEUE_DECLARE_OK = (50, 10), (50, 11)
QUEUE_BIND, QUEUE_BIND_OK = (50, 20), (50, 21)
QUEUE_PURGE, QUEUE_PURGE_OK = (50, 30), (50, 31)
QUEUE_DELETE, QUEUE_DELETE_OK = (50, 40), (50, 41)
BASIC_QOS, BASIC_QOS_OK = (60, 10), (60, 11)
BASIC_CONSUME, BASIC_CONSUME_OK = (60, 20), (60, 21)
BASIC_PUBLISH = (60, 40)
CONFIRM_SELECT, CONFIRM_SELECT_OK = (85, 10), (85, 11)

Method = tuple[int, int]
"""Class and method numbers."""


def short(value: str) -> bytes:
    """A short string."""
    encoded = value.encode()
    if len(encoded) > 255:
        raise ValueError("a short string has at most 255 bytes")
    return bytes([len(encoded)]) + encoded


def long(value: bytes) -> bytes:
    """A long string."""
    return struct.pack(">I", len(value)) + value


def table(fields: Mapping[str, str | int]) -> bytes:
    """A field table of strings and integers of 32 bits."""
    return long(
        b"".join(
            short(name)
            + (b"S" + long(v.encode()) if isinstance(v, str) else b"I" + struct.pack(">i", v))
            for name, v in fields.items()
        )
    )


def frame(kind: int, channel: int, content: bytes) -> bytes:
    """One frame."""
    return struct.pack(">BHI", kind, channel, len(content)) + content + FRAME_END


def method(channel: int, name: Method, arguments: bytes = b"") -> bytes:
    """One method frame."""
    return frame(METHOD, channel, struct.pack(">HH", *name) + arguments)


def close() -> bytes:
    """connection.close, sent without waiting for its answer."""
    return method(0, CONNECTION_CLOSE, struct.pack(">H", 200) + short("done") + bytes(4))


def publish_template(queue: str, size: int) -> tuple[bytes, int, int]:
    """One persistent message to a queue through the default exchange, as ``codec.publish_template``."""
    front = method(1, BASIC_PUBLISH, bytes(2) + short("") + short(queue) + b"\x00")
    # Property flags: delivery mode is the thirteenth from the top.
    front += frame(HEADER, 1, struct.pack(">HHQHB", 60, 0, size, 0x1000, PERSISTENT))
    content = codec.payload(size)
    step = FRAME_MAX - 8
    body = b"".join(frame(BODY, 1, content[at : at + step]) for at in range(0, size, step))
    return front + body, len(front) + 7, 0


def await_method(connection: socket.socket, wanted: Method) -> bytes:
    """Read frames up to this method; its arguments. Raises ``HandshakeError`` on a close or anything else."""
    while True:
        kind, _, size = struct.unpack(">BHI", read_exactly(connection, 7))
        content = read_exactly(connection, size + 1)[:-1]
        if kind != METHOD:
            continue
        found = struct.unpack(">HH", content[:4])
        if found == wanted:
            return content[4:]
        if found in (CONNECTION_CLOSE, CHANNEL_CLOSE):
            code = int.from_bytes(content[4:6], "big")
            raise HandshakeError(f"closed with {code}: {content[7:].decode(errors='replace')}")
        raise HandshakeError(f"expected method {wanted}, received {found}")


def call(connection: socket.socket, channel: int, name: Method, arguments: bytes) -> bytes:
    """A method and its answer, whose number is one more for all that are used here."""
    connection.sendall(method(channel, name, arguments))
    return await_method(connection, (name[0], name[1] + 1))


def open_channel(connection: socket.socket) -> None:
    """Greet as guest, open virtual host / and channel 1. No heartbeats: a run is short and busy."""
    connection.sendall(b"AMQP\x00\x00\x09\x01")
    await_method(connection, CONNECTION_START)
    credentials = long(b"\x00guest\x00guest")
    start = table({}) + short("PLAIN") + credentials + short("en_US")
    connection.sendall(method(0, CONNECTION_START_OK, start))
    await_method(connection, CONNECTION_TUNE)
    connection.sendall(method(0, CONNECTION_TUNE_OK, struct.pack(">HIH", CHANNELS, FRAME_MAX, 0)))
    call(connection, 0, CONNECTION_OPEN, short("/") + short("") + b"\x00")
    call(connection, 1, CHANNEL_OPEN, short(""))


def confirm(connection: socket.socket) -> None:
    """Publisher confirms on channel 1."""
    call(connection, 1, CONFIRM_SELECT, b"\x00")


def declare(
    connection: socket.socket, queue: str, key: str, kind: str = "quorum", copies: int = 0
) -> None:
    """Declare a durable queue anew and bind it to ``amq.topic``; what was in it is gone. ``copies``: of a quorum
    queue, 0 for as many as the broker makes."""
    call(connection, 1, QUEUE_DELETE, bytes(2) + short(queue) + b"\x00")
    wanted: dict[str, str | int] = {"x-queue-type": kind}
    if copies:
        wanted["x-quorum-initial-group-size"] = copies
    durable, arguments = b"\x02", table(wanted)
    call(connection, 1, QUEUE_DECLARE, bytes(2) + short(queue) + durable + arguments)
    if key:
        binding = short(queue) + short("amq.topic") + short(key) + b"\x00" + table({})
        call(connection, 1, QUEUE_BIND, bytes(2) + binding)


def purge(connection: socket.socket, queue: str) -> None:
    """Empty a queue of what is ready."""
    call(connection, 1, QUEUE_PURGE, bytes(2) + short(queue) + b"\x00")


def consume(connection: socket.socket, queue: str, prefetch: int, kind: str = "quorum") -> None:
    """Consume from a queue; a stream from its first message."""
    call(connection, 1, BASIC_QOS, struct.pack(">IHB", 0, prefetch, 0))
    start = table({"x-stream-offset": "first"} if kind == "stream" else {})
    consumer = short(queue) + short("perf") + b"\x00" + start
    call(connection, 1, BASIC_CONSUME, bytes(2) + consumer)
