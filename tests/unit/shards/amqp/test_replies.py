"""Direct replies within a shard and between shards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluxmq.protocols.amqp091.content import BasicProperties, encode_properties
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.shards.amqp.replies import WAIT_SECONDS, shard_in
from tests.unit.shards.amqp.support import AmqpNode

MakeAmqp = Callable[..., AmqpNode]
NOTHING = encode_properties(BasicProperties())


class Port:
    """Where replies come."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def deliver(
        self, batch: object, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Replies come."""
        self.payloads += [batch.payload(each) for each in range(first, first + count)]  # type: ignore[attr-defined]

    def cancelled(self) -> None:
        """Not for replies."""


def send(node: AmqpNode, shard: int, address: str, payload: bytes) -> bool:
    """Send a reply."""
    run = AmqpPublishRun.of(
        1, b"", b"amq.rabbitmq.reply-to." + address.encode(), False, False, NOTHING, payload
    )
    sent = node.amqp(shard).replies.send(address, run, b"")
    node.run()
    return sent


def exists(node: AmqpNode, shard: int, address: str) -> list[bool]:
    """Ask whether somebody waits at an address."""
    told: list[bool] = []
    node.amqp(shard).replies.exists(address, told.append)
    node.run()
    return told


def test_replies_come_from_every_shard(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    port = Port()
    replies = node.amqp(0).replies
    address = replies.open(port)
    assert replies.open(Port()) != address
    for shard in (0, 1):
        assert exists(node, shard, address) == [True]
        assert send(node, shard, address, b"%d" % shard)
    assert port.payloads == [b"0", b"1"]
    replies.close(address)
    assert [exists(node, shard, address) for shard in (0, 1)] == [[False], [False]]
    assert not send(node, 0, address, b"late")
    assert send(node, 1, address, b"late"), "only its shard knows that it has gone"
    assert port.payloads == [b"0", b"1"]


@pytest.mark.parametrize("address", ["", "7", "x.y", "-1.a", "9.a", "123456789.a", "²." + "a"])
def test_addresses_that_are_none_lead_nowhere(make_amqp: MakeAmqp, address: str) -> None:
    node = make_amqp(2)
    assert exists(node, 0, address) == [False]
    assert not send(node, 0, address, b"1")


def test_a_shard_in_an_address() -> None:
    assert shard_in("12.abc") == 12
    assert shard_in("1.2.3") == 1
    assert shard_in("12") == -1


def test_a_shard_that_does_not_answer_is_not_waited_for(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    address = node.amqp(0).replies.open(Port())
    node.hold()
    told: list[bool] = []
    node.amqp(1).replies.exists(address, told.append)
    node.run()
    assert told == []
    node.advance(WAIT_SECONDS + 0.2)
    assert told == [False]
    node.release()
    assert told == [False], "answered once"


def test_a_shard_that_died_has_no_addresses(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2)
    address = node.amqp(0).replies.open(Port())
    node.kill(0)
    node.advance(0.5)
    assert exists(node, 1, address) == [False]
    assert not send(node, 1, address, b"1")
    node.start(0)
    node.settle()
    assert exists(node, 1, address) == [False], "another process has its place"
