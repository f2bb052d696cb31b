"""Whatever a client sends, in whatever order: only protocol errors come of it, and nothing stays behind.

Sequences by seed, mostly of what clients do, with a mistake now and then; more with ``FLUXMQ_EXAMPLES``.
"""

from __future__ import annotations

import os
import random
from typing import Any, Final

from fluxmq.model.properties import Timestamp
from fluxmq.protocols.amqp091.content import BasicProperties, encode_properties, frames_of_content
from fluxmq.protocols.amqp091.method_codec import encode, frame
from fluxmq.protocols.amqp091.methods import (
    LAYOUTS,
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicRecover,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConfirmSelect,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    TxCommit,
    TxRollback,
    TxSelect,
)
from fluxmq.sessions.amqp091.client import AmqpStage
from tests.unit.sessions.amqp091.memory import MemoryBroker, Peer

SEQUENCES: Final = 4 * int(os.environ.get("FLUXMQ_EXAMPLES", "100"))
STEPS: Final = 60
PSEUDO: Final = "amq.rabbitmq.reply-to"
NAMES: Final = ("a", "b", "c", "", "é", PSEUDO, PSEUDO + ".0000000000000000000002")
EXCHANGES: Final = ("", "", "amq.topic", "amq.fanout", "e")
TAGS: Final = ("s", "t", "u", "")
KEYS: Final = (
    "x-queue-type",
    "x-max-length",
    "x-overflow",
    "x-priority",
    "x-stream-offset",
    "x-single-active-consumer",
    "x-consumer-group",
    "alternate-exchange",
    "CC",
    "BCC",
    "x-match",
)
VALUES: Final[tuple[object, ...]] = (
    None,
    True,
    0,
    -1,
    1 << 40,
    1.5,
    "classic",
    "quorum",
    "stream",
    "first",
    "reject-publish",
    b"\xff",
    Timestamp(5),
    [],
    ["a", "b"],
    [["x"]],
    {},
    {"k": {"k": []}},
)


