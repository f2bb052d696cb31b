"""Opening a connection and reaching the point where messages may flow, blocking and with a deadline.

Done before the clock runs (churn has its own, non-blocking way), so it is written to be plain. Answers are
read to their end and nothing beyond, because what follows belongs to the measured stream.
"""

from __future__ import annotations

import socket

from perf import codec

TIMEOUT_S = 10.0
"""A broker that takes longer over one answer is not measurable."""

CONNACK_PROPERTY_BYTES = {
    0x11: 4,
    0x13: 2,
    0x21: 2,
    0x22: 2,
    0x24: 1,
    0x25: 1,
    0x27: 4,
    0x28: 1,
    0x29: 1,
    0x2A: 1,
}
"""Sizes of CONNACK's properties of fixed size (MQTT 5.0 section 3.2.2.3); the others are strings."""

RECEIVE_MAXIMUM = 0x21
USER_PROPERTY = 0x26


class HandshakeError(ConnectionError):
    """The broker refused, or answered something else than expected."""


def dial(host: str, port: int) -> socket.socket:
    """A connected socket without Nagle's delay, as every client library here sets it."""
    connection = socket.create_connection((host, port), TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """``count`` bytes; ``HandshakeError`` when the stream ends before."""
    received = bytearray()
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise HandshakeError("the broker closed the connection")
        received += part
    return bytes(received)


def read_packet(connection: socket.socket) -> tuple[int, bytes]:
    """One MQTT packet: first byte and body."""
    first = read_exactly(connection, 1)[0]
    length = 0
    for shift in (0, 7, 14, 21):
        byte = read_exactly(connection, 1)[0]
        length |= (byte & 0x7F) << shift
        if not byte & 0x80:
            break
    return first, read_exactly(connection, length)


def receive_maximum(properties: bytes) -> int:
    """The Receive Maximum among CONNACK properties, 65535 where it is absent."""
    at = 0
    while at < len(properties):
        name = properties[at]
        at += 1
        if name == RECEIVE_MAXIMUM:
            return int.from_bytes(properties[at : at + 2], "big")
        if name in CONNACK_PROPERTY_BYTES:
            at += CONNACK_PROPERTY_BYTES[name]
            continue
        for _ in range(2 if name == USER_PROPERTY else 1):
            at += 2 + int.from_bytes(properties[at : at + 2], "big")
    return 65_535


def connect_mqtt(connection: socket.socket, client_id: str, version: int) -> int:
    """CONNECT and await CONNACK; the broker's receive maximum. Raises ``HandshakeError``."""
    connection.sendall(codec.connect(client_id, version))
    first, body = read_packet(connection)
    if first != 0x20 or len(body) < 2:
        raise HandshakeError(f"expected CONNACK, received packet type {first >> 4}")
    if body[1]:
        raise HandshakeError(f"CONNECT was refused with code {body[1]:#04x}")
    if version != 5:
        return 65_535
    length, at, shift = 0, 2, 0
    while True:
        length |= (body[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not body[at - 1] & 0x80:
            return receive_maximum(body[at : at + length])


def subscribe_mqtt(
    connection: socket.socket, topic_filter: str, qos: int, version: int, properties: bytes = b""
) -> None:
    """SUBSCRIBE and await SUBACK with exactly the QoS asked for. Raises ``HandshakeError``."""
    connection.sendall(codec.subscribe(topic_filter, qos, version, properties))
    first, body = read_packet(connection)
    if first != 0x90 or not body or body[-1] != qos:
        raise HandshakeError(f"SUBSCRIBE at QoS {qos} was answered {first:#04x} {body.hex()}")


def await_pong(connection: socket.socket) -> None:
    """Read lines of a NATS server up to PONG. Raises ``HandshakeError`` on ``-ERR``."""
    while True:
        line = bytearray()
        while not line.endswith(b"\n"):
            line += read_exactly(connection, 1)
            if len(line) > 65_536:
                raise HandshakeError("a line of the NATS server does not end")
        if line.startswith(b"PONG"):
            return
        if line.startswith(b"-ERR"):
            raise HandshakeError(line.decode(errors="replace").strip())
