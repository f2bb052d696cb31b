"""One connection to a broker under test: frames out, events in, in the order in which they came.

Single-threaded and blocking, with a deadline on every wait. A content-carrying method becomes one event when its last
body frame is here. ``channel.close`` and ``connection.close`` are answered as the specification asks; everything else
is only written down.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

from tests.differential import wire

ANSWER_S = 5.0
FRAME_MAX = 131_072
RECEIVE_BYTES = 65_536
CARRYING = ("basic.deliver", "basic.return", "basic.get-ok")
HIDDEN = ("ticket", "reserved_1", "reserved_2")
ENDED = "connection ended"


def shown(value: Any) -> str:
    """A value in an outcome: JSON, keys sorted, times left out."""
    if isinstance(value, bool):
        return str(int(value))
    return json.dumps(timeless(value), sort_keys=True)


def timeless(value: Any) -> Any:
    """A header's value without what differs from run to run: the time of a death."""
    if isinstance(value, list):
        return [timeless(each) for each in value]
    if isinstance(value, dict):
        return {k: "*" if k == "time" else timeless(v) for k, v in value.items()}
    return value


@dataclass
class Event:
    """Something that came. ``properties`` and ``body`` are those of a content-carrying method."""

    channel: int
    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""

    def text(self) -> str:
        """The event as an outcome names it."""
        parts = [self.name]
        parts += [f"{k}={shown(v)}" for k, v in self.fields.items() if k not in HIDDEN]
        if self.name in CARRYING:
            parts.append(f"properties={shown(self.properties)}")
            body = self.body if len(self.body) <= 64 else b"%d bytes" % len(self.body)
            parts.append(f"body={shown(body.decode(errors='backslashreplace'))}")
        return wire.plain(" ".join(parts))


@dataclass
class _Content:
    event: Event
    left: int = -1


class Peer:
    """A connection. ``closed``: the broker or this side ended it. ``confirmed``: what became of publishes, by number."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=ANSWER_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = bytearray()
        self.inbox: list[Event] = []
        self.channels: set[int] = set()
        self.confirmed: dict[int, str] = {}
        self.closed = False
        self.frame_max = FRAME_MAX
        self._contents: dict[int, _Content] = {}

    def send(self, data: bytes) -> None:
        """Bytes to the broker; on a connection that ended they go nowhere."""
        try:
            self.socket.sendall(data)
        except OSError:
            self.closed = True

    def cut(self) -> None:
        """End the connection without a word."""
        self.closed = True
        self.socket.close()

    # --- events ------------------------------------------------------------------------------------------------

    def next_event(self, deadline: float) -> Event | None:
        """The next event; None when none came in time or the connection is over."""
        while True:
            while (frame := self._frame()) is not None:
                event = self._event(frame)
                if event is not None:
                    return event
            left = deadline - time.monotonic()
            if self.closed or left <= 0:
                return None
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(RECEIVE_BYTES)
            except TimeoutError:
                return None
            except OSError:
                data = b""
            if not data:
                self.closed = True
                if self.received.startswith(b"AMQP"):
                    return Event(0, f"protocol header {bytes(self.received).hex()}")
                return Event(0, ENDED)
            self.received += data

    def _frame(self) -> wire.Frame | None:
        if self.received.startswith(b"AMQP") or len(self.received) < 7:
            return None
        kind, channel, size = struct.unpack(">BHI", self.received[:7])
        if len(self.received) < size + 8:
            return None
        payload = bytes(self.received[7 : 7 + size])
        end = self.received[7 + size]
        del self.received[: size + 8]
        if end != wire.FRAME_END:
            raise ValueError(f"a frame of the broker ends with {end:#04x}")
        return wire.Frame(kind, channel, payload)

    def _event(self, frame: wire.Frame) -> Event | None:
        if frame.kind == wire.HEARTBEAT:
            return None
        if frame.kind == wire.METHOD:
            found = wire.read_method(frame.payload)
            event = Event(frame.channel, found.name, found.fields)
            if found.name in CARRYING:
                self._contents[frame.channel] = _Content(event)
                return None
            return self._closing(event)
        content = self._contents[frame.channel]
        if frame.kind == wire.HEADER:
            content.left, content.event.properties = wire.read_header(frame.payload)
        else:
            content.event.body += frame.payload
            content.left -= len(frame.payload)
        if content.left:
            return None
        del self._contents[frame.channel]
        return content.event

    def _closing(self, event: Event) -> Event:
        if event.name == "channel.close":
            self.channels.discard(event.channel)
            self._contents.pop(event.channel, None)
            self.send(wire.method(event.channel, "channel.close-ok"))
        elif event.name == "connection.close":
            self.send(wire.method(0, "connection.close-ok"))
            self.cut()
        return event

    def until(self, channel: int, names: tuple[str, ...], seconds: float = ANSWER_S) -> Event:
        """The next event of one of these names on a channel, or what ended channel or connection.

        Everything before it stays in the inbox.
        """
        deadline = time.monotonic() + seconds
        while (event := self.next_event(deadline)) is not None:
            ending = event.name in ("connection.close", ENDED) or event.name.startswith("protocol")
            ours = event.channel == channel
            if ending or (ours and (event.name in names or event.name == "channel.close")):
                return event
            self.inbox.append(event)
        return Event(channel, ENDED if self.closed else "no answer")

    def call(self, channel: int, name: str, fields: dict[str, Any]) -> Event:
        """A method and what answers it."""
        self.send(wire.method(channel, name, fields))
        answers = ("basic.get-ok", "basic.get-empty") if name == "basic.get" else (answer_of(name),)
        return self.until(channel, answers)

    def take(self, names: tuple[str, ...], count: int, seconds: float) -> list[Event]:
        """So many events of these names, from the inbox and then from the wire; fewer when the time is up."""
        found = [event for event in self.inbox if event.name in names][:count]
        self.inbox = [event for event in self.inbox if not any(event is each for each in found)]
        deadline = time.monotonic() + seconds
        while len(found) < count and (event := self.next_event(deadline)) is not None:
            if event.name in names:
                found.append(event)
            else:
                self.inbox.append(event)
        return found


def answer_of(name: str) -> str:
    """The method that answers this one; empty where none does."""
    answer = f"{name}-ok"
    return answer if answer in wire.BY_NAME else ""
