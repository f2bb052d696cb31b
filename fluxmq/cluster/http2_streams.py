"""One stream of HTTP/2: its windows, and the messages of gRPC in its data.

A message is one byte that says whether it is compressed (never, here), its length in four bytes, and itself (gRPC's
PROTOCOL-HTTP2, "Length-Prefixed-Message"). Messages and frames of HTTP/2 begin and end wherever they like.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Any

from fluxmq.cluster.http2_frames import (
    ENHANCE_YOUR_CALM,
    MESSAGE_HEAD,
    PROTOCOL_ERROR,
    Http2Error,
)


class EventKind(IntEnum):
    """What has happened."""

    HEADERS = 0
    """Headers or trailers have come: the fields."""
    MESSAGE = 1
    """A message has come whole: its bytes."""
    ENDED = 2
    """The other side sends nothing more on a stream."""
    BROKEN = 3
    """A stream is no more, in either direction: one field with the reason."""
    WRITABLE = 4
    """What waited on a stream has been sent."""
    GOODBYE = 5
    """The other side ends the connection when the streams that are open have ended: one field with the reason."""


Event = tuple[EventKind, "Stream | None", Any]


class Stream:
    """A stream. ``waiting``: what no window is open for. ``ended_here``, ``ended_there``: nothing more is sent, or comes; ``ending``: but for what waits.
    ``answered``: what comes now in headers are trailers, which end it. ``left``: bytes that may come; ``window``: that may be sent. ``wide``: its messages are taken at once. ``owner``: for
    whoever has it."""

    __slots__ = (
        "_head",
        "_missing",
        "_pieces",
        "answered",
        "ended_here",
        "ended_there",
        "ending",
        "left",
        "message_max",
        "number",
        "owner",
        "unread",
        "waiting",
        "waiting_at",
        "wide",
        "window",
    )

    def __init__(self, number: int, window: int, left: int, message_max: int) -> None:
        self.number = number
        self.window = window
        self.left = left
        self.message_max = message_max
        self.owner: Any = None
        self.wide = False
        self.answered = False
        self.unread = 0
        self.waiting: deque[bytes] = deque()
        self.waiting_at = 0
        self.ended_here = False
        self.ending = False
        self.ended_there = False
        self._head = b""
        self._missing = -1
        self._pieces: list[bytes] = []

    def take(self, data: bytes, at: int, end: int) -> list[bytes]:
        """The messages that data complete. Raises Http2Error when one is compressed, or longer than is taken."""
        messages: list[bytes] = []
        while at < end:
            if self._missing < 0:
                at = self._begin(data, at, end)
                if self._missing < 0:
                    break
                if not self._missing:
                    self._missing = -1
                    messages.append(b"")
                    continue
            stop = at + self._missing
            if stop <= end and not self._pieces:  # as nearly always
                messages.append(data[at:stop])
                self._missing = -1
                at = stop
                continue
            stop = min(stop, end)
            self._pieces.append(data[at:stop])
            self._missing -= stop - at
            at = stop
            if not self._missing:
                messages.append(b"".join(self._pieces))
                self._pieces.clear()
                self._missing = -1
        return messages

    def _begin(self, data: bytes, at: int, end: int) -> int:
        """Read a message's head as far as it is there; where it ends."""
        if not self._head and end - at >= MESSAGE_HEAD:
            head = data[at : at + MESSAGE_HEAD]
            at += MESSAGE_HEAD
        else:
            more = min(MESSAGE_HEAD - len(self._head), end - at)
            head = self._head + data[at : at + more]
            at += more
            if len(head) < MESSAGE_HEAD:
                self._head = head
                return at
            self._head = b""
        if head[0]:
            raise Http2Error(PROTOCOL_ERROR, "a compressed message, which was not agreed on")
        length = int.from_bytes(head[1:], "big")
        if length > self.message_max:
            raise Http2Error(
                ENHANCE_YOUR_CALM, f"a message of {length} bytes, above {self.message_max}"
            )
        self._missing = length
        return at
