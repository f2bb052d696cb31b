"""Consumers for tests: a queue with messages, who takes them, and what they got."""

from __future__ import annotations

from collections.abc import Sequence

from fluxmq.protocols.amqp091.content import BasicProperties
from fluxmq.protocols.amqp091.methods import BasicDeliver, QueueDeclare, QueueDeclareOk
from tests.unit.sessions.amqp091.memory import MemoryBroker, Message, Peer
from tests.unit.sessions.amqp091.scripts import play

DECLARED = QueueDeclareOk("q", 0, 0)
STREAM = QueueDeclare("q", durable=True, arguments={"x-queue-type": "stream"})
QUORUM = QueueDeclare("q", durable=True, arguments={"x-queue-type": "quorum"})
SINGLE: dict[str, object] = {"x-single-active-consumer": True}


def delivered(
    tag: str,
    number: int,
    body: bytes = b"x",
    again: bool = False,
    queue: str = "q",
    **properties: object,
) -> Message:
    """A delivery as it comes; ``again``: marked as redelivered."""
    method = BasicDeliver(tag, number, again, "", queue)
    return Message(method, BasicProperties(**properties), body)  # type: ignore[arg-type]


def consuming(
    broker: MemoryBroker,
    count: int,
    *steps: object,
    body: bytes = b"",
    **peer_options: object,
) -> Peer:
    """A peer after these steps, on a queue with ``count`` messages before them; what came is not taken yet."""
    peer = Peer(broker, **peer_options)  # type: ignore[arg-type]
    peer.send(1, QueueDeclare("q"))
    peer.receive()
    for number in range(count):
        peer.publish("", "q", body or b"%d" % number)
    play(peer, steps)  # type: ignore[arg-type]
    return peer


def bodies(items: Sequence[object]) -> list[bytes]:
    """Bodies of the messages among what came."""
    return [item.body for item in items if isinstance(item, Message)]
