"""Answers to publishers that wait until the message is safe.

A publish of QoS 1 or 2 to a durable queue, or to a session that outlives its connection, may be
acknowledged only when the message is safe. Each receiver holds the run's ``PendingAck`` and calls
``done`` once for each hold. A connection's answers keep the order of its publishes [MQTT-4.6.0-2,
MQTT-4.6.0-3], so a ready answer waits behind one that is not; a connection without open pending
acks pays nothing.

A pending ack that ends with a reason of 0x80 or more is a refusal; the handler decides how to
answer its publisher.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import cython

from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.ports import FlowControl, MqttHandler
from fluxmq.protocols.mqtt.run import PublishRun, append_acknowledgements

if cython.compiled:
    from cython.cimports.fluxmq.protocols.connection import Connection
    from cython.cimports.fluxmq.protocols.mqtt.run import PublishRun, append_acknowledgements

PAUSED_ANSWERS: Final = 8
"""Not reading: the connection has its maximum number of unanswered runs."""
PENDING_ACKS_MAX: Final = 1024
"""Runs of one connection that may wait for their answer: 3.1.1 clients have no limit of their
own."""


class PendingAck:
    """One run's answer. ``waiting``: holds not done yet; ``answers``: packets of four bytes.

    ``notify``, for answers other than MQTT's: called with the greatest reason when everything is
    done.
    """

    def __init__(self, reactor: FlowControl) -> None:
        self.reactor = reactor
        self.connection: Connection | None = None
        self.answers = b""
        self.waiting = 0
        self.reason = 0
        self.notify: Callable[[int], object] | None = None

    def hold(self) -> PendingAck:
        """Add a holder that must call ``done`` before the answer is sent."""
        self.waiting += 1
        return self

    def done(self, reason: cython.int = 0) -> cython.int:
        """Note that one holder is done; the greatest reason is the answer's."""
        self.waiting -= 1
        if reason > self.reason:
            self.reason = reason
        if self.waiting == 0:
            if self.connection is not None:
                release(self.connection, self.reactor)
            elif self.notify is not None:
                notify = self.notify
                self.notify = None
                notify(self.reason)
        return 0

    def answer(self, connection: Connection, answers: bytes) -> cython.int:
        """Send ``answers`` when all holders are done and their turn has come."""
        self.answers = answers
        self.connection = connection
        if connection.pending_acks is None:
            connection.pending_acks = deque()
        connection.pending_acks.append(self)
        if len(connection.pending_acks) > PENDING_ACKS_MAX:
            self.reactor.pause(connection, PAUSED_ANSWERS)
        if self.waiting == 0:
            release(connection, self.reactor)
        return 0


def respond(
    connection: Connection, run: PublishRun, pending_ack: PendingAck | None, reactor: FlowControl
) -> cython.int:
    """Acknowledge a run: at once unless its pending ack or an earlier one delays it."""
    held: PendingAck
    out: bytearray
    first: cython.int = 0x40 if run.qos == 1 else 0x50
    if pending_ack is None and not connection.pending_acks:
        append_acknowledgements(connection.buffer(), run, first)
        connection.size += 4 * run.count
        return 0
    held = PendingAck(reactor) if pending_ack is None else pending_ack
    out = bytearray()
    append_acknowledgements(out, run, first)
    return held.answer(connection, bytes(out))


def release(connection: Connection, reactor: FlowControl) -> cython.int:
    """Write the answers whose turn has come."""
    pending_ack: PendingAck
    handler: MqttHandler = connection.handler
    while connection.pending_acks:
        pending_ack = connection.pending_acks[0]
        if pending_ack.waiting:
            break
        connection.pending_acks.popleft()
        pending_ack.connection = None
        if pending_ack.reason == 0:
            connection.append(pending_ack.answers)
        else:
            handler.refused(connection, pending_ack.answers, pending_ack.reason)
            if connection.fd < 0:
                return 0
    if (
        connection.paused & PAUSED_ANSWERS
        and len(connection.pending_acks or ()) * 2 <= PENDING_ACKS_MAX
    ):
        reactor.resume(connection, PAUSED_ANSWERS)
    return 0


def abandon(connection: Connection) -> cython.int:
    """Drop the pending acks of a connection that is gone."""
    pending_ack: PendingAck
    if connection.pending_acks:
        for item in connection.pending_acks:
            pending_ack = item
            pending_ack.connection = None
    connection.pending_acks = None
    return 0
