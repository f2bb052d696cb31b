"""A client's stream of AMQP 1.0 to sessions in memory, whole or in pieces, and what comes of it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from fluxmq.protocols.amqp10.frames import AMQP_HEADER, FRAME_SASL, SASL_HEADER, frame
from fluxmq.protocols.amqp10.performatives import (
    AttachFrame,
    BeginFrame,
    OpenFrame,
    SaslInitFrame,
    TargetTerminus,
)
from fluxmq.protocols.amqp10.types import Symbol
from fluxmq.routing.topology.changes import DeclareQueue
from fluxmq.routing.topology.records import QueueRecord
from tests.unit.sessions.amqp091.memory import MemoryBroker
from tests.unit.sessions.amqp10.peer_10 import Peer10

BEGINNING = (
    SASL_HEADER
    + frame(0, SaslInitFrame(Symbol("PLAIN"), b"\0guest\0guest"), kind=FRAME_SASL)
    + AMQP_HEADER
    + frame(0, OpenFrame("c"))
    + frame(0, BeginFrame(None, 0, 100, 100))
    + frame(0, AttachFrame("s", 0, False, target=TargetTerminus("/queues/q")))
)


def outcome(pieces: list[bytes]) -> tuple[Any, ...]:
    """Return the frames that a client gets and the contents of the queues once all pieces have come."""
    broker = MemoryBroker()
    broker.apply([DeclareQueue(QueueRecord("/", "q"))])
    peer = Peer10(broker, opened=False)
    for piece in pieces:
        peer.raw(piece)
    seen = [peer.receive() for _ in range(3)]
    kept = {
        name: [(batch.payload(index), batch.properties(index)) for batch, index in held]
        for (_, name), queue in broker.queues.items()
        for held in (queue.messages.values(),)
    }
    settled = {name: queue.settled for (_, name), queue in broker.queues.items()}
    frames = [(each.channel, repr(each.body), each.payload) for part in seen for each in part]
    return frames, kept, settled, broker.errors, broker.closed, peer.connection.closing


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The bytes in pieces."""
    ends = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[first:last] for first, last in pairwise(ends)]
