"""Bytes of `fluxmqctl bench`: opening connections, batches of equal messages, and counting what comes.

Every message of a run has the same length, and its payload begins with the time at which it was sent. So
a batch is an array with a row for each message, and what arrives is counted, read and acknowledged by
columns, without an object per message. Times are nanoseconds, and arguments.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fluxmq.model.errors import FluxmqError
from fluxmq.protocols.amqp091 import method_codec
from fluxmq.protocols.amqp091.constants import FRAME_END, FRAME_OVERHEAD, PROTOCOL_HEADER
from fluxmq.protocols.amqp091.content import BasicProperties, encode_properties, frames_of_content
from fluxmq.protocols.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from fluxmq.protocols.mqtt.codec import encode
from fluxmq.protocols.mqtt.packets import Connect, Publish, Subscribe, Subscription

STAMP_BYTES: Final = 8
SIZE_MAX: Final = 65_536
"""Largest payload: a message then fits into one frame of AMQP."""
BATCH: Final = 256
"""Messages of a batch, which is written at once."""
MQTT_VERSION: Final = 4
"""3.1.1: no properties, so that all packets are equally long."""
PACKET_IDS: Final = 65_535
CHANNEL: Final = 1
PREFETCH: Final = 2000
TAG: Final = "b"
OPEN_SECONDS: Final = 10.0
_FRAME_MAX: Final = 131_072
_PERSISTENT: Final = 2
_ACK_BYTES: Final = 21
"""Bytes of a confirm: basic.ack with its frame."""
_TAG_AT: Final = 11
"""Offset of the delivery tag in basic.ack's frame."""

Bytes = NDArray[np.uint8]


class BenchError(FluxmqError):
    """The broker refused, closed a connection, or sent something else than was expected."""


class ListenerLogin(NamedTuple):
    """Address of a listener, and the user; an empty name for none."""

    host: str
    port: int
    user: str = ""
    password: str = ""


class Arrivals(NamedTuple):
    """Messages that came: the times at which each was sent, and the bytes that acknowledge them."""

    stamps: NDArray[np.int64]
    answer: bytes


class Dialect(Protocol):
    """One way to publish and consume. `window`: messages that may be unconfirmed; 0: there are no
    confirms."""

    window: int

    def publisher(self) -> socket.socket:
        """Return a connection that may publish. Raises BenchError or OSError."""
        ...

    def subscriber(self) -> socket.socket:
        """Return a connection that receives. Raises BenchError or OSError."""
        ...

    def batch(self, count: int, now: int) -> bytes:
        """Return the next messages, sent at a time."""
        ...

    def arrived(self, data: bytearray) -> Arrivals:
        """Take whole messages out of received bytes. Raises BenchError."""
        ...

    def confirmed(self, data: bytearray) -> int:
        """Take confirms out of received bytes; return how many messages they confirm. Raises
        BenchError."""
        ...

    def close(self, publisher: socket.socket) -> None:
        """Remove what the run has left in the broker."""
        ...


def _table(message: bytes, payload_at: int) -> tuple[Bytes, NDArray[Any]]:
    """Return a batch of equal messages, and its column of stamps."""
    rows = np.tile(np.frombuffer(message, np.uint8), (BATCH, 1))
    return rows, rows[:, payload_at : payload_at + STAMP_BYTES]


def _stamp(column: NDArray[Any], now: int) -> None:
    column[:] = np.frombuffer(struct.pack("<q", now), np.uint8)


def _rows(data: bytearray, length: int) -> Bytes:
    """Take the whole messages out of received bytes."""
    count = len(data) // length
    rows = np.frombuffer(bytes(data[: count * length]), np.uint8).reshape(count, length)
    del data[: count * length]
    return rows


def _stamps(rows: Bytes, at: int) -> NDArray[np.int64]:
    return np.ascontiguousarray(rows[:, at : at + STAMP_BYTES]).view("<i8").reshape(-1)


