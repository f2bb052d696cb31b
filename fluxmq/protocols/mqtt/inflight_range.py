"""Parts of a delivery: interests in a topic, stretches of a run for one session, and their
measuring and writing for a connection.

Source: MQTT 5.0 sections 3.3.4 (overlapping subscriptions), 3.1.2.11.4 (Maximum Packet Size).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

import cython

from fluxmq.protocols.connection import Connection, Tally
from fluxmq.protocols.mqtt.ports import AnswerSink
from fluxmq.protocols.mqtt.run import (
    PublishRun,
    append_numbered,
    append_publishes,
    properties_field,
)

if cython.compiled:
    from cython.cimports.fluxmq.protocols.connection import Connection, Tally
    from cython.cimports.fluxmq.protocols.mqtt.run import (
        PublishRun,
        append_numbered,
        append_publishes,
        properties_field,
    )


GROWTH_MAX: Final = 16
"""Bytes a message may grow by when written for another version: packet identifier, length of the
properties, expiry, longer remaining length. Subscription identifiers are extra."""


CLOCK_SLACK: Final = 0.02
"""Seconds of a message's life that are not rounded up: a shard reads the clock once a tick, and a
message that another one has just received may seem to come from the future."""


EXPIRY_MAX: Final = 0xFFFFFFFF
"""Greatest Message Expiry Interval."""


class InflightRange:
    """``count`` messages of ``run`` from byte ``offset`` on, for one session at ``qos``.

    ``pid``: identifier of the first once written, 0 before; ``acknowledged``: how many from the
    front on are answered. ``group``: the shared subscription it came by, which gets it back when
    the session ends. ``settle``, an `AnswerSink`: informed of answered messages, as ranges counted
    from ``base``, the number of the in-flight range's first message; ``reported``: how many were.
    ``held``: bytes it counts in flight. ``queued``: a durable queue holds the message as well.
    """

    def __init__(
        self,
        run: PublishRun,
        offset: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        qos: cython.int,
        retain: cython.int,
        subscription_ids: bytes,
        group: Any,
    ) -> None:
        self.run = run
        self.offset = offset
        self.count = count
        self.qos = qos
        self.retain = retain
        self.subscription_ids = subscription_ids
        self.group = group
        self.pid = 0
        self.acknowledged = 0
        self.settle: Any = None
        self.base = 0
        self.reported = 0
        self.held = 0
        self.queued = False

    def take(self, count: cython.Py_ssize_t) -> InflightRange:
        """Split off the first ``count`` messages."""
        front: InflightRange = InflightRange(
            self.run, self.offset, count, self.qos, self.retain, self.subscription_ids, self.group
        )
        front.pid = self.pid
        front.settle = self.settle
        front.base = self.base
        front.queued = self.queued
        self.base += count
        self.offset = self.run.skip(self.offset, count)
        self.count -= count
        if self.pid:
            self.pid += count
        return front

    def forget_fit(self) -> cython.int:
        """Make a run that ``fitting`` measured be measured again."""
        run: PublishRun = self.run
        if run.largest == 0:
            run.largest = run.end - run.start + len(run.topic) + len(run.properties)
        return 0


def fitting(inflight: InflightRange, connection: Connection) -> list[InflightRange]:
    """Return the messages that the client accepts, one in-flight range each; count the others as
    dropped.

    The runs of these in-flight ranges have ``largest`` 0: measured, without a topic alias, for this
    connection. Source: MQTT 5.0 section 3.1.2.11.4: such a message is discarded as if it had been
    sent.
    """
    run: PublishRun = inflight.run
    offset: cython.Py_ssize_t = inflight.offset
    size: cython.Py_ssize_t
    fixed: cython.Py_ssize_t
    index: cython.Py_ssize_t
    body: cython.Py_ssize_t
    kept: list[InflightRange] = []
    piece: PublishRun
    alone: InflightRange
    sink: AnswerSink
    fixed = 2 + len(run.topic) + (2 if inflight.qos else 0)
    if run.fixed:
        fixed = run.variable
    else:
        fixed += len(
            properties_field(
                connection.version,
                run.properties,
                1 if run.deadline != 0.0 else 0,
                0,
                inflight.subscription_ids,
            )
        )
    for index in range(inflight.count):
        body = run.body_at(offset)
        size = fixed + run.body_length
        size += 1 + (1 if size < 128 else 2 if size < 16384 else 3 if size < 2097152 else 4)
        if size <= connection.max_packet_out:
            piece = run.part(offset, body + run.body_length, 1)
            piece.largest = 0
            alone = InflightRange(
                piece,
                offset,
                1,
                inflight.qos,
                inflight.retain,
                inflight.subscription_ids,
                inflight.group,
            )
            alone.settle = inflight.settle
            alone.base = inflight.base + index
            alone.queued = inflight.queued
            if inflight.pid:
                alone.pid = inflight.pid + index
            kept.append(alone)
        else:
            connection.tally.dropped_large += 1
            if inflight.settle is not None:
                sink = inflight.settle
                sink.refused(inflight.base + index)
        offset = body + run.body_length
    return kept


def unanswered(inflight: InflightRange, early: Container[int] | None) -> list[InflightRange]:
    """Return the unanswered parts of an in-flight range, split where answers came out of order."""
    stretch: cython.Py_ssize_t
    left: list[InflightRange] = []
    if inflight.acknowledged:
        inflight.take(inflight.acknowledged)
        inflight.acknowledged = 0
        inflight.reported = 0
    while inflight.count:
        stretch = 0
        while stretch < inflight.count and not (early and (inflight.pid + stretch) in early):
            stretch += 1
        if stretch == inflight.count:
            left.append(inflight)
            break
        if stretch:
            left.append(inflight.take(stretch))
        inflight.take(1)
    return left


def write_inflight(
    connection: Connection, inflight: InflightRange, pid: cython.int, redelivered: cython.bint
) -> cython.int:
    """Write an in-flight range to a connection. ``pid`` 0 means QoS 0; ``redelivered`` sets DUP."""
    tally: Tally = connection.tally
    run: PublishRun = inflight.run
    first: cython.int = 0x30 | (inflight.qos << 1) | inflight.retain | (8 if redelivered else 0)
    out: bytearray = connection.buffer()
    before: cython.Py_ssize_t = len(out)
    expiry: cython.long = 0
    left: cython.double
    alias: cython.int = 0
    offset: cython.Py_ssize_t = inflight.offset
    count: cython.Py_ssize_t = inflight.count
    properties: bytes
    if run.fixed:
        if pid:
            append_numbered(out, run, offset, count, first, pid)
        else:
            out += memoryview(run.buffer)[offset : run.skip(offset, count)]
    elif (
        pid
        and run.qos
        and run.verbatim
        and run.version == connection.version
        and connection.alias_maximum == 0
        and not inflight.subscription_ids
        and run.deadline == 0.0
    ):
        append_numbered(out, run, offset, count, first, pid)
    else:
        if run.deadline != 0.0:
            # The remaining time, rounded up: never 0 for a live message. `properties_field` takes one more.
            left = run.deadline - tally.now
            expiry = 1
            if left > 0.0:
                expiry = 2
                if left > CLOCK_SLACK:
                    expiry += cython.cast(cython.long, left - CLOCK_SLACK)
                if expiry > EXPIRY_MAX + 1:
                    expiry = EXPIRY_MAX + 1
        if not redelivered and run.largest:
            alias = connection.alias(run.topic)
        if alias < 0:
            # The first message names the topic and its alias, the others only the alias.
            properties = properties_field(
                connection.version, run.properties, expiry, -alias, inflight.subscription_ids
            )
            offset = append_publishes(out, run, offset, 1, first, run.topic, properties, pid)
            count -= 1
            alias = -alias
            if pid:
                pid += 1
        if count:
            properties = properties_field(
                connection.version, run.properties, expiry, alias, inflight.subscription_ids
            )
            append_publishes(
                out, run, offset, count, first, b"" if alias else run.topic, properties, pid
            )
    connection.size += len(out) - before
    tally.sent(inflight.qos, inflight.count, len(out) - before)
    return 0
