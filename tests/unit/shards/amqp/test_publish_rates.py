"""Publishers that are faster than they may be are read more slowly."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluxmq.routing.topology.changes import SetVhostLimits
from fluxmq.routing.topology.refusals import Refusal
from tests.unit.shards.amqp.support import AmqpClient, AmqpNode, user

MakeAmqp = Callable[..., AmqpNode]
TEN = {"ratelimit": {"publish": {"messages": 10}}}


class Sender:
    """A client that publishes messages of ten bytes, whether they are read or not."""

    def __init__(self, node: AmqpNode, shard: int = 0) -> None:
        self.shard = node[shard]
        self.client = AmqpClient(node, shard)
        self.client.send(1, "channel.open")

    def publish(self, count: int) -> None:
        """Publish messages that differ: each is a run."""
        for number in range(count):
            self.client.publish(1, "amq.fanout", str(number), b"0123456789")

    @property
    def read(self) -> int:
        """How many messages were read of all clients of the shard."""
        return self.shard.reactor.tally.amqp_published


def test_a_client_is_read_at_its_rate(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1, (user(),), **TEN)
    fast, slow = Sender(node), Sender(node)
    fast.publish(50)
    assert fast.read == 11, "a second's at once, and the one that is too many"
    assert len(node[0].broker.rates.held) == 1
    slow.publish(1)
    assert fast.read == 12, "others are read"
    node.advance(1)
    assert fast.read in (21, 22)
    node.advance(4)
    assert fast.read == 51
    assert node[0].broker.rates.slowed["client"] > 5


def test_a_run_is_charged_as_a_whole(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1, (user(),), **TEN)
    sender = Sender(node)
    for _ in range(31):
        sender.client.publish(1, "amq.fanout", "", b"equal")
    assert sender.read == 11
    node.advance(0.3)
    at_once = sender.read
    assert at_once > 20, "what had been sent was read at once"
    node.advance(1)
    assert sender.read == at_once
    node.advance(2)
    assert sender.read == 31


def test_bytes_are_limited_too(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1, (user(),), ratelimit={"publish": {"bytes": 100}})
    sender = Sender(node)
    sender.publish(30)
    assert sender.read == 11
    node.advance(1)
    assert sender.read in (20, 21)


def test_a_virtual_hosts_rate_is_shared_by_the_publishers_of_all_shards(
    make_amqp: MakeAmqp,
) -> None:
    node = make_amqp(2, (user(),))
    node.control.change(SetVhostLimits("/", {"max-publish-rate": 20}))
    first, second = Sender(node, 0), Sender(node, 1)
    for sender in (first, second):
        sender.publish(100)
        assert sender.read == 21
    node.advance(2)
    before = first.read + second.read
    node.advance(2)
    assert 35 <= first.read + second.read - before <= 45
    assert abs(first.read - second.read) <= 4
    assert first.shard.broker.rates.slowed["vhost"]
    node.control.change(SetVhostLimits("/", {}))
    node.advance(1)
    assert first.read == 100


def test_a_publisher_that_stops_leaves_its_share_to_others(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2, (user(),))
    node.control.change(SetVhostLimits("/", {"max-publish-rate": 20}))
    first, second = Sender(node, 0), Sender(node, 1)
    first.publish(200)
    second.publish(21)
    node.advance(4)
    before = first.read
    node.advance(2)
    assert 36 <= first.read - before <= 44


def test_a_connection_that_ends_is_forgotten(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1, (user(),), **TEN)
    sender = Sender(node)
    sender.publish(20)
    rates = node[0].broker.rates
    (connection,) = rates.held
    connection.identity.client.disconnect("bye")
    node.settle()
    assert "connection.close" in [each.name for each in sender.client.read()]
    assert not rates.held, "the answer is awaited"
    sender.client._sock.close()
    node.settle()
    assert not rates._clients


def test_a_rate_of_nothing_is_refused(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1)
    with pytest.raises(Refusal, match="at least 1"):
        node.control.topology.apply(SetVhostLimits("/", {"max-publish-rate": 0}))
    node.control.change(SetVhostLimits("/", {"max-publish-rate": -1}))
    assert not node[0].reactor.watching
