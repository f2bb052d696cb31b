"""Publisher confirms of one AMQP 0.9.1 channel: messages published, those that are safe, answers
due.

Runs of publishes are numbered as ranges, complete as ranges in any order, and are answered once per
tick: all completed numbers from the lowest unanswered one on by one frame for each outcome with
``multiple``, those after a gap by frames of their own, so that a slow queue does not delay the
answers of others.

Source: RabbitMQ's publisher confirms (confirm.select; basic.ack and basic.nack by the server).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import cython

REFUSED_MIN = 0x80
"""Lowest reason that means a refused message, as with MQTT's pending acks."""
ACK = 80
"""Method basic.ack."""
NACK = 120
"""Method basic.nack."""

_ANSWERED = 2
_FRAME = struct.Struct(">BHIHHQBB")


class ConfirmWindow:
    """Numbers publishes from 1 on. ``next``: the next number; ``unanswered``: publishes not yet
    confirmed to the client."""

    def __init__(self) -> None:
        self.next = 1
        self.unanswered = 0
        self._low = 1
        self._tiles: dict[int, tuple[int, int]] = {}
        self._fresh: list[int] = []

    def publish(self, count: cython.Py_ssize_t) -> cython.ulonglong:
        """Number ``count`` messages that are published now; return the first number."""
        first: cython.ulonglong = self.next
        if count < 1:
            raise ValueError("a publish of no message")
        self.next = first + count
        self.unanswered += count
        return first

    def done(
        self, first: cython.ulonglong, count: cython.Py_ssize_t, ok: cython.bint
    ) -> cython.int:
        """Complete ``count`` messages from number ``first`` on: safe, or refused.

        Raises ValueError for numbers that were not published or are already complete.
        """
        if count < 1 or first < self._low or first + count > self.next or first in self._tiles:
            raise ValueError("numbers that wait for no answer")
        self._tiles[first] = (first + count, 1 if ok else 0)
        self._fresh.append(first)
        return 0

    def answers(self, channel: cython.int) -> bytes:
        """Return the basic.ack and basic.nack frames that are due, for ``channel``; empty when none
        are."""
        low: cython.ulonglong = self._low
        tiles: dict[int, tuple[int, int]] = self._tiles
        frames: list[bytes] = []
        state: cython.int
        pending: cython.int = _ANSWERED
        waiting: cython.Py_ssize_t = 0
        last: cython.ulonglong = 0
        number: cython.ulonglong
        end: cython.ulonglong
        if not self._fresh:
            return b""
        fresh: list[int] = self._fresh
        self._fresh = []
        while True:
            tile = tiles.pop(low, None)
            if tile is None:
                break
            end, state = tile
            if state != _ANSWERED:
                if pending != state and waiting:
                    frames.append(_frame(channel, last, pending, waiting > 1))
                    waiting = 0
                pending = state
                last = end - 1
                waiting += end - low
                self.unanswered -= end - low
            low = end
        if waiting:
            frames.append(_frame(channel, last, pending, waiting > 1))
        self._low = low
        for number in fresh:
            if number < low:
                continue
            end, state = tiles[number]
            tiles[number] = (end, _ANSWERED)
            self.unanswered -= end - number
            frames.extend([_frame(channel, each, state, False) for each in range(number, end)])
        return b"".join(frames)


@cython.cfunc
def _frame(
    channel: cython.int, number: cython.ulonglong, state: cython.int, multiple: cython.bint
) -> bytes:
    """Encode one basic.ack or basic.nack."""
    return _FRAME.pack(
        1, channel, 13, 60, ACK if state else NACK, number, 1 if multiple else 0, 0xCE
    )


class Confirmation:
    """Counts the queues that a run of publishes awaits before it is confirmed; each holds it, like
    a pending ack of MQTT.

    ``count`` messages from number ``first`` of ``window`` on. Once all holders are done they are
    safe, unless one gave a reason of 0x80 or more; then ``mark`` is called without arguments, for
    the answers to be fetched.
    """

    def __init__(
        self,
        window: ConfirmWindow,
        first: cython.ulonglong,
        count: cython.Py_ssize_t,
        mark: Callable[[], object] | None = None,
    ) -> None:
        self.window = window
        self.first = first
        self.count = count
        self.mark = mark
        self.waiting = 0
        self.reason = 0

    def hold(self) -> Confirmation:
        """Add a holder that must call ``done``."""
        self.waiting += 1
        return self

    def done(self, reason: cython.int = 0) -> cython.int:
        """Note that one holder is done; the greatest reason decides."""
        self.waiting -= 1
        if reason > self.reason:
            self.reason = reason
        if self.waiting == 0:
            self.window.done(self.first, self.count, self.reason < REFUSED_MIN)
            if self.mark is not None:
                self.mark()
        return 0
