"""An MQTT client for tests: it sends what it is told, right or wrong, and checks what comes back.

Responsible for one connection: bytes out, packets in with deadlines, the acknowledgement handshakes
when a test does not care for them, and the rules that span packets (the sizes, aliases and windows
this client announced). It sleeps nowhere: a thing that should happen is awaited with a deadline, a
thing that should not is excluded by a barrier (PINGREQ, or a later message on the same path).
"""

from __future__ import annotations

import os
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable
from socket import IPPROTO_TCP, TCP_NODELAY, create_connection
from typing import Any, Protocol, Self

from tests.conformance import wire
from tests.conformance.received import NonconformingError, Packet, decode
from tests.conformance.wire import Filter, Properties, Will

# Seconds. Generous: it is spent only by a test that fails.
DEADLINE = float(os.environ.get("FLUXMQ_TEST_DEADLINE", "15"))


class Stream(Protocol):
    """The part of a socket that a client uses; `websocket` has another one."""

    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def settimeout(self, seconds: float | None, /) -> None: ...
    def close(self) -> None: ...


def tcp(host: str, port: int, context: ssl.SSLContext | None = None) -> Stream:
    """A TCP connection, with TLS when a context is given."""
    plain = create_connection((host, port), timeout=DEADLINE)
    plain.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
    try:
        return plain if context is None else context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


