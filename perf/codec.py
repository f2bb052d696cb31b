"""The bytes the generators speak: MQTT 3.1.1 and 5 packets, and the text protocol of NATS core.

Only what a load generator sends is encoded here, once, before the clock runs: greetings, subscriptions and
the one message that is then repeated. What runs per message is in ``perf._hot_client``,
``perf._hot_queue`` and ``perf._hot_amqp10``; this module is their facade and picks the compiled or the plain form (``FLUXMQ_PURE=1``
asks for the plain one). AMQP and JetStream have modules of their own.

Sources: MQTT 3.1.1 and 5.0 section 3; NATS client protocol.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

INNER_LOOP = ("perf._hot_client", "perf._hot_queue", "perf._hot_amqp10")
"""Compiled all or none: each extends classes of the ones before, whose fields are C's when compiled."""


def _compiled(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and not str(spec.origin).endswith(".py")


COMPILED: bool = os.environ.get("FLUXMQ_PURE", "") != "1" and all(map(_compiled, INNER_LOOP))
"""True when the inner loop runs compiled; without it the generator saturates before a fast broker does."""


def _inner_loop(name: str) -> ModuleType:
    if COMPILED:
        return importlib.import_module(name)
    if name in sys.modules:
        return sys.modules[name]
    source = Path(__file__).with_name(f"{name.rpartition('.')[2]}.py")
    spec = importlib.util.spec_from_file_location(name, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from perf._hot_amqp10 import TransferReceiver, TransferSender
    from perf._hot_client import HEAD_BYTES, Histogram, NatsReceiver, Receiver, Sender
    from perf._hot_queue import AmqpReceiver, JetStreamReceiver, TagSender
else:
    _hot = _inner_loop("perf._hot_client")
    HEAD_BYTES = _hot.HEAD_BYTES
    Histogram = _hot.Histogram
    NatsReceiver = _hot.NatsReceiver
    Receiver = _hot.Receiver
    Sender = _hot.Sender
    _hot_queue = _inner_loop("perf._hot_queue")
    AmqpReceiver = _hot_queue.AmqpReceiver
    JetStreamReceiver = _hot_queue.JetStreamReceiver
    TagSender = _hot_queue.TagSender
    _hot_amqp10 = _inner_loop("perf._hot_amqp10")
    TransferReceiver = _hot_amqp10.TransferReceiver
    TransferSender = _hot_amqp10.TransferSender

__all__ = [
    "COMPILED",
    "HEAD_BYTES",
    "AmqpReceiver",
    "Histogram",
    "JetStreamReceiver",
    "NatsReceiver",
    "Receiver",
    "Sender",
    "TagSender",
    "TransferReceiver",
    "TransferSender",
]

FILLER = b"The quick brown fox jumps over the lazy dog. "
"""Content of payloads."""


def variable_integer(value: int) -> bytes:
    """MQTT's variable byte integer; ``ValueError`` beyond 268 435 455."""
    if not 0 <= value <= 268_435_455:
        raise ValueError(f"{value} does not fit a variable byte integer")
    encoded = bytearray()
    while True:
        value, low = divmod(value, 128)
        encoded.append(low | 0x80 if value else low)
        if not value:
            return bytes(encoded)


def text(value: str) -> bytes:
    """A length-prefixed UTF-8 string."""
    encoded = value.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def packet(first_byte: int, body: bytes) -> bytes:
    """A whole MQTT packet."""
    return bytes([first_byte]) + variable_integer(len(body)) + body


def connect(client_id: str, version: int, keep_alive_seconds: int = 0) -> bytes:
    """CONNECT of a clean session without credentials. MQTT 5 asks for the largest receive maximum."""
    body = text("MQTT") + bytes([version, 0x02]) + keep_alive_seconds.to_bytes(2, "big")
    if version == 5:
        receive_maximum = b"\x21\xff\xff"
        body += variable_integer(len(receive_maximum)) + receive_maximum
    return packet(0x10, body + text(client_id))


def user_property(name: str, value: str) -> bytes:
    """A user property of MQTT 5."""
    return b"\x26" + text(name) + text(value)


def subscribe(topic_filter: str, qos: int, version: int, properties: bytes = b"") -> bytes:
    """SUBSCRIBE to one filter, packet identifier 1; ``properties`` are those of MQTT 5, encoded."""
    if version == 5:
        properties = variable_integer(len(properties)) + properties
    return packet(0x82, b"\x00\x01" + properties + text(topic_filter) + bytes([qos]))


def disconnect() -> bytes:
    """DISCONNECT, the same bytes in both versions."""
    return b"\xe0\x00"


def payload(size: int) -> bytes:
    """``size`` bytes, the first 16 of them 0 until a ``Sender`` stamps them."""
    if size < HEAD_BYTES:
        raise ValueError(f"a payload is at least {HEAD_BYTES} bytes")
    repeated = FILLER * (size // len(FILLER) + 1)
    return bytes(HEAD_BYTES) + repeated[: size - HEAD_BYTES]


def publish_template(topic: str, size: int, qos: int, version: int) -> tuple[bytes, int, int]:
    """One PUBLISH: its bytes, the offset of the payload and that of the packet identifier (0 at QoS 0)."""
    front = text(topic) + (b"\x00\x00" if qos else b"") + (b"\x00" if version == 5 else b"")
    whole = packet(0x30 | qos << 1, front + payload(size))
    payload_at = len(whole) - size
    pid_at = payload_at - 2 - (1 if version == 5 else 0) if qos else 0
    return whole, payload_at, pid_at


def nats_connect() -> bytes:
    """CONNECT without acknowledgements."""
    options = {"verbose": False, "pedantic": False, "echo": True, "lang": "python", "version": "1"}
    return b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n"


def nats_subscribe(subject: str) -> bytes:
    """SUB with identifier 1, then PING, whose PONG says that the subscription stands."""
    return f"SUB {subject} 1\r\nPING\r\n".encode()


def nats_template(subject: str, size: int) -> tuple[bytes, int, int]:
    """One PUB: its bytes, the offset of the payload, and 0 (there are no packet identifiers)."""
    front = f"PUB {subject} {size}\r\n".encode()
    return front + payload(size) + b"\r\n", len(front), 0
