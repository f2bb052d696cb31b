"""A vhost's limit of connections is for the node, whichever shards they are on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluxmq.auth.users import VhostPermission
from fluxmq.routing.topology.changes import AddVhost, SetUserLimits, SetVhostLimits
from fluxmq.routing.topology.records import Vhost
from tests.unit.shards.amqp.support import EVERYTHING, AmqpClient, AmqpNode, user

OTHER = VhostPermission("other", ".*", ".*", ".*")
MakeAmqp = Callable[..., AmqpNode]


def counts(node: AmqpNode, vhost: str = "/") -> list[int]:
    """What each shard believes."""
    return [node.amqp(shard.index).vhost_connections.count(vhost) for shard in node]


def assert_full(node: AmqpNode, limit: int) -> None:
    """Every shard refuses the next connection."""
    for shard in node:
        with pytest.raises(AssertionError, match=rf"connection limit \({limit}\) is reached"):
            AmqpClient(node, shard.index)


def limit(node: AmqpNode, most: int) -> None:
    node.control.change(SetVhostLimits("/", {"max-connections": most}))


def end(client: AmqpClient) -> None:
    """The client is gone."""
    client._sock.close()
    client.node.settle()


def test_a_vhost_takes_so_many_connections_on_all_shards_together(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2, (user(),))
    limit(node, 2)
    first, _ = AmqpClient(node, 0), AmqpClient(node, 1)
    assert counts(node) == [2, 2]
    assert_full(node, 2)
    end(first)
    assert counts(node) == [1, 1]
    AmqpClient(node, 1)
    assert_full(node, 2)


@pytest.mark.parametrize(("most", "taken"), [(0, 0), (1, 1), (-1, 3)])
def test_a_limit_may_be_nothing_and_none(make_amqp: MakeAmqp, most: int, taken: int) -> None:
    node = make_amqp(1, (user(),))
    limit(node, most)
    for _ in range(taken):
        AmqpClient(node)
    if most >= 0:
        assert_full(node, most)


def test_a_limit_set_later_counts_those_who_are_there(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2, (user(),))
    clients = [AmqpClient(node, shard) for shard in (0, 1, 1)]
    limit(node, 2)
    assert_full(node, 2)
    for client in clients:
        assert client.read() == [], "nobody is disconnected"
    limit(node, 4)
    AmqpClient(node)
    assert_full(node, 4)


def test_vhosts_are_counted_apart(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2, (user("anna", EVERYTHING, OTHER),))
    node.control.change(AddVhost(Vhost("other")))
    limit(node, 1)
    AmqpClient(node, 0, vhost="other")
    AmqpClient(node, 1)
    assert (counts(node), counts(node, "other")) == ([1, 1], [1, 1])
    assert_full(node, 1)
    AmqpClient(node, 1, vhost="other")


def test_connections_of_a_shard_that_died_do_not_count(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2, (user(),))
    limit(node, 2)
    AmqpClient(node, 0)
    AmqpClient(node, 1)
    node.kill(0)
    node.start(0)
    node.settle()
    assert counts(node) == [1, 1], "a shard that has started is told what there is"
    AmqpClient(node, 0)
    assert_full(node, 2)


def test_a_user_has_so_many_connections_and_channels(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2, (user(),))
    node.control.change(SetUserLimits("anna", {"max-connections": 2, "max-channels": 1}))
    first, second = AmqpClient(node, 0), AmqpClient(node, 1)
    with pytest.raises(AssertionError, match=r"user connection limit \(2\) is reached"):
        AmqpClient(node, 1)
    first.send(1, "channel.open")
    assert [each.name for each in first.read()] == ["channel.open-ok"]
    second.send(1, "channel.open")
    (closed,) = second.read()
    assert (closed.name, closed.fields["reply_code"]) == ("connection.close", 530)
    text = (
        "number of channels opened for user 'anna' has reached the maximum allowed user limit of 1"
    )
    assert closed.fields["reply_text"] == f"NOT_ALLOWED - {text}"
    first.send(1, "channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
    first.read()
    end(second)
    third = AmqpClient(node, 1)
    third.send(1, "channel.open")
    assert [each.name for each in third.read()] == ["channel.open-ok"]