def _read(connection: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        data = connection.recv(count - len(found))
        if not data:
            raise BenchError("the broker closed the connection; its log says why")
        found += data
    return bytes(found)


class MqttTopic:
    """MQTT with QoS 0 or 1: a topic of its own, and one subscriber."""

    def __init__(self, login: ListenerLogin, topic: str, size: int, qos: int, window: int) -> None:
        self._login = login
        self._topic = topic.encode()
        self._qos = qos
        self.window = window if qos else 0
        message = encode(
            Publish(self._topic, bytes(size), qos, packet_id=1 if qos else 0), MQTT_VERSION
        )
        self._length = len(message)
        self._payload_at = self._length - size
        self._batch, self._stamp = _table(message, self._payload_at)
        self._ids = np.arange(PACKET_IDS, PACKET_IDS + BATCH) % PACKET_IDS

    def publisher(self) -> socket.socket:
        """Return a connection that may publish. Raises BenchError or OSError."""
        return self._open("pub")

    def subscriber(self) -> socket.socket:
        """Return a connection with the subscription. Raises BenchError or OSError."""
        connection = self._open("sub")
        wanted = Subscribe(1, [Subscription(self._topic, self._qos)])
        connection.sendall(encode(wanted, MQTT_VERSION))
        if _read(connection, 5)[4] != self._qos:
            raise BenchError(f"the subscription to {self._topic.decode()} was refused")
        return connection

    def _open(self, name: str) -> socket.socket:
        login = self._login
        connection = socket.create_connection((login.host, login.port), OPEN_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        user = login.user or None
        secret = login.password.encode() if user else None
        hello = Connect(
            f"{self._topic.decode()}/{name}", username=user, password=secret, version=MQTT_VERSION
        )
        connection.sendall(encode(hello, MQTT_VERSION))
        reason = _read(connection, 4)[3]
        if reason:
            raise BenchError(
                f"MQTT login refused ({reason}): give --login NAME and its password in FLUXMQ_PASSWORD"
            )
        return connection

    def batch(self, count: int, now: int) -> bytes:
        """Return the next messages."""
        _stamp(self._stamp, now)
        if self._qos:
            at = self._payload_at - 2
            self._batch[:, at] = (self._ids + 1) >> 8
            self._batch[:, at + 1] = (self._ids + 1) & 0xFF
            self._ids = (self._ids + count) % PACKET_IDS
        return self._batch[:count].tobytes()

    def arrived(self, data: bytearray) -> Arrivals:
        """Take whole messages out of received bytes; acknowledge those of QoS 1."""
        rows = _rows(data, self._length)
        if len(rows) and not (rows[:, 0] >> 4 == 3).all():
            raise BenchError("something else than messages arrived")
        answer = b""
        if self._qos:
            acks = np.empty((len(rows), 4), np.uint8)
            acks[:, 0], acks[:, 1] = 0x40, 2
            acks[:, 2:] = rows[:, self._payload_at - 2 : self._payload_at]
            answer = acks.tobytes()
        return Arrivals(_stamps(rows, self._payload_at), answer)

    def confirmed(self, data: bytearray) -> int:
        """Take PUBACKs out of received bytes."""
        rows = _rows(data, 4)
        if len(rows) and not (rows[:, 0] == 0x40).all():
            raise BenchError("something else than PUBACK arrived")
        return len(rows)

    def close(self, publisher: socket.socket) -> None:
        """Do nothing: clean sessions leave nothing behind."""


_Answer = TypeVar("_Answer")


class AmqpQueue:
    """AMQP 0.9.1: a durable queue, persistent messages, publisher confirms, and one consumer."""

    def __init__(self, login: ListenerLogin, queue: str, size: int, window: int) -> None:
        self._login = login
        self._queue = queue
        self.window = window
        properties = encode_properties(BasicProperties(delivery_mode=_PERSISTENT))
        frames = [
            method_codec.frame(CHANNEL, BasicPublish("", queue)),
            *frames_of_content(CHANNEL, properties, bytes(size), _FRAME_MAX),
        ]
        message = b"".join(frames)
        self._size = size
        self._batch, self._stamp = _table(message, len(message) - size - 1)
        self._length = 0
        """Bytes of a delivery, known from the first."""
        self._confirmed = 0

    def publisher(self) -> socket.socket:
        """Return a connection whose channel has confirms; declare the queue. Raises BenchError or
        OSError."""
        connection = self._open()
        _call(connection, QueueDeclare(self._queue, durable=True), QueueDeclareOk)
        _call(connection, ConfirmSelect(), ConfirmSelectOk)
        return connection

    def subscriber(self) -> socket.socket:
        """Return a connection that consumes. Raises BenchError or OSError."""
        connection = self._open()
        _call(connection, BasicQos(0, PREFETCH), BasicQosOk)
        _call(connection, BasicConsume(self._queue, TAG), BasicConsumeOk)
        return connection

    def _open(self) -> socket.socket:
        login = self._login
        connection = socket.create_connection((login.host, login.port), OPEN_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(PROTOCOL_HEADER)
        _answer(connection, ConnectionStart)
        response = f"\0{login.user}\0{login.password}".encode()
        start = ConnectionStartOk({"product": "fluxmqctl bench"}, "PLAIN", response, "en_US")
        connection.sendall(method_codec.frame(0, start))
        tune = _answer(connection, ConnectionTune)
        frame_max = min(tune.frame_max or _FRAME_MAX, _FRAME_MAX)
        connection.sendall(
            method_codec.frame(0, ConnectionTuneOk(tune.channel_max, frame_max, heartbeat=0))
        )
        connection.sendall(method_codec.frame(0, ConnectionOpen("/")))
        _answer(connection, ConnectionOpenOk)
        _call(connection, ChannelOpen(), ChannelOpenOk)
        return connection

    def batch(self, count: int, now: int) -> bytes:
        """Return the next messages."""
        _stamp(self._stamp, now)
        return self._batch[:count].tobytes()

    def arrived(self, data: bytearray) -> Arrivals:
        """Take whole deliveries out of received bytes, and acknowledge them together."""
        if not self._length and len(data) > FRAME_OVERHEAD:
            self._length = _delivery_length(data, self._size)
        if not self._length:
            return Arrivals(np.empty(0, np.int64), b"")
        rows = _rows(data, self._length)
        if not len(rows):
            return Arrivals(np.empty(0, np.int64), b"")
        if not ((rows[:, 0] == 1) & (rows[:, -1] == FRAME_END)).all():
            raise BenchError("something else than deliveries arrived")
        at = _TAG_AT + 1 + len(TAG)
        (tag,) = struct.unpack(">Q", rows[-1, at : at + 8].tobytes())
        answer = method_codec.frame(CHANNEL, BasicAck(tag, multiple=True))
        return Arrivals(_stamps(rows, self._length - self._size - 1), answer)

    def confirmed(self, data: bytearray) -> int:
        """Take confirms out of received bytes; they come in the order of the messages."""
        rows = _rows(data, _ACK_BYTES)
        if not len(rows):
            return 0
        if not (rows[:, 7:11] == (0, 60, 0, 80)).all():
            raise BenchError("the broker refused a message")
        (tag,) = struct.unpack(">Q", rows[-1, _TAG_AT : _TAG_AT + 8].tobytes())
        new = max(0, tag - self._confirmed)
        self._confirmed += new
        return int(new)

    def close(self, publisher: socket.socket) -> None:
        """Delete the queue, over a connection of its own: confirms may still be on their way."""
        connection = self._open()
        with connection:
            _call(connection, QueueDelete(self._queue), QueueDeleteOk)


def _delivery_length(data: bytearray, size: int) -> int:
    """Return the bytes of a delivery's frames; 0 if its method and header are not there yet."""
    at = 0
    for _ in range(2):
        if len(data) < at + FRAME_OVERHEAD:
            return 0
        (length,) = struct.unpack_from(">I", data, at + 3)
        at += length + FRAME_OVERHEAD
    return at + size + FRAME_OVERHEAD


def _call(connection: socket.socket, method: Any, answer: type[_Answer]) -> _Answer:
    connection.sendall(method_codec.frame(CHANNEL, method))
    return _answer(connection, answer)


def _answer(connection: socket.socket, wanted: type[_Answer]) -> _Answer:
    """Return the next method. Raises BenchError when it is another."""
    head = _read(connection, FRAME_OVERHEAD - 1)
    (length,) = struct.unpack_from(">I", head, 3)
    method = method_codec.decode(_read(connection, length + 1)[:-1])
    if not isinstance(method, wanted):
        reason = getattr(method, "reply_text", type(method).__name__)
        raise BenchError(f"AMQP: {reason}")
    return method