class Client:
    """One connection in one protocol version."""

    def __init__(self, stream: Stream, version: int) -> None:
        self.stream = stream
        self.version = version
        self.client_id = ""
        self.closed = False
        self.present = False
        """Session Present flag of the last CONNACK."""
        self._bytes = bytearray()
        self._packets: deque[Packet] = deque()
        self._next_id = 0
        # What this client announced in CONNECT; `_check` holds the server to it.
        self.maximum_packet_size = 0
        self.topic_alias_maximum = 0
        self.problem_information = True
        self._aliases: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    # --- bytes and packets --------------------------------------------------------------------

    def send(self, *packets: bytes) -> None:
        """Send packets in one write; a connection that the server has closed is no error here."""
        try:
            self.stream.sendall(b"".join(packets))
        except (BrokenPipeError, ConnectionResetError):
            self.closed = True

    def drop(self) -> None:
        """Close the network connection without a DISCONNECT."""
        self.closed = True
        self.stream.close()

    def next(self, within: float = DEADLINE) -> Packet:
        """The next packet; fails at the deadline and when the server closes instead."""
        if self._packets:
            return self._packets.popleft()
        packet = self._read(time.monotonic() + within)
        if packet is None:
            raise AssertionError("the server closed the connection where a packet was expected")
        return packet

    def expect(self, kind: int, within: float = DEADLINE) -> Packet:
        """The next packet, which must be of this kind."""
        packet = self.next(within)
        assert packet.kind == kind, f"expected {wire.NAMES[kind]}, received {packet}"
        return packet

    def take(self, kind: int, packet_id: int = 0) -> Packet:
        """The next packet of this kind (and identifier), leaving others in front of it waiting."""
        passed: list[Packet] = []
        while True:
            packet = self.next()
            if packet.kind == kind and packet_id in (0, packet.packet_id):
                self._packets.extendleft(reversed(passed))
                return packet
            passed.append(packet)

    def ping(self) -> list[Packet]:
        """A PINGREQ and its PINGRESP: everything the server sent before the answer is returned."""
        self.send(wire.pingreq())
        before: list[Packet] = []
        while (packet := self.next()).kind != wire.PINGRESP:
            before.append(packet)
        return before

    def quiet(self, seconds: float) -> None:
        """Let time pass, for behaviour that is about time; nothing may arrive meanwhile."""
        try:
            packet = self._packets[0] if self._packets else self._read(time.monotonic() + seconds)
        except TimeoutError:
            return
        raise AssertionError(f"received {packet or 'the end of the connection'} in silence")

    def ended(self, within: float) -> bool:
        """Whether the server closes the connection in this time, whatever it sends before."""
        self._packets.clear()
        end = time.monotonic() + within
        try:
            while self._read(end) is not None:
                pass
        except TimeoutError:
            return False
        return True

    def expect_closed(self, within: float = DEADLINE) -> None:
        """The server closes the connection, sending nothing more."""
        packet = self._packets[0] if self._packets else self._read(time.monotonic() + within)
        assert packet is None, f"expected the connection to close, received {packet}"

    def expect_error(self, *reasons: int, within: float = DEADLINE) -> None:
        """The server ends the connection for an error of this client.

        In 5.0 it says so with a DISCONNECT carrying one of `reasons` (4.13.2); 3.1.1 has none.
        Packets that were under way before are passed over.
        """
        said: int | None = None
        end = time.monotonic() + within
        while (packet := self._packets.popleft() if self._packets else self._read(end)) is not None:
            if packet.kind == wire.DISCONNECT:
                said = packet.reason
                self.expect_closed(within)
                break
        if self.version == wire.V5:
            assert said is not None, "closed without a DISCONNECT"
            expected = " or ".join(f"0x{reason:02X}" for reason in reasons)
            assert said in reasons, f"DISCONNECT 0x{said:02X}, expected {expected}"

    def _read(self, end: float) -> Packet | None:
        """The next packet off the connection, None when it is closed, TimeoutError at `end`."""
        while True:
            packet = self._parse()
            if packet is not None:
                return packet
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError("nothing received before the deadline")
            self.stream.settimeout(left)
            try:
                data = self.stream.recv(65536)
            except (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError):
                data = b""
            if not data:
                self.closed = True
                if self._bytes:
                    raise NonconformingError(f"closed inside a packet: {bytes(self._bytes)!r}")
                return None
            self._bytes += data

    def _parse(self) -> Packet | None:
        length = 0
        for position in range(1, len(self._bytes)):
            byte = self._bytes[position]
            length |= (byte & 0x7F) << 7 * (position - 1)
            if byte < 0x80:
                break
        else:
            return None
        size = position + 1 + length
        if len(self._bytes) < size:
            return None
        if position > 1 and not byte:
            raise NonconformingError("Remaining Length longer than needed [MQTT-1.5.5-1]")
        body = bytes(self._bytes[position + 1 : size])
        packet = decode(self.version, self._bytes[0], body, size)
        del self._bytes[:size]
        self._check(packet)
        return packet

    def _check(self, packet: Packet) -> None:
        """Hold the server to what this client said in CONNECT (5.0)."""
        if self.maximum_packet_size and packet.size > self.maximum_packet_size:
            raise NonconformingError(f"{packet} exceeds Maximum Packet Size [MQTT-3.1.2-24]")
        explained = packet.all(wire.REASON_STRING) or packet.all(wire.USER_PROPERTY)
        free = (wire.PUBLISH, wire.CONNACK, wire.DISCONNECT)
        if explained and not self.problem_information and packet.kind not in free:
            raise NonconformingError(f"{packet} though not requested [MQTT-3.1.2-29]")
        alias = packet.property(wire.TOPIC_ALIAS)
        if alias is not None:
            if not 0 < alias <= self.topic_alias_maximum:
                raise NonconformingError(f"alias {alias} [MQTT-3.1.2-26] [MQTT-3.1.2-27]")
            packet.topic = packet.topic or self._aliases.get(alias, "")
            self._aliases[alias] = packet.topic
        if packet.kind == wire.PUBLISH and not packet.topic:
            raise NonconformingError(f"{packet} without a topic [MQTT-4.7.3-1]")

    # --- conversations ------------------------------------------------------------------------

    def connect(self, client_id: str = "", **fields: Any) -> Packet:
        """Send a CONNECT (the fields of `wire.connect`) and return the CONNACK."""
        announced: dict[int, Any] = dict(fields.get("props", ()))
        self.client_id = client_id
        self.maximum_packet_size = announced.get(wire.MAXIMUM_PACKET_SIZE, 0)
        self.topic_alias_maximum = announced.get(wire.TOPIC_ALIAS_MAXIMUM, 0)
        self.problem_information = bool(announced.get(wire.REQUEST_PROBLEM_INFORMATION, 1))
        self.send(wire.connect(self.version, client_id, **fields))
        answer = self.expect(wire.CONNACK)
        self.present = answer.session_present
        return answer

    def packet_id(self) -> int:
        """A packet identifier this client has not used for long."""
        self._next_id = self._next_id % 0xFFFF + 1
        return self._next_id

    def publish(self, topic: str | bytes, payload: bytes = b"", **fields: Any) -> int:
        """Publish and see it through; the reason code of the PUBACK or PUBREC is returned."""
        qos = fields.get("qos", 0)
        packet_id = self.packet_id() if qos else 0
        fields.setdefault("packet_id", packet_id)
        packet_id = fields["packet_id"]
        self.send(wire.publish(self.version, topic, payload, **fields))
        if qos == 1:
            return self.take(wire.PUBACK, packet_id).reason
        if qos == 2:
            reason = self.take(wire.PUBREC, packet_id).reason
            if reason < 0x80:
                self.send(wire.acknowledge(wire.PUBREL, packet_id))
                assert self.take(wire.PUBCOMP, packet_id).reason == 0
            return reason
        return 0

    def subscribe(
        self, *filters: str | Filter, qos: int = 0, props: Properties = (), granted: bool = True
    ) -> Packet:
        """Subscribe and return the SUBACK; every filter must be granted unless told otherwise."""
        entries = [f if isinstance(f, Filter) else Filter(f, qos) for f in filters]
        packet_id = self.packet_id()
        self.send(wire.subscribe(self.version, packet_id, entries, props))
        suback = self.take(wire.SUBACK, packet_id)
        assert len(suback.reasons) == len(entries), f"{suback} for {len(entries)} filters"
        if granted:
            assert suback.reasons == [entry.qos for entry in entries], str(suback)
        return suback

    def unsubscribe(self, *filters: str, props: Properties = ()) -> Packet:
        """Unsubscribe and return the UNSUBACK."""
        packet_id = self.packet_id()
        self.send(wire.unsubscribe(self.version, packet_id, filters, props))
        return self.take(wire.UNSUBACK, packet_id)

    def receive(self, within: float = DEADLINE) -> Packet:
        """The next message, acknowledged to the end of its handshake."""
        message = self.next(within)
        assert message.kind == wire.PUBLISH, f"expected PUBLISH, received {message}"
        self.acknowledge(message)
        return message

    def acknowledge(self, message: Packet) -> None:
        """Acknowledge a message to the end of its handshake."""
        if message.qos == 1:
            self.send(wire.acknowledge(wire.PUBACK, message.packet_id))
        elif message.qos == 2:
            self.send(wire.acknowledge(wire.PUBREC, message.packet_id))
            self.take(wire.PUBREL, message.packet_id)
            self.send(wire.acknowledge(wire.PUBCOMP, message.packet_id))

    def receive_until(self, payload: bytes) -> list[Packet]:
        """The messages in front of the one with this payload, which is taken too."""
        before: list[Packet] = []
        while (message := self.receive()).payload != payload:
            before.append(message)
        return before

    def disconnect(self, reason: int | None = None, props: Properties | None = None) -> None:
        """Send a DISCONNECT and wait until the server has closed the connection."""
        self.send(wire.disconnect(reason, props))
        end = time.monotonic() + DEADLINE
        while self._read(end) is not None:
            pass
        self.drop()


def eventually(condition: Callable[[], Any], what: str, within: float = DEADLINE) -> Any:
    """Ask until the answer is true; it is returned. Each asking must take a round trip."""
    end = time.monotonic() + within
    while not (answer := condition()):
        assert time.monotonic() < end, f"not within {within} s: {what}"
    return answer


def payloads(messages: Iterable[Packet]) -> list[bytes]:
    """The payloads of some messages."""
    return [message.payload for message in messages]


__all__ = ["DEADLINE", "Client", "Filter", "Packet", "Will", "eventually", "payloads", "tcp"]