class Sender:
    """Draws what is sent."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def table(self) -> dict[str, Any]:
        """Arguments or headers: usually none."""
        if self.random.random() < 0.8:
            return {}
        return {self.random.choice(KEYS): self.random.choice(VALUES) for _ in range(2)}

    def flag(self, likely: float = 0.3) -> bool:
        return self.random.random() < likely

    def usual(self) -> Method:
        """A method that may well be right."""
        pick = self.random.choice
        name, tag, number = pick(NAMES), pick(TAGS), self.random.randrange(8)
        methods: list[tuple[int, Method]] = [
            (
                6,
                QueueDeclare(
                    name, self.flag(0.1), False, self.flag(), self.flag(), self.flag(), self.table()
                ),
            ),
            (6, QueueDeclare(pick("abc"))),
            (2, QueueBind(name, pick(EXCHANGES), pick(TAGS), self.flag(), self.table())),
            (2, ExchangeDeclare("e", pick(("fanout", "topic")), arguments=self.table())),
            (1, ExchangeBind("e", "amq.fanout")),
            (1, ExchangeDelete("e")),
            (1, QueueDelete(name, self.flag(), self.flag(), self.flag())),
            (1, QueuePurge(name)),
            (3, BasicQos(0, self.random.randrange(4), self.flag())),
            (8, BasicConsume(pick("abc"), pick(TAGS), False, self.flag(), False, self.flag())),
            (3, BasicConsume(name, tag, False, self.flag(), self.flag(), False, self.table())),
            (2, BasicConsume(PSEUDO, tag, no_ack=self.flag(0.9))),
            (4, BasicCancel(tag)),
            (6, BasicGet(pick("abc"), self.flag())),
            (6, BasicAck(0, True)),
            (6, BasicAck(number, self.flag())),
            (4, BasicNack(number, self.flag(), self.flag(0.6))),
            (4, BasicNack(0, True, self.flag(0.6))),
            (3, BasicRecover(True)),
            (1, ConfirmSelect()),
            (1, TxSelect()),
            (2, TxCommit()),
            (1, TxRollback()),
            (1, ChannelClose(200, "", 0, 0)),
        ]
        return self.random.choices(
            [method for _, method in methods], [each for each, _ in methods]
        )[0]

    def publish(self, channel: int) -> bytes:
        """A message, perhaps in many frames."""
        pick = self.random.choice
        method = BasicPublish(pick(EXCHANGES), pick(NAMES), self.flag(), self.flag(0.01))
        properties = BasicProperties(
            headers=self.table() or None,
            reply_to=PSEUDO if self.flag(0.05) else None,
            expiration=pick(("5", "x")) if self.flag(0.1) else None,
            user_id=pick((None, None, "guest", "bob")) if self.flag(0.1) else None,
        )
        body = bytes(self.random.randrange(30))
        content = frames_of_content(
            channel, encode_properties(properties), body, pick((12, 131_072))
        )
        parts = [frame(channel, method), *content]
        if self.flag(0.02):
            del parts[self.random.randrange(len(parts))]
        return b"".join(parts)

    def unusual(self, channel: int) -> bytes:
        """A frame that hardly fits: any method, cut short, or of another type."""
        kind = self.random.choice((1, 1, 1, 2, 3))
        class_id, method_id, _, _ = self.random.choice(LAYOUTS)
        payload = bytes((0, class_id, 0, method_id)) + self.random.randbytes(
            self.random.randrange(12)
        )
        if self.flag():
            payload = encode(self.usual())[: self.random.randrange(20)]
        return bytes((kind, 0, channel)) + len(payload).to_bytes(4, "big") + payload + b"\xce"

    def piece(self) -> bytes:
        """What the client sends next."""
        channel = 0 if self.flag(0.005) else 1
        chance = self.random.random()
        if chance < 0.01:
            return self.unusual(channel)
        if chance < 0.3:
            return self.publish(channel)
        if chance < 0.4:
            # After a mistake it goes on; otherwise this is one.
            return frame(channel, ChannelCloseOk()) + frame(channel, ChannelOpen())
        return frame(channel, self.usual())


def ready_to_go_on(peer: Peer) -> bool:
    """Whether the channel is closed after a mistake."""
    channel = peer.session.channels.get(1)
    return channel is None or not channel.is_open


def run(seed: int) -> int:
    """One sequence; how many steps the connection lived for."""
    sender = Sender(seed)
    broker = MemoryBroker()
    options = sender.random
    peer = Peer(
        broker,
        limit=options.choice((1 << 20, 100)),
        capabilities=["consumer_cancel_notify", "connection.blocked"],
    )
    peer.send(1, *[QueueDeclare(name) for name in "abc"], *([TxSelect()] if sender.flag() else []))
    lived = 0
    for _ in range(STEPS):
        broker.slow = sender.flag(0.2)
        data = sender.piece()
        while not ready_to_go_on(peer) and b"\0\x14\0\x29" in data[:12]:
            data = sender.piece()
        if ready_to_go_on(peer) and sender.flag(0.7):
            opened = frame(1, ChannelOpen())
            data = opened if 1 not in peer.session.channels else frame(1, ChannelCloseOk()) + opened
        peer.raw(data)
        if not broker.slow:
            broker.release()
        if sender.flag(0.7):
            peer.receive()
        if sender.flag(0.02):
            broker.handler.block("no room")
            broker.handler.unblock()
        lived += peer.client.stage is AmqpStage.RUNNING
    broker.slow = False
    broker.release()
    broker.tick()
    peer.receive()
    broker.handler.lost(peer.connection)
    broker.release()
    broker.tick()
    assert peer.client.stage is AmqpStage.CLOSED
    assert (broker.paused, broker.counted, broker.handler.clients) == ([], [], {})
    assert (broker.replies, broker.handler.marked) == ({}, [])
    for queue in broker.queues.values():
        assert not queue.attached
        assert sorted(queue.messages) == queue.ready, "what is not settled is ready again"
    return lived


def test_only_protocol_errors_come_of_it() -> None:
    lived = [run(seed) for seed in range(SEQUENCES)]
    assert sum(lived) > 20 * len(lived), "most sequences go on for long"
