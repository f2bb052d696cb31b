"""The little of AMQP 1.0 that a load generator sends: greeting, one session, links, one message.

Everything here runs before the clock does. Answers are awaited by their descriptor and not read further. Queues
are declared over AMQP 0.9.1, and addressed as both RabbitMQ 3 and 4 do.
Source: OASIS AMQP 1.0 parts 1, 2, 3 and 5.
"""

from __future__ import annotations

import socket
import struct

from perf import codec
from perf.handshake import HandshakeError, read_exactly

FRAME_MAX = 131_072
"""Asked for in open; the default of RabbitMQ and FluxMQ."""

CREDIT = 2000
"""Of a consumer; as many as prefetched over AMQP 0.9.1."""

WINDOW = 0x7FFF_FFFF
"""Transfers that a session takes: more than a run has."""

SASL_HEADER, AMQP_HEADER = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
OPEN, BEGIN, ATTACH, FLOW = 0x10, 0x11, 0x12, 0x13
TRANSFER, DISPOSITION, DETACH, END, CLOSE = 0x14, 0x15, 0x16, 0x17, 0x18
MECHANISMS, SASL_INIT, SASL_OUTCOME = 0x40, 0x41, 0x44
SOURCE, TARGET = 0x28, 0x29
ACCEPTED = 0x24

NULL, TRUE, FALSE, ZERO = b"\x40", b"\x41", b"\x42", b"\x43"
ID_PREFIX = b"ID:5bf8b1d2-7f9a-4c9d-a1d9-"
"""Beginning of the ids of messages that have one; ten digits follow, as long as a usual id is."""
DIGITS = 10


def uint(value: int) -> bytes:
    """An unsigned integer of 32 bits."""
    return b"\x70" + struct.pack(">I", value)


def sized(code: int, value: bytes) -> bytes:
    """A string (``0xa1``), symbol (``0xa3``) or binary (``0xa0``) of up to 255 bytes."""
    if len(value) > 255:
        raise ValueError("more than 255 bytes")
    return bytes((code, len(value))) + value


def text(value: str) -> bytes:
    """A string."""
    return sized(0xA1, value.encode())


def described(code: int, *fields: bytes) -> bytes:
    """A described list of encoded fields."""
    content = b"".join(fields)
    if len(content) < 255:
        return b"\x00\x53" + bytes((code, 0xC0, len(content) + 1, len(fields))) + content
    return (
        b"\x00\x53"
        + bytes((code, 0xD0))
        + struct.pack(">II", len(content) + 4, len(fields))
        + content
    )


def frame(body: bytes, kind: int = 0) -> bytes:
    """One frame on channel 0."""
    return struct.pack(">IBBH", 8 + len(body), 2, kind, 0) + body


def close() -> bytes:
    """close, sent without waiting for its answer."""
    return frame(described(CLOSE))


def address(queue: str) -> str:
    """A queue's address, known to RabbitMQ 3 and FluxMQ."""
    return f"/amq/queue/{queue}"


def await_frame(connection: socket.socket, wanted: int) -> bytes:
    """Read frames up to the one of this descriptor; its body. Raises ``HandshakeError`` on an end of any kind."""
    while True:
        size, offset, _, _ = struct.unpack(">IBBH", read_exactly(connection, 8))
        body = read_exactly(connection, size - 8)[4 * offset - 8 :]
        if not body:
            continue
        found = body[2]
        if found in (DETACH, END, CLOSE):
            raise HandshakeError(f"ended with {body[3:300]!r}")
        if found == wanted:
            return body


def open_session(connection: socket.socket) -> None:
    """Greet as guest and begin a session; the first transfer is number 1."""
    connection.sendall(SASL_HEADER)
    read_exactly(connection, len(SASL_HEADER))
    await_frame(connection, MECHANISMS)
    response = sized(0xA0, b"\x00guest\x00guest")
    connection.sendall(frame(described(SASL_INIT, sized(0xA3, b"PLAIN"), response), 1))
    outcome = await_frame(connection, SASL_OUTCOME)
    code = outcome[7 if outcome[3] == 0xC0 else 13]  # what may follow it is null
    if code:
        raise HandshakeError(f"SASL ended with {code}")
    fields = text("perf"), text("vhost:/"), uint(FRAME_MAX)
    begin = described(BEGIN, NULL, uint(1), uint(WINDOW), uint(WINDOW))
    connection.sendall(AMQP_HEADER + frame(described(OPEN, *fields)) + frame(begin))
    read_exactly(connection, len(AMQP_HEADER))
    await_frame(connection, OPEN)
    await_frame(connection, BEGIN)


def attach_sender(connection: socket.socket, queue: str, handle: int = 0) -> None:
    """A link to a queue; its credit is read later."""
    target = described(TARGET, text(address(queue)))
    fields = text(f"to-{handle}"), uint(handle), FALSE, NULL, NULL, described(SOURCE), target
    connection.sendall(frame(described(ATTACH, *fields, NULL, NULL, ZERO)))
    await_frame(connection, ATTACH)


def attach_receiver(
    connection: socket.socket, queue: str, handle: int = 0, credit: int = CREDIT
) -> None:
    """A link from a queue, with this credit."""
    source = described(SOURCE, text(address(queue)))
    fields = text(f"from-{handle}"), uint(handle), TRUE, NULL, NULL, source, described(TARGET)
    connection.sendall(frame(described(ATTACH, *fields)))
    await_frame(connection, ATTACH)
    connection.sendall(flow(handle, 0, credit))


def flow(handle: int, received: int, credit: int) -> bytes:
    """The credit of a link from a queue of which so many deliveries have come, as all of its session."""
    numbers = uint(received), uint(WINDOW), uint(1), uint(WINDOW), uint(handle), uint(received)
    return frame(described(FLOW, *numbers, uint(credit)))


def accept(number: int) -> bytes:
    """The disposition that settles one delivery as accepted."""
    return frame(described(DISPOSITION, TRUE, uint(number), NULL, TRUE, described(ACCEPTED)))


def publish_template(size: int, stamped: bool) -> tuple[bytes, int, int]:
    """One durable message in a transfer on handle 0, as ``codec.publish_template``. ``stamped``: it has an id and a
    creation time."""
    transfer = described(TRANSFER, ZERO, uint(0), sized(0xA0, bytes(4)), ZERO, FALSE)
    mark_at = 8 + transfer.index(b"\x70") + 1
    sections = described(0x70, TRUE)
    if stamped:
        named, created = sized(0xA1, ID_PREFIX + bytes(DIGITS)), b"\x83" + bytes(8)
        sections += described(0x73, named, *(NULL,) * 8, created)
    content = codec.payload(size)
    wide = struct.pack(">BI", 0xB0, size) if size > 255 else bytes((0xA0, size))
    front = transfer + sections + b"\x00\x53\x75" + wide
    return frame(front + content), 8 + len(front), mark_at


def stamps_in(message: bytes) -> tuple[int, int]:
    """Positions of the digits of a template's id and of its creation time; 0 for none."""
    at = message.find(ID_PREFIX)
    if at < 0:
        return 0, 0
    digits_at = at + len(ID_PREFIX)
    return digits_at, digits_at + DIGITS + 8 + 1
