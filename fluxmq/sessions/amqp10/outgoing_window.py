"""Transfers of a session to its client: their numbers, the client's window, and those that wait for it.

Tags and delivery ids of deliveries are the numbers of a `ChannelLedger`, cut to 32 bits.

Source: OASIS AMQP 1.0 part 2, section 2.5.6 (session flow control).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from fluxmq.protocols.amqp091.ledger import ChannelLedger
from fluxmq.protocols.amqp10.performatives import FlowFrame
from fluxmq.sessions.amqp10.client import Amqp10Client
from fluxmq.sessions.amqp10.serials import MASK, widened

WRITTEN_MAX: Final = 256
"""Messages written at a time, so that room in the connection is looked at again."""


class OutgoingWindow:
    """The client's window of one session.

    ``sent``: transfers sent to it, of which it takes those below ``end``, both unbounded. ``frames``:
    those that wait for the window, of a message of the link ``begun``. ``ledger``: deliveries that are
    not settled.
    """

    __slots__ = ("_client", "begun", "end", "frames", "ledger", "sent")

    def __init__(self, client: Amqp10Client, channel: int, window: int) -> None:
        self._client = client
        self.ledger = ChannelLedger(channel)
        self.sent = 0
        self.end = window
        self.frames: deque[bytes] = deque()
        self.begun: object | None = None

    def move(self, flow: FlowFrame) -> None:
        """Take the client's window from a flow, and send what waits for it."""
        self.end = widened(flow.next_incoming_id or 0, self.sent) + flow.incoming_window
        while self.frames and self.sent < self.end:
            self._client.connection.append(self.frames.popleft())
            self.sent += 1

    def room(self) -> int:
        """Return how many messages may be written now; after 0 the links are pumped later."""
        if self.frames or self.sent >= self.end:
            return 0  # the client's next flow says more
        connection = self._client.connection
        if connection.room() <= 0:
            connection.feeding = True
            return 0
        return min(self.end - self.sent, WRITTEN_MAX)

    def give(self, link: object | None, count: int, offset: int) -> int:
        """Return the first of ``count`` delivery numbers, which the link's messages get."""
        return self.ledger.given(link, count, offset)

    @property
    def next_delivery(self) -> int:
        """The serial number that the next delivery gets."""
        return self.ledger.next_tag & MASK

    def send_whole(self, data: bytes, messages: int, redelivered: bool) -> None:
        """Send messages of one frame each, no more than there is room for."""
        self.sent += messages
        connection = self._client.connection
        connection.append(data)
        connection.tally.delivered(messages, len(data), redelivered)

    def send(self, link: object, frames: list[bytes], messages: int, redelivered: bool) -> None:
        """Send frames of a link's messages as far as the window goes; the others wait for it."""
        room = self.end - self.sent
        connection = self._client.connection
        data = b"".join(frames[:room] if room < len(frames) else frames)
        self.sent += min(room, len(frames))
        if room < len(frames):
            self.frames.extend(frames[room:])
            self.begun = link
        connection.append(data)
        connection.tally.delivered(messages, len(data), redelivered)

    def forget(self, link: object) -> None:
        """Drop what waits of a link that ends; what it has not settled is its queue's."""
        if self.begun is link:
            self.frames.clear()
            self.begun = None
        self.ledger.forget(link)
