"""One stream of HTTP/2: its windows, and the messages of gRPC in its data.

A message is one byte that says whether it is compressed (never, here), its length in four bytes,
and its content (gRPC's PROTOCOL-HTTP2, "Length-Prefixed-Message"). Messages and frames of HTTP/2
begin and end independently.
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
    """Kinds of events."""

    HEADERS = 0
    """Headers or trailers have come: the fields."""
    MESSAGE = 1
    """A message has come whole: its bytes."""
    ENDED = 2
    """The other side sends nothing more on a stream."""
    BROKEN = 3
    """A stream is gone, in both directions: one field with the reason."""
    WRITABLE = 4
    """Everything that waited on a stream has been sent."""
    GOODBYE = 5
    """The other side ends the connection after the open streams: one field with the reason."""


Event = tuple[EventKind, "Http2Stream | None", Any]


class Http2Stream:
    """A stream. ``waiting``: data beyond the windows. ``ended_here``, ``ended_there``: nothing more
    is sent, or comes; ``ending``: except for waiting data. ``answered``: further headers are
    trailers, which end it. ``left``: bytes that may come; ``window``: that may be sent. ``wide``:
    its messages are taken at once. ``owner``: the user's object.
    """

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
        """Return the completed messages. Raises Http2Error if one is compressed or too long."""
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
        """Read the available part of a message's head and return its end."""
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
            raise Http2Error(
                PROTOCOL_ERROR, "a compressed message, although compression was not negotiated"
            )
        length = int.from_bytes(head[1:], "big")
        if length > self.message_max:
            raise Http2Error(
                ENHANCE_YOUR_CALM, f"a message of {length} bytes, above {self.message_max}"
            )
        self._missing = length
        return at
