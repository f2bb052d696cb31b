"""A broker for testing the load generator: one thread, exact counts, and faults on request.

It follows MQTT far enough for the generator (CONNECT, SUBSCRIBE to one filter, PUBLISH at every QoS in both
directions, DISCONNECT) and knows no sessions, retained messages or limits. Because it counts what it was
given and what it gave, a test can tell whether the generator's own figures are true.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from dataclasses import dataclass, field
from typing import Self

RECEIVE_BYTES = 1 << 18


@dataclass(eq=False)
class Client:
    """One connection of the tiny broker."""

    connection: socket.socket
    version: int = 4
    topic_filter: str = ""
    qos: int = 0
    next_pid: int = 1
    inbound: bytearray = field(default_factory=bytearray)
    outbound: bytearray = field(default_factory=bytearray)


@dataclass
class Faults:
    """What the broker does wrong: lose each n-th delivery, swallow everything after n publishes, hang up."""

    lose_every: int = 0
    silent_after: int = 0
    hang_up_after: int = 0
    swap_every: int = 0
    refuse_connect: bool = False


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a filter, with + at the last level at most, matches."""
    head, _, last = topic_filter.rpartition("/")
    return topic_filter == topic or (last == "+" and topic.rpartition("/")[0] == head)


class TinyBroker:
    """Use as a context manager; ``port`` is where it listens on loopback."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.published = self.delivered = self.lost = self.connected = 0
        self.clients: dict[socket.socket, Client] = {}
        self.selector = selectors.DefaultSelector()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.listener.setblocking(False)
        self.port: int = self.listener.getsockname()[1]
        self.stop_read, self.stop_write = socket.socketpair()
        self.held: tuple[Client, bytes] | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(self.stop_read, selectors.EVENT_READ)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_write.send(b"x")
        self.thread.join(10)
        for held in (*self.clients, self.listener, self.stop_read, self.stop_write):
            held.close()
        self.selector.close()

    def _run(self) -> None:
        while True:
            for key, mask in self.selector.select(1.0):
                if key.fileobj is self.stop_read:
                    return
                if key.fileobj is self.listener:
                    self._accept()
                    continue
                assert isinstance(key.fileobj, socket.socket)
                client = self.clients.get(key.fileobj)
                if client is None:
                    continue
                if mask & selectors.EVENT_WRITE:
                    self._flush(client)
                if mask & selectors.EVENT_READ:
                    self._read(client)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self.listener.accept()
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.clients[connection] = Client(connection)
                self.selector.register(connection, selectors.EVENT_READ)
                self.connected += 1

    def _drop(self, client: Client) -> None:
        if self.clients.pop(client.connection, None) is not None:
            self.selector.unregister(client.connection)
            client.connection.close()

    def _read(self, client: Client) -> None:
        try:
            received = client.connection.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._drop(client)
            return
        client.inbound += received
        at = 0
        data = client.inbound
        while len(data) - at >= 2:
            length, header, shift = data[at + 1] & 0x7F, 2, 7
            while data[at + header - 1] & 0x80 and at + header < len(data):
                length |= (data[at + header] & 0x7F) << shift
                header, shift = header + 1, shift + 7
            if at + header + length > len(data):
                break
            self._packet(client, data[at], bytes(data[at + header : at + header + length]))
            if client.connection not in self.clients:
                return
            at += header + length
        del data[:at]
        for receiver in list(self.clients.values()):
            if receiver.outbound:
                self._flush(receiver)

    def _packet(self, client: Client, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == 1:
            client.version = body[6]
            code = 0x87 if self.faults.refuse_connect else 0
            answer = bytes([0, code]) + (b"\x03\x21\x00\x64" if client.version == 5 else b"")
            client.outbound += bytes([0x20, len(answer)]) + answer
        elif kind == 8:
            at = 2 + (1 + body[2] if client.version == 5 else 0)
            size = int.from_bytes(body[at : at + 2], "big")
            client.topic_filter = body[at + 2 : at + 2 + size].decode()
            client.qos = body[at + 2 + size]
            answer = body[:2] + (b"\x00" if client.version == 5 else b"") + bytes([client.qos])
            client.outbound += bytes([0x90, len(answer)]) + answer
        elif kind == 3:
            self._publish(client, first, body)
        elif kind == 5:
            client.outbound += b"\x62\x02" + body[:2]
        elif kind == 6:
            client.outbound += b"\x70\x02" + body[:2]
        elif kind == 14:
            self._drop(client)

    def _publish(self, client: Client, first: int, body: bytes) -> None:
        self.published += 1
        if self.faults.silent_after and self.published > self.faults.silent_after:
            return
        if self.faults.hang_up_after and self.published > self.faults.hang_up_after:
            self._drop(client)
            return
        qos = first >> 1 & 3
        size = int.from_bytes(body[:2], "big")
        at = 2 + size
        topic = body[2:at].decode()
        if qos:
            client.outbound += bytes([0x40 if qos == 1 else 0x50, 2]) + body[at : at + 2]
            at += 2
        payload = body[at + (1 if client.version == 5 else 0) :]
        for receiver in self.clients.values():
            if receiver.topic_filter and matches(receiver.topic_filter, topic):
                self._deliver(receiver, topic, payload, min(qos, receiver.qos))

    def _deliver(self, receiver: Client, topic: str, payload: bytes, qos: int) -> None:
        self.delivered += 1
        if self.faults.lose_every and self.delivered % self.faults.lose_every == 0:
            self.lost += 1
            return
        encoded = topic.encode()
        body = len(encoded).to_bytes(2, "big") + encoded
        if qos:
            body += receiver.next_pid.to_bytes(2, "big")
            receiver.next_pid = receiver.next_pid % 65_535 + 1
        body += (b"\x00" if receiver.version == 5 else b"") + payload
        front, rest = bytearray([0x30 | qos << 1]), len(body)
        while rest > 127:
            front.append(rest & 0x7F | 0x80)
            rest >>= 7
        whole = bytes(front) + bytes([rest]) + body
        if self.held is not None and self.held[0] is receiver:
            whole += self.held[1]
            self.held = None
        elif self.faults.swap_every and self.delivered % self.faults.swap_every == 0:
            self.held = (receiver, whole)
            return
        receiver.outbound += whole

    def _flush(self, client: Client) -> None:
        try:
            taken = client.connection.send(client.outbound)
        except BlockingIOError:
            taken = 0
        except OSError:
            self._drop(client)
            return
        del client.outbound[:taken]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.outbound else 0)
        self.selector.modify(client.connection, wanted)
