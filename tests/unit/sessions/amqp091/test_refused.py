"""Publishes that a full queue refuses: each message of a run is answered for itself."""

from __future__ import annotations

from fluxmq.protocols.amqp091.content import NO_PROPERTIES, frames_of_content
from fluxmq.protocols.amqp091.method_codec import frame
from fluxmq.protocols.amqp091.methods import (
    BasicAck,
    BasicNack,
    BasicPublish,
    ConfirmSelect,
    QueueDeclare,
)
from tests.unit.sessions.amqp091.memory import MemoryBroker, Peer


def test_what_fits_is_confirmed_and_the_rest_refused() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    peer.send(1, QueueDeclare("q", arguments=arguments), ConfirmSelect())
    peer.receive()
    method = frame(1, BasicPublish("", "q", False, False))
    peer.raw(
        b"".join(
            method + b"".join(frames_of_content(1, NO_PROPERTIES, b"%d" % number, 4096))
            for number in range(5)
        )
    )
    answers = peer.got()
    acknowledged: set[int] = set()
    refused: set[int] = set()
    for answer in answers:
        assert isinstance(answer, BasicAck | BasicNack)
        into = acknowledged if isinstance(answer, BasicAck) else refused
        known = acknowledged | refused
        first = 1 if answer.multiple else answer.delivery_tag
        into.update(set(range(first, answer.delivery_tag + 1)) - known)
    assert (acknowledged, refused) == ({1, 2}, {3, 4, 5})
    assert len(broker.queues["/", "q"].ready) == 2
