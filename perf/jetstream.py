"""The little of JetStream's wire API that a load generator needs: a stream, a push consumer, one message.

Requests are JSON published to ``$JS.API...`` subjects with a reply subject. Everything here runs before the
clock does. Source: NATS JetStream wire API reference.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from perf import codec
from perf.handshake import HandshakeError, read_exactly

REPLY = "perf.api.reply"
LINE_BYTES_MAX = 65_536
NO_SUCH_STREAM = 10059
DIGITS = 10
"""Decimal digits of a publish's number at the end of its reply subject."""


def inbox(index: int) -> str:
    """Return the subject of publisher ``index``'s acknowledgements, without the number."""
    return f"_INBOX.perf{index}"


def template(subject: str, reply: str, size: int) -> tuple[bytes, int, int]:
    """One PUB: its bytes, the offset of the payload and that of the ten digits of its number."""
    front = f"PUB {subject} {reply}."
    rest = f"{'0' * DIGITS} {size}\r\n"
    head = (front + rest).encode()
    return head + codec.payload(size) + b"\r\n", len(head), len(front)


def read_message(connection: socket.socket) -> bytes:
    """The payload of the next MSG. Raises ``HandshakeError`` on ``-ERR``."""
    while True:
        line = bytearray()
        while not line.endswith(b"\r\n"):
            line += read_exactly(connection, 1)
            if len(line) > LINE_BYTES_MAX:
                raise HandshakeError("a line of the NATS server does not end")
        if line.startswith(b"MSG"):
            size = int(line.split()[-1])
            return read_exactly(connection, size + 2)[:-2]
        if line.startswith(b"-ERR"):
            raise HandshakeError(line.decode(errors="replace").strip())


def request(connection: socket.socket, subject: str, content: dict[str, Any]) -> dict[str, Any]:
    """One API request; its answer, which may be an error."""
    body = json.dumps(content).encode()
    connection.sendall(f"PUB $JS.API.{subject} {REPLY} {len(body)}\r\n".encode() + body + b"\r\n")
    answer: dict[str, Any] = json.loads(read_message(connection))
    return answer


def checked(answer: dict[str, Any]) -> None:
    """Raise ``HandshakeError`` when the answer is an error."""
    if "error" in answer:
        raise HandshakeError(f"JetStream: {answer['error'].get('description', answer['error'])}")


def listen(connection: socket.socket) -> None:
    """Subscribe to the answers of the API; once for each connection."""
    connection.sendall(f"SUB {REPLY} 1\r\n".encode())


def create_stream(
    connection: socket.socket, stream: str, retention: str, replicas: int = 1
) -> dict[str, Any]:
    """A new stream in files; what the server says of it.

    ``retention`` is ``limits``, which here keeps everything, or ``workqueue``, which removes what is
    acknowledged. Raises ``HandshakeError``.
    """
    answer = request(connection, f"STREAM.DELETE.{stream}", {})
    if answer.get("error", {}).get("err_code", NO_SUCH_STREAM) != NO_SUCH_STREAM:
        checked(answer)
    settings = {"name": stream, "subjects": [stream], "storage": "file", "num_replicas": replicas}
    settings |= {"retention": retention, "discard": "old", "duplicate_window": 0}
    made = request(connection, f"STREAM.CREATE.{stream}", settings)
    checked(made)
    return made


def stream_leader(connection: socket.socket, stream: str) -> str:
    """The name of the server that leads a stream; empty while none does. Raises ``HandshakeError``."""
    answer = request(connection, f"STREAM.INFO.{stream}", {})
    checked(answer)
    return str(answer.get("cluster", {}).get("leader", ""))


def create_consumer(connection: socket.socket, stream: str, pending_max: int) -> None:
    """A durable push consumer that delivers to this connection. Raises ``HandshakeError``."""
    deliver = f"perf.deliver.{stream}"
    connection.sendall(f"SUB {deliver} 2\r\n".encode())
    consumer = {
        "durable_name": "perf",
        "deliver_subject": deliver,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "max_ack_pending": pending_max,
    }
    create = {"stream_name": stream, "config": consumer}
    checked(request(connection, f"CONSUMER.DURABLE.CREATE.{stream}.perf", create))


def declare(connection: socket.socket, stream: str, pending_max: int, retention: str) -> None:
    """A new stream of one replica and its consumer."""
    listen(connection)
    create_stream(connection, stream, retention)
    create_consumer(connection, stream, pending_max)
