"""What a peer otherwise does in one: the greeting method by method, and contents frame by frame."""

from __future__ import annotations

import struct

from fluxmq.protocols.amqp091.constants import PROTOCOL_HEADER
from fluxmq.protocols.amqp091.methods import (
    BasicPublish,
    ConnectionStart,
    ConnectionStartOk,
    Method,
)
from tests.unit.sessions.amqp091.memory import MemoryBroker, Peer

FAILURE: dict[str, object] = {"capabilities": {"authentication_failure_close": True}}
GUEST = b"\0guest\0guest"


def start_ok(
    mechanism: str = "PLAIN", response: bytes = GUEST, told: bool = False
) -> ConnectionStartOk:
    """``told``: the client can be told that its credentials do not hold."""
    return ConnectionStartOk(FAILURE if told else {}, mechanism, response, "en_US")


def greeted(broker: MemoryBroker, certificate: str = "") -> Peer:
    """Up to connection.start."""
    peer = Peer(broker, opened=False)
    peer.client.info.certificate_name = certificate
    peer.raw(PROTOCOL_HEADER)
    start = peer.one(0)
    assert isinstance(start, ConnectionStart)
    return peer


def opened(broker: MemoryBroker, *methods: Method) -> list[object]:
    """What methods sent after connection.start are answered."""
    peer = greeted(broker)
    for method in methods:
        peer.send(0, method)
    return list(peer.got(0))


def header(class_id: int, size: int, weight: int = 0, flags: bytes = b"\0\0") -> bytes:
    """A frame with a content's header, on channel 1."""
    payload = struct.pack(">HHQ", class_id, weight, size) + flags
    return b"\x02\0\x01" + struct.pack(">I", len(payload)) + payload + b"\xce"


def body(payload: bytes, kind: int = 3, channel: int = 1) -> bytes:
    """A frame with a piece of a content's body, or of another kind."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


PUBLISH = BasicPublish("", "q")
